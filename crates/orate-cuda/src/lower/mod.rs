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
use cuts::{CHANNELS, DEPTH_OF_BLOCKS, FEW_ROWS};
pub(crate) use narrow::is_narrow;
use orate_graph::{
    Activation, DType, First, Fused, Fusions, Op, Place, Plan, Precision, PrecisionPolicy, Scalar, Shape,
    Step, Value, ValueInfo, Weight,
};

/// Most rows of matmuls that run as one: two of each utterance of a batch.
const MOST_JOINED: usize = 32;

/// What the kernels do besides one op.
pub(crate) fn fusions(policy: &PrecisionPolicy) -> Fusions {
    // Weights with a scale for each block of numbers are not multiplied in halves.
    let is_in_blocks = matches!(policy.precision, Precision::Q8_0 | Precision::Q4_0);
    Fusions {
        add_row: true,
        heads: true,
        rotate_queries: true,
        matmul_rows: MOST_JOINED,
        matmul_multiple: [1, CHANNELS],
        matmul_bytes: usize::MAX,
        precision: policy.clone(),
        gated_rows: if is_in_blocks { 0 } else { FEW_ROWS },
        norm_multiple: Some([DEPTH_OF_BLOCKS, 1]),
        views: true,
    }
}

/// The kernel that would run `op` with what is fused into it, or why there is none.
pub(crate) fn fused_kernel_name(
    op: &Op,
    inputs: &[&ValueInfo],
    fused: &Fused,
    policy: &PrecisionPolicy,
    facts: &Facts,
) -> Result<String, String> {
    if fused.heads.is_empty() { kernel_name(op, inputs, policy, facts) } else { Ok("heads".to_owned()) }
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

/// The launches of a plan whose weights are in `bank`, each with the step it belongs to. Copies of stored values belong to
/// the step after the last.
pub(crate) fn lower(
    plan: &Plan,
    bank: &WeightBank,
    policy: &PrecisionPolicy,
    facts: &Facts,
) -> Vec<(usize, Work)> {
    let mut works = vec![];
    for (i, step) in plan.steps().iter().enumerate() {
        let operands = Operands { plan, bank, policy, facts, step };
        works.extend(launches(&operands).into_iter().map(|w| (i, w)));
    }
    matmul::announce(&mut works);
    for &(buffer, v) in plan.copies() {
        let (from, to) = (plan.place(v), Place::Buffer(buffer, 0));
        let n = plan.info(v).dtype.bytes_of(&plan.info(v).shape) / 4;
        let copy = movement::copy(Pointer::Place(from), Pointer::Place(to), [1, n, 0, 0]);
        works.push((plan.steps().len(), copy));
    }
    works
}

/// The launches of a step.
fn launches(o: &Operands<'_>) -> Vec<Work> {
    if o.out_shape().is_empty() {
        return vec![];
    }
    if !o.step.fused.heads.is_empty() {
        return vec![heads::work(o)];
    }
    let op = &o.step.node.op;
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
    step: &'a Step,
}

impl Operands<'_> {
    fn shape_of(&self, v: Value) -> &Shape {
        &self.plan.info(v).shape
    }

    /// Shape of operand `i`.
    fn shape(&self, i: usize) -> &Shape {
        self.shape_of(self.step.node.inputs[i])
    }

    fn out_shape(&self) -> &Shape {
        self.shape_of(self.step.node.output)
    }

    /// Element type of operand `i`.
    fn dtype(&self, i: usize) -> DType {
        self.plan.info(self.step.node.inputs[i]).dtype
    }

    fn at(&self, v: Value) -> Pointer {
        Pointer::Place(self.plan.place(v))
    }

    /// Place of operand `i`.
    fn x(&self, i: usize) -> Pointer {
        self.at(self.step.node.inputs[i])
    }

    /// Place of operand `i`, if there is one.
    fn optional(&self, i: usize) -> Pointer {
        self.step.node.inputs.get(i).map_or(Pointer::Null, |v| self.at(*v))
    }

    fn out(&self) -> Pointer {
        self.at(self.step.node.output)
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

    /// Where rows begin: a place on the device, or a number.
    fn first(&self, first: First) -> (Pointer, usize) {
        match first {
            First::Const(at) => (Pointer::Null, at),
            First::Operand => (self.step.node.inputs.last().map_or(Pointer::Null, |v| self.at(*v)), 0),
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
