//! Times the networks of Supertonic at their real sizes, with random weights.
//!
//! ```sh
//! cargo run --release -p orate-gpu --example gpu_chain -- v2 v3 built-in
//! ```
//!
//! `f16` among the arguments stores all matmul weights in that format; `--profile` adds the slowest steps of
//! each plan. `ORATE_TEST_GPU` selects the device, `ORATE_TEST_CACHE` a folder for compiled kernels.

#[path = "../tests/common/mod.rs"]
mod common;

use orate_graph::{BufferKind, DType, Device, DeviceError, Executable, Memory, Plan, Precision};
use orate_models::supertonic::{Padding, Sizes};
use orate_testing::{Random, RandomWeights};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

const TOKENS: usize = 80;
const FRAMES: usize = 72;
const STEPS: usize = 5;
const REPEATS: usize = 40;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let (formats, arguments): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|a| a.parse::<Precision>().is_ok());
    let precision = formats.first().map_or(Ok(Precision::F32), |f| f.parse())?;
    let profile = arguments.iter().any(|a| a == "--profile");
    let start = Instant::now();
    let device = common::device_with(precision, std::env::var_os("ORATE_TEST_CACHE").map(Into::into));
    let info = device.info();
    println!("{}: {}, {}; opened in {:.1} ms", info.id(), info.name, info.driver, ms(start));
    println!("{}; card {:?}; matmuls in {precision}", info.features.join(", "), info.card);
    for model in arguments.iter().filter(|a| !a.starts_with("--")) {
        time(model, &device, profile)?;
    }
    Ok(())
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn time(model: &str, device: &dyn Device, profile: bool) -> Result<(), Failure> {
    let sizes = Sizes { batch: 1, tokens: TOKENS, frames: FRAMES, steps: STEPS, padding: Padding::None };
    let graphs = common::full_size(model, sizes);
    let opened = device.open(Arc::new(RandomWeights::of_graphs(&graphs, 5)));
    let mut memory = device.memory();
    let mut plans: Vec<Arc<dyn Executable>> = vec![];
    let mut written = BTreeSet::new();
    let start = Instant::now();
    for graph in graphs {
        let plan = opened.load(Plan::compile(graph, device)?)?;
        for b in plan.plan().buffers() {
            if b.kind != BufferKind::Output && !written.contains(&b.name) {
                let n = b.shape.len();
                match b.dtype {
                    DType::I32 => memory.write_i32(&b.name, &b.shape, &vec![1; n])?,
                    _ => {
                        let data = Random::named(1, &b.name).floats(n, 0.0, 1.0);
                        memory.write_f32(&b.name, &b.shape, &data)?;
                    }
                }
            }
            written.insert(b.name.clone());
        }
        plans.push(plan);
    }
    memory.set_index("seed", 7);
    memory.set_index("step", 0);
    memory.set_scalar("dt", 1.0 / STEPS as f32);
    println!(
        "\n{model}: loaded in {:.0} ms, {:.0} MB of weights",
        ms(start),
        opened.weight_bytes() as f64 / 1e6
    );

    let mut out = vec![];
    let start = Instant::now();
    chain(&plans, memory.as_mut(), &mut out)?;
    let (first, samples) = (ms(start), checksum(&out));
    println!("first {first:.1} ms, samples {samples:016x}");
    let before = memory.counters();
    let mut totals = vec![];
    for _ in 0..REPEATS {
        let start = Instant::now();
        chain(&plans, memory.as_mut(), &mut out)?;
        totals.push(ms(start));
        if checksum(&out) != samples {
            return Err("the same plans and seed gave other samples".into());
        }
    }
    let one = memory.counters() - before;
    println!(
        "chain {:.2} ms (median of {REPEATS}), {} submissions, {} read-backs",
        median(totals),
        one.submissions / REPEATS as u64,
        one.read_backs / REPEATS as u64
    );
    println!(
        "{:<26}{:>7}{:>10}{:>12}{:>12}{:>12}",
        "plan", "steps", "GFLOP", "submit ms", "done ms", "GFLOP/s"
    );
    for p in &plans {
        let (mut submit, mut done) = (vec![], vec![]);
        // A small result of the duration predictor, read only to wait.
        for _ in 0..REPEATS {
            memory.read_f32("duration", &mut out)?;
            let start = Instant::now();
            run(p.as_ref(), memory.as_mut())?;
            submit.push(ms(start));
            memory.read_f32("duration", &mut out)?;
            done.push(ms(start));
        }
        let times = if p.plan().name() == "vector_estimator.step" { STEPS as f64 } else { 1.0 };
        let gflop = p.plan().cost().flops as f64 / 1e9 * times;
        let done = median(done);
        println!(
            "{:<26}{:>7}{gflop:>10.2}{:>12.3}{done:>12.3}{:>12.0}",
            p.plan().name(),
            p.plan().steps().len(),
            median(submit),
            gflop / done * 1e3
        );
    }
    if profile {
        for p in &plans {
            slowest(p.as_ref(), memory.as_mut())?;
        }
    }
    Ok(())
}

fn checksum(x: &[f32]) -> u64 {
    x.iter().fold(0, |h, x| h.rotate_left(5) ^ u64::from(x.to_bits()))
}

fn run(p: &dyn Executable, memory: &mut dyn Memory) -> Result<(), DeviceError> {
    match p.plan().name() {
        "vector_estimator.step" => p.run_times(memory, "step", STEPS, &|| true),
        _ => p.run(memory),
    }
}

/// Runs all plans in order, with the two read-backs of a sentence.
fn chain(plans: &[Arc<dyn Executable>], memory: &mut dyn Memory, out: &mut Vec<f32>) -> Result<(), Failure> {
    for p in plans {
        run(p.as_ref(), memory)?;
        if p.plan().name() == "duration_predictor" {
            memory.read_f32("duration", out)?;
        }
    }
    memory.read_f32("wav", out)?;
    Ok(())
}

/// Prints the slowest steps, grouped by kind.
fn slowest(p: &dyn Executable, memory: &mut dyn Memory) -> Result<(), Failure> {
    let mut best = p.profile(memory)?;
    for _ in 0..4 {
        for (b, t) in best.iter_mut().zip(p.profile(memory)?) {
            *b = b.min(t);
        }
    }
    let mut kinds: Vec<(String, usize, f64, f64)> = vec![];
    for (step, time) in p.plan().steps().iter().zip(&best) {
        let inputs = step.node.inputs.first().map_or(String::new(), |v| p.plan().info(*v).shape.to_string());
        let what = format!(
            "{:<30}{:<20}{} → {}",
            step.describe(),
            step.kernel,
            inputs,
            p.plan().info(step.node.output).shape
        );
        let flops = step.cost.flops as f64;
        match kinds.iter_mut().find(|k| k.0 == what) {
            Some(k) => {
                k.1 += 1;
                k.2 += time;
                k.3 += flops;
            }
            None => kinds.push((what, 1, *time, flops)),
        }
    }
    kinds.sort_by(|a, b| b.2.total_cmp(&a.2));
    println!("\n{}: {:.3} ms in steps", p.plan().name(), best.iter().sum::<f64>() * 1e3);
    for (what, n, seconds, flops) in kinds.iter().take(14) {
        let each = seconds / *n as f64 * 1e6;
        println!("  {n:>3} × {each:>7.1} µs {:>7.0} GFLOP/s  {what}", flops / seconds / 1e9);
    }
    Ok(())
}
