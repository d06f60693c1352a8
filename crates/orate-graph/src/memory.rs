//! Where each value lives: in a named buffer, or at an offset of one arena shared by all temporaries.

use crate::fusion::{Draft, Run};
use crate::graph::{Graph, Node};
use crate::op::Op;
use crate::{Value, ValueInfo};
use std::collections::HashMap;

/// Every temporary starts at a multiple of this many bytes: a cache line, and the widest vector.
pub const ALIGNMENT: usize = 64;

/// Bytes of an element of most temporaries, and of what a view is part of. Compact types lie in states, as a
/// whole, and in temporaries that are rounded.
const WORD: usize = 4;

/// Where a value's elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// No step reads or writes the value's memory: it was fused away.
    Nowhere,
    /// At a byte offset of the arena.
    Arena(usize),
    /// In the buffer with an index, at a byte offset.
    Buffer(usize, usize),
}

impl Place {
    /// The range of some bytes from here on; `None` for a value without memory.
    pub fn span(self, bytes: usize) -> Option<Span> {
        let (buffer, begin) = match self {
            Place::Nowhere => return None,
            Place::Arena(at) => (None, at),
            Place::Buffer(i, at) => (Some(i), at),
        };
        Some(Span { buffer, begin, end: begin + bytes })
    }
}

/// A range of a plan's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// `None` for the arena.
    pub buffer: Option<usize>,
    /// First byte.
    pub begin: usize,
    /// The byte after the last.
    pub end: usize,
}

impl Span {
    /// Whether a byte is in both.
    pub fn overlaps(&self, other: &Span) -> bool {
        self.buffer == other.buffer && self.begin < other.end && other.begin < self.end
    }
}

/// A place for each value, and the arena's size in bytes.
pub(crate) struct MemoryPlan {
    pub places: Vec<Place>,
    pub arena_bytes: usize,
}

/// Copies the content of a state aside where a store needs it although another store replaces it: stores
/// happen one after the other, so `update("a", b)` and `update("b", a)` would otherwise leave both with the
/// same content.
pub(crate) fn keep_old_states(g: &mut Graph) {
    for i in 0..g.stores.len() {
        let (to, v) = g.stores[i];
        let replaced = |from: usize| from != to && g.stores.iter().any(|(b, _)| *b == from);
        if g.lies_in(v).is_some_and(replaced) {
            let ValueInfo { dtype, shape, .. } = g.info(v).clone();
            g.values.push(ValueInfo { dtype, shape, buffer: None });
            let output = Value((g.values.len() - 1) as u32);
            g.nodes.push(Node { op: Op::Concat { axis: 0 }, inputs: vec![v], output });
            g.stores[i].1 = output;
        }
    }
}

/// Bytes of an element of `whole`, of which no element is shared by blocks.
fn element_bytes(d: &Draft<'_>, whole: Value) -> usize {
    d.stored_as(whole).map_or(WORD, |dtype| dtype.row_bytes(1))
}

/// Gives temporaries whose lifetimes do not overlap the same memory: first fit, in the order in which they
/// are made. A view lies in its value, and a value that is stored in an output buffer is made there.
pub(crate) fn plan(d: &Draft<'_>) -> MemoryPlan {
    let end = d.launches.len();
    let mut lives: HashMap<Value, (usize, usize)> = HashMap::new();
    for (step, launch) in d.launches.iter().enumerate() {
        let run = d.run_of(step);
        for v in launch.iter().flat_map(|l| l.values()) {
            let life = lives.entry(d.whole(v).0).or_insert((step, step));
            // A run may read until its end what it did not make.
            let is_read_by_run = |run: &&Run| life.0 < run.steps.start;
            life.1 = run.filter(is_read_by_run).map_or(step, |run| run.steps.end - 1);
        }
    }
    for run in &d.runs {
        let all = (run.steps.start, run.steps.end - 1);
        lives.extend(run.scratch.iter().map(|v| (d.whole(*v).0, all)));
    }
    for (_, v) in &d.copies {
        lives.entry(d.whole(*v).0).or_insert((end, end)).1 = end;
    }
    let mut temporaries: Vec<(usize, usize, Value)> = lives
        .iter()
        .filter(|(v, _)| d.is_temporary(**v))
        .map(|(v, (first, last))| (*first, *last, *v))
        .collect();
    temporaries.sort_by_key(|(first, _, v)| (*first, v.index()));

    let mut live: Vec<(usize, usize, usize)> = vec![]; // offset, end, last use; by offset
    let (mut offsets, mut arena_bytes) = (HashMap::new(), 0);
    for (first, last, v) in temporaries {
        live.retain(|l| l.2 >= first);
        let elements = d.extended.get(&v).copied().unwrap_or(d.graph.shape(v).len());
        let bytes = element_bytes(d, v) * elements;
        let size = bytes.next_multiple_of(ALIGNMENT);
        let (mut offset, mut index) = (0, live.len());
        for (i, l) in live.iter().enumerate() {
            if offset + size <= l.0 {
                index = i;
                break;
            }
            offset = l.1;
        }
        live.insert(index, (offset, offset + size, last));
        arena_bytes = arena_bytes.max(offset + size);
        offsets.insert(v, offset);
    }
    let place = |i: usize| {
        let (whole, elements) = d.whole(Value(i as u32));
        let begin = element_bytes(d, whole) * elements;
        match (d.buffers[whole.index()], offsets.get(&whole)) {
            (Some(buffer), _) => Place::Buffer(buffer, begin),
            (None, Some(offset)) => Place::Arena(offset + begin),
            (None, None) => Place::Nowhere,
        }
    };
    MemoryPlan { places: (0..d.graph.values.len()).map(place).collect(), arena_bytes }
}
