//! Supertonic 1, 2 and 3, and the voices trained by this project in the same structure.
//!
//! ```text
//! text ── pieces ── ids [1, T]
//!                     ├─► duration_predictor ─► seconds ─► frames L
//!                     ├─► text_encoder ─► text_emb [1, T, C]
//!                     └─► noise [1, L, D·K] ─► vector_estimator × steps ─► vocoder ─► wav
//! ```
//!
//! [`Supertonic`] owns the model on a device. A [`Session`] takes one utterance through the stages; its
//! values stay in device memory between them.

mod blocks;
pub mod config;
mod duration_predictor;
mod error;
mod family;
mod files;
mod goldens;
mod networks;
pub mod onnx;
mod options;
mod pipeline;
mod session;
mod speak;
mod text;
mod text_encoder;
mod vector_estimator;
mod vocoder;
mod voice;

pub use config::Config;
pub use error::BuildError;
pub use family::{FAMILY, open_packed};
pub use files::{Files, TextRules};
pub use networks::graphs;
pub(crate) use networks::{Network, PlanKey};
pub use options::Options;
pub use pipeline::Supertonic;
pub use session::{Noise, Session, Stage};
pub use text::{Piece, SpeakOptions};
pub use vector_estimator::{GUIDANCE, Sizes};
pub use voice::{Voice, parse_mix};
