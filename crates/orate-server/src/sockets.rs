//! Text in, sound out over a WebSocket: the protocol of vLLM-Omni (`GET /v1/audio/speech/stream`).
//!
//! Text may come in any parts; each sentence is spoken as soon as it is complete, and takes a place in the
//! queue. The connection takes none.

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::gate::{KeyName, Record};
use crate::request::Speech;
use crate::speech::Answer;
use crate::state::Shared;
use crate::work::{Message, lost};
use axum::Extension;
use axum::extract::State;
use axum::extract::ws::{CloseFrame, Message as Frame, WebSocket, WebSocketUpgrade};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use orate::Sentences;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::timeout;

/// Most bytes of a message.
const MOST_MESSAGE: usize = 4 << 20;
/// Most bytes of a message with text.
const MOST_TEXT: usize = 128 << 10;
/// Bytes of text that may wait; then nothing is read until some are spoken.
const MOST_UNSPOKEN: usize = 64 << 10;
/// Longest wait for the first message, and for later ones.
const FIRST_MESSAGE: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_secs(30);
/// Messages that were read and wait.
const MESSAGES: usize = 16;

/// Counts an open socket.
pub struct Counted(Arc<Shared>);

impl Counted {
    /// One more.
    pub fn new(shared: Arc<Shared>) -> Counted {
        shared.metrics.sockets.inc();
        Counted(shared)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.metrics.sockets.dec();
    }
}

/// Refuses pages of other origins: browsers let any page open a WebSocket.
///
/// # Errors
/// The origin is another one: 403.
pub fn check_origin(shared: &Shared, headers: &HeaderMap) -> Result<()> {
    let text = |name| headers.get(name).and_then(|value: &header::HeaderValue| value.to_str().ok());
    let Some(origin) = text(header::ORIGIN) else { return Ok(()) };
    let host = text(header::HOST).unwrap_or_default();
    let is_own = origin.split_once("://").is_some_and(|(_, name)| name.eq_ignore_ascii_case(host));
    if is_own || shared.settings.cors_origins.iter().any(|known| known == origin) {
        return Ok(());
    }
    let message = "pages of this origin may not open sockets here; start the server with --cors-origin";
    Err(ApiError::new(StatusCode::FORBIDDEN, "host_not_allowed", message))
}

/// A socket with limits on its messages.
pub fn limited(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    upgrade.max_message_size(MOST_MESSAGE).max_frame_size(MOST_MESSAGE)
}

/// The sending end, whose errors mean that the client has left.
pub struct Sink(SplitSink<WebSocket, Frame>);

/// The client has left.
pub struct Gone;

impl Sink {
    /// Both ends of a socket; texts of the client arrive as objects.
    pub fn split(socket: WebSocket) -> (Sink, Receiver<Result<Map<String, Value>>>) {
        let (sink, stream) = socket.split();
        let (sender, receiver) = channel(MESSAGES);
        tokio::spawn(async move {
            let mut stream: SplitStream<WebSocket> = stream;
            loop {
                let message = match stream.next().await {
                    Some(Ok(Frame::Text(text))) => parse(&text),
                    Some(Ok(Frame::Ping(_) | Frame::Pong(_))) => continue,
                    Some(Ok(Frame::Binary(_))) => {
                        Err(ApiError::field("invalid_json", "", "send text, not bytes"))
                    }
                    Some(Ok(Frame::Close(_)) | Err(_)) | None => return,
                };
                if sender.send(message).await.is_err() {
                    return;
                }
            }
        });
        (Sink(sink), receiver)
    }

    /// Sends an object.
    pub async fn json(&mut self, value: &Value) -> std::result::Result<(), Gone> {
        self.0.send(Frame::Text(value.to_string().into())).await.map_err(|_| Gone)
    }

    /// Sends bytes.
    pub async fn bytes(&mut self, bytes: axum::body::Bytes) -> std::result::Result<(), Gone> {
        self.0.send(Frame::Binary(bytes)).await.map_err(|_| Gone)
    }

    /// Closes the connection in order.
    pub async fn close(&mut self) {
        let frame = CloseFrame { code: 1000, reason: "".into() };
        let _ = self.0.send(Frame::Close(Some(frame))).await;
    }
}

fn parse(text: &str) -> Result<Map<String, Value>> {
    let value: Value = serde_json::from_str(text).map_err(|e| {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", format!("the message is not JSON: {e}"))
    })?;
    match value {
        Value::Object(object) => Ok(object),
        _ => Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", "the message is not an object")),
    }
}

/// `GET /v1/audio/speech/stream`
pub async fn stream(
    State(shared): State<Arc<Shared>>,
    Extension(record): Extension<Record>,
    Extension(KeyName(key)): Extension<KeyName>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Result<Response> {
    check_origin(&shared, &headers)?;
    shared.ready()?;
    Ok(limited(upgrade).on_upgrade(move |socket| async move {
        let _counted = Counted::new(shared.clone());
        let (sink, messages) = Sink::split(socket);
        let mut session = Session {
            shared,
            record,
            key,
            sink,
            messages,
            config: None,
            granularity: Granularity::Sentence,
            sentences: Sentences::default(),
            text: String::new(),
            pending: VecDeque::new(),
            utterance: 0,
            sentence: 0,
            is_done: false,
            is_cancelled: false,
        };
        let _ = session.run().await;
        session.sink.close().await;
    }))
}

/// What is spoken at once.
#[derive(Clone, Copy, PartialEq)]
enum Granularity {
    /// All text, when it is complete.
    Whole,
    /// Each sentence.
    Sentence,
}

struct Session {
    shared: Arc<Shared>,
    record: Record,
    key: Option<String>,
    sink: Sink,
    messages: Receiver<Result<Map<String, Value>>>,
    config: Option<Map<String, Value>>,
    granularity: Granularity,
    sentences: Sentences,
    /// Text that is spoken as a whole.
    text: String,
    pending: VecDeque<String>,
    utterance: usize,
    sentence: usize,
    /// Whether the text of the utterance is complete.
    is_done: bool,
    is_cancelled: bool,
}

impl Session {
    async fn run(&mut self) -> std::result::Result<(), Gone> {
        loop {
            if let Some(sentence) = self.pending.pop_front() {
                self.speak(sentence).await?;
            } else if self.is_done {
                self.end().await?;
            } else {
                let limit = if self.config.is_none() { FIRST_MESSAGE } else { IDLE };
                match timeout(limit, self.messages.recv()).await {
                    Ok(Some(message)) => self.take(message).await?,
                    Ok(None) => return Err(Gone),
                    Err(_) => {
                        let message = format!("no message came within {} s", limit.as_secs());
                        return self.fail(&ApiError::unavailable("timed_out", message)).await;
                    }
                }
            }
        }
    }

    fn unspoken(&self) -> usize {
        self.pending.iter().map(String::len).sum::<usize>() + self.sentences.pending() + self.text.len()
    }

    async fn fail(&mut self, e: &ApiError) -> std::result::Result<(), Gone> {
        self.sink
            .json(&json!({ "type": "error", "message": e.message, "code": e.code, "param": e.param }))
            .await
    }

    /// Takes a message of the client.
    async fn take(&mut self, message: Result<Map<String, Value>>) -> std::result::Result<(), Gone> {
        let mut message = match message {
            Ok(message) => message,
            Err(e) => return self.fail(&e).await,
        };
        let kind = message.remove("type");
        match kind.as_ref().and_then(Value::as_str).unwrap_or_default() {
            "session.config" => {
                if self.unspoken() > 0 {
                    let e = "the configuration cannot change inside an utterance; send input.done first";
                    return self.fail(&ApiError::field("invalid_value", "type", e)).await;
                }
                if let Err(e) = self.configure(message) {
                    self.fail(&e).await?;
                    return if self.config.is_none() { Err(Gone) } else { Ok(()) };
                }
            }
            _ if self.config.is_none() => {
                let e = "the first message is session.config";
                self.fail(&ApiError::field("invalid_value", "type", e)).await?;
                return Err(Gone);
            }
            "input.text" => match message.get("text").and_then(Value::as_str) {
                Some(text) if text.len() > MOST_TEXT => {
                    let e = format!("`text` has more than {MOST_TEXT} bytes; send it in parts");
                    self.fail(&ApiError::field("text_too_long", "text", e)).await?;
                }
                Some(text) if self.granularity == Granularity::Sentence => {
                    self.pending.extend(self.sentences.push(text));
                }
                Some(text) if self.text.len() + text.len() > MOST_UNSPOKEN => {
                    let e = format!("more than {MOST_UNSPOKEN} bytes wait; send input.done");
                    self.fail(&ApiError::field("text_too_long", "text", e)).await?;
                }
                Some(text) => self.text.push_str(text),
                None => self.fail(&ApiError::missing("text")).await?,
            },
            "input.done" => {
                let rest = std::mem::take(&mut self.text);
                self.pending.extend(Some(rest).filter(|text| !text.trim().is_empty()));
                self.pending.extend(self.sentences.finish());
                self.is_done = true;
            }
            "input.cancel" => {
                self.pending.clear();
                self.text.clear();
                self.sentences.finish();
                self.is_cancelled = true;
                self.is_done = true;
            }
            "session.close" => return Err(Gone),
            other => {
                let other: String = other.chars().take(40).collect();
                let e = format!("`{other}` is not a message of this protocol");
                self.fail(&ApiError::field("invalid_value", "type", e)).await?;
            }
        }
        Ok(())
    }

    /// Checks a configuration with a word to say, and keeps it.
    fn configure(&mut self, mut config: Map<String, Value>) -> Result<()> {
        config.remove("stream_audio");
        let granularity = match config.remove("split_granularity").as_ref().and_then(Value::as_str) {
            None | Some("sentence" | "clause") => Granularity::Sentence,
            Some("none") => Granularity::Whole,
            Some(_) => {
                let e = "choose none, sentence or clause";
                return Err(ApiError::field("invalid_value", "split_granularity", e));
            }
        };
        config.entry("model").or_insert_with(|| "orate".into());
        config.entry("response_format").or_insert_with(|| "pcm".into());
        self.granularity = granularity;
        self.speech(&config, "a")?;
        self.config = Some(config);
        Ok(())
    }

    fn speech(&self, config: &Map<String, Value>, text: &str) -> Result<Speech> {
        let mut fields = config.clone();
        fields.insert("input".to_owned(), text.into());
        Speech::read(self.shared.ready()?, &self.shared.settings, Fields::of(Value::Object(fields))?)
    }

    /// Speaks a sentence, and reads what the client sends meanwhile.
    async fn speak(&mut self, sentence: String) -> std::result::Result<(), Gone> {
        let config = self.config.clone().unwrap_or_default();
        let speech = match self.speech(&config, &sentence) {
            Ok(speech) => speech,
            Err(e) => return self.fail(&e).await,
        };
        let (format, rate) = (speech.encoding.format.name, speech.encoding.sample_rate);
        let of_sentence = json!({ "utterance_index": self.utterance, "sentence_index": self.sentence });
        let with = |kind: &str, more: Value| {
            let mut value = of_sentence.clone();
            value["type"] = kind.into();
            for (name, field) in more.as_object().into_iter().flatten() {
                value[name] = field.clone();
            }
            value
        };
        let start = json!({
            "sentence_text": sentence, "format": format, "sample_rate": rate, "channels": 1,
        });
        self.sink.json(&with("audio.start", start)).await?;
        self.sentence += 1;
        let shared = self.shared.clone();
        let begun = Answer::begin(&shared, speech, self.record.clone(), self.key.as_deref());
        let (mut total, mut finish, mut failure) = (0, "stop", None);
        match begun.await {
            Err(e) => failure = Some(e),
            Ok(mut answer) => loop {
                let is_reading = self.unspoken() < MOST_UNSPOKEN && !self.is_done;
                tokio::select! {
                    message = answer.next() => match message {
                        Some(Message::Audio(bytes)) => {
                            total += bytes.len();
                            self.sink.bytes(bytes).await?;
                        }
                        Some(Message::Done(summary)) => {
                            finish = summary.finish_reason();
                            break;
                        }
                        Some(Message::Failed(e)) => {
                            failure = Some(e);
                            break;
                        }
                        None => {
                            failure = Some(lost());
                            break;
                        }
                        Some(_) => {}
                    },
                    message = self.messages.recv(), if is_reading => match message {
                        None => return Err(Gone),
                        Some(message) => {
                            self.take(message).await?;
                            if self.is_cancelled {
                                break;
                            }
                        }
                    },
                }
            },
        }
        if let Some(e) = &failure {
            self.fail(e).await?;
        }
        let done = json!({
            "total_bytes": total, "error": failure.is_some(), "cancelled": self.is_cancelled,
            "finish_reason": finish,
        });
        self.sink.json(&with("audio.done", done)).await
    }

    /// Ends an utterance; the next one may begin.
    async fn end(&mut self) -> std::result::Result<(), Gone> {
        let done = json!({
            "type": "session.done", "utterance_index": self.utterance, "total_sentences": self.sentence,
            "cancelled": self.is_cancelled,
        });
        self.utterance += 1;
        (self.sentence, self.is_done, self.is_cancelled) = Default::default();
        self.sink.json(&done).await
    }
}
