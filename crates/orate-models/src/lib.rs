//! The model families Orate runs. Each network describes itself as a graph; each family's pipeline carries
//! values from one network to the next, and implements [`Family`], [`ModelFiles`] and [`Model`], which is all
//! that the rest of Orate knows of it.

mod alignment;
mod blocks;
pub mod chatterbox;
pub mod checkpoint;
pub mod decoding;
mod error;
mod files;
pub mod gguf;
pub mod hooks;
mod language;
mod loader;
mod model;
mod options;
pub mod pieces;
pub mod qwen3_tts;
mod runtime;
pub mod supertonic;
mod voice;

pub use error::{ErrorKind, ModelError};
pub use language::language;
pub use loader::{Loader, format_of};
pub use model::{
    Chunk, Chunks, Cloning, Conversion, Description, Facts, Family, FinishReason, Footprint, Lap, Laps,
    MatmulSize, Model, ModelFiles, Opening, Packing, PlaceOptions, Runs, Size, SpeechLength, VoiceInfo,
};
pub use options::{Cancel, Flags, OptionKind, OptionSet, OptionSpec, OptionType, Options, Value, Values};
pub use pieces::piece_seed;
pub use runtime::{MemoryPool, PlanCache, PooledMemory, Profile};
pub use voice::{ClonedVoice, VoiceData, VoiceTensor};
