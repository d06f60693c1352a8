//! Streams of speech: iterators, and threads that compute ahead for asyncio.

use crate::audio::Audio;
use crate::detached;
use crate::error::Result;
use crate::words::{self, Characters};
use numpy::{IntoPyArray, PyArray1};
use orate::Cancel;
use pyo3::exceptions::{PyRuntimeError, PyUserWarning};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Some of a text's audio.
#[pyclass(module = "orate", frozen, get_all)]
pub struct Chunk {
    /// Samples: a float32 array.
    samples: Py<PyArray1<f32>>,
    /// Samples per second.
    sample_rate: u32,
    /// The piece of the text as the model read it; empty for a recording.
    text: String,
    /// Number of the piece, from 0. Models that speak frame by frame return several chunks for a piece.
    index: usize,
    /// Samples of the chunks before this one.
    start: usize,
    /// Words of the piece with times, with its last chunk: a tuple of `Word`. Empty without `words=True`.
    words: Py<PyTuple>,
    /// Marks of SSML, with the last chunk of their piece: a tuple of `Mark`.
    marks: Py<PyTuple>,
    /// Why the piece ended, with its last chunk: "stop", "length" or "runaway".
    finish_reason: Option<&'static str>,
}

impl Chunk {
    fn new(py: Python<'_>, spoken: Spoken) -> PyResult<Chunk> {
        let Spoken { chunk, sample_rate } = spoken;
        let (words, marks) = words::tuples(py, chunk.words, chunk.marks)?;
        Ok(Chunk {
            samples: chunk.samples.into_pyarray(py).unbind(),
            sample_rate,
            text: chunk.text.into_text(),
            index: chunk.index,
            start: chunk.start,
            words,
            marks,
            finish_reason: chunk.finish.map(orate::FinishReason::name),
        })
    }
}

#[pymethods]
impl Chunk {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let seconds = self.samples.bind(py).len()? as f64 / f64::from(self.sample_rate);
        Ok(format!("<orate.Chunk {}: {seconds:.2} s, {:?}>", self.index, self.text))
    }
}

/// A chunk of the library.
struct Spoken {
    chunk: orate::Chunk,
    sample_rate: u32,
}

/// A stream of the library that counts samples and time.
struct Running {
    stream: orate::Stream,
    sample_rate: u32,
    /// For the spans of words, if they were asked for.
    characters: Option<Characters>,
    /// Nanoseconds in the library.
    busy: Arc<AtomicU64>,
}

/// Calls the library, and adds the time that it took.
fn timed<T>(busy: &AtomicU64, call: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = call();
    busy.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
    result
}

impl Running {
    fn new(stream: orate::Stream, sample_rate: u32, words: Option<&str>, busy: Arc<AtomicU64>) -> Running {
        let characters = words.map(|text| Characters::of(text.to_owned()));
        Running { stream, sample_rate, characters, busy }
    }
}

impl Iterator for Running {
    type Item = orate::Result<Spoken>;

    fn next(&mut self) -> Option<Self::Item> {
        let chunk = timed(&self.busy, || self.stream.next());
        Some(chunk?.map(|mut chunk| {
            match &mut self.characters {
                Some(characters) => chunk.words.iter_mut().for_each(|word| characters.convert(word)),
                // Marks have words made, too.
                None => chunk.words.clear(),
            }
            Spoken { chunk, sample_rate: self.sample_rate }
        }))
    }
}

/// What a stream does.
enum State {
    /// It waits to be asked for a chunk.
    Idle(Box<Running>),
    /// A thread computes a chunk.
    Busy,
    /// Nothing follows.
    Over,
}

/// An iterator over the audio of a text. It computes a chunk when it is asked for; dropping or closing it
/// stops all work.
#[pyclass(module = "orate", frozen)]
pub struct Stream {
    /// Never held while anything is computed, so a forked process does not find it locked.
    state: Mutex<State>,
    cancel: Cancel,
    sample_rate: u32,
    busy: Arc<AtomicU64>,
}

impl Stream {
    /// Begins a stream: `begin`, which takes little time, is called without the GIL. What has no effect is a
    /// warning. `words` is the text, if its words get times.
    pub fn begin(
        py: Python<'_>,
        cancel: Cancel,
        sample_rate: u32,
        words: Option<&str>,
        begin: impl FnOnce() -> orate::Result<orate::Stream> + Send,
    ) -> Result<Stream> {
        let busy = Arc::<AtomicU64>::default();
        let stream = py.detach(|| timed(&busy, begin))?;
        warn(py, stream.warnings())?;
        let running = Box::new(Running::new(stream, sample_rate, words, busy.clone()));
        Ok(Stream { state: Mutex::new(State::Idle(running)), cancel, sample_rate, busy })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream, if no thread has it. Leaves `next` in its place.
    fn take(&self, next: State) -> PyResult<Option<Box<Running>>> {
        let mut state = self.state();
        match std::mem::replace(&mut *state, next) {
            State::Idle(running) => Ok(Some(running)),
            State::Over => {
                *state = State::Over;
                Ok(None)
            }
            State::Busy => {
                *state = State::Busy;
                Err(PyRuntimeError::new_err("another thread is reading this stream; let each have its own"))
            }
        }
    }

    fn next(&self, py: Python<'_>) -> Result<Option<Spoken>> {
        let Some(mut running) = self.take(State::Busy)? else { return Ok(None) };
        let computed = detached::run(py, &self.cancel, move || match running.next() {
            Some(Ok(spoken)) => (Some(running), Some(Ok(spoken))),
            // What the stream holds is freed here, without the GIL.
            over => (None, over),
        });
        let (running, spoken) = match computed {
            Ok(computed) => computed,
            Err(interrupted) => {
                *self.state() = State::Over;
                return Err(interrupted.into());
            }
        };
        *self.state() = match running {
            Some(running) if !self.cancel.is_cancelled() => State::Idle(running),
            _ => State::Over,
        };
        Ok(spoken.transpose()?)
    }

    fn remaining(&self) -> usize {
        match &*self.state() {
            State::Idle(running) => running.stream.remaining_chars(),
            _ => 0,
        }
    }

    /// All of it.
    pub fn collect(&self, py: Python<'_>, progress: Option<Progress>) -> Result<Audio> {
        let (total, mut whole) = (self.remaining(), Whole::default());
        while let Some(Spoken { chunk, .. }) = self.next(py)? {
            whole.add(chunk);
            if let Some(progress) = &progress {
                progress.show(py, (total - self.remaining().min(total)) as u64, total as u64)?;
            }
        }
        warn(py, &whole.warnings)?;
        whole.audio(py, self.sample_rate)
    }
}

/// The chunks of a stream, joined.
#[derive(Default)]
pub struct Whole {
    samples: Vec<f32>,
    words: Vec<orate::TimedWord>,
    marks: Vec<orate::TimedMark>,
    /// What was asked for and has no effect, and speech that was cut.
    pub warnings: Vec<String>,
}

impl Whole {
    /// Computes a stream. `words` is the text, if its words get times.
    pub fn of(stream: orate::Stream, words: Option<&str>) -> orate::Result<Whole> {
        let mut whole = Whole { warnings: stream.warnings().to_vec(), ..Whole::default() };
        for spoken in Running::new(stream, 0, words, Arc::default()) {
            whole.add(spoken?.chunk);
        }
        Ok(whole)
    }

    fn add(&mut self, chunk: orate::Chunk) {
        let warning = chunk.finish.and_then(orate::FinishReason::warning);
        if let Some(warning) = warning.filter(|warning| !self.warnings.iter().any(|known| known == warning)) {
            self.warnings.push(warning.to_owned());
        }
        match self.samples.is_empty() {
            true => self.samples = chunk.samples,
            false => self.samples.extend_from_slice(&chunk.samples),
        }
        self.words.extend(chunk.words);
        self.marks.extend(chunk.marks);
    }

    pub fn audio(self, py: Python<'_>, sample_rate: u32) -> Result<Audio> {
        Audio::from_vec(py, self.samples, sample_rate, (self.words, self.marks))
    }
}

/// Python warnings of these texts.
pub fn warn(py: Python<'_>, warnings: &[String]) -> PyResult<()> {
    for warning in warnings {
        let warning = CString::new(warning.replace('\0', " ")).expect("zeros were replaced");
        PyErr::warn(py, &py.get_type::<PyUserWarning>(), &warning, 1)?;
    }
    Ok(())
}

#[pymethods]
impl Stream {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> Result<Option<Chunk>> {
        Ok(self.next(py)?.map(|spoken| Chunk::new(py, spoken)).transpose()?)
    }

    /// Stops all work. A thread that waits for a chunk gets `Cancelled`.
    fn close(&self, py: Python<'_>) {
        self.cancel.cancel();
        // A thread that computes ends the stream itself.
        if let Ok(running) = self.take(State::Over) {
            py.detach(|| drop(running));
        }
    }

    /// Samples per second.
    #[getter]
    fn sample_rate(&self) -> u32 {
        self.sample_rate
    }

    /// Characters still to come; of a recording, pieces.
    #[getter]
    fn remaining_chars(&self) -> usize {
        self.remaining()
    }

    /// Seconds that computing took so far.
    #[getter]
    fn seconds(&self) -> f64 {
        self.busy.load(Ordering::Relaxed) as f64 / 1e9
    }

    /// Starts a thread that computes chunks ahead, and calls `wake` from there after each and at the end. For
    /// `Engine.astream`.
    fn _ahead(&self, wake: Py<PyAny>) -> Result<Ahead> {
        // The thread waits with one more.
        let (sender, chunks) = sync_channel(MOST_AHEAD - 1);
        let running = self.take(State::Over)?;
        let work = move || {
            for spoken in running.into_iter().flatten() {
                if sender.send(spoken).is_err() || !call(&wake) {
                    return;
                }
            }
            drop(sender);
            call(&wake);
            // Attached, so that it is freed at once; at the end of the process never.
            Python::try_attach(|_| drop(wake));
        };
        std::thread::Builder::new().name("orate-astream".to_owned()).spawn(work)?;
        Ok(Ahead {
            chunks: Mutex::new(Some(chunks)),
            cancel: self.cancel.clone(),
            is_over: AtomicBool::new(false),
        })
    }
}

/// Most chunks that nobody has read.
const MOST_AHEAD: usize = 4;

/// Calls a function of Python. False if it failed, or Python is ending: nobody waits then.
fn call(function: &Py<PyAny>) -> bool {
    Python::try_attach(|py| function.call0(py).is_ok()).unwrap_or(false)
}

/// Chunks that a thread computes ahead.
#[pyclass(module = "orate", frozen)]
pub struct Ahead {
    chunks: Mutex<Option<Receiver<orate::Result<Spoken>>>>,
    cancel: Cancel,
    is_over: AtomicBool,
}

#[pymethods]
impl Ahead {
    /// The next chunk; None if there is none yet, or the stream is over.
    fn take(&self, py: Python<'_>) -> Result<Option<Chunk>> {
        let chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        match chunks.as_ref().map_or(Err(TryRecvError::Disconnected), Receiver::try_recv) {
            Ok(spoken) => Ok(Some(Chunk::new(py, spoken?)?)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => {
                self.is_over.store(true, Ordering::Relaxed);
                Ok(None)
            }
        }
    }

    /// Whether all chunks were taken.
    #[getter]
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Stops all work.
    fn close(&self) {
        self.cancel.cancel();
        *self.chunks.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// What shows progress.
pub struct Progress(Py<PyAny>);

impl Progress {
    /// A bar if `progress` is True, or the function that it is.
    pub fn new(py: Python<'_>, progress: Option<Bound<'_, PyAny>>, unit: &str) -> PyResult<Option<Progress>> {
        Ok(match progress {
            None => None,
            Some(progress) => match progress.extract::<bool>() {
                Ok(false) => None,
                Ok(true) => {
                    Some(Progress(py.import("orate._progress")?.call_method1("bar", (unit,))?.unbind()))
                }
                Err(_) => Some(Progress(progress.unbind())),
            },
        })
    }

    /// Shows that `done` of `total` are done.
    pub fn show(&self, py: Python<'_>, done: u64, total: u64) -> PyResult<()> {
        self.0.call1(py, (done, total)).map(|_| ())
    }
}
