//! A bounded FIFO queue with a fixed number of threads, which are the texts that a model speaks at once.
//!
//! A job that is dropped while it waits frees its place.

use crate::error::{ApiError, Result};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

type Job = Box<dyn FnOnce() + Send>;

/// Threads and waiting jobs. Dropping the queue ends the threads after their jobs.
pub struct Queue {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    threads: usize,
    places: usize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(u64, Job)>,
    next: u64,
    running: usize,
    panics: u64,
    is_closed: bool,
}

/// A place in a queue. Dropping it removes the job if it has not begun.
pub struct Ticket {
    shared: Arc<Shared>,
    number: u64,
}

impl Queue {
    /// A queue with `places` places in front of `threads` threads.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn new(name: &str, threads: usize, places: usize) -> std::io::Result<Queue> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), threads, places });
        let queue = Queue { shared: shared.clone() };
        for _ in 0..threads {
            let shared = shared.clone();
            std::thread::Builder::new().name(name.to_owned()).spawn(move || shared.work())?;
        }
        Ok(queue)
    }

    /// Appends a job.
    ///
    /// # Errors
    /// All places are taken: 503.
    pub fn enter(&self, job: impl FnOnce() + Send + 'static) -> Result<Ticket> {
        let shared = &self.shared;
        let mut state = shared.lock();
        // Jobs for idle threads do not count as waiting.
        if state.running + state.waiting.len() >= shared.threads + shared.places {
            let message = match shared.places {
                0 => format!("{} requests run already; try again shortly", shared.threads),
                places => format!("{places} requests wait already; try again shortly"),
            };
            return Err(ApiError::unavailable("overloaded", message));
        }
        let number = state.next;
        state.next += 1;
        state.waiting.push_back((number, Box::new(job)));
        shared.changed.notify_one();
        Ok(Ticket { shared: shared.clone(), number })
    }

    /// Number of threads: jobs that run at once.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Jobs that run, and jobs that wait.
    pub fn counts(&self) -> [usize; 2] {
        let state = self.shared.lock();
        [state.running, state.waiting.len()]
    }

    /// Jobs that ended in a panic.
    pub fn panics(&self) -> u64 {
        self.shared.lock().panics
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if let Some(at) = state.waiting.iter().position(|(number, _)| *number == self.number) {
            let job = state.waiting.remove(at);
            drop(state);
            drop(job);
        }
    }
}

impl Shared {
    /// Poisoning is ignored: no update of the state can panic halfway.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some((_, job)) = state.waiting.pop_front() {
                state.running += 1;
                drop(state);
                let ended = catch_unwind(AssertUnwindSafe(job));
                state = self.lock();
                state.running -= 1;
                state.panics += u64::from(ended.is_err());
            } else if state.is_closed {
                return;
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn jobs_run_in_order_and_places_are_limited() {
        let queue = Queue::new("test", 1, 2).expect("threads");
        let (hold, held) = channel::<()>();
        let (done, order) = channel();
        let job = |name: &'static str| {
            let done = done.clone();
            move || done.send(name).expect("the test listens")
        };
        let begun = channel();
        let first = queue.enter(move || {
            begun.0.send(()).expect("the test listens");
            let _ = held.recv();
        });
        begun.1.recv().expect("it begins");
        let a = queue.enter(job("a")).expect("a place");
        let b = queue.enter(job("b")).expect("a place");
        let full = queue.enter(job("c")).map(|_| ()).expect_err("no place");
        assert_eq!((full.status.as_u16(), full.code), (503, "overloaded"));
        assert_eq!(queue.counts(), [1, 2]);
        drop(a);
        assert_eq!(queue.counts(), [1, 1]);
        let c = queue.enter(job("c")).expect("the place of a");
        drop(hold);
        assert_eq!([order.recv(), order.recv()], [Ok("b"), Ok("c")]);
        drop((first, b, c));
    }

    /// Requests run or are refused.
    #[test]
    fn a_queue_may_have_no_places() {
        let queue = Queue::new("test", 1, 0).expect("threads");
        let (hold, held) = channel::<()>();
        let _running = queue.enter(move || held.recv().unwrap_or_default()).expect("the idle thread");
        let full = queue.enter(|| ()).map(|_| ()).expect_err("no place");
        assert_eq!(full.message, "1 requests run already; try again shortly");
        drop(hold);
    }

    #[test]
    fn a_panic_takes_no_thread() {
        let queue = Queue::new("test", 1, 1).expect("threads");
        let _bad = queue.enter(|| std::panic::panic_any("on purpose")).expect("a place");
        let (done, ended) = channel();
        let wait = || while queue.counts() != [0, 0] {};
        wait();
        let _next = queue.enter(move || done.send(()).expect("the test listens")).expect("a place");
        assert_eq!(ended.recv(), Ok(()));
        assert_eq!(queue.panics(), 1);
    }
}
