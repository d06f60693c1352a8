//! Pointwise ops.

use super::operands::{Operands, activation};
use crate::dispatch::{Call, Late, Params, flat};
use crate::variant::Variant;
use orate_graph::{Activation, Factor};

/// Functions of the kernel besides activations.
pub(super) const FUNCTIONS: [&str; 10] =
    ["ADD", "MUL", "MUL_ROW", "ADD_ROW", "BIAS", "AFFINE", "SNAKE", "COMBINE", "SCALE", "MASK"];

/// Kernel of one function, or of an activation.
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

/// A pointwise dispatch; `time` is the number of rows per sequence, for functions that need it.
fn pointwise(o: &Operands<'_>, variant: Variant, time: usize, [a, b]: [Factor; 2]) -> Call {
    let n = o.out_shape().len();
    let vectors = o.step.node.op.weights().len();
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
    Call { variant, params, groups: flat(n, 256), weights: o.weights.buffers() }
}

/// A function of [`FUNCTIONS`].
pub(super) fn call(o: &Operands<'_>, function: &str) -> Call {
    weighted(o, function, [Factor::Const(1.0); 2])
}

/// A function with factors.
pub(super) fn weighted(o: &Operands<'_>, function: &str, factors: [Factor; 2]) -> Call {
    pointwise(o, variant(function, None), 1, factors)
}

pub(super) fn scale(o: &Operands<'_>, factor: Factor) -> Call {
    weighted(o, "SCALE", [factor, Factor::Const(1.0)])
}

pub(super) fn activate(o: &Operands<'_>, a: &Activation) -> Call {
    pointwise(o, variant("", Some(a)), 1, [Factor::Const(1.0); 2])
}

pub(super) fn mask_rows(o: &Operands<'_>) -> Call {
    pointwise(o, variant("MASK", None), o.shape(0).dims()[1], [Factor::Const(1.0); 2])
}
