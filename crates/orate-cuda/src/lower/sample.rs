//! Sampling of ids, and the rows of a table that they select.

use super::operands::Operands;
use super::work::{Pointer, Work};
use crate::driver::Facts;
use orate_graph::{SampleRules, Span, ValueInfo};

const NONE: Pointer = Pointer::Null;

/// Among the kernel's pointers: logits and ids; the table, its rows, and what they are added to.
const LOGITS: usize = 0;
/// See [`LOGITS`].
const IDS: usize = 5;
/// See [`LOGITS`].
const TABLE: usize = 6;
/// See [`LOGITS`].
const ROWS: usize = 7;
/// See [`LOGITS`].
const ADDEND: usize = 8;
/// See [`LOGITS`].
const SUM: usize = 9;
/// Among its words: the width of the table.
const WIDTH: usize = 9;

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
        pointers: [[o.x(0), o.x(1), o.x(2), o.x(3), seen], [o.out(), NONE, NONE, NONE, NONE]].concat(),
        words: words
            .map(|x| x as u32)
            .into_iter()
            .chain([rules.start.map_or(u32::MAX, |id| id as u32), 0, 0, 0])
            .collect(),
        ..Work::each("sample", "sample", 1)
    }
}

/// Lets kernels that draw ids also read the rows of a table that these select, and add them up, where this
/// comes next: a launch takes longer than such a row.
pub(crate) fn join_rows(works: &mut Vec<(usize, Work)>) {
    let mut at = 0;
    while at < works.len() {
        if let Some((joined, count)) = joined(&works[at..]) {
            works[at].1 = joined;
            works.drain(at + 1..at + count);
        }
        at += 1;
    }
}

/// A draw together with what follows it, and how many launches it replaces.
fn joined(works: &[(usize, Work)]) -> Option<(Work, usize)> {
    let [(_, draw), (_, rows), rest @ ..] = works else { return None };
    let of_ids = [rows.pointers.get(1), rows.pointers.get(2)] == [draw.pointers.get(IDS), Some(&NONE)];
    if draw.function != "sample" || rows.function != "gather" || !of_ids {
        return None;
    }
    let (batch, len) = (draw.grid[0], rows.words[0]);
    if len != batch * rows.words[1] {
        return None;
    }
    let mut all = draw.clone();
    (all.pointers[TABLE], all.pointers[ROWS]) = (rows.pointers[0], rows.pointers[3]);
    all.words[WIDTH..].copy_from_slice(&rows.words[1..4]);
    let mut count = 2;
    let sum = rest.first().and_then(|(_, work)| Some((added_to(work, rows.pointers[3], len)?, work)));
    if let Some((addend, work)) = sum {
        (all.pointers[ADDEND], all.pointers[SUM]) = (addend, work.pointers[6]);
        count = 3;
    }
    // Each row has a block, and others may still read their logits.
    let [ids, of_row, copies] = [0, 5, 6].map(|i| draw.words[i] as usize);
    let bytes = [copies * ids, of_row, 2, 1, ids].map(|n| 4 * n * batch as usize);
    let read: Vec<Span> =
        (LOGITS..IDS).zip(bytes).filter_map(|(i, bytes)| draw.pointers[i].span(bytes)).collect();
    let written = [ROWS, SUM].into_iter().filter_map(|i| all.pointers[i].span(4 * len as usize));
    let is_apart = batch == 1 || !written.into_iter().any(|w| read.iter().any(|r| r.overlaps(&w)));
    is_apart.then_some((all, count))
}

/// The other operand of a sum with these rows.
fn added_to(work: &Work, rows: Pointer, len: u32) -> Option<Pointer> {
    let p = &work.pointers;
    let one = 1.0_f32.to_bits();
    let is_sum = work.function == "pointwise"
        && work.words == [2, len, 1, 1, 0, 0, one, one, 0]
        && p[2..6].iter().all(|p| *p == NONE);
    match (is_sum, p.first() == Some(&rows), p.get(1) == Some(&rows)) {
        (true, true, false) => Some(p[1]).filter(|p| *p != NONE),
        (true, false, true) => Some(p[0]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::{
        lower,
        tests::{Imagined, facts},
    };
    use crate::weights::WeightBank;
    use orate_graph::{DType, Draw, Graph, Op, Plan, Precision, PrecisionPolicy, Weight};
    use orate_testing::RandomWeights;

    /// Launches after a draw, with rows of a table and their sum with another value.
    fn launches(batch: usize, adds: bool) -> Vec<Work> {
        let mut g = Graph::new("draw");
        let logits = g.input("logits", DType::F32, [batch, 50]).expect("declares");
        let settings = g.input("settings", DType::F32, [batch, 4]).expect("declares");
        let seed = g.input("seed", DType::I32, [batch, 2]).expect("declares");
        let number = g.input("number", DType::I32, [batch]).expect("declares");
        let draw = Draw { settings, seed, number };
        let id = g.sample(Op::Sample(SampleRules::default()), logits, draw, None).expect("builds");
        let rows = g.embedding(id, Weight::named("table", [50, 8])).expect("builds");
        let sum = if adds { g.add(rows, rows).expect("builds") } else { rows };
        g.output("sum", sum).expect("declares");
        g.output("id", id).expect("declares");
        works_of(g)
    }

    fn works_of(g: Graph) -> Vec<Work> {
        let target = Imagined { policy: PrecisionPolicy::uniform(Precision::F32), facts: facts(90) };
        let weights = RandomWeights::of_graph(&g, 1);
        let plan = Plan::compile(g, &target).expect("compiles");
        let mut bank = WeightBank::default();
        bank.imagine(&plan, &target.policy, &weights, 1 << 40);
        let mut works = lower(&plan, &bank, &target.policy, &target.facts);
        join_rows(&mut works);
        works.into_iter().map(|(_, work)| work).collect()
    }

    #[test]
    fn a_draw_reads_the_rows_that_it_selects() {
        for batch in [1, 3] {
            let works = launches(batch, false);
            assert_eq!(works.iter().filter(|w| w.function == "gather").count(), 0);
            let draw = works.iter().find(|w| w.function == "sample").expect("draws");
            assert!(draw.pointers[ROWS] != NONE && draw.pointers[SUM] == NONE);
            assert_eq!(draw.words[WIDTH..], [8, 50, 0]);
        }
        // A value twice is no sum with another one.
        assert_eq!(launches(1, true).iter().filter(|w| w.function == "pointwise").count(), 1);
    }

    #[test]
    fn draws_from_logits_that_are_made_on_the_way_do_so_too() {
        let (mut g, batch) = (Graph::new("draws"), 64);
        let x = g.input("x", DType::F32, [batch, 1, 8]).expect("declares");
        let settings = g.input("settings", DType::F32, [batch, 4]).expect("declares");
        let seed = g.input("seed", DType::I32, [batch, 2]).expect("declares");
        let number = g.input("number", DType::I32, [batch]).expect("declares");
        let (mut row, mut sum) = (x, x);
        for i in 0..4 {
            let logits = g.matmul(row, Weight::named(format!("w{i}"), [8, 50])).expect("builds");
            let logits = g.reshape(logits, [batch, 50]).expect("builds");
            let draw = Draw { settings, seed, number };
            let id = g.sample(Op::Sample(SampleRules::default()), logits, draw, None).expect("builds");
            row = g.embedding(id, Weight::named(format!("table{i}"), [50, 8])).expect("builds");
            row = g.reshape(row, [batch, 1, 8]).expect("builds");
            sum = g.add(sum, row).expect("builds");
        }
        g.output("sum", sum).expect("declares");
        let functions: Vec<_> = works_of(g).iter().map(|w| w.function).collect();
        assert_eq!(functions, ["matmul_1_dense", "sample"].repeat(4));
    }
}
