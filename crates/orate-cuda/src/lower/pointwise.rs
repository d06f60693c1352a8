//! Pointwise ops.

use super::operands::{Operands, activation_number, cache_type};
use super::work::{Pointer, Work, bits};
use orate_graph::{Activation, Factor, Shape, Weight};

/// Index, among the words, of the type of the result.
const TYPE: usize = 8;

/// A pointwise op on x, y and scale; `c` is the width of a row.
fn pointwise(kind: u32, [x, y, scale, out]: [Pointer; 4], shape: &Shape, c: usize) -> Work {
    Work {
        pointers: vec![x, y, scale, Pointer::Null, Pointer::Null, Pointer::Null, out],
        words: vec![kind, shape.len() as u32, c as u32, 1, 0, 0, bits(1.0), bits(1.0), 0],
        ..Work::each("elementwise", "pointwise", shape.len().div_ceil(4))
    }
}

pub(super) fn add_bias(o: &Operands<'_>, bias: &Weight) -> Work {
    let shape = o.out_shape();
    let mut work = pointwise(0, [o.x(0), o.dense(bias), Pointer::Null, o.out()], shape, shape.last());
    work.words[TYPE] = cache_type(o.out_type());
    work
}

pub(super) fn affine(o: &Operands<'_>, scale: &Weight, shift: &Weight) -> Work {
    let shape = o.out_shape();
    pointwise(0, [o.x(0), o.dense(shift), o.dense(scale), o.out()], shape, shape.last())
}

pub(super) fn activate(o: &Operands<'_>, a: &Activation) -> Work {
    let mut work = pointwise(1, [o.x(0), Pointer::Null, o.slope(Some(a)), o.out()], o.out_shape(), 1);
    work.words[4] = activation_number(Some(a));
    work
}

pub(super) fn mul(o: &Operands<'_>) -> Work {
    pointwise(5, [o.x(0), o.x(1), Pointer::Null, o.out()], o.out_shape(), 1)
}

pub(super) fn mul_row(o: &Operands<'_>) -> Work {
    let shape = o.out_shape();
    pointwise(6, [o.x(0), o.x(1), Pointer::Null, o.out()], shape, shape.last())
}

pub(super) fn add_row(o: &Operands<'_>) -> Work {
    let shape = o.out_shape();
    let mut work = pointwise(3, [o.x(0), o.x(1), Pointer::Null, o.out()], shape, shape.last());
    work.words[5] = 1;
    work
}

pub(super) fn mask_rows(o: &Operands<'_>) -> Work {
    let shape = o.out_shape();
    let mut work = pointwise(4, [o.x(0), Pointer::Null, Pointer::Null, o.out()], shape, shape.last());
    work.pointers[5] = o.x(1);
    work.words[3] = shape.dims()[1] as u32;
    work
}

/// `a · x + b · y`
pub(super) fn combine(o: &Operands<'_>, factors: [Factor; 2]) -> Work {
    weighted(o, o.x(1), factors)
}

pub(super) fn scale(o: &Operands<'_>, factor: Factor) -> Work {
    weighted(o, Pointer::Null, [factor, Factor::Const(0.0)])
}

fn weighted(o: &Operands<'_>, y: Pointer, factors: [Factor; 2]) -> Work {
    let mut work = pointwise(2, [o.x(0), y, Pointer::Null, o.out()], o.out_shape(), 1);
    for (i, f) in factors.into_iter().enumerate() {
        match f {
            Factor::Const(x) => work.words[6 + i] = bits(x),
            Factor::Scalar(s) => work.pointers[3 + i] = o.scalar(s),
        }
    }
    work
}

pub(super) fn snake(o: &Operands<'_>, frequency: &Weight, gain: &Weight) -> Work {
    let shape = o.out_shape();
    let (function, each) = if shape.last().is_multiple_of(4) { ("snake_4", 4) } else { ("snake_1", 1) };
    Work {
        pointers: vec![o.x(0), o.dense(frequency), o.dense(gain), o.out()],
        words: vec![shape.len() as u32, shape.last() as u32, cache_type(o.out_type())],
        ..Work::each("snake", function, shape.len() / each)
    }
}
