//! Progress bar of a long text.

#[cfg(feature = "books")]
use crate::print;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;
#[cfg(feature = "books")]
use std::{
    collections::BTreeMap,
    io::IsTerminal,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

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

/// Time between two lines where there is no bar.
#[cfg(feature = "books")]
const BETWEEN_LINES: Duration = Duration::from_secs(30);

/// Progress of a book on standard error: a bar in a terminal, else a line every 30 s.
#[cfg(feature = "books")]
pub struct BookProgress {
    bar: ProgressBar,
    lines: bool,
    units: usize,
    chars: usize,
    sample_rate: u32,
    started: Instant,
    state: Mutex<BookState>,
}

#[cfg(feature = "books")]
struct BookState {
    /// Finished when this process began.
    before: orate_book::Progress,
    now: orate_book::Progress,
    /// Characters of the units that this process is speaking.
    speaking: BTreeMap<usize, usize>,
    /// Samples that this process has spoken.
    samples: u64,
    line: Instant,
    is_joining: bool,
}

#[cfg(feature = "books")]
impl BookProgress {
    /// Begins after `before`.
    pub fn new(
        (plan, before): (&orate_book::Plan, orate_book::Progress),
        sample_rate: u32,
        quiet: bool,
    ) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let (units, chars) = (plan.units.len(), plan.chars());
        let bar = if quiet || !is_terminal { ProgressBar::hidden() } else { ProgressBar::new(chars as u64) };
        let style = ProgressStyle::with_template("{bar:24} {percent:>3} %  {msg}  {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_position(before.chars as u64);
        bar.reset_eta();
        bar.enable_steady_tick(Duration::from_millis(250));
        let (now, started) = (before, Instant::now());
        let state = BookState {
            before,
            now,
            speaking: BTreeMap::new(),
            samples: 0,
            line: started,
            is_joining: false,
        };
        let lines = !quiet && !is_terminal;
        if !quiet && before.units > 0 {
            print::note(&format!("{} of {units} parts are there already", before.units));
        }
        BookProgress { bar, lines, units, chars, sample_rate, started, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, BookState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows what all processes have finished.
    pub fn finished(&self, now: orate_book::Progress) {
        let mut state = self.state();
        if now.units >= state.now.units {
            state.now = now;
        }
        self.show(state);
    }

    /// Shows that this process has spoken some characters of a unit.
    pub fn speaking(&self, unit: usize, chars: usize) {
        let mut state = self.state();
        state.speaking.insert(unit, chars);
        self.show(state);
    }

    /// Notes that this process has finished a unit.
    pub fn spoke(&self, unit: usize, samples: u64) {
        let mut state = self.state();
        state.speaking.remove(&unit);
        state.samples += samples;
    }

    /// Shows that a fraction of the sound is joined.
    pub fn join(&self, done: f64) {
        let mut state = self.state();
        if !std::mem::replace(&mut state.is_joining, true) {
            self.bar.set_style(
                ProgressStyle::with_template("{bar:24} {percent:>3} %  joining {len} parts  {eta} left")
                    .unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            self.bar.set_length(1000);
            self.bar.set_position(0);
            self.bar.reset_eta();
        }
        self.bar.set_position((1000.0 * done) as u64);
        if self.lines && state.line.elapsed() >= BETWEEN_LINES {
            state.line = Instant::now();
            print::note(&format!("joining the parts: {:.0} %", 100.0 * done));
        }
    }

    fn show(&self, mut state: MutexGuard<'_, BookState>) {
        let chars = (state.now.chars + state.speaking.values().sum::<usize>()).min(self.chars);
        let elapsed = self.started.elapsed().as_secs_f64();
        let rate = f64::from(self.sample_rate);
        let speed = match state.samples {
            0 => String::new(),
            samples => format!(", {:.1} times as fast as it plays", samples as f64 / rate / elapsed),
        };
        let (units, audio) = (state.now.units, clock(state.now.samples as f64 / rate));
        let text = format!("{units} of {} parts, {audio} of audio{speed}", self.units);
        self.bar.set_position(chars as u64);
        if self.lines && state.line.elapsed() >= BETWEEN_LINES {
            state.line = Instant::now();
            let spoken = chars.saturating_sub(state.before.chars);
            let left = match spoken {
                0 => String::new(),
                spoken => format!(", {} left", clock(elapsed / spoken as f64 * (self.chars - chars) as f64)),
            };
            print::note(&format!("{} %: {text}{left}", 100 * chars / self.chars.max(1)));
        }
        self.bar.set_message(text);
    }
}

#[cfg(feature = "books")]
impl Drop for BookProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Formats a time: `3:07`, `1:00:00`.
pub fn clock(seconds: f64) -> String {
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
