//! Ctrl-C, and the signals to end: work stops, and what is unfinished is removed.

use crate::failure::INTERRUPTED;
use orate::Cancel;
use signal_hook::consts::TERM_SIGNALS;
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A switch that Ctrl-C and the signals to end flip. Given again, they end the program at once.
pub fn cancel_on_interrupt() -> Cancel {
    let switch = Arc::new(AtomicBool::new(false));
    for &signal in TERM_SIGNALS.iter().chain(hangup()).filter(|s| !is_ignored(**s)) {
        // In this order: the first signal finds the switch off. What cannot be registered ends the program as always.
        let _ = flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), switch.clone());
        let _ = flag::register(signal, switch.clone());
    }
    switch.into()
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
