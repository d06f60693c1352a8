//! A matmul that adds a residual, then the Snake or the layer norm of its result → a run of launches that a
//! target can make one: the matmul stores both. With a convolution and its Snake before it, the run is a
//! residual unit of a codec.

use super::draft::{Draft, FollowedResiduals, Launch, Pattern, Run};
use crate::Op;

pub(super) fn run(d: &mut Draft<'_>, can: &FollowedResiduals) {
    let order: Vec<usize> = (0..d.launches.len()).filter(|i| d.launches[*i].is_some()).collect();
    for (i, pair) in order.windows(2).enumerate() {
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
        if !adds || !follows {
            continue;
        }
        let before = i.checked_sub(1).and_then(|i| Some((order[i], d.launches[order[i]].as_ref()?)));
        let conv = before.filter(|(_, conv)| begins_unit(d, can, conv, first));
        let (begin, made) = conv.map_or((pair[0], None), |(at, conv)| (at, Some(conv.output)));
        let unread = [Some(first.output).filter(|v| d.is_read_only_by(*v, &[second])), made];
        let unread = unread.into_iter().flatten().collect();
        d.runs.push(Run {
            pattern: Pattern::FollowedResidual,
            steps: begin..pair[1] + 1,
            scratch: vec![],
            unread,
        });
    }
}

/// Whether a launch is the convolution of a residual unit, whose matmul is `next`.
fn begins_unit(d: &Draft<'_>, can: &FollowedResiduals, conv: &Launch, next: &Launch) -> bool {
    let widths = [conv.inputs[0], conv.output, next.output].map(|v| d.graph.shape(v).last());
    matches!(d.op(conv.node), Op::Conv1d { .. })
        && conv.fused.snake.is_some()
        && next.inputs[0] == conv.output
        && can.unit_widths.contains(&widths[0])
        && widths.iter().all(|width| *width == widths[0])
        && d.is_read_only_by(conv.output, &[next])
}
