//! Qwen3-TTS (12 Hz): text to speech, a frame of sixteen codes at a time.
//!
//! ```text
//! text ─ Qwen2 tokens ─ text rows [T, D] ─┐ added to codec rows
//! rows ─ talker ─ h [D], code 0           │ one frame is 80 ms
//! h, code 0 ─ code predictor ─ codes 1…15 │ sum of the 16 embeddings + next text row = next row
//! codes [F, 16] ─ codec decoder ─ samples [1920 F], 24 kHz
//!
//! cloning: reference audio ─ speaker encoder ─ x-vector [D]
//!          reference audio ─ codec encoder ─ codes
//! ```
//!
//! [`Files`] opens and checks a model of any variant. [`speaker_encoder`] and [`codec_encoder`] encode a
//! voice. [`prompt`] is a request as ids, [`prompt_rows`] makes rows of them, [`talker`] reads these,
//! [`frame`] is the plan that is replayed for each frame, and [`codec_decoder`] turns codes into samples.
//! [`Talker`] is what [`crate::decoding`] decodes. [`Qwen3Tts`] is the model on a device.
//!
//! Functions that build networks return errors only where the configuration contradicts itself.
//!
//! Official code: the Python package `qwen-tts`.

pub mod code_predictor;
mod codec_beside;
pub mod codec_decoder;
pub mod codec_encoder;
mod codec_plans;
mod codec_stream;
mod config;
mod family;
mod files;
mod footprint;
pub mod frame;
mod gguf;
pub mod goldens;
pub mod layout;
mod options;
mod pipeline;
pub mod prompt;
pub mod prompt_rows;
mod row_ids;
mod settings;
mod shared_codec;
mod speak;
pub mod speaker_encoder;
pub mod talker;
mod talker_plans;
mod transformer;
mod voice;
mod voice_encoder;

use orate_graph::{Graph, GraphError};

pub use crate::FinishReason;
pub use crate::blocks::Past;
pub use crate::decoding::{RowId, Sampling, StartOptions, Step, is_runaway};
pub use codec_stream::{CodecDecoder, CodecStream};
pub use config::{
    CODEC_TYPE, CONTROL_IDS, CodecConfig, CodecDecoderConfig, CodecEncoderConfig, Config, Dialect,
    GenerationConfig, MODEL_TYPE, PredictorConfig, SpeakerEncoderConfig, TalkerConfig, TransformerConfig,
    Variant,
};
pub use family::FAMILY;
pub use files::{Files, Talking};
pub use layout::Network;
pub use options::Options;
pub use pipeline::Qwen3Tts;
pub use prompt::{Prompt, Request, Speaker, TextFeeding};
pub use row_ids::{RowIds, RowKind};
pub use settings::Settings;
pub use talker_plans::Talker;
pub use voice::{Reference, Voice};
pub use voice_encoder::VoiceEncoder;

fn graph(
    name: impl Into<String>,
    build: impl FnOnce(&mut Graph) -> Result<(), GraphError>,
) -> Result<Graph, GraphError> {
    let mut g = Graph::new(name);
    build(&mut g)?;
    Ok(g)
}

/// An utterance alone.
pub type Session = crate::decoding::Session<Talker>;
/// Several utterances side by side.
pub type Batch = crate::decoding::Batch<Talker>;
/// An utterance decoded together with those of other threads.
pub type Utterance = crate::decoding::Utterance<Talker>;
