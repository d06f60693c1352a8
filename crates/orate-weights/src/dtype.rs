//! Element types of tensors.

use std::fmt;

/// Element type of a tensor. All are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE double precision. Read as `f32`.
    F64,
    /// IEEE half precision.
    F16,
    /// The upper half of an `F32`.
    BF16,
    /// Blocks of 32 values: an `F16` scale and 32 signed bytes. See [`crate::q8_0`].
    Q8_0,
    /// Signed 64-bit integers.
    I64,
    /// Signed 32-bit integers.
    I32,
    /// Bytes; also ONNX booleans.
    U8,
}

impl DType {
    /// Values per block: 32 for `Q8_0`, 1 for all others.
    pub const fn block_len(self) -> usize {
        match self {
            Self::Q8_0 => 32,
            _ => 1,
        }
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8_0 => 34,
            Self::F64 | Self::I64 => 8,
            Self::U8 => 1,
        }
    }

    /// Bytes of `len` values, or `None` if they are not whole blocks or the result overflows.
    pub const fn bytes_for(self, len: usize) -> Option<usize> {
        if !len.is_multiple_of(self.block_len()) {
            return None;
        }
        (len / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Whether values come in blocks with a common scale.
    pub const fn is_quantized(self) -> bool {
        matches!(self, Self::Q8_0)
    }

    /// Whether values are floats of at most 32 bits that can be addressed one by one.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// The usual name in lower case, such as `f16` or `q8_0`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::U8 => "u8",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
