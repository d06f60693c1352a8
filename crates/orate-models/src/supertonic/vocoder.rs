//! Vocoder: latent to waveform. Causal throughout.
//!
//!   latent               `[B, L, D·K]`
//!   un-chunk             `[B, K·L, D]`    channel `d·K + k` of frame `l` is channel `d` at time `K·l + k`
//!   causal conv, k 7     `[B, K·L, C]`    latent statistics folded in
//!   ConvNeXt ×10         `[B, K·L, C]`
//!   causal conv, k 3     `[B, K·L, C']`   batch norm folded in; PReLU
//!   linear               `[B, K·L, S]`    S samples per decoder frame
//!
//! Folding a per-channel scale and shift into the convolution after it is exact, because the padding repeats
//! the edge sample and so is scaled and shifted too.
//!
//! Paper: arXiv 2503.23108. Weights below `tts.ae`.

use super::blocks::Sizes;
use super::config::Config;
use crate::blocks::{Conv, ConvNext, Scope, tap_channels_first};
use orate_graph::{Activation, ConvGeometry, DType, Graph, GraphError, Value, Weight};

type Result<T> = std::result::Result<T, GraphError>;

/// Epsilon of the batch norm.
const BATCH_NORM_EPS: f32 = 1e-5;

/// Reads `latent`; writes `wav` `[B, samples]`. With taps on, the folds are left out so that every
/// intermediate value exists.
pub fn build(g: &mut Graph, w: &Scope<'_>, c: &Config, Sizes { batch, frames, .. }: Sizes) -> Result<()> {
    let (d, k) = (c.latent_dim, c.chunk_compress_factor);
    let latent = g.input("latent", DType::F32, [batch, frames, d * k])?;
    let x = g.reshape(latent, [batch, frames, d, k])?;
    let x = g.permute(x, &[0, 1, 3, 2])?; // [B, L, K, D]
    let x = g.reshape(x, [batch, frames * k, d])?;
    let y = decoder(g, w, c, x)?; // [B, K·L, S]
    let y = g.reshape(y, [batch, frames * k * c.base_chunk_size])?;
    g.output("wav", y)
}

fn decoder(g: &mut Graph, w: &Scope<'_>, c: &Config, x: Value) -> Result<Value> {
    let (a, blocks, d) = (&c.decoder, &c.decoder.convnext, c.latent_dim);
    let fold = !g.has_taps();
    let latent_scale = w.get("tts.ttl.normalizer.scale", [1]).reciprocal();
    let scale = w.get("tts.ae.latent_std", [d]).mul(&latent_scale);
    let shift = w.get("tts.ae.latent_mean", [d]);
    let w = w.at("tts.ae.decoder");
    let embed = Conv::new(&w, "embed.net", d, blocks.width, a.first_kernel);
    let mut x = if fold {
        embed.after(&scale, &shift).repeating(g, x)?
    } else {
        let x = g.affine(x, scale, shift)?;
        tap_channels_first(g, "denormalised", x)?;
        embed.repeating(g, x)?
    };
    tap_channels_first(g, "embed", x)?;
    for (i, &dilation) in blocks.dilations.iter().enumerate() {
        let block = ConvNext {
            width: blocks.width,
            inner: blocks.inner,
            geometry: ConvGeometry::causal(blocks.kernel, dilation),
            depthwise: "dwconv.net",
            norm: "norm.norm",
        };
        x = block.build(g, &w.at(&format!("convnext.{i}")), x, None)?;
        tap_channels_first(g, &format!("convnext.{i}"), x)?;
    }
    let (scale, shift) = batch_norm(&w, "final_norm.norm", blocks.width);
    let layer1 = Conv::new(&w, "head.layer1.net", blocks.width, a.head_inner, a.head_kernel);
    let x = if fold {
        layer1.after(&scale, &shift).repeating(g, x)?
    } else {
        let x = g.affine(x, scale, shift)?;
        tap_channels_first(g, "final_norm", x)?;
        layer1.repeating(g, x)?
    };
    let x = g.activate(x, Activation::PRelu(w.get("head.act.weight", [1])))?;
    tap_channels_first(g, "head_act", x)?;
    g.matmul(x, w.matrix("head.layer2", a.head_inner, c.base_chunk_size))
}

/// Scale and shift of a batch norm with running statistics.
fn batch_norm(w: &Scope<'_>, name: &str, width: usize) -> (Weight, Weight) {
    let get = |part: &str| w.get(&format!("{name}.{part}"), [width]);
    let deviation = get("running_var").add(&Weight::fill(BATCH_NORM_EPS, [1])).sqrt();
    let scale = get("weight").mul(&deviation.reciprocal());
    let shift = get("bias").add(&get("running_mean").mul(&scale).scale(-1.0));
    (scale, shift)
}
