//! ggml's quantized formats, decoded; [`encode`] writes some of them.
//!
//! Values come in blocks with common scales; `d`, `m` and `e` are `f16`. N: values of a block.
//!
//! | type | N | bytes, in order | value |
//! | --- | --- | --- | --- |
//! | q4_0, iq4_nl | 32 | d, 16 of nibbles | d · (n − 8), d · T\[n\] |
//! | q4_1 | 32 | d, m, 16 of nibbles | d · n + m |
//! | q5_0, q5_1 | 32 | d, (m,) 4 of fifth bits, 16 of nibbles | d · (n − 16), d · n + m |
//! | q8_0 | 32 | d, 32 signed | d · q, see [`crate::q8_0`] |
//! | q2_K | 256 | 16 of scales, 64 of crumbs, d, e | d · S · q − e · M, sub-blocks of 16 |
//! | q3_K | 256 | 32 of third bits, 64 of crumbs, 12 of scales, d | d · (S − 32) · (q − 4), of 16 |
//! | q4_K | 256 | d, e, 12 of scales, 128 of nibbles | d · S · q − e · M, of 32 |
//! | q5_K | 256 | d, e, 12 of scales, 32 of fifth bits, 128 of nibbles | as q4_K |
//! | q6_K | 256 | 128 of nibbles, 64 of upper crumbs, 16 signed scales, d | d · S · (q − 32), of 16 |
//! | iq4_xs | 256 | d, 2 and 4 of scales, 128 of nibbles | d · (S − 32) · T\[n\], of 32 |
//!
//! Byte j of the nibbles of 32 values holds value j low and value j + 16 high.

pub mod encode;

use half::f16;
use orate_graph::blocks::{SuperBlock, SuperFormat};

use crate::{DType, q8_0};

/// Values of a nibble in `iq4_nl` and `iq4_xs`.
const TABLE: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Writes the values of `bytes` to `out`.
///
/// # Panics
///
/// If `dtype` has no blocks, or `bytes` are not exactly those of `out.len()` values.
pub fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert!(
        dtype.is_quantized() && dtype.bytes_for(out.len()) == Some(bytes.len()),
        "{} bytes for {} values of {dtype}",
        bytes.len(),
        out.len()
    );
    let decode: fn(&[u8], &mut [f32]) = match dtype {
        DType::Q8_0 => return q8_0::dequantize(bytes, out),
        DType::Q4_0 => |b, y| nibbles(&b[2..], y, |n| half(b, 0) * (f32::from(n) - 8.0)),
        DType::Q4_1 => |b, y| nibbles(&b[4..], y, |n| half(b, 0) * f32::from(n) + half(b, 2)),
        DType::Q5_0 => |b, y| five_bits(b, 2, y, |q| half(b, 0) * (f32::from(q) - 16.0)),
        DType::Q5_1 => |b, y| five_bits(b, 4, y, |q| half(b, 0) * f32::from(q) + half(b, 2)),
        DType::Iq4Nl => |b, y| nibbles(&b[2..], y, |n| half(b, 0) * table(n)),
        DType::Q2K => q2_k,
        DType::Q3K => q3_k,
        DType::Q4K => |b, y| super_block(SuperFormat::Q4K, b, y),
        DType::Q5K => |b, y| super_block(SuperFormat::Q5K, b, y),
        DType::Q6K => |b, y| super_block(SuperFormat::Q6K, b, y),
        DType::Iq4Xs => iq4_xs,
        other => unreachable!("{other} has no blocks"),
    };
    let blocks = bytes.chunks_exact(dtype.block_bytes()).zip(out.chunks_exact_mut(dtype.block_len()));
    blocks.for_each(|(block, values)| decode(block, values));
}

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn table(nibble: u8) -> f32 {
    f32::from(TABLE[usize::from(nibble)])
}

/// 32 values from 16 bytes.
fn nibbles(bytes: &[u8], out: &mut [f32], value: impl Fn(u8) -> f32) {
    for (j, byte) in bytes[..16].iter().enumerate() {
        (out[j], out[j + 16]) = (value(byte & 15), value(byte >> 4));
    }
}

/// 32 values from 4 bytes of fifth bits, which begin at `at`, and nibbles.
fn five_bits(block: &[u8], at: usize, out: &mut [f32], value: impl Fn(u8) -> f32) {
    let fifth = |j: usize| (block[at + j / 8] >> (j % 8) & 1) << 4;
    for (j, byte) in block[at + 4..][..16].iter().enumerate() {
        (out[j], out[j + 16]) = (value(byte & 15 | fifth(j)), value(byte >> 4 | fifth(j + 16)));
    }
}

fn q2_k(block: &[u8], out: &mut [f32]) {
    let (scales, crumbs, d, e) = (&block[..16], &block[16..80], half(block, 80), half(block, 82));
    for (i, y) in out.iter_mut().enumerate() {
        let (h, j, l) = (i / 128, i / 32 % 4, i % 32);
        let (q, s) = (crumbs[32 * h + l] >> (2 * j) & 3, scales[i / 16]);
        *y = d * f32::from(s & 15) * f32::from(q) - e * f32::from(s >> 4);
    }
}

fn q3_k(block: &[u8], out: &mut [f32]) {
    let (thirds, crumbs, scales, d) = (&block[..32], &block[32..96], &block[96..108], half(block, 108));
    for (i, y) in out.iter_mut().enumerate() {
        let (h, j, l, s) = (i / 128, i / 32 % 4, i % 32, i / 16);
        let low = scales[s % 8] >> (4 * (s / 8)) & 15;
        let scale = low | (scales[8 + s % 4] >> (2 * (s / 4)) & 3) << 4;
        let q = crumbs[32 * h + l] >> (2 * j) & 3 | (thirds[l] >> (4 * h + j) & 1) << 2;
        *y = d * (f32::from(scale) - 32.0) * (f32::from(q) - 4.0);
    }
}

fn super_block(format: SuperFormat, block: &[u8], out: &mut [f32]) {
    let out = out.as_chunks_mut().0.first_mut().expect("as many values as a block has");
    SuperBlock::read(format, block).weights(format, out);
}

fn iq4_xs(block: &[u8], out: &mut [f32]) {
    let (d, upper) = (half(block, 0), u16::from_le_bytes([block[2], block[3]]));
    for (s, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = block[4 + s / 2] >> (4 * (s % 2)) & 15 | ((upper >> (2 * s) & 3) as u8) << 4;
        nibbles(&block[8 + 16 * s..], values, |n| d * (f32::from(scale) - 32.0) * table(n));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random blocks of every type, and the numbers that the `gguf` package of Python decodes them to:
    /// `TYPE BYTES NUMBERS`, in hexadecimal.
    const VECTORS: &str = include_str!("../tests/data/block_vectors.txt");

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..][..2], 16).unwrap()).collect()
    }

    #[test]
    fn blocks_are_what_ggml_means() {
        let mut seen = std::collections::BTreeMap::new();
        for line in VECTORS.lines() {
            let [name, block, numbers] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let known = (0..64).map(DType::from_ggml).find(|t| t.name() == name).expect("a type");
            let block = bytes(block);
            let want: Vec<f32> =
                bytes(numbers).as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            assert_eq!((block.len(), want.len()), (known.block_bytes(), known.block_len()), "{name}");
            let mut got = vec![f32::NAN; want.len()];
            dequantize(known, &block, &mut got);
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                // d·S·q − e·M may be rounded in another order.
                let close = (got - want).abs() <= 1e-6 * want.abs().max(1e-3);
                assert!(close, "{name}, value {i}: {got} instead of {want}");
            }
            *seen.entry(name).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), 12);
        assert!(seen.values().all(|n| *n == 2), "{seen:?}");
    }

    #[test]
    fn numbers_of_types_go_both_ways() {
        for id in 0..64 {
            assert_eq!(DType::from_ggml(id).to_ggml(), Some(id));
        }
        assert_eq!(DType::Other(21).name(), "iq3_s");
        assert_eq!(DType::Other(21).bytes_for(256), None);
    }
}
