//! Products of one row by weights that stand one after the other: one product, whose parts they are.
//!
//! Queries, keys and values, or gate and up, read the same row. A product by all their weights together takes as long as their
//! bytes; each of its own would wait for the one before.

use super::Joining;
use orate_graph::{Epilogue, Op, Value, Weight};

/// The weight of a product that can be a part, and whether it has an activation.
fn part(op: &Op) -> Option<(&Weight, bool)> {
    match op {
        Op::MatMul { weight, epilogue: Epilogue { bias: None, activation, residual: false } } => {
            Some((weight, activation.is_some()))
        }
        _ => None,
    }
}

impl<'p> Joining<'p> {
    /// `follows` says whether the second weight stands behind the first.
    pub(super) fn products(&mut self, follows: &dyn Fn(&Weight, &Weight) -> bool) {
        for i in 0..self.steps.len() {
            let Some((mut last, _)) = self.part_at(i) else { continue };
            let Some((x, first)) = self.steps[i].as_ref().map(|s| (s.inputs[0], s.output)) else { continue };
            let mut width = self.plan.info(first).shape.len();
            let mut parts = vec![];
            for j in i + 1..self.steps.len() {
                let Some((weight, active)) = self.part_at(j) else { continue };
                let Some((y, out)) = self.steps[j].as_ref().map(|s| (s.inputs[0], s.output)) else {
                    continue;
                };
                // Only the first may have an activation.
                if y != x || active || !follows(last, weight) {
                    continue;
                }
                self.inside.insert(out, (first, width));
                width += self.plan.info(out).shape.len();
                (last, self.steps[j]) = (weight, None);
                parts.push(j);
            }
            if !parts.is_empty() {
                self.extended.insert(first, width);
                if let Some(s) = &mut self.steps[i] {
                    s.parts = parts;
                }
            }
        }
    }

    fn part_at(&self, i: usize) -> Option<(&'p Weight, bool)> {
        let step = self.steps[i].as_ref()?;
        let one_row = self.plan.info(step.output).shape.rows() == 1;
        part(self.op(i)).filter(|_| one_row && step.row.is_none() && self.is_free(step.output))
    }

    /// Whether a value may lie wherever we want, and holds nothing else.
    pub(super) fn is_free(&self, v: Value) -> bool {
        self.is_temporary(v) && !self.inside.contains_key(&v) && !self.extended.contains_key(&v)
    }
}
