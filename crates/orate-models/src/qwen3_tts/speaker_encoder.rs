//! Speaker encoder: reference audio to an x-vector, the embedding of a voice.
//!
//!   log_mel                 `[1, T, 128]`      24 kHz, hop 256; see [`mel`]
//!   TDNN, k 5               `[1, T, C]`        a convolution and ReLU
//!   SE-Res2Net blocks × 3   `[1, T, C]`        dilations 2, 3, 4
//!   joined, TDNN            `[1, T, P]`
//!   attentive statistics    `[1, 2P]`          weighted mean and deviation over time
//!   linear                  `[1, D]`           as wide as the talker's rows, not normalized
//!
//! ECAPA-TDNN (Desplanques et al. 2020). Convolutions are centered, and the sequence is mirrored at its ends.
//!
//! Official class: `Qwen3TTSSpeakerEncoder`. Weights below `speaker_encoder`.

use super::config::SpeakerEncoderConfig;
use crate::blocks::{Conv, Scope, tap_channels_first, tap_major};
use orate_audio::LogMelConfig;
use orate_graph::{Activation, DType, Graph, GraphError, Value};

type Result<T> = std::result::Result<T, GraphError>;

/// Least variance of a channel over time.
const LEAST_VARIANCE: f32 = 1e-12;

/// The features that the network reads.
pub fn mel(c: &SpeakerEncoderConfig) -> LogMelConfig {
    LogMelConfig::hifi_gan(c.sample_rate, 1024, 256, c.mel_dim, f64::from(c.sample_rate) / 2.0)
}

/// Least number of frames: one more than the widest convolution mirrors on either side.
pub fn least_frames(c: &SpeakerEncoderConfig) -> usize {
    let reach = c.enc_kernel_sizes.iter().zip(&c.enc_dilations).map(|(taps, d)| (taps - 1) * d / 2);
    reach.max().unwrap_or(0) + 1
}

/// Builds the network for `frames` frames, [`least_frames`] or more. Reads `log_mel` `[1, T, 128]`; writes
/// `x_vector` `[1, D]`.
pub fn build(g: &mut Graph, c: &SpeakerEncoderConfig, frames: usize) -> Result<()> {
    let w = Scope::new("speaker_encoder");
    let last = c.enc_channels.len() - 1;
    let (width, pooled) = (c.enc_channels[0], c.enc_channels[last]);
    let mel = g.input("log_mel", DType::F32, [1, frames, c.mel_dim])?;
    let first = Conv::new(&w, "blocks.0.conv", c.mel_dim, width, c.enc_kernel_sizes[0]);
    let mut x = tdnn(g, &first, mel, c.enc_dilations[0])?; // [1, T, C]
    tap_channels_first(g, "block0", x)?;
    let mut blocks = vec![];
    for i in 1..last {
        x = block(g, &w.at(&format!("blocks.{i}")), c, x, i)?; // [1, T, C]
        tap_channels_first(g, &format!("block{i}"), x)?;
        blocks.push(x);
    }
    let x = g.concat(&blocks, 2)?; // [1, T, 3C]
    let joined = Conv::new(&w, "mfa.conv", blocks.len() * width, pooled, c.enc_kernel_sizes[last]);
    let x = tdnn(g, &joined, x, c.enc_dilations[last])?; // [1, T, P]
    tap_channels_first(g, "mfa", x)?;
    let x = attentive_statistics(g, &w.at("asp"), c, x)?; // [1, 2P]
    g.tap("pooled", x)?;
    let x = pointwise(g, &w, "fc", x, [2 * pooled, c.enc_dim])?; // [1, D]
    g.output("x_vector", x)
}

fn tdnn(g: &mut Graph, conv: &Conv, x: Value, dilation: usize) -> Result<Value> {
    let y = conv.mirrored(g, x, dilation)?;
    g.activate(y, Activation::Relu)
}

/// A convolution of one tap, `[…, in]` → `[…, out]`.
fn pointwise(
    g: &mut Graph,
    w: &Scope<'_>,
    name: &str,
    x: Value,
    [inputs, outputs]: [usize; 2],
) -> Result<Value> {
    let weight = w.get(&format!("{name}.weight"), [outputs, inputs, 1]);
    g.linear(x, tap_major(&weight), w.bias(name, outputs))
}

/// `x + excite(tdnn2(res2net(tdnn1(x))))`
fn block(g: &mut Graph, w: &Scope<'_>, c: &SpeakerEncoderConfig, x: Value, i: usize) -> Result<Value> {
    let width = g.shape(x).last();
    let y = tdnn(g, &Conv::new(w, "tdnn1.conv", width, width, 1), x, 1)?;
    let y = res2net(g, &w.at("res2net_block"), c, y, i)?;
    let y = tdnn(g, &Conv::new(w, "tdnn2.conv", width, width, 1), y, 1)?;
    let y = excite(g, &w.at("se_block"), c, y)?;
    g.add(x, y)
}

/// Splits the channels. The first part passes; each other is added to the result of the one before and goes
/// through a convolution, so that later parts see further.
fn res2net(g: &mut Graph, w: &Scope<'_>, c: &SpeakerEncoderConfig, x: Value, i: usize) -> Result<Value> {
    let part = g.shape(x).last() / c.enc_res2net_scale;
    let mut parts = vec![g.slice(x, 2, 0, part)?];
    for j in 1..c.enc_res2net_scale {
        let mut y = g.slice(x, 2, j * part, part)?;
        if j > 1 {
            y = g.add(y, parts[j - 1])?;
        }
        let conv = Conv::new(w, &format!("blocks.{}.conv", j - 1), part, part, c.enc_kernel_sizes[i]);
        parts.push(tdnn(g, &conv, y, c.enc_dilations[i])?);
    }
    g.concat(&parts, 2)
}

/// Squeeze and excitation: each channel times a factor that depends on the means of all channels.
fn excite(g: &mut Graph, w: &Scope<'_>, c: &SpeakerEncoderConfig, x: Value) -> Result<Value> {
    let (width, inner) = (g.shape(x).last(), c.enc_se_channels);
    let means = g.statistics(x, None, LEAST_VARIANCE)?; // [1, 2C]
    let means = g.slice(means, 1, 0, width)?;
    let y = pointwise(g, w, "conv1", means, [width, inner])?;
    let y = g.activate(y, Activation::Relu)?;
    let y = pointwise(g, w, "conv2", y, [inner, width])?;
    let factors = g.activate(y, Activation::Sigmoid)?; // [1, C]
    g.mul_row(x, factors)
}

/// `[1, T, P]` → `[1, 2P]`. The weight of a row, for each channel, follows from the row and from the mean and
/// deviation of all rows. The part of the matmul that is the same for all rows is computed once.
fn attentive_statistics(g: &mut Graph, w: &Scope<'_>, c: &SpeakerEncoderConfig, x: Value) -> Result<Value> {
    let (width, inner) = (g.shape(x).last(), c.enc_attention_channels);
    let all = g.statistics(x, None, LEAST_VARIANCE)?; // [1, 2P]
    let weight = tap_major(&w.get("tdnn.conv.weight", [inner, 3 * width, 1])); // [3P, inner]
    let context = g.linear(all, weight.rows(width, 2 * width), w.get("tdnn.conv.bias", [inner]))?;
    let y = g.matmul(x, weight.rows(0, width))?;
    let y = g.add_row(y, context)?; // [1, T, inner]
    let y = g.activate(y, Activation::Relu)?;
    let y = g.activate(y, Activation::Tanh)?;
    let scores = pointwise(g, w, "conv", y, [inner, width])?; // [1, T, P]
    g.statistics(x, Some(scores), LEAST_VARIANCE)
}
