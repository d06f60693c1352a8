//! Chatterbox on GPUs: what an utterance asks of the device, and streams.
//!
//! `ORATE_TEST_DEVICES` names the devices; see `supertonic.rs`.
#![cfg(any(feature = "cuda", feature = "gpu"))]

use crate::common::raw;
use crate::qwen3::{bench, clear, kv_on_gpus, open as open_device};
use orate::{
    Audio, Cancel, Chunk, DeviceChoice, Engine, EngineOptions, Error, ModelSource, Options, Precision,
};
use orate_graph::{BufferKind, DType, Graph, Memory, Plan};
use orate_models::Loader;
use orate_models::chatterbox::flow_encoder::{CODE_LENGTHS, FRAME_LENGTHS, Rows};
use orate_models::chatterbox::{Files, estimator, flow_encoder, t3, vocoder};
use orate_models::decoding::SHARED;
use orate_testing::checkpoints::write_chatterbox_as;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TEXT: &str = "Hello there.";

fn devices() -> Vec<DeviceChoice> {
    let names = std::env::var("ORATE_TEST_DEVICES").unwrap_or_else(|_| "vulkan:0".to_owned());
    let named = names.split(',').map(|name| name.trim().parse());
    named.map(|d| d.unwrap_or_else(|e| panic!("ORATE_TEST_DEVICES: {e}"))).collect()
}

fn open(device: DeviceChoice, variant: &str) -> Engine {
    open_sized(device, variant, ("tiny", DType::F32), "stored")
}

/// A model of random weights.
fn open_sized(device: DeviceChoice, variant: &str, (size, stored): (&str, DType), precision: &str) -> Engine {
    let folder = tempfile::tempdir().expect("a folder");
    write_chatterbox_as(folder.path(), variant, size, stored).expect("the folder is writable");
    let model = ModelSource::Path(folder.path().to_owned());
    let precision = precision.parse().expect("a precision");
    let options = EngineOptions { device, model, precision, threads: Some(2), ..Default::default() };
    Engine::with_options(options).unwrap_or_else(|e| panic!("{device}: {e}"))
}

fn chunks(engine: &Engine, options: &Options) -> Vec<Chunk> {
    engine.stream(TEXT, options).expect("begins").map(|chunk| chunk.expect("speaks")).collect()
}

/// A submission and a read-back for each code; one of both for all of S3Gen's steps and samples.
#[test]
fn the_host_is_not_in_the_loop() {
    const CODES: usize = 8;
    for device in devices() {
        for variant in ["en", "turbo"] {
            let engine = open(device, variant);
            let options = Options { whole: true, ..raw() }.set("max_codes", CODES);
            let mut used = vec![];
            for steps in [1usize, 3] {
                let options = options.clone().set("steps", steps);
                chunks(&engine, &options); // the voice is kept, and buffers are made
                let all = chunks(&engine, &options);
                assert_eq!(all.len(), 1);
                let counters = all[0].counters;
                // Prompt rows and what begins, a prompt pass, the codes; flow encoder, steps, vocoder.
                let most = 3 + CODES as u64 + 3;
                let what = format!("{variant} on {}: {counters:?}", engine.device());
                assert!(counters.submissions <= most, "{what}, at most {most} submissions");
                assert!(counters.read_backs <= CODES as u64 + 1, "{what}");
                assert_eq!(counters.allocations, 0, "{what}");
                used.push((counters.submissions, counters.read_backs));
            }
            assert_eq!(used[0], used[1], "{variant}: more steps ask no more of the device");
        }
    }
}

/// A GPU streams without being asked to, and gives as many samples as the whole has.
#[test]
fn pieces_come_in_chunks() {
    for device in devices() {
        let engine = open(device, "turbo");
        let options = raw().set("max_codes", 48);
        let whole = engine.speak(TEXT, &options).expect("speaks").samples;
        let all = chunks(&engine, &options);
        let lengths: Vec<usize> = all.iter().map(|chunk| chunk.samples.len()).collect();
        // They end after 10, 40 and 48 codes.
        assert!(lengths.len() == 3 && lengths[0] < 20 * 960, "{device}: {lengths:?}");
        assert_eq!(lengths.iter().sum::<usize>(), whole.len(), "{device}");
        assert!(all.iter().flat_map(|chunk| &chunk.samples).all(|x| x.is_finite()), "{device}");
    }
}

/// Callers at once share runs of the flow, three of them also one of the vocoder, and speak as each does
/// alone.
#[test]
fn callers_at_once_speak_as_alone() {
    for device in devices() {
        for variant in ["en", "turbo"] {
            let engine = open(device, variant);
            at_once(&engine, |i, options| {
                // Few steps: a processor imitates GPUs slowly, and they are alike.
                let options = options.set("max_codes", 6 + 4 * (i / 3)).set("steps", 2);
                engine.speak(TEXT, &options)
            });
        }
    }
}

/// The same with the kernels of released sizes: conversions, as the codes of speech in 16 bits differ.
#[test]
#[ignore = "needs a GPU; run with --ignored"]
fn callers_at_once_at_released_sizes() {
    const RATE: usize = 16_000;
    for device in devices() {
        let engine = open_sized(device, "en", ("full", DType::BF16), "stored");
        at_once(&engine, |i, options| {
            let wave = |n: usize| {
                let t = n as f32 / RATE as f32;
                0.3 * ((700.0 + 90.0 * i as f32) * t * (1.0 + 0.3 * t)).sin() * (9.0 * t).sin()
            };
            let samples: Vec<f32> = (0..RATE * (3 + i / 3)).map(wave).collect();
            let chunks = engine.convert_samples(&samples, RATE as u32, &options)?;
            let chunks = chunks.collect::<Result<Vec<Chunk>, Error>>()?;
            let samples = chunks.into_iter().flat_map(|chunk| chunk.samples).collect();
            Ok(Audio { samples, sample_rate: engine.sample_rate() })
        });
    }
}

/// Checks callers of numbers from 0, and one who is cancelled.
fn at_once(engine: &Engine, speak: impl Fn(usize, Options) -> Result<Audio, Error> + Sync) {
    const CALLERS: usize = 4;
    // What another rounding of the pitch does to the phase of the highest harmonic.
    const ERROR: f32 = 2.5e-2;
    let (device, cancel) = (engine.device(), Cancel::new());
    let speak = |i: usize| {
        // Only the last one is cancelled.
        let cancel = (i == CALLERS).then(|| cancel.clone());
        speak(i, Options { seed: i as u64, whole: true, cancel, ..raw() }).map(|speech| speech.samples)
    };
    let alone: Vec<Vec<f32>> = (0..CALLERS).map(|i| speak(i).expect("speaks")).collect();
    let together: Vec<_> = std::thread::scope(|threads| {
        let speak = &speak;
        let cancelled = threads.spawn(move || (0..).find_map(|_| speak(CALLERS).err()));
        let all: Vec<_> = (0..CALLERS).map(|i| threads.spawn(move || speak(i))).collect();
        std::thread::sleep(Duration::from_millis(20));
        cancel.cancel();
        let error = cancelled.join().expect("no panic");
        assert!(matches!(error, Some(Error::Cancelled)), "{device}: {error:?}");
        all.into_iter().map(|one| one.join().expect("no panic")).collect()
    });
    for (i, (alone, got)) in alone.iter().zip(together).enumerate() {
        let got = got.unwrap_or_else(|e| panic!("{device}, caller {i}: {e}"));
        assert_eq!(alone.len(), got.len(), "{device}, caller {i}");
        let largest = alone.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let error = alone.iter().zip(&got).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(error <= ERROR * largest, "{device}, caller {i}: {error} of {largest}");
    }
}

/// How long a code takes at released sizes, for several callers after 500 rows each.
#[test]
#[ignore = "timing; run with --ignored --nocapture"]
fn bench_of_a_code() {
    const ROWS: i32 = 500;
    for variant in ["turbo", "en"] {
        let folder = tempfile::tempdir().expect("a folder");
        write_chatterbox_as(folder.path(), variant, "full", DType::BF16).expect("the folder is writable");
        let config = Files::open(folder.path()).expect("opens").talking.expect("a T3").config;
        for device in devices() {
            let device = open_device(device, Precision::Bf16);
            for (batch, common) in [1, 4, 16, 32, 64].into_iter().flat_map(|batch| [(batch, 0), (batch, 376)])
            {
                let mut graph = Graph::new("frame");
                let kv = kv_on_gpus(Precision::Bf16);
                let sizes = t3::CacheSizes { batch, capacity: 1024, kv, watched: false };
                t3::frame(&mut graph, &config, sizes).expect("consistent");
                if common > 0 && graph.buffers().iter().all(|b| b.name != SHARED) {
                    continue;
                }
                let start = |memory: &mut dyn Memory, plan: &Plan| {
                    clear(memory, plan);
                    let position = plan.buffers().iter().find(|b| b.name == "position").expect("a state");
                    let rows = vec![ROWS; position.shape.len()];
                    memory.write_i32("position", &position.shape, &rows).expect("fits");
                    if common > 0 {
                        let shared = [0, common].repeat(batch);
                        memory.write_i32(SHARED, &[batch, 2].into(), &shared).expect("fits");
                    }
                };
                let what =
                    format!("{} {variant}: a code of {batch}, {common} rows in common", device.describe());
                bench(&what, &*device, graph, start);
            }
        }
    }
}

/// How long prompts of 32 rows take at released sizes, after the rows of a voice.
#[test]
#[ignore = "timing; run with --ignored --nocapture"]
fn bench_of_prompts() {
    const ROWS: usize = 32;
    for (variant, voice) in [("turbo", 376), ("en", 34)] {
        let folder = tempfile::tempdir().expect("a folder");
        write_chatterbox_as(folder.path(), variant, "full", DType::BF16).expect("the folder is writable");
        let config = Files::open(folder.path()).expect("opens").talking.expect("a T3").config;
        for device in devices() {
            let device = open_device(device, Precision::Bf16);
            for batch in [1, 16, 64] {
                let mut graph = Graph::new("prefill");
                let kv = kv_on_gpus(Precision::Bf16);
                let sizes = t3::CacheSizes { batch, capacity: 512, kv, watched: false };
                t3::prefill(&mut graph, &config, sizes, ROWS).expect("consistent");
                let start = |memory: &mut dyn Memory, plan: &Plan| {
                    clear(memory, plan);
                    for (name, row) in [("position", voice), ("last", ROWS as i32 - 1)] {
                        let shape = &plan.buffers().iter().find(|b| b.name == name).expect("declared").shape;
                        memory.write_i32(name, shape, &vec![row; shape.len()]).expect("fits");
                    }
                };
                let what = format!("{} {variant}: {batch} prompts", device.describe());
                bench(&what, &*device, graph, start);
            }
        }
    }
}

/// How long the vocoder takes for several callers of 4 seconds at released sizes.
#[test]
#[ignore = "timing; run with --ignored --nocapture"]
fn bench_of_the_vocoder() {
    let folder = tempfile::tempdir().expect("a folder");
    write_chatterbox_as(folder.path(), "turbo", "full", DType::BF16).expect("the folder is writable");
    let files = Files::open(folder.path()).expect("opens");
    for device in devices() {
        let device = open_device(device, Precision::Bf16);
        for rows in [1, 4, 16] {
            let mut graph = Graph::new("vocoder");
            let source = vocoder::Source::Seeded { before: 0 };
            vocoder::build(&mut graph, &*files.weights, &files.s3gen.vocoder, [rows, 200], source)
                .expect("consistent");
            let start = |memory: &mut dyn Memory, plan: &Plan| {
                for b in plan.buffers().iter().filter(|b| b.kind == BufferKind::Input) {
                    memory.write_f32(&b.name, &b.shape, &vec![0.1; b.shape.len()]).expect("fits");
                }
                (0..rows).for_each(|row| memory.set_index(&vocoder::noise_seed(row), row as u64));
            };
            bench(&format!("{}: a vocoder of {rows}", device.describe()), &*device, graph, start);
        }
    }
}

/// What speech of a number of frames that nobody had costs the vocoder: a plan, and a first run.
#[test]
#[ignore = "timing; run with --ignored --nocapture"]
fn bench_of_new_lengths() {
    let folder = tempfile::tempdir().expect("a folder");
    write_chatterbox_as(folder.path(), "turbo", "full", DType::BF16).expect("the folder is writable");
    let files = Files::open(folder.path()).expect("opens");
    for device in devices() {
        let device = open_device(device, Precision::Bf16);
        let on_device = device.open(Arc::new(Loader(files.weights.clone())));
        let mut memory = device.memory();
        for frames in [200, 201, 202, 203, 260, 201] {
            let begun = Instant::now();
            let ms = |from: Instant| from.elapsed().as_secs_f64() * 1e3;
            let mut graph = Graph::new("vocoder");
            let source = vocoder::Source::Seeded { before: 0 };
            vocoder::build(&mut graph, &*files.weights, &files.s3gen.vocoder, [1, frames], source)
                .expect("consistent");
            let plan = Plan::compile(graph, &*device).expect("all ops have kernels");
            let planned = ms(begun);
            let plan = on_device.load(plan).expect("weights are there");
            let loaded = ms(begun);
            for b in plan.plan().buffers().iter().filter(|b| b.kind == BufferKind::Input) {
                memory.write_f32(&b.name, &b.shape, &vec![0.1; b.shape.len()]).expect("fits");
            }
            memory.set_index(&vocoder::noise_seed(0), 1);
            let mut run = || {
                let begun = Instant::now();
                plan.run(&mut *memory).expect("runs");
                memory.wait().expect("done");
                ms(begun)
            };
            let [first, second, third] = [(); 3].map(|()| run());
            let (of, load) = (device.describe(), loaded - planned);
            let runs = format!("{first:.1} {second:.1} {third:.1}");
            println!("{of}: {frames} frames: plan {planned:.1} ms, load {load:.1}, runs {runs}");
        }
    }
}

/// How long everything before the first step of the flow takes at released sizes, likewise.
#[test]
#[ignore = "timing; run with --ignored --nocapture"]
fn bench_of_the_flow_encoder() {
    const CODES: usize = 352;
    let folder = tempfile::tempdir().expect("a folder");
    write_chatterbox_as(folder.path(), "turbo", "full", DType::BF16).expect("the folder is writable");
    let config = Files::open(folder.path()).expect("opens").s3gen;
    for device in devices() {
        let device = open_device(device, Precision::Bf16);
        for rows in [1, 4, 16] {
            let mut graph = Graph::new("flow encoder");
            let all = Rows { rows, codes: CODES, is_padded: true };
            let lens = graph.input(FRAME_LENGTHS, DType::I32, [rows]).expect("declares");
            let spoken =
                flow_encoder::build(&mut graph, &config.encoder, all, Some(lens)).expect("consistent");
            estimator::prepare(&mut graph, &config.estimator, all, spoken, 2).expect("consistent");
            let start = |memory: &mut dyn Memory, plan: &Plan| {
                for b in plan.buffers().iter().filter(|b| b.kind == BufferKind::Input) {
                    match (b.dtype, &*b.name) {
                        (DType::I32, FRAME_LENGTHS) => {
                            memory.write_i32(&b.name, &b.shape, &vec![2 * CODES as i32; rows]).expect("fits");
                        }
                        (DType::I32, name) => {
                            let x = if name == CODE_LENGTHS { CODES as i32 } else { 1 };
                            memory.write_i32(name, &b.shape, &vec![x; b.shape.len()]).expect("fits");
                        }
                        _ => memory.write_f32(&b.name, &b.shape, &vec![0.1; b.shape.len()]).expect("fits"),
                    }
                }
            };
            bench(&format!("{}: a flow encoder of {rows}", device.describe()), &*device, graph, start);
        }
    }
}

/// How long a step of the flow takes at released sizes, for several callers of 4 seconds after a prompt of
/// 10.
#[test]
#[ignore = "timing; run with --ignored --nocapture"]
fn bench_of_a_step() {
    const CODES: usize = 352;
    for variant in ["turbo", "en"] {
        let folder = tempfile::tempdir().expect("a folder");
        write_chatterbox_as(folder.path(), variant, "full", DType::BF16).expect("the folder is writable");
        let config = Files::open(folder.path()).expect("opens").s3gen.estimator;
        for device in devices() {
            let device = open_device(device, Precision::Bf16);
            for rows in [1, 4, 16] {
                let mut graph = Graph::new("estimator");
                let all = Rows { rows, codes: CODES, is_padded: true };
                estimator::step(&mut graph, &config, all, 2).expect("consistent");
                let start = |memory: &mut dyn Memory, plan: &Plan| {
                    clear(memory, plan);
                    let rows = rows * config.rows();
                    let lengths = vec![2 * CODES as i32; rows];
                    memory.write_i32(FRAME_LENGTHS, &[rows].into(), &lengths).expect("fits");
                    memory.set_index(estimator::STEP, 0);
                    estimator::GUIDANCE.into_iter().for_each(|name| memory.set_scalar(name, 1.0));
                };
                let what = format!("{} {variant}: a step of {rows}", device.describe());
                bench(&what, &*device, graph, start);
            }
        }
    }
}
