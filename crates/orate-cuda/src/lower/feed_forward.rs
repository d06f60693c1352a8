//! What a transformer layer computes after its attention as one launch of `kernels/feed_forward.cu`, and a
//! convolution with the norm of its result as one of `kernels/conv_norm.cu`.

use super::matmul::{HALVES, NEXT_BYTES, NEXT_WEIGHTS, half_of, halves};
use super::of_run;
use super::work::{Pointer, Work};
use crate::driver::Facts;
use crate::kernels::{
    CONV_NORM, FEED_FORWARD, WARPGROUP_ARCH, conv_norm_program, conv_program, feed_forward_program,
    product_program, warpgroup_program,
};
use orate_graph::{DType, FeedForward, Pattern, Plan, Precision, PrecisionPolicy, Run};
use std::ops::Range;

/// Sizes of the kernel: those of Chatterbox's estimator.
const SIZES: FeedForward =
    FeedForward { rows: [128, 2560], width: 256, taps: 3, attended: 512, hidden: 1024, next: 1536 };

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

/// What the kernel supports, where it has programs for weights of a policy.
pub(super) fn sizes(policy: &PrecisionPolicy, facts: &Facts) -> Option<FeedForward> {
    let has_program = policy.formats().into_iter().any(|format| feed_forward_program(format).is_some());
    (facts.arch == WARPGROUP_ARCH && has_program).then_some(SIZES)
}

/// Finds what can be one launch among the launches of a plan.
pub(crate) fn layers(plan: &Plan, works: &[(usize, Work)], facts: &Facts) -> Vec<Layer> {
    if facts.arch != WARPGROUP_ARCH {
        return vec![];
    }
    let layer = |run: &Run| {
        let all = of_run(works, run)?;
        let inside: Vec<&Work> = works[all.clone()].iter().map(|(_, w)| w).collect();
        let work = match &inside[..] {
            [conv, norm] if norm.program == "layer_norm" => normed_convolution(conv, norm, facts),
            _ => feed_forward(&inside, facts),
        };
        work.map(|work| Layer { works: all, work })
    };
    plan.runs_of(Pattern::FeedForward).filter_map(layer).collect()
}

/// Which of [`TILES`] is best for some sequences of `time` rows: as few rows as leave all clusters room at a
/// time. Some multiprocessors lack neighbors for another cluster.
fn tile(sequences: u32, time: u32, facts: &Facts) -> usize {
    let places = (facts.multiprocessors / BLOCKS).saturating_sub(1).max(1);
    let fits = TILES.iter().position(|tile| sequences * time.div_ceil(*tile) <= places);
    fits.unwrap_or(TILES.len() - 1)
}

/// The precision of 16 bits that all these matmuls have.
fn precision_of(matmuls: &[&Work]) -> Option<Precision> {
    [Precision::F16, Precision::Bf16].into_iter().find(|p| {
        let programs = [Some(product_program(*p)), warpgroup_program(*p), conv_program(*p)];
        matmuls.iter().all(|work| programs.contains(&Some(work.program)))
    })
}

/// A convolution and the norm of its rows.
fn normed_convolution(conv: &Work, norm: &Work, facts: &Facts) -> Option<Work> {
    let precision = precision_of(&[conv])?;
    let [rows, k, _, _, time, channels, _, left, ..] = conv.words[..] else { return None };
    if k != SIZES.taps as u32 * channels {
        return None;
    }
    let [_, eps, _, stored, activation, row_count] = norm.words[..] else { return None };
    let [zeros, halves] = [HALVES - 1, HALVES].map(|i| conv.words[i]);
    let choice = tile(rows / time, time, facts);
    let tile = TILES[choice];
    let pieces = SIZES.width / 64 * 128 * (tile as usize + 8);
    let sums = 4 * 4 * tile as usize * SUMS;
    Some(Work {
        program: conv_norm_program(precision)?,
        function: CONV_NORM[choice],
        grid: [1, rows / time * time.div_ceil(tile), BLOCKS],
        threads: THREADS,
        shared: (pieces + sums + 4 * 16 * tile as usize + super::cuts::LINES) as u32,
        cluster: BLOCKS,
        pointers: [0, 1, 2]
            .map(|i| conv.pointers[i])
            .into_iter()
            .chain(norm.pointers[1..].iter().copied())
            .chain([conv.pointers[NEXT_WEIGHTS]])
            .collect(),
        words: vec![
            conv.words[NEXT_BYTES],
            row_count,
            time,
            channels,
            left,
            zeros,
            halves,
            stored,
            activation,
            eps,
        ],
        tensors: vec![],
        weight_bytes: 0,
    })
}

/// What follows attention, what comes before that of the next layer, or both.
fn feed_forward(inside: &[&Work], facts: &Facts) -> Option<Work> {
    let (after, before) = inside.split_at(if inside.len() == 2 { 0 } else { 4 });
    let [out, first, up, down] = [0, 1, 2, 3].map(|i| after.get(i));
    let [second, next] = [0, 1].map(|i| before.get(i));
    let matmuls = [out, up, down, next];
    let precision = precision_of(&matmuls.into_iter().flatten().copied().collect::<Vec<_>>())?;
    // What the kernel reads and writes in 16 bits is stored so.
    let half = half_of(precision)?;
    let stored = [DType::F32, half, DType::F32, half];
    let is_stored = |(work, out): (&Option<&&Work>, DType)| {
        work.is_none_or(|work| work.words[HALVES] == halves(half, out))
    };
    if !matmuls.iter().zip(stored).all(is_stored) {
        return None;
    }
    let pointer = |work: Option<&&Work>, i: usize| work.map_or(Pointer::Null, |work| work.pointers[i]);
    let vectors = [(out, 2), (first, 1), (first, 2), (down, 2), (second, 1), (second, 2)];
    let made = [(first, 3), (second, 3), (down, 7), (next, 7)];
    // A projection alone reads what its norm reads.
    let residual = if out.is_some() { (out, 4) } else { (second, 0) };
    let pointers = [(out, 0), residual]
        .into_iter()
        .chain(matmuls.map(|work| (work, 1)))
        .chain(vectors)
        .chain([(up, 2), (next, 2)])
        .chain(made)
        .chain(matmuls.map(|work| (work, NEXT_WEIGHTS)))
        .map(|(work, i)| pointer(work, i))
        .collect();
    let bytes = matmuls.map(|work| work.map_or(0, |work| work.words[NEXT_BYTES]));
    let parts = next.map_or([0; 2], |work| [work.words[11], work.words[7]]);
    let eps = |work: Option<&&Work>| work.map_or(0, |work| work.words[1]);
    let rows = out.or(next)?.words[0];
    let choice = tile(1, rows, facts);
    let tile = TILES[choice];
    let tile_rows = tile as usize;
    let sums = 4 * 4 * tile_rows * SUMS;
    let (function, cluster, shared) = if out.is_some() {
        let operands = 2 * tile_rows * (SIZES.attended + SIZES.width + SIZES.hidden / BLOCKS as usize);
        let own = 4 * (tile_rows / BLOCKS as usize + VECTORS) * SIZES.width;
        (FEED_FORWARD[0][choice], BLOCKS, operands + sums + own)
    } else {
        (FEED_FORWARD[1][choice], 1, 2 * tile_rows * SIZES.width + sums + sums / 2 + 4 * 2 * SIZES.width)
    };
    Some(Work {
        program: feed_forward_program(precision)?,
        function,
        grid: [1, rows.div_ceil(tile), BLOCKS],
        threads: THREADS,
        shared: (shared + super::cuts::LINES) as u32,
        cluster,
        pointers,
        words: [rows, eps(first), eps(second)].into_iter().chain(bytes).chain(parts).collect(),
        tensors: vec![],
        weight_bytes: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::{
        lower,
        tests::{Imagined, facts},
    };
    use crate::weights::WeightBank;
    use orate_graph::{
        Activation, AttentionMask, ConvGeometry, DType, Graph, Norm, Op, PrecisionPolicy, Span, Value, Weight,
    };
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
        layers_by(graph, PrecisionPolicy::uniform(precision), arch)
    }

    fn layers_by(graph: Graph, policy: PrecisionPolicy, arch: u32) -> (Vec<(usize, Work)>, Vec<Layer>) {
        let target = Imagined { policy, facts: facts(arch) };
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
        for (rows, choice, tiles) in [(704, 0, 22), (1408, 1, 30), (2000, 2, 32)] {
            let (works, found) = layers_of(graph(rows, None), Precision::Bf16, 90);
            // Norm, projection, attention of each; the second projection is part of the launch before.
            let parts: Vec<_> = found.iter().map(|layer| layer.works.clone()).collect();
            assert_eq!(parts, [0..2, 3..9, 10..14], "{} launches", works.len());
            let [projection, both, last] = &found[..] else { unreachable!() };
            let last = &last.work;
            let [function, of_first] = FEED_FORWARD.map(|tiles| tiles[choice]);
            assert_eq!((last.function, last.grid, last.cluster), (function, [1, tiles, 4], 4));
            assert!(last.shared <= facts(90).shared);
            assert_eq!((last.pointers[5], both.work.pointers[5] != Pointer::Null), (Pointer::Null, true));
            let first = &projection.work;
            assert_eq!((first.function, first.grid, first.cluster), (of_first, last.grid, 1));
            let [read, made] = [(1, 4 * 256), (17, 2 * 1536)].map(|(i, n)| first.pointers[i].span(rows * n));
            assert!(!read.zip(made).expect("are in memory").0.overlaps(&made.expect("is in memory")));
            for layer in &found[1..] {
                let p = &layer.work.pointers;
                let place = |i: usize, bytes: usize| p[i].span(rows * bytes);
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
    fn a_convolution_and_its_norm_are_one_launch() {
        let layers_of_block = |shape: [usize; 2], precision, is_read_twice: bool| {
            let mut g = Graph::new("block");
            let x = g.input("x", DType::F32, [shape[0], shape[1], 256]).expect("declares");
            let geometry = ConvGeometry::causal(3, 1).with_zeros();
            let y = g.conv1d(x, Weight::named("conv", [3 * 256, 256]), geometry).expect("builds");
            let y = g.add_bias(y, Weight::named("bias", [256])).expect("builds");
            let [weight, bias] = ["gain", "shift"].map(|name| Weight::named(name, [256]));
            let z = g.layer_norm(y, Norm { weight, bias, eps: 1e-5 }).expect("builds");
            let z = g.activate(z, Activation::Mish).expect("builds");
            let z = if is_read_twice { g.add(y, z).expect("builds") } else { z };
            g.output("z", z).expect("declares");
            layers_of(g, precision, 90).1
        };
        for (shape, choice, tiles) in [([1, 704], 0, 22), ([2, 704], 1, 30), ([16, 100], 2, 32)] {
            let found = layers_of_block(shape, Precision::Bf16, false);
            let [Layer { works, work }] = &found[..] else { panic!("{} launches", found.len()) };
            assert_eq!((works.clone(), work.function, work.grid), (0..2, CONV_NORM[choice], [1, tiles, 4]));
            assert_eq!((work.words[2..5].to_vec(), work.words[7]), (vec![shape[1] as u32, 256, 2], 0));
            assert!(work.shared <= facts(90).shared);
            let places = [0, 5].map(|i| work.pointers[i].span(4 * 256 * shape[0] * shape[1]));
            let [Some(x), Some(z)] = places else { panic!("{:?}", work.pointers) };
            assert!(!x.overlaps(&z));
        }
        assert!(layers_of_block([1, 704], Precision::F32, false).is_empty());
        assert!(layers_of_block([1, 704], Precision::F16, true).is_empty(), "a value that others read");
    }

    #[test]
    fn other_rows_formats_and_devices_have_launches_for_each_step() {
        let lengths = |rows, watched, precision, arch| -> Vec<usize> {
            layers_of(graph(rows, watched), precision, arch).1.iter().map(|l| l.works.len()).collect()
        };
        assert_eq!(lengths(700, None, Precision::F16, 90), [2, 6, 4]);
        // A value that others read is stored, so only the projection after it is left of those six.
        assert_eq!(lengths(700, Some("0.second"), Precision::F16, 90), [2, 2, 4]);
        for (rows, precision, arch, why) in [
            (100, Precision::F16, 90, "too few rows"),
            (9000, Precision::F16, 90, "too many rows"),
            (700, Precision::F32, 90, "f32"),
            (700, Precision::F16, 80, "no warpgroups"),
        ] {
            assert!(lengths(rows, None, precision, arch).is_empty(), "{why}");
        }
    }

    #[test]
    fn weights_in_f16_beside_blocks_have_the_same_launches() {
        let names = |policy| {
            let (works, layers) = layers_by(graph(700, None), policy, 90);
            let names = works.iter().map(|(_, work)| (work.program, work.function)).collect::<Vec<_>>();
            (names, layers.iter().map(|layer| layer.works.clone()).collect::<Vec<_>>())
        };
        let half = vec!["*".to_owned()];
        let beside = PrecisionPolicy { precision: Precision::Q8_0, half, ..Default::default() };
        assert_eq!(names(beside), names(PrecisionPolicy::uniform(Precision::F16)));
        assert!(
            names(PrecisionPolicy::uniform(Precision::Q8_0)).1.is_empty(),
            "blocks have launches for each"
        );
    }
}
