//! The options of Chatterbox models.

use super::config::Variant;
use crate::{Flags, OptionSet, OptionSpec};

crate::options! {
    /// What Chatterbox models can be asked for beyond [`crate::Options`].
    pub struct Options {
        /// How emotional it sounds: 0 is flat, 1 is dramatic (English, Multilingual).
        exaggeration: f32 => { range: Some((0.0, 5.0)), default: "0.5", is_common: true },
        /// Guidance of the text over the voice; 0 is none (English, Multilingual).
        cfg_weight: f32 => { range: Some((0.0, 10.0)), value_name: "W", default: "0.5", is_common: true },
        /// Divides the logits that codes are drawn from; 0 takes the likeliest.
        temperature: f32 => {
            range: Some((0.0, 100.0)), value_name: "T", default: "0.8", is_common: true,
        },
        /// Least probability of a code, relative to the likeliest (English, Multilingual).
        min_p: f32 => { range: Some((0.0, 1.0)), value_name: "P", default: "0.05" },
        /// Codes to draw from, the likeliest ones; 0 is all (Turbo, Nano).
        top_k: usize => { range: Some((0.0, 16_777_216.0)), value_name: "K", default: "1000" },
        /// Probability to draw from, 0 to 1.
        top_p: f32 => {
            range: Some((0.0, 1.0)), value_name: "P", default: "1 (English, Multilingual), 0.95 (Turbo, Nano)",
        },
        /// Makes codes that were drawn before less likely: above 0, at most 100.
        repetition_penalty: f32 => {
            range: Some((f32::MIN_POSITIVE as f64, 100.0)), default: "1.2; 2 with the alignment guard",
        },
        /// Ends speech with its text, not before and not long after (Multilingual).
        ///
        /// Watches which part of the text T3 attends to, as version 0.1.7 of the official package does.
        /// Pieces are then not decoded in one batch with those of other callers.
        alignment_guard: bool => { flags: Flags::On, default: "off" },
        /// Steps from noise to a mel spectrogram; more take longer and sound cleaner.
        steps: usize => { range: Some((1.0, 100.0)), default: "10; 2 (Turbo, Nano)", converts: true },
        /// Guidance of the mel spectrogram; 0 is none (English, Multilingual).
        flow_guidance: f32 => {
            range: Some((0.0, 10.0)), value_name: "W", default: "0.7", converts: true,
        },
        /// Speech codes of 40 ms that a piece of the text may have.
        max_codes: usize => { range: Some((1.0, 4096.0)), default: "1000" },
        /// Codes of 40 ms in the first chunk of a stream; 0 for whole pieces.
        first_chunk: usize => { range: Some((0.0, 1000.0)), default: "10 on GPUs, 0 on CPUs" },
        /// How often a piece is spoken again, with another seed, after runaway generation.
        retries: usize => { range: Some((0.0, 100.0)), default: "1" },
    }
}

impl Options {
    /// Whether the alignment guard is on.
    pub(super) fn is_guarded(&self) -> bool {
        self.alignment_guard == Some(true)
    }
}

/// Options without an effect for the models of a variant.
fn without_effect(variant: Variant) -> &'static [&'static str] {
    match variant {
        Variant::English => &["top_k", "alignment_guard"],
        Variant::Multilingual => &["top_k"],
        Variant::Turbo | Variant::Nano => &["exaggeration", "cfg_weight", "min_p", "alignment_guard"],
        Variant::Conversion => &[
            "exaggeration",
            "cfg_weight",
            "temperature",
            "min_p",
            "top_k",
            "top_p",
            "repetition_penalty",
            "alignment_guard",
            "max_codes",
            "first_chunk",
            "retries",
        ],
    }
}

/// The options that have an effect for the models of a variant, whose estimator is a meanflow or not.
pub(super) fn accepted(variant: Variant, is_meanflow: bool) -> Vec<OptionSpec> {
    let out = without_effect(variant);
    let is_out = |name: &str| out.contains(&name) || is_meanflow && name == "flow_guidance";
    Options::SPECS.iter().filter(|spec| !is_out(spec.name)).cloned().collect()
}
