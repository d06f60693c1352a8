//! Attention of one query per sequence over a short cache, and the matmul of its result that adds a residual
//! → a run of launches that a target can make one.

use super::draft::{AttendedOutputs, Draft, Launch, Pattern, Run};
use crate::Op;

pub(super) fn run(d: &mut Draft<'_>, can: &AttendedOutputs) {
    let order: Vec<usize> = (0..d.launches.len()).filter(|i| d.launches[*i].is_some()).collect();
    for pair in order.windows(2) {
        let [Some(attention), Some(matmul)] = [0, 1].map(|i| d.launches[pair[i]].as_ref()) else { continue };
        if is_short(d, can, attention) && multiplies(d, attention, matmul) {
            let unread = vec![attention.output];
            d.runs.push(Run {
                pattern: Pattern::AttendedOutput,
                steps: pair[0]..pair[1] + 1,
                scratch: vec![],
                unread,
            });
        }
    }
}

/// Whether a launch is attention that takes its heads, of sizes that the target supports.
fn is_short(d: &Draft<'_>, can: &AttendedOutputs, attention: &Launch) -> bool {
    let Op::Attention { heads, .. } = d.op(attention.node) else { return false };
    let [q, keys] = [attention.output, attention.inputs[1]].map(|v| d.graph.shape(v).dims());
    let fits = (can.rows[0]..=can.rows[1]).contains(&q[0]) && keys[1] <= can.keys;
    !attention.fused.before.is_empty() && fits && [*heads, heads * keys[2] / q[2], q[2] / heads] == can.heads
}

/// Whether a launch multiplies the result of `attention`, which nothing else reads, and adds a residual.
fn multiplies(d: &Draft<'_>, attention: &Launch, matmul: &Launch) -> bool {
    matches!(d.op(matmul.node), Op::MatMul { epilogue, .. } if epilogue.residual)
        && matmul.fused == Default::default()
        && matmul.inputs[0] == attention.output
        && d.is_read_only_by(attention.output, &[matmul])
}
