//! How much memory a model will take on a device, before anything of it is read.

use super::VoiceEncoder;
use super::codec_stream::CodecDecoder;
use super::config::Variant;
use super::files::{Files, Talking};
use super::pipeline::PREFIX_BYTES;
use super::talker::CacheSizes;
use super::talker_plans::TalkerPlan;
use crate::ModelError;
use crate::decoding::session::{capacity, feed_capacity, pass_rows};
use crate::runtime::{compile, memory, row_bytes};
use crate::{Footprint, Loader};
use orate_graph::{CacheFormat, Device, Graph, Pacing, Plan};

/// Rows of a prompt of medium length without a reference.
const PROMPT_ROWS: usize = 100;

/// Rows of a prompt with a reference besides its frames and transcript: role, language, speaker, and the
/// first ones of text and codes.
const ROWS_BESIDES: usize = 11;

/// Tokens of a second of transcript: slow speech has two, fast speech four.
const TOKENS_PER_SECOND: f64 = 3.0;

/// Memory that the model will take with one utterance of at most `frames` frames, whose keys and values are
/// kept in a format, and with a reference of `reference` seconds.
pub(super) fn footprint(
    files: &Files,
    device: &dyn Device,
    kv: CacheFormat,
    frames: usize,
    reference: f64,
) -> Result<Footprint, ModelError> {
    let source = Loader(files.weights.clone());
    let codec = compile(device, CodecDecoder::graphs(&files.codec.decoder_config)?)?;
    let (weights, codec_bytes) = (device.weight_bytes(&codec, &source), memory(&codec));
    let mut all = Footprint { weights, utterance: codec_bytes, in_context: 0, cloning: 0 };
    let Some(talking) = &files.talking else { return Ok(all) };
    let sizes = CacheSizes { batch: 1, capacity: capacity(PROMPT_ROWS + frames), kv };
    let plans = talking_plans(talking, device, sizes, (PROMPT_ROWS, false))?;
    all.weights += device.weight_bytes(&plans, &source);
    all.utterance += memory(&plans);
    if talking.config.tts_model_type != Variant::Base {
        return Ok(all);
    }
    let heard = (reference * files.codec.frame_rate()).ceil() as usize;
    let words = ((reference * TOKENS_PER_SECOND) as usize).min(heard);
    // Rows up to the end of the transcript are the same for all texts, and read on their own. They stand
    // beside the frames, or in front of them where all text is in the prompt; a cache may have room for
    // more, of which little is written.
    let fixed = ROWS_BESIDES + words;
    let written = (fixed + heard + frames).next_multiple_of(capacity(0));
    let sizes = CacheSizes { batch: 1, capacity: written, kv };
    let plans = talking_plans(talking, device, sizes, (fixed.max(heard), true))?;
    let kept = fixed * row_bytes(&plans, sizes.capacity);
    let kept = if kept > PREFIX_BYTES { 0 } else { kept };
    all.in_context = codec_bytes + memory(&plans) + (kept + CodecDecoder::state_bytes(&codec)) as u64;
    all.cloning = cloning(files, talking, device, reference)?;
    Ok(all)
}

/// See [`Footprint::cloning`].
fn cloning(files: &Files, talking: &Talking, device: &dyn Device, seconds: f64) -> Result<u64, ModelError> {
    let source = Loader(files.weights.clone());
    let samples = (seconds * f64::from(files.codec.output_sample_rate)) as usize;
    let speaker = talking.config.speaker_encoder_config.as_ref();
    let plans = compile(device, VoiceEncoder::graphs(speaker, &files.codec, samples)?)?;
    let largest = plans.iter().map(|p| memory(std::slice::from_ref(p))).max().unwrap_or(0);
    Ok(device.weight_bytes(&plans, &source) + largest)
}

/// Plans of the talker, for prompts of which `rows` rows are read one pass after the other, optionally with a
/// reference.
fn talking_plans(
    talking: &Talking,
    device: &dyn Device,
    sizes: CacheSizes,
    (rows, reference): (usize, bool),
) -> Result<Vec<Plan>, ModelError> {
    Ok(compile(device, talking_graphs(talking, device.pacing(), sizes, (rows, reference))?)?)
}

/// See [`talking_plans`].
fn talking_graphs(
    talking: &Talking,
    pacing: Pacing,
    sizes: CacheSizes,
    (rows, reference): (usize, bool),
) -> Result<Vec<Graph>, ModelError> {
    let time = pass_rows(pacing.prompt_step, rows);
    let plans = TalkerPlan::of_utterance(sizes, (time, reference), feed_capacity(1)).into_iter();
    let config = &talking.config.talker_config;
    Ok(plans.map(|plan| plan.graph(config, false)).collect::<Result<_, _>>()?)
}

/// The networks of a first text without a reference, for prompts of up to medium length.
pub(super) fn usual_graphs(files: &Files, pacing: Pacing, kv: CacheFormat) -> Result<Vec<Graph>, ModelError> {
    let mut all = CodecDecoder::graphs(&files.codec.decoder_config)?;
    let sizes = CacheSizes { batch: 1, capacity: capacity(0), kv };
    if let Some(talking) = &files.talking {
        for rows in [32, 64, PROMPT_ROWS] {
            all.extend(talking_graphs(talking, pacing, sizes, (rows, false))?);
        }
    }
    Ok(all)
}
