//! A plan bound to weights: a list of calls for the thread team.

use crate::kernels::activation::Activation;
use crate::kernels::attention::{Attention, Cached, Mask, Relative, Sequence};
use crate::kernels::depthwise_conv1d::{DepthwiseConv, Frames};
use crate::kernels::layer_norm::LayerNorm;
use crate::kernels::matmul::{Epilogue, Rows, Taps, blocks, matmul, scratch_len};
use crate::kernels::residual_codes::{Codebooks, residual_codes};
use crate::kernels::{
    cache_rows, copy, elementwise, gather, pad, permute, random, rms_norm, rotary, sample, snake, statistics,
};
use crate::memory::CpuMemory;
use crate::weights::{self, Core, WeightBank};
use orate_graph::{
    Activation as GraphActivation, AttentionMask, BufferKind, ConvGeometry, DType, DeviceError,
    Epilogue as GraphEpilogue, Executable, Factor, First, Memory, NO_ID, Norm, Op, Place, Plan, Shape, Step,
    ValueInfo,
};
use std::sync::Arc;
use std::time::Instant;

type Dense = Arc<Vec<f32>>;

/// A step with its weights at hand.
enum Call {
    Embedding {
        table: weights::Table,
        channels: usize,
    },
    Constant {
        weight: Dense,
    },
    MatMul {
        weight: weights::Factor,
        epilogue: OwnedEpilogue,
        conv: Option<ConvGeometry>,
    },
    Depthwise {
        weight: Dense,
        bias: Dense,
        geometry: ConvGeometry,
        norm: Option<OwnedNorm>,
    },
    LayerNorm(OwnedNorm),
    RmsNorm {
        weight: Dense,
    },
    Snake {
        frequency: Dense,
        gain: Dense,
    },
    EmbeddingSum {
        tables: Dense,
        rows: usize,
    },
    ResidualCodes {
        codebooks: Dense,
        entries: usize,
    },
    AddBias {
        bias: Dense,
    },
    Affine {
        scale: Dense,
        shift: Dense,
    },
    Activate(Activation),
    Attention {
        relative: Option<(Dense, Dense)>,
    },
    RotaryTable {
        theta: Vec<f64>,
    },
    RopeTable {
        frequencies: Vec<f64>,
    },
    /// Everything that the op itself describes.
    Plain,
}

struct OwnedNorm {
    weight: Dense,
    bias: Dense,
    eps: f32,
}

impl OwnedNorm {
    fn new(n: &Norm, bank: &WeightBank) -> Self {
        OwnedNorm { weight: bank.dense(&n.weight), bias: bank.dense(&n.bias), eps: n.eps }
    }

    fn get(&self) -> LayerNorm<'_> {
        LayerNorm { weight: &self.weight, bias: &self.bias, eps: self.eps }
    }
}

struct OwnedEpilogue {
    bias: Option<Dense>,
    activation: Option<Activation>,
}

impl OwnedEpilogue {
    fn new(e: &GraphEpilogue, bank: &WeightBank) -> Self {
        OwnedEpilogue {
            bias: e.bias.as_ref().map(|b| bank.dense(b)),
            activation: e.activation.as_ref().map(|a| activation(a, bank)),
        }
    }
}

fn activation(a: &GraphActivation, bank: &WeightBank) -> Activation {
    a.map(|slope| bank.dense(slope)[0])
}

/// See [`Executable`].
pub(crate) struct CpuExecutable {
    core: Core,
    plan: Plan,
    calls: Vec<Call>,
    scratch: usize,
}

impl CpuExecutable {
    pub(crate) fn new(core: Core, plan: Plan, bank: &WeightBank) -> Self {
        let mut calls = Vec::with_capacity(plan.steps().len());
        let mut scratch = 0;
        for step in plan.steps() {
            let call = bind(&core, &step.node.op, &plan.info(step.node.output).shape, bank);
            scratch = scratch.max(scratch_of(&core, &plan, step, &call));
            calls.push(call);
        }
        CpuExecutable { core, plan, calls, scratch }
    }

    /// Makes the buffers that the plan writes, checks those it reads, and notes where each begins.
    fn bind_buffers(&self, m: &mut CpuMemory) -> Result<(), DeviceError> {
        let bases = std::mem::take(&mut m.bases);
        let mut bases = bases;
        bases.clear();
        for b in self.plan.buffers() {
            if b.kind == BufferKind::Output {
                m.ensure(&b.name, b.dtype, &b.shape);
            }
            match m.buffers.get(&b.name) {
                Some(s) if s.shape == b.shape && s.dtype == b.dtype => bases.push(s.block.pointer()),
                other => {
                    return Err(DeviceError::Buffer {
                        name: b.name.clone(),
                        plan: self.plan.name().to_owned(),
                        got: other
                            .map_or("nothing was written".to_owned(), |s| format!("{} {}", s.dtype, s.shape)),
                        needed: format!("{} {}", b.dtype, b.shape),
                    });
                }
            }
        }
        m.bases = bases;
        m.arena.resize(self.plan.arena_bytes() / 4);
        m.scratch.resize(self.scratch);
        Ok(())
    }

    fn run_steps(&self, memory: &mut dyn Memory, mut after: impl FnMut(usize)) -> Result<(), DeviceError> {
        let mixed = |got: &str| DeviceError::Mixed {
            plan: self.plan.name().to_owned(),
            made_for: self.plan.device().to_owned(),
            got: got.to_owned(),
        };
        if !memory.as_any().is::<CpuMemory>() {
            return Err(mixed(memory.device()));
        }
        let m = memory.as_any().downcast_mut::<CpuMemory>().expect("checked above");
        if !Arc::ptr_eq(&m.device, &self.core.name) {
            return Err(mixed("another CPU device"));
        }
        self.core.team.home().check(self.plan.device())?;
        self.bind_buffers(m)?;
        m.counters.submissions += 1;
        let view = View { plan: &self.plan, memory: m };
        for (i, (step, call)) in self.plan.steps().iter().zip(&self.calls).enumerate() {
            // SAFETY: `bind_buffers` made every place that the plan names, and the memory plan keeps a step's
            // output apart from its inputs.
            unsafe { self.execute(&view, i, step, call)? };
            after(i);
        }
        for &(buffer, v) in self.plan.copies() {
            let (from, to) = (view.pointer(self.plan.place(v)), view.memory.bases[buffer]);
            let n = words_of(self.plan.info(v));
            if from.cast_const() != to.cast_const() {
                // SAFETY: both hold `n` words; buffers and arena are separate blocks, and a buffer is only
                // copied onto another one.
                unsafe { std::ptr::copy_nonoverlapping(from, to, n) };
            }
        }
        Ok(())
    }

    /// # Safety
    /// All places of the plan exist in `view.memory`, and nobody else uses them.
    unsafe fn execute(
        &self,
        view: &View<'_>,
        index: usize,
        step: &Step,
        call: &Call,
    ) -> Result<(), DeviceError> {
        let (isa, team) = (self.core.isa, &*self.core.team);
        let node = &step.node;
        let shape = |i: usize| &self.plan.info(node.inputs[i]).shape;
        let out_shape = &self.plan.info(node.output).shape;
        // SAFETY: see this function's contract; the output never overlaps an input.
        let (x, out) = unsafe { (|i: usize| view.floats(node.inputs[i]), view.floats_mut(node.output)) };
        // SAFETY: as above; scratch belongs to the running step alone.
        let scratch = unsafe { std::slice::from_raw_parts_mut(view.memory.scratch.pointer(), self.scratch) };
        let lens = |i: usize| -> Result<&[u32], DeviceError> {
            // SAFETY: as above.
            let lens = unsafe { view.integers(node.inputs[i]) };
            if let Some(bad) = lens.iter().find(|n| **n < 0) {
                return Err(self.operand(index, format!("a length is {bad}")));
            }
            // SAFETY: i32 and u32 have one layout, and none is negative.
            Ok(unsafe { std::slice::from_raw_parts(lens.as_ptr().cast::<u32>(), lens.len()) })
        };
        // Where `rows` rows of each batch row begin, which have to fit into `most`.
        let firsts = |i: usize, rows: usize, most: usize| -> Result<&[u32], DeviceError> {
            let firsts = lens(i)?;
            match firsts.iter().find(|first| **first as usize + rows > most) {
                Some(first) => {
                    let problem = format!("{rows} rows from {first} on do not fit into {most}");
                    Err(self.operand(index, problem))
                }
                None => Ok(firsts),
            }
        };
        // SAFETY: as above; elements of either type are only moved.
        let words = |i: usize| unsafe { view.words(node.inputs[i]) };
        let factor = |f: &Factor| -> Result<f32, DeviceError> {
            match f {
                Factor::Const(x) => Ok(*x),
                Factor::Scalar(s) => Ok(f32::from_bits(self.scalar(view, s.index())? as u32)),
            }
        };
        match (&node.op, call) {
            (Op::Embedding { .. }, Call::Embedding { table, channels }) => {
                // SAFETY: as above.
                let ids = unsafe { view.integers(node.inputs[0]) };
                match table {
                    weights::Table::Memory(table) => gather::gather_rows(table, *channels, ids, out)
                        .map_err(|e| self.operand(index, e.to_string()))?,
                    weights::Table::File { source, name, rows } => {
                        let read = |row: usize, out: &mut [f32]| match source.read_row(name, row, out) {
                            Ok(_) => Ok(()),
                            Err(e) => Err(e.to_string()),
                        };
                        gather::gather_rows_by(read, (*rows, *channels), ids, out)
                            .map_err(|e: String| self.operand(index, e))?;
                    }
                }
            }
            (Op::Constant { .. }, Call::Constant { weight }) => {
                out.chunks_exact_mut(weight.len()).for_each(|o| o.copy_from_slice(weight));
            }
            (
                Op::MatMul { epilogue, .. } | Op::Conv1d { epilogue, .. },
                Call::MatMul { weight, epilogue: e, conv },
            ) => {
                let rows = match conv {
                    None => Rows::Dense { x: x(0), chosen_for: self.rows_to_choose_for(shape(0)) },
                    Some(g) => Rows::Conv {
                        x: x(0),
                        batch: shape(0).dims()[0],
                        time: shape(0).dims()[1],
                        chosen_for: self.rows_to_choose_for(shape(0)),
                        channels: shape(0).dims()[2],
                        taps: g.taps,
                        dilation: g.dilation,
                        left: g.left,
                        history: g.history.then(|| x(1)),
                    },
                };
                let e = Epilogue {
                    bias: e.bias.as_ref().map(|b| b.as_slice()),
                    activation: e.activation,
                    residual: epilogue.residual.then(|| x(node.inputs.len() - 1)),
                };
                match weight {
                    weights::Factor::Elements(w) => matmul(isa, team, rows, w, &e, out, scratch),
                    weights::Factor::Blocks(w) => blocks::matmul(isa, team, rows, w, &e, out, scratch),
                }
            }
            (Op::DepthwiseConv1d { .. }, Call::Depthwise { weight, bias, geometry, norm }) => {
                let conv = DepthwiseConv {
                    weights: weight,
                    bias,
                    taps: geometry.taps,
                    dilation: geometry.dilation,
                    left: geometry.left,
                };
                let history = geometry.history.then(|| x(1));
                let frames = Frames { x: x(0), batch: shape(0).dims()[0], lens: None, history };
                conv.run(isa, team, frames, norm.as_ref().map(OwnedNorm::get).as_ref(), out);
            }
            (Op::LayerNorm(_), Call::LayerNorm(n)) => n.get().run(isa, team, x(0), None, out),
            (Op::RmsNorm { eps, .. }, Call::RmsNorm { weight }) => {
                rms_norm::rms_norm(isa, team, x(0), weight, *eps, out);
            }
            (Op::Snake { .. }, Call::Snake { frequency, gain }) => {
                snake::snake(isa, team, x(0), (frequency, gain), out);
            }
            (Op::EmbeddingSum { first, .. }, Call::EmbeddingSum { tables, rows }) => {
                // SAFETY: as above.
                let ids = unsafe { view.integers(node.inputs[0]) };
                let tables = gather::Tables { data: tables, rows: *rows, channels: out_shape.last() };
                gather::sum_rows(tables, ids, (shape(0).last(), *first), out)
                    .map_err(|e| self.operand(index, e.to_string()))?;
            }
            (Op::AddBias { .. }, Call::AddBias { bias }) => {
                out.copy_from_slice(x(0));
                elementwise::add_row_in_place(isa, team, out, bias, 1, bias.len());
            }
            (Op::Affine { .. }, Call::Affine { scale, shift }) => copy::affine(x(0), scale, shift, out),
            (Op::Activate(_), Call::Activate(f)) => {
                out.copy_from_slice(x(0));
                elementwise::activate(isa, team, *f, out);
            }
            (Op::Add, _) => elementwise::add(isa, team, x(0), x(1), out),
            (Op::Mul, _) => elementwise::mul(isa, team, x(0), x(1), out),
            (Op::AddRow, _) => {
                out.copy_from_slice(x(0));
                let channels = out_shape.last();
                elementwise::add_row_in_place(isa, team, out, x(1), 1, channels);
            }
            (Op::MulRow, _) => {
                out.copy_from_slice(x(0));
                elementwise::mul_row_in_place(isa, team, out, x(1), 1, out_shape.last());
            }
            (Op::Combine { a, b }, _) => {
                elementwise::weighted_sum(isa, team, (factor(a)?, x(0)), (factor(b)?, x(1)), out);
            }
            (Op::Scale { factor: f }, _) => {
                out.copy_from_slice(x(0));
                elementwise::scale_in_place(isa, team, factor(f)?, out);
            }
            (Op::Attention { heads, scale, mask, relative: r }, Call::Attention { relative }) => {
                let (q, k) = (shape(0).dims(), shape(1).dims());
                let attention = Attention {
                    heads: *heads,
                    kv_heads: k[2] / (q[2] / heads),
                    head_dim: q[2] / heads,
                    scale: *scale,
                    mask: match mask {
                        AttentionMask::None => Mask::None,
                        AttentionMask::Causal | AttentionMask::Cached(_) => Mask::Causal,
                        AttentionMask::Window(seen) | AttentionMask::Stream(seen) => {
                            Mask::Window { left: seen - 1, right: 0 }
                        }
                    },
                    first_query: match mask {
                        AttentionMask::None => 0,
                        AttentionMask::Cached(First::Const(first)) => *first,
                        _ => k[1].saturating_sub(q[1]),
                    },
                    first_queries: match mask {
                        AttentionMask::Cached(First::Operand) => Some(firsts(3, q[1], k[1])?),
                        _ => None,
                    },
                    passed: match mask {
                        AttentionMask::Stream(_) => Some(lens(3)?),
                        _ => None,
                    },
                    kv_lens: match node.inputs.len() {
                        4 if !mask.has_positions() => Some(lens(3)?),
                        _ => None,
                    },
                    relative: match (r, relative) {
                        (Some(r), Some((k, v))) => Some(Relative { window: r.window, keys: k, values: v }),
                        _ => None,
                    },
                };
                let sequence = |i: usize| {
                    let d = shape(i).dims();
                    Sequence { data: x(i), batch: d[0], steps: d[1], stride: d[2] }
                };
                let dtype = self.plan.info(node.inputs[1]).dtype;
                if dtype.is_compact() {
                    let cached = |i: usize| Cached {
                        // SAFETY: as above.
                        bytes: unsafe { view.bytes(node.inputs[i]) },
                        batch: shape(i).dims()[0],
                        steps: shape(i).dims()[1],
                    };
                    let kept = (cached(1), cached(2));
                    attention.run_cached((isa, team), sequence(0), dtype, kept, out, scratch);
                } else {
                    attention.run((isa, team), sequence(0), (sequence(1), sequence(2)), out, scratch);
                }
            }
            (Op::RotaryTable { .. }, Call::RotaryTable { theta }) => {
                let &[batch, _, time, half] = out_shape.dims() else {
                    unreachable!("four axes by shape inference")
                };
                let lens = if node.inputs.is_empty() { None } else { Some(lens(0)?) };
                for (b, out) in out.chunks_exact_mut(2 * time * half).enumerate().take(batch) {
                    let len = lens.map_or(time as f64, |l| f64::from(l[b]).max(1.0));
                    let (cos, sin) = out.split_at_mut(time * half);
                    rotary::table(|t| t as f64 / len, theta, cos, sin);
                }
            }
            (Op::RopeTable { first, .. }, Call::RopeTable { frequencies }) => {
                let rows = out_shape.len() / out_shape.dims()[0];
                for (b, out) in out.chunks_exact_mut(rows).enumerate() {
                    let first = match first {
                        First::Const(first) => *first as u64,
                        First::Operand => u64::from(lens(0)?[b]),
                    };
                    let (cos, sin) = out.split_at_mut(rows / 2);
                    rotary::table(|t| (first + t as u64) as f64, frequencies, cos, sin);
                }
            }
            (Op::Rotary { heads }, _) => {
                let &[batch, _, time, half] = shape(1).dims() else {
                    unreachable!("four axes by shape inference")
                };
                out.copy_from_slice(x(0));
                let rows = out.len() / batch;
                for (table, out) in x(1).chunks_exact(2 * time * half).zip(out.chunks_exact_mut(rows)) {
                    rotary::rotate(isa, team, out, *heads, half, table.split_at(time * half));
                }
            }
            (Op::MaskRows, _) => {
                out.copy_from_slice(x(0));
                elementwise::mask_in_place(team, out, lens(1)?, out_shape.last());
            }
            (Op::Concat { axis }, _) => {
                let mut at = 0;
                for i in 0..node.inputs.len() {
                    copy::place(words(i), shape(i).dims(), *axis, at, out_shape.dims(), out);
                    at += shape(i).dims()[*axis];
                }
            }
            (Op::Slice { axis, start, .. }, _) => {
                copy::take(words(0), shape(0).dims(), *axis, *start, out_shape.dims(), out);
            }
            (Op::Pad { padding, before, .. }, _) => {
                let &[batch, time, channels] = shape(0).dims() else {
                    unreachable!("three axes by shape inference")
                };
                pad::pad(x(0), [batch, time, channels], *padding, *before, out);
            }
            (Op::Statistics { floor }, _) => {
                let (batch, channels) = (shape(0).dims()[0], shape(0).last());
                let scores = (node.inputs.len() > 1).then(|| x(1));
                statistics::statistics(isa, team, x(0), scores, (batch, channels), *floor, out);
            }
            (Op::ResidualCodes { .. }, Call::ResidualCodes { codebooks, entries }) => {
                let books = Codebooks { data: codebooks, entries: *entries, width: shape(0).last() };
                residual_codes(isa, team, x(0), books, scratch, out);
            }
            (Op::Reshape, _) => {}
            (Op::Permute { perm }, _) => permute::permute(x(0), shape(0).dims(), perm, out),
            (Op::TimeEmbedding { dim }, _) => {
                for (t, row) in x(0).iter().zip(out.chunks_exact_mut(*dim)) {
                    elementwise::time_embedding(f64::from(*t), row);
                }
            }
            (Op::SelectRow { index: s }, _) => {
                let row = self.scalar(view, s.index())? as usize;
                let rows = shape(0).dims()[0];
                let Some(from) = x(0).chunks_exact(out.len()).nth(row) else {
                    return Err(self.operand(index, format!("row {row} of {rows}")));
                };
                out.copy_from_slice(from);
            }
            (Op::RandomNormal { seed, scale }, _) => {
                random::fill_normal(self.scalar(view, seed.index())?, 0, out);
                elementwise::scale_in_place(isa, team, *scale, out);
            }
            (Op::RowAt, _) => {
                let &[_, rows, c] = shape(0).dims() else { unreachable!("three axes by shape inference") };
                for ((x, out), row) in x(0).chunks_exact(rows * c).zip(out.chunks_exact_mut(c)).zip(lens(1)?)
                {
                    out.copy_from_slice(&x[(*row as usize).min(rows - 1) * c..][..c]);
                }
            }
            (Op::Increment { by }, _) => {
                // SAFETY: as above.
                let x = unsafe { view.integers(node.inputs[0]) };
                out.iter_mut().zip(x).for_each(|(out, x)| *out = f32::from_bits(x.wrapping_add(*by) as u32));
            }
            // In place: `out` is the state, and operand 0 is not looked at.
            (Op::WriteRows { first }, _) => {
                let (&[batch, n, c], t) = (out_shape.dims(), shape(1).dims()[1]) else {
                    unreachable!("three axes by shape inference")
                };
                let given = if *first == First::Operand { firsts(2, t, n)? } else { &[] };
                let first = (0..batch).map(|b| match first {
                    First::Const(first) => *first,
                    First::Operand => given[b] as usize,
                });
                let dtype = self.plan.info(node.output).dtype;
                if dtype.is_compact() {
                    let len = size_of_val(out);
                    // SAFETY: these are the same bytes, and `out` is not used beside them.
                    let bytes = unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast(), len) };
                    cache_rows::write_rows((dtype, bytes), x(1), first, (n, t), c);
                } else {
                    copy::write_rows(out, x(1), first, (n, t), c);
                }
            }
            (Op::Mark, _) => {
                let rows = out_shape.last();
                // SAFETY: as above.
                let ids = unsafe { view.integers(node.inputs[1]) };
                for (seen, id) in out.chunks_exact_mut(rows).zip(ids).filter(|(_, id)| **id != NO_ID) {
                    let Some(seen) = usize::try_from(*id).ok().and_then(|id| seen.get_mut(id)) else {
                        return Err(self.operand(index, format!("id {id} of {rows}")));
                    };
                    *seen = 1.0;
                }
            }
            (Op::Sample { codebook, controls }, _) => {
                let width = shape(0).last();
                // SAFETY: as above.
                let (seed, number) =
                    unsafe { (view.integers(node.inputs[2]), view.integers(node.inputs[3])) };
                let seen = if node.inputs.len() == 5 { Some(x(4)) } else { None };
                for (b, (logits, out)) in x(0).chunks_exact(width).zip(out).enumerate() {
                    let draw = sample::Draw {
                        logits,
                        settings: std::array::from_fn(|i| x(1)[4 * b + i]),
                        seed: [seed[2 * b] as u32, seed[2 * b + 1] as u32],
                        number: number[b],
                        codebook: *codebook,
                        seen: seen.map(|seen| &seen[b * width..][..width]),
                        controls: *controls,
                    };
                    let id = sample::sample(&draw, scratch).unwrap_or(NO_ID);
                    *out = f32::from_bits(id as u32);
                }
            }
            (op, _) => unreachable!("{} was bound as another op", op.name()),
        }
        Ok(())
    }

    fn scalar(&self, view: &View<'_>, index: usize) -> Result<u64, DeviceError> {
        let name = &self.plan.scalars()[index];
        view.memory
            .scalars
            .get(name)
            .copied()
            .ok_or_else(|| DeviceError::Scalar { name: name.clone(), plan: self.plan.name().to_owned() })
    }

    /// Rows of a product's left operand of this shape that its kernel is chosen for.
    fn rows_to_choose_for(&self, shape: &Shape) -> usize {
        self.plan.rows_to_choose_for(rows_of_sequence(shape))
    }

    fn operand(&self, step: usize, problem: String) -> DeviceError {
        DeviceError::Operand { plan: self.plan.name().to_owned(), step, problem }
    }
}

/// Rows of each sequence of a value: T of `[B, T, C]`, and all of one without batch.
fn rows_of_sequence(shape: &Shape) -> usize {
    match shape.dims() {
        [_, time, _] => *time,
        _ => shape.rows(),
    }
}

/// Fetches the weights of a step.
fn bind(core: &Core, op: &Op, out: &Shape, bank: &WeightBank) -> Call {
    let packed = |weight| bank.packed(weight, core.format(op).expect("a product has a format"));
    match op {
        Op::Embedding { table } => {
            Call::Embedding { channels: table.shape().last(), table: bank.table(table) }
        }
        Op::Constant { weight } => Call::Constant { weight: bank.dense(weight) },
        Op::MatMul { weight, epilogue } => {
            Call::MatMul { weight: packed(weight), epilogue: OwnedEpilogue::new(epilogue, bank), conv: None }
        }
        Op::Conv1d { weight, geometry, epilogue } => Call::MatMul {
            weight: packed(weight),
            epilogue: OwnedEpilogue::new(epilogue, bank),
            conv: Some(*geometry),
        },
        Op::DepthwiseConv1d { weight, bias, geometry, norm } => Call::Depthwise {
            weight: bank.dense(weight),
            bias: bank.dense(bias),
            geometry: *geometry,
            norm: norm.as_ref().map(|n| OwnedNorm::new(n, bank)),
        },
        Op::LayerNorm(n) => Call::LayerNorm(OwnedNorm::new(n, bank)),
        Op::RmsNorm { weight, .. } => Call::RmsNorm { weight: bank.dense(weight) },
        Op::Snake { frequency, gain } => {
            Call::Snake { frequency: bank.dense(frequency), gain: bank.dense(gain) }
        }
        Op::EmbeddingSum { tables, .. } => {
            Call::EmbeddingSum { tables: bank.dense(tables), rows: tables.shape().dims()[1] }
        }
        Op::ResidualCodes { codebooks } => {
            Call::ResidualCodes { codebooks: bank.dense(codebooks), entries: codebooks.shape().dims()[1] }
        }
        Op::RopeTable { base, .. } => {
            let half = out.last();
            let frequency = |j: usize| base.powf(-(j as f64) / half as f64);
            Call::RopeTable { frequencies: (0..half).map(frequency).collect() }
        }
        Op::AddBias { bias } => Call::AddBias { bias: bank.dense(bias) },
        Op::Affine { scale, shift } => Call::Affine { scale: bank.dense(scale), shift: bank.dense(shift) },
        Op::Activate(a) => Call::Activate(activation(a, bank)),
        Op::Attention { relative, .. } => Call::Attention {
            relative: relative.as_ref().map(|r| (bank.dense(&r.key), bank.dense(&r.value))),
        },
        Op::RotaryTable { theta } => {
            Call::RotaryTable { theta: bank.dense(theta).iter().map(|x| f64::from(*x)).collect() }
        }
        _ => Call::Plain,
    }
}

/// Floats of scratch memory that a step needs.
fn scratch_of(core: &Core, plan: &Plan, step: &Step, call: &Call) -> usize {
    let threads = core.team.threads();
    let shape = |i: usize| plan.info(step.node.inputs[i]).shape.dims();
    match (&step.node.op, call) {
        (_, Call::MatMul { weight: weights::Factor::Blocks(_), .. }) => {
            let (x, history) = (shape(0), step.node.inputs.get(1).map(|_| shape(1)));
            let channels = x.last().copied().unwrap_or(1).max(1);
            let rows = |dims: &[usize]| dims.iter().product::<usize>().div_ceil(channels);
            blocks::scratch_len(rows(x) + history.map_or(0, rows), channels)
        }
        (_, Call::MatMul { .. }) => {
            let out = &plan.info(step.node.output).shape;
            let k = step.node.op.weights()[0].shape().dims()[0];
            let taps = match call {
                Call::MatMul { conv: Some(g), .. } if shape(0)[0] == 1 => {
                    Some(Taps { count: g.taps, dilation: g.dilation })
                }
                _ => None,
            };
            let rows = plan.rows_to_choose_for(rows_of_sequence(&plan.info(step.node.inputs[0]).shape));
            scratch_len(core.isa, threads, [out.rows(), k, out.last()], rows, taps)
        }
        (Op::Attention { heads, scale, relative, .. }, _) => {
            let (q, k) = (shape(0), shape(1));
            let a = Attention {
                heads: *heads,
                kv_heads: k[2] / (q[2] / heads),
                head_dim: q[2] / heads,
                scale: *scale,
                mask: Mask::None,
                first_query: 0,
                first_queries: None,
                passed: None,
                kv_lens: None,
                relative: relative.as_ref().map(|r| Relative { window: r.window, keys: &[], values: &[] }),
            };
            a.scratch_len(threads, k[0], k[1])
        }
        (Op::ResidualCodes { .. }, _) => shape(0).iter().product(),
        (Op::Sample { .. }, _) => sample::scratch_len(shape(0)[1]),
        _ => 0,
    }
}

/// Words of four bytes that a value takes.
fn words_of(info: &ValueInfo) -> usize {
    info.dtype.bytes_of(&info.shape) / 4
}

/// Places of a plan as slices of a memory.
struct View<'a> {
    plan: &'a Plan,
    memory: &'a CpuMemory,
}

impl View<'_> {
    fn pointer(&self, place: Place) -> *mut f32 {
        match place {
            // SAFETY: the arena was made as large as the plan says.
            Place::Arena(offset) => unsafe { self.memory.arena.pointer().add(offset / 4) },
            Place::Buffer(i) => self.memory.bases[i],
            Place::Nowhere => std::ptr::NonNull::dangling().as_ptr(),
        }
    }

    /// # Safety
    /// The value's place exists, holds floats, and is not written while the slice lives.
    unsafe fn floats(&self, v: orate_graph::Value) -> &[f32] {
        let info = self.plan.info(v);
        debug_assert_eq!(info.dtype, DType::F32, "shape inference checks dtypes");
        // SAFETY: the caller vouches for the place.
        unsafe { std::slice::from_raw_parts(self.pointer(self.plan.place(v)), info.shape.len()) }
    }

    /// Elements of either type, to be moved.
    ///
    /// # Safety
    /// The value's place exists, and is not written while the slice lives.
    unsafe fn words(&self, v: orate_graph::Value) -> &[f32] {
        // SAFETY: the caller vouches for the place.
        unsafe { std::slice::from_raw_parts(self.pointer(self.plan.place(v)), words_of(self.plan.info(v))) }
    }

    /// Bytes of any type.
    ///
    /// # Safety
    /// The value's place exists, and is not written while the slice lives.
    unsafe fn bytes(&self, v: orate_graph::Value) -> &[u8] {
        let info = self.plan.info(v);
        let len = info.dtype.bytes_of(&info.shape);
        // SAFETY: the caller vouches for the place.
        unsafe { std::slice::from_raw_parts(self.pointer(self.plan.place(v)).cast(), len) }
    }

    /// # Safety
    /// The value's place exists and holds integers.
    unsafe fn integers(&self, v: orate_graph::Value) -> &[i32] {
        let info = self.plan.info(v);
        // SAFETY: the caller vouches for the place.
        unsafe { std::slice::from_raw_parts(self.pointer(self.plan.place(v)).cast(), info.shape.len()) }
    }

    /// # Safety
    /// The value's place exists, and nothing else uses it while the slice lives. Integers are floats of their bits, and so are
    /// words of compact rows.
    #[expect(clippy::mut_from_ref, reason = "places are disjoint; the memory plan guarantees it")]
    unsafe fn floats_mut(&self, v: orate_graph::Value) -> &mut [f32] {
        // SAFETY: the caller vouches for the place.
        unsafe {
            std::slice::from_raw_parts_mut(self.pointer(self.plan.place(v)), words_of(self.plan.info(v)))
        }
    }
}

impl Executable for CpuExecutable {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn run(&self, memory: &mut dyn Memory) -> Result<(), DeviceError> {
        self.run_steps(memory, |_| ())
    }

    fn profile(&self, memory: &mut dyn Memory) -> Result<Vec<f64>, DeviceError> {
        let mut times = Vec::with_capacity(self.calls.len());
        let mut last = Instant::now();
        self.run_steps(memory, |_| {
            let now = Instant::now();
            times.push((now - last).as_secs_f64());
            last = now;
        })?;
        Ok(times)
    }
}
