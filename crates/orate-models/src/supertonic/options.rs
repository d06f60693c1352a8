//! The options of Supertonic models.

use crate::Flags;

crate::options! {
    /// What Supertonic models can be asked for beyond [`crate::Options`].
    pub struct Options {
        /// Speaking rate, 0.7 to 2.
        speed: f32 => {
            range: Some((0.7, 2.0)), value_name: "FACTOR", short: Some('s'),
            default: "the model's usual rate", is_common: true,
        },
        /// Denoising steps, 1 to 100: more is slower and a little cleaner.
        steps: usize => {
            range: Some((1.0, 100.0)), default: "what the model was tuned for", is_common: true,
        },
        /// Write out English numbers, dates, money and abbreviations first.
        read_numbers: bool => {
            flags: Flags::Both, no_help: "Leave numbers and abbreviations to the model.",
            default: "for voices that only know letters, such as the built-in one",
        },
        /// Drop unknown characters instead of refusing the text; emoji are always dropped.
        skip_unknown: bool => { flags: Flags::On, default: "off" },
        /// Cut each piece at its predicted duration.
        trim: bool => {
            flags: Flags::Off,
            no_help: "Keep each piece to the end of its last latent frame, as the official package does.",
            default: "on",
        },
    }
}
