//! Sampling of ids.

use super::operands::{Abilities, Operands};
use crate::dispatch::{Call, Params};
use crate::variant::Variant;
use orate_graph::{ControlIds, Place, ValueInfo};

/// Threads per workgroup.
const THREADS: usize = 256;

/// Size of the network that sorts `ids` ids.
fn places(ids: usize) -> usize {
    ids.next_power_of_two().max(THREADS)
}

/// Workgroup memory in bytes.
fn shared(ids: usize) -> usize {
    4 * (ids + places(ids) + 2 * THREADS) + 32
}

pub(super) fn name(inputs: &[&ValueInfo], can: Abilities<'_>) -> Result<String, String> {
    let ids = inputs[0].shape.last();
    let (needed, limit) = (shared(ids), can.workgroup_bytes as usize);
    if needed > limit {
        return Err(format!("{ids} ids need {needed} bytes of workgroup memory, and there are {limit}"));
    }
    Ok("sample".to_owned())
}

/// Kernel for `ids` ids, with or without penalties and unconditional logits.
pub(super) fn variant(ids: usize, seen: bool, guided: bool) -> Variant {
    let variant = Variant::new("sample").number("IDS", ids).number("PLACES", places(ids));
    variant.flag("SEEN", seen).flag("GUIDED", guided)
}

pub(super) fn call(o: &Operands<'_>, codebook: u32, controls: Option<ControlIds>) -> Call {
    let ids = o.shape(0).last();
    let seen = o.step.node.inputs.len() == 5;
    let [first, end, least] = controls.map_or([ids, ids, 0], |c| [c.first, c.end, c.min_draws]);
    let params = Params::default()
        .place(o.place(0))
        .place(o.place(1))
        .place(o.place(2))
        .place(o.place(3))
        .place(if seen { o.place(4) } else { Place::Nowhere })
        .place(o.out())
        .number(first)
        .number(end)
        .number(least)
        .number(codebook as usize)
        .number(o.shape(1).last());
    Call {
        variant: variant(ids, seen, o.shape(0).rank() == 3),
        params,
        groups: [o.out_shape().len() as u32, 1, 1],
        weights: [None, None],
    }
}
