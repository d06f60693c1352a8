//! What tools ask of a model beyond speaking: reference values for `verify`, timings for `bench`.

use crate::{Chunks, ModelError, Options, Size};
use orate_graph::{DeviceInfo, Executable, PrecisionPolicy};
use std::path::Path;
use std::sync::Arc;

/// What a tensor must reach to pass.
#[derive(Clone, Debug, PartialEq)]
pub enum Limit {
    /// Largest error, relative to the tensor's largest magnitude.
    Error(f64),
    /// Least signal-to-noise ratio of waveforms, in dB; other tensors are only shown.
    WaveformSnr(f64),
    /// Least signal-to-noise ratio of every tensor, in dB.
    Snr(f64),
    /// The same for each part of a model. Stages that no part names belong to the first.
    PartSnr(Vec<PartLimit>),
}

/// Limit of a part of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PartLimit {
    /// Name for people.
    pub name: &'static str,
    /// Stages that belong to it.
    pub stages: &'static [&'static str],
    /// Least signal-to-noise ratio in dB.
    pub snr: f64,
}

/// Compares a model with recorded reference values.
pub trait Goldens {
    /// What the model must reach in the formats in which it computes.
    fn limit(&self, precision: &PrecisionPolicy, device: &DeviceInfo) -> Limit;

    /// Runs every case of `folder` that `comparison` wants, and reports each tensor.
    ///
    /// # Errors
    /// The folder holds no goldens of this family, or the model fails.
    fn compare(&self, folder: &Path, comparison: &mut dyn Comparison) -> Result<(), ModelError>;
}

/// Takes what a model computed beside what it should have.
pub trait Comparison {
    /// Whether a case is to run.
    fn wants(&self, case: &str) -> bool;

    /// Whether intermediate values are compared too.
    fn taps(&self) -> bool;

    /// Whether all numbers are f32, so that ids drawn from them have to be equal.
    fn is_exact(&self) -> bool;

    /// A tensor.
    fn tensor(&mut self, case: &str, stage: &'static str, tensor: &str, got: &[f32], want: &[f32]);

    /// A tensor of several steps, whose error is that of the worst step.
    fn steps(&mut self, case: &str, stage: &'static str, tensor: &str, steps: &[(Vec<f32>, Vec<f32>)]);

    /// Something that is equal or not.
    fn equal(&mut self, case: &str, stage: &'static str, tensor: &str, same: bool);

    /// Something that is not compared, and why.
    fn skip(&mut self, what: &str, why: &str);
}

/// What `bench` cannot do by speaking alone.
pub trait Bench {
    /// Options with which this model speaks without being given anything.
    ///
    /// # Errors
    /// The device failed.
    fn options(&self) -> Result<Options, ModelError> {
        Ok(Options::default())
    }

    /// Speech of a forced size, for models that can be forced.
    ///
    /// # Errors
    /// A size is 0.
    fn forced(&self, size: Size, options: &Options) -> Option<Result<Box<dyn Chunks>, ModelError>> {
        let _ = (size, options);
        None
    }

    /// Times every step of every plan: the least of `runs` runs.
    ///
    /// # Errors
    /// The device failed.
    fn profile(&self, size: Size, options: &Options, runs: usize) -> Result<Vec<StageProfile>, ModelError>;
}

/// A plan whose steps were timed.
pub struct StageProfile {
    /// Stage that it computes.
    pub stage: &'static str,
    /// The plan.
    pub plan: Arc<dyn Executable>,
    /// Seconds of each step.
    pub seconds: Vec<f64>,
    /// How often it runs while the other plans run once.
    pub times: usize,
}

impl StageProfile {
    /// Keeps the lesser of two times of each step.
    pub fn keep_least(&mut self, seconds: &[f64]) {
        self.seconds.iter_mut().zip(seconds).for_each(|(best, new)| *best = best.min(*new));
    }
}
