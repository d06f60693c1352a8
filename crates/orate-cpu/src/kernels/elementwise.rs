//! Element-wise ops: sums, products, masks, activations, and the time embedding.
//!
//! | function | formula | shapes |
//! | --- | --- | --- |
//! | [`add`] | x + y | any, equal |
//! | [`mul`] | x · y | any, equal |
//! | [`weighted_sum`] | a·x + b·y | any, equal; guidance and the Euler step |
//! | [`scale_in_place`] | a·x | any |
//! | [`add_row_in_place`], [`mul_row_in_place`] | `x[r,c]` + or · `row[c]` | `[rows, C]`, `[C]` |
//! | [`affine`] | `x[r,c]` · `scale[c]` + `shift[c]` | `[rows, C]`, `[C]`; a batch norm |
//! | [`mask_in_place`] | 0 where t ≥ `lens[b]` | `[B, T, C]`, `[B]` |
//! | [`activate`] | f(x) | any |
//! | [`time_embedding`] | sin and cos of 1000·t·fⱼ | [2·half] |
//!
//! f32, row-major, contiguous. Memory-bound: chunks of 16384 floats are split over the team, which changes no
//! result.
//!
//! # Panics
//! All functions panic if slice lengths do not match; the plan has checked the shapes.

use crate::kernels::activation::{Activation, Apply, Each, unswitched};
use crate::op::{Binding, Call, OpKernel};
use crate::simd::{Kernel, Simd};
use crate::weights::Core;
use crate::{Isa, Team};
use orate_graph::{Factor, ValueInfo, Weight};
use std::marker::PhantomData;
use std::ops::Range;

/// Floats per chunk: a few microseconds of memory-bound work, so that scheduling costs little; small enough
/// that source and result stay in the second-level cache.
pub(crate) const GRAIN: usize = 16 * 1024;

/// A slice that several threads write at once, each to a separate part.
pub(crate) struct SharedMut<'a>(*mut f32, usize, PhantomData<&'a mut [f32]>);

// SAFETY: it represents a `&mut [f32]`, and f32 may be sent and shared; `part` demands disjoint use.
unsafe impl Sync for SharedMut<'_> {}

impl<'a> SharedMut<'a> {
    pub(crate) fn new(slice: &'a mut [f32]) -> Self {
        SharedMut(slice.as_mut_ptr(), slice.len(), PhantomData)
    }

    /// # Safety
    /// No two live parts may overlap.
    #[expect(clippy::mut_from_ref, reason = "the caller keeps parts disjoint, as with split_at_mut")]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [f32] {
        assert!(range.start <= range.end && range.end <= self.1, "part of a shared slice within its bounds");
        // SAFETY: in bounds as just checked; disjoint by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(range.start), range.len()) }
    }

    /// Start of the slice, for strided writes. As with `part`, no two threads may touch the same element.
    pub(crate) fn as_ptr(&self) -> *mut f32 {
        self.0
    }
}

/// Splits `out`, rows of `width`, into chunks of about [`GRAIN`] floats and calls `f(rows, part of out)` for
/// each.
pub(crate) fn for_rows(
    team: &Team,
    out: &mut [f32],
    width: usize,
    f: &(dyn Fn(Range<usize>, &mut [f32]) + Sync),
) {
    if out.is_empty() {
        return;
    }
    assert!(out.len().is_multiple_of(width), "{} floats are not whole rows of {width}", out.len());
    let rows = out.len() / width;
    let step = (GRAIN / width).max(1);
    let chunks = rows.div_ceil(step);
    if chunks == 1 {
        return f(0..rows, out);
    }
    let out = SharedMut::new(out);
    team.run(chunks, &|_, chunk| {
        let part = chunk * step..rows.min((chunk + 1) * step);
        // SAFETY: chunks are disjoint ranges of rows.
        f(part.clone(), unsafe { out.part(part.start * width..part.end * width) });
    });
}

/// Operation of [`Pointwise`] on x and y.
#[derive(Clone, Copy)]
enum Op {
    Add,
    Mul,
    WeightedSum(f32, f32),
    Scale(f32),
    Activate(Activation),
}

impl Op {
    /// Not a closure: closures are not always inlined, which would turn every instruction into a call.
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::V, y: S::V) -> S::V {
        match self {
            Op::Add => s.add(x, y),
            Op::Mul => s.mul(x, y),
            Op::WeightedSum(a, b) => s.fma(s.splat(a), x, s.mul(s.splat(b), y)),
            Op::Scale(a) => s.mul(x, s.splat(a)),
            Op::Activate(f) => f.apply(s, x),
        }
    }
}

/// `out[i] = op(x[i], y[i])`; the pointers may be equal.
struct Pointwise {
    op: Op,
    x: *const f32,
    y: *const f32,
    out: *mut f32,
    len: usize,
}

impl Kernel for Pointwise {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // One loop per operation: the match is outside the loops, and the constant in each arm removes it
        // inside.
        match self.op {
            Op::Add => self.each(s, Op::Add),
            Op::Mul => self.each(s, Op::Mul),
            Op::WeightedSum(a, b) => self.each(s, Op::WeightedSum(a, b)),
            Op::Scale(a) => self.each(s, Op::Scale(a)),
            Op::Activate(f) => unswitched(f, Activated { work: &self, s }),
        }
    }
}

/// [`Pointwise`] with an activation.
struct Activated<'a, S> {
    work: &'a Pointwise,
    s: S,
}

impl<S: Simd> Each for Activated<'_, S> {
    #[inline(always)]
    fn each(self, f: Activation) {
        self.work.each(self.s, Op::Activate(f));
    }
}

impl Pointwise {
    #[inline(always)]
    fn each<S: Simd>(&self, s: S, op: Op) {
        let mut i = 0;
        // SAFETY: `pointwise` and `row_in_place` pass pointers to slices of `len` floats.
        unsafe {
            while i + S::LANES <= self.len {
                s.store(self.out.add(i), op.apply(s, s.load(self.x.add(i)), s.load(self.y.add(i))));
                i += S::LANES;
            }
            let n = self.len - i;
            if n > 0 {
                let v = op.apply(s, s.load_partial(self.x.add(i), n), s.load_partial(self.y.add(i), n));
                s.store_partial(self.out.add(i), v, n);
            }
        }
    }
}

/// `out = op(x, y)`, or `out = op(out, y)` if `x` is missing; likewise for `y`.
fn pointwise(isa: Isa, team: &Team, op: Op, x: Option<&[f32]>, y: Option<&[f32]>, out: &mut [f32]) {
    for input in [x, y].into_iter().flatten() {
        assert_eq!(input.len(), out.len(), "operands of equal length");
    }
    for_rows(team, out, 1, &|part, out| {
        let own = out.as_ptr();
        let x = x.map_or(own, |x| x[part.clone()].as_ptr());
        let y = y.map_or(own, |y| y[part.clone()].as_ptr());
        isa.run(Pointwise { op, x, y, out: out.as_mut_ptr(), len: out.len() });
    });
}

/// out = x + y
pub fn add(isa: Isa, team: &Team, x: &[f32], y: &[f32], out: &mut [f32]) {
    pointwise(isa, team, Op::Add, Some(x), Some(y), out);
}

/// out = x · y
pub fn mul(isa: Isa, team: &Team, x: &[f32], y: &[f32], out: &mut [f32]) {
    pointwise(isa, team, Op::Mul, Some(x), Some(y), out);
}

/// out = a·x + b·y
pub fn weighted_sum(isa: Isa, team: &Team, (a, x): (f32, &[f32]), (b, y): (f32, &[f32]), out: &mut [f32]) {
    pointwise(isa, team, Op::WeightedSum(a, b), Some(x), Some(y), out);
}

/// x = a·x
pub fn scale_in_place(isa: Isa, team: &Team, a: f32, x: &mut [f32]) {
    pointwise(isa, team, Op::Scale(a), None, None, x);
}

/// x = f(x)
pub fn activate(isa: Isa, team: &Team, f: Activation, x: &mut [f32]) {
    pointwise(isa, team, Op::Activate(f), None, None, x);
}

/// `x[r,c]` += `row[c]`
pub fn add_row_in_place(isa: Isa, team: &Team, x: &mut [f32], row: &[f32]) {
    row_in_place(isa, team, Op::Add, x, row);
}

/// `x[r,c]` *= `row[c]`
pub fn mul_row_in_place(isa: Isa, team: &Team, x: &mut [f32], row: &[f32]) {
    row_in_place(isa, team, Op::Mul, x, row);
}

fn row_in_place(isa: Isa, team: &Team, op: Op, x: &mut [f32], row: &[f32]) {
    for_rows(team, x, row.len(), &|_, x| {
        for x in x.chunks_exact_mut(row.len()) {
            isa.run(Pointwise { op, x: x.as_ptr(), y: row.as_ptr(), out: x.as_mut_ptr(), len: row.len() });
        }
    });
}

/// `out[r,c]` = `x[r,c]` · `scale[c]` + `shift[c]`
pub fn affine(x: &[f32], scale: &[f32], shift: &[f32], out: &mut [f32]) {
    for (x, out) in x.chunks_exact(scale.len()).zip(out.chunks_exact_mut(scale.len())) {
        for (c, o) in out.iter_mut().enumerate() {
            *o = x[c] * scale[c] + shift[c];
        }
    }
}

/// Sets `x[b,t,:]` to 0 where t ≥ `lens[b]`; `x` is `[B, T, C]`, B is the number of `lens`.
pub fn mask_in_place(team: &Team, x: &mut [f32], lens: &[u32], channels: usize) {
    if x.is_empty() {
        return;
    }
    let steps = x.len() / channels / lens.len();
    assert_eq!(x.len(), lens.len() * steps * channels, "x is [B, T, C]");
    for_rows(team, x, channels, &|rows, x| {
        for (r, x) in rows.zip(x.chunks_exact_mut(channels)) {
            if r % steps >= lens[r / steps] as usize {
                x.fill(0.0);
            }
        }
    });
}

/// [sin(1000·t·f₀) …, cos(1000·t·f₀) …], fⱼ = 10000^(−j/(half−1)), half of `out` each, sines first.
///
/// Computed in f64: at t near 1 the angle is near 1000, where an f32 angle is off by 3e-5.
pub fn time_embedding(t: f64, out: &mut [f32]) {
    let half = out.len() / 2;
    assert_eq!(out.len(), 2 * half, "as many sines as cosines");
    let (sines, cosines) = out.split_at_mut(half);
    for (j, (sine, cosine)) in sines.iter_mut().zip(cosines).enumerate() {
        let f = 10_000f64.powf(-(j as f64) / (half.max(2) - 1) as f64);
        let (s, c) = (1000.0 * t * f).sin_cos();
        (*sine, *cosine) = (s as f32, c as f32);
    }
}

/// Kernel name of most ops in this file.
fn pointwise_name(core: &Core) -> String {
    format!("{}-pointwise", core.isa.vectors())
}

pub(crate) struct Add;

impl OpKernel for Add {
    fn name(&self, core: &Core, _: &[&ValueInfo]) -> String {
        pointwise_name(core)
    }

    fn bind(&self, _: &Binding<'_>) -> Call {
        Call::new(|o| add(o.isa, o.team, o.inputs.floats(0), o.inputs.floats(1), o.out))
    }
}

pub(crate) struct Mul;

impl OpKernel for Mul {
    fn name(&self, core: &Core, _: &[&ValueInfo]) -> String {
        pointwise_name(core)
    }

    fn bind(&self, _: &Binding<'_>) -> Call {
        Call::new(|o| mul(o.isa, o.team, o.inputs.floats(0), o.inputs.floats(1), o.out))
    }
}

pub(crate) struct Combine {
    pub a: Factor,
    pub b: Factor,
}

impl OpKernel for Combine {
    fn name(&self, core: &Core, _: &[&ValueInfo]) -> String {
        pointwise_name(core)
    }

    fn bind(&self, _: &Binding<'_>) -> Call {
        let (a, b) = (self.a, self.b);
        Call::fallible(move |o| {
            let (a, b) = (o.scalars.factor(a)?, o.scalars.factor(b)?);
            weighted_sum(o.isa, o.team, (a, o.inputs.floats(0)), (b, o.inputs.floats(1)), o.out);
            Ok(())
        })
    }
}

pub(crate) struct Scale {
    pub factor: Factor,
}

impl OpKernel for Scale {
    fn name(&self, core: &Core, _: &[&ValueInfo]) -> String {
        pointwise_name(core)
    }

    fn bind(&self, _: &Binding<'_>) -> Call {
        let factor = self.factor;
        Call::fallible(move |o| {
            o.out.copy_from_slice(o.inputs.floats(0));
            scale_in_place(o.isa, o.team, o.scalars.factor(factor)?, o.out);
            Ok(())
        })
    }
}

pub(crate) struct Activate<'a>(pub &'a orate_graph::Activation);

impl OpKernel for Activate<'_> {
    fn name(&self, core: &Core, _: &[&ValueInfo]) -> String {
        pointwise_name(core)
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let f = self.0.map(|slope| step.dense(slope)[0]);
        Call::new(move |o| {
            o.out.copy_from_slice(o.inputs.floats(0));
            activate(o.isa, o.team, f, o.out);
        })
    }
}

pub(crate) struct AddBias<'a> {
    pub bias: &'a Weight,
}

impl OpKernel for AddBias<'_> {
    fn name(&self, core: &Core, _: &[&ValueInfo]) -> String {
        pointwise_name(core)
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let bias = step.dense(self.bias);
        Call::new(move |o| {
            o.out.copy_from_slice(o.inputs.floats(0));
            add_row_in_place(o.isa, o.team, o.out, &bias);
        })
    }
}

pub(crate) struct AddRow;

impl OpKernel for AddRow {
    fn name(&self, core: &Core, _: &[&ValueInfo]) -> String {
        pointwise_name(core)
    }

    fn bind(&self, _: &Binding<'_>) -> Call {
        Call::new(|o| {
            o.out.copy_from_slice(o.inputs.floats(0));
            add_row_in_place(o.isa, o.team, o.out, o.inputs.floats(1));
        })
    }
}

pub(crate) struct MulRow;

impl OpKernel for MulRow {
    fn name(&self, core: &Core, _: &[&ValueInfo]) -> String {
        pointwise_name(core)
    }

    fn bind(&self, _: &Binding<'_>) -> Call {
        Call::new(|o| {
            o.out.copy_from_slice(o.inputs.floats(0));
            mul_row_in_place(o.isa, o.team, o.out, o.inputs.floats(1));
        })
    }
}

pub(crate) struct Affine<'a> {
    pub scale: &'a Weight,
    pub shift: &'a Weight,
}

impl OpKernel for Affine<'_> {
    fn name(&self, core: &Core, _: &[&ValueInfo]) -> String {
        pointwise_name(core)
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let (scale, shift) = (step.dense(self.scale), step.dense(self.shift));
        Call::new(move |o| affine(o.inputs.floats(0), &scale, &shift, o.out))
    }
}

pub(crate) struct MaskRows;

impl OpKernel for MaskRows {
    fn name(&self, _: &Core, _: &[&ValueInfo]) -> String {
        "mask".to_owned()
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let channels = step.out().shape.last();
        Call::fallible(move |o| {
            o.out.copy_from_slice(o.inputs.floats(0));
            mask_in_place(o.team, o.out, o.inputs.lens(1)?, channels);
            Ok(())
        })
    }
}

pub(crate) struct TimeEmbedding {
    pub dim: usize,
}

impl OpKernel for TimeEmbedding {
    fn name(&self, _: &Core, _: &[&ValueInfo]) -> String {
        "table".to_owned()
    }

    fn bind(&self, _: &Binding<'_>) -> Call {
        let dim = self.dim;
        Call::new(move |o| {
            for (t, row) in o.inputs.floats(0).iter().zip(o.out.chunks_exact_mut(dim)) {
                time_embedding(f64::from(*t), row);
            }
        })
    }
}

/// Helpers for the tests of all kernels.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Pseudorandom numbers in −1..1, always the same.
    pub(crate) fn noise(len: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
            })
            .collect()
    }

    /// Asserts |got − want| ≤ `limit` · max(1, |want|) everywhere.
    pub(crate) fn assert_close(got: &[f32], want: &[f64], limit: f64, what: &str) {
        assert_eq!(got.len(), want.len(), "{what}: length");
        for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
            let error = (g as f64 - w).abs();
            assert!(error <= limit * w.abs().max(1.0), "{what}: [{i}] is {g}, want {w} (off by {error:e})");
        }
    }

    /// Runs `f` with teams of one and three threads on every instruction set, asserts that the number of
    /// threads changes no bit, and passes one result per set to `check`.
    pub(crate) fn everywhere(f: impl Fn(Isa, &Team) -> Vec<f32>, check: impl Fn(Isa, &[f32])) {
        let (one, three) = (Team::new(1).expect("a thread"), Team::new(3).expect("three threads"));
        for isa in Isa::available() {
            let got = f(isa, &one);
            let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&got), bits(&f(isa, &three)), "{isa}: threads change the result");
            check(isa, &got);
        }
    }

    /// Returns `len` floats of noise aligned to a cache line, like the buffers of the executor.
    pub(crate) fn aligned(store: &mut Vec<f32>, len: usize) -> &mut [f32] {
        *store = noise(len + 16, 7);
        let offset = store.as_ptr().align_offset(64);
        &mut store[offset..][..len]
    }

    /// Shortest time of several calls in seconds.
    pub(crate) fn best_of(times: usize, mut f: impl FnMut()) -> f64 {
        (0..times)
            .map(|_| {
                let start = std::time::Instant::now();
                f();
                start.elapsed().as_secs_f64()
            })
            .fold(f64::INFINITY, f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::*;
    use super::*;

    /// Two roundings of numbers up to 3, one more without FMA.
    const ERROR: f64 = 2e-7;
    const LENGTHS: [usize; 9] = [0, 1, 7, 8, 9, 15, 17, 1000, 3 * GRAIN + 5];

    #[test]
    fn sums_match_the_formula() {
        for n in LENGTHS {
            let (x, y) = (noise(n, 1), noise(n, 2));
            let want = |f: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
                x.iter().zip(&y).map(|(&x, &y)| f(x as f64, y as f64)).collect()
            };
            let sum = want(&|x, y| x + y);
            let guided = want(&|x, y| 4.0 * x - 3.0 * y);
            let scaled = want(&|x, _| 0.3f32 as f64 * x);
            everywhere(
                |isa, team| {
                    let mut out = vec![9.0; n];
                    add(isa, team, &x, &y, &mut out);
                    out
                },
                |isa, got| assert_close(got, &sum, ERROR, &format!("add {n} {isa}")),
            );
            everywhere(
                |isa, team| {
                    let mut out = vec![9.0; n];
                    weighted_sum(isa, team, (4.0, &x), (-3.0, &y), &mut out);
                    out
                },
                |isa, got| assert_close(got, &guided, 4.0 * ERROR, &format!("weighted sum {n} {isa}")),
            );
            everywhere(
                |isa, team| {
                    let mut out = x.clone();
                    scale_in_place(isa, team, 0.3, &mut out);
                    out
                },
                |isa, got| assert_close(got, &scaled, ERROR, &format!("scale {n} {isa}")),
            );
        }
    }

    #[test]
    fn rows_and_masks() {
        for (batch, steps, channels) in [(1, 1, 1), (2, 72, 512), (3, 5, 33), (2, 9, 8)] {
            let x = noise(batch * steps * channels, 3);
            let row = noise(channels, 4);
            type Apply = fn(Isa, &Team, &mut [f32], &[f32]);
            for (name, apply, plain) in [
                ("add", add_row_in_place as Apply, (|x, y| x + y) as fn(f64, f64) -> f64),
                ("mul", mul_row_in_place as Apply, |x, y| x * y),
            ] {
                let want: Vec<f64> =
                    x.iter().enumerate().map(|(i, x)| plain(*x as f64, row[i % channels] as f64)).collect();
                everywhere(
                    |isa, team| {
                        let mut x = x.clone();
                        apply(isa, team, &mut x, &row);
                        x
                    },
                    |isa, got| assert_close(got, &want, ERROR, &format!("{name} row {isa}")),
                );
            }
            let lens: Vec<u32> = (0..batch).map(|b| (steps * b / batch) as u32).collect();
            let team = Team::new(2).expect("two threads");
            let mut masked = x.clone();
            mask_in_place(&team, &mut masked, &lens, channels);
            for (i, (&m, &x)) in masked.iter().zip(&x).enumerate() {
                let (b, t) = (i / channels / steps, i / channels % steps);
                assert_eq!(m, if t < lens[b] as usize { x } else { 0.0 });
            }
        }
    }

    #[test]
    fn affine_scales_channels() {
        let mut out = [0.0; 4];
        affine(&[1.0, 2.0, 3.0, 4.0], &[10.0, 100.0], &[0.5, 0.25], &mut out);
        assert_eq!(out, [10.5, 200.25, 30.5, 400.25]);
    }

    #[test]
    fn activation_runs_on_whole_tensors() {
        let x: Vec<f32> = noise(2 * GRAIN + 3, 6).iter().map(|x| 5.0 * x).collect();
        for f in [Activation::Gelu, Activation::Silu, Activation::PRelu(0.2), Activation::Tanh] {
            let want: Vec<f64> = x.iter().map(|&x| f.plain(x as f64)).collect();
            everywhere(
                |isa, team| {
                    let mut x = x.clone();
                    activate(isa, team, f, &mut x);
                    x
                },
                |isa, got| assert_close(got, &want, 3e-7, &format!("{f:?} {isa}")),
            );
        }
    }

    #[test]
    fn time_embedding_values() {
        let mut e = [0.0; 64];
        time_embedding(0.8, &mut e);
        // sin 800 and cos 800; the slowest frequency is 1000 · 0.8 / 10000 = 0.08.
        for (i, want) in [(0, 0.89396965), (32, -0.44812751), (31, 0.07991469), (63, 0.99680171)] {
            assert!((e[i] as f64 - want).abs() < 1e-6, "[{i}] = {}", e[i]);
        }
    }

    #[test]
    #[ignore = "timing; run with --ignored --nocapture"]
    fn bench() {
        let team = Team::new(1).expect("a thread");
        for isa in Isa::available() {
            for f in [Activation::Gelu, Activation::Mish, Activation::Tanh, Activation::Exp, Activation::Relu]
            {
                let mut store = Vec::new();
                let mut x = aligned(&mut store, GRAIN);
                let t = best_of(200, || {
                    for _ in 0..10 {
                        activate(isa, &team, f, std::hint::black_box(&mut x));
                    }
                });
                println!("{isa} {f:?}: {:.3} ns per element", t / GRAIN as f64 * 1e8);
            }
        }
    }
}
