//! Qwen3-TTS beside what the official package computed.
//!
//! The folder is that of `oracle/qwen3_tts`: one that holds `cases`, that folder itself, or one of its folders with the
//! utterances of one variant. Compared are the utterances of the model's own checkpoint, and the cases of single networks:
//!
//! | case | what |
//! | --- | --- |
//! | `VARIANT/…` | ids, prompt, hidden states, logits, codes, samples of an utterance |
//! | `tokenizer` | ids of texts |
//! | `sampling_chain` | what is drawn from given logits |
//! | `speaker_encoder`, `codec_encode`, `codec_decode`, `codec_decode_long` | a network, stage by stage |
//!
//! In single precision, codes have to be equal up to one that is a tie: golden logits that differ by no more than rounding does. In lower precisions
//! a near tie may fall to the other side too, and everything behind it is another utterance; so there, and from a tie on, the golden codes are fed back in, and
//! only numbers are compared, in lower precisions by their noise: see [`super::qwen3_limits`].

use super::qwen3_goldens::{Case, Goldens};
use super::{Limit, Report, Row, VerifyOptions, bad, relative_error, snr_db};
use orate::Result;
use orate_graph::GraphError;
use orate_models::qwen3_tts::{Qwen3Tts, Variant};
use std::path::Path;
use std::sync::Arc;

/// Limit of `f32` on the CPU. The goldens are known to 3e-5: so much the official package differs from itself with another number of
/// threads (`oracle/qwen3_tts/README.md`).
pub const CPU_TOLERANCE: f64 = 5e-5;

/// Error of the speaker encoder's features on every device: logarithms of what a transform in single precision made, of
/// size 11.
pub const LOG_MEL_TOLERANCE: f64 = 5e-5;

/// What names of cases begin with that a codec alone can run.
const CODEC: &str = "codec_";

/// Compares a model with a folder of goldens. With `exact`, codes have to be those of the goldens; otherwise these are fed
/// back in, see above.
///
/// # Errors
/// The folder is not one of goldens, a case does not exist, nothing fits the model, or the device failed.
pub fn run(
    model: &Arc<Qwen3Tts>,
    folder: &Path,
    options: &VerifyOptions,
    (limit, exact): (Limit, bool),
) -> Result<Report> {
    let goldens = Goldens::open(folder)?;
    let wanted = |name: &str| {
        let short = name.rsplit('/').next().unwrap_or(name);
        options.cases.is_empty() || options.cases.iter().any(|c| c == name || c == short)
    };
    for asked in &options.cases {
        let known = |name: &String| name == asked || name.ends_with(&format!("/{asked}"));
        if !goldens.cases.keys().any(known) {
            let known = goldens.cases.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(bad(folder, format!("no case `{asked}`; there are: {known}")));
        }
    }
    let report = Report { rows: vec![], skipped: vec![], limit };
    let mut c = Comparison { model, exact, taps: options.taps, report };
    let own = own_utterances(model, &goldens);
    let lacking = unsupported(model)?;
    for (name, case) in goldens.cases.iter().filter(|(name, _)| wanted(name)) {
        match (name.split_once('/'), &lacking) {
            (Some((of, _)), _) if own.as_deref() != Some(of) => {
                c.skip(name, format!("it was made with another checkpoint, {of}"));
            }
            (Some(_), Some(why)) => c.skip(name, why.clone()),
            (Some(_), None) => c.utterance(name, case)?,
            (None, _) if model.files().talking.is_none() && !name.starts_with(CODEC) => {
                c.skip(name, "the model is a codec without a talker");
            }
            (None, _) => c.network(name, case)?,
        }
    }
    if c.report.rows.is_empty() {
        let why = c.report.skipped.iter().map(|(name, why)| format!("{name}: {why}"));
        let why = why.collect::<Vec<_>>().join("; ");
        return Err(bad(folder, format!("no case fits the model ({why})")));
    }
    Ok(c.report)
}

/// Compares a single utterance, whose arguments are `inputs` and whose tensors are in `file`.
///
/// # Errors
/// The file lacks something, or the device failed.
pub fn utterance(
    model: &Arc<Qwen3Tts>,
    name: &str,
    (inputs, file): (&serde_json::Value, &Path),
    (limit, exact): (Limit, bool),
) -> Result<Report> {
    let report = Report { rows: vec![], skipped: vec![], limit };
    let mut c = Comparison { model, exact, taps: true, report };
    c.utterance(name, &Case { inputs: inputs.clone(), file: file.to_owned() })?;
    Ok(c.report)
}

/// Which folder of utterances was made with the model: that of its own name, or else the only one of its variant.
fn own_utterances(model: &Qwen3Tts, goldens: &Goldens) -> Option<String> {
    let mut folders: Vec<&str> =
        goldens.cases.keys().filter_map(|name| name.split_once('/')).map(|(folder, _)| folder).collect();
    folders.dedup();
    let origin = Path::new(&model.files().origin);
    let own = origin.file_name().and_then(|n| n.to_str());
    if let Some(own) = folders.iter().find(|f| Some(**f) == own) {
        return Some((*own).to_owned());
    }
    let variant = match model.files().talking.as_ref()?.config.tts_model_type {
        Variant::Base => "base",
        Variant::CustomVoice => "custom_voice",
        Variant::VoiceDesign => "voice_design",
    };
    folders.retain(|f| f.ends_with(variant));
    match folders[..] {
        [one] => Some(one.to_owned()),
        _ => None,
    }
}

/// What keeps a device from speaking.
fn unsupported(model: &Qwen3Tts) -> Result<Option<String>> {
    Ok(lacks(&orate_models::ModelFiles::unsupported(
        model.files(),
        &**model.device(),
        &orate_models::PlaceOptions { kv: model.kv() },
    )?))
}

/// The first of several reasons.
pub(super) fn lacks(errors: &[GraphError]) -> Option<String> {
    let more = errors.len().saturating_sub(1);
    let behind = if more > 0 { format!(", and {more} more") } else { String::new() };
    errors.first().map(|e| format!("the device cannot run it: {e}{behind}"))
}

/// A comparison on its way.
pub(super) struct Comparison<'a> {
    pub model: &'a Arc<Qwen3Tts>,
    pub exact: bool,
    pub taps: bool,
    pub report: Report,
}

impl Comparison<'_> {
    /// Adds a tensor, with the limit of the report.
    pub fn add(&mut self, case: &str, stage: &'static str, tensor: &str, got: &[f32], want: &[f32]) {
        let mut all = Steps::default();
        all.push(got, want);
        self.add_steps(case, stage, tensor, &all);
    }

    /// Adds a tensor that was compared step by step.
    pub fn add_steps(&mut self, case: &str, stage: &'static str, tensor: &str, steps: &Steps) {
        let noise = self.report.limit.is_of_every_tensor() || tensor == "waveform";
        let snr = (noise && steps.error.is_finite()).then(|| snr_db(&steps.got, &steps.want));
        let passed = self.report.limit.allows(stage, steps.error, snr);
        self.row(case, stage, tensor, (steps.error, snr, passed));
    }

    /// Adds what is equal or not.
    pub fn equal(&mut self, case: &str, stage: &'static str, tensor: &str, same: bool) {
        self.row(case, stage, tensor, (if same { 0.0 } else { f64::INFINITY }, None, same));
    }

    /// Adds a row with its error, noise and verdict.
    pub fn row(
        &mut self,
        case: &str,
        stage: &'static str,
        tensor: &str,
        (error, snr, passed): (f64, Option<f64>, bool),
    ) {
        let (case, tensor) = (case.to_owned(), tensor.to_owned());
        self.report.rows.push(Row { case, stage, tensor, error, snr, passed });
    }

    /// Notes what is not compared.
    pub fn skip(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.report.skipped.push((what.into(), why.into()));
    }
}

/// A tensor of several steps: the error is that of the worst step, relative to the step's own largest magnitude.
#[derive(Default)]
pub(super) struct Steps {
    error: f64,
    got: Vec<f32>,
    want: Vec<f32>,
}

impl Steps {
    /// Adds a step.
    pub fn push(&mut self, got: &[f32], want: &[f32]) {
        self.error = self.error.max(relative_error(got, want));
        self.got.extend_from_slice(got);
        self.want.extend_from_slice(want);
    }
}
