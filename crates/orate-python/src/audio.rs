//! Audio: samples, files, players and pictures.

use crate::error::Result;
use crate::words::{self, Mark, Word};
use numpy::{IntoPyArray, PyArray1, PyArrayMethods, PyUntypedArrayMethods};
use orate::{AudioFormat, EncoderSettings, TimedMark, TimedWord};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::path::PathBuf;

/// Mono audio.
///
/// `samples` may be any one-dimensional array of floats, from -1 to 1. A contiguous float32 array is not
/// copied. `words` and `marks` are those of chunks or of other audio, for captions.
///
/// >>> import numpy, orate
/// >>> tone = 0.1 * numpy.sin(numpy.arange(24_000, dtype=numpy.float32) / 8)
/// >>> orate.Audio(tone, 24_000)
/// <orate.Audio: 1.00 s at 24000 Hz>
#[pyclass(module = "orate", frozen)]
pub struct Audio {
    /// The samples: a float32 array, about -1 to 1.
    #[pyo3(get)]
    samples: Py<PyArray1<f32>>,
    /// Samples per second.
    #[pyo3(get)]
    pub sample_rate: u32,
    /// Words with times: a tuple of `Word`. Empty without `words=True`.
    #[pyo3(get)]
    words: Py<PyTuple>,
    /// Marks of SSML: a tuple of `Mark`.
    #[pyo3(get)]
    marks: Py<PyTuple>,
}

impl Audio {
    /// Audio that takes over samples without a copy.
    pub fn from_vec(
        py: Python<'_>,
        samples: Vec<f32>,
        sample_rate: u32,
        (words, marks): (Vec<TimedWord>, Vec<TimedMark>),
    ) -> Result<Audio> {
        let (words, marks) = words::tuples(py, words, marks)?;
        Ok(Audio { samples: samples.into_pyarray(py).unbind(), sample_rate, words, marks })
    }

    /// Calls `work` with the samples, without the GIL.
    pub fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&[f32]) -> T + Send) -> Result<T> {
        let samples = self.samples.bind(py).try_readonly()?;
        let samples = samples.as_slice()?;
        Ok(py.detach(|| work(samples)))
    }

    /// The bytes of a file of a format by name.
    pub fn bytes(&self, py: Python<'_>, format: &str, settings: &EncoderSettings) -> Result<Vec<u8>> {
        let format = AudioFormat::from_name(format).ok_or_else(|| {
            let known: Vec<_> = AudioFormat::available().map(AudioFormat::name).collect();
            let allowed = format!("choose {}", known.join(", "));
            orate::Error::Option { option: "format", got: format!("`{format}`"), allowed }
        })?;
        let bytes = self.with(py, |samples| orate::encode(samples, self.sample_rate, format, settings))?;
        Ok(bytes.map_err(orate::Error::from)?)
    }
}

#[pymethods]
impl Audio {
    #[new]
    #[pyo3(
        signature = (samples, sample_rate, words=vec![], marks=vec![]),
        text_signature = "(samples, sample_rate, words=(), marks=())"
    )]
    fn new(
        samples: &Bound<'_, PyAny>,
        sample_rate: u32,
        words: Vec<Py<Word>>,
        marks: Vec<Py<Mark>>,
    ) -> Result<Audio> {
        let py = samples.py();
        if sample_rate == 0 {
            let allowed = "choose samples per second, such as 24000".to_owned();
            return Err(orate::Error::Option { option: "sample_rate", got: "0".to_owned(), allowed }.into());
        }
        let (words, marks) = (PyTuple::new(py, words)?.unbind(), PyTuple::new(py, marks)?.unbind());
        Ok(Audio { samples: floats(samples)?.unbind(), sample_rate, words, marks })
    }

    /// Length in seconds.
    #[getter]
    fn duration(&self, py: Python<'_>) -> f64 {
        self.samples.bind(py).len() as f64 / f64::from(self.sample_rate)
    }

    /// Writes a file in the format of its extension: .wav (16 bits), .flac, .mp3, .opus or .ogg.
    ///
    /// The file appears whole or not at all.
    fn write(&self, py: Python<'_>, path: PathBuf) -> Result<()> {
        let format = AudioFormat::from_extension(&path).map_err(orate::Error::from)?;
        let bytes = self.bytes(py, format.name(), &EncoderSettings::default())?;
        Ok(py.detach(|| orate::write_output(path, &bytes)).map_err(orate::Error::from)?)
    }

    /// Returns the bytes of a file: "wav", "flac", "mp3", "opus", "pcm", "wav-float" or "pcm-float".
    ///
    /// `bit_rate` is for "mp3" and "opus", in bits per second. With `sample_rate`, audio is resampled.
    ///
    /// >>> import orate
    /// >>> orate.Engine().say("Hello.").encode("flac")[:4]
    /// b'fLaC'
    #[pyo3(signature = (format="wav", *, bit_rate=None, sample_rate=None))]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        format: &str,
        bit_rate: Option<u32>,
        sample_rate: Option<u32>,
    ) -> Result<Bound<'py, PyBytes>> {
        let bytes = self.bytes(py, format, &EncoderSettings { sample_rate, bit_rate })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Returns captions of audio that was spoken with `words=True`: "srt", "vtt", or "json" with the times of
    /// all words and marks.
    ///
    /// >>> import orate
    /// >>> print(orate.Engine().say("Hello.", words=True).captions("vtt").splitlines()[0])
    /// WEBVTT
    #[pyo3(signature = (format="srt"))]
    fn captions(&self, py: Python<'_>, format: &str) -> Result<String> {
        words::captions(py, (&self.words, &self.marks), self.duration(py), format)
    }

    /// Writes captions in the format of the file's extension: .srt, .vtt or .json.
    fn write_captions(&self, py: Python<'_>, path: PathBuf) -> Result<()> {
        let captions =
            words::captions(py, (&self.words, &self.marks), self.duration(py), &words::format_of(&path)?)?;
        Ok(py.detach(|| orate::write_output(path, captions.as_bytes())).map_err(orate::Error::from)?)
    }

    /// Draws waveform and mel spectrogram as a PNG, which notebooks show.
    #[pyo3(signature = (title=""))]
    fn plot(&self, py: Python<'_>, title: &str) -> Result<Plot> {
        let png = self.with(py, |samples| orate::plot_png_bytes(samples, self.sample_rate, title))?;
        Ok(Plot { png: PyBytes::new(py, &png.map_err(orate::Error::from)?).unbind() })
    }

    /// A player for notebooks.
    fn _repr_html_(&self, py: Python<'_>) -> Result<String> {
        let flac = PyBytes::new(py, &self.bytes(py, "flac", &EncoderSettings::default())?);
        let base64: String =
            py.import("base64")?.call_method1("b64encode", (flac,))?.call_method0("decode")?.extract()?;
        Ok(format!("<audio controls src=\"data:audio/flac;base64,{base64}\"></audio>"))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("<orate.Audio: {:.2} s at {} Hz>", self.duration(py), self.sample_rate)
    }

    /// For pickle.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let Audio { samples, sample_rate, words, marks } = slf.get();
        let state = (samples, *sample_rate, words, marks).into_pyobject(slf.py())?;
        Ok((slf.get_type().into_any(), state))
    }
}

/// A contiguous float32 array: the given one, or a copy of what can be one.
fn floats<'py>(samples: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray1<f32>>> {
    if let Ok(array) = samples.cast::<PyArray1<f32>>()
        && array.is_contiguous()
    {
        return Ok(array.clone());
    }
    let numpy = samples.py().import("numpy")?;
    let array = numpy.call_method1("asarray", (samples,))?;
    let dtype = array.getattr("dtype")?;
    if dtype.getattr("kind")?.extract::<String>()? != "f" {
        let problem = "give floats from -1 to 1; integers have to be divided by their range";
        return Err(PyTypeError::new_err(format!("samples are {dtype}; {problem}")));
    }
    let array = numpy.call_method1("ascontiguousarray", (array, "float32"))?;
    let shape = array.getattr("shape")?;
    array.cast_into().map_err(|_| {
        PyTypeError::new_err(format!("samples have the shape {shape}; give one channel, such as samples[0]"))
    })
}

/// A picture, which notebooks show.
#[pyclass(module = "orate", frozen)]
pub struct Plot {
    /// The bytes of the PNG.
    #[pyo3(get)]
    png: Py<PyBytes>,
}

#[pymethods]
impl Plot {
    /// Writes the PNG to a file.
    fn write(&self, py: Python<'_>, path: PathBuf) -> Result<()> {
        let bytes = self.png.as_bytes(py);
        Ok(py.detach(|| orate::write_output(path, bytes)).map_err(orate::Error::from)?)
    }

    fn _repr_png_(&self, py: Python<'_>) -> Py<PyBytes> {
        self.png.clone_ref(py)
    }
}
