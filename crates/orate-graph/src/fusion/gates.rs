//! Two matmuls that run as one, then `Mul` of both → the matmul, which multiplies what it stores.

use super::draft::Draft;
use crate::Op;

/// `most` rows at most.
pub(super) fn run(d: &mut Draft<'_>, most: usize) {
    for i in 0..d.launches.len() {
        let Some(mul) = d.launches[i].clone().filter(|_| *d.op(i) == Op::Mul) else { continue };
        let few = d.graph.shape(mul.output).rows() <= most;
        let [Some(&one), Some(&other)] = [0, 1].map(|k| d.made_by.get(&mul.inputs[k])) else { continue };
        let (first, part) = (one.min(other), one.max(other));
        let is_pair = d.launches[first].as_ref().is_some_and(|l| l.parts == [part] && !l.fused.gated);
        let [a, b] = [0, 1].map(|k| d.graph.shape(mul.inputs[k]).len());
        let alone = mul.inputs.iter().all(|v| d.is_read_once(*v));
        if !few || !is_pair || a != b || !alone || !d.is_free(mul.output) {
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
