//! Weights by the checkpoint's names, with shapes taken from the file and checked where they are used.

use orate_graph::{Shape, Weight};
use orate_weights::WeightSource;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// A weight that the network needs is missing or has another shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No such tensor.
    #[error("the model has no weight `{name}`")]
    Missing {
        /// Full name.
        name: String,
    },
    /// Another shape.
    #[error(
        "weight `{name}` is {got} but tts.json asks for {needed}; do both files come from the same model?"
    )]
    Shape {
        /// Full name.
        name: String,
        /// Shape in the file.
        got: String,
        /// Shape that the configuration asks for.
        needed: String,
    },
}

/// A view of a model's weights below a prefix, which remembers what was used.
#[derive(Clone, Copy)]
pub struct Names<'a> {
    source: &'a dyn WeightSource,
    used: &'a RefCell<BTreeSet<String>>,
    prefix: &'a str,
}

impl<'a> Names<'a> {
    /// All weights of `source`.
    pub fn new(source: &'a dyn WeightSource, used: &'a RefCell<BTreeSet<String>>) -> Self {
        Names { source, used, prefix: "" }
    }

    /// Full name of a relative one.
    fn full(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_owned() } else { format!("{}.{name}", self.prefix) }
    }

    /// Calls `f` with the view below `prefix`.
    pub fn within<T>(&self, prefix: &str, f: impl FnOnce(&Names<'_>) -> T) -> T {
        let prefix = self.full(prefix);
        f(&Names { source: self.source, used: self.used, prefix: &prefix })
    }

    /// Whether the tensor is there.
    pub fn has(&self, name: &str) -> bool {
        self.source.info(&self.full(name)).is_some()
    }

    /// Shape of the tensor in the file, if it is there.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.source.info(&self.full(name)).map(|i| i.shape.clone())
    }

    /// The tensor seen as `shape`; axes of extent 1 may differ from the file's.
    ///
    /// # Errors
    /// It is missing or has another shape.
    pub fn get(&self, name: &str, shape: impl Into<Shape>) -> Result<Weight, NameError> {
        let (name, needed) = (self.full(name), shape.into());
        let Some(info) = self.source.info(&name) else { return Err(NameError::Missing { name }) };
        let got = Shape::from(info.shape.clone());
        let real = |s: &Shape| s.dims().iter().copied().filter(|d| *d != 1).collect::<Vec<_>>();
        if real(&got) != real(&needed) {
            return Err(NameError::Shape { name, got: got.to_string(), needed: needed.to_string() });
        }
        self.used.borrow_mut().insert(name.clone());
        let w = Weight::named(name, got.clone());
        Ok(if got == needed { w } else { w.reshape(needed) })
    }

    /// A matrix stored `[out, in]` as `[in, out]`, and its bias.
    ///
    /// # Errors
    /// One of them is missing or has another shape.
    pub fn linear(&self, name: &str, inputs: usize, outputs: usize) -> Result<(Weight, Weight), NameError> {
        let w = self.get(&format!("{name}.weight"), [outputs, inputs])?.transpose();
        Ok((w, self.get(&format!("{name}.bias"), [outputs])?))
    }
}
