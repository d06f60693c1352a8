//! Forked processes, and how they end.
#![allow(dead_code, reason = "each test program uses a part")]

use orate::DeviceChoice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// A child that takes longer hangs. On a slow machine, an engine on a software device takes ten seconds.
const LONGEST: Duration = Duration::from_secs(300);

/// The CPU and the GPUs to test. `ORATE_TEST_DEVICES` names GPUs; without it, and with the feature `gpu`,
/// `vulkan:0`.
pub fn devices() -> Vec<DeviceChoice> {
    let gpus = match std::env::var("ORATE_TEST_DEVICES") {
        Ok(names) => names,
        Err(_) if cfg!(feature = "gpu") => "vulkan:0".to_owned(),
        Err(_) => String::new(),
    };
    let gpus = gpus.split(',').filter(|name| !name.is_empty());
    ["cpu"].into_iter().chain(gpus).map(|name| name.parse().unwrap_or_else(|e| panic!("{e}"))).collect()
}

/// What became of a child.
#[derive(Debug, PartialEq)]
pub enum End {
    /// Everything was as it should be.
    Well,
    /// It panicked or was killed by a signal, by the status that the system gives.
    Badly(i32),
    /// It had to be killed.
    Hung,
}

/// Starts a thread, or ends this process with the signal `SIGALRM` after ten seconds.
fn start_a_thread() {
    // SAFETY: nobody else uses the timer.
    unsafe { libc::alarm(10) };
    std::thread::spawn(|| {}).join().expect("does nothing");
    // SAFETY: as above.
    unsafe { libc::alarm(0) };
}

/// Runs `child` in a forked process, to its end there.
///
/// The standard library keeps a table of threads behind a lock. A process that was forked while a thread of
/// another test was starting or ending finds it locked forever, and can start no thread. Such a process ends
/// before it runs `child`, and another one is forked.
pub fn in_a_child(child: impl FnOnce()) -> End {
    loop {
        // SAFETY: the child runs what it is given and ends without returning to the test program. That it was
        // forked from a process with threads is what is tested here.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
        if pid == 0 {
            start_a_thread();
            let ok = catch_unwind(AssertUnwindSafe(child)).is_ok();
            // SAFETY: ends the process without running what the parent registered for its own end.
            unsafe { libc::_exit(i32::from(!ok)) };
        }
        match end_of(pid) {
            End::Badly(libc::SIGALRM) => {}
            end => return end,
        }
    }
}

/// Waits until the child `pid` ends.
fn end_of(pid: libc::pid_t) -> End {
    let start = Instant::now();
    let mut status = 0;
    // SAFETY: `pid` is our child, and nobody else waits for it.
    while unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } == 0 {
        if start.elapsed() > LONGEST {
            // SAFETY: as above.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, &mut status, 0);
            }
            return End::Hung;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    if status == 0 { End::Well } else { End::Badly(status) }
}
