//! Codec decoder: codes to waveform. Causal throughout.
//!
//!   codes                      `[B, F, Q]`         F frames at 12.5 Hz, Q codebooks
//!   codebooks, summed          `[B, F, E]`         codebook 0 and the rest, each with a projection
//!   causal conv, k 3           `[B, F, D]`
//!   transformer                `[B, F, D]`         each position attends to the last `sliding_window`
//!   upsample × 2               `[B, 4F, D]`        transposed conv, stride 2; ConvNeXt
//!   causal conv, k 7           `[B, 4F, C]`
//!   blocks × 4                 `[B, 1920F, C/16]`  Snake, transposed conv (8, 5, 4, 3), residual units
//!   Snake, causal conv, k 7    `[B, 1920F, 1]`     24 kHz, cut to −1 … 1
//!
//! A transposed convolution of stride s whose right end is dropped equals a plain one with s times the
//! outputs: row t gives the s samples that row t reaches, and with 2s taps also those that row t − 1 reaches.
//! So it needs no op of its own.
//!
//! Before a sequence comes silence, or the end of the previous run of a stream; see [`Past`].
//!
//! Official class: `Qwen3TTSTokenizerV2Decoder`. Weights below `decoder`.

use super::config::CodecDecoderConfig;
use super::graph;
use super::transformer::norm;
use crate::blocks::{self, Conv, ConvNext, Past, Scope, tap_channels_first};
use orate_graph::{
    Activation, AttentionMask, ConvGeometry, DType, Graph, GraphError, Pieces, Rows, Value, Weight,
};

type Result<T> = std::result::Result<T, GraphError>;

/// Added to the divisor of Snake. From the official code.
const SNAKE_EPS: f32 = 1e-9;
/// Kernels are chosen for pieces of this many frames, whatever the size of a piece, so that pieces joined
/// equal one pass to the last bit. A first chunk has 4. With a larger number, pieces of 4 take 4 to 6 %
/// longer on a CPU with matrix tiles. With a smaller one, large pieces would not use the tiles. Pieces of 1
/// and 2 frames, which are rests, take 11 and 8 % longer.
const KERNELS_FOR: usize = 4;
/// Dilations of a block's residual units.
const DILATIONS: [usize; 3] = [1, 3, 9];

/// Builds the network for `batch` sequences of `frames` frames. Reads `codes` `[B, F, Q]`; writes `samples`
/// `[B, 1920F]`. In a stream it continues where the previous run ended, whatever its number of frames: the
/// history of every convolution, the keys and values inside the window, and `position` are states, which
/// begin as zeros.
pub fn build(g: &mut Graph, c: &CodecDecoderConfig, past: Past, batch: usize, frames: usize) -> Result<()> {
    let w = Scope::new("decoder");
    g.in_pieces(Pieces { frames, chosen_for: KERNELS_FOR });
    let codes = g.input("codes", DType::I32, [batch, frames, c.num_quantizers])?;
    let x = dequantize(g, &w.at("quantizer"), c, codes)?; // [B, F, E]
    tap_channels_first(g, "quantized", x)?;
    let pre_conv = Conv::new(&w, "pre_conv.conv", c.codebook_dim, c.latent_dim, 3);
    let x = pre_conv.causal(g, past, x, 1)?; // [B, F, D]
    tap_channels_first(g, "pre_conv", x)?;
    let mut x = transformer(g, &w.at("pre_transformer"), c, past, x)?; // [B, F, D]
    g.tap("pre_transformer", x)?;
    for (i, stride) in c.upsampling_ratios.iter().enumerate() {
        let w = w.at(&format!("upsample.{i}"));
        x = transposed_conv(g, past, &w, "0.conv", x, [c.latent_dim; 2], [*stride; 2])?;
        tap_channels_first(g, &format!("upsample{i}_conv"), x)?;
        let geometry = ConvGeometry::streaming(7, 1);
        let (width, inner) = (c.latent_dim, 4 * c.latent_dim);
        let convnext = ConvNext { width, inner, geometry, depthwise: "dwconv.conv", norm: "norm" };
        x = convnext.streaming(g, &w.at("1"), past, x)?; // [B, 2F, D], [B, 4F, D]
        tap_channels_first(g, &format!("upsample{i}"), x)?;
    }
    let mut channels = c.decoder_dim;
    let w = w.at("decoder");
    x = Conv::new(&w, "0.conv", c.latent_dim, channels, 7).causal(g, past, x, 1)?; // [B, 4F, C]
    tap_channels_first(g, "decoder0", x)?;
    for (i, stride) in c.upsample_rates.iter().enumerate() {
        x = block(g, past, &w.at(&format!("{}.block", i + 1)), x, channels, *stride)?; // [B, sT, C/2]
        channels /= 2;
        tap_channels_first(g, &format!("decoder{}", i + 1), x)?;
    }
    let last = c.upsample_rates.len() + 1;
    x = snake(g, &w.at(&last.to_string()), x, channels)?;
    tap_channels_first(g, &format!("decoder{last}"), x)?;
    x = Conv::new(&w, &format!("{}.conv", last + 1), channels, 1, 7).causal(g, past, x, 1)?; // [B, 1920F, 1]
    tap_channels_first(g, &format!("decoder{}", last + 1), x)?;
    x = g.activate(x, Activation::Clip)?;
    let samples = g.shape(x).len() / batch.max(1);
    x = g.reshape(x, [batch, samples])?;
    g.output("samples", x)
}

/// The graph of a frame of a stream.
pub(super) fn smallest(c: &CodecDecoderConfig) -> Result<Graph> {
    graph("codec_decoder", |g| build(g, c, Past::Stream, 1, 1))
}

/// Number of the `samples` of `total` frames that belong to the first `reference` frames, which are cut off
/// after decoding in context. Computed as in the official package, which may differ from `1920 · reference`
/// by one.
pub fn reference_samples(reference: usize, total: usize, samples: usize) -> usize {
    (reference as f64 / total.max(1) as f64 * samples as f64) as usize
}

/// `[B, F, Q]` → `[B, F, E]`: two quantizers, for codebook 0 and the rest, with a projection each.
fn dequantize(g: &mut Graph, w: &Scope<'_>, c: &CodecDecoderConfig, codes: Value) -> Result<Value> {
    let semantic = c.num_semantic_quantizers;
    let mut side = |name: &str, first: usize, count: usize| -> Result<Value> {
        let w = w.at(name);
        let of_book = [c.codebook_size, c.entry_width()];
        let book =
            |k| blocks::centroids(&w.at(&format!("vq.layers.{k}._codebook")), "embedding_sum", of_book);
        let tables: Vec<Weight> = (0..count).map(book).collect(); // [V, E] each
        let shape = [count, c.codebook_size, c.entry_width()];
        let x = g.embedding_sum(codes, Weight::concat(&tables).reshape(shape), first)?;
        let projection = w.get("output_proj.weight", [c.codebook_dim, c.entry_width(), 1]);
        g.matmul(x, projection.reshape([c.codebook_dim, c.entry_width()]).transpose())
    };
    let first = side("rvq_first", 0, semantic)?;
    let rest = side("rvq_rest", semantic, c.num_quantizers - semantic)?;
    g.add(first, rest)
}

/// `[B, F, D]` → `[B, F, D]`. The layer scales are folded into the last matmuls of attention and MLP.
fn transformer(g: &mut Graph, w: &Scope<'_>, c: &CodecDecoderConfig, past: Past, x: Value) -> Result<Value> {
    let (batch, frames) = (g.shape(x).dims()[0], g.shape(x).dims()[1]);
    let t = &c.transformer;
    let (width, inner) = (t.hidden_size, t.intermediate_size);
    // Frames that came before, where the sequence continues a stream.
    let mut position = None;
    if past == Past::Stream {
        let before = g.state("position", DType::I32, [batch])?;
        let next = g.increment(before, frames as i32)?;
        g.update("position", next)?;
        position = Some(before);
    }
    let first = position.map_or(Rows::From(0), Rows::At);
    let positions = g.rope_table(t.rope_theta, frames, t.head_dim, first)?;
    let mut x = w.linear(g, x, "input_proj", [c.latent_dim, width])?;
    for i in 0..t.num_hidden_layers {
        let w = w.at(&format!("layers.{i}"));
        let y = norm(g, &w, "input_layernorm", t, x)?;
        let y = attention(g, &w, c, (past, position), y, positions)?;
        x = g.add(x, y)?;
        let y = norm(g, &w, "post_attention_layernorm", t, x)?;
        let down = w.scaled_matrix("mlp.down_proj", "mlp_layer_scale", [inner, width]);
        let y = blocks::gated_mlp(g, &w.at("mlp"), y, [width, inner], down)?;
        x = g.add(x, y)?;
    }
    let x = norm(g, w, "norm", t, x)?;
    w.linear(g, x, "output_proj", [width, c.latent_dim])
}

fn attention(
    g: &mut Graph,
    w: &Scope<'_>,
    c: &CodecDecoderConfig,
    (past, position): (Past, Option<Value>),
    x: Value,
    positions: Value,
) -> Result<Value> {
    let (attention, a) = (c.transformer.attention(), w.at("self_attn"));
    let [q, k, v] = attention.project(g, &a, x, positions)?;
    let kept = c.sliding_window - 1;
    let k = past.joined_with(g, &a.name("keys"), k, kept)?;
    let v = past.joined_with(g, &a.name("values"), v, kept)?;
    let mask = match past {
        Past::Silence => AttentionMask::Window(c.sliding_window),
        Past::Stream => AttentionMask::Stream(c.sliding_window),
    };
    let y = g.attention(attention.op(mask), q, k, v, position)?;
    let sizes = [attention.heads * attention.head_dim, attention.width];
    g.matmul(y, w.scaled_matrix("self_attn.o_proj", "self_attn_layer_scale", sizes))
}

/// `[B, T, C]` → `[B, sT, C/2]`
fn block(
    g: &mut Graph,
    past: Past,
    w: &Scope<'_>,
    x: Value,
    channels: usize,
    stride: usize,
) -> Result<Value> {
    let half = channels / 2;
    let x = snake(g, &w.at("0"), x, channels)?;
    let mut x = transposed_conv(g, past, w, "1.conv", x, [channels, half], [stride, 2 * stride])?;
    for (i, dilation) in DILATIONS.into_iter().enumerate() {
        let w = w.at(&(i + 2).to_string());
        let y = snake(g, &w.at("act1"), x, half)?;
        let y = Conv::new(&w, "conv1.conv", half, half, 7).causal(g, past, y, dilation)?;
        let y = snake(g, &w.at("act2"), y, half)?;
        let y = Conv::new(&w, "conv2.conv", half, half, 1).causal(g, past, y, 1)?;
        x = g.add(x, y)?;
    }
    Ok(x)
}

/// `x + sin²(e^alpha · x) / (e^beta + 1e-9)`
fn snake(g: &mut Graph, w: &Scope<'_>, x: Value, channels: usize) -> Result<Value> {
    let divisor = w.get("beta", [channels]).exp().add(&Weight::fill(SNAKE_EPS, [1]));
    g.snake(x, w.get("alpha", [channels]).exp(), divisor.reciprocal())
}

/// Transposed convolution with a bias, `[B, T, in]` → `[B, sT, out]`, without the last `taps − s` samples.
/// The weight is `[in, out, taps]` with s or 2s taps: sample s·t + r is `W[:, :, r] · x[t] + W[:, :, r + s] ·
/// x[t − 1]`.
fn transposed_conv(
    g: &mut Graph,
    past: Past,
    w: &Scope<'_>,
    name: &str,
    x: Value,
    [inputs, outputs]: [usize; 2],
    [stride, taps]: [usize; 2],
) -> Result<Value> {
    let reach = taps / stride;
    let weight = w.get(&format!("{name}.weight"), [inputs, outputs, taps]);
    // [in, out, reach, s] → [reach, in, s, out]
    let weight = weight.reshape([inputs, outputs, reach, stride]).permute(&[2, 0, 3, 1]);
    let weight = weight.flip().reshape([reach * inputs, stride * outputs]);
    let bias = w.get(&format!("{name}.bias"), [outputs]).reshape([1, outputs]);
    let bias = Weight::fill(0.0, [stride, outputs]).add(&bias).reshape([stride * outputs]);
    let (batch, time) = (g.shape(x).dims()[0], g.shape(x).dims()[1]);
    let y = if reach == 1 {
        g.matmul(x, weight)?
    } else {
        let geometry = ConvGeometry::streaming(reach, 1);
        let history = past.in_front_of(g, &w.name(name), x, geometry.left)?;
        g.conv1d_after(history, x, weight, geometry)?
    };
    let y = g.add_bias(y, bias)?;
    g.reshape(y, [batch, stride * time, outputs])
}
