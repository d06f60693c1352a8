//! Ops of voice encoders and vocoders: padding, statistics over time, residual codes, and overlap-add.

use super::operands::Operands;
use super::work::{Work, bits};
use crate::driver::Facts;
use orate_graph::{Padding, Weight};

/// Channels per block of `kernels/statistics.cu`.
const CHANNELS: usize = 32;

pub(super) fn pad(o: &Operands<'_>, padding: Padding, before: usize) -> Work {
    let kind = match padding {
        Padding::Zero => 0,
        Padding::Repeat => 1,
        Padding::Reflect => 2,
    };
    let shape = o.out_shape();
    let (time, padded) = (o.shape(0).dims()[1], shape.dims()[1]);
    Work {
        pointers: vec![o.x(0), o.out()],
        words: [shape.len(), shape.last(), time, padded, before, kind].map(|x| x as u32).to_vec(),
        ..Work::each("pad", "pad", shape.len().div_ceil(4))
    }
}

pub(super) fn statistics(o: &Operands<'_>, floor: f32) -> Work {
    let d = o.shape(0).dims();
    Work {
        grid: [d[2].div_ceil(CHANNELS) as u32, d[0] as u32, 1],
        pointers: vec![o.x(0), o.optional(1), o.out()],
        words: vec![d[2] as u32, d[1] as u32, bits(floor)],
        ..Work::each("statistics", "statistics", 1)
    }
}

/// Name of the kernel in plans for codebooks, or the reason why there is none: a block must have room for an
/// entry.
pub(super) fn codes_name(codebooks: &Weight, facts: &Facts) -> Result<String, String> {
    let width = codebooks.shape().last();
    let most = (facts.shared as usize).saturating_sub(2048) / 4;
    if width > most {
        return Err(format!("entries of {width} are wider than {most}"));
    }
    Ok("residual-codes".to_owned())
}

pub(super) fn residual_codes(o: &Operands<'_>, codebooks: &Weight) -> Work {
    let d = codebooks.shape().dims();
    Work {
        grid: [o.out_shape().rows() as u32, 1, 1],
        shared: 4 * d[2] as u32,
        pointers: vec![o.x(0), o.dense(codebooks), o.out()],
        words: d.iter().map(|x| *x as u32).collect(),
        ..Work::each("residual_codes", "residual_codes", 1)
    }
}

pub(super) fn overlap_add(o: &Operands<'_>, window: &Weight, hop: usize) -> Work {
    let (x, out) = (o.shape(0).dims(), o.out_shape());
    Work {
        pointers: vec![o.x(0), o.dense(window), o.out()],
        words: [out.len(), out.last(), x[1], x[2], hop].map(|x| x as u32).to_vec(),
        ..Work::each("overlap_add", "overlap_add", out.len())
    }
}

/// Name of the kernel of an LSTM, or the reason why there is none: a block has its state and one before.
pub(super) fn lstm_name(weight: &Weight, facts: &Facts) -> Result<String, String> {
    let (units, most) = (weight.shape().dims()[0], (facts.shared as usize).saturating_sub(20 << 10) / 12);
    if units > most {
        return Err(format!("{units} units are more than {most}"));
    }
    Ok("lstm".to_owned())
}

pub(super) fn lstm(o: &Operands<'_>, weight: &Weight) -> Work {
    let d = o.out_shape().dims();
    Work {
        grid: [d[0] as u32, 1, 1],
        threads: 512,
        shared: 12 * d[2] as u32,
        pointers: vec![o.x(0), o.dense(weight), o.out()],
        words: vec![d[1] as u32, d[2] as u32],
        ..Work::each("lstm", "lstm", 1)
    }
}

pub(super) fn segment_mean(o: &Operands<'_>, rows: usize) -> Work {
    let d = o.out_shape().dims();
    Work {
        grid: [d[2].div_ceil(CHANNELS) as u32, d[1].div_ceil(rows) as u32, d[0] as u32],
        pointers: vec![o.x(0), o.out()],
        words: [d[2], d[1], rows].map(|x| x as u32).to_vec(),
        ..Work::each("segment_mean", "segment_mean", 1)
    }
}

pub(super) fn harmonic_source(o: &Operands<'_>, hop: usize, rate: usize) -> Work {
    let (f0, harmonics) = (o.shape(0).dims(), o.out_shape().last());
    let mut words = [f0[1], hop, harmonics].map(|x| x as u32).to_vec();
    words.push(bits(rate as f32));
    Work {
        grid: [f0[1] as u32, f0[0] as u32, 1],
        shared: 8 * harmonics as u32,
        pointers: vec![o.x(0), o.x(1), o.x(2), o.out()],
        words,
        ..Work::each("harmonic_source", "harmonic_source", 1)
    }
}
