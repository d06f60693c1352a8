//! A plan as a list of kernel launches.
//!
//! Each step becomes a few [`Work`]s, mostly one. What they point to is only known when a session runs the plan, so
//! arguments name places, which [`Work::arguments`] turns into addresses.

use crate::driver::{DevicePointer, Facts};
use crate::kernels::{CLUSTER_ARCH, product_program};
use crate::weights::{Form, WeightBank};
use orate_graph::{
    Activation, AttentionMask, ConvGeometry, Epilogue, Factor, Norm, Op, Place, Plan, Precision,
    PrecisionPolicy, Scalar, Shape, Step, Value, ValueInfo, Weight,
};

/// Threads of a block of kernels without neighbours.
const THREADS: u32 = 256;

/// Widest rows of norms: what a block of 256 threads holds in registers, by fours and one by one.
const NORM_WIDTH: (usize, usize) = (4096, 1024);

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

/// What a pointer of a kernel points to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pointer {
    /// Nothing: an operand that is left out.
    Null,
    /// A value of the plan.
    Place(Place),
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
            Pointer::Null | Pointer::Place(Place::Nowhere) => 0,
            Pointer::Place(Place::Arena(offset)) => self.arena + offset as u64,
            Pointer::Place(Place::Buffer(i)) => self.buffers[i],
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
    if let Some(what) = not_built(op, inputs) {
        return Err(format!("{what} is not built for CUDA yet"));
    }
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
        Op::Attention { heads, relative, .. } => {
            let d = inputs[0].shape.last() / heads;
            if d > HEAD_WIDTH {
                return Err(format!("heads of {d} are wider than {HEAD_WIDTH}"));
            }
            if let Some(r) = relative.as_ref().filter(|r| r.window > WINDOW) {
                return Err(format!("a window of {} is wider than {WINDOW}", r.window));
            }
            let shared = attention_shared(d, relative.as_ref().map_or(0, |r| r.window));
            if shared + 1024 > facts.shared as usize {
                return Err(format!(
                    "heads of {d} need {shared} bytes of shared memory, {} are there",
                    facts.shared
                ));
            }
            "attention".to_owned()
        }
        Op::Permute { perm } if perm.len() > 4 => return Err(format!("{} axes are more than 4", perm.len())),
        Op::Permute { .. } => "permute".to_owned(),
        Op::Rotary { .. } => "rotary".to_owned(),
        Op::AddBias { .. } | Op::Affine { .. } | Op::Activate(_) | Op::Add | Op::AddRow => {
            "pointwise".to_owned()
        }
        Op::Combine { .. } | Op::Scale { .. } => "pointwise".to_owned(),
        Op::Embedding { .. } | Op::SelectRow { .. } => "gather".to_owned(),
        Op::Constant { .. } | Op::Concat { .. } | Op::Slice { .. } => "copy".to_owned(),
        Op::MaskRows => "mask".to_owned(),
        Op::Reshape => "none".to_owned(),
        Op::RotaryTable { .. } | Op::TimeEmbedding { .. } => "table".to_owned(),
        Op::RandomNormal { .. } => "philox".to_owned(),
        Op::EmbeddingSum { .. } | Op::RmsNorm { .. } | Op::Snake { .. } | Op::Mul | Op::RopeTable { .. } => {
            unreachable!("refused above")
        }
    })
}

/// What this backend lacks of `op`.
fn not_built(op: &Op, inputs: &[&ValueInfo]) -> Option<String> {
    let activation = match op {
        Op::MatMul { epilogue, .. } | Op::Conv1d { epilogue, .. } => epilogue.activation.as_ref(),
        Op::Activate(a) => Some(a),
        _ => None,
    };
    match (op, activation) {
        (_, Some(a @ (Activation::Silu | Activation::Clip))) => Some(format!("activation {}", a.name())),
        (Op::Conv1d { geometry: g, .. } | Op::DepthwiseConv1d { geometry: g, .. }, _) if g.history => {
            Some("a convolution behind a history".to_owned())
        }
        (Op::Attention { mask: AttentionMask::Window(_), .. }, _) => Some("a window of keys".to_owned()),
        (Op::Attention { .. }, _) if inputs[0].shape.last() != inputs[1].shape.last() => {
            Some("attention whose heads share keys".to_owned())
        }
        (
            Op::EmbeddingSum { .. } | Op::RmsNorm { .. } | Op::Snake { .. } | Op::Mul | Op::RopeTable { .. },
            _,
        ) => Some(format!("op {}", op.name())),
        _ => None,
    }
}

/// A plan's launches, each with the step it belongs to; copies of stored values belong to the step after the last.
pub(crate) fn lower(
    plan: &Plan,
    bank: &WeightBank,
    policy: &PrecisionPolicy,
    facts: &Facts,
) -> Vec<(usize, Work)> {
    let l = Lowering { plan, bank, policy, facts };
    let mut all = vec![];
    for (i, step) in plan.steps().iter().enumerate() {
        all.extend(l.step(step).into_iter().map(|w| (i, w)));
    }
    for &(buffer, v) in plan.copies() {
        let (from, to) = (plan.place(v), Place::Buffer(buffer));
        if from != to {
            let n = plan.info(v).shape.len();
            all.push((plan.steps().len(), copy(Pointer::Place(from), to, [1, n, 0, 0])));
        }
    }
    all
}

struct Lowering<'a> {
    plan: &'a Plan,
    bank: &'a WeightBank,
    policy: &'a PrecisionPolicy,
    facts: &'a Facts,
}

fn bits(x: f32) -> u32 {
    x.to_bits()
}

/// Product of the extents in front of and behind `axis`.
fn around(dims: &[usize], axis: usize) -> (usize, usize) {
    (dims[..axis].iter().product(), dims[axis + 1..].iter().product())
}

/// Moves `outer` blocks of `len` elements with these distances between blocks. Words 4 and 5 are where the first begins.
fn copy(from: Pointer, to: Place, [outer, len, x_stride, out_stride]: [usize; 4]) -> Work {
    Work {
        pointers: vec![from, Pointer::Place(to)],
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
        Some(Activation::Silu | Activation::Clip) => unreachable!("refused when the plan was made"),
    }
}

/// Bytes of shared memory of the attention kernel.
fn attention_shared(d: usize, window: usize) -> usize {
    let (warps, queries, keys) = (4, 2, if d <= 64 { 64 } else { 32 });
    // As `key_stride` there.
    let mut stride = (d + 3) / 8 * 8 + 4;
    if stride < d {
        stride += 8;
    }
    4 * (keys * stride + warps * queries * (stride + keys + 2 * window + 1) + keys * d)
}

/// How a product is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tiling {
    /// Rows of a block, in eights.
    tiles: usize,
    /// Blocks that share K.
    split: usize,
}

/// The cut with the least estimated time: rounds of blocks over the multiprocessors, each with its part of K and what
/// adding up costs.
fn tiling(rows: usize, k: usize, n: usize, choices: &[usize], facts: &Facts) -> Tiling {
    let depth = k.div_ceil(16);
    let splits: &[usize] = if facts.arch >= CLUSTER_ARCH { &[1, 2, 4, 8] } else { &[1] };
    let fits = |tiles: &usize| product_shared(*tiles) + 1024 <= facts.shared as usize;
    let mut best = (f64::INFINITY, Tiling { tiles: choices[0], split: 1 });
    for &tiles in choices.iter().filter(|t| fits(t)) {
        for &split in splits.iter().filter(|s| **s == 1 || **s * WARPS <= depth) {
            let blocks = rows.div_ceil(8 * tiles) * n.div_ceil(CHANNELS) * split;
            let at_once = facts.multiprocessors.max(1) as usize * if tiles <= 3 { 2 } else { 1 };
            let rounds = blocks.div_ceil(at_once) as f64;
            let steps = depth.div_ceil(split * WARPS) as f64;
            let join = if split > 1 { 1500.0 } else { 0.0 };
            let time =
                rounds * (steps * (156.0 * tiles as f64).max(500.0) + 1000.0 + 100.0 * tiles as f64 + join);
            if time < best.0 {
                best = (time, Tiling { tiles, split });
            }
        }
    }
    best.1
}

/// Bytes of shared memory of a product with `tiles` times eight rows.
fn product_shared(tiles: usize) -> usize {
    WARPS * 8 * tiles * STRIDE * 4
}

impl Lowering<'_> {
    fn shape(&self, v: Value) -> &Shape {
        &self.plan.info(v).shape
    }

    fn at(&self, v: Value) -> Pointer {
        Pointer::Place(self.plan.place(v))
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

    fn step(&self, step: &Step) -> Vec<Work> {
        let node = &step.node;
        let (out, shape) = (self.at(node.output), self.shape(node.output));
        let x = |i: usize| self.at(node.inputs[i]);
        let len = shape.len();
        if len == 0 {
            return vec![];
        }
        match &node.op {
            Op::Reshape => vec![],
            Op::EmbeddingSum { .. }
            | Op::RmsNorm { .. }
            | Op::Snake { .. }
            | Op::Mul
            | Op::RopeTable { .. } => unreachable!("refused when the plan was made"),
            Op::Embedding { table } => {
                let (rows, c) = (table.shape().dims()[0], table.shape().dims()[1]);
                vec![gather([self.dense(table), x(0), Pointer::Null, out], len, c, rows)]
            }
            Op::SelectRow { index } => {
                let rows = self.shape(node.inputs[0]).dims()[0];
                vec![gather([x(0), Pointer::Null, self.scalar(*index), out], len, len, rows)]
            }
            Op::Constant { weight } => {
                let n = weight.shape().len();
                vec![copy(self.dense(weight), self.plan.place(node.output), [len / n, n, 0, n])]
            }
            Op::MatMul { weight, epilogue } => vec![self.product(step, weight, epilogue, None)],
            Op::Conv1d { weight, epilogue, geometry } => {
                vec![self.product(step, weight, epilogue, Some(geometry))]
            }
            Op::DepthwiseConv1d { weight, bias, geometry, norm } => {
                vec![self.depthwise(step, weight, bias, geometry, norm.as_ref())]
            }
            Op::LayerNorm(n) => vec![self.layer_norm(step, n)],
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
            Op::Attention { heads, scale, mask, relative } => {
                let (q, k) = (self.shape(node.inputs[0]).dims(), self.shape(node.inputs[1]).dims());
                let (d, window) = (q[2] / heads, relative.as_ref().map_or(0, |r| r.window));
                let function = match d {
                    0..=32 => "attention_32",
                    33..=64 => "attention_64",
                    65..=128 => "attention_128",
                    _ => "attention_256",
                };
                let table = |w: Option<&Weight>| w.map_or(Pointer::Null, |w| self.dense(w));
                let mut words =
                    [*heads, d, q[1], k[1], k[0], window, usize::from(*mask == AttentionMask::Causal), 1]
                        .map(|x| x as u32)
                        .to_vec();
                words.push(bits(*scale));
                vec![Work {
                    program: "attention",
                    function,
                    grid: [q[1].div_ceil(8) as u32, *heads as u32, q[0] as u32],
                    threads: 128,
                    shared: attention_shared(d, window) as u32,
                    cluster: 1,
                    pointers: vec![
                        x(0),
                        x(1),
                        x(2),
                        node.inputs.get(3).map_or(Pointer::Null, |v| self.at(*v)),
                        table(relative.as_ref().map(|r| &r.key)),
                        table(relative.as_ref().map(|r| &r.value)),
                        Pointer::Null,
                        out,
                    ],
                    words,
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
            Op::Concat { axis } => self.concat(step, *axis),
            Op::Slice { axis, start, .. } => {
                let from = self.shape(node.inputs[0]).dims();
                let (outer, inner) = around(from, *axis);
                let (n, total) = (shape.dims()[*axis] * inner, from[*axis] * inner);
                let mut work = copy(x(0), self.plan.place(node.output), [outer, n, total, n]);
                work.words[4] = (start * inner) as u32;
                vec![work]
            }
            Op::Permute { perm } => vec![self.permute(step, perm)],
            Op::RandomNormal { seed, scale } => vec![Work {
                pointers: vec![self.scalar(*seed), out],
                words: vec![len as u32, bits(*scale)],
                ..Work::each("random", "random_normal", len.div_ceil(4))
            }],
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

    fn product(&self, step: &Step, weight: &Weight, e: &Epilogue, conv: Option<&ConvGeometry>) -> Work {
        let node = &step.node;
        let (input, out) = (self.shape(node.inputs[0]), self.shape(node.output));
        let (rows, k, n) = (out.rows(), weight.shape().dims()[0], out.last());
        let (time, channels, g) = match conv {
            Some(g) => (input.dims()[1], input.dims()[2], *g),
            None => (rows, k, ConvGeometry::symmetric(1, 1)),
        };
        let whole = channels.is_multiple_of(4);
        let choices: &[usize] = match (whole, conv) {
            (false, _) => &[5],
            (true, None) => &[1, 3, 5, 9],
            (true, Some(_)) => &[5, 9],
        };
        let t = tiling(rows, k, n, choices, self.facts);
        let function = match (whole, conv, t.tiles) {
            (false, _, _) => "matmul_5_odd",
            (true, Some(_), 5) => "matmul_5_conv",
            (true, Some(_), _) => "matmul_9_conv",
            (true, None, 1) => "matmul_1_dense",
            (true, None, 3) => "matmul_3_dense",
            (true, None, 5) => "matmul_5_dense",
            (true, None, _) => "matmul_9_dense",
        };
        let precision: Precision = self.policy.of(weight);
        let residual = if e.residual { node.inputs.last() } else { None };
        Work {
            program: product_program(precision),
            function,
            grid: [n.div_ceil(CHANNELS) as u32, rows.div_ceil(8 * t.tiles) as u32, t.split as u32],
            threads: 32 * WARPS as u32,
            shared: product_shared(t.tiles) as u32,
            cluster: t.split as u32,
            pointers: vec![
                self.at(node.inputs[0]),
                Pointer::Weight(self.bank.get(weight, Form::Packed(precision))),
                e.bias.as_ref().map_or(Pointer::Null, |b| self.dense(b)),
                self.slope(e.activation.as_ref()),
                residual.map_or(Pointer::Null, |v| self.at(*v)),
                Pointer::Null,
                Pointer::Null,
                self.at(node.output),
            ],
            words: vec![
                rows as u32,
                k as u32,
                n as u32,
                k.div_ceil(16) as u32,
                time as u32,
                channels as u32,
                g.dilation as u32,
                g.left as u32,
                activation_number(e.activation.as_ref()),
                0,
            ],
        }
    }

    /// Threads for a row of `c`, by fours if that is whole.
    fn row_threads(c: usize) -> (bool, u32) {
        let fours = c.is_multiple_of(4);
        let n = if fours { c / 4 } else { c };
        (fours, (n as u32).next_multiple_of(32).min(256))
    }

    fn layer_norm(&self, step: &Step, n: &Norm) -> Work {
        let shape = self.shape(step.node.output);
        let (fours, threads) = Self::row_threads(shape.last());
        Work {
            program: "layer_norm",
            function: if fours { "layer_norm_4" } else { "layer_norm_1" },
            grid: [shape.rows() as u32, 1, 1],
            threads,
            shared: 0,
            cluster: 1,
            pointers: vec![
                self.at(step.node.inputs[0]),
                self.dense(&n.weight),
                self.dense(&n.bias),
                self.at(step.node.output),
            ],
            words: vec![shape.last() as u32, bits(n.eps)],
        }
    }

    fn depthwise(
        &self,
        step: &Step,
        weight: &Weight,
        bias: &Weight,
        g: &ConvGeometry,
        norm: Option<&Norm>,
    ) -> Work {
        let shape = self.shape(step.node.output);
        let (fours, threads) = Self::row_threads(shape.last());
        let table = |w: Option<&Weight>| w.map_or(Pointer::Null, |w| self.dense(w));
        let sizes = [shape.dims()[1], shape.last(), g.taps, g.dilation, g.left];
        let mut words: Vec<u32> = sizes.map(|x| x as u32).to_vec();
        words.push(bits(norm.map_or(0.0, |n| n.eps)));
        Work {
            program: "depthwise_conv1d",
            function: if fours { "depthwise_4" } else { "depthwise_1" },
            grid: [shape.rows() as u32, 1, 1],
            threads,
            shared: 0,
            cluster: 1,
            pointers: vec![
                self.at(step.node.inputs[0]),
                self.dense(weight),
                self.dense(bias),
                table(norm.map(|n| &n.weight)),
                table(norm.map(|n| &n.bias)),
                self.at(step.node.output),
            ],
            words,
        }
    }

    fn concat(&self, step: &Step, axis: usize) -> Vec<Work> {
        let (node, place) = (&step.node, self.plan.place(step.node.output));
        let out = self.shape(node.output).dims();
        let (outer, inner) = around(out, axis);
        let mut at = 0;
        node.inputs
            .iter()
            .map(|v| {
                let n = self.shape(*v).dims()[axis] * inner;
                let mut work = copy(self.at(*v), place, [outer, n, n, out[axis] * inner]);
                work.words[5] = at as u32;
                at += n;
                work
            })
            .filter(|w| w.words[0] > 0)
            .collect()
    }

    fn permute(&self, step: &Step, perm: &[usize]) -> Work {
        let dims = self.shape(step.node.inputs[0]).dims();
        let (mut size, mut stride) = ([1; 4], [0; 4]);
        for (i, &axis) in perm.iter().enumerate() {
            size[4 - perm.len() + i] = dims[axis] as u32;
            stride[4 - perm.len() + i] = around(dims, axis).1 as u32;
        }
        let len = self.shape(step.node.output).len();
        Work {
            pointers: vec![self.at(step.node.inputs[0]), self.at(step.node.output)],
            words: [len as u32].into_iter().chain(size).chain(stride).collect(),
            ..Work::each("permute", "permute", len)
        }
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
