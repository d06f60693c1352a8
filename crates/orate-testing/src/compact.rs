//! Reference encoding of rows of compact elements ([`DType::COMPACT`]).

use half::{bf16, f16};
use orate_graph::DType;

/// Elements that share a scale in `q8_0`.
const BLOCK: usize = 32;

/// Encodes rows of `width` elements, with rounding.
///
/// # Panics
/// The type is not compact, or `x` is not whole rows.
pub fn encode(dtype: DType, width: usize, x: &[f32]) -> Vec<u8> {
    assert!(x.is_empty() || x.len().is_multiple_of(width), "whole rows");
    match dtype {
        DType::F16 => x.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        DType::BF16 => x.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
        DType::Q8_0 => x.chunks_exact(width.max(1)).flat_map(encode_blocks).collect(),
        DType::F32 | DType::I32 => panic!("{dtype} is not compact"),
    }
}

/// A q8_0 row: all bytes, then all scales.
fn encode_blocks(row: &[f32]) -> Vec<u8> {
    let (mut bytes, mut scales) = (vec![], vec![]);
    for block in row.chunks_exact(BLOCK) {
        let largest = block.iter().fold(0f32, |m, x| m.max(x.abs()));
        let scale = f16::from_f32((largest / 127.0).min(f16::MAX.to_f32()));
        let inverse = if scale.to_f32() == 0.0 { 0.0 } else { 1.0 / scale.to_f32() };
        let byte = |x: &f32| (x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8 as u8;
        bytes.extend(block.iter().map(byte));
        scales.extend(scale.to_le_bytes());
    }
    [bytes, scales].concat()
}

/// Decodes rows of `width` elements; every value is exact in f32.
///
/// # Panics
/// The type is not compact.
pub fn decode(dtype: DType, width: usize, bytes: &[u8]) -> Vec<f32> {
    let pairs = |bytes: &[u8]| bytes.as_chunks::<2>().0.to_vec();
    match dtype {
        DType::F16 => pairs(bytes).into_iter().map(|b| f16::from_le_bytes(b).to_f32()).collect(),
        DType::BF16 => pairs(bytes).into_iter().map(|b| bf16::from_le_bytes(b).to_f32()).collect(),
        DType::Q8_0 => {
            let row = |row: &[u8]| -> Vec<f32> {
                let (bytes, scales) = row.split_at(width);
                let scale = |i: usize| f16::from_le_bytes(pairs(scales)[i / BLOCK]).to_f32();
                bytes.iter().enumerate().map(|(i, b)| f32::from(*b as i8) * scale(i)).collect()
            };
            bytes.chunks_exact(dtype.row_bytes(width).max(1)).flat_map(row).collect()
        }
        DType::F32 | DType::I32 => panic!("{dtype} is not compact"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_rounded_to_the_nearest_even() {
        let x = [1.0, 1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0, 70_000.0];
        let back = decode(DType::F16, 4, &encode(DType::F16, 4, &x));
        assert_eq!(back, [1.0, 1.0, 1.0 + 4.0 / 2048.0, f32::INFINITY]);
        let x = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0];
        assert_eq!(decode(DType::BF16, 2, &encode(DType::BF16, 2, &x)), [1.0, 1.0 + 4.0 / 256.0]);
    }

    #[test]
    fn blocks_share_a_scale_behind_their_row() {
        let row: Vec<f32> = (0..64).map(|i| if i < 32 { i as f32 * 4.096_774 } else { 0.0 }).collect();
        let bytes = encode(DType::Q8_0, 64, &row);
        assert_eq!(bytes.len(), 68);
        assert_eq!((bytes[31], bytes[1], &bytes[32..64]), (127, 4, &[0; 32][..]));
        assert_eq!(bytes[64..], [0x00, 0x3c, 0, 0], "1 and 0 in half precision");
        let halves: Vec<f32> = (0..64).map(|i| if i == 0 { 127.0 } else { 0.5 + i as f32 }).collect();
        assert_eq!(encode(DType::Q8_0, 64, &halves)[1..5], [2, 2, 4, 4], "halves go to the even one");
    }
}
