//! Whole models on GPUs: goldens, a spoken sentence beside the CPU's, and what engines promise.
//!
//! `ORATE_TEST_DEVICES` names the devices, such as `cuda:0,vulkan:0`. Without it the first Vulkan device is
//! used, which may be a software rasterizer (Mesa's lavapipe); if there is none, these tests fail
//! and say so.
#![cfg(any(feature = "cuda", feature = "gpu"))]

use crate::common::raw;
use crate::common::{self, golden, relative_error};
use orate::hooks::{F32_TOLERANCE, GPU_TOLERANCE};
use orate::{
    Audio, Chunk, DeviceChoice, Engine, EngineOptions, ModelSource, Options, Precision, PrecisionPolicy, Size,
};
use orate_graph::{DType, Graph, Memory, Plan, launches_of};
use orate_models::supertonic::{Files, Padding, Sizes, graphs};
use orate_testing::checkpoints;
use std::sync::OnceLock;

/// Golden models.
const MODELS: [&str; 3] = ["tiny", "tiny1", "tiny3"];

/// A sentence, short because processors imitate GPUs slowly.
const SENTENCE: &str = "A short one.";

/// Each device may be this far from the truth at the end of the chain.
const SPEECH_TOLERANCE: f64 = GPU_TOLERANCE + F32_TOLERANCE;

fn devices() -> Vec<DeviceChoice> {
    let names = std::env::var("ORATE_TEST_DEVICES").unwrap_or_else(|_| "vulkan:0".to_owned());
    names
        .split(',')
        .map(|name| name.trim().parse().unwrap_or_else(|e| panic!("ORATE_TEST_DEVICES: {e}")))
        .collect()
}

fn open(device: DeviceChoice, model: ModelSource) -> Engine {
    open_in(Precision::F32, device, model)
}

fn open_in(precision: Precision, device: DeviceChoice, model: ModelSource) -> Engine {
    let precision = PrecisionPolicy::uniform(precision).into();
    let options = EngineOptions { device, model, precision, threads: Some(2), ..Default::default() };
    Engine::with_options(options).unwrap_or_else(|e| {
        panic!(
            "{e}\nthese tests need a GPU or Mesa's software Vulkan (Debian: apt-get install \
         mesa-vulkan-drivers)"
        )
    })
}

fn built_in(device: DeviceChoice) -> Engine {
    open(device, ModelSource::Path(common::root().join("voices/orate-default/orate-default.gguf")))
}

/// Much smaller.
fn tiny(device: DeviceChoice) -> Engine {
    open(device, ModelSource::Path(golden("tiny3")))
}

fn speak(engine: &Engine, text: &str, seed: u64) -> Audio {
    engine.speak(text, &Options { seed, ..raw() }).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// What the CPU says, computed once.
fn by_the_cpu() -> &'static Audio {
    static AUDIO: OnceLock<Audio> = OnceLock::new();
    AUDIO.get_or_init(|| speak(&built_in(DeviceChoice::Cpu), SENTENCE, 3))
}

/// Each line of a step that `explain` prints is what the device launches for it, and no launch is left out.
#[test]
fn explained_steps_are_the_launches_that_run() {
    let qwen = checkpoints::qwen3_tts_goldens().join("checkpoints/tiny-base");
    for device in devices().into_iter().chain([DeviceChoice::Cpu]) {
        let models = MODELS.map(|model| ModelSource::Path(golden(model)));
        for model in models.into_iter().chain([ModelSource::Goldens(qwen.clone())]) {
            let engine = open(device, model);
            let size = Size { tokens: 12, frames: 6 };
            for (executable, _) in engine.plans(size, &raw()).expect("compiles").plans {
                let plan = executable.plan();
                let what = format!("{} on {}", plan.name(), engine.device());
                let steps = plan.steps().iter().map(|s| launches_of(&s.kernel));
                let listed: Vec<usize> = steps.chain(plan.copies().iter().map(|_| 1)).collect();
                assert_eq!(executable.launches(), listed, "{what}");
                let text = plan.explain(None);
                let is_step = |line: &&str| {
                    line.starts_with("copy") || line.trim_start().starts_with(|c: char| c.is_ascii_digit())
                };
                assert_eq!(text.lines().filter(is_step).count(), listed.len(), "{what}:\n{text}");
            }
        }
    }
}

#[test]
fn a_sentence_is_as_on_the_cpu_and_the_same_every_time() {
    for device in devices() {
        let engine = built_in(device);
        let audio = speak(&engine, SENTENCE, 3);
        let cpu = by_the_cpu();
        assert_eq!(audio.samples.len(), cpu.samples.len());
        let error = relative_error(&audio.samples, &cpu.samples);
        println!("{}: differs from the CPU by {error:e}", engine.device());
        assert!(error < SPEECH_TOLERANCE, "{}: {error:e}", engine.device());
        assert!(speak(&engine, SENTENCE, 3) == audio, "{}: another run gives other samples", engine.device());
        assert!(
            speak(&built_in(device), SENTENCE, 3) == audio,
            "{device}: another engine gives other samples"
        );
    }
}

#[test]
fn the_host_is_not_in_the_loop() {
    for device in devices() {
        let engine = built_in(device);
        for steps in [1, 4] {
            let options = raw().set("steps", steps);
            let chunks: Vec<_> = engine.stream("Hm.", &options).expect("can be spoken").collect();
            let chunk = chunks[0].as_ref().expect("spoken");
            // Duration, text, noise with what all steps share, all steps, vocoder.
            assert_eq!(chunk.counters.submissions, 5, "{}, {steps} steps", engine.device());
            assert_eq!(chunk.counters.read_backs, 2, "{}", engine.device());
            let audio = 4 * chunk.samples.len() as u64;
            assert!(chunk.counters.bytes_down < audio + 4 * 1800 + 8, "only seconds and samples come down");
            assert!(chunk.counters.bytes_up < 64 * 1024, "only ids, styles and times go up");
            // What the first made is there for the second.
            let again: Vec<_> = engine.stream("Hm.", &options).expect("can be spoken").collect();
            let again = again[0].as_ref().expect("spoken");
            assert_eq!(again.counters.allocations, 0, "{}: buffers were made", engine.device());
        }
    }
}

#[test]
fn engines_and_threads_share_a_device() {
    for device in devices() {
        let (one, other) = (tiny(device), tiny(device));
        let want = speak(&one, "Hm.", 1);
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(speak(&other, "Hm.", 1) == want, "{}", other.device()));
            for _ in 0..2 {
                // Texts of one engine that come together share a run.
                scope.spawn(|| assert_near(&speak(&one, "Hm.", 1).samples, &want.samples, &one));
            }
        });
    }
}

/// Rows of a run are computed by other kernels than a row alone.
fn assert_near(got: &[f32], want: &[f32], engine: &Engine) {
    let error = relative_error(got, want);
    assert!(got.len() == want.len() && error < 2.0 * GPU_TOLERANCE, "{}: {error:e}", engine.device());
}

/// Pieces of a text and of several callers share runs, and each is what it would be alone.
#[test]
fn pieces_that_share_runs_are_what_they_would_be_alone() {
    let texts = [
        vec![
            "Hm.",
            "A short one.",
            "This one is rather longer than the others.",
            "No.",
            "Four words are here.",
        ],
        vec!["Another caller.", "Hm."],
        vec!["And a third one, who says a little more than that.", "Yes.", "A short one.", "Hm."],
    ];
    let all = |engine: &Engine, text: &str, options: &Options| -> Vec<Chunk> {
        let stream = engine.stream(text, options).expect("can be spoken");
        stream.map(|chunk| chunk.expect("spoken")).collect()
    };
    for device in devices() {
        let engine = tiny(device);
        engine.warm_up_for_callers(&raw(), 3).expect("runs of two and of four rows");
        // A piece as part of a text has the seed of its number.
        let alone = |(i, piece): (usize, &&str)| {
            let chunks = all(&engine, piece, &Options { first_piece: i, ..raw() });
            assert_eq!(chunks.len(), 1, "{piece}");
            chunks[0].samples.clone()
        };
        let wants: Vec<Vec<Vec<f32>>> =
            texts.iter().map(|text| text.iter().enumerate().map(alone).collect()).collect();
        let check = |text: &[&str], want: &[Vec<f32>]| {
            let chunks = all(&engine, &text.join("\n\n"), &raw());
            assert_eq!(chunks.len(), want.len());
            chunks.iter().zip(want).for_each(|(got, want)| assert_near(&got.samples, want, &engine));
            chunks.iter().map(|chunk| chunk.counters.submissions).sum::<u64>()
        };
        // One piece, two, and the other two.
        assert_eq!(check(&texts[0], &wants[0]), 3 * 5, "runs of one text");
        // More callers than have runs of their own.
        std::thread::scope(|scope| {
            for (text, want) in texts.iter().zip(&wants).cycle().take(9) {
                scope.spawn(|| check(text, want));
            }
        });
    }
}

#[test]
fn an_engine_may_go_while_a_stream_is_open() {
    for device in devices() {
        let engine = tiny(device);
        let mut stream = engine.stream("Hm.\n\nHm.", &raw()).expect("can be spoken");
        let first = stream.next().expect("two pieces").expect("spoken");
        drop(engine);
        let second = stream.next().expect("two pieces").expect("the stream keeps what it needs");
        assert!(!first.samples.is_empty() && !second.samples.is_empty());
    }
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    for device in devices() {
        let DeviceChoice::Kind(kind, _) = device else { continue };
        let device = DeviceChoice::Kind(kind, 1000);
        let error =
            Engine::with_options(EngineOptions { device, ..Default::default() }).expect_err("no such device");
        assert!(error.to_string().contains(&format!("{}:1000", kind.name())), "{error}");
        // Allowed to, the CPU takes over, and says why: in the format that was asked for, or it says that
        // too.
        for (asked, computed, reasons) in
            [(Precision::F16, Precision::F16, 1), (Precision::Tf32, Precision::F32, 2)]
        {
            let precision = PrecisionPolicy::uniform(asked).into();
            let options = EngineOptions { device, precision, allow_fallback: true, ..Default::default() };
            let engine = Engine::with_options(options).expect("the CPU is there");
            assert_eq!(engine.precision().precision, computed, "{asked}");
            assert!(engine.device().starts_with("cpu"), "{}", engine.device());
            assert_eq!(engine.fallbacks().len(), reasons, "{:?}", engine.fallbacks());
        }
    }
}

/// Resident memory of this process in bytes, where the system says.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let kb =
        text.lines().find_map(|l| l.strip_prefix("VmRSS:"))?.trim().trim_end_matches(" kB").parse::<u64>();
    Some(1024 * kb.ok()?)
}

#[test]
#[ignore = "2800 utterances: for real GPUs (scripts/gpu-check)"]
fn thousands_of_utterances() {
    let words = [
        "Hm.",
        "A short one.",
        "This sentence is rather longer than the others are, by a few words.",
        "Four words are here.",
    ];
    for device in devices() {
        let engine = built_in(device);
        let id = engine.device_info().id();
        let wants: Vec<Audio> = words.iter().map(|w| speak(&engine, w, 9)).collect();
        let mut marks = vec![];
        let mut start = std::time::Instant::now();
        for i in 0..2800 {
            let audio = speak(&engine, words[i % words.len()], 9);
            assert!(audio == wants[i % words.len()], "{id}: utterance {i} differs");
            if (i + 1) % 400 == 0 {
                marks.push((start.elapsed().as_secs_f64(), resident(), engine.device_info().free_memory));
                start = std::time::Instant::now();
            }
        }
        for (seconds, host, free) in &marks {
            let mb = |n: &Option<u64>| n.map_or("?".to_owned(), |n| format!("{:.1}", n as f64 / 1e6));
            println!(
                "{id}: 400 utterances in {seconds:.2} s; host {} MB, free on the device {} MB",
                mb(host),
                mb(free)
            );
        }
        let (first, last) = (&marks[0], &marks[marks.len() - 1]);
        let grown = last.1.zip(first.1).map_or(0, |(last, first)| last.saturating_sub(first));
        assert!(grown < 4 << 20, "{id}: host memory grew by {grown} bytes");
        let used = first.2.zip(last.2).map_or(0, |(first, last)| first.saturating_sub(last));
        assert!(used < 4 << 20, "{id}: device memory grew by {used} bytes");
        assert!(last.0 < 1.3 * first.0, "{id}: slower and slower: {marks:?}");
    }
}

/// Sizes of a sentence of five seconds.
const TOKENS: usize = 80;
/// See [`TOKENS`].
const FRAMES: usize = 72;

/// How long the networks take for sentences of a batch. `MODELS` names folders.
#[test]
#[ignore = "timing; run with --ignored --nocapture"]
fn bench_of_batches() {
    let folders = std::env::var("MODELS").expect("MODELS names folders, with commas between them");
    for (choice, folder) in devices().into_iter().flat_map(|d| folders.split(',').map(move |f| (d, f))) {
        let files = Files::open(std::path::Path::new(folder)).expect("opens");
        for precision in [Precision::F32, Precision::F16] {
            let device = crate::qwen3::open(choice, precision);
            let mut one = 0.0;
            for batch in [1, 2, 3, 4, 8, 16, 32] {
                let padding = Padding::Ignored;
                let sizes = Sizes { batch, tokens: TOKENS, frames: FRAMES, steps: 5, padding };
                let graphs = graphs(&files.config, &*files.weights, sizes).expect("as the files");
                let time = |graph: Graph| {
                    let times = if graph.name() == "vector_estimator.step" { 5.0 } else { 1.0 };
                    let what = format!("{folder} {precision}: {} of {batch} rows", graph.name());
                    times * crate::qwen3::bench(&what, &*device, graph, full_length)
                };
                let all: f64 = graphs.into_iter().map(time).sum();
                one = if batch == 1 { all } else { one };
                println!("  {batch} rows in {:.3} ms: {:.2} times one", all * 1e3, batch as f64 * one / all);
            }
        }
    }
}

/// Gives all rows the length of the longest.
fn full_length(memory: &mut dyn Memory, plan: &Plan) {
    crate::qwen3::clear(memory, plan);
    plan.scalars().iter().for_each(|name| memory.set_index(name, 1));
    for b in plan.buffers().iter().filter(|b| b.dtype == DType::I32 && b.name.contains("lens")) {
        let length = match &*b.name {
            "dp_lens" => TOKENS + 1,
            "text_lens" => TOKENS,
            _ => FRAMES,
        };
        memory.write_i32(&b.name, &b.shape, &vec![length as i32; b.shape.len()]).expect("fits");
    }
}
