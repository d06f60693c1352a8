//! Cases from networks: each op with the shapes and layouts that ship.

use super::Case;
use orate_graph::{Graph, Op, Shape, Value, ValueInfo, passes};
use std::collections::BTreeSet;

/// Returns one case for each distinct node of a network after all passes: same op, operand shapes and weight
/// expressions (which give the layouts), whatever the weight names.
pub fn harvest(graph: &Graph) -> Vec<Case> {
    let mut g = graph.clone();
    passes::ALL.iter().for_each(|(_, run)| run(&mut g));
    let mut seen = BTreeSet::new();
    let mut cases = vec![];
    for node in g.nodes() {
        let inputs: Vec<_> = node.inputs.iter().map(|v| g.info(*v)).collect();
        // `x + x` and `x + y` differ for an executor that works in place.
        let first = |v: &Value| node.inputs.iter().position(|w| w == v).expect("is there");
        let same: Vec<usize> = node.inputs.iter().map(first).collect();
        let operands: Vec<String> = inputs.iter().map(|i| format!("{} {}", i.dtype, i.shape)).collect();
        let out = g.shape(node.output);
        if !seen.insert((anonymous(&node.op), operands.clone(), same.clone(), out.to_string())) {
            continue;
        }
        let label = node.op.label().unwrap_or("-");
        let name =
            format!("{}: {} ({}) → {out}, {label}", graph.name(), node.op.describe(), operands.join(", "));
        cases.push(Case::new(name, single(g.name(), g.scalars(), &node.op, &inputs, &same, out)));
    }
    cases
}

/// Description of the op with each tensor name replaced by one letter.
fn anonymous(op: &Op) -> String {
    let mut text = format!("{op:?}");
    let mut names = vec![];
    op.weights().into_iter().for_each(|w| w.visit_named(&mut |name, _| names.push(name)));
    // Longest first, as one name may contain another.
    names.sort_unstable_by_key(|n| std::cmp::Reverse(n.len()));
    names.iter().for_each(|n| text = text.replace(n, "w"));
    text
}

/// Builds a graph of one op on inputs `in0`, `in1`, …, stored as `out`. Ops refer to scalars by index, so the
/// new graph declares the same `scalars` in the same order.
///
/// # Panics
/// The op does not accept these operands.
pub fn single_op(name: &str, scalars: &[String], op: &Op, inputs: &[&ValueInfo], out: &Shape) -> Graph {
    let distinct: Vec<usize> = (0..inputs.len()).collect();
    single(name, scalars, op, inputs, &distinct, out)
}

/// [`single_op`] in which operand `i` is the same value as operand `first[i]`.
fn single(
    name: &str,
    scalars: &[String],
    op: &Op,
    inputs: &[&ValueInfo],
    first: &[usize],
    out: &Shape,
) -> Graph {
    let mut s = Graph::new(name);
    scalars.iter().for_each(|name| {
        s.scalar(name);
    });
    let mut values: Vec<Value> = vec![];
    for (i, info) in inputs.iter().enumerate() {
        let v = if first[i] < i {
            values[first[i]]
        } else if i == 0 && op.in_place() {
            s.state("in0", info.dtype, info.shape.clone()).expect("names are numbered")
        } else {
            s.input(&format!("in{i}"), info.dtype, info.shape.clone()).expect("names are numbered")
        };
        values.push(v);
    }
    let y = s.push(op.clone(), &values, Some(out.clone())).expect("the op takes these operands");
    s.output("out", y).expect("the only output");
    s
}

#[cfg(test)]
mod tests {
    use super::*;
    use orate_graph::{Activation, DType, Weight};

    #[test]
    fn harvest_takes_each_shape_once_and_keeps_layouts() {
        let mut g = Graph::new("net");
        let mut x = g.input("x", DType::F32, [1, 5, 8]).expect("declares");
        for i in 0..3 {
            let w = |n: &str| Weight::named(format!("layer.{i}.{n}"), [8, 8, 1]).reshape([8, 8]).transpose();
            let y = g.matmul(x, w("w")).expect("builds");
            let y = g.activate(y, Activation::Gelu).expect("builds");
            x = g.add(x, y).expect("builds");
        }
        let y = g.matmul(x, Weight::named("out", [8, 8])).expect("builds");
        g.output("y", y).expect("declares");
        let cases = harvest(&g);
        let names: Vec<&str> = cases.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "net: MatMul+gelu+residual (f32 [1, 5, 8], f32 [1, 5, 8]) → [1, 5, 8], layer.0.w",
                "net: MatMul (f32 [1, 5, 8]) → [1, 5, 8], out"
            ]
        );
    }
}
