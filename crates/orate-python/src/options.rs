//! Keywords as options of the library.

use crate::error::Result;
use crate::voice::Voice;
use orate::{Cancel, ClonedVoice, Engine, Finish, Options, Value, VoiceStore};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString};
use std::path::Path;

/// Keywords that all models have.
const COMMON: &[&str] = &["voice", "language", "seed", "silence", "raw", "progress"];

/// Whose voice speaks.
#[derive(FromPyObject)]
pub enum VoiceChoice {
    /// One made from a recording.
    Made(Py<Voice>),
    /// One of the model, or a kept one.
    Named(String),
    /// A file of a kept one.
    File(std::path::PathBuf),
}

/// Options of a call. `voice`, `language`, `seed` and `silence` are the common ones, `own` those by name.
pub fn read(
    engine: &Engine,
    function: &str,
    (voice, language, seed, silence): (Option<VoiceChoice>, Option<String>, u64, Option<f32>),
    own: Option<&Bound<'_, PyDict>>,
) -> Result<(Options, Cancel)> {
    let (cancel, default) = (Cancel::new(), Options::default());
    let silence = silence.unwrap_or(default.silence);
    let mut options = Options { language, seed, silence, cancel: Some(cancel.clone()), ..default };
    match voice {
        None => {}
        Some(VoiceChoice::Made(voice)) => options.cloned = Some(voice.get().0.clone()),
        Some(VoiceChoice::Named(name)) => set_voice(engine, &mut options, name)?,
        Some(VoiceChoice::File(path)) => set_voice(engine, &mut options, path.display().to_string())?,
    }
    for (name, value) in own.into_iter().flatten() {
        let name: String = name.extract()?;
        if name == "raw" {
            if value.extract()? {
                options.finish = Finish::NONE;
            }
            continue;
        }
        // An option of other families only is refused by the library, in words that name them.
        let is_known = engine.families().iter().any(|family| family.options.iter().any(|s| s.name == name));
        if !is_known {
            let accepted = engine.model().accepts().iter().map(|spec| spec.name);
            return Err(unknown(own.unwrap().py(), function, &name, COMMON.iter().copied().chain(accepted))?);
        }
        if !value.is_none() {
            options = options.set(name.clone(), to_value(&name, &value)?);
        }
    }
    Ok((options, cancel))
}

/// Sets a voice by name, as `--voice` of the program: models that clone also take kept voices and files.
fn set_voice(engine: &Engine, options: &mut Options, name: String) -> Result<()> {
    if !engine.can_clone() || engine.voices().iter().any(|voice| voice.name == name) {
        options.voice = Some(name);
    } else if Path::new(&name).extension() == Some("safetensors".as_ref()) {
        options.cloned = Some(ClonedVoice::load(&name).map_err(orate::Error::from)?.into());
    } else {
        options.cloned = Some(VoiceStore::user()?.load(&name)?);
    }
    Ok(())
}

fn to_value(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Value> {
    if let Ok(on) = value.cast::<PyBool>() {
        return Ok(on.is_true().into());
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(text.to_cow()?.as_ref().into());
    }
    if let Ok(whole) = value.extract::<u64>() {
        return Ok(whole.into());
    }
    let number: PyResult<f64> = value.extract();
    number.map(Value::from).map_err(|_| {
        let got = value.get_type().name().map_or_else(|_| "this".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!("{name} is a {got}; give a bool, a number or a str"))
    })
}

/// The `TypeError` for a keyword that nothing has, with those that are close to it.
pub fn unknown<'a>(
    py: Python<'_>,
    function: &str,
    name: &str,
    known: impl Iterator<Item = &'a str>,
) -> PyResult<crate::error::Failure> {
    let known: Vec<&str> = known.collect();
    let close: Vec<String> =
        py.import("difflib")?.call_method1("get_close_matches", (name, known.clone()))?.extract()?;
    let advice = match close.is_empty() {
        true => format!("it has {}", known.join(", ")),
        false => format!("did you mean {}?", close.join(" or ")),
    };
    let problem = format!("{function}() got an unexpected keyword argument '{name}'; {advice}");
    Ok(PyTypeError::new_err(problem).into())
}
