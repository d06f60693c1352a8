//! Plans of the codec decoder: for chunks of a few sizes, of one utterance or of a batch.

use super::config::CodecDecoderConfig;
use super::{codec_decoder, graph};
use crate::ModelError;
use crate::blocks::Past;
use crate::runtime::{MemoryPool, PlanCache};
use orate_graph::{Device, Executable, Graph, GraphError, WeightLoader};
use std::sync::Arc;

/// Frames of a chunk, from large to small. Larger chunks take less time for a frame and more memory.
pub(super) const CHUNKS: [usize; 6] = [25, 16, 8, 4, 2, 1];

/// Utterances in a batch. With chunks of 25 frames, eight are as fast as any number; those of few frames take
/// about as long for more.
pub(super) const ROWS: usize = 8;
/// Utterances in a batch of chunks of at most [`SHORT`] frames, where many callers begin together.
pub(super) const MANY_ROWS: usize = 64;
/// See [`MANY_ROWS`].
pub(super) const SHORT: usize = 4;

/// Utterances in a batch of chunks of a number of frames at most.
pub(super) fn most_rows(frames: usize) -> usize {
    if frames <= SHORT { MANY_ROWS } else { ROWS }
}

/// The decoder on a device, and memories of finished utterances.
pub(super) struct CodecPlans {
    config: CodecDecoderConfig,
    /// By utterances side by side, and number in [`CHUNKS`].
    pub cache: PlanCache<(usize, usize)>,
    pub memories: Arc<MemoryPool>,
}

impl CodecPlans {
    pub fn new(
        config: CodecDecoderConfig,
        device: Arc<dyn Device>,
        weights: Arc<dyn WeightLoader + Send + Sync>,
        memories_kept: usize,
    ) -> CodecPlans {
        let cache = PlanCache::new(device.clone(), weights, 3 * CHUNKS.len());
        // Its runs yield to those of the talker.
        let limit = (memories_kept, device.memory_kept());
        let memories = MemoryPool::with_limit(move || device.background_memory(), limit);
        CodecPlans { config, cache, memories }
    }

    pub fn quantizers(&self) -> usize {
        self.config.num_quantizers
    }

    /// The plan for chunks of `CHUNKS[i]` frames of one utterance, or of [`ROWS`] or [`MANY_ROWS`].
    pub fn plan(&self, batch: usize, i: usize) -> Result<Arc<dyn Executable>, ModelError> {
        self.cache.get((batch, i), |_| Ok(chunk_graph(&self.config, batch, CHUNKS[i])?))
    }

    /// Compiles the plans of chunks of all sizes that a batch may have.
    pub fn compile_all(&self, batch: usize) -> Result<(), ModelError> {
        let mut sizes = (0..CHUNKS.len()).filter(|i| batch <= most_rows(CHUNKS[*i]));
        sizes.try_for_each(|i| self.plan(batch, i).map(drop))
    }
}

/// The graph of chunks of `frames` frames of `batch` utterances.
pub(super) fn chunk_graph(c: &CodecDecoderConfig, batch: usize, frames: usize) -> Result<Graph, GraphError> {
    let name = format!("codec_decoder of {frames} frames");
    graph(name, |g| codec_decoder::build(g, c, Past::Stream, batch, frames))
}
