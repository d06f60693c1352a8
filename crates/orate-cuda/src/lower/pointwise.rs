//! Pointwise ops.

use super::work::{Pointer, Work, bits};
use super::{Operands, activation_number};
use orate_graph::{Factor, Op, Shape, Weight};

/// Work without neighbours on x, y and scale; `c` is the width of a row.
fn pointwise(kind: u32, [x, y, scale, out]: [Pointer; 4], shape: &Shape, c: usize) -> Work {
    Work {
        pointers: vec![x, y, scale, Pointer::Null, Pointer::Null, Pointer::Null, out],
        words: vec![kind, shape.len() as u32, c as u32, 1, 0, 0, bits(1.0), bits(1.0)],
        ..Work::each("elementwise", "pointwise", shape.len())
    }
}

/// Each element of the result by itself.
///
/// # Panics
/// For ops that look at neighbours.
pub(super) fn work(o: &Operands<'_>, op: &Op) -> Work {
    let (out, shape) = (o.out(), o.out_shape());
    let null = Pointer::Null;
    match op {
        Op::AddBias { bias } => pointwise(0, [o.x(0), o.dense(bias), null, out], shape, shape.last()),
        Op::Affine { scale, shift } => {
            pointwise(0, [o.x(0), o.dense(shift), o.dense(scale), out], shape, shape.last())
        }
        Op::Activate(a) => {
            let mut work = pointwise(1, [o.x(0), null, o.slope(Some(a)), out], shape, 1);
            work.words[4] = activation_number(Some(a));
            work
        }
        Op::Add => combine(o, [o.x(0), o.x(1), out], [Factor::Const(1.0); 2]),
        Op::Combine { a, b } => combine(o, [o.x(0), o.x(1), out], [*a, *b]),
        Op::Scale { factor } => combine(o, [o.x(0), null, out], [*factor, Factor::Const(0.0)]),
        Op::Mul => pointwise(5, [o.x(0), o.x(1), null, out], shape, 1),
        Op::MulRow => pointwise(6, [o.x(0), o.x(1), null, out], shape, shape.last()),
        Op::AddRow => {
            let mut work = pointwise(3, [o.x(0), o.x(1), null, out], shape, shape.last());
            work.words[5] = 1;
            work
        }
        Op::MaskRows => {
            let mut work = pointwise(4, [o.x(0), null, null, out], shape, shape.last());
            work.pointers[5] = o.x(1);
            work.words[3] = shape.dims()[1] as u32;
            work
        }
        Op::Snake { frequency, gain } => snake(o, frequency, gain),
        _ => unreachable!("called for pointwise ops alone"),
    }
}

fn combine(o: &Operands<'_>, [x, y, out]: [Pointer; 3], factors: [Factor; 2]) -> Work {
    let mut work = pointwise(2, [x, y, Pointer::Null, out], o.out_shape(), 1);
    for (i, f) in factors.into_iter().enumerate() {
        match f {
            Factor::Const(x) => work.words[6 + i] = bits(x),
            Factor::Scalar(s) => work.pointers[3 + i] = o.scalar(s),
        }
    }
    work
}

fn snake(o: &Operands<'_>, frequency: &Weight, gain: &Weight) -> Work {
    let shape = o.out_shape();
    let (function, each) = if shape.last().is_multiple_of(4) { ("snake_4", 4) } else { ("snake_1", 1) };
    Work {
        pointers: vec![o.x(0), o.dense(frequency), o.dense(gain), o.out()],
        words: vec![shape.len() as u32, shape.last() as u32],
        ..Work::each("snake", function, shape.len() / each)
    }
}
