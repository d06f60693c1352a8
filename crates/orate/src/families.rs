//! The families of models that this build knows. No other file of this crate names one.

use crate::{Error, Result};
use orate_models::{Family, ModelError, ModelFiles, Opening, OptionSpec};
use std::path::Path;

pub use orate_models::{chatterbox, qwen3_tts, supertonic};

/// All families, in the order in which they are asked whether a path is theirs.
pub static FAMILIES: &[&Family] = &[qwen3_tts::FAMILY, chatterbox::FAMILY, supertonic::FAMILY];

/// Opens the packed voice inside this program.
#[cfg(feature = "default-voice")]
pub(crate) fn open_built_in(file: orate_weights::GgufFile, origin: &str) -> Result<Box<dyn ModelFiles>> {
    Ok(supertonic::open_packed(file, origin)?)
}

/// Opens a model of any of `families`.
///
/// # Errors
/// There is nothing at the path, no family knows it, or its family refuses it.
pub(crate) fn open(
    families: &[&'static Family],
    path: &Path,
    opening: Opening<'_>,
) -> Result<Box<dyn ModelFiles>> {
    let not_a_model = |problem: String| Error::from(ModelError::NotAModel { path: path.to_owned(), problem });
    if !path.exists() {
        let problem = "no such file or folder; give a model folder or a GGUF file";
        return Err(not_a_model(problem.to_owned()));
    }
    if let Some(family) = families.iter().find(|f| (f.detect)(path)) {
        return Ok((family.open)(path, opening)?);
    }
    if !path.is_dir() && !path.is_file() {
        return Err(not_a_model("a device or pipe; give a model folder or a GGUF file".to_owned()));
    }
    if let Some(folder) = folder_around(path) {
        return Err(not_a_model(format!("a file of a model; give the folder, {}", folder.display())));
    }
    if let Some(problem) = path.is_dir().then(|| orate_models::gguf::strangers(path)).flatten() {
        return Err(not_a_model(problem));
    }
    let expected = families.iter().map(|f| format!("{} ({})", f.expects, f.name));
    let expected: Vec<String> = expected.collect();
    let what = if path.is_dir() { "a model folder" } else { "a file of a model" };
    Err(not_a_model(format!("not {what}: it has none of {}", expected.join(", or "))))
}

/// Names and options of families, for errors that say which of them has an option.
pub(crate) fn declared(families: &[&'static Family]) -> Vec<(&'static str, &'static [OptionSpec])> {
    families.iter().map(|f| (f.name, f.options)).collect()
}

/// The folder of the model that a file is a part of; `None` for packed voices, which are a model each, and
/// for everything else.
fn folder_around(path: &Path) -> Option<&Path> {
    let is_part = path.extension().is_some_and(|e| e == "safetensors" || e == "onnx" || e == "json");
    if !is_part || !path.is_file() {
        return None;
    }
    let folder = path.parent()?;
    let is_inner = folder.file_name().is_some_and(|name| name == "speech_tokenizer" || name == "onnx");
    let around = if is_inner { folder.parent()? } else { folder };
    Some(if around.as_os_str().is_empty() { Path::new(".") } else { around })
}
