//! Weights of a network by the checkpoint's names.
//!
//! Names and shapes were compared with the file when it was opened ([`super::layout`]), so a network states both and
//! asks for nothing.

use orate_graph::{Graph, GraphError, Value, Weight};

/// The weights below a prefix.
#[derive(Clone, Debug)]
pub struct Scope {
    prefix: String,
}

impl Scope {
    /// The weights whose names begin with `prefix` and a dot.
    pub fn new(prefix: &str) -> Scope {
        Scope { prefix: prefix.to_owned() }
    }

    /// The weights below `name` of these.
    pub fn at(&self, name: &str) -> Scope {
        Scope { prefix: format!("{}.{name}", self.prefix) }
    }

    /// The full name of `name`.
    pub fn name(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    /// One tensor.
    pub fn get<const N: usize>(&self, name: &str, shape: [usize; N]) -> Weight {
        Weight::named(format!("{}.{name}", self.prefix), shape)
    }

    /// `name.weight`, a matrix stored `[out, in]`, as `[in, out]`.
    pub fn matrix(&self, name: &str, inputs: usize, outputs: usize) -> Weight {
        self.get(&format!("{name}.weight"), [outputs, inputs]).transpose()
    }

    /// As [`Scope::matrix`], with each output scaled by the layer scale `scale.scale` `[out]`.
    pub fn scaled_matrix(&self, name: &str, scale: &str, [inputs, outputs]: [usize; 2]) -> Weight {
        let scale = self.get(&format!("{scale}.scale"), [outputs]).reshape([outputs, 1]);
        self.get(&format!("{name}.weight"), [outputs, inputs]).mul(&scale).transpose()
    }

    /// `x · weight + bias`, from `name.weight` `[out, in]` and `name.bias`.
    pub fn linear(
        &self,
        g: &mut Graph,
        x: Value,
        name: &str,
        [inputs, outputs]: [usize; 2],
    ) -> Result<Value, GraphError> {
        g.linear(x, self.matrix(name, inputs, outputs), self.get(&format!("{name}.bias"), [outputs]))
    }
}
