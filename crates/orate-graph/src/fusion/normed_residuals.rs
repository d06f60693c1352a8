//! A matmul that adds a residual, the RMS norm of its rows, and the matmul of the normed rows → a run of
//! launches that a target can make two.
//!
//! The first matmul knows the rows that the norm would read, and the second can norm its results, as a norm
//! divides each row by one number. Behind the normed rows is room for the sums of squares that one gives the
//! other.

use super::draft::{Draft, NormedResiduals, Pattern, Run};
use crate::Op;

pub(super) fn run(d: &mut Draft<'_>, can: &NormedResiduals) {
    let order: Vec<usize> = (0..d.launches.len()).filter(|i| d.launches[*i].is_some()).collect();
    for three in order.windows(3) {
        let Some(extended) = room(d, can, three) else { continue };
        let Some(norm) = &d.launches[three[1]] else { continue };
        let normed = norm.output;
        d.extended.insert(normed, extended);
        d.runs.push(Run {
            pattern: Pattern::NormedResidual,
            steps: three[0]..three[2] + 1,
            scratch: vec![normed],
            unread: vec![],
        });
    }
}

/// Number of elements of the normed rows and the sums of squares behind them; `None` if these launches are
/// not such a run.
fn room(d: &Draft<'_>, can: &NormedResiduals, three: &[usize]) -> Option<usize> {
    let [first, norm, second] = [0, 1, 2].map(|i| d.launches[three[i]].as_ref());
    let (first, norm, second) = (first?, norm?, second?);
    let adds = matches!(d.op(first.node), Op::MatMul { epilogue, .. } if epilogue.residual);
    let norms = matches!(d.op(norm.node), Op::RmsNorm { .. }) && norm.fused == Default::default();
    let multiplies = matches!(d.op(second.node), Op::MatMul { .. }) && second.fused.norm.is_none();
    if !(adds && norms && multiplies) {
        return None;
    }
    let (shape, readers) = (d.graph.shape(norm.output), d.readers.get(&norm.output)?);
    let is_second = |node: &usize| second.nodes.contains(node) || second.parts.contains(node);
    let reads_it_alone = second.inputs[0] == norm.output
        && !second.inputs[1..].contains(&norm.output)
        && readers.iter().all(is_second);
    let fits =
        (can.rows[0]..=can.rows[1]).contains(&shape.rows()) && shape.last().is_multiple_of(can.multiple);
    let is_between = norm.inputs[0] == first.output && reads_it_alone && d.is_free(norm.output);
    let bytes = d.stored_as(norm.output)?.row_bytes(1);
    (fits && is_between).then(|| shape.len() + shape.len() / can.channels * size_of::<f32>() / bytes)
}
