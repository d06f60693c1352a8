//! Vocoder: latent to waveform. Causal throughout.
//!
//!   latent               `[B, L, D·K]`
//!   un-chunk             `[B, K·L, D]`    channel `d·K + k` of frame `l` is channel `d` at time `K·l + k`
//!   causal conv, k 7     `[B, K·L, C]`    latent statistics folded in
//!   ConvNeXt ×10         `[B, K·L, C]`
//!   causal conv, k 3     `[B, K·L, C']`   batch norm folded in; PReLU
//!   linear               `[B, K·L, S]`    S samples per decoder frame
//!
//! Folding a per-channel scale and shift into the convolution behind it is exact, because the padding repeats
//! the edge sample and so is scaled and shifted too.
//!
//! Paper: arXiv 2503.23108. Weights below `tts.ae`.

use super::blocks::{ConvNeXt, tap_channels_first};
use super::{BuildError, config::Config, names::Names};
use orate_graph::{Activation, ConvGeometry, DType, Graph, Value, Weight};

/// Epsilon of the batch norm.
const BATCH_NORM_EPS: f32 = 1e-5;

/// Builds the network for `batch` latents of `frames` frames. Reads `latent`; writes `wav` `[B, samples]`. With
/// taps on, the folds are left out so that every intermediate value exists.
pub fn build(
    g: &mut Graph,
    w: &Names<'_>,
    c: &Config,
    batch: usize,
    frames: usize,
) -> Result<(), BuildError> {
    let (d, k) = (c.ttl.latent_dim, c.ttl.chunk_compress_factor);
    let latent = g.input("latent", DType::F32, [batch, frames, d * k])?;
    let x = g.reshape(latent, [batch, frames, d, k])?;
    let x = g.permute(x, &[0, 1, 3, 2])?; // [B, L, K, D]
    let x = g.reshape(x, [batch, frames * k, d])?;
    let y = decoder(g, w, c, x)?; // [B, K·L, S]
    let y = g.reshape(y, [batch, frames * k * c.ae.base_chunk_size])?;
    Ok(g.output("wav", y)?)
}

fn decoder(g: &mut Graph, w: &Names<'_>, c: &Config, x: Value) -> Result<Value, BuildError> {
    let (a, d) = (&c.ae.decoder, c.ttl.latent_dim);
    let fold = !g.has_taps();
    let latent_scale = w.get("tts.ttl.normalizer.scale", [1])?.reciprocal();
    let scale = w.get("tts.ae.latent_std", [d])?.mul(&latent_scale);
    let shift = w.get("tts.ae.latent_mean", [d])?;
    w.within("tts.ae.decoder", |w| {
        let embed = Conv::new(w, "embed.net", d, a.hdim, a.ksz_init)?;
        let mut x = if fold {
            embed.after(&scale, &shift).build(g, x)?
        } else {
            let x = g.affine(x, scale.clone(), shift.clone())?;
            tap_channels_first(g, "denormalised", x)?;
            embed.build(g, x)?
        };
        tap_channels_first(g, "embed", x)?;
        for (i, &dilation) in a.dilation_lst.iter().enumerate() {
            let block = ConvNeXt {
                width: a.hdim,
                inner: a.intermediate_dim,
                geometry: ConvGeometry::causal(a.ksz, dilation),
                depthwise: "dwconv.net",
            };
            x = w.within(&format!("convnext.{i}"), |w| block.build(g, w, x, None))?;
            tap_channels_first(g, &format!("convnext.{i}"), x)?;
        }
        let (scale, shift) = batch_norm(w, "final_norm.norm", a.hdim)?;
        let layer1 = Conv::new(w, "head.layer1.net", a.hdim, a.head.hdim, a.head.ksz)?;
        let x = if fold {
            layer1.after(&scale, &shift).build(g, x)?
        } else {
            let x = g.affine(x, scale, shift)?;
            tap_channels_first(g, "final_norm", x)?;
            layer1.build(g, x)?
        };
        let x = g.activate(x, Activation::PRelu(w.get("head.act.weight", [1])?))?;
        tap_channels_first(g, "head_act", x)?;
        Ok(g.matmul(x, w.get("head.layer2.weight", [a.head.odim, a.head.hdim])?.transpose())?)
    })
}

/// Scale and shift of a batch norm with running statistics.
fn batch_norm(w: &Names<'_>, name: &str, width: usize) -> Result<(Weight, Weight), BuildError> {
    let get = |part: &str| w.get(&format!("{name}.{part}"), [width]);
    let deviation = get("running_var")?.add(&Weight::fill(BATCH_NORM_EPS, [1])).sqrt();
    let scale = get("weight")?.mul(&deviation.reciprocal());
    let shift = get("bias")?.add(&get("running_mean")?.mul(&scale).scale(-1.0));
    Ok((scale, shift))
}

/// A causal convolution with a bias. `weight` is `[out, in, taps]` as in the checkpoint.
struct Conv {
    weight: Weight,
    bias: Weight,
}

impl Conv {
    fn new(
        w: &Names<'_>,
        name: &str,
        inputs: usize,
        outputs: usize,
        taps: usize,
    ) -> Result<Conv, BuildError> {
        Ok(Conv {
            weight: w.get(&format!("{name}.weight"), [outputs, inputs, taps])?,
            bias: w.get(&format!("{name}.bias"), [outputs])?,
        })
    }

    /// The convolution that takes x where this one took `scale · x + shift`.
    fn after(&self, scale: &Weight, shift: &Weight) -> Conv {
        let inputs = scale.shape().len();
        let from_shift = self.weight.mul(&shift.reshape([1, inputs, 1])).sum_tail();
        Conv { weight: self.weight.mul(&scale.reshape([1, inputs, 1])), bias: self.bias.add(&from_shift) }
    }

    fn build(&self, g: &mut Graph, x: Value) -> Result<Value, BuildError> {
        let &[outputs, inputs, taps] = self.weight.shape().dims() else {
            unreachable!("made with three axes");
        };
        let weight = self.weight.transpose().reshape([outputs, taps * inputs]).transpose(); // [taps · in, out]
        let y = g.conv1d(x, weight, ConvGeometry::causal(taps, 1))?;
        Ok(g.add_bias(y, self.bias.clone())?)
    }
}
