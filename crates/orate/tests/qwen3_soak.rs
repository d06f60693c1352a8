//! Many utterances of Qwen3-TTS in one process, in all modes, many of them not heard to their end: memory stays flat, and the
//! last one sounds like the first.
//!
//! `ORATE_TEST_DEVICES` names the devices, such as `cpu,cuda:0,vulkan:0`; without it the CPU is used. A GPU that the processor
//! imitates takes some minutes.
#![cfg(target_os = "linux")]

mod common;

use common::resident;
use orate::{Cancel, DeviceChoice, Engine, EngineOptions, Error, Model, Options};
use orate_testing::Random;
use orate_testing::checkpoints::{qwen3_tts_goldens, write_random_qwen3_tts};

/// Utterances, those in front that are warming up, by when all plans are made, and how many of the others are looked at together.
const UTTERANCES: usize = 400;
const WARM: usize = 150;
const WINDOW: usize = 50;

/// MB that may be resident more than in the window before, and be free less on the device, in half of the windows: 14 kB an utterance.
const MOST_GROWTH: f64 = 0.7;

/// MB that may be more in the last window than in the first.
const MOST_IN_ALL: f64 = 4.0;

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
    let model = Model::Path(folder.path().to_owned());
    let options = EngineOptions { model, device, threads: Some(2), ..Default::default() };
    let engine = Engine::with_options(options).unwrap_or_else(|e| panic!("{device}: {e}"));
    let instructed = |words: &str| Options { instruct: Some(words.to_owned()), ..Default::default() };
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
            Options { voice: Some("Vivian".into()), instruct: Some("happy".into()), ..Default::default() },
        ],
    };
    Voices { engine, options, _folder: folder }
}

/// Memory at a moment, in MB.
#[derive(Clone, Copy)]
struct Use {
    host: f64,
    /// That nobody uses on the device, where it tells.
    free: Option<f64>,
}

impl Use {
    fn now(engine: &Engine) -> Use {
        let free = engine.device_info().free_memory;
        Use { host: resident(), free: free.map(|bytes| bytes as f64 / 1e6) }
    }

    /// The more of both.
    fn or(self, other: Use) -> Use {
        Use { host: self.host.max(other.host), free: self.free.zip(other.free).map(|(a, b)| a.min(b)) }
    }
}

impl std::fmt::Display for Use {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} MB", self.host)?;
        self.free.map_or(Ok(()), |free| write!(f, " ({free:.1} MB free on the device)"))
    }
}

#[test]
fn memory_is_flat_whatever_happens() {
    devices().into_iter().for_each(soak);
}

fn soak(device: DeviceChoice) {
    let all = ["base", "custom_voice", "voice_design"].map(|variant| voices(variant, device));
    let first = |v: &Voices| {
        let o = Options { max_frames: Some(9), ..v.options[0].clone() };
        v.engine.speak("The first is the last.", &o).expect("speaks")
    };
    let wanted: Vec<_> = all.iter().map(first).collect();
    let mut random = Random::new(7);
    let (mut whole, mut dropped, mut cancelled) = (0, 0, 0);
    // The most of each window.
    let mut windows: Vec<Use> = vec![];
    for i in 0..UTTERANCES {
        let v = &all[random.below(all.len())];
        let cancel = Cancel::new();
        let options = Options {
            max_frames: Some(1 + random.below(60)),
            seed: random.bits(),
            cancel: Some(cancel.clone()),
            ..v.options[random.below(v.options.len())].clone()
        };
        let text = "One two. ".repeat(1 + random.below(12));
        let mut stream = v.engine.stream(&text, &options).expect("speaks");
        // Some are heard to the end, some are left, some are cancelled after a few chunks.
        let chunks = if random.below(2) == 0 { usize::MAX } else { random.below(4) };
        let heard = stream.by_ref().take(chunks).map(|c| c.expect("speaks").samples.len()).sum::<usize>();
        match (chunks, random.below(2)) {
            (usize::MAX, _) => {
                assert!(heard > 0, "utterance {i}");
                whole += 1;
            }
            (_, 0) => dropped += 1,
            _ => {
                cancel.cancel();
                assert!(stream.all(|c| matches!(c, Err(Error::Cancelled))), "utterance {i}");
                cancelled += 1;
            }
        }
        drop(stream);
        let now = Use::now(&v.engine);
        match i.checked_sub(WARM) {
            Some(behind) if behind % WINDOW == 0 => windows.push(now),
            Some(_) => windows.iter_mut().next_back().into_iter().for_each(|most| *most = most.or(now)),
            None => {}
        }
    }
    let each: Vec<_> = windows.iter().map(Use::to_string).collect();
    println!(
        "{device}: {whole} heard, {dropped} left, {cancelled} cancelled; after {WARM} at most {}",
        each.join(", ")
    );
    assert!(whole > 100 && dropped > 30 && cancelled > 30);
    flat(device, "resident", windows.iter().map(|w| w.host).collect());
    if let Some(free) = windows.iter().map(|w| w.free.map(|free| -free)).collect() {
        flat(device, "taken from the device", free);
    }
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
