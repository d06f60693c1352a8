//! Words with times, marks, and captions.

use crate::error::Result;
use orate::{Pause, Source, TimedMark, TimedWord, captions};
use orate_cli::UsageError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::path::Path;

/// A word and when it is spoken.
#[pyclass(module = "orate", frozen, eq)]
#[derive(Clone, PartialEq)]
pub struct Word {
    /// Its span is in characters of the text, not bytes.
    timed: TimedWord,
}

#[pymethods]
impl Word {
    /// The word without the marks around it.
    #[getter]
    fn text(&self) -> &str {
        &self.timed.word.text
    }

    /// The word as captions show it, with its marks: "Hello,".
    #[getter]
    fn display(&self) -> &str {
        &self.timed.word.display
    }

    /// Where it begins in the audio, in seconds.
    #[getter]
    fn start(&self) -> f64 {
        self.timed.start
    }

    /// Where it ends in the audio, in seconds.
    #[getter]
    fn end(&self) -> f64 {
        self.timed.end
    }

    /// First character of `text` in the text that was given, and the one after its last.
    #[getter]
    fn span(&self) -> (usize, usize) {
        let span = &self.timed.word.span;
        (span.start, span.end)
    }

    /// Where its times come from: "attention" of the model, or "estimated" from the sound.
    #[getter]
    fn source(&self) -> &'static str {
        self.timed.source.name()
    }

    /// Number of its piece; see `Chunk.index`.
    #[getter]
    fn piece(&self) -> usize {
        self.timed.piece
    }

    fn __repr__(&self) -> String {
        let TimedWord { word, start, end, .. } = &self.timed;
        format!("<orate.Word {:?}: {start:.2} to {end:.2} s>", word.text)
    }

    /// For pickle.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let TimedWord { word, start, end, source, piece } = &self.timed;
        let orate::Word { text, display, span, space_after, weight, pause_after } = word;
        let times = (*start, *end, source.name(), *piece);
        let details = (*space_after, *weight, *pause_after as u8);
        let state = (text, display, (span.start, span.end), times, details).into_pyobject(py)?;
        Ok((py.import("orate._orate")?.getattr("_word")?, state))
    }
}

/// A word from its pickled state.
#[pyfunction]
#[pyo3(name = "_word")]
pub fn unpickled(
    text: String,
    display: String,
    span: (usize, usize),
    times: (f64, f64, String, usize),
    details: (bool, f32, u8),
) -> Word {
    let (start, end, source, piece) = times;
    let (space_after, weight, pause) = details;
    let sources = [Source::Estimated, Source::Attention, Source::Aligner];
    let source = sources.into_iter().find(|known| known.name() == source).unwrap_or(Source::Estimated);
    let pauses = [Pause::None, Pause::Comma, Pause::Sentence];
    let pause_after = pauses.into_iter().find(|known| *known as u8 == pause).unwrap_or_default();
    let word = orate::Word { text, display, span: span.0..span.1, space_after, weight, pause_after };
    Word { timed: TimedWord { word, start, end, source, piece } }
}

/// A named place of SSML, and when it is reached.
#[pyclass(module = "orate", frozen, eq, get_all)]
#[derive(Clone, PartialEq)]
pub struct Mark {
    /// Its name.
    name: String,
    /// When it is reached in the audio, in seconds.
    time: f64,
}

impl Mark {
    fn timed(&self) -> TimedMark {
        TimedMark { name: self.name.clone(), time: self.time }
    }
}

#[pymethods]
impl Mark {
    #[new]
    fn new(name: String, time: f64) -> Mark {
        Mark { name, time }
    }

    fn __repr__(&self) -> String {
        format!("<orate.Mark {:?}: {:.2} s>", self.name, self.time)
    }

    /// For pickle.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, PyAny>, (String, f64)) {
        let Mark { name, time } = slf.get().clone();
        (slf.get_type().into_any(), (name, time))
    }
}

/// Words and marks as tuples.
pub fn tuples(
    py: Python<'_>,
    words: Vec<TimedWord>,
    marks: Vec<TimedMark>,
) -> PyResult<(Py<PyTuple>, Py<PyTuple>)> {
    let words = words.into_iter().map(|timed| Word { timed });
    let marks = marks.into_iter().map(|mark| Mark { name: mark.name, time: mark.time });
    let words = PyTuple::new(py, words.collect::<Vec<_>>())?;
    Ok((words.unbind(), PyTuple::new(py, marks.collect::<Vec<_>>())?.unbind()))
}

/// Converts spans from bytes of a text to its characters. Fast if spans are in order.
pub struct Characters {
    text: String,
    bytes: usize,
    characters: usize,
}

impl Characters {
    pub fn of(text: String) -> Characters {
        Characters { text, bytes: 0, characters: 0 }
    }

    pub fn convert(&mut self, word: &mut TimedWord) {
        let span = &mut word.word.span;
        *span = self.before(span.start)..self.before(span.end);
    }

    /// Characters before a byte.
    fn before(&mut self, byte: usize) -> usize {
        let byte = self.text.floor_char_boundary(byte);
        if byte < self.bytes {
            (self.bytes, self.characters) = (0, 0);
        }
        self.characters += self.text[self.bytes..byte].chars().count();
        self.bytes = byte;
        self.characters
    }
}

/// Formats of captions.
const FORMATS: [&str; 3] = ["srt", "vtt", "json"];

/// Captions of words, and in JSON marks, for sound of `duration` seconds, in a format by name.
pub fn captions(
    py: Python<'_>,
    (words, marks): (&Py<PyTuple>, &Py<PyTuple>),
    duration: f64,
    format: &str,
) -> Result<String> {
    if !FORMATS.contains(&format) {
        let (got, allowed) = (format!("`{format}`"), format!("choose {}", FORMATS.join(", ")));
        return Err(orate::Error::Option { option: "format", got, allowed }.into());
    }
    let words: Vec<Py<Word>> = words.bind(py).extract()?;
    if words.is_empty() {
        let problem = "the audio has no words with times; speak with words=True";
        return Err(UsageError(problem.to_owned()).into());
    }
    let words: Vec<TimedWord> = words.iter().map(|word| word.get().timed.clone()).collect();
    let marks: Vec<Py<Mark>> = marks.bind(py).extract()?;
    let marks: Vec<TimedMark> = marks.iter().map(|mark| mark.get().timed()).collect();
    Ok(py.detach(|| match format {
        "srt" => captions::srt(&words, duration),
        "vtt" => captions::vtt(&words, duration),
        _ => {
            // Spans are in characters already: in this text, each is a byte.
            let characters = words.iter().map(|timed| timed.word.span.end).max().unwrap_or(0);
            captions::json(&words, &marks, &" ".repeat(characters), duration)
        }
    }))
}

/// Format of a file of captions, by its extension.
pub fn format_of(path: &Path) -> Result<String> {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    if FORMATS.contains(&&*extension) {
        return Ok(extension);
    }
    let problem = "name a file that ends in .srt, .vtt or .json";
    Err(UsageError(format!("{}: {problem}", path.display())).into())
}
