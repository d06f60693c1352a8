//! Rounds numbers to blocks.

use half::f16;
use orate_graph::blocks::{SuperBlock, SuperFormat, weighted_q4_0};

use crate::{DType, q8_0};

/// Formats that can be written.
pub const WRITTEN: [DType; 5] = [DType::Q8_0, DType::Q6K, DType::Q5K, DType::Q4K, DType::Q4_0];

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
        DType::Q4K => super_blocks(SuperFormat::Q4K, values, out),
        DType::Q5K => super_blocks(SuperFormat::Q5K, values, out),
        DType::Q6K => super_blocks(SuperFormat::Q6K, values, out),
        other => panic!("{other} cannot be written"),
    }
}

/// As [`quantize`], with the error of each weight counted as often as `importance` has it: one number for
/// each column of the matrix whose rows `values` are. Types of 8 bits and more are as exact without.
///
/// # Panics
///
/// As [`quantize`]; rows are not whole blocks.
pub fn quantize_weighted(dtype: DType, values: &[f32], importance: &[f32], out: &mut Vec<u8>) {
    let (width, block) = (importance.len(), dtype.block_len());
    assert!(values.len().is_multiple_of(width) && width.is_multiple_of(block), "rows of {width} as {dtype}");
    let format = match dtype {
        DType::Q4_0 => None,
        DType::Q4K => Some(SuperFormat::Q4K),
        DType::Q5K => Some(SuperFormat::Q5K),
        DType::Q6K => Some(SuperFormat::Q6K),
        other => return quantize(other, values, out),
    };
    for row in values.chunks_exact(width) {
        match format {
            Some(format) => {
                for (x, w) in row.as_chunks().0.iter().zip(importance.as_chunks().0) {
                    SuperBlock::round_weighted(format, x, w).write(format, out);
                }
            }
            None => {
                for (x, w) in row.as_chunks().0.iter().zip(importance.as_chunks().0) {
                    let (scale, q) = weighted_q4_0(x, w);
                    let q = q.map(|q| (q + 8) as u8);
                    out.extend(scale.to_le_bytes());
                    out.extend((0..16).map(|i| q[i] | q[i + 16] << 4));
                }
            }
        }
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

/// Blocks of 256 values.
fn super_blocks(format: SuperFormat, values: &[f32], out: &mut Vec<u8>) {
    values.as_chunks().0.iter().for_each(|block| SuperBlock::round(format, block).write(format, out));
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
