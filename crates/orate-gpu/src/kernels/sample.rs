//! Sampling of ids.

use super::operands::Operands;
use crate::dispatch::{Call, Params};
use crate::variant::Variant;
use orate_graph::{Place, SampleRules};

/// Workgroup memory of the kernel in bytes, if it holds `ids` logits.
fn shared(ids: usize, threads: usize) -> usize {
    4 * (ids + 2 * 512 + 3 * 256 + 2 * 16 + 2 * threads) + 128
}

/// Threads of a workgroup: the fastest first, then what fits into less memory.
const THREADS: [usize; 2] = [1024, 256];

/// What a kernel does besides drawing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sampling {
    /// There may be penalties for ids that were seen.
    pub seen: bool,
    /// There are unconditional logits.
    pub guided: bool,
    /// Penalties come after everything else.
    pub penalty_last: bool,
    /// Logits fit into workgroup memory.
    pub held: bool,
    pub threads: usize,
}

/// Kernel for `ids` ids.
pub(super) fn variant(ids: usize, s: Sampling) -> Variant {
    Variant::new("sample")
        .number("IDS", ids)
        .number("THREADS", s.threads)
        .number("SKIPPED_BITS", (ids as u32).leading_zeros() as usize)
        .flag("SEEN", s.seen)
        .flag("GUIDED", s.guided)
        .flag("PENALTY_LAST", s.penalty_last)
        .flag("HELD", s.held)
}

pub(super) fn call(o: &Operands<'_>, rules: &SampleRules) -> Call {
    let ids = o.shape(0).last();
    let seen = o.step.node.inputs.len() == 5;
    let [first, end, least] = rules.controls.map_or([ids, ids, 0], |c| [c.first, c.end, c.min_draws]);
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
        .number(rules.codebook as usize)
        .number(o.shape(1).last())
        .number(rules.start.unwrap_or(u32::MAX as usize));
    let fits = |threads: &usize| {
        *threads <= o.can.workgroup_threads as usize
            && shared(ids, *threads) <= o.can.workgroup_bytes as usize
    };
    // With fewer ids than threads, most threads would idle.
    let threads = THREADS.into_iter().skip(usize::from(ids < THREADS[0])).find(fits);
    let sampling = Sampling {
        seen,
        guided: o.shape(0).rank() == 3,
        penalty_last: rules.penalty_last,
        held: threads.is_some(),
        threads: threads.unwrap_or(THREADS[1]),
    };
    Call {
        variant: variant(ids, sampling),
        params,
        groups: [o.out_shape().len() as u32, 1, 1],
        weights: [None, None],
    }
}
