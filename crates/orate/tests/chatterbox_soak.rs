//! Many utterances and conversions of Chatterbox in one process, of any length and voice, many of them not
//! heard to their end: memory stays flat, and the last one sounds like the first.
//!
//! `ORATE_TEST_DEVICES` names the devices; see [`common::flat`].
#![cfg(target_os = "linux")]

mod common;

use common::flat::{End, Use, devices, judge};
use orate::{Cancel, DeviceChoice, Engine, EngineOptions, Error, ModelSource, Options};
use orate_testing::checkpoints::{chatterbox_goldens, write_chatterbox};
use orate_testing::{Counting, Random};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Callers that speak at once in the beginning, and utterances of each.
const CALLERS: u64 = 3;
const OF_EACH: usize = 30;

/// Utterances one at a time after that: the first compile the last plans, of which a GPU keeps ten times as
/// many as a CPU; `OTHERS` are measured.
const FIRST: usize = 300;
const FIRST_ON_A_GPU: usize = 3000;
const OTHERS: usize = 1000;

/// Most codes of a piece.
const CODES: usize = 60;

struct Voices {
    engine: Engine,
    options: Vec<Options>,
    recording: Vec<f32>,
    _folder: tempfile::TempDir,
}

fn voices(variant: &str, device: DeviceChoice) -> Voices {
    let folder = tempfile::tempdir().expect("a folder");
    write_chatterbox(folder.path(), variant, "tiny").expect("the folder is writable");
    let model = ModelSource::Path(folder.path().to_owned());
    let options = EngineOptions { model, device, threads: Some(2), ..Default::default() };
    let engine = Engine::with_options(options).unwrap_or_else(|e| panic!("{device}: {e}"));
    let recording = chatterbox_goldens().join("ref.wav");
    let cloned = Some(engine.clone_voice(&recording, None).expect("a voice"));
    let options = vec![Options::default(), Options { cloned, ..Default::default() }];
    // Noise stands for recordings of any length.
    let recording = Random::new(3).floats(3 * 24_000, -0.2, 0.2);
    Voices { engine, options, recording, _folder: folder }
}

/// Speech or a conversion of any length. Some are heard to the end, some are left, some are cancelled after a
/// few chunks.
fn utterance(v: &Voices, random: &mut Random) -> End {
    let cancel = Cancel::new();
    let mut options = v.options[random.below(v.options.len())].clone();
    options.seed = random.bits();
    options.cancel = Some(cancel.clone());
    // Steps are alike, so few are enough.
    let options = options.set("steps", 2);
    let mut stream = if random.below(4) == 0 {
        let samples = 12_000 + random.below(v.recording.len() - 12_000);
        v.engine.convert_samples(&v.recording[..samples], 24_000, &options).expect("converts")
    } else {
        let first_chunk = [0, 10, 15][random.below(3)];
        let options = options.set("max_codes", 1 + random.below(CODES)).set("first_chunk", first_chunk);
        let text = "One two. ".repeat(1 + random.below(12));
        v.engine.stream(&text, &options).expect("speaks")
    };
    let chunks = if random.below(2) == 0 { usize::MAX } else { random.below(3) };
    stream.by_ref().take(chunks).for_each(|c| drop(c.expect("speaks")));
    match (chunks, random.below(2)) {
        (usize::MAX, _) => End::Heard,
        (_, 0) => End::Left,
        _ => {
            cancel.cancel();
            assert!(stream.all(|c| matches!(c, Err(Error::Cancelled))));
            End::Cancelled
        }
    }
}

#[test]
fn memory_is_flat_whatever_happens() {
    devices().into_iter().for_each(soak);
}

fn soak(device: DeviceChoice) {
    let all = ["en", "turbo"].map(|variant| voices(variant, device));
    let first = |v: &Voices| {
        let o = v.options[0].clone().set("max_codes", 9);
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
    let unmeasured = if device == DeviceChoice::Cpu { FIRST } else { FIRST_ON_A_GPU };
    for _ in 0..unmeasured + OTHERS {
        let v = &all[random.below(all.len())];
        ends.push(utterance(v, &mut random));
        uses.push(Use::now(&v.engine));
    }
    judge(device, &uses[unmeasured..], &ends);
    let same = all.iter().map(first).zip(&wanted).all(|(now, then)| now == *then);
    assert!(same, "{device}: the first sounds as it did");
}
