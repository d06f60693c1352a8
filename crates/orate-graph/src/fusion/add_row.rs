//! `matmul + row`, the row that a scalar names → matmul that adds it.

use super::draft::Draft;
use crate::Op;

pub(super) fn run(d: &mut Draft<'_>) {
    for i in 0..d.launches.len() {
        let Some(add) = d.launches[i].clone().filter(|_| *d.op(i) == Op::AddRow) else { continue };
        let (Some(matmul), Some(select)) = (d.private(add.inputs[0]), d.private(add.inputs[1])) else {
            continue;
        };
        let (Op::MatMul { .. } | Op::Conv1d { .. }, Op::SelectRow { index }) = (d.op(matmul), d.op(select))
        else {
            continue;
        };
        // The launch stands where the matmul stood, so the table has to be there by then.
        let table = d.node(select).inputs[0];
        let is_there = d.graph.info(table).buffer.is_some() && !d.is_rewritten(table);
        if !is_there || !d.is_temporary(add.output) {
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
