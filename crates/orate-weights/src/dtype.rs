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
    /// ggml's blocks of 32 values of 4 bits, with a scale. See [`crate::blocks`] for these and the following.
    Q4_0,
    /// 32 values of 4 bits, with scale and minimum.
    Q4_1,
    /// 32 values of 5 bits, with a scale.
    Q5_0,
    /// 32 values of 5 bits, with scale and minimum.
    Q5_1,
    /// ggml's `Q2_K`: 256 values of 2 bits in sub-blocks with scale and minimum.
    Q2K,
    /// ggml's `Q3_K`: 256 values of 3 bits in sub-blocks with a scale.
    Q3K,
    /// ggml's `Q4_K`: 256 values of 4 bits in sub-blocks with scale and minimum.
    Q4K,
    /// ggml's `Q5_K`: 256 values of 5 bits in sub-blocks with scale and minimum.
    Q5K,
    /// ggml's `Q6_K`: 256 values of 6 bits in sub-blocks with a scale.
    Q6K,
    /// ggml's `IQ4_NL`: 32 values from a table of 16, with a scale.
    Iq4Nl,
    /// ggml's `IQ4_XS`: 256 values from the same table, in sub-blocks with a scale.
    Iq4Xs,
    /// A type of ggml that is listed by its number and cannot be read.
    Other(u32),
    /// Signed 64-bit integers.
    I64,
    /// Signed 32-bit integers.
    I32,
    /// Bytes; also ONNX booleans.
    U8,
}

impl DType {
    /// Values per block: 1 for plain numbers.
    pub const fn block_len(self) -> usize {
        match self {
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Iq4Nl => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K | Self::Iq4Xs => 256,
            _ => 1,
        }
    }

    /// Bytes per block; 0 where nothing is known of it.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::F64 | Self::I64 => 8,
            Self::U8 => 1,
            Self::Q8_0 => 34,
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Iq4Xs => 136,
            Self::Other(_) => 0,
        }
    }

    /// Bytes of `len` values, or `None` if they are not whole blocks, the result overflows, or the type
    /// cannot be read.
    pub const fn bytes_for(self, len: usize) -> Option<usize> {
        if !len.is_multiple_of(self.block_len()) || matches!(self, Self::Other(_)) {
            return None;
        }
        (len / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Whether values come in blocks with a common scale.
    pub const fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// Whether values are floats of at most 32 bits that can be addressed one by one.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// Whether values can be read as floats: floats of at most 32 bits, and all blocks.
    pub const fn is_readable_float(self) -> bool {
        self.is_float() || self.is_quantized()
    }

    /// The usual name, such as `f16`, `q8_0` or `q4_K`.
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
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q2K => "q2_K",
            Self::Q3K => "q3_K",
            Self::Q4K => "q4_K",
            Self::Q5K => "q5_K",
            Self::Q6K => "q6_K",
            Self::Iq4Nl => "iq4_nl",
            Self::Iq4Xs => "iq4_xs",
            Self::Other(id) => unread(id),
        }
    }

    /// The type with a number of ggml.
    pub const fn from_ggml(id: u32) -> Self {
        match id {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            10 => Self::Q2K,
            11 => Self::Q3K,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            20 => Self::Iq4Nl,
            23 => Self::Iq4Xs,
            26 => Self::I32,
            27 => Self::I64,
            28 => Self::F64,
            30 => Self::BF16,
            other => Self::Other(other),
        }
    }

    /// Its number in ggml; `None` for bytes, which ggml lacks.
    pub const fn to_ggml(self) -> Option<u32> {
        Some(match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q2K => 10,
            Self::Q3K => 11,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::Iq4Nl => 20,
            Self::Iq4Xs => 23,
            Self::I32 => 26,
            Self::I64 => 27,
            Self::F64 => 28,
            Self::BF16 => 30,
            Self::Other(id) => id,
            Self::U8 => return None,
        })
    }
}

/// Names of ggml's types that cannot be read.
const fn unread(id: u32) -> &'static str {
    match id {
        9 => "q8_1",
        15 => "q8_K",
        16 => "iq2_xxs",
        17 => "iq2_xs",
        18 => "iq3_xxs",
        19 => "iq1_s",
        21 => "iq3_s",
        22 => "iq2_s",
        24 => "i8",
        25 => "i16",
        29 => "iq1_m",
        34 => "tq1_0",
        35 => "tq2_0",
        39 => "mxfp4",
        40 => "nvfp4",
        _ => "unknown",
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
