//! Attention of many queries on cooperative matrices, and scores of relative positions: selection of the
//! tile.

use super::attention::Parts;
use super::matmul::on_policy_matrices;
use super::operands::Abilities;
use crate::adapters::Matrices;
use crate::variant::Variant;
use orate_graph::{AttentionMask, DType, Op, Rounding, ValueInfo};

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
/// idle. The first that supports the heads is selected. Measured on an H200 (`bench.rs`), for 8 heads of 64
/// in f16: two rows of 704 queries in 30.3 µs instead of 32.1 with 2 × 2 subgroups, one row of 128 in 5.2
/// instead of 6.5 with the first tile.
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

    /// Columns of a query's scores, and of its sums, whichever are more.
    fn widest(&self, d: usize, has: Matrices) -> usize {
        self.keys(has).max(d)
    }

    /// Rows of values, or of queries, which are in the same memory before.
    fn rows(&self, has: Matrices) -> usize {
        self.keys(has).max(self.queries(has))
    }

    /// Workgroup memory in bytes.
    fn shared(&self, d: usize, has: Matrices) -> usize {
        let (queries, keys) = (self.queries(has), self.keys(has));
        let of_query = 2 * (keys + 8) + 4 * (self.widest(d, has) + 8) + 4;
        2 * (keys + self.rows(has)) * (d + 8) + queries * of_query + 4
    }

    /// Whether the threads of a workgroup divide its work evenly, for heads of width D.
    pub fn fits(&self, d: usize, has: Matrices, workgroup_bytes: usize) -> bool {
        let (threads, queries, keys) = (self.threads(has), self.queries(has), self.keys(has));
        threads <= 256
            && d.is_multiple_of(self.subgroups[1] * has.fragment)
            && (keys * d).is_multiple_of(4 * threads)
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
    let &Op::Attention { mask: AttentionMask::None, relative: None, follows_weights: true, heads, .. } = op
    else {
        return None;
    };
    if q[1] < QUERIES || ![DType::F32, DType::F16].contains(&keys) {
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

/// Fragments of queries and of keys of a workgroup for scores of relative positions; see the kernel.
const SCORES: [usize; 2] = [2, 4];

/// Subgroups of such a workgroup.
const SCORES_SUBGROUPS: usize = 4;

/// Queries and keys of a workgroup for scores of relative positions of queries of shape `q`, if they are
/// computed on cooperative matrices.
pub(super) fn scores_tile(q: &[usize], heads: usize, can: Abilities<'_>) -> Option<([usize; 2], Matrices)> {
    let has = can.matrices.filter(|_| on_policy_matrices(can))?;
    let d = q[2] / heads;
    let sides = SCORES.map(|n| n * has.fragment);
    let rows: usize = sides.iter().sum();
    let shared = 2 * (sides[0] + rows) * (d + 8) + 4 * sides[0] * (rows + 8);
    let fits = d.is_multiple_of(has.fragment) && shared <= can.workgroup_bytes as usize;
    (fits && q[1] >= QUERIES).then_some((sides, has))
}

/// Kernel of such scores for heads of width D.
pub(super) fn scores_variant(has: Matrices, d: usize) -> Variant {
    let [queries, keys] = SCORES.map(|n| n * has.fragment);
    Variant::new("relative_scores_cooperative")
        .number("FRAGMENT", has.fragment)
        .number("D", d)
        .number("QUERIES", queries)
        .number("KEYS", keys)
        .number("THREADS", SCORES_SUBGROUPS * has.lanes)
        .number("COLUMNS", SCORES.iter().sum::<usize>() / 2)
        .number("DEPTHS", d / has.fragment)
}

/// How the kernel of attention handles values of 16 bits: it rounds queries, keys and values.
pub(super) fn rounding(op: &Op, inputs: &[&ValueInfo], can: Abilities<'_>) -> Rounding {
    let q = inputs[0].shape.dims();
    let Some((t, has)) = tile(op, q, inputs[1].dtype, can) else { return Rounding::default() };
    let &Op::Attention { heads, .. } = op else { return Rounding::default() };
    let by_eights = (t.keys(has) * (q[2] / heads)).is_multiple_of(8 * t.threads(has));
    Rounding { reads: by_eights.then_some((3, DType::F16)), ..Rounding::default() }
}

/// Kernel for heads of width D; `halves` says that queries, keys and values are stored in f16.
pub(super) fn variant(t: Tile, has: Matrices, d: usize, parts: Parts, halves: bool) -> Variant {
    let (threads, queries, keys) = (t.threads(has), t.queries(has), t.keys(has));
    let neighbors = threads / queries;
    let each = if halves { 8 } else { 4 };
    Variant::new("attention_cooperative")
        .number("FRAGMENT", has.fragment)
        .number("LANES", has.lanes)
        .number("THREADS", threads)
        .number("D", d)
        .number("QUERIES", queries)
        .number("KEYS", keys)
        .number("WIDEST", t.widest(d, has))
        .number("ROWS", t.rows(has))
        .number("EACH", each)
        .flag("HALF", halves)
        .number("SGN", t.subgroups[1])
        .number("FM", t.rows)
        .number("FN", t.columns)
        .number("FD", d / (t.subgroups[1] * has.fragment))
        .number("DEPTHS", d / has.fragment)
        .number("KEY_STEPS", keys / has.fragment)
        .number("LOADS", keys * d / each / threads)
        .number("PARTS", neighbors)
        .number("ROUNDS", neighbors.ilog2() as usize)
        .number("SHARE", keys / 4 / neighbors)
        .flag("LENS", parts.lens)
        .flag("BIAS", parts.bias)
}
