//! ggml's blocks of 256 weights, whose sub-blocks have scales of few bits.
//!
//! | format | sub-block | weight | bytes of 256, in order |
//! | --- | --- | --- | --- |
//! | `q4_k` | 32 | d · S · q − e · M, q 0 … 15 | d, e, 12 of scales, 128 of nibbles |
//! | `q5_k` | 32 | d · S · q − e · M, q 0 … 31 | d, e, 12 of scales, 32 of fifth bits, 128 of nibbles |
//! | `q6_k` | 16 | d · S · (q − 32), q 0 … 63 | 128 of nibbles, 64 of upper bits, 16 of scales, d |
//!
//! d and e are `f16`; S and M have 6 bits, those of `q6_k` 8 and a sign.
//!
//! Rounding tries several steps for each sub-block, and fits step and minimum to the integers by least
//! squares; the best of them counts. Then the steps of all sub-blocks are rounded to multiples of one.

mod weighted;

use crate::Precision;
use crate::shape::SUPER_BLOCK;
use half::f16;

pub use weighted::weighted_q4_0;

/// Steps that are tried for a sub-block, as parts of the range of integers.
const TRIED: [f32; 9] = [-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0];

/// Format of a block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SuperFormat {
    /// 4 bits each.
    Q4K,
    /// 5 bits each.
    Q5K,
    /// 6 bits each.
    Q6K,
}

impl SuperFormat {
    /// All of them.
    pub const ALL: [SuperFormat; 3] = [SuperFormat::Q4K, SuperFormat::Q5K, SuperFormat::Q6K];

    /// The format of a precision; `None` if it has no blocks of 256.
    pub fn of(precision: Precision) -> Option<SuperFormat> {
        match precision {
            Precision::Q4K => Some(SuperFormat::Q4K),
            Precision::Q5K => Some(SuperFormat::Q5K),
            Precision::Q6K => Some(SuperFormat::Q6K),
            _ => None,
        }
    }

    /// Bits of a weight's integer.
    pub const fn bits(self) -> u32 {
        match self {
            SuperFormat::Q4K => 4,
            SuperFormat::Q5K => 5,
            SuperFormat::Q6K => 6,
        }
    }

    /// Bytes of a block in a file.
    pub const fn bytes(self) -> usize {
        match self {
            SuperFormat::Q4K => 144,
            SuperFormat::Q5K => 176,
            SuperFormat::Q6K => 210,
        }
    }
}

/// A block of 256 weights, taken apart.
#[derive(Clone, Debug, PartialEq)]
pub struct SuperBlock {
    /// Factor of all scales.
    pub d: f16,
    /// Factor of all minima; 0 in `q6_k`.
    pub e: f16,
    /// Scales of 16 weights in `q6_k`; else the first eight are those of 32 weights.
    pub scales: [i8; 16],
    /// Minima of 32 weights, which are subtracted; 0 in `q6_k`.
    pub minima: [u8; 8],
    /// Integers, not negative.
    pub codes: [u8; SUPER_BLOCK],
}

impl SuperBlock {
    /// A block of zeros.
    pub const ZERO: SuperBlock =
        SuperBlock { d: f16::ZERO, e: f16::ZERO, scales: [0; 16], minima: [0; 8], codes: [0; SUPER_BLOCK] };

    /// Takes the bytes of a file apart.
    ///
    /// # Panics
    /// There are not as many as a block of the format has.
    pub fn read(format: SuperFormat, bytes: &[u8]) -> SuperBlock {
        assert_eq!(bytes.len(), format.bytes(), "bytes of a block of {format:?}");
        let half = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let mut block = SuperBlock::ZERO;
        if format == SuperFormat::Q6K {
            block.d = half(208);
            for (scale, byte) in block.scales.iter_mut().zip(&bytes[192..208]) {
                *scale = *byte as i8;
            }
            for (h, codes) in block.codes.as_chunks_mut::<128>().0.iter_mut().enumerate() {
                for l in 0..32 {
                    let (a, b, high) = (bytes[64 * h + l], bytes[64 * h + 32 + l], bytes[128 + 32 * h + l]);
                    codes[l] = a & 15 | (high & 3) << 4;
                    codes[32 + l] = b & 15 | (high >> 2 & 3) << 4;
                    codes[64 + l] = a >> 4 | (high >> 4 & 3) << 4;
                    codes[96 + l] = b >> 4 | (high >> 6) << 4;
                }
            }
            return block;
        }
        (block.d, block.e) = (half(0), half(2));
        let six = &bytes[4..16];
        for s in 0..4 {
            (block.scales[s], block.minima[s]) = ((six[s] & 63) as i8, six[s + 4] & 63);
            block.scales[s + 4] = (six[s + 8] & 15 | six[s] >> 6 << 4) as i8;
            block.minima[s + 4] = six[s + 8] >> 4 | six[s + 4] >> 6 << 4;
        }
        let nibbles = &bytes[bytes.len() - 128..];
        for (p, codes) in block.codes.as_chunks_mut::<64>().0.iter_mut().enumerate() {
            for l in 0..32 {
                (codes[l], codes[32 + l]) = (nibbles[32 * p + l] & 15, nibbles[32 * p + l] >> 4);
                if format == SuperFormat::Q5K {
                    let fifth = bytes[16 + l] >> (2 * p);
                    codes[l] |= (fifth & 1) << 4;
                    codes[32 + l] |= (fifth >> 1 & 1) << 4;
                }
            }
        }
        block
    }

    /// Appends the bytes of a file to `out`.
    pub fn write(&self, format: SuperFormat, out: &mut Vec<u8>) {
        let SuperBlock { d, e, scales, minima, codes: q } = self;
        if format == SuperFormat::Q6K {
            for q in q.as_chunks::<128>().0 {
                out.extend((0..64).map(|l| q[l] & 15 | q[64 + l] << 4));
            }
            for q in q.as_chunks::<128>().0 {
                out.extend((0..32).map(|l| (0..4).fold(0, |bits, j| bits | (q[32 * j + l] >> 4) << (2 * j))));
            }
            out.extend(scales.map(|s| s as u8));
            out.extend(d.to_le_bytes());
            return;
        }
        let scales = scales.map(|s| s as u8);
        out.extend(d.to_le_bytes());
        out.extend(e.to_le_bytes());
        out.extend((0..4).map(|s| scales[s] | scales[s + 4] >> 4 << 6));
        out.extend((0..4).map(|s| minima[s] | minima[s + 4] >> 4 << 6));
        out.extend((4..8).map(|s| scales[s] & 15 | minima[s] << 4));
        if format == SuperFormat::Q5K {
            out.extend((0..32).map(|l| (0..8).fold(0, |bits, s| bits | (q[32 * s + l] >> 4) << s)));
        }
        for q in q.as_chunks::<64>().0 {
            out.extend((0..32).map(|l| q[l] & 15 | q[32 + l] << 4));
        }
    }

    /// The weights.
    pub fn weights(&self, format: SuperFormat, out: &mut [f32; SUPER_BLOCK]) {
        let (d, e) = (self.d.to_f32(), self.e.to_f32());
        if format == SuperFormat::Q6K {
            let parts = out.as_chunks_mut::<16>().0.iter_mut().zip(self.codes.as_chunks::<16>().0);
            for ((y, q), scale) in parts.zip(self.scales) {
                let scale = d * f32::from(scale);
                y.iter_mut().zip(q).for_each(|(y, q)| *y = scale * (f32::from(*q) - 32.0));
            }
            return;
        }
        let parts = out.as_chunks_mut::<32>().0.iter_mut().zip(self.codes.as_chunks::<32>().0);
        for ((y, q), (scale, minimum)) in parts.zip(self.scales.iter().zip(self.minima)) {
            let (scale, minimum) = (d * f32::from(*scale), e * f32::from(minimum));
            y.iter_mut().zip(q).for_each(|(y, q)| *y = scale * f32::from(*q) - minimum);
        }
    }

    /// Rounds weights. Inlined, so that it is compiled for the instruction set of its caller.
    #[inline(always)]
    pub fn round(format: SuperFormat, weights: &[f32; SUPER_BLOCK]) -> SuperBlock {
        match format {
            SuperFormat::Q4K => with_minima::<15>(weights),
            SuperFormat::Q5K => with_minima::<31>(weights),
            SuperFormat::Q6K => q6_k(weights),
        }
    }
}

fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

fn half(x: f32) -> f16 {
    f16::from_f32(x.clamp(-65504.0, 65504.0))
}

/// `x.round()` of numbers below 2²², with ties to even. Without a call, so that it runs in lanes of vectors.
#[inline(always)]
fn whole(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC) - MAGIC
}

/// The sum in an order that runs in lanes of vectors.
#[inline(always)]
fn sum<const N: usize>(x: &[f32; N]) -> f32 {
    let mut sums = [0.0_f32; 8];
    for x in x.as_chunks::<8>().0 {
        sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
    }
    sums.iter().sum()
}

/// The least of numbers and 0, and the greatest number.
#[inline(always)]
fn range(x: &[f32; 32]) -> (f32, f32) {
    let (mut least, mut greatest) = ([0.0_f32; 8], [f32::MIN; 8]);
    for x in x.as_chunks::<8>().0 {
        least.iter_mut().zip(x).for_each(|(m, x)| *m = if x < m { *x } else { *m });
        greatest.iter_mut().zip(x).for_each(|(m, x)| *m = if x > m { *x } else { *m });
    }
    (least.into_iter().fold(0.0, f32::min), greatest.into_iter().fold(f32::MIN, f32::max))
}

/// Step and minimum of a sub-block, x ≈ step · q − minimum, with q from 0 to `MOST`.
#[inline(always)]
fn step_of<const MOST: u8>(values: &[f32; 32]) -> (f32, f32) {
    let most = f32::from(MOST);
    let (least, greatest) = range(values);
    if greatest <= least {
        return (0.0, -least);
    }
    let mut best = (f32::INFINITY, 0.0, 0.0);
    let sx = sum(values);
    for part in TRIED {
        let by = (most + part) / (greatest - least);
        // Loops, because `map` of an array is a call.
        let (mut q, mut qq, mut qx, mut errors) = ([0.0; 32], [0.0; 32], [0.0; 32], [0.0; 32]);
        for i in 0..32 {
            q[i] = whole((values[i] - least) * by).clamp(0.0, most);
            (qq[i], qx[i]) = (q[i] * q[i], q[i] * values[i]);
        }
        // Least squares of step · q − minimum.
        let (sq, sqq, sqx) = (sum(&q), sum(&qq), sum(&qx));
        // Where all integers are equal, any minimum fits.
        let spread = 32.0 * sqq - sq * sq;
        let mut step = if spread > 0.0 { (32.0 * sqx - sq * sx) / spread } else { 0.0 };
        let mut minimum = (step * sq - sx) / 32.0;
        if minimum < 0.0 || spread <= 0.0 {
            (step, minimum) = (sqx * inverse(sqq), 0.0);
        }
        for i in 0..32 {
            let error = step * q[i] - minimum - values[i];
            errors[i] = error * error;
        }
        let error = sum(&errors);
        if error < best.0 && step > 0.0 {
            best = (error, step, minimum);
        }
    }
    (best.1, best.2)
}

/// `q4_k` (`MOST` 15) and `q5_k` (31).
#[inline(always)]
fn with_minima<const MOST: u8>(values: &[f32; SUPER_BLOCK]) -> SuperBlock {
    let parts = values.as_chunks::<32>().0;
    let mut found = [(0.0, 0.0); 8];
    for (to, part) in found.iter_mut().zip(parts) {
        *to = step_of::<MOST>(part);
    }
    of_steps::<MOST>(parts, found)
}

/// Rounds the steps and minima of sub-blocks, and all weights by them.
#[inline(always)]
fn of_steps<const MOST: u8>(parts: &[[f32; 32]], found: [(f32, f32); 8]) -> SuperBlock {
    let top = |of: fn(&(f32, f32)) -> f32| found.iter().map(of).fold(0.0, f32::max) / 63.0;
    let mut block = SuperBlock { d: half(top(|s| s.0)), e: half(top(|s| s.1)), ..SuperBlock::ZERO };
    let (by_d, by_e) = (inverse(block.d.to_f32()), inverse(block.e.to_f32()));
    let six = |x: f32, by: f32| (x * by).round().clamp(0.0, 63.0) as u8;
    for (s, (step, minimum)) in found.into_iter().enumerate() {
        (block.scales[s], block.minima[s]) = (six(step, by_d) as i8, six(minimum, by_e));
    }
    for (s, (part, q)) in parts.iter().zip(block.codes.as_chunks_mut::<32>().0).enumerate() {
        let step = block.d.to_f32() * f32::from(block.scales[s]);
        let (by, minimum) = (inverse(step), block.e.to_f32() * f32::from(block.minima[s]));
        for (q, x) in q.iter_mut().zip(part) {
            *q = whole(((x + minimum) * by).clamp(0.0, f32::from(MOST))) as u8;
        }
    }
    block
}

/// Step of 16 values, x ≈ step · q with q from −32 to 31.
#[inline(always)]
fn signed_step(values: &[f32; 16]) -> f32 {
    let largest = values.iter().fold(0.0_f32, |m, x| if x.abs() > m.abs() { *x } else { m });
    if largest == 0.0 {
        return 0.0;
    }
    let mut best = (f32::INFINITY, 0.0);
    for part in TRIED {
        let by = (part - 32.0) / largest;
        let (mut q, mut qq, mut qx, mut errors) = ([0.0; 16], [0.0; 16], [0.0; 16], [0.0; 16]);
        for i in 0..16 {
            q[i] = whole((values[i] * by).clamp(-32.0, 31.0));
            (qq[i], qx[i]) = (q[i] * q[i], q[i] * values[i]);
        }
        let step = sum(&qx) * inverse(sum(&qq));
        for i in 0..16 {
            let error = step * q[i] - values[i];
            errors[i] = error * error;
        }
        let error = sum(&errors);
        if error < best.0 {
            best = (error, step);
        }
    }
    best.1
}

#[inline(always)]
fn q6_k(values: &[f32; SUPER_BLOCK]) -> SuperBlock {
    let parts = values.as_chunks::<16>().0;
    let mut steps = [0.0_f32; 16];
    for (to, part) in steps.iter_mut().zip(parts) {
        *to = signed_step(part);
    }
    of_signed_steps(parts, steps)
}

/// Rounds the steps of sub-blocks, and all weights by them.
#[inline(always)]
fn of_signed_steps(parts: &[[f32; 16]], steps: [f32; 16]) -> SuperBlock {
    let largest = steps.iter().fold(0.0_f32, |m, x| if x.abs() > m.abs() { *x } else { m });
    let mut block = SuperBlock { d: half(largest / -128.0), ..SuperBlock::ZERO };
    let by = inverse(block.d.to_f32());
    block.scales = steps.map(|s| (s * by).round().clamp(-128.0, 127.0) as i8);
    for (s, (part, q)) in parts.iter().zip(block.codes.as_chunks_mut::<16>().0).enumerate() {
        let by = inverse(block.d.to_f32() * f32::from(block.scales[s]));
        for (q, x) in q.iter_mut().zip(part) {
            *q = (whole((x * by).clamp(-32.0, 31.0)) + 32.0) as u8;
        }
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reading and writing are inverse to each other for any bytes.
    #[test]
    fn bytes_come_back() {
        for format in SuperFormat::ALL {
            for seed in 0..8_u32 {
                let byte = |i: usize| ((i as u32 + 311 * seed).wrapping_mul(2_654_435_761) >> 13) as u8;
                let bytes: Vec<u8> = (0..format.bytes()).map(byte).collect();
                let block = SuperBlock::read(format, &bytes);
                assert!(block.codes.iter().all(|q| *q < 1 << format.bits()), "{format:?}");
                let mut back = vec![];
                block.write(format, &mut back);
                assert_eq!(back, bytes, "{format:?}");
            }
        }
    }

    #[test]
    fn whole_numbers_stay() {
        for format in SuperFormat::ALL {
            let most = 1 << format.bits();
            let (first, sub) = if format == SuperFormat::Q6K { (-32, 16) } else { (0, 32) };
            // Each sub-block has the largest integer, whose scale is the largest.
            let value = |i: usize| if i.is_multiple_of(sub) { most - 1 } else { i as i32 * 7 % most };
            let mut weights = [0.0; SUPER_BLOCK];
            for (i, w) in weights.iter_mut().enumerate() {
                *w = (if i % sub == 1 { first } else { value(i) + first }) as f32 * 128.0;
            }
            let mut back = [0.0; SUPER_BLOCK];
            let block = SuperBlock::round(format, &weights);
            block.weights(format, &mut back);
            let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 128.0 * 0.05;
            assert!(weights.iter().zip(&back).all(close), "{format:?}: {back:?}");
        }
    }
}
