//! Layer norm, and depthwise convolutions with or without one.

use super::Operands;
use crate::dispatch::{Call, Params, flat};
use crate::pipelines::Variant;
use orate_graph::{Norm, Op, Place};

/// Widest row that a workgroup keeps.
const WIDEST: usize = 2048;

fn reduced(file: &'static str, subgroups: bool) -> Variant {
    let arguments = if subgroups { "subgroup, subgroups, place" } else { "lane" };
    Variant::new(file).flag("SUBGROUPS", subgroups).text("REDUCE_ARGUMENTS", arguments)
}

/// The kernel of a norm.
pub(super) fn norm_variant(subgroups: bool) -> Variant {
    reduced("layer_norm", subgroups)
}

/// The kernel of a depthwise convolution, with a norm of rows up to `row` wide if that is not 0.
pub(super) fn depthwise_variant(row: usize, subgroups: bool) -> Variant {
    reduced("depthwise_conv1d", subgroups).flag("NORM", row > 0).number("ROW", row)
}

fn norm(o: &Operands<'_>, x: Place, n: &Norm, first_vector: usize) -> Call {
    let (rows, c) = (o.out_shape().rows(), o.out_shape().last());
    let params = Params::default()
        .place(x)
        .place(o.out())
        .number(rows)
        .number(c)
        .number(o.weights.vector(first_vector))
        .number(o.weights.vector(first_vector + 1))
        .float(n.eps);
    Call {
        variant: norm_variant(o.can.subgroups),
        params,
        groups: flat(rows, 1),
        weights: o.weights.buffers(),
    }
}

pub(super) fn layer_norm(o: &Operands<'_>) -> Call {
    let Op::LayerNorm(n) = &o.step.node.op else { unreachable!("called for norms alone") };
    norm(o, o.place(0), n, 0)
}

pub(super) fn depthwise(o: &Operands<'_>) -> Vec<Call> {
    let Op::DepthwiseConv1d { geometry: g, norm: n, .. } = &o.step.node.op else {
        unreachable!("called for depthwise convolutions alone")
    };
    let x = o.shape(0).dims();
    let (rows, c) = (x[0] * x[1], x[2]);
    let fused = n.as_ref().filter(|_| c <= WIDEST);
    let v = |i: usize| if fused.is_some() { o.weights.vector(i) } else { 0 };
    let params = Params::default()
        .place(o.place(0))
        .place(o.out())
        .number(if fused.is_some() { rows } else { rows * c })
        .number(c)
        .number(x[1])
        .number(g.taps)
        .number(g.dilation)
        .number(g.left)
        .number(o.weights.vector(0))
        .number(o.weights.vector(1))
        .number(v(2))
        .number(v(3))
        .float(fused.map_or(0.0, |n| n.eps));
    let row = if fused.is_some() { c.next_power_of_two().max(512) } else { 0 };
    let convolution = Call {
        variant: depthwise_variant(row, o.can.subgroups),
        params,
        groups: if fused.is_some() { flat(rows, 1) } else { flat(rows * c, 256) },
        weights: o.weights.buffers(),
    };
    match n {
        Some(n) if fused.is_none() => vec![convolution, norm(o, o.out(), n, 2)],
        _ => vec![convolution],
    }
}
