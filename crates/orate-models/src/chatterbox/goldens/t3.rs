//! Goldens of T3: a prompt in the default voice, stage by stage, and the codes drawn after it.

use super::Run;
use super::draw::{Noise, Order, probabilities};
use super::forced::{Forced, Official, guided_by};
use super::stored::{bad, golden, integers};
use crate::ModelError;
use crate::chatterbox::config::{Backbone, END_OF_SPEECH, START_OF_SPEECH};
use crate::chatterbox::options::Options as Own;
use crate::chatterbox::pipeline::EXAGGERATION;
use crate::chatterbox::t3::LOGITS;
use crate::chatterbox::t3_plans::{Prompt, T3};
use crate::decoding::{Sampling, Session, StartOptions};
use crate::hooks::Steps;
use orate_graph::TAP_PREFIX;
use orate_weights::{SafeTensors, WeightSource};
use serde_json::Value;

/// Stage of all these tensors.
pub(super) const STAGE: &str = "t3";

/// Why rows of GPT-2 are not compared; its layers are.
const WITH_POSITIONS: &str = "there, positions are added later";

impl Run<'_> {
    pub(super) fn t3(&mut self, case: &str) -> Result<(), ModelError> {
        let file = self.stored.file(case)?;
        if file.contains("alignment") {
            return self.guarded(case, &file);
        }
        let run = self.stored.run(case);
        let own = own_options(run.get("kwargs").unwrap_or(&Value::Null));
        let text = integers(&file, "text_tokens")?;
        // Both rows of a guided model hold the same ids.
        let lanes = file.get("text_tokens")?.shape.first().copied().unwrap_or(1);
        let text = text[..text.len() / lanes].to_vec();
        let voice = self.model.voice(&crate::Options::default())?;
        let Some(of_t3) = &voice.talking else {
            return Err(bad(&self.stored.folder, "the model's default voice has no part for T3"));
        };
        let conditioning = self.model.conditioning(of_t3, own.exaggeration.unwrap_or(EXAGGERATION))?;
        let prompt = self.model.prompt(conditioning, text)?;
        let own = Own { max_codes: Some(integers(&file, "sampled_tokens")?.len()), ..own };
        let settings = self.model.draw_settings(&own, 0);
        let (sampling, seed) = (settings.sampling[0], self.stored.seed(case)?);
        let taps = StartOptions { taps: true, ..StartOptions::default() };
        let mut session = self.model.t3()?.start(&prompt, settings, taps)?;
        self.prompt(case, &file, &mut session, &prompt)?;
        self.codes(case, &file, &mut session, (sampling, seed))
    }

    fn prompt(
        &mut self,
        case: &str,
        file: &SafeTensors,
        session: &mut Session<T3>,
        prompt: &Prompt,
    ) -> Result<(), ModelError> {
        let config = &self.model.talking()?.config;
        if config.backbone == Backbone::Llama {
            let want = golden(file, "cond_emb")?;
            let got = prompt.conditioning.rows();
            let got = want.cut(&[1, got.len() / config.width, config.width], got);
            self.out.tensor(case, STAGE, "cond_emb", &got, &want.data);
            self.buffer(case, file, session, ("prefill.inputs_embeds", crate::decoding::ROWS.to_owned()))?;
        } else {
            self.out.skip(&format!("{case}/cond_emb"), WITH_POSITIONS);
            self.out.skip(&format!("{case}/prefill.inputs_embeds"), WITH_POSITIONS);
            self.out.skip(&format!("{case}/step1.inputs_embeds"), WITH_POSITIONS);
        }
        if self.out.taps() {
            for i in 0..config.layers {
                let name = format!("prefill.layer{i}");
                self.buffer(case, file, session, (&name, format!("{TAP_PREFIX}prefill_layer{i}")))?;
            }
        }
        Ok(())
    }

    /// Compares a buffer of the session with a golden tensor.
    fn buffer(
        &mut self,
        case: &str,
        file: &SafeTensors,
        session: &mut Session<T3>,
        (name, buffer): (&str, String),
    ) -> Result<(), ModelError> {
        let want = golden(file, name)?;
        let mut got = vec![];
        let shape = session.read(&buffer, &mut got)?;
        let got = want.cut(shape.dims(), &got);
        self.out.tensor(case, STAGE, name, &got, &want.data);
        Ok(())
    }

    /// Draws codes on the host, with the random numbers of the goldens.
    fn codes(
        &mut self,
        case: &str,
        file: &SafeTensors,
        session: &mut Session<T3>,
        (sampling, seed): (Sampling, u64),
    ) -> Result<(), ModelError> {
        let want = integers(file, "sampled_tokens")?;
        let official = Official::of(file, &self.stored.folder, sampling.guidance)?;
        let hidden = golden(file, "hidden")?;
        let config = self.model.talking()?.config.clone();
        let lanes = config.lanes();
        let (mut noise, mut before, mut drawn) = (Noise::new(seed), vec![START_OF_SPEECH], vec![]);
        let (mut all, mut of_logits, mut of_hidden) = (Forced::default(), Steps::default(), Steps::default());
        let mut own = vec![];
        for (step, code) in want.iter().enumerate() {
            session.read(LOGITS, &mut own)?;
            of_logits.push(&official.cut(&own), official.logits(step));
            official.compare(&own, &mut all);
            let kept = hidden.data.chunks_exact(lanes * config.width).nth(step);
            if let Some(want) = kept.filter(|_| self.out.taps()) {
                let mut got = vec![];
                session.read(&format!("{TAP_PREFIX}hidden"), &mut got)?;
                of_hidden.push(&got, want);
            }
            drawn.push(draw(&own, lanes, &before, sampling, &mut noise));
            // Turbo forgets the start after the first code.
            if lanes == 1 && step == 0 {
                before.clear();
            }
            before.push(*code);
            if *code != END_OF_SPEECH {
                session.give_frame(&[*code])?;
            }
            if step == 0 && self.out.taps() && lanes == 2 {
                self.buffer(case, file, session, ("step1.inputs_embeds", format!("{TAP_PREFIX}row")))?;
            }
        }
        self.out.steps(case, STAGE, "logits", &of_logits);
        if self.out.taps() {
            self.out.steps(case, STAGE, "hidden", &of_hidden);
        }
        self.forced(case, STAGE, &all);
        // The official call was ended by force.
        drawn.pop();
        let same = drawn[..] == want[..drawn.len()];
        if self.out.is_exact() {
            self.out.equal(case, STAGE, "sampled_tokens", same);
        }
        Ok(())
    }
}

/// Draws a code on the host from the logits `[L, V]` of all lanes.
pub(super) fn draw(logits: &[f32], lanes: usize, before: &[i32], s: Sampling, noise: &mut Noise) -> i32 {
    let order = if lanes == 1 { Order::PenaltyLast } else { Order::PenaltyFirst };
    noise.index(&probabilities(&guided_by(logits, lanes, s.guidance), before, s, order)) as i32
}

impl Run<'_> {
    /// Feeds the golden codes of a call to T3, and compares the logits of every frame.
    pub(super) fn force(
        &mut self,
        case: &str,
        file: &SafeTensors,
        session: &mut Session<T3>,
        guidance: f32,
    ) -> Result<(), ModelError> {
        let official = Official::of(file, &self.stored.folder, guidance)?;
        let (mut all, mut own) = (Forced::default(), vec![]);
        for code in integers(file, "sampled_tokens")? {
            session.read(LOGITS, &mut own)?;
            official.compare(&own, &mut all);
            if code != END_OF_SPEECH {
                session.give_frame(&[code])?;
            }
        }
        self.forced(case, STAGE, &all);
        Ok(())
    }

    /// Draws `count` codes, each of which is fed back in.
    pub(super) fn draw(
        &mut self,
        session: &mut Session<T3>,
        sampling: Sampling,
        noise: &mut Noise,
        count: usize,
    ) -> Result<Vec<i32>, ModelError> {
        let lanes = self.model.talking()?.config.lanes();
        let (mut before, mut drawn, mut logits) = (vec![START_OF_SPEECH], vec![], vec![]);
        while drawn.len() < count {
            session.read(LOGITS, &mut logits)?;
            let code = draw(&logits, lanes, &before, sampling, noise);
            drawn.push(code);
            if drawn.len() < count {
                session.give_frame(&[code])?;
            }
            // Turbo forgets the start after the first code.
            if lanes == 1 && drawn.len() == 1 {
                before.clear();
            }
            before.push(code);
        }
        Ok(drawn)
    }
}

/// Arguments of the official call as options.
pub(super) fn own_options(kwargs: &Value) -> Own {
    let float = |name: &str| kwargs.get(name).and_then(Value::as_f64).map(|x| x as f32);
    Own {
        exaggeration: float("exaggeration"),
        cfg_weight: float("cfg_weight"),
        temperature: float("temperature"),
        min_p: float("min_p"),
        top_p: float("top_p"),
        repetition_penalty: float("repetition_penalty"),
        ..Own::default()
    }
}
