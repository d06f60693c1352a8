//! The product on AMX tiles, as exact as in floats.
//!
//! Each float is cut into three bf16 numbers of eight bits, x = x0 + x1 + x2 exactly, and likewise each weight.
//! Of the nine products the six largest are summed in f32: x0w0, x0w1, x1w0, x1w1, x0w2, x2w0. What is left out
//! is below 2⁻²⁴ of a term, the rounding of a float product. (Numbers below 2⁻¹²⁶ count as zero.)
//!
//! Blocks of rows of x are cut into planes first, by all threads ([`Planes`]). Then threads take panels of 32
//! columns: a panel's weights are cut while they come from memory, once for all rows of the block, and the tiles
//! of the block pass over them. The order of summation depends on K and M alone, never on threads.

use super::pack::Panel;
use super::{Epilogue, PackedWeights, Rows};
use crate::arch::amx::{self, STEP_BYTES, TILE_BYTES, TILE_K, TILE_ROWS};
use crate::simd::{Kernel, Simd};
use crate::{Isa, Team};
use std::arch::x86_64::*;
use std::ops::Range;

/// Columns of a panel: two tiles.
const COLUMNS: usize = 32;

/// Rows of x that are cut into planes at a time, at most.
const BLOCK_ROWS: usize = 512;

/// Bytes of planes of a block, so that they stay in the second-level cache beside a panel's.
const BLOCK_BYTES: usize = 1152 * 1024;

/// Steps along K below which a block is not cut further.
const FEWEST_STEPS: usize = 8;

/// Rows below which products wait for memory rather than for arithmetic, so that tiles gain nothing.
const FEWEST_ROWS: usize = 16;

/// How one product is cut.
#[derive(Clone, Copy, Debug)]
struct Cut {
    m: usize,
    k: usize,
    n: usize,
    /// Rows of a block of x.
    block_rows: usize,
    /// Rows of a tile: all tiles of a block have equally many.
    tile_rows: usize,
    /// Steps of 32 along K that are done at a time.
    steps: usize,
}

impl Cut {
    fn new(m: usize, k: usize, n: usize) -> Cut {
        let blocks = m.div_ceil(BLOCK_ROWS);
        let block_rows = m.div_ceil(blocks);
        let pairs = block_rows.div_ceil(2 * TILE_ROWS);
        let tile_rows = block_rows.div_ceil(2 * pairs);
        let all = k.div_ceil(TILE_K);
        let most = (BLOCK_BYTES / (pairs * STEP_BYTES)).max(FEWEST_STEPS);
        Cut { m, k, n, block_rows, tile_rows, steps: all.div_ceil(all.div_ceil(most)) }
    }

    fn pairs(&self, rows: usize) -> usize {
        rows.div_ceil(2 * self.tile_rows)
    }

    fn planes_bytes(&self) -> usize {
        self.pairs(self.block_rows) * self.steps * STEP_BYTES
    }

    fn panel_bytes(&self) -> usize {
        self.steps * STEP_BYTES
    }

    /// Planes of a panel, sums of a pair of tiles, and a gathered row.
    fn worker_bytes(&self) -> usize {
        self.panel_bytes() + 2 * TILE_ROWS * COLUMNS * 4 + self.steps * TILE_K * 4
    }
}

/// Whether tiles are worth it for such a product.
pub(super) fn pays(m: usize, k: usize, n: usize) -> bool {
    m >= FEWEST_ROWS && k >= TILE_K && n >= TILE_ROWS
}

/// Floats of scratch memory.
pub(super) fn scratch_len(threads: usize, m: usize, k: usize, n: usize) -> usize {
    let c = Cut::new(m, k, n);
    (c.planes_bytes() + threads * c.worker_bytes()) / 4 + TILE_BYTES / 4
}

/// A pointer that threads share, each using its own part.
#[derive(Clone, Copy)]
struct Shared(*mut u8);

// SAFETY: it stands for a `&mut [u8]`; threads use different parts, or only read.
unsafe impl Sync for Shared {}

/// See [`super::matmul`], which has checked all lengths.
pub(super) fn matmul(
    isa: Isa,
    team: &Team,
    rows: Rows<'_>,
    w: &PackedWeights,
    epilogue: &Epilogue<'_>,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let c = Cut::new(y.len() / w.n(), w.k(), w.n());
    let skip = scratch.as_ptr().align_offset(64).min(16);
    let planes = Shared(scratch[skip..].as_mut_ptr().cast());
    let workers = Shared(planes.0.wrapping_add(c.planes_bytes()));
    let y = Shared(y.as_mut_ptr().cast());
    let all_steps = c.k.div_ceil(TILE_K);
    for first in (0..c.m).step_by(c.block_rows) {
        let block = first..(first + c.block_rows).min(c.m);
        for step in (0..all_steps).step_by(c.steps) {
            let steps = step..(step + c.steps).min(all_steps);
            let part = Part { c, rows, w, epilogue, y, planes, workers, block: block.clone(), steps };
            part.run(isa, team);
        }
    }
}

/// A block of rows times a stretch along K.
struct Part<'a> {
    c: Cut,
    rows: Rows<'a>,
    w: &'a PackedWeights,
    epilogue: &'a Epilogue<'a>,
    y: Shared,
    planes: Shared,
    workers: Shared,
    block: Range<usize>,
    steps: Range<usize>,
}

impl Part<'_> {
    fn run(&self, isa: Isa, team: &Team) {
        let worker = |i: usize| self.workers.0.wrapping_add(i * self.c.worker_bytes());
        team.run(self.c.pairs(self.block.len()), &|w, pair| {
            // SAFETY: each pair of tiles has its own planes; the row buffer is the worker's own.
            unsafe { self.cut_rows(pair, worker(w.index()).cast()) };
        });
        team.run(self.w.shape().panels(self.c.n), &|w, panel| {
            isa.run(PanelTask { part: self, panel, threads: team.threads(), own: worker(w.index()) });
        });
    }

    /// Columns of x, or rows of w, of this part.
    fn ks(&self) -> Range<usize> {
        self.steps.start * TILE_K..(self.steps.end * TILE_K).min(self.c.k)
    }

    /// Cuts the rows of a pair of tiles into planes.
    ///
    /// # Safety
    /// Nobody else writes this pair; `buffer` has room for a row of this part.
    unsafe fn cut_rows(&self, pair: usize, buffer: *mut f32) {
        let c = &self.c;
        let ks = self.ks();
        let base = self.planes.0.wrapping_add(pair * self.steps.len() * STEP_BYTES);
        for tile in 0..2 {
            for r in 0..c.tile_rows {
                let row = self.block.start + (2 * pair + tile) * c.tile_rows + r;
                if row == self.block.end {
                    return; // What the planes hold for rows past the end does not matter: their sums are dropped.
                }
                let out = base.wrapping_add(tile * TILE_BYTES + r * 64);
                // SAFETY: the row exists, and so does its place in the planes.
                unsafe { cut_row(self.rows.row(c.k, row, ks.clone(), buffer), ks.len(), out) };
            }
        }
    }
}

impl Rows<'_> {
    /// Address of columns `ks` of a row; a convolution's are gathered into `buffer` where they do not follow each
    /// other.
    ///
    /// # Safety
    /// Row and columns must exist; `buffer` has room for the columns.
    unsafe fn row(&self, k: usize, row: usize, ks: Range<usize>, buffer: *mut f32) -> *const f32 {
        match *self {
            Rows::Dense { x } => x[row * k + ks.start..].as_ptr(),
            Rows::Conv { x, time, channels, dilation, left, .. } => {
                let (batch, t) = (row / time, row % time);
                let mut at = ks.start;
                while at < ks.end {
                    let (tap, c) = (at / channels, at % channels);
                    let from = batch * time + (t + tap * dilation).saturating_sub(left).min(time - 1);
                    let piece = &x[from * channels + c..from * channels + channels.min(c + ks.end - at)];
                    // SAFETY: all pieces together are as long as `ks`.
                    unsafe {
                        buffer.add(at - ks.start).copy_from_nonoverlapping(piece.as_ptr(), piece.len())
                    };
                    at += piece.len();
                }
                buffer
            }
        }
    }
}

/// Cuts `len` floats into three planes of bf16: 32 of them are 64 bytes in each plane, planes are two tiles apart,
/// steps [`STEP_BYTES`]. Fills the last step up with zeros.
///
/// # Safety
/// The machine has AVX-512 F, BW; `x` has `len` floats, `out` room for all steps.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn cut_row(x: *const f32, len: usize, out: *mut u8) {
    let high = _mm512_set1_epi32(0xFFFF_0000u32 as i32);
    // The high halves of the 32-bit lanes of two vectors, in order.
    let odd: [i16; 32] = std::array::from_fn(|i| (2 * i + 1) as i16);
    // SAFETY: 64 bytes are there.
    let odd = unsafe { _mm512_loadu_si512(odd.as_ptr().cast()) };
    let mut at = 0;
    while at < len {
        let left = len - at;
        let mask = |n: usize| if n >= 16 { !0u16 } else { (1u16 << n) - 1 };
        // SAFETY: only elements below `len` are read; the step exists in `out`.
        unsafe {
            let mut a = _mm512_maskz_loadu_ps(mask(left), x.add(at));
            let mut b = _mm512_maskz_loadu_ps(mask(left.saturating_sub(16)), x.wrapping_add(at + 16));
            let step = out.add(at / TILE_K * STEP_BYTES);
            for plane in 0..3 {
                let (bits_a, bits_b) = (_mm512_castps_si512(a), _mm512_castps_si512(b));
                _mm512_storeu_si512(
                    step.add(plane * 2 * TILE_BYTES).cast(),
                    _mm512_permutex2var_epi16(bits_a, odd, bits_b),
                );
                a = _mm512_sub_ps(a, _mm512_castsi512_ps(_mm512_and_si512(bits_a, high)));
                b = _mm512_sub_ps(b, _mm512_castsi512_ps(_mm512_and_si512(bits_b, high)));
            }
        }
        at += TILE_K;
    }
}

/// Cuts `rows` rows of a panel into three planes, pairs of rows side by side as the tile product wants them.
///
/// # Safety
/// The machine has AVX-512 F; `w` has `rows` rows of `16 · vectors` floats, `out` room for all steps.
#[target_feature(enable = "avx512f")]
unsafe fn cut_panel(w: *const f32, rows: usize, vectors: usize, out: *mut u8) {
    let high = _mm512_set1_epi32(0xFFFF_0000u32 as i32);
    let width = 16 * vectors;
    for pair in 0..rows.next_multiple_of(TILE_K) / 2 {
        let k = 2 * pair;
        for v in 0..vectors {
            // SAFETY: rows below `rows` are read; the step exists in `out`.
            unsafe {
                let at = |k: usize| {
                    if k < rows { _mm512_loadu_ps(w.add(k * width + 16 * v)) } else { _mm512_setzero_ps() }
                };
                let (mut a, mut b) = (at(k), at(k + 1));
                let tile = out.add(k / TILE_K * STEP_BYTES + v * TILE_BYTES + k % TILE_K / 2 * 64);
                for plane in 0..3 {
                    let (bits_a, bits_b) = (_mm512_castps_si512(a), _mm512_castps_si512(b));
                    let (top_a, top_b) = (_mm512_and_si512(bits_a, high), _mm512_and_si512(bits_b, high));
                    let both = _mm512_or_si512(_mm512_srli_epi32::<16>(bits_a), top_b);
                    _mm512_store_si512(tile.add(plane * 2 * TILE_BYTES).cast(), both);
                    a = _mm512_sub_ps(a, _mm512_castsi512_ps(top_a));
                    b = _mm512_sub_ps(b, _mm512_castsi512_ps(top_b));
                }
            }
        }
    }
}

/// One panel times all rows of a part.
struct PanelTask<'a> {
    part: &'a Part<'a>,
    panel: usize,
    threads: usize,
    own: *mut u8,
}

impl Kernel for PanelTask<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Part { c, w, planes, ref block, ref steps, .. } = *self.part;
        let ks = self.part.ks();
        let Panel { data, first_column, vectors } = w.panel(self.panel);
        let width = vectors * 16;
        let (b, sums) = (self.own, self.own.wrapping_add(c.panel_bytes()).cast::<f32>());
        // SAFETY: the panel has all rows of `ks`; `own` has room for their planes.
        unsafe { cut_panel(data.wrapping_add(ks.start * width), ks.len(), vectors, b) };

        // What this thread will probably need next comes in while it computes.
        let next = self.panel + self.threads;
        let pairs = c.pairs(block.len());
        let (mut ahead, mut ahead_lines) = (data, 0);
        if next < w.shape().panels(c.n) {
            let p = w.panel(next);
            ahead = p.data.wrapping_add(ks.start * p.vectors * 16);
            ahead_lines = (ks.len() * p.vectors).div_ceil(pairs * steps.len());
        }
        let (is_first, is_last) = (ks.start == 0, ks.end == c.k);
        // SAFETY: the instruction set that led here has tiles.
        unsafe { amx::configure(c.tile_rows) };
        for pair in 0..pairs {
            let first = block.start + pair * 2 * c.tile_rows;
            let rows = (2 * c.tile_rows).min(block.end - first);
            // SAFETY: `sums` has room for 32 rows; y has these rows and columns, and they are ours alone.
            unsafe {
                if is_first {
                    sums.write_bytes(0, 2 * c.tile_rows * COLUMNS);
                } else {
                    self.load_sums(s, sums, first, rows, first_column, width);
                }
                let a = planes.0.wrapping_add(pair * steps.len() * STEP_BYTES);
                let from = ahead.wrapping_add(pair * steps.len() * ahead_lines * 16).cast();
                amx::accumulate(c.tile_rows, steps.len(), a, b, sums, from, ahead_lines);
                self.store(s, sums, first, rows, first_column, width, is_last);
            }
        }
        // SAFETY: as above.
        unsafe { amx::release() };
    }
}

impl PanelTask<'_> {
    /// Takes up sums that an earlier stretch along K left in y.
    #[inline(always)]
    unsafe fn load_sums<S: Simd>(
        &self,
        s: S,
        sums: *mut f32,
        first: usize,
        rows: usize,
        column: usize,
        width: usize,
    ) {
        let (n, y) = (self.part.c.n, self.part.y.0.cast::<f32>());
        for r in 0..rows {
            for v in (0..width).step_by(16) {
                let columns = 16.min(n - column - v);
                // SAFETY: as promised by the caller.
                unsafe {
                    s.store(
                        sums.add(r * COLUMNS + v),
                        s.load_partial(y.add((first + r) * n + column + v), columns),
                    )
                };
            }
        }
    }

    /// Writes sums to y, with the epilogue if they are complete.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "one call, inlined")]
    unsafe fn store<S: Simd>(
        &self,
        s: S,
        sums: *const f32,
        first: usize,
        rows: usize,
        column: usize,
        width: usize,
        done: bool,
    ) {
        let (n, y) = (self.part.c.n, self.part.y.0.cast::<f32>());
        let e = self.part.epilogue;
        for v in (0..width).step_by(16) {
            let columns = 16.min(n - column - v);
            // SAFETY: bias, residual and y have these columns and rows.
            unsafe {
                let bias =
                    e.bias.map_or(s.splat(0.0), |b| s.load_partial(b.as_ptr().add(column + v), columns));
                for r in 0..rows {
                    let at = (first + r) * n + column + v;
                    let mut sum = s.load(sums.add(r * COLUMNS + v));
                    if done {
                        sum = e.activation.apply(s, s.add(sum, bias));
                        if let Some(residual) = e.residual {
                            sum = s.add(sum, s.load_partial(residual.as_ptr().add(at), columns));
                        }
                    }
                    s.store_partial(y.add(at), sum, columns);
                }
            }
        }
    }
}
