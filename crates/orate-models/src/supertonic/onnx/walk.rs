//! Walks the graph: from values to the nodes that compute and read them, past copies.

use super::file::{OnnxFile, canonical, refuse};
use crate::ModelError;
use orate_weights::onnx::Node;
use orate_weights::{TensorRef, WeightSource};
use std::collections::HashSet;

type Result<T> = std::result::Result<T, ModelError>;

impl OnnxFile {
    pub(super) fn nodes(&self, op_type: &str) -> impl Iterator<Item = &Node> {
        self.model.nodes().iter().filter(move |node| node.op_type == op_type)
    }

    /// Stored names of tensors whose canonical names have this ending, and what stands before it.
    pub(super) fn ending(&self, end: &str) -> impl Iterator<Item = (&str, &str)> {
        let names = self.model.names().into_iter();
        names.filter_map(move |stored| Some((stored, canonical(stored)?.strip_suffix(end)?)))
    }

    pub(super) fn input<'a>(&self, node: &'a Node, at: usize) -> Result<&'a str> {
        let Some(value) = node.inputs.get(at) else {
            refuse!(self, "node {} has no input {at}", node.label())
        };
        Ok(value)
    }

    pub(super) fn output<'a>(&self, node: &'a Node) -> Result<&'a str> {
        let Some(value) = node.outputs.first() else { refuse!(self, "node {} has no output", node.label()) };
        Ok(value)
    }

    /// Where a value comes from if copies and conversions (of f16 bundles) are passed over.
    pub(super) fn origin<'a>(&'a self, value: &'a str) -> &'a str {
        let mut value = value;
        for _ in 0..8 {
            match self.model.producer(value) {
                Some(node) if is_copy(node) && node.inputs.len() == 1 => value = &node.inputs[0],
                _ => break,
            }
        }
        value
    }

    /// Where an input comes from.
    pub(super) fn origin_of<'a>(&'a self, node: &'a Node, at: usize) -> Result<&'a str> {
        Ok(self.origin(self.input(node, at)?))
    }

    /// The node that computes a value.
    pub(super) fn source(&self, value: &str) -> Option<&Node> {
        self.model.producer(self.origin(value))
    }

    /// The node that computes an input, which must be of one kind.
    pub(super) fn source_of(&self, node: &Node, at: usize, op_type: &str) -> Result<&Node> {
        match self.source(self.input(node, at)?) {
            Some(source) if source.op_type == op_type => Ok(source),
            other => {
                let got = other.map_or_else(|| "no node".to_owned(), Node::label);
                refuse!(self, "input {at} of node {} comes from {got}, not from {op_type}", node.label())
            }
        }
    }

    /// Readers of a value with the position they read it at. Copies are passed over.
    pub(super) fn readers(&self, value: &str) -> Vec<(&Node, usize)> {
        self.below(value, |node| !is_copy(node))
    }

    /// The only reader of a value, which must be of one kind. Shape nodes do not count.
    pub(super) fn only_reader(&self, value: &str, op_type: &str) -> Result<(&Node, usize)> {
        let mut readers = self.readers(value);
        readers.retain(|(node, _)| node.op_type != "Shape");
        match readers.as_slice() {
            &[(node, at)] if node.op_type == op_type => Ok((node, at)),
            _ => {
                let labels: Vec<String> = readers.iter().map(|(node, _)| node.label()).collect();
                refuse!(self, "`{value}` should be read by one {op_type}, but is by {labels:?}")
            }
        }
    }

    /// The first nodes of the given kinds on every path down from a value.
    pub(super) fn reached(&self, value: &str, kinds: &[&str]) -> Vec<(&Node, usize)> {
        let mut found = self.below(value, |node| kinds.contains(&&*node.op_type) || node.op_type == "Shape");
        found.retain(|(node, _)| node.op_type != "Shape");
        found
    }

    /// The first nodes with `stops` on every path down from a value, and at which input the path arrives.
    fn below(&self, value: &str, stops: impl Fn(&Node) -> bool) -> Vec<(&Node, usize)> {
        let mut found: Vec<(&Node, usize)> = vec![];
        let mut values = vec![value];
        let mut seen = HashSet::from([value]);
        while let Some(value) = values.pop() {
            for node in self.model.consumers(value) {
                if stops(node) {
                    let at = node.inputs.iter().enumerate().filter(|(_, input)| *input == value);
                    found.extend(at.map(|(at, _)| (node, at)));
                } else {
                    let outputs = node.outputs.iter().map(String::as_str);
                    values.extend(outputs.filter(|output| seen.insert(output)));
                }
            }
        }
        found
    }

    pub(super) fn constant(&self, value: &str) -> Option<TensorRef<'_>> {
        self.model.get(self.origin(value)).ok()
    }

    /// A tensor by its stored name.
    pub(super) fn tensor(&self, stored: &str) -> Result<TensorRef<'_>> {
        Ok(self.model.get(stored)?)
    }

    /// An input that must be a constant of one element.
    pub(super) fn scalar(&self, node: &Node, at: usize) -> Result<f32> {
        match self.constant(self.input(node, at)?) {
            Some(tensor) if tensor.len() == 1 => Ok(tensor.to_f32()[0]),
            _ => refuse!(self, "input {at} of node {} is not a constant number", node.label()),
        }
    }

    /// The constant one of two operands, and the other's name.
    pub(super) fn constant_operand<'a>(&'a self, node: &'a Node) -> Result<(TensorRef<'a>, &'a str)> {
        if let [a, b] = node.inputs.as_slice() {
            match (self.constant(a), self.constant(b)) {
                (Some(constant), None) => return Ok((constant, b)),
                (None, Some(constant)) => return Ok((constant, a)),
                _ => {}
            }
        }
        refuse!(self, "node {} should have one constant operand", node.label())
    }
}

/// Position of the other one of two operands.
pub(super) fn other(at: usize) -> usize {
    usize::from(at == 0)
}

fn is_copy(node: &Node) -> bool {
    matches!(node.op_type.as_str(), "Cast" | "Identity")
}
