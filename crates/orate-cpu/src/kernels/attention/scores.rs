//! Scores of few queries, and the softmax.

use super::operands::HeadRows;
use super::product::RUN;
use crate::kernels::cache_rows::RowFormat;
use crate::kernels::vecmath;
use crate::simd::Simd;

/// Dot products of a key with `R` rows of queries, which have stride `dim`; results have stride `pitch`. The
/// order of each sum does not depend on `R`. Returns `R`.
///
/// # Safety
/// Row `t` of `dim` elements exists.
#[inline(always)]
pub(super) unsafe fn dots<S: Simd, F: RowFormat, const R: usize>(
    s: S,
    q: &[f32],
    (k, t, dim): (HeadRows<F>, usize, usize),
    out: &mut [f32],
    pitch: usize,
) -> usize {
    assert!(q.len() >= R * dim && out.len() > (R - 1) * pitch, "`R` rows");
    let (row, q) = (k.row(t), q.as_ptr());
    let mut sums = [s.splat(0.0); R];
    let whole = dim / S::LANES * S::LANES;
    // SAFETY: `R` rows of `dim` queries were checked, and the caller vouches for the key.
    unsafe {
        for d in (0..whole).step_by(S::LANES) {
            let key = k.format.load(s, row, k.channel + d);
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = s.fma(s.load(q.add(r * dim + d)), key, *sum);
            }
        }
        if whole < dim {
            let n = dim - whole;
            let key = k.format.load_partial(s, row, k.channel + whole, n);
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = s.fma(s.load_partial(q.add(r * dim + whole), n), key, *sum);
            }
        }
    }
    for (r, sum) in sums.into_iter().enumerate() {
        out[r * pitch] = s.reduce_add(sum);
    }
    R
}

/// Replaces `R` rows of scores by exp(score − max) and stores the inverse of each sum. Several rows at once,
/// since each waits for its own maximum and sum. Rows have stride `pitch` and whole vectors. Returns `R`.
#[inline(always)]
pub(super) fn softmax_numerators<S: Simd, const R: usize>(
    s: S,
    scores: &mut [f32],
    (pitch, columns): (usize, usize),
    factors: &mut [f32],
) -> usize {
    assert!(columns.is_multiple_of(S::LANES) && scores.len() >= (R - 1) * pitch + columns, "whole rows");
    let p = scores.as_mut_ptr();
    let mut max = [s.splat(f32::NEG_INFINITY); R];
    let mut sum = [s.splat(0.0); R];
    // SAFETY: all rows and columns exist, as just checked.
    unsafe {
        for j in (0..columns).step_by(S::LANES) {
            for (i, max) in max.iter_mut().enumerate() {
                *max = s.max(*max, s.load(p.add(i * pitch + j)));
            }
        }
        let max = max.map(|m| s.splat(s.reduce_max(m)));
        for j in (0..columns).step_by(S::LANES) {
            for (i, sum) in sum.iter_mut().enumerate() {
                let p = p.add(i * pitch + j);
                let e = vecmath::exp_nonpositive(s, s.sub(s.load(p), max[i]));
                s.store(p, e);
                *sum = s.add(*sum, e);
            }
        }
    }
    factors.iter_mut().zip(sum).for_each(|(f, sum)| *f = 1.0 / s.reduce_add(sum));
    R
}

/// Σ x in order, in runs of [`RUN`], the first of which has already had `begun` terms. Zeros at either end
/// change nothing.
pub(super) fn sum_in_runs(x: &[f32], begun: usize) -> f32 {
    let (first, rest) = x.split_at(x.len().min(RUN - begun));
    let sum = |run: &[f32]| run.iter().fold(0.0, |sum, x| sum + x);
    rest.chunks(RUN).fold(sum(first), |total, run| total + sum(run))
}
