//! One head, a block of queries: scores, softmax, weighted sum of values.

use super::Attention;
use super::operands::HeadRows;
use super::pack::PANEL;
use super::product::{Panels, Product, RUN};
use super::scores::{dots, softmax_numerators, sum_in_runs};
use crate::kernels::cache_rows::RowFormat;
use crate::simd::{Kernel, Simd};

/// Queries per call.
pub(super) const BLOCK: usize = 24;

/// One head's keys.
pub(super) enum Keys<'a, F> {
    /// In panels.
    Packed(&'a [f32]),
    /// In cache layout.
    Rows(HeadRows<F>),
}

/// One head, up to [`BLOCK`] queries.
pub(super) struct Block<'a, F> {
    pub attention: &'a Attention<'a>,
    /// Position of the first query.
    pub position: usize,
    pub rows: usize,
    /// Whether the rows are heads of one query instead of queries of one head.
    pub one_position: bool,
    /// Valid keys, start..end.
    pub seen: (usize, usize),
    /// Keys of the stream that came before key 0, modulo [`RUN`]; 0 if this is not a stream.
    pub begun: usize,
    /// Stride in floats between rows of scores.
    pub pitch: usize,
    pub q: &'a [f32],
    pub q_stride: usize,
    pub k: Keys<'a, F>,
    pub v: HeadRows<F>,
    /// Relative keys in panels.
    pub near_keys: &'a [f32],
    /// Added to the scores, from the first row on; rows of `keys` numbers.
    pub bias: Option<&'a [f32]>,
    pub keys: usize,
    pub scores: &'a mut [f32],
    pub scaled: &'a mut [f32],
    /// One number for each query and offset.
    pub near: &'a mut [f32],
    pub factors: &'a mut [f32],
    pub out: *mut f32,
    /// Stride in floats between rows of the result.
    pub out_stride: usize,
}

impl<F: RowFormat> Kernel for Block<'_, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Attention { head_dim: dim, scale, relative, .. } = *self.attention;
        let (rows, width) = (self.rows, self.out_stride);
        let position = |i: usize| self.position + if self.one_position { 0 } else { i };
        let visible = |i: usize| self.attention.visible(position(i), self.seen);
        // Keys that any query of the block sees, in whole panels. Values before the first may be anything.
        let first = (0..rows).map(|i| visible(i).0).min().unwrap_or(0);
        let start = first / PANEL * PANEL;
        let end = (0..rows).map(|i| visible(i).1).max().unwrap_or(0);
        if first >= end {
            for i in 0..rows {
                // SAFETY: this head's channels of row i, which belong to this block.
                unsafe { std::slice::from_raw_parts_mut(self.out.add(i * width), dim) }.fill(0.0);
            }
            return;
        }
        let columns = (end - start).next_multiple_of(S::LANES);

        for i in 0..rows {
            let q = &self.q[i * self.q_stride..][..dim];
            for (to, from) in self.scaled[i * dim..][..dim].iter_mut().zip(q) {
                *to = from * scale;
            }
        }
        match self.k {
            Keys::Packed(k) => {
                let k = &k[start / PANEL * PANEL * dim..];
                let product = Product {
                    a: self.scaled.as_ptr(),
                    a_stride: dim,
                    b: Panels { first: k.as_ptr(), stride: PANEL, panel: PANEL * dim },
                    depth: dim,
                    begun: 0,
                    rows,
                    columns,
                    factors: None,
                    out: self.scores.as_mut_ptr(),
                    out_stride: self.pitch,
                };
                // SAFETY: `scaled` has `rows` rows of `dim`, the panels hold `columns` keys, scores have
                // stride `pitch`.
                unsafe { product.run(s) };
            }
            Keys::Rows(k) => {
                for j in 0..end - start {
                    let mut i = 0;
                    while i < rows {
                        let (q, scores) = (&self.scaled[i * dim..], &mut self.scores[i * self.pitch + j..]);
                        // SAFETY: the key is one of the visible ones.
                        i += unsafe {
                            match rows - i {
                                2.. => dots::<S, F, 2>(s, q, (k, start + j, dim), scores, self.pitch),
                                _ => dots::<S, F, 1>(s, q, (k, start + j, dim), scores, self.pitch),
                            }
                        };
                    }
                }
            }
        }

        let offsets = self.attention.offsets();
        // Compact keys never have relative terms, so no code is generated for them.
        if F::FLOATS && relative.is_some() {
            let product = Product {
                a: self.scaled.as_ptr(),
                a_stride: dim,
                b: Panels { first: self.near_keys.as_ptr(), stride: PANEL, panel: PANEL * dim },
                depth: dim,
                begun: 0,
                rows,
                columns: offsets,
                factors: None,
                out: self.near.as_mut_ptr(),
                out_stride: offsets,
            };
            // SAFETY: `scaled` has `rows` rows of `dim`; the panels and `near` have one column per offset.
            unsafe { product.run(s) };
        }
        for i in 0..rows {
            let (from, to) = visible(i);
            let scores = &mut self.scores[i * self.pitch..][..columns];
            if from >= to {
                scores.fill(0.0);
                continue;
            }
            let (from, to) = (from - start, to - start);
            if F::FLOATS
                && let Some(r) = relative
            {
                for (j, offset) in near(position(i), start, (from, to), r.window) {
                    scores[j] += self.near[i * offsets + offset];
                }
            }
            if let Some(bias) = self.bias {
                let bias = &bias[i * self.keys + start..];
                scores[from..to].iter_mut().zip(&bias[from..to]).for_each(|(s, x)| *s += x);
            }
            scores[..from].fill(f32::NEG_INFINITY);
            scores[to..].fill(f32::NEG_INFINITY);
        }
        let mut i = 0;
        while i < rows {
            let (scores, factors) = (&mut self.scores[i * self.pitch..], &mut self.factors[i..]);
            i += match rows - i {
                4.. => softmax_numerators::<S, 4>(s, scores, (self.pitch, columns), factors),
                _ => softmax_numerators::<S, 1>(s, scores, (self.pitch, columns), factors),
            };
        }
        // Position of the first key within its run.
        let begun = (self.begun + first) % RUN;
        if self.attention.mask.is_window() {
            for (scores, factor) in self.scores.chunks(self.pitch).zip(&mut *self.factors).take(rows) {
                *factor = 1.0 / sum_in_runs(&scores[first - start..end - start], begun);
            }
        }
        for i in (0..rows).filter(|&i| visible(i).0 >= visible(i).1) {
            self.scores[i * self.pitch..][..columns].fill(0.0);
            self.factors[i] = 0.0;
        }

        let product = Product {
            a: self.scores[first - start..].as_ptr(),
            a_stride: self.pitch,
            b: HeadRows { first: self.v.row(first), ..self.v },
            depth: end - first,
            begun,
            rows,
            columns: dim,
            factors: Some(self.factors.as_ptr()),
            out: self.out,
            out_stride: width,
        };
        // SAFETY: `v` has `end` rows of at least `dim` elements; `out` belongs to this block.
        unsafe { product.run(s) };

        if F::FLOATS
            && let Some(r) = relative
        {
            self.near[..rows * offsets].fill(0.0);
            for i in (0..rows).filter(|&i| visible(i).0 < visible(i).1) {
                let (from, to) = visible(i);
                for (j, offset) in near(position(i), start, (from - start, to - start), r.window) {
                    self.near[i * offsets + offset] = self.scores[i * self.pitch + j];
                }
            }
            let product = Product {
                a: self.near.as_ptr(),
                a_stride: offsets,
                b: Panels { first: r.values.as_ptr(), stride: dim, panel: PANEL },
                depth: 2 * r.window + 1,
                begun: 0,
                rows,
                columns: dim,
                factors: Some(self.factors.as_ptr()),
                out: self.scaled.as_mut_ptr(),
                out_stride: dim,
            };
            // SAFETY: `near` has `rows` rows of all offsets, as has the table; `scaled` has room for the
            // rows.
            unsafe { product.run(s) };
            for i in 0..rows {
                // SAFETY: this head's channels of row i, which belong to this block.
                let out = unsafe { std::slice::from_raw_parts_mut(self.out.add(i * width), dim) };
                out.iter_mut().zip(&self.scaled[i * dim..]).for_each(|(o, x)| *o += x);
            }
        }
    }
}

/// Columns (keys counted from `start`) within `window` of position `p`, each with its row in the tables.
#[inline(always)]
fn near(
    p: usize,
    start: usize,
    (from, to): (usize, usize),
    window: usize,
) -> impl Iterator<Item = (usize, usize)> {
    let first = p.saturating_sub(window).max(start + from);
    let last = (p + window + 1).min(start + to);
    (first..last.max(first)).map(move |j| (j - start, j + window - p))
}
