//! Layer norm, RMS norm, and depthwise convolutions.

use super::operands::{Abilities, Operands, activation};
use crate::dispatch::{Call, Late, Params, flat};
use crate::variant::Variant;
use orate_graph::{Activation, ConvGeometry, Edges, Fused, Norm, Place, ValueInfo};

/// Maximum vectors of four that each of 128 threads holds in registers.
const MOST_KEPT: usize = 4;

/// Maximum taps that are unrolled.
const MOST_TAPS: usize = 16;

/// Vectors of four that each of 128 threads holds of a row of `c` elements, or 0 if registers do not suffice.
fn kept(c: usize) -> usize {
    let kept = c.div_ceil(512);
    if c.is_multiple_of(4) && kept <= MOST_KEPT { kept } else { 0 }
}

/// A kernel that reduces rows over a workgroup, where each thread holds `kept` vectors.
pub(super) fn reduced(file: &'static str, kept: usize, subgroups: bool) -> Variant {
    let arguments = if subgroups { "subgroup, subgroups, place" } else { "lane" };
    Variant::new(file)
        .number("KEPT", kept)
        .text("TYPE", if kept > 0 { "vec4<f32>" } else { "f32" })
        .flag("SUBGROUPS", subgroups)
        .text("REDUCE_ARGUMENTS", arguments)
}

/// Kernel of a norm.
pub(super) fn norm_variant(kept: usize, subgroups: bool) -> Variant {
    let v = reduced("layer_norm", kept, subgroups).text("NORM_WEIGHT", "weight").text("NORM_BIAS", "bias");
    activation(v.flag("BY_SUBGROUPS", false).flag("ADDS_ROW", false), None)
}

/// Kernel of a depthwise convolution, with a norm if rows are in registers.
pub(super) fn depthwise_variant(taps: usize, kept: usize, edges: Edges, subgroups: bool) -> Variant {
    reduced("depthwise_conv1d", kept, subgroups)
        .number("TAPS", taps)
        .flag("HISTORY", edges == Edges::History)
        .flag("ZERO", edges == Edges::Zero)
        .flag("LENGTHS", edges == Edges::Lengths)
        .text("NORM_WEIGHT", "norm_weight")
        .text("NORM_BIAS", "norm_bias")
}

/// Widest rows to which norms apply an activation, and add a row.
pub(super) const FINISHED_WIDTH: usize = 512 * MOST_KEPT;

/// Adds to the kernel of a norm what it does to its results.
pub(super) fn finished(v: Variant, a: Option<&Activation>, adds_row: bool) -> Variant {
    let v = v.set("ADDS_ROW", adds_row);
    match a {
        Some(a) => v.set("ACTIVATE", true).set(a.constant(), true),
        None => v,
    }
}

/// Maximum vectors of four that a lane holds of a row of its subgroup. On an H200, 1408 rows of 256 take 4.1
/// to 4.4 µs so, and with a workgroup for each 4.7 to 4.8, but 72 of 1024 take 5.2 to 6.2 instead of 4.1.
const MOST_IN_LANE: usize = 2;

/// Threads of workgroups whose subgroups have a row each.
const NORM_THREADS: usize = 128;

/// Kernel of a norm of rows of `c` elements by subgroups of `lanes` threads.
pub(super) fn subgroup_norm_variant(c: usize, lanes: usize) -> Variant {
    norm_variant(c.div_ceil(4 * lanes), true)
        .set("BY_SUBGROUPS", true)
        .number("LANES", lanes)
        .number("THREADS", NORM_THREADS)
}

/// Threads of subgroups, if each norms a row of `c` elements.
fn norm_lanes(c: usize, can: Abilities<'_>) -> Option<usize> {
    let fits = |lanes: &usize| c.is_multiple_of(4) && c.div_ceil(4 * lanes) <= MOST_IN_LANE;
    can.lanes.filter(fits).filter(|lanes| *lanes <= NORM_THREADS)
}

/// Norm of the rows at `x`, which then may get an activation, and a row of a table.
fn norm(o: &Operands<'_>, x: Place, n: &Norm, first_vector: usize, fused: &Fused) -> Call {
    let (rows, c) = (o.out_shape().rows(), o.out_shape().last());
    let mut params = Params::default()
        .place(x)
        .place(o.out())
        .number(rows)
        .number(c)
        .number(o.weights.vector(first_vector))
        .number(o.weights.vector(first_vector + 1))
        .float(n.eps);
    if let Some((table, index)) = fused.row {
        let row = Late::Row { scalar: index.index(), rows: o.shape_of(table).dims()[0], stride: c };
        params.late.push((params.words.len(), row));
        params = params.place(o.at(table));
    }
    let (variant, groups) = match norm_lanes(c, o.can) {
        Some(lanes) => (subgroup_norm_variant(c, lanes), flat(rows, NORM_THREADS / lanes)),
        None => (norm_variant(kept(c), o.can.subgroups), flat(rows, 1)),
    };
    let variant = finished(variant, fused.activation.as_ref(), fused.row.is_some());
    Call { variant, params, groups, weights: o.weights.buffers() }
}

pub(super) fn layer_norm(o: &Operands<'_>, n: &Norm) -> Call {
    norm(o, o.place(0), n, 0, &o.step.fused)
}

/// Kernel of an RMS norm.
pub(super) fn rms_variant(fours: bool, subgroups: bool) -> Variant {
    let width = if fours { 4 } else { 1 };
    reduced("rms_norm", usize::from(fours), subgroups).flag("FOURS", fours).number("WIDTH", width)
}

pub(super) fn rms_norm(o: &Operands<'_>, eps: f32) -> Call {
    let (rows, c) = (o.out_shape().rows(), o.out_shape().last());
    let params = Params::default()
        .place(o.place(0))
        .place(o.out())
        .number(rows)
        .number(c)
        .number(o.weights.vector(0))
        .float(eps);
    Call {
        variant: rms_variant(c.is_multiple_of(4), o.can.subgroups),
        params,
        groups: flat(rows, 1),
        weights: o.weights.buffers(),
    }
}

/// Whether a convolution can include the norm: its rows are in registers and its taps unrolled.
fn norms_its_rows(c: usize, taps: usize) -> bool {
    kept(c) > 0 && taps <= MOST_TAPS
}

/// Names of the kernels of a depthwise convolution.
pub(super) fn depthwise_name(inputs: &[&ValueInfo], taps: usize, norm: bool) -> &'static str {
    match (norm, norms_its_rows(inputs[0].shape.last(), taps)) {
        (false, _) => "depthwise",
        (true, true) => "depthwise-norm",
        (true, false) => "depthwise + layer-norm",
    }
}

/// One dispatch; two if a row is too wide or odd for a fused norm.
pub(super) fn depthwise(o: &Operands<'_>, g: &ConvGeometry, n: Option<&Norm>) -> Vec<Call> {
    let x = o.shape(0).dims();
    let (rows, c) = (x[0] * x[1], x[2]);
    let fused = n.filter(|_| norms_its_rows(c, g.taps));
    let v = |i: usize| if fused.is_some() { o.weights.vector(i) } else { 0 };
    let params = Params::default()
        .place(o.place(0))
        .place(o.out())
        .number(if fused.is_some() { rows } else { rows * c })
        .number(c)
        .number(x[1])
        .number(g.dilation)
        .number(g.left)
        .number(o.weights.vector(0))
        .number(o.weights.vector(1))
        .number(v(2))
        .number(v(3))
        .float(fused.map_or(0.0, |n| n.eps))
        .place(match g.edges {
            Edges::History | Edges::Lengths => o.place(1),
            Edges::Repeat | Edges::Zero => Place::Nowhere,
        });
    let kept = if fused.is_some() { kept(c) } else { 0 };
    let convolution = Call {
        variant: depthwise_variant(g.taps, kept, g.edges, o.can.subgroups),
        params,
        groups: if fused.is_some() { flat(rows, 1) } else { flat(rows * c, 256) },
        weights: o.weights.buffers(),
    };
    match n {
        Some(n) if fused.is_none() => vec![convolution, norm(o, o.out(), n, 2, &Fused::default())],
        _ => vec![convolution],
    }
}
