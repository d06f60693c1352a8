//! Networks of Qwen3-TTS on GPUs: goldens of the official package, ops at released widths, and how long they
//! take.
//!
//! `ORATE_TEST_DEVICES` names the devices, such as `cuda:0,vulkan:0`. Without it the first Vulkan device is
//! used, which may be a software rasterizer (Mesa's lavapipe); if there is none, these tests fail
//! and say so.
#![cfg(any(feature = "cuda", feature = "gpu"))]

mod damaged_codec;
mod first_audio;
mod frames;
mod speech;
mod starting;

use crate::broken_row;
use orate::hooks::GPU_TOLERANCE;
use orate::{DeviceChoice, Precision, PrecisionPolicy};
use orate_cpu::{CpuDevice, Isa};
use orate_graph::{
    BufferKind, CacheFormat, Counters, Device, DeviceKind, Executable, Graph, Memory, Op, Plan, Shape,
};
use orate_models::Loader;
use orate_models::qwen3_tts::talker::CacheSizes;
use orate_models::qwen3_tts::{
    CodecConfig, CodecDecoder, CodecDecoderConfig, Config, Past, Request, Session, Settings, Speaker, Step,
    codec_decoder, frame, prompt_rows, talker,
};
use orate_testing::checkpoints::qwen3_tts_goldens;
use orate_testing::random::Random;
use orate_testing::{OnDevice, RandomWeights, assert_close, check_all, harvest};
use orate_weights::{SafeTensors, WeightSource};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn choices() -> Vec<DeviceChoice> {
    let names = std::env::var("ORATE_TEST_DEVICES").unwrap_or_else(|_| "vulkan:0".to_owned());
    let named = names.split(',').map(|name| name.trim().parse());
    named.map(|d| d.unwrap_or_else(|e| panic!("ORATE_TEST_DEVICES: {e}"))).collect()
}

fn devices(precision: Precision) -> Vec<Box<dyn Device>> {
    choices().into_iter().map(|d| open(d, precision)).collect()
}

/// A device as engines open it, without a cache.
pub(super) fn open(device: DeviceChoice, precision: Precision) -> Box<dyn Device> {
    let DeviceChoice::Kind(kind, index) = device else { panic!("{device}: name a driver and a number") };
    let policy = PrecisionPolicy::uniform(precision);
    let opened: Result<Box<dyn Device>, _> = match kind {
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda => orate_cuda::CudaDevice::new(index, policy, None).map(|d| Box::new(d) as _),
        #[cfg(feature = "gpu")]
        DeviceKind::Vulkan | DeviceKind::Metal | DeviceKind::Dx12 => {
            orate_gpu::GpuDevice::new(Some(kind), index, policy, None).map(|d| Box::new(d) as _)
        }
        kind => panic!("these tests were built without an executor for {}: {policy}, {index}", kind.name()),
    };
    opened.unwrap_or_else(|e| {
        panic!(
            "{e}\nthese tests need a GPU or Mesa's software Vulkan (Debian: apt-get install \
         mesa-vulkan-drivers)"
        )
    })
}

fn file(name: &str) -> SafeTensors {
    SafeTensors::open(qwen3_tts_goldens().join(name)).expect("committed")
}

fn json(name: &str) -> serde_json::Value {
    let text =
        std::fs::read(qwen3_tts_goldens().join("checkpoints/tiny-base").join(name)).expect("committed");
    serde_json::from_slice(&text).expect("JSON")
}

fn codec_config() -> CodecDecoderConfig {
    let text = json("speech_tokenizer/config.json").to_string();
    CodecConfig::from_json(text.as_bytes()).expect("as the oracle writes it").decoder_config
}

fn codec_graph(c: &CodecDecoderConfig, frames: usize) -> Graph {
    let mut g = Graph::new("codec_decoder");
    codec_decoder::build(&mut g, c, Past::Silence, 1, frames).expect("the configuration is consistent");
    g
}

/// A plan of `graph` with the weights of a committed file.
fn load(device: &dyn Device, graph: Graph, weights: &str) -> Arc<dyn Executable> {
    let plan = Plan::compile(graph, device).expect("all ops have kernels");
    device.open(Arc::new(Loader(Arc::new(file(weights))))).load(plan).expect("all weights are there")
}

fn read(memory: &mut dyn Memory, buffer: &str) -> Vec<f32> {
    let mut out = vec![];
    memory.read_f32(buffer, &mut out).expect("an output");
    out
}

/// The samples of `[F, 16]` codes.
fn decode(device: &dyn Device, codes: &SafeTensors) -> Vec<f32> {
    let codes = codes.get("codes").expect("every case has codes");
    let ids: Vec<i32> = codes.to_f32().iter().map(|x| *x as i32).collect();
    let frames = codes.shape[0];
    let weights = "checkpoints/tiny-base/speech_tokenizer/decoder.safetensors";
    let plan = load(device, codec_graph(&codec_config(), frames), weights);
    let mut memory = device.memory();
    memory.write_i32("codes", &Shape::from([1, frames, 16]), &ids).expect("the shape");
    plan.run(memory.as_mut()).expect("runs");
    let first = read(memory.as_mut(), "samples");
    plan.run(memory.as_mut()).expect("runs");
    assert!(read(memory.as_mut(), "samples") == first, "{}: another run gives other samples", device.name());
    first
}

#[test]
fn codes_become_the_official_waveform() {
    let case = file("cases/codec_decode.safetensors");
    let want = case.get("waveform").expect("is there").to_f32();
    for device in devices(Precision::F32) {
        let got = decode(&*device, &case);
        let c = assert_close(&device.describe(), &got, &want, GPU_TOLERANCE);
        println!("{}: waveform {:.1e}", device.describe(), c.max_error);
    }
}

/// On GPUs kernels for few and for many rows sum in different orders, so pieces joined differ from one pass
/// by rounding: of the largest sample, measured 4e-6 on lavapipe. On the CPU they do not differ at all, see
/// `qwen3_codec`.
const PIECES_TOLERANCE: f64 = 2e-5;

#[test]
fn pieces_joined_are_the_whole_but_for_rounding() {
    let codes = file("cases/codec_decode.safetensors").get("codes").expect("is there").to_f32();
    let codes: Vec<i32> = codes[..16 * 11].iter().map(|x| *x as i32).collect();
    for device in devices(Precision::F32) {
        let (name, device): (_, Arc<dyn Device>) = (device.describe(), device.into());
        let weights = Loader(Arc::new(file("checkpoints/tiny-base/speech_tokenizer/decoder.safetensors")));
        let decoder = Arc::new(CodecDecoder::new(codec_config(), device.clone(), Arc::new(weights)));
        let plan = load(
            &*device,
            codec_graph(&codec_config(), 11),
            "checkpoints/tiny-base/speech_tokenizer/decoder.safetensors",
        );
        let mut memory = device.memory();
        memory.write_i32("codes", &Shape::from([1, 11, 16]), &codes).expect("the shape");
        plan.run(memory.as_mut()).expect("runs");
        let whole = read(memory.as_mut(), "samples");
        let mut stream = decoder.stream().expect("has room");
        for split in [[1, 1, 2, 7], [4, 3, 3, 1]] {
            stream.restart().expect("has room");
            let (mut got, mut rest) = (vec![], &codes[..]);
            for frames in split {
                let (piece, behind) = rest.split_at(16 * frames);
                stream.push(piece, &mut got).expect("runs");
                rest = behind;
            }
            let c = assert_close(&format!("{name}: {split:?}"), &got, &whole, PIECES_TOLERANCE);
            println!("{name}: pieces of {split:?}: {:.1e}", c.max_error);
        }
    }
}

#[test]
#[ignore = "310 frames: for real GPUs (scripts/gpu-check)"]
fn long_sequences_in_one_pass() {
    let case = file("cases/codec_decode_long.safetensors");
    for device in devices(Precision::F32) {
        let got = decode(&*device, &case);
        let want = |name: &str| case.get(name).expect("is there").to_f32();
        assert_close("head", &got[..1920], &want("head"), GPU_TOLERANCE);
        assert_close("around frame 300", &got[299 * 1920..303 * 1920], &want("whole"), GPU_TOLERANCE);
    }
}

fn tiny() -> Config {
    Config::from_json(json("config.json").to_string().as_bytes()).expect("as the oracle writes it")
}

fn prefill_graph(c: &Config, capacity: usize, time: usize) -> Graph {
    let mut graph = Graph::new("prefill");
    let sizes = CacheSizes { batch: 1, capacity, kv: CacheFormat::F32 };
    talker::prefill(&mut graph, &c.talker_config, sizes, time).expect("consistent");
    graph
}

/// Makes all inputs and states of a plan, of zeros.
pub(super) fn clear(memory: &mut dyn Memory, plan: &Plan) {
    for b in plan.buffers().iter().filter(|b| b.kind != BufferKind::Output) {
        memory.clear(&b.name, b.dtype, &b.shape).expect("has room");
    }
}

#[test]
fn a_prompt_is_read_as_by_the_official_package() {
    let case = file("cases/tiny-base/xvector_streaming.safetensors");
    let want = |name: &str| case.get(name).expect("is there").to_f32();
    let time = case.info("prompt_embeds").expect("is there").shape[0];
    let graph = prefill_graph(&tiny(), 21, time);
    for device in devices(Precision::F32) {
        let plan = load(&*device, graph.clone(), "checkpoints/tiny-base/talker.safetensors");
        let mut memory = device.memory();
        clear(memory.as_mut(), plan.plan());
        memory.write_f32("rows", &graph.buffers()[0].shape, &want("prompt_embeds")).expect("the shape");
        memory.write_i32(talker::LAST, &[1].into(), &[time as i32 - 1]).expect("has room");
        plan.run(memory.as_mut()).expect("runs");
        for (buffer, golden) in [("hidden", "talker_hidden"), ("logits", "talker_logits")] {
            let got = read(memory.as_mut(), buffer);
            let c = assert_close(&device.describe(), &got, &want(golden), GPU_TOLERANCE);
            println!("{}: {golden} {:.1e}", device.describe(), c.max_error);
        }
    }
}

/// Writes what the frame plan reads: drawing as the released models do, and a state in front of the first
/// frame.
fn write_frame_inputs(memory: &mut dyn Memory, plan: &Plan, temperature: f32) {
    clear(memory, plan);
    for (i, b) in plan.buffers().iter().enumerate().filter(|(_, b)| b.kind != BufferKind::Output) {
        let n = b.shape.len();
        match b.name.as_str() {
            "sampling" | "predictor_sampling" => {
                let one = [temperature, 50.0, 1.0, 1.05];
                memory.write_f32(&b.name, &b.shape, &one.repeat(n / 4)).expect("fits");
            }
            "seed" => memory.write_i32(&b.name, &b.shape, &(1..=n as i32).collect::<Vec<_>>()).expect("fits"),
            "trailing" | "hidden" | "logits" => {
                let floats = Random::new(i as u64).floats(n, -1.0, 1.0);
                memory.write_f32(&b.name, &b.shape, &floats).expect("fits");
            }
            _ => {}
        }
    }
}

/// Some frames: their codes, and the talker's state behind them.
fn speak_frames(device: &dyn Device, graph: &Graph, temperature: f32) -> (Vec<i32>, Vec<f32>) {
    let plan = Plan::compile(graph.clone(), device).expect("all ops have kernels");
    let plan = device.open(Arc::new(RandomWeights::of_graph(graph, 5))).load(plan).expect("random weights");
    let mut memory = device.memory();
    write_frame_inputs(memory.as_mut(), plan.plan(), temperature);
    let (mut all, mut codes) = (vec![], vec![]);
    let before = memory.counters();
    const FRAMES: u64 = 4;
    for _ in 0..FRAMES {
        plan.run(memory.as_mut()).expect("runs");
        memory.read_i32("codes", &mut codes).expect("an output");
        all.extend(&codes);
    }
    let used = memory.counters() - before;
    assert_eq!((used.submissions, used.read_backs), (FRAMES, FRAMES), "{}", device.name());
    assert!(used.bytes_up < 64, "{}: {used:?}", device.name());
    (all, read(memory.as_mut(), "hidden"))
}

/// A frame is one submission, and draws what the CPU draws.
#[test]
fn frames_are_as_on_the_cpu() {
    let cpu = CpuDevice::new(2, Isa::detect().expect("a supported processor")).expect("threads start");
    // Executors join steps of a single row.
    for (batch, temperature) in [(1, 0.0), (1, 0.9), (2, 0.0), (2, 0.9), (16, 0.9)] {
        let mut graph = Graph::new("frame");
        let sizes = CacheSizes { batch, capacity: 7, kv: CacheFormat::F32 };
        frame::build(&mut graph, &tiny().talker_config, sizes, 3).expect("consistent");
        let (codes, hidden) = speak_frames(&cpu, &graph, temperature);
        for device in devices(Precision::F32) {
            let (ours, state) = speak_frames(&*device, &graph, temperature);
            assert_eq!(ours, codes, "{}, batch {batch}, temperature {temperature}", device.describe());
            assert_close(&device.describe(), &state, &hidden, GPU_TOLERANCE);
            let again = speak_frames(&*device, &graph, temperature);
            assert!(again == (ours, state), "{}: another run gives other frames", device.describe());
        }
    }
}

fn engine_of(folder: &std::path::Path, device: DeviceChoice) -> orate::Engine {
    let model = orate::ModelSource::Path(folder.to_owned());
    let options = orate::EngineOptions { model, device, ..Default::default() };
    orate::Engine::with_options(options).expect("a whole model")
}

fn start(model: &Arc<orate::qwen3_tts::Qwen3Tts>, text: &str, seed: u64, max_frames: usize) -> Session {
    let (speaker, language) = (Speaker::Named("ryan"), None);
    let request = Request { text, speaker, language, instruct: None, feeding: None };
    let drawn = Settings::new(&model.talking().expect("talks").generation, seed);
    let settings = Settings { max_frames, ..drawn };
    model.start(&model.prompt(&request).expect("speakable"), &settings).expect("starts")
}

/// Codes up to the end.
fn rest_of(session: &mut Session) -> Vec<i32> {
    let (mut all, mut codes) = (vec![], vec![]);
    while session.next_frame(&mut codes).expect("goes on") == Step::Frame {
        all.extend(&codes);
    }
    all
}

/// Utterances that join and leave a batch are what the device makes of each alone.
#[test]
fn rows_of_a_batch_are_what_they_would_be_alone() {
    const ALL: usize = 5;
    let folder = tempfile::tempdir().expect("a folder");
    orate_testing::checkpoints::write_random_qwen3_tts("custom_voice", folder.path(), 3)
        .expect("is writable");
    for device in choices() {
        let engine = engine_of(folder.path(), device);
        let model = &engine.model_as::<orate::qwen3_tts::Qwen3Tts>().expect("is one");
        let started = |i: usize| {
            let text = format!("Number {i}{}.", " and so on".repeat(7 * (i % 3)));
            start(model, &text, i as u64, 6 + 3 * i)
        };
        let alone: Vec<_> = (0..ALL).map(|i| rest_of(&mut started(i))).collect();
        // One by one, and without a wait between two frames.
        for ahead in [false, true] {
            let before = started(3);
            let mut session = started(3);
            session.set_look_ahead(ahead);
            let (start, mut codes) = (session.counters(), vec![]);
            // But that a memory may have room from before.
            let asked = |counters| Counters { allocations: 0, ..counters };
            assert_eq!(asked(start), asked(before.counters()), "the same prompt");
            let mut frames = 0;
            while session.next_frame(&mut codes).expect("goes on") == Step::Frame {
                assert_eq!(codes, alone[3][frames * 16..][..16], "{}", engine.device());
                frames += 1;
                let used = session.counters() - start;
                let made = (frames + usize::from(ahead)).min(15) as u64;
                assert_eq!((used.submissions, used.read_backs), (made, made), "{}", engine.device());
                assert_eq!((used.bytes_up, used.bytes_down), (0, 64 * made), "{}", engine.device());
            }
        }
        let mut batch = model.batch().expect("talks");
        let mut sessions: Vec<_> = (0..ALL).map(started).collect();
        let (mut rows, mut together) = (vec![], vec![vec![]; ALL]);
        let (mut calls, mut submissions) = (0, 0);
        // One was on its way before it came, with a frame made ahead.
        let mut codes = vec![];
        assert_eq!(sessions[1].next_frame(&mut codes).expect("goes on"), Step::Frame);
        together[1].extend(&codes);
        for frame in 0..30 {
            if let Some(session) = sessions.get_mut(frame) {
                rows.push(batch.join(session).expect("room"));
            }
            let used = batch.frame(|row, step, codes| {
                let (i, step) =
                    (rows.iter().position(|r| *r == row).expect("joined"), step.expect("goes on"));
                assert!(step == Step::Frame || codes.is_empty());
                together[i].extend(codes);
            });
            let used = used.expect("goes on");
            assert!(
                used.submissions <= 2 && used.read_backs == used.submissions,
                "{}: {used:?}",
                engine.device()
            );
            calls += u64::from(used.submissions > 0 || used.read_backs > 0);
            submissions += used.submissions;
            if frame == 6 {
                assert!(batch.take(rows[4], &mut sessions[4]).expect("goes on"), "has not ended");
                together[4].extend(rest_of(&mut sessions[4]));
            }
        }
        assert!(batch.is_empty());
        assert_eq!(together, alone, "{}", engine.device());
        assert!(submissions <= calls + 1, "{}: {submissions} frames in {calls} calls", engine.device());
    }
}

/// More rows than kernels for few have, in a memory for 256.
#[test]
fn many_rows_of_a_batch_are_what_they_would_be_alone() {
    const ALL: usize = 140;
    let folder = tempfile::tempdir().expect("a folder");
    orate_testing::checkpoints::write_random_qwen3_tts("custom_voice", folder.path(), 3)
        .expect("is writable");
    for device in choices() {
        let engine = engine_of(folder.path(), device);
        let model = &engine.model_as::<orate::qwen3_tts::Qwen3Tts>().expect("is one");
        let started = |i: usize| start(model, &format!("Number {i}."), i as u64, 3);
        let mut batch = model.batch().expect("talks");
        let mut sessions: Vec<_> = (0..ALL).map(started).collect();
        let rows: Vec<_> = sessions.iter_mut().map(|session| batch.join(session).expect("room")).collect();
        assert_eq!(batch.rows(), 256, "{}", engine.device());
        let mut together: Vec<Vec<i32>> = vec![vec![]; ALL];
        while !batch.is_empty() {
            let each = |row, step: Result<Step, _>, codes: &[i32]| {
                step.expect("goes on");
                together[rows.iter().position(|r| *r == row).expect("joined")].extend(codes);
            };
            batch.frame(each).expect("goes on");
        }
        for i in (0..ALL).step_by(23) {
            assert_eq!(together[i], rest_of(&mut started(i)), "row {i}, {}", engine.device());
        }
    }
}

/// The sizes of the released codec.
fn released_codec() -> CodecDecoderConfig {
    let mut json = json("speech_tokenizer/config.json");
    let sizes = serde_json::json!({
        "latent_dim": 1024, "codebook_dim": 512, "codebook_size": 2048, "decoder_dim": 1536,
        "hidden_size": 512,
        "intermediate_size": 1024, "head_dim": 64, "num_attention_heads": 16, "num_key_value_heads": 16,
        "num_hidden_layers": 8, "sliding_window": 72,
    });
    for (key, value) in sizes.as_object().expect("an object") {
        json["decoder_config"][key] = value.clone();
    }
    json["encoder_config"]["codebook_size"] = 2048.into();
    CodecConfig::from_json(json.to_string().as_bytes()).expect("as released").decoder_config
}

#[test]
#[ignore = "large: for real GPUs (scripts/gpu-check)"]
fn ops_at_the_released_widths() {
    let c = released_codec();
    let heavy = |op: &Op| matches!(op, Op::MatMul { .. } | Op::Conv1d { .. });
    let mut cases = harvest(&codec_graph(&c, 1));
    let long = harvest(&codec_graph(&c, 100)).into_iter();
    cases.extend(long.filter(|c| {
        let small = c.graph.buffers().iter().all(|b| b.shape.len() <= 102_400);
        small && c.graph.nodes().iter().all(|n| !heavy(&n.op))
    }));
    let mut rows = Graph::new("rows of a prompt");
    prompt_rows::build(&mut rows, &released_talker().talker_config, 32, true).expect("consistent");
    cases.extend(harvest(&rows));
    for device in devices(Precision::F32) {
        let report = check_all(&OnDevice(&*device), &cases);
        println!("{report}");
        report.assert();
    }
}

/// The sizes of the released 0.6B model.
fn released_talker() -> Config {
    let mut json = json("config.json");
    let talker = serde_json::json!({
        "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "num_hidden_layers": 28, "vocab_size": 3072,
    });
    let predictor = serde_json::json!({
        "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "num_hidden_layers": 5, "vocab_size": 2048,
    });
    for (key, value) in talker.as_object().expect("an object") {
        json["talker_config"][key] = value.clone();
    }
    for (key, value) in predictor.as_object().expect("an object") {
        json["talker_config"]["code_predictor_config"][key] = value.clone();
    }
    json["speaker_encoder_config"]["enc_dim"] = 1024.into();
    Config::from_json(json.to_string().as_bytes()).expect("as released")
}

/// How long a frame of the 0.6B model takes, and a prompt.
#[test]
#[ignore = "timing; run with --ignored --nocapture"]
fn bench_of_the_talker() {
    let config = released_talker();
    for choice in choices() {
        let is_cuda = matches!(choice, DeviceChoice::Kind(DeviceKind::Cuda, _));
        // Formats with tensor cores, and rows of caches: on others than CUDA, a session has 4 GiB at most.
        let (formats, capacity, long, most): (&[Precision], _, _, _) = match is_cuda {
            true => (&[Precision::Bf16], 512, 400, 256),
            false => (&[Precision::F16, Precision::Q8_0], 128, 100, 64),
        };
        for &precision in formats {
            let device = open(choice, precision);
            let what = |what: &str| format!("{} {precision}: {what}", device.describe());
            let kv = kv_on_gpus(precision);
            let frame = |batch: usize| {
                let mut graph = Graph::new("frame");
                let sizes = CacheSizes { batch, capacity, kv };
                frame::build(&mut graph, &config.talker_config, sizes, 64).expect("consistent");
                graph
            };
            let start = |batch: usize, at: i32| {
                move |memory: &mut dyn Memory, plan: &Plan| {
                    write_frame_inputs(memory, plan, 0.9);
                    memory.write_i32("position", &[batch].into(), &vec![at; batch]).expect("fits");
                }
            };
            bench(&what("a frame behind 20 rows"), &*device, frame(1), start(1, 20));
            let one =
                bench(&what(&format!("a frame behind {long} rows")), &*device, frame(1), start(1, long));
            for batch in [2, 4, 8, 16, 32, 64, 128, 256].into_iter().filter(|batch| *batch <= most) {
                let words = what(&format!("a frame of {batch} streams behind {long} rows"));
                let all = bench(&words, &*device, frame(batch), start(batch, long));
                println!("  {:.2} times the throughput of one stream", batch as f64 * one / all);
            }
            for rows in [32, 128] {
                let prompt = prefill_graph(&config, 1024, rows);
                bench(&what(&format!("a prompt of {rows} rows")), &*device, prompt, clear);
            }
            for batch in [1, 16, 64].into_iter().filter(|batch| *batch <= most) {
                let mut prompts = Graph::new("prefill");
                let sizes = CacheSizes { batch, capacity: 64, kv };
                talker::prefill(&mut prompts, &config.talker_config, sizes, 32).expect("consistent");
                bench(&what(&format!("{batch} prompts of 32 rows")), &*device, prompts, clear);
            }
        }
    }
}

/// Format of keys and values that engines choose on GPUs for rounded weights.
pub(super) fn kv_on_gpus(weights: Precision) -> CacheFormat {
    match weights {
        Precision::Bf16 => CacheFormat::Bf16,
        _ => CacheFormat::F16,
    }
}

/// Prints the best of some runs of `graph` with random weights, and the ops that take longest.
pub(super) fn bench(
    what: &str,
    device: &dyn Device,
    graph: Graph,
    prepare: impl Fn(&mut dyn Memory, &Plan),
) -> f64 {
    let weights = Arc::new(RandomWeights::of_graph(&graph, 1));
    let plan = match Plan::compile(graph, device) {
        Ok(plan) => plan,
        Err(e) => panic!("{what}: {e}"),
    };
    let plan = device.open(weights).load(plan).expect("weights are random");
    let mut memory = device.memory();
    prepare(memory.as_mut(), plan.plan());
    let (mut best, begin) = (f64::INFINITY, Instant::now());
    // An idle card clocks down: it takes a moment until runs are as fast as within speech.
    for i in 0.. {
        if i >= 10 && begin.elapsed() > Duration::from_secs(1) {
            break;
        }
        let start = Instant::now();
        plan.run(memory.as_mut()).expect("runs");
        memory.wait().expect("done");
        best = best.min(start.elapsed().as_secs_f64());
    }
    let cost = plan.plan().cost();
    println!(
        "{what} in {:.3} ms, {:.1} TFLOP/s, {} steps",
        best * 1e3,
        cost.flops as f64 / best / 1e12,
        plan.plan().steps().len()
    );
    let times = plan.profile(memory.as_mut()).expect("runs");
    let mut ops = BTreeMap::<String, (f64, usize)>::new();
    for (step, time) in plan.plan().steps().iter().zip(&times) {
        let op = ops.entry(step.describe()).or_default();
        *op = (op.0 + time, op.1 + 1);
    }
    let mut ops: Vec<_> = ops.into_iter().collect();
    ops.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    let parts: Vec<_> =
        ops.iter().take(9).map(|(name, (t, n))| format!("{name} {:.3} ({n})", t * 1e3)).collect();
    println!("  ms by op: {}", parts.join(", "));
    best
}

/// How long streams of audio take at the released widths.
#[test]
#[ignore = "timing; run with --ignored --nocapture"]
fn bench_of_the_codec() {
    let c = released_codec();
    for precision in [Precision::F32, Precision::F16, Precision::Bf16] {
        for device in devices(precision) {
            for (streams, frames) in [(1, 4), (1, 25), (1, 100), (8, 25)] {
                let what = format!("{} {precision}: {streams} of {frames} frames", device.describe());
                let mut graph = Graph::new("codec_decoder");
                codec_decoder::build(&mut graph, &c, Past::Stream, streams, frames).expect("consistent");
                let time = bench(&what, &*device, graph, clear);
                println!("  {:.0} x real time", (streams * frames) as f64 * 0.08 / time);
            }
        }
    }
}

#[test]
fn utterances_that_begin_together_are_what_they_would_be_alone() {
    for device in choices() {
        starting::together(orate::EngineOptions { device, ..Default::default() });
    }
}

#[test]
fn a_row_without_numbers_fails_alone() {
    for device in choices() {
        broken_row::fails_alone(orate::EngineOptions { device, ..Default::default() });
    }
}
