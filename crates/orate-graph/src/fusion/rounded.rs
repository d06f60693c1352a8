//! Values that all readers round to the same 16-bit type → stored in that type.
//!
//! Results are the same bits, and such values take half the memory traffic.

use super::draft::{Draft, Fused};
use crate::{DType, Op, Value, ValueInfo};
use std::collections::{HashMap, HashSet};

/// How a kernel handles values of 16 bits; see [`crate::Target::rounding`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rounding {
    /// Number of leading operands that the kernel rounds as it reads them, and the type. It can read them
    /// stored in this type, all of them or none. A convolution that rounds x rounds its history, too.
    pub reads: Option<(usize, DType)>,
    /// The 16-bit types in which the result may be stored, provided that the operands of `reads` are.
    pub writes: &'static [DType],
    /// Whether the kernel can read its operand stored in a 16-bit type, and store it in f32.
    pub widens: bool,
}

/// [`crate::Target::rounding`] of a launch: its op, operands, result, and what is fused into it.
pub(crate) type RoundingOf<'t> = dyn Fn(&Op, &[&ValueInfo], &ValueInfo, &Fused) -> Rounding + 't;

/// Kernels read 16 bytes at a time, so parts of a value begin at multiples of eight elements.
const WHOLE: usize = 8;

pub(super) fn run(d: &mut Draft<'_>, rounding_of: &RoundingOf<'_>) {
    let info = |v: &Value| d.graph.info(*v);
    let mut roundings: Vec<Rounding> = d
        .launches
        .iter()
        .map(|launch| {
            launch.as_ref().map_or(Rounding::default(), |l| {
                let inputs: Vec<&ValueInfo> = l.inputs.iter().map(info).collect();
                rounding_of(d.op(l.node), &inputs, info(&l.output), &l.fused)
            })
        })
        .collect();
    if roundings.iter().all(|r| r.reads.is_none()) {
        return;
    }
    let kept: Vec<_> = (0..roundings.len()).map(|i| kept_for_convolutions(d, i, &roundings)).collect();
    for (rounding, dtype) in roundings.iter_mut().zip(kept) {
        rounding.reads = rounding.reads.or(dtype.map(|dtype| (1, dtype)));
    }

    // By value that is no part of another: the type that readers round to, unless something forbids it.
    let mut types: HashMap<Value, DType> = HashMap::new();
    let mut forbidden: HashSet<Value> = d.copies.iter().map(|(_, v)| d.whole(*v).0).collect();
    forbidden.extend(d.views.keys().map(|v| d.whole(*v)).filter(|(_, at)| at % WHOLE != 0).map(|(v, _)| v));
    for (launch, rounding) in d.launches.iter().zip(&roundings) {
        let Some(l) = launch else { continue };
        let (count, dtype) = rounding.reads.unwrap_or((0, DType::F32));
        for (i, v) in l.inputs.iter().enumerate() {
            let whole = d.whole(*v).0;
            if i >= count || *types.entry(whole).or_insert(dtype) != dtype {
                forbidden.insert(whole);
            }
        }
        let made = l.fused.heads.iter().map(|h| h.out);
        forbidden.extend(l.fused.values().chain(made).map(|v| d.whole(v).0));
    }
    for (launch, rounding) in d.launches.iter().zip(&roundings) {
        let Some(l) = launch else { continue };
        let whole = d.whole(l.output).0;
        if types.get(&whole).is_none_or(|dtype| !rounding.writes.contains(dtype)) {
            forbidden.insert(whole);
        }
    }
    types.retain(|v, _| d.is_temporary(*v) && !forbidden.contains(v));

    // A launch that gets some of its operands in f32 needs all in f32, and writes f32.
    loop {
        let is_rounded = |v: &Value| types.contains_key(&d.whole(*v).0);
        let of_f32: Vec<Value> = d
            .launches
            .iter()
            .zip(&roundings)
            .filter_map(|(l, r)| Some((l.as_ref()?, r.reads?.0)))
            .filter(|(l, count)| !l.inputs[..*count].iter().all(is_rounded))
            .flat_map(|(l, count)| l.inputs[..count].iter().copied().chain([l.output]))
            .filter(is_rounded)
            .collect();
        if of_f32.is_empty() {
            break;
        }
        for v in of_f32 {
            types.remove(&d.whole(v).0);
        }
    }
    d.rounded = types;
}

/// If a launch only copies what a state keeps as the history of convolutions: the type to which they round
/// it.
fn kept_for_convolutions(d: &Draft<'_>, launch: usize, roundings: &[Rounding]) -> Option<DType> {
    let l = d.launches[launch].as_ref().filter(|_| roundings[launch].widens)?;
    // Nothing else reads it.
    if d.readers.get(&l.output)?[..] != [d.launches.len()] {
        return None;
    }
    let (state, _) = d.copies.iter().find(|(_, v)| *v == l.output)?;
    let reads = |v: &Value| d.buffers[d.whole(*v).0.index()] == Some(*state);
    if d.copies.iter().any(|(_, v)| reads(v)) {
        return None;
    }
    let mut dtype = None;
    for (reader, rounding) in d.launches.iter().zip(roundings) {
        let Some(reader) = reader.as_ref().filter(|reader| reader.values().any(|v| reads(&v))) else {
            continue;
        };
        let is_history = matches!(d.op(reader.node), Op::Conv1d { geometry, .. } if geometry.has_history())
            && reader.values().filter(reads).count() == 1
            && reads(&reader.inputs[1]);
        let rounds_to = rounding.reads.filter(|_| is_history).map(|(_, dtype)| dtype)?;
        if *dtype.get_or_insert(rounds_to) != rounds_to {
            return None;
        }
    }
    dtype
}
