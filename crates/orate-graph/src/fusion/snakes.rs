//! Convolution, then Snake → the convolution, which applies it to what it stores.

use super::draft::Draft;
use crate::Op;

/// Kernels store four channels at a time.
const TOGETHER: usize = 4;

pub(super) fn run(d: &mut Draft<'_>) {
    for i in 0..d.launches.len() {
        let Some(snake) = d.launches[i].clone() else { continue };
        let Op::Snake { frequency, gain } = d.op(i) else { continue };
        let Some(conv) = d.private(snake.inputs[0]) else { continue };
        let Op::Conv1d { epilogue, .. } = d.op(conv) else { continue };
        let is_plain = epilogue.activation.is_none()
            && !epilogue.residual
            && d.graph.shape(snake.output).last().is_multiple_of(TOGETHER);
        let adds = d.launches[conv].as_ref().is_some_and(|l| l.fused.row.is_some());
        if !is_plain || adds || !d.is_temporary(snake.output) {
            continue;
        }
        d.absorb(i, conv);
        if let Some(l) = &mut d.launches[conv] {
            (l.output, l.fused.snake) = (snake.output, Some([frequency.clone(), gain.clone()]));
        }
        d.made_by.insert(snake.output, conv);
    }
}
