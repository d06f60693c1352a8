//! Blocks of 32 values in 34 bytes: an `f16` scale, then 32 signed bytes. The layout is ggml's `Q8_0`.
//!
//!   scale = max |x| / 127,   q = round(x / scale),   x ≈ scale · q
//!
//! The error of an element is at most half a step, |x − scale·q| ≤ scale / 2, as long as the scale is a
//! normal `f16` (above 6e-5); the scale itself is off by at most one part in 2048.

use half::f16;

/// Values per block.
pub const BLOCK_LEN: usize = 32;
/// Bytes per block.
pub const BLOCK_BYTES: usize = 34;

/// Quantizes `values`, whose length must be a multiple of 32.
///
/// # Panics
///
/// If the length is not a multiple of 32.
pub fn quantize(values: &[f32]) -> Vec<u8> {
    let (blocks, rest) = values.as_chunks::<BLOCK_LEN>();
    assert!(rest.is_empty(), "{} values are not whole blocks of {BLOCK_LEN}", values.len());
    let mut out = Vec::with_capacity(blocks.len() * BLOCK_BYTES);
    for block in blocks {
        let largest = block.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
        // Divide by the scale as stored, so that its own rounding is not added to each element's.
        let scale = f16::from_f32((largest / 127.0).min(f16::MAX.to_f32()));
        let inverse = match scale.to_f32() {
            0.0 => 0.0,
            scale => 1.0 / scale,
        };
        out.extend_from_slice(&scale.to_le_bytes());
        out.extend(block.map(|x| (x * inverse).round().clamp(-127.0, 127.0) as i8 as u8));
    }
    out
}

/// Writes the values of `bytes` to `out`.
///
/// # Panics
///
/// If `bytes` is not exactly `out.len() / 32` blocks.
pub fn dequantize(bytes: &[u8], out: &mut [f32]) {
    let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
    assert!(
        rest.is_empty() && blocks.len() * BLOCK_LEN == out.len(),
        "{} bytes for {}",
        bytes.len(),
        out.len()
    );
    for (block, out) in blocks.iter().zip(out.as_chunks_mut::<BLOCK_LEN>().0) {
        let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
        for (to, &q) in out.iter_mut().zip(&block[2..]) {
            *to = f32::from(q as i8) * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half a step, and a little for the rounding of the scale.
    const MAX_ERROR_STEPS: f32 = 0.5 * (1.0 + 1.0 / 1024.0);

    fn noise(seed: u64, len: usize, size: f32) -> Vec<f32> {
        let mut random = crate::hostile::Random::new(seed);
        (0..len).map(|_| (random.next() as f32 / u64::MAX as f32 - 0.5) * 2.0 * size).collect()
    }

    #[test]
    fn error_is_within_half_a_step() {
        for (seed, size) in [(1, 1.0), (2, 1e-2), (3, 300.0), (4, 0.05)] {
            let values = noise(seed, 32 * 100, size);
            let bytes = quantize(&values);
            assert_eq!(bytes.len(), 34 * 100);
            let mut back = vec![0.0; values.len()];
            dequantize(&bytes, &mut back);
            for (x, y) in values.chunks(32).zip(back.chunks(32)) {
                let step = x.iter().fold(0.0, |m: f32, v| m.max(v.abs())) / 127.0;
                for (x, y) in x.iter().zip(y) {
                    assert!((x - y).abs() <= MAX_ERROR_STEPS * step, "{x} became {y}, step {step}");
                }
            }
        }
    }

    #[test]
    fn extremes() {
        let mut values = vec![0.0; 32 * 4];
        values[32] = 127.0;
        values[33] = -127.0;
        values[34] = 1.0;
        values[64] = 1e-12; // too small for an f16 scale: the block becomes zero
        values[96] = 1e30; // too large: saturates
        let mut back = vec![0.0; values.len()];
        dequantize(&quantize(&values), &mut back);
        assert_eq!(&back[..32], &[0.0; 32]);
        assert_eq!(&back[32..36], &[127.0, -127.0, 1.0, 0.0]);
        assert_eq!(back[64], 0.0);
        assert_eq!(back[96], 127.0 * 65504.0);
    }

    #[test]
    fn quantizing_twice_changes_nothing() {
        let values = noise(5, 320, 2.0);
        let mut once = vec![0.0; 320];
        dequantize(&quantize(&values), &mut once);
        let mut twice = vec![0.0; 320];
        dequantize(&quantize(&once), &mut twice);
        let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-3 * a.abs();
        assert!(once.iter().zip(&twice).all(close));
    }
}
