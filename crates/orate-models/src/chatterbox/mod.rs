//! Chatterbox: text to speech in the voice of a recording, and voice conversion.
//!
//! ```text
//! text ─ tokens ─┐
//! voice ─────────┴─ T3 ─ speech codes, 25 a second ─┐
//! recording ─ speech tokenizer ─ speech codes ──────┴─ S3Gen: flow, vocoder ─ samples, 24 kHz
//!
//! voice: recording ─ voice encoder ─ speaker embedding     of T3
//!                  ─ speech tokenizer ─ codes              of T3 and S3Gen
//!                  ─ speaker encoder ─ x-vector            of S3Gen
//!                  ─ mel spectrogram                       of S3Gen
//! ```
//!
//! [`Files`] opens and checks a model of any variant. [`t3`] describes the network that makes codes, on a
//! [`backbone`]; [`T3`] is what [`crate::decoding`] decodes. [`flow_encoder`], [`estimator`] and [`vocoder`]
//! are the networks of [`S3Gen`]; [`speech_tokenizer`], [`speaker_encoder`] and [`voice_encoder`] read
//! recordings. [`Chatterbox`] is the model on a device.
//!
//! Functions that build networks return errors only where the configuration contradicts itself.
//!
//! Official code: the Python package `chatterbox-tts`.

mod alignment;
pub mod backbone;
mod config;
mod constants;
mod convert;
mod encoders;
pub mod estimator;
mod family;
mod files;
pub mod flow_encoder;
mod footprint;
mod gguf;
mod goldens;
mod growing;
mod guard;
mod options;
mod pipeline;
mod s3gen;
mod s3gen_plans;
mod shared_flow;
mod shared_vocoder;
mod speak;
pub mod speaker_encoder;
pub mod speech_tokenizer;
pub mod t3;
mod t3_plans;
mod text;
pub mod vocoder;
mod voice;
pub mod voice_encoder;

pub use config::{
    Backbone, EncodersConfig, EstimatorConfig, FlowEncoderConfig, S3GenConfig, SpeakerEncoderConfig,
    SpeechTokenizerConfig, T3Config, Variant, VocoderConfig,
};
pub use family::FAMILY;
pub use files::{Files, Talking};
pub use options::Options;
pub use pipeline::Chatterbox;
pub use s3gen::{Noise, Reference, S3Gen};
pub use s3gen_plans::FlowSettings;
pub use t3_plans::{Conditioning, Prompt, T3};
pub use text::Text;
pub use voice::{TalkingVoice, Voice};

/// Name of the voice that official repositories come with.
const DEFAULT_VOICE: &str = "default";
