//! Matmuls of few rows by one operand → one matmul, whose parts they are.
//!
//! Queries, keys and values, or gate and up, read the same rows. One matmul by all their weights takes as
//! long as reading these; each on its own would also wait for the one before. Their weights must stand one
//! after the other, which is decided here (`Plan::weight_groups`) and done where weights are packed.

use super::draft::{Draft, Fusions};
use crate::{Epilogue, Op, Weight};

/// Most parts of a matmul of several rows, besides the first. One of a single row has any number.
pub const MOST_PARTS: usize = 2;

/// The weight of a matmul that can be a part, and whether it has an activation.
pub(super) fn part(op: &Op) -> Option<(&Weight, bool)> {
    match op {
        Op::MatMul { weight, epilogue: Epilogue { bias: None, activation, residual: false } } => {
            Some((weight, activation.is_some()))
        }
        _ => None,
    }
}

/// Bytes of a weight in f32.
fn bytes(w: &Weight) -> usize {
    4 * w.shape().len()
}

/// Whether depth and columns of a weight are multiples of these.
pub(super) fn is_multiple(w: &Weight, [depth, columns]: [usize; 2]) -> bool {
    let &[k, n] = w.shape().dims() else { return false };
    k > 0 && n > 0 && k.is_multiple_of(depth) && n.is_multiple_of(columns)
}

/// The matmuls that can run with that of node `i`, itself the first.
fn group(d: &Draft<'_>, i: usize, grouped: &[bool], fusions: &Fusions) -> Vec<usize> {
    let able = |j: usize| {
        let l = d.launches[j].as_ref().filter(|_| !grouped[j])?;
        let (weight, active) = part(d.op(j)).filter(|_| l.fused.row.is_none() && d.is_free(l.output))?;
        is_multiple(weight, fusions.matmul_multiple).then_some((l.inputs[0], weight, active))
    };
    let Some((x, first, _)) = able(i) else { return vec![] };
    let (mut keys, mut total) = (vec![first.key()], bytes(first));
    let mut all = vec![i];
    for j in i + 1..d.launches.len() {
        // Only the first may have an activation.
        let Some((y, weight, false)) = able(j) else { continue };
        let key = weight.key();
        let fits = total + bytes(weight) <= fusions.matmul_bytes;
        if y == x
            && fits
            && fusions.precision.of(weight) == fusions.precision.of(first)
            && !keys.contains(&key)
        {
            total += bytes(weight);
            keys.push(key);
            all.push(j);
        }
    }
    all
}

pub(super) fn run(d: &mut Draft<'_>, fusions: &Fusions) {
    let mut grouped = vec![false; d.launches.len()];
    for i in 0..d.launches.len() {
        let all = group(d, i, &grouped, fusions);
        if all.len() < 2 {
            continue;
        }
        all.iter().for_each(|j| grouped[*j] = true);
        // Also with more rows than run as one: another plan of the same weights has fewer.
        let weights = all.iter().filter_map(|j| Some(part(d.op(*j))?.0.clone()));
        d.groups.push(weights.collect());
        let rows = d.graph.shape(d.node(i).output).rows();
        let most = match rows {
            1 => all.len(),
            _ => 1 + MOST_PARTS,
        };
        let weights = || all.iter().filter_map(|j| Some(part(d.op(*j))?.0));
        let are_many = fusions.many_rows.is_some_and(|many| {
            let is_able =
                |w| is_multiple(w, many.multiple) && many.formats.contains(&fusions.precision.of(w));
            rows >= many.least && weights().all(is_able)
        });
        if rows <= fusions.matmul_rows || are_many {
            all.chunks(most).for_each(|parts| join(d, parts));
        }
    }
}

/// Makes one launch of matmuls.
fn join(d: &mut Draft<'_>, all: &[usize]) {
    let [first, parts @ ..] = all else { return };
    if parts.is_empty() {
        return;
    }
    let output = d.node(*first).output;
    let mut elements = d.graph.shape(output).len();
    for part in parts {
        let own = d.node(*part).output;
        d.views.insert(own, (output, elements));
        elements += d.graph.shape(own).len();
        d.absorb(*part, *first);
    }
    d.extended.insert(output, elements);
    let weights = parts.iter().filter_map(|p| Some(part(d.op(*p))?.0.clone())).collect();
    if let Some(l) = &mut d.launches[*first] {
        (l.parts, l.fused.parts) = (parts.to_vec(), weights);
    }
}
