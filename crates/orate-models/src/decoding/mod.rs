//! Decoding: an autoregressive network, step after step, for one utterance or several side by side.

mod ahead;
pub(crate) mod batch;
pub(crate) mod coalescer;
pub(crate) mod kept_states;
mod runaway;
pub(crate) mod session;
pub(crate) mod shared_batch;
pub(crate) mod shared_prompts;

pub use batch::{Batch, RowId};
pub use runaway::is_runaway;
pub use session::{Session, Step};
pub use shared_batch::{SharedBatch, Utterance};
