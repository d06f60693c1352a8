//! Engines with tiny models that speak on GPUs.

use super::choices;
use orate::{Cancel, DeviceChoice, Engine, EngineOptions, Error, Model, Options};
use orate_testing::checkpoints::{qwen3_tts_goldens, write_random_qwen3_tts};

fn engine(device: DeviceChoice, folder: &tempfile::TempDir) -> Engine {
    let options =
        EngineOptions { model: Model::Path(folder.path().to_owned()), device, ..Default::default() };
    Engine::with_options(options).unwrap_or_else(|e| panic!("{e}"))
}

/// Samples of GPU and CPU differ by rounding as long as the codes are the same: 7.5e-8 at most on an H200.
const TOLERANCE: f32 = 1e-5;

/// Greedy speech is what it is on the CPU; a kept prefix, and a codec beside the talker or after it, change nothing at all.
#[test]
fn speech_is_as_on_the_cpu() {
    for (variant, device) in
        ["custom_voice", "base"].into_iter().flat_map(|v| choices().into_iter().map(move |d| (v, d)))
    {
        let folder = tempfile::tempdir().expect("a folder");
        write_random_qwen3_tts(variant, folder.path(), 3).expect("the folder is writable");
        let (gpu, cpu) = (engine(device, &folder), engine(DeviceChoice::Cpu, &folder));
        let recording = qwen3_tts_goldens().join("cases/ref.wav");
        let voice = |words| cpu.clone_voice(&recording, words).expect("a voice");
        let voices = match variant {
            "base" => vec![Some(voice(None)), Some(voice(Some("once upon a time")))],
            _ => vec![None],
        };
        for cloned in voices {
            let greedy =
                Options { temperature: Some(0.0), max_frames: Some(13), cloned, ..Default::default() };
            for text in ["Hello there.", "Another text, which is longer."] {
                let speak = |engine: &Engine, beside| {
                    let o = Options { codec_beside: beside, ..greedy.clone() };
                    let chunks = engine.stream(text, &o).expect("speaks").map(|c| c.expect("speaks"));
                    let chunks: Vec<_> = chunks.collect();
                    let rows: usize = chunks.iter().map(|c| c.prefix_rows).sum();
                    (chunks.into_iter().flat_map(|c| c.samples).collect::<Vec<f32>>(), rows)
                };
                let (first, _) = speak(&gpu, None);
                for beside in [Some(false), Some(true)] {
                    let (again, rows) = speak(&gpu, beside);
                    assert!(rows >= 8, "{variant}: {rows} rows were kept");
                    assert!(again == first, "{variant}: the same bytes");
                }
                let (want, _) = speak(&cpu, None);
                assert_eq!(first.len(), want.len(), "{variant}");
                let error = first.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                println!("{}, {variant}: {error:.1e}", gpu.device());
                assert!(error < TOLERANCE, "{variant}: samples differ by {error}");
            }
        }
    }
}

/// After warming up texts of any usual length find their plans, and so do caches that may grow.
#[test]
fn no_plan_is_made_after_warming_up() {
    for device in choices() {
        let folder = tempfile::tempdir().expect("a folder");
        write_random_qwen3_tts("custom_voice", folder.path(), 3).expect("the folder is writable");
        let engine = engine(device, &folder);
        engine.warm_up().expect("speaks");
        let before = engine.plans_made();
        let long = "These words are many more than those before. ".repeat(4);
        for (text, frames) in [("Hm.", 3), ("A text of some words.", 270), (&*long, 5), (&*long.repeat(3), 3)]
        {
            let o = Options { max_frames: Some(frames), ..Default::default() };
            engine.speak(text, &o).expect("speaks");
            assert_eq!(engine.plans_made(), before, "{device}: {text}");
        }
    }
}

#[test]
fn speaking_is_cancelled() {
    for device in choices() {
        let folder = tempfile::tempdir().expect("a folder");
        write_random_qwen3_tts("custom_voice", folder.path(), 3).expect("the folder is writable");
        let engine = engine(device, &folder);
        let cancel = Cancel::new();
        let o = Options { max_frames: Some(200), cancel: Some(cancel.clone()), ..Default::default() };
        let mut stream = engine.stream("Hello there.", &o).expect("speaks");
        for _ in 0..2 {
            assert!(stream.next().expect("a chunk").is_ok());
        }
        cancel.cancel();
        assert!(matches!(stream.next(), Some(Err(Error::Cancelled))));
        drop(stream);
        let o = Options { max_frames: Some(5), ..Default::default() };
        assert!(engine.speak("Hello there.", &o).is_ok(), "the engine goes on");
    }
}
