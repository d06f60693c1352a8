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
//! values stay in device memory between them. On GPUs, pieces that are to be spoken at the same time become
//! rows of one run (`shared_rows`).

mod alignment;
mod blocks;
mod config;
mod duration_predictor;
mod family;
mod files;
mod gguf;
mod goldens;
mod networks;
pub mod onnx;
mod options;
mod rows;
mod session;
mod shared_rows;
mod speak;
mod stage;
mod text;
mod text_encoder;
mod vector_estimator;
mod vocoder;
mod voice;

pub use blocks::{Padding, Sizes};
pub use config::Config;
pub use family::{FAMILY, open_packed};
pub use files::Files;
pub use networks::graphs;
pub use options::Options;
pub use session::{Noise, Session, Supertonic};
pub use stage::Stage;
pub use text::Piece;
pub use voice::{Voice, parse_mix};
