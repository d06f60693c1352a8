//! How much memory a model will take on a device, before anything of it is read.

use super::config::{Backbone, CODES_PER_SECOND, FRAMES_PER_CODE};
use super::encoders::REFERENCE_SECONDS;
use super::files::Files;
use super::pipeline::PREFIX_BYTES;
use super::s3gen_plans::{FlowSettings, S3GenPlan};
use super::t3::CacheSizes;
use super::t3_plans::T3Plan;
use crate::decoding::session::{capacity, pass_rows};
use crate::runtime::{compile, memory, row_bytes};
use crate::{Footprint, Loader, ModelError, SpeechLength};
use orate_graph::{CacheFormat, Device, Graph, Pacing};

/// Ids of the text of a second of speech: letters of English; tokens of Turbo are fewer.
const IDS_PER_SECOND: f64 = 8.0;

/// Codes of a first text.
const FIRST_CODES: usize = 75;
/// Rows of text of a first text.
const FIRST_ROWS: usize = 32;

/// The networks of a first text with a voice of usual length.
pub(super) fn usual_graphs(files: &Files, pacing: Pacing, kv: CacheFormat) -> Result<Vec<Graph>, ModelError> {
    let FlowSettings { steps, .. } = FlowSettings::usual(&files.s3gen);
    let heard = REFERENCE_SECONDS * CODES_PER_SECOND;
    let sizes = [heard + FIRST_CODES, FRAMES_PER_CODE * heard];
    let plans = S3GenPlan::of_utterance(sizes, steps, pacing.side_by_side).into_iter();
    let graphs = plans.map(|(plan, _)| plan.graph(&*files.weights, &files.s3gen, false));
    let mut all: Vec<Graph> = graphs.collect::<Result<_, _>>()?;
    if let Some(talking) = &files.talking {
        let c = &talking.config;
        let fixed = c.conditioning_rows(c.prompt_codes());
        let rows = fixed + FIRST_ROWS;
        let sizes = CacheSizes { batch: 1, capacity: capacity(rows + FIRST_CODES), kv, watched: false };
        // The rows of a voice are read before those of a text.
        let passes = [fixed, FIRST_ROWS].map(|rows| pass_rows(pacing.prompt_step, rows));
        let plans = passes.into_iter().flat_map(|time| T3Plan::of_utterance(sizes, time));
        let begin = (c.backbone == Backbone::Llama).then_some(T3Plan::Begin);
        let plans = [T3Plan::Conditioning { codes: c.prompt_codes() }].into_iter().chain(begin).chain(plans);
        all.extend(plans.map(|plan| plan.graph(c, false)).collect::<Result<Vec<_>, _>>()?);
    }
    Ok(all)
}

/// Memory that the model will take with one utterance, whose keys and values are kept in a format.
pub(super) fn footprint(
    files: &Files,
    device: &dyn Device,
    kv: CacheFormat,
    length: SpeechLength,
) -> Result<Footprint, ModelError> {
    let source = Loader(files.weights.clone());
    let codes = |seconds: f64| ((seconds * CODES_PER_SECOND as f64).ceil() as usize).max(1);
    let spoken = codes(length.speech);
    let heard = codes(length.reference.min(REFERENCE_SECONDS as f64));

    let FlowSettings { steps, .. } = FlowSettings::usual(&files.s3gen);
    let sizes = [heard + spoken, FRAMES_PER_CODE * heard];
    let plans = S3GenPlan::of_utterance(sizes, steps, device.pacing().side_by_side);
    let graphs = plans.into_iter().map(|(plan, _)| plan.graph(&*files.weights, &files.s3gen, false));
    let s3gen = compile(device, graphs.collect::<Result<_, _>>()?)?;
    let mut weights = device.weight_bytes(&s3gen, &source);
    let (flow, vocoder) = s3gen.split_at(2);
    let mut utterance = memory(flow) + memory(vocoder);
    drop(s3gen);

    if let Some(talking) = &files.talking {
        let c = &talking.config;
        let prompt = codes(length.reference).min(c.prompt_codes());
        let fixed = c.conditioning_rows(prompt);
        let rows = fixed + (length.speech * IDS_PER_SECOND) as usize + c.starts();
        // With what the alignment guard and times of words read, where the model has that.
        let watched = c.aligned_heads().is_some();
        let sizes = CacheSizes { batch: 1, capacity: capacity(rows + spoken), kv, watched };
        let time = pass_rows(device.pacing().prompt_step, rows);
        let graphs = T3Plan::of_utterance(sizes, time).into_iter().map(|plan| plan.graph(c, false));
        let t3 = compile(device, graphs.collect::<Result<_, _>>()?)?;
        let voice = compile(device, vec![T3Plan::Conditioning { codes: prompt }.graph(c, false)?])?;
        // A voice's rows are kept for the next text.
        let kept = fixed * row_bytes(&t3, sizes.capacity);
        utterance += memory(&t3) + memory(&voice) + if kept > PREFIX_BYTES { 0 } else { kept as u64 };
        let all: Vec<_> = t3.into_iter().chain(voice).collect();
        weights += device.weight_bytes(&all, &source);
    }

    let prompt = files.talking.as_ref().map_or(0, |t| t.config.prompt_codes());
    let read = codes(length.reference).min(prompt.max(REFERENCE_SECONDS * CODES_PER_SECOND));
    let encoders = compile(device, files.encoder_graphs_of(read)?)?;
    let largest = encoders.iter().map(|p| memory(std::slice::from_ref(p))).max().unwrap_or(0);
    let cloning = device.weight_bytes(&encoders, &source) + largest;
    Ok(Footprint { weights, utterance, in_context: utterance, cloning })
}
