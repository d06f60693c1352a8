//! Number formats as the user asked for them: of matmuls, tensor by tensor, and of keys and values.

use crate::blocks::SuperFormat;
use crate::shape::{BLOCK, SUPER_BLOCK};
use crate::{ConvGeometry, DType, Op, Precision, Weight};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

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

/// A precision, and for which weights it holds. All others are multiplied in f32, some in f16.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrecisionPolicy {
    /// The format.
    pub precision: Precision,
    /// Formats of single weights in place of `precision`, by name: those in which a file stores them.
    pub stored: BTreeMap<String, Precision>,
    /// Patterns of weight names that get it; without any, all weights do. `*` stands for any characters.
    pub allow: Vec<String>,
    /// Patterns of weight names that do not, whatever `allow` says.
    pub deny: Vec<String>,
    /// Patterns of weight names that get `f16`, also where `allow` names them: for weights that take little
    /// memory but, on devices where `f16` is fast, much time.
    pub half: Vec<String>,
}

impl PrecisionPolicy {
    /// One format for all weights.
    pub fn uniform(precision: Precision) -> Self {
        PrecisionPolicy { precision, ..Default::default() }
    }

    /// All formats that a weight may have, the most exact first, `f32` among them.
    pub fn formats(&self) -> Vec<Precision> {
        let mut all = vec![Precision::F32, self.precision];
        all.extend(self.stored.values());
        all.extend((!self.half.is_empty()).then_some(Precision::F16));
        if all.iter().any(|p| p.block() == SUPER_BLOCK) {
            all.push(Precision::Q8_0);
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The format in which a matmul by `weight` `[K, N]` is computed.
    pub fn of(&self, weight: &Weight) -> Precision {
        let name = weight.first_name().unwrap_or_default();
        if weight.is_exact() {
            return Precision::F32;
        }
        self.of_name(name).fitting(weight.shape().dims().first().copied().unwrap_or(1))
    }

    /// The format that weights of this name have, as far as their shapes allow it.
    pub fn of_name(&self, name: &str) -> Precision {
        let any = |patterns: &[String]| patterns.iter().any(|p| name_matches(p, name));
        match () {
            () if any(&self.deny) => Precision::F32,
            () if any(&self.half) => Precision::F16,
            () if self.allow.is_empty() || any(&self.allow) => {
                self.stored.get(name).copied().unwrap_or(self.precision)
            }
            () => Precision::F32,
        }
    }

    /// The format in which the weights of a matmul, or of a convolution, are kept. A block may not straddle
    /// two taps of a convolution, so one whose width does not fit stays in f32.
    pub fn of_matmul(&self, weight: &Weight, conv: Option<&ConvGeometry>) -> Precision {
        let channels = weight.shape().dims()[0] / conv.map_or(1, |g| g.taps);
        let asked = self.of(weight).fitting(channels);
        let fits = conv.is_none() || channels.is_multiple_of(asked.block());
        if fits { asked } else { Precision::F32 }
    }

    /// The format in which an op's weights are kept; `None` for ops other than matmul and convolution.
    pub fn of_op(&self, op: &Op) -> Option<Precision> {
        match op {
            Op::MatMul { weight, .. } => Some(self.of_matmul(weight, None)),
            Op::Conv1d { weight, geometry, .. } => Some(self.of_matmul(weight, Some(geometry))),
            _ => None,
        }
    }

    /// Bytes by which the weights of a matmul or convolution are smaller than in f32, without what fills up
    /// blocks.
    pub(crate) fn bytes_saved(&self, op: &Op) -> usize {
        let (Op::MatMul { weight, .. } | Op::Conv1d { weight, .. }) = op else { return 0 };
        let (weights, format) = (weight.shape().len(), self.of_op(op).unwrap_or_default());
        let bytes = match (format, SuperFormat::of(format)) {
            (_, Some(blocks)) => weights * blocks.bytes() / SUPER_BLOCK,
            (Precision::Q8_0, _) => weights * (2 + BLOCK) / BLOCK,
            (Precision::Q4_0, _) => weights * (2 + BLOCK / 2) / BLOCK,
            (Precision::F16 | Precision::Bf16, _) => 2 * weights,
            _ => 4 * weights,
        };
        4 * weights - bytes
    }
}

impl fmt::Display for PrecisionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.precision.fmt(f)?;
        let others: BTreeSet<_> = self.stored.values().filter(|p| **p != self.precision).collect();
        if !others.is_empty() {
            let names: Vec<&str> = others.into_iter().map(|p| p.name()).collect();
            write!(f, " with {} as stored", names.join(", "))?;
        }
        if self.precision == Precision::F32 {
            return Ok(());
        }
        // Patterns within those of `half` have no effect.
        let is_half = |pattern: &str| self.half.iter().any(|half| name_matches(half, pattern));
        let allow: Vec<&str> = self.allow.iter().map(String::as_str).filter(|p| !is_half(p)).collect();
        if !allow.is_empty() {
            write!(f, " for {}", allow.join(", "))?;
        }
        if !self.deny.is_empty() {
            write!(f, " but not for {}", self.deny.join(", "))?;
        }
        if !self.half.is_empty() {
            write!(f, ", and f16 for {}", self.half.join(", "))?;
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
            ..Default::default()
        };
        let of = |name: &str| policy.of(&Weight::named(name, [1, 1]).transpose());
        assert_eq!(of("tts.ae.convnext.0"), Precision::F16);
        assert_eq!(of("tts.ae.head.layer1"), Precision::F32);
        assert_eq!(of("tts.ttl.x"), Precision::F32);
        let exact = Weight::named("tts.ae.convnext.0", [1, 1]).exact().transpose();
        assert_eq!(policy.of(&exact), Precision::F32, "whatever the policy is");
        assert_eq!(policy.to_string(), "f16 for tts.ae.* but not for *.head.*");
        assert_eq!("bf16".parse(), Ok(Precision::Bf16));
    }

    #[test]
    fn some_of_the_others_are_halved() {
        use Precision::{F16, F32, Q8_0};
        let patterns = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let policy = PrecisionPolicy {
            precision: Q8_0,
            allow: patterns(&["talker.*", "codec.first"]),
            deny: patterns(&["codec.last"]),
            half: patterns(&["codec.*"]),
            ..Default::default()
        };
        let names = ["talker.a", "codec.first", "codec.b", "codec.last", "encoder"];
        assert_eq!(names.map(|name| policy.of_name(name)), [Q8_0, F16, F16, F32, F32]);
        assert_eq!(policy.of(&Weight::named("codec.b", [3, 1]).exact().transpose()), F32);
        assert_eq!(policy.formats(), [F32, F16, Q8_0]);
        let words = "q8_0 for talker.* but not for codec.last, and f16 for codec.*";
        assert_eq!(policy.to_string(), words);
    }

    #[test]
    fn stored_formats_come_first_where_their_blocks_fit() {
        use Precision::{F32, Q4_0, Q4K, Q6K, Q8_0};
        let stored = [("a".to_owned(), Q6K), ("b".to_owned(), Q4_0)].into();
        let policy = PrecisionPolicy { precision: Q4K, stored, ..Default::default() };
        let of = |name: &str, k: usize| policy.of(&Weight::named(name, [3, k]).transpose());
        assert_eq!([of("a", 512), of("b", 512), of("c", 512)], [Q6K, Q4_0, Q4K]);
        assert_eq!([of("a", 96), of("b", 96), of("c", 96)], [Q8_0, Q4_0, Q8_0]);
        let conv = |channels: usize, taps: usize| {
            let geometry = ConvGeometry::symmetric(taps, 1);
            policy.of_matmul(&Weight::named("a", [channels * taps, 3]), Some(&geometry))
        };
        assert_eq!([conv(256, 3), conv(64, 8), conv(16, 16)], [Q6K, Q8_0, F32]);
        assert_eq!(policy.to_string(), "q4_k with q6_k, q4_0 as stored");
        assert_eq!(policy.formats(), [F32, Q8_0, Q6K, Q4K, Q4_0]);
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
