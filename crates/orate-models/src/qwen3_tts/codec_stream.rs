//! Codes to samples, some frames at a time.
//!
//! A [`CodecDecoder`] has the plans, a [`CodecStream`] the memory of one utterance. Frames are decoded in pieces of a few
//! sizes, so plans are few and memory does not grow with the utterance; pieces joined are what one pass would give: on the CPU to the last
//! bit, on GPUs but for rounding.

use super::codec_decoder;
use super::config::CodecDecoderConfig;
use super::shared_codec::{self, Decoded, Piece, SharedCodec};
use super::{Batch, Past, QwenError};
use crate::decoding::kept_states::{KeptState, KeptStates};
use crate::runtime::{self, MemoryPool, PlanCache, PooledMemory, Profile};
use crate::sound::first_damaged;
use orate_graph::{Counters, Device, Executable, Graph, Plan, Shape, WeightLoader};
use std::sync::Arc;

/// Frames of a piece, from large to small. Larger pieces take less time for a frame and more memory.
pub(crate) const PIECES: [usize; 6] = [25, 16, 8, 4, 2, 1];

/// Utterances' memories kept for reuse: of as many as may speak at once.
const MEMORIES_KEPT: usize = Batch::MOST;

/// Bytes of states behind references that are kept; one of the released codec takes 5 MB.
const REFERENCE_BYTES: usize = 64 << 20;

/// The codec decoder on a device. Shared by any number of streams.
pub struct CodecDecoder {
    config: CodecDecoderConfig,
    /// By rows of a batch, and number in [`PIECES`].
    plans: PlanCache<(usize, usize)>,
    memories: Arc<MemoryPool>,
    /// States behind the codes of references.
    references: KeptStates<Vec<i32>>,
    shared: SharedCodec,
}

impl CodecDecoder {
    /// Frames that are decoded in one run at most.
    pub const PIECE: usize = PIECES[0];

    /// Puts the decoder on a device. Its weights are loaded with the first frames.
    pub fn new(
        config: CodecDecoderConfig,
        device: Arc<dyn Device>,
        weights: Arc<dyn WeightLoader + Send + Sync>,
    ) -> CodecDecoder {
        CodecDecoder {
            config,
            plans: PlanCache::new(device.clone(), weights, 2 * PIECES.len()),
            memories: MemoryPool::background(device.clone(), MEMORIES_KEPT),
            references: KeptStates::new(REFERENCE_BYTES),
            shared: SharedCodec::new(device),
        }
    }

    /// Codes of a frame.
    pub fn quantizers(&self) -> usize {
        self.config.num_quantizers
    }

    /// Bytes of weights on the device so far.
    pub fn weight_bytes(&self) -> u64 {
        self.plans.weight_bytes()
    }

    /// Plans that were made so far.
    pub fn plans_made(&self) -> usize {
        self.plans.made()
    }

    /// Begins an utterance.
    ///
    /// # Errors
    /// The device has no room.
    pub fn stream(self: &Arc<Self>) -> Result<CodecStream, QwenError> {
        let (decoder, memory) = (self.clone(), self.memories.take());
        let mut stream = CodecStream { decoder, memory, frames: 0, ended: false };
        stream.restart()?;
        Ok(stream)
    }

    /// Begins an utterance that goes on where `codes`, `[F, Q]`, end; their samples are not handed out. The state behind them is kept for
    /// the next utterance. Between two pieces `go_on` is asked, and `None` is returned when the answer is no.
    ///
    /// # Errors
    /// As [`CodecStream::push`].
    pub fn stream_behind(
        self: &Arc<Self>,
        codes: &[i32],
        go_on: &dyn Fn() -> bool,
    ) -> Result<Option<CodecStream>, QwenError> {
        let mut stream = self.stream()?;
        if codes.is_empty() {
            return Ok(Some(stream));
        }
        let key = codes.to_vec();
        if let Some(kept) = self.references.get(&key) {
            kept.restore(stream.memory.get())?;
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
        let plan = self.plan(PIECES.len() - 1)?;
        let states = runtime::states(plan.plan());
        let states: Vec<_> = states.map(|b| (&*b.name, b.dtype, b.shape.clone())).collect();
        let device = &**self.plans.device();
        self.references.keep(key, KeptState::copy_of(stream.memory.get(), device, &states)?);
        Ok(Some(stream))
    }

    pub(crate) fn forget_references(&self) {
        self.references.clear();
    }

    /// The samples of a whole utterance, `[F, Q]` codes → `[1920F]`.
    ///
    /// # Errors
    /// As [`CodecStream::push`].
    pub fn decode(self: &Arc<Self>, codes: &[i32]) -> Result<Vec<f32>, QwenError> {
        let mut samples = vec![];
        self.stream()?.push_last(codes, &mut samples)?;
        Ok(samples)
    }

    /// Loads the weights and makes all plans, so that the first frames take no longer than others.
    ///
    /// # Errors
    /// A weight is missing, or the device lacks an op or room.
    pub fn warm_up(&self) -> Result<(), QwenError> {
        (0..PIECES.len()).try_for_each(|i| self.plan(i).map(drop))
    }

    /// Makes the plans of batches of pieces.
    pub(crate) fn prepare_batches(&self) -> Result<(), QwenError> {
        (0..PIECES.len()).try_for_each(|i| self.batch_plan(i).map(drop))
    }

    /// The graphs of pieces of all sizes.
    pub(crate) fn graphs(config: &CodecDecoderConfig) -> Result<Vec<Graph>, QwenError> {
        PIECES.into_iter().map(|frames| graph(config, 1, frames)).collect()
    }

    /// Bytes of the states that some plans share.
    pub(crate) fn state_bytes(plans: &[Plan]) -> usize {
        let of_plan = |p: &Plan| runtime::states(p).map(|b| b.dtype.bytes_of(&b.shape)).sum();
        plans.iter().map(of_plan).max().unwrap_or(0)
    }

    /// The plan for pieces of `PIECES[i]` frames.
    pub(crate) fn plan(&self, i: usize) -> Result<Arc<dyn Executable>, QwenError> {
        self.plan_of(1, i)
    }

    /// The same for batches.
    pub(crate) fn batch_plan(&self, i: usize) -> Result<Arc<dyn Executable>, QwenError> {
        self.plan_of(shared_codec::ROWS, i)
    }

    fn plan_of(&self, batch: usize, i: usize) -> Result<Arc<dyn Executable>, QwenError> {
        self.plans.get((batch, i), |_| graph(&self.config, batch, PIECES[i]))
    }

    /// A memory that was not used yet.
    pub(crate) fn memory(&self) -> PooledMemory {
        self.memories.adopt(self.memories.fresh())
    }
}

/// The graph of pieces of so many frames.
fn graph(config: &CodecDecoderConfig, batch: usize, frames: usize) -> Result<Graph, QwenError> {
    let mut g = Graph::new(format!("codec_decoder of {frames} frames"));
    codec_decoder::build(&mut g, config, Past::Stream, batch, frames)?;
    Ok(g)
}

/// An utterance that is being decoded.
pub struct CodecStream {
    decoder: Arc<CodecDecoder>,
    memory: PooledMemory,
    frames: u64,
    /// Whether padding was decoded, after which no frame can follow.
    ended: bool,
}

impl CodecStream {
    /// Decodes the next frames, `[F, Q]`, and appends their samples, `[1920F]`. After an error the stream has to be
    /// restarted.
    ///
    /// # Errors
    /// Codes that are not whole frames or that no codebook has; frames behind the last ones; samples that are no numbers; or the device
    /// failed.
    pub fn push(&mut self, codes: &[i32], samples: &mut Vec<f32>) -> Result<(), QwenError> {
        self.decode(codes, samples, false)
    }

    /// As [`CodecStream::push`], for frames that none follow until the stream is restarted. No frame hears a later one, so
    /// where a run costs more than some frames, the last ones are one run, filled up with frames that nobody hears.
    ///
    /// # Errors
    /// As [`CodecStream::push`].
    pub fn push_last(&mut self, codes: &[i32], samples: &mut Vec<f32>) -> Result<(), QwenError> {
        self.decode(codes, samples, true)
    }

    fn decode(&mut self, codes: &[i32], samples: &mut Vec<f32>, last: bool) -> Result<(), QwenError> {
        let quantizers = self.decoder.quantizers();
        if !codes.len().is_multiple_of(quantizers) {
            return Err(QwenError::Frames { got: codes.len(), quantizers });
        }
        if self.ended && !codes.is_empty() {
            return Err(QwenError::Option {
                option: "codec stream",
                got: "given frames behind its last ones".to_owned(),
                allowed: "restart it first".to_owned(),
            });
        }
        self.ended |= last;
        let pads = last && self.decoder.plans.device().has_queues();
        let mut rest = codes;
        while !rest.is_empty() {
            let left = rest.len() / quantizers;
            let filled = || PIECES.iter().rposition(|frames| left <= *frames).filter(|_| pads);
            let fits = || PIECES.iter().position(|frames| *frames <= left);
            let i = filled().or_else(fits).expect("a piece of one frame always fits");
            let frames = left.min(PIECES[i]);
            let (piece, behind) = rest.split_at(frames * quantizers);
            let mut codes = piece.to_vec();
            codes.resize(PIECES[i] * quantizers, 0);
            let all = self.decode_piece(i, codes)?;
            let of_frame = all.len() / PIECES[i];
            let heard = &all[..of_frame * frames];
            if let Some(at) = first_damaged(heard) {
                return Err(QwenError::NoSound { frame: self.frames + (at / of_frame) as u64 });
            }
            samples.extend_from_slice(heard);
            self.frames += frames as u64;
            rest = behind;
        }
        Ok(())
    }

    /// Codes of `PIECES[i]` frames to samples. Where runs are beside each other on the device, with pieces of others.
    fn decode_piece(&mut self, i: usize, codes: Vec<i32>) -> Result<Vec<f32>, QwenError> {
        let decoder = self.decoder.clone();
        let memory = self.memory.lend();
        let piece = Piece { memory, plan: i, codes };
        let Decoded { memory, result } = if decoder.plans.device().has_queues() {
            decoder.shared.decode(&decoder, piece)
        } else {
            piece.decode(&decoder)
        };
        self.memory = memory;
        let (samples, used) = result?;
        self.memory.count(used);
        Ok(samples)
    }

    /// Time of each step of the plan that decodes [`CodecDecoder::PIECE`] frames, in seconds, with the plan. The stream begins
    /// anew.
    ///
    /// # Errors
    /// The device failed.
    pub fn profile(&mut self) -> Result<Profile, QwenError> {
        let (plan, frames) = (self.decoder.plan(0)?, CodecDecoder::PIECE);
        self.restart()?;
        let shape = Shape::from([1, frames, self.decoder.quantizers()]);
        self.memory.get().write_i32("codes", &shape, &vec![0; shape.len()])?;
        let profile = self.memory.profile(plan)?;
        self.restart()?;
        Ok(profile)
    }

    /// Frames that were decoded so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// What was asked of the device so far.
    pub fn counters(&self) -> Counters {
        self.memory.counters()
    }

    /// Begins a new utterance in the same memory.
    ///
    /// # Errors
    /// The device has no room.
    pub fn restart(&mut self) -> Result<(), QwenError> {
        let plan = self.decoder.plan(PIECES.len() - 1)?;
        runtime::clear_states(self.memory.get(), plan.plan())?;
        (self.frames, self.ended) = (0, false);
        Ok(())
    }
}
