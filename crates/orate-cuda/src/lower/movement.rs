//! Ops that move elements.

use super::work::{Pointer, Work};
use super::{Operands, cache_type};
use orate_graph::{DType, First, Op, Weight};

/// Product of the extents in front of and behind `axis`.
fn around(dims: &[usize], axis: usize) -> (usize, usize) {
    (dims[..axis].iter().product(), dims[axis + 1..].iter().product())
}

/// Moves `outer` blocks of `len` elements with these distances between blocks. Words 4 and 5 are where the first begins.
pub(super) fn copy(from: Pointer, to: Pointer, [outer, len, x_stride, out_stride]: [usize; 4]) -> Work {
    Work {
        pointers: vec![from, to],
        words: [outer * len, len, x_stride, out_stride, 0, 0].map(|x| x as u32).to_vec(),
        ..Work::each("copy", "copy", outer * len)
    }
}

/// Rows by ids or a scalar: table, ids, scalar and output; and the type of the table.
fn gather(pointers: [Pointer; 4], [len, c, rows]: [usize; 3], dtype: DType) -> Work {
    Work {
        pointers: pointers.to_vec(),
        words: vec![len as u32, c as u32, rows as u32, cache_type(dtype)],
        ..Work::each("gather", "gather", len)
    }
}

/// Elements that come from elsewhere as they are, or rows of states that are written.
///
/// # Panics
/// For ops that do more than move.
pub(super) fn works(o: &Operands<'_>, op: &Op) -> Vec<Work> {
    let (out, shape) = (o.out(), o.out_shape());
    let len = shape.len();
    vec![match op {
        Op::Embedding { table } => {
            let (rows, c) = (table.shape().dims()[0], table.shape().dims()[1]);
            let (at, dtype) = o.bank.table(table);
            gather([Pointer::Weight(at), o.x(0), Pointer::Null, out], [len, c, rows], dtype)
        }
        Op::EmbeddingSum { tables, first } => embedding_sum(o, tables, *first),
        Op::SelectRow { index } => {
            let sizes = [len, len, o.shape(0).dims()[0]];
            gather([o.x(0), Pointer::Null, o.scalar(*index), out], sizes, DType::F32)
        }
        Op::RowAt => {
            let (rows, c) = (o.shape(0).dims()[1], shape.last());
            Work {
                pointers: vec![o.x(0), o.x(1), out],
                words: [len, c, rows].map(|x| x as u32).to_vec(),
                ..Work::each("gather", "row_at", len)
            }
        }
        Op::Increment { by } => Work {
            pointers: vec![o.x(0), out],
            words: vec![len as u32, *by as u32],
            ..Work::each("copy", "increment", len)
        },
        Op::WriteRows { first } => write_rows(o, *first),
        Op::Mark => {
            let d = shape.dims();
            Work {
                pointers: vec![out, o.x(1)],
                words: [d[0], d[1]].map(|x| x as u32).to_vec(),
                ..Work::each("copy", "mark", d[0])
            }
        }
        Op::Constant { weight } => {
            let n = weight.shape().len();
            copy(o.dense(weight), out, [len / n, n, 0, n])
        }
        Op::Concat { axis } => return concat(o, *axis),
        Op::Slice { axis, start, .. } => {
            let from = o.shape(0).dims();
            let (outer, inner) = around(from, *axis);
            let (n, total) = (shape.dims()[*axis] * inner, from[*axis] * inner);
            let mut work = copy(o.x(0), out, [outer, n, total, n]);
            work.words[4] = (start * inner) as u32;
            work
        }
        Op::Permute { perm } => permute(o, perm),
        _ => unreachable!("called for ops that move elements alone"),
    }]
}

fn embedding_sum(o: &Operands<'_>, tables: &Weight, first: usize) -> Work {
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

fn write_rows(o: &Operands<'_>, first: First) -> Work {
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

fn concat(o: &Operands<'_>, axis: usize) -> Vec<Work> {
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

/// The name in plans of the kernel for so many axes, or why there is none.
pub(super) fn permute_name(axes: usize) -> Result<String, String> {
    if axes > 4 { Err(format!("{axes} axes are more than 4")) } else { Ok("permute".to_owned()) }
}

fn permute(o: &Operands<'_>, perm: &[usize]) -> Work {
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
