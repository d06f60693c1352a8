//! Attention of many queries on cooperative matrices: selection of the tile.

use super::attention::Parts;
use super::operands::Abilities;
use crate::adapters::Matrices;
use crate::variant::Variant;
use orate_graph::{AttentionMask, DType, Op};

/// Tiling of a workgroup; see the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    /// Rows and columns of subgroups.
    pub subgroups: [usize; 2],
    /// Rows of a subgroup's fragments, of scores and of sums.
    pub rows: usize,
    /// Columns of a subgroup's fragments of scores.
    pub columns: usize,
}

/// Each with the minimum number of workgroups for which it is used: fewer would leave most of a large GPU
/// idle. The first that supports the heads is selected. Measured on an H200 (`bench.rs`), for 8 heads of 64:
/// two rows of 704 queries in 37 µs instead of 41 with 2 × 2 subgroups, one row of 128 in 6.1 instead of 7.4
/// with the first tile.
const TILES: [(usize, Tile); 3] = [
    (64, Tile { subgroups: [2, 4], rows: 2, columns: 1 }),
    (0, Tile { subgroups: [2, 4], rows: 1, columns: 1 }),
    // For heads of 32.
    (0, Tile { subgroups: [4, 2], rows: 1, columns: 1 }),
];

/// Minimum queries.
const QUERIES: usize = 128;

impl Tile {
    /// Queries of a workgroup.
    pub fn queries(&self, has: Matrices) -> usize {
        self.subgroups[0] * self.rows * has.fragment
    }

    /// Keys of a tile.
    fn keys(&self, has: Matrices) -> usize {
        self.subgroups[1] * self.columns * has.fragment
    }

    fn threads(&self, has: Matrices) -> usize {
        self.subgroups[0] * self.subgroups[1] * has.lanes
    }

    /// Stride of a query's row in workgroup memory, in elements.
    fn stride(&self, d: usize, has: Matrices) -> usize {
        self.keys(has).max(d) + 8
    }

    /// Workgroup memory in bytes.
    fn shared(&self, d: usize, has: Matrices) -> usize {
        let rows = self.queries(has) * self.stride(d, has);
        2 * 2 * self.keys(has) * (d + 8) + (2 + 4) * rows + 4 * self.queries(has) + 4
    }

    /// Whether the threads of a workgroup divide its work evenly, for heads of width D.
    pub fn fits(&self, d: usize, has: Matrices, workgroup_bytes: usize) -> bool {
        let (threads, queries, keys) = (self.threads(has), self.queries(has), self.keys(has));
        threads <= 256
            && d.is_multiple_of(self.subgroups[1] * has.fragment)
            && (keys * d / 4).is_multiple_of(threads)
            && threads.is_multiple_of(queries)
            && (threads / queries).is_power_of_two()
            && threads / queries <= has.lanes
            && (keys / 4).is_multiple_of(threads / queries)
            && self.shared(d, has) <= workgroup_bytes
    }
}

/// Returns the tile for attention of queries of shape `q`, if it runs on cooperative matrices.
pub(super) fn tile(op: &Op, q: &[usize], keys: DType, can: Abilities<'_>) -> Option<(Tile, Matrices)> {
    let has = can.matrices?;
    let &Op::Attention {
        mask: AttentionMask::None,
        relative: None,
        bias: false,
        follows_weights: true,
        heads,
        ..
    } = op
    else {
        return None;
    };
    if q[1] < QUERIES || keys != DType::F32 {
        return None;
    }
    tile_for(q[0] * heads, q[1], q[2] / heads, has, can.workgroup_bytes as usize).map(|t| (t, has))
}

/// Returns the tile for heads of width D, of which there are `heads` with `queries` queries each.
pub(super) fn tile_for(
    heads: usize,
    queries: usize,
    d: usize,
    has: Matrices,
    workgroup_bytes: usize,
) -> Option<Tile> {
    let suits = |(least, t): &&(usize, Tile)| {
        heads * queries.div_ceil(t.queries(has)) >= *least && t.fits(d, has, workgroup_bytes)
    };
    TILES.iter().find(suits).map(|(_, t)| *t)
}

/// Kernel for heads of width D.
pub(super) fn variant(t: Tile, has: Matrices, d: usize, parts: Parts) -> Variant {
    let (threads, queries, keys) = (t.threads(has), t.queries(has), t.keys(has));
    let neighbors = threads / queries;
    Variant::new("attention_cooperative")
        .number("FRAGMENT", has.fragment)
        .number("LANES", has.lanes)
        .number("THREADS", threads)
        .number("D", d)
        .number("QUERIES", queries)
        .number("KEYS", keys)
        .number("WIDEST", t.stride(d, has) - 8)
        .number("SGN", t.subgroups[1])
        .number("FM", t.rows)
        .number("FN", t.columns)
        .number("FD", d / (t.subgroups[1] * has.fragment))
        .number("DEPTHS", d / has.fragment)
        .number("KEY_STEPS", keys / has.fragment)
        .number("LOADS", keys * d / 4 / threads)
        .number("PARTS", neighbors)
        .number("ROUNDS", neighbors.ilog2() as usize)
        .number("SHARE", keys / 4 / neighbors)
        .flag("LENS", parts.lens)
}
