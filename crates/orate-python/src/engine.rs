//! The engine.

use crate::audio::Audio;
use crate::detached;
use crate::error::{Failure, Result};
use crate::options::{self, CONVERT, Keywords, type_of};
use crate::speech::Speech;
use crate::stream::{Progress, Stream, warn};
use crate::voice::Voice;
use orate::{Cancel, EngineOptions, ModelSource};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::io::Cursor;
use std::path::PathBuf;

/// A model on a device. Threads may share it, also while it speaks; processes that fork may not.
///
/// `model` is a folder, a file, or the name of a pulled model; without, the built-in English voice is opened.
/// `device` is "auto", "cpu", "gpu", "cuda", "vulkan", "metal" or "dx12", GPUs with a number if there are
/// several: "cuda:1". `threads` and `isa` are for the CPU. `precision` is the format of weights:
/// "stored", "f32", "tf32", "f16", "bf16", "q8_0", "q6_k", "q5_k", "q4_k", "q4_0" or "auto"; `kv` that of the
/// KV cache: "f32", "f16", "bf16", "q8_0" or "auto". `codec` is the second of two GGUF files; without, the
/// one beside the model. `cache` is a folder for compiled kernels. With `allow_fallback`, the CPU replaces a
/// device that cannot run the model.
///
/// >>> import orate
/// >>> engine = orate.Engine()
/// >>> engine.say("Hello.").sample_rate
/// 24000
#[pyclass(module = "orate", frozen)]
pub struct Engine(pub orate::Engine);

/// Keywords of `Engine`.
const KEYWORDS: [&str; 9] =
    ["model", "device", "threads", "precision", "kv", "isa", "codec", "cache", "allow_fallback"];

/// A recording: to make a voice from, or to convert.
enum Recording {
    Audio(Py<Audio>),
    Bytes(Py<PyBytes>),
    File(PathBuf),
}

impl Recording {
    fn read(argument: &str, value: &Bound<'_, PyAny>) -> Result<Recording> {
        if let Ok(audio) = value.cast::<Audio>() {
            return Ok(Recording::Audio(audio.clone().unbind()));
        }
        if let Ok(bytes) = value.cast::<PyBytes>() {
            return Ok(Recording::Bytes(bytes.clone().unbind()));
        }
        value.extract().map(Recording::File).map_err(|_| {
            let problem = "give the path of a file, its bytes, or orate.Audio(samples, sample_rate)";
            PyTypeError::new_err(format!("{argument} is a {}; {problem}", type_of(value))).into()
        })
    }
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(
        signature = (
            model=None, *, device="auto", threads=None, precision="stored", kv="auto", isa=None, codec=None,
            cache=None, allow_fallback=false, **unknown
        ),
        text_signature = "(model=None, *, device='auto', threads=None, precision='stored', kv='auto', \
                          isa=None, codec=None, cache=None, allow_fallback=False)"
    )]
    #[allow(clippy::too_many_arguments, reason = "they are keywords")]
    fn new(
        py: Python<'_>,
        model: Option<PathBuf>,
        device: &str,
        threads: Option<usize>,
        precision: &str,
        kv: &str,
        isa: Option<String>,
        codec: Option<PathBuf>,
        cache: Option<PathBuf>,
        allow_fallback: bool,
        unknown: Option<&Bound<'_, PyDict>>,
    ) -> Result<Engine> {
        if let Some((name, _)) = unknown.into_iter().flatten().next() {
            return Err(options::unknown(py, "Engine()", &name.extract::<String>()?, KEYWORDS)?);
        }
        let mut options =
            EngineOptions { codec, threads, isa, cache, allow_fallback, ..EngineOptions::default() };
        for (name, value) in [("device", device), ("precision", precision), ("kv", kv)] {
            options.set(name, value)?;
        }
        let opened = detached::run(py, &Cancel::new(), || {
            if let Some(model) = model {
                options.model = ModelSource::Path(orate_hub::model_path(&model)?);
            }
            anyhow::Ok(orate::Engine::with_options(options)?)
        });
        Ok(Engine(opened?.map_err(Failure)?))
    }

    /// Speaks a text of any length and returns its audio.
    ///
    /// `voice` is one of `Engine.voices`, a mix of them such as "F1:0.7+M1:0.3" where the model has that, a
    /// `Voice`, or the name or file of a kept one. `language` is a code, tag or English name: "en", "pt-BR",
    /// "english". Another `seed` gives another reading. `silence` is that between the pieces of a long text,
    /// in seconds. With `words`, words get times: see `Audio.words`. `progress` is True for a bar, or a
    /// function of the characters that are spoken and all characters. `raw=True` gives the model's own sound,
    /// without trimming and set loudness. Further `options` are those in `Engine.options`.
    ///
    /// With `ssml`, the text is SSML; with `tags`, it has tags: [pause:1.5s] [voice:NAME] [rate:1.1]
    /// [lang:de]. `voices` says who speaks for the names in such a text: a dict of voices, engines, or tuples
    /// of an engine, its voice and a dict of its options. Other names are voices of this model, or kept ones.
    /// `lexicon` is how to say words: a dict of spellings, or a file with a line "word = spelling" for each.
    ///
    /// >>> import orate
    /// >>> engine = orate.Engine()
    /// >>> engine.say("Hello.", speed=1.5).duration < engine.say("Hello.").duration
    /// True
    /// >>> audio = engine.say("One. [pause:1s] Two.", tags=True, words=True)
    /// >>> [(word.text, word.span) for word in audio.words]
    /// [('One', (0, 3)), ('Two', (16, 19))]
    #[pyo3(
        signature = (text, **options),
        text_signature = "($self, text, *, voice=None, language=None, seed=0, silence=None, words=False, \
                          ssml=False, tags=False, lexicon=None, voices=None, progress=None, **options)"
    )]
    fn say(&self, py: Python<'_>, text: &str, options: Option<&Bound<'_, PyDict>>) -> Result<Audio> {
        let mut keywords = Keywords::new(py, "say()", options);
        let mut speech = Speech::read(&self.0, &mut keywords)?;
        speech.options.whole = true;
        let progress = Progress::new(py, keywords.value("progress")?, " characters")?;
        speech.begin(py, text, &keywords.own(&self.0)?)?.collect(py, progress)
    }

    /// Speaks several texts with the same options, at once where the model is faster that way. See `say`.
    ///
    /// >>> import orate
    /// >>> for audio in orate.Engine().say_batch(["One.", "Two. [pause:1s] Three."], tags=True, words=True):
    /// ...     print([word.text for word in audio.words])
    /// ['One']
    /// ['Two', 'Three']
    #[pyo3(
        signature = (texts, **options),
        text_signature = "($self, texts, *, voice=None, language=None, seed=0, silence=None, words=False, \
                          ssml=False, tags=False, lexicon=None, voices=None, **options)"
    )]
    fn say_batch(
        &self,
        py: Python<'_>,
        texts: Vec<String>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> Result<Vec<Audio>> {
        let mut keywords = Keywords::new(py, "say_batch()", options);
        let mut speech = Speech::read(&self.0, &mut keywords)?;
        speech.options.whole = true;
        speech.batch(py, &texts, &keywords.own(&self.0)?)
    }

    /// Speaks piece by piece: an iterator that computes a chunk when it is asked for. See `say` for options.
    ///
    /// >>> import orate
    /// >>> for chunk in orate.Engine().stream("First sentence.\n\nSecond one."):
    /// ...     print(chunk.index, chunk.text)
    /// 0 First sentence.
    /// 1 Second one.
    #[pyo3(
        signature = (text, **options),
        text_signature = "($self, text, *, voice=None, language=None, seed=0, silence=None, words=False, \
                          ssml=False, tags=False, lexicon=None, voices=None, **options)"
    )]
    fn stream(&self, py: Python<'_>, text: &str, options: Option<&Bound<'_, PyDict>>) -> Result<Stream> {
        self.begin(py, "stream()", text, options)
    }

    /// As `stream`, for `async for`. A thread computes up to four chunks ahead. Cancelling the task, leaving
    /// the loop or `aclose()` stops the work.
    ///
    /// >>> import asyncio, orate
    /// >>> async def count(text):
    /// ...     return [chunk.index async for chunk in orate.Engine().astream(text)]
    /// >>> asyncio.run(count("First sentence.\n\nSecond one."))
    /// [0, 1]
    #[pyo3(
        signature = (text, **options),
        text_signature = "($self, text, *, voice=None, language=None, seed=0, silence=None, words=False, \
                          ssml=False, tags=False, lexicon=None, voices=None, **options)"
    )]
    fn astream<'py>(
        &self,
        py: Python<'py>,
        text: &str,
        options: Option<&Bound<'py, PyDict>>,
    ) -> Result<Bound<'py, PyAny>> {
        let stream = self.begin(py, "astream()", text, options)?;
        Ok(py.import("orate._astream")?.call_method1("chunks", (stream,))?)
    }

    /// Makes a voice from a recording: a file, the bytes of one, or `Audio`. With `transcript`, the words
    /// that are spoken there, the model also takes over the manner; without, only the voice.
    #[pyo3(signature = (recording, *, transcript=None))]
    fn clone(&self, py: Python<'_>, recording: &Bound<'_, PyAny>, transcript: Option<&str>) -> Result<Voice> {
        let (engine, cancel, what) = (&self.0, Cancel::new(), "the recording");
        let made = match Recording::read("recording", recording)? {
            Recording::File(path) => detached::run(py, &cancel, || engine.clone_voice(path, transcript))?,
            Recording::Bytes(bytes) => {
                let bytes = bytes.as_bytes(py).to_owned();
                detached::run(py, &cancel, || engine.clone_voice_from(what, bytes, transcript))?
            }
            Recording::Audio(audio) => {
                let rate = audio.get().sample_rate;
                let samples = audio.get().with(py, <[f32]>::to_vec)?;
                let clone = || engine.clone_voice_samples(what, samples, rate, transcript);
                detached::run(py, &cancel, clone)?
            }
        };
        let voice = Voice(made?);
        if transcript.is_some() && !engine.reads_transcripts() {
            let family = engine.family_name();
            warn(py, &[format!("transcript has no effect, {family} models take the voice alone")])?;
        }
        Ok(voice)
    }

    /// Speaks a recording again in another voice: a file of up to an hour, the bytes of one, or `Audio`.
    ///
    /// `voice`, `seed` and `progress` are as in `say`. The sound is always the model's own, so there is no
    /// `raw`.
    #[pyo3(
        signature = (source, **options),
        text_signature = "($self, source, *, voice=None, seed=0, progress=None, **options)"
    )]
    fn convert(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> Result<Audio> {
        let source = Recording::read("source", source)?;
        let mut keywords = Keywords::new(py, CONVERT, options);
        let progress = Progress::new(py, keywords.value("progress")?, " pieces")?;
        let (options, cancel) = options::read(&self.0, keywords, &["voice", "seed"])?;
        let (engine, options, rate) = (&self.0, &options, self.0.sample_rate());
        let stream = match source {
            Recording::File(path) => {
                Stream::begin(py, cancel, rate, None, || engine.convert_stream(path, options))?
            }
            Recording::Bytes(bytes) => {
                let bytes = Cursor::new(bytes.as_bytes(py).to_owned());
                let begin = || engine.convert_stream_from("the recording", bytes, options);
                Stream::begin(py, cancel, rate, None, begin)?
            }
            Recording::Audio(audio) => {
                let audio = audio.get();
                let begin = |samples: &[f32]| engine.convert_samples(samples, audio.sample_rate, options);
                let begun = audio.with(py, begin)?;
                Stream::begin(py, cancel, rate, None, || begun)?
            }
        };
        stream.collect(py, progress)
    }

    /// Loads weights and compiles plans, so that the first text is as fast as later ones: for as many callers
    /// at once, and texts with these options.
    #[pyo3(
        signature = (callers=1, **options),
        text_signature = "($self, callers=1, *, voice=None, language=None, **options)"
    )]
    fn warm_up(&self, py: Python<'_>, callers: usize, options: Option<&Bound<'_, PyDict>>) -> Result<()> {
        let names = ["voice", "language", "raw"];
        let (options, cancel) = options::read(&self.0, Keywords::new(py, "warm_up()", options), &names)?;
        Ok(detached::run(py, &cancel, || self.0.warm_up_for_callers(&options, callers))??)
    }

    /// Names of the model's voices.
    #[getter]
    fn voices(&self) -> Vec<&str> {
        self.0.voices().iter().map(|voice| &*voice.name).collect()
    }

    /// Options of this model by name, each with what it does.
    ///
    /// >>> import orate
    /// >>> print(orate.Engine().options["speed"])
    /// Speaking rate, 0.7 to 2 [default: the model's usual rate]
    #[getter]
    fn options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for spec in self.0.model().accepts() {
            all.set_item(spec.name, spec.summary())?;
        }
        Ok(all)
    }

    /// Path of the model, or "built-in voice".
    #[getter]
    fn model(&self) -> &str {
        self.0.model_name()
    }

    /// Name of the model's family.
    #[getter]
    fn family(&self) -> &'static str {
        self.0.family_name()
    }

    /// What runs the model, such as "cpu (avx2, 8 threads)".
    #[getter]
    fn device(&self) -> String {
        self.0.device()
    }

    /// Samples per second of all audio from this engine.
    #[getter]
    fn sample_rate(&self) -> u32 {
        self.0.sample_rate()
    }

    /// Whether the model speaks with voices made from recordings.
    #[getter]
    fn can_clone(&self) -> bool {
        self.0.can_clone()
    }

    /// Reasons why devices were passed over.
    #[getter]
    fn fallbacks(&self) -> Vec<String> {
        self.0.fallbacks().to_vec()
    }

    fn __repr__(&self) -> String {
        format!("<orate.Engine: {} on {}>", self.0.model_name(), self.0.device())
    }

    /// For pickle.
    fn __reduce__(&self) -> PyResult<()> {
        let problem = "an engine cannot be pickled or copied: open one in each process, with orate.Engine(…)";
        Err(PyTypeError::new_err(problem))
    }
}

impl Engine {
    fn begin(
        &self,
        py: Python<'_>,
        function: &str,
        text: &str,
        options: Option<&Bound<'_, PyDict>>,
    ) -> Result<Stream> {
        let mut keywords = Keywords::new(py, function, options);
        let speech = Speech::read(&self.0, &mut keywords)?;
        speech.begin(py, text, &keywords.own(&self.0)?)
    }
}
