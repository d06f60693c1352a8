//! Errors of a network's description, and of ONNX files.

use super::names::NameError;
use crate::{ErrorKind, ModelError};
use orate_graph::GraphError;

/// A network could not be described for a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// An op got operands it cannot take: the configuration contradicts itself.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A weight is missing or has another shape.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A mistake of ours.
    #[error("internal error while describing a network: {0}")]
    Internal(&'static str),
}

impl From<super::onnx::ImportError> for ModelError {
    fn from(e: super::onnx::ImportError) -> Self {
        ModelError::Family { kind: ErrorKind::InvalidModel, source: Box::new(e) }
    }
}
