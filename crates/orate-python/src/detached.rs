//! Work without the GIL that Ctrl-C can stop.

use orate::Cancel;
use pyo3::prelude::*;
use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Time between checks for Ctrl-C.
const CHECK: Duration = Duration::from_millis(50);

/// Runs `work` without the GIL. Ctrl-C flips `cancel` and, once `work` has returned, raises
/// `KeyboardInterrupt`.
///
/// Only Python's main thread can ask for signals, so there another thread does the work.
pub fn run<T: Send>(py: Python<'_>, cancel: &Cancel, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    if !is_main_thread(py)? {
        return Ok(py.detach(work));
    }
    py.detach(|| {
        thread::scope(|threads| {
            let (sender, done) = channel();
            let worker = thread::Builder::new().spawn_scoped(threads, move || sender.send(work()))?;
            let mut interrupted = Ok(());
            loop {
                match done.recv_timeout(CHECK) {
                    Ok(result) => return interrupted.map(|()| result),
                    Err(RecvTimeoutError::Timeout) if interrupted.is_ok() => {
                        interrupted = Python::attach(|py| py.check_signals());
                        if interrupted.is_err() {
                            cancel.cancel();
                        }
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => {
                        resume_unwind(worker.join().expect_err("it ended without a result"))
                    }
                }
            }
        })
    })
}

fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    Ok(threading.call_method0("current_thread")?.is(threading.call_method0("main_thread")?))
}
