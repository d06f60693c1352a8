//! Norms, rotary positions and cache writes of query, key and value heads, in one dispatch.

use super::operands::{Operands, cache_rows};
use super::rows;
use crate::dispatch::{Call, Params, flat};
use crate::variant::Variant;
use orate_graph::{DType, Fused, Rows, Weight};

/// Bits of a value's flags, named as in the kernel.
const NORM: usize = 1;
const TURN: usize = 2;
const OWN: usize = 4;
const OPERAND: usize = 8;

/// Kernel for `values` values with heads of this width, and states of a type.
pub(super) fn variant(values: usize, d: usize, dtype: DType, subgroups: bool) -> Variant {
    let v = rows::reduced("heads", 0, subgroups).number("VALUES", values).number("D", d);
    cache_rows(v, dtype, None)
}

/// Weights of the norms, in the order of the values.
pub(super) fn norms(fused: &Fused) -> impl Iterator<Item = &Weight> {
    fused.heads.iter().filter_map(|h| h.norm.as_ref()).map(|(weight, _)| weight)
}

/// The dispatch for all heads of a step.
pub(super) fn call(o: &Operands<'_>) -> Call {
    let heads = &o.step.fused.heads;
    let all: usize = heads.iter().map(|h| h.count).sum();
    let [batch, time] = heads[0].rows;
    let mut params = Params::default().number(all).number(batch * time).number(time);
    let mut norms = 0;
    for h in heads {
        let mut flags = 0;
        params = params.place(o.at(h.x)).place(o.at(h.out));
        params = match h.norm {
            Some(_) => {
                flags |= NORM;
                norms += 1;
                params.number(o.weights.vector(norms - 1))
            }
            None => params.number(0),
        };
        params = match h.table {
            Some(table) => {
                flags |= TURN | if o.shape_of(table).dims()[0] > 1 { OWN } else { 0 };
                params.place(o.at(table))
            }
            None => params.number(0),
        };
        params = params.number(h.count);
        let capacity = o.shape_of(h.out).dims()[1];
        params = match h.write {
            None => params.number(0).number(0),
            Some(Rows::From(at)) => params.number(capacity).number(at),
            Some(Rows::At(first)) => {
                flags |= OPERAND;
                params.number(capacity).place(o.at(first))
            }
        };
        params = params.number(flags).float(h.norm.as_ref().map_or(0.0, |(_, eps)| *eps));
    }
    let state = heads.iter().find(|h| h.write.is_some());
    let dtype = state.map_or(DType::F32, |h| o.plan.info(h.out).dtype);
    Call {
        variant: variant(heads.len(), heads[0].width, dtype, o.can.subgroups),
        params,
        groups: flat(batch * time * all, 1),
        weights: o.weights.buffers(),
    }
}
