//! Goldens of whole utterances, from prompt to samples.

use super::manifest::{Case, bad};
use super::{REPETITION_PENALTY, Run, integers};
use crate::ModelError;
use crate::hooks::Steps;
use crate::qwen3_tts::{
    FinishReason, Prompt, Request, Sampling, Session, Settings, Speaker, StartOptions, Step, TextFeeding,
    codec_decoder,
};
use orate_weights::{SafeTensors, WeightSource};

struct Utterance<'a> {
    case: &'a Case,
    tensors: SafeTensors,
}

impl Utterance<'_> {
    fn text(&self, key: &str) -> Option<&str> {
        self.case.inputs.get(key)?.as_str()
    }

    fn needed(&self, key: &str) -> Result<&str, ModelError> {
        self.text(key).ok_or_else(|| bad(&self.case.file, format!("its inputs have no `{key}`")))
    }

    fn floats(&self, name: &str) -> Result<Vec<f32>, ModelError> {
        Ok(self.tensors.get(name)?.to_f32())
    }

    fn integers(&self, name: &str) -> Result<Vec<i32>, ModelError> {
        integers(&self.tensors, name)
    }

    /// One step of a tensor whose first axis is steps. A file with only some of them lists these in
    /// `<name>.steps`.
    fn step(&self, name: &str, step: usize) -> Result<Option<Vec<f32>>, ModelError> {
        let kept = format!("{name}.steps");
        let row = if self.tensors.contains(&kept) {
            self.integers(&kept)?.iter().position(|k| *k == step as i32)
        } else {
            Some(step)
        };
        let tensor = self.tensors.get(name)?;
        let (all, rows) = (tensor.to_f32(), tensor.shape.first().copied().unwrap_or(0).max(1));
        Ok(row.and_then(|row| all.chunks_exact(all.len() / rows).nth(row).map(<[f32]>::to_vec)))
    }

    fn prompt(&self, run: &Run<'_>) -> Result<Prompt, ModelError> {
        let has = |name: &str| self.tensors.contains(name);
        let x_vector = if has("speaker_embedding") { self.floats("speaker_embedding")? } else { vec![] };
        let codes = if has("ref_codes") { self.integers("ref_codes")? } else { vec![] };
        let speaker = match self.text("speaker") {
            Some(name) => Speaker::Named(name),
            None if !codes.is_empty() => {
                let transcript = self.needed("ref_text")?;
                Speaker::InContext { x_vector: &x_vector, transcript, codes: &codes }
            }
            None if !x_vector.is_empty() => Speaker::XVector(&x_vector),
            None => Speaker::Described,
        };
        let whole = self.case.inputs.get("non_streaming_mode").and_then(serde_json::Value::as_bool);
        run.model.prompt(&Request {
            text: self.needed("text")?,
            speaker,
            language: self.text("language"),
            instruct: self.text("instruct"),
            feeding: whole.map(|whole| if whole { TextFeeding::Whole } else { TextFeeding::Streaming }),
        })
    }

    /// Margin of the golden logit of the first code that differs over the logit of the code in its place,
    /// relative to the largest logit. `None` for code 0, or where the file has no logits of this frame.
    fn margin(&self, frame: usize, got: &[i32], golden: &[i32]) -> Result<Option<f64>, ModelError> {
        let differs = got.iter().zip(golden).position(|(a, b)| a != b);
        let (Some(pass), Some(logits)) =
            (differs.and_then(|q| q.checked_sub(1)), self.step("predictor_logits", frame)?)
        else {
            return Ok(None);
        };
        let logits = logits.chunks_exact(logits.len() / (golden.len() - 1)).nth(pass).unwrap_or_default();
        let of = |codes: &[i32]| logits.get(codes[pass + 1] as usize).map(|x| f64::from(*x));
        let largest = logits.iter().fold(0f64, |most, x| most.max(f64::from(x.abs())));
        Ok(of(golden).zip(of(got)).map(|(golden, got)| (golden - got) / largest))
    }

    /// Greedy, with the package's penalty.
    fn settings(&self) -> Result<Settings, ModelError> {
        let codes = self.case.inputs.get("max_new_tokens").and_then(serde_json::Value::as_u64);
        let codes = codes.ok_or_else(|| bad(&self.case.file, "no `max_new_tokens`".to_owned()))?;
        Ok(Settings {
            first: Sampling { repetition_penalty: REPETITION_PENALTY, ..Sampling::GREEDY },
            predictor: Sampling::GREEDY,
            seed: 0,
            // There the last code makes no frame. Here it is the first code of a frame that is not decoded,
            // or the end.
            max_frames: codes as usize,
        })
    }
}

/// Largest margin, relative to the largest logit, that rounding decides: logits in f32 differ from the golden
/// ones by 1e-6, and one of seven seeds has two codes that are 7e-8 apart.
const TIE: f64 = 4e-6;

enum Drawn {
    /// Frames up to the first that differs, or all, and the code after them.
    Frames { last: Option<i32> },
    /// A frame differs in a code that is a tie. The rest is another utterance.
    Tie { frame: usize, margin: f64 },
}

#[derive(Default)]
struct Frames {
    hidden: Steps,
    logits: Steps,
    predicted: Steps,
    codes: Vec<i32>,
}

impl Run<'_> {
    /// Speaks, and compares every tensor in between.
    pub fn utterance(&mut self, name: &str, case: &Case) -> Result<(), ModelError> {
        let u = Utterance { case, tensors: SafeTensors::open(&case.file)? };
        let prompt = u.prompt(self)?;
        let settings = u.settings()?;
        let taps = StartOptions { taps: true, ..StartOptions::default() };
        let mut session = self.model.start_with(&prompt, &settings, taps)?;
        self.prompt(name, &u, &mut session)?;

        let want = u.integers("codes")?;
        let quantizers = self.model.codec().quantizers();
        let mut all = Frames::default();
        let drawn =
            if self.out.is_exact() { Some(self.free(&u, &mut session, &want, &mut all)?) } else { None };
        if let Some(Drawn::Tie { .. }) = drawn {
            session = self.model.start_with(&prompt, &settings, taps)?;
            all = Frames::default();
        }
        if let None | Some(Drawn::Tie { .. }) = drawn {
            for codes in want.chunks_exact(quantizers) {
                all.before(&u, &mut session)?;
                session.give_frame(codes)?;
                all.after(&u, &mut session)?;
                if self.out.taps() && session.frames() == 1 {
                    self.first_frame(name, &u, &mut session)?;
                }
            }
            all.before(&u, &mut session)?;
        } else if self.out.taps() && !all.codes.is_empty() {
            // Taps are overwritten by each frame, so the first one is decoded again.
            session = self.model.start_with(&prompt, &settings, taps)?;
            session.next_frame(&mut vec![])?;
            self.first_frame(name, &u, &mut session)?;
        }
        self.out.steps(name, "talker", "talker_hidden", &all.hidden);
        self.out.steps(name, "talker", "talker_logits", &all.logits);
        self.out.steps(name, "code_predictor", "predictor_logits", &all.predicted);
        match drawn {
            None => {
                let why = "lower precision decides near ties differently; the golden codes were fed back in";
                self.out.skip(&format!("{name}/codes"), why);
            }
            Some(Drawn::Tie { frame, margin }) => {
                self.out.equal(name, "sampling", &format!("codes up to frame {frame}"), true);
                let why = format!(
                    "two codes of frame {frame} are a tie, {margin:.0e} apart in the golden logits; \
                     the golden codes were fed back in"
                );
                self.out.skip(&format!("{name}/codes from frame {frame} on"), &why);
            }
            Some(Drawn::Frames { last }) => {
                let (got, frames) = (&all.codes, want.len() / quantizers);
                let equal = got.chunks(quantizers).zip(want.chunks(quantizers)).take_while(|(a, b)| a == b);
                let equal = equal.count();
                let tensor =
                    if *got == want { "codes".to_owned() } else { format!("codes from frame {equal} on") };
                self.out.equal(name, "sampling", &tensor, *got == want);
                if *got != want {
                    let why = format!("codes differ from frame {equal} of {frames} on");
                    self.out.skip(&format!("{name}/later frames"), &why);
                }
                self.out.equal(name, "sampling", "end", last == u.integers("talker_tokens")?.last().copied());
            }
        }
        drop(session);
        self.samples(name, &u, &want)
    }

    /// Decodes freely, up to the first frame that differs, and draws the code after the last frame: the end
    /// of speech, if all is well.
    fn free(
        &mut self,
        u: &Utterance<'_>,
        session: &mut Session,
        want: &[i32],
        all: &mut Frames,
    ) -> Result<Drawn, ModelError> {
        let end = self.model.talking()?.config.talker_config.codec_eos_token_id as i32;
        let mut codes = vec![];
        loop {
            all.before(u, session)?;
            let frame = session.frames();
            let golden = want.chunks_exact(self.model.codec().quantizers()).nth(frame);
            match (session.next_frame(&mut codes)?, golden) {
                (Step::End(FinishReason::Stop), None) => return Ok(Drawn::Frames { last: Some(end) }),
                (Step::Frame, None) => return Ok(Drawn::Frames { last: Some(codes[0]) }),
                (Step::End(_), _) => return Ok(Drawn::Frames { last: None }),
                (Step::Frame, Some(golden)) => {
                    all.codes.extend(&codes);
                    all.after(u, session)?;
                    if codes != golden {
                        let margin = u.margin(frame, &codes, golden)?.filter(|margin| margin.abs() <= TIE);
                        return Ok(match margin {
                            Some(margin) => Drawn::Tie { frame, margin },
                            None => Drawn::Frames { last: None },
                        });
                    }
                }
            }
        }
    }

    /// Compares the rows of the prompt, the trailing text, and the layers of prefill.
    fn prompt(&mut self, name: &str, u: &Utterance<'_>, session: &mut Session) -> Result<(), ModelError> {
        let mut got = vec![];
        session.read("rows", &mut got)?;
        self.out.tensor(name, "prompt", "prompt_embeds", &got, &u.floats("prompt_embeds")?);
        session.read("trailing", &mut got)?;
        let (trailing, pad) = (u.floats("trailing_text")?, u.floats("tts_pad_embed")?);
        let text = trailing.len().min(got.len());
        self.out.tensor(name, "prompt", "trailing_text", &got[..text], &trailing);
        let mut padding = Steps::default();
        got[text..].chunks(pad.len().max(1)).for_each(|row| padding.push(row, &pad));
        self.out.steps(name, "prompt", "tts_pad_embed", &padding);
        for i in 0.. {
            let tensor = format!("prefill_layer{i}");
            if !self.out.taps() || !u.tensors.contains(&tensor) {
                break;
            }
            session.read(&format!("tap/{tensor}"), &mut got)?;
            self.out.tensor(name, "talker", &tensor, &got, &u.floats(&tensor)?);
        }
        Ok(())
    }

    /// Compares the layers of the predictor in the first frame: two rows of the first pass, then a row of
    /// each other pass.
    fn first_frame(
        &mut self,
        name: &str,
        u: &Utterance<'_>,
        session: &mut Session,
    ) -> Result<(), ModelError> {
        let passes = self.model.codec().quantizers() - 1;
        for i in 0.. {
            let tensor = format!("frame0_predictor_layer{i}");
            if !u.tensors.contains(&tensor) {
                break;
            }
            let (mut rows, mut all) = (vec![], vec![]);
            for pass in 0..passes {
                session.read(&format!("tap/predictor_pass{pass}_layer{i}"), &mut rows)?;
                all.extend_from_slice(&rows);
            }
            self.out.tensor(name, "code_predictor", &tensor, &all, &u.floats(&tensor)?);
        }
        Ok(())
    }

    /// Compares samples. The reference is decoded before the utterance, and its share of the samples is cut.
    fn samples(&mut self, name: &str, u: &Utterance<'_>, codes: &[i32]) -> Result<(), ModelError> {
        if !u.tensors.contains("waveform") {
            self.out.skip(&format!("{name}/waveform"), "the file has none");
            return Ok(());
        }
        let before = if u.tensors.contains("ref_codes") { u.integers("ref_codes")? } else { vec![] };
        let all = [&before[..], codes].concat();
        let samples = self.model.codec().decode(&all)?;
        let cut = codec_decoder::reference_samples(before.len(), all.len(), samples.len());
        self.out.tensor(name, "codec_decoder", "waveform", &samples[cut..], &u.floats("waveform")?);
        Ok(())
    }
}

impl Frames {
    /// Compares the state that the next frame is drawn from.
    fn before(&mut self, u: &Utterance<'_>, session: &mut Session) -> Result<(), ModelError> {
        let j = session.frames();
        let mut got = vec![];
        for (buffer, golden, steps) in
            [("hidden", "talker_hidden", &mut self.hidden), ("logits", "talker_logits", &mut self.logits)]
        {
            let Some(want) = u.step(golden, j)? else { continue };
            session.read(buffer, &mut got)?;
            steps.push(&got, &want);
        }
        Ok(())
    }

    /// Compares the logits of the predictor's passes.
    fn after(&mut self, u: &Utterance<'_>, session: &mut Session) -> Result<(), ModelError> {
        let Some(want) = u.step("predictor_logits", session.frames() - 1)? else { return Ok(()) };
        let heads = u.tensors.get("predictor_logits")?.shape.get(1).copied().unwrap_or(1).max(1);
        let mut got = vec![];
        for (head, want) in want.chunks_exact((want.len() / heads).max(1)).enumerate() {
            session.read(&format!("tap/predictor_logits{head}"), &mut got)?;
            self.predicted.push(&got, want);
        }
        Ok(())
    }
}
