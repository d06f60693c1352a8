//! The options of Qwen3-TTS models.

use super::TextFeeding;
use crate::{Flags, OptionKind, OptionType, Value};

crate::options! {
    /// What Qwen3-TTS models can be asked for beyond [`crate::Options`].
    pub struct Options {
        /// How to speak, or who, in words.
        ///
        /// VoiceDesign models need it: it describes the voice. CustomVoice models of 1.7B follow it.
        instruct: String => { value_name: "WORDS", default: "none", is_common: true },
        /// How text reaches the talker: a whole piece at first, or a token per frame.
        text_feeding: TextFeeding => {
            value_name: "HOW",
            default: "as in the official package: streaming for Base models, whole for others",
        },
        /// Divides the logits that codes are drawn from; 0 takes the likeliest.
        temperature: f32 => {
            range: Some((0.0, 100.0)), value_name: "T", default: "the model's own", is_common: true,
        },
        /// Codes to draw from, the likeliest ones; 0 is all.
        top_k: usize => { range: Some((0.0, 16_777_216.0)), value_name: "K", default: "the model's own" },
        /// Probability to draw from, 0 to 1.
        top_p: f32 => { range: Some((0.0, 1.0)), value_name: "P", default: "the model's own" },
        /// Temperature for codes 1–15 of a frame.
        predictor_temperature: f32 => {
            range: Some((0.0, 100.0)), value_name: "T", default: "--temperature",
        },
        /// As --top-k, for codes 1–15 of a frame.
        predictor_top_k: usize => { range: Some((0.0, 16_777_216.0)), value_name: "K", default: "--top-k" },
        /// As --top-p, for codes 1–15 of a frame.
        predictor_top_p: f32 => { range: Some((0.0, 1.0)), value_name: "P", default: "--top-p" },
        /// Makes codes that were drawn before less likely: above 0, at most 100.
        repetition_penalty: f32 => {
            range: Some((f32::MIN_POSITIVE as f64, 100.0)), default: "the model's own",
        },
        /// Frames of 80 ms that a piece of the text may have.
        max_frames: usize => { range: Some((1.0, 16_777_216.0)), default: "what its length suggests" },
        /// How often a piece is spoken again, with another seed, after runaway generation.
        ///
        /// Only a piece of which nothing was returned is spoken again.
        retries: usize => { range: Some((0.0, 100.0)), default: "1" },
        /// Run the codec on a thread of its own while the next frames are made.
        codec_beside: bool => { flags: Flags::Value, default: "true on GPUs" },
    }
}

impl OptionType for TextFeeding {
    const KIND: OptionKind = OptionKind::Choice(&["whole", "streaming"]);

    fn to_value(&self) -> Value {
        Value::Text(self.to_string())
    }

    fn from_value(value: &Value) -> Option<Self> {
        [TextFeeding::Whole, TextFeeding::Streaming].into_iter().find(|feeding| feeding.to_value() == *value)
    }
}
