//! In which number format matmuls are computed: what the user asked for, tensor by tensor.

use crate::blocks::BLOCK;
use crate::{ConvGeometry, Op, Weight};
use std::fmt;
use std::str::FromStr;

/// Format in which a device multiplies. Sums are always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Precision {
    /// As exact as single precision.
    #[default]
    F32,
    /// Operands rounded to 11 significant bits when they are multiplied (TensorFloat-32).
    Tf32,
    /// Weights stored and operands multiplied with 11 significant bits and a small range (IEEE half).
    F16,
    /// Weights stored and operands multiplied with 8 significant bits (bfloat16).
    Bf16,
    /// Weights stored in blocks of 32 along K with 8 bits each and a scale; on a CPU the other operand is
    /// rounded likewise when it is multiplied.
    Q8_0,
    /// Weights stored in blocks of 32 along K with 4 bits each and a scale; on a CPU the other operand is
    /// rounded to blocks of 8 bits when it is multiplied.
    Q4_0,
}

impl Precision {
    /// All of them, the most exact first.
    pub const ALL: [Precision; 6] =
        [Precision::F32, Precision::Tf32, Precision::F16, Precision::Bf16, Precision::Q8_0, Precision::Q4_0];

    /// Those that are numbers of their own, not blocks.
    pub const FLOATS: [Precision; 4] = [Precision::F32, Precision::Tf32, Precision::F16, Precision::Bf16];

    /// Name in options.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Tf32 => "tf32",
            Precision::F16 => "f16",
            Precision::Bf16 => "bf16",
            Precision::Q8_0 => "q8_0",
            Precision::Q4_0 => "q4_0",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let known = Self::ALL.map(Precision::name).join(", ");
        let found = Self::ALL.into_iter().find(|p| p.name() == s);
        found.ok_or_else(|| format!("there is no precision `{s}`; choose one of {known}"))
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
}

impl PrecisionPolicy {
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
        assert!("int8".parse::<Precision>().is_err_and(|e| e.contains("f32, tf32")));
    }
}
