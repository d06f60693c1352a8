//! Ctrl-C, and the signals to end: work stops, and what is unfinished is removed.

use crate::failure::INTERRUPTED;
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

/// What becomes of the signals to end.
pub struct Interrupt {
    switch: Arc<AtomicBool>,
    /// A file that only has a temporary name. Reading it takes no lock, so that a signal's handler may.
    unfinished: Arc<OnceLock<CString>>,
}

impl Interrupt {
    /// From now on Ctrl-C and the signals to end flip a switch. Where something is under way that looks at no switch, such as weights that are
    /// read or a pipe that nobody empties, the program ends a second later, and at once when they are given again.
    pub fn new() -> Interrupt {
        let interrupt = Interrupt { switch: Arc::default(), unfinished: Arc::default() };
        for &signal in TERM_SIGNALS.iter().chain(hangup()).filter(|s| !is_ignored(**s)) {
            // In this order: the first signal finds the switch off. What cannot be registered ends the program as always.
            interrupt.end_at_once_behind_another(signal);
            let _ = flag::register(signal, interrupt.switch.clone());
        }
        #[cfg(unix)]
        interrupt.end_at_once_behind_another(libc::SIGALRM);
        interrupt
    }

    /// The switch.
    pub fn cancel(&self) -> Cancel {
        self.switch.clone().into()
    }

    /// Names a file that has to go if the program ends at once.
    pub fn remove_at_once(&self, unfinished: Option<&Path>) {
        #[cfg(unix)]
        if let Some(path) = unfinished {
            use std::os::unix::ffi::OsStrExt;
            let path = CString::new(path.as_os_str().as_bytes())
                .expect("names of files that are open have no zeros");
            let _ = self.unfinished.set(path);
        }
        #[cfg(not(unix))]
        let _ = (unfinished, &self.unfinished); // files that are open cannot be removed there
    }

    #[cfg(unix)]
    fn end_at_once_behind_another(&self, signal: i32) {
        let (switch, unfinished) = (self.switch.clone(), self.unfinished.clone());
        let action = move || {
            if !switch.load(Ordering::SeqCst) {
                // SAFETY: asks for a signal that this action handles.
                unsafe { libc::alarm(GRACE) };
                return;
            }
            if let Some(path) = unfinished.get() {
                // SAFETY: the path ends with a zero and lives as long as this closure.
                unsafe { libc::unlink(path.as_ptr()) };
            }
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(INTERRUPTED)) }
        };
        // SAFETY: atomic loads, `alarm`, `unlink` and `_exit` are all that the action does, and signal handlers may do these. It does not panic.
        let _ = unsafe { signal_hook::low_level::register(signal, action) };
    }

    #[cfg(not(unix))]
    fn end_at_once_behind_another(&self, signal: i32) {
        let _ = flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), self.switch.clone());
    }
}

#[cfg(unix)]
fn hangup() -> &'static [i32] {
    &[libc::SIGHUP]
}

#[cfg(not(unix))]
fn hangup() -> &'static [i32] {
    &[]
}

/// Whether whoever started us wants a signal to do nothing: `nohup` does, and shells for jobs in the background.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    // SAFETY: asks for the present action and changes nothing; zeros are a valid `sigaction` to be written over.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

#[cfg(not(unix))]
fn is_ignored(_: i32) -> bool {
    false
}
