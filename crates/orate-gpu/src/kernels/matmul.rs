//! Matmuls and convolutions: selection of kernel and tile.

use super::cooperative::{self, Extras};
use super::operands::{Abilities, Operands, activation};
use crate::adapters::Matrices;
use crate::dispatch::{Call, Late, Params, flat};
use crate::variant::Variant;
use crate::weights::{Element, Form, PADDING, Wanted};
use orate_graph::blocks::{BlockFormat, SuperFormat};
use orate_graph::{
    Activation, Edges, Epilogue, Fused, Fusions, LayerNorms, MOST_PARTS, ManyRows, Op, Place, Precision,
    ValueInfo, Weight,
};

/// Tiling of a workgroup; see the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    pub bm: usize,
    pub bn: usize,
    pub bk: usize,
    pub tm: usize,
    pub tn: usize,
    pub split: usize,
    /// Slices to read ahead.
    pub ahead: usize,
}

impl Tile {
    /// Threads of one of the groups that split K.
    pub fn group(&self) -> usize {
        self.bm / self.tm * (self.bn / self.tn)
    }

    /// Number of groups whose sums fit in workgroup memory at the same time; 16 KiB at most.
    fn slots(&self) -> usize {
        if self.split == 1 { 0 } else { (4096 / (self.bm * self.bn)).clamp(1, self.split) }
    }

    /// Workgroup memory in bytes.
    #[cfg(test)]
    pub fn shared(&self) -> usize {
        let b = (self.split * self.bk * self.bn).max(self.slots() * self.bm * self.bn);
        4 * (b + self.split * self.bm * (self.bk + 4))
    }
}

/// Tiles, each with the minimum number of 32 × 32 results for which it is used. Large tiles read less memory,
/// but there must be enough of them for all processors, and enough terms for all groups. Measured on an H200
/// (`bench.rs`): 72 × 1024 × 512 in 10.6 µs instead of 15.6 with the second tile, 432 × 512 × 2048 in 38
/// instead of 44 µs.
pub(super) const TILES: [(usize, Tile); 4] = [
    (0, Tile { bm: 16, bn: 32, bk: 16, tm: 4, tn: 4, split: 8, ahead: 2 }),
    (64, Tile { bm: 16, bn: 64, bk: 16, tm: 4, tn: 4, split: 4, ahead: 2 }),
    (200, Tile { bm: 32, bn: 32, bk: 16, tm: 4, tn: 4, split: 2, ahead: 2 }),
    (800, Tile { bm: 64, bn: 64, bk: 8, tm: 8, tn: 4, split: 2, ahead: 1 }),
];

/// For sizes between those of the last two tiles, if K is large: 432 × 2048 × 512 in 41 instead of 48 µs.
pub(super) const DEEP: Tile = Tile { bm: 32, bn: 64, bk: 8, tm: 8, tn: 8, split: 8, ahead: 1 };

/// Returns the tile for M × N results of K terms.
pub(super) fn tile(m: usize, n: usize, k: usize) -> Tile {
    let results = m.div_ceil(32) * n.div_ceil(32);
    if (TILES[2].0..TILES[3].0).contains(&results) && k >= 1024 {
        return DEEP;
    }
    TILES.iter().rev().find(|(least, _)| results >= *least).map_or(TILES[0].1, |(_, t)| *t)
}

struct Sizes {
    m: usize,
    n: usize,
    k: usize,
    /// K, N or the channels are not a multiple of 4.
    odd: bool,
}

impl Sizes {
    /// Whether `kernels/matvec.wgsl` computes it.
    fn is_few_rows(&self, op: &Op, can: Abilities<'_>) -> bool {
        let most = if on_matrices(op.weights()[0], can).is_some() { few_rows(can) } else { FEW_ROWS };
        let is_able = self.k > 0 && self.k.is_multiple_of(4) && matches!(op, Op::MatMul { .. });
        is_able && (1..=most).contains(&self.m)
    }
}

/// Groups of four results per workgroup, for a matmul of few rows with `n` columns: about one workgroup per
/// processor of a large GPU, and each reads whole sectors of memory.
pub(super) fn quads(n: usize) -> usize {
    if n >= 2048 { 4 } else { 2 }
}

fn sizes(op: &Op, x: &[usize]) -> Sizes {
    let last = x[x.len() - 1];
    let m = x.iter().product::<usize>() / last;
    let w = op.weights()[0].shape().dims();
    Sizes { m, n: w[1], k: w[0], odd: !last.is_multiple_of(4) || !w[1].is_multiple_of(4) }
}

/// Element type of a matmul's weight.
fn element(weight: &Weight, can: Abilities<'_>) -> Element {
    match can.policy.of(weight) {
        Precision::F16 => Element::F16,
        Precision::Bf16 => Element::Bf16,
        Precision::F32 | Precision::Tf32 => Element::F32,
        Precision::Q8_0 => Element::Blocks(BlockFormat::Q8_0),
        Precision::Q4_0 => Element::Blocks(BlockFormat::Q4_0),
        Precision::Q6K => Element::Super(SuperFormat::Q6K),
        Precision::Q5K => Element::Super(SuperFormat::Q5K),
        Precision::Q4K => Element::Super(SuperFormat::Q4K),
    }
}

/// Layout of a matmul's weight.
fn form(weight: &Weight, can: Abilities<'_>) -> Form {
    Form::Padded(element(weight, can), PADDING)
}

/// Cooperative matrices, if matmuls by a weight use them: its elements are rounded to f16 there.
fn on_matrices(weight: &Weight, can: Abilities<'_>) -> Option<Matrices> {
    can.matrices
        .filter(|_| matches!(element(weight, can), Element::F16 | Element::Blocks(_) | Element::Super(_)))
}

/// Whether matmuls by weights in the policy's own format use them.
pub(super) fn on_policy_matrices(can: Abilities<'_>) -> bool {
    use Precision::{Bf16, F32, Tf32};
    can.matrices.is_some() && ![F32, Tf32, Bf16].contains(&can.policy.precision)
}

/// Returns the tile on cooperative matrices, if they are used. On an H200 they were faster at all sizes.
fn cooperative_tile(
    op: &Op,
    s: &Sizes,
    fused: &Fused,
    can: Abilities<'_>,
) -> Option<(cooperative::Tile, Matrices)> {
    let has = on_matrices(op.weights()[0], can)?;
    let n = s.n + fused.parts.iter().map(|w| w.shape().last()).sum::<usize>();
    if s.odd || s.k == 0 {
        return None;
    }
    let norm = Normed::of(fused);
    let t = match norm {
        Normed::Layer => cooperative::norming_tile([s.m, n], fused.gated, has),
        _ => cooperative::tile_for([s.m, n, s.k], has).suited(fused.gated, norm, has),
    };
    (t.divides(has) && t.shared_with(has, norm) <= can.workgroup_bytes as usize).then_some((t, has))
}

/// Whether the kernel of a matmul or convolution can store its result in f16: that on cooperative matrices.
pub(super) fn stores_halves(op: &Op, x: &[usize], fused: &Fused, can: Abilities<'_>) -> bool {
    let s = sizes(op, x);
    let mut widths = fused.parts.iter().map(|w| w.shape().last()).chain([s.n]);
    !is_narrow(op)
        && !s.is_few_rows(op, can)
        && cooperative_tile(op, &s, fused, can).is_some()
        && widths.all(|n| n.is_multiple_of(8))
}

/// Whether all tiles that norm rows or multiply gates fit into the memory of a workgroup.
fn all_tiles_fit(can: Abilities<'_>) -> bool {
    let Some(has) = can.matrices else { return false };
    let fits = |t: cooperative::Tile, norm| {
        t.divides(has) && t.shared_with(has, norm) <= can.workgroup_bytes as usize
    };
    let all = || cooperative::TILES.iter().chain(&cooperative::MANY);
    let with = |gated, norm| all().all(|(.., t)| fits(t.suited(gated, norm, has), norm));
    let norms = |t: &cooperative::Tile| t.norms(cooperative::WIDEST_NORM, has) && fits(*t, Normed::Layer);
    with(true, Normed::No)
        && with(false, Normed::Rms)
        && with(true, Normed::Rms)
        && cooperative::NORMING.iter().all(norms)
}

/// Most rows to which matmuls on cooperative matrices apply an RMS norm.
const NORM_ROWS: usize = 128;

/// Most rows to which the kernel for few rows applies one.
const NORM_FEW_ROWS: usize = 4;

/// Most rows to which it applies a layer norm.
const LAYER_NORM_ROWS: usize = 2;

/// Threads of a subgroup for the kernel of few rows, if it adds sums by shuffles.
fn vector_lanes(can: Abilities<'_>) -> Option<usize> {
    can.lanes.filter(|lanes| (8..=VECTOR_THREADS).contains(lanes))
}

/// Prefix of kernel names for a weight.
fn format_name(op: &Op, can: Abilities<'_>) -> &'static str {
    match element(op.weights()[0], can) {
        Element::F32 => "",
        Element::F16 => "f16-",
        Element::Bf16 => "bf16-",
        Element::Blocks(BlockFormat::Q8_0) => "q8_0-",
        Element::Blocks(BlockFormat::Q4_0) => "q4_0-",
        Element::Super(SuperFormat::Q6K) => "q6_k-",
        Element::Super(SuperFormat::Q5K) => "q5_k-",
        Element::Super(SuperFormat::Q4K) => "q4_k-",
    }
}

/// Name of the kernel for few rows and `n` columns.
fn vector_name(op: &Op, rows: usize, n: usize, can: Abilities<'_>) -> String {
    let rows = if rows == 1 { String::new() } else { format!("x{}", computed(rows)) };
    format!("{}gemv-{}{rows}", format_name(op, can), 4 * quads(n))
}

/// Names of the kernels of a matmul with everything fused into it, or of a convolution.
pub(super) fn name(op: &Op, inputs: &[&ValueInfo], fused: &Fused, can: Abilities<'_>) -> String {
    if is_narrow(op) {
        return "narrow".to_owned();
    }
    let s = sizes(op, inputs[0].shape.dims());
    let t = tile(s.m, s.n, s.k);
    let format = format_name(op, can);
    if s.is_few_rows(op, can) {
        let weights: Vec<&Weight> = op.weights().into_iter().take(1).chain(&fused.parts).collect();
        let columns = |weights: &[&Weight]| columns(weights.iter().copied(), fused.gated);
        let names = weights.chunks(PARTS).map(|weights| vector_name(op, s.m, columns(weights), can));
        return names.collect::<Vec<_>>().join(" + ");
    }
    if let Some((t, has)) = cooperative_tile(op, &s, fused, can) {
        let [bm, bn] = t.results(has);
        return format!("{format}cooperative-{bm}x{bn}");
    }
    format!("{format}gemm-{}x{}{}", t.bm, t.bn, if s.odd { "-odd" } else { "" })
}

/// Weight of the op, then of its parts; vectors of the epilogue, then of the norm or of Snake. A narrow
/// convolution reads its weight as a vector, before those.
pub(super) fn weights(op: &Op, fused: &Fused, can: Abilities<'_>) -> Wanted {
    let all = op.weights();
    if is_narrow(op) {
        return Wanted::vectors(all);
    }
    let norm = fused.norm.iter().flat_map(|norm| [Some(&norm.weight), norm.bias.as_ref()]).flatten();
    let snake = fused.snake.iter().flatten();
    let mut wanted = Wanted::vectors(all[1..].iter().copied().chain(norm).chain(snake).collect());
    wanted.matrices = [all[0]].into_iter().chain(&fused.parts).map(|w| (w.clone(), form(w, can))).collect();
    wanted
}

/// Weights of matmuls that may run as one.
pub(super) fn group(weights: &[Weight], can: Abilities<'_>) -> Vec<(Weight, Form)> {
    weights.iter().map(|w| (w.clone(), form(w, can))).collect()
}

fn epilogue(op: &Op) -> &Epilogue {
    match op {
        Op::MatMul { epilogue, .. } | Op::Conv1d { epilogue, .. } => epilogue,
        _ => unreachable!("called for products alone"),
    }
}

/// Defines for the element type in `kernels/weight.wgsl`.
pub(super) fn stored(v: Variant, element: Element) -> Variant {
    let is_blocks = matches!(element, Element::Blocks(_) | Element::Super(_));
    let has_nibbles = is_blocks && element != Element::Blocks(BlockFormat::Q8_0);
    let high_bits = if let Element::Super(format) = element { format.bits() as usize - 4 } else { 0 };
    v.flag("HALF", element.per_word() == 2)
        .flag("BF16", element == Element::Bf16)
        .flag("BLOCKS", is_blocks)
        .flag("ADDS", is_blocks && element.offset().is_none())
        .number("OFFSET", element.offset().map_or(0, usize::from))
        .number("PER_SCALE", element.per_scale())
        .flag("NIBBLES", has_nibbles)
        .number("ROWS_PER_WORD", if has_nibbles { 2 } else { 1 })
        .flag("HIGH", high_bits > 0)
        .flag("HIGH_OF_FOUR", high_bits == 2)
        .number("HIGH_BITS", high_bits)
        .number("HIGH_ROWS", 8 / high_bits.max(1))
        .number("HIGH_MASK", (1 << high_bits) - 1)
}

/// Kernel for a tile and a weight format, with everything fused into it; `unroll` unrolls the loop over a
/// slice. `conv` are the edges of a convolution.
pub(super) fn variant(
    t: Tile,
    element: Element,
    unroll: bool,
    odd: bool,
    conv: Option<Edges>,
    (e, snakes): (&Epilogue, bool),
) -> Variant {
    let v = Variant::new("matmul")
        .number("BM", t.bm)
        .number("BN", t.bn)
        .number("BK", t.bk)
        .number("TM", t.tm)
        .number("TN", t.tn)
        .number("TN4", t.tn / 4)
        .number("SPLIT", t.split)
        .flag("SPLITS", t.split > 1)
        .number("THREADS", t.group() * t.split)
        .number("A_TILE", t.split * t.bm * (t.bk / 4 + 1))
        .number("B_TILE", (t.split * t.bk * t.bn / 4).max(t.slots() * t.bm * t.bn / 4))
        .number("SLOTS", t.slots())
        .number("SHARE", (t.bm * t.bn / 4).div_ceil(t.group() * t.split))
        .number("A_LOADS", t.bm * t.bk / 4 / t.group())
        .number("B_LOADS", t.bk * t.bn / 4 / t.group())
        .flag("ODD", odd)
        .flag("PARTS", false)
        .number("AHEAD", t.ahead)
        .flag("AHEAD_SEVERAL", t.ahead > 1)
        .number("UNROLL", if unroll { t.bk / 4 } else { 1 })
        .flag("SNAKE", snakes)
        .flag("GATED", false)
        .flag("NORM", false)
        .flag("NORMS", false)
        .flag("LAYER_NORM", false);
    activation(stored(gathered(v, conv, e), element), e.activation.as_ref())
}

/// Defines for what is gathered and added in `kernels/product.wgsl`.
pub(super) fn gathered(v: Variant, conv: Option<Edges>, e: &Epilogue) -> Variant {
    v.flag("CONV", conv.is_some())
        .flag("HISTORY", conv == Some(Edges::History))
        .flag("ZERO", conv == Some(Edges::Zero))
        .flag("BIAS", e.bias.is_some())
        .flag("RESIDUAL", e.residual)
        .flag("HALF_OUT", false)
}

/// Whether `kernels/conv_narrow.wgsl` computes a convolution to one channel.
fn is_narrow(op: &Op) -> bool {
    match op {
        Op::Conv1d { weight, geometry, epilogue: e } => {
            let &[k, n] = weight.shape().dims() else { return false };
            n == 1 && (k / geometry.taps).is_multiple_of(4) && !e.residual
        }
        _ => false,
    }
}

/// Rows of a workgroup of `kernels/conv_narrow.wgsl`, and of the threads that share some.
const NARROW: [usize; 2] = [64, 8];

/// Kernel for convolutions to one channel.
pub(super) fn narrow_variant(edges: Edges, e: &Epilogue) -> Variant {
    let v = Variant::new("conv_narrow")
        .number("ROWS", NARROW[0])
        .number("OWN", NARROW[1])
        .flag("ODD", false)
        .flag("PARTS", false)
        .flag("SNAKE", false)
        .flag("GATED", false)
        .flag("NORM", false)
        .flag("NORMS", false)
        .flag("LAYER_NORM", false);
    activation(gathered(v, Some(edges), e), e.activation.as_ref())
}

/// Maximum matmuls per dispatch.
const PARTS: usize = 3;

/// Maximum rows of a matmul that reads its weight once for all of them, in registers.
const FEW_ROWS: usize = 16;
/// The same where cooperative matrices are faster for more rows. On an H100, matmuls of a frame of Qwen3-TTS
/// 0.6B in `f16` take 6.8 ms for four rows, 9.1 for eight and 13.4 for sixteen, and on cooperative matrices,
/// with the products of gates, 7.8, 8.0 and 8.0. Timestamps add some µs to each.
const FEW_ROWS_BESIDE_MATRICES: usize = 4;

/// Maximum rows of a matmul by a weight of the policy's format that does not use cooperative matrices.
fn few_rows(can: Abilities<'_>) -> usize {
    if can.matrices.is_some() { FEW_ROWS_BESIDE_MATRICES } else { FEW_ROWS }
}

/// Rows that the kernel for few rows computes, of which the first `rows` are stored.
fn computed(rows: usize) -> usize {
    rows.next_power_of_two()
}

/// Threads of its workgroups.
const VECTOR_THREADS: usize = 256;

/// Norm of the rows of a matmul.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Normed {
    #[default]
    No,
    Rms,
    Layer,
}

impl Normed {
    fn of(fused: &Fused) -> Normed {
        match &fused.norm {
            None => Normed::No,
            Some(norm) if norm.bias.is_none() => Normed::Rms,
            Some(_) => Normed::Layer,
        }
    }
}

/// Variant of the kernel for few rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Vector {
    pub rows: usize,
    /// See [`quads`].
    pub quads: usize,
    /// Groups of four terms that a thread reads at a time.
    pub unroll: usize,
    /// Element type of the weights.
    pub element: Element,
    /// Number of matmuls of the same row; with `gated` two, whose results are multiplied.
    pub parts: usize,
    pub gated: bool,
    pub norm: Normed,
    /// The number of columns is not a multiple of four.
    pub odd: bool,
    /// Threads of a subgroup, if all have as many.
    pub lanes: Option<usize>,
}

/// Groups of four terms that a thread reads at a time, for `n` columns of K terms; the same in each step.
/// With few workgroups, all weights should be on their way at once. With many, registers limit how many run
/// at a time. Measured on an H100 (`bench.rs`): gates of 1024 × 2 · 3072 in `f16` take 11.3 µs, with four
/// groups at a time 14.8; 3072 × 1024 in `q8_0` takes 9.1 µs with six groups, 9.6 with two.
pub(super) fn unroll([k, n]: [usize; 2], rows: usize, element: Element, gated: bool) -> usize {
    let most = match element {
        _ if gated => 1,
        _ if n > 4096 || rows > 4 || element == Element::F32 => 2,
        _ => 8,
    };
    let units = k.div_ceil(unit(element)).div_ceil(VECTOR_THREADS / quads(n));
    units.div_ceil(units.div_ceil(most))
}

/// Terms that a thread reads at once.
fn unit(element: Element) -> usize {
    if matches!(element, Element::Blocks(_) | Element::Super(_)) { 8 } else { 4 }
}

/// Kernel for few rows.
pub(super) fn vector_variant(what: Vector, e: &Epilogue) -> Variant {
    let rows = computed(what.rows);
    let together = rows.min(2);
    let rounds = what.lanes.map_or(0, |lanes| (lanes / what.quads).ilog2());
    let v = Variant::new("matvec")
        .number("FOURS", unit(what.element) / 4)
        .number("TOGETHER", together)
        .number("PASSES", rows / together)
        .flag("ONE_PASS", rows == together)
        .number("LANES", what.lanes.unwrap_or(0))
        .number("ROUNDS", rounds as usize)
        .number("UNROLL", what.unroll)
        .flag("NORM", what.norm == Normed::Rms)
        .flag("LAYER_NORM", what.norm == Normed::Layer)
        .flag("ODD", what.odd)
        .number("QUADS", what.quads)
        .number("MORE", what.parts - 1)
        .flag("SEVERAL", what.parts > 1 && !what.gated)
        .flag("GATED", what.gated)
        .flag("BIAS", e.bias.is_some())
        .flag("RESIDUAL", e.residual)
        .flag("EARLY_RESIDUAL", e.residual && rows == together && what.lanes.is_some() && !what.odd);
    activation(stored(v, what.element), e.activation.as_ref())
}

/// Fusions that the kernels for few rows support.
pub(super) fn fusions(can: Abilities<'_>) -> Fusions {
    let few = few_rows(can);
    let is_fast = on_policy_matrices(can) && all_tiles_fit(can);
    Fusions {
        matmul_rows: few,
        matmul_multiple: [4, 4],
        // A device without cooperative matrices gains nothing from joining many rows.
        many_rows: can.matrices.map(|_| ManyRows {
            least: few + 1,
            multiple: [4, 4],
            formats: &Precision::ALL,
        }),
        precision: can.policy.clone(),
        gated_rows: few,
        gated_multiple: is_fast.then_some([4, 4]),
        norm_multiple: Some([4, 4]),
        norm_rows: NORM_FEW_ROWS,
        layer_norm_rows: if vector_lanes(can).is_some() { LAYER_NORM_ROWS } else { 0 },
        many_norm_rows: is_fast.then_some([few + 1, NORM_ROWS]),
        many_layer_norms: can.matrices.filter(|_| is_fast).map(|has| LayerNorms {
            rows: cooperative::NORMED_ROWS,
            multiple: cooperative::NORMING[0].depth(has),
            widest: cooperative::WIDEST_NORM,
        }),
        snakes: true,
        ..Fusions::default()
    }
}

/// Total columns of the weights in a dispatch.
fn columns<'w>(weights: impl Iterator<Item = &'w Weight>, gated: bool) -> usize {
    let n: usize = weights.map(|w| w.shape().last()).sum();
    if gated { n / 2 } else { n }
}

/// Matmuls of few rows: of the step's op and its parts, whose results are contiguous.
fn vector_calls(o: &Operands<'_>, rows: usize, k: usize) -> Vec<Call> {
    let (op, fused) = (&o.step.node.op, &o.step.fused);
    let element = element(op.weights()[0], o.can);
    let weights: Vec<&Weight> = op.weights().into_iter().take(1).chain(&fused.parts).collect();
    let mut first = 0;
    let mut calls = vec![];
    for (chunk, weights) in weights.chunks(PARTS).enumerate() {
        // Only the first part has an epilogue.
        let e = if chunk == 0 { epilogue(op).clone() } else { Epilogue::default() };
        let bias = if e.bias.is_some() { o.weights.vector(0) } else { 0 };
        let slope = match e.activation {
            Some(Activation::PRelu(_)) => o.weights.vector(usize::from(e.bias.is_some())),
            _ => 0,
        };
        let mut params = Params::default()
            .place(o.place(0))
            .late_after(Late::Place(o.out()), first)
            .place(if e.residual { o.last() } else { o.out() })
            .number(bias)
            .number(slope)
            .number(k);
        let norms = op.weights().len() - 1;
        params = params.number(rows);
        params = match &fused.norm {
            Some(norm) => params
                .number(o.weights.vector(norms))
                .number(norm.bias.as_ref().map_or(0, |_| o.weights.vector(norms + 1)))
                .float(norm.eps),
            None => params.number(0).number(0).float(0.0),
        };
        let all = columns(weights.iter().copied(), fused.gated);
        let quads = quads(all);
        let mut groups = 0;
        for (i, weight) in weights.iter().enumerate() {
            let n = weight.shape().last();
            params = params
                .number(o.weights.matrix(chunk * PARTS + i) * element.places_per_word())
                .number(n)
                .number(n.next_multiple_of(PADDING[1]));
            groups += n.div_ceil(4 * quads);
            first += rows * n;
        }
        let (parts, gated) = (weights.len(), fused.gated);
        let norm = Normed::of(fused);
        let unroll = unroll([k, all], rows, element, gated);
        let lanes = vector_lanes(o.can);
        let odd = !all.is_multiple_of(4);
        let what = Vector { rows, quads, unroll, element, parts, gated, norm, odd, lanes };
        let variant = vector_variant(what, &e);
        let groups = if gated { groups / 2 } else { groups };
        calls.push(Call { variant, params, groups: [groups as u32, 1, 1], weights: o.weights.buffers() });
    }
    calls
}

/// Returns the dispatches of a matmul, mostly one.
pub(super) fn calls(o: &Operands<'_>) -> Vec<Call> {
    let op = &o.step.node.op;
    let s = sizes(op, o.shape(0).dims());
    if s.is_few_rows(op, o.can) {
        return vector_calls(o, s.m, s.k);
    }
    let cooperative = cooperative_tile(op, &s, &o.step.fused, o.can);
    let parts = if cooperative.is_some() { 0 } else { o.step.fused.parts.len() };
    (0..=parts).map(|part| call(o, part, cooperative)).collect()
}

/// Matmul by the weight of a part, 0 being the op's own, or on cooperative matrices by those of all parts.
fn call(o: &Operands<'_>, part: usize, cooperative: Option<(cooperative::Tile, Matrices)>) -> Call {
    let op = &o.step.node.op;
    let x = o.shape(0).dims();
    let parts = &o.step.fused.parts;
    let widths: Vec<usize> =
        op.weights()[..1].iter().copied().chain(parts).map(|w| w.shape().last()).collect();
    let s = Sizes { n: widths[part], ..sizes(op, x) };
    let mut t = tile(s.m, s.n, s.k);
    if o.can.software {
        // Read-ahead gains nothing there and multiplies the compile time of the kernel. Sums do not change.
        t.ahead = 1;
    }
    // Only the first part has an epilogue.
    let e = &if part == 0 { epilogue(op).clone() } else { Epilogue::default() };
    let element = element(op.weights()[0], o.can);
    let is_narrow = is_narrow(op);
    let weight = |part: usize| match is_narrow {
        true => o.weights.vector(0),
        false => o.weights.matrix(part) * element.places_per_word(),
    };
    let geometry = match op {
        Op::Conv1d { geometry, .. } => Some(geometry),
        _ => None,
    };
    let first = usize::from(is_narrow);
    let bias = if e.bias.is_some() { o.weights.vector(first) } else { 0 };
    let slope = match e.activation {
        Some(Activation::PRelu(_)) => o.weights.vector(first + usize::from(e.bias.is_some())),
        _ => 0,
    };
    let params = Params::default()
        .place(o.place(0))
        .late_after(Late::Place(o.out()), s.m * widths[..part].iter().sum::<usize>())
        .place(if e.residual { o.last() } else { o.out() })
        .number(weight(part))
        .number(bias)
        .number(slope)
        .number(s.m)
        .number(s.n)
        .number(s.k)
        .number(s.n.next_multiple_of(PADDING[1]));
    let params = match geometry {
        Some(g) => {
            let params = params.number(x[1]).number(x[2]).number(g.dilation).number(g.left);
            params.place(if g.has_history() { o.place(1) } else { Place::Nowhere })
        }
        None => params.number(1).number(1).number(1).number(0).number(0),
    };
    let conv = geometry.map(|g| g.edges);
    let rows = |bm: usize| s.m.div_ceil(bm) as u32;
    let weights = o.weights.buffers();
    if let (true, Some(edges)) = (is_narrow, conv) {
        return Call { variant: narrow_variant(edges, e), params, groups: flat(s.m, NARROW[0]), weights };
    }
    let fused = &o.step.fused;
    let (snakes, gated) = (fused.snake.is_some(), fused.gated);
    let after_epilogue = op.weights().len() - 1;
    let params = match snakes {
        true => [0, 1].into_iter().fold(params, |p, i| p.number(o.weights.vector(after_epilogue + i))),
        false => params,
    };
    let params = match &fused.norm {
        Some(norm) => params.number(o.weights.vector(after_epilogue)).float(norm.eps),
        None => params,
    };
    let params = match Normed::of(fused) {
        Normed::Layer => params.number(o.weights.vector(after_epilogue + 1)),
        _ => params,
    };
    let Some((t, has)) = cooperative else {
        let groups = [s.n.div_ceil(t.bn) as u32, rows(t.bm), 1];
        return Call {
            variant: variant(t, element, !o.can.software, s.odd, conv, (e, snakes)),
            params,
            groups,
            weights,
        };
    };
    let [bm, bn] = t.results(has);
    let across = if gated { (2 * s.n).div_ceil(bn) } else { widths.iter().map(|n| n.div_ceil(bn)).sum() };
    let groups = [across as u32, rows(bm), 1];
    let several = !parts.is_empty();
    let params = match several {
        true => (1..=MOST_PARTS).fold(params, |p, i| match widths.get(i) {
            Some(n) => p.number(weight(i)).number(*n),
            None => p.number(0).number(0),
        }),
        false => params,
    };
    let extras = Extras {
        parts: several && !gated,
        gated,
        norm: Normed::of(fused),
        snakes,
        half_out: o.out_type().is_compact(),
    };
    let variant = cooperative::variant((t, has), s.k, element, conv, extras, e);
    Call { variant, params, groups, weights }
}
