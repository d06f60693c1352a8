//! Matmul with weights in blocks, multiplied as integers.
//!
//! Along K, every 32 weights of a column are a block: integers q and one scale d, weight ≈ d · q. Every 32
//! values of a row of x become a block, too, rounded to 8 bits when the matmul runs: x ≈ s · p. Then
//!
//! ```text
//! x · w = Σ over blocks  d · s · Σ q · p
//! ```
//!
//! where the inner sum is exact, and the outer one runs along K in f32. Neither the number of rows nor of
//! threads changes a bit of the result; instruction sets differ only in the rounding of f32 sums.
//!
//! | format | q | d | bytes per weight |
//! | --- | --- | --- | --- |
//! | `q8_0` | −127 … 127 | largest magnitude / 127 | 1.0625 |
//! | `q4_0` | −8 … 7 | value of largest magnitude / −8 | 0.5625 |
//! | `q6_k` | −32 … 31 | d' · S, S of 8 bits for 16 weights, d' for 256 | 0.8203 |
//! | `q5_k` | 0 … 31 | d' · S, S of 6 bits in a byte, d' for 256; and a minimum | 0.7031 |
//! | `q4_k` | 0 … 15 | as `q5_k` | 0.5781 |
//!
//! Where weights have a minimum m, weight ≈ d · q − m, and m · s · Σ p is subtracted.
//!
//! All are formats of GGUF files; blocks of 256 are as in the file, but for 4 bits of every 32 scales and
//! minima. Decoding token by token reads every weight for one row of x, so bytes per weight determine the
//! speed, and with VNNI the arithmetic keeps up with the memory.
//!
//! Weights are stored as unsigned bytes `q + offset`, for which instructions exist, and each sum starts with
//! the correction `−offset · Σ p`. 32 columns form a panel; a block of a panel is its 32 scales, then, for
//! every four k, four bytes of each column. A tile of a few rows keeps its sums in registers while it reads
//! one panel, and prefetches some blocks ahead.

mod activations;
mod pack;
#[cfg(test)]
mod tests;

pub use pack::{BlockFormat, PackedBlocks};

use super::{ALIGN, Epilogue, Rows, tile};
use crate::kernels::elementwise::SharedMut;
use crate::simd::{ByteKernel, ByteSimd, GROUP_BYTES};
use crate::{Isa, Team};
use activations::Block;
use orate_graph::blocks::SuperFormat;
use pack::{PANEL, PER_SUPER};
use std::marker::PhantomData;
use std::ops::Range;

/// Weights, and values of x, that share a scale.
pub const BLOCK: usize = 32;

/// Maximum rows of a tile.
const TILE_ROWS: usize = 6;

/// Rows that share a fetch of a panel from memory; their blocks stay in the second-level cache.
const ROWS: usize = 96;

/// Prefetch distance in bytes.
const AHEAD: usize = 8192;

/// Below this many multiply-adds the caller works alone.
const SMALL: usize = 1_000_000;

/// Whether a matmul of these rows can use blocks: a block must not straddle two taps.
pub fn fits(rows: &Rows<'_>, format: BlockFormat) -> bool {
    match rows {
        Rows::Dense { .. } => true,
        Rows::Conv { channels, .. } => channels.is_multiple_of(format.block_len()),
    }
}

/// Floats of scratch memory for x with `rows` rows (including those beyond its ends) of `channels`.
pub fn scratch_len(rows: usize, channels: usize) -> usize {
    rows * channels.div_ceil(BLOCK) * (size_of::<Block>() / size_of::<f32>()) + ALIGN
}

/// `y[M, N] = residual + activation(x[M, K] · w[K, N] + bias)`
///
/// `scratch` has at least [`scratch_len`] floats of any content. Allocates nothing.
///
/// # Panics
/// Lengths do not match each other or the weights, or rows do not [fit](fits()).
pub fn matmul(
    isa: Isa,
    team: &Team,
    rows: Rows<'_>,
    w: &PackedBlocks,
    epilogue: &Epilogue<'_>,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let (k, n) = (w.k(), w.n());
    let m = y.len() / n.max(1);
    assert_eq!(y.len(), m * n, "y has {} elements, which are not whole rows of {n}", y.len());
    if y.is_empty() {
        return;
    }
    rows.check(m, k);
    epilogue.check(y.len(), n);
    assert!(fits(&rows, w.format()), "channels in whole blocks of {}", w.format().block_len());
    let threads = if m * n * k < SMALL { 1 } else { team.threads() };
    let x = activations::round(isa, team, threads, &rows, (k, w.format()), scratch);

    let panels = w.panels();
    let row_blocks = m.div_ceil(ROWS);
    // Enough pieces for threads to finish together, but each large enough to be worth scheduling.
    let groups = if threads == 1 { 1 } else { (8 * threads).div_ceil(row_blocks).min(panels) };
    let job = Job { rows, x, w, epilogue, y: SharedMut::new(y) };
    team.run(if threads == 1 { 1 } else { row_blocks * groups }, &|_, chunk| {
        let (rows, panels) = match threads {
            1 => (0..m, 0..panels),
            _ => {
                let (block, group) = (chunk / groups, chunk % groups);
                let rows = block * m / row_blocks..(block + 1) * m / row_blocks;
                (rows, group * panels / groups..(group + 1) * panels / groups)
            }
        };
        match w.format() {
            BlockFormat::Q8_0 => Chunk::<Q8>::run_on(isa, &job, rows, panels),
            BlockFormat::Q4_0 => Chunk::<Q4>::run_on(isa, &job, rows, panels),
            BlockFormat::Super(SuperFormat::Q4K) => Chunk::<Q4K>::run_on(isa, &job, rows, panels),
            BlockFormat::Super(SuperFormat::Q5K) => Chunk::<Q5K>::run_on(isa, &job, rows, panels),
            BlockFormat::Super(SuperFormat::Q6K) => Chunk::<Q6K>::run_on(isa, &job, rows, panels),
        }
    });
}

/// One call of [`matmul`].
struct Job<'a> {
    rows: Rows<'a>,
    /// Rows of x, then those beyond its ends, in blocks.
    x: &'a [Block],
    w: &'a PackedBlocks,
    epilogue: &'a Epilogue<'a>,
    y: SharedMut<'a>,
}

impl Job<'_> {
    /// Blocks of `row` for tap `tap`; a matrix has one tap.
    #[inline(always)]
    fn blocks(&self, row: usize, tap: usize) -> *const Block {
        match self.rows {
            Rows::Dense { .. } => self.x[row * self.w.blocks()..].as_ptr(),
            Rows::Conv { batch, time, channels, dilation, left, edges, .. } => {
                let (beyond, row) = edges.find(row / time, row % time + tap * dilation, left, time);
                let source = if beyond { batch * time + row } else { row };
                self.x[source * (channels / BLOCK)..].as_ptr()
            }
        }
    }

    /// Number of taps, and blocks of each.
    #[inline(always)]
    fn taps(&self) -> (usize, usize) {
        match self.rows {
            Rows::Dense { .. } => (1, self.w.blocks()),
            Rows::Conv { taps, channels, .. } => (taps, channels / BLOCK),
        }
    }
}

/// Some rows times some panels. Of one format, since a function with all of them compiles slowly.
struct Chunk<'a, F> {
    job: &'a Job<'a>,
    rows: Range<usize>,
    panels: Range<usize>,
    format: PhantomData<F>,
}

impl<F: Format> ByteKernel for Chunk<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: ByteSimd>(self, s: S) {
        // Only one arm is compiled for each instruction set, as below: conditions are constants.
        if const { S::LANES == 16 } {
            self.panels::<S, 2, 1>(s);
        } else {
            self.panels::<S, 4, 2>(s);
        }
    }
}

/// A weight format that tiles are compiled for.
trait Format {
    const FORMAT: BlockFormat;
}

macro_rules! formats {
    ($($name:ident = $format:expr;)*) => {
        $(struct $name;
        impl Format for $name {
            const FORMAT: BlockFormat = $format;
        })*
    };
}

formats! {
    Q8 = BlockFormat::Q8_0;
    Q4 = BlockFormat::Q4_0;
    Q4K = BlockFormat::Super(SuperFormat::Q4K);
    Q5K = BlockFormat::Super(SuperFormat::Q5K);
    Q6K = BlockFormat::Super(SuperFormat::Q6K);
}

/// Bytes of the lower halves of a block of a panel.
const LOW: usize = 4 * GROUP_BYTES;

impl<'a, F: Format> Chunk<'a, F> {
    fn run_on(isa: Isa, job: &'a Job<'a>, rows: Range<usize>, panels: Range<usize>) {
        isa.run_bytes(Self { job, rows, panels, format: PhantomData });
    }

    /// `WIDE` vectors are as wide as a panel, `HALF` half as wide.
    #[inline(always)]
    fn panels<S: ByteSimd, const WIDE: usize, const HALF: usize>(&self, s: S) {
        for panel in self.panels.clone() {
            let tiles = self.rows.len().div_ceil(S::TILE_ROWS);
            let row = |tile: usize| self.rows.start + tile * self.rows.len() / tiles;
            for tile in 0..tiles {
                let at = row(tile);
                let ahead = |column: usize| if (tile, column) == (0, 0) { AHEAD } else { 0 };
                macro_rules! heights {
                    ($($rows:literal)*) => {
                        match row(tile + 1) - at {
                            $($rows if const { $rows <= S::WIDE_ROWS } => {
                                self.tile::<S, $rows, WIDE>(s, at, (panel, 0), ahead(0));
                            }
                            // A loop, so that there is one copy of the code.
                            $rows if const { $rows <= S::TILE_ROWS } => for column in [0, PANEL / 2] {
                                self.tile::<S, $rows, HALF>(s, at, (panel, column), ahead(column));
                            },)*
                            rows => unreachable!("tile of {rows} rows"),
                        }
                    };
                }
                heights!(1 2 3 4 5 6);
            }
        }
    }

    /// Multiplies `ROWS` rows from `row` on by `VECTORS` vectors of a panel, from one of its columns on, and
    /// applies the epilogue.
    #[inline(always)]
    fn tile<S: ByteSimd, const ROWS: usize, const VECTORS: usize>(
        &self,
        s: S,
        row: usize,
        (panel, column): (usize, usize),
        ahead: usize,
    ) {
        let Job { w, epilogue, y, .. } = self.job;
        let first = panel * PANEL + column;
        if first >= w.n() {
            return;
        }
        let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
        let mut at = w.panel(panel);
        // Where blocks of 256 have their factors.
        let mut header = at;
        let (taps, blocks) = self.job.taps();
        let prefetch = |at: *const u8, bytes: usize| {
            for line in 0..if ahead > 0 { bytes / 64 } else { 0 } {
                s.prefetch(at.wrapping_add(ahead + 64 * line).cast());
            }
        };
        for tap in 0..taps {
            let mut x: [*const Block; ROWS] = std::array::from_fn(|i| self.job.blocks(row + i, tap));
            for block in 0..blocks {
                if F::FORMAT.header_bytes() > 0 && block % PER_SUPER == 0 {
                    prefetch(at, F::FORMAT.header_bytes());
                    header = at;
                    at = at.wrapping_add(F::FORMAT.header_bytes());
                }
                prefetch(at, F::FORMAT.block_bytes());
                // SAFETY: the panel has `taps · blocks` blocks, each row of x `blocks` for each tap.
                unsafe {
                    add_block::<S, F, ROWS, VECTORS>(s, at, header, column, &x, &mut sums);
                    at = at.add(F::FORMAT.block_bytes());
                    x.iter_mut().for_each(|x| *x = x.add(1));
                }
            }
        }
        let mut block = [0.0; TILE_ROWS * PANEL];
        for (sums, row) in sums.iter().zip(block.chunks_exact_mut(PANEL)) {
            for (&sum, out) in sums.iter().zip(row.chunks_exact_mut(S::LANES)) {
                // SAFETY: `out` has LANES floats.
                unsafe { s.store(out.as_mut_ptr(), sum) };
            }
        }
        let vectors = (w.n() - first).div_ceil(S::LANES).min(VECTORS);
        for i in 0..ROWS {
            let sums = block[i * PANEL..].as_ptr();
            let rows = row + i..row + i + 1;
            // SAFETY: no other thread has these rows and columns of y.
            unsafe { tile::finish(s, sums, rows, first, vectors, w.n(), epilogue, y.as_ptr()) };
        }
    }
}

/// Adds the products of a block of a panel, from `column` on, and a block of each row of x.
///
/// # Safety
/// `at` is valid for reading a block, `header` for what stands before every [`PER_SUPER`] blocks, each `x`
/// for a block.
#[inline(always)]
unsafe fn add_block<S: ByteSimd, F: Format, const ROWS: usize, const VECTORS: usize>(
    s: S,
    at: *const u8,
    header: *const u8,
    column: usize,
    x: &[*const Block; ROWS],
    sums: &mut [[S::V; VECTORS]; ROWS],
) {
    // SAFETY: the caller vouches for the memory.
    unsafe {
        let numbers: [*const i8; ROWS] = x.map(|x| (&raw const (*x).numbers).cast());
        let scales = x.map(|x| &raw const (*x).scale);
        let low = at.add(2 * PANEL + 4 * column);
        let factor =
            |i: usize, v: usize| s.load_f16(header.cast::<u16>().add(i * PANEL + column + v * S::LANES));
        let scale = |i: usize, v: usize| s.load_i8(at.cast::<i8>().add(i * PANEL + column + v * S::LANES));
        let dots = match F::FORMAT {
            BlockFormat::Super(SuperFormat::Q6K) => {
                for half in 0..2 {
                    let starts = x.map(|x| if half == 0 { (*x).start } else { (*x).second });
                    let mut dots = starts.map(|start| [s.splat_i32(start); VECTORS]);
                    let x16 = numbers.map(|x| x.add(half * BLOCK / 2));
                    let high = low.add(LOW + half * GROUP_BYTES);
                    s.dot_half(low.add(half * LOW / 2), high, (0, 2), &x16, &mut dots);
                    let d = std::array::from_fn(|v| s.mul(factor(0, v), scale(half, v)));
                    s.add_scaled(dots, d, scales, sums);
                }
                return;
            }
            BlockFormat::Super(SuperFormat::Q5K) => {
                let mut dots = [[s.splat_i32(0); VECTORS]; ROWS];
                s.dot_half(low, low.add(LOW), (0, 1), &numbers, &mut dots);
                let second = numbers.map(|x| x.add(BLOCK / 2));
                s.dot_half(low.add(LOW / 2), low.add(LOW), (4, 1), &second, &mut dots);
                dots
            }
            BlockFormat::Super(SuperFormat::Q4K) => {
                s.dot_block::<ROWS, VECTORS, true>(low, &numbers, [0; ROWS])
            }
            BlockFormat::Q4_0 => s.dot_block::<ROWS, VECTORS, true>(low, &numbers, x.map(|x| (*x).start)),
            BlockFormat::Q8_0 => s.dot_block::<ROWS, VECTORS, false>(low, &numbers, x.map(|x| (*x).start)),
        };
        if let BlockFormat::Super(_) = F::FORMAT {
            let d = std::array::from_fn(|v| s.mul(factor(0, v), scale(0, v)));
            s.add_scaled(dots, d, scales, sums);
            for v in 0..VECTORS {
                let m = s.mul(factor(1, v), scale(1, v));
                for (sums, x) in sums.iter_mut().zip(x) {
                    let Block { scale, start, .. } = **x;
                    sums[v] = s.fma(m, s.splat(-scale * start as f32), sums[v]);
                }
            }
        } else {
            let d = std::array::from_fn(|v| s.load_f16(at.cast::<u16>().add(column + v * S::LANES)));
            s.add_scaled(dots, d, scales, sums);
        }
    }
}
