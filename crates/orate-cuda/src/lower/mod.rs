//! A plan as a list of kernel launches.
//!
//! Each step becomes a few [`Work`]s, mostly one. What they point to is only known when a session runs the plan, so
//! arguments name places, which [`Work::arguments`] turns into addresses.
//!
//! Here stands which op is lowered where, and what steps share. Each family of ops has a file, named as in `orate-gpu`'s
//! `kernels/`, with what it takes to start their kernels; `cuts` estimates which kernel and which blocks suit a product.

mod attention;
#[cfg(test)]
mod bench;
mod cuts;
mod encoders;
mod heads;
mod matmul;
mod movement;
mod narrow;
mod pointwise;
mod rows;
mod sample;
mod tables;
mod work;

pub(crate) use work::{Addresses, Pointer, Work};

use crate::driver::Facts;
use crate::weights::{Form, WeightBank};
use cuts::{DEPTH_OF_BLOCKS, FEW_ROWS};
pub(crate) use narrow::is_narrow;
use orate_graph::joining::{At, Joined, Joins, Layout, layout};
use orate_graph::{
    Activation, DType, First, Op, Plan, Precision, PrecisionPolicy, Scalar, Shape, Value, ValueInfo, Weight,
};

/// Rows of products that are joined, at most: two of each utterance of a batch.
const MOST_JOINED: usize = 32;

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
    Ok(match op {
        op if is_narrow(op) => "conv-narrow".to_owned(),
        Op::MatMul { weight, .. } | Op::Conv1d { weight, .. } => format!("{}-gemm", policy.of(weight)),
        Op::DepthwiseConv1d { norm, .. } => {
            rows::check_width(inputs[0].shape.last())?;
            if norm.is_some() { "depthwise-norm" } else { "depthwise" }.to_owned()
        }
        Op::LayerNorm(_) => {
            rows::check_width(inputs[0].shape.last())?;
            "layer-norm".to_owned()
        }
        Op::RmsNorm { .. } => "rms-norm".to_owned(),
        Op::Snake { .. } => "snake".to_owned(),
        Op::Attention { heads, relative, .. } => attention::name(inputs, *heads, relative.as_ref(), facts)?,
        Op::Permute { perm } => movement::permute_name(perm.len())?,
        Op::Rotary { .. } => "rotary".to_owned(),
        Op::AddBias { .. }
        | Op::Affine { .. }
        | Op::Activate(_)
        | Op::Add
        | Op::Mul
        | Op::AddRow
        | Op::MulRow
        | Op::Combine { .. }
        | Op::Scale { .. } => "pointwise".to_owned(),
        Op::Embedding { .. } | Op::EmbeddingSum { .. } | Op::SelectRow { .. } | Op::RowAt => {
            "gather".to_owned()
        }
        Op::Constant { .. } | Op::Concat { .. } | Op::Slice { .. } => "copy".to_owned(),
        Op::MaskRows => "mask".to_owned(),
        Op::Increment { .. } => "increment".to_owned(),
        Op::WriteRows { .. } if inputs[0].dtype.is_compact() => format!("write-{}", inputs[0].dtype),
        Op::WriteRows { .. } => "write".to_owned(),
        Op::Mark => "mark".to_owned(),
        Op::Sample { .. } => sample::name(inputs[0].shape.last(), facts)?,
        Op::Reshape => "none".to_owned(),
        Op::Pad { .. } => "pad".to_owned(),
        Op::Statistics { .. } => "statistics".to_owned(),
        Op::ResidualCodes { codebooks } => encoders::codes_name(codebooks.shape().last(), facts)?,
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
    let mut works = vec![];
    for node in &layout.steps {
        let operands = Operands { plan, bank, policy, facts, layout: &layout, node };
        works.extend(step(&operands).into_iter().map(|w| (node.step, w)));
    }
    matmul::announce(&mut works);
    for &(buffer, v) in plan.copies() {
        let (from, to) = (layout.at(v), At::Buffer(buffer, 0));
        if from != to {
            let n = plan.info(v).dtype.bytes_of(&plan.info(v).shape) / 4;
            let copy = movement::copy(Pointer::Place(from), Pointer::Place(to), [1, n, 0, 0]);
            works.push((plan.steps().len(), copy));
        }
    }
    Lowered { works, arena_bytes: layout.arena_bytes }
}

/// The launches of a step.
fn step(o: &Operands<'_>) -> Vec<Work> {
    if o.out_shape().is_empty() {
        return vec![];
    }
    if !o.node.turns.is_empty() {
        return vec![heads::work(o)];
    }
    let op = o.op(o.node.step);
    vec![match op {
        Op::MatMul { weight, epilogue } => matmul::work(o, weight, epilogue, None),
        Op::Conv1d { weight, epilogue, geometry } if is_narrow(op) => {
            narrow::work(o, weight, epilogue, geometry)
        }
        Op::Conv1d { weight, epilogue, geometry } => matmul::work(o, weight, epilogue, Some(geometry)),
        Op::DepthwiseConv1d { weight, bias, geometry, norm } => {
            rows::depthwise(o, weight, bias, geometry, norm.as_ref())
        }
        Op::LayerNorm(norm) => rows::layer_norm(o, norm),
        Op::RmsNorm { weight, eps } => rows::rms_norm(o, weight, *eps),
        Op::Attention { heads, scale, mask, relative } => {
            attention::work(o, *heads, *scale, *mask, relative.as_ref())
        }
        Op::AddBias { .. }
        | Op::Affine { .. }
        | Op::Activate(_)
        | Op::Add
        | Op::Mul
        | Op::MulRow
        | Op::Snake { .. }
        | Op::AddRow
        | Op::Combine { .. }
        | Op::Scale { .. }
        | Op::MaskRows => pointwise::work(o, op),
        Op::Rotary { .. } => tables::rotary(o),
        Op::RotaryTable { theta } => tables::rotary_table(o, theta),
        Op::RopeTable { base, first } => tables::rope_table(o, *base, *first),
        Op::TimeEmbedding { dim } => tables::time_embedding(o, *dim),
        Op::RandomNormal { seed, scale } => tables::random_normal(o, *seed, *scale),
        Op::Sample { codebook, controls } => sample::work(o, *codebook, *controls),
        Op::Embedding { .. }
        | Op::EmbeddingSum { .. }
        | Op::RowAt
        | Op::Increment { .. }
        | Op::WriteRows { .. }
        | Op::Mark
        | Op::Constant { .. }
        | Op::Concat { .. }
        | Op::Slice { .. }
        | Op::Permute { .. }
        | Op::SelectRow { .. } => return movement::works(o, op),
        Op::Reshape => return vec![],
        Op::Pad { padding, before, .. } => encoders::pad(o, *padding, *before),
        Op::Statistics { floor } => encoders::statistics(o, *floor),
        Op::ResidualCodes { codebooks } => encoders::residual_codes(o, codebooks),
    }]
}

/// A step with the places of its operands.
struct Operands<'a> {
    plan: &'a Plan,
    bank: &'a WeightBank,
    policy: &'a PrecisionPolicy,
    facts: &'a Facts,
    layout: &'a Layout,
    /// The step with what joined it.
    node: &'a Joined,
}

impl Operands<'_> {
    fn shape_of(&self, v: Value) -> &Shape {
        &self.plan.info(v).shape
    }

    /// Shape of operand `i`.
    fn shape(&self, i: usize) -> &Shape {
        self.shape_of(self.node.inputs[i])
    }

    fn out_shape(&self) -> &Shape {
        self.shape_of(self.node.output)
    }

    /// Element type of operand `i`.
    fn dtype(&self, i: usize) -> DType {
        self.plan.info(self.node.inputs[i]).dtype
    }

    fn at(&self, v: Value) -> Pointer {
        Pointer::Place(self.layout.at(v))
    }

    /// Place of operand `i`.
    fn x(&self, i: usize) -> Pointer {
        self.at(self.node.inputs[i])
    }

    /// Place of operand `i`, if there is one.
    fn optional(&self, i: usize) -> Pointer {
        self.node.inputs.get(i).map_or(Pointer::Null, |v| self.at(*v))
    }

    fn out(&self) -> Pointer {
        self.at(self.node.output)
    }

    fn dense(&self, w: &Weight) -> Pointer {
        Pointer::Weight(self.bank.get(w, Form::Dense))
    }

    /// Weights of an activation that has some.
    fn slope(&self, a: Option<&Activation>) -> Pointer {
        a.and_then(Activation::slope).map_or(Pointer::Null, |w| self.dense(w))
    }

    fn scalar(&self, s: Scalar) -> Pointer {
        Pointer::Scalar(s.index())
    }

    /// Op of a step of the plan.
    fn op(&self, step: usize) -> &Op {
        &self.plan.steps()[step].node.op
    }

    /// Where rows begin: a place on the device, or a number.
    fn first(&self, first: First) -> (Pointer, usize) {
        match first {
            First::Const(at) => (Pointer::Null, at),
            First::Operand => (self.node.inputs.last().map_or(Pointer::Null, |v| self.at(*v)), 0),
        }
    }
}

/// An activation's number in kernels; 0 is none.
fn activation_number(a: Option<&Activation>) -> u32 {
    a.map_or(0, Activation::number)
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

#[cfg(test)]
mod tests {
    use super::*;
    use orate_graph::{AttentionMask, Epilogue, Norm};
    use orate_testing::{NOT_BUILT_ON_GPUS, op_cases};

    /// A GPU of an architecture.
    pub(super) fn facts(arch: u32) -> Facts {
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
                    // The list must hold for the GPU itself: tests/main/ops.rs.
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
}
