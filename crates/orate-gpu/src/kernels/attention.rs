//! Attention.

use super::{Abilities, Operands};
use crate::dispatch::{Call, Params};
use crate::pipelines::Variant;
use orate_graph::{AttentionMask, Op};

/// Queries of a workgroup.
const QUERIES: usize = 8;
const THREADS: usize = 128;

/// Keys that are looked at together.
fn keys(d: usize) -> usize {
    if d <= 128 { 32 } else { 16 }
}

/// Bytes that a workgroup shares.
fn shared(d: usize) -> usize {
    4 * (QUERIES * d + keys(d) * (d + 1) + QUERIES * keys(d) + THREADS + QUERIES)
}

pub(super) fn name(d: usize, can: Abilities) -> Result<String, String> {
    let (needed, limit) = (shared(d), can.workgroup_bytes as usize);
    if needed > limit {
        return Err(format!("heads of {d} need {needed} bytes of workgroup memory, and there are {limit}"));
    }
    Ok(format!("attention-{d}"))
}

/// The kernel for a head width and what is seen.
pub(super) fn variant(d: usize, causal: bool, lens: bool, relative: bool) -> Variant {
    Variant::new("attention")
        .number("D", d)
        .number("KEYS", keys(d))
        .number("QUERY_TILE", QUERIES * d)
        .number("KEY_TILE", keys(d) * (d + 1))
        .number("SCORE_TILE", QUERIES * keys(d))
        .number("OUTPUTS", (QUERIES * d).div_ceil(THREADS))
        .flag("CAUSAL", causal)
        .flag("LENS", lens)
        .flag("RELATIVE", relative)
}

pub(super) fn call(o: &Operands<'_>) -> Call {
    let Op::Attention { heads, scale, mask, relative } = &o.step.node.op else {
        unreachable!("called for attention alone")
    };
    let (q, k) = (o.shape(0).dims(), o.shape(1).dims());
    let (d, causal, lens) = (q[2] / heads, *mask == AttentionMask::Causal, o.step.node.inputs.len() == 4);
    let tables = if relative.is_some() { [o.weights.vector(0), o.weights.vector(1)] } else { [0, 0] };
    let params = Params::default()
        .place(o.place(0))
        .place(o.place(1))
        .place(o.place(2))
        .place(o.out())
        .place(o.last())
        .number(q[1])
        .number(k[1])
        .number(*heads)
        .number(usize::from(k[0] > 1))
        .number(if causal { k[1].saturating_sub(q[1]) } else { 0 })
        .float(*scale)
        .number(relative.as_ref().map_or(0, |r| r.window))
        .number(tables[0])
        .number(tables[1]);
    Call {
        variant: variant(d, causal, lens, relative.is_some()),
        params,
        groups: [q[1].div_ceil(QUERIES) as u32, *heads as u32, q[0] as u32],
        weights: o.weights.buffers(),
    }
}
