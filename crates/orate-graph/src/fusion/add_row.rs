//! `matmul + row`, the row that a scalar names → matmul that adds it; the same for layer norms.

use super::draft::Draft;
use super::norm_activations::fits;
use crate::Op;

/// Layer norms are of rows of at most `widest_norm` channels.
pub(super) fn run(d: &mut Draft<'_>, to_matmuls: bool, widest_norm: usize) {
    for i in 0..d.launches.len() {
        let Some(add) = d.launches[i].clone().filter(|_| *d.op(i) == Op::AddRow) else { continue };
        let (Some(matmul), Some(select)) = (d.private(add.inputs[0]), d.private(add.inputs[1])) else {
            continue;
        };
        let Op::SelectRow { index } = d.op(select) else { continue };
        let adds = match d.op(matmul) {
            Op::MatMul { .. } | Op::Conv1d { .. } => to_matmuls,
            Op::LayerNorm(_) => fits(d.graph.shape(add.output).last(), widest_norm),
            _ => false,
        };
        // The launch stands where the matmul stood, so the table has to be there by then.
        let table = d.node(select).inputs[0];
        let is_there = d.graph.info(table).buffer.is_some() && !d.is_rewritten(table);
        if !adds || !is_there || !d.is_temporary(add.output) {
            continue;
        }
        d.absorb(select, matmul);
        d.absorb(i, matmul);
        if let Some(l) = &mut d.launches[matmul] {
            (l.output, l.fused.row) = (add.output, Some((table, *index)));
        }
        d.made_by.insert(add.output, matmul);
    }
}
