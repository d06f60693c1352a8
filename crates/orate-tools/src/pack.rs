//! Packing a voice folder into one file.

use orate::{Engine, EngineOptions, Error, ModelSource, Result};
use orate_weights::voice_pack;
use std::path::Path;

pub use orate_weights::voice_pack::PackReport;

/// Packs a voice folder. Matrices are rounded to `q8_0`.
///
/// # Errors
/// The folder lacks a file, a file is damaged, or the output cannot be written.
pub fn pack_voice(folder: &Path, output: &Path) -> Result<PackReport> {
    voice_pack::pack_voice(folder, output).map_err(Error::from)
}

/// Opens a packed voice as a model, so that one that cannot speak is found at once.
///
/// # Errors
/// It is not a model.
pub fn check_packed(voice: &Path) -> Result<()> {
    let model = ModelSource::Path(voice.to_owned());
    Engine::with_options(EngineOptions { model, ..Default::default() }).map(drop)
}
