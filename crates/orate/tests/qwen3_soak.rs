//! Many utterances of Qwen3-TTS in one process, in all modes, many of them not heard to their end: memory
//! stays flat, and the last one sounds like the first.
//!
//! `ORATE_TEST_DEVICES` names the devices, such as `cpu,cuda:0,vulkan:0`; without it the CPU is used. A GPU
//! that the processor imitates takes some minutes.
#![cfg(target_os = "linux")]

mod common;

use common::flat::{End, Use, devices, judge, judge_rounds};
use orate::{Cancel, DeviceChoice, Engine, EngineOptions, Error, ModelSource, Options};
use orate_testing::checkpoints::{qwen3_tts_goldens, write_random_qwen3_tts};
use orate_testing::{Counting, Random};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Callers that speak at once in the beginning, and utterances of each: whatever wgpu and drivers keep for
/// work that is under way is then as large as it gets.
const CALLERS: u64 = 3;
const OF_EACH: usize = 50;

/// Utterances spoken one at a time after that: `FIRST` compile the last plans, `OTHERS` are measured.
const FIRST: usize = 200;
const OTHERS: usize = 1000;

/// Concurrent callers that join, leave and cancel at random. The first rounds create memories of all sizes
/// and are not judged. Memory is measured after each round, when all callers have left.
const CROWD: usize = 24;
const FIRST_ROUNDS: usize = 20;
const ROUNDS: usize = 20;
const ROUNDS_OF_WINDOW: usize = 2;

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

/// One after the other, as all that the process has in use is looked at.
#[test]
fn memory_is_flat_whatever_happens() {
    for device in devices() {
        one_by_one(device);
        crowd(device);
    }
}

fn one_by_one(device: DeviceChoice) {
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
    judge(device, &uses[FIRST..], &ends);
    let same = all.iter().map(first).zip(&wanted).all(|(now, then)| now == *then);
    assert!(same, "{device}: the first sounds as it did");
}

fn crowd(device: DeviceChoice) {
    let v = voices("custom_voice", device);
    let first = || {
        let o = v.options[0].clone().set("max_frames", 9);
        v.engine.speak("The first is the last.", &o).expect("speaks")
    };
    let wanted = first();
    // In the judged rounds some 5,000, on a CPU some 1,400.
    let of_each = if device == DeviceChoice::Cpu { 3 } else { 11 };
    let (mut ends, mut uses) = (vec![], vec![]);
    for round in 0..FIRST_ROUNDS + ROUNDS {
        let speak = |caller: usize| {
            let mut random = Random::new((round * CROWD + caller) as u64);
            (0..of_each).map(|_| utterance(&v, &mut random)).collect::<Vec<_>>()
        };
        std::thread::scope(|s| {
            let callers: Vec<_> = (0..CROWD).map(|i| s.spawn(move || speak(i))).collect();
            ends.extend(callers.into_iter().flat_map(|caller| caller.join().expect("no panic")));
        });
        uses.push(Use::now(&v.engine));
    }
    judge_rounds(device, &uses[FIRST_ROUNDS..], ROUNDS_OF_WINDOW, CROWD * of_each, &ends);
    assert!(first() == wanted, "{device}: the first sounds as it did");
}
