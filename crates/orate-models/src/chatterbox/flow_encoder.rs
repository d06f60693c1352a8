//! Token encoder of the flow: speech codes to what the estimator is conditioned on.
//!
//! ```text
//! codes          i32 [R, N]      those of the prompt, then those to speak
//! table          [R, N, E]
//! embed          [R, N, D]       linear, layer norm, · √D
//! look-ahead     [R, N, D]       two convolutions, which see three codes ahead
//! blocks × 6     [R, N, D]       attention with relative positions, feed-forward
//! upsampling     [R, 2N, D]      each row twice, a causal convolution
//! embed, blocks × 4              as above
//! norm, linear   [R, 2N, 80]     mu
//! ```
//!
//! Of padded codes, those past a row's length change nothing before it: the look-ahead reads zeros there, and
//! attention does not see them.
//!
//! Relative positions: PE(o), the sines and cosines of the offset o between query and key, is projected like
//! a key. Row r of the input `offsets` is PE(T − 1 − r), see [`Offsets`]. The projection and the two learned
//! vectors added to queries are those of Transformer-XL (Dai et al. 2019).
//!
//! Official class: `UpsampleConformerEncoder` of CosyVoice. Weights below `flow`.

use super::config::{FRAMES_PER_CODE, FlowEncoderConfig, MEL, X_VECTOR};
use crate::blocks::{Conv, Scope, tap_channels_first};
use orate_graph::{Activation, AttentionMask, DType, Graph, GraphError, Norm, Op, Value, Weight};

type Result<T> = std::result::Result<T, GraphError>;

/// Codes, i32 `[R, N]`.
pub const CODES: &str = "codes";
/// Of padded codes, how many a row has, i32 `[R]`.
pub const CODE_LENGTHS: &str = "code_lengths";
/// Of padded codes, how many mel frames a row has, i32: `[R]`, or `[2R]` with guidance.
pub const FRAME_LENGTHS: &str = "frame_lengths";
/// X-vector of unit length, `[R, 192]`.
pub const X_VECTOR_INPUT: &str = "x_vector";
/// Relative positions before the upsampling, `[1, 2N − 1, D]`.
pub const OFFSETS: &str = "offsets";
/// Relative positions after it, `[1, 4N − 1, D]`.
pub const UPSAMPLED_OFFSETS: &str = "upsampled_offsets";
/// What is to be spoken, `[R, F, 80]`.
pub const MU: &str = "mu";
/// The speaker, `[R, 80]`.
pub const SPEAKER: &str = "speaker";

const EPS: f32 = 1e-5;
/// Epsilon of the norms in blocks.
const BLOCK_EPS: f32 = 1e-12;
/// Slope of the leaky ReLU.
const SLOPE: f32 = 0.01;
/// Taps of the convolutions of the look-ahead, and of that after the upsampling.
const TAPS: [usize; 3] = [4, 3, 5];

/// Sines and cosines of offsets between rows. They take longer to compute than the network takes on a GPU, so
/// those of the longest speech are kept.
#[derive(Default)]
pub struct Offsets {
    width: usize,
    /// Offsets from `time − 1` down to `1 − time`, `[2 · time − 1, width]`: column 2m is `sin(o · ω)`, 2m + 1
    /// is `cos(o · ω)` for `ω = 10000^(−2m / width)`.
    table: Vec<f32>,
    time: usize,
}

impl Offsets {
    /// Those between `time` rows, in the order of the table.
    pub fn of(&mut self, time: usize, width: usize) -> &[f32] {
        if width != self.width || time > self.time {
            // Room for somewhat longer speech.
            (self.width, self.time) = (width, time.next_multiple_of(256));
            let last = self.time as i64 - 1;
            let row = |offset: i64| {
                (0..width).map(move |i| {
                    // As the official code: the frequency is rounded, then its product with the offset.
                    let frequency = ((i / 2 * 2) as f32 * -(10_000f32.ln() / width as f32)).exp();
                    let angle = offset as f32 * frequency;
                    if i % 2 == 0 { angle.sin() } else { angle.cos() }
                })
            };
            self.table = (-last..=last).rev().flat_map(row).collect();
        }
        let first = (self.time - time) * width;
        &self.table[first..first + (2 * time - 1) * width]
    }
}

/// Rows of codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Speech of as many callers.
    pub rows: usize,
    /// Codes of a row, with those of the prompt.
    pub codes: usize,
    /// Whether [`CODE_LENGTHS`] and [`FRAME_LENGTHS`] tell codes from padding.
    pub is_padded: bool,
}

impl Rows {
    /// Mel frames of a row.
    pub fn frames(self) -> usize {
        FRAMES_PER_CODE * self.codes
    }

    /// The input with one of the lengths of `rows` rows.
    pub(super) fn lengths(self, g: &mut Graph, name: &str, rows: usize) -> Result<Option<Value>> {
        self.is_padded.then(|| g.input(name, DType::I32, [rows])).transpose()
    }
}

/// Builds the network, with `frames` the lengths in mel frames. Reads the inputs above; writes [`MU`] and
/// [`SPEAKER`], of F = 2N frames, which it returns.
pub fn build(g: &mut Graph, c: &FlowEncoderConfig, all: Rows, frames: Option<Value>) -> Result<[Value; 2]> {
    let (w, d) = (Scope::new("flow"), c.width);
    let Rows { rows, codes, .. } = all;
    let ids = g.input(CODES, DType::I32, [rows, codes])?;
    let lens = all.lengths(g, CODE_LENGTHS, rows)?;
    let x = g.embedding(ids, w.get("input_embedding.weight", [c.codes, c.embedding]))?;
    let e = w.at("encoder");
    let x = embed(g, &e.at("embed.out"), x, [c.embedding, d])?; // [R, N, D]
    g.tap("enc.embed", x)?;
    let x = g.mask_rows(x, lens)?;
    let mut x = look_ahead(g, &e.at("pre_lookahead_layer"), x, d)?;
    g.tap("enc.pre_lookahead", x)?;
    let at = g.input(OFFSETS, DType::F32, [1, 2 * codes - 1, d])?;
    for i in 0..c.blocks[0] {
        x = block(g, &e.at(&format!("encoders.{i}")), c, x, (at, lens))?;
        g.tap(&format!("enc.block{i}"), x)?;
    }
    let x = g.concat(&[x, x], 2)?;
    let x = g.reshape(x, [rows, all.frames(), d])?;
    let x = Conv::new(&e, "up_layer.conv", d, d, TAPS[2]).after_zeros(g, x)?; // [R, 2N, D]
    tap_channels_first(g, "enc.up_layer", x)?;
    let mut x = embed(g, &e.at("up_embed.out"), x, [d, d])?;
    g.tap("enc.up_embed", x)?;
    let at = g.input(UPSAMPLED_OFFSETS, DType::F32, [1, 2 * all.frames() - 1, d])?;
    for i in 0..c.blocks[1] {
        x = block(g, &e.at(&format!("up_encoders.{i}")), c, x, (at, frames))?;
        g.tap(&format!("enc.up_block{i}"), x)?;
    }
    let x = e.layer_norm(g, x, "after_norm", EPS)?;
    g.tap("enc.after_norm", x)?;
    let mu = w.linear(g, x, "encoder_proj", [d, MEL])?; // [R, 2N, 80]
    g.output(MU, mu)?;

    let x_vector = g.input(X_VECTOR_INPUT, DType::F32, [rows, X_VECTOR])?;
    let speaker = w.linear(g, x_vector, "spk_embed_affine_layer", [X_VECTOR, MEL])?;
    g.output(SPEAKER, speaker)?;
    Ok([mu, speaker])
}

/// `√D · norm(linear(x))`. The factor belongs to the official module of positions.
fn embed(g: &mut Graph, w: &Scope<'_>, x: Value, sizes: [usize; 2]) -> Result<Value> {
    let (x, factor) = (w.linear(g, x, "0", sizes)?, (sizes[1] as f32).sqrt());
    let (weight, bias) = (w.get("1.weight", [sizes[1]]), w.bias("1", sizes[1]));
    g.layer_norm(x, Norm { weight: weight.scale(factor), bias: bias.scale(factor), eps: EPS })
}

fn look_ahead(g: &mut Graph, w: &Scope<'_>, x: Value, d: usize) -> Result<Value> {
    let y = Conv::new(w, "conv1", d, d, TAPS[0]).before_zeros(g, x)?;
    let y = g.activate(y, Activation::PRelu(Weight::fill(SLOPE, [1])))?;
    let y = Conv::new(w, "conv2", d, d, TAPS[1]).after_zeros(g, y)?;
    g.add(y, x)
}

/// Relative positions, and lengths of rows.
type Places = (Value, Option<Value>);

fn block(g: &mut Graph, w: &Scope<'_>, c: &FlowEncoderConfig, x: Value, places: Places) -> Result<Value> {
    let (d, inner) = (c.width, c.inner);
    let y = w.layer_norm(g, x, "norm_mha", BLOCK_EPS)?;
    let y = attention(g, &w.at("self_attn"), c, y, places)?;
    let x = g.add(y, x)?;
    let y = w.layer_norm(g, x, "norm_ff", BLOCK_EPS)?;
    let w = w.at("feed_forward");
    let y = w.linear(g, y, "w_1", [d, inner])?;
    let y = g.activate(y, Activation::Silu)?;
    let y = w.linear(g, y, "w_2", [inner, d])?;
    g.add(y, x)
}

/// `softmax(((q + u) · k + (q + v) · p) / √Dh) · value`, where p is the key of the offset.
fn attention(
    g: &mut Graph,
    w: &Scope<'_>,
    c: &FlowEncoderConfig,
    x: Value,
    (offsets, lens): Places,
) -> Result<Value> {
    let (d, heads) = (c.width, c.heads);
    let scale = 1.0 / ((d / heads) as f32).sqrt();
    let learned = |name: &str| w.get(name, [heads, d / heads]).reshape([d]);
    let bias = |name: &str| w.bias("linear_q", d).add(&learned(name));
    let q = g.matmul(x, w.matrix("linear_q", d, d))?;
    let positioned = g.add_bias(q, bias("pos_bias_v"))?;
    let q = g.add_bias(q, bias("pos_bias_u"))?;
    let k = w.linear(g, x, "linear_k", [d, d])?;
    let v = w.linear(g, x, "linear_v", [d, d])?;
    let p = g.matmul(offsets, w.matrix("linear_pos", d, d))?;
    let scores = g.relative_scores(positioned, p, heads, scale)?;
    let op = Op::Attention {
        heads,
        scale,
        mask: AttentionMask::None,
        relative: None,
        bias: true,
        follows_weights: true,
    };
    let y = g.biased_attention(op, [q, k, v, scores], lens)?;
    w.linear(g, y, "linear_out", [d, d])
}
