//! Rotary positions, time embeddings and random numbers: everything computed from angles.

use super::operands::Operands;
use super::work::{Work, bits};
use orate_graph::{First, RopeScaling, Scalar, Weight};

pub(super) fn rotary_table(o: &Operands<'_>, theta: &Weight) -> Work {
    let (d, len) = (o.out_shape().dims(), o.out_shape().len());
    Work {
        pointers: vec![o.dense(theta), o.optional(0), o.out()],
        words: [d[0], d[2], d[3]].map(|x| x as u32).to_vec(),
        ..Work::each("rotary", "rotary_table", len / 2)
    }
}

pub(super) fn rope_table(o: &Operands<'_>, base: f64, scaling: Option<RopeScaling>, first: First) -> Work {
    let (d, len) = (o.out_shape().dims(), o.out_shape().len());
    let (first, from) = o.first(first);
    // A factor of 1 changes nothing.
    let none = RopeScaling { factor: 1.0, low: 0.0, high: 1.0, length: 0 };
    let RopeScaling { factor, low, high, length } = scaling.unwrap_or(none);
    let mut words: Vec<u32> = [d[0], d[2], d[3], from].map(|x| x as u32).to_vec();
    for bits in [base, factor, low, high, length as f64].map(f64::to_bits) {
        words.extend([bits as u32, (bits >> 32) as u32]);
    }
    Work { pointers: vec![first, o.out()], words, ..Work::each("rotary", "rope_table", len / 2) }
}

pub(super) fn rotary(o: &Operands<'_>) -> Work {
    let (shape, t) = (o.out_shape(), o.shape(1).dims());
    Work {
        pointers: vec![o.x(0), o.x(1), o.out()],
        words: [shape.len(), t[2], shape.last(), t[3], t[0]].map(|x| x as u32).to_vec(),
        ..Work::each("rotary", "rotary", shape.len() / 2)
    }
}

pub(super) fn time_embedding(o: &Operands<'_>, dim: usize) -> Work {
    let len = o.out_shape().len();
    Work {
        pointers: vec![o.x(0), o.out()],
        words: [len / dim, dim].map(|x| x as u32).to_vec(),
        ..Work::each("rotary", "time_embedding", len / 2)
    }
}

pub(super) fn random_normal(o: &Operands<'_>, seed: Scalar, scale: f32) -> Work {
    let len = o.out_shape().len();
    Work {
        pointers: vec![o.scalar(seed), o.out()],
        words: vec![len as u32, bits(scale)],
        ..Work::each("random", "random_normal", len.div_ceil(4))
    }
}
