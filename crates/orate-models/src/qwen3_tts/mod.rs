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
//! [`Files`] opens and checks a model of any variant. [`speaker_encoder`] and [`codec_encoder`] listen to a voice. [`prompt`] is
//! a request as ids, [`prompt_rows`] makes rows of them, [`talker`] reads these, [`frame`] is the plan that is replayed for
//! each frame, and [`codec_decoder`] turns codes into samples. [`Qwen3Tts`] is the model on a device, a [`Session`] an
//! utterance on its way, and a [`Batch`] several of them side by side, which [`Utterance`]s share by themselves.
//!
//! Official code: the Python package `qwen-tts`.

mod ahead;
mod batch;
pub mod code_predictor;
pub mod codec_decoder;
pub mod codec_encoder;
mod codec_stream;
mod config;
mod conv;
mod error;
mod files;
mod footprint;
pub mod frame;
mod gathering;
mod kept_states;
pub mod layout;
mod pipeline;
pub mod prompt;
pub mod prompt_rows;
mod row_ids;
mod runaway;
mod session;
mod settings;
mod shared_batch;
mod shared_codec;
mod shared_prompts;
pub mod speaker_encoder;
pub mod talker;
mod transformer;
mod voice_encoder;
mod voice_file;
mod weights;

pub use batch::{Batch, RowId};
pub use codec_stream::{CodecDecoder, CodecStream};
pub use config::{
    CODEC_TYPE, CONTROL_IDS, CodecConfig, CodecDecoderConfig, CodecEncoderConfig, Config, Dialect,
    GenerationConfig, MODEL_TYPE, PredictorConfig, SpeakerEncoderConfig, TalkerConfig, TransformerConfig,
    Variant,
};
pub use conv::Past;
pub use error::{Differences, QwenError};
pub use files::{Files, Talking, check};
pub use footprint::Footprint;
pub use layout::Network;
pub use pipeline::{ClonedVoice, Qwen3Tts, Reference};
pub use prompt::{Prompt, Request, Speaker, TextFeeding};
pub use row_ids::{Beside, RowIds};
pub use runaway::is_runaway;
pub use session::{FinishReason, Session, Step};
pub use settings::{Sampling, Settings};
pub use shared_batch::{SharedBatch, Utterance};
pub use voice_encoder::VoiceEncoder;
