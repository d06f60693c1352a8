//! What a plan can do with fewer kernels, and where its values then live.
//!
//! Kernels of a GPU can do more than one step of a plan, and to launch one takes microseconds. So steps join their
//! neighbours, moves of whole blocks become other addresses, and the arena is laid out anew for what is left. An
//! executor says with [`Joins`] what its kernels can do:
//!
//! | steps | become |
//! | --- | --- |
//! | products of few rows by weights that stand together | one product |
//! | RMS norm of one row, then products that alone read it | the products, which norm the row |
//! | gate, up, and `Mul` of both | one product, which multiplies what it stores |
//! | norms of heads, rotary positions, rows that are written | one launch |
//! | product, then `AddRow` of a `SelectRow` | the product, which adds the row that the scalar names |
//! | `Rotary`, then attention of it as queries | attention, which turns its queries |
//! | `Slice` of one block | a place inside its operand |
//! | `Concat` of whole blocks | places inside the result, where the operands are made |

mod heads;
mod products;

use crate::{ALIGNMENT, DType, Op, Place, Plan, Scalar, Value, Weight};
pub use heads::{TURNS, Turn};
use std::collections::{HashMap, HashSet};

/// Where a value is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The plan never needs it.
    Nowhere,
    /// At an offset of the arena.
    Arena(usize),
    /// At an offset of the buffer with this number.
    Buffer(usize, usize),
}

/// What kernels of a device can do besides one step alone. Heads and moves are joined on all of them.
pub struct Joins<'a> {
    /// Whether products by two weights can be one: the second is that of a part behind the first.
    pub products: &'a dyn Fn(&Weight, &Weight) -> bool,
    /// Rows of such products, at most. Parts of one with several rows are matrices one after the other, and at most [`PARTS`].
    pub rows_of_products: usize,
    /// Products add a row that a scalar names.
    pub rows: bool,
    /// Attention turns its queries.
    pub queries: bool,
    /// Whether products of one row by this weight norm it; see [`Joined::norm`].
    pub norms: &'a dyn Fn(&Weight) -> bool,
    /// Rows of products with one part that multiply both, at most; see [`Joined::gated`].
    pub rows_of_gates: usize,
    /// Whether the launch that turns heads of this width also writes them to states of these elements. It does to floats.
    pub caches: &'a dyn Fn(DType, usize) -> bool,
}

/// A step that is left, with what joined it.
#[derive(Clone, Debug, PartialEq)]
pub struct Joined {
    /// Its number in the plan.
    pub step: usize,
    /// Operands; those of a `Concat` that are made in place are left out.
    pub inputs: Vec<Value>,
    /// The result.
    pub output: Value,
    /// Of a product: a table and the scalar that names the row which is added at the end.
    pub row: Option<(Value, Scalar)>,
    /// Of attention: the table that turns the queries.
    pub table: Option<Value>,
    /// Of a product: steps of the products that are parts of it, and come behind.
    pub parts: Vec<usize>,
    /// Of a product of one row: the step of the RMS norm of its first operand, which is not yet normed.
    pub norm: Option<usize>,
    /// Of a product with one part: the result is what both make, multiplied.
    pub gated: bool,
    /// If there are any, the launch is these.
    pub turns: Vec<Turn>,
}

impl Joined {
    /// All values that it reads and makes.
    fn values(&self) -> impl Iterator<Item = &Value> {
        let made = self.turns.iter().map(|t| &t.out).chain([&self.output]);
        self.inputs.iter().chain(self.row.iter().map(|(v, _)| v)).chain(&self.table).chain(made)
    }
}

/// Steps and places.
pub struct Layout {
    /// What is left, in order.
    pub steps: Vec<Joined>,
    /// Size of the memory for temporaries.
    pub arena_bytes: usize,
    places: HashMap<Value, At>,
}

impl Layout {
    /// Where a value is.
    pub fn at(&self, v: Value) -> At {
        self.places.get(&v).copied().unwrap_or(At::Nowhere)
    }
}

/// Parts behind a product of several rows, at most.
pub const PARTS: usize = 2;

/// Kernels read 16 bytes at a time.
const WHOLE: usize = 4;

/// Product of the extents in front of and behind `axis`.
fn around(dims: &[usize], axis: usize) -> (usize, usize) {
    (dims[..axis].iter().product(), dims[axis + 1..].iter().product())
}

/// Joins steps and lays out the arena.
pub fn layout(plan: &Plan, joins: &Joins<'_>) -> Layout {
    let mut joining = Joining::new(plan);
    if joins.rows {
        joining.rows();
    }
    joining.heads(joins.caches);
    if joins.queries {
        joining.queries();
    }
    joining.products(joins.products, joins.rows_of_products);
    joining.gates(joins.rows_of_gates);
    joining.norms(joins.norms);
    joining.moves();
    joining.finish()
}

struct Joining<'p> {
    plan: &'p Plan,
    /// `None` for steps that joined another, or became a place.
    steps: Vec<Option<Joined>>,
    /// Step that makes a value.
    made_by: HashMap<Value, usize>,
    /// Steps that read a value; copies at the end count as the step after the last.
    readers: HashMap<Value, Vec<usize>>,
    /// Values that are a part of another, from this element on.
    inside: HashMap<Value, (Value, usize)>,
    /// Elements of values behind whose own there are others.
    extended: HashMap<Value, usize>,
}

impl<'p> Joining<'p> {
    fn new(plan: &'p Plan) -> Self {
        let mut j = Joining {
            plan,
            steps: vec![],
            made_by: HashMap::new(),
            readers: HashMap::new(),
            inside: HashMap::new(),
            extended: HashMap::new(),
        };
        for (i, step) in plan.steps().iter().enumerate() {
            let node = &step.node;
            j.made_by.insert(node.output, i);
            node.inputs.iter().for_each(|v| j.readers.entry(*v).or_default().push(i));
            let joined = Joined {
                step: i,
                inputs: node.inputs.clone(),
                output: node.output,
                row: None,
                table: None,
                parts: vec![],
                norm: None,
                gated: false,
                turns: vec![],
            };
            if node.op == Op::Reshape {
                j.inside.insert(node.output, (node.inputs[0], 0));
                j.steps.push(None);
            } else {
                j.steps.push(Some(joined));
            }
        }
        plan.copies().iter().for_each(|(_, v)| j.readers.entry(*v).or_default().push(plan.steps().len()));
        j
    }

    fn op(&self, step: usize) -> &'p Op {
        &self.plan.steps()[step].node.op
    }

    /// The step that makes `v` for one reader alone, in the arena.
    fn private(&self, v: Value) -> Option<usize> {
        let alone = self.readers.get(&v).is_some_and(|r| r.len() == 1);
        let step = *self.made_by.get(&v)?;
        (alone && self.is_temporary(v) && self.steps[step].is_some()).then_some(step)
    }

    fn is_temporary(&self, v: Value) -> bool {
        matches!(self.plan.place(v), Place::Arena(_))
    }

    /// Whether the memory of `v` is a state's that some step writes in place, so that it must be read where the plan reads it.
    fn is_rewritten(&self, v: Value) -> bool {
        let place = self.plan.place(self.whole(v).0);
        let steps = self.plan.steps().iter().map(|s| &s.node);
        matches!(place, Place::Buffer(_))
            && steps.into_iter().any(|n| n.op.in_place() && self.plan.place(n.output) == place)
    }

    /// Rows that a scalar names, into the product in front.
    fn rows(&mut self) {
        for i in 0..self.steps.len() {
            if *self.op(i) != Op::AddRow {
                continue;
            }
            let Some(Joined { inputs, output, .. }) = self.steps[i].clone() else { continue };
            let (Some(product), Some(select)) = (self.private(inputs[0]), self.private(inputs[1])) else {
                continue;
            };
            let (Op::MatMul { .. } | Op::Conv1d { .. }, Op::SelectRow { index }) =
                (self.op(product), self.op(select))
            else {
                continue;
            };
            let table = self.plan.steps()[select].node.inputs[0];
            // The product comes first now, so the table has to be there already.
            let there = self.plan.info(table).buffer.is_some();
            if !there || !self.is_temporary(output) || self.is_rewritten(table) {
                continue;
            }
            if let Some(p) = &mut self.steps[product] {
                (p.output, p.row) = (output, Some((table, *index)));
            }
            self.made_by.insert(output, product);
            (self.steps[i], self.steps[select]) = (None, None);
        }
    }

    /// Rotary positions of queries, into the attention behind.
    fn queries(&mut self) {
        for i in 0..self.steps.len() {
            let Op::Attention { heads, .. } = self.op(i) else { continue };
            let Some(query) = self.steps[i].as_ref().map(|s| s.inputs[0]) else { continue };
            let Some(rotary) = self.private(query) else { continue };
            // One that norms its heads, too, is a launch of its own.
            let alone = self.steps[rotary].as_ref().is_some_and(|s| s.turns.is_empty());
            if *self.op(rotary) != (Op::Rotary { heads: *heads }) || !alone {
                continue;
            }
            let (x, table) = {
                let node = &self.plan.steps()[rotary].node;
                (node.inputs[0], node.inputs[1])
            };
            if self.is_rewritten(x) || self.is_rewritten(table) {
                continue;
            }
            if let Some(s) = &mut self.steps[i] {
                (s.inputs[0], s.table) = (x, Some(table));
            }
            self.steps[rotary] = None;
        }
    }

    /// Slices and concatenations of whole blocks.
    fn moves(&mut self) {
        for i in 0..self.steps.len() {
            let Some(Joined { inputs, output, .. }) = self.steps[i].clone() else { continue };
            match *self.op(i) {
                Op::Slice { axis, start, .. } => {
                    let (outer, inner) = around(self.plan.info(inputs[0]).shape.dims(), axis);
                    // What is copied at the end must be what it was during the run.
                    let copied = self.readers.get(&output).is_some_and(|r| r.contains(&self.steps.len()));
                    if outer == 1
                        && (start * inner).is_multiple_of(WHOLE)
                        && self.is_temporary(output)
                        && !copied
                        && !self.is_rewritten(inputs[0])
                    {
                        self.inside.insert(output, (inputs[0], start * inner));
                        self.steps[i] = None;
                    }
                }
                Op::Concat { axis } => {
                    let (outer, inner) = around(self.plan.info(output).shape.dims(), axis);
                    let distinct: HashSet<Value> = inputs.iter().copied().collect();
                    let mut offset = 0;
                    let mut places = vec![];
                    for v in &inputs {
                        // Made by a step of its own, and not yet a part of something else.
                        let own = self.made_by.get(v).is_some_and(|s| self.steps[*s].is_some());
                        let free = own && self.is_free(*v);
                        if free && offset % WHOLE == 0 {
                            places.push((*v, offset));
                        }
                        offset += self.plan.info(*v).shape.dims()[axis] * inner;
                    }
                    if outer == 1 && distinct.len() == inputs.len() && places.len() == inputs.len() {
                        places.into_iter().for_each(|(v, offset)| {
                            self.inside.insert(v, (output, offset));
                        });
                        self.steps[i] = None;
                    }
                }
                _ => {}
            }
        }
    }

    /// The value that `v` is a part of, and where it begins in it.
    fn whole(&self, mut v: Value) -> (Value, usize) {
        let mut offset = 0;
        while let Some((outer, start)) = self.inside.get(&v) {
            (v, offset) = (*outer, offset + start);
        }
        (v, offset)
    }

    /// Gives what is left of the temporaries new places: first fit, in the order in which they are made.
    fn finish(self) -> Layout {
        let end = self.steps.len();
        let mut lives: HashMap<Value, (usize, usize)> = HashMap::new();
        for s in self.steps.iter().flatten() {
            for v in s.values() {
                let life = lives.entry(self.whole(*v).0).or_insert((s.step, s.step));
                life.1 = s.step;
            }
        }
        for (_, v) in self.plan.copies() {
            lives.entry(self.whole(*v).0).and_modify(|life| life.1 = end);
        }
        let mut temporaries: Vec<(usize, usize, Value)> = lives
            .iter()
            .filter(|(v, _)| self.is_temporary(**v))
            .map(|(v, (first, last))| (*first, *last, *v))
            .collect();
        temporaries.sort_by_key(|(first, _, v)| (*first, v.index()));
        let mut live: Vec<(usize, usize, usize)> = vec![]; // offset, end, last use; by offset
        let (mut offsets, mut arena_bytes) = (HashMap::new(), 0);
        for (first, last, v) in temporaries {
            live.retain(|l| l.2 >= first);
            let info = self.plan.info(v);
            let elements = self.extended.get(&v).copied().unwrap_or(info.shape.len());
            // Temporaries are of four bytes: compact ones lie in their states.
            let size = (4 * elements).next_multiple_of(ALIGNMENT);
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
        let nodes = self.plan.steps().iter().map(|s| &s.node);
        let all = nodes
            .flat_map(|n| n.inputs.iter().chain([&n.output]))
            .chain(self.plan.copies().iter().map(|c| &c.1));
        let places = all.map(|v| {
            let (whole, elements) = self.whole(*v);
            let at = match (self.plan.place(whole), offsets.get(&whole)) {
                (Place::Buffer(i), _) => At::Buffer(i, 4 * elements),
                (Place::Arena(_), Some(offset)) => At::Arena(offset + 4 * elements),
                _ => At::Nowhere,
            };
            (*v, at)
        });
        Layout {
            places: places.collect(),
            arena_bytes,
            steps: self.steps.iter().flatten().cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Graph, Rows, Target, ValueInfo};

    /// A target that runs everything.
    struct Any;

    impl Target for Any {
        fn name(&self) -> String {
            "any".to_owned()
        }

        fn kernel(&self, _: &Op, _: &[&ValueInfo]) -> Result<String, String> {
            Ok(String::new())
        }
    }

    /// Joins that CUDA's kernels can do.
    fn layout(p: &Plan, products: &dyn Fn(&Weight, &Weight) -> bool) -> Layout {
        super::layout(
            p,
            &Joins {
                products,
                rows_of_products: 1,
                rows: true,
                queries: true,
                norms: &|_| false,
                rows_of_gates: 0,
                caches: &|_, _| false,
            },
        )
    }

    fn plan(build: impl FnOnce(&mut Graph, Value)) -> Plan {
        let mut g = Graph::new("fuse");
        let x = g.input("x", DType::F32, [1, 6, 8]).expect("declares");
        build(&mut g, x);
        Plan::compile(g, &Any).expect("everything runs")
    }

    fn names(plan: &Plan, l: &Layout) -> Vec<&'static str> {
        l.steps.iter().map(|s| plan.steps()[s.step].node.op.name()).collect()
    }

    fn product(g: &mut Graph, x: Value, name: &str) -> Value {
        g.matmul(x, Weight::named(name, [8, 8])).expect("builds")
    }

    #[test]
    fn a_row_joins_its_product_if_nobody_else_reads_it() {
        for shared in [false, true] {
            let p = plan(|g, x| {
                let rows = g.input("rows", DType::F32, [3, 8]).expect("declares");
                let step = g.scalar("step");
                let y = product(g, x, "w");
                let row = g.select_row(rows, step).expect("builds");
                let z = g.add_row(y, row).expect("builds");
                let z = if shared { g.add(z, y).expect("builds") } else { product(g, z, "v") };
                g.output("z", z).expect("declares");
            });
            let l = layout(&p, &|_, _| false);
            match shared {
                false => assert_eq!(names(&p, &l), ["MatMul", "MatMul"]),
                true => assert_eq!(names(&p, &l), ["MatMul", "SelectRow", "AddRow", "Add"]),
            }
            assert_eq!(l.steps[0].row.is_some(), !shared);
            let reader = &l.steps[if shared { 2 } else { 1 }];
            assert_eq!(l.at(reader.inputs[0]), l.at(l.steps[0].output), "the product's result is read");
        }
    }

    #[test]
    fn queries_are_turned_by_the_attention() {
        let p = plan(|g, x| {
            let table = g.input("table", DType::F32, [1, 2, 6, 2]).expect("declares");
            let q = product(g, x, "q");
            let q = g.rotary(q, table, 2).expect("builds");
            let k = product(g, x, "k");
            let k = g.rotary(k, table, 2).expect("builds");
            let op = Op::Attention { heads: 2, scale: 1.0, mask: crate::AttentionMask::None, relative: None };
            let y = g.attention(op, q, k, x, None).expect("builds");
            g.output("y", y).expect("declares");
        });
        let l = layout(&p, &|_, _| false);
        assert_eq!(
            names(&p, &l),
            ["MatMul", "MatMul", "Rotary", "Attention"],
            "keys are turned on their own"
        );
        assert!(l.steps[3].table.is_some());
        let places: HashSet<String> = l.steps[3].inputs.iter().map(|v| format!("{:?}", l.at(*v))).collect();
        assert_eq!(places.len(), 3, "no operand lies on another");
    }

    #[test]
    fn queries_that_are_normed_are_turned_with_their_norm() {
        let p = plan(|g, x| {
            let table = g.rope_table(1e4, 6, 8, Rows::From(0)).expect("builds");
            let q = product(g, x, "q");
            let q = g.reshape(q, [1, 6, 1, 8]).expect("builds");
            let q = g.rms_norm(q, Weight::named("norm", [8]), 1e-6).expect("builds");
            let q = g.reshape(q, [1, 6, 8]).expect("builds");
            let q = g.rotary(q, table, 1).expect("builds");
            let op = Op::Attention { heads: 1, scale: 1.0, mask: crate::AttentionMask::None, relative: None };
            let y = g.attention(op, q, x, x, None).expect("builds");
            g.output("y", y).expect("declares");
        });
        let l = layout(&p, &|_, _| false);
        assert_eq!(names(&p, &l), ["RopeTable", "MatMul", "Rotary", "Attention"]);
        assert!(l.steps[2].turns[0].norm.is_some() && l.steps[3].table.is_none());
    }

    #[test]
    fn whole_blocks_are_not_moved() {
        let p = plan(|g, x| {
            let a = product(g, x, "a");
            let b = product(g, x, "b");
            let both = g.concat(&[a, b], 0).expect("builds");
            let c = product(g, both, "c");
            let second = g.slice(c, 0, 1, 1).expect("builds");
            let y = product(g, second, "d");
            g.output("y", y).expect("declares");
        });
        let l = layout(&p, &|_, _| false);
        assert_eq!(names(&p, &l), ["MatMul"; 4]);
        let (At::Arena(a), At::Arena(b)) = (l.at(l.steps[0].output), l.at(l.steps[1].output)) else {
            panic!("arena")
        };
        assert_eq!((a, b), (0, 4 * 48));
        assert_eq!(l.at(l.steps[2].inputs[0]), At::Arena(0));
        let (At::Arena(whole), At::Arena(part)) = (l.at(l.steps[2].output), l.at(l.steps[3].inputs[0]))
        else {
            panic!("arena")
        };
        assert_eq!(part, whole + 4 * 48);
    }

    #[test]
    fn blocks_that_are_cut_or_used_twice_are_moved() {
        let p = plan(|g, x| {
            let a = product(g, x, "a");
            let twice = g.concat(&[a, a], 0).expect("builds");
            let wide = g.concat(&[twice, twice], 2).expect("builds");
            let cut = g.slice(wide, 2, 1, 8).expect("builds");
            g.output("cut", cut).expect("declares");
            let inputs = g.concat(&[x, x], 1).expect("builds");
            g.output("inputs", inputs).expect("declares");
        });
        assert_eq!(names(&p, &layout(&p, &|_, _| false)), ["MatMul", "Concat", "Concat", "Slice", "Concat"]);
    }

    /// Lifetimes in a long random graph: nothing is overwritten before its last reader.
    #[test]
    fn live_values_never_overlap() {
        let mut state = 3u64;
        let mut random = move |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        let p = plan(|g, x| {
            let mut all = vec![x];
            for _ in 0..200 {
                let (a, b) = (all[random(all.len())], all[all.len() - 1 - random(all.len().min(3))]);
                let v = match random(4) {
                    0 => g.concat(&[a, b], 0).and_then(|v| g.slice(v, 0, 0, 1)),
                    1 => g.reshape(b, [6, 1, 8]).and_then(|v| g.reshape(v, [1, 6, 8])),
                    2 => g
                        .slice(b, 1, 2, 4)
                        .and_then(|v| g.concat(&[v, v], 1))
                        .and_then(|v| g.slice(v, 1, 1, 6)),
                    _ => g.add(a, b),
                };
                all.push(v.expect("builds"));
            }
            g.output("y", all[200]).expect("declares");
        });
        let l = layout(&p, &|_, _| false);
        let range = |v: Value| match l.at(v) {
            At::Arena(start) => Some((start, start + 4 * p.info(v).shape.len())),
            _ => None,
        };
        // Who wrote each byte last, by replaying the steps.
        let mut owner: HashMap<usize, HashSet<usize>> = HashMap::new();
        let mut content: Vec<u64> = vec![0; l.arena_bytes];
        let mut expected: HashMap<usize, Vec<u64>> = HashMap::new();
        for s in &l.steps {
            for v in &s.inputs {
                if let (Some((a, b)), Some(want)) = (range(*v), expected.get(&v.index())) {
                    assert_eq!(&content[a..b], &want[..], "step {} reads what was overwritten", s.step);
                }
            }
            if let Some((a, b)) = range(s.output) {
                content[a..b].fill(s.step as u64 + 1);
                owner.entry(s.step).or_default().insert(a);
                expected.insert(s.output.index(), content[a..b].to_vec());
            }
        }
        assert!(l.steps.len() > 50 && l.arena_bytes <= p.arena_bytes() + 4096);
    }

    /// Queries, keys and values of one row, as a transformer that decodes has them.
    fn decoding(rows: usize) -> Plan {
        let mut g = Graph::new("decode");
        let x = g.input("x", DType::F32, [1, rows, 64]).expect("declares");
        let at = g.input("at", DType::I32, [1]).expect("declares");
        let [keys, values] =
            ["keys", "values"].map(|n| g.state(n, DType::F32, [1, 9, 32]).expect("declares"));
        let table = g.rope_table(1e4, rows, 16, Rows::At(at)).expect("builds");
        let w = |name: &str, n: usize| Weight::named(name, [64, n]);
        let v = g.matmul(x, w("v", 32)).expect("builds");
        let mut turned = |name: &str, heads: usize| {
            let y = g.matmul(x, w(name, 16 * heads)).expect("builds");
            let y = g.reshape(y, [1, rows, heads, 16]).expect("builds");
            let y = g.rms_norm(y, Weight::named("norm", [16]), 1e-6).expect("builds");
            let y = g.reshape(y, [1, rows, 16 * heads]).expect("builds");
            g.rotary(y, table, heads).expect("builds")
        };
        let (q, k) = (turned("q", 4), turned("k", 2));
        let keys = g.write_rows(keys, k, Rows::At(at)).expect("builds");
        let values = g.write_rows(values, v, Rows::At(at)).expect("builds");
        let mask = crate::AttentionMask::Cached(crate::First::Operand);
        let op = Op::Attention { heads: 4, scale: 1.0, mask, relative: None };
        let y = g.attention(op, q, keys, values, Some(at)).expect("builds");
        g.output("y", y).expect("declares");
        Plan::compile(g, &Any).expect("everything runs")
    }

    #[test]
    fn a_row_takes_few_launches_to_its_attention() {
        let p = decoding(1);
        let l = layout(&p, &|_, _| true);
        assert_eq!(names(&p, &l), ["RopeTable", "MatMul", "WriteRows", "Attention"]);
        assert_eq!(l.steps[1].parts.len(), 2, "queries and keys are parts of the product that makes values");
        let turns = &l.steps[2].turns;
        let what: Vec<_> = turns
            .iter()
            .map(|t| (t.heads.0, t.norm.is_some(), t.table.is_some(), t.write.is_some()))
            .collect();
        assert_eq!(what, [(4, true, true, false), (2, true, true, true), (2, false, false, true)]);
        // Values, queries, keys: one after the other, where the product writes them.
        let places: Vec<_> = [2, 0, 1].map(|i| l.at(turns[i].x)).to_vec();
        let At::Arena(first) = places[0] else { panic!("{places:?}") };
        assert_eq!(places[1..], [At::Arena(first + 4 * 32), At::Arena(first + 4 * 96)]);
        assert!(matches!(l.at(turns[1].out), At::Buffer(..)), "keys go to their state");
        assert_ne!(l.at(turns[0].out), places[1], "queries are not turned where others read them");
    }

    #[test]
    fn parts_of_several_rows_are_matrices_one_after_the_other() {
        let p = decoding(3);
        let joins = Joins {
            products: &|_, _| true,
            rows_of_products: 3,
            rows: true,
            queries: true,
            norms: &|_| false,
            rows_of_gates: 0,
            caches: &|_, _| false,
        };
        let l = super::layout(&p, &joins);
        assert_eq!(names(&p, &l), ["RopeTable", "MatMul", "WriteRows", "Attention"]);
        let turns = &l.steps[2].turns;
        let places: Vec<_> = [2, 0, 1].map(|i| l.at(turns[i].x)).to_vec();
        let At::Arena(first) = places[0] else { panic!("{places:?}") };
        assert_eq!(places[1..], [At::Arena(first + 4 * 3 * 32), At::Arena(first + 4 * 3 * 96)]);
        let apart = super::layout(&p, &Joins { rows_of_products: 2, ..joins });
        assert_eq!(
            names(&p, &apart).into_iter().filter(|n| *n == "MatMul").count(),
            3,
            "of two rows at most"
        );
    }

    #[test]
    fn several_rows_or_scattered_weights_are_products_of_their_own() {
        let together = |p: &Plan, follows: bool| {
            let l = layout(p, &|_, _| follows);
            names(p, &l).into_iter().filter(|n| *n == "MatMul").count()
        };
        assert_eq!(together(&decoding(1), true), 1);
        assert_eq!(together(&decoding(1), false), 3);
        assert_eq!(together(&decoding(2), true), 3);
    }

    #[test]
    fn a_state_is_read_where_the_plan_reads_it() {
        let p = plan(|g, x| {
            let cache = g.state("cache", DType::F32, [1, 9, 8]).expect("declares");
            let before = g.slice(cache, 1, 0, 6).expect("builds");
            g.write_rows(cache, x, Rows::From(0)).expect("builds");
            let y = g.add(before, x).expect("builds");
            g.output("y", y).expect("declares");
        });
        let l = layout(&p, &|_, _| false);
        assert_eq!(names(&p, &l), ["Slice", "WriteRows", "Add"], "the old rows are copied before they go");
    }

    /// Norm, gate and up of one row, and what else reads the normed row.
    fn gated(rows: usize, shared: bool) -> Plan {
        let mut g = Graph::new("gated");
        let x = g.input("x", DType::F32, [1, rows, 8]).expect("declares");
        let y = g.rms_norm(x, Weight::named("norm", [8]), 1e-6).expect("builds");
        let gate = product(&mut g, y, "gate");
        let gate = g.activate(gate, crate::Activation::Silu).expect("builds");
        let up = product(&mut g, y, "up");
        let z = g.mul(gate, up).expect("builds");
        let z = if shared { g.add(z, y).expect("builds") } else { z };
        let z = product(&mut g, z, "down");
        let z = g.add(z, x).expect("builds");
        g.output("z", z).expect("declares");
        Plan::compile(g, &Any).expect("everything runs")
    }

    #[test]
    fn products_norm_their_row_and_multiply_what_they_make() {
        let all = |p: &Plan, able: bool| {
            let joins = Joins {
                products: &|_, _| true,
                rows_of_products: 1,
                rows: false,
                queries: false,
                norms: &|_| able,
                rows_of_gates: 16,
                caches: &|_, _| false,
            };
            super::layout(p, &joins)
        };
        let p = gated(1, false);
        let l = all(&p, true);
        assert_eq!(names(&p, &l), ["MatMul", "MatMul"]);
        let first = &l.steps[0];
        assert_eq!((first.norm, first.gated, first.parts.len()), (Some(0), true, 1));
        assert_eq!(first.inputs, p.steps()[0].node.inputs, "the row is read in front of its norm");
        assert_eq!(l.at(first.output), l.at(l.steps[1].inputs[0]));
        assert_eq!(l.arena_bytes, ALIGNMENT, "only the product of both is kept");
        assert_eq!(names(&p, &all(&p, false)), ["RmsNorm", "MatMul", "MatMul"]);
        let p = gated(1, true);
        assert_eq!(names(&p, &all(&p, true)), ["RmsNorm", "MatMul", "Add", "MatMul"]);
        let p = gated(2, false);
        assert_eq!(names(&p, &all(&p, true)), ["RmsNorm", "MatMul", "MatMul", "Mul", "MatMul"]);
    }
}
