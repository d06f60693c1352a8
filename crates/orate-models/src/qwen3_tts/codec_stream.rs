//! Codes to samples, some frames at a time.
//!
//! A [`CodecDecoder`] has the plans, a [`CodecStream`] the memory of one utterance. Frames are decoded in pieces of a few
//! sizes, so plans are few and memory does not grow with the utterance; pieces joined are what one pass would give: on the CPU to the last
//! bit, on GPUs but for rounding.

use super::codec_decoder;
use super::config::CodecDecoderConfig;
use super::kept_states::{KeptState, KeptStates};
use super::{Batch, Past, QwenError};
use orate_graph::{
    BufferKind, Counters, Device, Executable, Graph, Memory, ModelOnDevice, Plan, Shape, WeightLoader,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Frames of a piece, from large to small. Larger pieces take less time for a frame and more memory.
const PIECES: [usize; 6] = [25, 16, 8, 4, 2, 1];

/// Utterances' memories kept for reuse: of as many as may speak at once.
const MEMORIES_KEPT: usize = Batch::MOST;

/// Bytes of states behind references that are kept; one of the released codec takes 5 MB.
const REFERENCE_BYTES: usize = 64 << 20;

/// The codec decoder on a device. Shared by any number of streams.
pub struct CodecDecoder {
    config: CodecDecoderConfig,
    device: Arc<dyn Device>,
    model: Box<dyn ModelOnDevice>,
    plans: [OnceLock<Arc<dyn Executable>>; PIECES.len()],
    plans_made: AtomicUsize,
    memories: Mutex<Vec<Box<dyn Memory>>>,
    /// States behind the codes of references.
    references: KeptStates<Vec<i32>>,
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
        let model = device.open(weights);
        let references = KeptStates::new(REFERENCE_BYTES);
        CodecDecoder {
            config,
            device,
            model,
            plans: Default::default(),
            plans_made: AtomicUsize::new(0),
            memories: Mutex::default(),
            references,
        }
    }

    /// Codes of a frame.
    pub fn quantizers(&self) -> usize {
        self.config.num_quantizers
    }

    /// Bytes of weights on the device so far.
    pub fn weight_bytes(&self) -> u64 {
        self.model.weight_bytes()
    }

    /// Plans that were made so far.
    pub fn plans_made(&self) -> usize {
        self.plans_made.load(Ordering::Relaxed)
    }

    /// Begins an utterance.
    ///
    /// # Errors
    /// The device has no room.
    pub fn stream(self: &Arc<Self>) -> Result<CodecStream, QwenError> {
        let kept = self.memories.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let memory = kept.unwrap_or_else(|| self.device.background_memory());
        let before = memory.counters();
        let mut stream = CodecStream { decoder: self.clone(), memory: Some(memory), frames: 0, before };
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
            kept.restore(stream.memory())?;
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
        let states = plan.plan().buffers().iter().filter(|b| b.kind == BufferKind::State);
        let states: Vec<_> = states.map(|b| (&*b.name, b.dtype, b.shape.clone())).collect();
        self.references.keep(key, KeptState::copy_of(stream.memory(), &*self.device, &states)?);
        Ok(Some(stream))
    }

    pub(super) fn forget_references(&self) {
        self.references.clear();
    }

    /// The samples of a whole utterance, `[F, Q]` codes → `[1920F]`.
    ///
    /// # Errors
    /// As [`CodecStream::push`].
    pub fn decode(self: &Arc<Self>, codes: &[i32]) -> Result<Vec<f32>, QwenError> {
        let mut samples = vec![];
        self.stream()?.push(codes, &mut samples)?;
        Ok(samples)
    }

    /// Loads the weights and makes all plans, so that the first frames take no longer than others.
    ///
    /// # Errors
    /// A weight is missing, or the device lacks an op or room.
    pub fn warm_up(&self) -> Result<(), QwenError> {
        (0..PIECES.len()).try_for_each(|i| self.plan(i).map(drop))
    }

    /// The graphs of pieces of all sizes.
    pub(super) fn graphs(config: &CodecDecoderConfig) -> Result<Vec<Graph>, QwenError> {
        PIECES.into_iter().map(|frames| graph(config, frames)).collect()
    }

    /// The plan for pieces of `PIECES[i]` frames.
    fn plan(&self, i: usize) -> Result<Arc<dyn Executable>, QwenError> {
        if let Some(plan) = self.plans[i].get() {
            return Ok(plan.clone());
        }
        self.plans_made.fetch_add(1, Ordering::Relaxed);
        let plan = self.model.load(Plan::compile(graph(&self.config, PIECES[i])?, &*self.device)?)?;
        Ok(self.plans[i].get_or_init(|| plan).clone())
    }
}

/// The graph of a piece of so many frames.
fn graph(config: &CodecDecoderConfig, frames: usize) -> Result<Graph, QwenError> {
    let mut g = Graph::new(format!("codec_decoder of {frames} frames"));
    codec_decoder::build(&mut g, config, Past::Stream, 1, frames)?;
    Ok(g)
}

/// An utterance that is being decoded.
pub struct CodecStream {
    decoder: Arc<CodecDecoder>,
    memory: Option<Box<dyn Memory>>,
    frames: u64,
    before: Counters,
}

impl CodecStream {
    fn memory(&mut self) -> &mut dyn Memory {
        self.memory.as_mut().expect("memory is only taken when the stream is dropped").as_mut()
    }

    /// Decodes the next frames, `[F, Q]`, and appends their samples, `[1920F]`. After an error the stream has to be
    /// restarted.
    ///
    /// # Errors
    /// Codes that are not whole frames or that no codebook has; or the device failed.
    pub fn push(&mut self, codes: &[i32], samples: &mut Vec<f32>) -> Result<(), QwenError> {
        let quantizers = self.decoder.quantizers();
        if !codes.len().is_multiple_of(quantizers) {
            return Err(QwenError::Frames { got: codes.len(), quantizers });
        }
        let memory = self.memory.as_mut().expect("memory is only taken when the stream is dropped").as_mut();
        let mut piece_samples = vec![];
        let mut rest = codes;
        while !rest.is_empty() {
            let fits = |frames: &usize| frames * quantizers <= rest.len();
            let i = PIECES.iter().position(fits).expect("a piece of one frame always fits");
            let (piece, behind) = rest.split_at(PIECES[i] * quantizers);
            memory.write_i32("codes", &[1, PIECES[i], quantizers].into(), piece)?;
            self.decoder.plan(i)?.run(memory)?;
            memory.read_f32("samples", &mut piece_samples)?;
            samples.extend_from_slice(&piece_samples);
            self.frames += PIECES[i] as u64;
            rest = behind;
        }
        Ok(())
    }

    /// Time of each step of the plan that decodes [`CodecDecoder::PIECE`] frames, in seconds, with the plan. The stream begins
    /// anew.
    ///
    /// # Errors
    /// The device failed.
    pub fn profile(&mut self) -> Result<(Arc<dyn Executable>, Vec<f64>), QwenError> {
        let (plan, frames) = (self.decoder.plan(0)?, CodecDecoder::PIECE);
        self.restart()?;
        let shape = Shape::from([1, frames, self.decoder.quantizers()]);
        let memory = self.memory.as_mut().expect("memory is only taken when the stream is dropped").as_mut();
        memory.write_i32("codes", &shape, &vec![0; shape.len()])?;
        let times = plan.profile(memory)?;
        self.restart()?;
        Ok((plan, times))
    }

    /// Frames that were decoded so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// What was asked of the device so far.
    pub fn counters(&self) -> Counters {
        self.memory.as_ref().map(|m| m.counters() - self.before).unwrap_or_default()
    }

    /// Begins a new utterance in the same memory.
    ///
    /// # Errors
    /// The device has no room.
    pub fn restart(&mut self) -> Result<(), QwenError> {
        let plan = self.decoder.plan(PIECES.len() - 1)?;
        let memory = self.memory.as_mut().expect("memory is only taken when the stream is dropped");
        let states = plan.plan().buffers().iter().filter(|b| b.kind == BufferKind::State);
        let states: Vec<_> = states.map(|b| (&*b.name, b.dtype, &b.shape)).collect();
        memory.clear_all(&states)?;
        self.frames = 0;
        Ok(())
    }
}

impl Drop for CodecStream {
    fn drop(&mut self) {
        let Some(mut memory) = self.memory.take() else { return };
        memory.shrink_to(self.decoder.device.memory_kept());
        let mut kept = self.decoder.memories.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MEMORIES_KEPT {
            kept.push(memory);
        }
    }
}
