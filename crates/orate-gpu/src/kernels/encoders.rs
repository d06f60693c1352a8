//! Ops of voice encoders and vocoders: padding, statistics over time, residual codes, and overlap-add.

use super::operands::{Abilities, Operands};
use crate::dispatch::{Call, Params, flat};
use crate::variant::Variant;
use orate_graph::{Padding, ValueInfo, Weight};

/// Kernel that adds rows at the ends of sequences.
pub(super) fn pad_variant(padding: Padding) -> Variant {
    Variant::new("pad").flag("ZERO", padding == Padding::Zero).flag("REFLECT", padding == Padding::Reflect)
}

pub(super) fn pad(o: &Operands<'_>, padding: Padding, before: usize) -> Call {
    let out = o.out_shape();
    let params = Params::default()
        .place(o.place(0))
        .place(o.out())
        .number(out.len())
        .number(out.last())
        .number(o.shape(0).dims()[1])
        .number(out.dims()[1])
        .number(before);
    Call { variant: pad_variant(padding), params, groups: flat(out.len(), 256), weights: [None, None] }
}

/// Channels per workgroup.
const CHANNELS: usize = 16;

/// Kernel of means and deviations.
pub(super) fn statistics_variant(scores: bool) -> Variant {
    Variant::new("statistics").flag("SCORES", scores)
}

pub(super) fn statistics(o: &Operands<'_>, floor: f32) -> Call {
    let x = o.shape(0).dims();
    let params = Params::default()
        .place(o.place(0))
        .place(o.last())
        .place(o.out())
        .number(x[2])
        .number(x[1])
        .float(floor);
    Call {
        variant: statistics_variant(o.step.node.inputs.len() == 2),
        params,
        groups: [x[2].div_ceil(CHANNELS) as u32, x[0] as u32, 1],
        weights: [None, None],
    }
}

/// Kernel of codes for entries of this width.
pub(super) fn codes_variant(width: usize) -> Variant {
    Variant::new("residual_codes").number("WIDTH", width)
}

pub(super) fn codes_name(codebooks: &Weight, can: Abilities<'_>) -> Result<String, String> {
    let width = codebooks.shape().last();
    let (needed, limit) = (4 * (width + 256), can.workgroup_bytes as usize);
    if needed > limit {
        return Err(format!(
            "entries of {width} need {needed} bytes of workgroup memory, and there are {limit}"
        ));
    }
    Ok("residual-codes".to_owned())
}

pub(super) fn residual_codes(o: &Operands<'_>, codebooks: &Weight) -> Call {
    let d = codebooks.shape().dims();
    let rows = o.out_shape().rows();
    let params = Params::default()
        .place(o.place(0))
        .place(o.out())
        .number(rows)
        .number(o.weights.matrix(0))
        .number(d[0])
        .number(d[1]);
    Call { variant: codes_variant(d[2]), params, groups: flat(rows, 1), weights: o.weights.buffers() }
}

/// Kernel of overlap-add.
pub(super) fn overlap_variant() -> Variant {
    Variant::new("overlap_add")
}

pub(super) fn overlap_add(o: &Operands<'_>, hop: usize) -> Call {
    let (x, out) = (o.shape(0).dims(), o.out_shape());
    let params = Params::default()
        .place(o.place(0))
        .place(o.out())
        .number(out.len())
        .number(out.last())
        .number(x[1])
        .number(x[2])
        .number(hop)
        .number(o.weights.vector(0));
    Call { variant: overlap_variant(), params, groups: flat(out.len(), 256), weights: o.weights.buffers() }
}

/// Kernel of an LSTM.
pub(super) fn lstm_variant(units: usize) -> Variant {
    Variant::new("lstm").number("UNITS", units)
}

/// Name of the kernel of an LSTM, or the reason why there is none: a workgroup has its state and the one
/// before.
pub(super) fn lstm_name(weight: &Weight, can: Abilities<'_>) -> Result<String, String> {
    let (units, most) = (weight.shape().dims()[0], can.workgroup_bytes as usize / 12);
    if units > most {
        return Err(format!("{units} units are more than {most}"));
    }
    Ok("lstm".to_owned())
}

pub(super) fn lstm(o: &Operands<'_>) -> Call {
    let out = o.out_shape().dims();
    let params =
        Params::default().place(o.place(0)).place(o.out()).number(o.weights.matrix(0)).number(out[1]);
    let groups = [out[0] as u32, 1, 1];
    Call { variant: lstm_variant(out[2]), params, groups, weights: o.weights.buffers() }
}

/// Kernel of means of segments.
pub(super) fn segment_variant() -> Variant {
    Variant::new("segment_mean")
}

pub(super) fn segment_mean(o: &Operands<'_>, rows: usize) -> Call {
    let x = o.shape(0).dims();
    let params = Params::default().place(o.place(0)).place(o.out()).number(x[2]).number(x[1]).number(rows);
    let groups = [x[2].div_ceil(CHANNELS), x[1].div_ceil(rows), x[0]].map(|n| n as u32);
    Call { variant: segment_variant(), params, groups, weights: [None, None] }
}

/// Most harmonics of a source, whose sums are in workgroup memory.
const HARMONICS: usize = 512;

/// Kernel of a source signal.
pub(super) fn source_variant(harmonics: usize) -> Variant {
    Variant::new("harmonic_source").number("HARMONICS", harmonics).number("PARTS", 4 * harmonics)
}

pub(super) fn source_name(inputs: &[&ValueInfo]) -> Result<String, String> {
    let harmonics = inputs[1].shape.last();
    if harmonics > HARMONICS {
        return Err(format!("{harmonics} harmonics are more than {HARMONICS}"));
    }
    Ok("harmonic-source".to_owned())
}

pub(super) fn harmonic_source(o: &Operands<'_>, hop: usize, rate: usize) -> Call {
    let f0 = o.shape(0).dims();
    let params = Params::default()
        .place(o.place(0))
        .place(o.place(1))
        .place(o.place(2))
        .place(o.out())
        .number(f0[1])
        .number(hop)
        .number(rate);
    Call {
        variant: source_variant(o.out_shape().last()),
        params,
        groups: [f0[1] as u32, f0[0] as u32, 1],
        weights: [None, None],
    }
}
