//! Speaks on a thread of a model's queue, and sends what it makes through a bounded channel.
//!
//! A full channel blocks the thread, so a slow client slows its own speech and nothing else. Dropping the
//! [`Running`] end cancels the work.

use crate::error::{ApiError, Result, of_library};
use crate::queue::Ticket;
use crate::request::Speech;
use crate::state::Shared;
use axum::body::Bytes;
use orate::{Cancel, FinishReason};
use orate_audio::StreamEncoder;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Messages on their way to a client.
const MESSAGES: usize = 8;
/// Bytes of one message.
const MESSAGE_BYTES: usize = 32 << 10;

/// What a thread sends.
#[derive(Debug)]
pub enum Message {
    /// The thread has begun.
    Started,
    /// A piece of the text begins.
    Piece {
        /// The piece as the model reads it.
        text: String,
    },
    /// Encoded sound.
    Audio(Bytes),
    /// A piece of the text has ended.
    PieceEnd {
        /// Where its first and last samples are, in seconds of the whole.
        seconds: [f64; 2],
    },
    /// All was sent.
    Done(Summary),
    /// Nothing follows.
    Failed(ApiError),
}

/// Facts about an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// The worst of its pieces; `None` for models that cannot go wrong this way.
    pub finish: Option<FinishReason>,
    /// Length of the sound.
    pub audio_seconds: f64,
    /// Time that the model took.
    pub compute_seconds: f64,
    /// Ids of the text, as the model reads it.
    pub input_tokens: usize,
    /// Frames that the model made.
    pub output_tokens: usize,
    /// Bytes that replace as many at the beginning, where all of it is kept: with true lengths.
    pub header: Option<Vec<u8>>,
}

impl Summary {
    /// Why it ended, in OpenAI's words.
    pub fn finish_reason(&self) -> &'static str {
        self.finish.map_or("stop", FinishReason::name)
    }
}

/// Work that is on its way. Dropping it cancels the work, or leaves the queue.
pub struct Running {
    messages: Receiver<Message>,
    cancel: Cancel,
    _ticket: Ticket,
    is_over: bool,
    shared: Arc<Shared>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.cancel.cancel();
        if !self.is_over {
            self.shared.metrics.cancelled("client");
        }
    }
}

impl Running {
    /// The next message.
    pub async fn next(&mut self) -> Option<Message> {
        let message = self.messages.recv().await;
        self.is_over |= matches!(message, None | Some(Message::Done(_) | Message::Failed(_)));
        message
    }

    /// Waits for a thread.
    ///
    /// # Errors
    /// There was none in time: 503.
    pub async fn started(&mut self) -> Result<()> {
        let limit = self.shared.settings.queue_timeout;
        match tokio::time::timeout(limit, self.next()).await {
            Ok(Some(Message::Started)) => Ok(()),
            Ok(Some(Message::Failed(e))) => Err(e),
            Ok(_) => Err(lost()),
            Err(_) => {
                let message = format!("no thread was free within {} s; try again shortly", limit.as_secs());
                Err(ApiError::unavailable("overloaded", message))
            }
        }
    }
}

/// The thread panicked.
pub fn lost() -> ApiError {
    ApiError::internal("speaking failed; the server's log has the reason")
}

/// Puts a request into the queue of its model.
///
/// # Errors
/// The queue is full, or the encoder cannot be made.
pub fn start(shared: &Arc<Shared>, speech: Speech) -> Result<Running> {
    let (sender, messages) = channel(MESSAGES);
    let cancel = Cancel::new();
    let encoder = speech.encoding.encoder()?;
    let mut outlet = Outlet {
        sender,
        handle: Handle::current(),
        stall: shared.settings.stall_timeout,
        cancel: cancel.clone(),
        shared: shared.clone(),
    };
    let waits = Instant::now();
    let (model, work) = (speech.model.clone(), shared.clone());
    let switch = cancel.clone();
    let ticket = model.queue.enter(move || {
        work.metrics.waited(&speech.model.id, waits.elapsed());
        if !outlet.send(Message::Started) {
            return;
        }
        let message = match speak(&work, &speech, encoder, switch, &mut outlet) {
            Ok(Some(summary)) => Message::Done(summary),
            Ok(None) => return,
            Err(e) => Message::Failed(e),
        };
        outlet.send(message);
    })?;
    Ok(Running { messages, cancel, _ticket: ticket, is_over: false, shared: shared.clone() })
}

/// The thread's end of a channel.
struct Outlet {
    sender: Sender<Message>,
    handle: Handle,
    stall: Duration,
    cancel: Cancel,
    shared: Arc<Shared>,
}

impl Outlet {
    /// Returns whether the client is still there and takes it in time.
    fn send(&mut self, message: Message) -> bool {
        let Err(tokio::sync::mpsc::error::TrySendError::Full(message)) = self.sender.try_send(message) else {
            return !self.sender.is_closed();
        };
        let sent = self.handle.block_on(tokio::time::timeout(self.stall, self.sender.send(message)));
        if sent.is_err() {
            self.shared.metrics.cancelled("stalled");
            self.cancel.cancel();
        }
        matches!(sent, Ok(Ok(())))
    }

    fn send_audio(&mut self, bytes: &mut Vec<u8>) -> bool {
        let bytes = Bytes::from(std::mem::take(bytes));
        let pieces = (0..bytes.len()).step_by(MESSAGE_BYTES);
        let mut pieces = pieces.map(|at| bytes.slice(at..bytes.len().min(at + MESSAGE_BYTES)));
        pieces.all(|piece| self.send(Message::Audio(piece)))
    }
}

/// Speaks, encodes and sends; `None` if the client has left.
fn speak(
    shared: &Shared,
    speech: &Speech,
    mut encoder: StreamEncoder,
    cancel: Cancel,
    outlet: &mut Outlet,
) -> Result<Option<Summary>> {
    let verbose = shared.settings.verbose_errors;
    let failed = |e: orate::Error| {
        let error = of_library(&e, verbose);
        if error.status.is_server_error() {
            shared.log.problem(&format!("{}: {e}", speech.model.id));
        }
        error
    };
    let begun = Instant::now();
    let options = orate::Options { cancel: Some(cancel), ..speech.options.clone() };
    let engine = &speech.model.engine;
    let mut stream = engine.stream(&speech.input, &options).map_err(failed)?;
    let mut summary = Summary::default();
    let mut compute = begun.elapsed();
    let (mut bytes, mut samples, mut piece) = (vec![], 0, None);
    let seconds = |samples: usize| samples as f64 / f64::from(engine.sample_rate());
    loop {
        let asked = Instant::now();
        let chunk = stream.next();
        compute += asked.elapsed();
        let Some(chunk) = chunk else { break };
        let chunk = match chunk {
            Err(orate::Error::Cancelled) => return Ok(None),
            chunk => chunk.map_err(failed)?,
        };
        if begun.elapsed() > shared.settings.request_timeout {
            shared.metrics.cancelled("timeout");
            let message = "speaking took longer than the server allows; send a shorter text";
            return Err(
                ApiError::new(axum::http::StatusCode::GATEWAY_TIMEOUT, "timed_out", message).that_stays()
            );
        }
        if piece.is_none_or(|(index, _)| index != chunk.index) {
            if let Some((_, first)) = piece.replace((chunk.index, samples))
                && !outlet.send(Message::PieceEnd { seconds: [first, samples].map(seconds) })
            {
                return Ok(None);
            }
            if !outlet.send(Message::Piece { text: chunk.text.clone() }) {
                return Ok(None);
            }
        }
        samples += chunk.samples.len();
        summary.finish = summary.finish.max(chunk.finish);
        let damaged = |e: orate_audio::AudioError| ApiError::internal(e.to_string());
        encoder.push(&chunk.samples, &mut bytes).map_err(damaged)?;
        if !outlet.send_audio(&mut bytes) {
            return Ok(None);
        }
    }
    summary.header = encoder.finish(&mut bytes).map_err(|e| ApiError::internal(e.to_string()))?;
    if !outlet.send_audio(&mut bytes) {
        return Ok(None);
    }
    if let Some((_, first)) = piece
        && !outlet.send(Message::PieceEnd { seconds: [first, samples].map(seconds) })
    {
        return Ok(None);
    }
    let laps = stream.laps();
    let sizes = |which: usize| laps.pieces.iter().filter_map(|sizes| sizes.get(which)).map(|(_, n)| n).sum();
    summary.input_tokens = sizes(0);
    summary.output_tokens = if laps.frames > 0 { laps.frames } else { sizes(1) };
    summary.audio_seconds = seconds(samples);
    summary.compute_seconds = compute.as_secs_f64();
    shared.metrics.spoken(&speech.model.id, &summary);
    Ok(Some(summary))
}
