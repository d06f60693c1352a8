//! Keywords as options of the library.

use crate::engine::Engine;
use crate::error::{Failure, Result};
use crate::voice::Voice;
use orate::{Cancel, Finish, Options, Value};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use std::path::PathBuf;

/// The function of which only options of conversions are keywords.
pub const CONVERT: &str = "convert()";

/// Keywords of a call that were not read yet.
pub struct Keywords<'py> {
    /// What is called.
    function: String,
    given: Bound<'py, PyDict>,
    /// Names that it has.
    known: Vec<&'static str>,
}

impl<'py> Keywords<'py> {
    /// Keywords of a call. Those that are read are removed from `given`.
    pub fn new(py: Python<'py>, function: impl Into<String>, given: Option<&Bound<'py, PyDict>>) -> Self {
        let given = given.map_or_else(|| PyDict::new(py), Clone::clone);
        Keywords { function: function.into(), given, known: vec![] }
    }

    /// Value of a keyword; `None` if it is not given, or None.
    pub fn value(&mut self, name: &'static str) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.known.push(name);
        let value = self.given.get_item(name)?;
        if value.is_some() {
            self.given.del_item(name)?;
        }
        Ok(value.filter(|value| !value.is_none()))
    }

    /// As [`Keywords::value`], as a type of Rust.
    pub fn typed<T: FromPyObjectOwned<'py>>(&mut self, name: &'static str) -> PyResult<Option<T>> {
        let Some(value) = self.value(name)? else { return Ok(None) };
        let py = value.py();
        let named = |error: PyErr| {
            let problem = format!("argument '{name}': {}", error.value(py));
            match error.is_instance_of::<PyOverflowError>(py) {
                true => PyOverflowError::new_err(problem),
                false => PyTypeError::new_err(problem),
            }
        };
        value.extract().map(Some).map_err(|e: <T as FromPyObject<'_, 'py>>::Error| named(e.into()))
    }

    /// Whether a switch is on.
    pub fn is_on(&mut self, name: &'static str) -> PyResult<bool> {
        Ok(self.typed(name)?.unwrap_or(false))
    }

    /// Sets the options that all models have, of which `names` are keywords here.
    pub fn common(&mut self, engine: &orate::Engine, names: &[&str], options: Options) -> Result<Options> {
        let mut options = options;
        if names.contains(&"voice")
            && let Some(voice) = self.value("voice")?
        {
            options = with_voice(engine, options, "voice", &voice)?;
        }
        if names.contains(&"language") {
            options.language = self.typed("language")?.or(options.language);
        }
        if names.contains(&"seed") {
            options.seed = self.typed("seed")?.unwrap_or(options.seed);
        }
        if names.contains(&"silence") {
            options.silence = self.typed("silence")?.unwrap_or(options.silence);
        }
        if names.contains(&"raw") && self.is_on("raw")? {
            options.finish = Finish::NONE;
        }
        Ok(options)
    }

    /// The keywords that are left: options of families.
    pub fn own(self, engine: &orate::Engine) -> Result<Vec<(String, Value)>> {
        let Keywords { function, given, known } = self;
        let mut own = vec![];
        for (name, value) in &given {
            let name: String = name.extract()?;
            // An option of other families only is refused by the library, in words that name them.
            let has = |family: &&orate::Family| family.options.iter().any(|spec| spec.name == name);
            if !engine.families().iter().any(has) {
                let has_effect = |spec: &&orate::OptionSpec| spec.converts || function != CONVERT;
                let accepted = engine.model().accepts().iter().filter(has_effect).map(|spec| spec.name);
                return Err(unknown(given.py(), &function, &name, known.into_iter().chain(accepted))?);
            }
            if !value.is_none() {
                own.push((name.clone(), to_value(&name, &value)?));
            }
        }
        Ok(own)
    }
}

/// Options with the switch that Ctrl-C and `close` flip.
pub fn cancellable() -> (Options, Cancel) {
    let cancel = Cancel::new();
    (Options { cancel: Some(cancel.clone()), ..Options::default() }, cancel)
}

/// Reads the keywords of a call for one engine: common ones with these names, then options of its family.
pub fn read(engine: &orate::Engine, mut keywords: Keywords<'_>, names: &[&str]) -> Result<(Options, Cancel)> {
    let (options, cancel) = cancellable();
    let options = keywords.common(engine, names, options)?;
    Ok((with_own(options, keywords.own(engine)?), cancel))
}

/// Adds options of a family.
pub fn with_own(options: Options, own: impl IntoIterator<Item = (String, Value)>) -> Options {
    own.into_iter().fold(options, |options, (name, value)| options.set(name, value))
}

/// Sets a voice: a `Voice`, or a name or path, as `--voice` of the program.
pub fn with_voice(
    engine: &orate::Engine,
    options: Options,
    argument: &str,
    voice: &Bound<'_, PyAny>,
) -> Result<Options> {
    if let Ok(voice) = voice.cast::<Voice>() {
        return Ok(Options { voice: None, cloned: Some(voice.get().0.clone()), ..options });
    }
    let Ok(path) = voice.extract::<PathBuf>() else {
        let problem = format!("{argument} is a {}; give an orate.Voice, a name or a path", type_of(voice));
        return Err(PyTypeError::new_err(problem).into());
    };
    let name = path.display().to_string();
    Ok(engine.with_voice(options, &name)?)
}

/// Whether the model has a voice of this name.
pub fn is_own(engine: &orate::Engine, name: &str) -> bool {
    engine.voices().iter().any(|voice| voice.name == name)
}

fn to_value(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Value> {
    // Of Python or numpy.
    if let Ok(on) = value.extract::<bool>() {
        return Ok(on.into());
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(text.to_cow()?.as_ref().into());
    }
    if let Ok(whole) = value.extract::<u64>() {
        return Ok(whole.into());
    }
    let number: PyResult<f64> = value.extract();
    number.map(Value::from).map_err(|_| {
        PyTypeError::new_err(format!("{name} is a {}; give a bool, a number or a str", type_of(value)))
    })
}

/// Name of a value's type, for errors.
pub fn type_of(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "value of another type".to_owned(), |name| name.to_string())
}

/// The `TypeError` for a keyword that nothing has, with those that are close to it.
pub fn unknown<'a>(
    py: Python<'_>,
    function: &str,
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> PyResult<Failure> {
    let known: Vec<&str> = known.into_iter().collect();
    let close: Vec<String> =
        py.import("difflib")?.call_method1("get_close_matches", (name, known.clone()))?.extract()?;
    let advice = match close.is_empty() {
        true => format!("it has {}", known.join(", ")),
        false => format!("did you mean {}?", close.join(" or ")),
    };
    let problem = format!("{function} got an unexpected keyword argument '{name}'; {advice}");
    Ok(PyTypeError::new_err(problem).into())
}

/// An engine of the library, if the value is one of Python.
pub fn engine_of(value: &Bound<'_, PyAny>) -> Option<orate::Engine> {
    value.cast::<Engine>().ok().map(|engine| engine.get().0.clone())
}
