//! The four stages of synthesis, each with weights of its own.

/// Canonical name of the learned style keys, in all versions and in packed voices.
pub const STYLE_KEY: &str = "tts.ttl.style_encoder.style_token_layer.style_key";

/// A stage of synthesis, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Text to seconds.
    DurationPredictor,
    /// Text to vectors.
    TextEncoder,
    /// Noise to latent, all steps.
    VectorEstimator,
    /// Latent to waveform.
    Vocoder,
}

impl Stage {
    /// All stages in order.
    pub const ALL: [Stage; 4] =
        [Stage::DurationPredictor, Stage::TextEncoder, Stage::VectorEstimator, Stage::Vocoder];

    /// Name, as the official files are called.
    pub fn name(self) -> &'static str {
        match self {
            Stage::DurationPredictor => "duration_predictor",
            Stage::TextEncoder => "text_encoder",
            Stage::VectorEstimator => "vector_estimator",
            Stage::Vocoder => "vocoder",
        }
    }

    /// Whether a weight belongs to this stage alone.
    pub(super) fn owns(self, weight: &str) -> bool {
        let prefixes: &[&str] = match self {
            Stage::DurationPredictor => &["tts.dp."],
            Stage::TextEncoder => &["tts.ttl.text_encoder.", "tts.ttl.speech_prompted_text_encoder."],
            Stage::VectorEstimator => &["tts.ttl.vector_field.", "tts.ttl.uncond_masker."],
            Stage::Vocoder => &["tts.ae.", "tts.ttl.normalizer."],
        };
        prefixes.iter().any(|prefix| weight.starts_with(prefix))
    }
}
