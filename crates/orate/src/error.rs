//! The library's error.

use orate_audio::AudioError;
use orate_graph::DeviceError;
use orate_models::qwen3_tts::QwenError;
use orate_models::supertonic::ModelError;
use orate_weights::WeightError;
use std::path::PathBuf;

/// Result of library calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed. The message says what, where, and how to mend it; [`Error::kind`] is for callers that branch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model, a voice, an option or the text.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A Qwen3-TTS model, an option or the text.
    #[error(transparent)]
    Qwen3(Box<QwenError>),
    /// What was asked for is there for other families of models only.
    #[error("{what} is there for {needed} models only; {model} is a {family} model")]
    OtherFamily {
        /// What was asked for.
        what: &'static str,
        /// Family that has it.
        needed: &'static str,
        /// Where the model comes from.
        model: String,
        /// Its family.
        family: &'static str,
    },
    /// The device.
    #[error(transparent)]
    Device(Box<DeviceError>),
    /// Reading or writing audio.
    #[error(transparent)]
    Audio(#[from] AudioError),
    /// Reading weights or goldens.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// An option that is not the model's business.
    #[error("{option} is {got}; {allowed}")]
    Option {
        /// Which.
        option: &'static str,
        /// What was passed.
        got: String,
        /// What is allowed.
        allowed: String,
    },
    /// No kept voice has the name.
    #[error(
        "no voice `{name}` is kept in {}; there {}", folder.display(),
        if known.is_empty() { "is none yet (`orate voices add` makes one)".to_owned() } else { format!("are: {}", known.join(", ")) }
    )]
    UnknownKeptVoice {
        /// What was asked for.
        name: String,
        /// Where it was looked for.
        folder: PathBuf,
        /// Those that are there.
        known: Vec<String>,
    },
    /// A voice of this name is kept already.
    #[error("a voice `{name}` is kept already, in {}; remove it first, or replace it", path.display())]
    VoiceExists {
        /// Its name.
        name: String,
        /// Its file.
        path: PathBuf,
    },
    /// The folder of kept voices cannot be read or written.
    #[error("{}: {source}", path.display())]
    VoiceFolder {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// No model was given and this build has none inside.
    #[error("{0}")]
    NoVoice(String),
    /// The thread that runs the codec beside the talker could not be started, or panicked.
    #[error("the codec's thread: {problem}; with `Options::codec_beside` set to `Some(false)` there is none")]
    Thread {
        /// What happened to it.
        problem: String,
    },
    /// [`crate::Cancel::cancel`] was called.
    #[error("cancelled")]
    Cancelled,
    /// A golden directory is not what `verify` expects.
    #[error("{path}: {problem}")]
    Goldens {
        /// The file or folder.
        path: String,
        /// What is wrong.
        problem: String,
    },
}

/// What an [`Error`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller passed something out of range, unknown, or that cannot be spoken.
    InvalidInput,
    /// A model, voice or golden file is missing or damaged.
    InvalidModel,
    /// The system refused: files, threads, memory.
    System,
    /// The caller cancelled.
    Cancelled,
}

impl From<DeviceError> for Error {
    fn from(e: DeviceError) -> Self {
        Error::Device(Box::new(e))
    }
}

impl From<QwenError> for Error {
    fn from(e: QwenError) -> Self {
        Error::Qwen3(Box::new(e))
    }
}

impl Error {
    /// What the error is about.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Model(e) => match e {
                ModelError::UnknownVoice { .. }
                | ModelError::BadVoice { .. }
                | ModelError::Option { .. }
                | ModelError::Text(_) => ErrorKind::InvalidInput,
                ModelError::Device(_) => ErrorKind::System,
                _ => ErrorKind::InvalidModel,
            },
            Error::Qwen3(e) => match **e {
                QwenError::EmptyText { .. }
                | QwenError::UnknownSpeaker { .. }
                | QwenError::UnknownLanguage { .. }
                | QwenError::Mode { .. }
                | QwenError::BadVoice { .. }
                | QwenError::TooLong { .. }
                | QwenError::LongTranscript { .. }
                | QwenError::TooShort { .. }
                | QwenError::Option { .. } => ErrorKind::InvalidInput,
                QwenError::Device(_) => ErrorKind::System,
                _ => ErrorKind::InvalidModel,
            },
            Error::Option { .. }
            | Error::OtherFamily { .. }
            | Error::UnknownKeptVoice { .. }
            | Error::VoiceExists { .. } => ErrorKind::InvalidInput,
            Error::Weights(_) | Error::Goldens { .. } | Error::NoVoice(_) => ErrorKind::InvalidModel,
            Error::Device(_) | Error::Audio(_) | Error::VoiceFolder { .. } | Error::Thread { .. } => {
                ErrorKind::System
            }
            Error::Cancelled => ErrorKind::Cancelled,
        }
    }
}
