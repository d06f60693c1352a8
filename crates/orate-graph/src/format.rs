//! Number formats of matmuls.

use crate::shape::{BLOCK, SUPER_BLOCK};

named! {
    /// Format in which a device multiplies, the most exact first. Sums are always f32.
    #[derive(Default)]
    pub enum Precision: "precision" {
        /// As exact as single precision.
        #[default]
        F32 = "f32",
        /// Operands rounded to 11 significant bits when they are multiplied (TensorFloat-32).
        Tf32 = "tf32",
        /// Weights stored and operands multiplied with 11 significant bits and a small range (IEEE half).
        F16 = "f16",
        /// Weights stored and operands multiplied with 8 significant bits (bfloat16).
        Bf16 = "bf16",
        /// Weights stored in blocks of 32 along K with 8 bits each and a scale; on a CPU the other operand is
        /// rounded likewise when it is multiplied.
        Q8_0 = "q8_0",
        /// Weights stored in blocks of 256 along K with 6 bits each, a scale of 8 bits for every 16 and one
        /// for all; otherwise as `q8_0`.
        Q6K = "q6_k",
        /// Weights stored in blocks of 256 along K with 5 bits each, scale and minimum of 6 bits for every 32
        /// and one of both for all; otherwise as `q8_0`.
        Q5K = "q5_k",
        /// As `q5_k` with 4 bits.
        Q4K = "q4_k",
        /// Weights stored in blocks of 32 along K with 4 bits each and a scale; on a CPU the other operand is
        /// rounded to blocks of 8 bits when it is multiplied.
        Q4_0 = "q4_0",
    }
}

impl Precision {
    /// Those that are numbers of their own, not blocks.
    pub const FLOATS: [Precision; 4] = [Precision::F32, Precision::Tf32, Precision::F16, Precision::Bf16];

    /// Weights of a column that share a scale; 1 for numbers of their own.
    pub fn block(self) -> usize {
        match self {
            Precision::F32 | Precision::Tf32 | Precision::F16 | Precision::Bf16 => 1,
            Precision::Q8_0 | Precision::Q4_0 => BLOCK,
            Precision::Q6K | Precision::Q5K | Precision::Q4K => SUPER_BLOCK,
        }
    }

    /// The format for columns of `k` weights of which blocks must not straddle two: blocks of 256 that do not
    /// fit become `q8_0`.
    pub(crate) fn fitting(self, k: usize) -> Precision {
        if self.block() == SUPER_BLOCK && !k.is_multiple_of(SUPER_BLOCK) { Precision::Q8_0 } else { self }
    }
}
