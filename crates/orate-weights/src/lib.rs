//! Model weights: where the numbers come from.
//!
//! A [`WeightSource`] gives tensors by name, borrowed from a memory-mapped file. Three containers are read:
//!
//! | module | container | used for |
//! | --- | --- | --- |
//! | [`safetensors`] | Hugging Face safetensors | Qwen3-TTS, Chatterbox, voices in training |
//! | [`gguf`] | GGUF, also written | packed voices, made by [`voice_pack`] |
//! | [`onnx`] | ONNX initialisers and graph | Supertonic as released |
//!
//! [`Joined`] makes one source of several, such as the shards of a large checkpoint; [`Scattered`] has tables
//! of which a file keeps some rows.
//!
//! Tensors are [`TensorRef`]s: dtype, shape with the slowest axis first, and bytes that need not be aligned.
//! [`q8_0`] holds the one quantised format. Every reader treats its file as hostile: it answers with a
//! [`WeightError`], never with a panic or with an allocation that the file's size does not justify.

mod dtype;
mod error;
mod file;
pub mod gguf;
mod joined;
pub mod onnx;
pub mod q8_0;
pub mod safetensors;
mod scattered;
mod source;
mod tensor;
pub mod voice_pack;

#[cfg(test)]
mod hostile;

pub use dtype::DType;
pub use error::{WeightError, WeightErrorKind};
pub use gguf::{GgufFile, GgufWriter};
pub use joined::Joined;
pub use onnx::OnnxModel;
pub use safetensors::SafeTensors;
pub use scattered::Scattered;
pub use source::WeightSource;
pub use tensor::{TensorInfo, TensorRef};
