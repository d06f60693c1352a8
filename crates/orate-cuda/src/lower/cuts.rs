//! Selects kernel and tiling of matmuls by estimated times.
//!
//! Times are those of an H200, printed by `bench::cuts_of_products`; tuning changes only this file.

use crate::driver::Facts;
use crate::kernels::{
    CLUSTER_ARCH, CONV, RESIDUAL, ROWS, ROWS_NORM, TALL, TENSOR_ARCH, WARPGROUP, WARPGROUP_ARCH,
    WARPGROUP_FAR, WIDE, conv_program, groups_program, tall_program, warpgroup_program, wide_program,
};
use orate_graph::Precision;

/// Channels per block, and warps that share its sums, in `kernels/matmul.cu`.
pub(super) const CHANNELS: usize = 32;
/// See [`CHANNELS`].
pub(super) const WARPS: usize = 8;
/// Stride between rows of partial sums in floats.
const STRIDE: usize = 36;

/// A kernel for matmuls of many rows: its blocks have rows of one sequence, and all of K.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Block {
    pub program: &'static str,
    pub function: &'static str,
    /// Channels and rows of a block.
    pub channels: usize,
    pub rows: usize,
    pub threads: usize,
    /// Blocks that share K.
    pub split: usize,
    /// Shared memory in bytes.
    pub shared: usize,
    /// Pieces of K that are copied ahead, where the kernel of very many rows does that.
    pub stages: usize,
    /// Estimated microseconds.
    pub time: f64,
}

/// For `kernels/matmul_tall.cu`: channels and rows per block, channels of x per stage, and number of stages.
const TALL_CHANNELS: usize = 96;
/// See [`TALL_CHANNELS`].
const TALL_ROWS: usize = 64;
/// See [`TALL_CHANNELS`].
const TALL_PIECE: usize = 32;
/// See [`TALL_CHANNELS`].
const TALL_STAGES: usize = 3;

/// For `kernels/matmul_wide.cu` and `kernels/matmul_warpgroup.cu`: rows of a block, and channels of four
/// warps; channels of x per stage.
const WIDE_SIDE: usize = 64;
/// See [`WIDE_SIDE`].
pub(super) const WIDE_DEPTH: usize = 64;
/// Rows that the taps of a convolution may reach beyond those of a block, and by kernels for rows in 16 bits.
const WIDE_REACH: [usize; 2] = [8, 64];
/// Alignment of the operands of warpgroups in shared memory.
pub(super) const LINES: usize = 1024;
/// Matmuls whose blocks may share K: of at most so many rows, and of more rows, if their weights have at most
/// so many elements.
const SPLIT_ROWS: [usize; 2] = [128, 448];
/// See [`SPLIT_ROWS`].
const SPLIT_WEIGHTS: usize = 1 << 20;
/// Threads of four warps.
const WIDE_THREADS: usize = 128;

/// A kernel of `kernels/matmul_wide.cu` or of `kernels/matmul_warpgroup.cu`.
struct Wide {
    /// Without and with taps.
    functions: [&'static str; 2],
    /// With taps that reach far, if there is one, and what `alone` and `among` are of it.
    far: Option<(&'static str, (f64, f64))>,
    program: fn(Precision) -> Option<&'static str>,
    /// Groups of warps that share K, and sets of four warps in each, which have channels of their own.
    groups: usize,
    warpgroups: usize,
    /// Rows that shared memory has for the sake of its banks.
    padding: usize,
    /// Bytes that it has to align them.
    alignment: usize,
    /// Microseconds of a block and, in addition, of each 16 of K: alone on its multiprocessor, and with
    /// others.
    alone: (f64, f64),
    among: (f64, f64),
}

const WIDES: [Wide; 2] = [
    Wide {
        functions: WIDE[0],
        far: None,
        program: wide_program,
        groups: 2,
        warpgroups: 1,
        padding: 2,
        alignment: 0,
        alone: (2.3, 0.115),
        among: (2.3, 0.2),
    },
    Wide {
        functions: WIDE[1],
        far: None,
        program: wide_program,
        groups: 4,
        warpgroups: 1,
        padding: 2,
        alignment: 0,
        alone: (2.3, 0.09),
        among: (2.3, 0.09),
    },
];

const WARPGROUPS: [Wide; 3] = [
    Wide {
        functions: WARPGROUP[0],
        far: Some((WARPGROUP_FAR[0], (2.1, 0.03))),
        program: groups_program,
        groups: 4,
        warpgroups: 1,
        padding: 0,
        alignment: LINES,
        alone: (1.9, 0.058),
        among: (1.9, 0.058),
    },
    Wide {
        functions: WARPGROUP[1],
        far: Some((WARPGROUP_FAR[1], (3.2, 0.055))),
        program: groups_program,
        groups: 2,
        warpgroups: 1,
        padding: 0,
        alignment: LINES,
        alone: (0.9, 0.09),
        among: (1.3, 0.13),
    },
    Wide {
        functions: WARPGROUP[2],
        far: None,
        program: groups_program,
        groups: 1,
        warpgroups: 2,
        padding: 0,
        alignment: LINES,
        alone: (1.7, 0.12),
        among: (1.2, 0.26),
    },
];

/// Rows of a block of `kernels/conv_warpgroup.cu`, and how many further ones its taps may reach.
const CONV_ROWS: usize = 128;
/// See [`CONV_ROWS`].
const CONV_REACH: usize = 64;

/// A kernel of `kernels/conv_warpgroup.cu`.
struct Conv {
    function: &'static str,
    warpgroups: usize,
    /// What channels of x are a multiple of.
    piece: usize,
    /// Blocks of a multiprocessor.
    together: usize,
    /// Microseconds of a block that is alone on its multiprocessor, and in addition of each 16 of K.
    alone: (f64, f64),
    /// The same of one with others.
    among: (f64, f64),
}

const CONVS: [Conv; 5] = [
    Conv { function: CONV[0], warpgroups: 1, piece: 64, together: 4, alone: (5.0, 0.17), among: (6.0, 0.28) },
    Conv { function: CONV[1], warpgroups: 2, piece: 64, together: 2, alone: (5.0, 0.17), among: (7.0, 0.23) },
    Conv {
        function: CONV[2],
        warpgroups: 3,
        piece: 64,
        together: 1,
        alone: (5.0, 0.17),
        among: (8.0, 0.178),
    },
    Conv { function: CONV[3], warpgroups: 2, piece: 48, together: 2, alone: (5.0, 0.17), among: (7.0, 0.23) },
    Conv {
        function: CONV[4],
        warpgroups: 1,
        piece: 64,
        together: 2,
        alone: (5.0, 0.157),
        among: (6.7, 0.147),
    },
];

/// Fewest rows of a matmul whose weights are joined with those of others for this kernel.
pub(super) const WIDE_LEAST: usize = 128;

/// Elements of K that `kernels/matmul.cu` multiplies together.
pub(super) const DEPTH_OF_BLOCKS: usize = 16;

/// Maximum rows of a matmul whose time is that of reading its weights.
pub(super) const FEW_ROWS: usize = 16;

/// Sizes of a matmul.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Rows of the result.
    pub rows: usize,
    pub k: usize,
    pub n: usize,
    /// Rows per sequence of x.
    pub time: usize,
    pub channels: usize,
    pub dilation: usize,
    /// For a convolution: rows that its first row reads before a sequence. For joined matmuls: channels of
    /// the second.
    pub left: usize,
}

/// What a kernel for many rows must support.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// A convolution over time.
    pub convolves: bool,
    /// Rows before x.
    pub has_history: bool,
    /// Results are split into parts.
    pub is_joined: bool,
    /// x is stored in 16 bits.
    pub is_halved: bool,
}

/// Partition of a matmul.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiling {
    /// Rows per block, in units of 8.
    pub tiles: usize,
    /// Blocks that share K.
    pub split: usize,
}

/// Returns the tiling with the least estimated time. A matmul of few rows takes as long as reading its
/// weights, once for all rows, which is best done by one block per multiprocessor: `bench::cuts_of_products`
/// prints 4.2 µs for 1024 × 6144 in bf16 with 192 blocks, 6.7 with 384.
pub(super) fn tiling(rows: usize, k: usize, n: usize, choices: &[usize], facts: &Facts) -> Tiling {
    let depth = k.div_ceil(16);
    let splits: &[usize] = if facts.arch >= CLUSTER_ARCH { &[1, 2, 4] } else { &[1] };
    if rows <= FEW_ROWS && choices.contains(&1) {
        let blocks = n.div_ceil(CHANNELS);
        let fits = |split: &&usize| {
            **split == 1 || (blocks * **split <= facts.multiprocessors as usize && **split * WARPS <= depth)
        };
        return Tiling {
            tiles: rows.div_ceil(8),
            split: splits.iter().rev().find(fits).copied().unwrap_or(1),
        };
    }
    let mut best = (f64::INFINITY, Tiling { tiles: choices[0], split: 1 });
    for (&tiles, &split) in choices.iter().flat_map(|t| splits.iter().map(move |s| (t, s))) {
        let t = Tiling { tiles, split };
        let fits = product_shared(t) + 1024 <= facts.shared as usize;
        if fits && (split * WARPS <= depth || split == 1) {
            let time = estimate(t, rows, depth, n, facts);
            if time < best.0 {
                best = (time, t);
            }
        }
    }
    best.1
}

/// Estimates microseconds of a matmul on an H200, fitted to times that `bench::cuts_of_products` prints.
/// Waves of blocks run over the multiprocessors, each with its part of K and the cost of adding partial sums.
/// Two blocks on a multiprocessor slow each other down.
pub(super) fn estimate(t: Tiling, rows: usize, depth: usize, n: usize, facts: &Facts) -> f64 {
    let (fixed, step, together) = match t.tiles {
        1 => (0.6, 0.29, 2),
        2 => (0.7, 0.45, 2),
        3 => (0.8, 0.60, 2),
        5 => (1.4, 0.85, 1),
        7 => (1.9, 1.05, 1),
        _ => (2.4, 1.25, 1),
    };
    let blocks = rows.div_ceil(8 * t.tiles) * n.div_ceil(CHANNELS) * t.split;
    // Clusters of four cannot use all multiprocessors of the hardware groups that they must stay in.
    let places = facts.multiprocessors.max(4) as usize * if t.split > 2 { 3 } else { 4 } / 4;
    let each = blocks.div_ceil(places);
    let steps = depth.div_ceil(t.split * WARPS) as f64;
    let wave = |blocks: usize| match blocks {
        0 => 0.0,
        1 => fixed + steps * step,
        _ => fixed + steps * step * 1.75,
    };
    // Clusters wait for room for all of their blocks, and then for each other.
    let join = match t.split {
        1 => 0.0,
        2 => 0.6,
        _ => 0.9,
    };
    // In a network weights come from memory: loads after the first ones stall.
    let cold = 0.2 * (steps - 2.0).max(0.0);
    cold + 1.1
        + (each / together) as f64 * (wave(together) + join)
        + wave(each % together)
        + if each < together { join } else { 0.0 }
}

/// [`estimate`] for operands of 16 bits and many rows.
fn estimate_half(t: Tiling, rows: usize, depth: usize, n: usize, facts: &Facts) -> f64 {
    let (fixed, step) = match t.tiles {
        5 => (1.0, 0.33),
        7 => (1.9, 0.43),
        9 => (2.9, 0.52),
        _ => return estimate(t, rows, depth, n, facts),
    };
    let blocks = rows.div_ceil(8 * t.tiles) * n.div_ceil(CHANNELS) * t.split;
    let waves = blocks.div_ceil(facts.multiprocessors.max(1) as usize) as f64;
    1.1 + waves * (fixed + step * depth.div_ceil(t.split * WARPS) as f64) + weights_time(16 * depth, n)
}

/// Microseconds in which weights of 16 bits are read.
fn weights_time(k: usize, n: usize) -> f64 {
    (2 * k * n) as f64 / 4.2e6
}

/// [`estimate`] for `kernels/matmul_tall.cu`. A multiprocessor with several blocks does slightly more per
/// cycle.
fn estimate_tall(
    precision: Precision,
    sequences: usize,
    time: usize,
    k: usize,
    n: usize,
    facts: &Facts,
) -> f64 {
    // Without K, for each further block on a multiprocessor, and time per 16 of K for a single block and for
    // one of several.
    let (fixed, further, alone, among) = match precision {
        Precision::F32 => (7.0, 1.0, 0.55, 0.46),
        Precision::Tf32 => (7.0, 1.0, 0.26, 0.155),
        _ => (2.0, 0.6, 0.365, 0.12),
    };
    let blocks = sequences * time.div_ceil(TALL_ROWS) * n.div_ceil(TALL_CHANNELS);
    let each = blocks.div_ceil(facts.multiprocessors.max(1) as usize) as f64;
    fixed + further * (each - 1.0) + (k / 16) as f64 * f64::max(alone, each * among)
}

/// Returns the kernel for many rows that is the fastest, if it is faster than the tiling `t`.
pub(super) fn block_instead(
    t: Tiling,
    precision: Precision,
    sizes: Sizes,
    kind: Kind,
    facts: &Facts,
) -> Option<Block> {
    let best = blocks(precision, sizes, kind, facts).min_by(|a, b| a.time.total_cmp(&b.time))?;
    let Sizes { rows, k, n, .. } = sizes;
    if rows <= FEW_ROWS && t.tiles <= 2 {
        return None;
    }
    let others = match precision {
        Precision::F32 => estimate(t, rows, k.div_ceil(16), n, facts),
        Precision::Tf32 => 0.8 * estimate(t, rows, k.div_ceil(16), n, facts),
        _ => estimate_half(t, rows, k.div_ceil(16), n, facts),
    };
    (best.time < others).then_some(best)
}

/// All kernels for many rows that support a matmul. Of those that memory bounds alike, the first is best.
pub(super) fn blocks(
    precision: Precision,
    sizes: Sizes,
    kind: Kind,
    facts: &Facts,
) -> impl Iterator<Item = Block> {
    let Sizes { k, channels, dilation, .. } = sizes;
    let reach = if kind.convolves { (k / channels.max(1)).saturating_sub(1) * dilation } else { 0 };
    let tall = tall_block(precision, sizes, reach, facts).filter(|_| !kind.is_joined);
    let kernels = if facts.arch == WARPGROUP_ARCH { &WARPGROUPS[..] } else { &WIDES };
    let splits: &[usize] = if facts.arch == WARPGROUP_ARCH { &[1, 2, 4, 8] } else { &[1] };
    let wide = kernels.iter().flat_map(move |kernel| {
        let block = move |split: &usize| wide_block(kernel, *split, precision, sizes, (kind, reach), facts);
        splits.iter().filter_map(block)
    });
    let conv = CONVS.iter().filter_map(move |kernel| conv_block(kernel, precision, sizes, reach, facts));
    // Matmuls have others, but for such channels.
    let fits = kind.convolves || !kind.is_joined && !channels.is_multiple_of(WIDE_DEPTH);
    let conv = conv.filter(move |_| fits && kind.is_halved && facts.arch == WARPGROUP_ARCH);
    let many = blocks_of_very_many(precision, sizes, facts);
    let many = many.filter(move |_| !kind.convolves && kind.is_halved);
    conv.chain(wide.filter(move |_| !kind.has_history)).chain(tall).chain(many)
}

/// Microseconds in which x, with elements of some bytes, is read, and results in f32 are stored, often after
/// something was added to them.
fn memory_time(bytes_of_x: usize, sizes: Sizes) -> f64 {
    (sizes.rows * (bytes_of_x * sizes.channels + 4 * sizes.n)) as f64 / 1.6e6
}

fn conv_block(
    kernel: &Conv,
    precision: Precision,
    sizes: Sizes,
    reach: usize,
    facts: &Facts,
) -> Option<Block> {
    let Sizes { rows, k, n, time, channels, .. } = sizes;
    let side = kernel.warpgroups * WIDE_SIDE;
    let blocks = rows / time.max(1) * time.div_ceil(CONV_ROWS) * n.div_ceil(side);
    let (waves, (fixed, step)) = match blocks.div_ceil(facts.multiprocessors.max(1) as usize) {
        0 | 1 => (1, kernel.alone),
        each => (each.div_ceil(kernel.together), kernel.among),
    };
    let block = Block {
        program: conv_program(precision)?,
        function: kernel.function,
        channels: side,
        rows: CONV_ROWS,
        threads: kernel.warpgroups * WIDE_THREADS,
        split: 1,
        // Two stages of rows of 128 bytes; then sums.
        shared: usize::max(2 * 128 * (CONV_ROWS + CONV_REACH), 4 * CONV_ROWS * (side + 4)) + LINES,
        stages: 0,
        time: f64::max(waves as f64 * (fixed + (k / 16) as f64 * step), memory_time(2, sizes)),
    };
    (channels.is_multiple_of(kernel.piece) && reach <= CONV_REACH && block.fits(facts)).then_some(block)
}

/// All kernels for very many rows, stored in 16 bits, that support a matmul.
pub(super) fn blocks_of_very_many(
    precision: Precision,
    sizes: Sizes,
    facts: &Facts,
) -> impl Iterator<Item = Block> {
    let fits = sizes.channels.is_multiple_of(WIDE_DEPTH) && facts.arch == WARPGROUP_ARCH;
    WARPGROUP_ROWS
        .iter()
        .filter(move |_| fits)
        .filter_map(move |kernel| kernel.block(precision, sizes, facts))
}

/// A kernel of `kernels/matmul_boxes.cu`.
struct Rows {
    function: &'static str,
    /// Of a block.
    rows: usize,
    /// Microseconds of a block and, in addition, of each piece of K: alone on its multiprocessor, and beside
    /// another.
    alone: (f64, f64),
    /// See `alone`.
    among: (f64, f64),
}

/// Fitted to times of an H200.
const WARPGROUP_ROWS: [Rows; 4] = [
    Rows { function: ROWS[0], rows: 64, alone: (4.1, 0.36), among: (3.0, 0.68) },
    Rows { function: ROWS[1], rows: 96, alone: (5.5, 0.36), among: (5.3, 0.72) },
    Rows { function: ROWS[2], rows: 128, alone: (7.1, 0.365), among: (7.0, 0.75) },
    Rows { function: ROWS[3], rows: 144, alone: (8.4, 0.365), among: (8.6, 0.83) },
];

/// Stages that such a kernel can have at most.
const MOST_STAGES: usize = 8;

/// Bytes of shared memory that a block has beside those that the launch asks for: the system's, and barriers.
const OTHER_SHARED: usize = 1024 + 16 * MOST_STAGES;

impl Rows {
    fn block(&self, precision: Precision, sizes: Sizes, facts: &Facts) -> Option<Block> {
        let Sizes { rows, k, n, .. } = sizes;
        let side = 2 * WIDE_SIDE;
        let pieces = k / WIDE_DEPTH;
        let blocks = (rows.div_ceil(self.rows) * n.div_ceil(side)) as f64;
        let multiprocessors = f64::from(facts.multiprocessors.max(1));
        let (at_once, time) = if blocks <= multiprocessors {
            let (fixed, piece) = self.alone;
            // Many blocks slow each other down.
            (1, fixed + pieces as f64 * piece + 1.5 * blocks / multiprocessors)
        } else {
            let (fixed, piece) = self.among;
            let waves = blocks / (2.0 * multiprocessors);
            let waves = if waves <= 4.0 { waves.ceil() } else { waves };
            (2, waves * (fixed + pieces as f64 * piece))
        };
        let stage = 2 * WIDE_DEPTH * (side + self.rows);
        let room = (facts.shared as usize + 1024) / at_once - OTHER_SHARED - LINES;
        let stages = (room / stage).min(pieces).min(MOST_STAGES);
        let block = Block {
            program: warpgroup_program(precision)?,
            function: self.function,
            channels: side,
            rows: self.rows,
            threads: 2 * WIDE_THREADS,
            split: 1,
            // Stages of weights and rows; then sums.
            shared: usize::max(stages * stage, 4 * self.rows * (side + 4)) + LINES,
            stages,
            time,
        };
        (stages > 1).then_some(block)
    }
}

/// Channels of the matmuls that store a layer norm of their results, and fewest rows.
pub(super) const NORM_WIDTH: usize = 256;
/// See [`NORM_WIDTH`].
pub(super) const NORM_ROWS: usize = 2561;
/// Rows of a block of them, in the order of [`ROWS_NORM`].
const NORM_TILES: [usize; 2] = [96, 128];

/// The kernel of `kernels/matmul_boxes.cu` that stores the layer norm of its results.
pub(super) fn with_norm(program: &'static str, [rows, k]: [usize; 2], facts: &Facts) -> Block {
    // Each multiprocessor has one block at a time.
    let time = |tile: usize| rows.div_ceil(tile).div_ceil(facts.multiprocessors.max(1) as usize) * tile;
    let choice = if time(NORM_TILES[0]) < time(NORM_TILES[1]) { 0 } else { 1 };
    let tile = NORM_TILES[choice];
    let stage = 2 * WIDE_DEPTH * (NORM_WIDTH + tile);
    let room = facts.shared as usize - OTHER_SHARED - LINES;
    let stages = (room / stage).min(k / WIDE_DEPTH);
    Block {
        program,
        function: ROWS_NORM[choice],
        channels: NORM_WIDTH,
        rows: tile,
        threads: 4 * WIDE_THREADS,
        split: 1,
        // Stages of weights and rows; then sums.
        shared: usize::max(stages * stage, 4 * tile * (NORM_WIDTH + 4)) + LINES,
        stages,
        time: 0.0,
    }
}

/// For `kernels/matmul_stationary.cu`: K; channels of a block and rows of a tile; tiles in shared memory.
const STATIONARY_K: usize = 256;
/// See [`STATIONARY_K`].
const STATIONARY_SIDE: usize = 128;
/// See [`STATIONARY_K`].
const STATIONARY_TILES: usize = 3;
/// Microseconds of a launch and, in addition, of each tile of a block, fitted to times of an H200.
const STATIONARY_TIME: (f64, f64) = (3.5, 1.65);

/// Launch of `kernels/matmul_stationary.cu`.
pub(super) struct Stationary {
    /// Blocks that share the rows, for each [`STATIONARY_SIDE`] channels.
    pub blocks: usize,
    pub threads: usize,
    /// Shared memory in bytes.
    pub shared: usize,
    /// Channels and rows of a box of results.
    pub part: [usize; 2],
    /// Estimated microseconds.
    pub time: f64,
}

impl Stationary {
    /// Returns the launch for these sizes, or `None` if they are not supported.
    pub fn of(sizes: Sizes, facts: &Facts) -> Option<Stationary> {
        let Sizes { rows, k, n, .. } = sizes;
        let side = STATIONARY_SIDE;
        if facts.arch != WARPGROUP_ARCH || k != STATIONARY_K || !n.is_multiple_of(side) {
            return None;
        }
        let tiles = rows.div_ceil(side);
        let blocks = (facts.multiprocessors as usize / (n / side)).clamp(1, tiles.max(1));
        let waves = (blocks * n / side).div_ceil(facts.multiprocessors as usize) * tiles.div_ceil(blocks);
        Some(Stationary {
            blocks,
            threads: 2 * WIDE_THREADS,
            // Tiles of rows, and results of one.
            shared: 2 * side * (STATIONARY_TILES * k + side) + LINES,
            part: [side / 2, side],
            time: STATIONARY_TIME.0 + STATIONARY_TIME.1 * waves as f64,
        })
    }
}

/// For `kernels/matmul_residual.cu`: rows of a tile, and tiles in shared memory at most.
const RESIDUAL_TILE: usize = 64;
/// See [`RESIDUAL_TILE`].
const RESIDUAL_TILES: usize = 4;
/// Fewest rows for which it is used.
pub(super) const RESIDUAL_ROWS: usize = 4096;

/// Launch of `kernels/matmul_residual.cu`.
pub(super) struct Residual {
    pub function: &'static str,
    /// Blocks that share the rows, for each [`STATIONARY_SIDE`] channels.
    pub blocks: usize,
    pub threads: usize,
    /// Shared memory in bytes.
    pub shared: usize,
    pub stages: usize,
    /// Rows of a box.
    pub tile: usize,
}

impl Residual {
    /// Returns the launch for these sizes, or `None` if they are not supported or have few rows.
    pub fn of(sizes: Sizes, facts: &Facts) -> Option<Residual> {
        let Sizes { rows, k, n, .. } = sizes;
        let (function, _) = RESIDUAL.into_iter().find(|(_, width)| *width == k)?;
        if facts.arch != WARPGROUP_ARCH || rows < RESIDUAL_ROWS || !n.is_multiple_of(CHANNELS) {
            return None;
        }
        let (side, tile) = (STATIONARY_SIDE, RESIDUAL_TILE);
        let across = n.div_ceil(side);
        let blocks = (facts.multiprocessors as usize / across).clamp(1, rows.div_ceil(tile));
        // Rows of x and of the residual; Snakes of one tile.
        let stage = 2 * tile * k.next_multiple_of(WIDE_DEPTH) + 4 * tile * side;
        let others = 2 * tile * side + LINES;
        let stages = ((facts.shared as usize - OTHER_SHARED - others) / stage).min(RESIDUAL_TILES);
        Some(Residual {
            function,
            blocks,
            threads: 2 * WIDE_THREADS + 32,
            shared: stages * stage + others,
            stages,
            tile,
        })
    }
}

fn tall_block(precision: Precision, sizes: Sizes, reach: usize, facts: &Facts) -> Option<Block> {
    let Sizes { rows, k, n, time, channels, .. } = sizes;
    let x = (TALL_ROWS + reach) * TALL_PIECE * TALL_STAGES;
    let computed = estimate_tall(precision, rows / time.max(1), time, k, n, facts);
    let block = Block {
        program: tall_program(precision)?,
        function: TALL,
        channels: TALL_CHANNELS,
        rows: TALL_ROWS,
        threads: TALL_CHANNELS,
        split: 1,
        // Rows of x within reach of the taps, then sums.
        shared: 4 * x.max(TALL_ROWS * STRIDE * (TALL_CHANNELS / CHANNELS)),
        stages: 0,
        time: match precision {
            Precision::F16 | Precision::Bf16 => f64::max(computed, memory_time(4, sizes)),
            _ => computed,
        },
    };
    (channels.is_multiple_of(TALL_PIECE) && block.fits(facts)).then_some(block)
}

fn wide_block(
    kernel: &Wide,
    split: usize,
    precision: Precision,
    sizes: Sizes,
    (kind, reach): (Kind, usize),
    facts: &Facts,
) -> Option<Block> {
    let Sizes { rows, k, n, time, channels, .. } = sizes;
    let side = kernel.warpgroups * WIDE_SIDE;
    let convolves = kind.convolves;
    // Every group has a piece.
    let is_far = convolves && kind.is_halved && kernel.groups * WIDE_DEPTH <= channels;
    let (function, most, [alone, among]) = match kernel.far.filter(|_| is_far) {
        Some((far, time)) => (far, WIDE_REACH[1], [time; 2]),
        None => (kernel.functions[usize::from(convolves)], WIDE_REACH[0], [kernel.alone, kernel.among]),
    };
    let height = WIDE_SIDE + if convolves { most } else { 0 } + kernel.padding;
    let blocks = rows / time.max(1) * time.div_ceil(WIDE_SIDE) * n.div_ceil(side) * split;
    let few = rows <= SPLIT_ROWS[usize::from(k * n <= SPLIT_WEIGHTS)] && !convolves;
    let (waves, (fixed, step)) = match blocks.div_ceil(facts.multiprocessors.max(1) as usize) {
        0 | 1 => (1, alone),
        each => (each.div_ceil(4 / (kernel.groups * kernel.warpgroups)), among),
    };
    if precision.block() > 1 && convolves {
        return None;
    }
    // Where K is split, every group has a piece.
    if split > 1 && (!few || split * kernel.groups * WIDE_DEPTH > channels) {
        return None;
    }
    let inbox = if split > 1 { 4 * WIDE_SIDE * side } else { 0 };
    let block = Block {
        program: (kernel.program)(precision)?,
        function,
        channels: side,
        rows: WIDE_SIDE,
        threads: kernel.groups * kernel.warpgroups * WIDE_THREADS,
        split,
        // Two stages of rows, each in 16 bits; then sums.
        shared: kernel.groups * usize::max(2 * WIDE_DEPTH * height * 2, 4 * WIDE_SIDE * (side + 4))
            + kernel.alignment
            + inbox,
        stages: 0,
        time: match 1.3 + waves as f64 * (fixed + (k / 16) as f64 * step) {
            _ if few && kernel.alignment > 0 => estimate_few(kernel, split, blocks, k, n, facts),
            computed if convolves => computed.max(memory_time(if kind.is_halved { 2 } else { 4 }, sizes)),
            computed => computed,
        },
    };
    (channels.is_multiple_of(WIDE_DEPTH) && reach <= most && block.fits(facts)).then_some(block)
}

/// [`estimate`] for `kernels/matmul_warpgroup.cu` and few rows: what blocks wait for are weights, pieces of K
/// one after the other, and for clusters room for all of their blocks. Fitted to times of an H100 and an H200
/// that `bench::blocks_of_many_rows` prints, for at most two blocks of rows.
fn estimate_few(kernel: &Wide, split: usize, blocks: usize, k: usize, n: usize, facts: &Facts) -> f64 {
    let piece = match kernel.groups {
        4 => 0.75,
        2 => 0.65,
        _ => 0.55,
    };
    let join = match split {
        1 => 0.0,
        2 => 0.5,
        // Blocks with twice the channels exchange twice the sums.
        _ if kernel.warpgroups == 2 => 1.6,
        _ => 0.6,
    };
    // In networks, not in that bench: beside a block of 512 threads, which has all registers of its
    // multiprocessor, none of the next launch can begin to load its weights.
    let fixed = if kernel.groups == 4 { 2.5 } else { 1.2 };
    let multiprocessors = facts.multiprocessors.max(4) as usize * if split > 2 { 3 } else { 4 } / 4;
    let waves = blocks.div_ceil(multiprocessors * 4 / (kernel.groups * kernel.warpgroups)) as f64;
    let pieces = (k / WIDE_DEPTH).div_ceil(split * kernel.groups) as f64;
    fixed + pieces * piece + weights_time(k, n) + join + (waves - 1.0) * (2.5 + pieces * piece)
}

impl Block {
    fn fits(&self, facts: &Facts) -> bool {
        facts.arch >= TENSOR_ARCH && self.shared + 1024 <= facts.shared as usize
    }
}

/// Shared memory of a matmul in bytes: partial sums of all warps, and data exchanged within a cluster.
pub(super) fn product_shared(t: Tiling) -> usize {
    let rows = 8 * t.tiles;
    // Eight sums of four channels of each row, and one of squares.
    let inbox = if t.split > 1 { rows * 9 } else { 0 };
    WARPS * rows * STRIDE * 4 + inbox * 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::tests::facts;

    #[test]
    fn only_hopper_multiplies_in_warpgroups() {
        let sizes = Sizes { rows: 1400, k: 1024, n: 256, time: 1400, channels: 1024, dilation: 1, left: 0 };
        let kind = Kind { convolves: false, has_history: false, is_joined: false, is_halved: false };
        for (arch, program) in [
            (80, "matmul_wide-bf16"),
            (89, "matmul_wide-bf16"),
            (90, "matmul_warpgroup-bf16"),
            (100, "matmul_wide-bf16"),
            (120, "matmul_wide-bf16"),
        ] {
            let facts = facts(arch);
            let t = tiling(sizes.rows, sizes.k, sizes.n, &[1, 3, 5, 9], &facts);
            let block = block_instead(t, Precision::Bf16, sizes, kind, &facts).expect("is faster");
            assert_eq!(block.program, program, "sm_{arch}");
        }
    }

    #[test]
    fn blocks_of_few_rows_share_k() {
        let split = |rows, k, n| {
            let sizes = Sizes { rows, k, n, time: rows, channels: k, dilation: 1, left: 0 };
            let kind = Kind { convolves: false, has_history: false, is_joined: false, is_halved: true };
            let t = tiling(rows, k, n, &[1, 3, 5, 9], &facts(90));
            block_instead(t, Precision::Bf16, sizes, kind, &facts(90)).map(|block| block.split)
        };
        assert_eq!(split(144, 512, 2048), Some(2));
        assert_eq!(split(144, 2048, 512), Some(8));
        assert_eq!(split(432, 2048, 512), Some(2));
        assert_eq!(split(500, 2048, 512), Some(1));
        assert_eq!(split(300, 4096, 1024), Some(1), "more weights, which all rows would read again");
    }

    #[test]
    fn weights_in_blocks_have_warpgroups() {
        let (facts, older) = (facts(90), facts(80));
        let block = |rows, convolves, facts: &Facts| {
            let sizes = Sizes { rows, k: 1024, n: 6144, time: rows, channels: 1024, dilation: 1, left: 0 };
            let kind = Kind { convolves, has_history: false, is_joined: false, is_halved: false };
            let t = tiling(rows, sizes.k, sizes.n, &[1, 3, 5, 9], facts);
            block_instead(t, Precision::Q4K, sizes, kind, facts).map(|block| block.program)
        };
        for rows in [17, 64, 128, 700] {
            assert_eq!(block(rows, false, &facts), Some("matmul_warpgroup-q4_k"), "{rows} rows");
        }
        assert_eq!(block(16, false, &facts), None, "few rows");
        assert_eq!(block(64, true, &facts), None, "taps");
        assert_eq!(block(64, false, &older), None, "sm_80");
    }

    #[test]
    fn very_many_rows_share_more() {
        let facts = facts(90);
        let kind = Kind { convolves: false, has_history: false, is_joined: false, is_halved: true };
        let function = |rows, k, n| {
            let sizes = Sizes { rows, k, n, time: rows, channels: k, dilation: 1, left: 0 };
            let t = tiling(rows, k, n, &[1, 3, 5, 9], &facts);
            block_instead(t, Precision::Bf16, sizes, kind, &facts).expect("is faster").function
        };
        // Supertonic's vector estimator for several sentences, and the estimator of Chatterbox for sixteen
        // callers: the fastest of those measured.
        for (rows, k, n, fastest) in [
            (2304, 512, 2048, ROWS[3]),
            (2304, 2048, 512, ROWS[1]),
            (2304, 512, 1536, ROWS[2]),
            (1152, 512, 2048, ROWS[1]),
            (1152, 2048, 512, ROWS[0]),
            (576, 2048, 512, WARPGROUP[0][0]),
            (22_528, 256, 1536, ROWS[2]),
            (22_528, 1024, 256, ROWS[1]),
        ] {
            assert_eq!(function(rows, k, n), fastest, "{rows} x {k} x {n}");
        }
        assert!(!ROWS.contains(&function(704, 256, 1536)), "of one caller");
    }

    #[test]
    fn batches_leave_room_for_the_next_launch() {
        let facts = facts(90);
        let kind = Kind { convolves: false, has_history: false, is_joined: false, is_halved: true };
        // Queries, keys and values, gates, output and down projections of Qwen3-TTS, by the kernels that
        // callers were measured with on an H200 (docs/gpu-experiments.md).
        for (rows, k, n, groups, split) in [
            (64, 1024, 4096, 2, 2),
            (64, 1024, 6144, 2, 2),
            (64, 2048, 1024, 2, 8),
            (64, 3072, 1024, 2, 8),
            (128, 1024, 4096, 2, 2),
            (128, 1024, 6144, 1, 2),
            (128, 2048, 1024, 2, 4),
            (128, 3072, 1024, 2, 4),
        ] {
            let sizes = Sizes { rows, k, n, time: rows, channels: k, dilation: 1, left: 0 };
            let t = tiling(rows, k, n, &[1, 3, 5, 9], &facts);
            let block = block_instead(t, Precision::Bf16, sizes, kind, &facts).expect("is faster");
            let function = WARPGROUPS.iter().find(|w| w.groups == groups).expect("there is one").functions[0];
            assert_eq!((block.function, block.split), (function, split), "{rows} x {k} x {n}");
            assert!(block.threads <= 256, "half of the registers are left");
        }
    }

    #[test]
    fn long_convolutions_of_halves_are_those_of_warpgroups() {
        let function = |arch, is_halved, [sequences, time, channels, n, taps, dilation]: [usize; 6]| {
            let facts = facts(arch);
            let (rows, k, left) = (sequences * time, taps * channels, (taps - 1) * dilation);
            let kind = Kind { convolves: taps > 1, has_history: taps > 1, is_joined: false, is_halved };
            let sizes = Sizes { rows, k, n, time, channels, dilation, left };
            let t = tiling(rows, k, n, &[5, 7], &facts);
            block_instead(t, Precision::Bf16, sizes, kind, &facts).map(|block| block.function)
        };
        // A codec that decodes 25 frames of eight callers: 135, 133, 146, 176 and 144 µs by these, and 227,
        // 250, 260, 232 and 195 by `matmul_tall`.
        for (sizes, chosen) in [
            ([8, 800, 768, 768, 7, 9], CONV[2]),
            ([8, 4000, 384, 384, 7, 9], CONV[1]),
            ([8, 16_000, 192, 192, 7, 9], CONV[0]),
            ([8, 48_000, 96, 96, 7, 9], CONV[3]),
            ([1, 384_000, 96, 96, 1, 1], CONV[3]),
            // Of sixteen callers of Chatterbox; by `matmul_warpgroup_2_conv` it takes 113 µs.
            ([16, 24_001, 64, 64, 3, 1], CONV[0]),
        ] {
            assert_eq!(function(90, true, sizes), Some(chosen), "{sizes:?}");
            assert_eq!(function(90, false, sizes).filter(|f| CONV.contains(f)), None, "{sizes:?} in f32");
            assert_eq!(function(80, true, sizes).filter(|f| CONV.contains(f)), None, "{sizes:?} on sm_80");
        }
        let others = [[8, 4000, 384, 384, 7, 11], [8, 4000, 80, 384, 7, 9], [1, 30, 384, 384, 7, 9]];
        for sizes in others {
            let found = function(90, true, sizes).filter(|f| CONV.contains(f));
            assert_eq!(found, None, "{sizes:?}: too far, odd channels or too few rows");
        }
    }

    #[test]
    fn cuts_fit_the_device() {
        for arch in [75, 80, 86, 90, 120] {
            let facts = facts(arch);
            for (rows, k, n) in [(1, 64, 1), (72, 512, 2048), (432, 2048, 512), (100_000, 16, 8), (7, 3, 5)] {
                let t = tiling(rows, k, n, &[1, 3, 5, 9], &facts);
                assert!(product_shared(t) + 1024 <= facts.shared as usize, "{t:?} on sm_{arch}");
                assert!(t.split == 1 || arch >= CLUSTER_ARCH, "{t:?} on sm_{arch}");
                assert!(t.split == 1 || t.split * WARPS <= k.div_ceil(16), "{t:?} leaves warps idle");
            }
        }
    }
}
