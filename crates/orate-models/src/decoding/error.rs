//! Errors of decoding.

use crate::ModelError;
use orate_graph::DeviceError;

/// A setting out of range, or a call in the wrong state.
pub(super) fn option_error(option: &'static str, got: impl Into<String>, allowed: &str) -> ModelError {
    ModelError::Option { option, got: got.into(), allowed: allowed.to_owned() }
}

/// A thread panicked while it worked for others too.
pub(crate) fn panicked(problem: &str) -> ModelError {
    DeviceError::Failed { device: "batch".to_owned(), problem: problem.to_owned() }.into()
}

/// The same error for another utterance of a batch.
pub(super) fn shared(e: &ModelError) -> ModelError {
    match e {
        ModelError::Device(e) => ModelError::Device(e.clone()),
        e => panicked(&e.to_string()),
    }
}
