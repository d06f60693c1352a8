//! LSTM from a zero state; the part of the gates that depends on the input is already there.
//!
//! ```text
//! i, f, g, o = gates[t] + h[t−1] · weight           blocks of H columns
//! c[t] = σ(f) · c[t−1] + σ(i) · tanh(g)
//! h[t] = σ(o) · tanh(c[t])
//! ```
//!
//! `gates` [B, T, 4H], `weight` [H, 4H], `out` [B, T, H]; f32. Steps follow each other, so threads share the
//! sequences of a batch. A tile is a few sequences by a vector of units with all their gates: its sums stay
//! in registers until c and h are known, and each goes over the H units in order, whatever the tile. Weights
//! are packed in the order in which a tile reads them; those of 256 units fit into the second-level cache.

use crate::kernels::elementwise::SharedMut;
use crate::kernels::vecmath::{sigmoid, tanh};
use crate::op::{Binding, Call, OpKernel};
use crate::simd::{Kernel, Simd};
use crate::weights::Core;
use crate::{Isa, Team};
use orate_graph::{ValueInfo, Weight};
use std::ops::Range;

/// Gates of a unit: input, forget, cell and output.
const GATES: usize = 4;

/// Floats of the widest vector.
const WIDEST: usize = 16;

/// Weights for one instruction set: for each vector of units, H rows of a vector for each gate.
#[derive(Clone, Debug)]
pub struct PackedGates {
    isa: Isa,
    units: usize,
    data: Vec<f32>,
}

impl PackedGates {
    /// Packs `weight` [H, 4H] for `units` units.
    ///
    /// # Panics
    /// The weight has another size.
    pub fn pack(isa: Isa, weight: &[f32], units: usize) -> PackedGates {
        assert_eq!(weight.len(), GATES * units * units, "weight is [H, 4H]");
        PackedGates { isa, units, data: isa.run(Pack { weight, units }) }
    }
}

struct Pack<'a> {
    weight: &'a [f32],
    units: usize,
}

impl Kernel for Pack<'_> {
    type Output = Vec<f32>;
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> Vec<f32> {
        let units = self.units;
        let mut data = vec![0.0; units.div_ceil(S::LANES) * units * GATES * S::LANES];
        for (i, vector) in data.chunks_exact_mut(S::LANES).enumerate() {
            let (gate, k, first) = (i % GATES, i / GATES % units, i / GATES / units * S::LANES);
            let n = S::LANES.min(units - first);
            vector[..n].copy_from_slice(&self.weight[(k * GATES + gate) * units + first..][..n]);
        }
        data
    }
}

/// Floats of scratch memory.
pub fn scratch_len(batch: usize, units: usize) -> usize {
    batch * units.next_multiple_of(WIDEST)
}

/// Fills `out` [B, T, H] for sequences of `time` steps.
///
/// # Panics
/// Sizes do not match, the weights are packed for another instruction set, or there is less scratch than
/// [`scratch_len`].
pub fn lstm(
    isa: Isa,
    team: &Team,
    gates: &[f32],
    weight: &PackedGates,
    time: usize,
    scratch: &mut [f32],
    out: &mut [f32],
) {
    let units = weight.units;
    assert_eq!(weight.isa, isa, "weights are packed for another instruction set");
    assert_eq!(gates.len(), GATES * out.len(), "gates [B, T, 4H] for [B, T, H]");
    if out.is_empty() {
        return;
    }
    let batch = out.len() / (time * units);
    assert_eq!(out.len(), batch * time * units, "whole sequences");
    assert!(scratch.len() >= scratch_len(batch, units), "scratch_len floats of scratch");
    // Two tiles per task at most, and as many tasks for each thread.
    let threads = team.threads();
    let tasks = (batch.div_ceil(12 * threads) * threads).min(batch);
    let (out, cells) = (SharedMut::new(out), SharedMut::new(scratch));
    team.run(tasks, &|_, task| {
        let rows = task * batch / tasks..(task + 1) * batch / tasks;
        // A task has its own rows of the result and of the cells.
        let (out, cells) = (out.as_ptr(), cells.as_ptr());
        isa.run(Sequences { gates, weight, time, rows, cells, out });
    });
}

/// Some sequences.
struct Sequences<'a> {
    gates: &'a [f32],
    weight: &'a PackedGates,
    time: usize,
    rows: Range<usize>,
    /// [B, H] with H rounded up to whole vectors.
    cells: *mut f32,
    /// [B, T, H]
    out: *mut f32,
}

impl Kernel for Sequences<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.rows.len();
        let most = match S::REGISTERS {
            32.. => 6,
            16.. => 2,
            _ => 1,
        };
        let tiles = rows.div_ceil(most);
        for t in 0..self.time {
            for first in (0..self.weight.units).step_by(S::LANES) {
                for tile in 0..tiles {
                    let (row, end) = (tile * rows / tiles, (tile + 1) * rows / tiles);
                    let at = (t, self.rows.start + row, first);
                    macro_rules! heights {
                        ($($rows:literal)*) => {
                            match end - row {
                                // SAFETY: the rows are those of this task, the units exist.
                                $($rows => unsafe { self.tile::<S, $rows>(s, at) },)*
                                rows => unreachable!("tile of {rows} rows"),
                            }
                        };
                    }
                    // Only one arm is compiled for each instruction set.
                    if S::REGISTERS >= 32 { heights!(1 2 3 4 5 6) } else { heights!(1 2) }
                }
            }
        }
    }
}

impl Sequences<'_> {
    /// Step `t` of `R` sequences from `row` on, for a vector of units from `first` on.
    ///
    /// # Safety
    /// Rows and units exist, the sequences are at step t, and nothing else writes their results.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize>(&self, s: S, (t, row, first): (usize, usize, usize)) {
        let (units, time) = (self.weight.units, self.time);
        let n = S::LANES.min(units - first);
        let mut sums = [[s.splat(0.0); GATES]; R];
        for (r, sums) in sums.iter_mut().enumerate() {
            let gates = &self.gates[((row + r) * time + t) * GATES * units..][..GATES * units];
            for (gate, sum) in sums.iter_mut().enumerate() {
                // SAFETY: `n` units follow `first` in each gate.
                *sum = unsafe { s.load_partial(gates.as_ptr().add(gate * units + first), n) };
            }
        }
        // SAFETY: weights are whole vectors, `cells` has them for each row, results have `n` units here.
        unsafe {
            if t > 0 {
                let mut w = self.weight.data[first * units * GATES..].as_ptr();
                let before = self.out.add((row * time + t - 1) * units);
                for k in 0..units {
                    let mut v = [s.splat(0.0); GATES];
                    for (gate, v) in v.iter_mut().enumerate() {
                        *v = s.load(w.add(gate * S::LANES));
                    }
                    w = w.add(GATES * S::LANES);
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let h = s.splat(*before.add(r * time * units + k));
                        for (sum, v) in sums.iter_mut().zip(&v) {
                            *sum = s.fma(h, *v, *sum);
                        }
                    }
                }
            }
            for (r, [i, f, g, o]) in sums.into_iter().enumerate() {
                let cell = self.cells.add((row + r) * units.next_multiple_of(WIDEST) + first);
                let old = if t > 0 { s.load(cell) } else { s.splat(0.0) };
                let new = s.fma(sigmoid(s, f), old, s.mul(sigmoid(s, i), tanh(s, g)));
                s.store(cell, new);
                let h = s.mul(sigmoid(s, o), tanh(s, new));
                s.store_partial(self.out.add(((row + r) * time + t) * units + first), h, n);
            }
        }
    }
}

pub(crate) struct Lstm<'a> {
    pub weight: &'a Weight,
}

impl OpKernel for Lstm<'_> {
    fn name(&self, core: &Core, _: &[&ValueInfo]) -> String {
        format!("{}-lstm", core.isa.vectors())
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let [batch, time, units] = step.out_dims();
        let weight = PackedGates::pack(step.core.isa, &step.dense(self.weight), units);
        Call::new(move |o| lstm(o.isa, o.team, o.inputs.floats(0), &weight, time, o.scratch, o.out))
            .with_scratch(scratch_len(batch, units))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::elementwise::testing::*;

    /// Sums of up to 257 terms, and functions of them, in states that forget half in each step.
    const ERROR: f64 = 2e-6;

    fn plain(gates: &[f32], weight: &[f32], time: usize, units: usize) -> Vec<f64> {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let mut out = vec![];
        for gates in gates.chunks_exact(time * GATES * units) {
            let (mut h, mut c) = (vec![0.0; units], vec![0.0; units]);
            for gates in gates.chunks_exact(GATES * units) {
                let before = h.clone();
                let sum = |column: usize| {
                    let dot = |(k, h): (usize, &f64)| h * f64::from(weight[k * GATES * units + column]);
                    f64::from(gates[column]) + before.iter().enumerate().map(dot).sum::<f64>()
                };
                for u in 0..units {
                    let [i, f, g, o] = std::array::from_fn(|gate| sum(gate * units + u));
                    c[u] = sigmoid(f) * c[u] + sigmoid(i) * g.tanh();
                    h[u] = sigmoid(o) * c[u].tanh();
                }
                out.extend_from_slice(&h);
            }
        }
        out
    }

    #[test]
    fn matches_the_formula() {
        for (batch, time, units) in
            [(1, 1, 1), (1, 9, 32), (2, 5, 17), (7, 4, 33), (13, 30, 64), (40, 3, 8), (3, 20, 256)]
        {
            let gates = noise(batch * time * GATES * units, 1);
            let scale = 1.0 / (units as f32).sqrt();
            let weight: Vec<f32> = noise(units * GATES * units, 2).iter().map(|w| w * scale).collect();
            let want = plain(&gates, &weight, time, units);
            everywhere(
                |isa, team| {
                    let weight = PackedGates::pack(isa, &weight, units);
                    let mut out = vec![9.0; batch * time * units];
                    let mut scratch = vec![f32::NAN; scratch_len(batch, units)];
                    lstm(isa, team, &gates, &weight, time, &mut scratch, &mut out);
                    out
                },
                |isa, got| assert_close(got, &want, ERROR, &format!("{batch} {time} {units} {isa}")),
            );
        }
    }

    #[test]
    #[ignore = "timing; run with --ignored --nocapture"]
    fn bench() {
        let team = Team::new(1).expect("a thread");
        for isa in Isa::available() {
            for (batch, time, units) in [(1, 160, 256), (13, 160, 256), (40, 160, 256)] {
                let gates = noise(batch * time * GATES * units, 1);
                let weight = PackedGates::pack(isa, &noise(units * GATES * units, 2), units);
                let mut out = vec![0.0; batch * time * units];
                let mut scratch = vec![0.0; scratch_len(batch, units)];
                let t = best_of(5, || lstm(isa, &team, &gates, &weight, time, &mut scratch, &mut out));
                let gflops = 2.0 * (batch * time * GATES * units * units) as f64 / t / 1e9;
                println!("{isa} {batch} x {time} x {units}: {:.2} ms, {gflops:.1} GFLOP/s", t * 1e3);
            }
        }
    }
}
