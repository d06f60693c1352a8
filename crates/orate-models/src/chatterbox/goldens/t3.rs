//! Goldens of T3: a prompt in the default voice, stage by stage, and the codes drawn after it.

use super::Run;
use super::draw::{Noise, Order, probabilities};
use super::stored::{bad, golden, integers};
use crate::ModelError;
use crate::chatterbox::config::{Backbone, END_OF_SPEECH, START_OF_SPEECH};
use crate::chatterbox::options::Options as Own;
use crate::chatterbox::pipeline::EXAGGERATION;
use crate::chatterbox::t3::LOGITS;
use crate::chatterbox::t3_plans::{Prompt, T3};
use crate::decoding::{Sampling, Session, StartOptions};
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
        let (want, logits, hidden) =
            (integers(file, "sampled_tokens")?, golden(file, "logits")?, golden(file, "hidden")?);
        let config = self.model.talking()?.config.clone();
        let (lanes, v) = (config.lanes(), config.speech_ids);
        let (mut noise, mut before, mut drawn) = (Noise::new(seed), vec![START_OF_SPEECH], vec![]);
        let (of_step, kept) = (logits.data.len() / logits.shape[0], logits.shape[2]);
        let of_hidden = lanes * config.width;
        let mut own = vec![];
        for (step, code) in want.iter().enumerate() {
            session.read(LOGITS, &mut own)?;
            if let Some(want) = logits.data.chunks_exact(of_step).nth(step) {
                let cut = super::stored::Golden { shape: vec![lanes, kept], data: vec![] };
                let got = cut.cut(&[lanes, v], &own);
                self.out.tensor(case, STAGE, &format!("logits{step}"), &got, want);
            }
            if let Some(want) = hidden.data.chunks_exact(of_hidden).nth(step).filter(|_| self.out.taps()) {
                let mut got = vec![];
                session.read(&format!("{TAP_PREFIX}hidden"), &mut got)?;
                self.out.tensor(case, STAGE, &format!("hidden{step}"), &got, want);
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
    let (guided, order): (Vec<f32>, _) = match lanes {
        1 => (logits.to_vec(), Order::PenaltyLast),
        _ => {
            let (with, without) = logits.split_at(logits.len() / lanes);
            let guided = with.iter().zip(without).map(|(c, u)| c + s.guidance * (c - u)).collect();
            (guided, Order::PenaltyFirst)
        }
    };
    noise.index(&probabilities(&guided, before, s, order)) as i32
}

impl Run<'_> {
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
