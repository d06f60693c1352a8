//! Teacher forcing: T3 reads the golden codes, and its logits of every frame are compared with the official
//! ones, in any format.
//!
//! Differences are in spreads: standard deviations of the official logits of a frame. The table shows the
//! worst of `t3_*` and `e2e_*` of all variants on the CPU. Limits are `MARGIN` times as large, as the cases
//! are seven and the instruction sets three; one frame of 24 may always have another code, unless all is f32.
//!
//! | weights | largest difference | mean | frames with another likeliest code | its gap |
//! | --- | --- | --- | --- | --- |
//! | `f32` | 4.5e-6 | 7.2e-7 | none | |
//! | `f16` | 2.3e-3 | 4.7e-4 | none | |
//! | `bf16` | 1.9e-2 | 3.8e-3 | 1 of 24 | 0.006 |
//! | `q8_0` | 7.9e-2 | 1.7e-2 | 1 of 24 | 0.006 |
//! | `q6_k` | 6.5e-2 | 1.4e-2 | 1 of 24 | 0.011 |
//! | `q5_k` | 1.12e-1 | 2.25e-2 | 1 of 24 | 0.027 |
//! | `q4_k` | 1.85e-1 | 3.9e-2 | 2 of 24 | 0.044 |
//! | `q4_0` | 6.8e-1 | 1.3e-1 | 9 of 24 | 0.40 |
//!
//! K formats are those of Turbo and Nano, where some rows are a multiple of 256; all other rows are `q8_0`,
//! as in all of the other variants. On CUDA the gap of `q4_k` is 0.078.
//!
//! | keys and values | largest difference | mean |
//! | --- | --- | --- |
//! | `f16` | 5.7e-4 | 9.8e-5 |
//! | `bf16` | 5.8e-3 | 8.7e-4 |
//! | `q8_0` | 1.6e-2 | 2.4e-3 |
//!
//! Weights here are random, so logits are noise: the two likeliest codes are 0.2 spreads apart, and the 32
//! likeliest 0.7. Four bits therefore change the likeliest code of every third frame. The limits prove that a
//! format is wired up correctly, not how it sounds.

use super::Run;
use super::stored::{Golden, bad, golden, integers};
use crate::ModelError;
use orate_graph::{CacheFormat, DeviceInfo, Precision};
use orate_weights::SafeTensors;
use std::path::Path;

/// What the logits of a run must reach. All but `others` are in spreads: standard deviations of the official
/// logits of a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Limits {
    /// Largest difference of a logit.
    largest: f64,
    /// Mean difference.
    mean: f64,
    /// Share of frames in which another code is the likeliest.
    others: f64,
    /// How far such a code is below the likeliest one in the official logits.
    gap: f64,
}

/// Limits over what was measured.
const MARGIN: f64 = 1.5;
/// The same in f32, where GPUs sum in other orders.
const EXACT_MARGIN: f64 = 20.0;
/// Noise of a device that rounds both operands, over that of one that rounds weights only: both round by the
/// same unit, so noises of equal size add up.
const BOTH_OPERANDS: f64 = 1.5;
/// Share of frames that a single near tie is.
const A_TIE: f64 = 1.0 / 24.0;

impl Limits {
    /// Limits of weights and a cache in these formats on a device.
    pub(super) fn of(precision: Precision, kv: CacheFormat, device: &DeviceInfo) -> Limits {
        let (largest, mean, others, gap) = match precision {
            Precision::F32 => (4.5e-6, 7.2e-7, 0.0, 0.0),
            Precision::Tf32 | Precision::F16 => (2.3e-3, 4.7e-4, A_TIE, 0.002),
            Precision::Bf16 => (1.9e-2, 3.8e-3, A_TIE, 0.01),
            Precision::Q8_0 => (7.9e-2, 1.7e-2, 2.0 * A_TIE, 0.05),
            Precision::Q6K => (6.5e-2, 1.4e-2, 2.0 * A_TIE, 0.05),
            Precision::Q5K => (1.12e-1, 2.25e-2, 2.0 * A_TIE, 0.05),
            Precision::Q4K => (1.85e-1, 3.9e-2, 2.0 * A_TIE, 0.078),
            Precision::Q4_0 => (6.8e-1, 1.3e-1, 9.0 * A_TIE, 0.4),
        };
        let margin = if precision == Precision::F32 { EXACT_MARGIN } else { MARGIN };
        let halves = matches!(precision, Precision::Tf32 | Precision::F16 | Precision::Bf16);
        let rounded = if halves && device.rounds_operands(precision) { BOTH_OPERANDS } else { 1.0 };
        let (of_largest, of_mean) = match kv {
            CacheFormat::F32 => (0.0, 0.0),
            CacheFormat::F16 => (5.7e-4, 9.8e-5),
            CacheFormat::Bf16 => (5.8e-3, 8.7e-4),
            CacheFormat::Q8_0 => (1.6e-2, 2.4e-3),
        };
        let tie = if kv == CacheFormat::F32 { 0.0 } else { A_TIE };
        Limits {
            largest: margin * rounded * largest + MARGIN * of_largest,
            mean: margin * rounded * mean + MARGIN * of_mean,
            others: margin * others + tie,
            gap: margin * rounded * gap + of_largest,
        }
    }
}

/// The official logits of a case.
pub(super) struct Official {
    /// `[F, L, K]`: the first and last ids of each lane.
    logits: Golden,
    /// The likeliest codes of each frame after guidance, `[F, N]`, and their logits.
    codes: Vec<i32>,
    likely: Golden,
    /// Standard deviation of each frame's logits after guidance.
    spread: Vec<f32>,
    guidance: f32,
}

/// Differences of all frames so far.
#[derive(Default)]
pub(super) struct Forced {
    frames: usize,
    largest: f64,
    sum: f64,
    count: usize,
    others: usize,
    gap: f64,
}

impl Official {
    /// Reads a case whose codes were drawn with this weight of guidance.
    pub(super) fn of(file: &SafeTensors, path: &Path, guidance: f32) -> Result<Official, ModelError> {
        let (logits, likely) = (golden(file, "logits")?, golden(file, "likely.logits")?);
        let (codes, spread) = (integers(file, "likely.codes")?, golden(file, "spread")?.data);
        let frames = spread.len();
        let fits = codes.len() == likely.data.len()
            && likely.shape.first() == Some(&frames)
            && matches!(logits.shape[..], [f, lanes, _] if f == frames && (1..=2).contains(&lanes));
        match fits && frames > 0 {
            true => Ok(Official { logits, codes, likely, spread, guidance }),
            false => {
                Err(bad(path, "`logits`, `likely.codes`, `likely.logits` and `spread` do not fit together"))
            }
        }
    }

    fn frames(&self) -> usize {
        self.spread.len()
    }

    /// The stored logits `[L, K]` of a frame.
    pub(super) fn logits(&self, frame: usize) -> &[f32] {
        row(&self.logits.data, self.frames(), frame)
    }

    /// Computed logits `[L, V]` at the stored ids, `[L, K]`.
    pub(super) fn cut(&self, logits: &[f32]) -> Vec<f32> {
        let (lanes, kept) = (self.logits.shape[1], self.logits.shape[2]);
        let stored = Golden { shape: vec![lanes, kept], data: vec![] };
        stored.cut(&[lanes, logits.len() / lanes], logits)
    }

    /// Compares computed logits `[L, V]` of the next frame with the stored ones.
    pub(super) fn compare(&self, logits: &[f32], all: &mut Forced) {
        let (frame, frames) = (all.frames, self.frames());
        let lanes = self.logits.shape[1];
        let guided = guided_by(logits, lanes, self.guidance);
        let (codes, likely) = (row(&self.codes, frames, frame), row(&self.likely.data, frames, frame));
        let edges = guided_by(&self.cut(logits), lanes, self.guidance);
        let want = guided_by(self.logits(frame), lanes, self.guidance);
        let at = |code: &i32| guided.get(*code as usize).copied().unwrap_or(f32::NAN);
        let spread = f64::from(self.spread[frame]);
        let pairs = edges.into_iter().zip(want).chain(codes.iter().map(at).zip(likely.iter().copied()));
        for (got, want) in pairs {
            let difference = f64::from((got - want).abs()) / spread;
            // NaN is larger than any number.
            all.largest =
                if difference <= all.largest || all.largest.is_nan() { all.largest } else { difference };
            all.sum += difference;
            all.count += 1;
        }
        let best = (0..guided.len()).max_by(|a, b| guided[*a].total_cmp(&guided[*b]));
        let best = best.map_or(-1, |code| code as i32);
        if best != codes[0] {
            let place = codes.iter().position(|code| *code == best);
            // What is not stored is at least as far as the last that is.
            let logit = place.map_or(likely[likely.len() - 1], |i| likely[i]);
            all.others += 1;
            all.gap = all.gap.max(f64::from(likely[0] - logit) / spread);
        }
        all.frames += 1;
    }
}

/// Row `i` of `rows`.
fn row<T>(all: &[T], rows: usize, i: usize) -> &[T] {
    all.chunks_exact((all.len() / rows).max(1)).nth(i).unwrap_or_default()
}

/// Logits `[L, V]` of all lanes after guidance, `[V]`.
pub(super) fn guided_by(logits: &[f32], lanes: usize, guidance: f32) -> Vec<f32> {
    let (with, without) = logits.split_at(logits.len() / lanes);
    match lanes {
        1 => with.to_vec(),
        _ => with.iter().zip(without).map(|(c, u)| c + guidance * (c - u)).collect(),
    }
}

impl Run<'_> {
    /// Judges the logits of all frames.
    pub(super) fn forced(&mut self, case: &str, stage: &'static str, all: &Forced) {
        let kv = self.model.facts.kv.unwrap_or_default();
        let limits = Limits::of(self.out.precision(), kv, &self.model.device().info());
        let frames = all.frames.max(1) as f64;
        for (what, got, limit) in [
            ("logits: largest difference", all.largest, limits.largest),
            ("logits: mean difference", all.sum / all.count.max(1) as f64, limits.mean),
            ("logits: frames with another likeliest code", all.others as f64 / frames, limits.others),
            ("logits: gap to the likeliest code", all.gap, limits.gap),
        ] {
            self.out.verdict(case, stage, what, got, got <= limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two frames of one lane with eight ids, of which four and the three likeliest are stored.
    fn official() -> (Official, Vec<Vec<f32>>) {
        let logits = vec![vec![0.0, 1.0, 2.0, 3.0, 9.0, 5.0, 8.5, 7.0]; 2];
        let edges = [0.0, 1.0, 8.5, 7.0].repeat(2);
        let likely = Golden { shape: vec![2, 3], data: [9.0, 8.5, 7.0].repeat(2) };
        let logits_kept = Golden { shape: vec![2, 1, 4], data: edges };
        let codes = [4, 6, 7].repeat(2);
        (Official { logits: logits_kept, codes, likely, spread: vec![0.5; 2], guidance: 0.0 }, logits)
    }

    #[test]
    fn differences_are_in_spreads() {
        let (official, logits) = official();
        let mut all = Forced::default();
        official.compare(&logits[0], &mut all);
        assert_eq!((all.frames, all.largest, all.others, all.gap), (1, 0.0, 0, 0.0));
        // Code 6 overtakes code 4, and is stored twice.
        let mut other = logits[1].clone();
        other[6] += 1.0;
        official.compare(&other, &mut all);
        assert_eq!((all.frames, all.largest, all.others, all.gap), (2, 2.0, 1, 1.0));
        assert_eq!(all.sum / all.count as f64, 4.0 / 14.0);
        // One that is not stored is at least as far as the last that is.
        let mut all = Forced::default();
        other[2] = 20.0;
        official.compare(&other, &mut all);
        assert_eq!((all.others, all.gap), (1, 4.0));
    }

    #[test]
    fn what_is_not_a_number_passes_nowhere() {
        let (official, mut logits) = official();
        logits[0][6] = f32::NAN;
        let mut all = Forced::default();
        official.compare(&logits[0], &mut all);
        official.compare(&logits[1], &mut all);
        assert!(all.largest.is_nan() && all.sum.is_nan());
        assert!(all.largest.partial_cmp(&f64::INFINITY).is_none());
    }
}
