//! Where each value lives: in a named buffer, or at an offset of one arena shared by all temporaries.

use crate::Value;
use crate::graph::{BufferKind, Graph, Node, ValueInfo};
use crate::op::Op;

/// Every temporary starts at a multiple of this many bytes: a cache line, and the widest vector.
pub const ALIGNMENT: usize = 64;

/// Where a value's elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The plan never needs the value: it was fused away.
    Nowhere,
    /// At a byte offset of the arena.
    Arena(usize),
    /// In the buffer with this index.
    Buffer(usize),
}

/// Result of planning: a place for each value, and the arena's size in bytes.
pub(crate) struct MemoryPlan {
    pub places: Vec<Place>,
    pub arena_bytes: usize,
    /// Stores that no node made in place: copied when all steps are done.
    pub copies: Vec<(usize, Value)>,
}

/// Copies the content of a state aside where a store needs it although another store replaces it: stores happen
/// one after the other, so `update("a", b)` and `update("b", a)` would otherwise leave both with the same content.
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

/// Gives values whose lifetimes do not overlap the same memory. Reshapes share their operand's place, and what is written in
/// place is where its state is. A value that is stored in an output buffer is made there.
pub(crate) fn plan(g: &Graph) -> MemoryPlan {
    let n = g.values.len();
    let mut root: Vec<usize> = (0..n).collect();
    for node in &g.nodes {
        if node.op == Op::Reshape {
            root[node.output.index()] = root[node.inputs[0].index()];
        }
    }
    let mut places = vec![Place::Nowhere; n];
    for (i, v) in g.values.iter().enumerate() {
        if let Some(b) = v.buffer {
            places[i] = Place::Buffer(b);
        }
    }
    let mut copies = vec![];
    for &(buffer, v) in &g.stores {
        let r = root[v.index()];
        if g.buffers[buffer].kind == BufferKind::Output && places[r] == Place::Nowhere {
            places[r] = Place::Buffer(buffer);
        } else {
            copies.push((buffer, v));
        }
    }

    // Lifetimes of the roots; copied stores are read after the last step.
    let mut last_use = vec![0usize; n];
    for (step, node) in g.nodes.iter().enumerate() {
        for v in node.inputs.iter().chain([&node.output]) {
            last_use[root[v.index()]] = step;
        }
    }
    copies.iter().for_each(|(_, v)| last_use[root[v.index()]] = g.nodes.len());

    // First fit, in the order of definition.
    let mut live: Vec<(usize, usize, usize)> = vec![]; // (offset, end, last use), by offset
    let mut arena_bytes = 0;
    for (step, node) in g.nodes.iter().enumerate() {
        live.retain(|l| l.2 >= step);
        let v = node.output.index();
        if root[v] != v || places[v] != Place::Nowhere {
            continue;
        }
        let size = (g.values[v].dtype.bytes_of(&g.values[v].shape)).next_multiple_of(ALIGNMENT);
        let mut offset = 0;
        let mut at = live.len();
        for (i, l) in live.iter().enumerate() {
            if offset + size <= l.0 {
                at = i;
                break;
            }
            offset = l.1;
        }
        live.insert(at, (offset, offset + size, last_use[v]));
        arena_bytes = arena_bytes.max(offset + size);
        places[v] = Place::Arena(offset);
    }
    for v in 0..n {
        places[v] = places[root[v]];
    }
    MemoryPlan { places, arena_bytes, copies }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Activation, DType};

    /// A chain with a long-lived value needs three slots, however long it is.
    #[test]
    fn memory_is_reused() {
        let mut g = Graph::new("chain");
        let x = g.input("x", DType::F32, [16]).expect("declares");
        let keep = g.activate(x, Activation::Relu).expect("builds");
        let mut y = keep;
        for _ in 0..10 {
            y = g.activate(y, Activation::Tanh).expect("builds");
        }
        let z = g.add(y, keep).expect("builds");
        g.output("z", z).expect("declares");
        assert_eq!(plan(&g).arena_bytes, 3 * 64);
    }

    /// Stores read what states held before the run, whatever the order in which they happen.
    #[test]
    fn no_store_reads_a_state_that_another_replaces() {
        let mut g = Graph::new("states");
        let a = g.state("a", DType::F32, [2]).expect("declares");
        let b = g.state("b", DType::F32, [2]).expect("declares");
        let c = g.state("c", DType::F32, [1, 2]).expect("declares");
        let flat = g.reshape(c, [2]).expect("builds");
        g.update("a", b).expect("fits");
        g.update("b", a).expect("fits");
        g.output("old a", a).expect("declares");
        g.output("old c", flat).expect("declares");
        keep_old_states(&mut g);
        // Nothing replaces c, so it needs no copy before it is copied.
        assert_eq!(g.nodes().iter().filter(|n| n.op == Op::Concat { axis: 0 }).count(), 3);
        let p = plan(&g);
        for (_, v) in &p.copies {
            assert!(!matches!(p.places[v.index()], Place::Buffer(0 | 1)), "{v:?} is read from a or b");
        }
    }

    #[test]
    fn live_values_never_overlap() {
        let mut state = 7u64;
        let mut random = move |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        let mut g = Graph::new("random");
        let mut all: Vec<Value> = vec![g.input("x", DType::F32, [4]).expect("declares")];
        for _ in 0..300 {
            let (a, b) = (all[random(all.len())], all[all.len() - 1 - random(all.len().min(4))]);
            let v = match random(3) {
                0 => g.push(Op::Concat { axis: 0 }, &[a], None),
                1 => g.reshape(b, [1, 4]).and_then(|v| g.reshape(v, [4])),
                _ => g.add(a, b),
            };
            all.push(v.expect("builds"));
        }
        g.output("y", all[300]).expect("declares");
        let p = plan(&g);
        let n = g.nodes().len();
        let mut last = vec![0; g.values.len()];
        for (s, node) in g.nodes().iter().enumerate() {
            node.inputs.iter().for_each(|v| last[v.index()] = s);
        }
        for (i, a) in g.nodes().iter().enumerate() {
            for b in &g.nodes()[i + 1..n] {
                let (Place::Arena(x), Place::Arena(y)) =
                    (p.places[a.output.index()], p.places[b.output.index()])
                else {
                    continue;
                };
                let defined_b = g.nodes().iter().position(|m| m.output == b.output).expect("is there");
                let overlap = x < y + 64 && y < x + 64;
                let aliased = b.op == Op::Reshape;
                assert!(!overlap || aliased || last[a.output.index()] < defined_b);
            }
        }
    }
}
