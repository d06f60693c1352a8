//! The speech server, and the program.

use crate::engine::Engine;
use crate::error::{Failure, Result};
use crate::options;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::ffi::OsString;
use std::path::PathBuf;

/// What to serve.
#[derive(FromPyObject)]
pub enum Model {
    /// An open one.
    Open(Py<Engine>),
    /// Path or name of one.
    Named(PathBuf),
}

/// Serves models over HTTP, with the routes of OpenAI's API, until Ctrl-C or a termination signal.
///
/// `models` is an engine, the path or name of a model, or a list of either. Without, the built-in voice is
/// served. Further keywords are the options of `orate serve`, such as `api_key_file` or `no_auth=True`.
#[pyfunction]
#[pyo3(signature = (models=None, *, host="127.0.0.1", port=8880, **options))]
pub fn serve(
    py: Python<'_>,
    models: Option<Bound<'_, PyAny>>,
    host: &str,
    port: u16,
    options: Option<Bound<'_, PyDict>>,
) -> Result<()> {
    let models: Vec<Model> = match models {
        None => vec![],
        Some(models) if models.is_instance_of::<PyList>() => models.extract()?,
        Some(model) => vec![model.extract()?],
    };
    let mut args = vec![OsString::from(format!("--listen={host}:{port}"))];
    add(&mut args, py, options)?;
    let mut engines = vec![];
    for model in models {
        match model {
            Model::Open(engine) => engines.push(engine.get().0.clone()),
            Model::Named(path) => args.extend(["--model".into(), path.into()]),
        }
    }
    py.detach(|| orate_cli::serve_models(args, engines)).map_err(Failure)?;
    Ok(py.check_signals()?)
}

/// Adds keywords as flags.
fn add(args: &mut Vec<OsString>, py: Python<'_>, options: Option<Bound<'_, PyDict>>) -> Result<()> {
    let known: Vec<String> = orate_cli::serve_options().iter().map(|name| name.replace('-', "_")).collect();
    for (name, value) in options.into_iter().flatten() {
        let name: String = name.extract()?;
        if !known.contains(&name) {
            return Err(options::unknown(py, "serve", &name, known.iter().map(String::as_str))?);
        }
        let flag = format!("--{}", name.replace('_', "-"));
        let values = match value.cast::<PyList>() {
            Ok(values) => values.iter().collect(),
            Err(_) => vec![value],
        };
        for value in values {
            match value.extract::<bool>() {
                Ok(true) => args.push(flag.clone().into()),
                Ok(false) => {}
                Err(_) if value.is_none() => {}
                Err(_) => args.push(format!("{flag}={}", value.str()?).into()),
            }
        }
    }
    Ok(())
}

/// Runs the program `orate` with these arguments, and returns its exit status.
#[pyfunction]
pub fn main(py: Python<'_>, args: Vec<OsString>) -> u8 {
    py.detach(|| orate_cli::run(orate::FAMILIES, std::iter::once("orate".into()).chain(args)))
}
