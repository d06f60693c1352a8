//! Attention with operands in bf16, on processors that multiply pairs of them (AVX-512 BF16).
//!
//! The formula is that of the [module above](super), without mask, lengths, relative positions and bias.
//! Queries (times scale), keys, values and the numerators of the softmax are rounded to bf16, to nearest
//! even; sums, maximum and exponential are f32. An instruction adds two products to each lane, twice the rate
//! of f32. Where there are AMX tiles, they multiply: pairs are in the order in which tiles have them.
//!
//! Numbers that are multiplied together lie in pairs, four bytes each: two channels of a key or query, and
//! two rows of values. Each head's keys are packed into panels `[D/2, 32]` and its values into `[Tk/2, D]`,
//! zero after the last key. Then each head and block of 24 queries, or 32 with tiles: scores, softmax, matmul
//! with the values. The division of work changes no sum.

use super::operands::Sequence;
use super::pack::{PANEL, padded};
use super::{Attention, CHANNELS};
use crate::arch::amx::{TILE_ROWS, Tiles};
use crate::arch::x86::{Avx512, Bf16, Bf16Kernel};
use crate::kernels::elementwise::SharedMut;
use crate::kernels::vecmath;
use crate::simd::Simd;
use crate::{Isa, Team};

/// Queries per chunk of work: two tiles of rows, or as many as registers hold sums of.
fn block_len(isa: Isa) -> usize {
    if isa.has_tiles() { MOST_QUERIES } else { 24 }
}

/// Maximum queries per chunk of work, all of which have scratch.
const MOST_QUERIES: usize = 2 * TILE_ROWS;

/// Floats of a vector.
const LANES: usize = Avx512::<false>::LANES;

impl Attention<'_> {
    /// Floats of scratch that [`Attention::run_bf16`] needs for `kv_batch` batch rows of `keys` keys.
    pub fn scratch_len_bf16(&self, threads: usize, kv_batch: usize, keys: usize) -> usize {
        kv_batch * self.kv_heads * self.head_dim * padded(keys) + threads * self.worker_scratch_bf16(keys)
    }

    /// Scores, rounded queries, and one factor per query.
    fn worker_scratch_bf16(&self, keys: usize) -> usize {
        MOST_QUERIES * (padded(keys) + self.head_dim / 2 + 1)
    }

    /// `out` [B, Tq, H·D] = attention of `q` over `k` and `v`, rounded to bf16.
    ///
    /// # Panics
    /// Sizes do not match or do not [fit](Attention::fits_bf16), there is less scratch than
    /// [`Attention::scratch_len_bf16`], or the processor lacks the instructions.
    pub fn run_bf16(
        &self,
        (isa, team): (Isa, &Team),
        q: Sequence<'_>,
        (k, v): (Sequence<'_>, Sequence<'_>),
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        let (dim, width) = (self.head_dim, self.heads * self.head_dim);
        let kv_width = self.kv_heads * dim;
        let (batch, queries, keys) = (q.batch, q.steps, k.steps);
        assert!(self.fits_bf16(queries), "an attention that fits");
        assert!(self.heads.is_multiple_of(self.kv_heads.max(1)), "whole groups of heads share keys");
        let group = self.heads / self.kv_heads;
        for (name, x, width) in [("q", q, width), ("k", k, kv_width), ("v", v, kv_width)] {
            let rows = x.batch * x.steps;
            assert!(x.stride >= width, "{name}: rows of {width} floats, {} apart", x.stride);
            assert!(rows == 0 || x.data.len() >= (rows - 1) * x.stride + width, "{name}: {rows} whole rows");
        }
        assert!(k.batch == v.batch && k.steps == v.steps, "as many keys as values");
        assert!(k.batch == batch || k.batch == 1, "keys for each batch row, or shared ones");
        assert_eq!(out.len(), batch * queries * width, "output is [B, Tq, H·D]");
        let needed = self.scratch_len_bf16(team.threads(), k.batch, keys);
        assert!(scratch.len() >= needed, "scratch_len_bf16 floats of scratch");
        if keys == 0 {
            out.fill(0.0);
        }
        if out.is_empty() || keys == 0 {
            return;
        }

        let packed_len = dim * padded(keys) / 2;
        let heads = k.batch * self.kv_heads;
        let (packed, own) = scratch.split_at_mut(2 * heads * packed_len);
        let shared = SharedMut::new(packed);
        team.run(2 * heads, &|_, chunk| {
            let (x, head) = (if chunk < heads { k } else { v }, chunk % heads);
            let first = head / self.kv_heads * x.steps * x.stride + head % self.kv_heads * dim;
            let rows = Rows { first: x.data[first..].as_ptr(), stride: x.stride, count: keys, dim };
            // SAFETY: each chunk has its own part.
            let to = unsafe { shared.part(chunk * packed_len..(chunk + 1) * packed_len) };
            if chunk < heads {
                isa.run_bf16(PackKeys { rows, to })
            } else {
                isa.run_bf16(PackValues { rows, to })
            }
        });

        let packed = &*packed;
        let own_len = self.worker_scratch_bf16(keys);
        let (out, own) = (SharedMut::new(out), SharedMut::new(own));
        let block_len = block_len(isa);
        let blocks = queries.div_ceil(block_len);
        team.run(batch * self.heads * blocks, &|worker, chunk| {
            let (b, h, block) = (chunk / blocks / self.heads, chunk / blocks % self.heads, chunk % blocks);
            let head = if k.batch == 1 { 0 } else { b } * self.kv_heads + h / group;
            let first = block * block_len;
            let row = b * queries + first;
            // SAFETY: a worker number belongs to one thread at a time.
            let own = unsafe { own.part(worker.index() * own_len..(worker.index() + 1) * own_len) };
            isa.run_bf16(Block {
                q: Rows {
                    first: q.data[row * q.stride + h * dim..].as_ptr(),
                    stride: q.stride,
                    count: block_len.min(queries - first),
                    dim,
                },
                has_tiles: isa.has_tiles(),
                scale: self.scale,
                keys,
                k: &packed[head * packed_len..][..packed_len],
                v: &packed[(heads + head) * packed_len..][..packed_len],
                own,
                // SAFETY: in bounds by the size of `out`; the block writes this head's channels of its rows
                // only.
                out: unsafe { out.as_ptr().add(row * width + h * dim) },
                out_stride: width,
            });
        });
    }
}

/// Channels of one head in consecutive rows.
#[derive(Clone, Copy)]
struct Rows {
    first: *const f32,
    stride: usize,
    count: usize,
    dim: usize,
}

impl Rows {
    /// The vector of row `t` from channel `d` on; zeros after the last row.
    ///
    /// # Safety
    /// The rows exist, and the channels.
    #[inline(always)]
    unsafe fn load(&self, s: Avx512<false>, t: usize, d: usize) -> <Avx512<false> as Simd>::V {
        // SAFETY: the caller guarantees it.
        if t < self.count { unsafe { s.load(self.first.add(t * self.stride + d)) } } else { s.splat(0.0) }
    }
}

/// `to[p][c][j]` = channels 2c and 2c + 1 of key 32p + j.
struct PackKeys<'a> {
    rows: Rows,
    to: &'a mut [f32],
}

impl Bf16Kernel for PackKeys<'_> {
    #[inline(always)]
    fn run(self, s: Avx512<false>, pairs: Bf16) {
        let PackKeys { rows, to } = self;
        let mut square = [0.0; LANES * LANES];
        for (p, panel) in to.chunks_exact_mut(rows.dim / 2 * PANEL).enumerate() {
            for (j, d) in
                [0, LANES].into_iter().flat_map(|j| (0..rows.dim).step_by(CHANNELS).map(move |d| (j, d)))
            {
                for (i, to) in square.chunks_exact_mut(LANES).enumerate() {
                    let t = p * PANEL + j + i;
                    // SAFETY: the rows were checked, and `to` has room for a vector.
                    unsafe {
                        let both = pairs.round(rows.load(s, t, d), rows.load(s, t, d + LANES));
                        s.store(to.as_mut_ptr(), both);
                    }
                }
                let to = &mut panel[d / 2 * PANEL + j..];
                assert!(to.len() >= (LANES - 1) * PANEL + LANES, "whole panels");
                // SAFETY: the square has 16 rows of 16 pairs, the panel as many of its own.
                unsafe { s.transpose(square.as_ptr(), LANES, to.as_mut_ptr(), PANEL) };
            }
        }
    }
}

/// `to[t][c]` = channel c of rows 2t and 2t + 1.
struct PackValues<'a> {
    rows: Rows,
    to: &'a mut [f32],
}

impl Bf16Kernel for PackValues<'_> {
    #[inline(always)]
    fn run(self, s: Avx512<false>, pairs: Bf16) {
        let PackValues { rows, to } = self;
        for (t, to) in to.chunks_exact_mut(rows.dim).enumerate() {
            for (d, to) in to.chunks_exact_mut(LANES).enumerate() {
                let d = d * LANES;
                // SAFETY: the rows were checked, and `to` has room for a vector.
                unsafe {
                    let (even, odd) = (rows.load(s, 2 * t, d), rows.load(s, 2 * t + 1, d));
                    s.store(to.as_mut_ptr(), pairs.interleave(even, odd));
                }
            }
        }
    }
}

/// One head, up to [`MOST_QUERIES`] queries.
struct Block<'a> {
    q: Rows,
    has_tiles: bool,
    scale: f32,
    keys: usize,
    /// As [`PackKeys`] leaves them.
    k: &'a [f32],
    /// As [`PackValues`] leaves them.
    v: &'a [f32],
    own: &'a mut [f32],
    out: *mut f32,
    out_stride: usize,
}

impl Bf16Kernel for Block<'_> {
    #[inline(always)]
    fn run(self, s: Avx512<false>, pairs: Bf16) {
        let Block { q, keys, .. } = self;
        let (dim, rows, pitch) = (q.dim, q.count, padded(keys));
        let (scores, own) = self.own.split_at_mut(MOST_QUERIES * pitch);
        let (queries, factors) = own.split_at_mut(MOST_QUERIES * dim / 2);
        // SAFETY: the instruction set has tiles, and nothing else on this thread uses them.
        let tiles = self.has_tiles.then(|| unsafe { Tiles::configure() });
        let tiles = tiles.as_ref();
        // The exponential is one of base 2.
        let scale = s.splat(self.scale * std::f32::consts::LOG2_E);
        for (i, to) in queries.chunks_exact_mut(dim / 2).enumerate().take(rows) {
            for (d, to) in to.chunks_exact_mut(LANES).enumerate() {
                // SAFETY: the rows were checked, and `to` has room for a vector.
                unsafe {
                    let (low, high) = (q.load(s, i, d * CHANNELS), q.load(s, i, d * CHANNELS + LANES));
                    s.store(to.as_mut_ptr(), pairs.round(s.mul(low, scale), s.mul(high, scale)));
                }
            }
        }
        for (p, panel) in self.k.chunks_exact(dim / 2 * PANEL).enumerate() {
            let product = Product {
                a: queries.as_ptr(),
                a_stride: dim / 2,
                b: panel.as_ptr(),
                b_stride: PANEL,
                depth: dim / 2,
                rows,
                tiles,
                factors: None,
                out: scores[p * PANEL..].as_mut_ptr(),
                out_stride: pitch,
            };
            // SAFETY: `queries` and `scores` have room for whole tiles of rows, the panel has as many pairs
            // as a query.
            unsafe { product.run(s, pairs) };
        }
        let mut i = 0;
        while i < rows {
            let (scores, factors) = (&mut scores[i * pitch..], &mut factors[i..]);
            i += match rows - i {
                4.. => softmax::<4>(s, pairs, scores, (pitch, keys), factors),
                _ => softmax::<1>(s, pairs, scores, (pitch, keys), factors),
            };
        }
        for d in (0..dim).step_by(CHANNELS) {
            let product = Product {
                a: scores.as_ptr(),
                a_stride: pitch,
                b: self.v[d..].as_ptr(),
                b_stride: dim,
                depth: pitch / 2,
                rows,
                tiles,
                factors: Some(factors.as_ptr()),
                out: self.out.wrapping_add(d),
                out_stride: self.out_stride,
            };
            // SAFETY: half of each row of scores are pairs now, as many as the values have; `out` belongs to
            // this block.
            unsafe { product.run(s, pairs) };
        }
    }
}

/// Replaces `R` rows of scores by 2^(score − max), rounded to pairs in the first half of the row, zero after
/// `keys`, and stores the inverse of each sum. Rows have stride `pitch`. Returns `R`.
#[inline(always)]
fn softmax<const R: usize>(
    s: Avx512<false>,
    pairs: Bf16,
    scores: &mut [f32],
    (pitch, keys): (usize, usize),
    factors: &mut [f32],
) -> usize {
    assert!(scores.len() >= R * pitch && keys <= pitch && pitch.is_multiple_of(2 * LANES), "whole rows");
    for row in scores.chunks_exact_mut(pitch).take(R) {
        // Far below every score, and still a number after the maximum is subtracted.
        row[keys..].fill(-1e30);
    }
    let p = scores.as_mut_ptr();
    let mut max = [s.splat(-1e30); R];
    let mut sum = [s.splat(0.0); R];
    // SAFETY: all rows and columns exist, as just checked. Pairs are written where scores have been read.
    unsafe {
        for j in (0..pitch).step_by(LANES) {
            for (i, max) in max.iter_mut().enumerate() {
                *max = s.max(*max, s.load(p.add(i * pitch + j)));
            }
        }
        let max = max.map(|m| s.splat(s.reduce_max(m)));
        for j in (0..pitch).step_by(2 * LANES) {
            for (i, sum) in sum.iter_mut().enumerate() {
                let row = p.add(i * pitch);
                let low = vecmath::exp2_nonpositive(s, s.sub(s.load(row.add(j)), max[i]));
                let high = vecmath::exp2_nonpositive(s, s.sub(s.load(row.add(j + LANES)), max[i]));
                *sum = s.add(*sum, s.add(low, high));
                s.store(row.add(j / 2), pairs.round(low, high));
            }
        }
    }
    factors.iter_mut().zip(sum).for_each(|(f, sum)| *f = 1.0 / s.reduce_add(sum));
    R
}

/// `out[i, c] = factor[i] · Σ over pairs d of a[i, d] · b[d, c]`, for 32 columns. Without factors, `out` has
/// room for whole tiles of rows.
struct Product<'a> {
    a: *const f32,
    a_stride: usize,
    b: *const f32,
    b_stride: usize,
    depth: usize,
    rows: usize,
    tiles: Option<&'a Tiles>,
    factors: Option<*const f32>,
    out: *mut f32,
    out_stride: usize,
}

/// Sums of two by two tiles.
#[repr(align(64))]
struct Sums([[f32; 2 * LANES]; MOST_QUERIES]);

impl Product<'_> {
    /// # Safety
    /// All pointers are valid for the sizes and strides given.
    #[inline(always)]
    unsafe fn run(self, s: Avx512<false>, pairs: Bf16) {
        if let Some(tiles) = self.tiles {
            // SAFETY: the caller guarantees it.
            return unsafe { self.on_tiles(s, tiles) };
        }
        let mut row = 0;
        while row < self.rows {
            // SAFETY: the rows of the tile exist.
            row += unsafe {
                match self.rows - row {
                    12.. => self.tile::<12>(s, pairs, row),
                    4.. => self.tile::<4>(s, pairs, row),
                    _ => self.tile::<1>(s, pairs, row),
                }
            };
        }
    }

    /// # Safety
    /// As for `run`; `a` has whole tiles of rows.
    #[inline(always)]
    unsafe fn on_tiles(&self, s: Avx512<false>, tiles: &Tiles) {
        let is_tall = self.rows > TILE_ROWS;
        tiles.zero::<0>();
        tiles.zero::<1>();
        tiles.zero::<2>();
        tiles.zero::<3>();
        // SAFETY: the caller guarantees it. Sums of rows after the last are of anything, and are not used.
        unsafe {
            let below = self.a.add(if is_tall { TILE_ROWS * self.a_stride } else { 0 });
            for d in (0..self.depth).step_by(LANES) {
                let b = self.b.add(d * self.b_stride);
                tiles.load::<4>(self.a.add(d).cast(), 4 * self.a_stride);
                tiles.load::<6>(b.cast(), 4 * self.b_stride);
                tiles.load::<7>(b.add(LANES).cast(), 4 * self.b_stride);
                tiles.multiply::<0, 4, 6>();
                tiles.multiply::<1, 4, 7>();
                if is_tall {
                    tiles.load::<5>(below.add(d).cast(), 4 * self.a_stride);
                    tiles.multiply::<2, 5, 6>();
                    tiles.multiply::<3, 5, 7>();
                }
            }
            let mut sums = Sums([[0.0; 2 * LANES]; MOST_QUERIES]);
            let (to, stride) = match self.factors {
                None => (self.out, self.out_stride),
                Some(_) => (sums.0.as_mut_ptr().cast(), 2 * LANES),
            };
            let below = to.add(if is_tall { TILE_ROWS * stride } else { 0 });
            tiles.store::<0>(to.cast(), 4 * stride);
            tiles.store::<1>(to.add(LANES).cast(), 4 * stride);
            if is_tall {
                tiles.store::<2>(below.cast(), 4 * stride);
                tiles.store::<3>(below.add(LANES).cast(), 4 * stride);
            }
            let Some(factors) = self.factors else { return };
            for (r, sums) in sums.0.iter().enumerate().take(self.rows) {
                let (factor, out) = (s.splat(*factors.add(r)), self.out.add(r * self.out_stride));
                s.store(out, s.mul(s.load(sums.as_ptr()), factor));
                s.store(out.add(LANES), s.mul(s.load(sums[LANES..].as_ptr()), factor));
            }
        }
    }

    /// Computes `R` rows from `row` on and returns `R`.
    ///
    /// # Safety
    /// As for `run`; the rows exist.
    #[inline(always)]
    unsafe fn tile<const R: usize>(&self, s: Avx512<false>, pairs: Bf16, row: usize) -> usize {
        let mut sums = [[s.splat(0.0); 2]; R];
        // SAFETY: the caller guarantees it.
        unsafe {
            let a = self.a.add(row * self.a_stride);
            for d in 0..self.depth {
                let b = self.b.add(d * self.b_stride);
                let b = [s.load(b), s.load(b.add(LANES))];
                for (r, sums) in sums.iter_mut().enumerate() {
                    let a = s.splat(*a.add(r * self.a_stride + d));
                    sums[0] = pairs.dot2(sums[0], a, b[0]);
                    sums[1] = pairs.dot2(sums[1], a, b[1]);
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                let factor = s.splat(self.factors.map_or(1.0, |f| *f.add(row + r)));
                let out = self.out.add((row + r) * self.out_stride);
                s.store(out, s.mul(sums[0], factor));
                s.store(out.add(LANES), s.mul(sums[1], factor));
            }
        }
        R
    }
}
