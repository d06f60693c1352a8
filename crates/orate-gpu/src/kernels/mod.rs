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
use crate::cache_file;
use crate::dispatch::Call;
use crate::gpu::Gpu;
use crate::weights::{Form, Placed, Wanted};
use orate_graph::{
    Activation, DType, DeviceClass, Fused, Fusions, Op, Place, Plan, PrecisionPolicy, Shape, Step, Value,
    ValueInfo, WeightLoader,
};

const SOURCES: [(&str, &str); 37] = [
    ("activation", include_str!("../../kernels/activation.wgsl")),
    ("angles", include_str!("../../kernels/angles.wgsl")),
    ("attention", include_str!("../../kernels/attention.wgsl")),
    ("attention_odd", include_str!("../../kernels/attention_odd.wgsl")),
    ("attention_row", include_str!("../../kernels/attention_row.wgsl")),
    ("cache_rows", include_str!("../../kernels/cache_rows.wgsl")),
    ("copy", include_str!("../../kernels/copy.wgsl")),
    ("depthwise_conv1d", include_str!("../../kernels/depthwise_conv1d.wgsl")),
    ("elementwise", include_str!("../../kernels/elementwise.wgsl")),
    ("embedding_sum", include_str!("../../kernels/embedding_sum.wgsl")),
    ("gather", include_str!("../../kernels/gather.wgsl")),
    ("heads", include_str!("../../kernels/heads.wgsl")),
    ("layer_norm", include_str!("../../kernels/layer_norm.wgsl")),
    ("math", include_str!("../../kernels/math.wgsl")),
    ("matmul", include_str!("../../kernels/matmul.wgsl")),
    ("matmul_cooperative", include_str!("../../kernels/matmul_cooperative.wgsl")),
    ("matvec", include_str!("../../kernels/matvec.wgsl")),
    ("matvec_rows", include_str!("../../kernels/matvec_rows.wgsl")),
    ("norm_kept", include_str!("../../kernels/norm_kept.wgsl")),
    ("pad", include_str!("../../kernels/pad.wgsl")),
    ("philox", include_str!("../../kernels/philox.wgsl")),
    ("product", include_str!("../../kernels/product.wgsl")),
    ("random", include_str!("../../kernels/random.wgsl")),
    ("reduce", include_str!("../../kernels/reduce.wgsl")),
    ("reduce_inputs", include_str!("../../kernels/reduce_inputs.wgsl")),
    ("residual_codes", include_str!("../../kernels/residual_codes.wgsl")),
    ("rms_norm", include_str!("../../kernels/rms_norm.wgsl")),
    ("rotary", include_str!("../../kernels/rotary.wgsl")),
    ("round_rows", include_str!("../../kernels/round_rows.wgsl")),
    ("sample", include_str!("../../kernels/sample.wgsl")),
    ("statistics", include_str!("../../kernels/statistics.wgsl")),
    ("time_embedding", include_str!("../../kernels/time_embedding.wgsl")),
    ("weight", include_str!("../../kernels/weight.wgsl")),
    ("weight_rows", include_str!("../../kernels/weight_rows.wgsl")),
    ("write_cache", include_str!("../../kernels/write_cache.wgsl")),
    ("write_first", include_str!("../../kernels/write_first.wgsl")),
    ("write_rows", include_str!("../../kernels/write_rows.wgsl")),
];

/// The text of a kernel or of what kernels include.
pub(crate) fn source(name: &str) -> Option<&'static str> {
    SOURCES.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)
}

/// Changes when any kernel does.
pub(crate) fn sources_hash() -> u64 {
    SOURCES.iter().fold(0, |h, (_, text)| cache_file::hash(text.as_bytes()) ^ h.rotate_left(7))
}

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
        Op::DepthwiseConv1d { norm: Some(_), .. } => "depthwise-norm".to_owned(),
        Op::DepthwiseConv1d { .. } => "depthwise".to_owned(),
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
        Op::Constant { .. } | Op::Concat { .. } | Op::Slice { .. } | Op::SelectRow { .. } => {
            "copy".to_owned()
        }
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
pub(crate) use tables::{fixed_turns, rope_frequencies, time_frequencies};

/// The defines that say how rows of a cache are kept.
fn cache_rows(v: crate::pipelines::Variant, dtype: DType, fours: bool) -> crate::pipelines::Variant {
    v.flag("COMPACT", dtype.is_compact())
        .flag("F16", dtype == DType::F16)
        .flag("Q8_0", dtype == DType::Q8_0)
        .flag("FOURS", fours)
}

/// The defines that choose an activation, and whether there is one.
fn activation(v: crate::pipelines::Variant, a: Option<&Activation>) -> crate::pipelines::Variant {
    let number = a.map(Activation::number);
    let flag =
        |v: crate::pipelines::Variant, of: Activation<()>| v.flag(of.constant(), number == Some(of.number()));
    Activation::all(()).into_iter().fold(v.flag("ACTIVATE", a.is_some()), flag)
}

#[cfg(test)]
mod tests;
