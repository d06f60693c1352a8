//! Rounding in which the errors of some weights count more: those that meet large inputs.
//!
//! As in [`super`], several steps are tried for each sub-block; step and minimum are fitted by least squares
//! with these factors, and the step of the least weighted error counts.

use super::{SuperBlock, SuperFormat, TRIED, half, inverse, of_signed_steps, of_steps, range, whole};
use crate::shape::SUPER_BLOCK;

impl SuperBlock {
    /// As [`SuperBlock::round`], with the error of each weight counted `importance` times.
    pub fn round_weighted(
        format: SuperFormat,
        weights: &[f32; SUPER_BLOCK],
        importance: &[f32; SUPER_BLOCK],
    ) -> SuperBlock {
        match format {
            SuperFormat::Q4K => with_minima::<15>(weights, importance),
            SuperFormat::Q5K => with_minima::<31>(weights, importance),
            SuperFormat::Q6K => q6_k(weights, importance),
        }
    }
}

/// Weighted sum of the products of two lists.
fn product(w: &[f32], a: &[f32], b: &[f32]) -> f32 {
    w.iter().zip(a).zip(b).map(|((w, a), b)| w * a * b).sum()
}

/// Weighted sum of squared errors of `step · q − minimum`.
fn error(w: &[f32], x: &[f32], q: &[f32], step: f32, minimum: f32) -> f32 {
    w.iter().zip(x).zip(q).map(|((w, x), q)| w * (step * q - minimum - x).powi(2)).sum()
}

/// Step and minimum of a sub-block, x ≈ step · q − minimum, with q from 0 to `MOST`.
fn step_of<const MOST: u8>(x: &[f32; 32], w: &[f32]) -> (f32, f32) {
    let (most, ones) = (f32::from(MOST), [1.0; 32]);
    let (least, greatest) = range(x);
    if greatest <= least {
        return (0.0, -least);
    }
    let (sw, sx) = (w.iter().sum::<f32>(), product(w, x, &ones));
    let mut best = (f32::INFINITY, 0.0, 0.0);
    for part in TRIED {
        let by = (most + part) / (greatest - least);
        let q = x.map(|x| whole((x - least) * by).clamp(0.0, most));
        let (sq, sqq, sqx) = (product(w, &q, &ones), product(w, &q, &q), product(w, &q, x));
        let spread = sw * sqq - sq * sq;
        let mut step = if spread > 0.0 { (sw * sqx - sq * sx) / spread } else { 0.0 };
        let mut minimum = (step * sq - sx) / sw;
        if minimum < 0.0 || spread <= 0.0 {
            (step, minimum) = (sqx * inverse(sqq), 0.0);
        }
        let error = error(w, x, &q, step, minimum);
        if error < best.0 && step > 0.0 {
            best = (error, step, minimum);
        }
    }
    (best.1, best.2)
}

/// Step of values, x ≈ step · q with q from `−most` to `most − 1`.
fn signed_step<const N: usize>(x: &[f32; N], w: &[f32], most: f32) -> f32 {
    let largest = x.iter().fold(0.0_f32, |m, x| if x.abs() > m.abs() { *x } else { m });
    if largest == 0.0 {
        return 0.0;
    }
    let mut best = (f32::INFINITY, 0.0);
    for part in TRIED {
        let by = (part - most) / largest;
        let q = x.map(|x| whole((x * by).clamp(-most, most - 1.0)));
        let step = product(w, &q, x) * inverse(product(w, &q, &q));
        let error = error(w, x, &q, step, 0.0);
        if error < best.0 {
            best = (error, step);
        }
    }
    best.1
}

/// `q4_k` (`MOST` 15) and `q5_k` (31).
fn with_minima<const MOST: u8>(x: &[f32; SUPER_BLOCK], w: &[f32; SUPER_BLOCK]) -> SuperBlock {
    let (parts, factors) = (x.as_chunks::<32>().0, w.as_chunks::<32>().0);
    let mut found = [(0.0, 0.0); 8];
    for ((to, x), w) in found.iter_mut().zip(parts).zip(factors) {
        *to = step_of::<MOST>(x, w);
    }
    of_steps::<MOST>(parts, found)
}

fn q6_k(x: &[f32; SUPER_BLOCK], w: &[f32; SUPER_BLOCK]) -> SuperBlock {
    let (parts, factors) = (x.as_chunks::<16>().0, w.as_chunks::<16>().0);
    let mut steps = [0.0; 16];
    for ((to, x), w) in steps.iter_mut().zip(parts).zip(factors) {
        *to = signed_step(x, w, 32.0);
    }
    of_signed_steps(parts, steps)
}

/// Scale of a block of `q4_0`, and its numbers from −8 to 7, with the error of each weight counted `w` times.
pub fn weighted_q4_0(x: &[f32; 32], w: &[f32; 32]) -> (half::f16, [i8; 32]) {
    let scale = half(signed_step(x, w, 8.0));
    let by = inverse(scale.to_f32());
    (scale, x.map(|x| whole((x * by).clamp(-8.0, 7.0)) as i8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u32) -> [f32; SUPER_BLOCK] {
        let hash = |i: usize| (i as u32 ^ seed << 9).wrapping_mul(2_654_435_761) >> 8 & 0xffff;
        std::array::from_fn(|i| hash(i * 77 + 5) as f32 / 32768.0 - 1.0)
    }

    /// The weighted error is less than that of rounding without factors; with equal factors, it is the same.
    #[test]
    fn what_counts_more_is_more_exact() {
        for format in SuperFormat::ALL {
            let (mut plain, mut weighted) = (0.0, 0.0);
            for seed in 0..32 {
                let x = noise(seed);
                let w = noise(seed + 100).map(|x| (3.0 * x).exp());
                let error = |block: SuperBlock| {
                    let mut back = [0.0; SUPER_BLOCK];
                    block.weights(format, &mut back);
                    error(&w, &x, &back, 1.0, 0.0)
                };
                plain += error(SuperBlock::round(format, &x));
                weighted += error(SuperBlock::round_weighted(format, &x, &w));
                let equal = SuperBlock::round_weighted(format, &x, &[1.0; SUPER_BLOCK]);
                let mut back = [[0.0; SUPER_BLOCK]; 2];
                equal.weights(format, &mut back[0]);
                SuperBlock::round(format, &x).weights(format, &mut back[1]);
                let close = |(a, b): (&f32, &f32)| (a - b).abs() < 0.15;
                assert!(back[0].iter().zip(&back[1]).all(close), "{format:?}");
            }
            assert!(weighted < 0.9 * plain, "{format:?}: {weighted} and {plain}");
        }
        let (x, w) = (noise(1), noise(2).map(|x| (3.0 * x).exp()));
        let (x, w) = (x.first_chunk().expect("32"), w.first_chunk().expect("32"));
        let (scale, q) = weighted_q4_0(x, w);
        let back = q.map(|q| scale.to_f32() * f32::from(q));
        assert!(x.iter().zip(&back).all(|(a, b)| (a - b).abs() < 0.3), "{x:?} {back:?}");
        assert_eq!(weighted_q4_0(&[0.0; 32], w).1, [0; 32]);
    }
}
