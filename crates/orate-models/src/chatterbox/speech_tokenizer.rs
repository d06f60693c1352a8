//! Speech tokenizer: log-mel of a recording at 16 kHz to codes, 25 a second.
//!
//! ```text
//! log_mel        [1, F, 128]
//! convolutions   [1, T, D]       two of stride 2, each with GELU
//! blocks × 6     [1, T, D]       attention with rotary positions, + a memory of values; MLP
//! project_down   [1, T, 8]       `projected`
//! code           Σ dᵢ · 3ⁱ for dᵢ = round(0.999 · tanh) + 1, on the host ([`code`])
//! ```
//!
//! The memory is a convolution of each channel of the values, before they are divided into heads.
//!
//! S3Tokenizer v2 (CosyVoice 2, Du et al. 2024), with finite scalar quantization (Mentzer et al. 2023).
//! Weights below `tokenizer`.

use super::config::SpeechTokenizerConfig;
use crate::blocks::{Attention, Conv, Scope, tap_channels_first};
use orate_graph::{Activation, AttentionMask, ConvGeometry, DType, Graph, GraphError, Rows, Value, Weight};

type Result<T> = std::result::Result<T, GraphError>;

/// Log-mel features, `[1, F, 128]`.
pub const LOG_MEL: &str = "log_mel";
/// What codes are made of, `[1, T, 8]`.
pub const PROJECTED: &str = "projected";
/// Bands of the features.
pub const BANDS: usize = 128;
/// Numbers that a code is made of.
pub const DIGITS: usize = 8;

const EPS: f32 = 1e-5;
const ROPE_BASE: f64 = 10_000.0;
const MEMORY_TAPS: usize = 31;
/// Levels of a digit.
const LEVELS: i32 = 3;
/// Just below 1, so that a digit never rounds to a fourth level.
const ALMOST_ONE: f32 = 0.999;

/// Codes of a recording of `frames` frames of features.
pub fn codes(frames: usize) -> usize {
    frames.div_ceil(2).div_ceil(2)
}

/// Builds the network for `frames` frames of features. Reads [`LOG_MEL`]; writes [`PROJECTED`].
pub fn build(g: &mut Graph, c: &SpeechTokenizerConfig, frames: usize) -> Result<()> {
    let (all, d) = (Scope::new("tokenizer"), c.width);
    let w = all.at("encoder");
    let mut x = g.input(LOG_MEL, DType::F32, [1, frames, BANDS])?;
    for (name, inputs) in [("conv1", BANDS), ("conv2", d)] {
        x = Conv::new(&w, name, inputs, d, 3).with_stride(g, x, 2, 1)?;
        // The official module of a convolution ends before GELU.
        tap_channels_first(g, name, x)?;
        x = g.activate(x, Activation::Gelu)?;
    }
    let positions = g.rope_table(ROPE_BASE, codes(frames), d / c.heads, Rows::From(0))?;
    for i in 0..c.layers {
        x = block(g, &w.at(&format!("blocks.{i}")), c, x, positions)?;
        g.tap(&format!("block{i}"), x)?;
    }
    let x = all.linear(g, x, "quantizer._codebook.project_down", [d, DIGITS])?;
    g.output(PROJECTED, x)
}

fn block(
    g: &mut Graph,
    w: &Scope<'_>,
    c: &SpeechTokenizerConfig,
    x: Value,
    positions: Value,
) -> Result<Value> {
    let (d, heads) = (c.width, c.heads);
    let y = w.layer_norm(g, x, "attn_ln", EPS)?;
    let a = w.at("attn");
    let q = a.linear(g, y, "query", [d, d])?;
    let q = g.rotary(q, positions, heads)?;
    let k = g.matmul(y, a.matrix("key", d, d))?;
    let k = g.rotary(k, positions, heads)?;
    let v = a.linear(g, y, "value", [d, d])?;
    let taps = a.get("fsmn_block.weight", [d, 1, MEMORY_TAPS]).reshape([d, MEMORY_TAPS]).transpose();
    let geometry = ConvGeometry::symmetric(MEMORY_TAPS, 1).with_zeros();
    let memory = g.depthwise_conv1d(v, taps, Weight::fill(0.0, [d]), geometry)?;
    let memory = g.add(memory, v)?;
    let op = Attention::of_heads(heads, d).op(AttentionMask::None);
    let y = g.attention(op, q, k, v, None)?;
    let y = a.linear(g, y, "out", [d, d])?;
    let y = g.add(y, memory)?;
    let x = g.add(x, y)?;
    let y = w.layer_norm(g, x, "mlp_ln", EPS)?;
    let y = w.linear(g, y, "mlp.0", [d, 4 * d])?;
    let y = g.activate(y, Activation::Gelu)?;
    let y = w.linear(g, y, "mlp.2", [4 * d, d])?;
    g.add(x, y)
}

/// The code of a row of [`PROJECTED`].
pub fn code(row: &[f32]) -> i32 {
    let digit = |x: &f32| (x.tanh() * ALMOST_ONE).round_ties_even() as i32 + 1;
    row.iter().rev().fold(0, |code, x| code * LEVELS + digit(x))
}
