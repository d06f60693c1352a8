//! Walks the graph: from values to the nodes that compute and read them, past copies.

use std::collections::HashSet;

use orate_weights::onnx::Node;
use orate_weights::{TensorRef, WeightSource};

use super::ImportError;
use super::stage::Stage;

impl Stage {
    pub(super) fn nodes(&self, op_type: &str) -> impl Iterator<Item = &Node> {
        self.model.nodes().iter().filter(move |node| node.op_type == op_type)
    }

    pub(super) fn ints(&self, node: &Node, attribute: &str, default: &[i64]) -> Vec<i64> {
        node.ints(attribute).unwrap_or(default).to_vec()
    }

    pub(super) fn input<'a>(&self, node: &'a Node, at: usize) -> Result<&'a str, ImportError> {
        match node.inputs.get(at) {
            Some(value) => Ok(value),
            None => self.structure(format!("node {} has no input {at}", node.label())),
        }
    }

    pub(super) fn output<'a>(&self, node: &'a Node) -> Result<&'a str, ImportError> {
        match node.outputs.first() {
            Some(value) => Ok(value),
            None => self.structure(format!("node {} has no output", node.label())),
        }
    }

    pub(super) fn position(&self, node: &Node, value: &str) -> Result<usize, ImportError> {
        match node.inputs.iter().position(|input| self.origin(input) == value) {
            Some(at) => Ok(at),
            None => self.structure(format!("node {} does not read `{value}`", node.label())),
        }
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

    /// The node that computes a value.
    pub(super) fn source(&self, value: &str) -> Option<&Node> {
        self.model.producer(self.origin(value))
    }

    /// The node that computes an input, which must be of one kind.
    pub(super) fn source_of(&self, node: &Node, at: usize, op_type: &str) -> Result<&Node, ImportError> {
        match self.source(self.input(node, at)?) {
            Some(source) if source.op_type == op_type => Ok(source),
            other => {
                let got = other.map_or_else(|| "no node".to_owned(), Node::label);
                self.structure(format!(
                    "input {at} of node {} comes from {got}, not from {op_type}",
                    node.label()
                ))
            }
        }
    }

    /// Readers of a value with the position they read it at. Copies are passed over.
    pub(super) fn readers(&self, value: &str) -> Vec<(&Node, usize)> {
        let mut found = Vec::new();
        let mut values = vec![value];
        let mut seen = HashSet::from([value]);
        while let Some(value) = values.pop() {
            for node in self.model.consumers(value) {
                if is_copy(node) {
                    values
                        .extend(node.outputs.iter().map(String::as_str).filter(|output| seen.insert(output)));
                } else {
                    let at = node.inputs.iter().enumerate().filter(|(_, input)| *input == value);
                    found.extend(at.map(|(at, _)| (node, at)));
                }
            }
        }
        found
    }

    /// The only reader of a value, which must be of one kind. Shape nodes do not count.
    pub(super) fn only_reader(&self, value: &str, op_type: &str) -> Result<(&Node, usize), ImportError> {
        let mut readers = self.readers(value);
        readers.retain(|(node, _)| node.op_type != "Shape");
        match readers.as_slice() {
            &[(node, at)] if node.op_type == op_type => Ok((node, at)),
            _ => {
                let labels: Vec<String> = readers.iter().map(|(node, _)| node.label()).collect();
                self.structure(format!("`{value}` should be read by one {op_type}, but is by {labels:?}"))
            }
        }
    }

    /// The first nodes of the given kinds on every path down from a value.
    pub(super) fn reached(&self, value: &str, kinds: &[&str]) -> Vec<(&Node, usize)> {
        let mut found: Vec<(&Node, usize)> = Vec::new();
        let mut values = vec![value];
        let mut seen = HashSet::from([value]);
        while let Some(value) = values.pop() {
            for (node, at) in self.readers(value) {
                if kinds.contains(&node.op_type.as_str()) {
                    if !found.iter().any(|(other, i)| std::ptr::eq(*other, node) && *i == at) {
                        found.push((node, at));
                    }
                } else if node.op_type != "Shape" {
                    values
                        .extend(node.outputs.iter().map(String::as_str).filter(|output| seen.insert(output)));
                }
            }
        }
        found
    }

    pub(super) fn constant(&self, value: &str) -> Option<TensorRef<'_>> {
        self.model.get(self.origin(value)).ok()
    }

    /// A tensor by its stored name.
    pub(super) fn tensor(&self, stored: &str) -> Result<TensorRef<'_>, ImportError> {
        Ok(self.model.get(stored)?)
    }

    /// An input that must be a constant of one element.
    pub(super) fn scalar(&self, node: &Node, at: usize) -> Result<f32, ImportError> {
        match self.constant(self.input(node, at)?) {
            Some(tensor) if tensor.len() == 1 => Ok(tensor.to_f32()[0]),
            _ => self.structure(format!("input {at} of node {} is not a constant number", node.label())),
        }
    }

    /// The constant one of two operands, and the other's name.
    pub(super) fn constant_operand<'a>(
        &'a self,
        node: &'a Node,
    ) -> Result<(TensorRef<'a>, &'a str), ImportError> {
        if let [a, b] = node.inputs.as_slice() {
            match (self.constant(a), self.constant(b)) {
                (Some(constant), None) => return Ok((constant, b)),
                (None, Some(constant)) => return Ok((constant, a)),
                _ => {}
            }
        }
        self.structure(format!("node {} should have one constant operand", node.label()))
    }
}

fn is_copy(node: &Node) -> bool {
    matches!(node.op_type.as_str(), "Cast" | "Identity")
}
