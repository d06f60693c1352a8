//! Pointwise ops.

use super::operands::{Operands, activation};
use crate::dispatch::{Call, Late, Params, flat};
use crate::variant::Variant;
use orate_graph::{Activation, Factor};

/// Functions of the kernel besides activations.
pub(super) const FUNCTIONS: [&str; 10] =
    ["ADD", "MUL", "MUL_ROW", "ADD_ROW", "BIAS", "AFFINE", "SNAKE", "COMBINE", "SCALE", "MASK"];

/// Kernel of one function, or of an activation, for one element or for `four`.
pub(super) fn variant(function: &str, a: Option<&Activation>, four: bool) -> Variant {
    let v = FUNCTIONS.iter().fold(Variant::new("elementwise"), |v, f| v.flag(f, *f == function));
    activation(v.flag("FOUR", four), a)
}

fn factor(p: Params, f: Factor) -> Params {
    match f {
        Factor::Const(x) => p.float(x),
        Factor::Scalar(s) => p.late(Late::Float(s.index())),
    }
}

/// A pointwise dispatch of a function, or of an activation.
fn pointwise(o: &Operands<'_>, function: &str, a: Option<&Activation>, [first, second]: [Factor; 2]) -> Call {
    let (n, last) = (o.out_shape().len(), o.out_shape().last());
    // The rows per sequence of masks, which depend on the row of each element.
    let time = if function == "MASK" { o.shape(0).dims()[1] } else { 1 };
    let four = last.is_multiple_of(4) && function != "MASK";
    let step = if four { 4 } else { 1 };
    let vectors = o.step.node.op.weights().len();
    let params = Params::default()
        .place(o.place(0))
        .place(o.last())
        .place(o.out())
        .number(n / step)
        .number(last / step)
        .number(time)
        .number(if vectors > 0 { o.weights.vector(0) } else { 0 })
        .number(if vectors > 1 { o.weights.vector(1) } else { 0 });
    let params = factor(factor(params, first), second);
    let variant = variant(function, a, four);
    Call { variant, params, groups: flat(n / step, 256), weights: o.weights.buffers() }
}

/// A function of [`FUNCTIONS`].
pub(super) fn call(o: &Operands<'_>, function: &str) -> Call {
    weighted(o, function, [Factor::Const(1.0); 2])
}

/// A function with factors.
pub(super) fn weighted(o: &Operands<'_>, function: &str, factors: [Factor; 2]) -> Call {
    pointwise(o, function, None, factors)
}

pub(super) fn scale(o: &Operands<'_>, factor: Factor) -> Call {
    weighted(o, "SCALE", [factor, Factor::Const(1.0)])
}

pub(super) fn activate(o: &Operands<'_>, a: &Activation) -> Call {
    pointwise(o, "", Some(a), [Factor::Const(1.0); 2])
}

pub(super) fn mask_rows(o: &Operands<'_>) -> Call {
    call(o, "MASK")
}
