//! Matmul with q8_0 and q4_0 weights, multiplied as integers.
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
//!
//! Both are the formats of GGUF files. Decoding token by token reads every weight for one row of x, so bytes
//! per weight determine the speed, and with VNNI the arithmetic keeps up with the memory.
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
use crate::simd::{ByteKernel, ByteSimd};
use crate::{Isa, Team};
use activations::Block;
use pack::PANEL;
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
pub fn fits(rows: &Rows<'_>) -> bool {
    match rows {
        Rows::Dense { .. } => true,
        Rows::Conv { channels, .. } => channels.is_multiple_of(BLOCK),
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
    assert!(fits(&rows), "channels in whole blocks of {BLOCK}");
    let threads = if m * n * k < SMALL { 1 } else { team.threads() };
    let x = activations::round(isa, team, threads, &rows, (k, w.format().offset()), scratch);

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
        isa.run_bytes(Chunk { job: &job, rows, panels });
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

/// Some rows times some panels.
struct Chunk<'a> {
    job: &'a Job<'a>,
    rows: Range<usize>,
    panels: Range<usize>,
}

impl ByteKernel for Chunk<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: ByteSimd>(self, s: S) {
        // Only one arm is compiled for each instruction set.
        match (self.job.w.format(), S::LANES) {
            (BlockFormat::Q8_0, 16) => self.panels::<S, 2, 1, false>(s),
            (BlockFormat::Q4_0, 16) => self.panels::<S, 2, 1, true>(s),
            (BlockFormat::Q8_0, _) => self.panels::<S, 4, 2, false>(s),
            (BlockFormat::Q4_0, _) => self.panels::<S, 4, 2, true>(s),
        }
    }
}

impl Chunk<'_> {
    /// `WIDE` vectors are as wide as a panel, `HALF` half as wide.
    #[inline(always)]
    fn panels<S: ByteSimd, const WIDE: usize, const HALF: usize, const NIBBLES: bool>(&self, s: S) {
        for panel in self.panels.clone() {
            let tiles = self.rows.len().div_ceil(S::TILE_ROWS);
            let row = |tile: usize| self.rows.start + tile * self.rows.len() / tiles;
            for tile in 0..tiles {
                let (at, ahead) = (row(tile), if tile == 0 { AHEAD } else { 0 });
                macro_rules! heights {
                    ($($rows:literal)*) => {
                        match row(tile + 1) - at {
                            $($rows if $rows <= S::WIDE_ROWS => {
                                self.tile::<S, $rows, WIDE, NIBBLES>(s, at, (panel, 0), ahead);
                            })*
                            $($rows => {
                                self.tile::<S, $rows, HALF, NIBBLES>(s, at, (panel, 0), ahead);
                                self.tile::<S, $rows, HALF, NIBBLES>(s, at, (panel, PANEL / 2), 0);
                            })*
                            rows => unreachable!("tile of {rows} rows"),
                        }
                    };
                }
                if S::TILE_ROWS > 2 { heights!(1 2 3 4 5 6) } else { heights!(1 2) }
            }
        }
    }

    /// Multiplies `ROWS` rows from `row` on by `VECTORS` vectors of a panel, from one of its columns on, and
    /// applies the epilogue.
    #[inline(always)]
    fn tile<S: ByteSimd, const ROWS: usize, const VECTORS: usize, const NIBBLES: bool>(
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
        let (taps, blocks) = self.job.taps();
        for tap in 0..taps {
            let mut x: [*const Block; ROWS] = std::array::from_fn(|i| self.job.blocks(row + i, tap));
            for _ in 0..blocks {
                for line in 0..if ahead > 0 { w.block_bytes() / 64 } else { 0 } {
                    s.prefetch(at.wrapping_add(ahead + 64 * line).cast());
                }
                // SAFETY: the panel has `taps · blocks` blocks, each row of x `blocks` for each tap.
                unsafe {
                    let bytes = at.add(PANEL * 2 + 4 * column);
                    let numbers = x.map(|x| (&raw const (*x).numbers).cast());
                    let dots = s.dot_block::<ROWS, VECTORS, NIBBLES>(bytes, &numbers, x.map(|x| (*x).start));
                    for v in 0..VECTORS {
                        let d = s.load_f16(at.cast::<u16>().add(column + v * S::LANES));
                        for i in 0..ROWS {
                            let scale = s.mul(d, s.splat((*x[i]).scale));
                            sums[i][v] = s.fma(s.to_floats(dots[i][v]), scale, sums[i][v]);
                        }
                    }
                    at = at.add(w.block_bytes());
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
