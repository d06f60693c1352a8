//! Checks that a memory plan is sound: every step finds its operands intact.

use orate_graph::{Node, Op, Place, Plan, Step, Value};
use std::collections::HashMap;

/// Writer of a four-byte word: a step, or `None` if it was written before the plan runs.
type Writer = Option<usize>;

struct Walk<'a> {
    plan: &'a Plan,
    /// The step that makes a value.
    made_by: HashMap<Value, usize>,
    /// The op of a value that no step makes: a view.
    views: HashMap<Value, &'a Node>,
    /// Last writer of each word, of the arena (`None`) and of buffers.
    written: HashMap<Option<usize>, Vec<Writer>>,
}

/// Checks that everything a step of `plan` reads, or a final copy takes, was written by the step that makes
/// the value and not overwritten since.
///
/// # Panics
/// It was overwritten or never written; the message names plan, step and operand.
pub fn assert_sound(plan: &Plan) {
    let mut walk = Walk {
        plan,
        made_by: HashMap::new(),
        views: plan.views().iter().map(|n| (n.output, n)).collect(),
        written: HashMap::new(),
    };
    for (i, step) in plan.steps().iter().enumerate() {
        for v in made(plan, step) {
            walk.made_by.insert(v, i);
        }
    }
    for (i, step) in plan.steps().iter().enumerate() {
        for v in read(step) {
            walk.check(v, &format!("step {i}, {}", step.describe()));
        }
        for v in made(plan, step) {
            walk.write(v, i);
        }
    }
    for (_, v) in plan.copies() {
        walk.check(*v, "the copies at the end");
    }
}

/// Operands that a step reads: those of its ops that it does not compute itself.
fn read(step: &Step) -> Vec<Value> {
    let own: Vec<Value> = step.nodes.iter().map(|n| n.output).collect();
    // The operand that an op writes in place is not read.
    let operands = step.nodes.iter().flat_map(|n| n.inputs.iter().skip(usize::from(n.op.in_place())));
    // The launch itself reads these.
    let heads = step.fused.heads.iter().map(|h| h.x).chain(step.fused.values());
    operands.copied().filter(|v| !own.contains(v)).chain(heads).collect()
}

/// Values that a step stores.
fn made(plan: &Plan, step: &Step) -> Vec<Value> {
    let stored = |v: &Value| plan.place(*v) != Place::Nowhere;
    step.nodes.iter().filter(|n| n.op != Op::Reshape).map(|n| n.output).filter(stored).collect()
}

impl Walk<'_> {
    fn words(&self, v: Value) -> usize {
        let info = self.plan.info(v);
        info.dtype.bytes_of(&info.shape).div_ceil(4)
    }

    /// Memory and first word of a value.
    fn place(&self, v: Value) -> Option<(Option<usize>, usize)> {
        match self.plan.place(v) {
            Place::Arena(at) => Some((None, at / 4)),
            Place::Buffer(i, at) => Some((Some(i), at / 4)),
            Place::Nowhere => None,
        }
    }

    fn write(&mut self, v: Value, step: usize) {
        let Some((memory, first)) = self.place(v) else { return };
        let end = first + self.words(v);
        let words = self.written.entry(memory).or_default();
        words.resize(words.len().max(end), None);
        words[first..end].fill(Some(step));
    }

    /// Actual writer of word `k` of `v`.
    fn found(&self, v: Value, k: usize) -> Result<Writer, String> {
        let (memory, first) = self.place(v).ok_or("it has no place")?;
        Ok(self.written.get(&memory).and_then(|words| words.get(first + k).copied()).flatten())
    }

    /// Expected writer of word `k` of `v`.
    fn writer(&self, v: Value, k: usize) -> Result<Writer, String> {
        if let Some(step) = self.made_by.get(&v) {
            return Ok(Some(*step));
        }
        let Some(node) = self.views.get(&v) else {
            let given = matches!(self.plan.place(v), Place::Buffer(..));
            return if given { Ok(None) } else { Err("no step makes it".to_owned()) };
        };
        let inner = |axis: usize| self.plan.info(v).shape.dims()[axis + 1..].iter().product::<usize>();
        match node.op {
            Op::Reshape => self.writer(node.inputs[0], k),
            Op::Slice { axis, start, .. } => self.writer(node.inputs[0], k + start * inner(axis)),
            Op::Concat { .. } => {
                let mut at = k;
                for input in &node.inputs {
                    if at < self.words(*input) {
                        return self.writer(*input, at);
                    }
                    at -= self.words(*input);
                }
                Err("the value ends before this word".to_owned())
            }
            ref op => Err(format!("{} was dropped", op.name())),
        }
    }

    fn check(&self, v: Value, by: &str) {
        if self.is_whole(v) {
            return;
        }
        for k in 0..self.words(v) {
            let (found, wanted) = (self.found(v, k), self.writer(v, k));
            assert!(
                matches!((&found, &wanted), (Ok(found), Ok(wanted)) if found == wanted),
                "{}: {by}: word {k} of operand {} at {:?} should be of {wanted:?}, and is of {found:?}",
                self.plan.name(),
                v.index(),
                self.plan.place(v),
            );
        }
    }

    /// Whether the step that makes `v` is the last writer of all its words. Values made by several steps are
    /// checked word by word.
    fn is_whole(&self, v: Value) -> bool {
        let (Some(step), Some((memory, first))) = (self.made_by.get(&v), self.place(v)) else { return false };
        let words = self.written.get(&memory).and_then(|words| words.get(first..first + self.words(v)));
        words.is_some_and(|words| words.iter().all(|by| *by == Some(*step)))
    }
}
