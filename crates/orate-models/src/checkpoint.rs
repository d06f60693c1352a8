//! The tensors that a checkpoint must hold, as its networks state them.
//!
//! A family builds the graphs of all its networks at a small size. The weights that they name, with their
//! shapes, are what a file must hold, besides a few known leftovers such as settings of the training.

use crate::ModelError;
use orate_files::quoted;
use orate_graph::Graph;
use orate_weights::{DType, WeightSource};
use std::collections::HashSet;

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

/// Most tensors of a kind that an error names.
const NAMED: usize = 4;

/// Compares the names, shapes and types of a file's tensors with those that networks need. Names for which
/// `may_be_left` holds may be there or not. `settings` is the file that states the sizes of the networks.
///
/// # Errors
/// [`ModelError::Tensors`], which counts all differences and names some.
pub fn compare(
    file: &dyn WeightSource,
    settings: &'static str,
    expected: &[Expected],
    may_be_left: impl Fn(&str) -> bool,
) -> Result<(), ModelError> {
    let (mut missing, mut misshapen, mut not_floats) = (vec![], vec![], vec![]);
    for Expected { name, shape } in expected {
        match file.info(name) {
            None => missing.push(quoted(name).to_string()),
            Some(info) if info.shape != *shape => {
                misshapen.push(format!("{} is {:?} instead of {shape:?}", quoted(name), info.shape));
            }
            Some(info) if !info.dtype.is_readable_float() => {
                let number =
                    if let DType::Other(id) = info.dtype { format!(" (number {id})") } else { String::new() };
                not_floats.push(format!("{} is {}{number}", quoted(name), info.dtype));
            }
            Some(_) => {}
        }
    }
    let needed: HashSet<&str> = expected.iter().map(|e| &*e.name).collect();
    let unknown = file.names().into_iter().filter(|n| !needed.contains(n) && !may_be_left(n));
    let unknown = unknown.map(|name| quoted(name).to_string()).collect();
    let list = |[one, several]: [&str; 2], all: Vec<String>| {
        let named = all[..all.len().min(NAMED)].join(", ");
        let more = if all.len() > NAMED { ", …" } else { "" };
        match all.len() {
            0 => None,
            1 => Some(format!("1 tensor {one}: {named}")),
            n => Some(format!("{n} tensors {several}: {named}{more}")),
        }
    };
    let differences: Vec<String> = [
        list(["is missing", "are missing"], missing),
        list(["has another shape", "have another shape"], misshapen),
        list(["has an unsupported type", "have an unsupported type"], not_floats.clone()),
        list(["belongs to no network", "belong to no network"], unknown),
    ]
    .into_iter()
    .flatten()
    .collect();
    if differences.is_empty() {
        return Ok(());
    }
    if let [problem] = &differences[..]
        && !not_floats.is_empty()
    {
        let problem = format!("{problem}; take a file of q4_K, q8_0 or another common type");
        return Err(ModelError::Content { path: file.describe().into(), problem });
    }
    Err(ModelError::Tensors { path: file.describe(), settings, differences: differences.join("; ") })
}
