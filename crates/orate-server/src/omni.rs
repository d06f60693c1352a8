//! The WebSocket of vLLM-Omni: text in parts, audio sentence by sentence (`GET /v1/audio/speech/stream`).

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::gate::Record;
use crate::request::Speech;
use crate::sockets::{self, Gone, Line, MOST_UNSPOKEN, Object, Protocol, Session, Upgrade};
use crate::state::Shared;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use orate::{Sentence, TextSession, TimedWord};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Most bytes of text in a message.
const MOST_TEXT: usize = 128 << 10;
/// Longest wait for the first message.
const FIRST_MESSAGE: Duration = Duration::from_secs(10);
/// Longest wait for a later message.
const IDLE: Duration = Duration::from_secs(30);

/// `GET /v1/audio/speech/stream`
pub async fn stream(
    State(shared): State<Arc<Shared>>,
    record: Record,
    headers: HeaderMap,
    upgrade: Upgrade,
) -> Result<Response> {
    sockets::open(shared, record, &headers, upgrade, |line| Omni {
        line,
        config: None,
        is_whole: false,
        timed: None,
        text: TextSession::default(),
        utterance: 0,
        sentences: 0,
        chunks: 0,
        is_done: false,
        is_cancelled: false,
        later: None,
    })
}

struct Omni {
    line: Line,
    config: Option<Object>,
    /// Whether the text of an utterance is spoken at once.
    is_whole: bool,
    /// Words of the current sentence, if the configuration asks for their times. Audio is then sent in JSON.
    timed: Option<Vec<TimedWord>>,
    text: TextSession,
    /// Number of the utterance.
    utterance: usize,
    /// Sentences of the utterance so far.
    sentences: usize,
    /// Chunks of the sentence so far.
    chunks: usize,
    /// Whether the text of the utterance is complete.
    is_done: bool,
    is_cancelled: bool,
    /// A message of the next utterance, which came while this one is spoken.
    later: Option<Object>,
}

impl Protocol for Omni {
    fn line(&mut self) -> &mut Line {
        &mut self.line
    }

    fn is_reading(&self) -> bool {
        self.text.pending() < MOST_UNSPOKEN && self.later.is_none()
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled
    }

    async fn audio(&mut self, bytes: Bytes) -> Session {
        if self.timed.is_none() {
            return self.line.send_bytes(bytes).await;
        }
        self.line.bytes += bytes.len();
        self.send_chunk(&bytes, Value::Null).await
    }

    async fn words(&mut self, words: &[TimedWord], _end: f64) -> Session {
        self.timed.iter_mut().for_each(|timed| timed.extend_from_slice(words));
        Ok(())
    }

    async fn run(&mut self) -> Session {
        loop {
            if let Some(sentence) = self.text.next() {
                self.speak(sentence).await?;
            } else if self.is_done {
                self.end().await?;
            } else if let Some(message) = self.later.take() {
                self.take(Ok(message)).await?;
            } else {
                let limit = if self.config.is_none() { FIRST_MESSAGE } else { IDLE };
                let Some(message) = self.line.receive(limit).await? else {
                    let message = format!("no message came within {} s", limit.as_secs());
                    return self.fail(&ApiError::unavailable("timed_out", message)).await;
                };
                self.take(message).await?;
            }
        }
    }

    async fn take(&mut self, message: Result<Object>) -> Session {
        let message = match message {
            Ok(message) => message,
            Err(e) => return self.fail(&e).await,
        };
        let text = |name: &str| message.get(name).and_then(Value::as_str);
        let taken = match text("type").unwrap_or_default() {
            "session.close" => return Err(Gone),
            "input.cancel" => {
                self.text.cancel();
                (self.is_cancelled, self.is_done) = (true, true);
                Ok(())
            }
            "session.config" if self.config.is_none() => {
                let configured = self.configure(message);
                if let Err(e) = configured {
                    self.fail(&e).await?;
                    return Err(Gone);
                }
                Ok(())
            }
            _ if self.config.is_none() => {
                let e = "the first message is session.config";
                self.fail(&ApiError::field("invalid_value", "type", e)).await?;
                return Err(Gone);
            }
            "session.config" | "input.text" | "input.done" if self.is_done => {
                self.later = Some(message);
                Ok(())
            }
            "session.config" if self.text.pending() > 0 => {
                let e = "the configuration cannot change inside an utterance; send input.done first";
                Err(ApiError::field("invalid_value", "type", e))
            }
            "session.config" => self.configure(message),
            "input.text" => match text("text") {
                None => Err(ApiError::missing("text")),
                Some(text) if text.len() > MOST_TEXT => {
                    let e = format!("`text` has more than {MOST_TEXT} bytes; send it in parts");
                    Err(ApiError::field("text_too_long", "text", e))
                }
                Some(text) if self.is_whole && self.text.pending() + text.len() > MOST_UNSPOKEN => {
                    let e = format!("more than {MOST_UNSPOKEN} bytes wait; send input.done");
                    Err(ApiError::field("text_too_long", "text", e))
                }
                Some(text) => {
                    self.text.push(text);
                    Ok(())
                }
            },
            "input.done" => {
                self.text.finish();
                self.is_done = true;
                Ok(())
            }
            other => {
                let other: String = other.chars().take(40).collect();
                let e = format!("`{other}` is not a message of this protocol");
                Err(ApiError::field("invalid_value", "type", e))
            }
        };
        match taken {
            Ok(()) => Ok(()),
            Err(e) => self.fail(&e).await,
        }
    }
}

fn markup() -> ApiError {
    let message = "markup goes on over sentences; send the whole text to POST /v1/audio/speech";
    ApiError::field("unsupported_value", "ssml", message)
}

impl Omni {
    async fn fail(&mut self, e: &ApiError) -> Session {
        let error = json!({ "type": "error", "message": e.message, "code": e.code, "param": e.param });
        self.line.send(&error).await
    }

    /// Checks a configuration with a text of one letter, and keeps it.
    fn configure(&mut self, mut config: Object) -> Result<()> {
        config.remove("type");
        config.remove("stream_audio");
        let is_whole = match config.remove("split_granularity").as_ref().and_then(Value::as_str) {
            None | Some("sentence" | "clause") => false,
            Some("none") => true,
            Some(_) => {
                let e = "`split_granularity` is none, sentence or clause";
                return Err(ApiError::field("invalid_value", "split_granularity", e));
            }
        };
        let timed = match config.remove("word_timestamps") {
            None | Some(Value::Bool(false)) => None,
            Some(Value::Bool(true)) => Some(vec![]),
            Some(_) => {
                let e = "`word_timestamps` is true or false";
                return Err(ApiError::field("invalid_value", "word_timestamps", e));
            }
        };
        if ["ssml", "enable_ssml_parsing"].iter().any(|name| config.get(*name) == Some(&Value::Bool(true))) {
            return Err(markup());
        }
        config.entry("model").or_insert_with(|| "orate".into());
        config.entry("response_format").or_insert_with(|| "pcm".into());
        self.speech(&config, "a")?;
        (self.config, self.is_whole, self.timed) = (Some(config), is_whole, timed);
        self.text = self.new_text();
        Ok(())
    }

    fn new_text(&self) -> TextSession {
        if self.is_whole { TextSession::whole() } else { TextSession::default() }
    }

    fn speech(&self, config: &Object, text: &str) -> Result<Speech> {
        let mut fields = config.clone();
        fields.insert("input".to_owned(), text.into());
        let speech = Speech::read_more(&self.line.shared, Fields::of(Value::Object(fields))?)?;
        if speech.script.is_some() {
            return Err(markup().about("tags"));
        }
        Ok(speech)
    }

    /// Sends an object about the current sentence.
    async fn send(&mut self, kind: &str, mut value: Value) -> Session {
        value["type"] = kind.into();
        value["utterance_index"] = self.utterance.into();
        value["sentence_index"] = self.sentences.into();
        self.line.send(&value).await
    }

    /// Sends audio in JSON. The last chunk of a sentence has no audio, but its words.
    async fn send_chunk(&mut self, audio: &[u8], timestamps: Value) -> Session {
        let audio = BASE64_STANDARD.encode(audio);
        let chunk = json!({ "chunk_id": self.chunks, "audio_b64": audio, "timestamps": timestamps });
        self.chunks += 1;
        self.send("audio.chunk", chunk).await
    }

    async fn speak(&mut self, sentence: Sentence) -> Session {
        let config = self.config.clone().unwrap_or_default();
        let mut speech = match self.speech(&config, &sentence.text) {
            Ok(speech) => speech,
            Err(e) => return self.fail(&e).await,
        };
        speech.options.first_piece = sentence.index;
        speech.options.word_times = self.timed.is_some();
        self.chunks = 0;
        let (format, rate) = (speech.encoding.format.name, speech.encoding.sample_rate);
        let start = json!({
            "sentence_text": sentence.text, "format": format, "sample_rate": rate, "channels": 1,
        });
        self.send("audio.start", start).await?;
        let sent = self.line.bytes;
        let ended = sockets::speak(self, speech).await?;
        if let Err(e) = &ended {
            self.fail(e).await?;
        }
        if let Some(words) = self.timed.as_mut().map(std::mem::take)
            && ended.is_ok()
        {
            let ms = |seconds: f64| (1000.0 * seconds).round() as u64;
            let entry = |word: &TimedWord| {
                json!({
                    "word": word.word.display, "start_ms": ms(word.start), "end_ms": ms(word.end),
                    "source": word.source.name(),
                })
            };
            self.send_chunk(&[], words.iter().map(entry).collect()).await?;
        }
        let reason = match &ended {
            Ok(Some(summary)) => summary.finish_reason(),
            Ok(None) => "cancelled",
            Err(_) => "error",
        };
        let done = json!({
            "total_bytes": self.line.bytes - sent, "error": ended.is_err(), "cancelled": self.is_cancelled,
            "finish_reason": reason,
        });
        self.send("audio.done", done).await?;
        self.sentences += 1;
        Ok(())
    }

    /// Ends an utterance; the next one may begin.
    async fn end(&mut self) -> Session {
        let done = json!({
            "type": "session.done", "utterance_index": self.utterance, "total_sentences": self.sentences,
            "cancelled": self.is_cancelled,
        });
        self.utterance += 1;
        (self.sentences, self.is_done, self.is_cancelled) = Default::default();
        self.text = self.new_text();
        self.line.send(&done).await
    }
}
