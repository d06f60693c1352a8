//! Layer norm, then an activation → the norm, which activates what it stores.

use super::draft::Draft;
use crate::Op;

/// Whether a kernel for layer norms with rows of at most `widest` channels has some of `width`.
pub(super) fn fits(width: usize, widest: usize) -> bool {
    width <= widest && width.is_multiple_of(4)
}

pub(super) fn run(d: &mut Draft<'_>, widest: usize) {
    for i in 0..d.launches.len() {
        let Some(active) = d.launches[i].clone() else { continue };
        let Op::Activate(activation) = d.op(i) else { continue };
        let Some(norm) = d.private(active.inputs[0]) else { continue };
        let fits = activation.slope().is_none() && fits(d.graph.shape(active.output).last(), widest);
        if !fits || !matches!(d.op(norm), Op::LayerNorm(_)) || !d.is_temporary(active.output) {
            continue;
        }
        d.absorb(i, norm);
        if let Some(l) = &mut d.launches[norm] {
            (l.output, l.fused.activation) = (active.output, Some(activation.clone()));
        }
        d.made_by.insert(active.output, norm);
    }
}
