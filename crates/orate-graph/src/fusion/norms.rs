//! Norm of rows, then matmuls of them → the matmuls, which norm the rows.

use super::draft::{Draft, Fusions, Launch, RowNorm};
use super::matmuls::{is_multiple, part};
use crate::{Op, Weight};

pub(super) fn run(d: &mut Draft<'_>, multiple: [usize; 2], fusions: &Fusions) {
    for i in 0..d.launches.len() {
        let Some(launch) = d.launches[i].clone() else { continue };
        let (norm, most) = match d.op(i) {
            Op::RmsNorm { weight, eps } => {
                (RowNorm { weight: weight.clone(), bias: None, columns: None, eps: *eps }, fusions.norm_rows)
            }
            Op::LayerNorm(n) => (
                RowNorm { weight: n.weight.clone(), bias: Some(n.bias.clone()), columns: None, eps: n.eps },
                fusions.layer_norm_rows,
            ),
            _ => continue,
        };
        let does_more = launch.fused.activation.is_some() || launch.fused.row.is_some();
        let rows = d.graph.shape(launch.output).rows();
        let is_late = norm.bias.is_some() && (most + 1..=fusions.late_layer_norm_rows).contains(&rows);
        let are_few = rows <= most || is_late;
        let are_some = match norm.bias {
            None => fusions.many_norm_rows.is_some_and(|[least, most]| (least..=most).contains(&rows)),
            Some(_) => fusions.many_layer_norms.is_some_and(|norms| {
                let width = d.graph.shape(launch.output).last();
                (norms.rows[0]..=norms.rows[1]).contains(&rows)
                    && width.is_multiple_of(norms.multiple)
                    && width <= norms.widest
            }),
        };
        if does_more
            || !(are_few || are_some)
            || !d.is_free(launch.output)
            || d.is_rewritten(launch.inputs[0])
        {
            continue;
        }
        let reads = |l: &Launch| l.inputs.contains(&launch.output);
        let matmuls: Vec<usize> =
            (0..d.launches.len()).filter(|j| d.launches[*j].as_ref().is_some_and(reads)).collect();
        let all_are_able = matmuls.iter().all(|j| {
            let is_plain = d.launches[*j].as_ref().is_some_and(|l| {
                let reads_once = l.inputs[0] == launch.output && !l.inputs[1..].contains(&launch.output);
                let is_one = l.parts.is_empty() && !l.fused.gated;
                l.fused.row.is_none() && l.fused.norm.is_none() && reads_once && (is_one || !is_late)
            });
            let op = d.op(*j);
            let is_able = part(op).is_some() || (norm.bias.is_some() && matches!(op, Op::MatMul { .. }));
            let fits = |op: &Op| match op {
                Op::MatMul { weight, .. } => {
                    let is_usual = fusions.precision.of(weight) == fusions.precision.precision;
                    is_multiple(weight, multiple) && (are_few || is_usual)
                }
                _ => false,
            };
            is_plain && is_able && fits(op)
        });
        let readers = d.readers.get(&launch.output).cloned().unwrap_or_default();
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
            let columns = if is_late { columns(&norm, d.op(j)) } else { None };
            if let Some(l) = &mut d.launches[j] {
                (l.inputs[0], l.fused.norm) = (launch.inputs[0], Some(RowNorm { columns, ..norm.clone() }));
                l.nodes.insert(0, i);
            }
        }
        d.launches[i] = None;
    }
}

/// See [`RowNorm::columns`].
fn columns(norm: &RowNorm, op: &Op) -> Option<Weight> {
    let (Op::MatMul { weight, .. }, Some(bias)) = (op, &norm.bias) else { return None };
    let [factors, shifts] = [&norm.weight, bias].map(|v| v.reshape([1, v.shape().len()]));
    Some(Weight::concat(&[factors, shifts]).matmul(weight))
}
