//! Weights of a network by the checkpoint's names.
//!
//! A network states name and shape of each weight. Both are compared with the file when it is opened
//! ([`crate::checkpoint`]), so asking for a weight cannot fail.

use orate_graph::{Graph, GraphError, Norm, Shape, Value, Weight};
use orate_weights::WeightSource;

/// The weights below a prefix.
#[derive(Clone)]
pub struct Scope<'a> {
    prefix: String,
    /// For checkpoints that store some weights with other axes of extent 1 than the networks state.
    file: Option<&'a dyn WeightSource>,
}

impl<'a> Scope<'a> {
    /// The weights whose names begin with `prefix` and a dot, of the shapes that networks state.
    pub fn new(prefix: &str) -> Scope<'static> {
        Scope { prefix: prefix.to_owned(), file: None }
    }

    /// All weights of `file`. Those that differ from what a network states by axes of extent 1 are reshaped.
    pub fn of(file: &'a dyn WeightSource) -> Scope<'a> {
        Scope { prefix: String::new(), file: Some(file) }
    }

    /// The weights below `name` of these.
    pub fn at(&self, name: &str) -> Scope<'a> {
        Scope { prefix: self.name(name), file: self.file }
    }

    /// The full name of `name`.
    pub fn name(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_owned() } else { format!("{}.{name}", self.prefix) }
    }

    /// Whether the file has the tensor, for networks that exist with it and without.
    pub fn has(&self, name: &str) -> bool {
        self.file.is_some_and(|f| f.contains(&self.name(name)))
    }

    /// Shape of the tensor in the file, for sizes that no configuration states.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        Some(self.file?.info(&self.name(name))?.shape)
    }

    /// One tensor.
    pub fn get<const N: usize>(&self, name: &str, shape: [usize; N]) -> Weight {
        let (name, needed) = (self.name(name), Shape::from(shape));
        let stored = self.file.and_then(|f| f.info(&name)).map(|info| Shape::from(info.shape));
        match stored.filter(|stored| *stored != needed && without_ones(stored).eq(without_ones(&needed))) {
            Some(stored) => Weight::named(name, stored).reshape(needed),
            None => Weight::named(name, needed),
        }
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

    /// `name.bias`
    pub fn bias(&self, name: &str, outputs: usize) -> Weight {
        self.get(&format!("{name}.bias"), [outputs])
    }

    /// `x · weight + bias`, from `name.weight` `[out, in]` and `name.bias`.
    ///
    /// # Errors
    /// x is not `in` wide.
    pub fn linear(
        &self,
        g: &mut Graph,
        x: Value,
        name: &str,
        [inputs, outputs]: [usize; 2],
    ) -> Result<Value, GraphError> {
        g.linear(x, self.matrix(name, inputs, outputs), self.bias(name, outputs))
    }

    /// Layer norm of x, with `name.weight` and `name.bias`.
    ///
    /// # Errors
    /// x has no axes.
    pub fn layer_norm(&self, g: &mut Graph, x: Value, name: &str, eps: f32) -> Result<Value, GraphError> {
        let width = g.shape(x).last();
        let weight = self.get(&format!("{name}.weight"), [width]);
        g.layer_norm(x, Norm { weight, bias: self.bias(name, width), eps })
    }
}

fn without_ones(shape: &Shape) -> impl Iterator<Item = &usize> {
    shape.dims().iter().filter(|d| **d != 1)
}
