//! Block copies along an axis: slices, concatenation and constants.
//!
//! All operands are contiguous four-byte words. An array is treated as `[outer, axis, inner]`.

use crate::op::{Binding, Call, OpKernel};
use crate::weights::Core;
use orate_graph::{ValueInfo, Weight};

/// Products of the extents before and after `axis`.
fn around(shape: &[usize], axis: usize) -> (usize, usize) {
    (shape[..axis].iter().product(), shape[axis + 1..].iter().product())
}

/// `out[:, at .. at + n, :] = x`, where `n` is the extent of `x` along `axis`.
pub fn place(x: &[f32], shape: &[usize], axis: usize, at: usize, out_shape: &[usize], out: &mut [f32]) {
    let (outer, inner) = around(shape, axis);
    let (n, total) = (shape[axis] * inner, out_shape[axis] * inner);
    for o in 0..outer {
        out[o * total + at * inner..][..n].copy_from_slice(&x[o * n..][..n]);
    }
}

/// `out = x[:, start .. start + n, :]`, where `n` is the extent of `out` along `axis`.
pub fn take(x: &[f32], shape: &[usize], axis: usize, start: usize, out_shape: &[usize], out: &mut [f32]) {
    let (outer, inner) = around(shape, axis);
    let (n, total) = (out_shape[axis] * inner, shape[axis] * inner);
    for o in 0..outer {
        out[o * n..][..n].copy_from_slice(&x[o * total + start * inner..][..n]);
    }
}

pub(crate) struct Constant<'a> {
    pub weight: &'a Weight,
}

impl OpKernel for Constant<'_> {
    fn name(&self, _: &Core, _: &[&ValueInfo]) -> String {
        "copy".to_owned()
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let weight = step.dense(self.weight);
        Call::new(move |o| o.out.chunks_exact_mut(weight.len()).for_each(|out| out.copy_from_slice(&weight)))
    }
}

pub(crate) struct Concat {
    pub axis: usize,
}

impl OpKernel for Concat {
    fn name(&self, _: &Core, _: &[&ValueInfo]) -> String {
        "copy".to_owned()
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let (axis, out_shape) = (self.axis, step.out().shape.clone());
        let shapes: Vec<_> = (0..step.inputs()).map(|i| step.shape(i).clone()).collect();
        Call::new(move |o| {
            let mut at = 0;
            for (i, shape) in shapes.iter().enumerate() {
                place(o.inputs.words(i), shape.dims(), axis, at, out_shape.dims(), o.out);
                at += shape.dims()[axis];
            }
        })
    }
}

pub(crate) struct Slice {
    pub axis: usize,
    pub start: usize,
}

impl OpKernel for Slice {
    fn name(&self, _: &Core, _: &[&ValueInfo]) -> String {
        "copy".to_owned()
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let (axis, start) = (self.axis, self.start);
        let (shape, out_shape) = (step.shape(0).clone(), step.out().shape.clone());
        Call::new(move |o| take(o.inputs.words(0), shape.dims(), axis, start, out_shape.dims(), o.out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_and_concatenation_are_inverse() {
        let x: Vec<f32> = (0..24).map(|i| i as f32).collect();
        for (axis, n) in [(0, 2), (1, 3), (2, 4)] {
            let shape = [2, 3, 4];
            let mut joined = vec![0.0; 24];
            for at in 0..n {
                let mut part_shape = shape;
                part_shape[axis] = 1;
                let mut part = vec![0.0; 24 / n];
                take(&x, &shape, axis, at, &part_shape, &mut part);
                place(&part, &part_shape, axis, at, &shape, &mut joined);
            }
            assert_eq!(joined, x, "axis {axis}");
        }
    }
}
