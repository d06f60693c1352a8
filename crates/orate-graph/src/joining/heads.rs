//! Heads of queries and keys that are normed, turned and put in their place, and values that are put there with them.
//!
//! | steps | become |
//! | --- | --- |
//! | `RmsNorm` of each head, then `Rotary` | a turn |
//! | a turn, then `WriteRows` of it | a turn that writes to the state |
//! | turns, and `WriteRows` of other values, with nothing between that needs them | one launch |

use super::Joining;
use crate::{DType, Op, Value};

/// Most values that one launch turns.
pub const TURNS: usize = 3;

/// Widest heads, and what their width is a multiple of.
const WIDTH: (usize, usize) = (128, 8);

/// Heads that are normed, turned, and put in their place.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// Rows of heads.
    pub x: Value,
    /// Heads of a row, and their width.
    pub heads: (usize, usize),
    /// The step of the norm.
    pub norm: Option<usize>,
    /// The table that turns them.
    pub table: Option<Value>,
    /// The result: a value, or the state that `write` makes.
    pub out: Value,
    /// The step that writes to a state.
    pub write: Option<usize>,
}

impl Joining<'_> {
    pub(super) fn heads(&mut self, caches: &dyn Fn(DType, usize) -> bool) {
        for i in 0..self.steps.len() {
            match *self.op(i) {
                Op::Rotary { heads } => self.norm_and_rotary(i, heads),
                Op::WriteRows { .. } => self.turn_and_write(i, caches),
                _ => {}
            }
        }
        self.gather_turns(caches);
    }

    /// Whether heads of width `d` are written to the state `v` by what turns them.
    fn takes_heads(&self, v: Value, d: usize, caches: &dyn Fn(DType, usize) -> bool) -> bool {
        let dtype = self.plan.info(v).dtype;
        dtype == DType::F32 || caches(dtype, d)
    }

    /// What `v` is another shape of, if nobody else reads any of these.
    fn unshaped(&self, mut v: Value) -> Option<Value> {
        loop {
            if self.readers.get(&v).is_none_or(|r| r.len() != 1) || !self.is_temporary(v) {
                return None;
            }
            match self.made_by.get(&v) {
                Some(step) if *self.op(*step) == Op::Reshape => v = self.plan.steps()[*step].node.inputs[0],
                _ => return Some(v),
            }
        }
    }

    fn norm_and_rotary(&mut self, i: usize, heads: usize) {
        let Some((x, table, out)) = self.steps[i].as_ref().map(|s| (s.inputs[0], s.inputs[1], s.output))
        else {
            return;
        };
        let d = self.plan.info(out).shape.last() / heads;
        let norm = self.unshaped(x).and_then(|v| self.made_by.get(&v).copied());
        let Some(norm) = norm.filter(|s| self.steps[*s].is_some()) else { return };
        let Op::RmsNorm { weight, .. } = self.op(norm) else { return };
        let x = self.plan.steps()[norm].node.inputs[0];
        let fits = d <= WIDTH.0 && d.is_multiple_of(WIDTH.1) && weight.shape().len() == d;
        if !fits || !self.is_temporary(self.whole(x).0) || !self.is_temporary(table) {
            return;
        }
        let turn = Turn { x, heads: (heads, d), norm: Some(norm), table: Some(table), out, write: None };
        self.steps[norm] = None;
        if let Some(s) = &mut self.steps[i] {
            (s.inputs, s.turns) = (vec![x, table], vec![turn]);
        }
    }

    fn turn_and_write(&mut self, i: usize, caches: &dyn Fn(DType, usize) -> bool) {
        let Some(step) = self.steps[i].clone() else { return };
        let turn = self.unshaped(step.inputs[1]).and_then(|v| self.made_by.get(&v).copied());
        let Some(turned) = turn.and_then(|s| self.steps[s].clone()).filter(|s| s.turns.len() == 1) else {
            return;
        };
        if !self.takes_heads(step.output, turned.turns[0].heads.1, caches) {
            return;
        }
        let turn = Turn { out: step.output, write: Some(i), ..turned.turns[0].clone() };
        self.steps[turned.step] = None;
        if let Some(s) = &mut self.steps[i] {
            s.inputs = [turned.inputs, step.inputs[2..].to_vec()].concat();
            s.turns = vec![turn];
        }
    }

    /// Batch and time of what is turned.
    fn extent(&self, t: &Turn) -> [usize; 2] {
        let rows = t.write.map_or(t.out, |step| self.plan.steps()[step].node.inputs[1]);
        let dims = self.plan.info(rows).shape.dims();
        [dims[0], dims[1]]
    }

    /// Puts neighbours together, at the place of the last.
    fn gather_turns(&mut self, caches: &dyn Fn(DType, usize) -> bool) {
        let mut group: Option<usize> = None;
        for i in 0..self.steps.len() {
            let Some(step) = self.steps[i].clone() else { continue };
            let before = group.and_then(|g| self.steps[g].clone());
            // Rows that are only written go with turns; alone they stay what they are.
            let mut turns = step.turns.clone();
            if let (Op::WriteRows { .. }, true, Some(before)) = (self.op(i), turns.is_empty(), &before) {
                let (x, d) = (step.inputs[1], before.turns[0].heads.1);
                let width = self.plan.info(x).shape.last();
                let takes = self.takes_heads(step.output, d, caches);
                if takes && width.is_multiple_of(d) && self.is_temporary(self.whole(x).0) {
                    let heads = (width / d, d);
                    turns =
                        vec![Turn { x, heads, norm: None, table: None, out: step.output, write: Some(i) }];
                }
            }
            if turns.is_empty() {
                let needs = |g: &super::Joined| {
                    g.turns.iter().any(|t| {
                        // Temporaries get other places, and states are written in place.
                        let state = |v: &Value| {
                            !self.is_temporary(*v) && self.plan.place(*v) == self.plan.place(t.out)
                        };
                        let same = |v: &Value| self.whole(*v).0 == self.whole(t.out).0 || state(v);
                        step.inputs.iter().chain(&step.table).any(same)
                    })
                };
                if before.as_ref().is_some_and(needs) || self.op(i).in_place() {
                    group = None;
                }
                continue;
            }
            let alike = |b: &super::Joined| {
                // What writes to two states writes to them alike.
                let types = b.turns.iter().chain(&turns).filter(|t| t.write.is_some());
                let mut types = types.map(|t| self.plan.info(t.out).dtype);
                let first = types.next();
                types.all(|dtype| Some(dtype) == first)
                    && b.turns.len() + turns.len() <= TURNS
                    && b.turns[0].heads.1 == turns[0].heads.1
                    && self.extent(&b.turns[0]) == self.extent(&turns[0])
            };
            match before.filter(alike) {
                Some(before) => {
                    self.steps[before.step] = None;
                    let own = if step.turns.is_empty() { step.inputs[1..].to_vec() } else { step.inputs };
                    if let Some(s) = &mut self.steps[i] {
                        (s.inputs, s.turns) = ([before.inputs, own].concat(), [before.turns, turns].concat());
                    }
                }
                None if step.turns.is_empty() => {
                    group = None;
                    continue;
                }
                None => {}
            }
            group = Some(i);
        }
    }
}
