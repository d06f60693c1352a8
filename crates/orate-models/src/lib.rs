//! The model families Orate runs. Each network describes itself as a graph; each family's pipeline carries
//! values from one network to the next.

mod blocks;
pub mod checkpoint;
pub mod decoding;
mod loader;
pub mod qwen3_tts;
mod runtime;
pub mod supertonic;

pub use loader::Loader;
pub use runtime::{MemoryPool, PlanCache, PooledMemory, Profile};
