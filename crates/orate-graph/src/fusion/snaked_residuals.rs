//! A matmul that adds a residual, then the Snake of its result → a run of launches that a target can make
//! one: the matmul stores both.

use super::draft::{Draft, Run};
use crate::Op;

/// Marks those of at least `rows` rows.
pub(super) fn run(d: &mut Draft<'_>, rows: usize) {
    let order: Vec<usize> = (0..d.launches.len()).filter(|i| d.launches[*i].is_some()).collect();
    for pair in order.windows(2) {
        let [Some(first), Some(second)] = [0, 1].map(|i| d.launches[pair[i]].as_ref()) else { continue };
        let adds = matches!(d.op(first.node), Op::MatMul { epilogue, .. } if epilogue.residual);
        let follows = matches!(d.op(second.node), Op::Snake { .. }) && second.inputs[..] == [first.output];
        if adds && follows && d.graph.shape(first.output).rows() >= rows {
            d.runs.push(Run { steps: pair[0]..pair[1] + 1, scratch: vec![] });
        }
    }
}
