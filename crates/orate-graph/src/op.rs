//! The ops. Activations are channels-last: `[B, T, C]` is batch, time, channels.
//!
//! Ops come out of the builder in their plain form; passes fold bias, activation, residual and norm into the
//! op that makes the value, so that it is written once.

use crate::{Activation, DType, Shape, ValueInfo, Weight};

/// A number read at run time: position, time step, seed. It lives in device memory, never in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scalar(pub(crate) u32);

impl Scalar {
    /// Index into [`crate::Graph::scalars`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A factor: fixed in the plan, or read at run time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Factor {
    /// Known when the graph is built.
    Const(f32),
    /// A run-time scalar.
    Scalar(Scalar),
}

/// Where the first of several rows stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// Here, in every batch row.
    Const(usize),
    /// Where the op's last operand says, i32 `[B]`: a number for each batch row, not negative.
    Operand,
}

/// Ids of a vocabulary that are no codes but controls: all from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlIds {
    /// The first of them. None is ever drawn, but for `end`.
    pub first: usize,
    /// The one that ends an utterance.
    pub end: usize,
    /// Draws with a number below this do not end it.
    pub min_draws: usize,
}

/// Constants of [`Op::Sample`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleRules {
    /// Separates the random numbers of several draws with one number.
    pub codebook: u32,
    /// Ids that are not drawn, if there are any.
    pub controls: Option<ControlIds>,
    /// Whether the penalty comes after everything else.
    pub penalty_last: bool,
    /// An id that counts as seen in draw number 0, and only there.
    pub start: Option<usize>,
}

/// What a matmul does to each result before it is stored: `residual + activation(matmul + bias)`.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Epilogue {
    /// `[N]`
    pub bias: Option<Weight>,
    /// Pointwise function.
    pub activation: Option<Activation>,
    /// Whether the node's last input is added at the end.
    pub residual: bool,
}

/// What a convolution reads beyond the ends of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edges {
    /// The row at the end, again and again.
    Repeat,
    /// Zeros.
    Zero,
    /// Before the sequence the node's second operand, `[B, left, C]`; nothing after, so all padding is
    /// before. The operand is the end of what came before: zeros at the start of a stream, so that pieces of
    /// a sequence give what the whole would.
    History,
    /// As [`Edges::Repeat`], but each sequence has the length that the node's second operand says, i32 `[B]`,
    /// at least 1 and at most T: rows after it are read as its last row. Depthwise only.
    Lengths,
}

/// Taps of a convolution along time, and its padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvGeometry {
    /// Kernel size.
    pub taps: usize,
    /// Distance between taps.
    pub dilation: usize,
    /// Rows of padding before; the rest of `(taps - 1) · dilation` goes after, so lengths stay equal. With 0,
    /// a row depends on itself and later rows only.
    pub left: usize,
    /// What the padding is.
    pub edges: Edges,
}

impl ConvGeometry {
    /// Equal padding on both sides, which repeats the edges.
    pub fn symmetric(taps: usize, dilation: usize) -> Self {
        ConvGeometry { taps, dilation, left: (taps - 1) * dilation / 2, edges: Edges::Repeat }
    }

    /// All padding before, which repeats the first row.
    pub fn causal(taps: usize, dilation: usize) -> Self {
        ConvGeometry { taps, dilation, left: (taps - 1) * dilation, edges: Edges::Repeat }
    }

    /// Causal after a history of `left` rows.
    pub fn streaming(taps: usize, dilation: usize) -> Self {
        ConvGeometry { edges: Edges::History, ..Self::causal(taps, dilation) }
    }

    /// The same with zeros beyond both ends.
    pub fn with_zeros(self) -> Self {
        ConvGeometry { edges: Edges::Zero, ..self }
    }

    /// The same for sequences with lengths of their own.
    pub fn with_lengths(self) -> Self {
        ConvGeometry { edges: Edges::Lengths, ..self }
    }

    /// Whether the node has a second operand, the history.
    pub fn has_history(&self) -> bool {
        self.edges == Edges::History
    }
}

named! {
    /// What [`Op::Pad`] puts beyond the ends of a sequence.
    pub enum Padding {
        /// Zeros.
        Zero = "zero",
        /// The row at the end, again and again.
        Repeat = "repeat",
        /// The sequence mirrored at the row at the end, which is not repeated.
        Reflect = "reflect",
    }
}

/// Scale, shift and epsilon of a layer norm over the last axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Norm {
    /// `[C]`
    pub weight: Weight,
    /// `[C]`
    pub bias: Weight,
    /// Added to the variance.
    pub eps: f32,
}

/// Which keys a query may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionMask {
    /// All of them.
    None,
    /// Those at or before its own position; the last query stands at the last key.
    Causal,
    /// As many as this up to its own position, which is one of them; the last query stands at the last key.
    Window(usize),
    /// Those of a cache at or before its own position: key j stands at j, query i at `first + i`. What stands
    /// after is never used and may be anything.
    Cached(First),
    /// As [`AttentionMask::Window`], in a stream: the operand after v, i32 `[B]`, says how many rows of the
    /// stream came before the queries. Keys before its start are not seen and may be anything.
    Stream(usize),
}

impl AttentionMask {
    /// Keys that `queries` queries see at most, of `all`.
    fn keys(self, queries: usize, all: usize) -> usize {
        match self {
            AttentionMask::Window(seen) | AttentionMask::Stream(seen) => all.min(seen),
            AttentionMask::Cached(First::Const(first)) => all.min(first + queries),
            // A full cache: how much of it is filled is not known here.
            AttentionMask::None | AttentionMask::Causal | AttentionMask::Cached(First::Operand) => all,
        }
    }

    /// Whether the operand after v says where the queries stand, and so is not the lengths.
    pub fn has_positions(self) -> bool {
        matches!(self, AttentionMask::Cached(First::Operand) | AttentionMask::Stream(_))
    }
}

/// How Llama 3 stretches rotary positions to contexts longer than those of its first training.
///
/// A wave of `w = 2π / f` rows stays as it is where `w < length / high`. Where `w > length / low`, its
/// frequency f becomes `f / factor`. Between, it is `(1 − s) · f / factor + s · f` for `s = (length / w −
/// low) / (high − low)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeScaling {
    /// Stretch of long waves.
    pub factor: f64,
    /// Long waves fit the first context fewer times than this.
    pub low: f64,
    /// Short waves fit it more often than this.
    pub high: f64,
    /// Rows of the first context.
    pub length: usize,
}

impl RopeScaling {
    /// The frequency in place of `f`, both in radians per row.
    pub fn apply(&self, f: f64) -> f64 {
        let times = self.length as f64 * f / std::f64::consts::TAU;
        let s = ((times - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        (1.0 - s) * f / self.factor + s * f
    }
}

/// Radians per row of rotary positions, for heads of width `2 · half`.
pub fn rope_frequencies(base: f64, scaling: Option<RopeScaling>, half: usize) -> Vec<f64> {
    let frequency = |j: usize| base.powf(-(j as f64) / half as f64);
    let scaled = |f: f64| scaling.map_or(f, |s| s.apply(f));
    (0..half).map(|j| scaled(frequency(j))).collect()
}

/// Learned terms for key offsets `−window … window` (VITS encoder). Both tables are `[2·window + 1, D]`.
#[derive(Clone, Debug, PartialEq)]
pub struct RelativePositions {
    /// Added to the score: `(scale · q) · key[j − i + window]`, where i is the query's position among the
    /// keys.
    pub key: Weight,
    /// Added to the value: `p · value[j − i + window]`.
    pub value: Weight,
    /// Largest offset with a term.
    pub window: usize,
}

/// What a node computes. Shapes in the comments are inputs → output.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// ids `[B, T]` → `[B, T, C]`. Id −1 is the last row, −2 the one before.
    Embedding {
        /// `[V, C]`
        table: Weight,
    },
    /// ids `[B, T, N]` → `[B, T, C]`: the sum of a row of each of Q tables, `Σ tables[q, ids[first + q]]`.
    /// Ids count from 0.
    EmbeddingSum {
        /// `[Q, V, C]`
        tables: Weight,
        /// The id of the first table; `first + Q ≤ N`.
        first: usize,
    },
    /// A weight as a value; its first axis may be repeated.
    Constant {
        /// `[1, …]` or the output shape.
        weight: Weight,
    },
    /// `[…, K]` → `[…, N]`
    MatMul {
        /// `[K, N]`
        weight: Weight,
        /// Applied to the matmul.
        epilogue: Epilogue,
    },
    /// `[B, T, C]`, history (see the geometry) → `[B, T, N]`
    Conv1d {
        /// `[taps · C, N]`, tap-major rows.
        weight: Weight,
        /// Taps and padding.
        geometry: ConvGeometry,
        /// Applied to the matmul.
        epilogue: Epilogue,
    },
    /// `[B, T, C]`, history or lengths (see the geometry) → `[B, T, C]`, each channel with its own taps.
    DepthwiseConv1d {
        /// `[taps, C]`
        weight: Weight,
        /// `[C]`
        bias: Weight,
        /// Taps and padding.
        geometry: ConvGeometry,
        /// Layer norm of each row of the result.
        norm: Option<Norm>,
    },
    /// `[…, C]` → `[…, C]`
    LayerNorm(Norm),
    /// `[…, C]` → `[…, C]`: `x / √(mean(x²) + eps) · weight`
    RmsNorm {
        /// `[C]`
        weight: Weight,
        /// Added to the mean square.
        eps: f32,
    },
    /// `[…, C]` → `[…, C]`: `x + gain · sin²(frequency · x)`, periodic and never falling where the gain is
    /// small enough.
    Snake {
        /// `[C]`
        frequency: Weight,
        /// `[C]`
        gain: Weight,
    },
    /// x `[…, C]` + weight `[C]`
    AddBias {
        /// `[C]`
        bias: Weight,
    },
    /// x `[…, C]` · scale `[C]` + shift `[C]`: a batch norm with running statistics.
    Affine {
        /// `[C]`
        scale: Weight,
        /// `[C]`
        shift: Weight,
    },
    /// `[…]` → `[…]`
    Activate(Activation),
    /// The sum of two values of one shape.
    Add,
    /// The product, element by element, of two values of one shape.
    Mul,
    /// x `[…, C]` + row `[C]` or `[1, C]`
    AddRow,
    /// x `[…, C]` · row `[C]` or `[1, C]`
    MulRow,
    /// `a · x + b · y` for two values of one shape.
    Combine {
        /// Factor of the first value.
        a: Factor,
        /// Factor of the second value.
        b: Factor,
    },
    /// `factor · x`
    Scale {
        /// The factor.
        factor: Factor,
    },
    /// q `[B, Tq, H·D]`, k and v `[B or 1, Tk, Hkv·D]`, lens (optional), one per row of k → `[B, Tq, H·D]`:
    /// `softmax(scale · q·k) · v` for each head, where H / Hkv heads of q after each other share one of k and
    /// v. With the mask of a cache, k and v may both be of a compact type; with [`crate::DType::Q8_0`] D is a
    /// multiple of 32. Keys at or past their row's length are not seen. Masks with positions read these, i32
    /// `[B]`, in place of lengths. After positions in a cache there may be what rows have in common, i32 `[B,
    /// 2]`: for each row, a row whose first keys and values are the same, and how many are. A device may read
    /// them in either.
    Attention {
        /// Heads.
        heads: usize,
        /// Factor of the scores.
        scale: f32,
        /// Which keys are seen.
        mask: AttentionMask,
        /// Learned relative terms.
        relative: Option<RelativePositions>,
        /// Whether operand 3, `[B, H, Tq, Tk]`, is added to the scaled scores, and lengths are operand 4;
        /// only without a mask and relative terms.
        bias: bool,
        /// Whether the precision of weights holds here too: where a device rounds weights, it may round these
        /// operands to as many bits, to f16 for blocks. Else it computes in f32.
        follows_weights: bool,
    },
    /// q `[B, T, H·D]`, p `[1, 2T − 1, H·D]` → `[B, H, T, T]`: scores of relative positions, for the bias of
    /// an attention. Row r of p stands for a key T − 1 − r rows before its query. For each head, query i and
    /// key j: `scale · q[i] · p[T − 1 − i + j]`. Where weights are `f16`, a device may round both operands,
    /// too.
    RelativeScores {
        /// Heads.
        heads: usize,
        /// Factor of the scores.
        scale: f32,
    },
    /// lens `[B]` (optional) → `[B or 1, 2, T, D / 2]`: cosines, then sines, of `t / length · theta`.
    RotaryTable {
        /// `[D / 2]`
        theta: Weight,
    },
    /// first `[B]` (if an operand) → `[B or 1, 2, T, D / 2]`: cosines, then sines, of `(first + t) ·
    /// f_j`, where `f_j = base^(−2j / D)`, or that scaled.
    RopeTable {
        /// 10,000 in most transformers, 1,000,000 in Qwen3.
        base: f64,
        /// For contexts longer than those of the first training.
        scaling: Option<RopeScaling>,
        /// Position of row 0.
        first: First,
    },
    /// x `[B, T, H·D]`, table `[B or 1, 2, T, D / 2]` → `[B, T, H·D]`: turns the halves of each head.
    Rotary {
        /// Heads.
        heads: usize,
    },
    /// x `[B, T, C]`, lens `[B]` → rows at or past the length become zero.
    MaskRows,
    /// Joins values along an axis, floats or integers.
    Concat {
        /// The axis.
        axis: usize,
    },
    /// `start … start + len` of an axis, floats or integers.
    Slice {
        /// The axis.
        axis: usize,
        /// First index.
        start: usize,
        /// Number of indices.
        len: usize,
    },
    /// The same elements in another shape, floats or integers; costs nothing.
    Reshape,
    /// `[B, T, C]` → `[B, before + T + after, C]`: rows beyond the ends of each sequence.
    Pad {
        /// What they are.
        padding: Padding,
        /// Rows before.
        before: usize,
        /// Rows after.
        after: usize,
    },
    /// x `[B, T, C]`, scores `[B, T, C]` (optional) → `[B, 2C]`: mean, then standard deviation, of each
    /// channel over time, where row t counts with weight `softmax(scores)` over time, or 1 / T. With weights
    /// p that add up to 1 the deviation is `√max(Σ p · (x − mean)², floor)`.
    Statistics {
        /// Least variance.
        floor: f32,
    },
    /// x `[B, T, E]` → i32 `[B, T, Q]`: the entry of each of Q codebooks that is nearest, by Euclidean
    /// distance, to what the entries before it leave of a row. Of equally near ones the first counts.
    ResidualCodes {
        /// `[Q, V, E]`
        codebooks: Weight,
    },
    /// frames `[B, F, N]` → `[B, (F − 1) · hop]`: frames `hop` samples apart, added where they overlap and
    /// divided by the sum of the squared window there; N / 2 samples at each end are left out. With frames
    /// that were multiplied by the window, the second half of a centered inverse STFT.
    OverlapAdd {
        /// `[N]`
        window: Weight,
        /// Samples from one frame to the next, 1 to N.
        hop: usize,
    },
    /// gates `[B, T, 4H]` → `[B, T, H]`: an LSTM from a zero state. With `i, f, g, o = gates[t] + h[t − 1] ·
    /// weight`, blocks of H columns, `c[t] = σ(f) · c[t − 1] + σ(i) · tanh(g)` and the result `h[t] = σ(o) ·
    /// tanh(c[t])`. The gates are the matmul of the input, with both biases.
    Lstm {
        /// `[H, 4H]`
        weight: Weight,
    },
    /// `[B, T, C]` → `[B, T, C]`: each row becomes the mean of its segment, `rows` rows of its sequence. The
    /// last segment has those that are left.
    SegmentMean {
        /// Rows of a segment.
        rows: usize,
    },
    /// f0 `[B, T, 1]` in Hz, phases `[B, H]` in radians, noise `[B, T · hop, H]` → `[B, T · hop, H]`: the
    /// source signal of a vocoder, a sine for each of H harmonics. Each f0 holds for `hop` samples. Column h,
    /// from 0:
    ///
    /// * `r = f0 · (h + 1) / rate` cycles per sample, both operations rounded to f32.
    /// * `cycles`: the sum of r up to and with the sample, in f64, then rounded to f32, then modulo 1.
    /// * Where `f0 > 10`: `0.1 · sin(2π · cycles + phases[h]) + 0.003 · noise`; elsewhere `0.1 / 3 · noise`.
    HarmonicSource {
        /// Samples of a frame.
        hop: usize,
        /// Samples per second.
        rate: usize,
    },
    /// Output axis `i` is input axis `perm[i]`.
    Permute {
        /// Input axis of each output axis.
        perm: Vec<usize>,
    },
    /// times `[N]` in 0…1 → `[N, dim]`: sines, then cosines, of `1000 · t · 10000^(−j / (dim/2 − 1))`.
    TimeEmbedding {
        /// Width of the result.
        dim: usize,
    },
    /// x `[N, C]` → `[1, C]`, the row that a scalar names.
    SelectRow {
        /// Which row.
        index: Scalar,
    },
    /// Nothing → normal numbers times `scale` (Philox; see the kernel for the stream).
    RandomNormal {
        /// 64-bit seed.
        seed: Scalar,
        /// Standard deviation.
        scale: f32,
    },
    /// x `[B, N, C]`, index i32 `[B]` → `[B, 1, C]`: row `index` of each batch row, and past the end the last
    /// row.
    RowAt,
    /// i32 `[…]` → i32 `[…]`: `x + by`, modulo 2³².
    Increment {
        /// What is added.
        by: i32,
    },
    /// state `[B, N, C]`, rows `[B, T, C]`, first `[B]` (if an operand) → the state with
    /// rows `first … first + T` replaced. A state of a compact type gets them rounded; in
    /// [`crate::DType::Q8_0`] a scale is `f16(min(largest / 127, 65504))` and a byte
    /// `round(x · (1 / scale))`, cut to −127 … 127, or 0 where the scale is 0.
    ///
    /// In place: the result is the state's own memory, nothing is copied, and what the state held before
    /// cannot be read any more.
    WriteRows {
        /// Where the first row goes; `first + T ≤ N`.
        first: First,
    },
    /// seen `[B, V]`, a state, and ids i32 `[B, 1]` → the state with a 1 at each batch row's id, and none for
    /// [`NO_ID`]. In place, as `WriteRows`.
    Mark,
    /// logits `[B, V]` or `[B, 2, V]`, settings `[B, S]`, seed i32 `[B, 2]`, draw i32 `[B]`, seen `[B, V]`
    /// (optional) → ids i32 `[B, 1]`.
    ///
    /// Settings are the first S of temperature, k, p, penalty, min-p and guidance ([`SAMPLE_SETTINGS`]), four
    /// at least; those past S are 0, which is off. For each row, in this order and in f32:
    ///
    /// 0. Of `[2, V]` the second row is unconditional: logits become `c + guidance · (c − u)`.
    /// 1. Where `seen` is not 0, and in draw number 0 for the id `start`, a negative logit is multiplied by
    ///    the penalty, another one divided by it.
    /// 2. Control ids are left out.
    /// 3. At temperature 0 the id with the largest logit is the result, the lowest of several, and nothing
    ///    else happens.
    /// 4. Logits are divided by the temperature.
    /// 5. Those below the k-th largest are left out, if k is not 0; so all that equal it stay. Then, if min-p
    ///    is not 0, those below `largest + ln(min-p)`: ids that are less likely than min-p times the most
    ///    likely one.
    /// 6. If p < 1: ids are sorted by logit, largest first, equal ones by id. Those are left out before which
    ///    probabilities (the softmax of what is left) sum up to p or more. The first one stays. Then, with
    ///    `penalty_last`, step 1 for what is left, unless the temperature is 0: only then it came first.
    /// 7. The result is the id with the largest `logit − ln(−ln u)`, the lowest of several. So it is drawn
    ///    from the softmax of what is left. `u = (⌊w / 2⁹⌋ + ½) · 2⁻²³`, where w is word `id mod 4` of
    ///    Philox4x32-10 with key = seed and counter = (⌊id / 4⌋, codebook, draw, 1).
    ///
    /// A row of which a logit is not a number gives [`NO_ID`]: other rows go on, and the caller checks ids.
    Sample(SampleRules),
}

/// Settings that [`Op::Sample`] knows: temperature, k, p, penalty, min-p and guidance.
pub const SAMPLE_SETTINGS: usize = 6;

/// All settings of [`Op::Sample`], of which a row has the first ones. The others are off.
pub fn sample_settings(row: &[f32]) -> [f32; SAMPLE_SETTINGS] {
    std::array::from_fn(|i| row.get(i).copied().unwrap_or(0.0))
}

/// The id of a draw that has none. As an id of a table it is the last row.
pub const NO_ID: i32 = -1;

/// Gives every op its name. The match has no wildcard, so the build fails until a new op is here.
macro_rules! names {
    ($($op:ident)+) => {
        impl Op {
            /// The names of all ops.
            pub const NAMES: &[&str] = &[$(stringify!($op)),+];

            /// Name in plans and errors.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Op::$op { .. } => stringify!($op),)+
                }
            }
        }
    };
}

names! {
    Embedding EmbeddingSum Constant MatMul Conv1d DepthwiseConv1d LayerNorm RmsNorm Snake AddBias Affine
    Activate Add Mul AddRow MulRow Combine Scale Attention RelativeScores RotaryTable RopeTable Rotary
    MaskRows Concat Slice Reshape Pad Statistics ResidualCodes OverlapAdd Lstm SegmentMean HarmonicSource
    Permute TimeEmbedding SelectRow RandomNormal RowAt Increment WriteRows Mark Sample
}

/// What plans and devices ask of an op.
struct Facts<'a> {
    /// Weights it reads, in a fixed order.
    weights: Vec<&'a Weight>,
    /// Operations for each element of the result; see [`Op::flops`].
    flops: u64,
    reads: Reads,
    /// Type of the result's elements; `None` is that of operand 0.
    result: Option<DType>,
}

/// Elements that are read in one run.
enum Reads {
    /// All operands and weights.
    All,
    /// This many for each element of the result.
    PerElement(u64),
    /// All weights.
    Weights,
}

/// An op that reads these weights, does `flops` operations for each element of its result, and makes floats.
fn facts<'a>(weights: impl IntoIterator<Item = &'a Weight>, flops: u64) -> Facts<'a> {
    let weights = weights.into_iter().collect();
    Facts { weights, flops, reads: Reads::All, result: Some(DType::F32) }
}

impl Facts<'_> {
    fn reads(self, reads: Reads) -> Self {
        Facts { reads, ..self }
    }

    fn makes(self, result: impl Into<Option<DType>>) -> Self {
        Facts { result: result.into(), ..self }
    }
}

impl Epilogue {
    fn weights(&self) -> impl Iterator<Item = &Weight> {
        self.bias.iter().chain(self.activation.as_ref().and_then(Activation::slope))
    }

    /// Operations per element.
    fn flops(&self) -> u64 {
        let ones = u64::from(self.bias.is_some()) + u64::from(self.residual);
        ones + self.activation.as_ref().map_or(0, Activation::flops)
    }
}

impl Op {
    /// Everything that follows from the op alone. Without a wildcard, as in `names`.
    fn facts(&self) -> Facts<'_> {
        match self {
            Op::Embedding { table } => facts([table], 0).reads(Reads::PerElement(1)),
            Op::EmbeddingSum { tables, .. } => {
                let count = tables.shape().dims().first().map_or(0, |q| *q as u64);
                facts([tables], count).reads(Reads::PerElement(count))
            }
            Op::Constant { weight } => facts([weight], 0).reads(Reads::Weights),
            Op::MatMul { weight, epilogue: e } | Op::Conv1d { weight, epilogue: e, .. } => {
                let k = weight.shape().dims().first().map_or(0, |k| *k as u64);
                facts([weight].into_iter().chain(e.weights()), k.saturating_mul(2).saturating_add(e.flops()))
            }
            Op::DepthwiseConv1d { weight, bias, geometry, norm } => {
                let norm_weights = norm.iter().flat_map(|n| [&n.weight, &n.bias]);
                let flops = (geometry.taps as u64).saturating_mul(2) + if norm.is_some() { 8 } else { 0 };
                facts([weight, bias].into_iter().chain(norm_weights), flops)
            }
            Op::LayerNorm(n) => facts([&n.weight, &n.bias], 8),
            Op::RmsNorm { weight, .. } => facts([weight], 4),
            Op::Snake { frequency, gain } => facts([frequency, gain], 20),
            Op::AddBias { bias } => facts([bias], 1),
            Op::Affine { scale, shift } => facts([scale, shift], 2),
            Op::Activate(a) => facts(a.slope(), a.flops()),
            Op::Add | Op::Mul | Op::AddRow | Op::MulRow | Op::Scale { .. } | Op::SegmentMean { .. } => {
                facts([], 1)
            }
            Op::Combine { .. } | Op::Rotary { .. } => facts([], 3),
            Op::Attention { relative, .. } => facts(relative.iter().flat_map(|r| [&r.key, &r.value]), 0),
            Op::RotaryTable { theta } => facts([theta], 20),
            Op::RopeTable { .. }
            | Op::TimeEmbedding { .. }
            | Op::RandomNormal { .. }
            | Op::HarmonicSource { .. } => facts([], 20),
            Op::RelativeScores { .. } => facts([], 0),
            Op::MaskRows | Op::Pad { .. } | Op::Permute { .. } | Op::Statistics { .. } | Op::Mark => {
                facts([], 0)
            }
            Op::Concat { .. } | Op::Reshape | Op::WriteRows { .. } => facts([], 0).makes(None),
            Op::Slice { .. } => facts([], 0).reads(Reads::PerElement(1)).makes(None),
            Op::ResidualCodes { codebooks } => facts([codebooks], 0).makes(DType::I32),
            Op::OverlapAdd { window, hop } => {
                let frames = window.shape().len().div_ceil((*hop).max(1)) as u64;
                facts([window], 3 * frames + 1)
            }
            // Eight functions and products for each unit.
            Op::Lstm { weight } => {
                let h = weight.shape().dims().first().map_or(0, |h| *h as u64);
                facts([weight], h.saturating_mul(8).saturating_add(100))
            }
            Op::SelectRow { .. } | Op::RowAt => facts([], 0).reads(Reads::PerElement(1)),
            Op::Increment { .. } => facts([], 1).makes(DType::I32),
            Op::Sample { .. } => facts([], 0).makes(DType::I32),
        }
    }

    /// Arithmetic operations of one run.
    fn flops(&self, per_element: u64, inputs: &[&Shape], out: &Shape) -> u64 {
        match self {
            Op::Attention { heads, relative, mask, .. } => {
                let band = relative.as_ref().map_or(0, |r| 2 * r.window as u64 + 1);
                let keys = mask.keys(inputs[0].dims()[1], inputs[1].dims()[1]) as u64;
                let scores = out.rows() as u64 * *heads as u64 * keys;
                out.len() as u64 * 4 * (keys + band) + 20 * scores
            }
            Op::RelativeScores { heads, .. } => {
                2 * out.len() as u64 * (inputs[0].last() / heads.max(&1)) as u64
            }
            Op::Statistics { .. } => inputs.iter().map(|s| 10 * s.len() as u64).sum(),
            Op::ResidualCodes { codebooks } => {
                (codebooks.shape().len() as u64).saturating_mul(3) * out.rows() as u64
            }
            Op::Sample { .. } => 20 * inputs[0].len() as u64,
            _ => per_element * out.len() as u64,
        }
    }

    /// Whether the result is the first operand's memory, a state's, with some of it replaced.
    pub fn in_place(&self) -> bool {
        matches!(self, Op::WriteRows { .. } | Op::Mark)
    }

    /// Type of the result's elements, for operands that fit.
    pub(crate) fn result_type(&self, inputs: &[&ValueInfo]) -> DType {
        self.facts().result.unwrap_or_else(|| inputs[0].dtype)
    }

    /// The weights the op reads, in a fixed order.
    pub fn weights(&self) -> Vec<&Weight> {
        self.facts().weights
    }

    /// The name of the first weight, which says where in a network the op stands.
    pub fn label(&self) -> Option<&str> {
        self.weights().into_iter().find_map(|w| w.first_name())
    }

    /// The name with what was fused in, such as `MatMul+bias+gelu`.
    pub fn describe(&self) -> String {
        let mut s = self.name().to_owned();
        match self {
            Op::MatMul { epilogue, .. } | Op::Conv1d { epilogue, .. } => {
                if epilogue.bias.is_some() {
                    s += "+bias";
                }
                if let Some(a) = &epilogue.activation {
                    s = s + "+" + a.name();
                }
                if epilogue.residual {
                    s += "+residual";
                }
            }
            Op::DepthwiseConv1d { norm: Some(_), .. } => s += "+norm",
            Op::Activate(a) => s = format!("Activate {}", a.name()),
            Op::Pad { padding, .. } => s = format!("Pad {}", padding.name()),
            Op::Attention { relative: Some(_), .. } => s += "+relative",
            Op::Attention { bias: true, .. } => s += "+bias",
            _ => {}
        }
        s
    }

    /// Arithmetic and memory traffic of one run.
    pub fn cost(&self, operands: &[&ValueInfo], result: &ValueInfo) -> Cost {
        if *self == Op::Reshape {
            return Cost::default();
        }
        let (inputs, output): (Vec<_>, _) = (operands.iter().map(|i| &i.shape).collect(), &result.shape);
        let facts = self.facts();
        let flops = self.flops(facts.flops, &inputs, output);
        if self.in_place() {
            // As much is written as is read: the rows, or a mark for each id.
            let read = 4 * inputs[1].len();
            let row = if *self == Op::Mark { 4 } else { result.dtype.row_bytes(output.last()) };
            return Cost { flops, bytes: (read + row * inputs[1].rows()) as u64 };
        }
        let out = output.len() as u64;
        let weights: u64 = facts.weights.iter().map(|w| w.shape().len() as u64).sum();
        let read: u64 = match facts.reads {
            Reads::All => inputs.iter().map(|s| s.len() as u64).sum::<u64>() + weights,
            Reads::PerElement(n) => n * out,
            Reads::Weights => weights,
        };
        // Operands of compact elements are read as they are, if they are read as a whole.
        let compact = operands.iter().filter(|i| matches!(facts.reads, Reads::All) && i.dtype.is_compact());
        let saved: usize = compact.map(|i| 4 * i.shape.len() - i.dtype.bytes_of(&i.shape)).sum();
        Cost { flops, bytes: 4 * (read + out) - saved as u64 }
    }
}

/// What a step must do at the least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Arithmetic operations; a multiply-add is two.
    pub flops: u64,
    /// Bytes read and written when every operand is touched once.
    pub bytes: u64,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.flops += other.flops;
        self.bytes += other.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_waves_are_stretched() {
        // Chatterbox: published in four or five digits.
        let llama = RopeScaling { factor: 8.0, low: 1.0, high: 4.0, length: 8192 };
        let (plain, scaled) = (rope_frequencies(5e5, None, 32), rope_frequencies(5e5, Some(llama), 32));
        assert_eq!(plain[..15], scaled[..15]);
        for (j, want) in [(15, 1.3719e-3), (16, 5.2485e-4), (17, 1.7851e-4), (31, 3.7673e-7)] {
            assert!((scaled[j] / want - 1.0).abs() < 5e-5, "{j}: {}", scaled[j]);
        }
        assert_eq!(scaled[31], plain[31] / 8.0);
    }
}
