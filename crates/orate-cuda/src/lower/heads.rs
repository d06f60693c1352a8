//! Heads of queries, keys and values on their way to attention, in one launch: norms, rotary positions, writing to caches.

use super::work::{Pointer, Work, bits};
use super::{Operands, cache_type};
use orate_graph::joining::{TURNS, Turn};
use orate_graph::{First, Op};

/// The launch for all values that `o` turns.
pub(super) fn work(o: &Operands<'_>) -> Work {
    let node = o.node;
    let turn = |i: usize| node.turns.get(i);
    let pointers = |of: &dyn Fn(&Turn) -> Pointer| -> Vec<Pointer> {
        (0..TURNS).map(|i| turn(i).map_or(Pointer::Null, of)).collect()
    };
    let words =
        |of: &dyn Fn(&Turn) -> u32| -> Vec<u32> { (0..TURNS).map(|i| turn(i).map_or(0, of)).collect() };
    let norm = |t: &Turn| match t.norm.map(|step| o.op(step)) {
        Some(Op::RmsNorm { weight, eps }) => Some((o.dense(weight), *eps)),
        _ => None,
    };
    // Where rows are written: the operand with their number, or the number; and the rows of the state.
    let write = |t: &Turn| match t.write.map(|step| &o.plan.steps()[step].node) {
        Some(step) => {
            let (first, from) = match step.op {
                Op::WriteRows { first: First::Const(at) } => (Pointer::Null, at),
                _ => (step.inputs.last().map_or(Pointer::Null, |v| o.at(*v)), 0),
            };
            (first, from, o.shape_of(t.out).dims()[1])
        }
        None => (Pointer::Null, 0, 0),
    };
    let first = &node.turns[0];
    let rows = first.write.map_or(first.out, |step| o.plan.steps()[step].node.inputs[1]);
    let (rows, d) = (o.shape_of(rows), first.heads.1);
    let most = node.turns.iter().map(|t| t.heads.0).max().unwrap_or(1);
    let all = [
        pointers(&|t| o.at(t.x)),
        pointers(&|t| norm(t).map_or(Pointer::Null, |n| n.0)),
        pointers(&|t| t.table.map_or(Pointer::Null, |v| o.at(v))),
        pointers(&|t| write(t).0),
        pointers(&|t| o.at(t.out)),
    ];
    let mut numbers = [
        words(&|t| t.heads.0 as u32),
        words(&|t| write(t).2 as u32),
        words(&|t| write(t).1 as u32),
        words(&|t| t.table.map_or(1, |v| o.shape_of(v).dims()[0] as u32)),
        words(&|t| norm(t).map_or(0, |n| bits(n.1))),
    ]
    .concat();
    // What writes to several states writes to them alike.
    let state = node.turns.iter().find(|t| t.write.is_some());
    let cache = state.map_or(0, |t| cache_type(o.plan.info(t.out).dtype));
    numbers.extend([rows.rows() as u32, rows.dims()[1] as u32, d as u32, cache]);
    Work {
        grid: [(rows.rows() * most).div_ceil(8) as u32, node.turns.len() as u32, 1],
        pointers: all.concat(),
        words: numbers,
        ..Work::each("heads", "heads", 1)
    }
}
