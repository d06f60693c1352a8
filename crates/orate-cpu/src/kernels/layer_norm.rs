//! Layer normalization over the last axis.
//!
//! ```text
//! y = (x − mean(x)) / √(var(x) + eps) · weight + bias
//! ```
//!
//! `x`, `y` [rows, C]; `weight`, `bias` `[C]`; f32, contiguous; `var` is the biased variance. Mean and
//! variance are two passes over a row that stays in the first-level cache, accumulated in f32 in four
//! vectors: each lane sums only C/64 numbers, so the error stays near that of one rounding. Rows are
//! independent and split over the team.

use crate::kernels::elementwise::for_rows;
use crate::op::{Binding, Call, Dense, OpKernel};
use crate::simd::{Kernel, Simd};
use crate::weights::Core;
use crate::{Isa, Team};
use orate_graph::ValueInfo;

/// Parameters of a normalization over `weight.len()` channels.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm<'a> {
    /// Factor per channel, `[C]`.
    pub weight: &'a [f32],
    /// Summand per channel, `[C]`.
    pub bias: &'a [f32],
    /// Added to the variance. Models differ (1e-6, 1e-5), so take it from the checkpoint.
    pub eps: f32,
}

impl LayerNorm<'_> {
    /// `out` = norm(`x`).
    ///
    /// # Panics
    /// Slice lengths do not match.
    pub fn run(&self, isa: Isa, team: &Team, x: &[f32], out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "input and output of equal size");
        let width = self.weight.len();
        assert_eq!(self.bias.len(), width, "weight and bias of equal size");
        for_rows(team, out, width, &|rows, out| {
            isa.run(Rows { norm: *self, x: &x[rows.start * width..rows.end * width], out });
        });
    }
}

/// Whole rows; `x` is as long as `out`.
struct Rows<'a> {
    norm: LayerNorm<'a>,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.norm.weight.len();
        for (x, out) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)) {
            // SAFETY: both have `width` floats.
            unsafe { normalize_row(s, &self.norm, x.as_ptr(), out.as_mut_ptr()) };
        }
    }
}

/// Normalizes one row. `x` and `y` may be equal.
///
/// # Safety
/// `x` and `y` are valid for `norm.weight.len()` floats.
#[inline(always)]
pub(crate) unsafe fn normalize_row<S: Simd>(s: S, norm: &LayerNorm<'_>, x: *const f32, y: *mut f32) {
    let len = norm.weight.len();
    let (weight, bias) = (norm.weight.as_ptr(), norm.bias.as_ptr());
    let scale = 1.0 / len as f32;
    // SAFETY: all indices stay below `len`, the length of each operand.
    unsafe {
        let mean = s.splat(fold_row::<S, false>(s, x, len, s.splat(0.0)) * scale);
        let squares = fold_row::<S, true>(s, x, len, mean);
        let factor = s.splat(1.0 / (squares * scale + norm.eps).sqrt());
        let mut i = 0;
        while i + S::LANES <= len {
            let z = s.mul(s.sub(s.load(x.add(i)), mean), factor);
            s.store(y.add(i), s.fma(z, s.load(weight.add(i)), s.load(bias.add(i))));
            i += S::LANES;
        }
        let n = len - i;
        if n > 0 {
            let z = s.mul(s.sub(s.load_partial(x.add(i), n), mean), factor);
            let v = s.fma(z, s.load_partial(weight.add(i), n), s.load_partial(bias.add(i), n));
            s.store_partial(y.add(i), v, n);
        }
    }
}

/// Σ x, or Σ (x − mean)² if `SQUARES`, in four accumulators.
///
/// # Safety
/// `x` is valid for `len` floats.
#[inline(always)]
unsafe fn fold_row<S: Simd, const SQUARES: bool>(s: S, x: *const f32, len: usize, mean: S::V) -> f32 {
    static ONES: [f32; 16] = [1.0; 16];
    let mut sums = [s.splat(0.0); 4];
    let mut i = 0;
    // SAFETY: indices stay below `len`; a vector has at most 16 lanes.
    unsafe {
        while i + 4 * S::LANES <= len {
            for (k, sum) in sums.iter_mut().enumerate() {
                *sum = fold::<S, SQUARES>(s, *sum, s.load(x.add(i + k * S::LANES)), mean);
            }
            i += 4 * S::LANES;
        }
        while i + S::LANES <= len {
            sums[0] = fold::<S, SQUARES>(s, sums[0], s.load(x.add(i)), mean);
            i += S::LANES;
        }
        let n = len - i;
        if n > 0 {
            // Lanes past the end must add nothing, so the mean is zero there, too.
            let mean = s.mul(s.load_partial(ONES.as_ptr(), n), mean);
            sums[1] = fold::<S, SQUARES>(s, sums[1], s.load_partial(x.add(i), n), mean);
        }
    }
    s.reduce_add(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}

#[inline(always)]
fn fold<S: Simd, const SQUARES: bool>(s: S, sum: S::V, x: S::V, mean: S::V) -> S::V {
    if SQUARES {
        let d = s.sub(x, mean);
        s.fma(d, d, sum)
    } else {
        s.add(sum, x)
    }
}

/// The op, with its weights by name.
pub(crate) struct Norm<'a>(pub &'a orate_graph::Norm);

impl OpKernel for Norm<'_> {
    fn name(&self, core: &Core, _: &[&ValueInfo]) -> String {
        format!("{}-layer-norm", core.isa.vectors())
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let norm = OwnedNorm::new(self.0, step);
        Call::new(move |o| norm.get().run(o.isa, o.team, o.inputs.floats(0), o.out))
    }
}

/// A [`LayerNorm`] that owns its weights.
pub(crate) struct OwnedNorm {
    weight: Dense,
    bias: Dense,
    eps: f32,
}

impl OwnedNorm {
    pub fn new(norm: &orate_graph::Norm, step: &Binding<'_>) -> Self {
        OwnedNorm { weight: step.dense(&norm.weight), bias: step.dense(&norm.bias), eps: norm.eps }
    }

    pub fn get(&self) -> LayerNorm<'_> {
        LayerNorm { weight: &self.weight, bias: &self.bias, eps: self.eps }
    }
}

/// The formula in f64, for tests here and of fused kernels.
#[cfg(test)]
pub(crate) fn plain(norm: &LayerNorm<'_>, x: &[f64]) -> Vec<f64> {
    let width = norm.weight.len();
    x.chunks_exact(width)
        .flat_map(|row| {
            let mean = row.iter().sum::<f64>() / width as f64;
            let var = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
            let factor = 1.0 / (var + norm.eps as f64).sqrt();
            (0..width).map(move |c| (row[c] - mean) * factor * norm.weight[c] as f64 + norm.bias[c] as f64)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::elementwise::testing::*;

    /// Rounding of mean and variance of numbers of magnitude one, times a factor below 2.
    const ERROR: f64 = 2e-6;

    #[test]
    fn matches_the_formula() {
        for (rows, width) in
            [(1, 1), (3, 7), (5, 8), (2, 9), (3, 17), (81, 64), (80, 256), (144, 512), (7, 500), (2, 2048)]
        {
            let x = noise(rows * width, 1);
            let (weight, bias) = (noise(width, 3), noise(width, 4));
            // One channel has no variance: only eps keeps the result finite.
            let norm = LayerNorm { weight: &weight, bias: &bias, eps: 1e-6 };
            let want = plain(&norm, &x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
            everywhere(
                |isa, team| {
                    let mut out = vec![9.0; x.len()];
                    norm.run(isa, team, &x, &mut out);
                    out
                },
                |isa, got| assert_close(got, &want, ERROR, &format!("{rows}x{width} {isa}")),
            );
        }
    }

    /// A one-pass variance fails if the offset far exceeds the deviation.
    #[test]
    fn survives_an_offset() {
        let x: Vec<f32> = noise(512, 1).iter().map(|x| 100.0 + x).collect();
        let (weight, bias) = (vec![1.0; 512], vec![0.0; 512]);
        let norm = LayerNorm { weight: &weight, bias: &bias, eps: 1e-6 };
        let want = plain(&norm, &x.iter().map(|&x| x as f64).collect::<Vec<_>>());
        everywhere(
            |isa, team| {
                let mut out = vec![0.0; 512];
                norm.run(isa, team, &x, &mut out);
                out
            },
            // The mean itself is rounded to 8e-6 here.
            |isa, got| assert_close(got, &want, 1e-4, &format!("{isa}")),
        );
    }

    #[test]
    #[ignore = "timing; run with --ignored --nocapture"]
    fn bench() {
        let team = Team::new(1).expect("a thread");
        for isa in Isa::available() {
            for (rows, width) in [(144, 512), (80, 256)] {
                let mut stores: [Vec<f32>; 3] = Default::default();
                let [x, w, out] = &mut stores;
                let x = &*aligned(x, rows * width);
                let (w, mut out) = (&*aligned(w, width), aligned(out, rows * width));
                let norm = LayerNorm { weight: w, bias: w, eps: 1e-6 };
                let t = best_of(200, || norm.run(isa, &team, x, std::hint::black_box(&mut out)));
                println!("{isa} {rows}x{width}: {:.3} ns per element", t / (rows * width) as f64 * 1e9);
            }
        }
    }
}
