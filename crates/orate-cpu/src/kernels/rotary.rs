//! Rotary positions with split halves, by tables computed once per length.
//!
//! ```text
//! angle[t,j] = position(t) · θ_j                                  table: cos, sin [T, D/2]
//! (a, b)     → (a·cos − b·sin, a·sin + b·cos)                      a = first half of a head, b = second half
//! ```
//!
//! `x` [B, T, H·D] f32 in place; the table is shared by batch rows and heads. Angles are computed in f64:
//! positions may be fractions (frame / length) with θ up to 10, or integers in the thousands. Memory-bound;
//! rows of time are split over the team.

use crate::kernels::elementwise::for_rows;
use crate::op::{Binding, Call, OpKernel};
use crate::simd::{Kernel, Simd};
use crate::weights::Core;
use crate::{Isa, Team};
use orate_graph::{First, RopeScaling, ValueInfo, Weight, rope_frequencies};

/// Fills `cos` and `sin`, both [T, D/2], for the angles `position(t)` · `theta[j]`; D/2 is the length of
/// `theta`.
///
/// Supertonic's length-normalized positions are `|t| t as f64 / len as f64` with θ_j = 10 · 10000^(−j/32).
///
/// # Panics
/// `cos` and `sin` are not whole rows, or differ in size.
pub fn table(position: impl Fn(usize) -> f64, theta: &[f64], cos: &mut [f32], sin: &mut [f32]) {
    assert!(cos.len() == sin.len() && cos.len().is_multiple_of(theta.len()), "tables are [T, D/2]");
    let rows = cos.chunks_exact_mut(theta.len()).zip(sin.chunks_exact_mut(theta.len()));
    for (t, (cos, sin)) in rows.enumerate() {
        let p = position(t);
        for ((cos, sin), theta) in cos.iter_mut().zip(sin).zip(theta) {
            let (s, c) = (p * theta).sin_cos();
            (*cos, *sin) = (c as f32, s as f32);
        }
    }
}

/// Rotates `x` [B, T, H·D] in place by `cos` and `sin` [T, D/2] (see [`table`]); `heads` is H.
///
/// # Panics
/// `x` is not [B, T, H·D] for T and D of the table.
pub fn rotate(isa: Isa, team: &Team, x: &mut [f32], heads: usize, half: usize, (cos, sin): (&[f32], &[f32])) {
    let width = heads * 2 * half;
    assert!(cos.len() == sin.len() && cos.len().is_multiple_of(half), "tables are [T, D/2]");
    let steps = cos.len() / half;
    assert!(x.len().is_multiple_of((steps * width).max(1)), "x is [B, T, H·D]");
    for_rows(team, x, width, &|rows, x| {
        isa.run(Rows { first: rows.start, x, heads, half, cos, sin });
    });
}

/// Whole rows from `first` on.
struct Rows<'a> {
    first: usize,
    x: &'a mut [f32],
    heads: usize,
    half: usize,
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let half = self.half;
        let steps = self.cos.len() / half;
        for (r, row) in self.x.chunks_exact_mut(self.heads * 2 * half).enumerate() {
            let t = (self.first + r) % steps;
            let (cos, sin) = (&self.cos[t * half..][..half], &self.sin[t * half..][..half]);
            for head in row.chunks_exact_mut(2 * half) {
                let (a, b) = head.split_at_mut(half);
                let mut i = 0;
                while i < half {
                    let n = S::LANES.min(half - i);
                    // SAFETY: all four have `half` floats, of which `n` follow `i`.
                    unsafe {
                        let (x, y) =
                            (s.load_partial(a.as_ptr().add(i), n), s.load_partial(b.as_ptr().add(i), n));
                        let c = s.load_partial(cos.as_ptr().add(i), n);
                        let d = s.load_partial(sin.as_ptr().add(i), n);
                        let first = s.sub(s.mul(x, c), s.mul(y, d));
                        let second = s.fma(x, d, s.mul(y, c));
                        s.store_partial(a.as_mut_ptr().add(i), first, n);
                        s.store_partial(b.as_mut_ptr().add(i), second, n);
                    }
                    i += S::LANES;
                }
            }
        }
    }
}

pub(crate) struct RotaryTable<'a> {
    pub theta: &'a Weight,
}

impl OpKernel for RotaryTable<'_> {
    fn name(&self, _: &Core, _: &[&ValueInfo]) -> String {
        "table".to_owned()
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let theta: Vec<f64> = step.dense(self.theta).iter().map(|x| f64::from(*x)).collect();
        let [_, _, time, half] = step.out_dims();
        Call::fallible(move |o| {
            let lens = if o.inputs.len() == 0 { None } else { Some(o.inputs.lens(0)?) };
            for (b, out) in o.out.chunks_exact_mut(2 * time * half).enumerate() {
                let len = lens.map_or(time as f64, |l| f64::from(l[b]).max(1.0));
                let (cos, sin) = out.split_at_mut(time * half);
                table(|t| t as f64 / len, &theta, cos, sin);
            }
            Ok(())
        })
    }
}

pub(crate) struct RopeTable {
    pub base: f64,
    pub scaling: Option<RopeScaling>,
    pub first: First,
}

impl OpKernel for RopeTable {
    fn name(&self, _: &Core, _: &[&ValueInfo]) -> String {
        "table".to_owned()
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let ([_, _, time, half], first) = (step.out_dims(), self.first);
        let frequencies = rope_frequencies(self.base, self.scaling, half);
        Call::fallible(move |o| {
            for (b, out) in o.out.chunks_exact_mut(2 * time * half).enumerate() {
                let first = match first {
                    First::Const(first) => first as u64,
                    First::Operand => u64::from(o.inputs.lens(0)?[b]),
                };
                let (cos, sin) = out.split_at_mut(time * half);
                table(|t| (first + t as u64) as f64, &frequencies, cos, sin);
            }
            Ok(())
        })
    }
}

pub(crate) struct Rotary {
    pub heads: usize,
}

impl OpKernel for Rotary {
    fn name(&self, core: &Core, _: &[&ValueInfo]) -> String {
        format!("{}-rotary", core.isa.vectors())
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let (heads, [batch, _, time, half]) = (self.heads, step.dims(1));
        Call::new(move |o| {
            o.out.copy_from_slice(o.inputs.floats(0));
            let rows = o.out.len() / batch;
            let tables = o.inputs.floats(1).chunks_exact(2 * time * half);
            for (table, out) in tables.zip(o.out.chunks_exact_mut(rows)) {
                rotate(o.isa, o.team, out, heads, half, table.split_at(time * half));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::elementwise::testing::*;

    /// Rounded table entries, and two products and a sum of magnitude one.
    const ERROR: f64 = 4e-7;

    #[test]
    fn matches_the_formula() {
        for (batch, steps, heads, half) in
            [(2, 72, 8, 32), (1, 1, 1, 1), (2, 7, 3, 9), (1, 20, 2, 8), (1, 5, 1, 17)]
        {
            let theta: Vec<f64> =
                (0..half).map(|j| 10.0 * 10_000f64.powf(-(j as f64) / half as f64)).collect();
            let position = |t: usize| t as f64 / steps as f64;
            let (mut cos, mut sin) = (vec![0.0; steps * half], vec![0.0; steps * half]);
            table(position, &theta, &mut cos, &mut sin);
            let x = noise(batch * steps * heads * 2 * half, 1);
            let want: Vec<f64> = (0..x.len())
                .map(|i| {
                    let (c, t) = (i % (2 * half), i / (2 * half) / heads % steps);
                    let (s, k) = (position(t) * theta[c % half]).sin_cos();
                    if c < half {
                        x[i] as f64 * k - x[i + half] as f64 * s
                    } else {
                        x[i - half] as f64 * s + x[i] as f64 * k
                    }
                })
                .collect();
            everywhere(
                |isa, team| {
                    let mut x = x.clone();
                    rotate(isa, team, &mut x, heads, half, (&cos, &sin));
                    x
                },
                |isa, got| assert_close(got, &want, ERROR, &format!("{steps} {heads}x{half} {isa}")),
            );
        }
    }
}
