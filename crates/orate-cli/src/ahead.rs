//! Writes to a pipe on a thread of its own, so that a player that reads no faster than it plays does not hold
//! up the speech that comes next.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes that may wait for the reader: 16-bit sound of 24 kHz for eleven minutes.
const MOST_WAITING: usize = 32 << 20;

/// How often somebody who waits looks whether to go on.
pub const LOOK: Duration = Duration::from_millis(50);

/// What the thread has still to write.
#[derive(Default)]
struct Waiting {
    parts: VecDeque<Vec<u8>>,
    bytes: usize,
    is_complete: bool,
    /// Whether the thread has ended.
    has_ended: bool,
}

/// State and its signal: a part came, was written, or is the last.
type Shared = Arc<(Mutex<Waiting>, Condvar)>;

/// A writer that runs ahead of its reader. After [`Ahead::finish`] all is written; without it, nothing more.
pub struct Ahead {
    shared: Shared,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Ahead {
    /// Starts the thread, which drops `writer` at its end.
    pub fn new(writer: impl Write + Send + 'static) -> io::Result<Ahead> {
        let shared = Shared::default();
        let of_thread = shared.clone();
        let run = move || {
            let result = write_all(writer, &of_thread);
            lock(&of_thread).has_ended = true;
            of_thread.1.notify_all();
            result
        };
        let thread = std::thread::Builder::new().name("sound".into()).spawn(run)?;
        Ok(Ahead { shared, thread: Some(thread) })
    }

    /// Hands bytes to the thread, and waits while too many are waiting.
    ///
    /// # Errors
    /// Writing has failed.
    pub fn send(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        let waits = |w: &mut Waiting| !w.has_ended && w.bytes > MOST_WAITING;
        let waiting = self.shared.1.wait_while(lock(&self.shared), waits);
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        if waiting.has_ended {
            drop(waiting);
            return self.join();
        }
        waiting.bytes += bytes.len();
        waiting.parts.push_back(bytes);
        self.shared.1.notify_all();
        Ok(())
    }

    /// Waits until all is written, or `stops` says to leave the rest.
    pub fn finish(mut self, stops: impl Fn() -> bool) -> io::Result<()> {
        let mut waiting = lock(&self.shared);
        waiting.is_complete = true;
        self.shared.1.notify_all();
        while !waiting.has_ended {
            if stops() {
                return Ok(());
            }
            let woken = self.shared.1.wait_timeout(waiting, LOOK);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(waiting);
        self.join()
    }

    fn join(&mut self) -> io::Result<()> {
        let thread = self.thread.take();
        thread.map_or(Ok(()), |thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

/// The thread ends by itself: it may be waiting for a reader that reads no more.
impl Drop for Ahead {
    fn drop(&mut self) {
        let mut waiting = lock(&self.shared);
        waiting.parts.clear();
        waiting.is_complete = true;
        self.shared.1.notify_all();
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, Waiting> {
    shared.0.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write_all(mut writer: impl Write, shared: &Shared) -> io::Result<()> {
    loop {
        let waiting = shared.1.wait_while(lock(shared), |w| w.parts.is_empty() && !w.is_complete);
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        let Some(part) = waiting.parts.pop_front() else { return Ok(()) };
        waiting.bytes -= part.len();
        shared.1.notify_all();
        drop(waiting);
        writer.write_all(&part)?;
        writer.flush()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Passes on what it is given, after a permit for each part.
    struct Slow {
        permits: Receiver<()>,
        written: Sender<Vec<u8>>,
    }

    impl Write for Slow {
        fn write(&mut self, part: &[u8]) -> io::Result<usize> {
            self.permits.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            self.written.send(part.to_vec()).expect("somebody listens");
            Ok(part.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow() -> (Ahead, Sender<()>, Receiver<Vec<u8>>) {
        let ((permit, permits), (written, all)) = (channel(), channel());
        (Ahead::new(Slow { permits, written }).expect("starts"), permit, all)
    }

    #[test]
    fn parts_wait_for_the_reader_in_order() {
        let (mut ahead, permit, written) = slow();
        for i in 0..100 {
            ahead.send(vec![i; 3]).expect("does not wait");
        }
        (0..100).for_each(|_| permit.send(()).expect("reads"));
        ahead.finish(|| false).expect("writes");
        assert!(written.iter().eq((0..100).map(|i| vec![i; 3])));
    }

    #[test]
    fn no_more_than_the_limit_waits() {
        let (mut ahead, permit, written) = slow();
        let part = MOST_WAITING / 2 + 1;
        // The thread has the first, two wait.
        (0..3).for_each(|_| ahead.send(vec![0; part]).expect("does not wait"));
        let late = std::thread::spawn(move || {
            ahead.send(vec![1; 1]).expect("is written");
            ahead.finish(|| false)
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!late.is_finished(), "it waits");
        (0..4).for_each(|_| permit.send(()).expect("reads"));
        late.join().expect("no panic").expect("writes");
        assert_eq!(written.iter().map(|part| part.len()).sum::<usize>(), 3 * part + 1);
    }

    #[test]
    fn waiting_for_the_reader_can_be_stopped() {
        let (mut ahead, _permit, written) = slow();
        ahead.send(vec![0]).expect("does not wait");
        ahead.finish(|| true).expect("left");
        assert!(written.try_recv().is_err());
    }

    #[test]
    fn a_reader_that_leaves_is_an_error() {
        let (mut ahead, permit, _written) = slow();
        drop(permit);
        let error = loop {
            if let Err(e) = ahead.send(vec![0]) {
                break e;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        ahead.finish(|| false).expect("told before");
        let (mut ahead, permit, _written) = slow();
        ahead.send(vec![0]).expect("does not wait");
        drop(permit);
        assert_eq!(ahead.finish(|| false).expect_err("told at the end").kind(), io::ErrorKind::BrokenPipe);
    }
}
