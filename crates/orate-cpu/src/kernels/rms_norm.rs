//! Root-mean-square norm over the last axis: `y = x / √(mean(x²) + eps) · weight`.
//!
//! `x`, `y` [rows, C], `weight` `[C]`; f32, squares summed in f32 in four accumulators. Memory-bound: rows
//! are split over the team, and each is read twice while it is in the first-level cache.

use crate::kernels::elementwise::for_rows;
use crate::op::{Binding, Call, OpKernel};
use crate::simd::{Kernel, Simd};
use crate::weights::Core;
use crate::{Isa, Team};
use orate_graph::{ValueInfo, Weight};

/// `out` = the norm of each row of `x`. Not in place.
///
/// # Panics
/// `x` and `out` are not whole rows as long as `weight`, or differ in size.
pub fn rms_norm(isa: Isa, team: &Team, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "input and output of equal size");
    let width = weight.len();
    for_rows(team, out, width, &|rows, out| {
        let x = &x[rows.start * width..rows.end * width];
        isa.run(Rows { x, weight, eps, out });
    });
}

struct Rows<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.weight.len();
        for (x, out) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)) {
            row(s, x, self.weight, self.eps, out);
        }
    }
}

#[inline(always)]
fn row<S: Simd>(s: S, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let len = x.len();
    let mut sums = [s.splat(0.0); 4];
    let mut i = 0;
    // SAFETY: all indices stay below `len`, the length of all three slices.
    unsafe {
        while i + 4 * S::LANES <= len {
            for (k, sum) in sums.iter_mut().enumerate() {
                let v = s.load(x.as_ptr().add(i + k * S::LANES));
                *sum = s.fma(v, v, *sum);
            }
            i += 4 * S::LANES;
        }
        while i < len {
            let v = s.load_partial(x.as_ptr().add(i), S::LANES.min(len - i));
            sums[0] = s.fma(v, v, sums[0]);
            i += S::LANES;
        }
        let sum = s.reduce_add(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])));
        let factor = s.splat(1.0 / (sum / len as f32 + eps).sqrt());
        i = 0;
        while i + S::LANES <= len {
            let v = s.mul(s.load(x.as_ptr().add(i)), factor);
            s.store(out.as_mut_ptr().add(i), s.mul(v, s.load(weight.as_ptr().add(i))));
            i += S::LANES;
        }
        let n = len - i;
        if n > 0 {
            let v = s.mul(s.load_partial(x.as_ptr().add(i), n), factor);
            let w = s.load_partial(weight.as_ptr().add(i), n);
            s.store_partial(out.as_mut_ptr().add(i), s.mul(v, w), n);
        }
    }
}

pub(crate) struct RmsNorm<'a> {
    pub weight: &'a Weight,
    pub eps: f32,
}

impl OpKernel for RmsNorm<'_> {
    fn name(&self, core: &Core, _: &[&ValueInfo]) -> String {
        format!("{}-rms-norm", core.isa.vectors())
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let (weight, eps) = (step.dense(self.weight), self.eps);
        Call::new(move |o| rms_norm(o.isa, o.team, o.inputs.floats(0), &weight, eps, o.out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::elementwise::testing::*;

    /// Rounding of the mean square and of two products, for numbers of magnitude one.
    const ERROR: f64 = 1e-6;

    /// The formula in f64.
    fn plain(x: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
        let norm = |row: &[f32]| -> Vec<f64> {
            let square = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / row.len() as f64;
            let factor = 1.0 / (square + f64::from(eps)).sqrt();
            row.iter().zip(weight).map(|(x, w)| f64::from(*x) * factor * f64::from(*w)).collect()
        };
        x.chunks_exact(weight.len()).flat_map(norm).collect()
    }

    #[test]
    fn matches_the_formula() {
        for (rows, width) in [(1, 1), (3, 7), (5, 8), (2, 17), (81, 64), (40, 1024), (7, 500)] {
            let (x, weight) = (noise(rows * width, 1), noise(width, 2));
            let want = plain(&x, &weight, 1e-6);
            everywhere(
                |isa, team| {
                    let mut out = vec![9.0; x.len()];
                    rms_norm(isa, team, &x, &weight, 1e-6, &mut out);
                    out
                },
                |isa, got| assert_close(got, &want, ERROR, &format!("{rows}x{width} {isa}")),
            );
        }
    }

    /// Only eps keeps a row of zeros finite.
    #[test]
    fn zeros_stay_zeros() {
        everywhere(
            |isa, team| {
                let mut out = vec![9.0; 66];
                rms_norm(isa, team, &[0.0; 66], &[1.0; 33], 1e-6, &mut out);
                out
            },
            |_, got| assert_eq!(got, [0.0; 66]),
        );
    }
}
