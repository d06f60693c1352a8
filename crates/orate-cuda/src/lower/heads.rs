//! Norms, rotary positions and cache writes of query, key and value heads, in one launch.

use super::operands::{Operands, cache_type};
use super::work::{Pointer, Work, bits};
use orate_graph::{Head, MOST_HEADS, Rows};

/// The launch for all heads of a step.
pub(super) fn work(o: &Operands<'_>) -> Work {
    let heads = &o.step.fused.heads;
    let pointers = |of: &dyn Fn(&Head) -> Pointer| -> Vec<Pointer> {
        (0..MOST_HEADS).map(|i| heads.get(i).map_or(Pointer::Null, of)).collect()
    };
    let words = |of: &dyn Fn(&Head) -> u32| -> Vec<u32> {
        (0..MOST_HEADS).map(|i| heads.get(i).map_or(0, of)).collect()
    };
    // Destination of rows: the operand with their position, or the position; and the rows of the state.
    let write = |h: &Head| match h.write {
        Some(Rows::From(at)) => (Pointer::Null, at, o.shape_of(h.out).dims()[1]),
        Some(Rows::At(v)) => (o.at(v), 0, o.shape_of(h.out).dims()[1]),
        None => (Pointer::Null, 0, 0),
    };
    let ([batch, time], d) = (heads[0].rows, heads[0].width);
    let most = heads.iter().map(|h| h.count).max().unwrap_or(1);
    let all = [
        pointers(&|h| o.at(h.x)),
        pointers(&|h| h.norm.as_ref().map_or(Pointer::Null, |(weight, _)| o.dense(weight))),
        pointers(&|h| h.table.map_or(Pointer::Null, |v| o.at(v))),
        pointers(&|h| write(h).0),
        pointers(&|h| o.at(h.out)),
    ];
    let mut numbers = [
        words(&|h| h.count as u32),
        words(&|h| write(h).2 as u32),
        words(&|h| write(h).1 as u32),
        words(&|h| h.table.map_or(1, |v| o.shape_of(v).dims()[0] as u32)),
        words(&|h| h.norm.as_ref().map_or(0, |(_, eps)| bits(*eps))),
    ]
    .concat();
    // All states of a step are written to in the same way.
    let state = heads.iter().find(|h| h.write.is_some());
    let cache = state.map_or(0, |h| cache_type(o.plan.info(h.out).dtype));
    numbers.extend([(batch * time) as u32, time as u32, d as u32, cache]);
    Work {
        grid: [(batch * time * most).div_ceil(8) as u32, heads.len() as u32, 1],
        pointers: all.concat(),
        words: numbers,
        ..Work::each("heads", "heads", 1)
    }
}
