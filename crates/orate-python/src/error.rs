//! Errors as Python's exceptions.

use orate::ErrorKind;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// Any error of this module.
pub struct Failure(pub anyhow::Error);

/// Result of calls that Python makes.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl<E: Into<anyhow::Error> + std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure(error.into())
    }
}

impl From<Failure> for PyErr {
    fn from(Failure(error): Failure) -> PyErr {
        match error.downcast::<PyErr>() {
            Ok(error) => error,
            Err(error) => Python::attach(|py| {
                class(py, name(&error))
                    .map_or_else(|missing| missing, |class| PyErr::from_type(class, message(&error)))
            }),
        }
    }
}

/// The message with its causes, without those that it contains already.
fn message(error: &anyhow::Error) -> String {
    let mut causes = error.chain().map(ToString::to_string);
    let first = causes.next().unwrap_or_default();
    causes.fold(first, |all, cause| if all.contains(&cause) { all } else { format!("{all}: {cause}") })
}

/// Class of an exception that `_errors.py` defines.
fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
    Ok(py.import("orate._errors")?.getattr(name)?.cast_into()?)
}

/// Name of the exception for an error.
fn name(error: &anyhow::Error) -> &'static str {
    for cause in error.chain() {
        if let Some(error) = cause.downcast_ref::<orate::Error>() {
            return match error.kind() {
                ErrorKind::InvalidInput => "InputError",
                ErrorKind::InvalidModel => "ModelError",
                ErrorKind::Cancelled => "Cancelled",
                _ => "DeviceError",
            };
        }
        if let Some(error) = cause.downcast_ref::<orate_hub::Error>() {
            use orate_hub::ErrorKind;
            return match error.kind() {
                ErrorKind::InvalidInput => "InputError",
                ErrorKind::NotFound | ErrorKind::Damaged => "ModelError",
                ErrorKind::Cancelled => "Cancelled",
                _ => "DeviceError",
            };
        }
        if cause.is::<orate_cli::UsageError>() {
            return "InputError";
        }
        if cause.is::<std::io::Error>() {
            return "DeviceError";
        }
    }
    // What remains of the program's errors is about models that are not there.
    "ModelError"
}
