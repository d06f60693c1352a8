//! Timing the stages of a model at given sizes.

use crate::{Engine, Result};
use orate_models::supertonic::{Noise, Stage};
use std::time::Instant;

/// Sizes to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Characters of text, tags included.
    pub tokens: usize,
    /// Latent frames.
    pub latents: usize,
    /// Denoising steps.
    pub steps: usize,
}

/// Times of one run, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageTimes {
    /// Each stage, in the order of [`Stage::ALL`]; the vector estimator includes what its steps share.
    pub stages: [f64; 4],
    /// From text ids on the device to samples on the host.
    pub total: f64,
}

/// Runs the whole chain once at forced sizes and times its stages.
///
/// # Errors
/// A size is 0, or the device failed.
pub fn run_once(engine: &Engine, sizes: Sizes) -> Result<StageTimes> {
    let model = engine.model();
    let mut s = model.session();
    let mut wav = Vec::new();
    s.set_forced(sizes.tokens)?;
    let start = Instant::now();
    let mut last = start;
    let mut lap = || {
        let now = Instant::now();
        (now - std::mem::replace(&mut last, now)).as_secs_f64() * 1e3
    };
    s.durations()?;
    let duration_predictor = lap();
    s.encode_text()?;
    let text_encoder = lap();
    s.prepare(&[sizes.latents], sizes.steps, Noise::Seed(0))?;
    s.denoise(&|| true)?;
    let vector_estimator = lap();
    s.vocode(&mut wav)?;
    let vocoder = lap();
    let total = start.elapsed().as_secs_f64() * 1e3;
    Ok(StageTimes { stages: [duration_predictor, text_encoder, vector_estimator, vocoder], total })
}

/// Names of the stages, in the order of [`StageTimes::stages`].
pub fn stage_names() -> [&'static str; 4] {
    Stage::ALL.map(Stage::name)
}

/// Time of each step of a stage's plan, with what it computes.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTime {
    /// Stage.
    pub stage: &'static str,
    /// Op with what was fused in.
    pub op: String,
    /// Kernel.
    pub kernel: String,
    /// Output shape.
    pub shape: String,
    /// Weight that tells where in the network it stands.
    pub label: String,
    /// Microseconds, the least of several runs.
    pub us: f64,
    /// Operations.
    pub flops: u64,
    /// Bytes moved at the least.
    pub bytes: u64,
}

/// Times every step of every stage at forced sizes: the least of `runs` runs. The vector estimator's steps are
/// those of one denoising step.
///
/// # Errors
/// As [`run_once`].
pub fn profile(engine: &Engine, sizes: Sizes, runs: usize) -> Result<Vec<StepTime>> {
    let model = engine.model();
    let mut s = model.session();
    s.set_forced(sizes.tokens)?;
    s.durations()?;
    s.encode_text()?;
    s.prepare(&[sizes.latents], sizes.steps, Noise::Seed(0))?;
    s.step(0)?;
    let mut all = Vec::new();
    for stage in Stage::ALL {
        let mut best: Vec<f64> = Vec::new();
        let mut plan = None;
        for _ in 0..runs.max(1) {
            let (p, times) = s.profile(stage)?;
            if best.is_empty() {
                best = times;
            } else {
                best.iter_mut().zip(times).for_each(|(b, t)| *b = b.min(t));
            }
            plan = Some(p);
        }
        let Some(plan) = plan else { continue };
        let plan = plan.plan();
        all.extend(plan.steps().iter().zip(best).map(|(step, time)| StepTime {
            stage: stage.name(),
            op: step.node.op.describe(),
            kernel: step.kernel.clone(),
            shape: plan.info(step.node.output).shape.to_string(),
            label: step.node.op.label().unwrap_or("-").to_owned(),
            us: time * 1e6,
            flops: step.cost.flops,
            bytes: step.cost.bytes,
        }));
    }
    Ok(all)
}
