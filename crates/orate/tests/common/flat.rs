//! Whether memory is flat: of a window of utterances, what the process and the device have in use.
#![allow(dead_code, reason = "each test program uses a part")]

use super::resident;
use orate::{DeviceChoice, Engine};
use orate_testing::Counting;

/// Utterances of a window.
const WINDOW: usize = 50;

/// Maximum growth.
struct Limits {
    /// MB that may be resident more with each window, and be free less on the device; see [`growth_of`].
    growth: f64,
    /// MB that may be more in the later half of the windows than in the earlier one.
    later: f64,
    /// Blocks that may be in use more between utterances of the last window than of the first: one for two
    /// utterances.
    blocks: usize,
}

/// For utterances one by one: 14 kB each, or 9 kB as nine windows show it. The number of blocks kept for
/// reuse varies by about forty.
const ONE_BY_ONE: Limits = Limits { growth: 0.7, later: 2.0, blocks: 100 };

/// The devices of `ORATE_TEST_DEVICES`, such as `cpu,cuda:0,vulkan:0`; without it the CPU.
pub fn devices() -> Vec<DeviceChoice> {
    let names = std::env::var("ORATE_TEST_DEVICES").unwrap_or_else(|_| "cpu".to_owned());
    let named = names.split(',').map(|name| name.trim().parse());
    named.map(|d| d.unwrap_or_else(|e| panic!("ORATE_TEST_DEVICES: {e}"))).collect()
}

/// What a window has in use.
#[derive(Clone, Copy)]
pub struct Use {
    /// The fewest MB that the process has.
    host: f64,
    /// The fewest MB that are free on the device, if it reports them.
    free: Option<f64>,
    /// The fewest blocks that are not given back.
    blocks: usize,
}

impl Use {
    /// What is in use now, without what the allocator keeps for later.
    pub fn now(engine: &Engine) -> Use {
        // SAFETY: gives free pages back to the system; nobody has a pointer into them.
        #[cfg(target_env = "gnu")]
        unsafe {
            libc::malloc_trim(0)
        };
        let free = engine.device_info().free_memory;
        Use { host: resident(), free: free.map(|bytes| bytes as f64 / 1e6), blocks: Counting::blocks() }
    }

    /// Of both.
    fn and(self, other: Use) -> Use {
        Use {
            host: self.host.min(other.host),
            free: self.free.zip(other.free).map(|(a, b)| a.min(b)),
            blocks: self.blocks.min(other.blocks),
        }
    }
}

impl std::fmt::Display for Use {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} MB, {} blocks", self.host, self.blocks)?;
        self.free.map_or(Ok(()), |free| write!(f, " ({free:.1} MB free on the device)"))
    }
}

/// How an utterance ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    Heard,
    Left,
    Cancelled,
}

/// Asserts that what was in use after each utterance stays, and that there were utterances of all kinds.
pub fn judge(device: DeviceChoice, uses: &[Use], ends: &[End]) {
    let windows: Vec<Use> = uses.chunks(WINDOW).filter_map(|w| w.iter().copied().reduce(Use::and)).collect();
    judge_windows(device, &windows, &ONE_BY_ONE, ends);
}

/// The same for memory in use after each round of concurrent callers. A window is `of_window` rounds, a round
/// is `utterances` utterances, and the limits per utterance are those of [`ONE_BY_ONE`]. Memory that the
/// allocator keeps per thread varies by 4 MB, and on CUDA some memories still record a graph after thousands
/// of utterances.
pub fn judge_rounds(device: DeviceChoice, uses: &[Use], of_window: usize, utterances: usize, ends: &[End]) {
    let windows: Vec<Use> =
        uses.chunks(of_window).filter_map(|w| w.iter().copied().reduce(Use::and)).collect();
    let (half, in_all) = (uses.len() / 2 * utterances, (uses.len() - of_window) * utterances);
    let growth = ONE_BY_ONE.growth / WINDOW as f64 * (of_window * utterances) as f64;
    let limits = Limits { growth, later: 0.01 * half as f64, blocks: in_all / 2 };
    judge_windows(device, &windows, &limits, ends);
}

fn judge_windows(device: DeviceChoice, windows: &[Use], limits: &Limits, ends: &[End]) {
    let [heard, left, cancelled] =
        [End::Heard, End::Left, End::Cancelled].map(|end| ends.iter().filter(|e| **e == end).count());
    let each: Vec<_> = windows.iter().map(Use::to_string).collect();
    println!("{device}: {heard} heard, {left} left, {cancelled} cancelled; {}", each.join("; "));
    assert!(heard > 150 && left > 50 && cancelled > 50);
    flat(device, "resident", limits, windows.iter().map(|w| w.host).collect());
    if let Some(free) = windows.iter().map(|w| w.free.map(|free| -free)).collect() {
        flat(device, "taken from the device", limits, free);
    }
    let (begin, end) = (windows[0].blocks, windows[windows.len() - 1].blocks);
    assert!(end < begin + limits.blocks, "{device}: blocks in use: {begin} became {end}");
}

/// Asserts that MB of the windows neither grow steadily nor by much.
fn flat(device: DeviceChoice, what: &str, limits: &Limits, mb: Vec<f64>) {
    let growth = growth_of(&mb);
    assert!(growth < limits.growth, "{device}: {what}: grows steadily, by {growth:.2} MB: {mb:?}");
    let later = later_of(&mb);
    assert!(later < limits.later, "{device}: {what}: {later:.1} MB more in the later half: {mb:?}");
}

/// MB by which the later half of the windows has more than the earlier one: the difference of their medians.
/// What is kept for reuse is some MB more in a window or two, which may be the last.
fn later_of(mb: &[f64]) -> f64 {
    let (earlier, later) = mb.split_at(mb.len() / 2);
    median(later.to_vec()) - median(earlier.to_vec())
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    (of[(of.len() - 1) / 2] + of[of.len() / 2]) / 2.0
}

/// MB by which windows grow: the median over all pairs of them (the estimator of Theil and Sen). What the
/// allocator keeps for a while is some MB more in one window and less in the next, so growth from one to the
/// next says little.
fn growth_of(mb: &[f64]) -> f64 {
    let pairs = (0..mb.len()).flat_map(|i| (0..i).map(move |j| (mb[i] - mb[j]) / (i - j) as f64));
    median(pairs.collect())
}

/// What an utterance may not leave behind is found beside what the allocator keeps: windows of an engine that
/// leaks nothing, and the same with a leak.
#[test]
fn leaks_are_found_beside_noise() {
    let noise = [111.6, 111.9, 111.7, 115.7, 111.8, 112.5, 111.8, 111.7, 115.6];
    let leak = |mb: f64| noise.iter().enumerate().map(|(i, all)| all + mb * i as f64).collect::<Vec<_>>();
    let (growth, later) = (growth_of(&noise), later_of(&noise));
    assert!(growth < ONE_BY_ONE.growth && later < ONE_BY_ONE.later, "{growth}, {later}");
    let leaking = leak(ONE_BY_ONE.growth);
    assert!(growth_of(&leaking) > ONE_BY_ONE.growth, "{}", growth_of(&leaking));
    let leaking = leak(0.5);
    assert!(later_of(&leaking) > ONE_BY_ONE.later, "{}", later_of(&leaking));
    assert!((growth_of(&[1.0, 2.0, 3.0, 4.0]) - 1.0).abs() < 1e-9);
    assert_eq!(later_of(&[1.0, 2.0, 3.0, 4.0]), 2.0);
}
