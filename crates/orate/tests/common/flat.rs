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
    /// Blocks that may be in use more with each window; see [`blocks_of`].
    blocks: f64,
}

impl Limits {
    /// For windows of `window` utterances, of which there are `all`. Each may leave 7 kB and half a block
    /// behind by the trend of the windows, and 8 kB by their halves.
    fn of(window: usize, all: usize) -> Limits {
        let (window, between_halves) = (window as f64, all as f64 / 2.0);
        Limits { growth: 0.007 * window, later: 0.008 * between_halves, blocks: 0.5 * window }
    }
}

/// The devices of `ORATE_TEST_DEVICES`, such as `cpu,cuda:0,vulkan:0`; without it the CPU. Call it first, as
/// from then on the allocator keeps as little as it can.
pub fn devices() -> Vec<DeviceChoice> {
    keep_little();
    let names = std::env::var("ORATE_TEST_DEVICES").unwrap_or_else(|_| "cpu".to_owned());
    let named = names.split(',').map(|name| name.trim().parse());
    named.map(|d| d.unwrap_or_else(|e| panic!("ORATE_TEST_DEVICES: {e}"))).collect()
}

/// Has all threads share one heap, and gives large blocks back at once: by default, each thread keeps a heap
/// of its own, and which blocks count as large depends on what was freed before.
fn keep_little() {
    // SAFETY: these are settings of the allocator.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    };
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
    judge_windows(device, &windows, &Limits::of(WINDOW, uses.len()), ends);
}

/// The same for memory in use after each round of concurrent callers. A window is `of_window` rounds, a round
/// is `utterances` utterances.
pub fn judge_rounds(device: DeviceChoice, uses: &[Use], of_window: usize, utterances: usize, ends: &[End]) {
    let windows: Vec<Use> =
        uses.chunks(of_window).filter_map(|w| w.iter().copied().reduce(Use::and)).collect();
    let limits = Limits::of(of_window * utterances, uses.len() * utterances);
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
    let blocks = blocks_of(&windows.iter().map(|w| w.blocks as f64).collect::<Vec<_>>());
    assert!(blocks < limits.blocks, "{device}: blocks in use: {blocks} more with each window");
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

/// Blocks that are in use more from a window to the next: the median. A plan that is compiled late, for
/// callers that happen to speak at once, adds thousands to one window; what a window has beside the others
/// is then given back.
fn blocks_of(blocks: &[f64]) -> f64 {
    median(blocks.windows(2).map(|w| w[1] - w[0]).collect())
}

/// What an utterance may not leave behind is found beside what the allocator keeps: windows of an engine that
/// leaks nothing, and the same with a leak.
#[test]
fn leaks_are_found_beside_noise() {
    const WINDOWS: usize = 20;
    let limits = Limits::of(WINDOW, WINDOWS * WINDOW);
    let leak = |of: [f64; WINDOWS], each: f64| -> Vec<f64> {
        of.iter().enumerate().map(|(i, all)| all + each * (i * WINDOW) as f64).collect()
    };
    let noise = [
        100.9, 104.1, 103.2, 104.0, 104.2, 102.6, 104.2, 104.2, 105.9, 104.3, 102.8, 102.3, 106.1, 104.5,
        103.0, 102.3, 104.5, 101.4, 101.4, 104.6,
    ];
    let (growth, later) = (growth_of(&noise), later_of(&noise));
    assert!(growth < limits.growth && later < limits.later, "{growth}, {later}");
    let leaking = leak(noise, 0.011);
    let (growth, later) = (growth_of(&leaking), later_of(&leaking));
    assert!(growth > limits.growth && later > limits.later, "{growth}, {later}");

    let mut blocks = [139_228.0; WINDOWS];
    blocks[7..].iter_mut().for_each(|b| *b += 2000.0);
    blocks[12..].iter_mut().for_each(|b| *b += 2000.0);
    blocks.iter_mut().skip(1).step_by(4).for_each(|b| *b += 55.0);
    assert!(blocks_of(&blocks) < limits.blocks);
    assert!(blocks_of(&leak(blocks, 0.6)) > limits.blocks);

    assert!((growth_of(&[1.0, 2.0, 3.0, 4.0]) - 1.0).abs() < 1e-9);
    assert_eq!(later_of(&[1.0, 2.0, 3.0, 4.0]), 2.0);
    assert_eq!(blocks_of(&[1.0, 2.0, 7.0, 8.0]), 1.0);
}
