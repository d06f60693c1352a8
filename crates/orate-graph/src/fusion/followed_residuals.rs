//! A matmul that adds a residual, then the Snake or the layer norm of its result → a run of launches that a
//! target can make one: the matmul stores both.

use super::draft::{Draft, FollowedResiduals, Run};
use crate::Op;

pub(super) fn run(d: &mut Draft<'_>, can: &FollowedResiduals) {
    let order: Vec<usize> = (0..d.launches.len()).filter(|i| d.launches[*i].is_some()).collect();
    for pair in order.windows(2) {
        let [Some(first), Some(second)] = [0, 1].map(|i| d.launches[pair[i]].as_ref()) else { continue };
        let adds = matches!(d.op(first.node), Op::MatMul { epilogue, .. } if epilogue.residual);
        let shape = d.graph.shape(first.output);
        let least = match d.op(second.node) {
            Op::Snake { .. } => Some(can.snake_rows),
            Op::LayerNorm(_) if shape.last() == can.norm_width && second.fused == Default::default() => {
                Some(can.norm_rows)
            }
            _ => None,
        };
        let follows = least.is_some_and(|rows| shape.rows() >= rows) && second.inputs[..] == [first.output];
        if adds && follows {
            d.runs.push(Run { steps: pair[0]..pair[1] + 1, scratch: vec![] });
        }
    }
}
