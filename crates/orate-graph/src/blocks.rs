//! Rounding of weights to blocks: whole numbers that share a scale, as in GGUF files.
//!
//! A device decides in which order numbers and scales lie in its memory; this module decides what they are.
//!
//! | format | number | scale |
//! | --- | --- | --- |
//! | `q8_0` | −127 … 127 | largest magnitude / 127 |
//! | `q4_0` | −8 … 7 | number of largest magnitude / −8 |
//!
//! Those of 256 weights, whose scales are rounded too, are in [`SuperBlock`].

mod super_block;

pub use super_block::{SuperBlock, SuperFormat, weighted_q4_0};

use crate::Precision;
pub use crate::shape::{BLOCK, SUPER_BLOCK};
use half::f16;

/// How the weights of a block are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockFormat {
    /// 8 bits each.
    Q8_0,
    /// 4 bits each.
    Q4_0,
}

impl BlockFormat {
    /// The blocks of 32 of a precision; `None` if it has none.
    pub fn of(precision: Precision) -> Option<BlockFormat> {
        match precision {
            Precision::Q8_0 => Some(BlockFormat::Q8_0),
            Precision::Q4_0 => Some(BlockFormat::Q4_0),
            _ => None,
        }
    }

    /// Weights in a word of 4 bytes.
    pub fn per_word(self) -> usize {
        match self {
            BlockFormat::Q8_0 => 4,
            BlockFormat::Q4_0 => 8,
        }
    }

    /// The scale of a block, by the weight of largest magnitude (see [`larger`]).
    pub fn scale(self, largest: f32) -> f16 {
        let exact = match self {
            _ if largest == 0.0 => 0.0,
            BlockFormat::Q8_0 => largest.abs() / 127.0,
            BlockFormat::Q4_0 => largest / -8.0,
        };
        f16::from_f32(exact.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()))
    }

    /// The whole number that stands for `weight` in a block of this scale.
    pub fn number(self, weight: f32, scale: f16) -> i8 {
        if scale.to_f32() == 0.0 {
            return 0;
        }
        let ratio = weight / scale.to_f32();
        match self {
            BlockFormat::Q8_0 => ratio.round().clamp(-127.0, 127.0) as i8,
            BlockFormat::Q4_0 => (ratio + 0.5).floor().clamp(-8.0, 7.0) as i8,
        }
    }
}

/// That of two weights whose magnitude is larger, with its sign; the first if they are equal.
pub fn larger(a: f32, b: f32) -> f32 {
    if b.abs() > a.abs() { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(format: BlockFormat, block: &[f32]) -> (f32, Vec<i8>) {
        let scale = format.scale(block.iter().copied().fold(0.0, larger));
        (scale.to_f32(), block.iter().map(|x| format.number(*x, scale)).collect())
    }

    #[test]
    fn whole_numbers_stay() {
        assert_eq!(rounded(BlockFormat::Q8_0, &[-127.0, 3.0, 0.0]), (1.0, vec![-127, 3, 0]));
        assert_eq!(rounded(BlockFormat::Q4_0, &[-8.0, 7.0, 0.0, 3.0]), (1.0, vec![-8, 7, 0, 3]));
        // The sign of the largest is that of −8.
        assert_eq!(rounded(BlockFormat::Q4_0, &[16.0, -14.0, 2.0]), (-2.0, vec![-8, 7, -1]));
    }

    #[test]
    fn errors_are_within_half_a_step_or_the_missing_end() {
        for format in [BlockFormat::Q8_0, BlockFormat::Q4_0] {
            let block: Vec<f32> = (0..BLOCK).map(|i| ((i * 37 + 11) % 64) as f32 / 32.0 - 1.0).collect();
            let (scale, numbers) = rounded(format, &block);
            for (x, q) in block.iter().zip(numbers) {
                // 8 steps on the other side are one more than there are.
                let most = if format == BlockFormat::Q4_0 && x / scale > 7.0 { 1.0 } else { 0.51 };
                assert!((x - scale * f32::from(q)).abs() <= most * scale.abs(), "{format:?}: {x} is {q}");
            }
        }
    }

    #[test]
    fn extremes() {
        for format in [BlockFormat::Q8_0, BlockFormat::Q4_0] {
            assert_eq!(rounded(format, &[0.0; 3]), (0.0, vec![0; 3]));
            assert_eq!(rounded(format, &[1e-12, -1e-12]).1, [0, 0], "too small for a scale");
            let (scale, numbers) = rounded(format, &[1e30, -1e30]);
            assert!(scale.is_finite() && numbers[0].abs() > 6 && numbers[1].abs() > 6, "saturates");
        }
    }
}
