//! Goldens of single parts: tokenizer, sampling, speaker encoder and codec.

use super::manifest::{Case, bad};
use super::{LOG_MEL_TOLERANCE, REPETITION_PENALTY, Run, integers, lacks};
use crate::hooks::{Comparison, Limit, relative_error};
use crate::qwen3_tts::{
    Past, Qwen3Tts, SpeakerEncoderConfig, codec_decoder, codec_encoder, frame, speaker_encoder,
};
use crate::{Loader, ModelError};
use orate_audio::LogMel;
use orate_graph::{DType, Graph, GraphError, Memory, Op, Plan, SampleRules, Shape};
use orate_text::qwen::Part;
use orate_weights::{SafeTensors, WeightSource};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A text of `tokenizer.json` with its ids, alone and in each prompt template.
#[derive(Deserialize)]
struct TextRow {
    text: String,
    ids: Vec<u32>,
    assistant: Vec<u32>,
    reference: Vec<u32>,
    instruct: Vec<u32>,
}

/// Settings of a distribution of `sampling_chain`.
#[derive(Deserialize)]
struct Chain {
    history: Vec<usize>,
    top_k: f32,
    top_p: f32,
    temperature: f32,
}

const OTHER_WIDTH: &str = "it was made with a codec of another width";

/// Draws from each distribution, over all runs.
const DRAWS: usize = 4096;
const DRAWS_AT_ONCE: usize = 512;
/// Standard deviations that a frequency may differ from its probability.
const DEVIATIONS: f64 = 5.0;

/// Why a case was not compared to its end.
enum Stop {
    Skipped(String),
    Failed(ModelError),
}

impl<E: Into<ModelError>> From<E> for Stop {
    fn from(e: E) -> Stop {
        Stop::Failed(e.into())
    }
}

type Done = Result<(), Stop>;
type Build<'a> = &'a dyn Fn(&mut Graph) -> Result<(), GraphError>;

/// Skips the case unless a condition holds.
fn needs(holds: bool, why: &str) -> Done {
    if holds { Ok(()) } else { Err(Stop::Skipped(why.to_owned())) }
}

/// A case that is being compared, and a memory for its networks.
struct Network<'a> {
    name: &'a str,
    case: &'a Case,
    model: &'a Arc<Qwen3Tts>,
    out: &'a mut dyn Comparison,
    memory: Box<dyn Memory>,
}

impl Run<'_> {
    pub fn network(&mut self, name: &str, case: &Case) -> Result<(), ModelError> {
        let memory = self.model.device().memory();
        let mut network = Network { name, case, model: self.model, out: &mut *self.out, memory };
        let done = match name {
            "tokenizer" => network.tokenizer(),
            "sampling_chain" => network.sampling(),
            "speaker_encoder" => network.speaker_encoder(),
            "codec_encode" => network.codec_encode(),
            "codec_decode" => network.codec_decode(),
            "codec_decode_long" => network.codec_decode_long(),
            "resample" => needs(false, "for judging resamplers; the model has none"),
            _ => needs(false, "a case that this program does not know"),
        };
        match done {
            Ok(()) => {}
            Err(Stop::Failed(e)) => return Err(e),
            Err(Stop::Skipped(why)) => self.out.skip(name, &why),
        }
        Ok(())
    }
}

impl Network<'_> {
    fn tokenizer(&mut self) -> Done {
        let file = &self.case.file;
        let text = std::fs::read(file).map_err(|e| bad(file, e.to_string()))?;
        let rows: Vec<TextRow> = serde_json::from_slice(&text).map_err(|e| bad(file, e.to_string()))?;
        let tokenizer = &self.model.talking()?.tokenizer;
        // The official tokenizer gets a single string, so it recognizes added tokens in texts.
        let same_ids = |parts: [&str; 4], want: &[u32]| tokenizer.encode(&parts.map(Part::Control)) == want;
        let (assistant, user, end) = ("<|im_start|>assistant\n", "<|im_start|>user\n", "<|im_end|>\n");
        let same = [
            ("ids", rows.iter().all(|r| same_ids([&r.text, "", "", ""], &r.ids))),
            ("assistant", rows.iter().all(|r| same_ids([assistant, &r.text, end, assistant], &r.assistant))),
            ("reference", rows.iter().all(|r| same_ids([assistant, &r.text, end, ""], &r.reference))),
            ("instruct", rows.iter().all(|r| same_ids([user, &r.text, end, ""], &r.instruct))),
        ];
        same.into_iter().for_each(|(tensor, same)| self.out.equal(self.name, "text", tensor, same));
        Ok(())
    }

    /// Codes must be drawn from those that the goldens leave, with the frequencies that they say, within
    /// chance. The seed is fixed, so the verdict is always the same.
    fn sampling(&mut self) -> Done {
        let file = SafeTensors::open(&self.case.file)?;
        let config = &self.model.talking()?.config.talker_config;
        let v = config.vocab_size;
        let chains: BTreeMap<String, Chain> = serde_json::from_value(self.case.inputs.clone())
            .map_err(|e| bad(&self.case.file, e.to_string()))?;
        let rules = SampleRules { controls: Some(frame::controls(config)), ..SampleRules::default() };
        let build = |g: &mut Graph| -> Result<(), GraphError> {
            let logits = g.input("logits", DType::F32, [DRAWS_AT_ONCE, v])?;
            let settings = g.input("settings", DType::F32, [DRAWS_AT_ONCE, 4])?;
            let seed = g.input("seed", DType::I32, [DRAWS_AT_ONCE, 2])?;
            let number = g.input("number", DType::I32, [DRAWS_AT_ONCE])?;
            let seen = g.input("seen", DType::F32, [DRAWS_AT_ONCE, v])?;
            let draw = orate_graph::Draw { settings, seed, number };
            let code = g.sample(Op::Sample(rules), logits, draw, Some(seen))?;
            g.output("codes", code)
        };
        self.can_run(&build)?;
        for (i, chain) in chains {
            let logits = file.get(&format!("logits{i}"))?.to_f32();
            let want = file.get(&format!("probs{i}"))?.to_f32();
            if logits.len() != v || want.len() != v || chain.history.iter().any(|id| *id >= v) {
                self.skip(&format!("probs{i}"), &format!("it has {} ids, the model has {v}", logits.len()));
                continue;
            }
            let mut seen = vec![0.0; v];
            chain.history.iter().for_each(|id| seen[*id] = 1.0);
            let settings = [chain.temperature, chain.top_k, chain.top_p, REPETITION_PENALTY];
            for (name, row) in [("logits", &logits[..]), ("settings", &settings), ("seen", &seen)] {
                let rows = row.repeat(DRAWS_AT_ONCE);
                self.memory.write_f32(name, &[DRAWS_AT_ONCE, row.len()].into(), &rows)?;
            }
            let number = vec![chain.history.len() as i32; DRAWS_AT_ONCE];
            self.memory.write_i32("number", &[DRAWS_AT_ONCE].into(), &number)?;
            let mut counts = vec![0usize; v];
            for round in 0..DRAWS / DRAWS_AT_ONCE {
                let seeds: Vec<i32> = (0..DRAWS_AT_ONCE).flat_map(|row| [row as i32, round as i32]).collect();
                self.memory.write_i32("seed", &[DRAWS_AT_ONCE, 2].into(), &seeds)?;
                self.run(&build)?;
                for code in self.codes()? {
                    if let Some(count) = usize::try_from(code).ok().and_then(|c| counts.get_mut(c)) {
                        *count += 1;
                    }
                }
            }
            let got: Vec<f32> = counts.iter().map(|n| *n as f32 / DRAWS as f32).collect();
            let error = past_chance(&got, &want);
            self.out.verdict(self.name, "sampling", &format!("frequencies{i}"), error, error == 0.0);
        }
        Ok(())
    }

    fn speaker_encoder(&mut self) -> Done {
        let c = self.model.talking()?.config.speaker_encoder_config.clone();
        needs(c.is_some(), "the model has no speaker encoder")?;
        let c = c.unwrap_or_default();
        let file = SafeTensors::open(&self.case.file)?;
        let want = file.get("embedding")?.to_f32();
        needs(want.len() == c.enc_dim, "it was made with a speaker encoder of another width")?;
        let (mel, shape) = self.log_mel(&c, &file)?;
        let frames = shape.dims()[1];
        let build = |g: &mut Graph| speaker_encoder::build(g, &c, frames);
        self.can_run(&build)?;
        self.memory.write_f32("log_mel", &shape, &mel)?;
        self.run(&build)?;
        let stages = ["block0", "block1", "block2", "block3", "mfa", "pooled"];
        self.stages("speaker_encoder", &file, &stages)?;
        let mut got = vec![];
        self.memory.read_f32("x_vector", &mut got)?;
        self.out.tensor(self.name, "speaker_encoder", "embedding", &got, &want);
        Ok(())
    }

    /// Features of the case's recording, `[1, T, 128]`, computed on the host.
    fn log_mel(&mut self, c: &SpeakerEncoderConfig, file: &SafeTensors) -> Result<(Vec<f32>, Shape), Stop> {
        let mel = LogMel::new(&speaker_encoder::mel(c))?.apply(&self.recording(file, c.sample_rate)?);
        let want = file.get("log_mel")?;
        let by_band: Vec<f32> = (0..mel.bins)
            .flat_map(|band| (0..mel.frames).map(move |t| (t, band)))
            .map(|(t, b)| mel.frame(t)[b])
            .collect();
        let error = relative_error(&ends_of(&by_band, &want.shape), &want.to_f32());
        let least = match self.out.limit() {
            Limit::Error(limit) => (*limit).max(LOG_MEL_TOLERANCE),
            _ => LOG_MEL_TOLERANCE,
        };
        self.out.verdict(self.name, "features", "log_mel", error, error <= least);
        Ok((mel.data, Shape::from([1, mel.frames, mel.bins])))
    }

    fn codec_encode(&mut self) -> Done {
        let (file, codec) = (SafeTensors::open(&self.case.file)?, &self.model.files().codec);
        let c = &codec.encoder_config;
        let width = Some(&c.transformer.hidden_size);
        needs(file.get("downsample")?.shape.first() == width, OTHER_WIDTH)?;
        let samples = self.recording(&file, codec.input_sample_rate)?;
        let rows = samples.len().div_ceil(codec_encoder::samples_per_feature(c));
        let features = |g: &mut Graph| codec_encoder::features(g, c, Past::Silence, 1, samples.len());
        let codes = |g: &mut Graph| codec_encoder::codes(g, codec, 1, rows);
        self.can_run(&features)?;
        self.can_run(&codes)?;
        self.memory.write_f32("samples", &[1, samples.len()].into(), &samples)?;
        self.run(&features)?;
        self.stages("codec_encoder", &file, &["seanet"])?;
        // The second network reads the output of the first one.
        self.run(&codes)?;
        self.stages("codec_encoder", &file, &["transformer", "downsample"])?;
        if self.out.is_exact() {
            let same = self.codes()? == integers(&file, "codes")?;
            self.out.equal(self.name, "codec_encoder", "codes", same);
        } else {
            self.skip("codes", "lower precision decides near ties differently");
        }
        Ok(())
    }

    fn codec_decode(&mut self) -> Done {
        let file = SafeTensors::open(&self.case.file)?;
        let c = &self.model.files().codec.decoder_config;
        needs(file.get("quantized")?.shape.first() == Some(&c.codebook_dim), OTHER_WIDTH)?;
        let codes = integers(&file, "codes")?;
        let frames = codes.len() / c.num_quantizers;
        let build = |g: &mut Graph| codec_decoder::build(g, c, Past::Silence, 1, frames);
        self.can_run(&build)?;
        let mut stages = vec!["quantized".to_owned(), "pre_conv".to_owned(), "pre_transformer".to_owned()];
        for i in 0..c.upsampling_ratios.len() {
            stages.extend([format!("upsample{i}_conv"), format!("upsample{i}")]);
        }
        stages.extend((0..c.upsample_rates.len() + 3).map(|i| format!("decoder{i}")));
        // Trimmed goldens lack the last stage, the waveform before clipping.
        let stages: Vec<&str> = stages.iter().map(String::as_str).filter(|s| file.contains(s)).collect();
        self.memory.write_i32("codes", &[1, frames, c.num_quantizers].into(), &codes)?;
        if self.out.taps() {
            self.run(&build)?;
            self.stages("codec_decoder", &file, &stages)?;
        }
        let samples = self.model.codec().decode(&codes)?;
        self.out.tensor(self.name, "codec_decoder", "waveform", &samples, &file.get("waveform")?.to_f32());
        Ok(())
    }

    /// The official package restarts after 300 frames; the goldens also have its single pass around the seam.
    fn codec_decode_long(&mut self) -> Done {
        let Case { inputs, file: path } = self.case;
        let file = SafeTensors::open(path)?;
        let c = &self.model.files().codec.decoder_config;
        let codes = integers(&file, "codes")?;
        self.can_run(&|g| codec_decoder::build(g, c, Past::Stream, 1, 1))?;
        let known = codes.iter().all(|code| (*code as usize) < c.codebook_size);
        needs(known, "it was made with larger codebooks")?;
        let samples = self.model.codec().decode(&codes)?;
        let window = inputs.get("window").and_then(|w| <(usize, usize)>::deserialize(w).ok());
        let window = window.ok_or_else(|| bad(path, "its inputs have no `window`".to_owned()))?;
        for (tensor, (from, to)) in [("head", (0, file.get("head")?.to_f32().len())), ("whole", window)] {
            let got = samples.get(from..to).unwrap_or(&[]);
            self.out.tensor(self.name, "codec_decoder", tensor, got, &file.get(tensor)?.to_f32());
        }
        for tensor in ["chunked", "tail"] {
            let why = "the official package restarts after frame 300; here it is one pass, as in `whole`";
            self.skip(tensor, why);
        }
        Ok(())
    }

    fn skip(&mut self, tensor: &str, why: &str) {
        self.out.skip(&format!("{}/{tensor}", self.name), why);
    }

    fn codes(&mut self) -> Result<Vec<i32>, ModelError> {
        let mut codes = vec![];
        self.memory.read_i32("codes", &mut codes)?;
        Ok(codes)
    }

    /// Compares taps `[…, columns]`. Of long ones the goldens have the first and last columns.
    fn stages(&mut self, stage: &'static str, file: &SafeTensors, taps: &[&str]) -> Result<(), ModelError> {
        let recorded = if self.out.taps() { taps } else { &[] };
        for tap in recorded {
            let want = file.get(tap)?;
            let mut got = vec![];
            self.memory.read_f32(&format!("tap/{tap}"), &mut got)?;
            self.out.tensor(self.name, stage, tap, &ends_of(&got, &want.shape), &want.to_f32());
        }
        Ok(())
    }

    /// Skips the case if the device cannot run a network.
    fn can_run(&self, build: Build<'_>) -> Done {
        let lacking = match self.graph(build) {
            Ok(g) => lacks(&Plan::unsupported(g, &**self.model.device())),
            Err(e) => Some(e.to_string()),
        };
        lacking.map_or(Ok(()), |why| Err(Stop::Skipped(why)))
    }

    fn graph(&self, build: Build<'_>) -> Result<Graph, GraphError> {
        let g = Graph::new("verify");
        let mut g = if self.out.taps() { g.with_taps() } else { g };
        build(&mut g)?;
        Ok(g)
    }

    /// Runs a network on the inputs in the memory.
    fn run(&mut self, build: Build<'_>) -> Result<(), ModelError> {
        let device = self.model.device();
        let plan = Plan::compile(self.graph(build)?, &**device)?;
        let weights = Arc::new(Loader(self.model.files().weights.clone()));
        Ok(device.open(weights).load(plan)?.run(&mut *self.memory)?)
    }

    /// Samples of the recording: the tensor `wav`, or the file next to it that the arguments name.
    fn recording(&self, file: &SafeTensors, sample_rate: u32) -> Result<Vec<f32>, ModelError> {
        if file.contains("wav") {
            return Ok(file.get("wav")?.to_f32());
        }
        let Case { inputs, file } = self.case;
        let name = inputs.get("ref_audio").and_then(serde_json::Value::as_str);
        let name = name.ok_or_else(|| bad(file, "neither `wav` nor `ref_audio` in its inputs".to_owned()))?;
        let path = file.with_file_name(name);
        let wave = orate_audio::read_wav(&path)?;
        if wave.sample_rate != sample_rate {
            let problem = format!("{} Hz; the model needs {sample_rate} Hz", wave.sample_rate);
            return Err(bad(&path, problem));
        }
        Ok(wave.samples)
    }
}

/// Largest excess of a frequency's distance from its probability over what chance allows, as a part of the
/// largest probability; 0 if none is in excess. Infinite if an id without probability was drawn, or a
/// probability is not finite.
fn past_chance(got: &[f32], want: &[f32]) -> f64 {
    let draws = DRAWS as f64;
    let largest = want.iter().fold(0f64, |m, p| m.max(f64::from(*p)));
    let excess = got.iter().zip(want).map(|(got, p)| {
        let (got, p) = (f64::from(*got), f64::from(*p));
        let allowed = DEVIATIONS * (p * (1.0 - p) / draws).sqrt() + 1.0 / draws;
        match got {
            _ if !p.is_finite() || (got > 0.0 && p == 0.0) => f64::INFINITY,
            _ => ((got - p).abs() - allowed).max(0.0) / largest,
        }
    });
    let sum: f32 = got.iter().sum();
    // Ids outside of the vocabulary were not counted.
    if (sum - 1.0).abs() > 0.5 / DRAWS as f32 { f64::INFINITY } else { excess.fold(0.0, f64::max) }
}

/// The first and last columns of each row, as the goldens have them: `shape` is `[rows, kept]`.
fn ends_of(x: &[f32], shape: &[usize]) -> Vec<f32> {
    let &[rows, kept] = shape else { return x.to_vec() };
    let columns = x.len() / rows.max(1);
    if columns <= kept {
        return x.to_vec();
    }
    let ends = |row: &[f32]| [&row[..kept / 2], &row[columns - kept / 2..]].concat();
    x.chunks_exact(columns).flat_map(ends).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_has_limits() {
        assert_eq!(past_chance(&[0.5, 0.5, 0.0], &[0.5, 0.5, 0.0]), 0.0);
        assert_eq!(past_chance(&[0.51, 0.49], &[0.5, 0.5]), 0.0);
        assert!((past_chance(&[0.6, 0.4], &[0.5, 0.5]) - 0.121).abs() < 1e-3);
        assert_eq!(past_chance(&[0.5, 0.4, 0.1], &[0.5, 0.5, 0.0]), f64::INFINITY);
        assert_eq!(past_chance(&[0.5, 0.25], &[0.5, 0.5]), f64::INFINITY, "a quarter was no id");
        assert_eq!(past_chance(&[1.0, 0.0], &[f32::NAN, 0.5]), f64::INFINITY);
    }

    #[test]
    fn long_rows_keep_their_ends() {
        let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        assert_eq!(ends_of(&x, &[2, 2]), [1.0, 4.0, 5.0, 8.0]);
        assert_eq!(ends_of(&x, &[2, 4]), x);
    }
}
