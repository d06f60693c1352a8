//! Ctrl-C, and the signals to end: work stops, and what is unfinished is removed.

use crate::failure::{FAILED, INTERRUPTED};
use orate::Cancel;
use signal_hook::consts::TERM_SIGNALS;
use signal_hook::flag;
use std::ffi::CString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Seconds that work has to stop by itself.
#[cfg(unix)]
const GRACE: u32 = 1;

/// Handles signals that end the program.
pub struct Interrupt {
    switch: Arc<AtomicBool>,
    /// A file that only has a temporary name. Reading it takes no lock, so that a signal handler may.
    unfinished: Arc<OnceLock<CString>>,
}

impl Interrupt {
    /// From now on Ctrl-C and the signals to end flip a switch. Work that does not look at the switch, such
    /// as reading weights or writing into a pipe that nobody empties, is ended a second later, or at once by
    /// a second signal.
    pub fn new() -> Interrupt {
        let interrupt = Interrupt { switch: Arc::default(), unfinished: Arc::default() };
        for &signal in TERM_SIGNALS.iter().chain(hangup()).filter(|s| !is_ignored(**s)) {
            // In this order: the first signal finds the switch off. A signal that cannot be registered ends
            // the program.
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

    /// The switch.
    pub fn cancel(&self) -> Cancel {
        self.switch.clone().into()
    }

    /// Names a file to delete if the program ends without dropping its values.
    pub fn remove_at_once(&self, unfinished: Option<&Path>) {
        #[cfg(unix)]
        if let Some(path) = unfinished {
            use std::os::unix::ffi::OsStrExt;
            let path = CString::new(path.as_os_str().as_bytes())
                .expect("names of files that are open have no zeros");
            let _ = self.unfinished.set(path);
        }
        #[cfg(not(unix))]
        let _ = (unfinished, &self.unfinished); // open files cannot be removed there
    }

    /// On this signal, ends the program if the switch is on; otherwise allows [`GRACE`] for ending by itself.
    #[cfg(unix)]
    fn end_if_switched(&self, signal: i32) {
        let (switch, unfinished) = (self.switch.clone(), self.unfinished.clone());
        let action = move || {
            if switch.load(Ordering::SeqCst) {
                end(&unfinished, INTERRUPTED);
            }
            // SAFETY: asks for a signal that this action handles.
            unsafe { libc::alarm(GRACE) };
        };
        // SAFETY: the action loads atomics and calls `alarm`, `unlink` and `_exit`, all allowed in signal
        // handlers. It does not panic.
        let _ = unsafe { signal_hook::low_level::register(signal, action) };
    }

    /// Out of memory, Rust prints a message and aborts, which drops nothing: the unfinished file would stay.
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

/// Whether the parent process ignores a signal, as `nohup` does, and shells for jobs in the background.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    // SAFETY: asks for the present action and changes nothing; zeros are a valid `sigaction` to be written
    // over.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

#[cfg(not(unix))]
fn is_ignored(_: i32) -> bool {
    false
}
