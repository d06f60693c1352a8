//! What a transformer layer computes after its attention as one launch of `kernels/feed_forward.cu`.

use super::matmul::{NEXT_BYTES, NEXT_WEIGHTS};
use super::work::{Pointer, Work};
use crate::driver::Facts;
use crate::kernels::{
    FEED_FORWARD, WARPGROUP_ARCH, feed_forward_program, product_program, warpgroup_program,
};
use orate_graph::{FeedForward, Plan, Precision, Run};
use std::ops::Range;

/// Sizes of the kernel: those of Chatterbox's estimator.
pub(super) const SIZES: FeedForward =
    FeedForward { rows: [128, 8192], width: 256, attended: 512, hidden: 1024, next: 1536 };

/// Blocks of a cluster, and threads of a block.
const BLOCKS: u32 = 4;
/// See [`BLOCKS`].
const THREADS: u32 = 512;
/// Rows of a cluster, in the order of [`FEED_FORWARD`].
const TILES: [u32; 3] = [32, 48, 64];
/// Floats that the kernel has for a row of sums of a warpgroup, and vectors that it keeps.
const SUMS: usize = 68;
/// See [`SUMS`].
const VECTORS: usize = 6;

/// Launches that are one.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    /// Which of the plan's launches.
    pub works: Range<usize>,
    pub work: Work,
}

/// Finds what can be one launch among the launches of a plan.
pub(crate) fn layers(plan: &Plan, works: &[(usize, Work)], facts: &Facts) -> Vec<Layer> {
    if facts.arch != WARPGROUP_ARCH {
        return vec![];
    }
    let layer = |run: &Run| {
        let begin = works.partition_point(|(step, _)| *step < run.steps.start);
        let end = works.partition_point(|(step, _)| *step < run.steps.end);
        (end - begin == run.steps.len()).then(|| build(works, begin..end, facts)).flatten()
    };
    plan.runs().iter().filter_map(layer).collect()
}

fn build(works: &[(usize, Work)], range: Range<usize>, facts: &Facts) -> Option<Layer> {
    let inside: Vec<&Work> = works[range.clone()].iter().map(|(_, w)| w).collect();
    let [out, first, up, down, rest @ ..] = &inside[..] else { return None };
    let next = rest.get(1);
    let precision = [Precision::F16, Precision::Bf16].into_iter().find(|p| {
        let is_of =
            |work: &Work| [Some(product_program(*p)), warpgroup_program(*p)].contains(&Some(work.program));
        [out, up, down].into_iter().chain(next).all(|work| is_of(work))
    })?;
    // What the kernel reads and writes in 16 bits is stored so.
    let halves = |work: &Work| work.words.last().copied();
    let is_stored =
        [(*out, 1), (*up, 3), (*down, 1)].into_iter().all(|(work, how)| halves(work) == Some(how))
            && next.is_none_or(|work| halves(work) == Some(3));
    if !is_stored {
        return None;
    }
    let second = rest.first();
    let pointer = |work: Option<&&Work>, i: usize| work.map_or(Pointer::Null, |work| work.pointers[i]);
    let matmuls = [Some(out), Some(up), Some(down), next];
    let vectors =
        [(Some(out), 2), (Some(first), 1), (Some(first), 2), (Some(down), 2), (second, 1), (second, 2)];
    let made = [(Some(first), 3), (second, 3), (Some(down), 7), (next, 7)];
    let pointers = [(Some(out), 0), (Some(out), 4)]
        .into_iter()
        .chain(matmuls.map(|work| (work, 1)))
        .chain(vectors)
        .chain([(Some(up), 2), (next, 2)])
        .chain(made)
        .chain(matmuls.map(|work| (work, NEXT_WEIGHTS)))
        .map(|(work, i)| pointer(work, i))
        .collect();
    let bytes = matmuls.map(|work| work.map_or(0, |work| work.words[NEXT_BYTES]));
    let parts = next.map_or([0; 2], |work| [work.words[11], work.words[7]]);
    let eps = |work: Option<&&Work>| work.map_or(0, |work| work.words[1]);
    let rows = out.words[0];
    // As few rows as leave all clusters room at a time; some multiprocessors lack neighbors for another one.
    let places = (facts.multiprocessors / BLOCKS).saturating_sub(1).max(1);
    let fits = TILES.iter().position(|tile| rows.div_ceil(*tile) <= places);
    let choice = fits.unwrap_or(TILES.len() - 1);
    let tile = TILES[choice];
    let tile_rows = tile as usize;
    let operands = 2 * tile_rows * (SIZES.attended + SIZES.width + SIZES.hidden / BLOCKS as usize);
    let sums = 4 * 4 * tile_rows * SUMS;
    let own = 4 * (tile_rows / BLOCKS as usize + VECTORS) * SIZES.width;
    let work = Work {
        program: feed_forward_program(precision)?,
        function: FEED_FORWARD[choice],
        grid: [1, rows.div_ceil(tile), BLOCKS],
        threads: THREADS,
        shared: (operands + sums + own + super::cuts::LINES) as u32,
        cluster: BLOCKS,
        pointers,
        words: [rows, eps(Some(first)), eps(second)].into_iter().chain(bytes).chain(parts).collect(),
        weight_bytes: 0,
    };
    Some(Layer { works: range, work })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::{
        lower,
        tests::{Imagined, facts},
        work::Span,
    };
    use crate::weights::WeightBank;
    use orate_graph::{Activation, AttentionMask, DType, Graph, Norm, Op, PrecisionPolicy, Value, Weight};
    use orate_testing::RandomWeights;

    /// Two layers of the estimator of Chatterbox; `watched` is an output, too.
    fn graph(rows: usize, watched: Option<&str>) -> Graph {
        let mut g = Graph::new("layers");
        let mut x = g.input("x", DType::F32, [1, rows, 256]).expect("declares");
        let vector = |name: String, n: usize| Weight::named(name, [n]);
        let matrix = |name: String, k: usize, n: usize| Weight::named(name, [k, n]);
        for layer in 0..2 {
            let name = |what: &str| format!("{layer}.{what}");
            let norm = |g: &mut Graph, x: Value, what: &str| {
                let [weight, bias] = ["weight", "bias"].map(|n| vector(name(&format!("{what}.{n}")), 256));
                g.layer_norm(x, Norm { weight, bias, eps: 1e-5 }).expect("builds")
            };
            let linear = |g: &mut Graph, x: Value, what: &str, [k, n]: [usize; 2]| {
                let bias = vector(name(&format!("{what}.bias")), n);
                g.linear(x, matrix(name(what), k, n), bias).expect("builds")
            };
            let y = norm(&mut g, x, "first");
            let [q, k, v] =
                ["q", "k", "v"].map(|what| g.matmul(y, matrix(name(what), 256, 512)).expect("builds"));
            let (mask, relative, bias) = (AttentionMask::None, None, false);
            let op = Op::Attention { heads: 8, scale: 0.125, mask, relative, bias, follows_weights: true };
            let y = g.attention(op, q, k, v, None).expect("builds");
            let y = linear(&mut g, y, "out", [512, 256]);
            x = g.add(y, x).expect("builds");
            let y = norm(&mut g, x, "second");
            if watched == Some(name("second").as_str()) {
                g.output("watched", y).expect("declares");
            }
            let y = linear(&mut g, y, "up", [256, 1024]);
            let y = g.activate(y, Activation::Gelu).expect("builds");
            let y = linear(&mut g, y, "down", [1024, 256]);
            x = g.add(y, x).expect("builds");
        }
        g.output("y", x).expect("declares");
        g
    }

    fn layers_of(graph: Graph, precision: Precision, arch: u32) -> (Vec<(usize, Work)>, Vec<Layer>) {
        let target = Imagined { policy: PrecisionPolicy::uniform(precision), facts: facts(arch) };
        let weights = RandomWeights::of_graph(&graph, 1);
        let plan = Plan::compile(graph, &target).expect("compiles");
        let mut bank = WeightBank::default();
        bank.imagine(&plan, &target.policy, &weights, 1 << 40);
        let works = lower(&plan, &bank, &target.policy, &target.facts);
        let layers = layers(&plan, &works, &target.facts);
        (works, layers)
    }

    #[test]
    fn what_follows_attention_is_one_launch() {
        for (rows, function, tiles) in
            [(704, FEED_FORWARD[0], 22), (1408, FEED_FORWARD[1], 30), (2000, FEED_FORWARD[2], 32)]
        {
            let (works, found) = layers_of(graph(rows, None), Precision::Bf16, 90);
            // Norm, projection, attention of each; the second projection is part of the first launch.
            let parts: Vec<_> = found.iter().map(|layer| layer.works.clone()).collect();
            assert_eq!(parts, [3..9, 10..14], "{} launches", works.len());
            let last = &found[1].work;
            assert_eq!((last.function, last.grid), (function, [1, tiles, 4]));
            assert!(last.shared <= facts(90).shared);
            assert_eq!((last.pointers[5], found[0].work.pointers[5] != Pointer::Null), (Pointer::Null, true));
            for layer in &found {
                let p = &layer.work.pointers;
                let place = |i: usize, bytes: usize| Span::of(p[i], rows * bytes);
                // Blocks of other rows still read the first two.
                let read = [place(0, 2 * 512), place(1, 4 * 256)];
                let written =
                    [place(14, 2 * 256), place(15, 2 * 256), place(16, 4 * 256), place(17, 2 * 1536)];
                let all: Vec<Span> = read.into_iter().chain(written).flatten().collect();
                for (i, a) in all.iter().enumerate() {
                    assert!(all[..i].iter().all(|b| !a.overlaps(b)), "{all:?}");
                }
            }
        }
    }

    #[test]
    fn other_rows_formats_and_devices_have_launches_for_each_step() {
        let count = |rows, watched, precision, arch| layers_of(graph(rows, watched), precision, arch).1.len();
        assert_eq!(count(700, None, Precision::F16, 90), 2);
        assert_eq!(count(700, Some("0.second"), Precision::F16, 90), 1, "a value that others read");
        assert_eq!(count(100, None, Precision::F16, 90), 0, "too few rows");
        assert_eq!(count(9000, None, Precision::F16, 90), 0, "too many rows");
        assert_eq!(count(700, None, Precision::F32, 90), 0);
        assert_eq!(count(700, None, Precision::F16, 80), 0);
    }
}
