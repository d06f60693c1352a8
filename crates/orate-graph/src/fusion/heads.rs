//! Heads of queries and keys that are normed, rotated and put in their place, and values that are put there
//! with them.
//!
//! | steps | become |
//! | --- | --- |
//! | `RmsNorm` of each head, then `Rotary` | a launch of heads |
//! | `Rotary` of one row of each sequence | a launch of heads |
//! | heads, then `WriteRows` of them | heads that are written to the state |
//! | heads, and `WriteRows` of other values, with nothing between that needs them | one launch |
//! | two `WriteRows` of one row of each sequence, the same | one launch |
//!
//! Without norms, only what decodes row by row gains: with many rows attention rotates its queries itself.

use super::draft::{Draft, Head, Launch};
use crate::{DType, Op, Rows, Value};

/// Most values whose heads one launch takes.
pub const MOST_HEADS: usize = 3;

/// Widest heads, and what their width is a multiple of.
pub(super) const WIDTH: (usize, usize) = (128, 8);

pub(super) fn run(d: &mut Draft<'_>) {
    for i in 0..d.launches.len() {
        match d.op(i) {
            Op::Rotary { heads } => rotate(d, i, *heads),
            Op::WriteRows { .. } => rotate_and_write(d, i),
            _ => {}
        }
    }
    gather(d);
}

/// What `v` is another shape of, and the nodes between, if nothing else reads any of these.
fn unshaped(d: &Draft<'_>, mut v: Value) -> Option<(Value, Vec<usize>)> {
    let mut between = vec![];
    loop {
        if !d.is_read_once(v) || !d.is_temporary(v) {
            return None;
        }
        match d.made_by.get(&v) {
            Some(node) if *d.op(*node) == Op::Reshape => {
                between.push(*node);
                v = d.node(*node).inputs[0];
            }
            _ => return Some((v, between)),
        }
    }
}

/// Whether heads of a width can be written to the state that `v` is: each is whole blocks of it.
pub(super) fn fits_state(d: &Draft<'_>, v: Value, width: usize) -> bool {
    let dtype = d.graph.info(v).dtype;
    dtype != DType::Q8_0 || width.is_multiple_of(dtype.width_step())
}

/// Batch and time.
fn rows(d: &Draft<'_>, v: Value) -> [usize; 2] {
    let dims = d.graph.shape(v).dims();
    [dims[0], dims[1]]
}

/// The norm of heads before they are rotated, if nothing else reads them, and all nodes from it on.
fn norm_of(d: &Draft<'_>, v: Value, width: usize) -> Option<(usize, Vec<usize>)> {
    let (v, between) = unshaped(d, v)?;
    let norm = d.made_by.get(&v).copied().filter(|n| d.launches[*n].is_some())?;
    matches!(d.op(norm), Op::RmsNorm { weight, .. } if weight.shape().len() == width)
        .then_some((norm, between))
}

fn rotate(d: &mut Draft<'_>, i: usize, count: usize) {
    let Some(l) = &d.launches[i] else { return };
    let (v, table, out) = (l.inputs[0], l.inputs[1], l.output);
    let (rows, width) = (rows(d, out), d.graph.shape(out).last() / count);
    let norm = norm_of(d, v, width);
    let x = norm.as_ref().map_or(v, |(norm, _)| d.node(*norm).inputs[0]);
    let fits = width <= WIDTH.0 && width.is_multiple_of(WIDTH.1) && (norm.is_some() || rows[1] == 1);
    if !fits || !d.is_temporary(d.whole(x).0) || !d.is_temporary(table) {
        return;
    }
    let weight = norm.as_ref().and_then(|(norm, _)| match d.op(*norm) {
        Op::RmsNorm { weight, eps } => Some((weight.clone(), *eps)),
        _ => None,
    });
    let head = Head { x, rows, count, width, norm: weight, table: Some(table), out, write: None, part: None };
    let mut between = vec![];
    if let Some((norm, nodes)) = norm {
        d.absorb(norm, i);
        between = nodes;
    }
    if let Some(l) = &mut d.launches[i] {
        l.nodes.splice(0..0, between);
        l.nodes.sort_unstable();
        (l.inputs, l.fused.heads) = (vec![x, table], vec![head]);
    }
}

fn rotate_and_write(d: &mut Draft<'_>, i: usize) {
    let (Some(l), Op::WriteRows { first }) = (d.launches[i].clone(), d.op(i)) else { return };
    let Some((v, between)) = unshaped(d, l.inputs[1]) else { return };
    let Some(rotary) = d.made_by.get(&v).copied() else { return };
    let Some(before) = d.launches[rotary].clone().filter(|l| l.fused.heads.len() == 1) else { return };
    let head = before.fused.heads[0].clone();
    if !fits_state(d, l.output, head.width) {
        return;
    }
    let head =
        Head { rows: rows(d, l.inputs[1]), out: l.output, write: Some(Rows::of(*first, &l.inputs)), ..head };
    d.absorb(rotary, i);
    if let Some(own) = &mut d.launches[i] {
        own.nodes.extend(between);
        own.nodes.sort_unstable();
        own.inputs = [before.inputs, l.inputs[2..].to_vec()].concat();
        own.fused.heads = vec![head];
    }
}

/// Rows that are written as they are, as heads of a width.
fn written(d: &Draft<'_>, i: usize, l: &Launch, width: usize) -> Option<Head> {
    let Op::WriteRows { first } = d.op(i) else { return None };
    let x = l.inputs[1];
    let row = d.graph.shape(x).last();
    let fits = fits_state(d, l.output, width) && row.is_multiple_of(width);
    (fits && d.is_temporary(d.whole(x).0)).then(|| Head {
        x,
        rows: rows(d, x),
        count: row / width,
        width,
        norm: None,
        table: None,
        out: l.output,
        write: Some(Rows::of(*first, &l.inputs)),
        part: None,
    })
}

/// The same of one row of each sequence, as the widest heads there can be.
fn written_alone(d: &Draft<'_>, i: usize, l: &Launch) -> Option<Head> {
    let widths = std::iter::successors(Some(WIDTH.0), |width| Some(width / 2));
    let mut heads = widths.take_while(|width| *width >= WIDTH.1).filter_map(|width| written(d, i, l, width));
    heads.next().filter(|head| head.rows[1] == 1)
}

/// Whether `l` reads what heads make.
pub(super) fn needs(d: &Draft<'_>, l: &Launch, heads: &[Head]) -> bool {
    let made = |v: Value| {
        heads.iter().any(|h| {
            // Temporaries get other places; states are written in place.
            let buffer = d.buffers[v.index()];
            d.whole(v).0 == d.whole(h.out).0 || (buffer.is_some() && buffer == d.buffers[h.out.index()])
        })
    };
    l.inputs.iter().copied().chain(l.fused.rotary).any(made)
}

/// Whether one launch takes the heads of both.
fn are_alike(d: &Draft<'_>, before: &[Head], heads: &[Head]) -> bool {
    // A launch that writes to two states writes to them alike.
    let mut types =
        before.iter().chain(heads).filter(|h| h.write.is_some()).map(|h| d.graph.info(h.out).dtype);
    let first = types.next();
    types.all(|dtype| Some(dtype) == first)
        && before.len() + heads.len() <= MOST_HEADS
        && before[0].width == heads[0].width
        && before[0].rows == heads[0].rows
}

/// What a launch of heads reads besides states.
fn inputs(l: &Launch) -> &[Value] {
    if l.fused.heads.is_empty() { &l.inputs[1..] } else { &l.inputs }
}

/// Puts neighbors together, at the place of the last.
fn gather(d: &mut Draft<'_>) {
    // A launch, and its heads; rows that are only written stay what they are until others join them.
    let mut group: Option<(usize, Vec<Head>)> = None;
    for i in 0..d.launches.len() {
        let Some(l) = d.launches[i].clone() else { continue };
        let is_plain = l.fused.heads.is_empty();
        let heads: Vec<Head> = match &group {
            _ if !is_plain => l.fused.heads.clone(),
            Some((_, before)) => written(d, i, &l, before[0].width).into_iter().collect(),
            None => written_alone(d, i, &l).into_iter().collect(),
        };
        if heads.is_empty() {
            let ends = group.as_ref().is_some_and(|(_, before)| needs(d, &l, before));
            if ends || d.op(i).in_place() {
                group = None;
            }
            continue;
        }
        let joins = |before: &[Head]| are_alike(d, before, &heads) && !needs(d, &l, before);
        group = match group.filter(|(_, before)| joins(before)) {
            Some((g, before)) => {
                let earlier = d.launches[g].as_ref().map_or(vec![], |g| inputs(g).to_vec());
                d.absorb(g, i);
                let all = [before, heads].concat();
                if let Some(own) = &mut d.launches[i] {
                    own.inputs = [&earlier, inputs(&l)].concat();
                    own.fused.heads = all.clone();
                }
                Some((i, all))
            }
            None if is_plain => written_alone(d, i, &l).map(|head| (i, vec![head])),
            None => Some((i, heads)),
        };
    }
}
