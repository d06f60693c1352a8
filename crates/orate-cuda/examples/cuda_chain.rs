//! Times all networks of Supertonic 2 or 3 on a GPU with random weights at the official sizes, and compares
//! the samples with those of the CPU.
//!
//! ```sh
//! cargo run --release -p orate-cuda --example cuda_chain -- v2 [f32|tf32|f16|bf16] [--profile]
//! ```
//!
//! Instead of `v2`, `v3` or the path of a model with the sizes to use may be given.

#[path = "../tests/common/mod.rs"]
mod common;

use orate_cpu::{CpuDevice, Isa};
use orate_cuda::CudaDevice;
use orate_graph::{Device, Executable, Graph, Memory, Plan, PrecisionPolicy};
use orate_models::supertonic::{Padding, Sizes};
use orate_testing::{Random, RandomWeights};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

const SIZES: Sizes = Sizes { batch: 1, tokens: 80, frames: 72, steps: 5, padding: Padding::None };
const RUNS: usize = 200;
const STAGES: [&str; 5] = ["duration predictor", "text encoder", "vector estimator", "vocoder", "total"];

type Error = Box<dyn std::error::Error>;

fn load(
    device: &dyn Device,
    graphs: &[Graph],
    weights: &RandomWeights,
) -> Result<Vec<Arc<dyn Executable>>, Error> {
    let model = device.open(Arc::new(weights.clone()));
    let load = |g: &Graph| Ok(model.load(Plan::compile(g.clone(), device)?)?);
    graphs.iter().map(load).collect()
}

/// Writes all inputs of a session.
fn prepare(m: &mut dyn Memory, graphs: &[Graph]) -> Result<(), Error> {
    let mut random = Random::new(9);
    let ids: Vec<i32> = (0..SIZES.tokens).map(|_| 1 + random.below(100) as i32).collect();
    m.write_i32("text_ids", &[1, SIZES.tokens].into(), &ids)?;
    for b in graphs.iter().flat_map(|g| g.buffers()).filter(|b| b.name.starts_with("style_")) {
        m.write_f32(&b.name, &b.shape, &random.floats(b.shape.len(), -1.0, 1.0))?;
    }
    let times: Vec<f32> = (0..SIZES.steps).map(|i| i as f32 / SIZES.steps as f32).collect();
    m.write_f32("times", &[SIZES.steps].into(), &times)?;
    m.set_scalar("dt", 1.0 / SIZES.steps as f32);
    m.set_index("seed", 0);
    Ok(())
}

/// Runs one utterance and returns the seconds of each stage.
fn speak(plans: &[Arc<dyn Executable>], m: &mut dyn Memory, wav: &mut Vec<f32>) -> Result<[f64; 5], Error> {
    let start = Instant::now();
    let mut seconds = vec![];
    plans[0].run(m)?;
    m.read_f32("duration", &mut seconds)?;
    let a = start.elapsed().as_secs_f64();
    plans[1].run(m)?;
    let b = start.elapsed().as_secs_f64();
    plans[2].run(m)?;
    plans[3].run_times(m, "step", SIZES.steps, &|| true)?;
    let c = start.elapsed().as_secs_f64();
    plans[4].run(m)?;
    m.read_f32("wav", wav)?;
    let d = start.elapsed().as_secs_f64();
    Ok([a, b - a, c - b, d - c, d])
}

fn median(mut x: Vec<f64>) -> f64 {
    x.sort_by(f64::total_cmp);
    x[x.len() / 2]
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let version = arguments.first().map_or("v2", String::as_str);
    let precision = arguments.get(1).map_or("f32", String::as_str).parse()?;
    let (_, graphs) = common::official(version, SIZES);
    let weights = RandomWeights::of_graphs(&graphs, 3);

    let t = Instant::now();
    let cache = std::env::temp_dir().join("orate-cuda-example");
    let device = CudaDevice::new(0, PrecisionPolicy::uniform(precision), Some(cache))?;
    let opened = t.elapsed().as_secs_f64();
    let t = Instant::now();
    let plans = load(&device, &graphs, &weights)?;
    println!("{version} {precision} on {:?}", device.info());
    println!("device {:.0} ms, weights and plans {:.0} ms", opened * 1e3, t.elapsed().as_secs_f64() * 1e3);

    let (mut m, mut wav) = (device.memory(), vec![]);
    prepare(m.as_mut(), &graphs)?;
    let first = speak(&plans, m.as_mut(), &mut wav)?;
    println!("first run {:.2} ms", first[4] * 1e3);

    // The same with the host waiting after each stage, to time stages separately.
    let mut alone = [const { vec![] }; 5];
    let mut probe = vec![];
    for _ in 0..RUNS {
        let mut last = Instant::now();
        let mut lap =
            |i: usize| alone[i].push(std::mem::replace(&mut last, Instant::now()).elapsed().as_secs_f64());
        plans[0].run(m.as_mut())?;
        m.read_f32("duration", &mut probe)?;
        lap(0);
        plans[1].run(m.as_mut())?;
        m.read_f32("duration", &mut probe)?;
        lap(1);
        plans[2].run(m.as_mut())?;
        plans[3].run_times(m.as_mut(), "step", SIZES.steps, &|| true)?;
        m.read_f32("duration", &mut probe)?;
        lap(2);
        plans[4].run(m.as_mut())?;
        m.read_f32("duration", &mut probe)?;
        lap(3);
    }
    let mut all = vec![];
    for _ in 0..RUNS {
        all.push(speak(&plans, m.as_mut(), &mut wav)?[4]);
    }
    alone[4] = all;
    let mut submits = vec![];
    for _ in 0..RUNS {
        let t = Instant::now();
        plans[3].run_times(m.as_mut(), "step", SIZES.steps, &|| true)?;
        submits.push(t.elapsed().as_secs_f64());
        m.read_f32("duration", &mut probe)?;
    }
    println!("submitting all steps {:.3} ms", median(submits) * 1e3);
    for (name, times) in STAGES.iter().zip(alone) {
        println!("{name:<20} {:>8.3} ms", median(times) * 1e3);
    }

    let cpu =
        CpuDevice::new(std::thread::available_parallelism().map_or(1, usize::from), Isa::available()[0])?;
    let (cpu_plans, mut cpu_memory, mut want) = (load(&cpu, &graphs, &weights)?, cpu.memory(), vec![]);
    prepare(cpu_memory.as_mut(), &graphs)?;
    speak(&cpu_plans, cpu_memory.as_mut(), &mut want)?;
    let largest = want.iter().fold(0f32, |m, x| m.max(x.abs()));
    let worst = wav.iter().zip(&want).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
    println!("largest sample {largest:.3}, largest difference from the CPU {:.1e} of it", worst / largest);

    if arguments.iter().any(|a| a == "--profile") {
        for (plan, name) in plans.iter().zip(["duration", "text", "prepare", "step", "vocoder"]) {
            let times = plan.profile(m.as_mut())?;
            let mut groups: BTreeMap<String, (usize, f64, u64, u64)> = BTreeMap::new();
            for (step, time) in plan.plan().steps().iter().zip(&times) {
                let k = step.node.op.weights().first().map_or(0, |w| w.shape().dims()[0]);
                let key = format!("{} {} K {k}", step.describe(), plan.plan().info(step.node.output).shape);
                let g = groups.entry(key).or_default();
                *g = (g.0 + 1, g.1 + time, g.2 + step.cost.flops, g.3 + step.cost.bytes);
            }
            println!("{name}: {} steps, {:.1} µs", times.len(), times.iter().sum::<f64>() * 1e6);
            let mut groups: Vec<_> = groups.into_iter().collect();
            groups.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
            for (key, (count, time, flops, bytes)) in groups.iter().take(14) {
                let rate = *flops as f64 / time / 1e12;
                let speed = *bytes as f64 / time / 1e9;
                println!(
                    "  {count:>3} × {:>7.2} µs  {rate:>6.1} TFLOP/s {speed:>6.0} GB/s  {key}",
                    time * 1e6 / *count as f64
                );
            }
        }
    }
    Ok(())
}
