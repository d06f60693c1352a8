//! Sampling of ids.

use super::operands::Operands;
use super::work::{Pointer, Work};
use crate::driver::Facts;
use orate_graph::{SampleRules, ValueInfo};

/// Threads of a row.
const THREADS: u32 = 1024;

/// Shared memory for `ids` logits, in bytes, and that of fixed size.
const fn shared(ids: usize) -> (usize, usize) {
    (4 * ids, 17 << 10)
}

/// Name of the kernel in plans for these logits, or the reason why there is none.
pub(super) fn name(inputs: &[&ValueInfo], facts: &Facts) -> Result<String, String> {
    let ids = inputs[0].shape.last();
    let (logits, fixed) = shared(ids);
    if logits + fixed > facts.shared as usize {
        return Err(format!("{ids} ids need {logits} bytes of shared memory, {} are there", facts.shared));
    }
    Ok("sample".to_owned())
}

pub(super) fn work(o: &Operands<'_>, rules: &SampleRules) -> Work {
    let (batch, ids) = (o.out_shape().len(), o.shape(0).last());
    let [first, end, least] = rules.controls.map_or([ids; 3], |c| [c.first, c.end, c.min_draws]);
    let seen = if o.step.node.inputs.len() == 5 { o.x(4) } else { Pointer::Null };
    let words = [
        ids,
        first,
        end,
        least,
        rules.codebook as usize,
        o.shape(1).last(),
        o.shape(0).rank() - 1,
        usize::from(rules.penalty_last),
    ];
    Work {
        grid: [batch as u32, 1, 1],
        threads: THREADS,
        shared: shared(ids).0 as u32,
        pointers: vec![o.x(0), o.x(1), o.x(2), o.x(3), seen, o.out()],
        words: words
            .map(|x| x as u32)
            .into_iter()
            .chain([rules.start.map_or(u32::MAX, |id| id as u32)])
            .collect(),
        ..Work::each("sample", "sample", 1)
    }
}
