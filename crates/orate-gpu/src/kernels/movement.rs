//! Ops that move elements.

use super::operands::{Operands, cache_rows};
use crate::dispatch::{Call, Late, Params, flat};
use crate::variant::Variant;
use orate_graph::{DType, First, Place, Scalar, Shape, Value, ValueInfo, Weight, several};

/// Kernel that copies from the session's buffer or from weights.
pub(super) fn copy_variant(from_weight: bool) -> Variant {
    Variant::new("copy").flag("FROM_WEIGHT", from_weight)
}

/// Kernel of embeddings whose table is f32 or 16-bit.
pub(super) fn gather_variant(halves: Option<DType>) -> Variant {
    Variant::new("gather")
        .flag("ROW_AT", false)
        .flag("HALVES", halves.is_some())
        .flag("F16", halves == Some(DType::F16))
}

/// Kernel of rows of values.
pub(super) fn row_at_variant() -> Variant {
    Variant::new("gather").flag("ROW_AT", true)
}

/// Kernel that writes rows or marks in place.
pub(super) fn write_variant(mark: bool, operand: bool) -> Variant {
    Variant::new("write_rows").flag("MARK", mark).flag("OPERAND", operand)
}

/// Kernel that rounds rows to a compact type and writes them in place.
pub(super) fn write_cache_variant(dtype: DType, operand: bool) -> Variant {
    cache_rows(Variant::new("write_cache"), dtype, None).flag("OPERAND", operand)
}

/// Name of the kernel in plans that writes rows to a state.
pub(super) fn write_name(inputs: &[&ValueInfo]) -> String {
    match inputs[0].dtype {
        dtype if dtype.is_compact() => format!("write-{dtype}"),
        _ => "write".to_owned(),
    }
}

/// Writes rows from `first` on, or marks.
pub(super) fn write(o: &Operands<'_>, first: Option<First>) -> Call {
    let (rows, state) = (o.shape(1), o.out_shape().dims());
    let (capacity, time) = if first.is_some() { (state[1], rows.dims()[1]) } else { (1, 1) };
    let operand = first == Some(First::Operand);
    let dtype = o.dtype(0);
    // Elements per thread.
    let each = if dtype.is_compact() { dtype.width_step() } else { 1 };
    let params = Params::default()
        .place(o.out())
        .place(o.place(1))
        .place(if operand { o.last() } else { Place::Nowhere })
        .number(rows.len() / each)
        .number(capacity)
        .number(time)
        .number(o.out_shape().last())
        .number(if let Some(First::Const(at)) = first { at } else { 0 });
    Call {
        variant: match dtype.is_compact() {
            true => write_cache_variant(dtype, operand),
            false => write_variant(first.is_none(), operand),
        },
        params,
        groups: flat(rows.len() / each, 256),
        weights: [None, None],
    }
}

/// Kernel of sums of table rows.
pub(super) fn embedding_sum_variant() -> Variant {
    Variant::new("embedding_sum")
}

/// Offset of a copy on one side, and its strides along four axes.
struct Side {
    at: Late,
    offset: usize,
    strides: [usize; 4],
}

impl Side {
    fn new(place: Place, offset: usize, strides: [usize; 4]) -> Self {
        Side { at: Late::Place(place), offset, strides }
    }
}

fn copy(extents: [usize; 4], from: Side, to: Side) -> Call {
    let n = extents.iter().product();
    let mut params =
        Params::default().late_after(from.at, from.offset).late_after(to.at, to.offset).number(n);
    for x in extents[1..].iter().chain(&from.strides).chain(&to.strides) {
        params = params.number(*x);
    }
    let params = params.number(0);
    Call { variant: copy_variant(false), params, groups: flat(n, 256), weights: [None, None] }
}

/// Copies `n` elements in order.
pub(crate) fn store(from: Place, to: Place, n: usize) -> Call {
    copy([1, 1, 1, n], Side::new(from, 0, [0, 0, 0, 1]), Side::new(to, 0, [0, 0, 0, 1]))
}

/// Product of the extents before and after an axis.
fn around(dims: &[usize], axis: usize) -> (usize, usize) {
    (dims[..axis].iter().product(), dims[axis + 1..].iter().product())
}

pub(super) fn embedding(o: &Operands<'_>, table: &Weight) -> Call {
    let (t, n) = (table.shape().dims(), o.out_shape().len());
    let params = Params::default()
        .place(o.place(0))
        .number(o.weights.matrix(0))
        .place(o.out())
        .number(n)
        .number(t[1])
        .number(t[0]);
    Call {
        variant: gather_variant(o.weights.halves),
        params,
        groups: flat(n, 256),
        weights: o.weights.buffers(),
    }
}

pub(super) fn row_at(o: &Operands<'_>) -> Call {
    let (n, x) = (o.out_shape().len(), o.shape(0).dims());
    let params = Params::default()
        .place(o.place(1))
        .place(o.place(0))
        .place(o.out())
        .number(n)
        .number(x[2])
        .number(x[1]);
    Call { variant: row_at_variant(), params, groups: flat(n, 256), weights: [None, None] }
}

pub(super) fn increment(o: &Operands<'_>, by: i32) -> Call {
    let mut call = store(o.place(0), o.out(), o.out_shape().len());
    if let Some(add) = call.params.words.last_mut() {
        *add = by as u32;
    }
    call
}

pub(super) fn embedding_sum(o: &Operands<'_>, tables: &Weight, first: usize) -> Call {
    let &[count, rows, c] = tables.shape().dims() else { unreachable!("three axes by shape inference") };
    let n = o.out_shape().len();
    let params = Params::default()
        .place(o.place(0))
        .number(o.weights.matrix(0))
        .place(o.out())
        .number(n)
        .number(c)
        .number(rows)
        .number(count)
        .number(o.shape(0).last())
        .number(first);
    Call { variant: embedding_sum_variant(), params, groups: flat(n, 256), weights: o.weights.buffers() }
}

pub(super) fn constant(o: &Operands<'_>, weight: &Weight) -> Call {
    let (n, len) = (o.out_shape().len(), weight.shape().len());
    let to = Side::new(o.out(), 0, [0, 0, len, 1]);
    let from = Side::new(Place::Nowhere, o.weights.matrix(0), [0, 0, 0, 1]);
    let mut call = copy([1, 1, n / len, len], from, to);
    call.params.late.remove(0);
    call.variant = copy_variant(true);
    call.weights = o.weights.buffers();
    call
}

/// Most operands of a dispatch that concatenates.
pub(super) const CONCATENATED: usize = 24;

/// Kernel that concatenates values of the same size.
pub(super) fn concat_variant(parts: usize) -> Variant {
    Variant::new("concat").number("PARTS", parts)
}

/// Whether more than two operands have the same size, so that one dispatch takes several of them.
fn are_alike<'s>(mut inputs: impl ExactSizeIterator<Item = &'s Shape>) -> bool {
    let count = inputs.len();
    let first = inputs.next();
    count > 2 && inputs.all(|shape| Some(shape) == first && !shape.is_empty())
}

/// One copy per operand that is not empty, or one dispatch for many operands that are alike.
pub(super) fn concat_name(inputs: &[&ValueInfo]) -> Result<String, String> {
    Ok(match are_alike(inputs.iter().map(|i| &i.shape)) {
        true => several("concat", inputs.len().div_ceil(CONCATENATED)),
        false => several("copy", inputs.iter().filter(|i| !i.shape.is_empty()).count()),
    })
}

pub(super) fn concat(o: &Operands<'_>, axis: usize) -> Vec<Call> {
    let out = o.out_shape().dims();
    let (outer, inner) = around(out, axis);
    let inputs = &o.step.node.inputs;
    if are_alike(inputs.iter().map(|v| o.shape_of(*v))) {
        let block = o.shape(0).dims()[axis] * inner;
        let one = |(i, values): (usize, &[Value])| {
            let n = outer * values.len() * block;
            let params = Params::default().place(o.out()).number(n).number(block);
            let params = params.number(out[axis] * inner).number(i * CONCATENATED * block);
            let params = values.iter().fold(params, |p, v| p.place(o.at(*v)));
            let variant = concat_variant(values.len());
            Call { variant, params, groups: flat(n, 256), weights: [None, None] }
        };
        return inputs.chunks(CONCATENATED).enumerate().map(one).collect();
    }
    let mut at = 0;
    let one = |i: usize| {
        let n = o.shape(i).dims()[axis] * inner;
        let to = Side::new(o.out(), at, [0, 0, out[axis] * inner, 1]);
        at += n;
        (n > 0).then(|| copy([1, 1, outer, n], Side::new(o.place(i), 0, [0, 0, n, 1]), to))
    };
    (0..o.step.node.inputs.len()).filter_map(one).collect()
}

pub(super) fn slice(o: &Operands<'_>, axis: usize, start: usize) -> Call {
    let out = o.out_shape().dims();
    let (outer, inner) = around(out, axis);
    let (n, total) = (out[axis] * inner, o.shape(0).dims()[axis] * inner);
    let from = Side::new(o.place(0), start * inner, [0, 0, total, 1]);
    copy([1, 1, outer, n], from, Side::new(o.out(), 0, [0, 0, n, 1]))
}

/// Name of the kernel in plans for a permutation, or the reason why there is none.
pub(super) fn permute_name(perm: &[usize]) -> Result<String, String> {
    match perm.len() {
        0..=4 => Ok("permute".to_owned()),
        axes => Err(format!("permutations have at most 4 axes here, this one has {axes}")),
    }
}

pub(super) fn permute(o: &Operands<'_>, perm: &[usize]) -> Call {
    let (x, out) = (o.shape(0).dims(), o.out_shape().dims());
    let mut strides = [0; 4];
    let mut from = [0; 4];
    let mut extents = [1; 4];
    let first = 4 - perm.len();
    for (i, axis) in perm.iter().enumerate() {
        extents[first + i] = out[i];
        strides[first + i] = out[i + 1..].iter().product();
        from[first + i] = x[axis + 1..].iter().product();
    }
    copy(extents, Side::new(o.place(0), 0, from), Side::new(o.out(), 0, strides))
}

pub(super) fn select_row(o: &Operands<'_>, index: Scalar) -> Call {
    let x = o.shape(0).dims();
    let mut call = store(o.place(0), o.out(), x[1]);
    let row = Late::Row { scalar: index.index(), rows: x[0], stride: x[1] };
    call.params.late.push((0, row));
    call
}
