//! Matmuls and convolutions: launches of `kernels/matmul.cu` and, for many rows, of `kernels/matmul_tall.cu`,
//! `kernels/matmul_wide.cu`, `kernels/matmul_warpgroup.cu`, `kernels/matmul_boxes.cu` and
//! `kernels/conv_warpgroup.cu`.

use super::cuts::{
    Block, CHANNELS, DEPTH_OF_BLOCKS, FEW_ROWS, Kind, Residual, Sizes, Stationary, Tiling, WARPS, WIDE_DEPTH,
    block_instead, blocks, product_shared, tiling,
};
use super::operands::{Operands, activation_number, cache_type};
use super::work::{Pointer, Work, bits};
use crate::driver::{Elements, Facts, Tensor};
use crate::kernels::{
    SNAKE, STATIONARY, TENSOR_ARCH, conv_program, groups_program, product_program, warpgroup_program,
};
use crate::weights::packed_bytes;
use orate_graph::{
    Activation, ConvGeometry, DType, Edges, Epilogue, Fused, Precision, PrecisionPolicy, Rounding, Shape,
    Weight,
};

/// Indices, among a matmul's pointers and words, of the weights to prefetch and of their size in bytes; see
/// [`announce`].
pub(super) const NEXT_WEIGHTS: usize = 8;
/// See [`NEXT_WEIGHTS`].
pub(super) const NEXT_BYTES: usize = 10;
/// Indices of pointers and words of `kernels/matmul.cu`. The last is that of the word that [`halves`]
/// returns.
pub(super) const HISTORY: usize = 9;
/// See [`HISTORY`].
pub(super) const RESIDUAL: usize = 4;
/// See [`HISTORY`].
pub(super) const OUT: usize = 7;
/// See [`HISTORY`].
pub(super) const ROW: usize = 5;
/// See [`HISTORY`].
pub(super) const ACTIVATION: usize = 8;
/// See [`HISTORY`].
pub(super) const NORM: usize = 10;
/// See [`HISTORY`].
pub(super) const SHIFT: usize = 11;
/// See [`HISTORY`].
pub(super) const FIRST: usize = 11;
/// See [`HISTORY`].
pub(super) const GATED: usize = 12;
/// See [`HISTORY`].
pub(super) const EPS: usize = 13;
/// See [`HISTORY`].
pub(super) const HALVES: usize = 15;

/// Layout of x in `kernels/matmul.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Dense,
    Conv,
    Past,
    Odd,
}

/// Sizes and tiling of a launch.
struct Layout {
    sizes: Sizes,
    /// Channels of the first of joined matmuls.
    own: usize,
    kind: Kind,
    tiling: Tiling,
    source: Source,
    geometry: ConvGeometry,
}

impl Layout {
    fn of(
        (input, out): (&Shape, &Shape),
        weight: &Weight,
        conv: Option<&ConvGeometry>,
        fused: &Fused,
        facts: &Facts,
    ) -> Layout {
        let (rows, k, own) = (out.rows(), weight.shape().dims()[0], out.last());
        let width = |part: &Weight| part.shape().last();
        let n = own + fused.parts.iter().map(width).sum::<usize>();
        let (time, channels, g) = match conv {
            Some(g) => (input.dims()[1], input.dims()[2], *g),
            None => (rows, k, ConvGeometry::symmetric(1, 1)),
        };
        let left = if conv.is_some() { g.left } else { fused.parts.first().map_or(0, width) };
        let whole = channels.is_multiple_of(4);
        let choices: &[usize] = match (whole, conv) {
            (false, _) => &[5],
            (true, None) => &[1, 3, 5, 9],
            (true, Some(g)) if g.edges != Edges::Repeat && facts.arch < TENSOR_ARCH => &[5],
            (true, Some(g)) if g.edges != Edges::Repeat => &[5, 7],
            (true, Some(_)) => &[5, 9],
        };
        let source = match (whole, conv) {
            (false, _) => Source::Odd,
            (true, Some(g)) if g.edges != Edges::Repeat => Source::Past,
            (true, Some(_)) => Source::Conv,
            (true, None) => Source::Dense,
        };
        Layout {
            sizes: Sizes { rows, k, n, time, channels, dilation: g.dilation, left },
            own,
            kind: Kind {
                convolves: conv.is_some(),
                has_history: conv.is_some_and(ConvGeometry::has_history),
                is_joined: !fused.parts.is_empty(),
                is_halved: false,
            },
            tiling: tiling(rows, k, n, choices, facts),
            source,
            geometry: g,
        }
    }

    /// The kernel for many rows, if there is one that supports all that is fused and is faster than the
    /// tiling. `is_halved` says whether x is stored in 16 bits.
    fn block(&self, precision: Precision, fused: &Fused, is_halved: bool, facts: &Facts) -> Option<Block> {
        let kind = Kind { is_halved, ..self.kind };
        if fused.norm.is_some() {
            return None;
        }
        if fused.gated {
            // Half of the channels of a block are of each part.
            let gates = |b: &Block| {
                groups_program(precision) == Some(b.program) && self.own.is_multiple_of(b.channels / 2)
            };
            let all = blocks(precision, self.sizes, kind, facts).filter(gates);
            return all.filter(|_| self.sizes.rows > FEW_ROWS).min_by(|a, b| a.time.total_cmp(&b.time));
        }
        block_instead(self.tiling, precision, self.sizes, kind, facts)
    }

    /// Whether `kernels/matmul_stationary.cu` supports this epilogue. It stores boxes, so all parts have the
    /// same width.
    fn suits_stationary(&self, e: &Epilogue, fused: &Fused) -> bool {
        let is_alike = |part: &Weight| part.shape().last() == self.own;
        let is_known = match e.activation {
            None => true,
            Some(Activation::Gelu) => fused.parts.is_empty(),
            _ => false,
        };
        let is_plain = !e.residual && !fused.gated && fused.norm.is_none() && fused.snake.is_none();
        is_plain
            && is_known
            && fused.row.is_none()
            && !self.kind.convolves
            && self.own.is_multiple_of(WIDE_DEPTH)
            && fused.parts.iter().all(is_alike)
    }
}

/// How the kernel of a matmul handles values of 16 bits: those of warpgroups round x and a history, and can
/// store what they round.
pub(super) fn rounding(
    shapes: (&Shape, &Shape),
    weight: &Weight,
    conv: Option<&ConvGeometry>,
    fused: &Fused,
    policy: &PrecisionPolicy,
    facts: &Facts,
) -> Rounding {
    let (layout, precision) = (Layout::of(shapes, weight, conv, fused, facts), policy.of(weight));
    let programs = [groups_program(precision), conv_program(precision)];
    // By weights in blocks, x is multiplied in f16.
    let half = if precision.block() > 1 { Some(DType::F16) } else { half_of(precision) };
    let dtype = match layout.block(precision, fused, true, facts) {
        Some(block) if programs.contains(&Some(block.program)) => half,
        _ => None,
    };
    let mut widths = fused.parts.iter().map(|w| w.shape().last()).chain([layout.own]);
    dtype.map_or(Rounding::default(), |dtype| Rounding {
        reads: Some((1, dtype)),
        writes: if widths.all(|n| n.is_multiple_of(8)) { &super::COMPACT } else { &[] },
        widens: false,
    })
}

/// The element type to which kernels of a precision round values, if it is one of 16 bits.
pub(super) fn half_of(precision: Precision) -> Option<DType> {
    match precision {
        Precision::F16 => Some(DType::F16),
        Precision::Bf16 => Some(DType::BF16),
        _ => None,
    }
}

/// How the kernels say which of operand and result are stored in 16 bits.
pub(super) fn halves(x: DType, out: DType) -> u32 {
    u32::from(x.is_compact()) + 2 * cache_type(out)
}

/// A matmul with everything fused into it, or a convolution.
pub(super) fn work(o: &Operands<'_>, weight: &Weight, e: &Epilogue, conv: Option<&ConvGeometry>) -> Work {
    let (node, fused) = (&o.step.node, &o.step.fused);
    let layout = Layout::of((o.shape(0), o.out_shape()), weight, conv, fused, o.facts);
    let (sizes, g) = (layout.sizes, layout.geometry);
    let precision: Precision = o.policy.of(weight);
    let residual = if e.residual { node.inputs.last() } else { None };
    let norm = fused.norm.as_ref();
    let vectors = match (&fused.snake, norm) {
        (Some([frequency, gain]), _) => [Some(frequency), Some(gain)],
        (None, norm) => {
            let shift = norm.filter(|norm| norm.columns.is_none()).and_then(|norm| norm.bias.as_ref());
            [norm.map(|norm| &norm.weight), shift]
        }
    };
    let columns = norm.and_then(|norm| norm.columns.as_ref());
    let pointers = [
        o.x(0),
        Pointer::Weight(o.bank.packed(weight, &fused.parts, precision)),
        e.bias.as_ref().map_or(Pointer::Null, |b| o.dense(b)),
        o.slope(e.activation.as_ref()),
        residual.map_or(Pointer::Null, |v| o.at(*v)),
        fused.row.map_or(Pointer::Null, |(table, _)| o.at(table)),
        fused.row.map_or(Pointer::Null, |(_, index)| o.scalar(index)),
        o.out(),
        Pointer::Null,
        if g.has_history() { o.x(1) } else { columns.map_or(Pointer::Null, |w| o.dense(w)) },
        vectors[0].map_or(Pointer::Null, |w| o.dense(w)),
        vectors[1].map_or(Pointer::Null, |w| o.dense(w)),
    ];
    let table_rows = fused.row.map_or(0, |(table, _)| o.shape_of(table).dims()[0]);
    let eps = norm.map_or(0.0, |norm| norm.eps);
    let activation = if fused.snake.is_some() { SNAKE } else { activation_number(e.activation.as_ref()) };
    let zeros = u32::from(g.edges == Edges::Zero);
    let halves = halves(o.dtype(0), o.out_type());
    let (own, gated) = (layout.own as u32, u32::from(fused.gated));
    let numbers = [activation, table_rows as u32, own, gated, bits(eps), zeros, halves];
    let work = product(precision, layout.source, layout.tiling, pointers, sizes, numbers);
    match layout.block(precision, fused, o.dtype(0).is_compact(), o.facts) {
        Some(block) => {
            let stores_halves = o.dtype(0).is_compact() && o.out_type().is_compact();
            let stationary = Stationary::of(sizes, o.facts).filter(|kernel| kernel.time < block.time);
            let is_able = stores_halves && warpgroup_program(precision) == Some(block.program);
            let residual = Residual::of(sizes, o.facts).filter(|_| is_plain_residual(o, &layout, e, fused));
            if let (Some(kernel), Some(program)) = (residual, warpgroup_program(precision)) {
                return kernel.launch(Work { program, ..work }, sizes);
            }
            match stationary.filter(|_| is_able && layout.suits_stationary(e, fused)) {
                Some(kernel) => kernel.launch(Work { program: block.program, ..work }, sizes),
                None => in_block(work, block, sizes),
            }
        }
        None => work,
    }
}

/// Whether `kernels/matmul_residual.cu` supports this epilogue and these types.
fn is_plain_residual(o: &Operands<'_>, layout: &Layout, e: &Epilogue, fused: &Fused) -> bool {
    let is_plain = e.residual && e.activation.is_none() && !fused.gated && fused.parts.is_empty();
    let has_no_more = fused.norm.is_none() && fused.snake.is_none() && fused.row.is_none();
    let types = o.dtype(0).is_compact() && !o.out_type().is_compact();
    is_plain && has_no_more && types && !layout.kind.convolves
}

impl Residual {
    /// Uses this kernel for the matmul of `work`. Both belong to the same program.
    pub fn launch(&self, work: Work, sizes: Sizes) -> Work {
        let Sizes { rows, k, n, .. } = sizes;
        let tensor = |width: usize, channels: usize, elements: Elements| Tensor {
            sizes: [width, rows, 1],
            part: [channels, self.tile, 1],
            elements,
        };
        let x = tensor(k, WIDE_DEPTH, Elements::Lines);
        let floats = tensor(n, CHANNELS, Elements::Floats);
        let next = tensor(n, WIDE_DEPTH, Elements::Lines);
        let mut work = Work {
            function: self.function,
            grid: [n.div_ceil(4 * CHANNELS) as u32, self.blocks as u32, 1],
            threads: self.threads as u32,
            shared: self.shared as u32,
            cluster: 1,
            // Without a Snake, nothing is stored in the last.
            tensors: vec![(0, x), (RESIDUAL, floats), (OUT, floats), (OUT, next)],
            ..work
        };
        work.words.push(self.stages as u32);
        work
    }
}

impl Stationary {
    /// Uses this kernel for the matmul of `work`. Both belong to the same program.
    pub fn launch(&self, work: Work, sizes: Sizes) -> Work {
        let Sizes { rows, k, n, .. } = sizes;
        let [channels, tile] = self.part;
        let width = work.words[FIRST] as usize;
        let x = Tensor { sizes: [k, rows, 1], part: [WIDE_DEPTH, tile, 1], elements: Elements::Lines };
        let out =
            Tensor { sizes: [width, rows, n / width], part: [channels, tile, 1], elements: Elements::Lines };
        let has_activation = work.words[ACTIVATION] != activation_number(None);
        Work {
            function: STATIONARY[usize::from(has_activation)],
            grid: [(n / (2 * channels)) as u32, self.blocks as u32, 1],
            threads: self.threads as u32,
            shared: self.shared as u32,
            cluster: 1,
            tensors: vec![(0, x), (OUT, out)],
            ..work
        }
    }
}

/// A matmul with tiling `t`; `first` is the number of channels of the first joined matmul.
pub(super) fn product(
    precision: Precision,
    source: Source,
    t: Tiling,
    pointers: [Pointer; 12],
    sizes: Sizes,
    [activation, table_rows, first, gated, eps, zeros, halves]: [u32; 7],
) -> Work {
    let Sizes { rows, k, n, time, channels, dilation, left } = sizes;
    let in_pairs = precision.block() > 1 && k.is_multiple_of(2 * DEPTH_OF_BLOCKS);
    let function = match (source, t.tiles) {
        (Source::Odd, _) => "matmul_5_odd",
        (Source::Past, 5) => "matmul_5_past",
        (Source::Past, _) => "matmul_7_past",
        (Source::Conv, 5) => "matmul_5_conv",
        (Source::Conv, _) => "matmul_9_conv",
        (Source::Dense, 1) if in_pairs => "matmul_1_pairs",
        (Source::Dense, 2) if in_pairs => "matmul_2_pairs",
        (Source::Dense, 1) => "matmul_1_dense",
        (Source::Dense, 2) => "matmul_2_dense",
        (Source::Dense, 3) => "matmul_3_dense",
        (Source::Dense, 5) => "matmul_5_dense",
        (Source::Dense, _) => "matmul_9_dense",
    };
    let sizes = [rows, k, n, k.div_ceil(16), time, channels, dilation, left].map(|x| x as u32);
    Work {
        program: product_program(precision),
        function,
        grid: [n.div_ceil(CHANNELS) as u32, rows.div_ceil(8 * t.tiles) as u32, t.split as u32],
        threads: 32 * WARPS as u32,
        shared: product_shared(t) as u32,
        cluster: t.split as u32,
        pointers: pointers.to_vec(),
        words: sizes
            .into_iter()
            .chain([activation, table_rows, 0, first, gated, eps, zeros, halves])
            .collect(),
        tensors: vec![],
        weight_bytes: packed_bytes(k, n, precision) as u32,
    }
}

/// The same by a kernel for many rows.
pub(super) fn in_block(work: Work, block: Block, sizes: Sizes) -> Work {
    let sequences = sizes.rows / sizes.time.max(1);
    let [across, down] =
        [sizes.n.div_ceil(block.channels), sequences * sizes.time.div_ceil(block.rows)].map(|n| n as u32);
    let mut work = Work {
        program: block.program,
        function: block.function,
        grid: [across, down, block.split as u32],
        threads: block.threads as u32,
        shared: block.shared as u32,
        cluster: block.split as u32,
        ..work
    };
    if block.stages > 0 {
        let parts = 1 + work.words[GATED] as usize;
        // Of 32 channels and 16 of K, weights are 256 words; a box has those of 128 channels at most.
        let weights = Tensor {
            sizes: [256, sizes.k / 16, sizes.n.div_ceil(CHANNELS)],
            part: [256, WIDE_DEPTH / 16, (block.channels / CHANNELS / parts).min(4)],
            elements: Elements::Words,
        };
        let x = Tensor {
            sizes: [sizes.channels, sizes.rows, 1],
            part: [WIDE_DEPTH, block.rows, 1],
            elements: Elements::Lines,
        };
        work.tensors = vec![(1, weights), (0, x)];
        work.words.push(block.stages as u32);
    }
    work
}

/// Whether prefetched weights, and those of the matmul before theirs, likely stay in the second-level cache
/// until they are used. From about a quarter of it on, matmuls took longer with prefetching than without
/// (docs/performance.md, *Formats of blocks*).
pub(super) fn stay_in_cache(bytes: [u32; 2], facts: &Facts) -> bool {
    bytes.iter().map(|b| u64::from(*b)).sum::<u64>() <= u64::from(facts.cache / 4)
}

/// Gives each matmul the address of the weights of the second matmul after it, to prefetch them. The weights
/// of a network exceed the cache, so each matmul would otherwise wait for its own. The last wraps around to
/// the first, as plans are repeated.
pub(super) fn announce(works: &mut [(usize, Work)], facts: &Facts) {
    let products: Vec<usize> =
        (0..works.len()).filter(|i| works[*i].1.program.starts_with("matmul")).collect();
    for (i, product) in products.iter().enumerate() {
        let [between, next] = [1, 2].map(|ahead| &works[products[(i + ahead) % products.len()]].1);
        let (weights, bytes) = (next.pointers[1], next.weight_bytes);
        let is_kept = stay_in_cache([between.weight_bytes, bytes], facts);
        let work = &mut works[*product].1;
        work.pointers[NEXT_WEIGHTS] = weights;
        work.words[NEXT_BYTES] = if is_kept { bytes } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{ROWS, TALL};
    use crate::lower::tests::{facts, works_of};
    use orate_graph::{AttentionMask, Graph, Norm, Op, Value};

    #[test]
    fn weights_that_stay_in_the_cache_are_prefetched() {
        // Of an imaginary GPU with 50 MiB of cache.
        let prefetched = |widths: [usize; 3]| {
            let works = widths.iter().map(|n| {
                let sizes = Sizes { rows: 1, k: 1024, n: *n, time: 1, channels: 1024, dilation: 1, left: 0 };
                let t = Tiling { tiles: 1, split: 1 };
                product(Precision::Bf16, Source::Dense, t, [Pointer::Null; 12], sizes, [0; 7])
            });
            let mut works: Vec<(usize, Work)> = works.enumerate().collect();
            announce(&mut works, &facts(90));
            [0, 1, 2].map(|i| works[i].1.words[NEXT_BYTES] as usize / 2048)
        };
        assert_eq!(prefetched([1024, 2048, 4096]), [4096, 1024, 2048], "of the second one after each");
        assert_eq!(prefetched([1024, 2048, 6144]), [0, 0, 2048], "the widest with another one is too much");
    }

    /// Kernels of queries, keys and values of normed rows, and of a feed-forward after them.
    fn kernels_of_layers(
        precision: Precision,
        [rows, width]: [usize; 2],
        activation: Activation,
    ) -> Vec<Work> {
        let mut g = Graph::new("layers");
        let x = g.input("x", DType::F32, [1, rows, width]).expect("declares");
        let vector = |name: &str, n: usize| Weight::named(name, [n]);
        let matrix = |name: &str, k: usize, n: usize| Weight::named(name, [k, n]);
        let norm = |g: &mut Graph, x: Value| {
            let (weight, bias) = (vector("norm.weight", width), vector("norm.bias", width));
            g.layer_norm(x, Norm { weight, bias, eps: 1e-5 }).expect("builds")
        };
        let y = norm(&mut g, x);
        let [q, k, v] = ["q", "k", "v"].map(|name| g.matmul(y, matrix(name, width, 512)).expect("builds"));
        let (scale, mask, relative) = (0.125, AttentionMask::None, None);
        let op = Op::Attention { heads: 8, scale, mask, relative, bias: false, follows_weights: true };
        let y = g.attention(op, q, k, v, None).expect("builds");
        let y = g.linear(y, matrix("out", 512, width), vector("out.bias", width)).expect("builds");
        let x = g.add(x, y).expect("builds");
        let y = norm(&mut g, x);
        let y = g.linear(y, matrix("up", width, 1024), vector("up.bias", 1024)).expect("builds");
        let y = g.activate(y, activation).expect("builds");
        let y = g.linear(y, matrix("down", 1024, width), vector("down.bias", width)).expect("builds");
        let y = g.add(x, y).expect("builds");
        g.output("y", y).expect("declares");
        let (_, works) = works_of(g, precision);
        works.into_iter().map(|(_, work)| work).filter(|work| work.program.starts_with("matmul")).collect()
    }

    #[test]
    fn few_of_k_and_very_many_rows_leave_weights_in_registers() {
        let functions = |precision, sizes, activation| {
            kernels_of_layers(precision, sizes, activation).iter().map(|w| w.function).collect::<Vec<_>>()
        };
        for precision in [Precision::F16, Precision::Bf16] {
            let works = kernels_of_layers(precision, [22_500, 256], Activation::Gelu);
            let [qkv, out, up, down] = &works[..] else { panic!("{} matmuls", works.len()) };
            assert_eq!([qkv.function, up.function], STATIONARY, "{precision}");
            assert!([out, down].iter().all(|w| ROWS.contains(&w.function)), "more of K, results in f32");
            // Eleven blocks share the rows of 128 of 3 · 512 channels, sixteen those of 1024.
            assert_eq!([qkv.grid, up.grid], [[12, 11, 1], [8, 16, 1]]);
            let made = |work: &Work| (work.tensors[1].0, work.tensors[1].1.sizes, work.tensors[1].1.part);
            assert_eq!(made(qkv), (OUT, [512, 22_500, 3], [64, 128, 1]));
            assert_eq!(made(up), (OUT, [1024, 22_500, 1], [64, 128, 1]));
        }
        let is_any = |functions: Vec<&str>, of: &[&str]| functions.iter().any(|f| of.contains(f));
        let (bf16, many) = (Precision::Bf16, [22_500, 256]);
        assert!(!is_any(functions(bf16, [22_500, 320], Activation::Gelu), &STATIONARY), "more of K");
        assert!(!is_any(functions(Precision::F32, many, Activation::Gelu), &STATIONARY));
        assert!(!is_any(functions(bf16, many, Activation::Silu), &STATIONARY[1..]), "another activation");
    }

    /// Launches of a layer norm and a matmul of few rows.
    fn normed(precision: Precision, rows: usize) -> Vec<Work> {
        let mut g = Graph::new("normed");
        let x = g.input("x", DType::F32, [rows, 1, 256]).expect("declares");
        let vector = |name: &str, n: usize| Weight::named(name, [n]);
        let norm = Norm { weight: vector("gain", 256), bias: vector("shift", 256), eps: 1e-5 };
        let y = g.layer_norm(x, norm).expect("builds");
        let y = g.linear(y, Weight::named("w", [256, 512]), vector("bias", 512)).expect("builds");
        g.output("y", y).expect("declares");
        works_of(g, precision).1.into_iter().map(|(_, work)| work).collect()
    }

    #[test]
    fn layer_norms_of_few_rows_are_completed_after_products() {
        for precision in [Precision::F16, Precision::Bf16, Precision::Q8_0, Precision::Q4K] {
            for rows in [1, 2, 3, 8, 16] {
                let works = normed(precision, rows);
                let [work] = &works[..] else {
                    panic!("{precision}: {} launches of {rows} rows", works.len())
                };
                let is_there = [NORM, SHIFT, HISTORY].map(|i| work.pointers[i] != Pointer::Null);
                assert_eq!(is_there, [true, rows <= 2, rows > 2], "{precision}: {rows} rows");
            }
            assert_eq!(normed(precision, 17).len(), 2, "{precision}");
        }
        assert_eq!(normed(Precision::F32, 3).len(), 2, "such rows are not rounded");
    }

    #[test]
    fn many_rows_share_operands() {
        let chosen = |precision, arch, sizes: [usize; 7]| {
            let facts = facts(arch);
            let [rows, k, n, time, channels, dilation, left] = sizes;
            let sizes = Sizes { rows, k, n, time, channels, dilation, left };
            let t = tiling(rows, k, n, &[5, 9], &facts);
            let work = product(precision, Source::Conv, t, [Pointer::Null; 12], sizes, [0; 7]);
            let kind = Kind { convolves: true, has_history: false, is_joined: false, is_halved: false };
            match block_instead(t, precision, sizes, kind, &facts) {
                Some(block) => in_block(work, block, sizes),
                None => work,
            }
        };
        // Two sequences of 6000 rows of 32 channels, seven taps; as in tests/main/ops.rs.
        let long = [12_000, 7 * 32, 200, 6000, 32, 3, 18];
        let work = chosen(Precision::F32, 90, long);
        assert_eq!((work.function, work.grid, work.threads), (TALL, [3, 2 * 94, 1], 96));
        assert_eq!(work.shared, 4 * (64 + 18) * 32 * 3);
        let is_tall = |precision, arch, sizes| chosen(precision, arch, sizes).function == TALL;
        assert!(is_tall(Precision::Bf16, 80, long));
        assert!(!is_tall(Precision::F32, 75, long), "no copies to shared memory there");
        assert!(!is_tall(Precision::Q8_0, 90, long), "scales are not read");
        assert!(!is_tall(Precision::F32, 90, [12_000, 7 * 36, 200, 6000, 36, 3, 18]), "not by 32");
        assert!(!is_tall(Precision::F32, 90, [72, 512, 2048, 72, 512, 1, 0]), "too few rows");
        // A prompt: 15 µs in bf16 against 23, and 26 in f32 against 42.
        for precision in [Precision::Bf16, Precision::F32] {
            assert!(!is_tall(precision, 90, [100, 1024, 4096, 100, 1024, 1, 0]), "{precision}: too few rows");
        }
    }
}
