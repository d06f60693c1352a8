//! The speech server, and the program.

use crate::detached;
use crate::error::{Failure, Result};
use crate::options::{self, type_of};
use orate::Cancel;
use orate_cli::{BackgroundServer, ServedModel};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMapping, PyTuple};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Options of `orate serve` that are arguments here, or print instead of serving.
const ELSEWHERE: [&str; 3] = ["listen", "model", "new_key"];

/// Models, some with names for clients.
type Models = Vec<(Option<String>, ServedModel)>;

/// Serves models over HTTP, with the routes of OpenAI's API, until Ctrl-C or a termination signal. `Server`
/// does it beside other work.
///
/// `models` is an engine, the path or name of a model, a list of either, or a dict of either by the names
/// that clients use. The first one also answers for OpenAI's models. Without, the built-in voice is served.
/// `host` may also be "unix:PATH". `options` are those of `orate serve`, such as `api_key_file="keys.txt"`
/// or `no_auth=True`.
#[pyfunction]
#[pyo3(signature = (models=None, *, host="127.0.0.1", port=8880, **options))]
pub fn serve(
    py: Python<'_>,
    models: Option<Bound<'_, PyAny>>,
    host: &str,
    port: u16,
    options: Option<Bound<'_, PyDict>>,
) -> Result<()> {
    let models = self::models(models)?;
    let args = args(py, "serve()", (host, port), options)?;
    py.detach(|| orate_cli::serve_models(args, models)).map_err(Failure)?;
    Ok(py.check_signals()?)
}

/// A running server, as by `serve`, on threads of its own. It is ready once it is made.
///
/// Port 0 is a free one. Leaving a `with` block closes the server. Nothing is logged without `quiet=False`.
///
/// >>> import orate, urllib.request
/// >>> with orate.Server(orate.Engine(), port=0) as server:
/// ...     urllib.request.urlopen(server.url + "/health").status
/// 200
#[pyclass(module = "orate", frozen)]
pub struct Server {
    /// Never held while the server closes.
    running: Mutex<Option<BackgroundServer>>,
    /// Where it listens, such as "http://127.0.0.1:8880". Clients of OpenAI's API add "/v1".
    #[pyo3(get)]
    url: String,
    /// The process that started it.
    process: u32,
}

#[pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (models=None, *, host="127.0.0.1", port=8880, **options))]
    fn new(
        py: Python<'_>,
        models: Option<Bound<'_, PyAny>>,
        host: &str,
        port: u16,
        options: Option<Bound<'_, PyDict>>,
    ) -> Result<Server> {
        let models = self::models(models)?;
        let options = options.unwrap_or_else(|| PyDict::new(py));
        if !options.contains("quiet")? {
            options.set_item("quiet", true)?;
        }
        let args = args(py, "Server()", (host, port), Some(options))?;
        let started = detached::run(py, &Cancel::new(), || orate_cli::start_server(args, models))?;
        let running = started.map_err(Failure)?;
        let url = running.url().to_owned();
        Ok(Server { running: Mutex::new(Some(running)), url, process: std::process::id() })
    }

    /// Refuses further requests and waits for running ones, for `drain_timeout` seconds at most. Ctrl-C ends
    /// them at once.
    fn close(&self, py: Python<'_>) -> Result<()> {
        let cancel = Cancel::new();
        let Some(running) = self.take() else { return Ok(()) };
        detached::run(py, &cancel, || running.close(&cancel))?.map_err(Failure)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> Result<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let state = if self.running().is_some() { "" } else { ", closed" };
        format!("<orate.Server: {}{state}>", self.url)
    }
}

impl Server {
    fn running(&self) -> MutexGuard<'_, Option<BackgroundServer>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server, if it is open and of this process. A forked process has none of its threads.
    fn take(&self) -> Option<BackgroundServer> {
        let running = self.running().take()?;
        if self.process == std::process::id() {
            return Some(running);
        }
        std::mem::forget(running);
        None
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// What to serve.
fn models(models: Option<Bound<'_, PyAny>>) -> Result<Models> {
    let Some(models) = models else { return Ok(vec![]) };
    if let Ok(named) = models.cast::<PyMapping>() {
        let item = |item: Bound<'_, PyAny>| {
            let (name, value): (String, Bound<'_, PyAny>) = item.extract()?;
            Ok((Some(name), model(&value)?))
        };
        return named.items()?.iter().map(item).collect();
    }
    let unnamed = |value: Bound<'_, PyAny>| Ok((None, model(&value)?));
    match (models.cast::<PyList>(), models.cast::<PyTuple>()) {
        (Ok(list), _) => list.iter().map(unnamed).collect(),
        (_, Ok(tuple)) => tuple.iter().map(unnamed).collect(),
        _ => Ok(vec![unnamed(models)?]),
    }
}

fn model(value: &Bound<'_, PyAny>) -> Result<ServedModel> {
    if let Some(engine) = options::engine_of(value) {
        return Ok(ServedModel::Open(engine));
    }
    let Ok(path) = value.extract::<PathBuf>() else {
        let problem = "give an orate.Engine, or the path or name of a model";
        return Err(
            PyTypeError::new_err(format!("a model to serve is a {}; {problem}", type_of(value))).into()
        );
    };
    Ok(ServedModel::Named(path))
}

/// Keywords as flags.
fn args(
    py: Python<'_>,
    function: &str,
    (host, port): (&str, u16),
    options: Option<Bound<'_, PyDict>>,
) -> Result<Vec<OsString>> {
    let address = if host.starts_with("unix:") { host.to_owned() } else { format!("{host}:{port}") };
    let mut args = vec![OsString::from(format!("--listen={address}"))];
    let known = orate_cli::serve_options().into_iter().map(|name| name.replace('-', "_"));
    let known: Vec<String> = known.filter(|name| !ELSEWHERE.contains(&&**name)).collect();
    for (name, value) in options.into_iter().flatten() {
        let name: String = name.extract()?;
        if !known.contains(&name) {
            return Err(options::unknown(py, function, &name, known.iter().map(String::as_str))?);
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
    Ok(args)
}

/// Runs the program `orate` with these arguments, and returns its exit status.
#[pyfunction]
pub fn main(py: Python<'_>, args: Vec<OsString>) -> u8 {
    py.detach(|| orate_cli::run(orate::FAMILIES, std::iter::once("orate".into()).chain(args)))
}
