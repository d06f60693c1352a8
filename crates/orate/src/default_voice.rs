//! The built-in voice: embedded by the feature `default-voice`, otherwise read from a file.

use crate::{Error, Result, families};
use orate_models::{ModelFiles, Opening};
use std::path::Path;

/// Environment variable with the path of a packed voice to use in place of the built-in one.
pub const VOICE_VARIABLE: &str = "ORATE_VOICE";

/// Opens the built-in voice.
pub(crate) fn open() -> Result<Box<dyn ModelFiles>> {
    match std::env::var_os(VOICE_VARIABLE).filter(|p| !p.is_empty()) {
        Some(path) => packed(path.as_ref())
            .map_err(|e| Error::NoVoice(format!("{VOICE_VARIABLE} does not name a voice: {e}"))),
        None => built_in(),
    }
}

fn packed(path: &Path) -> Result<Box<dyn ModelFiles>> {
    families::open(families::FAMILIES, path, Opening::Whole)
}

#[cfg(feature = "default-voice")]
fn built_in() -> Result<Box<dyn ModelFiles>> {
    let origin = "built-in voice";
    families::open_built_in(
        orate_weights::GgufFile::from_static(origin, orate_default_voice::PACKED)?,
        origin,
    )
}

/// Looks for the voice's file next to the program and in `voices/orate-default` below the current folder.
#[cfg(not(feature = "default-voice"))]
fn built_in() -> Result<Box<dyn ModelFiles>> {
    const FILE_NAME: &str = "orate-default.gguf";
    let beside = std::env::current_exe().ok().and_then(|p| Some(p.parent()?.join(FILE_NAME)));
    let here = Path::new("voices/orate-default").join(FILE_NAME);
    match beside.into_iter().chain([here]).find(|p| p.is_file()) {
        Some(path) => packed(&path),
        None => Err(Error::NoVoice(format!(
            "this build has no voice inside and {FILE_NAME} is not beside the program; \
             name a model, or set {VOICE_VARIABLE} to the path of a packed voice"
        ))),
    }
}
