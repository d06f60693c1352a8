//! One engine, and the text that it speaks.

use orate::{
    Cancel, Chunk, Engine, EngineOptions, Error, ErrorKind, Finish, ModelSource, OptionKind, Options, Script,
    Stream, Value,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Most characters of a text, so that a mistake cannot fill the memory.
const MOST_CHARACTERS: usize = 10_000_000;

/// What JavaScript asks for.
#[derive(Deserialize)]
#[serde(tag = "call", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
enum Request {
    /// Opens a model, in place of one that is open.
    Open {
        /// Path of a model folder or file.
        model: String,
        /// Options of the engine, by their names in [`EngineOptions::NAMES`].
        #[serde(default)]
        options: Map<String, serde_json::Value>,
    },
    /// Loads weights and compiles plans for texts with these options.
    WarmUp {
        #[serde(default)]
        options: Speech,
    },
    /// Begins a text. Several can be spoken at once, chunk by chunk.
    Speak {
        /// Number of the text in other calls, chosen by the caller.
        id: u32,
        text: String,
        /// Whether nothing is heard before all of it is made.
        #[serde(default)]
        whole: bool,
        #[serde(default)]
        options: Speech,
    },
    /// The next chunk of a text.
    Next { id: u32 },
    /// Ends a text.
    Stop { id: u32 },
    /// The voice of a recording, as the bytes of a voice file.
    Clone {
        /// Path of its mono samples: floats of 32 bits, little-endian. Browsers decode files themselves.
        path: String,
        /// Samples per second.
        sample_rate: u32,
        /// The words that are spoken there.
        transcript: Option<String>,
    },
}

/// Options of speech by name: those of all models, and those of the model's family.
type Speech = Map<String, serde_json::Value>;

/// Why a call failed.
struct Failure {
    kind: &'static str,
    message: String,
}

type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    fn input(message: impl Into<String>) -> Failure {
        Failure { kind: "invalid-input", message: message.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let kind = match error.kind() {
            // Of audio, the module only has samples: those of a recording.
            _ if matches!(error, Error::Audio(_)) => "invalid-input",
            ErrorKind::InvalidInput => "invalid-input",
            ErrorKind::InvalidModel => "invalid-model",
            ErrorKind::Cancelled => "cancelled",
            _ => "system",
        };
        let (mut message, mut cause) = (error.to_string(), std::error::Error::source(&error));
        while let Some(error) = cause {
            let text = error.to_string();
            if !message.contains(&text) {
                message += &format!(": {text}");
            }
            cause = error.source();
        }
        Failure { kind, message }
    }
}

/// A text that is being spoken, or was and is not stopped yet.
struct Text {
    /// `None` once all of it was spoken, or something went wrong.
    stream: Option<Stream>,
    cancelled: Arc<AtomicBool>,
}

/// An engine that answers requests in JSON, one after the other.
///
/// Requests are objects with the name of a `call`: `open`, `warmUp`, `speak`, `next`, `stop`, `clone`.
/// Answers are objects too; one with `error` says what was wrong, and leaves the engine as it was.
#[derive(Default)]
pub struct Session {
    engine: Option<Engine>,
    texts: HashMap<u32, Text>,
    samples: Vec<f32>,
    voice: Vec<u8>,
}

impl Session {
    /// Does what a request asks for, and returns the answer.
    pub fn call(&mut self, request: &str) -> String {
        let answer = serde_json::from_str(request)
            .map_err(|e| Failure::input(format!("the request is wrong: {e}")))
            .and_then(|request| self.answer(request));
        let answer = answer.unwrap_or_else(
            |Failure { kind, message }| json!({ "error": { "kind": kind, "message": message } }),
        );
        answer.to_string()
    }

    /// Samples of the last chunk.
    pub fn samples(&self) -> &[f32] {
        &self.samples
    }

    /// Bytes of the voice that was cloned last.
    pub fn voice(&self) -> &[u8] {
        &self.voice
    }

    /// The switch that ends a text, for other threads: set it to true. It lives until the text is stopped.
    pub fn cancelled(&self, id: u32) -> Option<&AtomicBool> {
        self.texts.get(&id).map(|text| &*text.cancelled)
    }

    fn answer(&mut self, request: Request) -> Result<serde_json::Value> {
        match request {
            Request::Open { model, options } => self.open(model, options),
            Request::WarmUp { options } => {
                let Spoken { options, .. } = Spoken::read(options)?;
                let engine = self.engine()?;
                engine.warm_up_for(&with_voice_file(engine, options)?)?;
                Ok(json!({}))
            }
            Request::Speak { id, text, whole, options } => self.speak(id, &text, whole, options),
            Request::Next { id } => self.next(id),
            Request::Stop { id } => {
                self.texts.remove(&id);
                Ok(json!({}))
            }
            Request::Clone { path, sample_rate, transcript } => {
                let read = std::fs::read(&path).map_err(|e| Failure::input(format!("{path}: {e}")))?;
                let samples = read.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                let (engine, transcript) = (self.engine()?, transcript.as_deref());
                let voice = engine.clone_voice_samples("the recording", samples, sample_rate, transcript)?;
                self.voice = voice.to_bytes().map_err(Error::from)?;
                Ok(json!({ "bytes": self.voice.len() }))
            }
        }
    }

    fn engine(&self) -> Result<&Engine> {
        self.engine.as_ref().ok_or_else(|| Failure::input("no model is open; open one first"))
    }

    fn open(&mut self, model: String, options: Map<String, serde_json::Value>) -> Result<serde_json::Value> {
        let mut settings = EngineOptions { model: ModelSource::Path(model.into()), ..Default::default() };
        for (name, value) in options {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            settings.set(&name, &value)?;
        }
        // Memory for two models may not be there.
        self.texts.clear();
        self.engine = None;
        let engine = self.engine.insert(Engine::with_options(settings)?);
        let facts = engine.model().files().describe().facts;
        let languages = facts.into_iter().find(|(name, _)| *name == "languages").map(|(_, codes)| codes);
        Ok(json!({
            "family": engine.family_name(),
            "device": engine.device(),
            "threads": engine.threads(),
            "precision": engine.precision().to_string(),
            "sampleRate": engine.sample_rate(),
            "voices": engine.voices().iter().map(|voice| &*voice.name).collect::<Vec<_>>(),
            "defaultVoice": engine.voices().iter().find(|voice| voice.is_default).map(|voice| &*voice.name),
            "canClone": engine.can_clone(),
            "languages": languages.unwrap_or_else(|| json!([])),
            "options": engine.model().accepts().iter().map(described).collect::<Vec<_>>(),
        }))
    }

    fn speak(&mut self, id: u32, text: &str, whole: bool, options: Speech) -> Result<serde_json::Value> {
        if text.len() > MOST_CHARACTERS {
            let problem =
                format!("the text has {} bytes; speak at most {MOST_CHARACTERS} at a time", text.len());
            return Err(Failure::input(problem));
        }
        let Spoken { options, tags, ssml } = Spoken::read(options)?;
        let cancelled = Arc::new(AtomicBool::new(false));
        let options = Options { whole, cancel: Some(Cancel::from(cancelled.clone())), ..options };
        let script = match (tags, ssml) {
            (true, true) => {
                return Err(Failure::input("a text has tags or SSML: set `tags` or `ssml`, not both"));
            }
            (true, false) => Some(Script::tagged(text)),
            (false, true) => Some(Script::ssml(text, options.language.as_deref())),
            (false, false) => None,
        };
        let engine = self.engine()?;
        let options = with_voice_file(engine, options)?;
        let stream = match script {
            None => engine.stream(text, &options)?,
            Some(script) => {
                engine.stream_script(&script.map_err(Error::from)?, &options, &engine.own_cast(&options))?
            }
        };
        let answer = json!({ "warnings": stream.warnings(), "pieces": stream.remaining() });
        self.texts.insert(id, Text { stream: Some(stream), cancelled });
        Ok(answer)
    }

    fn next(&mut self, id: u32) -> Result<serde_json::Value> {
        let text = self.texts.get_mut(&id).filter(|text| text.stream.is_some());
        let text = text.ok_or_else(|| Failure::input(format!("no text {id} is being spoken")))?;
        let chunk = text.stream.as_mut().and_then(Iterator::next).transpose();
        if !matches!(chunk, Ok(Some(_))) {
            text.stream = None;
        }
        let Some(chunk) = chunk? else { return Ok(json!({ "done": true })) };
        let answer = spoken(&chunk);
        self.samples = chunk.samples;
        Ok(answer)
    }
}

/// Options with the voice of a file that [`Request::Clone`] made, if they name one. Other names and files are
/// the model's own matter.
fn with_voice_file(engine: &Engine, options: Options) -> Result<Options> {
    match options.voice.clone() {
        Some(path) if path.ends_with(".safetensors") => Ok(engine.with_voice(options, &path)?),
        _ => Ok(options),
    }
}

/// How a text is spoken.
struct Spoken {
    options: Options,
    tags: bool,
    ssml: bool,
}

impl Spoken {
    /// Reads options. Names and values of a family's are checked when the model is asked to speak.
    fn read(given: Speech) -> Result<Spoken> {
        let mut spoken = Spoken { options: Options::default(), tags: false, ssml: false };
        for (name, value) in given {
            if !value.is_null() {
                spoken.set(name, value)?;
            }
        }
        Ok(spoken)
    }

    fn set(&mut self, name: String, value: serde_json::Value) -> Result<()> {
        let wrong = |allowed: &str| Failure::input(format!("{name} is {value}; give {allowed}"));
        let text = || value.as_str().map(str::to_owned).ok_or_else(|| wrong("a text"));
        let switch = || value.as_bool().ok_or_else(|| wrong("true or false"));
        let options = &mut self.options;
        match &*name {
            "voice" => options.voice = Some(text()?),
            "language" => options.language = Some(text()?),
            "seed" => options.seed = value.as_u64().ok_or_else(|| wrong("a whole number"))?,
            "silence" => options.silence = value.as_f64().ok_or_else(|| wrong("seconds, 0 to 10"))? as f32,
            "raw" => options.finish = if switch()? { Finish::NONE } else { Finish::default() },
            "wordTimes" => options.word_times = switch()?,
            "tags" => self.tags = switch()?,
            "ssml" => self.ssml = switch()?,
            _ => {
                let value = match &value {
                    serde_json::Value::Bool(on) => Value::Switch(*on),
                    serde_json::Value::String(text) => Value::Text(text.clone()),
                    serde_json::Value::Number(number) => match number.as_u64() {
                        Some(whole) => Value::Whole(whole),
                        None => Value::Number(number.as_f64().unwrap_or(f64::NAN) as f32),
                    },
                    _ => return Err(wrong("a number, a text or a switch")),
                };
                *options = std::mem::take(options).set(name, value);
            }
        }
        Ok(())
    }
}

/// An option of a model, for pages that offer it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Described {
    name: &'static str,
    help: String,
    kind: &'static str,
    choices: &'static [&'static str],
    range: Option<(f64, f64)>,
    default: &'static str,
}

fn described(spec: &orate::OptionSpec) -> Described {
    let (kind, choices): (_, &[&str]) = match spec.kind {
        OptionKind::Switch => ("switch", &[]),
        OptionKind::Whole => ("whole", &[]),
        OptionKind::Number => ("number", &[]),
        OptionKind::Text => ("text", &[]),
        OptionKind::Choice(words) => ("choice", words),
    };
    let (help, range, default) = (spec.summary(), spec.range, spec.default);
    Described { name: spec.name, help, kind, choices, range, default }
}

fn spoken(chunk: &Chunk) -> serde_json::Value {
    let words = chunk
        .words
        .iter()
        .map(|timed| json!({ "text": timed.word.display, "start": timed.start, "end": timed.end }));
    json!({
        "samples": chunk.samples.len(),
        "start": chunk.start,
        "piece": chunk.index,
        "endsPiece": chunk.ends_piece,
        "text": chunk.text.text(),
        "words": words.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::atomic::Ordering;

    const VOICE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../voices/orate-default/orate-default.gguf");
    const TEXT: &str = "One.\n\nTwo.";

    fn call(session: &mut Session, request: serde_json::Value) -> serde_json::Value {
        serde_json::from_str(&session.call(&request.to_string())).expect("answers are JSON")
    }

    fn opened() -> Session {
        let mut session = Session::default();
        let info = call(&mut session, json!({ "call": "open", "model": VOICE, "options": { "threads": 1 } }));
        assert_eq!((&info["sampleRate"], &info["threads"]), (&24_000.into(), &1.into()), "{info}");
        let names: Vec<_> = info["options"].as_array().expect("a list").iter().map(|o| &o["name"]).collect();
        assert!(names.contains(&&"speed".into()), "{info}");
        session
    }

    /// Samples of all chunks, and the numbers of their pieces.
    fn rest(session: &mut Session, id: u32) -> (Vec<f32>, Vec<u64>) {
        let (mut samples, mut pieces) = (vec![], vec![]);
        loop {
            let answer = call(session, json!({ "call": "next", "id": id }));
            if answer["done"] == true {
                return (samples, pieces);
            }
            assert_eq!(answer["start"], samples.len(), "{answer}");
            assert_eq!(answer["samples"], session.samples().len(), "{answer}");
            samples.extend_from_slice(session.samples());
            pieces.push(answer["piece"].as_u64().expect("a number"));
        }
    }

    #[test]
    fn texts_are_spoken_side_by_side_as_the_library_speaks_them() {
        let mut session = opened();
        for (id, seed) in [(1, 0), (2, 5)] {
            let request = json!({ "call": "speak", "id": id, "text": TEXT, "options": { "seed": seed } });
            assert_eq!(call(&mut session, request), json!({ "warnings": [], "pieces": 2 }));
        }
        let first = call(&mut session, json!({ "call": "next", "id": 2 }));
        assert_eq!((&first["piece"], &first["text"]), (&0.into(), &"One.".into()), "{first}");
        let (samples, pieces) = rest(&mut session, 1);
        assert_eq!(pieces, [0, 1]);
        let second = call(&mut session, json!({ "call": "next", "id": 2 }));
        assert_eq!((&second["piece"], &second["start"]), (&1.into(), &first["samples"]), "{second}");
        let mut expected = vec![];
        let engine = session.engine.as_ref().expect("is open");
        for chunk in engine.stream(TEXT, &Options::default()).expect("speaks") {
            expected.append(&mut chunk.expect("speaks").samples);
        }
        assert!(samples == expected, "{} and {} samples", samples.len(), expected.len());
    }

    #[test]
    fn options_reach_the_model() {
        let mut session = opened();
        let mut length = |options: serde_json::Value| {
            let request = json!({ "call": "speak", "id": 1, "text": "Hello there.", "options": options });
            let answer = call(&mut session, request);
            assert_eq!(answer["warnings"], json!([]), "{answer}");
            rest(&mut session, 1).0.len()
        };
        let usual = length(json!({}));
        assert!(length(json!({ "speed": 1.5 })) < usual);
        assert!(length(json!({ "raw": true })) != usual);
        assert!(length(json!({ "tags": true, "speed": null })) == usual, "null stands for the default");
    }

    fn clone(path: &Path, sample_rate: u32, transcript: Option<&str>) -> serde_json::Value {
        json!({ "call": "clone", "path": path, "sampleRate": sample_rate, "transcript": transcript })
    }

    #[test]
    fn a_recording_becomes_a_voice() {
        let folder = tempfile::tempdir().expect("a folder");
        orate_testing::checkpoints::write_random_qwen3_tts("base", folder.path(), 3).expect("writable");
        let recording = orate_testing::checkpoints::qwen3_tts_goldens().join("cases/ref.wav");
        // 16-bit samples after a header of 44 bytes.
        let bytes = std::fs::read(&recording).expect("committed");
        let sample = |bytes: &[u8; 2]| f32::from(i16::from_le_bytes(*bytes)) / 32768.0;
        let floats: Vec<u8> =
            bytes[44..].as_chunks().0.iter().flat_map(|bytes| sample(bytes).to_le_bytes()).collect();
        let samples = folder.path().join("samples");
        std::fs::write(&samples, floats).expect("writable");
        let mut session = Session::default();
        let open = json!({ "call": "open", "model": folder.path(), "options": { "threads": 1 } });
        let info = call(&mut session, open);
        assert_eq!(info["canClone"], true, "{info}");
        let mut cloned = |transcript: Option<&str>| {
            let answer = call(&mut session, clone(&samples, 24_000, transcript));
            assert_eq!(answer, json!({ "bytes": session.voice().len() }));
            session.voice().to_vec()
        };
        let (plain, known) = (cloned(None), cloned(Some("once upon a time")));
        assert!(plain.len() < known.len(), "{} and {} bytes", plain.len(), known.len());
        let file = folder.path().join("me.safetensors");
        std::fs::write(&file, &plain).expect("writable");
        let options = json!({ "voice": file, "max_frames": 4 });
        let begun =
            call(&mut session, json!({ "call": "speak", "id": 1, "text": "Hello.", "options": options }));
        assert_eq!(begun["pieces"], 1, "{begun}");
        let engine = session.engine.as_ref().expect("is open");
        let cloned = Some(engine.clone_voice(&recording, None).expect("a voice"));
        let options = Options { cloned, ..Options::default() }.set("max_frames", Value::Whole(4));
        let want: Vec<f32> = (engine.stream("Hello.", &options).expect("speaks"))
            .flat_map(|chunk| chunk.expect("speaks").samples)
            .collect();
        assert!(rest(&mut session, 1).0 == want && !want.is_empty());
        // What is no recording, no voice, or is not there.
        let silence = folder.path().join("silence");
        std::fs::write(&silence, [0; 400_000]).expect("writable");
        let weights = folder.path().join("model.safetensors");
        let speak = json!({ "call": "speak", "id": 2, "text": "A.", "options": { "voice": weights } });
        for (request, words) in [
            (clone(&silence, 24_000, None), "the recording"),
            (clone(&samples, 0, None), "sample rate"),
            (clone(&samples, 24_000, Some(" ")), "transcript"),
            (clone("/nowhere".as_ref(), 24_000, None), "/nowhere"),
            (speak, "model.safetensors"),
        ] {
            let answer = call(&mut session, request);
            assert!(answer["error"]["message"].as_str().is_some_and(|m| m.contains(words)), "{answer}");
            assert!(
                answer["error"]["kind"].as_str().is_some_and(|kind| kind.starts_with("invalid")),
                "{answer}"
            );
        }
        // The built-in voice has no use for one.
        let answer = call(&mut opened(), clone(&samples, 24_000, None));
        assert_eq!(answer["error"]["kind"], "invalid-input", "{answer}");
    }

    #[test]
    fn words_get_times() {
        let mut session = opened();
        let options = json!({ "wordTimes": true });
        call(&mut session, json!({ "call": "speak", "id": 1, "text": "Good morning.", "options": options }));
        let answer = call(&mut session, json!({ "call": "next", "id": 1 }));
        let words: Vec<_> = answer["words"].as_array().expect("a list").iter().map(|w| &w["text"]).collect();
        assert_eq!(words, ["Good", "morning."], "{answer}");
    }

    #[test]
    fn what_is_wrong_is_answered_in_words() {
        let open = |model: &str| json!({ "call": "open", "model": model });
        let speak = |text: &str, options: serde_json::Value| json!({ "call": "speak", "id": 1, "text": text, "options": options });
        let closed = [
            (json!({ "call": "sing" }), "invalid-input", "unknown variant `sing`"),
            (json!({ "call": "open" }), "invalid-input", "missing field `model`"),
            (speak("A.", json!({})), "invalid-input", "no model is open"),
            (open("/nowhere"), "invalid-model", "no such file"),
            (open(env!("CARGO_MANIFEST_DIR")), "invalid-model", "not a model folder"),
        ];
        let options =
            |name: &str, value| json!({ "call": "open", "model": VOICE, "options": { name: value } });
        let engine = [
            (options("threads", "x"), "invalid-input", "choose a whole number"),
            (options("thread", "1"), "invalid-input", "`thread`"),
            (options("precision", "f8"), "invalid-input", "`f8`"),
        ];
        let speech = [
            (speak(" ", json!({})), "invalid-input", "nothing to say"),
            (speak("漢字", json!({})), "invalid-input", "漢"),
            (speak("A.", json!({ "voice": "nobody" })), "invalid-input", "`nobody`"),
            (speak("A.", json!({ "speed": 100 })), "invalid-input", "speed is 100"),
            (speak("A.", json!({ "speed": [1] })), "invalid-input", "speed is [1]"),
            (speak("A.", json!({ "sped": 1 })), "invalid-input", "`sped`"),
            (speak("A.", json!({ "top_k": 1 })), "invalid-input", "top_k"),
            (speak("A.", json!({ "seed": -1 })), "invalid-input", "seed is -1; give a whole number"),
            (speak("A.", json!({ "voice": 7 })), "invalid-input", "voice is 7; give a text"),
            (speak("A.", json!({ "ssml": "yes" })), "invalid-input", "give true or false"),
            (speak("A.", json!({ "silence": 11 })), "invalid-input", "silence is 11"),
            (speak("A.", json!({ "tags": true, "ssml": true })), "invalid-input", "not both"),
            (speak("<speak>", json!({ "ssml": true })), "invalid-input", "speak"),
            (json!({ "call": "next", "id": 7 }), "invalid-input", "no text 7"),
        ];
        let (mut session, mut other) = (Session::default(), opened());
        let is_open = |(request, kind, words)| (true, request, kind, words);
        let all =
            closed.into_iter().chain(engine).map(|(request, kind, words)| (false, request, kind, words));
        for (is_open, request, kind, words) in all.chain(speech.into_iter().map(is_open)) {
            let answer = call(if is_open { &mut other } else { &mut session }, request.clone());
            let error = &answer["error"];
            assert_eq!(error["kind"], kind, "{request}: {answer}");
            assert!(error["message"].as_str().is_some_and(|m| m.contains(words)), "{request}: {answer}");
        }
        assert!(session.call("{").contains("the request is wrong"));
        // What went wrong has left the engine as it was.
        call(&mut other, speak("A.", json!({})));
        assert!(!rest(&mut other, 1).0.is_empty());
    }

    #[test]
    fn a_text_ends_when_it_is_stopped() {
        let mut session = opened();
        let begin = json!({ "call": "speak", "id": 3, "text": TEXT });
        call(&mut session, begin.clone());
        assert_eq!(call(&mut session, json!({ "call": "stop", "id": 3 })), json!({}));
        assert!(call(&mut session, json!({ "call": "next", "id": 3 }))["error"].is_object());
        // Stopping what has ended is no error.
        assert_eq!(call(&mut session, json!({ "call": "stop", "id": 3 })), json!({}));
        assert!(session.cancelled(3).is_none());
        call(&mut session, begin);
        session.cancelled(3).expect("is being spoken").store(true, Ordering::Relaxed);
        let answer = call(&mut session, json!({ "call": "next", "id": 3 }));
        assert_eq!(answer["error"]["kind"], "cancelled", "{answer}");
    }
}
