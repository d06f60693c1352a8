//! Ctrl-C, and the signals to end: work stops, and what is unfinished is removed.

use crate::failure::INTERRUPTED;
use orate::Cancel;

/// A switch that Ctrl-C flips. Pressed again, the program ends at once.
pub fn cancel_on_interrupt() -> Cancel {
    let cancel = Cancel::new();
    let switch = cancel.clone();
    // `try`: where the signals are ignored already (`nohup`, a job in the background) they stay ignored.
    let _ = ctrlc::try_set_handler(move || {
        if switch.is_cancelled() {
            std::process::exit(i32::from(INTERRUPTED));
        }
        switch.cancel();
    });
    cancel
}
