//! Number formats: of matmuls, as the user asked for them, tensor by tensor, and of keys and values.

use crate::shape::BLOCK;
use crate::{ConvGeometry, DType, Op, Weight};
use std::fmt;

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
        /// Weights stored in blocks of 32 along K with 4 bits each and a scale; on a CPU the other operand is
        /// rounded to blocks of 8 bits when it is multiplied.
        Q4_0 = "q4_0",
    }
}

impl Precision {
    /// Those that are numbers of their own, not blocks.
    pub const FLOATS: [Precision; 4] = [Precision::F32, Precision::Tf32, Precision::F16, Precision::Bf16];
}

named! {
    /// Format of the keys and values that a transformer keeps from step to step, the most exact first. All
    /// sums are f32 whatever it is.
    #[derive(Default)]
    pub enum CacheFormat: "format of keys and values" {
        /// As they are computed.
        #[default]
        F32 = "f32",
        /// Half precision: half the memory, three significant digits.
        F16 = "f16",
        /// The upper halves of floats: half the memory, two significant digits.
        Bf16 = "bf16",
        /// Blocks of 32 bytes with a scale: little more than a quarter of the memory.
        Q8_0 = "q8_0",
    }
}

impl CacheFormat {
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

/// A precision, and for which weights it holds. All others are multiplied in f32.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrecisionPolicy {
    /// The format.
    pub precision: Precision,
    /// Patterns of weight names that get it; without any, all weights do. `*` stands for any characters.
    pub allow: Vec<String>,
    /// Patterns of weight names that do not, whatever `allow` says.
    pub deny: Vec<String>,
}

impl PrecisionPolicy {
    /// One format for all weights.
    pub fn uniform(precision: Precision) -> Self {
        PrecisionPolicy { precision, ..Default::default() }
    }

    /// The format in which a matmul by `weight` is computed.
    pub fn of(&self, weight: &Weight) -> Precision {
        let name = weight.first_name().unwrap_or_default();
        let any = |patterns: &[String]| patterns.iter().any(|p| name_matches(p, name));
        if (self.allow.is_empty() || any(&self.allow)) && !any(&self.deny) {
            self.precision
        } else {
            Precision::F32
        }
    }

    /// The format in which the weights of a matmul, or of a convolution, are kept. A block may not straddle
    /// two taps of a convolution, so one whose width does not fit stays in f32.
    pub fn of_matmul(&self, weight: &Weight, conv: Option<&ConvGeometry>) -> Precision {
        let asked = self.of(weight);
        let fits = conv.is_none_or(|g| (weight.shape().dims()[0] / g.taps).is_multiple_of(BLOCK));
        if fits || Precision::FLOATS.contains(&asked) { asked } else { Precision::F32 }
    }

    /// The format in which an op's weights are kept; `None` for ops other than matmul and convolution.
    pub fn of_op(&self, op: &Op) -> Option<Precision> {
        match op {
            Op::MatMul { weight, .. } => Some(self.of_matmul(weight, None)),
            Op::Conv1d { weight, geometry, .. } => Some(self.of_matmul(weight, Some(geometry))),
            _ => None,
        }
    }
}

impl fmt::Display for PrecisionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.precision.fmt(f)?;
        if self.precision == Precision::F32 {
            return Ok(());
        }
        if !self.allow.is_empty() {
            write!(f, " for {}", self.allow.join(", "))?;
        }
        if !self.deny.is_empty() {
            write!(f, " but not for {}", self.deny.join(", "))?;
        }
        Ok(())
    }
}

/// Whether `name` is as `pattern` says, where `*` stands for any characters.
pub fn name_matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(start) else { return false };
    (0..=name.len()).any(|i| name.is_char_boundary(i) && name_matches(rest, &name[i..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, want) in [
            ("a.b", "a.b", true),
            ("a.b", "a.bc", false),
            ("a.*", "a.bc", true),
            ("*", "", true),
            ("*.weight", "x.y.weight", true),
            ("*.weight", "x.y.bias", false),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abcd", false),
        ] {
            assert_eq!(name_matches(pattern, name), want, "{pattern} and {name}");
        }
    }

    #[test]
    fn deny_wins() {
        let policy = PrecisionPolicy {
            precision: Precision::F16,
            allow: vec!["tts.ae.*".into()],
            deny: vec!["*.head.*".into()],
        };
        let of = |name: &str| policy.of(&Weight::named(name, [1, 1]).transpose());
        assert_eq!(of("tts.ae.convnext.0"), Precision::F16);
        assert_eq!(of("tts.ae.head.layer1"), Precision::F32);
        assert_eq!(of("tts.ttl.x"), Precision::F32);
        assert_eq!(policy.to_string(), "f16 for tts.ae.* but not for *.head.*");
        assert_eq!("bf16".parse(), Ok(Precision::Bf16));
    }

    #[test]
    fn names_are_read_back() {
        for format in CacheFormat::ALL {
            assert_eq!(format.name().parse(), Ok(format));
            assert_eq!(format.dtype().name(), format.name());
        }
        assert!("int8".parse::<Precision>().is_err_and(|e| e.contains("`int8`") && e.contains("f32, tf32")));
        let e = "q4_0".parse::<CacheFormat>().expect_err("is none");
        assert!(e.contains("q4_0") && e.contains("q8_0"), "{e}");
    }
}
