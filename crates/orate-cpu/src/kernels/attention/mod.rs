//! Multi-head attention, with masks as predicates and optional relative positions.
//!
//! ```text
//! s[i,j] = scale · q_i · k_j  + (|j−i| ≤ w ? scale · q_i · rel_k[j−i+w] : 0) + bias[i,j]
//! p[i,:] = softmax over the keys j that the mask and the length let query i see
//! o_i    = Σ_j p[i,j] · v_j  + Σ_{|j−i| ≤ w} p[i,j] · rel_v[j−i+w]
//! ```
//!
//! `q` [B, Tq, H·D], `k` and `v` [B or 1, Tk, Hkv·D] with any row stride, `out` [B, Tq, H·D] contiguous;
//! `rel_k`, `rel_v` [2w+1, D], shared by heads; `bias` [B, H, Tq, Tk], if given. All are f32, except that k
//! and v may be compact rows ([`RowFormat`]); accumulation is f32. Head h uses channels h·D to (h+1)·D of q,
//! and head h / (H / Hkv) of k and v. A query that sees no key gets zeros. Keys past the length are never
//! used, whatever their memory holds.
//!
//! Two phases, both split over the team. First each head's keys are packed into panels of 32 keys, [D, 32],
//! so that scores are a matmul without horizontal sums. Then, for each head and block of 24 queries: scores
//! into scratch, softmax, matmul with `v`. Both matmuls use one register tile of eight rows by two vectors
//! (four by two with 16 registers). The scores of a block stay in the second-level cache up to about 4000
//! keys. The result of a block does not depend on the thread that computes it.
//!
//! With [`Mask::Window`] a query's result does not depend on how the stream is split into pieces either, to
//! the last bit: keys are always packed, and sums go over keys in order, in runs that begin at fixed
//! positions of the stream.
//!
//! | file | content |
//! | --- | --- |
//! | `operands` | layout of queries, keys and values |
//! | `pack` | packing of keys into panels |
//! | `block` | computation of one block of queries |
//! | `one` | one query over a long cache |
//! | `scores`, `product` | softmax, register tiles |
//! | `bf16` | the same with operands rounded to bf16, for processors that multiply those |
//! | `relative_scores` | the bias of attention with relative positions, an op of its own |

#[cfg(target_arch = "x86_64")]
mod bf16;
mod block;
mod one;
mod op;
mod operands;
mod pack;
mod product;
pub mod relative_scores;
mod scores;
#[cfg(test)]
mod tests;

pub(crate) use op::Op;
pub use operands::{Cached, Sequence};

use crate::kernels::cache_rows::{Blocks, Floats, Halves, RowFormat, UpperHalves};
use crate::kernels::elementwise::SharedMut;
use crate::{Isa, Team};
use block::{BLOCK, Block, Keys};
use operands::KeptRows;
use orate_graph::DType;
use pack::{Pack, padded};
use product::RUN;

/// Up to this many queries, keys are read in place: packing them would cost more than it saves.
const FEW: usize = 3;

/// Channels of a head that the bf16 kernel takes at once: two vectors.
const CHANNELS: usize = 32;

/// Which keys a query may see. Query i is at position p = `first_query` + i, key j at position j.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// All keys.
    None,
    /// j ≤ p
    Causal,
    /// p − left ≤ j ≤ p
    Window {
        /// Number of earlier positions in the window.
        left: usize,
    },
}

impl Mask {
    /// Whether visible keys have a lower bound, so that results must not depend on how a stream is split.
    fn is_window(self) -> bool {
        matches!(self, Mask::Window { .. })
    }
}

/// Learned vectors for nearby offsets, as in VITS.
#[derive(Clone, Copy, Debug)]
pub struct Relative<'a> {
    /// w: offsets −w to w have a vector, others none.
    pub window: usize,
    /// [2w+1, D]
    pub keys: &'a [f32],
    /// [2w+1, D]
    pub values: &'a [f32],
}

/// Parameters of an attention.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// H
    pub heads: usize,
    /// Hkv: heads of k and v, a divisor of H.
    pub kv_heads: usize,
    /// D
    pub head_dim: usize,
    /// Factor on the queries. Models differ (1/√D, 1/16), so take it from the checkpoint.
    pub scale: f32,
    /// Which keys a query may see.
    pub mask: Mask,
    /// Position of query 0: the number of cached keys before this piece.
    pub first_query: usize,
    /// Position of query 0 per batch row, `[B]`; overrides `first_query`.
    pub first_queries: Option<&'a [u32]>,
    /// Rows of the stream before the queries, per batch row, `[B]`: keys before the start of the stream are
    /// invisible, whatever their memory holds. Without it, no key is hidden in this way.
    pub passed: Option<&'a [u32]>,
    /// Valid keys per batch row, `[B]`; all Tk without it.
    pub kv_lens: Option<&'a [u32]>,
    /// Relative positions.
    pub relative: Option<Relative<'a>>,
    /// Added to the scores, [B, H, Tq, Tk].
    pub bias: Option<&'a [f32]>,
}

impl Attention<'_> {
    /// Range start..end of keys that the query at position `p` sees; empty if start ≥ end.
    #[inline(always)]
    fn visible(&self, p: usize, (start, end): (usize, usize)) -> (usize, usize) {
        match self.mask {
            Mask::None => (start, end),
            Mask::Causal => (start, end.min(p + 1)),
            Mask::Window { left } => (start.max(p.saturating_sub(left)), end.min(p.saturating_add(1))),
        }
    }

    /// Position of query 0 of a batch row, and the range start..end of its keys.
    fn row(&self, b: usize, keys: usize) -> (usize, (usize, usize)) {
        let first = self.first_queries.map_or(self.first_query, |f| f[b] as usize);
        let end = self.kv_lens.map_or(keys, |l| l[if l.len() == 1 { 0 } else { b }] as usize);
        (first, (self.passed.map_or(0, |p| first.saturating_sub(p[b] as usize)), end))
    }

    /// Keys of the stream before key 0 of a batch row, modulo the length of a run: runs begin at fixed
    /// positions of the stream.
    fn begun(&self, b: usize) -> usize {
        let passed = self.passed.map_or(self.first_query, |p| p[b] as usize);
        (passed % RUN + RUN - self.first_query % RUN) % RUN
    }

    /// Whether `run_bf16` computes attentions of this kind, with this many queries.
    pub fn fits_bf16(&self, queries: usize) -> bool {
        self.mask == Mask::None
            && self.head_dim.is_multiple_of(CHANNELS)
            && queries > FEW
            && self.relative.is_none()
            && self.kv_lens.is_none()
            && self.bias.is_none()
    }

    /// Floats of scratch that [`Attention::run`] needs for `kv_batch` batch rows of `keys` keys.
    pub fn scratch_len(&self, threads: usize, kv_batch: usize, keys: usize) -> usize {
        self.head_dim * (self.offsets() + kv_batch * self.kv_heads * padded(keys))
            + threads * self.worker_scratch(keys)
    }

    /// Scores, scaled queries, one factor per query, and scores with relative keys.
    fn worker_scratch(&self, keys: usize) -> usize {
        BLOCK * (padded(keys) + self.head_dim + 1 + self.offsets())
    }

    /// Number of offsets with relative terms, rounded up to whole panels.
    fn offsets(&self) -> usize {
        self.relative.map_or(0, |r| padded(2 * r.window + 1))
    }

    /// `out` [B, Tq, H·D] = attention of `q` over `k` and `v`.
    ///
    /// # Panics
    /// Sizes do not match, or there is less scratch than [`Attention::scratch_len`].
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

    /// [`Attention::run`] with keys and values in a cache type.
    ///
    /// # Panics
    /// As for [`Attention::run`], or the type is not a cache type.
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
                assert!(self.head_dim.is_multiple_of(32), "heads must be whole blocks of 32");
                let blocks = Blocks(self.kv_heads * self.head_dim);
                self.run_format(on, q, (dtype, blocks), (k, v), out, scratch);
            }
            DType::I32 => panic!("keys must not be integers"),
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
            // With a stride, the last row may end after its elements; compact rows are whole.
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
        let scores = batch * self.heads * queries * keys;
        assert!(self.bias.is_none_or(|x| x.len() == scores), "a bias [B, H, Tq, Tk]");
        assert!(
            scratch.len() >= self.scratch_len(team.threads(), k.batch, keys),
            "scratch_len floats of scratch"
        );
        if out.is_empty() {
            return;
        }
        if k.batch == batch && self.is_one(queries, keys) {
            return self.run_one((isa, team), (q.data, q.stride), (k, v), out, scratch);
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
        let pack = queries > FEW || self.mask.is_window();
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
        // With a single query, heads that share keys are rows of one block, so that keys and values are read
        // once.
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
                begun: self.begun(b),
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
                bias: self.bias.map(|x| &x[((b * self.heads + h) * queries + first) * keys..]),
                keys,
                scores,
                scaled,
                near,
                factors,
                // SAFETY: in bounds by the size of `out`; the block writes this head's channels of its rows
                // only.
                out: unsafe { out.as_ptr().add((b * queries + first) * width + h * self.head_dim) },
                out_stride: if together > 1 { self.head_dim } else { width },
            });
        });
    }
}
