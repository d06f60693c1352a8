//! The plans that run for a text of some size, and the least time they can take.

use crate::bench::{self, StepTime};
use orate::{Engine, Options, Result, Size};
use orate_graph::{Cost, Executable, Roofline};
use std::sync::Arc;

/// Shorter steps say little about what the machine can do.
const LEAST_US: f64 = 20.0;

/// Runs of every step to find the best rates.
const RUNS: usize = 5;

/// The plans of a model for a text of some size.
pub struct Explanation {
    /// The size in words, such as `80 tokens, 72 latent frames, 5 steps`.
    pub size: String,
    /// What all plans together compute, such as `one frame`.
    pub what: String,
    /// Each plan, and how often it runs for that.
    pub plans: Vec<(Arc<dyn Executable>, usize)>,
    /// Work of all runs.
    pub total: Cost,
    /// Microseconds that all runs take at least, on the machine that was asked about.
    pub bound_us: Option<f64>,
}

/// Explains what a text of some size runs, on a machine with `roofline`.
///
/// # Errors
/// As [`Engine::plans`].
pub fn explain(
    engine: &Engine,
    size: Size,
    options: &Options,
    roofline: Option<Roofline>,
) -> Result<Explanation> {
    let runs = engine.plans(size, options)?;
    let mut total = Cost::default();
    let mut bound_us = roofline.map(|_| 0.0);
    for (executable, times) in &runs.plans {
        let plan = executable.plan();
        for _ in 0..*times {
            total += plan.cost();
        }
        if let (Some(bound), Some(r)) = (&mut bound_us, roofline) {
            *bound += plan.steps().iter().map(|s| r.bound_us(s.cost)).sum::<f64>() * *times as f64;
        }
    }
    Ok(Explanation { size: runs.size, what: runs.what, plans: runs.plans, total, bound_us })
}

/// The best speeds that any step of the model reaches on its device.
///
/// # Errors
/// As [`bench::profile`].
pub fn measured_roofline(engine: &Engine, size: Size, options: &Options) -> Result<Roofline> {
    let steps = bench::profile(engine, size, options, RUNS)?;
    let best = |rate: fn(&StepTime) -> f64| {
        let long_enough = steps.iter().filter(|s| s.us >= LEAST_US).map(rate);
        long_enough.fold(0.0, f64::max).max(f64::MIN_POSITIVE)
    };
    Ok(Roofline {
        gflops: best(|s| s.flops as f64 / s.us / 1e3),
        gbps: best(|s| s.bytes as f64 / s.us / 1e3),
    })
}
