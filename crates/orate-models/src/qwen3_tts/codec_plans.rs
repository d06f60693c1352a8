//! Plans of the codec decoder: for chunks of a few sizes, of one utterance or of a batch.

use super::codec_decoder;
use super::config::CodecDecoderConfig;
use crate::ModelError;
use crate::blocks::Past;
use crate::runtime::{MemoryPool, PlanCache, PooledMemory};
use orate_graph::{Device, Executable, Graph, GraphError, WeightLoader};
use std::sync::Arc;

/// Frames of a chunk, from large to small. Larger chunks take less time for a frame and more memory.
pub(super) const CHUNKS: [usize; 6] = [25, 16, 8, 4, 2, 1];

/// Utterances in a batch. With chunks of 25 frames, eight are as fast as any number.
pub(super) const ROWS: usize = 8;

/// The decoder on a device, and memories of finished utterances.
pub(super) struct CodecPlans {
    config: CodecDecoderConfig,
    /// By utterances side by side, and number in [`CHUNKS`].
    plans: PlanCache<(usize, usize)>,
    pub memories: Arc<MemoryPool>,
}

impl CodecPlans {
    /// Keeps `memories_kept` memories.
    pub fn new(
        config: CodecDecoderConfig,
        device: Arc<dyn Device>,
        weights: Arc<dyn WeightLoader + Send + Sync>,
        memories_kept: usize,
    ) -> CodecPlans {
        let plans = PlanCache::new(device.clone(), weights, 2 * CHUNKS.len());
        CodecPlans { config, plans, memories: MemoryPool::background(device, memories_kept) }
    }

    /// Codes of a frame.
    pub fn quantizers(&self) -> usize {
        self.config.num_quantizers
    }

    /// All plans compiled so far.
    pub fn cache(&self) -> &PlanCache<(usize, usize)> {
        &self.plans
    }

    /// The plan for chunks of `CHUNKS[i]` frames.
    ///
    /// # Errors
    /// The device lacks an op, or room for the weights.
    pub fn plan(&self, i: usize) -> Result<Arc<dyn Executable>, ModelError> {
        self.plan_of(1, i)
    }

    /// The same for batches of [`ROWS`].
    pub fn batch_plan(&self, i: usize) -> Result<Arc<dyn Executable>, ModelError> {
        self.plan_of(ROWS, i)
    }

    fn plan_of(&self, batch: usize, i: usize) -> Result<Arc<dyn Executable>, ModelError> {
        self.plans.get((batch, i), |_| Ok(graph(&self.config, batch, CHUNKS[i])?))
    }

    /// A memory without content.
    pub fn fresh_memory(&self) -> PooledMemory {
        self.memories.adopt(self.memories.fresh())
    }
}

/// The graph of chunks of `frames` frames of `batch` utterances.
pub(super) fn graph(config: &CodecDecoderConfig, batch: usize, frames: usize) -> Result<Graph, GraphError> {
    let mut g = Graph::new(format!("codec_decoder of {frames} frames"));
    codec_decoder::build(&mut g, config, Past::Stream, batch, frames)?;
    Ok(g)
}
