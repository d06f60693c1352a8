//! What all utterances of a network share, whether they are alone or in a batch.

use super::kept_states::KeptStates;
use super::network::Autoregressive;
use super::shared_prompts::SharedPrompts;
use crate::runtime::MemoryPool;
use std::sync::Arc;

/// A network, memories to run it in, and states of prompts to begin from.
pub(super) struct Resources<N: Autoregressive> {
    pub network: N,
    /// Memories of finished utterances are kept for as many as may speak at once.
    pub memories: Arc<MemoryPool>,
    /// Creates the memories of batches. It keeps none: a batch keeps its own.
    pub batches: Arc<MemoryPool>,
    /// Caches after the fixed rows of prompts.
    pub prefixes: KeptStates<N::Prefix>,
    pub prompts: SharedPrompts,
}

impl<N: Autoregressive> Resources<N> {
    pub fn new(network: N, prefix_bytes: usize) -> Arc<Resources<N>> {
        let device = network.device().clone();
        let most = device.pacing().batch;
        let memories = MemoryPool::new(device, most);
        Self::with_memories(network, prefix_bytes, memories)
    }

    pub fn with_memories(network: N, prefix_bytes: usize, memories: Arc<MemoryPool>) -> Arc<Resources<N>> {
        let wait = network.device().pacing().coalescing_wait.unwrap_or_default();
        let (prefixes, prompts) = (KeptStates::new(prefix_bytes), SharedPrompts::new(wait));
        let batches = MemoryPool::new(network.device().clone(), 0);
        Arc::new(Resources { network, memories, batches, prefixes, prompts })
    }
}
