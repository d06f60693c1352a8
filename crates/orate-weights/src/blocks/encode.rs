//! Rounds numbers to blocks.
//!
//! Formats with a minimum try several steps for each sub-block, and fit step and minimum to the integers by
//! least squares; the best of them counts. Then the steps of all sub-blocks are rounded to multiples of one.

use half::f16;

use crate::{DType, q8_0};

/// Formats that can be written.
pub const WRITTEN: [DType; 5] = [DType::Q8_0, DType::Q6K, DType::Q5K, DType::Q4K, DType::Q4_0];

/// Steps that are tried for a sub-block, as parts of the range of integers.
const TRIED: [f32; 9] = [-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0];

/// Appends the blocks of `values` to `out`.
///
/// # Panics
///
/// If `dtype` is none of [`WRITTEN`], or the values are not whole blocks of it.
pub fn quantize(dtype: DType, values: &[f32], out: &mut Vec<u8>) {
    assert!(values.len().is_multiple_of(dtype.block_len()), "{} values as {dtype}", values.len());
    match dtype {
        DType::Q8_0 => out.extend(q8_0::quantize(values)),
        DType::Q4_0 => values.as_chunks().0.iter().for_each(|block| q4_0(block, out)),
        DType::Q4K => values.as_chunks().0.iter().for_each(|block| with_minima::<15>(block, out)),
        DType::Q5K => values.as_chunks().0.iter().for_each(|block| with_minima::<31>(block, out)),
        DType::Q6K => values.as_chunks().0.iter().for_each(|block| q6_k(block, out)),
        other => panic!("{other} cannot be written"),
    }
}

fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

fn half(x: f32) -> f16 {
    f16::from_f32(x.clamp(-65504.0, 65504.0))
}

/// 32 values in 18 bytes.
fn q4_0(values: &[f32; 32], out: &mut Vec<u8>) {
    let largest = values.iter().fold(0.0_f32, |m, x| if x.abs() > m.abs() { *x } else { m });
    let d = half(largest / -8.0);
    let by = inverse(d.to_f32());
    let q = values.map(|x| (x * by + 8.5).clamp(0.0, 15.0) as u8);
    out.extend(d.to_le_bytes());
    out.extend((0..16).map(|i| q[i] | q[i + 16] << 4));
}

/// Step and minimum of a sub-block, x ≈ step · q − minimum, with q from 0 to `MOST`.
fn step_of<const MOST: u8>(values: &[f32; 32]) -> (f32, f32) {
    let most = f32::from(MOST);
    let least = values.iter().fold(0.0_f32, |m, x| m.min(*x));
    let greatest = values.iter().fold(f32::MIN, |m, x| m.max(*x));
    if greatest <= least {
        return (0.0, -least);
    }
    let mut best = (f32::INFINITY, 0.0, 0.0);
    for part in TRIED {
        let by = (most + part) / (greatest - least);
        let q = values.map(|x| ((x - least) * by).round().clamp(0.0, most));
        // Least squares of step · q − minimum.
        let (mut sq, mut sqq, mut sx, mut sqx) = (0.0_f32, 0.0, 0.0, 0.0);
        for (q, x) in q.iter().zip(values) {
            sq += q;
            sqq += q * q;
            sx += x;
            sqx += q * x;
        }
        // Where all integers are equal, any minimum fits.
        let spread = 32.0 * sqq - sq * sq;
        let mut step = if spread > 0.0 { (32.0 * sqx - sq * sx) / spread } else { 0.0 };
        let mut minimum = (step * sq - sx) / 32.0;
        if minimum < 0.0 || spread <= 0.0 {
            (step, minimum) = (sqx * inverse(sqq), 0.0);
        }
        let error: f32 = q.iter().zip(values).map(|(q, x)| (step * q - minimum - x).powi(2)).sum();
        if error < best.0 && step > 0.0 {
            best = (error, step, minimum);
        }
    }
    (best.1, best.2)
}

/// `q4_K` (`MOST` 15) and `q5_K` (31): 256 values.
fn with_minima<const MOST: u8>(values: &[f32; 256], out: &mut Vec<u8>) {
    let parts = values.as_chunks::<32>().0;
    let mut found = [(0.0, 0.0); 8];
    for (to, part) in found.iter_mut().zip(parts) {
        *to = step_of::<MOST>(part);
    }
    let top = |of: fn(&(f32, f32)) -> f32| found.iter().map(of).fold(0.0, f32::max) / 63.0;
    let (d, e) = (half(top(|s| s.0)), half(top(|s| s.1)));
    let (by_d, by_e) = (inverse(d.to_f32()), inverse(e.to_f32()));
    let six = |x: f32, by: f32| (x * by).round().clamp(0.0, 63.0) as u8;
    let (scales, minima) = (found.map(|s| six(s.0, by_d)), found.map(|s| six(s.1, by_e)));
    let mut q = [0_u8; 256];
    for (s, (part, q)) in parts.iter().zip(q.as_chunks_mut::<32>().0).enumerate() {
        let (step, minimum) = (d.to_f32() * f32::from(scales[s]), e.to_f32() * f32::from(minima[s]));
        let by = inverse(step);
        for (q, x) in q.iter_mut().zip(part) {
            *q = ((x + minimum) * by).round().clamp(0.0, f32::from(MOST)) as u8;
        }
    }
    out.extend(d.to_le_bytes());
    out.extend(e.to_le_bytes());
    out.extend((0..4).map(|s| scales[s] | scales[s + 4] >> 4 << 6));
    out.extend((0..4).map(|s| minima[s] | minima[s + 4] >> 4 << 6));
    out.extend((4..8).map(|s| scales[s] & 15 | minima[s] << 4));
    if MOST == 31 {
        out.extend((0..32).map(|l| (0..8).fold(0, |bits, s| bits | (q[32 * s + l] >> 4) << s)));
    }
    for p in 0..4 {
        out.extend((0..32).map(|l| q[64 * p + l] & 15 | q[64 * p + 32 + l] << 4));
    }
}

/// Step of 16 values, x ≈ step · q with q from −32 to 31.
fn signed_step(values: &[f32; 16]) -> f32 {
    let largest = values.iter().fold(0.0_f32, |m, x| if x.abs() > m.abs() { *x } else { m });
    if largest == 0.0 {
        return 0.0;
    }
    let mut best = (f32::INFINITY, 0.0);
    for part in TRIED {
        let by = (part - 32.0) / largest;
        let q = values.map(|x| (x * by).round().clamp(-32.0, 31.0));
        let (mut sqq, mut sqx) = (0.0_f32, 0.0);
        for (q, x) in q.iter().zip(values) {
            sqq += q * q;
            sqx += q * x;
        }
        let step = sqx * inverse(sqq);
        let error: f32 = q.iter().zip(values).map(|(q, x)| (step * q - x).powi(2)).sum();
        if error < best.0 {
            best = (error, step);
        }
    }
    best.1
}

/// 256 values in 210 bytes.
fn q6_k(values: &[f32; 256], out: &mut Vec<u8>) {
    let parts = values.as_chunks::<16>().0;
    let mut steps = [0.0_f32; 16];
    for (to, part) in steps.iter_mut().zip(parts) {
        *to = signed_step(part);
    }
    let largest = steps.iter().fold(0.0_f32, |m, x| if x.abs() > m.abs() { *x } else { m });
    let d = half(largest / -128.0);
    let by = inverse(d.to_f32());
    let scales = steps.map(|s| (s * by).round().clamp(-128.0, 127.0) as i8);
    let mut q = [0_u8; 256];
    for (s, (part, q)) in parts.iter().zip(q.as_chunks_mut::<16>().0).enumerate() {
        let by = inverse(d.to_f32() * f32::from(scales[s]));
        for (q, x) in q.iter_mut().zip(part) {
            *q = ((x * by).round().clamp(-32.0, 31.0) + 32.0) as u8;
        }
    }
    for h in 0..2 {
        let q = &q[128 * h..];
        out.extend((0..64).map(|l| q[l] & 15 | q[64 + l] << 4));
    }
    for h in 0..2 {
        let q = &q[128 * h..];
        out.extend((0..32).map(|l| (0..4).fold(0, |bits, j| bits | (q[32 * j + l] >> 4) << (2 * j))));
    }
    out.extend(scales.map(|s| s as u8));
    out.extend(d.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::dequantize;

    fn noise(seed: u64, len: usize) -> Vec<f32> {
        let mut random = crate::hostile::Random::new(seed);
        let mut uniform = || random.next() as f32 / u64::MAX as f32 - 0.5;
        (0..len).map(|_| (0..6).map(|_| uniform()).sum::<f32>()).collect()
    }

    fn back(dtype: DType, values: &[f32]) -> Vec<f32> {
        let (mut bytes, mut back) = (vec![], vec![f32::NAN; values.len()]);
        quantize(dtype, values, &mut bytes);
        dequantize(dtype, &bytes, &mut back);
        back
    }

    /// Signal to noise of normal values in decibels: about 6 for each bit.
    #[test]
    fn noise_is_that_of_the_bits() {
        let values = noise(3, 256 * 64);
        for (dtype, least) in [
            (DType::Q8_0, 42.0),
            (DType::Q6K, 35.0),
            (DType::Q5K, 29.0),
            (DType::Q4K, 22.5),
            (DType::Q4_0, 19.5),
        ] {
            let power = |x: &[f32]| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
            let error: Vec<f32> = values.iter().zip(back(dtype, &values)).map(|(a, b)| a - b).collect();
            let db = 10.0 * (power(&values) / power(&error)).log10();
            assert!((least..least + 6.0).contains(&db), "{dtype}: {db}");
        }
    }

    #[test]
    fn odd_blocks_stay_what_they_are() {
        let mut values = vec![0.0; 256 * 6];
        values[256..512].fill(-0.5);
        values[512..768].fill(2.0);
        values[768] = 1e-30;
        values[1024] = 60_000.0;
        values[1280..1312].iter_mut().enumerate().for_each(|(i, x)| *x = i as f32);
        for dtype in WRITTEN {
            let back = back(dtype, &values);
            assert!(back.iter().all(|x| x.is_finite()), "{dtype}");
            assert!(back[..256].iter().all(|x| *x == 0.0), "{dtype}");
            assert!(back[256..512].iter().all(|x| (x + 0.5).abs() < 0.02), "{dtype}");
            assert!(back[512..768].iter().all(|x| (x - 2.0).abs() < 0.1), "{dtype}");
            assert!((back[1024] - 60_000.0).abs() < 600.0, "{dtype}: {}", back[1024]);
        }
    }

    /// A file that is quantized again stays the same.
    #[test]
    fn blocks_of_8_and_4_bits_round_trip() {
        let values = noise(5, 32 * 200);
        for dtype in [DType::Q8_0, DType::Q4_0] {
            let once = back(dtype, &values);
            let twice = back(dtype, &once);
            let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 2e-3 * a.abs();
            assert!(once.iter().zip(&twice).all(close), "{dtype}");
        }
    }
}
