//! Codec encoder: reference audio to codes, for cloning in context.
//!
//!   samples                   `[B, n]`           24 kHz
//!   causal conv, k 7          `[B, n, C]`        the widths double at every stride
//!   residual, ELU, conv × 4   `[B, ⌈n / 960⌉, 16C]`  strides 4, 5, 6, 8
//!   ELU, causal conv, k 3     `[B, T, D]`        `features`, 25 Hz
//!   transformer               `[B, T, D]`        causal
//!   downsample                `[B, F, D]`        stride 2, edges repeated; F = ⌈n / 1920⌉
//!   quantizers                `[B, F, Q]`        the nearest entries of Q codebooks
//!
//! This is Mimi's encoder. It is two networks, because the first half has long sequences and is causal: it
//! can read a long recording in pieces, whose features joined equal those of the whole.
//!
//! Official class: `Qwen3TTSTokenizerV2Encoder`, of `MimiModel`. Weights below `encoder`.

use super::config::{CodecConfig, CodecEncoderConfig, TransformerConfig};
use crate::blocks::{self, Conv, Past, Scope, fill_up, fold_time, tap_channels_first, tap_major};
use orate_graph::{
    Activation, AttentionMask, ConvGeometry, DType, Graph, GraphError, Padding, Rows, Value, Weight,
};

type Result<T> = std::result::Result<T, GraphError>;

/// Samples of a row of features. All pieces of a recording but the last have a multiple of it.
pub fn samples_per_feature(c: &CodecEncoderConfig) -> usize {
    c.upsampling_ratios.iter().product()
}

/// Builds the convolutions for `batch` sequences of `n` samples. Reads `samples` `[B, n]`; writes `features`
/// `[B, ⌈n / 960⌉, D]`. In a stream, `n` is a multiple of [`samples_per_feature`] except for the last piece.
pub fn features(g: &mut Graph, c: &CodecEncoderConfig, past: Past, batch: usize, n: usize) -> Result<()> {
    let w = Scope::new("encoder.encoder.layers");
    let samples = g.input("samples", DType::F32, [batch, n])?;
    let x = g.reshape(samples, [batch, n, 1])?;
    let mut channels = c.num_filters;
    let mut x = Conv::new(&w, "0.conv", 1, channels, c.kernel_size).causal(g, past, x, 1)?; // [B, n, C]
    for (i, stride) in c.upsampling_ratios.iter().rev().enumerate() {
        x = residual(g, &w.at(&(3 * i + 1).to_string()), c, past, x)?;
        let y = g.activate(x, Activation::Elu)?;
        let down = Conv::new(&w, &format!("{}.conv", 3 * i + 3), channels, 2 * channels, 2 * stride);
        x = down.strided(g, past, y)?; // [B, ⌈T / s⌉, 2C]
        channels *= 2;
    }
    let y = g.activate(x, Activation::Elu)?;
    let last = 3 * c.upsampling_ratios.len() + 2;
    let last =
        Conv::new(&w, &format!("{last}.conv"), channels, c.transformer.hidden_size, c.last_kernel_size);
    let x = last.causal(g, past, y, 1)?; // [B, T, D]
    tap_channels_first(g, "seanet", x)?;
    g.output("features", x)
}

/// `x + pointwise(elu(conv(elu(x))))`
fn residual(g: &mut Graph, w: &Scope<'_>, c: &CodecEncoderConfig, past: Past, x: Value) -> Result<Value> {
    let channels = g.shape(x).last();
    let inner = channels / c.compress;
    let y = g.activate(x, Activation::Elu)?;
    let y = Conv::new(w, "block.1.conv", channels, inner, c.residual_kernel_size).causal(g, past, y, 1)?;
    let y = g.activate(y, Activation::Elu)?;
    let y = Conv::new(w, "block.3.conv", inner, channels, 1).causal(g, past, y, 1)?;
    g.add(x, y)
}

/// Builds the second half for `batch` sequences of `time` rows of features. Reads `features` `[B, T, D]`;
/// writes `codes` i32 `[B, ⌈T / 2⌉, Q]`.
pub fn codes(g: &mut Graph, c: &CodecConfig, batch: usize, time: usize) -> Result<()> {
    let (w, e) = (Scope::new("encoder"), &c.encoder_config);
    let x = g.input("features", DType::F32, [batch, time, e.transformer.hidden_size])?;
    let x = transformer(g, &w.at("encoder_transformer"), &e.transformer, x)?; // [B, T, D]
    g.tap("transformer", x)?;
    let x = downsample(g, &w, e, x)?; // [B, F, D]
    tap_channels_first(g, "downsample", x)?;
    let codes = quantize(g, &w.at("quantizer"), c, x)?;
    g.output("codes", codes)
}

/// `[B, T, D]` → `[B, T, D]`. There is no norm at the end. The layer scales are folded into the last matmuls
/// of attention and MLP.
fn transformer(g: &mut Graph, w: &Scope<'_>, c: &TransformerConfig, x: Value) -> Result<Value> {
    let (time, width, inner) = (g.shape(x).dims()[1], c.hidden_size, c.intermediate_size);
    let positions = g.rope_table(c.rope_theta, time, c.head_dim, Rows::From(0))?;
    let attention = c.attention();
    let mut x = x;
    for i in 0..c.num_hidden_layers {
        let w = w.at(&format!("layers.{i}"));
        let y = w.layer_norm(g, x, "input_layernorm", c.rms_norm_eps)?;
        let [q, k, v] = attention.project(g, &w.at("self_attn"), y, positions)?;
        let y = g.attention(attention.op(AttentionMask::Causal), q, k, v, None)?;
        let sizes = [attention.heads * attention.head_dim, width];
        let y = g.matmul(y, w.scaled_matrix("self_attn.o_proj", "self_attn_layer_scale", sizes))?;
        x = g.add(x, y)?;
        let y = w.layer_norm(g, x, "post_attention_layernorm", c.rms_norm_eps)?;
        let y = g.matmul(y, w.matrix("mlp.fc1", width, inner))?;
        let y = g.activate(y, Activation::Gelu)?;
        let y = g.matmul(y, w.scaled_matrix("mlp.fc2", "mlp_layer_scale", [inner, width]))?;
        x = g.add(x, y)?;
    }
    Ok(x)
}

/// `[B, T, D]` → `[B, ⌈T / 2⌉, D]`: four taps, stride 2. Edges are repeated: two rows before, and one after
/// if T is odd.
fn downsample(g: &mut Graph, w: &Scope<'_>, c: &CodecEncoderConfig, x: Value) -> Result<Value> {
    const STRIDE: usize = 2;
    let x = fill_up(g, x, STRIDE, Padding::Repeat)?;
    let x = g.pad(x, Padding::Repeat, STRIDE, 0)?;
    let x = fold_time(g, x, STRIDE)?; // [B, 1 + F, 2D]
    let frames = g.shape(x).dims()[1] - 1;
    let history = g.slice(x, 1, 0, 1)?;
    let x = g.slice(x, 1, 1, frames)?;
    let width = c.transformer.hidden_size;
    let weight = w.get("downsample.conv.weight", [width, width, 2 * STRIDE]);
    g.conv1d_after(history, x, tap_major(&weight), ConvGeometry::streaming(2, 1))
}

/// `[B, F, D]` → `[B, F, Q]`: two quantizers side by side. The second does not start from the residual of the
/// first.
fn quantize(g: &mut Graph, w: &Scope<'_>, c: &CodecConfig, x: Value) -> Result<Value> {
    let e = &c.encoder_config;
    let semantic = e.num_semantic_quantizers;
    let mut side = |name: &str, count: usize| -> Result<Value> {
        let w = w.at(&format!("{name}_residual_vector_quantizer"));
        let width = e.vector_quantization_hidden_dimension;
        let projection = w.get("input_proj.weight", [width, e.transformer.hidden_size, 1]);
        let x = g.matmul(x, tap_major(&projection))?;
        let of_book = [e.codebook_size, e.codebook_dim];
        let book = |k| blocks::centroids(&w.at(&format!("layers.{k}.codebook")), "embed_sum", of_book);
        let books: Vec<Weight> = (0..count).map(book).collect(); // [V, E] each
        let shape = [count, e.codebook_size, e.codebook_dim];
        g.residual_codes(x, Weight::concat(&books).reshape(shape))
    };
    let first = side("semantic", semantic)?;
    let rest = side("acoustic", c.encoder_valid_num_quantizers - semantic)?;
    g.concat(&[first, rest], 2)
}
