//! Matmuls on cooperative matrices: selection of the tile.

use super::matmul::{Normed, gathered, stored};
use super::operands::activation;
use crate::adapters::Matrices;
use crate::variant::Variant;
use crate::weights::{Element, PADDING};
use orate_graph::{Edges, Epilogue};

/// Tiling of a workgroup; see the kernel. Sizes are in fragments (the rows, columns or terms of one matrix),
/// since devices differ in the size of their matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    /// Rows and columns of fragments per subgroup.
    pub of_subgroup: [usize; 2],
    /// Rows and columns of subgroups per group.
    pub subgroups: [usize; 2],
    /// Groups that split K.
    pub split: usize,
    /// Fragments along K that a subgroup multiplies per slice.
    pub steps: usize,
    /// Columns of a subgroup's fragments whose sums are added at a time.
    pub met: usize,
    /// Slices to read ahead, unless there are fewer.
    pub ahead: usize,
}

impl Tile {
    /// Rows and columns of a workgroup's results.
    pub fn results(&self, has: Matrices) -> [usize; 2] {
        [0, 1].map(|i| self.of_subgroup[i] * self.subgroups[i] * has.fragment)
    }

    /// Terms of a slice.
    pub fn depth(&self, has: Matrices) -> usize {
        self.split * self.steps * has.fragment
    }

    pub fn threads(&self, has: Matrices) -> usize {
        self.subgroups[0] * self.subgroups[1] * self.split * has.lanes
    }

    /// Rows and columns of sums that are added at a time.
    fn meeting(&self, has: Matrices) -> [usize; 2] {
        [self.subgroups[0] * has.fragment, self.subgroups[1] * self.met * has.fragment]
    }

    /// Number of times that sums are added.
    fn meetings(&self) -> usize {
        self.of_subgroup[1] / self.met
    }

    /// The tile for gates, whose columns meet in pairs, and for RMS norms, whose squares need room.
    pub fn suited(self, gated: bool, norm: Normed, has: Matrices) -> Tile {
        let mut t = match self.of_subgroup {
            _ if !gated && norm == Normed::No => return self,
            [2, 3] => Tile { met: 2, ..WIDE },
            [4, 3] => Tile { met: 2, ..BROAD },
            [1, 1] if gated => Tile { of_subgroup: [1, 2], met: 2, ..self },
            _ if gated => Tile { met: 2, ..self },
            _ => self,
        };
        while t.shared_with(has, norm) > USUAL_MEMORY && t.steps > 1 {
            t.steps /= 2;
            t.ahead = if gated { 4 } else { t.ahead };
        }
        t
    }

    /// Workgroup memory in bytes, with what norms of rows need.
    pub fn shared_with(&self, has: Matrices, norm: Normed) -> usize {
        let of_row = match norm {
            Normed::Rms => self.depth(has) / 4 + 2,
            Normed::No | Normed::Layer => 0,
        };
        self.shared(has) + 4 * self.results(has)[0] * of_row
    }

    /// Rows of which the subgroups of a workgroup compute the means at a time.
    fn rows_normed(&self, has: Matrices) -> usize {
        self.threads(has) / OF_NORM
    }

    /// Whether layer norms of rows of `k` elements divide evenly among the threads of a workgroup.
    pub fn norms(&self, k: usize, has: Matrices) -> bool {
        k > 0
            && k <= WIDEST_NORM
            && self.ahead == 1
            && k.is_multiple_of(self.depth(has))
            && self.depth(has).is_multiple_of(4 * OF_NORM)
            && self.results(has)[0].is_multiple_of(self.rows_normed(has))
    }

    /// Workgroup memory in bytes.
    pub fn shared(&self, has: Matrices) -> usize {
        let ([bm, bn], depth, [rows, columns]) = (self.results(has), self.depth(has), self.meeting(has));
        2 * (bm * (depth + 8) + depth * (bn + 8)) + 4 * self.split * rows * (columns + 8)
    }

    /// Whether the threads of a workgroup divide slices evenly among them, and do not exceed the limit of any
    /// device.
    pub fn divides(&self, has: Matrices) -> bool {
        let threads = self.threads(has);
        threads <= 256 && self.results(has).iter().all(|n| (n * self.depth(has)).is_multiple_of(4 * threads))
    }
}

const fn tile(
    of_subgroup: [usize; 2],
    subgroups: [usize; 2],
    split: usize,
    steps: usize,
    met: usize,
    ahead: usize,
) -> Tile {
    Tile { of_subgroup, subgroups, split, steps, met, ahead }
}

/// Workgroup memory of GPUs with such matrices, in bytes.
const USUAL_MEMORY: usize = 48 << 10;

/// Workgroups that a large GPU runs concurrently.
const WAVE: usize = 132;

/// From small to large, each with the maximum K and workgroups for which it is used. The first that suits is
/// selected, else one of [`MANY`]. Mostly all workgroups run concurrently: a second wave costs more than a
/// larger tile, unless processors have room for two. Measured on an H200 (`bench.rs`): 72 × 512 × 1024 in 6.4
/// µs instead of 10.7 without cooperative matrices, 432 × 2048 × 512 in 17 instead of 42, a convolution of
/// 4000 × 2688 × 384 in 60 instead of 270 µs, 1408 × 256 × 1536 in 13.5 instead of 41. No gain from double
/// buffering in workgroup memory, nor from loading weights from memory directly into matrices.
pub(super) const TILES: [(usize, usize, Tile); 12] = [
    (usize::MAX, WAVE, tile([1, 1], [1, 1], 8, 2, 1, 4)),
    (usize::MAX, WAVE, tile([1, 2], [1, 1], 8, 2, 1, 4)),
    (1024, WAVE, tile([1, 2], [1, 2], 4, 2, 2, 4)),
    (usize::MAX, WAVE, tile([2, 2], [1, 1], 4, 4, 2, 1)),
    (usize::MAX, WAVE, tile([2, 2], [1, 2], 4, 2, 2, 1)),
    (usize::MAX, WAVE, tile([3, 2], [1, 2], 4, 2, 1, 1)),
    (usize::MAX, WAVE, tile([2, 2], [2, 2], 2, 4, 1, 1)),
    (usize::MAX, WAVE, tile([5, 2], [1, 2], 4, 1, 1, 1)),
    (1024, WAVE, tile([2, 2], [2, 4], 1, 4, 1, 1)),
    (usize::MAX, WAVE, WIDE),
    (usize::MAX, WAVE, LARGE),
    (256, 2 * WAVE, tile([2, 2], [2, 4], 1, 2, 1, 1)),
];

/// Also in place of [`LARGE`] where that is not suited.
const WIDE: Tile = tile([2, 4], [2, 2], 1, 4, 1, 1);

const LARGE: Tile = tile([2, 3], [4, 2], 1, 4, 1, 1);

/// Also in place of a wider one where that is not suited.
const BROAD: Tile = tile([4, 2], [2, 4], 1, 4, 1, 1);

/// Tiles for more workgroups than [`TILES`] has, with how many run concurrently and how long these take, in
/// microseconds of a convolution of 7 × 768 terms on an H200 (`bench.rs`). There, 2400 × 5376 × 768 takes 116
/// µs with the third instead of 188 with [`LARGE`], 6400 × 5376 × 768 takes 323 with the last instead of 384.
pub(super) const MANY: [(usize, usize, Tile); 5] = [
    (WAVE, 96, LARGE),
    (WAVE, 93, tile([2, 3], [2, 4], 1, 4, 1, 1)),
    (WAVE, 117, BROAD),
    (WAVE, 160, tile([4, 3], [2, 4], 1, 2, 1, 1)),
    (2 * WAVE, 163, tile([4, 3], [2, 2], 1, 2, 1, 1)),
];

/// Maximum K for which this tile is used instead of those of [`MANY`]: 5632 × 256 × 1536 takes 69 µs with it
/// instead of 83.
pub(super) const SHORT: (usize, Tile) = (700, tile([2, 3], [2, 2], 2, 1, 1, 2));

/// Returns the tile of [`MANY`] for M × N results that takes the shortest time, or [`SHORT`].
fn for_many([m, n, k]: [usize; 3], has: Matrices) -> Tile {
    if k <= SHORT.0 {
        return SHORT.1;
    }
    let time = |(concurrent, time, t): &&(usize, usize, Tile)| {
        let [bm, bn] = t.results(has);
        (m.div_ceil(bm) * n.div_ceil(bn)).div_ceil(*concurrent) * time
    };
    MANY.iter().min_by_key(time).map_or(LARGE, |(.., t)| *t)
}

/// Tiles for matmuls of rows that get a layer norm, from small to large. The first of which all workgroups
/// run concurrently is used. On an H200 1408 × 256 × 1536 takes 12.9 µs with the last, 15.0 with the first
/// and 17.4 with the second, and without the norm 12.0, after which the norm takes 4 to 4.7; 1408 × 256 ×
/// 1024 takes 10.7 with the second, 14.6 with the first, 10.4 without; 704 × 256 × 1536 takes 9.0 with the
/// first, 8.6 without.
pub(super) const NORMING: [Tile; 3] =
    [tile([2, 2], [2, 4], 1, 4, 1, 1), tile([2, 3], [2, 4], 1, 4, 1, 1), tile([3, 3], [2, 4], 1, 4, 1, 1)];

/// Returns the tile for M × N results of rows that get a layer norm. Those of gates meet in pairs.
pub(super) fn norming_tile([m, n]: [usize; 2], gated: bool, has: Matrices) -> Tile {
    let met = if gated { 2 } else { 1 };
    let all = || NORMING.iter().filter(|t| t.of_subgroup[1].is_multiple_of(met));
    let is_small = |t: &&Tile| {
        let [bm, bn] = t.results(has);
        m.div_ceil(bm) * n.div_ceil(bn) <= WAVE
    };
    let t = all().find(is_small).or(all().next_back()).expect("the first of NORMING is for gates, too");
    Tile { met, ..*t }
}

/// Threads that read a row for its layer norm; see the kernel.
pub(super) const OF_NORM: usize = 8;

/// Fewest and most rows that get one.
pub(super) const NORMED_ROWS: [usize; 2] = [512, 1536];

/// Widest of them, which are in registers.
pub(super) const WIDEST_NORM: usize = 256;

/// Returns the tile for M × N results of K terms.
pub(super) fn tile_for([m, n, k]: [usize; 3], has: Matrices) -> Tile {
    let suits = |(terms, workgroups, t): &&(usize, usize, Tile)| {
        let [bm, bn] = t.results(has);
        k <= *terms && m.div_ceil(bm) * n.div_ceil(bn) <= *workgroups
    };
    let mut t = TILES.iter().find(suits).map_or_else(|| for_many([m, n, k], has), |(.., t)| *t);
    // Slices end at the end of the weight's padding, and two small ones are in flight sooner than a large
    // one.
    let ends = k.next_multiple_of(PADDING[0]).is_multiple_of(t.depth(has));
    if t.steps > 1 && (!ends || k <= t.depth(has)) {
        t.steps /= 2;
    }
    t.ahead = t.ahead.min(k.div_ceil(t.depth(has))).max(1);
    t
}

/// What a matmul does besides its epilogue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extras {
    /// It multiplies by several weights.
    pub parts: bool,
    /// It multiplies by two, and one result by the other.
    pub gated: bool,
    /// Norm of its rows.
    pub norm: Normed,
    /// It applies Snake.
    pub snakes: bool,
    /// Results are stored in f16.
    pub half_out: bool,
}

/// Kernel for a tile and a weight format, with everything fused into it. `conv` are the edges of a
/// convolution, `k` the terms of a matmul.
pub(super) fn variant(
    (t, has): (Tile, Matrices),
    k: usize,
    element: Element,
    conv: Option<Edges>,
    extras: Extras,
    e: &Epilogue,
) -> Variant {
    let ([bm, bn], depth, threads) = (t.results(has), t.depth(has), t.threads(has));
    let rounds = if extras.norm == Normed::Layer { k / depth } else { 1 };
    let share = t.meeting(has).into_iter().product::<usize>().div_ceil(4 * threads);
    let v = stored(Variant::new("matmul_cooperative"), element)
        .number("FRAGMENT", has.fragment)
        .number("BM", bm)
        .number("BN", bn)
        .number("BK", t.steps * has.fragment)
        .number("DEPTH", depth)
        .number("STEPS", t.steps)
        .number("FM", t.of_subgroup[0])
        .number("FN", t.of_subgroup[1])
        .number("GM", t.subgroups[0])
        .number("GN", t.subgroups[1])
        .number("CN", t.met)
        .number("MEETINGS", t.meetings())
        .number("SPLIT", t.split)
        .number("SPLIT_MORE", t.split - 1)
        .number("THREADS", threads)
        .number("A_LOADS", bm * depth / 4 / threads)
        .number("B_LOADS", bn * depth / 4 / threads)
        .number("AHEAD", t.ahead)
        .flag("AHEAD_SEVERAL", t.ahead > 1)
        .number("ROUNDS", rounds)
        .flag("EARLY", t.of_subgroup[0] * t.meetings() * share <= 2)
        .number("SHARE", share)
        .flag("ODD", false)
        .flag("PARTS", extras.parts)
        .flag("GATED", extras.gated)
        .flag("NORM", extras.norm == Normed::Rms)
        .flag("NORMS", extras.norm != Normed::No)
        .flag("LAYER_NORM", extras.norm == Normed::Layer)
        .number("LANES", has.lanes)
        .number("SUBGROUPS", threads / has.lanes)
        .number("NORM_TIMES", bm / t.rows_normed(has))
        .number("NORM_VECTORS", depth / (4 * OF_NORM))
        .number("COLUMNS", if extras.gated { bn / 2 } else { bn })
        .number("COLUMNS_PADDING", PADDING[1])
        .flag("SNAKE", extras.snakes);
    activation(gathered(v, conv, e).set("HALF_OUT", extras.half_out), e.activation.as_ref())
}
