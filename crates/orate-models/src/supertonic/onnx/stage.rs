//! One of the four files, and the errors about one that is not as expected.

use std::path::Path;

use orate_weights::onnx::Node;
use orate_weights::{OnnxModel, WeightSource};

use super::ImportError;

/// Which of the four files.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum StageKind {
    DurationPredictor,
    TextEncoder,
    VectorEstimator,
    Vocoder,
}

impl StageKind {
    pub(super) const ALL: [Self; 4] =
        [Self::DurationPredictor, Self::TextEncoder, Self::VectorEstimator, Self::Vocoder];

    pub(super) fn file_name(self) -> &'static str {
        match self {
            Self::DurationPredictor => "duration_predictor.onnx",
            Self::TextEncoder => "text_encoder.onnx",
            Self::VectorEstimator => "vector_estimator.onnx",
            Self::Vocoder => "vocoder.onnx",
        }
    }

    /// What the canonical names in this file begin with.
    pub(super) fn prefixes(self) -> &'static [&'static str] {
        match self {
            Self::DurationPredictor => &["tts.dp."],
            Self::TextEncoder => {
                &["tts.ttl.text_encoder.", "tts.ttl.speech_prompted_text_encoder.", "tts.ttl.style_encoder."]
            }
            Self::VectorEstimator => &["tts.ttl.vector_field.", "tts.ttl.uncond_masker."],
            Self::Vocoder => &["tts.ae.", "tts.ttl.normalizer."],
        }
    }
}

/// Drops v3's extra level. `None` for anonymous tensors.
pub(super) fn canonical(stored: &str) -> Option<&str> {
    let name = stored.strip_prefix("vector_estimator.").unwrap_or(stored);
    name.starts_with("tts.").then_some(name)
}

/// One of the four files.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) kind: StageKind,
    pub(super) file: String,
    pub(super) model: OnnxModel,
    /// Largest relative difference between a constant and what it should be. Larger for files in f16.
    pub(super) tolerance: f32,
}

impl Stage {
    pub(super) fn open(folder: &Path, kind: StageKind) -> Result<Self, ImportError> {
        Ok(Self::new(kind, OnnxModel::open(folder.join(kind.file_name()))?))
    }

    pub(super) fn new(kind: StageKind, model: OnnxModel) -> Self {
        let half = |name: &str| model.info(name).is_some_and(|info| info.dtype == orate_weights::DType::F16);
        let tolerance = if model.names().into_iter().any(half) { 1e-3 } else { 1e-5 };
        Self { kind, file: model.describe(), model, tolerance }
    }

    pub(super) fn structure<T>(&self, problem: String) -> Result<T, ImportError> {
        Err(ImportError::Structure { file: self.file.clone(), problem })
    }

    pub(super) fn assumption<T>(
        &self,
        node: &Node,
        what: &'static str,
        got: String,
        want: String,
    ) -> Result<T, ImportError> {
        Err(ImportError::Assumption { file: self.file.clone(), node: node.label(), what, got, want })
    }

    pub(super) fn expect<T: PartialEq + std::fmt::Debug>(
        &self,
        node: &Node,
        what: &'static str,
        got: T,
        want: T,
    ) -> Result<(), ImportError> {
        if got == want {
            Ok(())
        } else {
            self.assumption(node, what, format!("{got:?}"), format!("{want:?}"))
        }
    }

    pub(super) fn near(
        &self,
        node: &Node,
        what: &'static str,
        got: f32,
        want: f32,
    ) -> Result<(), ImportError> {
        if got == want || (want.is_finite() && (got - want).abs() <= self.tolerance * want.abs()) {
            return Ok(());
        }
        self.assumption(node, what, got.to_string(), want.to_string())
    }
}
