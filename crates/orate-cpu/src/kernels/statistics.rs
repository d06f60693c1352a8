//! Mean and standard deviation of each channel over time, with rows weighted by a softmax over time.
//!
//! ```text
//! p[t,c]  = softmax over t of scores[t,c], or 1 / T
//! m[c]    = Σ p[t,c] · x[t,c]
//! d[c]    = √max(Σ p[t,c] · (x[t,c] − m[c])², floor)
//! ```
//!
//! `x`, `scores` [B, T, C], `out` [B, 2C], means first; f32. A task is some channels of a sequence. It goes
//! through all rows two or three times for each vector of channels. Blocks of rows are summed first and then
//! added up, so that the error grows with the number of blocks, not of rows.

use crate::kernels::elementwise::SharedMut;
use crate::kernels::vecmath::exp_nonpositive;
use crate::op::{Binding, Call, OpKernel};
use crate::simd::{Kernel, Simd};
use crate::weights::Core;
use crate::{Isa, Team};
use orate_graph::ValueInfo;

/// Rows that are summed before the sum joins the total.
const BLOCK: usize = 64;

/// Channels per task: a few cache lines of each row.
const TASK: usize = 64;

/// Fills `out` from `x`, which has `batch` sequences of rows of `channels`.
///
/// # Panics
/// Sizes of `x`, `scores` and `out` do not match, or there are no rows.
pub fn statistics(
    isa: Isa,
    team: &Team,
    x: &[f32],
    scores: Option<&[f32]>,
    (batch, channels): (usize, usize),
    floor: f32,
    out: &mut [f32],
) {
    assert_eq!(out.len(), batch * 2 * channels, "out is [B, 2C]");
    if out.is_empty() {
        return;
    }
    let time = x.len() / (batch * channels);
    assert!(time > 0 && x.len() == batch * time * channels, "x is [B, T, C]");
    assert!(scores.is_none_or(|s| s.len() == x.len()), "a score for each element");
    let tasks = channels.div_ceil(TASK);
    let out = SharedMut::new(out);
    team.run(batch * tasks, &|_, task| {
        let (b, first) = (task / tasks, task % tasks * TASK);
        let sequence = b * time * channels..(b + 1) * time * channels;
        // SAFETY: only this task writes these channels of this sequence.
        let (mean, deviation) = unsafe {
            let count = TASK.min(channels - first);
            let at = b * 2 * channels + first;
            (out.part(at..at + count), out.part(at + channels..at + channels + count))
        };
        let (x, scores) = (&x[sequence.clone()], scores.map(|s| &s[sequence]));
        isa.run(Channels { x, scores, channels, first, floor, mean, deviation });
    });
}

/// Some channels of one sequence.
struct Channels<'a> {
    x: &'a [f32],
    scores: Option<&'a [f32]>,
    channels: usize,
    first: usize,
    floor: f32,
    mean: &'a mut [f32],
    deviation: &'a mut [f32],
}

impl Kernel for Channels<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let mut at = 0;
        while at < self.mean.len() {
            let n = S::LANES.min(self.mean.len() - at);
            self.vector(s, at, n);
            at += n;
        }
    }
}

impl Channels<'_> {
    /// `n` channels from `at` on.
    #[inline(always)]
    fn vector<S: Simd>(&mut self, s: S, at: usize, n: usize) {
        let largest = self.largest(s, at, n);
        let zero = s.splat(0.0);
        // Weights before the division by their sum.
        let (mut total, mut sum) = (zero, zero);
        let rows = self.x.len() / self.channels;
        for block in (0..rows).step_by(BLOCK) {
            let (mut weights, mut products) = (zero, zero);
            for t in block..rows.min(block + BLOCK) {
                let p = self.weight(s, t, at, n, largest);
                weights = s.add(weights, p);
                products = s.fma(p, self.load(s, self.x, t, at, n), products);
            }
            total = s.add(total, weights);
            sum = s.add(sum, products);
        }
        let mean = s.div(sum, total);
        let mut squares = zero;
        for block in (0..rows).step_by(BLOCK) {
            let mut part = zero;
            for t in block..rows.min(block + BLOCK) {
                let d = s.sub(self.load(s, self.x, t, at, n), mean);
                part = s.fma(s.mul(d, d), self.weight(s, t, at, n, largest), part);
            }
            squares = s.add(squares, part);
        }
        let variance = s.max(s.splat(self.floor), s.div(squares, total));
        // SAFETY: `n` channels follow at `at`.
        unsafe {
            s.store_partial(self.mean.as_mut_ptr().add(at), mean, n);
            s.store_partial(self.deviation.as_mut_ptr().add(at), s.sqrt(variance), n);
        }
    }

    /// The largest score of each channel.
    #[inline(always)]
    fn largest<S: Simd>(&self, s: S, at: usize, n: usize) -> S::V {
        let mut largest = s.splat(f32::NEG_INFINITY);
        if let Some(scores) = self.scores {
            for t in 0..scores.len() / self.channels {
                largest = s.max(self.load(s, scores, t, at, n), largest);
            }
        }
        largest
    }

    #[inline(always)]
    fn weight<S: Simd>(&self, s: S, t: usize, at: usize, n: usize, largest: S::V) -> S::V {
        match self.scores {
            Some(scores) => exp_nonpositive(s, s.sub(self.load(s, scores, t, at, n), largest)),
            None => s.splat(1.0),
        }
    }

    #[inline(always)]
    fn load<S: Simd>(&self, s: S, x: &[f32], t: usize, at: usize, n: usize) -> S::V {
        // SAFETY: row `t` exists, and so do `n` channels of this task from `at` on.
        unsafe { s.load_partial(x.as_ptr().add(t * self.channels + self.first + at), n) }
    }
}

pub(crate) struct Statistics {
    pub floor: f32,
}

impl OpKernel for Statistics {
    fn name(&self, core: &Core, _: &[&ValueInfo]) -> String {
        format!("{}-statistics", core.isa.vectors())
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let (floor, [batch, _, channels]) = (self.floor, step.dims(0));
        Call::new(move |o| {
            let scores = (o.inputs.len() > 1).then(|| o.inputs.floats(1));
            statistics(o.isa, o.team, o.inputs.floats(0), scores, (batch, channels), floor, o.out);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::elementwise::testing::*;

    /// Sums of blocks of 64 rows of numbers of magnitude one, and the exponentials of scores.
    const ERROR: f64 = 2e-6;

    /// The formula in f64.
    fn plain(x: &[f32], scores: Option<&[f32]>, (batch, channels): (usize, usize), floor: f32) -> Vec<f64> {
        let time = x.len() / (batch * channels);
        let mut y = vec![0.0; batch * 2 * channels];
        for (b, c) in (0..batch).flat_map(|b| (0..channels).map(move |c| (b, c))) {
            let at = |x: &[f32], t: usize| f64::from(x[(b * time + t) * channels + c]);
            let weight: Vec<f64> = (0..time).map(|t| scores.map_or(1.0, |s| at(s, t).exp())).collect();
            let total: f64 = weight.iter().sum();
            let mean = (0..time).map(|t| weight[t] * at(x, t)).sum::<f64>() / total;
            let variance = (0..time).map(|t| weight[t] * (at(x, t) - mean).powi(2)).sum::<f64>() / total;
            y[b * 2 * channels + c] = mean;
            y[b * 2 * channels + channels + c] = variance.max(f64::from(floor)).sqrt();
        }
        y
    }

    #[test]
    fn matches_the_formula() {
        for (batch, time, channels) in [(1, 1, 1), (2, 7, 5), (1, 64, 8), (3, 65, 33), (1, 300, 130)] {
            let (x, mut scores) = (noise(batch * time * channels, 1), noise(batch * time * channels, 2));
            scores.iter_mut().for_each(|s| *s *= 5.0);
            for scores in [None, Some(&scores[..])] {
                let want = plain(&x, scores, (batch, channels), 1e-6);
                everywhere(
                    |isa, team| {
                        let mut out = vec![9.0; want.len()];
                        statistics(isa, team, &x, scores, (batch, channels), 1e-6, &mut out);
                        out
                    },
                    |isa, got| assert_close(got, &want, ERROR, &format!("{batch} {time} {channels} {isa}")),
                );
            }
        }
    }

    #[test]
    fn a_constant_has_the_least_variance() {
        everywhere(
            |isa, team| {
                let mut out = vec![9.0; 20];
                statistics(isa, team, &[0.5; 70], None, (1, 10), 0.25, &mut out);
                out
            },
            |_, got| assert_eq!(got, [0.5; 20]),
        );
    }
}
