//! Convolutions and matmuls to one channel: launches of `kernels/conv_narrow.cu` and `kernels/dot.cu`.

use super::operands::{Operands, activation_number};
use super::work::{Pointer, Work};
use orate_graph::{ConvGeometry, Edges, Epilogue, Weight};

/// Results per warp, and warps per block.
const RUN: usize = 32;
/// See [`RUN`].
const WARPS: usize = 8;

pub(super) fn work(o: &Operands<'_>, weight: &Weight, e: &Epilogue, g: &ConvGeometry) -> Work {
    let dims = o.shape(0).dims();
    let (batch, time) = (dims[0], dims[1]);
    let function = match dims[2] {
        32 => "narrow_32",
        64 => "narrow_64",
        96 => "narrow_96",
        _ => "narrow_128",
    };
    let (row, activation) = (o.step.fused.row, activation_number(e.activation.as_ref()));
    let row_count = row.map_or(0, |(table, _)| o.shape_of(table).dims()[0]);
    let zeros = u32::from(g.edges == Edges::Zero);
    let words = [batch, time, g.left].map(|x| x as u32);
    Work {
        grid: [(batch * time.div_ceil(RUN)).div_ceil(WARPS) as u32, 1, 1],
        threads: 32 * WARPS as u32,
        pointers: vec![
            o.x(0),
            if g.has_history() { o.x(1) } else { Pointer::Null },
            o.dense(weight),
            e.bias.as_ref().map_or(Pointer::Null, |b| o.dense(b)),
            o.slope(e.activation.as_ref()),
            row.map_or(Pointer::Null, |(table, _)| o.at(table)),
            row.map_or(Pointer::Null, |(_, index)| o.scalar(index)),
            o.out(),
        ],
        words: words.into_iter().chain([activation, row_count as u32, zeros]).collect(),
        ..Work::each("conv_narrow", function, 1)
    }
}

/// A matmul of few channels to one.
pub(super) fn dot(o: &Operands<'_>, weight: &Weight, e: &Epilogue) -> Work {
    let rows = o.out_shape().len();
    let (row, activation) = (o.step.fused.row, activation_number(e.activation.as_ref()));
    let row_count = row.map_or(0, |(table, _)| o.shape_of(table).dims()[0]);
    Work {
        pointers: vec![
            o.x(0),
            o.dense(weight),
            e.bias.as_ref().map_or(Pointer::Null, |b| o.dense(b)),
            o.slope(e.activation.as_ref()),
            row.map_or(Pointer::Null, |(table, _)| o.at(table)),
            row.map_or(Pointer::Null, |(_, index)| o.scalar(index)),
            o.out(),
        ],
        words: vec![rows as u32, weight.shape().dims()[0] as u32, activation, row_count as u32],
        ..Work::each("dot", "dot", rows)
    }
}
