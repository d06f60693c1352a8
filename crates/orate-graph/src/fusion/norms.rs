//! Norm of few rows, then matmuls of it → the matmuls, which norm the rows.

use super::draft::{Draft, Fusions, Launch, RowNorm};
use super::matmuls::{takes_layer_norm, takes_norm};
use crate::Op;

pub(super) fn run(d: &mut Draft<'_>, multiple: [usize; 2], fusions: &Fusions) {
    for i in 0..d.launches.len() {
        let Some(norm) = d.launches[i].clone() else { continue };
        let shape = d.graph.shape(norm.output);
        let (fused, is_small) = match d.op(i) {
            Op::RmsNorm { weight, eps } => {
                let fused = RowNorm { weight: weight.clone(), bias: None, eps: *eps };
                (fused, shape.rows() <= fusions.norm_rows)
            }
            Op::LayerNorm(n) => {
                let fused = RowNorm { weight: n.weight.clone(), bias: Some(n.bias.clone()), eps: n.eps };
                (fused, shape.rows() == 1 && shape.last() <= fusions.layer_norm)
            }
            _ => continue,
        };
        if !is_small || !d.is_free(norm.output) || d.is_rewritten(norm.inputs[0]) {
            continue;
        }
        let takes = if fused.bias.is_some() { takes_layer_norm } else { takes_norm };
        let reads = |l: &Launch| l.inputs.contains(&norm.output);
        let matmuls: Vec<usize> =
            (0..d.launches.len()).filter(|j| d.launches[*j].as_ref().is_some_and(reads)).collect();
        let all_are_able = matmuls.iter().all(|j| {
            let is_plain =
                d.launches[*j].as_ref().is_some_and(|l| l.fused.row.is_none() && l.fused.norm.is_none());
            is_plain && takes(d.op(*j), multiple)
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
                (l.inputs[0], l.fused.norm) = (norm.inputs[0], Some(fused.clone()));
                l.nodes.insert(0, i);
            }
        }
        d.launches[i] = None;
    }
}
