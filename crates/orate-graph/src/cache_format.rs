//! In which format keys and values are kept.

use crate::DType;
use std::fmt;
use std::str::FromStr;

/// Format of the keys and values that a transformer keeps from step to step. All sums are f32 whatever it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CacheFormat {
    /// As they are computed.
    #[default]
    F32,
    /// Half precision: half the memory, three significant digits.
    F16,
    /// The upper halves of floats: half the memory, two significant digits.
    Bf16,
    /// Blocks of 32 bytes with a scale: little more than a quarter of the memory.
    Q8_0,
}

impl CacheFormat {
    /// All formats, the most exact first.
    pub const ALL: [CacheFormat; 4] =
        [CacheFormat::F32, CacheFormat::F16, CacheFormat::Bf16, CacheFormat::Q8_0];

    /// Name in options and results.
    pub fn name(self) -> &'static str {
        match self {
            CacheFormat::F32 => "f32",
            CacheFormat::F16 => "f16",
            CacheFormat::Bf16 => "bf16",
            CacheFormat::Q8_0 => "q8_0",
        }
    }

    /// Element type of the states.
    pub fn dtype(self) -> DType {
        match self {
            CacheFormat::F32 => DType::F32,
            CacheFormat::F16 => DType::F16,
            CacheFormat::Bf16 => DType::BF16,
            CacheFormat::Q8_0 => DType::Q8_0,
        }
    }
}

impl fmt::Display for CacheFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CacheFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|f| f.name() == text).ok_or_else(|| {
            format!("`{text}` is no format of keys and values; there are f32, f16, bf16 and q8_0")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for format in CacheFormat::ALL {
            assert_eq!(format.name().parse(), Ok(format));
            assert_eq!(format.dtype().to_string(), format.name());
        }
        let e = "q4_0".parse::<CacheFormat>().expect_err("is none");
        assert!(e.contains("q4_0") && e.contains("q8_0"), "{e}");
    }
}
