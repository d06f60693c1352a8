//! Products of few rows by weights that stand one after the other: one product, whose parts they are.
//!
//! Queries, keys and values, or gate and up, read the same rows. A product by all their weights together takes as long as their
//! bytes; each of its own would wait for the one before. What norms the row in front and what multiplies gate and up behind
//! can be done there as well.

use super::{Joined, Joining, PARTS};
use crate::{Epilogue, Op, Value, Weight};

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
    /// `follows` says whether the second weight stands behind the first, and `most` of how many rows products are joined.
    pub(super) fn products(&mut self, follows: &dyn Fn(&Weight, &Weight) -> bool, most: usize) {
        for i in 0..self.steps.len() {
            let Some((mut last, _)) = self.part_at(i, most) else { continue };
            let Some((x, first)) = self.steps[i].as_ref().map(|s| (s.inputs[0], s.output)) else { continue };
            let mut width = self.plan.info(first).shape.len();
            let several = self.plan.info(first).shape.rows() > 1;
            let mut parts = vec![];
            for j in i + 1..self.steps.len() {
                if several && parts.len() == PARTS {
                    break;
                }
                let Some((weight, active)) = self.part_at(j, most) else { continue };
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

    /// Results of two products of at most so many rows that are only multiplied, into one product.
    pub(super) fn gates(&mut self, most: usize) {
        for i in 0..self.steps.len() {
            let Some(Joined { inputs, output, .. }) = self.steps[i].clone() else { continue };
            let few = self.plan.info(output).shape.rows() <= most;
            if *self.op(i) != Op::Mul || inputs[0] == inputs[1] || !few {
                continue;
            }
            let made = |v: &Value| self.made_by.get(v).copied();
            let steps = [made(&inputs[0]), made(&inputs[1])];
            let [Some(one), Some(other)] = steps else { continue };
            let (first, part) = (one.min(other), one.max(other));
            let pair = self.steps[first].as_ref().is_some_and(|s| s.parts == [part] && !s.gated);
            let alone = |v: &Value| self.readers.get(v).is_some_and(|r| r.len() == 1);
            let alike = self.plan.info(inputs[0]).shape.len() == self.plan.info(inputs[1]).shape.len();
            if !pair || !alike || !inputs.iter().all(alone) || !self.is_free(output) {
                continue;
            }
            for v in &inputs {
                self.inside.remove(v);
                self.extended.remove(v);
            }
            if let Some(s) = &mut self.steps[first] {
                (s.output, s.gated) = (output, true);
            }
            self.made_by.insert(output, first);
            self.steps[i] = None;
        }
    }

    /// RMS norms of one row, into the products that read it, if nobody else does.
    pub(super) fn norms(&mut self, able: &dyn Fn(&Weight) -> bool) {
        for i in 0..self.steps.len() {
            let Some(Joined { inputs, output, .. }) = self.steps[i].clone() else { continue };
            let one_row = self.plan.info(output).shape.rows() == 1;
            let Op::RmsNorm { .. } = self.op(i) else { continue };
            if !one_row || !self.is_free(output) || self.is_rewritten(inputs[0]) {
                continue;
            }
            let readers = self.readers.get(&output).cloned().unwrap_or_default();
            let reads = |s: &Joined| s.inputs.contains(&output);
            let products: Vec<usize> =
                (0..self.steps.len()).filter(|s| self.steps[*s].as_ref().is_some_and(reads)).collect();
            let covered = |reader: &usize| {
                let by = |s: &usize| {
                    let joined = self.steps[*s].as_ref();
                    s == reader || joined.is_some_and(|joined| joined.parts.contains(reader))
                };
                products.iter().any(by)
            };
            // A norm costs a product next to nothing, so each of several may have its own.
            let can = |s: &usize| {
                let joined = self.steps[*s].as_ref();
                part(self.op(*s)).is_some() && joined.is_some_and(|s| s.row.is_none() && s.norm.is_none())
            };
            let plain = |s: &usize| matches!(self.op(*s).weights()[..], [weight] if able(weight));
            if products.is_empty()
                || !readers.iter().all(covered)
                || !products.iter().all(|s| can(s) && plain(s))
            {
                continue;
            }
            for s in products {
                if let Some(s) = &mut self.steps[s] {
                    (s.inputs[0], s.norm) = (inputs[0], Some(i));
                }
            }
            self.steps[i] = None;
        }
    }

    fn part_at(&self, i: usize, most: usize) -> Option<(&'p Weight, bool)> {
        let step = self.steps[i].as_ref()?;
        let few = self.plan.info(step.output).shape.rows() <= most;
        part(self.op(i)).filter(|_| few && step.row.is_none() && self.is_free(step.output))
    }

    /// Whether a value may lie wherever we want, and holds nothing else.
    pub(super) fn is_free(&self, v: Value) -> bool {
        self.is_temporary(v) && !self.inside.contains_key(&v) && !self.extended.contains_key(&v)
    }
}
