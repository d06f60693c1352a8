//! Tolerances of f32 results relative to double precision, with their reasons.
//!
//! All limits are errors relative to the **largest magnitude** of the expected tensor, as
//! [`crate::compare()`] measures them: a small element among large ones cannot be better than its neighbors'
//! rounding. A limit is loosened in a commit of its own, with the measurement that requires it.

use orate_graph::{DType, Epilogue, Graph, Op, Precision};

/// Half an f32 ulp at 1: the cost of storing a correct result.
pub const ROUNDING: f64 = 1.0 / 16_777_216.0;

/// Ops that only move elements give the same bits.
pub const MOVED: f64 = 0.0;

/// Sums, products and selections of a few terms: one rounding each, and the store.
pub const ELEMENTWISE: f64 = 4.0 * ROUNDING;

/// Exponentials, error functions and tangents by f32 polynomials: 3 ulp of the result, plus the rounding of
/// the argument times the slope (below 5 for the functions and ranges tested here).
pub const TRANSCENDENTAL: f64 = 16.0 * ROUNDING;

/// A row norm: mean and variance carry the rounding of a sum in vector lanes, and `x − mean` loses the ratio
/// of mean to deviation (up to 4 in the cases).
pub const NORM: f64 = 32.0 * ROUNDING;

/// Angles up to 1000, computed in double precision or reduced as carefully: absolute error of a sine.
pub const ANGLE: f64 = 8.0 * ROUNDING;

/// An LSTM whose gates are half open on average: errors of the five functions in a step, which the next steps
/// halve, and which the recurrent weights of the cases (of norm 1 or less) do not amplify.
pub const RECURRENT: f64 = 4.0 * TRANSCENDENTAL;

/// A sine of an angle up to 2π plus a phase up to π, both rounded (half an ulp of 8 is 4 ulps of 1): of the
/// largest amplitude, a tenth.
pub const SOURCE: f64 = 24.0 * ROUNDING;

/// Normal random numbers: the stream promises about 1e-6 to 2e-6 absolute (angle, logarithm and root in f32,
/// up to 5.8 standard deviations), and the largest of a few numbers may be below 1.
pub const RANDOM: f64 = 64.0 * ROUNDING;

/// A whole network, every op in f32: onnxruntime and double precision differ by at most 3e-6 on full-size
/// random weights of Supertonic; twice that allows for another order of summation.
pub const NETWORK: f64 = 6e-6;

/// Noise to waveform. LayerNorm with the wrong epsilon shows as 4e-5 and tanh-GELU as 3e-5, so the limit must
/// stay below.
pub const END_TO_END: f64 = 2e-5;

/// A dot product of `k` terms summed in f32 in any order. Rounding errors add like a random walk along
/// partial sums that grow like one, so relative to the result they come to about `√k` roundings; the constant
/// covers the largest of many results.
pub fn product(k: usize) -> f64 {
    (4.0 + 3.0 * (k as f64).sqrt()) * ROUNDING
}

/// Largest distance between neighboring values of a compact type, for numbers up to 1. If the device's own
/// rounding error decides between two neighbors, the result may be either.
pub fn compact_step(dtype: DType) -> f64 {
    match dtype {
        DType::F32 | DType::I32 => 0.0,
        DType::F16 => 1.0 / 1024.0,
        DType::BF16 => 1.0 / 128.0,
        // The scale itself is rounded to f16.
        DType::Q8_0 => 1.0 / 127.0 + 1.0 / 1024.0,
    }
}

/// Additional error of a graph on a device that rounds the operands of attention where weights have this
/// precision ([`Op::Attention`]'s `follows_weights`): one rounding each for values, for their weights, and
/// for the scores in the exponents of these.
///
/// Roundings of many keys cancel: the largest error of tiles that round all three is 0.5 to 1.0 times one
/// rounding, so bfloat16 in place of f16, eight times as much, exceeds the limit. Formats of blocks say how
/// weights are stored; operands of attention have no blocks and are rounded to f16.
pub fn of_rounded_attention(graph: &Graph, precision: Precision) -> f64 {
    let rounding = match precision {
        Precision::F32 => 0.0,
        Precision::Bf16 => 2f64.powi(-8),
        _ => 2f64.powi(-11),
    };
    let rounded =
        graph.nodes().iter().filter(|n| matches!(n.op, Op::Attention { follows_weights: true, .. }));
    3.0 * rounding * rounded.count() as f64
}

/// Returns the limit for one op. `inputs` are the extents of its operands.
pub fn of_op(op: &Op, inputs: &[&[usize]]) -> f64 {
    let epilogue = |e: &Epilogue| {
        f64::from(u8::from(e.bias.is_some()) + u8::from(e.residual)) * ROUNDING
            + if e.activation.is_some() { TRANSCENDENTAL } else { 0.0 }
    };
    // No wildcard, so that a new op must get a limit here and cases in `cases`.
    match op {
        Op::Embedding { .. }
        | Op::Constant { .. }
        | Op::MaskRows
        | Op::Concat { .. }
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Reshape
        | Op::Permute { .. }
        | Op::SelectRow { .. }
        | Op::RowAt
        | Op::Increment { .. }
        | Op::WriteRows { .. }
        | Op::Mark
        | Op::Sample(_) => MOVED,
        Op::AddBias { .. }
        | Op::Affine { .. }
        | Op::Add
        | Op::Mul
        | Op::AddRow
        | Op::MulRow
        | Op::Combine { .. }
        | Op::Scale { .. }
        | Op::Rotary { .. } => ELEMENTWISE,
        Op::MatMul { weight, epilogue: e } | Op::Conv1d { weight, epilogue: e, .. } => {
            product(weight.shape().dims()[0]) + epilogue(e)
        }
        Op::DepthwiseConv1d { geometry, norm, .. } => {
            product(geometry.taps) + if norm.is_some() { 2.0 * NORM } else { 0.0 }
        }
        Op::LayerNorm(_) | Op::RmsNorm { .. } => NORM,
        // One rounding per additional table.
        Op::EmbeddingSum { tables, .. } => tables.shape().dims()[0] as f64 * ROUNDING,
        // The rounding of a frequency up to 4 times a number up to 100 shows in the sine.
        Op::Snake { .. } => TRANSCENDENTAL + ANGLE,
        Op::Activate(_) => TRANSCENDENTAL,
        // Scores, whose absolute error the exponential turns into a relative one, then the sum over keys.
        Op::Attention { heads, .. } => {
            2.0 * product(inputs[0][2] / heads) + product(inputs[1][1]) + TRANSCENDENTAL
        }
        Op::RelativeScores { heads, .. } => product(inputs[0][2] / heads),
        // Weights of about 1 / T, each with the error of an exponential, and a sum over time. A deviation is
        // the root of such a sum of squares, where the error of the mean counts twice.
        Op::Statistics { .. } => 2.0 * product(inputs[0][1]) + 2.0 * TRANSCENDENTAL,
        // Entries in the cases are too far apart for rounding to confuse them.
        Op::ResidualCodes { .. } => MOVED,
        // Two sums with one term per overlapping frame, and a quotient.
        Op::OverlapAdd { window, hop } => 2.0 * product(window.shape().len().div_ceil(*hop)) + ELEMENTWISE,
        // A sum relative to the largest mean, which may be small: numbers up to 1 of both signs cancel.
        Op::SegmentMean { rows } => 4.0 * product((*rows).min(inputs[0][1])),
        Op::HarmonicSource { .. } => SOURCE,
        Op::Lstm { weight } => product(weight.shape().dims()[0]) + RECURRENT,
        Op::RotaryTable { .. } | Op::RopeTable { .. } | Op::TimeEmbedding { .. } => ANGLE,
        Op::RandomNormal { .. } => RANDOM,
    }
}

/// Returns the limit for all outputs of a small graph: the sum of its ops' limits.
pub fn of_graph(graph: &Graph) -> f64 {
    graph
        .nodes()
        .iter()
        .map(|n| {
            let dims: Vec<&[usize]> = n.inputs.iter().map(|v| graph.shape(*v).dims()).collect();
            of_op(&n.op, &dims)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_shipping_sizes_stay_below_the_end_to_end_limit() {
        assert!(product(2048) < END_TO_END);
        assert!(product(1) >= ROUNDING);
        assert!(product(2048) > product(512));
    }
}
