//! The built-in voice: embedded by the feature `default-voice`, otherwise read from a file.

use crate::{Error, Result};
use orate_models::supertonic::Files;

/// Environment variable with the path of a packed voice to use in place of the built-in one.
pub const VOICE_VARIABLE: &str = "ORATE_VOICE";

/// Opens the built-in voice.
pub(crate) fn open() -> Result<Files> {
    match std::env::var_os(VOICE_VARIABLE).filter(|p| !p.is_empty()) {
        Some(path) => Files::open(path.as_ref())
            .map_err(|e| Error::NoVoice(format!("{VOICE_VARIABLE} does not name a voice: {e}"))),
        None => built_in(),
    }
}

#[cfg(feature = "default-voice")]
fn built_in() -> Result<Files> {
    let origin = "built-in voice";
    Ok(Files::packed(
        orate_weights::GgufFile::from_static(origin, orate_default_voice::PACKED)?,
        origin.to_owned(),
    )?)
}

/// Looks for the voice's file beside the program and in `voices/orate-default` below the current folder.
#[cfg(not(feature = "default-voice"))]
fn built_in() -> Result<Files> {
    const FILE_NAME: &str = "orate-default.gguf";
    let beside = std::env::current_exe().ok().and_then(|p| Some(p.parent()?.join(FILE_NAME)));
    let here = std::path::Path::new("voices/orate-default").join(FILE_NAME);
    match beside.into_iter().chain([here]).find(|p| p.is_file()) {
        Some(path) => Ok(Files::open(&path)?),
        None => Err(Error::NoVoice(format!(
            "this build has no voice inside and {FILE_NAME} is not beside the program; \
             name a model with --model, or set {VOICE_VARIABLE} to the path of a packed voice"
        ))),
    }
}
