//! A kernel with the values to substitute in its source.

use crate::sources::source;
use crate::template::{Defines, Value, expand};

/// A kernel with everything that its source depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Variant {
    /// File in `kernels/`, without extension.
    pub file: &'static str,
    /// Defines by name.
    pub defines: Vec<(&'static str, Value)>,
}

impl Variant {
    pub fn new(file: &'static str) -> Self {
        Variant { file, defines: vec![] }
    }

    /// Adds a number.
    pub fn number(mut self, name: &'static str, n: usize) -> Self {
        self.defines.push((name, Value::Number(n as u32)));
        self
    }

    /// Adds a condition.
    pub fn flag(self, name: &'static str, on: bool) -> Self {
        self.number(name, usize::from(on))
    }

    /// Whether a condition is set.
    pub fn has(&self, name: &str) -> bool {
        self.defines.iter().any(|(n, value)| *n == name && *value != Value::Number(0))
    }

    /// The number that a name stands for.
    pub fn number_of(&self, name: &str) -> Option<usize> {
        self.defines.iter().find_map(|(n, value)| match value {
            Value::Number(number) if *n == name => Some(*number as usize),
            _ => None,
        })
    }

    /// Changes a condition.
    pub fn set(mut self, name: &'static str, on: bool) -> Self {
        self.defines.retain(|(n, _)| *n != name);
        self.flag(name, on)
    }

    /// Adds a text, such as a type.
    pub fn text(mut self, name: &'static str, text: &'static str) -> Self {
        self.defines.push((name, Value::Text(text)));
        self
    }

    /// Whether it uses cooperative matrices, as kernels for Vulkan do.
    #[cfg_attr(any(target_os = "wasi", target_vendor = "apple"), allow(dead_code))]
    pub fn is_cooperative(&self) -> bool {
        self.file.ends_with("_cooperative")
    }

    /// Returns the expanded WGSL.
    pub fn wgsl(&self) -> Result<String, String> {
        let defines: Defines = self.defines.iter().cloned().collect();
        let text = source(self.file).ok_or_else(|| format!("there is no kernel `{}`", self.file))?;
        expand(text, &source, &defines).map_err(|e| format!("kernel `{}`: {e}", self.file))
    }
}
