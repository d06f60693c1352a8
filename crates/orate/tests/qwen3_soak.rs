//! Many utterances of Qwen3-TTS in one process, in all modes, many of them not heard to their end: memory
//! stays flat, and the last one sounds like the first.
//!
//! `ORATE_TEST_DEVICES` names the devices, such as `cpu,cuda:0,vulkan:0`; without it the CPU is used. A GPU
//! that the processor imitates takes some minutes.
#![cfg(target_os = "linux")]

mod common;

use common::resident;
use orate::{Cancel, DeviceChoice, Engine, EngineOptions, Error, ModelSource, Options};
use orate_testing::checkpoints::{qwen3_tts_goldens, write_random_qwen3_tts};
use orate_testing::{Counting, Random};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Callers that speak at once in the beginning, and utterances of each: whatever wgpu and drivers keep for
/// work that is under way is then as large as it gets.
const CALLERS: u64 = 3;
const OF_EACH: usize = 50;

/// Utterances spoken one at a time after that: `FIRST` compile the last plans, `OTHERS` are measured, in
/// windows of `WINDOW`.
const FIRST: usize = 200;
const OTHERS: usize = 250;
const WINDOW: usize = 50;

/// MB that may be resident more than in the window before, and be free less on the device, in half of the
/// windows: 14 kB an utterance.
const MOST_GROWTH: f64 = 0.7;

/// MB that may be more in the last window than in the first.
const MOST_IN_ALL: f64 = 2.0;

/// Blocks that may be in use more between utterances of the last window than of the first: one for two
/// utterances. What is kept for the next one differs by some forty.
const MOST_BLOCKS: usize = 100;

fn devices() -> Vec<DeviceChoice> {
    let names = std::env::var("ORATE_TEST_DEVICES").unwrap_or_else(|_| "cpu".to_owned());
    let named = names.split(',').map(|name| name.trim().parse());
    named.map(|d| d.unwrap_or_else(|e| panic!("ORATE_TEST_DEVICES: {e}"))).collect()
}

struct Voices {
    engine: Engine,
    options: Vec<Options>,
    _folder: tempfile::TempDir,
}

fn voices(variant: &str, device: DeviceChoice) -> Voices {
    let folder = tempfile::tempdir().expect("a folder");
    write_random_qwen3_tts(variant, folder.path(), 3).expect("the folder is writable");
    let model = ModelSource::Path(folder.path().to_owned());
    let options = EngineOptions { model, device, threads: Some(2), ..Default::default() };
    let engine = Engine::with_options(options).unwrap_or_else(|e| panic!("{device}: {e}"));
    let instructed = |words: &str| Options::default().set("instruct", words.to_owned());
    let options = match variant {
        "voice_design" => vec![instructed("a calm voice"), instructed("somebody old who whispers")],
        "base" => {
            let recording = qwen3_tts_goldens().join("cases/ref.wav");
            let cloned = |words| Some(engine.clone_voice(&recording, words).expect("a voice"));
            let words = [None, Some("once upon a time")];
            words.map(|words| Options { cloned: cloned(words), ..Default::default() }).into()
        }
        _ => vec![
            Options { voice: Some("Ryan".into()), language: Some("en".into()), ..Default::default() },
            Options { voice: Some("Vivian".into()), ..Default::default() }.set("instruct", "happy"),
        ],
    };
    Voices { engine, options, _folder: folder }
}

/// What a window has in use, at worst or at best.
#[derive(Clone, Copy)]
struct Use {
    /// The most MB that the process has.
    host: f64,
    /// The fewest MB that nobody uses on the device, where it tells.
    free: Option<f64>,
    /// The fewest blocks that are not given back.
    blocks: usize,
}

impl Use {
    fn now(engine: &Engine) -> Use {
        let free = engine.device_info().free_memory;
        Use { host: resident(), free: free.map(|bytes| bytes as f64 / 1e6), blocks: Counting::blocks() }
    }

    /// Of both.
    fn and(self, other: Use) -> Use {
        Use {
            host: self.host.max(other.host),
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
enum End {
    Heard,
    Left,
    Cancelled,
}

/// One of any mode and length. Some are heard to the end, some are left, some are cancelled after a few
/// chunks.
fn utterance(v: &Voices, random: &mut Random) -> End {
    let cancel = Cancel::new();
    let options = Options {
        seed: random.bits(),
        cancel: Some(cancel.clone()),
        ..v.options[random.below(v.options.len())].clone()
    }
    .set("max_frames", 1 + random.below(60));
    let text = "One two. ".repeat(1 + random.below(12));
    let mut stream = v.engine.stream(&text, &options).expect("speaks");
    let chunks = if random.below(2) == 0 { usize::MAX } else { random.below(4) };
    let heard = stream.by_ref().take(chunks).map(|c| c.expect("speaks").samples.len()).sum::<usize>();
    match (chunks, random.below(2)) {
        (usize::MAX, _) => {
            assert!(heard > 0, "{options:?}");
            End::Heard
        }
        (_, 0) => End::Left,
        _ => {
            cancel.cancel();
            assert!(stream.all(|c| matches!(c, Err(Error::Cancelled))), "{options:?}");
            End::Cancelled
        }
    }
}

#[test]
fn memory_is_flat_whatever_happens() {
    devices().into_iter().for_each(soak);
}

fn soak(device: DeviceChoice) {
    let all = ["base", "custom_voice", "voice_design"].map(|variant| voices(variant, device));
    let first = |v: &Voices| {
        let o = v.options[0].clone().set("max_frames", 9);
        v.engine.speak("The first is the last.", &o).expect("speaks")
    };
    let wanted: Vec<_> = all.iter().map(first).collect();
    std::thread::scope(|s| {
        for caller in 0..CALLERS {
            let all = &all;
            s.spawn(move || {
                let mut random = Random::new(caller);
                for _ in 0..OF_EACH {
                    utterance(&all[random.below(all.len())], &mut random);
                }
            });
        }
    });
    let mut random = Random::new(7);
    let (mut ends, mut uses) = (vec![], vec![]);
    for _ in 0..FIRST + OTHERS {
        let v = &all[random.below(all.len())];
        ends.push(utterance(v, &mut random));
        uses.push(Use::now(&v.engine));
    }
    let windows: Vec<Use> =
        uses[FIRST..].chunks(WINDOW).filter_map(|w| w.iter().copied().reduce(Use::and)).collect();
    let [heard, left, cancelled] =
        [End::Heard, End::Left, End::Cancelled].map(|end| ends.iter().filter(|e| **e == end).count());
    let each: Vec<_> = windows.iter().map(Use::to_string).collect();
    println!("{device}: {heard} heard, {left} left, {cancelled} cancelled; {}", each.join("; "));
    assert!(heard > 150 && left > 50 && cancelled > 50);
    flat(device, "resident", windows.iter().map(|w| w.host).collect());
    if let Some(free) = windows.iter().map(|w| w.free.map(|free| -free)).collect() {
        flat(device, "taken from the device", free);
    }
    let (begin, end) = (windows[0].blocks, windows[windows.len() - 1].blocks);
    assert!(end < begin + MOST_BLOCKS, "{device}: blocks in use: {begin} became {end}");
    let same = all.iter().map(first).zip(&wanted).all(|(now, then)| now == *then);
    assert!(same, "{device}: the first sounds as it did");
}

/// Asserts that MB of the windows neither grow steadily nor by much.
fn flat(device: DeviceChoice, what: &str, mb: Vec<f64>) {
    let mut growth: Vec<f64> = mb.windows(2).map(|pair| pair[1] - pair[0]).collect();
    growth.sort_by(f64::total_cmp);
    assert!(
        growth[(growth.len() - 1) / 2] < MOST_GROWTH,
        "{device}: {what}: grows steadily, by {growth:?} MB"
    );
    let all = mb[mb.len() - 1] - mb[0];
    assert!(all < MOST_IN_ALL, "{device}: {what}: {all:.1} MB more at the end");
}
