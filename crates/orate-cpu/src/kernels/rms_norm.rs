//! Root-mean-square norm over the last axis: `y = x / √(mean(x²) + eps) · weight`.
//!
//! `x`, `y` [rows, C], `weight` `[C]`; f32, squares summed in f32 on four accumulators. Bound by memory: rows are
//! split over the team, and each is read twice while it is in the first-level cache.

use crate::kernels::elementwise::for_rows;
use crate::simd::{Kernel, Simd};
use crate::{Isa, Team};

/// `out` = the norm of each row of `x`. Not in place.
///
/// # Panics
/// `x` and `out` are not whole rows as long as `weight`, or not of one size.
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
