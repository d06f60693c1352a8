//! Model weights: readers of checkpoints.
//!
//! A [`WeightSource`] gives tensors by name, borrowed from a memory-mapped file. Four containers are read:
//!
//! | module | container | used for |
//! | --- | --- | --- |
//! | [`safetensors`] | Hugging Face safetensors | Qwen3-TTS, Chatterbox, voices in training |
//! | [`gguf`] | GGUF, also written | packed voices, made by [`voice_pack`]; files of other engines |
//! | [`pt`] | zip of a pickle and raw storages, as `torch.save` writes | Chatterbox |
//! | [`onnx`] | ONNX initializers and graph | Supertonic as released |
//!
//! [`Joined`] makes one source of several, such as the shards of a large checkpoint; [`Scattered`] has tables
//! of which a file keeps some rows; [`Renamed`] gives files of other engines the official names.
//!
//! A tensor is a [`TensorRef`]: dtype, shape with the slowest axis first, and bytes that need not be aligned.
//! [`blocks`] has the quantized formats. Every reader treats its file as hostile: damage is a
//! [`WeightError`], never a panic or an allocation out of proportion to the file's size. A mapped file must
//! not be truncated while it is in use: the program would end with a bus error.

pub mod blocks;
mod dtype;
mod error;
mod file;
pub mod gguf;
mod joined;
pub mod onnx;
pub mod pt;
pub mod q8_0;
mod renamed;
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
pub use pt::PtFile;
pub use renamed::{Renamed, View};
pub use safetensors::SafeTensors;
pub use scattered::Scattered;
pub use source::WeightSource;
pub use tensor::{TensorInfo, TensorRef};
