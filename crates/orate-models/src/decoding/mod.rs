//! Decoding: an autoregressive network on a device, frame after frame, for one utterance or many at once.
//!
//! A *frame* is what one step draws: one code, or all codes of a codec's frame. A family describes its
//! network by [`Autoregressive`]; all else is here:
//!
//! - [`Session`]: one utterance. Its prompt is padded, read in passes, and starts from the kept state of an
//!   earlier one with the same beginning (`kept_states`). The cache grows. The next frame is submitted ahead
//!   of time (`ahead`).
//! - [`Batch`]: several sessions side by side, which join and leave between frames.
//! - [`Utterance`]: utterances of many threads that share prompt passes (`shared_prompts`) and frames
//!   (`shared_batch`).
//! - [`Sampling`] and [`DrawSettings`]: how codes are drawn. [`is_runaway`]: detects looping or endless
//!   speech.
//!
//! [`Decoding`] is the entry: a network, with what its utterances share. Cancelling an utterance is dropping
//! it.

mod ahead;
mod batch;
mod caches;
pub(crate) mod coalescer;
pub(crate) mod error;
pub(crate) mod kept_states;
mod network;
mod resources;
mod runaway;
pub(crate) mod sampling;
pub(crate) mod session;
mod shared_batch;
mod shared_prompts;

pub use batch::{Batch, RowId};
pub use network::{
    Autoregressive, CODES, Extent, FEED, FRAME, Facts, GIVEN, LAST, MemorySizes, POSITION, Pass, ROWS, SEED,
    SHARED,
};
pub use runaway::is_runaway;
pub use sampling::{DrawSettings, Sampling};
pub use session::{Session, StartOptions, Step};
pub use shared_batch::Utterance;

use crate::ModelError;
use resources::Resources;
use shared_batch::SharedBatch;
use std::sync::Arc;

/// A network with everything that its utterances share: memories, kept states of prompts, and a batch.
pub struct Decoding<N: Autoregressive> {
    resources: Arc<Resources<N>>,
    batch: Arc<SharedBatch<N>>,
}

impl<N: Autoregressive> Decoding<N> {
    /// Keeps states of prompts of at most `prefix_bytes` bytes.
    pub fn new(network: N, prefix_bytes: usize) -> Decoding<N> {
        Self::of(Resources::new(network, prefix_bytes))
    }

    /// Another network, whose utterances take memories from the same pool.
    pub fn beside(&self, network: N, prefix_bytes: usize) -> Decoding<N> {
        Self::of(Resources::with_memories(network, prefix_bytes, self.resources.memories.clone()))
    }

    fn of(resources: Arc<Resources<N>>) -> Decoding<N> {
        let batch = SharedBatch::new(resources.clone());
        Decoding { resources, batch }
    }

    /// The network.
    pub fn network(&self) -> &N {
        &self.resources.network
    }

    /// Whether no utterance is under way.
    pub fn is_idle(&self) -> bool {
        // This and the batch hold the resources; sessions, batches and utterances would be more.
        Arc::strong_count(&self.resources) == 2 && Arc::strong_count(&self.batch) == 1
    }

    /// Drops the kept states of prompts. What is decoded next is the same, and begins later.
    pub fn forget_prefixes(&self) {
        self.resources.prefixes.clear();
    }

    /// Reads a prompt, up to the state before the first frame.
    ///
    /// # Errors
    /// Settings out of range, a prompt that leaves no room for frames, or the device failed.
    pub fn start(
        &self,
        prompt: &N::Prompt,
        settings: DrawSettings,
        options: StartOptions,
    ) -> Result<Session<N>, ModelError> {
        Session::start(&self.resources, prompt, settings, options)
    }

    /// As [`Decoding::start`], for an utterance that shares passes with those of other threads. `prepare` is
    /// called where others are under way, with the number of all, to compile what they will share elsewhere.
    pub fn utterance(
        &self,
        prompt: &N::Prompt,
        settings: DrawSettings,
        options: StartOptions,
        prepare: impl FnOnce(usize) -> Result<(), ModelError>,
    ) -> Result<Utterance<N>, ModelError> {
        Utterance::start(&self.batch, prompt, settings, options, prepare)
    }

    /// An empty batch.
    pub fn batch(&self) -> Batch<N> {
        Batch::new(self.resources.clone())
    }

    /// Compiles the plans of an utterance like this one, of up to `max_frames` frames, and for several
    /// `callers` those of their batches. Runs nothing.
    pub fn prepare(&self, prompt: &N::Prompt, max_frames: usize, callers: usize) -> Result<(), ModelError> {
        let needs = session::prepare(&self.resources.network, prompt, max_frames)?;
        if callers > 1 {
            self.batch.prepare(callers, needs)?;
        }
        Ok(())
    }
}
