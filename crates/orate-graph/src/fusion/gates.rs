//! Two matmuls that run as one, then `Mul` of both → the matmul, which multiplies what it stores.

use super::draft::{Draft, Fusions};
use super::matmuls;
use crate::Op;

pub(super) fn run(d: &mut Draft<'_>, fusions: &Fusions) {
    for i in 0..d.launches.len() {
        let Some(mul) = d.launches[i].clone().filter(|_| *d.op(i) == Op::Mul) else { continue };
        let [Some(&one), Some(&other)] = [0, 1].map(|k| d.made_by.get(&mul.inputs[k])) else { continue };
        let (first, part) = (one.min(other), one.max(other));
        let is_pair = d.launches[first].as_ref().is_some_and(|l| l.parts == [part] && !l.fused.gated);
        let many =
            matmuls::part(d.op(first)).zip(fusions.gated_multiple).is_some_and(|((weight, _), multiple)| {
                matmuls::is_multiple(weight, multiple)
                    && fusions.precision.of(weight) == fusions.precision.precision
            });
        let fits = many || d.graph.shape(mul.output).rows() <= fusions.gated_rows;
        let [a, b] = [0, 1].map(|k| d.graph.shape(mul.inputs[k]).len());
        let alone = mul.inputs.iter().all(|v| d.is_read_once(*v));
        if !fits || !is_pair || a != b || !alone || !d.is_free(mul.output) {
            continue;
        }
        for v in &mul.inputs {
            d.views.remove(v);
            d.extended.remove(v);
        }
        d.absorb(i, first);
        if let Some(l) = &mut d.launches[first] {
            (l.output, l.fused.gated) = (mul.output, true);
        }
        d.made_by.insert(mul.output, first);
    }
}
