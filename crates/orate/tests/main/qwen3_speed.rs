//! How long a frame of Qwen3-TTS takes on the CPU, at the released widths and on random weights.

use orate_cpu::{CpuDevice, Isa};
use orate_graph::{
    BufferKind, CacheFormat, DType, Device, Executable, Graph, GraphError, Plan, Precision, PrecisionPolicy,
    Shape, TAP_PREFIX, Tensor, WeightLoader,
};
use orate_models::qwen3_tts::talker::CacheSizes;
use orate_models::qwen3_tts::{Config, frame};
use orate_testing::checkpoints::qwen3_tts_goldens;
use orate_testing::random::Random;
use orate_testing::snr_db;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Any tensor, as a stretch of one list of random numbers: a gigabyte of weights would take longer to make
/// than to time.
struct AnyWeights {
    shapes: BTreeMap<String, Shape>,
    numbers: Vec<f32>,
}

impl AnyWeights {
    fn of(graph: &Graph) -> AnyWeights {
        let mut shapes = BTreeMap::new();
        for w in graph.nodes().iter().flat_map(|n| n.op.weights()) {
            w.visit_named(&mut |name, shape| drop(shapes.insert(name.to_owned(), shape.clone())));
        }
        let largest = shapes.values().map(Shape::len).max().unwrap_or(0);
        AnyWeights { shapes, numbers: Random::new(3).floats(largest, -0.03, 0.03) }
    }
}

impl WeightLoader for AnyWeights {
    fn load(&self, name: &str) -> Result<Tensor<'_>, GraphError> {
        let shape = self.shapes.get(name).expect("named by the graph").clone();
        let mut strides = vec![1; shape.rank()];
        for axis in (1..shape.rank()).rev() {
            strides[axis - 1] = strides[axis] * shape.dims()[axis];
        }
        Ok(Tensor { data: Cow::Borrowed(&self.numbers[..shape.len()]), shape, strides })
    }
}

fn released(width: usize, inner: usize) -> Config {
    let path = qwen3_tts_goldens().join("checkpoints/tiny-base/config.json");
    let mut json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(path).expect("committed")).expect("JSON");
    let sizes = |layers: usize, width: usize, inner: usize, vocabulary: usize| {
        [
            ("num_hidden_layers", layers),
            ("hidden_size", width),
            ("intermediate_size", inner),
            ("vocab_size", vocabulary),
            ("num_attention_heads", 16),
            ("num_key_value_heads", 8),
            ("head_dim", 128),
        ]
    };
    let t = &mut json["talker_config"];
    sizes(28, width, inner, 3072).into_iter().for_each(|(key, value)| t[key] = value.into());
    let p = &mut t["code_predictor_config"];
    sizes(5, 1024, 3072, 2048).into_iter().for_each(|(key, value)| p[key] = value.into());
    json["speaker_encoder_config"]["enc_dim"] = width.into();
    Config::from_json(json.to_string().as_bytes()).expect("as released")
}

/// `ORATE_SPEED` names formats of weights, such as `f32,q8_0`; `ORATE_THREADS` a number of threads, and
/// `ORATE_STREAMS` how many utterances a frame is made of, such as `1,16`.
#[test]
#[ignore = "timing, and gigabytes of weights; run with --ignored --nocapture"]
fn a_frame() {
    let formats = std::env::var("ORATE_SPEED").unwrap_or_else(|_| "q8_0".to_owned());
    let threads = std::env::var("ORATE_THREADS").map_or(2, |n| n.parse().expect("a number"));
    let streams = std::env::var("ORATE_STREAMS").unwrap_or_else(|_| "1".to_owned());
    let config = released(1024, 3072);
    let capacity = 512;
    let graph = |batch: usize| {
        let mut g = Graph::new("frame");
        frame::build(&mut g, &config.talker_config, CacheSizes { batch, capacity, kv: CacheFormat::F32 }, 64)
            .expect("consistent");
        g
    };
    let weights = Arc::new(AnyWeights::of(&graph(1)));
    for format in formats.split(',') {
        let policy = PrecisionPolicy::uniform(format.parse().expect("a format"));
        let isa = Isa::detect().expect("a supported processor");
        let device =
            CpuDevice::new(threads, isa).expect("threads start").with_precision(policy).expect("able");
        let model = device.open(weights.clone());
        for batch in streams.split(',').map(|n| n.parse().expect("a number")) {
            let compiling = Instant::now();
            let plan = Plan::compile(graph(batch), &device).expect("all ops have kernels");
            let compiling = compiling.elapsed().as_secs_f64();
            let loading = Instant::now();
            let plan = model.load(plan).expect("all weights are there");
            println!(
                "{format}, {isa}, {threads} threads, {batch} streams: {} steps, compiled in {:.1} ms, \
                 loaded in {:.1} s, \
                 {:.2} GB",
                plan.plan().steps().len(),
                compiling * 1e3,
                loading.elapsed().as_secs_f64(),
                model.weight_bytes() as f64 / 1e9
            );
            for position in [50, 450] {
                time(&device, &*plan, position, batch);
            }
        }
    }
}

fn time(device: &CpuDevice, plan: &dyn Executable, position: i32, batch: usize) {
    let mut memory = device.memory();
    for b in plan.plan().buffers() {
        match b.kind {
            BufferKind::State | BufferKind::Cache | BufferKind::Scratch => {
                memory.clear(&b.name, b.dtype, &b.shape).expect("has room")
            }
            BufferKind::Input if b.name == "seed" => {
                memory.write_i32("seed", &b.shape, &[1, 2].repeat(batch)).expect("has room")
            }
            BufferKind::Input if b.name.ends_with("sampling") => {
                let one = [0.9, 50.0, 1.0, 1.05];
                memory.write_f32(&b.name, &b.shape, &one.repeat(batch)).expect("has room");
            }
            BufferKind::Input => {
                memory.write_f32(&b.name, &b.shape, &vec![0.1; b.shape.len()]).expect("has room")
            }
            BufferKind::Output => {}
        }
    }
    memory.write_i32("position", &[batch].into(), &vec![position; batch]).expect("has room");
    plan.run(&mut *memory).expect("runs");
    let mut times: Vec<f64> = (0..10)
        .map(|_| {
            let start = Instant::now();
            plan.run(&mut *memory).expect("runs");
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("position {position}: {:.1} ms a frame, best {:.1} ms", times[5] * 1e3, times[0] * 1e3);
    // The least of several runs, as neighbours take the processor away now and then.
    let mut least = vec![f64::INFINITY; plan.plan().steps().len()];
    for _ in 0..7 {
        let profile = plan.profile(&mut *memory).expect("runs");
        least.iter_mut().zip(profile).for_each(|(least, seconds)| *least = least.min(seconds));
    }
    println!("  sum of each step's least: {:.1} ms", least.iter().sum::<f64>() * 1e3);
    let mut by_op: BTreeMap<String, (usize, f64)> = BTreeMap::new();
    for (step, seconds) in plan.plan().steps().iter().zip(least) {
        let entry = by_op.entry(step.describe()).or_default();
        entry.0 += 1;
        entry.1 += seconds;
    }
    for (op, (count, seconds)) in by_op {
        println!("  {op:<16} {count:>5} steps {:>8.3} ms", seconds * 1e3);
    }
}

/// Weights as a checkpoint has them: normally distributed with 1 / √inputs, gains near 1; every tensor begins
/// elsewhere in one list of numbers.
struct NormalWeights(AnyWeights);

impl WeightLoader for NormalWeights {
    fn load(&self, name: &str) -> Result<Tensor<'_>, GraphError> {
        let Tensor { shape, strides, .. } = self.0.load(name)?;
        let all = &self.0.numbers;
        let start = name.bytes().fold(7_usize, |h, b| h.wrapping_mul(31).wrapping_add(b.into())) % (1 << 20);
        let numbers = &all[start..][..shape.len()];
        let scale = if name.contains("embedding") { 1.0 } else { (shape.last() as f32).sqrt().recip() };
        let value = |x: &f32| if name.contains("norm") { 1.0 + 0.1 * x } else { scale * x };
        Ok(Tensor { data: numbers.iter().map(value).collect(), shape, strides })
    }
}

/// What talker and code predictor make of given codes in formats of weights, compared with `f32`:
/// signal-to-noise ratios of their logits and how often the likeliest code is the same. `ORATE_NOISE` names
/// formats.
#[test]
#[ignore = "gigabytes of weights; run with --ignored --nocapture"]
fn noise_of_given_codes() {
    const FRAMES: usize = 24;
    let formats = std::env::var("ORATE_NOISE").unwrap_or_else(|_| "q8_0,q6_k,q5_k,q4_k,q4_0".to_owned());
    let config = released(1024, 3072);
    let talker = &config.talker_config;
    let mut g = Graph::new("frame").with_taps();
    let sizes = CacheSizes { batch: 1, capacity: 64, kv: CacheFormat::F32 };
    frame::of_given_codes(&mut g, talker, sizes, 64).expect("consistent");
    let weights = AnyWeights::of(&g);
    let mut random = Random::new(5);
    // Sums of uniform numbers, of variance 1.
    let len = weights.numbers.len() + (1 << 20);
    let uniform = random.floats(len + 12, -0.5, 0.5);
    let numbers = uniform.windows(12).map(|w| w.iter().sum()).collect();
    let weights = Arc::new(NormalWeights(AnyWeights { numbers, ..weights }));
    let codes: Vec<i32> = random.floats(16 * FRAMES, 0.0, 2048.0).into_iter().map(|x| x as i32).collect();
    let text = random.floats(64 * 1024, -1.0, 1.0);
    let hidden = random.floats(1024, -1.0, 1.0);
    // Logits of the talker, then of all passes of the predictor.
    let run = |precision: Precision| -> ([Vec<f32>; 2], u64) {
        let isa = Isa::detect().expect("a supported processor");
        let device = CpuDevice::new(2, isa).expect("threads start");
        let device = device.with_precision(PrecisionPolicy::uniform(precision)).expect("able");
        let model = device.open(weights.clone());
        let plan = model.load(Plan::compile(g.clone(), &device).expect("compiles")).expect("loads");
        let mut memory = device.memory();
        for b in g.buffers().iter().filter(|b| b.kind.is_state()) {
            memory.clear(&b.name, b.dtype, &b.shape).expect("has room");
        }
        memory.write_f32("hidden", &[1, 1, 1024].into(), &hidden).expect("writes");
        let feed = g.buffers().iter().find(|b| b.kind == BufferKind::Input && b.dtype == DType::F32);
        let feed = feed.expect("rows of text").clone();
        memory.write_f32(&feed.name, &feed.shape, &text).expect("writes");
        let mut all = [vec![], vec![]];
        for codes in codes.chunks_exact(16) {
            memory.write_i32(frame::GIVEN, &[1, 16].into(), codes).expect("writes");
            plan.run(memory.as_mut()).expect("runs");
            let mut read = |name: &str, to: &mut Vec<f32>| {
                let mut logits = vec![];
                memory.read_f32(name, &mut logits).expect("reads");
                to.extend(logits);
            };
            read("logits", &mut all[0]);
            for pass in 0..15 {
                read(&format!("{TAP_PREFIX}predictor_logits{pass}"), &mut all[1]);
            }
        }
        (all, model.weight_bytes())
    };
    let (exact, bytes) = run(Precision::F32);
    println!("f32: {:.0} MB", bytes as f64 / 1e6);
    for format in formats.split(',') {
        let (got, bytes) = run(format.parse().expect("a format"));
        print!("{format}: {:.0} MB", bytes as f64 / 1e6);
        for ((got, exact), width) in got.iter().zip(&exact).zip([3072, 2048]) {
            let likeliest =
                |x: &[f32]| x.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(i, _)| i);
            let rows = || got.chunks_exact(width).zip(exact.chunks_exact(width));
            let same = rows().filter(|(a, b)| likeliest(a) == likeliest(b)).count();
            let share = 100.0 * same as f64 / rows().count() as f64;
            print!(", {:.1} dB and {share:.0} % the same", snr_db(got, exact));
        }
        println!();
    }
}
