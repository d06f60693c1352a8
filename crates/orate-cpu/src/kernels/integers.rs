//! Ops on ids and counters: a few numbers, computed by the calling thread alone.
//!
//! | op | formula | shapes |
//! | --- | --- | --- |
//! | `Increment` | `x + by`, modulo 2³² | i32 `[…]` |
//! | `Mark` | `seen[b, ids[b]] = 1`, but for [`NO_ID`] | `[B, V]` in place, i32 `[B, 1]` |
//!
//! Integers are stored as floats with the same bits.

use crate::op::{Binding, Call, OpKernel, Problem};
use crate::weights::Core;
use orate_graph::{NO_ID, ValueInfo};

pub(crate) struct Increment {
    pub by: i32,
}

impl OpKernel for Increment {
    fn name(&self, _: &Core, _: &[&ValueInfo]) -> String {
        "integers".to_owned()
    }

    fn bind(&self, _: &Binding<'_>) -> Call {
        let by = self.by;
        Call::new(move |o| {
            for (out, x) in o.out.iter_mut().zip(o.inputs.integers(0)) {
                *out = f32::from_bits(x.wrapping_add(by) as u32);
            }
        })
    }
}

pub(crate) struct Mark;

impl OpKernel for Mark {
    fn name(&self, _: &Core, _: &[&ValueInfo]) -> String {
        "write".to_owned()
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let rows = step.out().shape.last();
        // In place: `out` is the state, and operands are counted from the ids on.
        Call::fallible(move |o| mark(o.out, rows, o.inputs.integers(0)))
    }
}

/// Sets the element that the id names to 1, in each row of `rows` elements.
fn mark(seen: &mut [f32], rows: usize, ids: &[i32]) -> Result<(), Problem> {
    for (seen, id) in seen.chunks_exact_mut(rows).zip(ids).filter(|(_, id)| **id != NO_ID) {
        let seen = usize::try_from(*id).ok().and_then(|id| seen.get_mut(id));
        *seen.ok_or_else(|| Problem::Operand(format!("id {id} of {rows}")))? = 1.0;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_marked_unless_there_is_none() {
        let mut seen = [0.0; 6];
        mark(&mut seen, 2, &[1, NO_ID, 0]).expect("ids of the table");
        assert_eq!(seen, [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]);
        for bad in [2, -2, i32::MAX] {
            assert!(mark(&mut seen, 2, &[0, bad, 0]).is_err(), "{bad}");
        }
    }
}
