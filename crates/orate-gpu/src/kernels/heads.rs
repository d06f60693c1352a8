//! Heads of queries, keys and values on their way to attention, in one dispatch.

use super::{Operands, cache_rows, rows};
use crate::dispatch::{Call, Params, flat};
use crate::pipelines::Variant;
use orate_graph::joining::Turn;
use orate_graph::{DType, First, Op};

/// Bits of a value's flags, as the kernel names them.
const NORM: usize = 1;
const TURN: usize = 2;
const OWN: usize = 4;
const OPERAND: usize = 8;

/// Whether the kernel writes heads of this width to states of a type: those of a workgroup are whole words.
pub(super) fn are_kept(dtype: DType, d: usize) -> bool {
    dtype != DType::Q8_0 || d.is_multiple_of(dtype.width_step())
}

/// The kernel for so many values with heads of this width, and states of a type.
pub(super) fn variant(values: usize, d: usize, dtype: DType, subgroups: bool) -> Variant {
    let v = rows::reduced("heads", 0, subgroups).number("VALUES", values).number("D", d);
    cache_rows(v, dtype, false)
}

/// Mostly one; one for each value if their norms' weights lie in several buffers.
pub(super) fn calls(o: &Operands<'_>) -> Vec<Call> {
    let turns = &o.joined.turns;
    let buffers = |t: &Turn| t.norm.map(|step| o.placed[step].buffers());
    let mut normed = turns.iter().filter_map(buffers);
    let first = normed.next();
    if normed.all(|b| Some(b) == first) {
        return vec![call(o, turns, first.unwrap_or_default())];
    }
    turns.iter().map(|t| call(o, std::slice::from_ref(t), buffers(t).unwrap_or_default())).collect()
}

fn call(o: &Operands<'_>, turns: &[Turn], weights: [Option<usize>; 2]) -> Call {
    let all: usize = turns.iter().map(|t| t.heads.0).sum();
    let x = turns[0].write.map_or(turns[0].out, |step| o.plan.steps()[step].node.inputs[1]);
    let shape = o.shape_of(x);
    let mut params = Params::default().number(all).number(shape.rows()).number(shape.dims()[1]);
    for t in turns {
        let mut flags = 0;
        params = params.place(o.at(t.x)).place(o.at(t.out));
        let mut epsilon = 0.0;
        params = params.number(match (t.norm, t.norm.map(|step| o.op(step))) {
            (Some(step), Some(Op::RmsNorm { eps, .. })) => {
                (flags, epsilon) = (flags | NORM, *eps);
                o.placed[step].vector(0)
            }
            _ => 0,
        });
        params = match t.table {
            Some(table) => {
                flags |= TURN | if o.shape_of(table).dims()[0] > 1 { OWN } else { 0 };
                params.place(o.at(table))
            }
            None => params.number(0),
        };
        params = params.number(t.heads.0);
        params = match t.write.map(|step| &o.plan.steps()[step].node) {
            None => params.number(0).number(0),
            Some(node) => {
                let params = params.number(o.shape_of(t.out).dims()[1]);
                match node.op {
                    Op::WriteRows { first: First::Const(at) } => params.number(at),
                    _ => {
                        flags |= OPERAND;
                        params.place(o.at(node.inputs[node.inputs.len() - 1]))
                    }
                }
            }
        };
        params = params.number(flags).float(epsilon);
    }
    let state = turns.iter().find(|t| t.write.is_some());
    let dtype = state.map_or(DType::F32, |t| o.plan.info(t.out).dtype);
    let variant = variant(turns.len(), turns[0].heads.1, dtype, o.can.subgroups);
    Call { variant, params, groups: flat(shape.rows() * all, 1), weights }
}
