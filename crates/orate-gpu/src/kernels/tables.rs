//! Rotary positions, time embeddings and random numbers: what is made of angles.

use super::Operands;
use crate::dispatch::{Call, Late, Params, flat};
use crate::pipelines::Variant;
use crate::weights::{Form, Wanted};
use orate_graph::{First, Op, Weight};

/// What the kernel of rotary positions does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rotary {
    /// Makes a table of angles at parts of a length.
    Table,
    /// Makes a table of angles at whole positions.
    Rope,
    /// Turns by a table.
    Turn,
}

/// The kernel that makes tables of angles, or turns by them.
pub(super) fn rotary_variant(what: Rotary) -> Variant {
    Variant::new("rotary").flag("TABLE", what == Rotary::Table).flag("ROPE", what == Rotary::Rope)
}

/// The kernel of time embeddings.
pub(super) fn time_variant() -> Variant {
    Variant::new("time_embedding")
}

/// The kernel of random numbers.
pub(super) fn random_variant() -> Variant {
    Variant::new("random")
}

pub(super) fn rotary_weights(theta: &Weight) -> Wanted {
    Wanted { matrices: vec![], vectors: vec![(theta.clone(), Form::Turns)] }
}

/// Frequencies are no weights of a model; a filled weight of their number stands for them.
pub(super) fn time_weights(dim: usize) -> Wanted {
    Wanted { matrices: vec![], vectors: vec![(Weight::fill(0.0, [dim / 2]), Form::TimeFrequencies)] }
}

/// As for [`time_weights`].
pub(super) fn rope_weights(base: f64, half: usize) -> Wanted {
    Wanted {
        matrices: vec![],
        vectors: vec![(Weight::fill(0.0, [half]), Form::RopeFrequencies(base.to_bits()))],
    }
}

/// Turns per position of rotary positions of width `2 · half`, with 64 bits behind the point: low words, then high
/// ones. No frequency is above one radian.
pub(crate) fn rope_frequencies(base: f64, half: usize) -> Vec<[u32; 2]> {
    let turns = |j: usize| base.powf(-(j as f64) / half as f64) / std::f64::consts::TAU;
    let fixed = |j: usize| (turns(j) * 2f64.powi(64)).round() as u64;
    (0..half).map(|j| [fixed(j) as u32, (fixed(j) >> 32) as u32]).collect()
}

/// Frequencies of a time embedding of width `2 · half`, in radians per unit of time.
pub(crate) fn time_frequencies(half: usize) -> Vec<f64> {
    (0..half).map(|j| 1000.0 * 10000f64.powf(-(j as f64) / (half as f64 - 1.0))).collect()
}

/// Radians as turns in 32.32 fixed point, low word first; negative numbers wrap around, as only the part
/// behind the point of products is looked at.
pub(crate) fn fixed_turns(radians: f64) -> [u32; 2] {
    let fixed = (radians / std::f64::consts::TAU * 4_294_967_296.0).round() as i64 as u64;
    [fixed as u32, (fixed >> 32) as u32]
}

pub(super) fn rotary(o: &Operands<'_>) -> Call {
    let Op::Rotary { heads } = o.step.node.op else { unreachable!("called for rotary alone") };
    let t = o.shape(1).dims();
    let n = o.out_shape().len() / 2;
    let params = Params::default()
        .place(o.place(0))
        .place(o.place(1))
        .place(o.out())
        .number(n)
        .number(t[2])
        .number(t[3])
        .number(heads)
        .number(usize::from(t[0] > 1));
    Call { variant: rotary_variant(Rotary::Turn), params, groups: flat(n, 256), weights: [None, None] }
}

pub(super) fn rotary_table(o: &Operands<'_>) -> Call {
    let t = o.out_shape().dims();
    let n = o.out_shape().len() / 2;
    let lens = o.step.node.inputs.first().map_or(o.out(), |v| o.at(*v));
    let params = Params::default()
        .place(lens)
        .number(o.weights.vector(0))
        .place(o.out())
        .number(n)
        .number(t[2])
        .number(t[3])
        .number(1)
        .number(usize::from(!o.step.node.inputs.is_empty()));
    Call {
        variant: rotary_variant(Rotary::Table),
        params,
        groups: flat(n, 256),
        weights: o.weights.buffers(),
    }
}

pub(super) fn rope_table(o: &Operands<'_>) -> Call {
    let Op::RopeTable { first, .. } = o.step.node.op else { unreachable!("called for rope tables alone") };
    let t = o.out_shape().dims();
    let n = o.out_shape().len() / 2;
    let params = match first {
        First::Operand => Params::default().place(o.last()),
        First::Const(at) => Params::default().number(at),
    };
    let params = params
        .number(o.weights.vector(0))
        .place(o.out())
        .number(n)
        .number(t[2])
        .number(t[3])
        .number(1)
        .number(usize::from(first == First::Operand));
    let variant = rotary_variant(Rotary::Rope);
    Call { variant, params, groups: flat(n, 256), weights: o.weights.buffers() }
}

pub(super) fn time_embedding(o: &Operands<'_>) -> Call {
    let n = o.out_shape().len() / 2;
    let params = Params::default()
        .place(o.place(0))
        .place(o.out())
        .number(n)
        .number(o.out_shape().last() / 2)
        .number(o.weights.vector(0));
    Call { variant: time_variant(), params, groups: flat(n, 64), weights: o.weights.buffers() }
}

pub(super) fn random_normal(o: &Operands<'_>) -> Call {
    let Op::RandomNormal { seed, scale } = o.step.node.op else { unreachable!("called for random alone") };
    let n = o.out_shape().len();
    let params = Params::default()
        .place(o.out())
        .number(n)
        .late(Late::Half { scalar: seed.index(), high: false })
        .late(Late::Half { scalar: seed.index(), high: true })
        .float(scale);
    Call { variant: random_variant(), params, groups: flat(n.div_ceil(4), 64), weights: [None, None] }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's arithmetic: 64-bit products of which the middle is kept.
    #[test]
    fn fixed_point_turns_keep_the_angle() {
        for (radians, x) in [(10.0, 0.7), (-3.25, 0.999), (1000.0, 0.8), (-0.001, 5.5), (0.0, 1.0)] {
            let [low, high] = fixed_turns(radians).map(u64::from);
            let (x_high, x_low) = (f64::floor(x) as u64, (x.fract() * 4_294_967_296.0) as u64);
            let product = x_high * low + x_low * high + ((x_low * low) >> 32);
            let angle = f64::from(product as u32) / 4_294_967_296.0 * std::f64::consts::TAU;
            let (want, got) = (f64::sin(radians * x), angle.sin());
            assert!((want - got).abs() < 3e-7, "{radians} · {x}: {got}, want {want}");
        }
    }
}
