//! One query over a long cache, as in decoding.
//!
//! Keys and values are read once from memory, which is what takes the time, so they are read row by row: a
//! row of the cache is contiguous, one head of it is not. First each chunk of keys gives the scores of all
//! heads; then each group of neighboring heads computes its softmax and sums its columns of the values. Each
//! sum has the terms and the order of [`super::block`].

use super::Attention;
use super::operands::{HeadRows, KeptRows};
use super::pack::padded;
use super::product::RUN;
use super::scores::softmax_numerators;
use crate::kernels::cache_rows::RowFormat;
use crate::kernels::elementwise::SharedMut;
use crate::simd::{Kernel, Simd};
use crate::{Isa, Team};
use std::ops::Range;

/// With fewer keys, one chunk of work for each head is as good.
const LEAST: usize = 64;

/// Channels of heads that sum their values together.
const TOGETHER: usize = 256;

/// Lanes of the widest vector.
const MOST_LANES: usize = 16;

/// Rows ahead that are prefetched.
const AHEAD: usize = 8;

impl Attention<'_> {
    /// Whether [`Attention::run_one`] computes attentions of this kind over `keys` keys.
    pub(super) fn is_one(&self, queries: usize, keys: usize) -> bool {
        queries == 1
            && keys >= LEAST
            && self.heads == self.kv_heads
            && self.head_dim.is_multiple_of(MOST_LANES)
            && !self.mask.is_window()
            && self.relative.is_none()
            && self.bias.is_none()
    }

    /// `out` [B, 1, H·D], for operands that were checked. `q` begins at its first row; each row has its own
    /// keys.
    pub(super) fn run_one<F: RowFormat>(
        &self,
        (isa, team): (Isa, &Team),
        (q, q_stride): (&[f32], usize),
        (k, v): (KeptRows<'_, F>, KeptRows<'_, F>),
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        let (batch, keys, dim, heads) = (k.batch, k.steps, self.head_dim, self.heads);
        let (width, pitch) = (heads * dim, padded(keys));
        let seen = |b: usize| {
            let (position, keys) = self.row(b, keys);
            self.visible(position, keys).1
        };
        let (scaled, rest) = scratch.split_at_mut(batch * width);
        for (b, to) in scaled.chunks_exact_mut(width).enumerate() {
            let q = &q[b * q_stride..][..width];
            to.iter_mut().zip(q).for_each(|(to, q)| *to = q * self.scale);
        }
        let (scaled, scores) = (&*scaled, SharedMut::new(&mut rest[..batch * heads * pitch]));
        let parts = 4 * team.threads();
        team.run(batch * parts, &|_, chunk| {
            let (b, part) = (chunk / parts, chunk % parts);
            let keys = part * seen(b) / parts..(part + 1) * seen(b) / parts;
            // SAFETY: in bounds by the size of `scores`; the chunk writes the columns of its keys only.
            let scores = unsafe { scores.as_ptr().add(b * heads * pitch) };
            isa.run(Scores { q: &scaled[b * width..][..width], dim, k: k.head(b, 0), keys, scores, pitch });
        });
        let group = (TOGETHER / dim).clamp(1, heads);
        let groups = heads.div_ceil(group);
        let out = SharedMut::new(out);
        team.run(batch * groups, &|_, chunk| {
            let (b, first) = (chunk / groups, chunk % groups * group);
            let heads_here = first..heads.min(first + group);
            let rows = b * heads + heads_here.start..b * heads + heads_here.end;
            // SAFETY: each chunk has its own heads.
            let (out, scores) = unsafe {
                (
                    out.part(rows.start * dim..rows.end * dim),
                    scores.part(rows.start * pitch..rows.end * pitch),
                )
            };
            isa.run(Values { v: v.head(b, heads_here.start * dim), keys: seen(b), dim, scores, pitch, out });
        });
    }
}

/// Prefetches `bytes` of a row.
#[inline(always)]
fn prefetch<S: Simd>(s: S, row: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(64) {
        s.prefetch(row.wrapping_add(at).cast());
    }
}

/// Scores of all heads for some keys.
struct Scores<'a, F> {
    /// All heads of the query.
    q: &'a [f32],
    dim: usize,
    k: HeadRows<F>,
    keys: Range<usize>,
    /// One row for each head, `pitch` floats apart.
    scores: *mut f32,
    pitch: usize,
}

impl<F: RowFormat> Kernel for Scores<'_, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Scores { q, dim, k, .. } = self;
        for j in self.keys {
            let row = k.row(j);
            prefetch(s, k.row(j + AHEAD), k.row_bytes);
            for (h, q) in q.chunks_exact(dim).enumerate() {
                let mut sum = s.splat(0.0);
                for (d, q) in q.chunks_exact(S::LANES).enumerate() {
                    // SAFETY: key j and its channels exist, and `q` has a vector.
                    unsafe {
                        let key = k.format.load(s, row, h * dim + d * S::LANES);
                        sum = s.fma(s.load(q.as_ptr()), key, sum);
                    }
                }
                // SAFETY: the score of a key that exists.
                unsafe { *self.scores.add(h * self.pitch + j) = s.reduce_add(sum) };
            }
        }
    }
}

/// Softmax of some heads, and their weighted sums of values.
struct Values<'a, F> {
    /// From the first of the heads on.
    v: HeadRows<F>,
    /// Visible keys.
    keys: usize,
    dim: usize,
    /// One row for each head.
    scores: &'a mut [f32],
    pitch: usize,
    out: &'a mut [f32],
}

impl<F: RowFormat> Kernel for Values<'_, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Values { v, keys, dim, scores, pitch, out } = self;
        if keys == 0 {
            out.fill(0.0);
            return;
        }
        let columns = keys.next_multiple_of(S::LANES);
        let mut factors = [0.0; TOGETHER / MOST_LANES];
        for (scores, factor) in scores.chunks_exact_mut(pitch).zip(factors.chunks_exact_mut(1)) {
            scores[keys..columns].fill(f32::NEG_INFINITY);
            softmax_numerators::<S, 1>(s, scores, (pitch, columns), factor);
        }
        let sums = Sums { v, keys, dim, scores, pitch, factors: &factors };
        let (mut at, vectors) = (0, out.len() / S::LANES);
        while at < vectors {
            let out = &mut out[at * S::LANES..];
            // As many as fit the registers. The conditions are constants.
            at += match vectors - at {
                16.. if S::REGISTERS >= 32 => sums.columns::<S, 16>(s, at * S::LANES, out),
                8.. if S::REGISTERS >= 16 => sums.columns::<S, 8>(s, at * S::LANES, out),
                4.. => sums.columns::<S, 4>(s, at * S::LANES, out),
                _ => sums.columns::<S, 1>(s, at * S::LANES, out),
            };
        }
    }
}

/// Weighted sums of values; scores are the numerators of the softmax.
struct Sums<'a, F> {
    v: HeadRows<F>,
    keys: usize,
    dim: usize,
    scores: &'a [f32],
    pitch: usize,
    factors: &'a [f32],
}

impl<F: RowFormat> Sums<'_, F> {
    /// Computes `N` vectors of channels from `first` on and returns `N`.
    #[inline(always)]
    fn columns<S: Simd, const N: usize>(&self, s: S, first: usize, out: &mut [f32]) -> usize {
        assert!(out.len() >= N * S::LANES, "`N` vectors");
        let channel = self.v.channel + first;
        let mut scores = [self.scores.as_ptr(); N];
        let mut totals = [s.splat(0.0); N];
        for (n, scores) in scores.iter_mut().enumerate() {
            *scores = self.scores[(first + n * S::LANES) / self.dim * self.pitch..][..self.keys].as_ptr();
        }
        for run in (0..self.keys).step_by(RUN) {
            let mut sums = [s.splat(0.0); N];
            for j in run..self.keys.min(run + RUN) {
                let (row, ahead) = (self.v.row(j), self.v.row(j + AHEAD).wrapping_add(4 * channel));
                for n in 0..N {
                    if F::FLOATS && (n * S::LANES).is_multiple_of(16) {
                        s.prefetch(ahead.cast::<f32>().wrapping_add(n * S::LANES));
                    }
                    // SAFETY: key j and its channels exist, and so do the scores of each head.
                    unsafe {
                        let value = self.v.format.load(s, row, channel + n * S::LANES);
                        sums[n] = s.fma(s.splat(*scores[n].add(j)), value, sums[n]);
                    }
                }
            }
            for (total, sum) in totals.iter_mut().zip(sums) {
                *total = s.add(*total, sum);
            }
        }
        for (n, total) in totals.into_iter().enumerate() {
            let factor = s.splat(self.factors[(first + n * S::LANES) / self.dim]);
            // SAFETY: `out` has `N` vectors.
            unsafe { s.store(out.as_mut_ptr().add(n * S::LANES), s.mul(total, factor)) };
        }
        N
    }
}
