//! A test case: a graph with matching inputs, scalars and weights.

use super::{compact, decoding};
use crate::interpreter::{Buffers, Data, ScalarValue, Scalars};
use crate::random::{Random, RandomWeights};
use crate::tolerance;
use orate_graph::{AttentionMask, BufferKind, DType, Graph, Op, sample_settings};
use std::ops::Range;

/// A graph with inputs, scalars and weights.
#[derive(Clone, Debug)]
pub struct Case {
    /// Op and special condition, for reports.
    pub name: String,
    /// Graph to run.
    pub graph: Graph,
    /// Inputs and states before the run.
    pub buffers: Buffers,
    /// Scalar values.
    pub scalars: Scalars,
    /// Weight tensors.
    pub weights: RandomWeights,
    /// Limit for all outputs, as in [`crate::tolerance`].
    pub tolerance: f64,
}

impl Case {
    /// Creates a case with random inputs that fit the graph: ids within their table (also negative ones),
    /// lengths from 1 to the extent of the row, indices within their rows.
    pub fn new(name: impl Into<String>, graph: Graph) -> Case {
        let name = name.into();
        let buffers = random_buffers(&graph, &name);
        let scalars = random_scalars(&graph, &name);
        let weights = RandomWeights::of_graph(&graph, 17);
        let tolerance = tolerance::of_graph(&graph);
        Case { name, graph, buffers, scalars, weights, tolerance }
    }

    /// Replaces the content of an input or state.
    ///
    /// # Panics
    /// The graph has no buffer of this name, type and size.
    pub fn with(mut self, buffer: &str, data: impl Into<Data>) -> Case {
        let data = data.into();
        let old = self.buffers.get(buffer).unwrap_or_else(|| panic!("{}: no buffer `{buffer}`", self.name));
        assert_eq!((old.bytes(), old.dtype()), (data.bytes(), data.dtype()), "{}: `{buffer}`", self.name);
        self.buffers.insert(buffer.to_owned(), data);
        self
    }

    /// Copies some elements of a buffer to others of it.
    pub(super) fn copy_within(&mut self, buffer: &str, from: Range<usize>, to: usize) {
        match self.buffers.get_mut(buffer) {
            Some(Data::F32(x)) => x.copy_within(from, to),
            Some(Data::Compact(DType::F16 | DType::BF16, x)) => {
                x.copy_within(2 * from.start..2 * from.end, 2 * to);
            }
            _ => unreachable!("numbers of one size"),
        }
    }

    /// Replaces the value of a scalar.
    ///
    /// # Panics
    /// The graph has no such scalar.
    pub fn with_scalar(mut self, scalar: &str, value: ScalarValue) -> Case {
        let old = self.scalars.insert(scalar.to_owned(), value);
        assert!(old.is_some(), "{}: no scalar `{scalar}`", self.name);
        self
    }
}

fn random_buffers(graph: &Graph, case: &str) -> Buffers {
    let mut buffers = Buffers::new();
    for (i, b) in graph.buffers().iter().enumerate().filter(|(_, b)| b.kind != BufferKind::Output) {
        let mut random = Random::named(29, &format!("{case}/{}", b.name));
        let n = b.shape.len();
        let read_by_sample = |operand: usize| {
            let nodes = graph.nodes().iter().filter(|n| matches!(n.op, Op::Sample { .. }));
            let mut read = nodes.filter_map(|n| n.inputs.get(operand));
            read.any(|v| graph.info(*v).buffer == Some(i))
        };
        let data = match b.dtype {
            DType::F32 if read_by_sample(1) => {
                let width = b.shape.last();
                let rows = (0..n / width).map(decoding::settings);
                Data::F32(rows.flat_map(|row| sample_settings(&row)[..width].to_vec()).collect())
            }
            DType::F32 if read_by_sample(4) => Data::F32((0..n).map(|_| random.below(2) as f32).collect()),
            DType::F32 => Data::F32(random.floats(n, -1.0, 1.0)),
            DType::I32 => {
                let (low, high) = integer_range(graph, i);
                let span = (high - low + 1) as usize;
                Data::I32((0..n).map(|_| low + random.below(span) as i32).collect())
            }
            dtype => compact::random(dtype, b.shape.last(), &random.floats(n, -1.0, 1.0)),
        };
        buffers.insert(b.name.clone(), data);
    }
    buffers
}

/// Range of values that the reading ops allow in an integer buffer.
fn integer_range(graph: &Graph, buffer: usize) -> (i32, i32) {
    let (mut low, mut high) = (i32::MIN, i32::MAX);
    let mut narrow = |l: usize, h: usize, negative: bool| {
        low = low.max(if negative { -(l as i32) } else { l as i32 });
        high = high.min(h as i32);
    };
    for node in graph.nodes() {
        for (operand, _) in
            node.inputs.iter().enumerate().filter(|(_, v)| graph.info(**v).buffer == Some(buffer))
        {
            match &node.op {
                Op::Embedding { table } => {
                    let rows = table.shape().dims()[0];
                    narrow(rows, rows - 1, true);
                }
                Op::Attention { mask: AttentionMask::Stream(_), .. } => narrow(0, 100, false),
                Op::Attention { mask, .. } if mask.has_positions() => {
                    let [q, k] = [0, 1].map(|i| graph.shape(node.inputs[i]).dims()[1]);
                    narrow(0, k - q, false);
                }
                Op::Attention { .. } if operand >= 3 => {
                    narrow(1, graph.shape(node.inputs[1]).dims()[1], false)
                }
                Op::WriteRows { .. } => {
                    let [state, rows] = [0, 1].map(|i| graph.shape(node.inputs[i]).dims()[1]);
                    narrow(0, state - rows, false);
                }
                Op::RowAt => narrow(0, graph.shape(node.inputs[0]).dims()[1] + 1, false),
                Op::Mark => narrow(0, graph.shape(node.inputs[0]).last() - 1, false),
                Op::RopeTable { .. } => narrow(0, 5000, false),
                Op::Sample { .. } if operand == 2 => narrow(0, 1 << 30, false),
                Op::Sample { .. } => narrow(0, 300, false),
                Op::EmbeddingSum { tables, .. } => narrow(0, tables.shape().dims()[1] - 1, false),
                Op::MaskRows => narrow(1, graph.shape(node.inputs[0]).dims()[1], false),
                Op::RotaryTable { .. } => narrow(1, graph.shape(node.output).dims()[2], false),
                _ => {}
            }
        }
    }
    if low == i32::MIN { (0, 3) } else { (low.min(high), high) }
}

fn random_scalars(graph: &Graph, case: &str) -> Scalars {
    let mut scalars = Scalars::new();
    for (i, name) in graph.scalars().iter().enumerate() {
        let mut random = Random::named(31, &format!("{case}/{name}"));
        let mut value = ScalarValue::F32(random.uniform(-2.0, 2.0));
        for node in graph.nodes() {
            match &node.op {
                Op::SelectRow { index } if index.index() == i => {
                    let rows = graph.shape(node.inputs[0]).dims()[0];
                    value = ScalarValue::U64(random.below(rows) as u64);
                }
                Op::RandomNormal { seed, .. } if seed.index() == i => value = ScalarValue::U64(random.bits()),
                _ => {}
            }
        }
        scalars.insert(name.clone(), value);
    }
    scalars
}

#[cfg(test)]
mod tests {
    use super::*;
    use orate_graph::Weight;

    #[test]
    fn random_inputs_fit_what_reads_them() {
        let mut g = Graph::new("net");
        let ids = g.input("ids", DType::I32, [4, 64]).expect("declares");
        let lens = g.input("lens", DType::I32, [4]).expect("declares");
        let x = g.embedding(ids, Weight::named("table", [10, 6])).expect("builds");
        let x = g.mask_rows(x, Some(lens)).expect("builds");
        g.output("y", x).expect("declares");
        let c = Case::new("c", g);
        let ids = c.buffers["ids"].as_i32().expect("integers");
        assert!(ids.iter().all(|i| (-10..10).contains(i)) && ids.iter().any(|i| *i < 0));
        assert!(c.buffers["lens"].as_i32().expect("integers").iter().all(|l| (1..=64).contains(l)));
    }
}
