//! What a transformer layer computes after its attention, and the projection of the next layer's → a run of
//! launches that a target can make one.
//!
//! The launches stay as they are, so that each can be run and timed alone; memory keeps apart what the run
//! reads, what it makes, and what its parts exchange.

use super::draft::{Draft, FeedForward, Launch, Run};
use crate::{Activation, Op, Value};

pub(super) fn run(d: &mut Draft<'_>, sizes: &FeedForward) {
    let order: Vec<usize> = (0..d.launches.len()).filter(|i| d.launches[*i].is_some()).collect();
    let mut at = 0;
    while at < order.len() {
        let found = length(d, sizes, &order[at..]);
        if let Some(n) = found {
            let norms = [1, 4].into_iter().filter(|i| *i < n).map(|i| order[at + i]);
            let scratch = norms.filter_map(|i| Some(d.launches[i].as_ref()?.output)).collect();
            d.runs.push(Run { steps: order[at]..order[at + n - 1] + 1, scratch });
        }
        at += found.unwrap_or(1);
    }
}

/// How many of the launches are what follows attention: four, or six with the projection of the next layer.
fn length(d: &Draft<'_>, sizes: &FeedForward, order: &[usize]) -> Option<usize> {
    let launch = |i: usize| d.launches[*order.get(i)?].as_ref();
    let (out, up, down) = (launch(0)?, launch(2)?, launch(3)?);
    let shape = |v: Value| d.graph.shape(v);
    // Results that only these launches read.
    let are_readers = |v: Value, all: &[&Launch]| {
        let readers = d.readers.get(&v).map_or(&[][..], |r| r);
        let is_one = |node: &usize| all.iter().any(|l| l.nodes.contains(node) || l.parts.contains(node));
        d.is_free(v) && readers.iter().all(is_one)
    };
    let is_norm = |l: &Launch, x: Value| {
        matches!(d.op(l.node), Op::LayerNorm(_)) && l.fused == Default::default() && l.inputs[0] == x
    };
    let is_plain = |l: &Launch| l.fused == Default::default();

    let first = launch(1)?;
    let is_feed_forward = is_matmul(d, out, true, false)
        && is_norm(first, out.output)
        && is_matmul(d, up, false, true)
        && is_matmul(d, down, true, false)
        && [out, up, down].into_iter().all(is_plain)
        && (up.inputs[0], down.inputs[0]) == (first.output, up.output)
        && down.inputs.last() == Some(&out.output)
        && are_readers(out.output, &[first, down])
        && are_readers(first.output, &[up])
        && are_readers(up.output, &[down]);
    if !is_feed_forward {
        return None;
    }
    let widths = [out.inputs[0], out.output, up.output, down.output].map(|v| shape(v).last());
    if widths != [sizes.attended, sizes.width, sizes.hidden, sizes.width]
        || !(sizes.rows[0]..=sizes.rows[1]).contains(&shape(out.output).rows())
    {
        return None;
    }

    let goes_on = launch(4).zip(launch(5)).is_some_and(|(second, next)| {
        let parts: usize = next.fused.parts.iter().map(|w| w.shape().last()).sum();
        is_norm(second, down.output)
            && is_matmul(d, next, false, false)
            && next.inputs == [second.output]
            && (next.fused.norm.is_none() && !next.fused.gated && next.fused.row.is_none())
            && shape(next.output).last() + parts == sizes.next
            && are_readers(second.output, &[next])
    });
    Some(if goes_on { 6 } else { 4 })
}

/// Whether a launch is a matmul with a residual or without, and with GELU or nothing.
fn is_matmul(d: &Draft<'_>, launch: &Launch, residual: bool, gelu: bool) -> bool {
    match d.op(launch.node) {
        Op::MatMul { epilogue: e, .. } => {
            let wanted = if gelu { Some(&Activation::Gelu) } else { None };
            e.residual == residual && e.activation.as_ref() == wanted
        }
        _ => false,
    }
}
