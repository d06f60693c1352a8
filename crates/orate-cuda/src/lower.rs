//! A plan as a list of kernel launches.
//!
//! Each step becomes a few [`Work`]s, mostly one. What they point to is only known when a session runs the plan, so
//! arguments name places, which [`Work::arguments`] turns into addresses.

use crate::driver::{DevicePointer, Facts};
use crate::kernels::{CLUSTER_ARCH, TALL, TENSOR_ARCH, product_program, tall_program};
use crate::weights::{Form, WeightBank, packed_bytes};
use orate_graph::joining::{At, Joined, Joins, Layout, TURNS, Turn, layout};
use orate_graph::{
    Activation, AttentionMask, ConvGeometry, DType, Epilogue, Factor, First, Norm, Op, Padding, Plan,
    Precision, PrecisionPolicy, Scalar, Shape, Value, ValueInfo, Weight,
};

/// Threads of a block of kernels without neighbours.
const THREADS: u32 = 256;

/// Widest rows of norms: what a block of 256 threads holds in registers, by fours and one by one.
const NORM_WIDTH: (usize, usize) = (4096, 1024);

/// Widest rows for which a thread has four channels.
const FAST_WIDTH: usize = 1024;

/// Widest rows of which a warp takes one.
const SHORT_WIDTH: usize = 512;

/// Widest head of `kernels/attention_decode.cu`, and blocks that share the keys of a head there.
const DECODED_WIDTH: usize = 128;
/// See [`DECODED_WIDTH`].
const DECODING_BLOCKS: usize = 8;

/// Widest head.
const HEAD_WIDTH: usize = 256;

/// Widest reach of relative positions.
const WINDOW: usize = 64;

/// Channels of a block, and warps that share its sums, in `kernels/matmul.cu`.
const CHANNELS: usize = 32;
/// See [`CHANNELS`].
const WARPS: usize = 8;
/// Floats from one row of partial sums to the next.
const STRIDE: usize = 36;

/// Numbers of K that `kernels/matmul.cu` multiplies together.
const DEPTH_OF_BLOCKS: usize = 16;

/// Channels and rows of a block in `kernels/matmul_tall.cu`, channels of x that are near together, and how often there is room for them.
const TALL_CHANNELS: usize = 96;
/// See [`TALL_CHANNELS`].
const TALL_ROWS: usize = 64;
/// See [`TALL_CHANNELS`].
const TALL_PIECE: usize = 32;
/// See [`TALL_CHANNELS`].
const TALL_STAGES: usize = 3;

/// Rows of products that are joined, at most: two of each utterance of a batch.
const MOST_JOINED: usize = 32;

/// Rows of products that are over when their weights are read, at most.
const FEW_ROWS: usize = 16;

/// What a pointer of a kernel points to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pointer {
    /// Nothing: an operand that is left out.
    Null,
    /// A value of the plan.
    Place(At),
    /// A weight, at an address that never changes.
    Weight(DevicePointer),
    /// A run-time scalar, by its number in the plan.
    Scalar(usize),
}

/// Addresses of one session.
pub(crate) struct Addresses {
    pub arena: DevicePointer,
    pub buffers: Vec<DevicePointer>,
    /// Those that the plan does not read are 0.
    pub scalars: Vec<DevicePointer>,
}

impl Addresses {
    fn of(&self, pointer: Pointer) -> DevicePointer {
        match pointer {
            Pointer::Null | Pointer::Place(At::Nowhere) => 0,
            Pointer::Place(At::Arena(offset)) => self.arena + offset as u64,
            Pointer::Place(At::Buffer(i, offset)) => self.buffers[i] + offset as u64,
            Pointer::Weight(at) => at,
            Pointer::Scalar(i) => self.scalars[i],
        }
    }
}

/// One launch of a kernel. The kernel takes a struct: pointers, then 32-bit words.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Work {
    pub program: &'static str,
    pub function: &'static str,
    pub grid: [u32; 3],
    pub threads: u32,
    pub shared: u32,
    pub cluster: u32,
    pub pointers: Vec<Pointer>,
    pub words: Vec<u32>,
    /// Of a product: bytes of its weights.
    pub weight_bytes: u32,
}

impl Work {
    /// The struct that the kernel takes.
    pub fn arguments(&self, addresses: &Addresses) -> Vec<u64> {
        let mut all: Vec<u64> = self.pointers.iter().map(|p| addresses.of(*p)).collect();
        all.extend(
            self.words.chunks(2).map(|w| u64::from(w[0]) | u64::from(w.get(1).copied().unwrap_or(0)) << 32),
        );
        all
    }

    /// `grid` blocks without neighbours for `len` elements.
    fn each(program: &'static str, function: &'static str, len: usize) -> Work {
        Work {
            program,
            function,
            grid: [(len as u32).div_ceil(THREADS).max(1), 1, 1],
            threads: THREADS,
            shared: 0,
            cluster: 1,
            pointers: vec![],
            words: vec![],
            weight_bytes: 0,
        }
    }

    /// Sets a scalar on the device.
    pub fn set_scalar(scalar: usize, value: u32) -> Work {
        Work {
            grid: [1, 1, 1],
            threads: 1,
            pointers: vec![Pointer::Scalar(scalar)],
            words: vec![value, 0],
            ..Work::each("copy", "set_scalar", 1)
        }
    }
}

/// The kernel that would run `op`, or why there is none.
pub(crate) fn kernel_name(
    op: &Op,
    inputs: &[&ValueInfo],
    policy: &PrecisionPolicy,
    facts: &Facts,
) -> Result<String, String> {
    if let Some(large) = inputs.iter().find(|i| i.shape.len() > i32::MAX as usize / 2) {
        return Err(format!("operand {} has more than 2³⁰ elements", large.shape));
    }
    let norm = |c: usize| {
        let widest = if c.is_multiple_of(4) { NORM_WIDTH.0 } else { NORM_WIDTH.1 };
        if c <= widest { Ok(()) } else { Err(format!("rows of {c} are wider than {widest}")) }
    };
    Ok(match op {
        Op::MatMul { weight, .. } | Op::Conv1d { weight, .. } => format!("{}-gemm", policy.of(weight)),
        Op::DepthwiseConv1d { norm: n, .. } => {
            norm(inputs[0].shape.last())?;
            if n.is_some() { "depthwise-norm" } else { "depthwise" }.to_owned()
        }
        Op::LayerNorm(_) => {
            norm(inputs[0].shape.last())?;
            "layer-norm".to_owned()
        }
        Op::RmsNorm { .. } => "rms-norm".to_owned(),
        Op::Snake { .. } => "snake".to_owned(),
        Op::Attention { heads, relative, .. } => {
            let d = inputs[0].shape.last() / heads;
            if d > HEAD_WIDTH {
                return Err(format!("heads of {d} are wider than {HEAD_WIDTH}"));
            }
            if let Some(r) = relative.as_ref().filter(|r| r.window > WINDOW) {
                return Err(format!("a window of {} is wider than {WINDOW}", r.window));
            }
            let dtype = inputs[1].dtype;
            let (_, keys) = attention_kernel(d, inputs[1].shape.dims()[1], dtype, facts.shared);
            let shared = attention_shared(d, keys, relative.as_ref().map(|r| r.window));
            if shared + 1024 > facts.shared as usize {
                return Err(format!(
                    "heads of {d} need {shared} bytes of shared memory, {} are there",
                    facts.shared
                ));
            }
            if dtype.is_compact() { format!("attention-{dtype}") } else { "attention".to_owned() }
        }
        Op::Permute { perm } if perm.len() > 4 => return Err(format!("{} axes are more than 4", perm.len())),
        Op::Permute { .. } => "permute".to_owned(),
        Op::Rotary { .. } => "rotary".to_owned(),
        Op::AddBias { .. }
        | Op::Affine { .. }
        | Op::Activate(_)
        | Op::Add
        | Op::Mul
        | Op::AddRow
        | Op::MulRow => "pointwise".to_owned(),
        Op::Combine { .. } | Op::Scale { .. } => "pointwise".to_owned(),
        Op::Embedding { .. } | Op::EmbeddingSum { .. } | Op::SelectRow { .. } | Op::RowAt => {
            "gather".to_owned()
        }
        Op::Constant { .. } | Op::Concat { .. } | Op::Slice { .. } => "copy".to_owned(),
        Op::MaskRows => "mask".to_owned(),
        Op::Increment { .. } => "increment".to_owned(),
        Op::WriteRows { .. } if inputs[0].dtype.is_compact() => format!("write-{}", inputs[0].dtype),
        Op::WriteRows { .. } => "write".to_owned(),
        Op::Mark => "mark".to_owned(),
        Op::Sample { .. } => {
            let (ids, shared) = (inputs[0].shape.last(), sample_shared(inputs[0].shape.last()));
            if shared + 1024 > facts.shared as usize {
                return Err(format!(
                    "{ids} ids need {shared} bytes of shared memory, {} are there",
                    facts.shared
                ));
            }
            "sample".to_owned()
        }
        Op::Reshape => "none".to_owned(),
        Op::Pad { .. } => "pad".to_owned(),
        Op::Statistics { .. } => "statistics".to_owned(),
        Op::ResidualCodes { codebooks } => {
            let (width, most) = (codebooks.shape().last(), (facts.shared as usize).saturating_sub(2048) / 4);
            if width > most {
                return Err(format!("entries of {width} are wider than {most}"));
            }
            "residual-codes".to_owned()
        }
        Op::RotaryTable { .. } | Op::RopeTable { .. } | Op::TimeEmbedding { .. } => "table".to_owned(),
        Op::RandomNormal { .. } => "philox".to_owned(),
    })
}

/// A plan's launches.
pub(crate) struct Lowered {
    /// Each with the step it belongs to; copies of stored values belong to the step after the last.
    pub works: Vec<(usize, Work)>,
    /// Size of the memory for temporaries, which are not where the plan puts them.
    pub arena_bytes: usize,
}

/// Lowers a plan whose weights are in `bank`.
pub(crate) fn lower(plan: &Plan, bank: &WeightBank, policy: &PrecisionPolicy, facts: &Facts) -> Lowered {
    let follows = |a: &Weight, b: &Weight| bank.follows(a, b, policy);
    // Numbers with a scale for many of them are not taken apart.
    let is_in_blocks = matches!(policy.precision, Precision::Q8_0 | Precision::Q4_0);
    let joins = Joins {
        products: &follows,
        rows_of_products: MOST_JOINED,
        rows: true,
        queries: true,
        norms: &|w| w.shape().dims()[0].is_multiple_of(DEPTH_OF_BLOCKS),
        rows_of_gates: if is_in_blocks { 0 } else { FEW_ROWS },
        caches: &|dtype, d| dtype != DType::Q8_0 || d.is_multiple_of(32),
    };
    let layout = layout(plan, &joins);
    let l = Lowering { plan, bank, policy, facts, layout };
    let mut works = vec![];
    for joined in &l.layout.steps {
        works.extend(l.step(joined).into_iter().map(|w| (joined.step, w)));
    }
    announce(&mut works);
    for &(buffer, v) in plan.copies() {
        let (from, to) = (l.layout.at(v), At::Buffer(buffer, 0));
        if from != to {
            let n = plan.info(v).dtype.bytes_of(&plan.info(v).shape) / 4;
            works.push((plan.steps().len(), copy(Pointer::Place(from), Pointer::Place(to), [1, n, 0, 0])));
        }
    }
    Lowered { works, arena_bytes: l.layout.arena_bytes }
}

/// Tells each product where the weights of the second product behind it are, for it to bring them near: a network's
/// weights are more than the cache holds, and each product alone would wait for its own. Behind the last comes the first,
/// as plans are repeated.
fn announce(works: &mut [(usize, Work)]) {
    let products: Vec<usize> =
        (0..works.len()).filter(|i| works[*i].1.program.starts_with("matmul")).collect();
    for (i, product) in products.iter().enumerate() {
        let next = &works[products[(i + 2) % products.len()]].1;
        let (weights, bytes) = (next.pointers[1], next.weight_bytes);
        let work = &mut works[*product].1;
        work.pointers[8] = weights;
        work.words[10] = bytes;
    }
}

struct Lowering<'a> {
    plan: &'a Plan,
    bank: &'a WeightBank,
    policy: &'a PrecisionPolicy,
    facts: &'a Facts,
    layout: Layout,
}

fn bits(x: f32) -> u32 {
    x.to_bits()
}

/// Product of the extents in front of and behind `axis`.
fn around(dims: &[usize], axis: usize) -> (usize, usize) {
    (dims[..axis].iter().product(), dims[axis + 1..].iter().product())
}

/// Moves `outer` blocks of `len` elements with these distances between blocks. Words 4 and 5 are where the first begins.
fn copy(from: Pointer, to: Pointer, [outer, len, x_stride, out_stride]: [usize; 4]) -> Work {
    Work {
        pointers: vec![from, to],
        words: [outer * len, len, x_stride, out_stride, 0, 0].map(|x| x as u32).to_vec(),
        ..Work::each("copy", "copy", outer * len)
    }
}

/// An activation's number in `kernels/common.cuh`.
fn activation_number(a: Option<&Activation>) -> u32 {
    match a {
        None => 0,
        Some(Activation::Relu) => 1,
        Some(Activation::PRelu(_)) => 2,
        Some(Activation::Gelu) => 3,
        Some(Activation::Mish) => 4,
        Some(Activation::Tanh) => 5,
        Some(Activation::Exp) => 6,
        Some(Activation::Silu) => 7,
        Some(Activation::Clip) => 8,
        Some(Activation::Sigmoid) => 9,
        Some(Activation::Elu) => 10,
    }
}

/// Number of a type of keys and values, as `kernels/cache_rows.cuh` has it.
fn cache_type(dtype: DType) -> u32 {
    match dtype {
        DType::F32 | DType::I32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::Q8_0 => 3,
    }
}

/// Queries of a block of the attention kernel.
const QUERIES: usize = 4;

/// The attention kernel for heads of `d` and `keys` keys with so much shared memory, and how many keys it looks at
/// together.
fn attention_kernel(d: usize, keys: usize, dtype: DType, shared: u32) -> (&'static str, usize) {
    match (d, keys) {
        (0..=128, _) if dtype.is_compact() => ("attention_128_32", 32),
        (0..=32, 0..=64) => ("attention_32_64", 64),
        (0..=32, _) => ("attention_32_128", 128),
        (33..=64, 0..=64) => ("attention_64_64", 64),
        (33..=64, _) => ("attention_64_96", 96),
        (65..=128, 33..) if shared > 80 << 10 => ("attention_128_64", 64),
        (65..=128, _) => ("attention_128_32", 32),
        _ => ("attention_256_32", 32),
    }
}

/// Bytes of shared memory of the attention kernel.
fn attention_shared(d: usize, keys: usize, window: Option<usize>) -> usize {
    // As `key_stride` there.
    let mut stride = (d + 3) / 8 * 8 + 4;
    if stride < d {
        stride += 8;
    }
    let relative = window.map_or(0, |w| (2 * w + 1) * 2 * stride + QUERIES * (2 * w + 4));
    4 * ((2 * keys + QUERIES) * stride + QUERIES * keys + relative)
}

/// Bytes of shared memory that drawing from `ids` logits takes: them, and room to sort.
fn sample_shared(ids: usize) -> usize {
    8 * ids.next_power_of_two() + 4 * ids
}

/// How a product is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tiling {
    /// Rows of a block, in eights.
    tiles: usize,
    /// Blocks that share K.
    split: usize,
}

/// The cut with the least estimated time. A product of few rows is over when its weights are read, once for all rows, which a
/// block for each multiprocessor does best: `tests::cuts_of_products` prints 4.2 µs for 1024 × 6144 in bf16 with 192 blocks, 6.7 with 384.
fn tiling(rows: usize, k: usize, n: usize, choices: &[usize], facts: &Facts) -> Tiling {
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

/// Microseconds of a product on an H200, from times that `tests::cuts_of_products` prints. Waves of blocks run over the
/// multiprocessors, each with its part of K and what adding up costs. Two blocks of a multiprocessor slow each other down.
fn estimate(t: Tiling, rows: usize, depth: usize, n: usize, facts: &Facts) -> f64 {
    let (fixed, step, together) = match t.tiles {
        1 => (0.6, 0.29, 2),
        2 => (0.7, 0.45, 2),
        3 => (0.8, 0.60, 2),
        5 => (1.4, 0.85, 1),
        7 => (1.9, 1.05, 1),
        _ => (2.4, 1.25, 1),
    };
    let blocks = rows.div_ceil(8 * t.tiles) * n.div_ceil(CHANNELS) * t.split;
    // Clusters of four do not fill the groups of multiprocessors that they must stay in.
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
    // In a network weights come from memory: what is not fetched at the start is waited for.
    let cold = 0.2 * (steps - 2.0).max(0.0);
    cold + 1.1
        + (each / together) as f64 * (wave(together) + join)
        + wave(each % together)
        + if each < together { join } else { 0.0 }
}

/// The same for `kernels/matmul_tall.cu`. A multiprocessor that has several blocks does a little more with each of its cycles.
fn estimate_tall(
    precision: Precision,
    sequences: usize,
    time: usize,
    k: usize,
    n: usize,
    facts: &Facts,
) -> f64 {
    // Of 16 of K, in a block alone and in one of several.
    let (alone, among) = match precision {
        Precision::F32 => (0.55, 0.46),
        Precision::Tf32 => (0.26, 0.155),
        _ => (0.19, 0.105),
    };
    let blocks = sequences * time.div_ceil(TALL_ROWS) * n.div_ceil(TALL_CHANNELS);
    let each = blocks.div_ceil(facts.multiprocessors.max(1) as usize) as f64;
    6.0 + each + (k / 16) as f64 * f64::max(alone, each * among)
}

/// Bytes of shared memory of a tall product: rows of x with what its taps reach, then sums.
fn tall_shared(reach: usize) -> usize {
    let x = (TALL_ROWS + reach) * TALL_PIECE * TALL_STAGES;
    4 * x.max(TALL_ROWS * STRIDE * (TALL_CHANNELS / CHANNELS))
}

/// Bytes of shared memory of a product: partial sums of all warps, and what the blocks of a cluster give each other.
fn product_shared(t: Tiling) -> usize {
    let rows = 8 * t.tiles;
    let inbox = if t.split > 1 { rows * 8 } else { 0 };
    WARPS * rows * STRIDE * 4 + inbox * 16
}

impl Lowering<'_> {
    fn shape(&self, v: Value) -> &Shape {
        &self.plan.info(v).shape
    }

    fn at(&self, v: Value) -> Pointer {
        Pointer::Place(self.layout.at(v))
    }

    fn dense(&self, w: &Weight) -> Pointer {
        Pointer::Weight(self.bank.get(w, Form::Dense))
    }

    fn slope(&self, a: Option<&Activation>) -> Pointer {
        match a {
            Some(Activation::PRelu(w)) => self.dense(w),
            _ => Pointer::Null,
        }
    }

    fn scalar(&self, s: Scalar) -> Pointer {
        Pointer::Scalar(s.index())
    }

    fn op(&self, node: &Joined) -> &Op {
        &self.plan.steps()[node.step].node.op
    }

    fn step(&self, node: &Joined) -> Vec<Work> {
        let (out, shape) = (self.at(node.output), self.shape(node.output));
        let x = |i: usize| self.at(node.inputs[i]);
        let len = shape.len();
        if len == 0 {
            return vec![];
        }
        if !node.turns.is_empty() {
            return vec![self.heads(node)];
        }
        match self.op(node) {
            Op::Reshape => vec![],
            Op::Pad { padding, before, .. } => {
                let kind = match padding {
                    Padding::Zero => 0,
                    Padding::Repeat => 1,
                    Padding::Reflect => 2,
                };
                let (time, padded) = (self.shape(node.inputs[0]).dims()[1], shape.dims()[1]);
                vec![Work {
                    pointers: vec![x(0), out],
                    words: [len, shape.last(), time, padded, *before, kind].map(|x| x as u32).to_vec(),
                    ..Work::each("pad", "pad", len)
                }]
            }
            Op::Statistics { floor } => {
                let d = self.shape(node.inputs[0]).dims();
                vec![Work {
                    grid: [d[2].div_ceil(32) as u32, d[0] as u32, 1],
                    pointers: vec![x(0), node.inputs.get(1).map_or(Pointer::Null, |v| self.at(*v)), out],
                    words: vec![d[2] as u32, d[1] as u32, bits(*floor)],
                    ..Work::each("statistics", "statistics", 1)
                }]
            }
            Op::ResidualCodes { codebooks } => {
                let d = codebooks.shape().dims();
                vec![Work {
                    grid: [shape.rows() as u32, 1, 1],
                    shared: 4 * d[2] as u32,
                    pointers: vec![x(0), self.dense(codebooks), out],
                    words: d.iter().map(|x| *x as u32).collect(),
                    ..Work::each("residual_codes", "residual_codes", 1)
                }]
            }
            Op::Embedding { table } => {
                let (rows, c) = (table.shape().dims()[0], table.shape().dims()[1]);
                vec![gather([self.dense(table), x(0), Pointer::Null, out], len, c, rows)]
            }
            Op::EmbeddingSum { tables, first } => {
                let (&[count, rows, c], ids) = (tables.shape().dims(), self.shape(node.inputs[0]).last())
                else {
                    unreachable!("three axes by shape inference")
                };
                vec![Work {
                    pointers: vec![self.dense(tables), x(0), out],
                    words: [len, c, rows, count, ids, *first].map(|x| x as u32).to_vec(),
                    ..Work::each("gather", "embedding_sum", len)
                }]
            }
            Op::RowAt => {
                let (rows, c) = (self.shape(node.inputs[0]).dims()[1], shape.last());
                vec![Work {
                    pointers: vec![x(0), x(1), out],
                    words: [len, c, rows].map(|x| x as u32).to_vec(),
                    ..Work::each("gather", "row_at", len)
                }]
            }
            Op::Increment { by } => vec![Work {
                pointers: vec![x(0), out],
                words: vec![len as u32, *by as u32],
                ..Work::each("copy", "increment", len)
            }],
            Op::WriteRows { first } => {
                let (n, rows) = (shape.dims()[1], self.shape(node.inputs[1]));
                let (first, from) = self.first(node, *first);
                let dtype = self.plan.info(node.output).dtype;
                let mut words =
                    [rows.len(), n, rows.dims()[1], shape.last(), from].map(|x| x as u32).to_vec();
                let (program, function, threads) = match dtype {
                    DType::F32 | DType::I32 => ("copy", "write_rows", rows.len()),
                    DType::F16 | DType::BF16 => ("write_cache", "write_cache", rows.len() / 2),
                    DType::Q8_0 => ("write_cache", "write_cache", rows.len() / 4),
                };
                if dtype.is_compact() {
                    words.push(cache_type(dtype));
                }
                vec![Work {
                    pointers: vec![out, x(1), first],
                    words,
                    ..Work::each(program, function, threads)
                }]
            }
            Op::Mark => {
                let d = shape.dims();
                vec![Work {
                    pointers: vec![out, x(1)],
                    words: [d[0], d[1]].map(|x| x as u32).to_vec(),
                    ..Work::each("copy", "mark", d[0])
                }]
            }
            Op::Sample { codebook, controls } => {
                let (batch, ids) = (len, self.shape(node.inputs[0]).last());
                let [first, end, least] = controls.map_or([ids; 3], |c| [c.first, c.end, c.min_draws]);
                let seen = if node.inputs.len() == 5 { x(4) } else { Pointer::Null };
                vec![Work {
                    grid: [batch as u32, 1, 1],
                    shared: sample_shared(ids) as u32,
                    pointers: vec![x(0), x(1), x(2), x(3), seen, out],
                    words: [ids, first, end, least, *codebook as usize, ids.next_power_of_two()]
                        .map(|x| x as u32)
                        .to_vec(),
                    ..Work::each("sample", "sample", 1)
                }]
            }
            Op::SelectRow { index } => {
                let rows = self.shape(node.inputs[0]).dims()[0];
                vec![gather([x(0), Pointer::Null, self.scalar(*index), out], len, len, rows)]
            }
            Op::Constant { weight } => {
                let n = weight.shape().len();
                vec![copy(self.dense(weight), out, [len / n, n, 0, n])]
            }
            Op::MatMul { weight, epilogue } => vec![self.product(node, weight, epilogue, None)],
            Op::Conv1d { weight, epilogue, geometry } => {
                vec![self.product(node, weight, epilogue, Some(geometry))]
            }
            Op::DepthwiseConv1d { weight, bias, geometry, norm } => {
                vec![self.depthwise(node, weight, bias, geometry, norm.as_ref())]
            }
            Op::LayerNorm(n) => vec![self.layer_norm(node, n)],
            Op::RmsNorm { weight, eps } => vec![self.rms_norm(node, weight, *eps)],
            Op::Snake { frequency, gain } => {
                let (function, each) =
                    if shape.last().is_multiple_of(4) { ("snake_4", 4) } else { ("snake_1", 1) };
                vec![Work {
                    pointers: vec![x(0), self.dense(frequency), self.dense(gain), out],
                    words: vec![len as u32, shape.last() as u32],
                    ..Work::each("snake", function, len / each)
                }]
            }
            Op::AddBias { bias } => {
                vec![pointwise(0, [x(0), self.dense(bias), Pointer::Null, out], shape, shape.last())]
            }
            Op::Affine { scale, shift } => {
                vec![pointwise(0, [x(0), self.dense(shift), self.dense(scale), out], shape, shape.last())]
            }
            Op::Activate(a) => {
                let mut work = pointwise(1, [x(0), Pointer::Null, self.slope(Some(a)), out], shape, 1);
                work.words[4] = activation_number(Some(a));
                vec![work]
            }
            Op::Add => vec![self.combine([x(0), x(1), out], shape, [Factor::Const(1.0); 2])],
            Op::MulRow => vec![pointwise(6, [x(0), x(1), Pointer::Null, out], shape, shape.last())],
            Op::Mul => vec![pointwise(5, [x(0), x(1), Pointer::Null, out], shape, 1)],
            Op::Combine { a, b } => vec![self.combine([x(0), x(1), out], shape, [*a, *b])],
            Op::Scale { factor } => {
                vec![self.combine([x(0), Pointer::Null, out], shape, [*factor, Factor::Const(0.0)])]
            }
            Op::AddRow => {
                let mut work = pointwise(3, [x(0), x(1), Pointer::Null, out], shape, shape.last());
                work.words[5] = 1;
                vec![work]
            }
            Op::MaskRows => {
                let mut work = pointwise(4, [x(0), Pointer::Null, Pointer::Null, out], shape, shape.last());
                work.pointers[5] = x(1);
                work.words[3] = shape.dims()[1] as u32;
                vec![work]
            }
            Op::Attention { heads, scale, mask: AttentionMask::Cached(first), .. }
                if self.is_decoding(node, *heads) =>
            {
                vec![self.decode(node, *heads, *scale, *first)]
            }
            Op::Attention { heads, scale, mask, relative } => {
                let (q, k) = (self.shape(node.inputs[0]).dims(), self.shape(node.inputs[1]).dims());
                let (d, window) = (q[2] / heads, relative.as_ref().map_or(0, |r| r.window));
                let dtype = self.plan.info(node.inputs[1]).dtype;
                let (function, keys) = attention_kernel(d, k[1], dtype, self.facts.shared);
                let table = |w: Option<&Weight>| w.map_or(Pointer::Null, |w| self.dense(w));
                let tables = node.table.map_or(1, |t| self.shape(t).dims()[0]);
                let mut words =
                    [*heads, d, q[1], k[1], k[0], window, usize::from(*mask != AttentionMask::None), tables]
                        .map(|x| x as u32)
                        .to_vec();
                words.push(bits(*scale));
                let (seen, shift) = match *mask {
                    AttentionMask::None => (0, 0),
                    AttentionMask::Causal => (0, k[1] - q[1]),
                    AttentionMask::Window(seen) | AttentionMask::Stream(seen) => (seen, k[1] - q[1]),
                    AttentionMask::Cached(First::Const(first)) => (0, first),
                    AttentionMask::Cached(First::Operand) => (0, 0),
                };
                let stream = usize::from(matches!(mask, AttentionMask::Stream(_)));
                words.extend([seen, q[2] / k[2], shift, stream].map(|x| x as u32));
                let last = node.inputs.get(3).map_or(Pointer::Null, |v| self.at(*v));
                let (lens, first) =
                    if mask.has_positions() { (Pointer::Null, last) } else { (last, Pointer::Null) };
                vec![Work {
                    program: match dtype {
                        DType::F16 => "attention-f16",
                        DType::BF16 => "attention-bf16",
                        DType::Q8_0 => "attention-q8_0",
                        DType::F32 | DType::I32 => "attention",
                    },
                    function,
                    grid: [q[1].div_ceil(QUERIES) as u32, *heads as u32, q[0] as u32],
                    threads: 128,
                    shared: attention_shared(d, keys, relative.as_ref().map(|r| r.window)) as u32,
                    cluster: 1,
                    pointers: vec![
                        x(0),
                        x(1),
                        x(2),
                        lens,
                        table(relative.as_ref().map(|r| &r.key)),
                        table(relative.as_ref().map(|r| &r.value)),
                        node.table.map_or(Pointer::Null, |t| self.at(t)),
                        first,
                        out,
                    ],
                    words,
                    weight_bytes: 0,
                }]
            }
            Op::RotaryTable { theta } => {
                let d = shape.dims();
                vec![Work {
                    pointers: vec![
                        self.dense(theta),
                        node.inputs.first().map_or(Pointer::Null, |v| self.at(*v)),
                        out,
                    ],
                    words: [d[0], d[2], d[3]].map(|x| x as u32).to_vec(),
                    ..Work::each("rotary", "rotary_table", len / 2)
                }]
            }
            Op::RopeTable { base, first } => {
                let (d, base, (first, from)) = (shape.dims(), base.to_bits(), self.first(node, *first));
                let mut words: Vec<u32> = [d[0], d[2], d[3], from].map(|x| x as u32).to_vec();
                words.extend([base as u32, (base >> 32) as u32]);
                vec![Work {
                    pointers: vec![first, out],
                    words,
                    ..Work::each("rotary", "rope_table", len / 2)
                }]
            }
            Op::Rotary { .. } => {
                let t = self.shape(node.inputs[1]).dims();
                vec![Work {
                    pointers: vec![x(0), x(1), out],
                    words: [len, t[2], shape.last(), t[3], t[0]].map(|x| x as u32).to_vec(),
                    ..Work::each("rotary", "rotary", len / 2)
                }]
            }
            Op::TimeEmbedding { dim } => vec![Work {
                pointers: vec![x(0), out],
                words: [len / dim, *dim].map(|x| x as u32).to_vec(),
                ..Work::each("rotary", "time_embedding", len / 2)
            }],
            Op::Concat { axis } => self.concat(node, *axis),
            Op::Slice { axis, start, .. } => {
                let from = self.shape(node.inputs[0]).dims();
                let (outer, inner) = around(from, *axis);
                let (n, total) = (shape.dims()[*axis] * inner, from[*axis] * inner);
                let mut work = copy(x(0), out, [outer, n, total, n]);
                work.words[4] = (start * inner) as u32;
                vec![work]
            }
            Op::Permute { perm } => vec![self.permute(node, perm)],
            Op::RandomNormal { seed, scale } => vec![Work {
                pointers: vec![self.scalar(*seed), out],
                words: vec![len as u32, bits(*scale)],
                ..Work::each("random", "random_normal", len.div_ceil(4))
            }],
        }
    }

    /// Where rows begin: a place on the device, or a number.
    fn first(&self, node: &Joined, first: First) -> (Pointer, usize) {
        match first {
            First::Const(at) => (Pointer::Null, at),
            First::Operand => (node.inputs.last().map_or(Pointer::Null, |v| self.at(*v)), 0),
        }
    }

    fn combine(&self, [x, y, out]: [Pointer; 3], shape: &Shape, factors: [Factor; 2]) -> Work {
        let mut work = pointwise(2, [x, y, Pointer::Null, out], shape, 1);
        for (i, f) in factors.into_iter().enumerate() {
            match f {
                Factor::Const(x) => work.words[6 + i] = bits(x),
                Factor::Scalar(s) => work.pointers[3 + i] = self.scalar(s),
            }
        }
        work
    }

    fn product(&self, node: &Joined, weight: &Weight, e: &Epilogue, conv: Option<&ConvGeometry>) -> Work {
        let (input, out) = (self.shape(node.inputs[0]), self.shape(node.output));
        let (rows, k, own) = (out.rows(), weight.shape().dims()[0], out.last());
        let width = |step: &usize| self.shape(self.plan.steps()[*step].node.output).last();
        let n = own + node.parts.iter().map(width).sum::<usize>();
        let (time, channels, g) = match conv {
            Some(g) => (input.dims()[1], input.dims()[2], *g),
            None => (rows, k, ConvGeometry::symmetric(1, 1)),
        };
        let left = if conv.is_some() { g.left } else { node.parts.first().map_or(0, width) };
        let whole = channels.is_multiple_of(4);
        let choices: &[usize] = match (whole, conv) {
            (false, _) => &[5],
            (true, None) => &[1, 3, 5, 9],
            (true, Some(g)) if g.history && self.facts.arch < TENSOR_ARCH => &[5],
            (true, Some(g)) if g.history => &[5, 7],
            (true, Some(_)) => &[5, 9],
        };
        let t = tiling(rows, k, n, choices, self.facts);
        let source = match (whole, conv) {
            (false, _) => Source::Odd,
            (true, Some(g)) if g.history => Source::Past,
            (true, Some(_)) => Source::Conv,
            (true, None) => Source::Dense,
        };
        let precision: Precision = self.policy.of(weight);
        let residual = if e.residual { node.inputs.last() } else { None };
        let norm = node.norm.and_then(|step| match &self.plan.steps()[step].node.op {
            Op::RmsNorm { weight, eps } => Some((weight, *eps)),
            _ => None,
        });
        let pointers = [
            self.at(node.inputs[0]),
            Pointer::Weight(self.bank.get(weight, Form::Packed(precision))),
            e.bias.as_ref().map_or(Pointer::Null, |b| self.dense(b)),
            self.slope(e.activation.as_ref()),
            residual.map_or(Pointer::Null, |v| self.at(*v)),
            node.row.map_or(Pointer::Null, |(table, _)| self.at(table)),
            node.row.map_or(Pointer::Null, |(_, index)| self.scalar(index)),
            self.at(node.output),
            Pointer::Null,
            if g.history { self.at(node.inputs[1]) } else { Pointer::Null },
            norm.map_or(Pointer::Null, |(weight, _)| self.dense(weight)),
        ];
        let sizes = [rows, k, n, time, channels, g.dilation, left];
        let table_rows = node.row.map_or(0, |(table, _)| self.shape(table).dims()[0]);
        let eps = norm.map_or(0.0, |(_, eps)| eps);
        let activation = activation_number(e.activation.as_ref());
        let numbers = [activation, table_rows as u32, own as u32, u32::from(node.gated), bits(eps)];
        let work = product(precision, source, t, pointers, sizes, numbers);
        if node.parts.is_empty() { tall(work, precision, t, sizes, self.facts) } else { work }
    }

    /// Threads for a row of `c`, by fours if that is whole.
    fn row_threads(c: usize) -> (bool, u32) {
        let fours = c.is_multiple_of(4);
        let n = if fours { c / 4 } else { c };
        (fours, (n as u32).next_multiple_of(32).min(256))
    }

    fn layer_norm(&self, node: &Joined, n: &Norm) -> Work {
        let shape = self.shape(node.output);
        let (fours, threads) = Self::row_threads(shape.last());
        Work {
            program: "layer_norm",
            function: match fours {
                true if shape.last() <= FAST_WIDTH => "layer_norm_row",
                true => "layer_norm_4",
                false => "layer_norm_1",
            },
            grid: [shape.rows() as u32, 1, 1],
            threads,
            shared: 0,
            cluster: 1,
            pointers: vec![
                self.at(node.inputs[0]),
                self.dense(&n.weight),
                self.dense(&n.bias),
                self.at(node.output),
            ],
            words: vec![shape.last() as u32, bits(n.eps)],
            weight_bytes: 0,
        }
    }

    /// Whether attention has one query, and heads that `kernels/attention_decode.cu` takes.
    fn is_decoding(&self, node: &Joined, heads: usize) -> bool {
        let (q, k) = (self.shape(node.inputs[0]).dims(), self.shape(node.inputs[1]).dims());
        let d = q[2] / heads;
        let group = q[2] / k[2];
        q[1] == 1
            && d.is_multiple_of(4)
            && d <= DECODED_WIDTH
            && [1, 2, 4].contains(&group)
            && node.table.is_none()
    }

    fn decode(&self, node: &Joined, heads: usize, scale: f32, first: First) -> Work {
        let (q, k) = (self.shape(node.inputs[0]).dims(), self.shape(node.inputs[1]).dims());
        let group = q[2] / k[2];
        let clusters = q[0] * heads / group;
        let places = 2 * self.facts.multiprocessors as usize;
        let fits = |blocks: &usize| clusters * blocks <= places;
        let blocks = match self.facts.arch {
            // Of many heads each has fewer blocks, so that all run at once.
            CLUSTER_ARCH.. => [DECODING_BLOCKS, 4, 2].into_iter().find(fits).unwrap_or(1),
            _ => 1,
        };
        let (first, at) = self.first(node, first);
        let mut words = [heads, q[2] / heads, k[1], k[0], at].map(|x| x as u32).to_vec();
        words.push(bits(scale));
        Work {
            program: match self.plan.info(node.inputs[1]).dtype {
                DType::F16 => "attention_decode-f16",
                DType::BF16 => "attention_decode-bf16",
                DType::Q8_0 => "attention_decode-q8_0",
                DType::F32 | DType::I32 => "attention_decode",
            },
            function: match group {
                1 => "decode_1",
                2 => "decode_2",
                _ => "decode_4",
            },
            grid: [clusters as u32, 1, blocks as u32],
            threads: 256,
            shared: (4 * 132 * group * (WARPS + blocks)) as u32,
            cluster: blocks as u32,
            pointers: vec![
                self.at(node.inputs[0]),
                self.at(node.inputs[1]),
                self.at(node.inputs[2]),
                first,
                self.at(node.output),
            ],
            words,
            weight_bytes: 0,
        }
    }

    fn heads(&self, node: &Joined) -> Work {
        let turn = |i: usize| node.turns.get(i);
        let pointers = |of: &dyn Fn(&Turn) -> Pointer| -> Vec<Pointer> {
            (0..TURNS).map(|i| turn(i).map_or(Pointer::Null, of)).collect()
        };
        let words =
            |of: &dyn Fn(&Turn) -> u32| -> Vec<u32> { (0..TURNS).map(|i| turn(i).map_or(0, of)).collect() };
        let norm = |t: &Turn| match t.norm.map(|step| &self.plan.steps()[step].node.op) {
            Some(Op::RmsNorm { weight, eps }) => Some((self.dense(weight), *eps)),
            _ => None,
        };
        // Where rows are written: the operand with their number, or the number; and the rows of the state.
        let write = |t: &Turn| match t.write.map(|step| &self.plan.steps()[step].node) {
            Some(step) => {
                let (first, from) = match step.op {
                    Op::WriteRows { first: First::Const(at) } => (Pointer::Null, at),
                    _ => (step.inputs.last().map_or(Pointer::Null, |v| self.at(*v)), 0),
                };
                (first, from, self.shape(t.out).dims()[1])
            }
            None => (Pointer::Null, 0, 0),
        };
        let first = &node.turns[0];
        let rows = first.write.map_or(first.out, |step| self.plan.steps()[step].node.inputs[1]);
        let (rows, d) = (self.shape(rows), first.heads.1);
        let most = node.turns.iter().map(|t| t.heads.0).max().unwrap_or(1);
        let all = [
            pointers(&|t| self.at(t.x)),
            pointers(&|t| norm(t).map_or(Pointer::Null, |n| n.0)),
            pointers(&|t| t.table.map_or(Pointer::Null, |v| self.at(v))),
            pointers(&|t| write(t).0),
            pointers(&|t| self.at(t.out)),
        ];
        let mut numbers = [
            words(&|t| t.heads.0 as u32),
            words(&|t| write(t).2 as u32),
            words(&|t| write(t).1 as u32),
            words(&|t| t.table.map_or(1, |v| self.shape(v).dims()[0] as u32)),
            words(&|t| norm(t).map_or(0, |n| bits(n.1))),
        ]
        .concat();
        // What writes to several states writes to them alike.
        let state = node.turns.iter().find(|t| t.write.is_some());
        let cache = state.map_or(0, |t| cache_type(self.plan.info(t.out).dtype));
        numbers.extend([rows.rows() as u32, rows.dims()[1] as u32, d as u32, cache]);
        Work {
            grid: [(rows.rows() * most).div_ceil(8) as u32, node.turns.len() as u32, 1],
            pointers: all.concat(),
            words: numbers,
            ..Work::each("heads", "heads", 1)
        }
    }

    fn rms_norm(&self, node: &Joined, weight: &Weight, eps: f32) -> Work {
        let shape = self.shape(node.output);
        let (rows, c) = (shape.rows(), shape.last());
        let (function, per_block) = match (c <= SHORT_WIDTH, c.is_multiple_of(4)) {
            (true, true) => ("rms_norm_warps_4", 8),
            (true, false) => ("rms_norm_warps_1", 8),
            (false, true) if c <= FAST_WIDTH => ("rms_norm_row_1", 1),
            (false, true) if c <= NORM_WIDTH.0 => ("rms_norm_row_4", 1),
            (false, true) => ("rms_norm_4", 1),
            (false, false) => ("rms_norm_1", 1),
        };
        Work {
            grid: [rows.div_ceil(per_block) as u32, 1, 1],
            pointers: vec![self.at(node.inputs[0]), self.dense(weight), self.at(node.output)],
            words: vec![rows as u32, c as u32, bits(eps)],
            ..Work::each("rms_norm", function, 1)
        }
    }

    fn depthwise(
        &self,
        node: &Joined,
        weight: &Weight,
        bias: &Weight,
        g: &ConvGeometry,
        norm: Option<&Norm>,
    ) -> Work {
        let shape = self.shape(node.output);
        let (fours, threads) = Self::row_threads(shape.last());
        let table = |w: Option<&Weight>| w.map_or(Pointer::Null, |w| self.dense(w));
        let sizes = [shape.dims()[1], shape.last(), g.taps, g.dilation, g.left];
        let mut words: Vec<u32> = sizes.map(|x| x as u32).to_vec();
        words.push(bits(norm.map_or(0.0, |n| n.eps)));
        Work {
            program: "depthwise_conv1d",
            function: match (fours, g.taps) {
                (true, 5) if norm.is_some() && shape.last() <= FAST_WIDTH => "depthwise_norm_5",
                (true, 7) if norm.is_some() && shape.last() <= FAST_WIDTH => "depthwise_norm_7",
                (true, _) => "depthwise_4",
                (false, _) => "depthwise_1",
            },
            grid: [shape.rows() as u32, 1, 1],
            threads,
            shared: 0,
            cluster: 1,
            pointers: vec![
                self.at(node.inputs[0]),
                self.dense(weight),
                self.dense(bias),
                table(norm.map(|n| &n.weight)),
                table(norm.map(|n| &n.bias)),
                if g.history { self.at(node.inputs[1]) } else { Pointer::Null },
                self.at(node.output),
            ],
            words,
            weight_bytes: 0,
        }
    }

    fn concat(&self, node: &Joined, axis: usize) -> Vec<Work> {
        let out = self.shape(node.output).dims();
        let (outer, inner) = around(out, axis);
        let mut at = 0;
        node.inputs
            .iter()
            .map(|v| {
                let n = self.shape(*v).dims()[axis] * inner;
                let mut work = copy(self.at(*v), self.at(node.output), [outer, n, n, out[axis] * inner]);
                work.words[5] = at as u32;
                at += n;
                work
            })
            .filter(|w| w.words[0] > 0)
            .collect()
    }

    fn permute(&self, node: &Joined, perm: &[usize]) -> Work {
        let dims = self.shape(node.inputs[0]).dims();
        let (mut size, mut stride) = ([1; 4], [0; 4]);
        for (i, &axis) in perm.iter().enumerate() {
            size[4 - perm.len() + i] = dims[axis] as u32;
            stride[4 - perm.len() + i] = around(dims, axis).1 as u32;
        }
        let len = self.shape(node.output).len();
        Work {
            pointers: vec![self.at(node.inputs[0]), self.at(node.output)],
            words: [len as u32].into_iter().chain(size).chain(stride).collect(),
            ..Work::each("permute", "permute", len)
        }
    }
}

/// How `kernels/matmul.cu` reads x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Dense,
    Conv,
    Past,
    Odd,
}

/// A product cut as `t` says. `sizes` are rows, K, N, time, channels, dilation and left, or for rows the
/// channels of the second part; `first` are those of the first.
fn product(
    precision: Precision,
    source: Source,
    t: Tiling,
    pointers: [Pointer; 11],
    sizes: [usize; 7],
    [activation, table_rows, first, gated, eps]: [u32; 5],
) -> Work {
    let [rows, k, n, time, channels, dilation, left] = sizes;
    let function = match (source, t.tiles) {
        (Source::Odd, _) => "matmul_5_odd",
        (Source::Past, 5) => "matmul_5_past",
        (Source::Past, _) => "matmul_7_past",
        (Source::Conv, 5) => "matmul_5_conv",
        (Source::Conv, _) => "matmul_9_conv",
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
        words: sizes.into_iter().chain([activation, table_rows, 0, first, gated, eps]).collect(),
        weight_bytes: packed_bytes(k, n, precision) as u32,
    }
}

/// A product of `sizes`, as for [`product`], by `kernels/matmul_tall.cu` where that is there and faster than the cut `t`.
fn tall(work: Work, precision: Precision, t: Tiling, sizes: [usize; 7], facts: &Facts) -> Work {
    let [rows, k, n, time, channels, dilation, _] = sizes;
    let Some(program) = tall_program(precision) else { return work };
    let (taps, sequences) = (k / channels.max(1), rows / time.max(1));
    let shared = tall_shared(taps.saturating_sub(1) * dilation);
    let fits = channels.is_multiple_of(TALL_PIECE)
        && facts.arch >= TENSOR_ARCH
        && shared + 1024 <= facts.shared as usize;
    // Those estimates are of f32.
    let part = match precision {
        Precision::F32 => 1.0,
        Precision::Tf32 => 0.8,
        _ => 0.62,
    };
    let others = part * estimate(t, rows, k.div_ceil(16), n, facts);
    if !fits || estimate_tall(precision, sequences, time, k, n, facts) >= others {
        return work;
    }
    Work {
        program,
        function: TALL,
        grid: [n.div_ceil(TALL_CHANNELS) as u32, (sequences * time.div_ceil(TALL_ROWS)) as u32, 1],
        threads: 32 * (TALL_CHANNELS / CHANNELS) as u32,
        shared: shared as u32,
        cluster: 1,
        ..work
    }
}

/// Rows by ids or a scalar: table, ids, scalar and output.
fn gather(pointers: [Pointer; 4], len: usize, c: usize, rows: usize) -> Work {
    Work {
        pointers: pointers.to_vec(),
        words: [len, c, rows].map(|x| x as u32).to_vec(),
        ..Work::each("gather", "gather", len)
    }
}

/// Work without neighbours on x, y and scale; `c` is the width of a row.
fn pointwise(kind: u32, [x, y, scale, out]: [Pointer; 4], shape: &Shape, c: usize) -> Work {
    Work {
        pointers: vec![x, y, scale, Pointer::Null, Pointer::Null, Pointer::Null, out],
        words: vec![kind, shape.len() as u32, c as u32, 1, 0, 0, bits(1.0), bits(1.0)],
        ..Work::each("elementwise", "pointwise", shape.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::CudaDevice;
    use crate::driver::{DeviceBuffer, Event, Launch, Stream};
    use orate_graph::{DType, Norm, PrecisionPolicy};
    use orate_testing::{NOT_BUILT_ON_GPUS, op_cases};

    fn facts(arch: u32) -> Facts {
        Facts {
            name: "test".to_owned(),
            card: None,
            memory: 8 << 30,
            arch,
            multiprocessors: 132,
            shared: match arch {
                75 => 64 << 10,
                90 => 227 << 10,
                _ => 99 << 10,
            },
            integrated: false,
        }
    }

    #[test]
    fn every_op_case_has_a_kernel_on_every_architecture() {
        for arch in [75, 80, 86, 90, 120] {
            for case in op_cases() {
                for node in case.graph.nodes() {
                    let inputs: Vec<&ValueInfo> = node.inputs.iter().map(|v| case.graph.info(*v)).collect();
                    let name = kernel_name(&node.op, &inputs, &PrecisionPolicy::default(), &facts(arch));
                    // The list must hold for the GPU itself: tests/ops.rs.
                    match name {
                        Ok(name) => assert!(!name.is_empty(), "{} on sm_{arch}", case.name),
                        Err(why) => {
                            let known = NOT_BUILT_ON_GPUS.iter().any(|n| why.contains(n));
                            assert!(known, "{} on sm_{arch}: {why}", case.name);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn products_say_in_which_format_they_are_computed() {
        let op =
            |name: &str| Op::MatMul { weight: Weight::named(name, [8, 8]), epilogue: Epilogue::default() };
        let x = ValueInfo { dtype: DType::F32, shape: [1, 8].into(), buffer: None };
        let policy =
            PrecisionPolicy { precision: Precision::Bf16, deny: vec!["head.*".into()], ..Default::default() };
        let name = |n: &str| kernel_name(&op(n), &[&x], &policy, &facts(90));
        assert_eq!(name("body.w").as_deref(), Ok("bf16-gemm"));
        assert_eq!(name("head.w").as_deref(), Ok("f32-gemm"));
    }

    #[test]
    fn what_is_too_wide_is_refused_with_a_reason() {
        let info = |shape: Vec<usize>| ValueInfo { dtype: DType::F32, shape: shape.into(), buffer: None };
        let refused = |op: Op, shapes: [Vec<usize>; 3], word: &str| {
            let inputs = shapes.map(info);
            let inputs: Vec<&ValueInfo> = inputs.iter().collect();
            let e = kernel_name(&op, &inputs, &PrecisionPolicy::default(), &facts(90)).expect_err("too wide");
            assert!(e.contains(word), "{e}");
        };
        let v = |c: usize| Weight::named("w", [c]);
        let norm = |c: usize| Op::LayerNorm(Norm { weight: v(c), bias: v(c), eps: 1e-6 });
        refused(norm(4100), [vec![2, 4100], vec![], vec![]], "4096");
        refused(norm(1025), [vec![2, 1025], vec![], vec![]], "1024");
        let attention = Op::Attention { heads: 1, scale: 1.0, mask: AttentionMask::None, relative: None };
        refused(attention, [vec![1, 2, 300], vec![1, 2, 300], vec![1, 2, 300]], "256");
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

    #[test]
    fn many_rows_share_operands() {
        let chosen = |precision, arch, sizes: [usize; 7]| {
            let facts = facts(arch);
            let [rows, k, n, ..] = sizes;
            let t = tiling(rows, k, n, &[5, 9], &facts);
            let work = product(precision, Source::Conv, t, [Pointer::Null; 11], sizes, [0; 5]);
            tall(work, precision, t, sizes, &facts)
        };
        // Two sequences of 6000 rows of 32 channels, seven taps; as in tests/ops.rs.
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

    /// Times every cut of the products that matter, to see how good the estimate is.
    #[test]
    #[ignore = "needs an NVIDIA GPU; prints times for those who tune"]
    fn cuts_of_products() {
        let policy = PrecisionPolicy::uniform(Precision::Bf16);
        let device = CudaDevice::new(0, policy, None).expect("a GPU and NVRTC");
        let core = device.core();
        let context = &core.context;
        let stream = Stream::new(context).expect("a stream");
        let buffers: Vec<DeviceBuffer> =
            [16, 1 << 9, 16, 16].map(|mb| DeviceBuffer::new(context, mb << 20).expect("room")).into();
        for b in &buffers {
            // SAFETY: just allocated.
            unsafe { stream.clear(b.pointer(), b.bytes()).expect("clears") };
        }
        let at = |i: usize| Pointer::Weight(buffers[i].pointer());
        let addresses = Addresses { arena: 0, buffers: vec![], scalars: vec![] };
        for (precision, rows, k, n) in [
            (Precision::Bf16, 1, 1024, 2048),
            (Precision::Bf16, 1, 1024, 4096),
            (Precision::Bf16, 1, 1024, 6144),
            (Precision::Bf16, 1, 2048, 1024),
            (Precision::Bf16, 1, 3072, 1024),
            (Precision::Bf16, 4, 1024, 6144),
            (Precision::Bf16, 16, 1024, 2048),
            (Precision::Bf16, 16, 1024, 4096),
            (Precision::Bf16, 16, 1024, 6144),
            (Precision::Bf16, 16, 2048, 1024),
            (Precision::Bf16, 16, 3072, 1024),
            (Precision::Bf16, 32, 1024, 6144),
            (Precision::F32, 72, 512, 1024),
            (Precision::F32, 72, 1024, 512),
            (Precision::F32, 72, 512, 2048),
            (Precision::F32, 72, 2048, 512),
            (Precision::F32, 144, 512, 2048),
            (Precision::F32, 144, 2048, 512),
            (Precision::F32, 72, 512, 256),
            (Precision::F32, 72, 256, 512),
            (Precision::F32, 80, 256, 256),
            (Precision::F32, 80, 256, 1024),
            (Precision::F32, 80, 1024, 256),
            (Precision::F32, 81, 64, 256),
            (Precision::F32, 81, 256, 64),
            (Precision::F32, 432, 512, 2048),
            (Precision::F32, 432, 2048, 512),
        ] {
            let mut all = vec![];
            for tiles in [1, 2, 3, 5, 9] {
                for split in [1, 2, 4] {
                    let t = Tiling { tiles, split };
                    if product_shared(t) + 1024 > context.facts.shared as usize
                        || (split * WARPS > k / 16 && split > 1)
                    {
                        continue;
                    }
                    let pointers = [
                        at(0),
                        at(1),
                        at(2),
                        Pointer::Null,
                        at(2),
                        Pointer::Null,
                        Pointer::Null,
                        at(3),
                        Pointer::Null,
                        Pointer::Null,
                        Pointer::Null,
                    ];
                    let sizes = [rows, k, n, rows, k, 1, 0];
                    let work = product(precision, Source::Dense, t, pointers, sizes, [0, 0, n as u32, 0, 0]);
                    core.kernels.load(context, work.program, work.function).expect("loads");
                    let launch = Launch {
                        function: core.kernels.get(work.program, work.function),
                        grid: work.grid,
                        threads: work.threads,
                        shared: work.shared,
                        cluster: work.cluster,
                        early: context.facts.arch >= CLUSTER_ARCH,
                    };
                    // Each launch has weights of its own, which come from memory, as in a network.
                    let weights = |i: u64| Pointer::Weight(buffers[1].pointer() + (i % 128) * (4 << 20));
                    let arguments: Vec<Vec<u64>> = (0..128)
                        .map(|i| {
                            let mut work = work.clone();
                            (work.pointers[1], work.pointers[8]) = (weights(i), weights(i + 2));
                            work.words[10] = work.weight_bytes;
                            work.arguments(&addresses)
                        })
                        .collect();
                    let graph = stream.capture(|| {
                        // SAFETY: the buffers hold the largest operands.
                        arguments.iter().try_for_each(|a| unsafe { stream.start(&launch, a) })
                    });
                    let graph = graph.expect("records");
                    let (begin, end) =
                        (Event::new(context).expect("an event"), Event::new(context).expect("an event"));
                    let mut best = f64::INFINITY;
                    for _ in 0..4 {
                        begin.record(&stream).expect("records");
                        stream.launch(&graph).expect("runs");
                        end.record(&stream).expect("records");
                        best = best.min(end.seconds_since(&begin).expect("ran") / 128.0 * 1e6);
                    }
                    let microseconds = estimate(t, rows, k.div_ceil(16), n, &context.facts);
                    all.push((best, microseconds, t));
                }
            }
            all.sort_by(|a, b| a.0.total_cmp(&b.0));
            let chosen = tiling(rows, k, n, &[1, 3, 5, 9], &context.facts);
            print!("{precision} {rows}x{k}x{n}:");
            for (i, (time, estimate, t)) in all.iter().enumerate() {
                if i < 8 || *t == chosen {
                    let mark = if *t == chosen { "*" } else { "" };
                    print!("  {}{mark}/{} {time:.2} ({estimate:.1})", t.tiles, t.split);
                }
            }
            println!();
        }
    }
}
