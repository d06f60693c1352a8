//! Metadata of a GGUF file, whatever type of number a writer chose.

use orate_weights::GgufFile;
use orate_weights::gguf::{GgufArray, GgufValue};

/// Metadata whose keys begin with a prefix. Values of another kind than asked for count as missing.
#[derive(Clone, Copy)]
pub struct Meta<'f> {
    file: &'f GgufFile,
    prefix: &'static str,
}

impl<'f> Meta<'f> {
    /// The keys of `file` that begin with `prefix`.
    pub fn new(file: &'f GgufFile, prefix: &'static str) -> Self {
        Meta { file, prefix }
    }

    fn value(&self, key: &str) -> Option<&'f GgufValue> {
        self.file.value(&format!("{}{key}", self.prefix))
    }

    /// Whether there is such a key.
    pub fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// A whole number that is not negative.
    pub fn count(&self, key: &str) -> Option<usize> {
        let signed = |n: i64| usize::try_from(n).ok();
        match *self.value(key)? {
            GgufValue::U8(n) => Some(n.into()),
            GgufValue::U16(n) => Some(n.into()),
            GgufValue::U32(n) => usize::try_from(n).ok(),
            GgufValue::U64(n) => usize::try_from(n).ok(),
            GgufValue::I8(n) => signed(n.into()),
            GgufValue::I16(n) => signed(n.into()),
            GgufValue::I32(n) => signed(n.into()),
            GgufValue::I64(n) => signed(n),
            _ => None,
        }
    }

    /// A number.
    pub fn number(&self, key: &str) -> Option<f64> {
        match *self.value(key)? {
            // As decimal, so that 1e-6 does not become 9.99999997e-7.
            GgufValue::F32(x) => x.to_string().parse().ok(),
            GgufValue::F64(x) => Some(x),
            _ => self.count(key).map(|n| n as f64),
        }
    }

    /// A truth value.
    pub fn flag(&self, key: &str) -> Option<bool> {
        match *self.value(key)? {
            GgufValue::Bool(b) => Some(b),
            _ => None,
        }
    }

    /// A text.
    pub fn text(&self, key: &str) -> Option<&'f str> {
        match self.value(key)? {
            GgufValue::String(text) => Some(text),
            _ => None,
        }
    }

    /// A list of texts.
    pub fn texts(&self, key: &str) -> Option<&'f [String]> {
        match self.value(key)? {
            GgufValue::Array(GgufArray::String(all)) => Some(all),
            _ => None,
        }
    }

    /// A list of whole numbers.
    pub fn integers(&self, key: &str) -> Option<Vec<i64>> {
        Some(match self.value(key)? {
            GgufValue::Array(GgufArray::U32(all)) => all.iter().map(|n| i64::from(*n)).collect(),
            GgufValue::Array(GgufArray::I32(all)) => all.iter().map(|n| i64::from(*n)).collect(),
            GgufValue::Array(GgufArray::I64(all)) => all.clone(),
            GgufValue::Array(GgufArray::U64(all)) => {
                all.iter().map(|n| i64::try_from(*n)).collect::<Result<_, _>>().ok()?
            }
            _ => return None,
        })
    }

    /// A list of bytes.
    pub fn bytes(&self, key: &str) -> Option<&'f [u8]> {
        match self.value(key)? {
            GgufValue::Array(GgufArray::U8(all)) => Some(all),
            _ => None,
        }
    }
}
