//! Progress bar of a long text.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A progress bar with remaining time on standard error, if that is a terminal. Removed when dropped.
pub struct Progress(ProgressBar);

impl Progress {
    /// Creates a bar for `characters` in `pieces`; hidden for a single piece, which is short.
    pub fn new(characters: usize, pieces: usize, quiet: bool) -> Progress {
        if quiet || pieces < 2 {
            return Progress(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(characters as u64);
        let style = ProgressStyle::with_template("{bar:40} {percent:>3} %  {msg}  {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(250));
        Progress(bar)
    }

    /// Shows that `characters` have been spoken, giving `seconds` of audio.
    pub fn update(&self, characters: usize, seconds: f64) {
        self.0.set_message(format!("{} of audio", clock(seconds)));
        self.0.set_position(characters as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Formats a time: `3:07`, `1:00:00`.
fn clock(seconds: f64) -> String {
    let s = seconds as u64;
    match (s / 3600, s / 60 % 60, s % 60) {
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn times_read_as_clocks() {
        assert_eq!([0.4, 187.9, 3600.0].map(super::clock), ["0:00", "3:07", "1:00:00"]);
    }
}
