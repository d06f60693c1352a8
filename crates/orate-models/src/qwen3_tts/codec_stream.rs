//! Codes to samples, some frames at a time.
//!
//! A [`CodecDecoder`] has the plans, a [`CodecStream`] the memory of one utterance. Frames are decoded in
//! chunks of a few sizes, so plans are few and memory does not grow with the utterance. Chunks joined are
//! what one pass would give: on the CPU to the last bit, on GPUs up to rounding.

use super::codec_plans::{CHUNKS, CodecPlans, MANY_ROWS, ROWS, chunk_graph};
use super::config::CodecDecoderConfig;
use super::shared_codec::{Piece, SharedCodec, When};
use crate::ModelError;
use crate::decoding::kept_states::{KeptState, KeptStates};
use crate::pieces::first_damaged;
use crate::runtime::{self, PlanCache, PooledMemory, Profile};
use orate_graph::{Counters, Device, Graph, Part, Plan, Shape, WeightLoader};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of states after references that are kept; one of the released codec takes 5 MB.
const REFERENCE_BYTES: usize = 64 << 20;

/// The codec decoder on a device. Shared by any number of streams.
pub struct CodecDecoder {
    plans: CodecPlans,
    /// States after the codes of references.
    references: KeptStates<Vec<i32>>,
    shared: SharedCodec,
}

impl CodecDecoder {
    /// Frames that are decoded in one run at most.
    pub const PIECE: usize = CHUNKS[0];

    /// Puts the decoder on a device. Its weights are loaded with the first frames.
    pub fn new(
        config: CodecDecoderConfig,
        device: Arc<dyn Device>,
        weights: Arc<dyn WeightLoader + Send + Sync>,
    ) -> CodecDecoder {
        CodecDecoder {
            plans: CodecPlans::new(config, device.clone(), weights, device.pacing().batch),
            references: KeptStates::new(REFERENCE_BYTES),
            shared: SharedCodec::new(device),
        }
    }

    /// Codes of a frame.
    pub fn quantizers(&self) -> usize {
        self.plans.quantizers()
    }

    pub(super) fn plans(&self) -> &PlanCache<(usize, usize)> {
        &self.plans.cache
    }

    /// Begins an utterance.
    pub fn stream(self: &Arc<Self>) -> Result<CodecStream, ModelError> {
        let (decoder, memory) = (self.clone(), self.plans.memories.take());
        let in_workspace = self.plans().device().pacing().shared_workspaces && self.shared.is_crowded();
        self.shared.utterances.fetch_add(1, Ordering::Relaxed);
        let mut stream =
            CodecStream { decoder, memory, in_workspace, frames: 0, ended: false, when: When::Now };
        stream.restart()?;
        Ok(stream)
    }

    /// Begins an utterance that continues after `codes`, `[F, Q]`, whose samples are left out. The state
    /// after them is kept for the next utterance. Between two chunks `go_on` is asked, and `None` is returned
    /// if it says no.
    pub fn stream_after(
        self: &Arc<Self>,
        codes: &[i32],
        go_on: &dyn Fn() -> bool,
    ) -> Result<Option<CodecStream>, ModelError> {
        let mut stream = self.stream()?;
        if codes.is_empty() {
            return Ok(Some(stream));
        }
        let key = codes.to_vec();
        let plan = self.plans.plan(1, CHUNKS.len() - 1)?;
        let parts = whole_states(plan.plan());
        if let Some(kept) = self.references.get(&key) {
            kept.restore(stream.memory.get(), &parts)?;
            stream.frames = (codes.len() / self.quantizers()) as u64;
            return Ok(Some(stream));
        }
        let mut samples = vec![];
        for piece in codes.chunks(Self::PIECE * self.quantizers()) {
            if !go_on() {
                return Ok(None);
            }
            samples.clear();
            stream.push(piece, &mut samples)?;
        }
        let states = runtime::states(plan.plan());
        let states: Vec<_> = states.map(|b| (&*b.name, b.dtype, b.shape.clone())).collect();
        let kept = KeptState::new(&**self.plans().device(), stream.memory.get(), &states, &parts)?;
        self.references.keep(key, kept);
        Ok(Some(stream))
    }

    pub(super) fn forget_references(&self) {
        self.references.clear();
    }

    /// The samples of a whole utterance, `[F, Q]` codes → `[1920F]`.
    pub fn decode(self: &Arc<Self>, codes: &[i32]) -> Result<Vec<f32>, ModelError> {
        let mut samples = vec![];
        self.stream()?.push_last(codes, &mut samples)?;
        Ok(samples)
    }

    /// Loads the weights and compiles all plans, so that the first frames take no longer than others.
    pub fn warm_up(&self) -> Result<(), ModelError> {
        self.plans.compile_all(1)
    }

    /// Compiles the plans of batches of up to `callers` utterances.
    pub(super) fn prepare_batches(&self, callers: usize) -> Result<(), ModelError> {
        self.plans.compile_all(ROWS)?;
        if callers > 2 * ROWS { self.plans.compile_all(MANY_ROWS) } else { Ok(()) }
    }

    pub(super) fn graphs(config: &CodecDecoderConfig) -> Result<Vec<Graph>, ModelError> {
        CHUNKS.into_iter().map(|frames| Ok(chunk_graph(config, 1, frames)?)).collect()
    }

    /// Bytes of the states that some plans share.
    pub(super) fn state_bytes(plans: &[Plan]) -> usize {
        let of_plan = |p: &Plan| runtime::states(p).map(|b| b.dtype.bytes_of(&b.shape)).sum();
        plans.iter().map(of_plan).max().unwrap_or(0)
    }
}

fn whole_states(plan: &Plan) -> Vec<Part<'_>> {
    let whole = |name, len| Part { from: (name, 0), to: (name, 0), len };
    runtime::states(plan).map(|b| whole(&*b.name, b.shape.len())).collect()
}

/// An utterance that is being decoded.
pub struct CodecStream {
    decoder: Arc<CodecDecoder>,
    memory: PooledMemory,
    in_workspace: bool,
    frames: u64,
    /// Whether padding was decoded, after which no frame can follow.
    ended: bool,
    /// Of the next frames.
    pub(super) when: When,
}

impl Drop for CodecStream {
    fn drop(&mut self) {
        self.decoder.shared.utterances.fetch_sub(1, Ordering::Relaxed);
    }
}

impl CodecStream {
    /// Decodes the next frames, `[F, Q]`, and appends their samples, `[1920F]`. After an error the stream has
    /// to be restarted.
    ///
    /// # Errors
    /// Codes that are not whole frames or in no codebook; frames after the last ones; samples that are not
    /// finite; or the device failed.
    pub fn push(&mut self, codes: &[i32], samples: &mut Vec<f32>) -> Result<(), ModelError> {
        self.decode(codes, samples, false)
    }

    /// As [`CodecStream::push`], for the last frames before the stream is restarted. No frame depends on a
    /// later one, so where a run costs more than some frames ([`orate_graph::Pacing::fills_chunks`]), the
    /// last ones are one run, filled up with frames whose samples are dropped.
    pub fn push_last(&mut self, codes: &[i32], samples: &mut Vec<f32>) -> Result<(), ModelError> {
        self.decode(codes, samples, true)
    }

    fn decode(&mut self, codes: &[i32], samples: &mut Vec<f32>, last: bool) -> Result<(), ModelError> {
        let quantizers = self.decoder.quantizers();
        if !codes.len().is_multiple_of(quantizers) {
            return Err(ModelError::Frames { got: codes.len(), quantizers });
        }
        if self.ended && !codes.is_empty() {
            return Err(ModelError::Option {
                option: "codec stream",
                got: "given frames after its last ones".to_owned(),
                allowed: "restart it first".to_owned(),
            });
        }
        self.ended |= last;
        let pads = last && self.decoder.plans().device().pacing().fills_chunks;
        let mut rest = codes;
        while !rest.is_empty() {
            let left = rest.len() / quantizers;
            let filled = || CHUNKS.iter().rposition(|frames| left <= *frames).filter(|_| pads);
            let fits = || CHUNKS.iter().position(|frames| *frames <= left);
            let i = filled().or_else(fits).expect("a chunk of one frame always fits");
            let frames = left.min(CHUNKS[i]);
            let (chunk, left_over) = rest.split_at(frames * quantizers);
            let mut codes = chunk.to_vec();
            codes.resize(CHUNKS[i] * quantizers, 0);
            let all = self.decode_chunk(i, codes)?;
            let of_frame = all.len() / CHUNKS[i];
            let heard = &all[..of_frame * frames];
            if let Some(at) = first_damaged(heard) {
                return Err(ModelError::NoSound { frame: self.frames + (at / of_frame) as u64 });
            }
            samples.extend_from_slice(heard);
            self.frames += frames as u64;
            rest = left_over;
        }
        Ok(())
    }

    /// Codes of `CHUNKS[i]` frames to samples, with those of other streams where runs are shared.
    fn decode_chunk(&mut self, i: usize, codes: Vec<i32>) -> Result<Vec<f32>, ModelError> {
        let CodecDecoder { plans, shared, .. } = &*self.decoder;
        let CodecStream { when, in_workspace, .. } = *self;
        let piece = Piece { memory: self.memory.lend(), plan: i, codes, when, in_workspace };
        let shares = plans.cache.device().pacing().coalescing_wait.is_some();
        let (memory, result) = if shares { shared.decode(plans, piece) } else { piece.decode(plans) };
        self.memory = memory;
        let (samples, used) = result?;
        self.memory.count(used);
        Ok(samples)
    }

    /// Measures each step of the plan that decodes [`CodecDecoder::PIECE`] frames. The stream is restarted.
    pub fn profile(&mut self) -> Result<Profile, ModelError> {
        let (plan, frames) = (self.decoder.plans.plan(1, 0)?, CodecDecoder::PIECE);
        self.restart()?;
        let shape = Shape::from([1, frames, self.decoder.quantizers()]);
        self.memory.get().write_i32("codes", &shape, &vec![0; shape.len()])?;
        let profile = self.memory.profile(plan)?;
        self.restart()?;
        Ok(profile)
    }

    /// Number of frames decoded so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// What was asked of the device so far.
    pub fn counters(&self) -> Counters {
        self.memory.counters()
    }

    /// Begins a new utterance.
    pub fn restart(&mut self) -> Result<(), ModelError> {
        let plan = self.decoder.plans.plan(1, CHUNKS.len() - 1)?;
        runtime::clear_states(self.memory.get(), plan.plan())?;
        (self.frames, self.ended) = (0, false);
        Ok(())
    }
}
