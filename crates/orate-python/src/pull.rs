//! Downloads of models.

use crate::detached;
use crate::error::{Failure, Result};
use crate::stream::Progress;
use orate::Cancel;
use orate_hub::Event;
use pyo3::prelude::*;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Downloads a model and returns its path.
///
/// `model` is a name that `orate models` lists, or a repository of the Hugging Face Hub, with an optional
/// "@REVISION". Files go to the cache that `huggingface_hub` shares, or to the folder `to`. `include` are
/// patterns of the files to download instead of the usual ones. `progress` is True for a bar, or a function
/// of the bytes that are done and all bytes.
#[pyfunction]
#[pyo3(signature = (model, *, to=None, include=None, progress=None))]
pub fn pull(
    py: Python<'_>,
    model: String,
    to: Option<PathBuf>,
    include: Option<Vec<String>>,
    progress: Option<Bound<'_, PyAny>>,
) -> Result<PathBuf> {
    let progress = Progress::new(py, progress, "B")?;
    let cancel = Cancel::new();
    let mut failed = None;
    let pulled = detached::run(py, &cancel, || {
        let mut watch = |event: &Event<'_>| {
            if let (Event::Progress { done, total, .. }, Some(progress)) = (event, &progress) {
                failed = Python::attach(|py| progress.show(py, *done, *total)).err();
            }
            if failed.is_some() || cancel.is_cancelled() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        orate_cli::pull(&model, to, include.unwrap_or_default(), &mut watch)
    })?;
    match failed {
        Some(error) => Err(error.into()),
        None => pulled.map_err(Failure),
    }
}
