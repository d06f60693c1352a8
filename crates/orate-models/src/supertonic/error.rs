//! What can go wrong with a Supertonic model.

use crate::qwen3_tts::Differences;
use orate_graph::{DeviceError, GraphError};
use orate_text::TextError;
use orate_weights::WeightError;
use std::path::PathBuf;

/// A network could not be described for a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// An op got operands it cannot take: the configuration contradicts itself.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The weights are not those that the configuration describes.
    #[error("{0}; are tts.json and the weights of one model, and complete?")]
    Tensors(Box<Differences>),
}

/// A model could not be opened or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Nothing at the path looks like a model.
    #[error("{}: {problem}", path.display())]
    NotAModel {
        /// What was opened.
        path: PathBuf,
        /// Why it is not a model, and what is expected.
        problem: String,
    },
    /// A file of the model cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file of the model has the wrong content.
    #[error("{}: {problem}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Weights cannot be read.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// The ONNX files are not what the official exporter writes.
    #[error(transparent)]
    Onnx(Box<super::onnx::ImportError>),
    /// The networks do not fit the weights.
    #[error("{path}: {source}")]
    Build {
        /// The model.
        path: String,
        /// What does not fit.
        source: Box<BuildError>,
    },
    /// No such voice.
    #[error("unknown voice `{name}`; this model has: {known}")]
    UnknownVoice {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A voice that this model cannot use.
    #[error("voice `{name}`: {problem}")]
    BadVoice {
        /// The voice.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// An option out of range.
    #[error("{option} is {got}; {allowed}")]
    Option {
        /// Which.
        option: &'static str,
        /// What was passed.
        got: String,
        /// What is allowed.
        allowed: String,
    },
    /// A duration was predicted that no text has.
    #[error(
        "{seconds} s of speech were predicted for {characters} characters; are the voice and the model's weights undamaged, \
         and does their format have the range that they need (bf16 or f32)?"
    )]
    Duration {
        /// What was predicted.
        seconds: f32,
        /// Length of the text, with what the model adds to it.
        characters: usize,
    },
    /// The samples are no numbers.
    #[error(
        "the model's samples are no numbers; are its weights and the voice undamaged, and does their format have the range \
         that they need (bf16 or f32)?"
    )]
    NoSound,
    /// The text cannot be spoken.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The device failed.
    #[error(transparent)]
    Device(Box<DeviceError>),
}

impl From<super::onnx::ImportError> for ModelError {
    fn from(e: super::onnx::ImportError) -> Self {
        ModelError::Onnx(Box::new(e))
    }
}

impl From<DeviceError> for ModelError {
    fn from(e: DeviceError) -> Self {
        ModelError::Device(Box::new(e))
    }
}

impl From<GraphError> for ModelError {
    fn from(e: GraphError) -> Self {
        DeviceError::from(e).into()
    }
}
