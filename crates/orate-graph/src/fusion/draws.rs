//! A draw, the rows of a table that its ids select, and their sum with others → a run of launches that a
//! target can make one.

use super::draft::{Draft, Pattern, Run};
use crate::{Op, Value};

pub(super) fn run(d: &mut Draft<'_>) {
    let order: Vec<usize> = (0..d.launches.len()).filter(|i| d.launches[*i].is_some()).collect();
    for at in 0..order.len() {
        let launch = |i: usize| d.launches[*order.get(at + i)?].as_ref();
        let (Some(draw), Some(rows)) = (launch(0), launch(1)) else { continue };
        let is_draw = matches!(d.op(draw.node), Op::Sample(_));
        let reads = matches!(d.op(rows.node), Op::Embedding { .. })
            && d.whole(rows.inputs[0]) == d.whole(draw.output);
        if !is_draw || !reads {
            continue;
        }
        let is_rows = |v: &Value| d.whole(*v) == d.whole(rows.output);
        let adds = launch(2).is_some_and(|l| *d.op(l.node) == Op::Add && l.inputs.iter().any(is_rows));
        let last = order[at + 1 + usize::from(adds)];
        d.runs.push(Run {
            pattern: Pattern::Draw,
            steps: order[at]..last + 1,
            scratch: vec![],
            unread: vec![],
        });
    }
}
