//! The codec of one text: codes go in, samples come out in the same order.
//!
//! Where each memory of a device has a queue of its own, the codec runs on a thread of its own while the talker makes the next
//! frames. The thread belongs to [`CodecBeside`] and ends with it: what waits is left undone, what runs is a piece of two
//! seconds at most. Elsewhere the codec runs when codes are given. Samples are the same either way.

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

/// Codes that became samples.
#[derive(Debug)]
pub(super) struct Decoded {
    /// `[1920 F]`
    pub samples: Vec<f32>,
    /// What was asked of the device, also to begin the utterance if these are its first.
    pub counters: Counters,
    /// What that took.
    pub time: Duration,
}

/// What is to be done, one after the other.
enum Order {
    /// Begins an utterance that goes on where these codes end; their samples are left out.
    Begin(Arc<[i32]>),
    /// Codes `[F, Q]`, answered by their samples. The last ones of an utterance are marked.
    Decode { codes: Vec<i32>, last: bool },
}

/// Does what is ordered.
struct Codec {
    decoder: Arc<CodecDecoder>,
    stream: Option<CodecStream>,
    /// Why no utterance could be begun; told when samples are asked for.
    failed: Option<ModelError>,
    /// What the counters were, and what the time was spent on, before the samples to come.
    counted: Counters,
    spent: Duration,
    /// Nobody wants any more.
    stop: Arc<AtomicBool>,
}

impl Codec {
    /// The answer to an order, if it has one.
    fn follow(&mut self, order: Order) -> Option<Result<Decoded, ModelError>> {
        let start = Instant::now();
        match order {
            Order::Begin(before) => {
                // The memory of the utterance before goes back first.
                self.stream = None;
                self.counted = Counters::default();
                self.failed = self.begin(&before).err();
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

    fn begin(&mut self, before: &[i32]) -> Result<(), ModelError> {
        let go_on = || !self.stop.load(Ordering::Relaxed);
        self.stream = self.decoder.stream_behind(before, &go_on)?;
        Ok(())
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
            if last && pieces.peek().is_none() {
                stream.push_last(piece, &mut samples)?;
            } else {
                stream.push(piece, &mut samples)?;
            }
        }
        Ok(samples)
    }
}

/// The thread of a codec.
struct Worker {
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

    /// Why the thread answers no more.
    fn ended(&mut self) -> ModelError {
        let panic = self.thread.take().and_then(|thread| thread.join().err());
        let words = panic.as_deref().and_then(message).unwrap_or("it gives no reason");
        thread_failed(format!("it ended: {words}"))
    }
}

fn thread_failed(problem: String) -> ModelError {
    let problem = format!("the codec's thread: {problem}; with `codec_beside` set to false there is none");
    ModelError::Thread { problem }
}

/// The words of a panic.
fn message(panic: &(dyn Any + Send)) -> Option<&str> {
    panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied())
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // A panic was for those who waited for samples.
            let _ = thread.join();
        }
    }
}

enum Place {
    Here(Box<Codec>, VecDeque<Result<Decoded, ModelError>>),
    Beside(Worker),
}

/// See the module.
pub(super) struct CodecBeside(Place);

impl CodecBeside {
    /// A codec on a thread of its own, or on that of the caller.
    ///
    /// # Errors
    /// The system starts no thread.
    pub fn new(decoder: Arc<CodecDecoder>, beside: bool) -> Result<CodecBeside, ModelError> {
        let stop = Arc::default();
        let mut codec = Codec {
            decoder,
            stream: None,
            failed: None,
            counted: Counters::default(),
            spent: Duration::ZERO,
            stop,
        };
        Ok(CodecBeside(match beside {
            true => Place::Beside(Worker::start(codec.stop.clone(), move |order| codec.follow(order))?),
            false => Place::Here(Box::new(codec), VecDeque::new()),
        }))
    }

    /// Begins an utterance behind codes whose samples are left out. If that fails, the first [`CodecBeside::next`] says so.
    pub fn begin(&mut self, before: Arc<[i32]>) {
        self.order(Order::Begin(before));
    }

    /// Codes `[F, Q]` to decode, the last ones of an utterance or not. Their samples, or an error, come in the same order.
    pub fn give(&mut self, codes: Vec<i32>, last: bool) {
        self.order(Order::Decode { codes, last });
    }

    fn order(&mut self, order: Order) {
        match &mut self.0 {
            Place::Here(codec, done) => done.extend(codec.follow(order)),
            // A thread that has ended is an error when its answer is missing.
            Place::Beside(worker) => drop(worker.orders.as_ref().map(|to| to.send(order))),
        }
    }

    /// The samples of the codes that were given first of those without an answer. Waits for them.
    ///
    /// # Errors
    /// The device failed, or the thread panicked.
    pub fn next(&mut self) -> Result<Decoded, ModelError> {
        match &mut self.0 {
            Place::Here(_, done) => done.pop_front().expect("asked for as often as codes are given"),
            Place::Beside(worker) => match worker.answers.recv() {
                Ok(answer) => answer,
                Err(_) => Err(worker.ended()),
            },
        }
    }

    /// As [`CodecBeside::next`]; `None` if they are not there yet.
    ///
    /// # Errors
    /// As [`CodecBeside::next`].
    pub fn ready(&mut self) -> Result<Option<Decoded>, ModelError> {
        match &mut self.0 {
            Place::Here(_, done) => done.pop_front().transpose(),
            Place::Beside(worker) => match worker.answers.try_recv() {
                Ok(answer) => answer.map(Some),
                Err(TryRecvError::Empty) => Ok(None),
                Err(TryRecvError::Disconnected) => Err(worker.ended()),
            },
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

    #[test]
    fn answers_come_in_order() {
        let mut codec = CodecBeside(Place::Beside(worker()));
        codec.begin(Arc::default());
        assert!(codec.ready().expect("is at work").is_none());
        for i in 0..3 {
            codec.give(vec![i], false);
        }
        for i in 0..3 {
            assert_eq!(codec.next().expect("answers").samples, [i as f32]);
        }
        assert!(codec.ready().expect("has nothing to do").is_none());
    }

    #[test]
    fn a_panic_is_an_error() {
        for wait in [true, false] {
            let mut codec = CodecBeside(Place::Beside(worker()));
            codec.give(vec![13], false);
            let e = loop {
                match if wait { codec.next().map(Some) } else { codec.ready() } {
                    Ok(None) => std::thread::yield_now(),
                    Ok(Some(_)) => panic!("no answer was made"),
                    Err(e) => break e,
                }
            };
            assert!(e.to_string().contains("it ended: code 13"), "{e}");
            assert!(codec.next().is_err(), "still");
        }
    }

    #[test]
    fn what_waits_is_left_undone() {
        let mut codec = CodecBeside(Place::Beside(worker()));
        (0..500).for_each(|i| codec.give(vec![i], false));
        let start = Instant::now();
        drop(codec);
        assert!(start.elapsed() < Duration::from_secs(2), "ten seconds of work");
    }
}
