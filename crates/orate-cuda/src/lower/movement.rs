//! Ops that move elements.

use super::operands::{Operands, cache_type};
use super::work::{Pointer, Work};
use orate_graph::{DType, First, Scalar, ValueInfo, Weight};

/// Product of the extents before and after `axis`.
fn around(dims: &[usize], axis: usize) -> (usize, usize) {
    (dims[..axis].iter().product(), dims[axis + 1..].iter().product())
}

/// Copies `outer` blocks of `len` elements with strides `x_stride` and `out_stride`. Words 4 and 5 are the
/// offsets of the first block.
pub(super) fn copy(from: Pointer, to: Pointer, [outer, len, x_stride, out_stride]: [usize; 4]) -> Work {
    Work {
        pointers: vec![from, to],
        words: [outer * len, len, x_stride, out_stride, 0, 0].map(|x| x as u32).to_vec(),
        ..Work::each("copy", "copy", (outer * len).div_ceil(4))
    }
}

/// Table rows by ids or a scalar: table, ids, scalar and output; and the type of the table.
fn gather(pointers: [Pointer; 4], [len, c, rows]: [usize; 3], dtype: DType) -> Work {
    Work {
        pointers: pointers.to_vec(),
        words: vec![len as u32, c as u32, rows as u32, cache_type(dtype)],
        ..Work::each("gather", "gather", len)
    }
}

pub(super) fn embedding(o: &Operands<'_>, table: &Weight) -> Work {
    let (rows, c) = (table.shape().dims()[0], table.shape().dims()[1]);
    let (at, dtype) = o.bank.table(table);
    let pointers = [Pointer::Weight(at), o.x(0), Pointer::Null, o.out()];
    gather(pointers, [o.out_shape().len(), c, rows], dtype)
}

pub(super) fn select_row(o: &Operands<'_>, index: Scalar) -> Work {
    let len = o.out_shape().len();
    let pointers = [o.x(0), Pointer::Null, o.scalar(index), o.out()];
    gather(pointers, [len, len, o.shape(0).dims()[0]], DType::F32)
}

pub(super) fn row_at(o: &Operands<'_>) -> Work {
    let (len, c, rows) = (o.out_shape().len(), o.out_shape().last(), o.shape(0).dims()[1]);
    Work {
        pointers: vec![o.x(0), o.x(1), o.out()],
        words: [len, c, rows].map(|x| x as u32).to_vec(),
        ..Work::each("gather", "row_at", len)
    }
}

pub(super) fn increment(o: &Operands<'_>, by: i32) -> Work {
    let len = o.out_shape().len();
    Work {
        pointers: vec![o.x(0), o.out()],
        words: vec![len as u32, by as u32],
        ..Work::each("copy", "increment", len)
    }
}

pub(super) fn mark(o: &Operands<'_>) -> Work {
    let d = o.out_shape().dims();
    Work {
        pointers: vec![o.out(), o.x(1)],
        words: [d[0], d[1]].map(|x| x as u32).to_vec(),
        ..Work::each("copy", "mark", d[0])
    }
}

pub(super) fn constant(o: &Operands<'_>, weight: &Weight) -> Work {
    let n = weight.shape().len();
    copy(o.dense(weight), o.out(), [o.out_shape().len() / n, n, 0, n])
}

pub(super) fn slice(o: &Operands<'_>, axis: usize, start: usize) -> Work {
    let from = o.shape(0).dims();
    let (outer, inner) = around(from, axis);
    let (n, total) = (o.out_shape().dims()[axis] * inner, from[axis] * inner);
    let mut work = copy(o.x(0), o.out(), [outer, n, total, n]);
    work.words[4] = (start * inner) as u32;
    work.function = match o.dtype(0) {
        _ if o.out_type().is_compact() => work.function,
        DType::F16 => "copy_f16",
        DType::BF16 => "copy_bf16",
        _ => work.function,
    };
    work
}

pub(super) fn embedding_sum(o: &Operands<'_>, tables: &Weight, first: usize) -> Work {
    let (&[count, rows, c], ids) = (tables.shape().dims(), o.shape(0).last()) else {
        unreachable!("three axes by shape inference")
    };
    let len = o.out_shape().len();
    Work {
        pointers: vec![o.dense(tables), o.x(0), o.out()],
        words: [len, c, rows, count, ids, first].map(|x| x as u32).to_vec(),
        ..Work::each("gather", "embedding_sum", len)
    }
}

/// Name of the kernel in plans that writes rows to a state.
pub(super) fn write_name(inputs: &[&ValueInfo]) -> String {
    match inputs[0].dtype {
        dtype if dtype.is_compact() => format!("write-{dtype}"),
        _ => "write".to_owned(),
    }
}

pub(super) fn write_rows(o: &Operands<'_>, first: First) -> Work {
    let (shape, rows) = (o.out_shape(), o.shape(1));
    let (first, from) = o.first(first);
    let dtype = o.plan.info(o.step.node.output).dtype;
    let sizes = [rows.len(), shape.dims()[1], rows.dims()[1], shape.last(), from];
    let mut words = sizes.map(|x| x as u32).to_vec();
    let (program, function, threads) = match dtype {
        DType::F32 | DType::I32 => ("copy", "write_rows", rows.len()),
        DType::F16 | DType::BF16 => ("write_cache", "write_cache", rows.len() / 2),
        DType::Q8_0 => ("write_cache", "write_cache", rows.len() / 4),
    };
    if dtype.is_compact() {
        words.push(cache_type(dtype));
    }
    Work { pointers: vec![o.out(), o.x(1), first], words, ..Work::each(program, function, threads) }
}

pub(super) fn concat(o: &Operands<'_>, axis: usize) -> Vec<Work> {
    let out = o.out_shape().dims();
    let (outer, inner) = around(out, axis);
    let mut at = 0;
    (0..o.step.node.inputs.len())
        .map(|i| {
            let n = o.shape(i).dims()[axis] * inner;
            let mut work = copy(o.x(i), o.out(), [outer, n, n, out[axis] * inner]);
            work.words[5] = at as u32;
            at += n;
            work
        })
        .filter(|w| w.words[0] > 0)
        .collect()
}

/// Name of the kernel in plans for a permutation, or the reason why there is none.
pub(super) fn permute_name(perm: &[usize]) -> Result<String, String> {
    match perm.len() {
        0..=4 => Ok("permute".to_owned()),
        axes => Err(format!("{axes} axes are more than 4")),
    }
}

pub(super) fn permute(o: &Operands<'_>, perm: &[usize]) -> Work {
    let dims = o.shape(0).dims();
    let (mut size, mut stride) = ([1; 4], [0; 4]);
    for (i, &axis) in perm.iter().enumerate() {
        size[4 - perm.len() + i] = dims[axis] as u32;
        stride[4 - perm.len() + i] = around(dims, axis).1 as u32;
    }
    let len = o.out_shape().len();
    Work {
        pointers: vec![o.x(0), o.out()],
        words: [len as u32].into_iter().chain(size).chain(stride).collect(),
        ..Work::each("permute", "permute", len)
    }
}
