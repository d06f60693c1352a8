//! The codec of one text: codes in, samples out, in the same order.
//!
//! On devices that run work side by side, the codec has a thread of its own while the talker generates the
//! next frames. The thread belongs to [`CodecBeside`] and ends with it: waiting orders are dropped, and a
//! running one takes at most a piece of two seconds. On other devices the codec runs when codes are given.
//! Samples are the same either way.

use super::shared_codec::When;
use super::{CodecDecoder, CodecStream};
use crate::ModelError;
use orate_graph::Counters;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Decoded {
    /// `[1920 F]`
    pub samples: Vec<f32>,
    /// Work asked of the device, including that of beginning the utterance if these are its first samples.
    pub counters: Counters,
    pub time: Duration,
}

/// Work for the codec, done in order.
pub(super) enum Order {
    /// Begins an utterance that continues after these codes. Their samples are left out.
    Begin(Arc<[i32]>),
    /// Codes `[F, Q]`, answered by their samples. `last` marks the end of an utterance.
    Decode { codes: Vec<i32>, last: bool },
}

pub(super) struct Codec {
    decoder: Arc<CodecDecoder>,
    stream: Option<CodecStream>,
    /// Why no utterance could be begun. Returned when samples are asked for.
    failed: Option<ModelError>,
    /// Whether sound of the utterance was made.
    sounds: bool,
    /// Counters that were returned with samples so far, and time that was not.
    counted: Counters,
    spent: Duration,
    /// Set when no more samples are wanted.
    stop: Arc<AtomicBool>,
}

impl Codec {
    /// The answer to an order, if it has one.
    fn follow(&mut self, order: Order) -> Option<Result<Decoded, ModelError>> {
        let start = Instant::now();
        match order {
            Order::Begin(before) => {
                // Returns the memory of the previous utterance first.
                self.stream = None;
                (self.counted, self.sounds) = (Counters::default(), false);
                let go_on = || !self.stop.load(Ordering::Relaxed);
                match self.decoder.stream_after(&before, &go_on) {
                    Ok(stream) => (self.stream, self.failed) = (stream, None),
                    Err(e) => self.failed = Some(e),
                }
                self.spent = start.elapsed();
                None
            }
            Order::Decode { codes, last } => Some(self.decode(&codes, last).map(|samples| {
                let all = self.stream.as_ref().map(CodecStream::counters).unwrap_or_default();
                let counters = all - std::mem::replace(&mut self.counted, all);
                let time = std::mem::take(&mut self.spent) + start.elapsed();
                Decoded { samples, counters, time }
            })),
        }
    }

    fn decode(&mut self, codes: &[i32], last: bool) -> Result<Vec<f32>, ModelError> {
        if let Some(e) = self.failed.take() {
            return Err(e);
        }
        let Some(stream) = &mut self.stream else { return Err(ModelError::Cancelled) };
        let mut samples = vec![];
        let mut pieces = codes.chunks(CodecDecoder::PIECE * self.decoder.quantizers()).peekable();
        while let Some(piece) = pieces.next() {
            if self.stop.load(Ordering::Relaxed) {
                return Err(ModelError::Cancelled);
            }
            stream.when = match self.sounds {
                false => When::First,
                true if last => When::Now,
                true => When::Later,
            };
            self.sounds = true;
            if last && pieces.peek().is_none() {
                stream.push_last(piece, &mut samples)?;
            } else {
                stream.push(piece, &mut samples)?;
            }
        }
        Ok(samples)
    }
}

pub(super) struct Worker {
    orders: Option<Sender<Order>>,
    answers: Receiver<Result<Decoded, ModelError>>,
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl Worker {
    fn start(
        stop: Arc<AtomicBool>,
        mut follow: impl FnMut(Order) -> Option<Result<Decoded, ModelError>> + Send + 'static,
    ) -> Result<Worker, ModelError> {
        let (orders, inbox) = channel();
        let (outbox, answers) = channel();
        let stopped = stop.clone();
        let work = move || {
            for order in inbox {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                if let Some(answer) = follow(order)
                    && outbox.send(answer).is_err()
                {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().name("orate-codec".to_owned()).spawn(work);
        let thread = thread.map_err(|e| thread_failed(format!("it could not be started: {e}")))?;
        Ok(Worker { orders: Some(orders), answers, thread: Some(thread), stop })
    }

    fn ended(&mut self) -> ModelError {
        let panic = self.thread.take().and_then(|thread| thread.join().err());
        let words = panic.as_deref().and_then(message).unwrap_or("it gives no reason");
        thread_failed(format!("it ended: {words}"))
    }
}

fn thread_failed(problem: String) -> ModelError {
    let problem = format!("the codec's thread: {problem}; set `codec_beside` to false to do without it");
    ModelError::Thread { problem }
}

fn message(panic: &(dyn Any + Send)) -> Option<&str> {
    panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied())
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // A panic was reported to callers that waited for samples.
            let _ = thread.join();
        }
    }
}

/// The codec of one text, on a thread of its own or not.
pub(super) enum CodecBeside {
    /// The caller's thread, with the answers that were not fetched yet.
    Caller(Box<Codec>, VecDeque<Result<Decoded, ModelError>>),
    Thread(Worker),
}

impl CodecBeside {
    /// A codec on a thread of its own, or on that of the caller.
    pub fn new(decoder: Arc<CodecDecoder>, beside: bool) -> Result<CodecBeside, ModelError> {
        let (sounds, counted, spent, stop) = Default::default();
        let mut codec = Codec { decoder, stream: None, failed: None, sounds, counted, spent, stop };
        Ok(match beside {
            true => CodecBeside::Thread(Worker::start(codec.stop.clone(), move |order| codec.follow(order))?),
            false => CodecBeside::Caller(Box::new(codec), VecDeque::new()),
        })
    }

    /// Gives an order. Answers come in the same order. If an utterance cannot be begun, the error is the
    /// answer to its first codes.
    pub fn order(&mut self, order: Order) {
        match self {
            CodecBeside::Caller(codec, done) => done.extend(codec.follow(order)),
            // A thread that has ended is reported when its answer is missing.
            CodecBeside::Thread(worker) => drop(worker.orders.as_ref().map(|to| to.send(order))),
        }
    }

    /// The samples of the earliest codes that have no answer yet. If they are not ready, waits for them or
    /// returns `None`.
    pub fn next(&mut self, wait: bool) -> Result<Option<Decoded>, ModelError> {
        match self {
            CodecBeside::Caller(_, done) => done.pop_front().transpose(),
            CodecBeside::Thread(worker) => {
                let answer = match wait {
                    true => worker.answers.recv().map_err(TryRecvError::from),
                    false => worker.answers.try_recv(),
                };
                match answer {
                    Ok(answer) => answer.map(Some),
                    Err(TryRecvError::Empty) => Ok(None),
                    Err(TryRecvError::Disconnected) => Err(worker.ended()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// A worker that answers codes by as many samples, and panics at some.
    fn worker() -> Worker {
        Worker::start(Arc::default(), |order| match order {
            Order::Begin(_) => None,
            Order::Decode { codes, .. } if codes == [13] => panic!("code {}", codes[0]),
            Order::Decode { codes, .. } => {
                std::thread::sleep(Duration::from_millis(20));
                let samples = codes.iter().map(|c| *c as f32).collect();
                Some(Ok(Decoded { samples, counters: Counters::default(), time: Duration::ZERO }))
            }
        })
        .expect("starts")
    }

    fn decode(codes: Vec<i32>) -> Order {
        Order::Decode { codes, last: false }
    }

    #[test]
    fn answers_come_in_order() {
        let mut codec = CodecBeside::Thread(worker());
        codec.order(Order::Begin(Arc::default()));
        assert!(codec.next(false).expect("is at work").is_none());
        for i in 0..3 {
            codec.order(decode(vec![i]));
        }
        for i in 0..3 {
            let answer = codec.next(true).expect("answers").expect("was waited for");
            assert_eq!(answer.samples, [i as f32]);
        }
        assert!(codec.next(false).expect("has nothing to do").is_none());
    }

    #[test]
    fn a_panic_is_an_error() {
        for wait in [true, false] {
            let mut codec = CodecBeside::Thread(worker());
            codec.order(decode(vec![13]));
            let e = loop {
                match codec.next(wait) {
                    Ok(None) => std::thread::yield_now(),
                    Ok(Some(_)) => panic!("no answer was made"),
                    Err(e) => break e,
                }
            };
            assert!(e.to_string().contains("it ended: code 13"), "{e}");
            assert!(codec.next(true).is_err(), "still");
        }
    }

    #[test]
    fn what_waits_is_left_undone() {
        let mut codec = CodecBeside::Thread(worker());
        (0..500).for_each(|i| codec.order(decode(vec![i])));
        let start = Instant::now();
        drop(codec);
        assert!(start.elapsed() < Duration::from_secs(2), "ten seconds of work");
    }
}
