//! The kernels' texts, and which dispatches an op becomes.

mod attention;
#[cfg(test)]
mod bench;
mod cooperative;
mod encoders;
mod heads;
mod matmul;
mod movement;
mod pointwise;
mod rows;
mod sample;
mod tables;

use crate::adapters::Matrices;
use crate::dispatch::Call;
use crate::gpu::Gpu;
use crate::weights::{Form, Placed, Wanted};
use orate_graph::{
    Activation, DType, DeviceClass, Fused, Fusions, Op, Place, Plan, PrecisionPolicy, Shape, Step, Value,
    ValueInfo, WeightLoader, several,
};

/// What kernels are chosen by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities<'a> {
    /// In which format products are computed.
    pub policy: &'a PrecisionPolicy,
    pub subgroups: bool,
    /// Where products in f16 may use them.
    pub matrices: Option<Matrices>,
    pub workgroup_bytes: u32,
    /// The processor imitates a GPU.
    pub software: bool,
}

impl<'a> Abilities<'a> {
    pub fn of(gpu: &'a Gpu) -> Self {
        Abilities {
            policy: &gpu.policy,
            subgroups: gpu.subgroups,
            matrices: gpu.matrices,
            workgroup_bytes: gpu.workgroup_bytes,
            software: gpu.info.class == DeviceClass::Software,
        }
    }
}

/// A step with the places of its operands.
pub(crate) struct Operands<'a> {
    pub plan: &'a Plan,
    pub step: &'a Step,
    /// Where its weights are.
    pub weights: &'a Placed,
    pub can: Abilities<'a>,
}

impl Operands<'_> {
    fn shape_of(&self, v: Value) -> &Shape {
        &self.plan.info(v).shape
    }

    /// Shape of operand `i`.
    fn shape(&self, i: usize) -> &Shape {
        self.shape_of(self.step.node.inputs[i])
    }

    /// Element type of operand `i`.
    fn dtype(&self, i: usize) -> DType {
        self.plan.info(self.step.node.inputs[i]).dtype
    }

    /// Place of operand `i`.
    fn place(&self, i: usize) -> Place {
        self.at(self.step.node.inputs[i])
    }

    fn at(&self, v: Value) -> Place {
        self.plan.place(v)
    }

    /// Place of the last operand.
    fn last(&self) -> Place {
        self.place(self.step.node.inputs.len() - 1)
    }

    fn out_shape(&self) -> &Shape {
        self.shape_of(self.step.node.output)
    }

    fn out(&self) -> Place {
        self.at(self.step.node.output)
    }
}

/// The name of the kernel that runs `op`, for plans.
///
/// # Errors
/// Why there is none.
pub(crate) fn name(op: &Op, inputs: &[&ValueInfo], can: Abilities<'_>) -> Result<String, String> {
    Ok(match op {
        Op::MatMul { .. } | Op::Conv1d { .. } => matmul::name(op, inputs, can),
        Op::DepthwiseConv1d { geometry, norm, .. } => {
            rows::depthwise_name(inputs[0].shape.last(), geometry.taps, norm.is_some()).to_owned()
        }
        Op::LayerNorm(_) => "layer-norm".to_owned(),
        Op::RmsNorm { .. } => "rms-norm".to_owned(),
        Op::Snake { .. } => "snake".to_owned(),
        Op::Attention { heads, .. } => {
            let name = attention::name(op, &inputs[0].shape, *heads, can)?;
            if inputs[1].dtype.is_compact() { format!("{name}-{}", inputs[1].dtype) } else { name }
        }
        Op::Rotary { .. } => "rotary".to_owned(),
        Op::RotaryTable { .. } | Op::RopeTable { .. } | Op::TimeEmbedding { .. } => "table".to_owned(),
        Op::AddBias { .. }
        | Op::Affine { .. }
        | Op::Activate(_)
        | Op::Add
        | Op::Mul
        | Op::AddRow
        | Op::MulRow => "pointwise".to_owned(),
        Op::Combine { .. } | Op::Scale { .. } => "pointwise".to_owned(),
        Op::MaskRows => "mask".to_owned(),
        Op::Increment { .. } => "increment".to_owned(),
        Op::WriteRows { .. } if inputs[0].dtype.is_compact() => format!("write-{}", inputs[0].dtype),
        Op::WriteRows { .. } => "write".to_owned(),
        Op::Mark => "mark".to_owned(),
        Op::Sample { .. } => sample::name(inputs[0].shape.last(), can)?,
        Op::Embedding { .. } | Op::EmbeddingSum { .. } | Op::RowAt => "gather".to_owned(),
        Op::Concat { .. } => several("copy", inputs.iter().filter(|i| !i.shape.is_empty()).count()),
        Op::Constant { .. } | Op::Slice { .. } | Op::SelectRow { .. } => "copy".to_owned(),
        Op::Permute { perm } if perm.len() > 4 => {
            return Err(format!("permutations have at most 4 axes here, this one has {}", perm.len()));
        }
        Op::Permute { .. } => "permute".to_owned(),
        Op::Reshape => "none".to_owned(),
        Op::Pad { .. } => "pad".to_owned(),
        Op::Statistics { .. } => "statistics".to_owned(),
        Op::ResidualCodes { codebooks } => encoders::codes_name(codebooks.shape().last(), can)?,
        Op::RandomNormal { .. } => "philox".to_owned(),
    })
}

/// What the kernels do besides one op, of weights that fit into a buffer together.
pub(crate) fn fusions(gpu: &Gpu) -> Fusions {
    Fusions {
        heads: true,
        views: true,
        // Zeros at the edges of weights take room as well.
        matmul_bytes: (gpu.largest_buffer / 2) as usize,
        ..matmul::fusions(Abilities::of(gpu))
    }
}

/// The name of the kernel that runs `op` with what is fused into it.
///
/// # Errors
/// As [`name`].
pub(crate) fn fused_name(
    op: &Op,
    inputs: &[&ValueInfo],
    fused: &Fused,
    can: Abilities<'_>,
) -> Result<String, String> {
    match op {
        _ if !fused.heads.is_empty() => Ok("heads".to_owned()),
        Op::MatMul { .. } => Ok(matmul::fused_name(op, inputs, fused, can)),
        _ => name(op, inputs, can),
    }
}

/// The weights of a step, in the forms that its kernel reads.
pub(crate) fn weights(plan: &Plan, step: &Step, can: Abilities<'_>, source: &dyn WeightLoader) -> Wanted {
    if !step.fused.heads.is_empty() {
        return Wanted::vectors(heads::norms(step).collect());
    }
    let out = plan.info(step.node.output).shape.last();
    match &step.node.op {
        op @ (Op::MatMul { .. } | Op::Conv1d { .. }) => matmul::weights(op, &step.fused, can),
        Op::Embedding { table } => Wanted::table(table, source),
        Op::EmbeddingSum { tables: table, .. } | Op::ResidualCodes { codebooks: table } => {
            Wanted::matrix(table)
        }
        Op::Constant { weight } => Wanted::matrix(weight),
        Op::RotaryTable { theta } => tables::rotary_weights(theta),
        Op::RopeTable { base, .. } => tables::rope_weights(*base, out),
        Op::TimeEmbedding { dim } => tables::time_weights(*dim),
        op => Wanted::vectors(op.weights()),
    }
}

/// The dispatches of a step.
pub(crate) fn calls(o: &Operands<'_>) -> Vec<Call> {
    if !o.step.fused.heads.is_empty() {
        return vec![heads::call(o)];
    }
    match &o.step.node.op {
        Op::MatMul { .. } | Op::Conv1d { .. } => matmul::calls(o),
        Op::DepthwiseConv1d { .. } => rows::depthwise(o),
        Op::LayerNorm(_) => vec![rows::layer_norm(o)],
        Op::RmsNorm { .. } => vec![rows::rms_norm(o)],
        Op::Attention { .. } => vec![attention::call(o)],
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
        | Op::MaskRows => vec![pointwise::call(o)],
        Op::Rotary { .. } => vec![tables::rotary(o)],
        Op::RotaryTable { .. } => vec![tables::rotary_table(o)],
        Op::RopeTable { .. } => vec![tables::rope_table(o)],
        Op::TimeEmbedding { .. } => vec![tables::time_embedding(o)],
        Op::RandomNormal { .. } => vec![tables::random_normal(o)],
        Op::Sample { .. } => vec![sample::call(o)],
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
        | Op::SelectRow { .. } => movement::calls(o),
        Op::Reshape => vec![],
        Op::Pad { .. } => vec![encoders::pad(o)],
        Op::Statistics { .. } => vec![encoders::statistics(o)],
        Op::ResidualCodes { .. } => vec![encoders::residual_codes(o)],
    }
}

/// Weights of matmuls that may run as one, in the forms that their kernels read.
pub(crate) fn group(weights: &[orate_graph::Weight], can: Abilities<'_>) -> Vec<(orate_graph::Weight, Form)> {
    matmul::group(weights, can)
}

pub(crate) use movement::store;

/// The defines that say how rows of a cache are kept.
fn cache_rows(v: crate::variant::Variant, dtype: DType, fours: bool) -> crate::variant::Variant {
    v.flag("COMPACT", dtype.is_compact())
        .flag("F16", dtype == DType::F16)
        .flag("Q8_0", dtype == DType::Q8_0)
        .flag("FOURS", fours)
}

/// The defines that choose an activation, and whether there is one.
fn activation(v: crate::variant::Variant, a: Option<&Activation>) -> crate::variant::Variant {
    let number = a.map(Activation::number);
    let flag =
        |v: crate::variant::Variant, of: Activation<()>| v.flag(of.constant(), number == Some(of.number()));
    Activation::all(()).into_iter().fold(v.flag("ACTIVATE", a.is_some()), flag)
}

#[cfg(test)]
mod tests;
