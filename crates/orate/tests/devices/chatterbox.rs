//! Chatterbox on GPUs: what an utterance asks of the device, and streams.
//!
//! `ORATE_TEST_DEVICES` names the devices; see `supertonic.rs`.
#![cfg(any(feature = "cuda", feature = "gpu"))]

use crate::common::raw;
use crate::qwen3::{bench, clear, kv_on_gpus, open as open_device};
use orate::{Cancel, Chunk, DeviceChoice, Engine, EngineOptions, Error, ModelSource, Options, Precision};
use orate_graph::{DType, Graph, Memory, Plan};
use orate_models::chatterbox::flow_encoder::{FRAME_LENGTHS, Rows};
use orate_models::chatterbox::{Files, estimator, t3};
use orate_models::decoding::SHARED;
use orate_testing::checkpoints::{write_chatterbox, write_chatterbox_as};
use std::time::Duration;

const TEXT: &str = "Hello there.";

fn devices() -> Vec<DeviceChoice> {
    let names = std::env::var("ORATE_TEST_DEVICES").unwrap_or_else(|_| "vulkan:0".to_owned());
    let named = names.split(',').map(|name| name.trim().parse());
    named.map(|d| d.unwrap_or_else(|e| panic!("ORATE_TEST_DEVICES: {e}"))).collect()
}

fn open(device: DeviceChoice, variant: &str) -> Engine {
    let folder = tempfile::tempdir().expect("a folder");
    write_chatterbox(folder.path(), variant, "tiny").expect("the folder is writable");
    let model = ModelSource::Path(folder.path().to_owned());
    let options = EngineOptions { device, model, threads: Some(2), ..Default::default() };
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

/// Callers at once share runs of S3Gen, and speak as each does alone.
#[test]
fn callers_at_once_speak_as_alone() {
    const CALLERS: usize = 4;
    // What another rounding of the pitch does to the phase of the highest harmonic.
    const ERROR: f32 = 2.5e-2;
    for device in devices() {
        for variant in ["en", "turbo"] {
            let engine = open(device, variant);
            let cancel = Cancel::new();
            let speak = |i: usize| {
                // Only the last one is cancelled.
                let cancel = (i == CALLERS).then(|| cancel.clone());
                let options = Options { seed: i as u64, whole: true, cancel, ..raw() };
                // Few steps: a processor imitates GPUs slowly, and they are alike.
                let options = options.set("max_codes", 6 + 4 * i).set("steps", 2);
                engine.speak(TEXT, &options).map(|speech| speech.samples)
            };
            let alone: Vec<Vec<f32>> = (0..CALLERS).map(|i| speak(i).expect("speaks")).collect();
            let together: Vec<_> = std::thread::scope(|threads| {
                let speak = &speak;
                let cancelled = threads.spawn(move || (0..).find_map(|_| speak(CALLERS).err()));
                let all: Vec<_> = (0..CALLERS).map(|i| threads.spawn(move || speak(i))).collect();
                std::thread::sleep(Duration::from_millis(20));
                cancel.cancel();
                let error = cancelled.join().expect("no panic");
                assert!(matches!(error, Some(Error::Cancelled)), "{device}, {variant}: {error:?}");
                all.into_iter().map(|one| one.join().expect("no panic")).collect()
            });
            for (i, (alone, got)) in alone.iter().zip(together).enumerate() {
                let got = got.unwrap_or_else(|e| panic!("{device}, {variant}, caller {i}: {e}"));
                assert_eq!(alone.len(), got.len(), "{device}, {variant}, caller {i}");
                let largest = alone.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                let error = alone.iter().zip(&got).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
                assert!(error <= ERROR * largest, "{device}, {variant}, caller {i}: {error} of {largest}");
            }
        }
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
