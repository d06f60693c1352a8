//! RMS norm of few rows, then matmuls of them → the matmuls, which norm the rows.

use super::draft::{Draft, Launch};
use super::matmuls::takes_norm;
use crate::Op;

pub(super) fn run(d: &mut Draft<'_>, multiple: [usize; 2], most_rows: usize) {
    for i in 0..d.launches.len() {
        let Some(norm) = d.launches[i].clone() else { continue };
        let Op::RmsNorm { weight, eps } = d.op(i) else { continue };
        let are_few = d.graph.shape(norm.output).rows() <= most_rows;
        if !are_few || !d.is_free(norm.output) || d.is_rewritten(norm.inputs[0]) {
            continue;
        }
        let reads = |l: &Launch| l.inputs.contains(&norm.output);
        let matmuls: Vec<usize> =
            (0..d.launches.len()).filter(|j| d.launches[*j].as_ref().is_some_and(reads)).collect();
        let all_are_able = matmuls.iter().all(|j| {
            let is_plain =
                d.launches[*j].as_ref().is_some_and(|l| l.fused.row.is_none() && l.fused.norm.is_none());
            is_plain && takes_norm(d.op(*j), multiple)
        });
        let readers = d.readers.get(&norm.output).cloned().unwrap_or_default();
        let is_covered = |reader: &usize| {
            let by =
                |j: &usize| d.launches[*j].as_ref().is_some_and(|l| j == reader || l.parts.contains(reader));
            matmuls.iter().any(by)
        };
        if matmuls.is_empty() || !all_are_able || !readers.iter().all(is_covered) {
            continue;
        }
        // Normalizing costs a matmul next to nothing, so each of several does it.
        for j in matmuls {
            if let Some(l) = &mut d.launches[j] {
                (l.inputs[0], l.fused.norm) = (norm.inputs[0], Some((weight.clone(), *eps)));
                l.nodes.insert(0, i);
            }
        }
        d.launches[i] = None;
    }
}
