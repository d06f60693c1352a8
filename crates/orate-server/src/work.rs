//! Speaks on a thread of a model's queue, and sends the audio through a bounded channel.
//!
//! A full channel blocks the thread, so a slow client slows its own speech and nothing else. Dropping the
//! [`Running`] end cancels the work.

use crate::error::{ApiError, Result, of_library};
use crate::gate::Record;
use crate::queue::Ticket;
use crate::request::Speech;
use crate::state::Shared;
use crate::voices::Voice;
use axum::body::Bytes;
use orate::{Cancel, FinishReason, ModelError, TimedMark, TimedWord};
use orate_audio::StreamEncoder;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Messages on their way to a client.
const MESSAGES: usize = 8;
/// The first part of an answer has one second divided by this.
const FIRST_PART: u32 = 8;
/// Bytes of one message.
const MESSAGE_BYTES: usize = 32 << 10;

/// Reason and code of a client that reads nothing.
const STALLED: &str = "stalled";

/// What a thread sends.
#[derive(Debug)]
pub enum Message {
    /// The thread has begun.
    Started,
    /// Encoded audio.
    Audio(Bytes),
    /// Words of a piece whose audio was sent, if they were asked for, and named places of its script. The
    /// sound lasts up to `end`, in seconds.
    Words { words: Vec<TimedWord>, marks: Vec<TimedMark>, end: f64 },
    /// Nothing follows: all is sent.
    Done(Summary),
    /// Nothing follows: speaking failed.
    Failed(ApiError),
}

/// Facts about an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Finish reason of the worst piece; `None` for models without any.
    pub finish: Option<FinishReason>,
    /// Length of the audio.
    pub audio_seconds: f64,
    /// Time in the model.
    pub compute_seconds: f64,
    /// Tokens of the text.
    pub input_tokens: usize,
    /// Frames of the model.
    pub output_tokens: usize,
    /// Header with true lengths, which replaces the streamed one in whole answers.
    pub header: Option<Vec<u8>>,
}

impl Summary {
    /// Name of the finish reason.
    pub fn finish_reason(&self) -> &'static str {
        self.finish.map_or("stop", FinishReason::name)
    }
}

/// A running or waiting request. Dropping it cancels the work, or frees the place in the queue.
pub struct Running {
    messages: Receiver<Message>,
    cancel: Cancel,
    _ticket: Ticket,
    is_over: bool,
    early: Early,
    record: Record,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.cancel.cancel();
        if self.is_over {
            return;
        }
        let is_over = self.early.shared.is_over.load(Ordering::Relaxed);
        self.early.end(match self.record.is_stalled() {
            true => STALLED,
            false if is_over => "draining",
            false => "client",
        });
        self.record.set_code(self.reason());
    }
}

/// Why a request ended early, counted once: a client that stalls is noticed on both ends of the channel.
#[derive(Clone)]
struct Early {
    reason: Arc<OnceLock<&'static str>>,
    shared: Arc<Shared>,
}

impl Early {
    fn end(&self, reason: &'static str) {
        if self.reason.set(reason).is_ok() {
            self.shared.metrics.cancelled(reason);
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

    /// Why the request ended early.
    pub fn reason(&self) -> &'static str {
        self.early.reason.get().copied().unwrap_or("cancelled")
    }

    /// Waits for a thread.
    ///
    /// # Errors
    /// No thread became free in time: 503.
    pub async fn started(&mut self) -> Result<()> {
        let limit = self.early.shared.settings.queue_timeout;
        match tokio::time::timeout(limit, self.next()).await {
            Ok(Some(Message::Started)) => Ok(()),
            Ok(Some(Message::Failed(e))) => Err(e),
            Ok(_) => Err(lost()),
            Err(_) => {
                self.early.end("queue");
                let message = format!("no thread was free within {} s; try again shortly", limit.as_secs());
                Err(ApiError::unavailable("overloaded", message))
            }
        }
    }
}

/// Error for a thread that panicked.
pub fn lost() -> ApiError {
    ApiError::internal("speaking failed; the server's log has the reason")
}

/// Puts a request into the queue of its model.
///
/// # Errors
/// The queue is full, or the encoder cannot be made.
pub fn start(shared: &Arc<Shared>, speech: Speech, record: Record) -> Result<Running> {
    let (sender, messages) = channel(MESSAGES);
    let cancel = Cancel::new();
    let encoder = speech.encoding.encoder()?;
    let early = Early { reason: Arc::default(), shared: shared.clone() };
    let mut outlet = Outlet {
        sender,
        handle: Handle::current(),
        stall: shared.settings.stall_timeout,
        cancel: cancel.clone(),
        early: early.clone(),
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
    Ok(Running { messages, cancel, _ticket: ticket, is_over: false, early, record })
}

/// The thread's end of a channel.
struct Outlet {
    sender: Sender<Message>,
    handle: Handle,
    stall: Duration,
    cancel: Cancel,
    early: Early,
}

impl Outlet {
    /// Sends a message. Returns false if the client has left or stalls.
    fn send(&mut self, message: Message) -> bool {
        let Err(tokio::sync::mpsc::error::TrySendError::Full(message)) = self.sender.try_send(message) else {
            return !self.sender.is_closed();
        };
        // A timeout is made inside of the runtime, which this thread is not part of.
        let send = async { tokio::time::timeout(self.stall, self.sender.send(message)).await };
        let sent = self.handle.block_on(send);
        if sent.is_err() {
            self.early.end(STALLED);
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

/// Speaks, encodes and sends. Returns `None` if the client has left.
fn speak(
    shared: &Shared,
    speech: &Speech,
    mut encoder: StreamEncoder,
    cancel: Cancel,
    outlet: &mut Outlet,
) -> Result<Option<Summary>> {
    let verbose = shared.settings.verbose_errors;
    let engine = &speech.model.engine;
    let needs_voice = speech.voice == Voice::Default && engine.can_clone() && engine.facts().can_speak;
    let failed = |e: orate::Error| {
        let error = match &e {
            orate::Error::Model(e) if needs_voice && matches!(**e, ModelError::Mode { .. }) => {
                let message = format!(
                    "{} has no default voice; send a recording to POST /v1/audio/voices and name its voice \
                     in `voice`",
                    speech.model.id
                );
                ApiError::field("unsupported_value", "voice", message)
            }
            e => of_library(e, verbose),
        };
        if error.status.is_server_error() {
            shared.log.problem(&format!("{}: {e}", speech.model.id));
        }
        error.logged()
    };
    let begun = Instant::now();
    let options = orate::Options { cancel: Some(cancel), ..speech.options.clone() };
    let stream = match &speech.script {
        None => engine.stream(&speech.input, &options),
        Some(script) => engine.stream_script(script, &options, &|name| speech.speaker(name, &options)),
    };
    let mut stream = stream.map_err(failed)?;
    let mut summary = Summary::default();
    let mut compute = begun.elapsed();
    let (mut bytes, mut samples) = (vec![], 0);
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
            outlet.early.end("timeout");
            let message = "speaking took longer than the server allows; send a shorter text";
            return Err(
                ApiError::new(axum::http::StatusCode::GATEWAY_TIMEOUT, "timed_out", message).that_stays()
            );
        }
        summary.finish = summary.finish.max(chunk.finish);
        // The start of an answer goes out before the rest of its chunk is resampled and encoded.
        let start = if samples == 0 { (engine.sample_rate() / FIRST_PART) as usize } else { 0 };
        let (first, rest) = chunk.samples.split_at(start.min(chunk.samples.len()));
        for part in [first, rest] {
            encoder.push(part, &mut bytes).map_err(|e| ApiError::internal(e.to_string()))?;
            if !outlet.send_audio(&mut bytes) {
                return Ok(None);
            }
        }
        samples += chunk.samples.len();
        let (words, marks) = (chunk.words, chunk.marks);
        let has_times = !(words.is_empty() && marks.is_empty());
        if has_times && !outlet.send(Message::Words { words, marks, end: seconds(samples) }) {
            return Ok(None);
        }
    }
    summary.header = encoder.finish(&mut bytes).map_err(|e| ApiError::internal(e.to_string()))?;
    if !outlet.send_audio(&mut bytes) {
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
