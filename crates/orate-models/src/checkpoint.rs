//! The tensors that a checkpoint must hold, as its networks state them.
//!
//! A family builds the graphs of all its networks at a small size. The weights that they name, with their
//! shapes, are what a file must hold, besides a few known leftovers such as settings of the training.

use crate::Differences;
use orate_graph::Graph;
use orate_weights::{DType, WeightSource};
use std::collections::{HashMap, HashSet};

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Full name.
    pub name: String,
    /// Sizes of the axes, slowest first, as PyTorch prints them.
    pub shape: Vec<usize>,
}

/// Tensors that graphs read, each once, in the order of their first use.
pub fn read_by(graphs: &[Graph]) -> Vec<Expected> {
    let mut known = HashSet::new();
    let mut all = vec![];
    for weight in graphs.iter().flat_map(Graph::nodes).flat_map(|node| node.op.weights()) {
        weight.visit_named(&mut |name, shape| {
            if known.insert(name) {
                all.push(Expected { name: name.to_owned(), shape: shape.dims().to_vec() });
            }
        });
    }
    all
}

/// Compares the names, shapes and types of a file's tensors with those that networks need. Names for which
/// `may_be_left` holds may be there or not.
///
/// # Errors
/// All differences.
pub fn compare(
    file: &dyn WeightSource,
    expected: &[Expected],
    may_be_left: impl Fn(&str) -> bool,
) -> Result<(), Differences> {
    let mut differences = Differences::default();
    let needed: HashMap<&str, &[usize]> = expected.iter().map(|e| (&*e.name, &*e.shape)).collect();
    for e in expected {
        match file.info(&e.name) {
            None => differences.missing.push(e.name.clone()),
            Some(info) if info.shape != e.shape => {
                differences.misshapen.push((e.name.clone(), info.shape, e.shape.clone()));
            }
            Some(info) if !matches!(info.dtype, DType::F32 | DType::F16 | DType::BF16 | DType::Q8_0) => {
                differences.not_floats.push((e.name.clone(), info.dtype.name().to_owned()));
            }
            Some(_) => {}
        }
    }
    let unknown = file.names().into_iter().filter(|n| !needed.contains_key(n) && !may_be_left(n));
    differences.unknown = unknown.map(str::to_owned).collect();
    if differences.is_empty() { Ok(()) } else { Err(differences) }
}
