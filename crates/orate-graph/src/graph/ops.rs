//! Building a graph: one method for each op, in the order of [`Op`].

use super::{Graph, Value};
use crate::op::*;
use crate::{Activation, Result, Shape, Weight};

impl Graph {
    /// Rows of a table: ids `[B, T]` → `[B, T, C]`.
    pub fn embedding(&mut self, ids: Value, table: Weight) -> Result<Value> {
        self.push(Op::Embedding { table }, &[ids], None)
    }

    /// The sum of a row of each of several tables; see [`Op::EmbeddingSum`].
    pub fn embedding_sum(&mut self, ids: Value, tables: Weight, first: usize) -> Result<Value> {
        self.push(Op::EmbeddingSum { tables, first }, &[ids], None)
    }

    /// A weight `[1, …]` as a value, repeated `batch` times along its first axis.
    pub fn constant(&mut self, weight: Weight, batch: usize) -> Result<Value> {
        let mut dims = weight.shape().dims().to_vec();
        if let Some(first) = dims.first_mut() {
            *first *= batch;
        }
        self.push(Op::Constant { weight }, &[], Some(dims.into()))
    }

    /// `[…, K]` · `[K, N]` → `[…, N]`
    pub fn matmul(&mut self, x: Value, weight: Weight) -> Result<Value> {
        self.push(Op::MatMul { weight, epilogue: Epilogue::default() }, &[x], None)
    }

    /// `x · weight + bias`
    pub fn linear(&mut self, x: Value, weight: Weight, bias: Weight) -> Result<Value> {
        let y = self.matmul(x, weight)?;
        self.add_bias(y, bias)
    }

    /// Convolution along time, weight `[taps · C, N]`: `[B, T, C]` → `[B, T, N]`.
    pub fn conv1d(&mut self, x: Value, weight: Weight, geometry: ConvGeometry) -> Result<Value> {
        self.push(Op::Conv1d { weight, geometry, epilogue: Epilogue::default() }, &[x], None)
    }

    /// Convolution along time after the rows of `history`, `[B, left, C]`; `geometry` is
    /// [`ConvGeometry::streaming`].
    pub fn conv1d_after(
        &mut self,
        history: Value,
        x: Value,
        weight: Weight,
        geometry: ConvGeometry,
    ) -> Result<Value> {
        self.push(Op::Conv1d { weight, geometry, epilogue: Epilogue::default() }, &[x, history], None)
    }

    /// Convolution of each channel with its own taps, weight `[taps, C]`.
    pub fn depthwise_conv1d(
        &mut self,
        x: Value,
        weight: Weight,
        bias: Weight,
        geometry: ConvGeometry,
    ) -> Result<Value> {
        self.push(Op::DepthwiseConv1d { weight, bias, geometry, norm: None }, &[x], None)
    }

    /// As [`Graph::depthwise_conv1d`] of sequences with these lengths, i32 `[B]`; `geometry` is
    /// [`ConvGeometry::with_lengths`].
    pub fn depthwise_conv1d_of(
        &mut self,
        lengths: Value,
        x: Value,
        weight: Weight,
        bias: Weight,
        geometry: ConvGeometry,
    ) -> Result<Value> {
        self.push(Op::DepthwiseConv1d { weight, bias, geometry, norm: None }, &[x, lengths], None)
    }

    /// As [`Graph::depthwise_conv1d`], after the rows of `history`; `geometry` is
    /// [`ConvGeometry::streaming`].
    pub fn depthwise_conv1d_after(
        &mut self,
        history: Value,
        x: Value,
        weight: Weight,
        bias: Weight,
        geometry: ConvGeometry,
    ) -> Result<Value> {
        self.push(Op::DepthwiseConv1d { weight, bias, geometry, norm: None }, &[x, history], None)
    }

    /// Layer norm over the last axis.
    pub fn layer_norm(&mut self, x: Value, norm: Norm) -> Result<Value> {
        self.push(Op::LayerNorm(norm), &[x], None)
    }

    /// `x / √(mean(x²) + eps) · weight` over the last axis.
    pub fn rms_norm(&mut self, x: Value, weight: Weight, eps: f32) -> Result<Value> {
        self.push(Op::RmsNorm { weight, eps }, &[x], None)
    }

    /// `x + gain · sin²(frequency · x)`, both `[C]`.
    pub fn snake(&mut self, x: Value, frequency: Weight, gain: Weight) -> Result<Value> {
        self.push(Op::Snake { frequency, gain }, &[x], None)
    }

    /// Adds `[C]` to every row.
    pub fn add_bias(&mut self, x: Value, bias: Weight) -> Result<Value> {
        self.push(Op::AddBias { bias }, &[x], None)
    }

    /// `x · scale + shift`, both `[C]`.
    pub fn affine(&mut self, x: Value, scale: Weight, shift: Weight) -> Result<Value> {
        self.push(Op::Affine { scale, shift }, &[x], None)
    }

    /// Applies a function to every element.
    pub fn activate(&mut self, x: Value, f: Activation) -> Result<Value> {
        self.push(Op::Activate(f), &[x], None)
    }

    /// Sum of two values of one shape.
    pub fn add(&mut self, a: Value, b: Value) -> Result<Value> {
        self.push(Op::Add, &[a, b], None)
    }

    /// The product of two values, element by element.
    pub fn mul(&mut self, a: Value, b: Value) -> Result<Value> {
        self.push(Op::Mul, &[a, b], None)
    }

    /// Adds the row `[1, C]` to every row of x.
    pub fn add_row(&mut self, x: Value, row: Value) -> Result<Value> {
        self.push(Op::AddRow, &[x, row], None)
    }

    /// Multiplies every row of x by the row `[1, C]`.
    pub fn mul_row(&mut self, x: Value, row: Value) -> Result<Value> {
        self.push(Op::MulRow, &[x, row], None)
    }

    /// `a · x + b · y`
    pub fn combine(&mut self, a: Factor, x: Value, b: Factor, y: Value) -> Result<Value> {
        self.push(Op::Combine { a, b }, &[x, y], None)
    }

    /// `factor · x`
    pub fn scale(&mut self, x: Value, factor: Factor) -> Result<Value> {
        self.push(Op::Scale { factor }, &[x], None)
    }

    /// Attention; see [`Op::Attention`]. `last` hides keys past each row's length, or is what a mask with
    /// positions reads, or the bias of the scores.
    pub fn attention(&mut self, op: Op, q: Value, k: Value, v: Value, last: Option<Value>) -> Result<Value> {
        self.push_with(op, &[q, k, v], last, None)
    }

    /// Attention of rows at `positions` of a cache, where `shared` says what rows have in common; see
    /// [`Op::Attention`].
    pub fn attention_in_common(
        &mut self,
        op: Op,
        [q, k, v]: [Value; 3],
        positions: Value,
        shared: Value,
    ) -> Result<Value> {
        self.push_with(op, &[q, k, v, positions], Some(shared), None)
    }

    /// Attention with a bias of the scores, in which `lens` hide keys past each row's length.
    pub fn biased_attention(
        &mut self,
        op: Op,
        [q, k, v, bias]: [Value; 4],
        lens: Option<Value>,
    ) -> Result<Value> {
        self.push_with(op, &[q, k, v, bias], lens, None)
    }

    /// Scores of queries with relative positions `[1, 2T − 1, H·D]`; see [`Op::RelativeScores`].
    pub fn relative_scores(&mut self, q: Value, p: Value, heads: usize, scale: f32) -> Result<Value> {
        self.push(Op::RelativeScores { heads, scale }, &[q, p], None)
    }

    /// Cosines and sines for [`Graph::rotary`] over `time` positions.
    pub fn rotary_table(
        &mut self,
        theta: Weight,
        batch: usize,
        time: usize,
        lens: Option<Value>,
    ) -> Result<Value> {
        let out = [batch, 2, time, theta.shape().len()].into();
        self.push_with(Op::RotaryTable { theta }, &[], lens, Some(out))
    }

    /// Cosines and sines for [`Graph::rotary`] at whole positions; see [`Op::RopeTable`].
    pub fn rope_table(&mut self, base: f64, time: usize, head_dim: usize, first: Rows) -> Result<Value> {
        self.rope_table_scaled(base, None, time, head_dim, first)
    }

    /// As [`Graph::rope_table`], with scaled frequencies.
    pub fn rope_table_scaled(
        &mut self,
        base: f64,
        scaling: impl Into<Option<RopeScaling>>,
        time: usize,
        head_dim: usize,
        first: Rows,
    ) -> Result<Value> {
        let batch = first.operand().map_or(1, |v| self.shape(v).len());
        let op = Op::RopeTable { base, scaling: scaling.into(), first: first.kind() };
        self.push_with(op, &[], first.operand(), Some([batch, 2, time, head_dim / 2].into()))
    }

    /// Turns the halves of each head by the angles of `table`.
    pub fn rotary(&mut self, x: Value, table: Value, heads: usize) -> Result<Value> {
        self.push(Op::Rotary { heads }, &[x, table], None)
    }

    /// Zeroes rows at or past each row's length; does nothing without lengths.
    pub fn mask_rows(&mut self, x: Value, lens: Option<Value>) -> Result<Value> {
        match lens {
            Some(lens) => self.push(Op::MaskRows, &[x, lens], None),
            None => Ok(x),
        }
    }

    /// Joins values along `axis`.
    pub fn concat(&mut self, values: &[Value], axis: usize) -> Result<Value> {
        self.push(Op::Concat { axis }, values, None)
    }

    /// `start … start + len` of `axis`.
    pub fn slice(&mut self, x: Value, axis: usize, start: usize, len: usize) -> Result<Value> {
        self.push(Op::Slice { axis, start, len }, &[x], None)
    }

    /// The same elements in another shape.
    pub fn reshape(&mut self, x: Value, shape: impl Into<Shape>) -> Result<Value> {
        self.push(Op::Reshape, &[x], Some(shape.into()))
    }

    /// `before` rows before and `after` rows after each sequence: `[B, T, C]` → `[B, before + T + after, C]`.
    pub fn pad(&mut self, x: Value, padding: Padding, before: usize, after: usize) -> Result<Value> {
        self.push(Op::Pad { padding, before, after }, &[x], None)
    }

    /// Mean and deviation over time, `[B, T, C]` → `[B, 2C]`; see [`Op::Statistics`].
    pub fn statistics(&mut self, x: Value, scores: Option<Value>, floor: f32) -> Result<Value> {
        self.push_with(Op::Statistics { floor }, &[x], scores, None)
    }

    /// Nearest entries of codebooks `[Q, V, E]`, `[B, T, E]` → `[B, T, Q]`; see [`Op::ResidualCodes`].
    pub fn residual_codes(&mut self, x: Value, codebooks: Weight) -> Result<Value> {
        self.push(Op::ResidualCodes { codebooks }, &[x], None)
    }

    /// Adds frames `[B, F, N]` where they overlap → `[B, (F − 1) · hop]`; see [`Op::OverlapAdd`].
    pub fn overlap_add(&mut self, frames: Value, window: Weight, hop: usize) -> Result<Value> {
        self.push(Op::OverlapAdd { window, hop }, &[frames], None)
    }

    /// An LSTM from a zero state, gates `[B, T, 4H]` → `[B, T, H]`; see [`Op::Lstm`].
    pub fn lstm(&mut self, gates: Value, weight: Weight) -> Result<Value> {
        self.push(Op::Lstm { weight }, &[gates], None)
    }

    /// The mean of its segment of `rows` rows in place of each row; see [`Op::SegmentMean`].
    pub fn segment_mean(&mut self, x: Value, rows: usize) -> Result<Value> {
        self.push(Op::SegmentMean { rows }, &[x], None)
    }

    /// Harmonics of f0 `[B, T, 1]` with noise `[B, T · hop, H]`; see [`Op::HarmonicSource`].
    pub fn harmonic_source(
        &mut self,
        f0: Value,
        phases: Value,
        noise: Value,
        hop: usize,
        rate: usize,
    ) -> Result<Value> {
        self.push(Op::HarmonicSource { hop, rate }, &[f0, phases, noise], None)
    }

    /// Output axis `i` is input axis `perm[i]`.
    pub fn permute(&mut self, x: Value, perm: &[usize]) -> Result<Value> {
        self.push(Op::Permute { perm: perm.to_vec() }, &[x], None)
    }

    /// Sines and cosines of times `[N]`.
    pub fn time_embedding(&mut self, times: Value, dim: usize) -> Result<Value> {
        self.push(Op::TimeEmbedding { dim }, &[times], None)
    }

    /// The row of `[N, C]` that a scalar names.
    pub fn select_row(&mut self, x: Value, index: Scalar) -> Result<Value> {
        self.push(Op::SelectRow { index }, &[x], None)
    }

    /// Normal numbers.
    pub fn random_normal(&mut self, shape: impl Into<Shape>, seed: Scalar, scale: f32) -> Result<Value> {
        self.push(Op::RandomNormal { seed, scale }, &[], Some(shape.into()))
    }

    /// Row `index` of each batch row of x, past the end the last one: `[B, N, C]`, i32 `[B]` → `[B, 1, C]`.
    pub fn row_at(&mut self, x: Value, index: Value) -> Result<Value> {
        self.push(Op::RowAt, &[x, index], None)
    }

    /// `x + by` of integers.
    pub fn increment(&mut self, x: Value, by: i32) -> Result<Value> {
        self.push(Op::Increment { by }, &[x], None)
    }

    /// Replaces rows of a state in place; see [`Op::WriteRows`]. What the state held before cannot be read
    /// any more.
    ///
    /// # Errors
    /// `state` is none, or not what it holds now; it is updated or stored as well; or the rows do not fit.
    pub fn write_rows(&mut self, state: Value, rows: Value, first: Rows) -> Result<Value> {
        self.push_with(Op::WriteRows { first: first.kind() }, &[state, rows], first.operand(), None)
    }

    /// Sets `seen[b, ids[b]]` to 1 in place; see [`Op::Mark`].
    ///
    /// # Errors
    /// As [`Graph::write_rows`].
    pub fn mark(&mut self, seen: Value, ids: Value) -> Result<Value> {
        self.push(Op::Mark, &[seen, ids], None)
    }

    /// Draws an id for each batch row; see [`Op::Sample`].
    pub fn sample(&mut self, op: Op, logits: Value, from: Draw, seen: Option<Value>) -> Result<Value> {
        self.push_with(op, &[logits, from.settings, from.seed, from.number], seen, None)
    }

    /// Adds a node whose last operand is optional.
    fn push_with(
        &mut self,
        op: Op,
        inputs: &[Value],
        last: Option<Value>,
        out: Option<Shape>,
    ) -> Result<Value> {
        let inputs: Vec<Value> = inputs.iter().copied().chain(last).collect();
        self.push(op, &inputs, out)
    }
}

/// Where the first of several rows stands: a [`First`] with its operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Here, in every batch row.
    From(usize),
    /// Where these say, i32 `[B]`.
    At(Value),
}

impl Rows {
    /// Those of a node, whose last operand is the number if there is one.
    pub(crate) fn of(first: First, inputs: &[Value]) -> Rows {
        match first {
            First::Const(at) => Rows::From(at),
            First::Operand => Rows::At(*inputs.last().expect("shape inference asks for the operand")),
        }
    }

    /// The same without the operand.
    pub fn kind(self) -> First {
        match self {
            Rows::From(first) => First::Const(first),
            Rows::At(_) => First::Operand,
        }
    }

    /// The operand, if there is one.
    pub fn operand(self) -> Option<Value> {
        match self {
            Rows::From(_) => None,
            Rows::At(v) => Some(v),
        }
    }
}

/// How ids are drawn: operands of [`Op::Sample`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// `[B, S]`, see [`Op::Sample`].
    pub settings: Value,
    /// i32 `[B, 2]`
    pub seed: Value,
    /// i32 `[B]`
    pub number: Value,
}
