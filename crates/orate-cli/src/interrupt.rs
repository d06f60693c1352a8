//! Ctrl-C and termination signals: work stops, and unfinished files are removed.

use crate::failure::{FAILED, INTERRUPTED};
use orate::Cancel;
use signal_hook::consts::TERM_SIGNALS;
use signal_hook::flag;
use std::ffi::CString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Seconds that work gets to stop by itself.
#[cfg(unix)]
const GRACE: u32 = 1;

/// Handles signals that end the program.
pub struct Interrupt {
    switch: Arc<AtomicBool>,
    /// Path of the unfinished file. Reading it takes no lock, so a signal handler may.
    unfinished: Arc<OnceLock<CString>>,
}

impl Interrupt {
    /// Installs the handlers: Ctrl-C and termination signals set a flag. Work that does not check the flag,
    /// such as loading weights or writing into a full pipe, is ended a second later, or at once by a second
    /// signal.
    pub fn new() -> Interrupt {
        let interrupt = Interrupt { switch: Arc::default(), unfinished: Arc::default() };
        for &signal in TERM_SIGNALS.iter().chain(hangup()).filter(|s| !is_ignored(**s)) {
            // In this order, so that the first signal finds the flag unset. Failing to register a handler
            // ends the program.
            interrupt.end_if_switched(signal);
            let _ = flag::register(signal, interrupt.switch.clone());
        }
        #[cfg(unix)]
        {
            interrupt.end_if_switched(libc::SIGALRM);
            interrupt.end_on_abort();
        }
        interrupt
    }

    /// The flag that signals set.
    pub fn cancel(&self) -> Cancel {
        self.switch.clone().into()
    }

    /// Sets the file to delete if the program ends without running destructors.
    pub fn remove_at_once(&self, unfinished: Option<&Path>) {
        #[cfg(unix)]
        if let Some(path) = unfinished {
            use std::os::unix::ffi::OsStrExt;
            let path = CString::new(path.as_os_str().as_bytes())
                .expect("names of files that are open have no zeros");
            let _ = self.unfinished.set(path);
        }
        #[cfg(not(unix))]
        let _ = (unfinished, &self.unfinished); // open files cannot be removed on this system
    }

    /// On this signal, ends the program if the flag is set; otherwise starts the [`GRACE`] period.
    #[cfg(unix)]
    fn end_if_switched(&self, signal: i32) {
        let (switch, unfinished) = (self.switch.clone(), self.unfinished.clone());
        let action = move || {
            if switch.load(Ordering::SeqCst) {
                end(&unfinished, INTERRUPTED);
            }
            // SAFETY: requests a signal that this action handles.
            unsafe { libc::alarm(GRACE) };
        };
        // SAFETY: the action loads atomics and calls `alarm`, `unlink` and `_exit`, all allowed in signal
        // handlers. It does not panic.
        let _ = unsafe { signal_hook::low_level::register(signal, action) };
    }

    /// When memory runs out, Rust prints a message and aborts without destructors: the unfinished file would
    /// stay.
    #[cfg(unix)]
    fn end_on_abort(&self) {
        let unfinished = self.unfinished.clone();
        // SAFETY: the action calls `unlink` and `_exit`, which are allowed in signal handlers. It does not
        // panic.
        let _ = unsafe { signal_hook::low_level::register(libc::SIGABRT, move || end(&unfinished, FAILED)) };
    }

    #[cfg(not(unix))]
    fn end_if_switched(&self, signal: i32) {
        let _ = flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), self.switch.clone());
    }
}

/// Deletes the unfinished file and ends the process. For signal handlers.
#[cfg(unix)]
fn end(unfinished: &OnceLock<CString>, status: u8) -> ! {
    if let Some(path) = unfinished.get() {
        // SAFETY: the path ends with a zero and lives as long as its lock.
        unsafe { libc::unlink(path.as_ptr()) };
    }
    // SAFETY: ends the process.
    unsafe { libc::_exit(i32::from(status)) }
}

#[cfg(unix)]
fn hangup() -> &'static [i32] {
    &[libc::SIGHUP]
}

#[cfg(not(unix))]
fn hangup() -> &'static [i32] {
    &[]
}

/// Whether the parent process ignores a signal, as `nohup` does, and as shells do for background jobs.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    // SAFETY: only reads the current action; an all-zero `sigaction` is a valid value to overwrite.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

#[cfg(not(unix))]
fn is_ignored(_: i32) -> bool {
    false
}
