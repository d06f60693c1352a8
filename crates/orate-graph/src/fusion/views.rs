//! Slices and concatenations of whole blocks → places inside another value.

use super::draft::Draft;
use crate::Op;
use std::collections::HashSet;

/// Kernels read 16 bytes at a time, so views begin at multiples of four elements.
const WHOLE: usize = 4;

/// Products of the extents before and after `axis`.
fn around(dims: &[usize], axis: usize) -> (usize, usize) {
    (dims[..axis].iter().product(), dims[axis + 1..].iter().product())
}

pub(super) fn run(d: &mut Draft<'_>) {
    for i in 0..d.launches.len() {
        match *d.op(i) {
            Op::Slice { axis, start, .. } => slice(d, i, axis, start),
            Op::Concat { axis } => concat(d, i, axis),
            _ => {}
        }
    }
}

fn slice(d: &mut Draft<'_>, i: usize, axis: usize, start: usize) {
    let Some(l) = &d.launches[i] else { return };
    let (x, output) = (l.inputs[0], l.output);
    let (outer, inner) = around(d.graph.shape(x).dims(), axis);
    // What is copied at the end must be what it was during the run.
    let is_copied = d.readers.get(&output).is_some_and(|r| r.contains(&d.launches.len()));
    let is_block = outer == 1 && (start * inner).is_multiple_of(WHOLE);
    if is_block && d.is_temporary(output) && !is_copied && !d.is_rewritten(x) {
        d.views.insert(output, (x, start * inner));
        d.launches[i] = None;
    }
}

fn concat(d: &mut Draft<'_>, i: usize, axis: usize) {
    let Some(l) = &d.launches[i] else { return };
    let (inputs, output) = (l.inputs.clone(), l.output);
    let (outer, inner) = around(d.graph.shape(output).dims(), axis);
    let distinct: HashSet<_> = inputs.iter().collect();
    if outer != 1 || distinct.len() != inputs.len() {
        return;
    }
    let mut places = vec![];
    let mut offset = 0;
    for v in &inputs {
        // Made by a launch of its own, and not yet a part of something else.
        let is_own = d.made_by.get(v).is_some_and(|node| d.launches[*node].is_some());
        if !is_own || !d.is_free(*v) || offset % WHOLE != 0 {
            return;
        }
        places.push((*v, offset));
        offset += d.graph.shape(*v).dims()[axis] * inner;
    }
    places.into_iter().for_each(|(v, offset)| {
        d.views.insert(v, (output, offset));
    });
    d.launches[i] = None;
}
