//! Heads, then attention of one query per sequence → attention, which norms, rotates and writes them.
//!
//! Attention reads parts of rows where they are, so slices of channels before it are not copied.

use super::draft::{Draft, Fused, Fusions, Head};
use super::heads::{WIDTH, fits_state, needs};
use crate::{AttentionMask, First, Op, Rows, Value};

pub(super) fn run(d: &mut Draft<'_>, fusions: &Fusions) {
    for i in 0..d.launches.len() {
        let Some((writer, mut before)) = find(d, i, fusions) else { continue };
        for head in &mut before {
            take_slice(d, head, i);
        }
        d.absorb(writer, i);
        if let Some(l) = &mut d.launches[i] {
            (l.inputs[0], l.fused.before) = (before[0].x, before.to_vec());
        }
    }
}

/// Queries, keys and values of the attention of node `i`, and the launch that writes the latter two, if
/// attention can do all that this launch does.
fn find(d: &Draft<'_>, i: usize, fusions: &Fusions) -> Option<(usize, [Head; 3])> {
    let l = d.launches[i].as_ref().filter(|l| l.fused == Fused::default())?;
    let Op::Attention { heads, mask: AttentionMask::Cached(first), relative: None, bias: false, .. } =
        d.op(i)
    else {
        return None;
    };
    let (out, keys) = (d.graph.shape(l.output).dims(), d.graph.shape(l.inputs[1]).dims());
    let (width, group) = (out[2] / heads, out[2] / keys[2]);
    let fits = width <= WIDTH.0.min(fusions.attended_width)
        && width.is_multiple_of(WIDTH.1)
        && fusions.attended_heads.contains(&group);
    if !fits || out[1] != 1 || out[0] != keys[0] {
        return None;
    }
    let made_by = |j: &usize| {
        d.launches[*j].as_ref().is_some_and(|w| w.fused.heads.iter().any(|h| h.out == l.inputs[1]))
    };
    let writer = (0..i).rev().find(made_by)?;
    let all = &d.launches[writer].as_ref()?.fused.heads;
    let later =
        d.launches[writer + 1..i].iter().zip(writer + 1..).filter_map(|(l, j)| Some((l.as_ref()?, j)));
    if later.into_iter().any(|(l, j)| needs(d, l, all) || d.op(j).in_place()) {
        return None;
    }
    let rows = [out[0], 1];
    let position = match first {
        First::Operand => Rows::At(*l.inputs.get(3)?),
        First::Const(at) => Rows::From(*at),
    };
    let written = |state: Value| {
        let head = all.iter().find(|h| h.out == state && h.write == Some(position) && h.rows == rows)?;
        of_width(head, width).filter(|_| fits_state(d, state, width))
    };
    let [k, v] = [written(l.inputs[1])?, written(l.inputs[2])?];
    let q = l.inputs[0];
    let private = d.is_read_once(q) && d.is_temporary(d.whole(q).0);
    let made = all.iter().find(|h| h.out == q && h.write.is_none() && h.rows == rows && h.width == width);
    if !private || all.len() != 2 + usize::from(made.is_some()) {
        return None;
    }
    let plain = || Head {
        x: q,
        rows,
        count: *heads,
        width,
        norm: None,
        table: None,
        out: q,
        write: None,
        part: None,
    };
    Some((writer, [made.cloned().unwrap_or_else(plain), k, v]))
}

/// The same heads with a width, if they may be split anywhere.
fn of_width(head: &Head, width: usize) -> Option<Head> {
    let row = head.count * head.width;
    let is_plain = head.norm.is_none() && head.table.is_none() && row.is_multiple_of(width);
    (head.width == width || is_plain).then(|| Head { count: row / width, width, ..head.clone() })
}

/// If heads are a slice of channels that nothing else reads, node `i` reads them in the whole rows.
fn take_slice(d: &mut Draft<'_>, head: &mut Head, i: usize) {
    let Some(slice) = d.private(head.x) else { return };
    let (Op::Slice { axis, start, .. }, Some(l)) = (d.op(slice), &d.launches[slice]) else { return };
    let x = l.inputs[0];
    let dims = d.graph.shape(x).dims();
    let is_aligned = start.is_multiple_of(4) && dims[dims.len() - 1].is_multiple_of(4);
    if *axis + 1 == dims.len() && is_aligned && d.is_temporary(d.whole(x).0) {
        (head.x, head.part) = (x, Some([*start, dims[dims.len() - 1]]));
        d.absorb(slice, i);
    }
}
