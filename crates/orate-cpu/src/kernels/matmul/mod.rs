//! Matmul with packed weights: `y = residual + activation(x · w + bias)`.
//!
//! | operand | shape | |
//! | --- | --- | --- |
//! | x | `[M, K]`, or `[B, T, C]` read as a convolution | f32, row-major, contiguous |
//! | w | `[K, N]` | [`PackedWeights`]: f32, f16 or bf16, packed once at load |
//! | bias | `[N]` | optional |
//! | residual | `[M, N]` | optional |
//! | y | `[M, N]` | f32, row-major, contiguous |
//!
//! Accumulates in f32, in slices along K whose sums are added in order. The slices depend on K alone, so
//! neither M, nor the number of threads, nor the distribution of work changes a bit of the result. (With AMX
//! tiles, see `amx.rs`, matmuls of few rows run as on AVX-512. There the number of rows in a sequence selects
//! one of two roundings, but the number of sequences does not; [`Rows`] has the number of rows to choose
//! for.)
//!
//! w is stored in panels of as many columns as fit `vectors` vector registers. A tile of some rows times one
//! panel stays in registers for a slice of K (`tile.rs`). x is read in place, one broadcast per element, so
//! nothing is packed at run time. The tiles of a block of rows pass over a slice of a panel in turn. The
//! block is small enough to stay in the second-level cache, while prefetch instructions, spread over the
//! tiles, fetch the *next* slice from memory. Threads take panels as they become free, the last ones in
//! smaller pieces.

#[cfg(target_arch = "x86_64")]
mod amx;
pub mod blocks;
#[cfg(target_arch = "x86_64")]
mod cut;
mod narrow;
mod op;
mod pack;
#[cfg(target_arch = "x86_64")]
mod planes;
#[cfg(test)]
mod tests;
mod tile;

pub use crate::kernels::activation::Activation;
pub(crate) use op::Product;
pub use pack::{Columns, Element, PackedWeights, Strided};

use crate::kernels::activation::Apply;
use crate::simd::{Kernel, Simd, UNROLL};
use crate::team::Worker;
use crate::{Isa, Team};
use orate_graph::ConvGeometry;
use pack::{Panel, Shape};
use std::ops::Range;

/// The left operand.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// A matrix: the M rows of all sequences.
    Dense {
        /// [M, K]
        x: &'a [f32],
        /// Rows of a sequence that the kernel is chosen for: the length of each sequence, or one number for
        /// all pieces of a split sequence. The number of sequences does not matter.
        chosen_for: usize,
    },
    /// A convolution over time with stride 1: M = batch · time, K = taps · channels. For tap j, row (b, t)
    /// contains row `t + j · dilation - left` of batch b, which may be one of its `edges`. So row `j ·
    /// channels + c` of w has the weight of tap j and channel c.
    Conv {
        /// [batch, time, channels]
        x: &'a [f32],
        /// Independent sequences.
        batch: usize,
        /// Rows of each sequence.
        time: usize,
        /// As in `Dense`.
        chosen_for: usize,
        /// Input channels.
        channels: usize,
        /// Kernel size.
        taps: usize,
        /// Distance between taps.
        dilation: usize,
        /// Rows of padding before the first row.
        left: usize,
        /// Rows before and after x.
        edges: Edges<'a>,
    },
}

/// What stands beyond the ends of each sequence of a convolution.
#[derive(Clone, Copy, Debug)]
pub enum Edges<'a> {
    /// The row at the end, again and again.
    Repeat,
    /// One row of zeros, `[channels]`, for all of them.
    Zeros(&'a [f32]),
    /// `[batch, left, channels]` before x; after it, the last row repeats.
    History(&'a [f32]),
}

impl<'a> Edges<'a> {
    /// Those that `geometry` says, where `zeros` is a row of zeros and `history` an operand.
    pub(crate) fn of(
        geometry: &ConvGeometry,
        zeros: &'a [f32],
        history: impl FnOnce() -> &'a [f32],
    ) -> Edges<'a> {
        match geometry.edges {
            // Depthwise convolutions have the lengths beside the edges.
            orate_graph::Edges::Repeat | orate_graph::Edges::Lengths => Edges::Repeat,
            orate_graph::Edges::Zero => Edges::Zeros(zeros),
            orate_graph::Edges::History => Edges::History(history()),
        }
    }

    /// The rows that are not those of x.
    #[inline(always)]
    pub(crate) fn rows(self) -> &'a [f32] {
        match self {
            Edges::Repeat => &[],
            Edges::Zeros(rows) | Edges::History(rows) => rows,
        }
    }

    /// Row `at` of sequence `batch`, counted from `left` rows before it: whether it is one of [`Edges::rows`]
    /// rather than of x, and its number there.
    #[inline(always)]
    pub(crate) fn find(self, batch: usize, at: usize, left: usize, time: usize) -> (bool, usize) {
        match self {
            Edges::History(_) if at < left => (true, batch * left + at),
            Edges::Zeros(_) if at < left || at >= left + time => (true, 0),
            _ => (false, batch * time + at.saturating_sub(left).min(time - 1)),
        }
    }
}

/// The taps of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taps {
    /// Kernel size.
    pub count: usize,
    /// Distance between taps.
    pub dilation: usize,
}

/// Applied to each result before it is stored: `residual + activation(x · w + bias)`.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue<'a> {
    /// `[N]`
    pub bias: Option<&'a [f32]>,
    /// Element by element.
    pub activation: Option<Activation>,
    /// `[M, N]`; must not be the memory of y.
    pub residual: Option<&'a [f32]>,
}

impl Epilogue<'_> {
    fn check(&self, y: usize, n: usize) {
        if let Some(bias) = self.bias {
            assert_eq!(bias.len(), n, "bias of a matmul with {n} columns");
        }
        if let Some(residual) = self.residual {
            assert_eq!(residual.len(), y, "residual and y have one shape");
        }
    }

    /// The plain matmul.
    pub const NONE: Epilogue<'static> = Epilogue { bias: None, activation: None, residual: None };
}

/// Below this many multiply-adds (a few microseconds) the caller works alone.
const SMALL: usize = 300_000;

/// Maximum bytes of x in a block of rows, so that it stays in the second-level cache together with two slices
/// of a panel.
const BLOCK_BYTES: usize = 768 * 1024;

/// Maximum rows of a block, to bound the scratch memory.
const BLOCK_ROWS: usize = 192;

/// Floats of scratch memory that [`matmul`] needs on `threads` threads for M rows; `chosen_for` and `taps`
/// are those of [`Rows`].
pub fn scratch_len(
    isa: Isa,
    threads: usize,
    [m, k, n]: [usize; 3],
    chosen_for: usize,
    taps: Option<Taps>,
) -> usize {
    #[cfg(target_arch = "x86_64")]
    if isa.has_tiles() && amx::pays(chosen_for, k, n) {
        return amx::scratch_len(threads, m, k, n, taps).max(plain_scratch_len(isa, threads));
    }
    let _ = (m, k, chosen_for, taps);
    if n <= narrow::COLUMNS {
        return threads * GATHER_STRIDE;
    }
    plain_scratch_len(isa, threads)
}

/// [`scratch_len`] without matrix tiles.
fn plain_scratch_len(isa: Isa, threads: usize) -> usize {
    threads * scratch_of_worker(Shape::of(isa)) + ALIGN
}

/// Floats in a cache line.
const ALIGN: usize = 16;

/// Sums of a block times a panel, rows of x gathered for one tile, and a slice of a panel as f32.
fn scratch_of_worker(shape: Shape) -> usize {
    sums_len(shape) + gather_len(shape) + SLICE * shape.vectors * shape.lanes
}

fn gather_len(shape: Shape) -> usize {
    (shape.rows * GATHER_STRIDE).next_multiple_of(ALIGN)
}

fn sums_len(shape: Shape) -> usize {
    (BLOCK_ROWS * shape.vectors * shape.lanes).next_multiple_of(ALIGN)
}

/// Length along K of the slices of a panel that all tiles of a block pass over in turn. Longer ones store and
/// load sums less often; shorter ones stay in smaller caches and round better: with this length the errors at
/// K = 2048 are a sixth of those of one long sum.
const SLICE: usize = 256;

/// Fewest channels of a convolution whose slices end with taps that are more than one row apart. Shorter
/// slices, which store and load sums more often, were not tried.
const LEAST_RUN: usize = 64;

/// Stride of gathered rows: a cache line more than the longest slice, so that rows do not share cache sets.
const GATHER_STRIDE: usize = 512 + ALIGN;

/// `y[M, N] = residual + activation(x[M, K] · w[K, N] + bias)`
///
/// `w` must be packed for the same `isa`; `scratch` has at least [`scratch_len`] floats of any content.
/// Allocates nothing.
///
/// # Panics
/// Lengths do not match each other or the weights.
pub fn matmul(
    isa: Isa,
    team: &Team,
    rows: Rows<'_>,
    w: &PackedWeights,
    epilogue: &Epilogue<'_>,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let (k, n) = (w.k(), w.n());
    assert_eq!(w.isa(), isa, "weights are packed for another instruction set");
    let m = y.len() / n.max(1);
    assert_eq!(y.len(), m * n, "y has {} elements, which are not whole rows of {n}", y.len());
    if y.is_empty() {
        return;
    }
    rows.check(m, k);
    epilogue.check(y.len(), n);
    let needed = scratch_len(isa, team.threads(), [m, k, n], rows.chosen_for(), rows.taps());
    assert!(scratch.len() >= needed, "scratch has {} floats, {needed} are needed", scratch.len());
    if !w.narrow().is_empty() {
        return narrow::matmul(isa, team, rows, w, epilogue, y, scratch);
    }
    #[cfg(target_arch = "x86_64")]
    if isa.has_tiles() && amx::pays(rows.chosen_for(), k, n) {
        return amx::matmul(isa, team, rows, w, epilogue, y, scratch);
    }

    let job = Job {
        shape: w.shape(),
        rows,
        w,
        epilogue,
        y: y.as_mut_ptr(),
        work: Division::new(w.shape(), team.threads(), m, k, n),
    };
    let skip = scratch.as_ptr().align_offset(64).min(ALIGN);
    let scratch = Scratch(scratch[skip..].as_mut_ptr());
    team.run(job.work.chunks(), &|worker, chunk| {
        isa.run(Chunk { job: &job, chunk, scratch: scratch.of(worker, job.shape) });
    });
}

impl<'a> Rows<'a> {
    /// Rows of a sequence that the kernel is chosen for.
    pub fn chosen_for(&self) -> usize {
        match *self {
            Rows::Dense { chosen_for, .. } | Rows::Conv { chosen_for, .. } => chosen_for,
        }
    }

    /// The taps, if this is a convolution of a single sequence.
    pub fn taps(&self) -> Option<Taps> {
        match *self {
            Rows::Conv { batch: 1, taps, dilation, .. } => Some(Taps { count: taps, dilation }),
            _ => None,
        }
    }

    /// Row `at` of the input of a convolution of a single sequence, counted from the first row before it;
    /// `None` after the last.
    #[cfg(target_arch = "x86_64")]
    fn row_of_sequence(&self, at: usize) -> Option<&'a [f32]> {
        let Rows::Conv { x, time, channels, taps, dilation, left, edges, .. } = *self else { return None };
        if at >= time + (taps - 1) * dilation {
            return None;
        }
        let (beyond, row) = edges.find(0, at, left, time);
        let x = if beyond { edges.rows() } else { x };
        Some(&x[row * channels..][..channels])
    }

    fn check(&self, m: usize, k: usize) {
        match *self {
            Rows::Dense { x, .. } => {
                assert_eq!(x.len(), m * k, "x has {} elements, [{m}, {k}] are needed", x.len());
            }
            Rows::Conv { x, batch, time, channels, taps, dilation, left, edges, .. } => {
                assert_eq!(batch * time, m, "a convolution of [{batch}, {time}] rows gives {m}");
                assert_eq!(
                    taps * channels,
                    k,
                    "a convolution of {taps} taps and {channels} channels has K {k}"
                );
                assert_eq!(x.len(), m * channels, "x has {} elements, [{m}, {channels}] are needed", x.len());
                assert!(dilation > 0, "taps are at least one row apart");
                let rows = match edges {
                    Edges::Repeat => 0,
                    Edges::Zeros(_) => 1,
                    Edges::History(_) => batch * left,
                };
                assert_eq!(
                    edges.rows().len(),
                    rows * channels,
                    "rows beyond the ends are [{rows}, {channels}]"
                );
            }
        }
    }

    /// Elements of K in which slices begin and end: all, or those of a tap where taps are more than one row
    /// apart and slices of several taps would be gathered.
    fn run(&self, k: usize) -> usize {
        match *self {
            Rows::Conv { channels, dilation: 2.., .. } if channels >= LEAST_RUN => channels,
            _ => k,
        }
    }

    /// Returns address and stride of columns `ks` of `count` rows from `first` on. Rows that are not in
    /// memory with a stride are gathered into `buffer`.
    ///
    /// # Safety
    /// The rows and columns must exist; `buffer` has room for `count` rows of [`GATHER_STRIDE`].
    #[inline(always)]
    unsafe fn locate(
        &self,
        k: usize,
        first: usize,
        count: usize,
        ks: Range<usize>,
        buffer: *mut f32,
    ) -> (*const f32, usize) {
        match *self {
            // SAFETY: row `first` and column `ks.start` exist.
            Rows::Dense { x, .. } => (unsafe { x.as_ptr().add(first * k + ks.start) }, k),
            Rows::Conv { x, time, channels, taps, dilation, left, .. } => {
                let (batch, t) = (first / time, first % time);
                let (tap, last_tap) = (ks.start / channels, (ks.end - 1) / channels);
                // Taps one row apart are contiguous in memory, as they are along K.
                let contiguous = dilation == 1 || tap == last_tap;
                let inside = t >= left && t + count - 1 + (taps - 1) * dilation < time + left;
                if contiguous && inside {
                    let row = batch * time + t - left + tap * dilation;
                    // SAFETY: no tap of these rows is outside the sequence.
                    (unsafe { x.as_ptr().add(row * channels + ks.start - tap * channels) }, channels)
                } else {
                    // SAFETY: the caller guarantees it.
                    unsafe { self.gather(first, count, ks, buffer) };
                    (buffer, GATHER_STRIDE)
                }
            }
        }
    }

    /// Copies columns `ks` of `count` rows to rows of [`GATHER_STRIDE`].
    ///
    /// # Safety
    /// As for [`locate`](Rows::locate).
    #[inline(never)]
    unsafe fn gather(&self, first: usize, count: usize, ks: Range<usize>, buffer: *mut f32) {
        let Rows::Conv { x, time, channels, dilation, left, edges, .. } = *self else { return };
        for i in 0..count {
            let (batch, t) = ((first + i) / time, (first + i) % time);
            let mut at = ks.start;
            while at < ks.end {
                let (tap, c) = (at / channels, at % channels);
                let (beyond, row) = edges.find(batch, t + tap * dilation, left, time);
                let x = if beyond { edges.rows() } else { x };
                let source = &x[row * channels + c..row * channels + channels.min(c + ks.end - at)];
                // SAFETY: at most SLICE floats go to row `i` of the buffer.
                unsafe {
                    let target = buffer.add(i * GATHER_STRIDE + at - ks.start);
                    target.copy_from_nonoverlapping(source.as_ptr(), source.len());
                }
                at += source.len();
            }
        }
    }
}

/// Partition of the work: rows into tiles, tiles into blocks, and (block, panel) pairs into pieces for
/// threads.
#[derive(Clone, Copy, Debug)]
struct Division {
    m: usize,
    /// Tiles of nearly equal height.
    tiles: usize,
    blocks: usize,
    panels: usize,
    threads: usize,
    /// Pairs that are one piece each; the remaining ones are cut into `parts`.
    whole: usize,
    parts: usize,
}

impl Division {
    fn new(shape: Shape, threads: usize, m: usize, k: usize, n: usize) -> Division {
        let tiles = m.div_ceil(shape.rows);
        let block_rows = (BLOCK_BYTES / 4 / k.max(1)).clamp(shape.rows, BLOCK_ROWS);
        let blocks = tiles.div_ceil(block_rows / shape.rows);
        let panels = shape.panels(n);
        let pairs = blocks * panels;
        let threads = if m * n * k < SMALL { 1 } else { threads };
        let (whole, parts) = match threads {
            1 => (pairs, 1),
            // Small pieces at the end let all threads finish at about the same time.
            _ => {
                let parts = (8 * threads).div_ceil(pairs).max(3).min(tiles / blocks);
                (pairs.saturating_sub(2 * threads), parts)
            }
        };
        Division { m, tiles, blocks, panels, threads, whole, parts }
    }

    /// Chunks for the team; a single thread takes everything as one.
    fn chunks(&self) -> usize {
        if self.threads == 1 { 1 } else { self.pieces() }
    }

    fn pieces(&self) -> usize {
        self.whole + (self.blocks * self.panels - self.whole) * self.parts
    }

    /// Panel and tiles of a piece.
    fn piece(&self, piece: usize) -> (usize, Range<usize>) {
        let (pair, part, parts) = match piece.checked_sub(self.whole) {
            None => (piece, 0, 1),
            Some(rest) => (self.whole + rest / self.parts, rest % self.parts, self.parts),
        };
        let (block, panel) = (pair / self.panels, pair % self.panels);
        let (start, end) = (block * self.tiles / self.blocks, (block + 1) * self.tiles / self.blocks);
        let tiles = end - start;
        (panel, start + part * tiles / parts..start + (part + 1) * tiles / parts)
    }

    /// First row of a tile; M for the index after the last.
    fn row(&self, tile: usize) -> usize {
        tile * self.m / self.tiles
    }
}

/// One call of [`matmul`].
struct Job<'a> {
    shape: Shape,
    rows: Rows<'a>,
    w: &'a PackedWeights,
    epilogue: &'a Epilogue<'a>,
    y: *mut f32,
    work: Division,
}

// SAFETY: `y` represents a `&mut [f32]` of which every chunk writes its own elements.
unsafe impl Sync for Job<'_> {}

/// Scratch memory with one part per worker.
struct Scratch(*mut f32);

// SAFETY: it represents a `&mut [f32]`; workers use different parts.
unsafe impl Sync for Scratch {}

impl Scratch {
    fn of(&self, worker: Worker, shape: Shape) -> *mut f32 {
        self.0.wrapping_add(worker.index() * scratch_of_worker(shape))
    }
}

/// The part of a job that a thread takes at a time, compiled for each instruction set.
struct Chunk<'a> {
    job: &'a Job<'a>,
    chunk: usize,
    scratch: *mut f32,
}

impl Kernel for Chunk<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let work = &self.job.work;
        let pieces = if work.chunks() == 1 { 0..work.pieces() } else { self.chunk..self.chunk + 1 };
        for piece in pieces {
            self.multiply(s, piece);
        }
    }
}

impl Chunk<'_> {
    /// Multiplies some tiles by one panel.
    #[inline(always)]
    fn multiply<S: Simd>(&self, s: S, piece: usize) {
        let Job { shape, rows, w, epilogue, y, work, .. } = self.job;
        let k = w.k();
        let (panel, tiles) = work.piece(piece);
        // The piece that this thread will probably take next.
        let next = match piece + work.threads {
            next if next < work.pieces() => work.piece(next).0,
            _ => panel,
        };
        let next = w.panel(next).data;
        let Panel { data, first_column, vectors } = w.panel(panel);
        let width = vectors * shape.lanes;
        let first_row = work.row(tiles.start);
        let sums = self.scratch;
        let gathered = self.scratch.wrapping_add(sums_len(*shape));
        let wide = gathered.wrapping_add(gather_len(*shape));
        let row_bytes = width * w.element().bytes();

        // Slices of equal length, rounded to whole iterations of the loop.
        let run = rows.run(k);
        let length = run.div_ceil(run.div_ceil(SLICE).max(1)).next_multiple_of(UNROLL).min(SLICE);
        let slice_from = |start: usize| start..(start + length).min(start / run.max(1) * run + run).min(k);
        let mut ks = slice_from(0);
        loop {
            let last = ks.end == k;
            // The next slice follows in memory; after the last one, another panel comes.
            let ahead = if last { next } else { data.wrapping_add(ks.end * row_bytes) };
            let ahead_bytes = ks.len() * row_bytes / tiles.len();
            let slice = data.wrapping_add(ks.start * row_bytes);
            // SAFETY: the slice exists, and `wide` has room for it.
            let slice = unsafe { widen(s, w.element(), slice, ks.len() * width, wide) };
            for tile in tiles.clone() {
                let (row, end) = (work.row(tile), work.row(tile + 1));
                let sums = sums.wrapping_add((row - first_row) * width);
                // SAFETY: tiles consist of existing rows, slices of existing columns.
                let (a, a_stride) = unsafe { rows.locate(k, row, end - row, ks.clone(), gathered) };
                let operands = tile::Operands {
                    k: ks.len(),
                    a,
                    a_stride,
                    b: slice,
                    sums,
                    first: ks.start == 0,
                    ahead: ahead.wrapping_add((tile - tiles.start) * ahead_bytes).cast(),
                    ahead_bytes,
                };
                if last {
                    tile::expect(s, row..end, first_column, vectors, w.n(), epilogue, *y);
                }
                // SAFETY: the operands exist, and `sums` has room for the block's rows.
                unsafe { tile::multiply(s, end - row, vectors, &operands) };
                if last {
                    // SAFETY: only this chunk writes these elements of y.
                    unsafe { tile::finish(s, sums, row..end, first_column, vectors, w.n(), epilogue, *y) };
                }
            }
            if last {
                break;
            }
            ks = slice_from(ks.end);
        }
    }
}

/// Returns `len` elements of packed weights as f32: in place, or widened into `wide`.
///
/// # Safety
/// The elements exist and are whole vectors; if they are not f32, `wide` has room for them.
#[inline(always)]
unsafe fn widen<S: Simd>(s: S, element: Element, from: *const u8, len: usize, wide: *mut f32) -> *const f32 {
    if element == Element::F32 {
        return from.cast();
    }
    let from = from.cast::<u16>();
    for i in (0..len).step_by(S::LANES) {
        // SAFETY: the caller guarantees it.
        unsafe {
            let v = if element == Element::F16 { s.load_f16(from.add(i)) } else { s.load_bf16(from.add(i)) };
            s.store(wide.add(i), v);
        }
    }
    wide
}

/// The formula, accumulated in f64: the reference for tests. `w` is [k, n] as for [`PackedWeights::pack`].
pub fn plain(rows: Rows<'_>, k: usize, n: usize, w: Strided<'_>, epilogue: &Epilogue<'_>, y: &mut [f32]) {
    let mut sums = vec![0.0; n];
    for (row, y) in y.chunks_exact_mut(n).enumerate() {
        sums.fill(0.0);
        for i in 0..k {
            let x = match rows {
                Rows::Dense { x, .. } => x[row * k + i],
                Rows::Conv { x, time, channels, dilation, left, edges, .. } => {
                    let at = row % time + i / channels * dilation;
                    let (beyond, from) = edges.find(row / time, at, left, time);
                    let x = if beyond { edges.rows() } else { x };
                    x[from * channels + i % channels]
                }
            };
            let w = w.data[i * w.k_stride..].iter().step_by(w.n_stride);
            sums.iter_mut().zip(w).for_each(|(sum, &w)| *sum += x as f64 * w as f64);
        }
        for (col, (y, &sum)) in y.iter_mut().zip(&sums).enumerate() {
            let sum = epilogue.activation.plain(sum + epilogue.bias.map_or(0.0, |b| b[col] as f64));
            *y = (sum + epilogue.residual.map_or(0.0, |r| r[row * n + col] as f64)) as f32;
        }
    }
}
