//! Rotary positions, time embeddings and random numbers: everything computed from angles.

use super::operands::Operands;
use crate::dispatch::{Call, Late, Params, flat};
use crate::variant::Variant;
use crate::weights::{Form, Wanted};
use orate_graph::{First, RopeScaling, Scalar, Weight};

/// Function of the kernel of rotary positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rotary {
    /// Computes a table of angles for fractions of a length.
    Table,
    /// Computes a table of angles for integer positions.
    Rope,
    /// Rotates by a table.
    Turn,
}

/// Kernel that computes tables of angles, or rotates by them.
pub(super) fn rotary_variant(what: Rotary) -> Variant {
    Variant::new("rotary").flag("TABLE", what == Rotary::Table).flag("ROPE", what == Rotary::Rope)
}

/// Kernel of time embeddings.
pub(super) fn time_variant() -> Variant {
    Variant::new("time_embedding")
}

/// Kernel of random numbers.
pub(super) fn random_variant() -> Variant {
    Variant::new("random")
}

pub(super) fn rotary_weights(theta: &Weight) -> Wanted {
    Wanted { matrices: vec![], vectors: vec![(theta.clone(), Form::Turns)] }
}

/// Frequencies are not weights of a model, so a constant weight of their number represents them.
pub(super) fn time_weights(dim: usize) -> Wanted {
    Wanted { matrices: vec![], vectors: vec![(Weight::fill(0.0, [dim / 2]), Form::TimeFrequencies)] }
}

/// As for [`time_weights`].
pub(super) fn rope_weights(base: f64, scaling: Option<RopeScaling>, half: usize) -> Wanted {
    let bits = |s: RopeScaling| [s.factor, s.low, s.high, s.length as f64].map(f64::to_bits);
    let form = Form::RopeFrequencies(base.to_bits(), scaling.map(bits));
    Wanted { matrices: vec![], vectors: vec![(Weight::fill(0.0, [half]), form)] }
}

pub(super) fn rotary(o: &Operands<'_>, heads: usize) -> Call {
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

pub(super) fn rope_table(o: &Operands<'_>, first: First) -> Call {
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

pub(super) fn random_normal(o: &Operands<'_>, seed: Scalar, scale: f32) -> Call {
    let n = o.out_shape().len();
    let params = Params::default()
        .place(o.out())
        .number(n)
        .late(Late::Half { scalar: seed.index(), high: false })
        .late(Late::Half { scalar: seed.index(), high: true })
        .float(scale);
    Call { variant: random_variant(), params, groups: flat(n.div_ceil(4), 64), weights: [None, None] }
}
