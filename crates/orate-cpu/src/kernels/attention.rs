//! Multi-head attention, with masks as predicates and optional relative positions.
//!
//! ```text
//! s[i,j] = scale · q_i · k_j  + (|j−i| ≤ w ? scale · q_i · rel_k[j−i+w] : 0)
//! p[i,:] = softmax over the keys j that the mask and the length let query i see
//! o_i    = Σ_j p[i,j] · v_j  + Σ_{|j−i| ≤ w} p[i,j] · rel_v[j−i+w]
//! ```
//!
//! `q` [B, Tq, H·D], `k` and `v` [B or 1, Tk, Hkv·D] with any distance between rows, `out` [B, Tq, H·D] contiguous;
//! `rel_k`, `rel_v` [2w+1, D], shared by heads; all f32, but for k and v, which may be compact rows ([`RowFormat`]); accumulated
//! in f32. Head h owns channels h·D to (h+1)·D
//! of q, and head h / (H / Hkv) of k and v is its own.
//! A query that sees no key gets zeros. Keys behind the length are never used, whatever their memory holds.
//!
//! Two phases, both split over the team. First each head's keys are packed into panels of 32 keys,
//! [D, 32], so that scores are a matrix product without horizontal sums. Then blocks of 24 queries of one
//! head: scores into scratch, softmax, product with `v`. Both products are one register tile of eight rows by
//! two vectors (four by two where there are 16 registers). A block's scores stay in the second-level cache up to
//! about 4000 keys. What a block computes does not depend on who runs it.

use crate::kernels::cache_rows::{Blocks, Floats, Halves, RowFormat, UpperHalves};
use crate::kernels::elementwise::SharedMut;
use crate::kernels::vecmath;
use crate::simd::{Kernel, Simd};
use crate::{Isa, Team};
use orate_graph::DType;

/// Queries that one call works on.
const BLOCK: usize = 24;
/// Up to this many queries the keys are read where they are: packing them would cost more than it saves.
const FEW: usize = 3;
/// Keys per packed panel: two of the widest vectors.
const PANEL: usize = 32;

/// Products that are summed one after the other before they join the total. Thousands in one run lose five bits
/// when, as here, many have the same sign.
const RUN: usize = 256;

/// Which keys a query may see. Query i stands at position p = `first_query` + i, key j at position j.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// All keys.
    None,
    /// j ≤ p
    Causal,
    /// p − left ≤ j ≤ p + right
    Window {
        /// Steps back.
        left: usize,
        /// Steps ahead; 0 is causal.
        right: usize,
    },
}

/// Learned vectors for nearby offsets, as in VITS.
#[derive(Clone, Copy, Debug)]
pub struct Relative<'a> {
    /// w: offsets −w to w have a vector, others nothing.
    pub window: usize,
    /// [2w+1, D]
    pub keys: &'a [f32],
    /// [2w+1, D]
    pub values: &'a [f32],
}

/// A [batch, steps, H·D] operand whose rows may stand apart, such as a third of a fused projection.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// Row (b, t) starts at (b·steps + t)·stride.
    pub data: &'a [f32],
    /// Batch rows; 1 for keys and values that all batch rows share.
    pub batch: usize,
    /// Time steps.
    pub steps: usize,
    /// Floats from one row to the next, at least H·D.
    pub stride: usize,
}

impl<'a> Sequence<'a> {
    fn rows(self) -> KeptRows<'a, Floats> {
        // SAFETY: any float is four bytes, which are borrowed as long.
        let bytes = unsafe { std::slice::from_raw_parts(self.data.as_ptr().cast(), size_of_val(self.data)) };
        KeptRows { format: Floats, bytes, batch: self.batch, steps: self.steps, row_bytes: 4 * self.stride }
    }
}

/// Keys or values as a cache keeps them: the bytes of [batch, steps, Hkv·D] in one of its types.
#[derive(Clone, Copy, Debug)]
pub struct Cached<'a> {
    /// All rows.
    pub bytes: &'a [u8],
    /// Batch rows; 1 for those that all batch rows share.
    pub batch: usize,
    /// Time steps.
    pub steps: usize,
}

impl<'a> Cached<'a> {
    fn rows<F>(self, format: F, row_bytes: usize) -> KeptRows<'a, F> {
        assert_eq!(self.bytes.len(), self.batch * self.steps * row_bytes, "whole rows");
        KeptRows { format, bytes: self.bytes, batch: self.batch, steps: self.steps, row_bytes }
    }
}

/// The same in a known format: row (b, t) starts at byte (b·steps + t)·row_bytes.
#[derive(Clone, Copy)]
struct KeptRows<'a, F> {
    format: F,
    bytes: &'a [u8],
    batch: usize,
    steps: usize,
    row_bytes: usize,
}

impl<F: RowFormat> KeptRows<'_, F> {
    /// The elements of a head, from the first row of a batch row on.
    fn head(&self, b: usize, channel: usize) -> HeadRows<F> {
        // Nothing is read of a batch row without steps.
        let first = self.bytes.as_ptr().wrapping_add(b * self.steps * self.row_bytes);
        HeadRows { format: self.format, first, row_bytes: self.row_bytes, channel }
    }
}

/// A head's elements of rows that follow each other.
#[derive(Clone, Copy)]
struct HeadRows<F> {
    format: F,
    first: *const u8,
    row_bytes: usize,
    channel: usize,
}

// SAFETY: only read, and only while the rows are borrowed by whoever runs the attention.
unsafe impl<F: Send> Send for HeadRows<F> {}
// SAFETY: as above.
unsafe impl<F: Sync> Sync for HeadRows<F> {}

impl<F: RowFormat> HeadRows<F> {
    #[inline(always)]
    fn row(&self, t: usize) -> *const u8 {
        self.first.wrapping_add(t * self.row_bytes)
    }

    /// Elements `d … d + n` of the head in row `t`, n at most `LANES`, and zeros.
    ///
    /// # Safety
    /// Row and elements exist.
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, s: S, t: usize, d: usize, n: usize) -> S::V {
        // SAFETY: the caller vouches for row and elements.
        unsafe {
            match n == S::LANES {
                true => self.format.load(s, self.row(t), self.channel + d),
                false => self.format.load_partial(s, self.row(t), self.channel + d, n),
            }
        }
    }
}

/// What attention to compute.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// H
    pub heads: usize,
    /// Hkv: heads of k and v, a divisor of H.
    pub kv_heads: usize,
    /// D
    pub head_dim: usize,
    /// Factor on the queries. Models differ (1/√D, 1/16): take it from the checkpoint.
    pub scale: f32,
    /// Which keys a query may see.
    pub mask: Mask,
    /// Position of query 0: the number of cached keys in front of this piece.
    pub first_query: usize,
    /// The same for each batch row, `[B]`; goes before `first_query`.
    pub first_queries: Option<&'a [u32]>,
    /// Rows of a stream that came before the queries, `[B]`: keys in front of its start are not seen, whatever their memory
    /// holds. All are where missing.
    pub passed: Option<&'a [u32]>,
    /// Valid keys per batch row, `[B]`; all Tk where missing.
    pub kv_lens: Option<&'a [u32]>,
    /// Relative positions.
    pub relative: Option<Relative<'a>>,
}

/// Keys rounded up to whole panels.
fn padded(keys: usize) -> usize {
    keys.next_multiple_of(PANEL)
}

impl Attention<'_> {
    /// Keys j that the query at position `p` sees: start..end, empty if start ≥ end.
    #[inline(always)]
    fn visible(&self, p: usize, (start, end): (usize, usize)) -> (usize, usize) {
        match self.mask {
            Mask::None => (start, end),
            Mask::Causal => (start, end.min(p + 1)),
            Mask::Window { left, right } => {
                (start.max(p.saturating_sub(left)), end.min(p.saturating_add(right).saturating_add(1)))
            }
        }
    }

    /// Position of query 0 of a batch row, and the keys that it has: start..end.
    fn row(&self, b: usize, keys: usize) -> (usize, (usize, usize)) {
        let first = self.first_queries.map_or(self.first_query, |f| f[b] as usize);
        let end = self.kv_lens.map_or(keys, |l| l[if l.len() == 1 { 0 } else { b }] as usize);
        (first, (self.passed.map_or(0, |p| first.saturating_sub(p[b] as usize)), end))
    }

    /// Floats of scratch that [`Attention::run`] needs for keys of this batch and length.
    pub fn scratch_len(&self, threads: usize, kv_batch: usize, keys: usize) -> usize {
        self.head_dim * (self.offsets() + kv_batch * self.kv_heads * padded(keys))
            + threads * self.worker_scratch(keys)
    }

    /// Scores, scaled queries, one factor for each query, and its scores with relative keys.
    fn worker_scratch(&self, keys: usize) -> usize {
        BLOCK * (padded(keys) + self.head_dim + 1 + self.offsets())
    }

    /// Offsets with relative terms, in whole panels.
    fn offsets(&self) -> usize {
        self.relative.map_or(0, |r| padded(2 * r.window + 1))
    }

    /// `out` [B, Tq, H·D] = attention of `q` over `k` and `v`.
    ///
    /// # Panics
    /// Sizes that do not fit each other, or less scratch than [`Attention::scratch_len`].
    pub fn run(
        &self,
        on: (Isa, &Team),
        q: Sequence<'_>,
        (k, v): (Sequence<'_>, Sequence<'_>),
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        self.run_rows(on, q, (k.rows(), v.rows()), out, scratch);
    }

    /// As [`Attention::run`], of keys and values in a type of caches.
    ///
    /// # Panics
    /// As for [`Attention::run`], or there are no such caches.
    pub fn run_cached(
        &self,
        on: (Isa, &Team),
        q: Sequence<'_>,
        dtype: DType,
        (k, v): (Cached<'_>, Cached<'_>),
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        match dtype {
            DType::F32 => self.run_format(on, q, (dtype, Floats), (k, v), out, scratch),
            DType::F16 => self.run_format(on, q, (dtype, Halves), (k, v), out, scratch),
            DType::BF16 => self.run_format(on, q, (dtype, UpperHalves), (k, v), out, scratch),
            DType::Q8_0 => {
                assert!(self.head_dim.is_multiple_of(32), "heads of whole blocks");
                let blocks = Blocks(self.kv_heads * self.head_dim);
                self.run_format(on, q, (dtype, blocks), (k, v), out, scratch);
            }
            DType::I32 => panic!("keys are no integers"),
        }
    }

    fn run_format<F: RowFormat>(
        &self,
        on: (Isa, &Team),
        q: Sequence<'_>,
        (dtype, format): (DType, F),
        (k, v): (Cached<'_>, Cached<'_>),
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        let row_bytes = dtype.row_bytes(self.kv_heads * self.head_dim);
        let (k, v) = (k.rows(format, row_bytes), v.rows(format, row_bytes));
        self.run_rows(on, q, (k, v), out, scratch);
    }

    fn run_rows<F: RowFormat>(
        &self,
        (isa, team): (Isa, &Team),
        q: Sequence<'_>,
        (k, v): (KeptRows<'_, F>, KeptRows<'_, F>),
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        let width = self.heads * self.head_dim;
        let kv_width = self.kv_heads * self.head_dim;
        assert!(self.heads.is_multiple_of(self.kv_heads.max(1)), "whole groups of heads share keys");
        let group = self.heads / self.kv_heads;
        let (batch, queries, keys) = (q.batch, q.steps, k.steps);
        assert!(q.stride >= width, "q: rows of {width} floats, {} apart", q.stride);
        let rows = batch * queries;
        assert!(rows == 0 || q.data.len() >= (rows - 1) * q.stride + width, "q: {rows} whole rows");
        for (name, x) in [("k", k), ("v", v)] {
            // The last of rows that stand apart may end where its elements do; compact ones are whole.
            let least = if F::FLOATS { 4 * kv_width } else { x.row_bytes };
            assert!(x.row_bytes >= least, "{name}: rows of {least} bytes, {} apart", x.row_bytes);
            let rows = x.batch * x.steps;
            assert!(
                rows == 0 || x.bytes.len() >= (rows - 1) * x.row_bytes + least,
                "{name}: {rows} whole rows"
            );
        }
        assert!(k.batch == v.batch && k.steps == v.steps, "as many keys as values");
        assert!(k.batch == batch || k.batch == 1, "keys for each batch row, or shared ones");
        assert_eq!(out.len(), batch * queries * width, "output is [B, Tq, H·D]");
        if let Some(lens) = self.kv_lens {
            assert!(lens.len() == batch || lens.len() == 1, "one length per batch row, or one for all");
            assert!(lens.iter().all(|&l| l as usize <= keys), "lengths within Tk");
        }
        for (what, x) in [("first queries", self.first_queries), ("passed rows", self.passed)] {
            assert!(x.is_none_or(|x| x.len() == batch), "{what} of each batch row");
        }
        if let Some(r) = self.relative {
            let len = (2 * r.window + 1) * self.head_dim;
            assert!(r.keys.len() == len && r.values.len() == len, "relative tables are [2w+1, D]");
        }
        assert!(
            scratch.len() >= self.scratch_len(team.threads(), k.batch, keys),
            "scratch_len floats of scratch"
        );
        if out.is_empty() {
            return;
        }

        let panel_len = self.head_dim * padded(keys);
        let (near_keys, scratch) = scratch.split_at_mut(self.head_dim * self.offsets());
        if let Some(r) = self.relative {
            let table = Sequence { data: r.keys, batch: 1, steps: 2 * r.window + 1, stride: self.head_dim };
            isa.run(Pack {
                keys: table.rows().head(0, 0),
                steps: table.steps,
                dim: self.head_dim,
                panels: near_keys,
            });
        }
        let near_keys = &*near_keys;
        let (packed, rest) = scratch.split_at_mut(k.batch * self.kv_heads * panel_len);
        let shared = SharedMut::new(packed);
        let pack = queries > FEW;
        team.run(if pack { k.batch * self.kv_heads } else { 0 }, &|_, chunk| {
            // SAFETY: each chunk has its own head's panels.
            let panels = unsafe { shared.part(chunk * panel_len..(chunk + 1) * panel_len) };
            let (b, h) = (chunk / self.kv_heads, chunk % self.kv_heads);
            isa.run(Pack { keys: k.head(b, h * self.head_dim), steps: k.steps, dim: self.head_dim, panels });
        });

        let packed = &*packed;
        let own_len = self.worker_scratch(keys);
        let (out, rest) = (SharedMut::new(out), SharedMut::new(rest));
        let blocks = queries.div_ceil(BLOCK);
        // A lone query's heads that share keys are rows of one block: keys and values are read once.
        let together = if queries == 1 && group <= BLOCK { group } else { 1 };
        let parts = self.heads / together;
        team.run(batch * parts * blocks, &|worker, chunk| {
            let (b, part, block) = (chunk / blocks / parts, chunk / blocks % parts, chunk % blocks);
            let h = part * together;
            let (kb, kh) = (if k.batch == 1 { 0 } else { b }, h / group);
            let first = block * BLOCK;
            let (position, seen) = self.row(b, keys);
            // SAFETY: a worker number belongs to one thread at a time.
            let own = unsafe { rest.part(worker.index() * own_len..(worker.index() + 1) * own_len) };
            let (scores, own) = own.split_at_mut(BLOCK * padded(keys));
            let (scaled, own) = own.split_at_mut(BLOCK * self.head_dim);
            let (near, factors) = own.split_at_mut(BLOCK * self.offsets());
            isa.run(Block {
                attention: self,
                position: position + first,
                rows: if together > 1 { together } else { BLOCK.min(queries - first) },
                one_position: together > 1,
                seen,
                pitch: padded(keys),
                q: &q.data[(b * queries + first) * q.stride + h * self.head_dim..],
                q_stride: if together > 1 { self.head_dim } else { q.stride },
                k: if pack {
                    Keys::Packed(&packed[(kb * self.kv_heads + kh) * panel_len..][..panel_len])
                } else {
                    Keys::Rows(k.head(kb, kh * self.head_dim))
                },
                v: v.head(kb, kh * self.head_dim),
                near_keys,
                scores,
                scaled,
                near,
                factors,
                // SAFETY: in bounds by the size of `out`; the block writes this head's channels of its rows only.
                out: unsafe { out.as_ptr().add((b * queries + first) * width + h * self.head_dim) },
                out_stride: if together > 1 { self.head_dim } else { width },
            });
        });
    }
}

/// Copies one head's keys into panels: `panels[p][d][j]` = key 32p + j, channel d; zero behind the last key.
struct Pack<'a, F> {
    /// `steps` rows of `dim` elements.
    keys: HeadRows<F>,
    steps: usize,
    dim: usize,
    panels: &'a mut [f32],
}

/// Floats of the largest square that is transposed.
const SQUARE: usize = 16 * 16;

impl<F: RowFormat> Kernel for Pack<'_, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Pack { keys: k, steps, dim, panels } = self;
        let mut square = [0.0; SQUARE];
        for (p, panel) in panels.chunks_exact_mut(PANEL * dim).enumerate() {
            for j in (0..PANEL).step_by(S::LANES) {
                let t = p * PANEL + j;
                let keys = steps.saturating_sub(t).min(S::LANES);
                // Whole squares first, then what is left of the channels, or of the keys.
                let squares = if keys == S::LANES { dim / S::LANES * S::LANES } else { 0 };
                for d in (0..squares).step_by(S::LANES) {
                    let to = &mut panel[d * PANEL + j..];
                    assert!(to.len() >= (S::LANES - 1) * PANEL + S::LANES, "whole panels");
                    let (from, stride) = if F::FLOATS {
                        (k.row(t).cast::<f32>().wrapping_add(k.channel + d), k.row_bytes / 4)
                    } else {
                        for i in 0..S::LANES {
                            // SAFETY: a square has at most `SQUARE` floats.
                            unsafe {
                                s.store(square.as_mut_ptr().add(i * S::LANES), k.load(s, t + i, d, S::LANES))
                            };
                        }
                        (square.as_ptr(), S::LANES)
                    };
                    // SAFETY: `LANES` keys follow at `t`, each with `LANES` elements at `d`; the panel was checked.
                    unsafe { s.transpose(from, stride, to.as_mut_ptr(), PANEL) };
                }
                for d in (squares..dim).step_by(S::LANES) {
                    let n = S::LANES.min(dim - d);
                    for i in 0..S::LANES {
                        if i < keys {
                            // SAFETY: as above.
                            unsafe { s.store(square.as_mut_ptr(), k.load(s, t + i, d, n)) };
                        } else {
                            square[..n].fill(0.0);
                        }
                        for (e, x) in square[..n].iter().enumerate() {
                            panel[(d + e) * PANEL + j + i] = *x;
                        }
                    }
                }
            }
        }
    }
}

/// One head's keys.
enum Keys<'a, F> {
    /// In panels.
    Packed(&'a [f32]),
    /// As they are kept.
    Rows(HeadRows<F>),
}

/// One head, up to [`BLOCK`] queries.
struct Block<'a, F> {
    attention: &'a Attention<'a>,
    /// Of the first query.
    position: usize,
    rows: usize,
    /// Whether rows are heads of one query, not queries of one head.
    one_position: bool,
    /// Valid keys, start..end.
    seen: (usize, usize),
    /// Floats from one row of scores to the next.
    pitch: usize,
    q: &'a [f32],
    q_stride: usize,
    k: Keys<'a, F>,
    v: HeadRows<F>,
    /// Relative keys in panels.
    near_keys: &'a [f32],
    scores: &'a mut [f32],
    scaled: &'a mut [f32],
    /// A number for each query and offset.
    near: &'a mut [f32],
    factors: &'a mut [f32],
    out: *mut f32,
    /// Floats from one row of the result to the next.
    out_stride: usize,
}

impl<F: RowFormat> Kernel for Block<'_, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Attention { head_dim: dim, scale, relative, .. } = *self.attention;
        let (rows, width) = (self.rows, self.out_stride);
        let position = |i: usize| self.position + if self.one_position { 0 } else { i };
        let visible = |i: usize| self.attention.visible(position(i), self.seen);
        // Keys that some query of the block sees, in whole panels. Values in front of the first may be anything.
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
                    rows,
                    columns,
                    factors: None,
                    out: self.scores.as_mut_ptr(),
                    out_stride: self.pitch,
                };
                // SAFETY: `scaled` has `rows` rows of `dim`, the panels hold `columns` keys, scores are `pitch` apart.
                unsafe { product.run(s) };
            }
            Keys::Rows(k) => {
                for j in 0..end - start {
                    let mut i = 0;
                    while i < rows {
                        let (q, scores) = (&self.scaled[i * dim..], &mut self.scores[i * self.pitch + j..]);
                        // SAFETY: the key is one of those that are seen.
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
        // Compact keys have no relative terms, and so no code for them.
        if F::FLOATS && relative.is_some() {
            let product = Product {
                a: self.scaled.as_ptr(),
                a_stride: dim,
                b: Panels { first: self.near_keys.as_ptr(), stride: PANEL, panel: PANEL * dim },
                depth: dim,
                rows,
                columns: offsets,
                factors: None,
                out: self.near.as_mut_ptr(),
                out_stride: offsets,
            };
            // SAFETY: `scaled` has `rows` rows of `dim`, the panels and `near` as many columns as there are offsets.
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
        for i in (0..rows).filter(|&i| visible(i).0 >= visible(i).1) {
            self.scores[i * self.pitch..][..columns].fill(0.0);
            self.factors[i] = 0.0;
        }

        let product = Product {
            a: self.scores[first - start..].as_ptr(),
            a_stride: self.pitch,
            b: HeadRows { first: self.v.row(first), ..self.v },
            depth: end - first,
            rows,
            columns: dim,
            factors: Some(self.factors.as_ptr()),
            out: self.out,
            out_stride: width,
        };
        // SAFETY: `v` has `end` rows, the last one at least `dim` long; `out` is this block's.
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
                rows,
                columns: dim,
                factors: Some(self.factors.as_ptr()),
                out: self.scaled.as_mut_ptr(),
                out_stride: dim,
            };
            // SAFETY: `near` has `rows` rows of all offsets, and so has the table; `scaled` has room for the rows.
            unsafe { product.run(s) };
            for i in 0..rows {
                // SAFETY: this head's channels of row i, which belong to this block.
                let out = unsafe { std::slice::from_raw_parts_mut(self.out.add(i * width), dim) };
                out.iter_mut().zip(&self.scaled[i * dim..]).for_each(|(o, x)| *o += x);
            }
        }
    }
}

/// Columns (keys counted from `start`) within `window` of position `p`, each with its row of the tables.
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

/// Products of a key with `R` rows of queries, which stand `dim` apart; results stand `pitch` apart. Each is summed in the same order,
/// however many there are. Returns `R`.
///
/// # Safety
/// Row `t` of `dim` elements exists.
#[inline(always)]
unsafe fn dots<S: Simd, F: RowFormat, const R: usize>(
    s: S,
    q: &[f32],
    (k, t, dim): (HeadRows<F>, usize, usize),
    out: &mut [f32],
    pitch: usize,
) -> usize {
    assert!(q.len() >= R * dim && out.len() > (R - 1) * pitch, "`R` rows");
    let (row, q) = (k.row(t), q.as_ptr());
    let mut sums = [s.splat(0.0); R];
    let whole = dim / S::LANES * S::LANES;
    // SAFETY: `R` rows of `dim` queries were checked, and the caller vouches for the key.
    unsafe {
        for d in (0..whole).step_by(S::LANES) {
            let key = k.format.load(s, row, k.channel + d);
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = s.fma(s.load(q.add(r * dim + d)), key, *sum);
            }
        }
        if whole < dim {
            let n = dim - whole;
            let key = k.format.load_partial(s, row, k.channel + whole, n);
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = s.fma(s.load_partial(q.add(r * dim + whole), n), key, *sum);
            }
        }
    }
    for (r, sum) in sums.into_iter().enumerate() {
        out[r * pitch] = s.reduce_add(sum);
    }
    R
}

/// Turns `R` rows of scores into exp(score − max), and gives the inverse of each sum. Several rows at once, since each
/// waits for its own maximum and its own sum. Rows stand `pitch` apart and have whole vectors. Returns `R`.
#[inline(always)]
fn softmax_numerators<S: Simd, const R: usize>(
    s: S,
    scores: &mut [f32],
    (pitch, columns): (usize, usize),
    factors: &mut [f32],
) -> usize {
    assert!(columns.is_multiple_of(S::LANES) && scores.len() >= (R - 1) * pitch + columns, "whole rows");
    let p = scores.as_mut_ptr();
    let mut max = [s.splat(f32::NEG_INFINITY); R];
    let mut sum = [s.splat(0.0); R];
    // SAFETY: all rows and columns exist, as just checked.
    unsafe {
        for j in (0..columns).step_by(S::LANES) {
            for (i, max) in max.iter_mut().enumerate() {
                *max = s.max(*max, s.load(p.add(i * pitch + j)));
            }
        }
        let max = max.map(|m| s.splat(s.reduce_max(m)));
        for j in (0..columns).step_by(S::LANES) {
            for (i, sum) in sum.iter_mut().enumerate() {
                let p = p.add(i * pitch + j);
                let e = vecmath::exp_nonpositive(s, s.sub(s.load(p), max[i]));
                s.store(p, e);
                *sum = s.add(*sum, e);
            }
        }
    }
    factors.iter_mut().zip(sum).for_each(|(f, sum)| *f = 1.0 / s.reduce_add(sum));
    R
}

/// The right operand of a [`Product`]: rows of columns.
trait Columns: Copy {
    /// Where a column is.
    type At: Copy;
    /// The place of column `c`, the first of its panel or a multiple of a vector behind it.
    fn at(&self, c: usize) -> Self::At;
    /// A vector of row `d`, `k` vectors behind a column.
    ///
    /// # Safety
    /// Row and columns exist.
    unsafe fn load<S: Simd>(&self, s: S, at: Self::At, d: usize, k: usize) -> S::V;
    /// The first `n` columns of it, n below `LANES`.
    ///
    /// # Safety
    /// Row and columns exist.
    unsafe fn load_partial<S: Simd>(&self, s: S, at: Self::At, d: usize, n: usize) -> S::V;
}

/// Column c of row d stands at `first + c/32 · panel + d · stride + c%32`.
#[derive(Clone, Copy)]
struct Panels {
    first: *const f32,
    stride: usize,
    panel: usize,
}

impl Columns for Panels {
    type At = *const f32;
    #[inline(always)]
    fn at(&self, c: usize) -> *const f32 {
        self.first.wrapping_add(c / PANEL * self.panel + c % PANEL)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, s: S, at: *const f32, d: usize, k: usize) -> S::V {
        // SAFETY: the caller vouches for row and columns.
        unsafe { s.load(at.add(d * self.stride + k * S::LANES)) }
    }
    #[inline(always)]
    unsafe fn load_partial<S: Simd>(&self, s: S, at: *const f32, d: usize, n: usize) -> S::V {
        // SAFETY: the caller vouches for row and columns.
        unsafe { s.load_partial(at.add(d * self.stride), n) }
    }
}

impl<F: RowFormat> Columns for HeadRows<F> {
    type At = usize;
    #[inline(always)]
    fn at(&self, c: usize) -> usize {
        self.channel + c
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, s: S, at: usize, d: usize, k: usize) -> S::V {
        // SAFETY: the caller vouches for row and columns.
        unsafe { self.format.load(s, self.row(d), at + k * S::LANES) }
    }
    #[inline(always)]
    unsafe fn load_partial<S: Simd>(&self, s: S, at: usize, d: usize, n: usize) -> S::V {
        // SAFETY: the caller vouches for row and columns.
        unsafe { self.format.load_partial(s, self.row(d), at, n) }
    }
}

/// out[i,c] = factor[i] · Σ_d a[i,d] · b[d,c], each sum in order of d, in runs of [`RUN`].
#[derive(Clone, Copy)]
struct Product<B> {
    a: *const f32,
    a_stride: usize,
    b: B,
    depth: usize,
    rows: usize,
    columns: usize,
    factors: Option<*const f32>,
    out: *mut f32,
    out_stride: usize,
}

impl<B: Columns> Product<B> {
    /// # Safety
    /// All pointers are valid for the sizes and strides given.
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let mut row = 0;
        // SAFETY: rows and columns stay within what the caller vouches for.
        unsafe {
            if S::REGISTERS >= 32 {
                while row + 8 <= self.rows {
                    self.strip::<S, 8>(s, row);
                    row += 8;
                }
            }
            while row + 4 <= self.rows {
                self.strip::<S, 4>(s, row);
                row += 4;
            }
            while row + 2 <= self.rows {
                self.strip::<S, 2>(s, row);
                row += 2;
            }
            while row < self.rows {
                self.strip::<S, 1>(s, row);
                row += 1;
            }
        }
    }

    /// `R` rows, all columns.
    ///
    /// # Safety
    /// As for `run`; the rows exist.
    #[inline(always)]
    unsafe fn strip<S: Simd, const R: usize>(&self, s: S, row: usize) {
        let mut c = 0;
        // SAFETY: as promised to us; `n` keeps the last vector within the columns.
        unsafe {
            while c + 2 * S::LANES <= self.columns {
                self.tile::<S, R, 2>(s, row, c, S::LANES);
                c += 2 * S::LANES;
            }
            while c < self.columns {
                self.tile::<S, R, 1>(s, row, c, S::LANES.min(self.columns - c));
                c += S::LANES;
            }
        }
    }

    /// `R` rows by `N` vectors, of which the last has `n` lanes.
    ///
    /// # Safety
    /// As for `run`; rows and columns exist, and the vectors lie in one panel.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const N: usize>(&self, s: S, row: usize, c: usize, n: usize) {
        let mut totals = [[s.splat(0.0); N]; R];
        // SAFETY: the caller vouches for `R` rows of `a` and `out` and for the columns of `b`.
        unsafe {
            let a = self.a.add(row * self.a_stride);
            let at = self.b.at(c);
            let full = n == S::LANES;
            for first in (0..self.depth).step_by(RUN) {
                let mut sums = [[s.splat(0.0); N]; R];
                for d in first..self.depth.min(first + RUN) {
                    let mut v = [s.splat(0.0); N];
                    for (k, v) in v.iter_mut().enumerate() {
                        *v = if full { self.b.load(s, at, d, k) } else { self.b.load_partial(s, at, d, n) };
                    }
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let a = s.splat(*a.add(r * self.a_stride + d));
                        for (sum, v) in sums.iter_mut().zip(&v) {
                            *sum = s.fma(a, *v, *sum);
                        }
                    }
                }
                for r in 0..R {
                    for k in 0..N {
                        totals[r][k] = s.add(totals[r][k], sums[r][k]);
                    }
                }
            }
            for (r, totals) in totals.iter().enumerate() {
                let factor = match self.factors {
                    Some(factors) => s.splat(*factors.add(row + r)),
                    None => s.splat(1.0),
                };
                for (k, sum) in totals.iter().enumerate() {
                    let y = s.mul(*sum, factor);
                    let out = self.out.add((row + r) * self.out_stride + c + k * S::LANES);
                    if full { s.store(out, y) } else { s.store_partial(out, y, n) }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::elementwise::testing::*;

    /// Scores reach about 5 and sum up to 128 products: they are off by a few 1e-6, and so are, relatively, their
    /// exponentials.
    const ERROR: f64 = 1e-5;

    struct Case {
        batch: usize,
        kv_batch: usize,
        queries: usize,
        keys: usize,
        heads: usize,
        dim: usize,
    }

    fn plain(a: &Attention<'_>, q: Sequence<'_>, k: Sequence<'_>, v: Sequence<'_>) -> Vec<f64> {
        let (dim, width) = (a.head_dim, a.heads * a.head_dim);
        let mut out = vec![0.0; q.batch * q.steps * width];
        for (b, i, h) in
            (0..q.batch).flat_map(|b| (0..q.steps).flat_map(move |i| (0..a.heads).map(move |h| (b, i, h))))
        {
            let kb = if k.batch == 1 { 0 } else { b };
            let len = a.kv_lens.map_or(k.steps, |l| l[b] as usize);
            let p = (a.first_query + i) as isize;
            let at = |x: Sequence<'_>, b: usize, t: usize, d: usize| {
                x.data[(b * x.steps + t) * x.stride + h * dim + d] as f64
            };
            let offset = |j: usize| {
                let w = a.relative?.window as isize;
                let o = j as isize - p;
                (o.abs() <= w).then(|| (o + w) as usize * dim)
            };
            let seen: Vec<usize> = (0..len)
                .filter(|&j| match a.mask {
                    Mask::None => true,
                    Mask::Causal => j as isize <= p,
                    Mask::Window { left, right } => {
                        j as isize >= p - left as isize && j as isize <= p + right as isize
                    }
                })
                .collect();
            let scores: Vec<f64> = seen
                .iter()
                .map(|&j| {
                    let s = (0..dim).map(|d| {
                        let r = offset(j).map_or(0.0, |o| a.relative.expect("offset").keys[o + d] as f64);
                        at(q, b, i, d) * (at(k, kb, j, d) + r)
                    });
                    s.sum::<f64>() * a.scale as f64
                })
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            for (&j, s) in seen.iter().zip(&scores) {
                for d in 0..dim {
                    let r = offset(j).map_or(0.0, |o| a.relative.expect("offset").values[o + d] as f64);
                    out[(b * q.steps + i) * width + h * dim + d] +=
                        (s - max).exp() / sum * (at(v, kb, j, d) + r);
                }
            }
        }
        out
    }

    /// Runs one case with every mask, lengths, relative positions and rows that stand apart.
    fn check(case: Case) {
        let Case { batch, kv_batch, queries, keys, heads, dim } = case;
        let width = heads * dim;
        let gap = 5;
        let mut q = noise(batch * queries * (width + gap), 1);
        q.iter_mut().for_each(|x| *x *= 3.0);
        let mut kv = noise(kv_batch * keys * 2 * width, 2);
        let tables = (noise(9 * dim, 4), noise(9 * dim, 5));
        let lens: Vec<u32> = (0..batch).map(|b| (keys * b / batch.max(2)) as u32).collect();
        let (masks, offset) = (
            [
                Mask::None,
                Mask::Causal,
                Mask::Window { left: 3, right: 2 },
                Mask::Window { left: 40, right: 0 },
            ],
            keys.saturating_sub(queries),
        );
        for (mask, relative, lens) in masks.into_iter().flat_map(|m| {
            let relative = Relative { window: 4, keys: &tables.0, values: &tables.1 };
            let lens = &lens[..];
            [
                (m, None, None),
                (m, Some(relative), None),
                (m, None, Some(lens)),
                (m, Some(relative), Some(lens)),
            ]
        }) {
            if kv_batch == batch && lens.is_some() {
                // Stale bytes behind the length must not matter.
                for (b, &len) in lens.into_iter().flatten().enumerate() {
                    kv[(b * keys + len as usize) * 2 * width..(b + 1) * keys * 2 * width].fill(f32::NAN);
                }
            } else {
                kv.iter_mut().filter(|x| x.is_nan()).for_each(|x| *x = 0.5);
            }
            let attention = Attention {
                heads,
                kv_heads: heads,
                head_dim: dim,
                scale: 1.0 / (dim as f32).sqrt(),
                mask,
                first_query: if mask == Mask::None { 0 } else { offset },
                first_queries: None,
                passed: None,
                kv_lens: lens,
                relative,
            };
            let q = Sequence { data: &q, batch, steps: queries, stride: width + gap };
            let k = Sequence { data: &kv, batch: kv_batch, steps: keys, stride: 2 * width };
            let v = Sequence { data: kv.get(width..).unwrap_or(&[]), ..k };
            let want = plain(&attention, q, k, v);
            everywhere(
                |isa, team| {
                    let mut out = vec![9.0; batch * queries * width];
                    let mut scratch = vec![f32::NAN; attention.scratch_len(team.threads(), kv_batch, keys)];
                    attention.run((isa, team), q, (k, v), &mut out, &mut scratch);
                    out
                },
                |isa, got| {
                    let what =
                        format!("{isa} {batch}/{kv_batch} {queries}x{keys} {heads}x{dim} {mask:?} {lens:?}");
                    assert_close(got, &want, ERROR, &what);
                },
            );
        }
    }

    #[test]
    fn matches_the_formula_on_real_shapes() {
        check(Case { batch: 2, kv_batch: 2, queries: 72, keys: 80, heads: 8, dim: 64 });
        check(Case { batch: 2, kv_batch: 1, queries: 72, keys: 50, heads: 2, dim: 128 });
        check(Case { batch: 1, kv_batch: 1, queries: 81, keys: 81, heads: 2, dim: 32 });
        check(Case { batch: 1, kv_batch: 1, queries: 80, keys: 80, heads: 4, dim: 64 });
    }

    #[test]
    fn matches_the_formula_at_edges() {
        for (queries, keys) in
            [(1, 1), (1, 33), (3, 3), (5, 7), (25, 31), (24, 32), (9, 65), (4, 0), (1, 200)]
        {
            for dim in [16, 20, 33, 96] {
                check(Case { batch: 2, kv_batch: 2, queries, keys, heads: 2, dim });
            }
        }
    }

    #[test]
    fn matches_the_formula_when_long() {
        check(Case { batch: 1, kv_batch: 1, queries: 300, keys: 1000, heads: 1, dim: 128 });
        check(Case { batch: 1, kv_batch: 1, queries: 20, keys: 4096, heads: 1, dim: 64 });
    }

    #[test]
    #[ignore = "timing; run with --ignored --nocapture"]
    fn bench() {
        let team = Team::new(1).expect("a thread");
        for isa in Isa::available() {
            for (queries, keys, heads, dim) in [
                (72, 80, 8, 64),
                (72, 50, 2, 128),
                (81, 81, 2, 32),
                (80, 80, 4, 64),
                (1000, 1000, 2, 64),
                (1, 1000, 8, 64),
            ] {
                let width = heads * dim;
                let (q, k) = (noise(queries * width, 1), noise(keys * width, 2));
                let attention = Attention {
                    heads,
                    kv_heads: heads,
                    head_dim: dim,
                    scale: 0.1,
                    mask: Mask::None,
                    first_query: 0,
                    first_queries: None,
                    passed: None,
                    kv_lens: None,
                    relative: None,
                };
                let mut out = q.clone();
                let mut scratch = vec![0.0; attention.scratch_len(1, 1, keys)];
                let q = Sequence { data: &q, batch: 1, steps: queries, stride: width };
                let k = Sequence { data: &k, batch: 1, steps: keys, stride: width };
                let t = best_of(100, || {
                    attention.run((isa, &team), q, (k, k), std::hint::black_box(&mut out), &mut scratch);
                });
                let flops = 4.0 * (queries * keys * width) as f64;
                println!(
                    "{isa} {queries}x{keys} {heads}x{dim}: {:.1} µs, {:.1} GFLOP/s",
                    t * 1e6,
                    flops / t / 1e9
                );
            }
        }
    }
}
