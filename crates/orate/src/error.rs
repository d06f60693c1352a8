//! The library's error.

use orate_audio::AudioError;
use orate_graph::{DeviceError, GraphError};
use orate_models::ModelError;
use orate_text::TextError;
use orate_weights::WeightError;
use std::path::PathBuf;

pub use orate_models::ErrorKind;

/// Result of library calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed. The message says what, where, and how to fix it; [`Error::kind`] is for callers that
/// branch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum Error {
    /// The model, a voice, an option of speech, or the text.
    #[error(transparent)]
    Model(Box<ModelError>),
    /// The device.
    #[error(transparent)]
    Device(Box<DeviceError>),
    /// Reading or writing audio.
    #[error(transparent)]
    Audio(#[from] AudioError),
    /// Reading weights or goldens.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// An option of the engine.
    #[error("{option} is {got}; {allowed}")]
    Option { option: &'static str, got: String, allowed: String },
    /// No kept voice has the name.
    #[error(
        "no voice `{name}` is kept in {}; there {}{}",
        folder.display(),
        match known.as_slice() {
            [] => "is none to choose from (`orate voices add` makes one)".to_owned(),
            known => format!("are: {}", known.join(", ")),
        },
        match own.as_slice() {
            [] => String::new(),
            own => format!("; the model itself has: {}", own.join(", ")),
        }
    )]
    UnknownKeptVoice { name: String, folder: PathBuf, known: Vec<String>, own: Vec<String> },
    /// The file of a kept voice is damaged.
    #[error("{source}; make the voice again from its recording, or remove it (`orate voices remove {name}`)")]
    DamagedVoice { name: String, source: Box<ModelError> },
    /// A voice of this name is kept already.
    #[error("a voice `{name}` is kept already, in {}; remove it first, or replace it", path.display())]
    VoiceExists { name: String, path: PathBuf },
    /// The folder of kept voices cannot be read or written.
    #[error(
        "{}: {source}; kept voices are in the folder that ORATE_VOICE_FOLDER names, if it is set",
        path.display()
    )]
    VoiceFolder { path: PathBuf, source: std::io::Error },
    /// No model was given and this build has none inside.
    #[error("{0}")]
    NoVoice(String),
    /// [`crate::Cancel::cancel`] was called.
    #[error("cancelled")]
    Cancelled,
    /// A golden directory is not what `verify` expects.
    #[error("{path}: {problem}")]
    Goldens { path: String, problem: String },
}

impl From<DeviceError> for Error {
    fn from(e: DeviceError) -> Self {
        Error::Device(Box::new(e))
    }
}

impl From<GraphError> for Error {
    fn from(e: GraphError) -> Self {
        DeviceError::from(e).into()
    }
}

impl From<TextError> for Error {
    fn from(e: TextError) -> Self {
        ModelError::from(e).into()
    }
}

impl From<ModelError> for Error {
    fn from(e: ModelError) -> Self {
        match e {
            ModelError::Cancelled => Error::Cancelled,
            ModelError::Device(e) => Error::Device(e),
            ModelError::Weights(e) => Error::Weights(e),
            ModelError::Goldens { path, problem } => Error::Goldens { path, problem },
            other => Error::Model(Box::new(other)),
        }
    }
}

impl Error {
    /// What the error is about.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Model(e) => e.kind(),
            Error::Option { .. } | Error::UnknownKeptVoice { .. } | Error::VoiceExists { .. } => {
                ErrorKind::InvalidInput
            }
            Error::Weights(_) | Error::DamagedVoice { .. } | Error::Goldens { .. } | Error::NoVoice(_) => {
                ErrorKind::InvalidModel
            }
            Error::Audio(e) if is_about_input(e) => ErrorKind::InvalidInput,
            Error::Device(_) | Error::Audio(_) | Error::VoiceFolder { .. } => ErrorKind::System,
            Error::Cancelled => ErrorKind::Cancelled,
        }
    }
}

/// Whether an error is about a recording, a format or a setting, and not about reading or writing a file.
fn is_about_input(error: &AudioError) -> bool {
    use AudioError as E;
    matches!(
        error,
        E::UnknownFormat { .. }
            | E::NotBuilt { .. }
            | E::ReadWav { .. }
            | E::ReadAudio { .. }
            | E::CutShort { .. }
            | E::NoSamples { .. }
            | E::NotFinite { .. }
            | E::TooLong { .. }
            | E::TooShort { .. }
            | E::Silent { .. }
            | E::TooLoud { .. }
            | E::SampleRate { .. }
            | E::Config { .. }
            | E::Empty { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_and_settings_are_input() {
        let what = || "me.wav".to_owned();
        let short = AudioError::TooShort { what: what(), seconds: 0.1, least_s: 0.5 };
        let setting = AudioError::Config { what: "bit_rate", got: "1".to_owned(), want: "2".to_owned() };
        for input in [short, AudioError::NoSamples { what: what() }, setting] {
            assert_eq!(Error::from(input).kind(), ErrorKind::InvalidInput);
        }
        let source = std::io::Error::other("no space");
        let disk = AudioError::Write { path: what().into(), source };
        assert_eq!(Error::from(disk).kind(), ErrorKind::System);
    }
}
