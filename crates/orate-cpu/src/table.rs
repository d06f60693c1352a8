//! The kernel of each op.

use crate::kernels::attention::relative_scores;
use crate::kernels::{
    attention, copy, depthwise_conv1d, elementwise, gather, harmonic_source, integers, layer_norm, lstm,
    matmul, overlap_add, pad, permute, random, residual_codes, rms_norm, rotary, sample, segment_mean, snake,
    statistics, write_rows,
};
use crate::op::OpKernel;
use orate_graph::Op;

/// Returns the kernel of `op`. No wildcard: an op without an arm here does not compile.
pub(crate) fn kernel(op: &Op) -> Box<dyn OpKernel + '_> {
    match op {
        Op::Embedding { table } => Box::new(gather::Embedding { table }),
        Op::EmbeddingSum { tables, first } => Box::new(gather::EmbeddingSum { tables, first: *first }),
        Op::Constant { weight } => Box::new(copy::Constant { weight }),
        Op::MatMul { weight, epilogue } => Box::new(matmul::Product { weight, conv: None, epilogue }),
        Op::Conv1d { weight, geometry, epilogue } => {
            Box::new(matmul::Product { weight, conv: Some(*geometry), epilogue })
        }
        Op::DepthwiseConv1d { weight, bias, geometry, norm } => Box::new(depthwise_conv1d::DepthwiseConv1d {
            weight,
            bias,
            geometry: *geometry,
            norm: norm.as_ref(),
        }),
        Op::LayerNorm(norm) => Box::new(layer_norm::Norm(norm)),
        Op::RmsNorm { weight, eps } => Box::new(rms_norm::RmsNorm { weight, eps: *eps }),
        Op::Snake { frequency, gain } => Box::new(snake::Snake { frequency, gain }),
        Op::AddBias { bias } => Box::new(elementwise::AddBias { bias }),
        Op::Affine { scale, shift } => Box::new(elementwise::Affine { scale, shift }),
        Op::Activate(f) => Box::new(elementwise::Activate(f)),
        Op::Add => Box::new(elementwise::Add),
        Op::Mul => Box::new(elementwise::Mul),
        Op::AddRow => Box::new(elementwise::AddRow),
        Op::MulRow => Box::new(elementwise::MulRow),
        Op::Combine { a, b } => Box::new(elementwise::Combine { a: *a, b: *b }),
        Op::Scale { factor } => Box::new(elementwise::Scale { factor: *factor }),
        Op::Attention { heads, scale, mask, relative, bias, follows_weights } => Box::new(attention::Op {
            heads: *heads,
            scale: *scale,
            mask: *mask,
            relative: relative.as_ref(),
            bias: *bias,
            follows_weights: *follows_weights,
        }),
        Op::RelativeScores { heads, scale } => Box::new(relative_scores::Op { heads: *heads, scale: *scale }),
        Op::RotaryTable { theta } => Box::new(rotary::RotaryTable { theta }),
        Op::RopeTable { base, scaling, first } => {
            Box::new(rotary::RopeTable { base: *base, scaling: *scaling, first: *first })
        }
        Op::Rotary { heads } => Box::new(rotary::Rotary { heads: *heads }),
        Op::MaskRows => Box::new(elementwise::MaskRows),
        Op::Concat { axis } => Box::new(copy::Concat { axis: *axis }),
        Op::Slice { axis, start, .. } => Box::new(copy::Slice { axis: *axis, start: *start }),
        Op::Reshape => unreachable!("a view of its operand in every plan"),
        Op::Pad { padding, before, .. } => Box::new(pad::Pad { padding: *padding, before: *before }),
        Op::Statistics { floor } => Box::new(statistics::Statistics { floor: *floor }),
        Op::ResidualCodes { codebooks } => Box::new(residual_codes::ResidualCodes { codebooks }),
        Op::OverlapAdd { window, hop } => Box::new(overlap_add::OverlapAdd { window, hop: *hop }),
        Op::Lstm { weight } => Box::new(lstm::Lstm { weight }),
        Op::SegmentMean { rows } => Box::new(segment_mean::SegmentMean { rows: *rows }),
        Op::HarmonicSource { hop, rate } => {
            Box::new(harmonic_source::HarmonicSource { hop: *hop, rate: *rate })
        }
        Op::Permute { perm } => Box::new(permute::Permute { perm }),
        Op::TimeEmbedding { dim } => Box::new(elementwise::TimeEmbedding { dim: *dim }),
        Op::SelectRow { index } => Box::new(gather::SelectRow { index: *index }),
        Op::RandomNormal { seed, scale } => Box::new(random::RandomNormal { seed: *seed, scale: *scale }),
        Op::RowAt => Box::new(gather::RowAt),
        Op::Increment { by } => Box::new(integers::Increment { by: *by }),
        Op::WriteRows { first } => Box::new(write_rows::WriteRows { first: *first }),
        Op::Mark => Box::new(integers::Mark),
        Op::Sample(rules) => Box::new(sample::Sample(*rules)),
    }
}
