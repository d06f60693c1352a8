//! Pointwise ops.

use super::{Operands, activation};
use crate::dispatch::{Call, Late, Params, flat};
use crate::variant::Variant;
use orate_graph::{Activation, Factor, Op};

/// What the kernel can do besides activations.
pub(super) const FUNCTIONS: [&str; 10] =
    ["ADD", "MUL", "MUL_ROW", "ADD_ROW", "BIAS", "AFFINE", "SNAKE", "COMBINE", "SCALE", "MASK"];

/// The kernel of one function, or of an activation.
pub(super) fn variant(function: &str, a: Option<&Activation>) -> Variant {
    let v = FUNCTIONS.iter().fold(Variant::new("elementwise"), |v, f| v.flag(f, *f == function));
    activation(v, a)
}

fn factor(p: Params, f: Factor) -> Params {
    match f {
        Factor::Const(x) => p.float(x),
        Factor::Scalar(s) => p.late(Late::Float(s.index())),
    }
}

pub(super) fn call(o: &Operands<'_>) -> Call {
    let op = &o.step.node.op;
    let one = Factor::Const(1.0);
    let (function, a, b) = match op {
        Op::Add => ("ADD", one, one),
        Op::Mul => ("MUL", one, one),
        Op::MulRow => ("MUL_ROW", one, one),
        Op::Snake { .. } => ("SNAKE", one, one),
        Op::AddRow => ("ADD_ROW", one, one),
        Op::AddBias { .. } => ("BIAS", one, one),
        Op::Affine { .. } => ("AFFINE", one, one),
        Op::Combine { a, b } => ("COMBINE", *a, *b),
        Op::Scale { factor } => ("SCALE", *factor, one),
        Op::MaskRows => ("MASK", one, one),
        _ => ("", one, one),
    };
    let f = match op {
        Op::Activate(f) => Some(f),
        _ => None,
    };
    let n = o.out_shape().len();
    let vectors = op.weights().len();
    let time = if *op == Op::MaskRows { o.shape(0).dims()[1] } else { 1 };
    let params = Params::default()
        .place(o.place(0))
        .place(o.last())
        .place(o.out())
        .number(n)
        .number(o.out_shape().last())
        .number(time)
        .number(if vectors > 0 { o.weights.vector(0) } else { 0 })
        .number(if vectors > 1 { o.weights.vector(1) } else { 0 });
    let params = factor(factor(params, a), b);
    Call { variant: variant(function, f), params, groups: flat(n, 256), weights: o.weights.buffers() }
}
