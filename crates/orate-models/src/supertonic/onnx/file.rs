//! One of the four files, and the error about one that is not as expected.

use crate::ModelError;
use crate::supertonic::stage::Stage;
use orate_weights::onnx::Node;
use orate_weights::{DType, OnnxModel, WeightSource};
use std::fmt::Debug;

/// Returns an error about a file.
macro_rules! refuse {
    ($file:expr, $($problem:tt)+) => {
        return Err($file.error(&format!($($problem)+)))
    };
}
pub(super) use refuse;

/// Drops the leading `vector_estimator.` of v3. `None` for anonymous tensors.
pub(super) fn canonical(stored: &str) -> Option<&str> {
    let name = stored.strip_prefix("vector_estimator.").unwrap_or(stored);
    name.starts_with("tts.").then_some(name)
}

/// The graph of one stage.
#[derive(Debug)]
pub(super) struct OnnxFile {
    pub(super) stage: Stage,
    pub(super) model: OnnxModel,
    /// Largest relative difference between a constant and what it should be. Larger for files in f16.
    pub(super) tolerance: f32,
}

impl OnnxFile {
    pub(super) fn new(stage: Stage, model: OnnxModel) -> Self {
        let half = |name: &str| model.info(name).is_some_and(|info| info.dtype == DType::F16);
        let tolerance = if model.names().into_iter().any(half) { 1e-3 } else { 1e-5 };
        Self { stage, model, tolerance }
    }

    pub(super) fn error(&self, problem: &str) -> ModelError {
        let hint = "Is this a Supertonic model as released (or converted to f16 with its names kept)?";
        ModelError::Content { path: self.model.describe().into(), problem: format!("{problem}. {hint}") }
    }

    /// Refuses a node whose attribute or constant `what` is another than our networks take for granted.
    pub(super) fn expect<T: PartialEq + Debug>(
        &self,
        node: &Node,
        what: &str,
        got: T,
        want: T,
    ) -> Result<(), ModelError> {
        if got == want {
            return Ok(());
        }
        refuse!(self, "node {}: {what} is {got:?}, but only {want:?} is implemented", node.label())
    }

    pub(super) fn near(&self, node: &Node, what: &str, got: f32, want: f32) -> Result<(), ModelError> {
        let is_near = want.is_finite() && (got - want).abs() <= self.tolerance * want.abs();
        if is_near { Ok(()) } else { self.expect(node, what, got, want) }
    }
}
