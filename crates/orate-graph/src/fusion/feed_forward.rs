//! What a transformer layer computes after its attention, and the projection of the next layer's → a run of
//! launches that a target can make one. So are the projection of a first layer, which follows no other, and a
//! convolution with the norm of its result.
//!
//! The launches stay as they are, so that each can be run and timed alone; memory keeps apart what the run
//! reads, what it makes, and what its parts exchange.

use super::draft::{Draft, FeedForward, Launch, Pattern, Run};
use crate::{Activation, Op, Value};

pub(super) fn run(d: &mut Draft<'_>, sizes: &FeedForward) {
    let order: Vec<usize> = (0..d.launches.len()).filter(|i| d.launches[*i].is_some()).collect();
    let mut at = 0;
    while at < order.len() {
        let rest = &order[at..];
        let is_pair = || is_projection(d, sizes, rest) || is_normed_convolution(d, sizes, rest);
        let found = length(d, sizes, rest).or_else(|| is_pair().then_some(2));
        if let Some(n) = found {
            // Pairs exchange nothing by way of memory.
            let norms = [1, 4].into_iter().filter(|i| n > 2 && *i < n).map(|i| order[at + i]);
            let scratch = norms.filter_map(|i| Some(d.launches[i].as_ref()?.output)).collect();
            d.runs.push(Run {
                pattern: Pattern::FeedForward,
                steps: order[at]..order[at + n - 1] + 1,
                scratch,
                unread: vec![],
            });
        }
        at += found.unwrap_or(1);
    }
}

fn is_norm(d: &Draft<'_>, launch: &Launch) -> bool {
    matches!(d.op(launch.node), Op::LayerNorm(_)) && launch.fused == Default::default()
}

/// Whether the first two of the launches are the norm and the projection of a layer.
fn is_projection(d: &Draft<'_>, sizes: &FeedForward, order: &[usize]) -> bool {
    let launch = |i: usize| d.launches[*order.get(i)?].as_ref();
    let Some((norm, next)) = launch(0).zip(launch(1)) else { return false };
    let shape = d.graph.shape(norm.output);
    let parts: usize = next.fused.parts.iter().map(|w| w.shape().last()).sum();
    is_norm(d, norm)
        && (shape.last() == sizes.width && (sizes.rows[0]..=sizes.rows[1]).contains(&shape.rows()))
        && is_matmul(d, next, false, false)
        && next.inputs == [norm.output]
        && (next.fused.norm.is_none() && !next.fused.gated && next.fused.row.is_none())
        && d.graph.shape(next.output).last() + parts == sizes.next
        && d.is_read_only_by(norm.output, &[next])
}

/// Whether the first two of the launches are a convolution and the layer norm of its result.
fn is_normed_convolution(d: &Draft<'_>, sizes: &FeedForward, order: &[usize]) -> bool {
    let launch = |i: usize| d.launches[*order.get(i)?].as_ref();
    let Some((conv, norm)) = launch(0).zip(launch(1)) else { return false };
    let Op::Conv1d { geometry: g, epilogue: e, .. } = d.op(conv.node) else { return false };
    let [shape, of_x] = [conv.output, conv.inputs[0]].map(|v| d.graph.shape(v));
    (g.taps, g.dilation) == (sizes.taps, 1)
        && !g.has_history()
        && (!e.residual && e.activation.is_none() && conv.fused == Default::default())
        && [shape, of_x].iter().all(|shape| shape.last() == sizes.width)
        && (sizes.rows[0]..=sizes.rows[1]).contains(&shape.rows())
        && matches!(d.op(norm.node), Op::LayerNorm(_))
        && norm.inputs[0] == conv.output
        && d.is_read_only_by(conv.output, &[norm])
}

/// How many of the launches are what follows attention: four, or six with the projection of the next layer.
fn length(d: &Draft<'_>, sizes: &FeedForward, order: &[usize]) -> Option<usize> {
    let launch = |i: usize| d.launches[*order.get(i)?].as_ref();
    let (out, up, down) = (launch(0)?, launch(2)?, launch(3)?);
    let shape = |v: Value| d.graph.shape(v);
    let is_plain = |l: &Launch| l.fused == Default::default();

    let first = launch(1)?;
    let is_feed_forward = is_matmul(d, out, true, false)
        && (is_norm(d, first) && first.inputs[0] == out.output)
        && is_matmul(d, up, false, true)
        && is_matmul(d, down, true, false)
        && [out, up, down].into_iter().all(is_plain)
        && (up.inputs[0], down.inputs[0]) == (first.output, up.output)
        && down.inputs.last() == Some(&out.output)
        && d.is_read_only_by(out.output, &[first, down])
        && d.is_read_only_by(first.output, &[up])
        && d.is_read_only_by(up.output, &[down]);
    if !is_feed_forward {
        return None;
    }
    let widths = [out.inputs[0], out.output, up.output, down.output].map(|v| shape(v).last());
    if widths != [sizes.attended, sizes.width, sizes.hidden, sizes.width]
        || !(sizes.rows[0]..=sizes.rows[1]).contains(&shape(out.output).rows())
    {
        return None;
    }

    let goes_on = launch(4).is_some_and(|second| second.inputs[0] == down.output)
        && is_projection(d, sizes, &order[4..]);
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
