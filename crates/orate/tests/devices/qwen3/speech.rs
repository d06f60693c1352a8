//! Engines with tiny models that speak on GPUs.

use super::{GPU_TOLERANCE, choices};
use crate::common::raw;
use orate::{Cancel, DeviceChoice, Engine, EngineOptions, Error, FinishReason, ModelSource, Options};
use orate_models::qwen3_tts::{Request, Settings, Speaker, TextFeeding};
use orate_testing::assert_close;
use orate_testing::checkpoints::{qwen3_tts_goldens, write_random_qwen3_tts};

/// The CPU too.
fn all_choices() -> Vec<DeviceChoice> {
    [vec![DeviceChoice::Cpu], choices()].concat()
}

fn engine(device: DeviceChoice, folder: &tempfile::TempDir) -> Engine {
    let options =
        EngineOptions { model: ModelSource::Path(folder.path().to_owned()), device, ..Default::default() };
    Engine::with_options(options).unwrap_or_else(|e| panic!("{e}"))
}

/// Samples of GPU and CPU differ by rounding as long as the codes are the same: 7.5e-8 at most on an H200.
const TOLERANCE: f32 = 1e-5;

/// Greedy speech is what it is on the CPU; a kept prefix, and a codec beside the talker or after it, change
/// nothing at all.
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
        // A text for each voice: a processor imitates GPUs slowly.
        for (cloned, text) in voices.into_iter().zip(["Hello there.", "Another text, which is longer."]) {
            let greedy = Options { cloned, ..raw() }.set("temperature", 0.0).set("max_frames", 13);
            let speak = |engine: &Engine, beside| {
                let o = greedy
                    .clone()
                    .with(orate::qwen3_tts::Options { codec_beside: beside, ..Default::default() });
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

/// Prompts prefilled in several passes give what the CPU computes in one pass: with reference frames next to
/// the text, after it, and before text that other prompts share.
#[test]
fn long_prompts_are_read_as_on_the_cpu() {
    for device in choices() {
        let folder = tempfile::tempdir().expect("a folder");
        write_random_qwen3_tts("base", folder.path(), 3).expect("the folder is writable");
        let (gpu, cpu) = (engine(device, &folder), engine(DeviceChoice::Cpu, &folder));
        let x_vector: Vec<f32> = (0..64).map(|i| (i as f32 * 0.7).sin()).collect();
        let codes: Vec<i32> = (0..300 * 16).map(|i| i * 37 % 128).collect();
        let words = "once upon a time there was a king ";
        // Rows are a multiple of a pass, one more or fewer, or fewer than one.
        for (repeats, frames, feeding) in [
            (1, 300, TextFeeding::Streaming),
            (12, 300, TextFeeding::Whole),
            (20, 118, TextFeeding::Whole),
            (20, 119, TextFeeding::Whole),
            (20, 120, TextFeeding::Whole),
            (2, 9, TextFeeding::Whole),
        ] {
            let transcript = words.repeat(repeats);
            let logits = |engine: &Engine| {
                let model = &engine.model_as::<orate::qwen3_tts::Qwen3Tts>().expect("is one");
                let (x_vector, codes) = (&x_vector[..], &codes[..16 * frames]);
                let speaker = Speaker::InContext { x_vector, transcript: &transcript, codes };
                let (language, feeding) = (Some("english"), Some(feeding));
                let request = Request { text: "hello there", speaker, language, instruct: None, feeding };
                let prompt = model.prompt(&request).expect("a prompt");
                let settings = Settings::new(&model.talking().expect("talks").generation, 1);
                model.forget_prefixes();
                // Read anew, and behind the state that was kept.
                [false, true].map(|kept| {
                    let settings = Settings { max_frames: 3, ..settings };
                    let mut session = model.start(&prompt, &settings).expect("has room");
                    assert_eq!(session.reused_rows() > 0, kept);
                    let mut logits = vec![];
                    session.read("logits", &mut logits).expect("is there");
                    logits
                })
            };
            let ([first, again], [want, _]) = (logits(&gpu), logits(&cpu));
            assert!(first == again, "the same bytes");
            let what = format!("{}: {repeats} × {frames}, {feeding}", gpu.device());
            let c = assert_close(&what, &first, &want, GPU_TOLERANCE);
            println!("{what}: {:.1e}", c.max_error);
        }
    }
}

/// After warming up texts of any usual length find their plans, and so do caches that may grow.
#[test]
fn no_plan_is_made_after_warming_up() {
    for device in all_choices() {
        let folder = tempfile::tempdir().expect("a folder");
        write_random_qwen3_tts("custom_voice", folder.path(), 3).expect("the folder is writable");
        let engine = engine(device, &folder);
        engine.warm_up().expect("speaks");
        let before = engine.plans_made();
        let long = "These words are many more than those before. ".repeat(4);
        for (text, frames) in [("Hm.", 3), ("A text of some words.", 270), (&*long, 5), (&*long.repeat(3), 3)]
        {
            let o = raw().set("max_frames", frames);
            engine.speak(text, &o).expect("speaks");
            assert_eq!(engine.plans_made(), before, "{device}: {text}");
        }
    }
}

/// Callers that start and stop at any time find all plans of their shared batches compiled.
#[test]
fn no_plan_is_made_when_callers_meet() {
    // Enough for single prompts and chunks to run in workspaces.
    const CALLERS: usize = 12;
    for device in all_choices() {
        let folder = tempfile::tempdir().expect("a folder");
        write_random_qwen3_tts("custom_voice", folder.path(), 3).expect("the folder is writable");
        let engine = engine(device, &folder);
        engine.warm_up_for_callers(&raw(), CALLERS).expect("speaks");
        let before = engine.plans_made();
        std::thread::scope(|threads| {
            for i in 0..CALLERS {
                let engine = &engine;
                threads.spawn(move || {
                    for (round, words) in [3, 40].into_iter().enumerate() {
                        let o = raw().set("max_frames", 2 + i + round);
                        engine.speak(&"some words ".repeat(words + i), &o).expect("speaks");
                    }
                });
            }
        });
        assert_eq!(engine.plans_made(), before, "{device}");
    }
}

/// It is so for prompts that end in frames: of a reference, with all text in front of them, and of what was
/// said before in a voice that only a description is known of.
#[test]
fn no_plan_is_made_for_frames_in_prompts() {
    for device in all_choices() {
        let folder = tempfile::tempdir().expect("a folder");
        write_random_qwen3_tts("base", folder.path(), 3).expect("the folder is writable");
        let base = engine(device, &folder);
        let recording = qwen3_tts_goldens().join("cases/ref.wav");
        let cloned = Some(base.clone_voice(&recording, Some("once upon a time")).expect("a voice"));
        for feeding in [TextFeeding::Whole, TextFeeding::Streaming] {
            let o =
                Options { cloned: cloned.clone(), ..raw() }.set("text_feeding", feeding).set("max_frames", 3);
            base.warm_up_for(&o).expect("speaks");
            let before = base.plans_made();
            for words in [1, 5, 14, 30, 55] {
                base.speak(&"some words ".repeat(words), &o).expect("speaks");
                assert_eq!(base.plans_made(), before, "{device}, {feeding}: {words} words");
            }
        }

        let folder = tempfile::tempdir().expect("a folder");
        write_random_qwen3_tts("voice_design", folder.path(), 3).expect("the folder is writable");
        let designed = engine(device, &folder);
        let instruct = Some("somebody old who whispers".to_owned());
        let o = raw().set("retries", 0).with(orate::qwen3_tts::Options { instruct, ..Default::default() });
        let o = o.set("max_frames", 60);
        designed.warm_up_for(&o).expect("speaks");
        let before = designed.plans_made();
        let text = "Once upon a time there was a king. ".repeat(12);
        // Others go on behind a piece that ends by itself, as one of random weights does by chance.
        let went_on = (0..100).find(|seed| {
            let chunks = designed.stream(text.trim_end(), &Options { seed: *seed, ..o.clone() });
            let mut chunks = chunks.expect("speaks").map(|c| c.expect("speaks"));
            let end = chunks.find_map(|c| c.finish).expect("the first piece ends");
            let others = if end == FinishReason::Stop { chunks.count() } else { 0 };
            assert_eq!(designed.plans_made(), before, "{device}, seed {seed}");
            others > 0
        });
        assert!(went_on.is_some(), "one in some seeds");
    }
}

#[test]
fn speaking_is_cancelled() {
    for device in choices() {
        let folder = tempfile::tempdir().expect("a folder");
        write_random_qwen3_tts("custom_voice", folder.path(), 3).expect("the folder is writable");
        let engine = engine(device, &folder);
        let cancel = Cancel::new();
        let o = Options { cancel: Some(cancel.clone()), ..raw() }.set("max_frames", 200);
        let mut stream = engine.stream("Hello there.", &o).expect("speaks");
        for _ in 0..2 {
            assert!(stream.next().expect("a chunk").is_ok());
        }
        cancel.cancel();
        assert!(matches!(stream.next(), Some(Err(Error::Cancelled))));
        drop(stream);
        let o = raw().set("max_frames", 5);
        assert!(engine.speak("Hello there.", &o).is_ok(), "the engine goes on");
    }
}

/// Threads that speak with one engine share its batch while others join and leave; the second round reuses
/// the memories of the first.
#[test]
fn callers_at_once_hear_what_they_would_alone() {
    const ALL: usize = 3;
    for device in choices() {
        let folder = tempfile::tempdir().expect("a folder");
        write_random_qwen3_tts("custom_voice", folder.path(), 3).expect("the folder is writable");
        let engine = engine(device, &folder);
        let speak = |i: usize| {
            let o = Options { seed: i as u64, ..raw() }.set("max_frames", 4 + 2 * i);
            let chunks = engine.stream(&format!("This is caller {i}."), &o).expect("speaks");
            chunks.flat_map(|c| c.expect("speaks").samples).collect::<Vec<f32>>()
        };
        let speak = &speak;
        let alone: Vec<_> = (0..ALL).map(speak).collect();
        for round in 0..2 {
            std::thread::scope(|threads| {
                let callers: Vec<_> = (0..ALL).map(|i| threads.spawn(move || speak(i))).collect();
                // One goes away behind its first chunk, with a frame under way.
                let o = Options { seed: 9, ..raw() }.set("max_frames", 50);
                drop(engine.stream("Nobody listens.", &o).expect("speaks").next());
                for (i, caller) in callers.into_iter().enumerate() {
                    let heard = caller.join().expect("no panic");
                    assert_eq!(heard.len(), alone[i].len(), "{}, round {round}: caller {i}", engine.device());
                    let error = heard.iter().zip(&alone[i]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(
                        error < TOLERANCE,
                        "{}, round {round}: caller {i} differs by {error}",
                        engine.device()
                    );
                }
            });
        }
        let model = &engine.model_as::<orate::qwen3_tts::Qwen3Tts>().expect("is one");
        // The engine's and this one.
        assert_eq!(std::sync::Arc::strong_count(model), 2, "nothing of a batch holds the model");
    }
}
