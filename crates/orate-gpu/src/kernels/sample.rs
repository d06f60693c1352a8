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

/// Words of the kernel's parameters: the drawn ids; settings of a row; the first one of a table's rows.
const DRAWN: usize = 5;
/// See [`DRAWN`].
const OF_ROW: usize = 10;
/// See [`DRAWN`].
const TABLE: usize = 12;

/// Lets kernels that draw ids also read the rows of a table that these select, and add them to others, where
/// this comes next: a dispatch takes longer than such rows.
pub(crate) fn join_rows(calls: &mut Vec<(usize, Call)>) {
    let mut at = 0;
    while at < calls.len() {
        if let Some((joined, count)) = joined(&calls[at..]) {
            calls[at].1 = joined;
            calls.drain(at + 1..at + count);
        }
        at += 1;
    }
}

/// A draw together with what follows it, and the number of dispatches that it replaces.
fn joined(calls: &[(usize, Call)]) -> Option<(Call, usize)> {
    let [(_, draw), (_, rows), rest @ ..] = calls else { return None };
    let reads = rows.variant.file == "gather" && !rows.variant.has("ROW_AT");
    if draw.variant.file != "sample" || !reads || rows.params.place_at(0) != draw.params.place_at(DRAWN) {
        return None;
    }
    let (batch, width) = (draw.groups[0] as usize, rows.params.words[4] as usize);
    let (selected, len) = (rows.params.place_at(2)?, rows.params.words[3] as usize);
    let sum = rest.first().and_then(|(_, call)| added_to(call, selected, len));
    let is_apart = batch == 1 || {
        // Workgroups of other rows may still read what theirs are drawn from.
        let (ids, of_row) = (draw.variant.number_of("IDS")?, draw.params.words[OF_ROW] as usize);
        let of_logits = if draw.variant.has("GUIDED") { 2 * ids } else { ids };
        let read = [of_logits, of_row, 2, 1, ids].map(|n| 4 * n * batch);
        let read = read.into_iter().zip(0..).filter_map(|(n, i)| draw.params.place_at(i)?.span(n));
        let written = || [Some(selected), sum.map(|[_, to]| to)].into_iter().flatten();
        let written = || written().filter_map(|place| place.span(4 * len));
        read.into_iter().all(|r| !written().any(|w| w.overlaps(&r)))
    };
    if len != batch * width || !is_apart {
        return None;
    }
    let variant = draw
        .variant
        .clone()
        .set("READS", true)
        .set("ADDS", sum.is_some())
        .set("HALVES", rows.variant.has("HALVES"))
        .set("F16", rows.variant.has("F16"));
    debug_assert_eq!(draw.params.words.len(), TABLE);
    let [addend, to] = sum.unwrap_or([Place::Nowhere; 2]);
    let params = draw.params.clone().number(rows.params.words[1] as usize).number(width);
    let params = params.number(rows.params.words[5] as usize).place(selected).place(addend).place(to);
    let count = if sum.is_some() { 3 } else { 2 };
    Some((Call { variant, params, groups: draw.groups, weights: rows.weights }, count))
}

/// The other operand and the result of a sum with such rows.
fn added_to(call: &Call, rows: Place, len: usize) -> Option<[Place; 2]> {
    let n = call.params.words.get(3).map(|n| *n as usize * if call.variant.has("FOUR") { 4 } else { 1 });
    if call.variant.file != "elementwise" || !call.variant.has("ADD") || n != Some(len) {
        return None;
    }
    let [a, b, to] = [0, 1, 2].map(|i| call.params.place_at(i));
    let addend = match (a? == rows, b? == rows) {
        (true, false) => b?,
        (false, true) => a?,
        _ => return None,
    };
    Some([addend, to?])
}

/// Kernel for `ids` ids.
pub(super) fn variant(ids: usize, s: Sampling) -> Variant {
    Variant::new("sample")
        .number("IDS", ids)
        .number("THREADS", s.threads)
        .flag("READS", false)
        .flag("ADDS", false)
        .flag("HALVES", false)
        .flag("F16", false)
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
