//! Seeded mutation of files and texts, for tests that parsers of untrusted bytes always return.
//!
//! A test gives valid inputs and a function that reads one; [`fuzz`] damages them and calls it. The function
//! must return in bounded time and memory; its result does not matter. In `cargo test` a target runs for a
//! moment, always with the same seed. `scripts/fuzz [MINUTES] [SEED]` runs longer with a new seed.

use crate::Counting;
use crate::random::Random;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Seconds per target; default [`SHORT`].
const SECONDS_VARIABLE: &str = "ORATE_FUZZ_SECONDS";
/// Seed; default [`SEED`].
const SEED_VARIABLE: &str = "ORATE_FUZZ_SEED";
/// Folder for failing inputs; default the system's temporary folder.
const FOLDER_VARIABLE: &str = "ORATE_FUZZ_FOLDER";

/// Time limit of a target in `cargo test`.
const SHORT: Duration = Duration::from_secs(2);
/// Inputs per target in `cargo test`, so that fast and slow machines try the same ones.
const SHORT_ROUNDS: u64 = 4000;
const SEED: u64 = 0x0a7e;

/// Time limit for one input. Inputs take milliseconds; the rest is for busy machines.
const MAX_TIME: Duration = Duration::from_secs(30);

/// Memory limits for one input.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of memory per byte of input. Measured only in programs whose allocator is [`Counting`].
    pub growth: usize,
    /// Bytes of memory that do not depend on the input.
    pub fixed: usize,
}

/// Calls `read` with damaged copies of `samples`, one after the other.
///
/// # Panics
/// `read` panics, takes too long or takes too much memory. The message has the seed and the path of the
/// input.
pub fn fuzz(target: &str, samples: &[Vec<u8>], limits: Limits, read: impl Fn(&[u8])) {
    let number = |variable: &str| std::env::var(variable).ok()?.parse::<u64>().ok();
    let seconds = number(SECONDS_VARIABLE);
    let seed = number(SEED_VARIABLE).unwrap_or(SEED);
    let folder = std::env::var_os(FOLDER_VARIABLE).map_or_else(std::env::temp_dir, PathBuf::from);
    let (time, rounds) = seconds.map_or((SHORT, SHORT_ROUNDS), |s| (Duration::from_secs(s), u64::MAX));

    samples.iter().for_each(|sample| read(sample));
    let start = Instant::now();
    let mut round = 0;
    while round < rounds && start.elapsed() < time {
        let mut random = Random::named(seed.wrapping_add(round), target);
        let input = mutated(samples, &mut random);
        let at = Place { target, seed, round, folder: &folder, input: &input };
        let watchdog = Watchdog::start(&at);
        let began = Instant::now();
        let mut done = false;
        let memory = Counting::peak_here(|| done = catch_unwind(AssertUnwindSafe(|| read(&input))).is_ok());
        drop(watchdog);
        let most = limits.growth.saturating_mul(input.len()).saturating_add(limits.fixed);
        if !done {
            panic!("{}", at.failed("it panics"));
        } else if began.elapsed() > MAX_TIME {
            panic!("{}", at.failed(&format!("it takes {:?}", began.elapsed())));
        } else if memory > most {
            panic!("{}", at.failed(&format!("it takes {memory} bytes for an input of {}", input.len())));
        }
        round += 1;
    }
    println!("{target}: {round} inputs from seed {seed}, {:.1} s", start.elapsed().as_secs_f64());
}

/// The input that is being tried.
struct Place<'a> {
    target: &'a str,
    seed: u64,
    round: u64,
    folder: &'a Path,
    input: &'a [u8],
}

impl Place<'_> {
    /// Saves the input and returns the failure message.
    fn failed(&self, what: &str) -> String {
        let Place { target, seed, round, folder, input } = self;
        let path = folder.join(format!("{target}-{seed}-{round}"));
        let saved = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, input));
        let kept = match saved {
            Ok(()) => format!("the input is in {}", path.display()),
            Err(e) => format!("the input could not be kept: {e}"),
        };
        format!("fuzz target {target}, seed {seed}, round {round}: {what}; {kept}")
    }
}

/// Ends the program if an input far exceeds its time limit, since a loop cannot be stopped from outside.
struct Watchdog(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Watchdog {
    fn start(at: &Place<'_>) -> Watchdog {
        let over = Arc::new(AtomicBool::new(false));
        let (seen, copy) = (over.clone(), at.input.to_vec());
        let (target, seed, round, folder) = (at.target.to_owned(), at.seed, at.round, at.folder.to_owned());
        let thread = std::thread::spawn(move || {
            std::thread::park_timeout(2 * MAX_TIME);
            if !seen.load(Ordering::Acquire) {
                let at = Place { target: &target, seed, round, folder: &folder, input: &copy };
                eprintln!("{}", at.failed("it does not end"));
                std::process::abort();
            }
        });
        Watchdog(over, Some(thread))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        if let Some(thread) = self.1.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Returns one of `samples` with damage: bits, numbers, lengths, order, hostile text.
pub fn mutated(samples: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = samples[random.below(samples.len())].clone();
    // Headers control parsing, so most damage goes there.
    let area = if random.below(3) == 0 { usize::MAX } else { 1 << (4 + random.below(9)) };
    for _ in 0..=random.below(5) {
        damage(&mut bytes, area, samples, random);
    }
    bytes
}

/// Numbers that parsers get wrong.
const NUMBERS: [u64; 14] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// Texts that parsers and text front ends get wrong: JSON, controls, bidirectional marks, joiners, digits of
/// other scripts.
pub const FRAGMENTS: [&str; 40] = [
    "[",
    "]",
    "{",
    "}",
    "\"",
    ",",
    ":",
    "null",
    "true",
    "-1",
    "0",
    "1e999",
    "-1e999",
    "1.5",
    "NaN",
    "99999999999999999999",
    "4294967296",
    "\\u0000",
    "\\ud800",
    "\n",
    "\r\n\r\n",
    "\t",
    " ",
    "\0",
    "\u{1b}[31m",
    "\u{202e}",
    "\u{200d}",
    "\u{fe0f}",
    "\u{ad}",
    "\u{301}",
    "\u{feff}",
    "\u{10ffff}",
    "\u{2028}",
    "½",
    "٣",
    "ß",
    "ﷺ",
    "🏳️‍🌈",
    "http://a.",
    "$1,000.00-",
];

fn damage(bytes: &mut Vec<u8>, area: usize, samples: &[Vec<u8>], random: &mut Random) {
    let len = bytes.len();
    let below = |random: &mut Random, n: usize| if n == 0 { 0 } else { random.below(n) };
    let at = below(random, len.min(area));
    let span = |random: &mut Random| at..len.min(at + 1 + random.below(64));
    match random.below(12) {
        0..=2 if len > 0 => bytes[at] ^= 1 << random.below(8),
        3 if len > 0 => bytes[at] = random.bits() as u8,
        4 | 5 => {
            let number = match random.below(4) {
                0 => len as u64,
                1 => random.bits(),
                _ => NUMBERS[random.below(NUMBERS.len())],
            };
            let width = [1, 2, 4, 8][random.below(4)].min(len - at);
            let little = number.to_le_bytes();
            bytes[at..at + width].copy_from_slice(&little[..width]);
            if random.below(4) == 0 {
                bytes[at..at + width].reverse();
            }
        }
        6 => drop(bytes.drain(span(random))),
        7 => {
            let part = bytes[span(random)].to_vec();
            let to = below(random, len);
            bytes.splice(to..to, part);
        }
        8 => bytes.truncate(at),
        9 => {
            let other = &samples[random.below(samples.len())];
            let from = below(random, other.len());
            let part = other[from..other.len().min(from + 1 + random.below(256))].to_vec();
            bytes.splice(at..at, part);
        }
        10 => {
            // Replaces one of the numbers in JSON.
            let digits = |b: &u8| b.is_ascii_digit();
            if let Some(start) = bytes[at..].iter().position(digits).map(|n| at + n) {
                let end = bytes[start..].iter().position(|b| !digits(b)).map_or(len, |n| start + n);
                let number = NUMBERS[random.below(NUMBERS.len())].to_string();
                bytes.splice(start..end, number.into_bytes());
            }
        }
        _ => {
            let count = if random.below(16) == 0 { 1 << random.below(12) } else { 1 };
            let fragment = FRAGMENTS[random.below(FRAGMENTS.len())].repeat(count);
            bytes.splice(at..at, fragment.into_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Limits = Limits { growth: 0, fixed: usize::MAX };

    #[test]
    fn a_seed_always_gives_the_same_inputs() {
        let samples = [b"a sample".to_vec(), vec![]];
        let inputs = |seed| {
            let mut random = Random::new(seed);
            (0..500).map(|_| mutated(&samples, &mut random)).collect::<Vec<_>>()
        };
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(2));
    }

    #[test]
    fn a_panic_names_the_seed_and_keeps_the_input() {
        let failure = catch_unwind(|| {
            fuzz("a-test-of-fuzz", &[b"sample".to_vec()], FREE, |bytes| assert!(bytes.starts_with(b"sam")));
        });
        let message = *failure.expect_err("it panics").downcast::<String>().expect("a text");
        let path = message.rsplit(' ').next().expect("a path");
        assert!(message.contains("seed 2686") && message.contains("it panics"), "{message}");
        assert!(!std::fs::read(path).expect("the input").starts_with(b"sam"));
        std::fs::remove_file(path).expect("the input");
    }
}
