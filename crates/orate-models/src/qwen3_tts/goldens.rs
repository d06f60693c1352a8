//! Compares Qwen3-TTS with what the official package computed.
//!
//! The folder is that of `oracle/qwen3_tts`: the one that holds `cases`, that folder itself, or the folder in
//! it with the utterances of one checkpoint. The utterances of the model's own checkpoint are compared, and
//! the cases of single networks:
//!
//! | case | what |
//! | --- | --- |
//! | `CHECKPOINT/…` | ids, prompt, hidden states, logits, codes and samples of an utterance |
//! | `tokenizer` | ids of texts |
//! | `sampling_chain` | codes drawn from given logits |
//! | `speaker_encoder`, `codec_encode`, `codec_decode`, `codec_decode_long` | a network, stage by stage |
//!
//! In f32, codes must be equal up to the first tie: golden logits that differ by no more than rounding does.
//! After a tie, and everywhere below f32, the golden codes are fed back in, because one different code makes
//! the rest another utterance. Below f32 tensors are compared by their signal-to-noise ratio: see [`limits`].

pub mod limits;
mod manifest;
mod networks;
mod utterance;

use super::{Qwen3Tts, Variant};
use crate::hooks::{Comparison, Goldens, Limit};
use crate::{ModelError, ModelFiles, PlaceOptions};
use manifest::{Case, Cases};
use orate_graph::{DeviceInfo, GraphError, PrecisionPolicy};
use orate_weights::{SafeTensors, WeightSource};
use std::path::Path;
use std::sync::Arc;

/// Largest error of the speaker encoder's features on every device: logarithms, of size 11, of a transform in
/// f32.
const LOG_MEL_TOLERANCE: f64 = 5e-5;

/// Penalty of the official package's default settings, which the goldens keep.
const REPETITION_PENALTY: f32 = 1.05;

/// Prefix of the cases that a codec alone can run.
const CODEC: &str = "codec_";

/// The model beside its goldens.
pub(super) struct Comparer(pub Arc<Qwen3Tts>);

impl Goldens for Comparer {
    fn limit(&self, precision: &PrecisionPolicy, device: &DeviceInfo) -> Limit {
        limits::limit(self.0.files(), precision, self.0.kv(), device)
    }

    fn compare(&self, folder: &Path, comparison: &mut dyn Comparison) -> Result<(), ModelError> {
        let model = &self.0;
        let goldens = manifest::open(folder)?;
        let own = own_utterances(model, &goldens);
        let lacking = lacks(&model.files().unsupported(&**model.device(), &PlaceOptions { kv: model.kv() })?);
        let mut run = Run { model, out: comparison };
        for (name, case) in &goldens {
            if !run.out.wants(name) {
                continue;
            }
            match (name.split_once('/'), &lacking) {
                (Some((of, _)), _) if own.as_deref() != Some(of) => {
                    run.out.skip(name, &format!("it was made with another checkpoint, {of}"));
                }
                (Some(_), Some(why)) => run.out.skip(name, why),
                (Some(_), None) => run.utterance(name, case)?,
                (None, _) if model.files().talking.is_none() && !name.starts_with(CODEC) => {
                    run.out.skip(name, "the model is a codec without a talker");
                }
                (None, _) => run.network(name, case)?,
            }
        }
        Ok(())
    }
}

/// Compares a single utterance: the arguments of the official call, and the file with its tensors.
pub fn utterance(
    model: &Arc<Qwen3Tts>,
    name: &str,
    (inputs, file): (&serde_json::Value, &Path),
    comparison: &mut dyn Comparison,
) -> Result<(), ModelError> {
    let case = Case { inputs: inputs.clone(), file: file.to_owned() };
    Run { model, out: comparison }.utterance(name, &case)
}

/// The folder of utterances that was made with the model: the one of its own name, or else the only one of
/// its variant.
fn own_utterances(model: &Qwen3Tts, goldens: &Cases) -> Option<String> {
    let mut folders: Vec<&str> =
        goldens.keys().filter_map(|name| name.split_once('/')).map(|(folder, _)| folder).collect();
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

/// The first of several reasons, and how many more there are.
fn lacks(errors: &[GraphError]) -> Option<String> {
    let more = errors.len().saturating_sub(1);
    let others = if more > 0 { format!(", and {more} more") } else { String::new() };
    errors.first().map(|e| format!("the device cannot run it: {e}{others}"))
}

fn integers(file: &SafeTensors, name: &str) -> Result<Vec<i32>, ModelError> {
    Ok(file.get(name)?.to_f32().into_iter().map(|x| x as i32).collect())
}

struct Run<'a> {
    model: &'a Arc<Qwen3Tts>,
    out: &'a mut dyn Comparison,
}
