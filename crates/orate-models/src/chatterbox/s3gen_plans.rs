//! Plans of S3Gen.

use super::config::{FRAMES_PER_CODE, MEL, S3GenConfig};
use super::estimator;
use super::flow_encoder::{self, Rows};
use super::vocoder::{self, Source};
use crate::decoding::coalescer::padded_rows;
use crate::runtime::PlanCache;
use crate::{Loader, ModelError};
use orate_graph::{Device, Executable, Graph, GraphError};
use orate_weights::WeightSource;
use std::sync::Arc;

/// Plans kept for reuse. An utterance needs three.
const PLANS_KEPT: usize = 256;
/// The same where each length of speech has its own, which hardly comes again.
const EXACT_PLANS_KEPT: usize = 24;
/// Codes are padded to a multiple: 64 frames are the rows of a matmul's tile.
const CODES_STEP: usize = 32;

/// How the estimator runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowSettings {
    /// Euler steps.
    pub steps: usize,
    /// Weight of the guidance; meanflow has none.
    pub guidance: f32,
}

impl FlowSettings {
    /// Those of the official code.
    pub(super) fn usual(c: &S3GenConfig) -> FlowSettings {
        match c.estimator.is_meanflow {
            true => FlowSettings { steps: 2, guidance: 0.0 },
            false => FlowSettings { steps: 10, guidance: 0.7 },
        }
    }
}

/// What a plan computes, and everything its graph depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum S3GenPlan {
    /// Everything before the first step; `noise` where that begins with noise of seeds.
    Prepare { all: Rows, steps: usize, noise: bool },
    /// A step.
    Step { all: Rows, steps: usize },
    /// Mel frames of some rows to samples.
    Vocoder { rows: usize, frames: usize, source: Source },
}

impl S3GenPlan {
    fn name(self) -> &'static str {
        match self {
            S3GenPlan::Prepare { .. } => "flow encoder",
            S3GenPlan::Step { .. } => "estimator",
            S3GenPlan::Vocoder { .. } => "vocoder",
        }
    }

    pub fn graph(self, weights: &dyn WeightSource, c: &S3GenConfig, taps: bool) -> Result<Graph, GraphError> {
        let g = Graph::new(self.name());
        let mut g = if taps { g.with_taps() } else { g };
        match self {
            S3GenPlan::Prepare { all, steps, noise } => {
                let lens = all.lengths(&mut g, flow_encoder::FRAME_LENGTHS, c.estimator.rows() * all.rows)?;
                let lens = lens.map(|lens| g.slice(lens, 0, 0, all.rows)).transpose()?;
                let spoken = flow_encoder::build(&mut g, &c.encoder, all, lens)?;
                estimator::prepare(&mut g, &c.estimator, all, spoken, steps)?;
                if noise {
                    let latent = estimator::one_below_the_other(&mut g, all.rows, |g, row| {
                        let seed = g.scalar(&latent_seed(row));
                        g.random_normal([1, all.frames(), MEL], seed, 1.0)
                    })?;
                    g.output(estimator::LATENT, latent)?;
                }
            }
            S3GenPlan::Step { all, steps } => estimator::step(&mut g, &c.estimator, all, steps)?,
            S3GenPlan::Vocoder { rows, frames, source } => {
                vocoder::build(&mut g, weights, &c.vocoder, [rows, frames], source)?;
            }
        }
        Ok(g)
    }

    /// The plans of `codes` codes after a prompt of `prompt` mel frames, and how often each runs. Codes are
    /// padded where callers share runs.
    pub fn of_utterance(
        [codes, prompt]: [usize; 2],
        steps: usize,
        is_padded: bool,
    ) -> [(S3GenPlan, usize); 3] {
        let all = rows_of(1, codes, is_padded);
        let frames = FRAMES_PER_CODE * codes - prompt;
        [
            (S3GenPlan::Prepare { all, steps, noise: true }, 1),
            (S3GenPlan::Step { all, steps }, steps),
            (S3GenPlan::Vocoder { rows: 1, frames, source: Source::Seeded { before: 0 } }, 1),
        ]
    }
}

/// Rows of `codes` codes. Padded ones need few plans.
pub(super) fn rows_of(rows: usize, codes: usize, is_padded: bool) -> Rows {
    let codes = if is_padded { codes.next_multiple_of(CODES_STEP) } else { codes };
    Rows { rows: padded_rows(rows), codes, is_padded }
}

/// Scalar: seed of the noise that the estimator begins with in a row.
pub(super) fn latent_seed(row: usize) -> String {
    format!("latent_seed.{row}")
}

/// The weights of S3Gen on a device, and its plans.
pub struct S3GenPlans {
    pub config: S3GenConfig,
    weights: Arc<dyn WeightSource>,
    /// By plan, and whether taps are recorded.
    pub cache: PlanCache<(S3GenPlan, bool)>,
    /// Whether callers share runs, whose codes are padded.
    pub are_shared: bool,
}

impl S3GenPlans {
    pub fn new(config: S3GenConfig, device: Arc<dyn Device>, weights: Arc<dyn WeightSource>) -> S3GenPlans {
        let are_shared = device.pacing().side_by_side;
        let most = if are_shared { PLANS_KEPT } else { EXACT_PLANS_KEPT };
        let cache = PlanCache::new(device, Arc::new(Loader(weights.clone())), most);
        S3GenPlans { config, weights, cache, are_shared }
    }

    pub fn get(&self, plan: S3GenPlan, taps: bool) -> Result<Arc<dyn Executable>, ModelError> {
        self.cache.get((plan, taps), |_| Ok(plan.graph(&*self.weights, &self.config, taps)?))
    }

    /// The plans of `codes` codes after a prompt of `prompt` mel frames, and how often each runs.
    pub fn of_utterance(&self, sizes: [usize; 2], steps: usize) -> [(S3GenPlan, usize); 3] {
        S3GenPlan::of_utterance(sizes, steps, self.are_shared)
    }
}
