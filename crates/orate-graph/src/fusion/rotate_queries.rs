//! Rotary positions of queries, then their attention → attention that rotates its queries.

use super::draft::Draft;
use crate::Op;

pub(super) fn run(d: &mut Draft<'_>) {
    for i in 0..d.launches.len() {
        let Op::Attention { heads, .. } = d.op(i) else { continue };
        // One that takes heads reads their operands.
        let plain = d.launches[i].as_ref().filter(|l| l.fused.before.is_empty());
        let Some(rotary) = plain.and_then(|l| d.private(l.inputs[0])) else { continue };
        // One that norms its heads as well is a launch of its own.
        let is_alone = d.launches[rotary].as_ref().is_some_and(|l| l.fused.heads.is_empty());
        let (x, table) = match d.op(rotary) {
            Op::Rotary { heads: own } if own == heads && is_alone => {
                (d.node(rotary).inputs[0], d.node(rotary).inputs[1])
            }
            _ => continue,
        };
        if d.is_rewritten(x) || d.is_rewritten(table) {
            continue;
        }
        d.absorb(rotary, i);
        if let Some(l) = &mut d.launches[i] {
            (l.inputs[0], l.fused.rotary) = (x, Some(table));
        }
    }
}
