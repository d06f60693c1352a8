//! Permutation of up to four axes.
//!
//! `out` axis i is `x` axis `axes[i]`: `out[j₀, j₁, …]` = `x[…]` with `j_i` at place `axes[i]`, as in NumPy's
//! `transpose(axes)`. f32, contiguous, not in place. If the last axis stays last, runs are copied; otherwise
//! blocks of 16 by 16 floats (one cache line each way) are transposed. Single-threaded, since models permute
//! only small tensors (latents, vocoder input).

use crate::op::{Binding, Call, OpKernel};
use crate::weights::Core;
use orate_graph::ValueInfo;

/// Side of a transposed block: one cache line.
const BLOCK: usize = 16;

/// Permutes `x` of shape `shape` into `out`.
///
/// # Panics
/// More than four axes, `axes` is not a permutation, or sizes do not match.
pub fn permute(x: &[f32], shape: &[usize], axes: &[usize], out: &mut [f32]) {
    let rank = shape.len();
    assert!(rank <= 4 && axes.len() == rank, "one to four axes, got {rank} and {}", axes.len());
    let mut seen = [false; 4];
    axes.iter().for_each(|&a| seen[a] = true);
    assert!(seen[..rank].iter().all(|&s| s), "{axes:?} is not a permutation of {rank} axes");
    assert_eq!(x.len(), shape.iter().product(), "input of shape {shape:?}");
    assert_eq!(x.len(), out.len(), "input and output of equal size");
    if x.is_empty() {
        return;
    }

    // Expands to four axes: extents of `out`, and the strides of `x` along them.
    let (mut sizes, mut strides) = ([1; 4], [0; 4]);
    for (i, &axis) in axes.iter().enumerate() {
        sizes[4 - rank + i] = shape[axis];
        strides[4 - rank + i] = shape[axis + 1..].iter().product();
    }
    let steps = [sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1];

    // The axis of `out` along which `x` is contiguous, and the two remaining loops.
    let inner = (0..4).rev().find(|&i| strides[i] == 1 && sizes[i] > 1).unwrap_or(3);
    if inner == 3 {
        for i in 0..sizes[0] * sizes[1] * sizes[2] {
            let (a, b, c) = (i / sizes[2] / sizes[1], i / sizes[2] % sizes[1], i % sizes[2]);
            let from = a * strides[0] + b * strides[1] + c * strides[2];
            let to = &mut out[i * sizes[3]..][..sizes[3]];
            match strides[3] {
                0 | 1 => to.copy_from_slice(&x[from..][..sizes[3]]),
                stride => to.iter_mut().enumerate().for_each(|(j, y)| *y = x[from + j * stride]),
            }
        }
        return;
    }
    let (p, q) = match inner {
        0 => (1, 2),
        1 => (0, 2),
        _ => (0, 1),
    };
    for (i, j) in (0..sizes[p]).flat_map(|i| (0..sizes[q]).map(move |j| (i, j))) {
        let x = &x[i * strides[p] + j * strides[q]..];
        let out = &mut out[i * steps[p] + j * steps[q]..];
        transpose(x, strides[3], out, steps[inner], (sizes[3], sizes[inner]));
    }
}

/// `out[c·out_stride + r]` = `x[r·x_stride + c]` for all r < rows, c < columns.
fn transpose(
    x: &[f32],
    x_stride: usize,
    out: &mut [f32],
    out_stride: usize,
    (rows, columns): (usize, usize),
) {
    for row in (0..rows).step_by(BLOCK) {
        for column in (0..columns).step_by(BLOCK) {
            for c in column..columns.min(column + BLOCK) {
                let to = &mut out[c * out_stride + row..][..BLOCK.min(rows - row)];
                for (r, y) in to.iter_mut().enumerate() {
                    *y = x[(row + r) * x_stride + c];
                }
            }
        }
    }
}

pub(crate) struct Permute<'a> {
    pub perm: &'a [usize],
}

impl OpKernel for Permute<'_> {
    fn name(&self, _: &Core, _: &[&ValueInfo]) -> String {
        "permute".to_owned()
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let (shape, perm) = (step.shape(0).clone(), self.perm.to_vec());
        Call::new(move |o| permute(o.inputs.floats(0), shape.dims(), &perm, o.out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(x: &[f32], shape: &[usize], axes: &[usize]) -> Vec<f32> {
        let sizes: Vec<usize> = axes.iter().map(|&a| shape[a]).collect();
        (0..x.len())
            .map(|i| {
                let (mut rest, mut at) = (i, vec![0; shape.len()]);
                for k in (0..axes.len()).rev() {
                    at[axes[k]] = rest % sizes[k];
                    rest /= sizes[k];
                }
                x[at.iter().zip(shape).fold(0, |sum, (i, n)| sum * n + i)]
            })
            .collect()
    }

    fn permutations(rank: usize) -> Vec<Vec<usize>> {
        if rank == 0 {
            return vec![vec![]];
        }
        let shorter = permutations(rank - 1);
        (0..rank)
            .flat_map(|at| {
                shorter.iter().map(move |p| {
                    let mut p = p.clone();
                    p.insert(at, rank - 1);
                    p
                })
            })
            .collect()
    }

    #[test]
    fn every_permutation_of_many_shapes() {
        let shapes: [&[usize]; 12] = [
            &[],
            &[5],
            &[144, 72],
            &[17, 33],
            &[1, 9],
            &[9, 1],
            &[2, 24, 6],
            &[3, 1, 4],
            &[2, 24, 6, 7],
            &[1, 1, 1, 1],
            &[2, 17, 3, 16],
            &[3, 0, 2],
        ];
        for shape in shapes {
            let x: Vec<f32> = (0..shape.iter().product()).map(|i| i as f32).collect();
            for axes in permutations(shape.len()) {
                let mut out = vec![-1.0; x.len()];
                permute(&x, shape, &axes, &mut out);
                assert_eq!(out, plain(&x, shape, &axes), "{shape:?} {axes:?}");
            }
        }
    }
}
