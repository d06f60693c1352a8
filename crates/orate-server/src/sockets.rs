//! WebSockets that take text in parts and send audio: what their protocols share.
//!
//! Each sentence takes a place in the queue as it completes. The connection takes none.

use crate::error::{ApiError, Result};
use crate::gate::Record;
use crate::request::Speech;
use crate::speech::Answer;
use crate::state::Shared;
use crate::work::{Message, Summary, lost};
use axum::body::Bytes;
use axum::extract::FromRequestParts;
use axum::extract::ws::{CloseFrame, Message as Frame, WebSocket, WebSocketUpgrade};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use futures_util::stream::SplitSink;
use futures_util::{SinkExt as _, StreamExt as _};
use orate::TimedWord;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Bytes of unspoken text after which a session stops reading.
pub const MOST_UNSPOKEN: usize = 64 << 10;
/// Most bytes of a message.
const MOST_MESSAGE: usize = 4 << 20;
/// Bytes that a socket reads at once; allocated for every socket.
const READ_BUFFER: usize = 4 << 10;
/// Longest wait for a client to close its end.
const CLOSING: Duration = Duration::from_secs(1);
/// Messages that were received and wait.
const MESSAGES: usize = 16;

/// The client has left, or the session is over.
pub struct Gone;

/// Result of what a session does.
pub type Session<T = ()> = std::result::Result<T, Gone>;

/// A JSON object.
pub type Object = Map<String, Value>;

/// A socket of a client.
pub struct Line {
    /// The server.
    pub shared: Arc<Shared>,
    /// Name of the client's key.
    pub key: Option<String>,
    /// Bytes sent by [`send_bytes`](Self::send_bytes).
    pub bytes: usize,
    record: Record,
    sink: SplitSink<WebSocket, Frame>,
    messages: Receiver<Result<Object>>,
    /// Reads messages, and owns the other half of the connection.
    reader: JoinHandle<()>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.reader.abort();
        self.shared.metrics.sockets.dec();
    }
}

impl Line {
    fn new(shared: Arc<Shared>, record: Record, socket: WebSocket) -> Line {
        shared.metrics.sockets.inc();
        let (sink, mut stream) = socket.split();
        let (sender, messages) = channel(MESSAGES);
        let reader = tokio::spawn(async move {
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
        let key = record.key().map(str::to_owned);
        Line { shared, key, bytes: 0, record, sink, messages, reader }
    }

    /// Waits for a message; `None` after `limit`. A server that drains ends the session here.
    pub async fn receive(&mut self, limit: Duration) -> Session<Option<Result<Object>>> {
        let shared = self.shared.clone();
        tokio::select! {
            message = timeout(limit, self.messages.recv()) => match message {
                Ok(message) => message.map(Some).ok_or(Gone),
                Err(_) => Ok(None),
            },
            () = shared.drained() => Err(Gone),
        }
    }

    /// Closes the connection, and gives the client some time to do the same.
    async fn close(&mut self) {
        // Clients of ElevenLabs take any other code for an error.
        let frame = CloseFrame { code: 1000, reason: "".into() };
        self.messages.close();
        if self.sink.send(Frame::Close(Some(frame))).await.is_ok() {
            let _ = timeout(CLOSING, &mut self.reader).await;
        }
    }

    /// Sends an object.
    pub async fn send(&mut self, value: &Value) -> Session {
        self.sink.send(Frame::Text(value.to_string().into())).await.map_err(|_| Gone)
    }

    /// Sends bytes.
    pub async fn send_bytes(&mut self, bytes: Bytes) -> Session {
        self.bytes += bytes.len();
        self.sink.send(Frame::Binary(bytes)).await.map_err(|_| Gone)
    }
}

fn parse(text: &str) -> Result<Object> {
    let bad = |message: String| ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", message);
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(bad("the message is not an object".to_owned())),
        Err(e) => Err(bad(format!("the message is not JSON: {e}"))),
    }
}

/// A protocol on a socket.
pub trait Protocol: Send + Sized + 'static {
    /// The socket.
    fn line(&mut self) -> &mut Line;

    /// Runs the session to its end.
    fn run(&mut self) -> impl Future<Output = Session> + Send;

    /// Acts on a message.
    fn take(&mut self, message: Result<Object>) -> impl Future<Output = Session> + Send;

    /// Sends audio of the current sentence.
    fn audio(&mut self, bytes: Bytes) -> impl Future<Output = Session> + Send;

    /// Takes the words of a piece of the current sentence, whose audio was sent. The sound of the sentence
    /// lasts up to `end`, in seconds.
    fn words(&mut self, words: &[TimedWord], end: f64) -> impl Future<Output = Session> + Send {
        let _ = (words, end);
        async { Ok(()) }
    }

    /// Whether to read messages while a sentence is spoken.
    fn is_reading(&self) -> bool;

    /// Whether to drop the current sentence.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// A request to open a socket.
pub struct Upgrade(WebSocketUpgrade);

impl<S: Send + Sync> FromRequestParts<S> for Upgrade {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Upgrade> {
        WebSocketUpgrade::from_request_parts(parts, state).await.map(Upgrade).map_err(|e| {
            let message = format!("this route is a WebSocket: {}", e.body_text());
            ApiError::new(StatusCode::UPGRADE_REQUIRED, "websocket_expected", message)
        })
    }
}

/// Opens a socket and runs a session on it.
///
/// # Errors
/// The page has another origin, or the server is not ready.
pub fn open<P: Protocol>(
    shared: Arc<Shared>,
    record: Record,
    headers: &HeaderMap,
    Upgrade(upgrade): Upgrade,
    protocol: impl FnOnce(Line) -> P + Send + 'static,
) -> Result<Response> {
    check_origin(&shared, headers)?;
    shared.ready()?;
    let upgrade = upgrade.max_message_size(MOST_MESSAGE).max_frame_size(MOST_MESSAGE);
    let upgrade = upgrade.read_buffer_size(READ_BUFFER);
    Ok(upgrade.on_upgrade(move |socket| async move {
        let mut session = protocol(Line::new(shared, record, socket));
        let _ = session.run().await;
        session.line().close().await;
    }))
}

/// Refuses pages of other origins: browsers let any page open a WebSocket.
fn check_origin(shared: &Shared, headers: &HeaderMap) -> Result<()> {
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

/// Speaks a sentence and acts on messages meanwhile. Returns how it ended; `None` if it was cancelled.
pub async fn speak<P: Protocol>(protocol: &mut P, speech: Speech) -> Session<Result<Option<Summary>>> {
    let line = protocol.line();
    let (shared, record) = (line.shared.clone(), line.record.of_text(line.key.clone()));
    let begin = Answer::begin(&shared, speech, record);
    tokio::pin!(begin);
    let mut answer: Option<Answer> = None;
    loop {
        let is_reading = protocol.is_reading();
        let next = async {
            match &mut answer {
                Some(answer) => answer.next().await,
                None => match begin.as_mut().await {
                    Ok(begun) => answer.insert(begun).next().await,
                    Err(e) => Some(Message::Failed(e)),
                },
            }
        };
        tokio::select! {
            message = next => match message {
                Some(Message::Audio(bytes)) => protocol.audio(bytes).await?,
                Some(Message::Words { words, end, .. }) => protocol.words(&words, end).await?,
                Some(Message::Done(summary)) => return Ok(Ok(Some(summary))),
                Some(Message::Failed(e)) => return Ok(Err(e)),
                None => return Ok(Err(lost())),
                Some(_) => {}
            },
            message = protocol.line().messages.recv(), if is_reading => match message {
                None => return Err(Gone),
                Some(message) => {
                    protocol.take(message).await?;
                    if protocol.is_cancelled() {
                        return Ok(Ok(None));
                    }
                }
            },
        }
    }
}
