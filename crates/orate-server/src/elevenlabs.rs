//! The routes that clients of ElevenLabs ask for: speech over HTTP, and text in parts over a WebSocket.
//!
//! A voice is part of the path, and `output_format` of the query, such as `pcm_16000`, `mp3_44100_128` or
//! `opus_48000_64`. Times of words are not there yet, so `alignment` is null.

use crate::body::{self, MOST_JSON};
use crate::encoding::{Encoding, Format};
use crate::error::{ApiError, Result, json_response};
use crate::fields::Fields;
use crate::gate::{KeyName, Record};
use crate::request::Speech;
use crate::sockets::{Counted, Gone, Sink, check_origin, limited};
use crate::speech::{self, Answer};
use crate::state::Shared;
use crate::voices;
use crate::work::{Message, lost};
use axum::Extension;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use orate::Sentences;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

/// Format where none is asked for.
const FORMAT: &str = "mp3_44100_128";
/// Longest wait for a message: what clients get, and what they may ask for, in seconds.
const IDLE: u64 = 20;
const MOST_IDLE: u64 = 180;
/// Contexts of a socket.
const MOST_CONTEXTS: usize = 5;
/// Bytes of text that may wait.
const MOST_UNSPOKEN: usize = 64 << 10;

/// `GET /v1/voices`
pub async fn list(State(shared): State<Arc<Shared>>) -> Result<Response> {
    let all = shared.ready()?.iter().flat_map(|model| voices::list(model, &shared.settings));
    let theirs = all.filter(|voice| voice["kind"] != "alias").map(|voice| {
        let category = if voice["kind"] == "kept" { "cloned" } else { "premade" };
        json!({
            "voice_id": voice["id"], "name": voice["name"], "category": category,
            "labels": { "model": voice["model"] },
        })
    });
    Ok(json_response(StatusCode::OK, &json!({ "voices": theirs.collect::<Vec<_>>() })))
}

/// `POST /v1/text-to-speech/{voice}` and `…/stream`
pub async fn speak(
    State(shared): State<Arc<Shared>>,
    Path(voice): Path<String>,
    Query(query): Query<HashMap<String, String>>,
    Extension(record): Extension<Record>,
    Extension(KeyName(key)): Extension<KeyName>,
    request: Request,
) -> Result<Response> {
    let fields = body::fields(request, &shared.settings, MOST_JSON).await?;
    let speech = of_request(&shared, &voice, &query, fields)?;
    speech::answer(&shared, speech, record, key.as_deref()).await
}

/// `POST /v1/text-to-speech/{voice}/with-timestamps`: an object, without times of characters.
pub async fn with_timestamps(
    State(shared): State<Arc<Shared>>,
    Path(voice): Path<String>,
    Query(query): Query<HashMap<String, String>>,
    Extension(record): Extension<Record>,
    Extension(KeyName(key)): Extension<KeyName>,
    request: Request,
) -> Result<Response> {
    let fields = body::fields(request, &shared.settings, MOST_JSON).await?;
    let mut speech = of_request(&shared, &voice, &query, fields)?;
    speech.options.whole_pieces = true;
    let (bytes, _) = Answer::begin(&shared, speech, record, key.as_deref()).await?.whole().await?;
    let answer = json!({
        "audio_base64": BASE64_STANDARD.encode(bytes), "alignment": null, "normalized_alignment": null,
    });
    Ok(json_response(StatusCode::OK, &answer))
}

/// A request in our own terms. Settings of voices have no counterpart here, but for the speed.
fn of_request(
    shared: &Shared,
    voice: &str,
    query: &HashMap<String, String>,
    mut fields: Fields,
) -> Result<Speech> {
    let text = fields.text("text")?.ok_or_else(|| ApiError::missing("text"))?;
    let mut own = json!({ "input": text, "response_format": "pcm" });
    let models = shared.ready()?;
    // Names of their models mean the first one of ours.
    let asked = fields.text("model_id")?.or_else(|| query.get("model_id").cloned());
    let known = asked.filter(|id| models.iter().any(|model| model.id == *id));
    own["model"] = known.unwrap_or_else(|| "orate".to_owned()).into();
    own["voice"] = voice.into();
    if let Some(language) = fields.text("language_code")?.or_else(|| query.get("language_code").cloned()) {
        own["language"] = language.into();
    }
    for name in ["seed", "speed"] {
        if let Some(value) = fields.take(name) {
            own[name] = value;
        }
    }
    if let Some(Value::Object(mut settings)) = fields.take("voice_settings")
        && let Some(speed) = settings.remove("speed")
    {
        own["speed"] = speed;
    }
    let mut speech = Speech::read(models, &shared.settings, Fields::of(own)?)?;
    let format = query.get("output_format").map_or(FORMAT, String::as_str);
    speech.encoding = encoding(format, speech.model.engine.sample_rate())?;
    Ok(speech)
}

/// The encoding of a name such as `mp3_44100_128`.
fn encoding(name: &str, model_rate: u32) -> Result<Encoding> {
    let wrong = || {
        let message = "choose pcm_RATE, mp3_RATE_KBITS or opus_48000_KBITS, such as pcm_24000";
        ApiError::field("unsupported_format", "output_format", message)
    };
    let mut parts = name.split('_');
    let format = match parts.next() {
        Some(format @ ("pcm" | "mp3" | "opus" | "wav" | "flac")) => Format::read(format)?,
        _ => return Err(wrong()),
    };
    let mut number = || parts.next().map(|n| n.parse::<u32>().map_err(|_| wrong())).transpose();
    let (rate, kilobits) = (number()?, number()?);
    let encoding = Encoding::new(format, rate.map(u64::from), model_rate)
        .and_then(|encoding| encoding.with_bit_rate(kilobits.map(|k| k.saturating_mul(1000))))
        .map_err(|e| e.about("output_format"))?;
    Ok(encoding)
}

/// `GET /v1/text-to-speech/{voice}/stream-input`
pub async fn stream_input(
    state: State<Arc<Shared>>,
    path: Path<String>,
    query: Query<HashMap<String, String>>,
    record: Extension<Record>,
    key: Extension<KeyName>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Result<Response> {
    open(state, path, query, record, key, headers, upgrade, false)
}

/// `GET /v1/text-to-speech/{voice}/multi-stream-input`
pub async fn multi_stream_input(
    state: State<Arc<Shared>>,
    path: Path<String>,
    query: Query<HashMap<String, String>>,
    record: Extension<Record>,
    key: Extension<KeyName>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Result<Response> {
    open(state, path, query, record, key, headers, upgrade, true)
}

#[expect(clippy::too_many_arguments, reason = "they are what handlers get")]
fn open(
    State(shared): State<Arc<Shared>>,
    Path(voice): Path<String>,
    Query(query): Query<HashMap<String, String>>,
    Extension(record): Extension<Record>,
    Extension(KeyName(key)): Extension<KeyName>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
    is_multi: bool,
) -> Result<Response> {
    check_origin(&shared, &headers)?;
    // What is wrong with voice and format is said before the socket opens.
    of_request(&shared, &voice, &query, Fields::of(json!({ "text": "a" }))?)?;
    let is_known = key.is_some() || shared.settings.keys.is_empty();
    let idle = query.get("inactivity_timeout").and_then(|s| s.parse().ok()).unwrap_or(IDLE);
    Ok(limited(upgrade).on_upgrade(move |socket| async move {
        let _counted = Counted::new(shared.clone());
        let (sink, messages) = Sink::split(socket);
        let mut session = Session {
            shared,
            record,
            key,
            is_known,
            voice,
            query,
            is_multi,
            idle: Duration::from_secs(idle.clamp(1, MOST_IDLE)),
            sink,
            messages,
            contexts: VecDeque::new(),
            is_closing: false,
        };
        let _ = session.run().await;
        session.sink.close().await;
    }))
}

/// A text of its own, with its settings.
struct Context {
    id: Option<String>,
    settings: Map<String, Value>,
    sentences: Sentences,
    pending: VecDeque<String>,
    is_done: bool,
}

struct Session {
    shared: Arc<Shared>,
    record: Record,
    key: Option<String>,
    /// Whether the client has shown a key.
    is_known: bool,
    voice: String,
    query: HashMap<String, String>,
    is_multi: bool,
    idle: Duration,
    sink: Sink,
    messages: Receiver<Result<Map<String, Value>>>,
    /// In the order in which they are spoken.
    contexts: VecDeque<Context>,
    is_closing: bool,
}

impl Session {
    async fn run(&mut self) -> std::result::Result<(), Gone> {
        loop {
            // The first context with something to say, or that is over.
            let ready = self.contexts.iter().position(|c| !c.pending.is_empty() || c.is_done);
            if let Some(at) = ready {
                match self.contexts[at].pending.pop_front() {
                    Some(sentence) => self.speak(at, &sentence).await?,
                    None => {
                        let id = self.contexts.remove(at).and_then(|context| context.id);
                        self.send(json!({ "audio": null, "isFinal": true }), id.as_deref()).await?;
                    }
                }
            } else if self.is_closing {
                return Ok(());
            } else {
                match timeout(self.idle, self.messages.recv()).await {
                    Ok(Some(message)) => self.take(message).await?,
                    Ok(None) => return Err(Gone),
                    Err(_) => {
                        let e = ApiError::unavailable("input_timeout_exceeded", "no message came in time");
                        self.fail(&e, None).await?;
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn send(&mut self, mut value: Value, id: Option<&str>) -> std::result::Result<(), Gone> {
        if let Some(id) = id {
            value["contextId"] = id.into();
        }
        self.sink.json(&value).await
    }

    async fn fail(&mut self, e: &ApiError, id: Option<&str>) -> std::result::Result<(), Gone> {
        self.send(json!({ "error": e.code, "message": e.message }), id).await
    }

    fn unspoken(&self) -> usize {
        let of = |c: &Context| c.pending.iter().map(String::len).sum::<usize>() + c.sentences.pending();
        self.contexts.iter().map(of).sum()
    }

    /// Takes a message of the client.
    async fn take(&mut self, message: Result<Map<String, Value>>) -> std::result::Result<(), Gone> {
        let mut message = match message {
            Ok(message) => message,
            Err(e) => return self.fail(&e, None).await,
        };
        if !self.is_known {
            let key = ["xi_api_key", "xi-api-key"].iter().find_map(|name| message.get(*name)?.as_str());
            self.key = key.and_then(|key| self.shared.settings.keys.name_of(key)).map(str::to_owned);
            self.is_known = self.key.is_some();
            if !self.is_known {
                let e = ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", "a key is needed");
                self.fail(&e, None).await?;
                return Err(Gone);
            }
        }
        let id = message.remove("context_id").and_then(|id| id.as_str().map(str::to_owned));
        let id = id.filter(|_| self.is_multi);
        let is_set = |name: &str| message.get(name) == Some(&Value::Bool(true));
        if is_set("close_socket") {
            self.contexts.iter_mut().for_each(Context::finish);
            self.is_closing = true;
            return Ok(());
        }
        let closes = is_set("close_context");
        let flushes = is_set("flush");
        let text = message.get("text").and_then(Value::as_str).map(str::to_owned);
        let at = match self.contexts.iter().position(|context| context.id == id) {
            Some(at) => at,
            None if closes => return Ok(()),
            None if self.contexts.len() >= MOST_CONTEXTS => {
                let e = format!("a socket has {MOST_CONTEXTS} contexts at most; close one");
                let e = ApiError::field("max_active_contexts_exceeded", "context_id", e);
                return self.fail(&e, id.as_deref()).await;
            }
            None => {
                let mut settings = Map::new();
                for name in ["voice_settings", "seed", "language_code"] {
                    if let Some(value) = message.remove(name) {
                        settings.insert(name.to_owned(), value);
                    }
                }
                let (sentences, pending, is_done) = Default::default();
                self.contexts.push_back(Context { id: id.clone(), settings, sentences, pending, is_done });
                self.contexts.len() - 1
            }
        };
        let unspoken = self.unspoken();
        let context = &mut self.contexts[at];
        match text {
            Some(text) if unspoken + text.len() > 2 * MOST_UNSPOKEN => {
                let e = ApiError::field("text_too_long", "text", "too much text waits");
                return self.fail(&e, id.as_deref()).await;
            }
            // An empty text ends the only context; in others it keeps them open.
            Some(text) if text.is_empty() && !self.is_multi => {
                context.finish();
                self.is_closing = true;
            }
            Some(text) => {
                let complete = context.sentences.push(&text);
                context.pending.extend(complete);
            }
            None => {}
        }
        let context = &mut self.contexts[at];
        if flushes {
            context.pending.extend(context.sentences.finish());
        }
        if closes {
            context.finish();
        }
        Ok(())
    }

    /// Speaks a sentence of a context, and reads what the client sends meanwhile.
    async fn speak(&mut self, at: usize, sentence: &str) -> std::result::Result<(), Gone> {
        let context = &self.contexts[at];
        let id = context.id.clone();
        let mut fields = context.settings.clone();
        fields.insert("text".to_owned(), sentence.into());
        let fields = Fields::of(Value::Object(fields));
        let speech = fields.and_then(|fields| of_request(&self.shared, &self.voice, &self.query, fields));
        let shared = self.shared.clone();
        let begun = match speech {
            Ok(speech) => Answer::begin(&shared, speech, self.record.clone(), self.key.as_deref()).await,
            Err(e) => Err(e),
        };
        let mut answer = match begun {
            Ok(answer) => answer,
            // Marks without letters between sentences.
            Err(e) if e.code == "text_empty" => return Ok(()),
            Err(e) => return self.fail(&e, id.as_deref()).await,
        };
        loop {
            let is_reading = self.unspoken() < MOST_UNSPOKEN && !self.is_closing;
            tokio::select! {
                message = answer.next() => match message {
                    Some(Message::Audio(bytes)) => {
                        let audio = BASE64_STANDARD.encode(&bytes);
                        let sound = json!({
                            "audio": audio, "isFinal": null, "alignment": null, "normalizedAlignment": null,
                        });
                        self.send(sound, id.as_deref()).await?;
                    }
                    Some(Message::Done(_)) => return Ok(()),
                    Some(Message::Failed(e)) => return self.fail(&e, id.as_deref()).await,
                    None => return self.fail(&lost(), id.as_deref()).await,
                    Some(_) => {}
                },
                message = self.messages.recv(), if is_reading => match message {
                    None => return Err(Gone),
                    Some(message) => self.take(message).await?,
                },
            }
        }
    }
}

impl Context {
    /// Nothing follows.
    fn finish(&mut self) {
        self.pending.extend(self.sentences.finish());
        self.is_done = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_rates_and_bits() {
        let read = |name: &str| encoding(name, 24_000).map(|e| (e.format.name, e.sample_rate));
        assert_eq!(read("pcm_16000").expect("known"), ("pcm", 16_000));
        assert_eq!(read("flac").expect("known"), ("flac", 24_000));
        for wrong in ["", "pcm_1", "pcm_x", "ulaw_8000", "mp3_44100_x"] {
            let e = read(wrong).expect_err(wrong);
            assert_eq!(e.param.as_deref(), Some("output_format"), "{wrong}");
        }
    }
}
