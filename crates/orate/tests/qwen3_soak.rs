//! Many utterances of Qwen3-TTS in one process, in all modes, many of them not heard to their end: memory stays flat, and the
//! last one sounds like the first.
#![cfg(target_os = "linux")]

mod common;

use common::resident;
use orate::{Cancel, DeviceChoice, Engine, EngineOptions, Error, Model, Options};
use orate_testing::Random;
use orate_testing::checkpoints::{qwen3_tts_goldens, write_random_qwen3_tts};

/// Utterances, and those in front that are warming up: by then plans of most sizes were made.
const UTTERANCES: usize = 300;
const WARM: usize = 150;

/// MB that may be resident more at the end than after warming up.
const MOST_GROWTH: f64 = 4.0;

struct Voices {
    engine: Engine,
    options: Vec<Options>,
    _folder: tempfile::TempDir,
}

fn voices(variant: &str) -> Voices {
    let folder = tempfile::tempdir().expect("a folder");
    write_random_qwen3_tts(variant, folder.path(), 3).expect("the folder is writable");
    let model = Model::Path(folder.path().to_owned());
    let options = EngineOptions { model, device: DeviceChoice::Cpu, threads: Some(2), ..Default::default() };
    let engine = Engine::with_options(options).expect("a whole model");
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

#[test]
fn memory_is_flat_whatever_happens() {
    let all = ["base", "custom_voice", "voice_design"].map(voices);
    let first = |v: &Voices| {
        let o = Options { max_frames: Some(9), ..v.options[0].clone() };
        v.engine.speak("The first is the last.", &o).expect("speaks")
    };
    let wanted: Vec<_> = all.iter().map(first).collect();
    let mut random = Random::new(7);
    let (mut whole, mut dropped, mut cancelled) = (0, 0, 0);
    let (mut warm, mut most) = (0.0, 0f64);
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
        match i {
            WARM => warm = resident(),
            _ if i > WARM => most = most.max(resident()),
            _ => {}
        }
    }
    println!(
        "{whole} heard, {dropped} left, {cancelled} cancelled; {warm:.1} MB after {WARM}, then at most {most:.1} MB"
    );
    assert!(whole > 100 && dropped > 30 && cancelled > 30);
    assert!(most - warm < MOST_GROWTH, "{warm:.1} MB grew to {most:.1} MB");
    assert!(all.iter().map(first).zip(&wanted).all(|(now, then)| now == *then), "the first sounds as it did");
}
