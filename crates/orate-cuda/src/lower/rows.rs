//! Layer norm, RMS norm, and depthwise convolutions: a block or a warp for each row.

use super::operands::{Operands, activation_number, cache_type};
use super::work::{Pointer, Work, bits};
use orate_graph::{ConvGeometry, Edges, Norm, ValueInfo, Weight};

/// Maximum row widths of norms, as a block of 256 threads has a row in registers: in vectors of four, and
/// element by element.
const NORM_WIDTH: (usize, usize) = (4096, 1024);

/// Maximum row width at which a thread has four channels.
const FAST_WIDTH: usize = 1024;

/// Maximum row width at which a warp has one row.
pub(super) const SHORT_WIDTH: usize = 512;

/// Fewest rows for which warps that have a row each fill the GPU.
const MANY_ROWS: usize = 128;

/// The same where each row also has a convolution.
const WARP_ROWS: usize = 1024;

/// Name of the kernel for layer norms or depthwise convolutions, or the reason why it does not support these
/// rows.
pub(super) fn named(name: &str, inputs: &[&ValueInfo]) -> Result<String, String> {
    let c = inputs[0].shape.last();
    let widest = if c.is_multiple_of(4) { NORM_WIDTH.0 } else { NORM_WIDTH.1 };
    if c <= widest { Ok(name.to_owned()) } else { Err(format!("rows of {c} are wider than {widest}")) }
}

/// Whether a row of `c` is handled in vectors of four, and the number of threads.
fn row_threads(c: usize) -> (bool, u32) {
    let fours = c.is_multiple_of(4);
    let n = if fours { c / 4 } else { c };
    (fours, (n as u32).next_multiple_of(32).min(256))
}

pub(super) fn layer_norm(o: &Operands<'_>, n: &Norm) -> Work {
    let shape = o.out_shape();
    let (rows, c) = (shape.rows(), shape.last());
    let (fours, threads) = row_threads(c);
    let (fused, row) = (&o.step.fused, o.step.fused.row);
    let (function, per_block) = match fours {
        true if c <= SHORT_WIDTH && (rows >= MANY_ROWS || fused.activation.is_some() || row.is_some()) => {
            ("layer_norm_warps", 8)
        }
        true if c <= FAST_WIDTH => ("layer_norm_row", 1),
        true => ("layer_norm_4", 1),
        false => ("layer_norm_1", 1),
    };
    Work {
        program: "layer_norm",
        function,
        grid: [rows.div_ceil(per_block) as u32, 1, 1],
        threads: if per_block > 1 { 32 * per_block as u32 } else { threads },
        shared: 0,
        cluster: 1,
        pointers: vec![
            o.x(0),
            o.dense(&n.weight),
            o.dense(&n.bias),
            o.out(),
            row.map_or(Pointer::Null, |(table, _)| o.at(table)),
            row.map_or(Pointer::Null, |(_, index)| o.scalar(index)),
        ],
        words: vec![
            c as u32,
            bits(n.eps),
            rows as u32,
            cache_type(o.out_type()),
            activation_number(fused.activation.as_ref()),
            row.map_or(0, |(table, _)| o.shape_of(table).dims()[0] as u32),
        ],
        tensors: vec![],
        weight_bytes: 0,
    }
}

/// Whether the kernel for layer norms of rows of `c` can store results in 16 bits.
pub(super) fn stores_halves(c: usize) -> bool {
    c <= FAST_WIDTH && c.is_multiple_of(8)
}

/// Whether the kernel for RMS norms has a row of `c` in registers, and can store it in 16 bits.
pub(super) fn holds_row(c: usize) -> bool {
    c > SHORT_WIDTH && c <= NORM_WIDTH.0 && c.is_multiple_of(8)
}

pub(super) fn rms_norm(o: &Operands<'_>, weight: &Weight, eps: f32) -> Work {
    let shape = o.out_shape();
    let (rows, c) = (shape.rows(), shape.last());
    let (function, per_block) = match (c <= SHORT_WIDTH, c.is_multiple_of(4)) {
        (true, true) => ("rms_norm_warps_4", 8),
        (true, false) => ("rms_norm_warps_1", 8),
        (false, true) if c <= FAST_WIDTH => ("rms_norm_row_1", 1),
        (false, true) if c <= NORM_WIDTH.0 => ("rms_norm_row_4", 1),
        (false, true) => ("rms_norm_4", 1),
        (false, false) => ("rms_norm_1", 1),
    };
    Work {
        grid: [rows.div_ceil(per_block) as u32, 1, 1],
        pointers: vec![o.x(0), o.dense(weight), o.out()],
        words: vec![rows as u32, c as u32, bits(eps), cache_type(o.out_type())],
        ..Work::each("rms_norm", function, 1)
    }
}

/// Whether the kernel for a depthwise convolution with a norm can store rows of `c` in 16 bits.
pub(super) fn depthwise_stores_halves(c: usize, taps: usize) -> bool {
    [5, 7].contains(&taps) && c <= FAST_WIDTH && c.is_multiple_of(8)
}

pub(super) fn depthwise(
    o: &Operands<'_>,
    weight: &Weight,
    bias: &Weight,
    g: &ConvGeometry,
    norm: Option<&Norm>,
) -> Work {
    let shape = o.out_shape();
    let (fours, threads) = row_threads(shape.last());
    let table = |w: Option<&Weight>| w.map_or(Pointer::Null, |w| o.dense(w));
    let zeros = usize::from(g.edges == Edges::Zero);
    let sizes = [shape.dims()[1], shape.last(), g.taps, g.dilation, g.left, zeros];
    let mut words: Vec<u32> = sizes.map(|x| x as u32).to_vec();
    let rows = shape.rows();
    words.extend([bits(norm.map_or(0.0, |n| n.eps)), cache_type(o.out_type()), rows as u32]);
    let is_fast = fours && norm.is_some() && shape.last() <= FAST_WIDTH;
    let of_warps = shape.last() <= SHORT_WIDTH && rows >= WARP_ROWS;
    let (function, per_block) = match g.taps {
        5 if is_fast && of_warps => ("depthwise_norm_warps_5", 8),
        7 if is_fast && of_warps => ("depthwise_norm_warps_7", 8),
        5 if is_fast => ("depthwise_norm_5", 1),
        7 if is_fast => ("depthwise_norm_7", 1),
        _ if fours => ("depthwise_4", 1),
        _ => ("depthwise_1", 1),
    };
    Work {
        program: "depthwise_conv1d",
        function,
        grid: [rows.div_ceil(per_block) as u32, 1, 1],
        threads: if per_block > 1 { 32 * per_block as u32 } else { threads },
        shared: 0,
        cluster: 1,
        pointers: vec![
            o.x(0),
            o.dense(weight),
            o.dense(bias),
            table(norm.map(|n| &n.weight)),
            table(norm.map(|n| &n.bias)),
            if g.has_history() { o.x(1) } else { Pointer::Null },
            if g.edges == Edges::Lengths { o.x(1) } else { Pointer::Null },
            o.out(),
        ],
        words,
        tensors: vec![],
        weight_bytes: 0,
    }
}
