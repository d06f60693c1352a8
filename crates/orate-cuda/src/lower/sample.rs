//! Sampling of ids.

use super::operands::Operands;
use super::work::{Pointer, Work};
use crate::driver::Facts;
use orate_graph::{ControlIds, ValueInfo};

/// Shared memory for sampling from `ids` logits in bytes: the logits, and room to sort.
fn shared(ids: usize) -> usize {
    8 * ids.next_power_of_two() + 4 * ids
}

/// Name of the kernel in plans for these logits, or the reason why there is none.
pub(super) fn name(inputs: &[&ValueInfo], facts: &Facts) -> Result<String, String> {
    let ids = inputs[0].shape.last();
    let shared = shared(ids);
    if shared + 1024 > facts.shared as usize {
        return Err(format!("{ids} ids need {shared} bytes of shared memory, {} are there", facts.shared));
    }
    Ok("sample".to_owned())
}

pub(super) fn work(o: &Operands<'_>, codebook: u32, controls: Option<ControlIds>) -> Work {
    let (batch, ids) = (o.out_shape().len(), o.shape(0).last());
    let [first, end, least] = controls.map_or([ids; 3], |c| [c.first, c.end, c.min_draws]);
    let seen = if o.step.node.inputs.len() == 5 { o.x(4) } else { Pointer::Null };
    Work {
        grid: [batch as u32, 1, 1],
        shared: shared(ids) as u32,
        pointers: vec![o.x(0), o.x(1), o.x(2), o.x(3), seen, o.out()],
        words: [
            ids,
            first,
            end,
            least,
            codebook as usize,
            ids.next_power_of_two(),
            o.shape(1).last(),
            o.shape(0).rank() - 1,
        ]
        .map(|x| x as u32)
        .to_vec(),
        ..Work::each("sample", "sample", 1)
    }
}
