//! What tools ask of a model beyond speaking: reference values for `verify`, timings for `bench`.

use crate::ModelError;
use orate_graph::{DeviceInfo, DeviceKind, Executable, Precision, PrecisionPolicy};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Largest error in f32 on a CPU, relative to each tensor's largest magnitude.
///
/// Onnxruntime and a reference in f64 differ by 3e-6 over a whole chain of networks; a wrong epsilon or an
/// approximate GELU shows as 3e-5 or more.
pub const F32_TOLERANCE: f64 = 2e-5;

/// The same on a GPU, whose functions and orders of summation are its own.
pub const GPU_TOLERANCE: f64 = 1e-4;

/// Pitch of [`tone`] in Hz, and how often a second it swells.
const TONE: (f32, f32) = (180.0, 3.0);

/// A recording for models that speak with the voice of one, and have none: a tone with overtones that swells
/// and fades, as a voice does.
pub(crate) fn tone(seconds: f32, sample_rate: u32) -> Vec<f32> {
    let (pitch, swell) = TONE;
    let samples = (seconds * sample_rate as f32) as usize;
    let turn = |hz: f32, i: usize| (std::f32::consts::TAU * hz * i as f32 / sample_rate as f32).sin();
    let voiced = |i: usize| (1..=8).map(|k| turn(pitch * k as f32, i) / k as f32).sum::<f32>();
    (0..samples).map(|i| 0.2 * voiced(i) * (0.6 + 0.4 * turn(swell, i))).collect()
}

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

impl Limit {
    /// The limit of a model that makes its samples in one go, by the format of its weights.
    pub fn usual(precision: Precision, device: &DeviceInfo) -> Limit {
        match precision {
            Precision::F32 if device.kind == DeviceKind::Cpu => Limit::Error(F32_TOLERANCE),
            Precision::F32 => Limit::Error(GPU_TOLERANCE),
            Precision::Tf32 | Precision::F16 => Limit::WaveformSnr(50.0),
            Precision::Bf16 => Limit::WaveformSnr(40.0),
            // Blocks are for models trained with them: others are shown, and only noise is refused.
            Precision::Q8_0 => Limit::WaveformSnr(20.0),
            Precision::Q6K | Precision::Q5K | Precision::Q4K | Precision::Q4_0 => Limit::WaveformSnr(0.0),
        }
    }

    /// Whether a tensor of a stage passes. SNR limits apply only to tensors that have an SNR.
    pub fn allows(&self, stage: &str, error: f64, snr: Option<f64>) -> bool {
        let least = match self {
            Limit::Error(limit) => return error <= *limit,
            Limit::WaveformSnr(least) | Limit::Snr(least) => *least,
            Limit::PartSnr(parts) => {
                let named = parts.iter().find(|part| part.stages.contains(&stage));
                named.or(parts.first()).map_or(f64::INFINITY, |part| part.snr)
            }
        };
        snr.map_or(error.is_finite(), |snr| snr >= least)
    }

    /// Whether the signal-to-noise ratio of every tensor counts, not only that of waveforms.
    pub fn is_of_every_tensor(&self) -> bool {
        matches!(self, Limit::Snr(_) | Limit::PartSnr(_))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Error(x) => write!(f, "{x:e}"),
            Limit::WaveformSnr(db) => write!(f, "an SNR of {db} dB in waveforms"),
            Limit::Snr(db) => write!(f, "an SNR of {db} dB"),
            Limit::PartSnr(parts) => {
                let part = |part: &PartLimit| format!("{} dB ({})", part.snr, part.name);
                write!(f, "an SNR of {}", parts.iter().map(part).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// A model beside recorded reference values.
pub trait Goldens {
    /// What the model must reach in the formats in which it computes.
    fn limit(&self, precision: &PrecisionPolicy, device: &DeviceInfo) -> Limit {
        Limit::usual(precision.precision, device)
    }

    /// Runs every case of `folder` that `comparison` wants, and gives it each tensor.
    ///
    /// # Errors
    /// The folder holds no goldens of this family, or the model fails.
    fn compare(&self, folder: &Path, comparison: &mut dyn Comparison) -> Result<(), ModelError>;
}

/// Takes what a model computed and what it should have computed.
pub trait Comparison {
    /// Whether a case is to run. Asked for each case of a folder, so that a wrong name in the command line is
    /// found.
    fn wants(&mut self, case: &str) -> bool;

    /// Whether intermediate values are compared too.
    fn taps(&self) -> bool;

    /// Whether everything is computed in f32, so that ids drawn from the logits must be equal.
    fn is_exact(&self) -> bool;

    /// Format of the weights.
    fn precision(&self) -> Precision;

    /// What tensors must reach.
    fn limit(&self) -> &Limit;

    /// Something judged by a rule of its own: its error, and whether it passes.
    fn verdict(&mut self, case: &str, stage: &'static str, tensor: &str, error: f64, passed: bool);

    /// A tensor that was compared step by step.
    fn steps(&mut self, case: &str, stage: &'static str, tensor: &str, steps: &Steps);

    /// Something that is not compared, and why.
    fn skip(&mut self, what: &str, why: &str);

    /// A tensor.
    fn tensor(&mut self, case: &str, stage: &'static str, tensor: &str, got: &[f32], want: &[f32]) {
        let mut steps = Steps::default();
        steps.push(got, want);
        self.steps(case, stage, tensor, &steps);
    }

    /// Something that must be equal.
    fn equal(&mut self, case: &str, stage: &'static str, tensor: &str, same: bool) {
        self.verdict(case, stage, tensor, if same { 0.0 } else { f64::INFINITY }, same);
    }
}

/// A tensor of several steps, each with a largest magnitude of its own.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    error: f64,
    got: Vec<f32>,
    want: Vec<f32>,
}

impl Steps {
    /// Adds a step.
    pub fn push(&mut self, got: &[f32], want: &[f32]) {
        self.error = self.error.max(relative_error(got, want));
        self.got.extend_from_slice(got);
        self.want.extend_from_slice(want);
    }

    /// The largest [`relative_error`] of any step.
    pub fn error(&self) -> f64 {
        self.error
    }

    /// Signal-to-noise ratio of all steps together, in dB; infinite where they are equal.
    pub fn snr_db(&self) -> f64 {
        let power = |x: f64| x * x;
        let signal: f64 = self.want.iter().map(|x| power(f64::from(*x))).sum();
        let pairs = self.got.iter().zip(&self.want);
        let noise: f64 = pairs.map(|(a, b)| power(f64::from(*a) - f64::from(*b))).sum();
        10.0 * (signal / noise).log10()
    }
}

/// Largest difference over the reference's largest magnitude; infinite where lengths differ or a number is
/// not finite.
pub fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    if got.len() != want.len() || got.iter().chain(want).any(|x| !x.is_finite()) {
        return f64::INFINITY;
    }
    let largest = want.iter().fold(0f64, |m, x| m.max(f64::from(x.abs())));
    let difference =
        got.iter().zip(want).fold(0f64, |m, (a, b)| m.max((f64::from(*a) - f64::from(*b)).abs()));
    if difference == 0.0 { 0.0 } else { difference / largest }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(got: &[f32], want: &[f32]) -> Steps {
        let mut steps = Steps::default();
        steps.push(got, want);
        steps
    }

    #[test]
    fn noise_in_decibels() {
        assert!((steps(&[1.0, 0.9], &[1.0, 1.0]).snr_db() - 23.01).abs() < 0.01);
        assert_eq!(steps(&[1.0], &[1.0]).snr_db(), f64::INFINITY);
    }

    #[test]
    fn errors_are_relative_to_the_largest_magnitude() {
        assert_eq!(relative_error(&[1.0, 2.0], &[1.0, 2.0]), 0.0);
        assert_eq!(relative_error(&[1.0, 2.5], &[1.0, 2.0]), 0.25);
        assert_eq!(relative_error(&[0.0], &[0.0]), 0.0);
        assert_eq!(relative_error(&[f32::NAN], &[0.0]), f64::INFINITY);
        assert_eq!(relative_error(&[0.0, 1.0], &[f32::NAN, 1.0]), f64::INFINITY);
        assert_eq!(relative_error(&[1.0], &[1.0, 2.0]), f64::INFINITY);
        assert_eq!(relative_error(&[1.0], &[0.0]), f64::INFINITY);
    }

    #[test]
    fn parts_have_limits_of_their_own() {
        let part = |name, stages, snr| PartLimit { name, stages, snr };
        let limit = Limit::PartSnr(vec![part("talker", &[], 40.0), part("codec", &["decoder"], 20.0)]);
        assert!(limit.allows("decoder", 0.1, Some(25.0)) && !limit.allows("talker", 0.1, Some(25.0)));
        assert!(limit.allows("talker", 0.1, None) && !limit.allows("talker", f64::INFINITY, None));
        assert_eq!(limit.to_string(), "an SNR of 40 dB (talker), 20 dB (codec)");
    }
}
