//! Errors of a network's description, and of ONNX files.

use crate::{Differences, ErrorKind, ModelError};
use orate_graph::GraphError;

/// The graphs of a model's networks could not be built.
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

impl From<super::onnx::ImportError> for ModelError {
    fn from(e: super::onnx::ImportError) -> Self {
        ModelError::Family { kind: ErrorKind::InvalidModel, source: Box::new(e) }
    }
}
