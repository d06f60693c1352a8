//! Voices made from recordings, and the folder of kept ones.

use crate::error::Result;
use orate::ClonedVoice;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::PathBuf;
use std::sync::Arc;

/// A voice made from a recording, with `Engine.clone`. Models of the same kind speak with it.
///
/// `data` are the bytes that `to_bytes` returned, or those of a file; `load` reads a file. Voices can be
/// pickled.
#[pyclass(module = "orate", frozen)]
pub struct Voice(pub Arc<ClonedVoice>);

#[pymethods]
impl Voice {
    #[new]
    fn new(data: &[u8]) -> Result<Voice> {
        let voice = ClonedVoice::from_bytes("the voice", data.to_vec()).map_err(orate::Error::from)?;
        Ok(Voice(Arc::new(voice)))
    }

    /// Reads a voice from a file that `save` wrote.
    #[staticmethod]
    fn load(path: PathBuf) -> Result<Voice> {
        Ok(Voice(Arc::new(ClonedVoice::load(path).map_err(orate::Error::from)?)))
    }

    /// Writes the voice to a file, such as "me.safetensors". A file that exists is replaced.
    fn save(&self, path: PathBuf) -> Result<()> {
        let bytes = self.0.to_bytes().map_err(orate::Error::from)?;
        Ok(orate::write_output(path, &bytes).map_err(orate::Error::from)?)
    }

    /// Returns the bytes of the file that `save` writes, some kB.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.0.to_bytes().map_err(orate::Error::from)?))
    }

    /// Tag of the family whose models speak with it.
    #[getter]
    fn family(&self) -> &str {
        &self.0.family
    }

    fn __repr__(&self) -> String {
        format!("<orate.Voice for {}>", self.0.family)
    }

    /// For pickle.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> Result<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        Ok((slf.get_type().into_any(), (slf.get().to_bytes(slf.py())?,)))
    }
}

/// Kept voices by name: files in a folder, which the program and the server share.
///
/// It works as a dict: `voices["me"] = voice`, `voices["me"]`, `del voices["me"]`, `list(voices)`.
#[pyclass(module = "orate", frozen)]
pub struct VoiceStore(orate::VoiceStore);

/// Returns the user's kept voices, or those of a folder.
///
/// >>> import orate, tempfile
/// >>> list(orate.voices(tempfile.mkdtemp()))
/// []
#[pyfunction]
#[pyo3(signature = (folder=None))]
pub fn voices(folder: Option<PathBuf>) -> Result<VoiceStore> {
    Ok(VoiceStore(folder.map_or_else(orate::VoiceStore::user, |folder| Ok(orate::VoiceStore::new(folder)))?))
}

impl VoiceStore {
    /// `KeyError` if no voice has the name.
    fn known(&self, name: &str) -> Result<()> {
        match self.0.names()?.iter().any(|known| known == name) {
            true => Ok(()),
            false => Err(PyKeyError::new_err(name.to_owned()).into()),
        }
    }
}

#[pymethods]
impl VoiceStore {
    /// Folder of the voices.
    #[getter]
    fn folder(&self) -> PathBuf {
        self.0.folder().to_owned()
    }

    fn __iter__(&self, py: Python<'_>) -> Result<Py<PyAny>> {
        Ok(self.0.names()?.into_pyobject(py)?.try_iter()?.into_any().unbind())
    }

    fn __len__(&self) -> Result<usize> {
        Ok(self.0.names()?.len())
    }

    fn __contains__(&self, name: &str) -> Result<bool> {
        Ok(self.0.names()?.iter().any(|known| known == name))
    }

    fn __getitem__(&self, name: &str) -> Result<Voice> {
        self.known(name)?;
        Ok(Voice(self.0.load(name)?))
    }

    fn __setitem__(&self, name: &str, voice: &Voice) -> Result<()> {
        self.0.save(name, &voice.0, true)?;
        Ok(())
    }

    fn __delitem__(&self, name: &str) -> Result<()> {
        self.known(name)?;
        Ok(self.0.remove(name)?)
    }

    fn __repr__(&self) -> String {
        format!("<orate.VoiceStore: {}>", self.0.folder().display())
    }
}
