//! Table of ops: the kernels and dispatches of each.

mod attention;
mod attention_cooperative;
#[cfg(test)]
mod bench;
mod cooperative;
mod encoders;
mod heads;
mod matmul;
mod movement;
mod operands;
mod pointwise;
mod rows;
mod sample;
mod tables;

use crate::dispatch::Call;
use crate::gpu::Gpu;
use crate::weights::{Form, Wanted};
pub(crate) use operands::{Abilities, Operands};
use orate_graph::{DType, Fused, Fusions, Op, Plan, Rounding, Shape, Step, ValueInfo, Weight, WeightLoader};

/// Fusions that the kernels support, for weights that fit into a buffer together.
pub(crate) fn fusions(gpu: &Gpu) -> Fusions {
    Fusions {
        heads: true,
        attended_heads: &attention::GROUPS,
        attended_width: attention::prepared_width(Abilities::of(gpu)),
        views: true,
        draws: true,
        norm_activations: rows::FINISHED_WIDTH,
        // Padding of weights takes room as well.
        matmul_bytes: (gpu.largest_buffer / 2) as usize,
        ..matmul::fusions(Abilities::of(gpu))
    }
}

/// Implementation of an op: the name of its kernel in plans, or the reason why there is none; its weights in
/// the layouts that the kernel reads; and its dispatches.
pub(crate) struct OpKernel<'op> {
    pub name: Result<String, String>,
    weights: Weights<'op>,
    calls: Calls<'op>,
}

type Weights<'op> = Box<dyn Fn(&Shape, &dyn WeightLoader) -> Wanted + 'op>;
type Calls<'op> = Box<dyn Fn(&Operands<'_>) -> Vec<Call> + 'op>;

impl<'op> OpKernel<'op> {
    /// A kernel with one dispatch and no weights.
    fn one(name: impl Into<String>, call: impl Fn(&Operands<'_>) -> Call + 'op) -> Self {
        Self::checked(Ok(name.into()), call)
    }

    /// A kernel with one dispatch that does not support every size.
    fn checked(name: Result<String, String>, call: impl Fn(&Operands<'_>) -> Call + 'op) -> Self {
        Self::several(name, move |o| vec![call(o)])
    }

    /// A kernel with several dispatches.
    fn several(name: Result<String, String>, calls: impl Fn(&Operands<'_>) -> Vec<Call> + 'op) -> Self {
        OpKernel { name, weights: Box::new(|_, _| Wanted::default()), calls: Box::new(calls) }
    }

    /// Adds weights that depend on the shape of the result.
    fn reads(self, weights: impl Fn(&Shape, &dyn WeightLoader) -> Wanted + 'op) -> Self {
        OpKernel { weights: Box::new(weights), ..self }
    }

    /// Adds vectors in plain layout, stored together.
    fn vectors(self, weights: Vec<&'op Weight>) -> Self {
        self.reads(move |_, _| Wanted::vectors(weights.clone()))
    }

    /// Adds one weight in plain layout.
    fn matrix(self, weight: &'op Weight) -> Self {
        self.reads(|_, _| Wanted::matrix(weight))
    }
}

/// The table: one line for each op, with everything fused into it.
pub(crate) fn op_kernel<'op>(
    op: &'op Op,
    inputs: &[&ValueInfo],
    fused: &'op Fused,
    can: Abilities<'op>,
) -> OpKernel<'op> {
    use OpKernel as K;
    let weights = op.weights();
    if !fused.heads.is_empty() {
        return K::one("heads", heads::call).vectors(heads::norms(fused).collect());
    }
    match op {
        Op::MatMul { .. } | Op::Conv1d { .. } => {
            let name = Ok(matmul::name(op, inputs, fused, can));
            K::several(name, matmul::calls).reads(move |_, _| matmul::weights(op, fused, can))
        }
        Op::DepthwiseConv1d { geometry: g, norm: n, .. } => {
            let name = Ok(rows::depthwise_name(inputs, g.taps, n.is_some()).to_owned());
            K::several(name, |o| rows::depthwise(o, g, n.as_ref())).vectors(weights)
        }
        Op::LayerNorm(n) => K::one("layer-norm", |o| rows::layer_norm(o, n)).vectors(weights),
        Op::RmsNorm { eps, .. } => K::one("rms-norm", |o| rows::rms_norm(o, *eps)).vectors(weights),
        Op::Attention { heads, .. } => {
            let name = attention::name(op, inputs, fused, *heads, can);
            K::checked(name, attention::call).vectors(attention::weights(op, fused))
        }
        Op::RelativeScores { heads, scale } => {
            let name = attention::scores_name(inputs, *heads, can);
            K::one(name, |o| attention::relative_scores(o, *heads, *scale))
        }
        Op::AddBias { .. } => K::one("pointwise", |o| pointwise::call(o, "BIAS")).vectors(weights),
        Op::Affine { .. } => K::one("pointwise", |o| pointwise::call(o, "AFFINE")).vectors(weights),
        Op::Activate(a) => K::one("pointwise", |o| pointwise::activate(o, a)).vectors(weights),
        Op::Add => K::one("pointwise", |o| pointwise::call(o, "ADD")),
        Op::Mul => K::one("pointwise", |o| pointwise::call(o, "MUL")),
        Op::AddRow => K::one("pointwise", |o| pointwise::call(o, "ADD_ROW")),
        Op::MulRow => K::one("pointwise", |o| pointwise::call(o, "MUL_ROW")),
        Op::Combine { a, b } => K::one("pointwise", |o| pointwise::weighted(o, "COMBINE", [*a, *b])),
        Op::Scale { factor: f } => K::one("pointwise", |o| pointwise::scale(o, *f)),
        Op::MaskRows => K::one("mask", pointwise::mask_rows),
        Op::Snake { .. } => K::one("snake", |o| pointwise::call(o, "SNAKE")).vectors(weights),
        Op::Rotary { heads } => K::one("rotary", |o| tables::rotary(o, *heads)),
        Op::RotaryTable { theta } => {
            K::one("table", tables::rotary_table).reads(|_, _| tables::rotary_weights(theta))
        }
        Op::RopeTable { base, scaling, first } => K::one("table", |o| tables::rope_table(o, *first))
            .reads(|out, _| tables::rope_weights(*base, *scaling, out.last())),
        Op::TimeEmbedding { dim } => {
            K::one("table", tables::time_embedding).reads(|_, _| tables::time_weights(*dim))
        }
        Op::RandomNormal { seed, scale } => K::one("philox", |o| tables::random_normal(o, *seed, *scale)),
        Op::Sample(rules) => K::one("sample", |o| sample::call(o, rules)),
        Op::Embedding { table } => {
            K::one("gather", |o| movement::embedding(o, table)).reads(|_, s| Wanted::table(table, s))
        }
        Op::EmbeddingSum { tables: t, first } => {
            K::one("gather", |o| movement::embedding_sum(o, t, *first)).matrix(t)
        }
        Op::SelectRow { index } => K::one("copy", |o| movement::select_row(o, *index)),
        Op::RowAt => K::one("gather", movement::row_at),
        Op::Constant { weight } => K::one("copy", |o| movement::constant(o, weight)).matrix(weight),
        Op::Concat { axis } => K::several(movement::concat_name(inputs), |o| movement::concat(o, *axis)),
        Op::Slice { axis, start, .. } => K::one("copy", |o| movement::slice(o, *axis, *start)),
        Op::Permute { perm } => K::checked(movement::permute_name(perm), |o| movement::permute(o, perm)),
        Op::Increment { by } => K::one("increment", |o| movement::increment(o, *by)),
        Op::WriteRows { first } => K::one(movement::write_name(inputs), |o| movement::write(o, Some(*first))),
        Op::Mark => K::one("mark", |o| movement::write(o, None)),
        Op::Pad { padding, before, .. } => K::one("pad", |o| encoders::pad(o, *padding, *before)),
        Op::Statistics { floor } => K::one("statistics", |o| encoders::statistics(o, *floor)),
        Op::ResidualCodes { codebooks: c } => {
            K::checked(encoders::codes_name(c, can), |o| encoders::residual_codes(o, c)).matrix(c)
        }
        Op::OverlapAdd { window, hop } => {
            K::one("overlap-add", |o| encoders::overlap_add(o, *hop)).vectors(vec![window])
        }
        Op::Lstm { weight } => K::checked(encoders::lstm_name(weight, can), encoders::lstm).matrix(weight),
        Op::SegmentMean { rows } => K::one("segment-mean", |o| encoders::segment_mean(o, *rows)),
        Op::HarmonicSource { hop, rate } => {
            K::checked(encoders::source_name(inputs), |o| encoders::harmonic_source(o, *hop, *rate))
        }
        Op::Reshape => unreachable!("a view of its operand in every plan"),
    }
}

/// How the kernel of a launch handles values of 16 bits: on cooperative matrices attention reads them, and
/// matmuls store them.
pub(crate) fn rounding(op: &Op, inputs: &[&ValueInfo], fused: &Fused, can: Abilities<'_>) -> Rounding {
    match op {
        _ if !fused.heads.is_empty() => Rounding::default(),
        Op::MatMul { .. } | Op::Conv1d { .. }
            if matmul::stores_halves(op, inputs[0].shape.dims(), fused, can) =>
        {
            Rounding { writes: &[DType::F16], ..Rounding::default() }
        }
        Op::Attention { .. } => attention_cooperative::rounding(op, inputs, can),
        _ => Rounding::default(),
    }
}

/// Implementation of a step.
fn kernel_of<'a>(plan: &'a Plan, step: &'a Step, can: Abilities<'a>) -> OpKernel<'a> {
    let inputs: Vec<&ValueInfo> = step.node.inputs.iter().map(|v| plan.info(*v)).collect();
    op_kernel(&step.node.op, &inputs, &step.fused, can)
}

/// Weights of a step, in the layouts that its kernel reads.
pub(crate) fn weights(plan: &Plan, step: &Step, can: Abilities<'_>, source: &dyn WeightLoader) -> Wanted {
    (kernel_of(plan, step, can).weights)(&plan.info(step.node.output).shape, source)
}

/// Dispatches of a step.
pub(crate) fn calls(o: &Operands<'_>) -> Vec<Call> {
    (kernel_of(o.plan, o.step, o.can).calls)(o)
}

/// Weights of matmuls that may run as one, in the layouts that their kernels read.
pub(crate) fn group(weights: &[Weight], can: Abilities<'_>) -> Vec<(Weight, Form)> {
    matmul::group(weights, can)
}

pub(crate) use movement::store;
pub(crate) use sample::join_rows;

#[cfg(test)]
mod tests;
