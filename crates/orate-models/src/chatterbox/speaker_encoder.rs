//! Speaker encoder of S3Gen: features of a recording at 16 kHz to an x-vector.
//!
//! ```text
//! fbank            [1, T, 80]        mean of each band removed
//! image            [T, 80, 1]        bands are rows of an image, time its columns
//! convolutions     [T, 10, C]        3 × 3; each group halves the bands
//! TDNN             [1, T / 2, C]
//! dense blocks     [1, T / 2, …]     each layer adds channels, scaled by a gate from their context
//! statistics       [1, 2C]           mean and deviation over time
//! linear           [1, 192]
//! ```
//!
//! CAM++ (Wang et al. 2023), of 3D-Speaker. Batch norms use running statistics. Weights below
//! `speaker_encoder`.

use super::config::{MEL, SpeakerEncoderConfig, X_VECTOR};
use crate::blocks::{Conv, Scope, tap_channels_first};
use orate_graph::{Activation, DType, Graph, GraphError, Padding, Value, Weight};

type Result<T> = std::result::Result<T, GraphError>;

/// Features, `[1, T, 80]`.
pub const FBANK: &str = "fbank";
/// The x-vector, `[1, 192]`.
pub const X_VECTOR_OUTPUT: &str = "x_vector";

const EPS: f32 = 1e-5;
/// Columns of a kernel of the image convolutions, and rows.
const IMAGE_TAPS: usize = 3;
/// Rows of a segment whose mean is part of a layer's context.
const SEGMENT: usize = 100;
const DILATIONS: [usize; 3] = [1, 2, 2];

/// Builds the network for `frames` frames of features. Reads [`FBANK`]; writes [`X_VECTOR_OUTPUT`].
pub fn build(g: &mut Graph, c: &SpeakerEncoderConfig, frames: usize) -> Result<()> {
    let all = Scope::new("speaker_encoder");
    let x = g.input(FBANK, DType::F32, [1, frames, MEL])?;
    let x = g.reshape(x, [frames, MEL, 1])?;
    let x = image(g, &all.at("head"), c, x)?; // [1, T, 10 C]
    tap_channels_first(g, "head", x)?;
    let w = all.at("xvector");
    let bands = g.shape(x).last();
    let weight = w.get("tdnn.linear.weight", [c.first, bands, 5]);
    let x = normed(g, &w.at("tdnn.nonlinear.batchnorm"), (weight, "tdnn"), |g, conv| {
        conv.with_stride(g, x, 2, 2)
    })?;
    let mut x = g.activate(x, Activation::Relu)?; // [1, T', C]
    tap_channels_first(g, "tdnn", x)?;
    for (i, (layers, dilation)) in c.layers.into_iter().zip(DILATIONS).enumerate() {
        let b = w.at(&format!("block{}", i + 1));
        for layer in 1..=layers {
            let y = dense(g, &b.at(&format!("tdnnd{layer}")), c, x, dilation)?;
            x = g.concat(&[x, y], 2)?;
        }
        let (t, width) = (w.at(&format!("transit{}", i + 1)), g.shape(x).last());
        x = batch_norm_relu(g, &t.at("nonlinear.batchnorm"), x)?;
        x = Conv::of(
            t.name("linear"),
            t.get("linear.weight", [width / 2, width, 1]),
            Weight::fill(0.0, [width / 2]),
        )
        .centered(g, x, 1)?;
        tap_channels_first(g, &format!("transit{}", i + 1), x)?;
    }
    let x = batch_norm_relu(g, &w.at("out_nonlinear.batchnorm"), x)?;
    let (rows, width) = (g.shape(x).dims()[1], g.shape(x).last());
    let x = g.statistics(x, None, 0.0)?; // [1, 2C]
    // The official deviation is unbiased.
    let unbiased = (rows as f32 / (rows.max(2) - 1) as f32).sqrt();
    let factors = Weight::concat(&[Weight::fill(1.0, [width]), Weight::fill(unbiased, [width])]);
    let x = g.affine(x, factors, Weight::fill(0.0, [2 * width]))?;
    g.tap("statistics", x)?;
    let (scale, shift) = statistics_of(&w.at("dense.nonlinear.batchnorm"), X_VECTOR);
    let weight = w.get("dense.linear.weight", [X_VECTOR, 2 * width, 1]).reshape([X_VECTOR, 2 * width]);
    let x = g.linear(x, weight.mul(&scale.reshape([X_VECTOR, 1])).transpose(), shift)?;
    g.output(X_VECTOR_OUTPUT, x)
}

/// Scale and shift of a batch norm without weights.
fn statistics_of(w: &Scope<'_>, width: usize) -> (Weight, Weight) {
    let variance = w.get("running_var", [width]);
    let scale = variance.add(&Weight::fill(EPS, [1])).sqrt().reciprocal();
    let shift = w.get("running_mean", [width]).mul(&scale).scale(-1.0);
    (scale, shift)
}

/// Scale and shift of a batch norm.
fn batch_norm(w: &Scope<'_>, width: usize) -> (Weight, Weight) {
    let (scale, shift) = statistics_of(w, width);
    let weight = w.get("weight", [width]);
    (scale.mul(&weight), shift.mul(&weight).add(&w.get("bias", [width])))
}

fn batch_norm_relu(g: &mut Graph, w: &Scope<'_>, x: Value) -> Result<Value> {
    let (scale, shift) = batch_norm(w, g.shape(x).last());
    let x = g.affine(x, scale, shift)?;
    g.activate(x, Activation::Relu)
}

/// A convolution without bias, weight `[out, in, taps]`, with the batch norm after it folded in.
fn normed(
    g: &mut Graph,
    norm: &Scope<'_>,
    (weight, name): (Weight, &str),
    run: impl FnOnce(&mut Graph, Conv) -> Result<Value>,
) -> Result<Value> {
    let outputs = weight.shape().dims()[0];
    let (scale, shift) = batch_norm(norm, outputs);
    run(g, Conv::of(name.to_owned(), weight.mul(&scale.reshape([outputs, 1, 1])), shift))
}

/// `[T, 80, 1]` → `[1, T, 10 C]`
fn image(g: &mut Graph, w: &Scope<'_>, c: &SpeakerEncoderConfig, x: Value) -> Result<Value> {
    let width = c.image;
    let mut x = convolve(g, w, ("conv1", "bn1"), x, [1, width], 1)?;
    x = g.activate(x, Activation::Relu)?;
    for layer in ["layer1", "layer2"] {
        for (block, stride) in [(0, 2), (1, 1)] {
            let w = w.at(&format!("{layer}.{block}"));
            let y = convolve(g, &w, ("conv1", "bn1"), x, [width, width], stride)?;
            let y = g.activate(y, Activation::Relu)?;
            let y = convolve(g, &w, ("conv2", "bn2"), y, [width, width], 1)?;
            let shortcut = match stride {
                1 => x,
                _ => {
                    let weight = w.get("shortcut.0.weight", [width, width, 1, 1]).reshape([width, width, 1]);
                    normed(g, &w.at("shortcut.1"), (weight, "shortcut"), |g, conv| {
                        conv.with_stride(g, x, stride, 0)
                    })?
                }
            };
            let y = g.add(y, shortcut)?;
            x = g.activate(y, Activation::Relu)?;
        }
    }
    x = convolve(g, w, ("conv2", "bn2"), x, [width, width], 2)?;
    x = g.activate(x, Activation::Relu)?; // [T, 10, C]
    let &[frames, bands, _] = g.shape(x).dims() else { unreachable!("an image has three axes") };
    let x = g.permute(x, &[0, 2, 1])?;
    g.reshape(x, [1, frames, width * bands])
}

/// Image convolution, 3 × 3, and batch norm: `[T, F, in]` → `[T, F / stride, out]`. The three columns that a
/// kernel covers become channels, so that what remains is a convolution along bands.
fn convolve(
    g: &mut Graph,
    w: &Scope<'_>,
    (name, norm): (&str, &str),
    x: Value,
    [inputs, outputs]: [usize; 2],
    stride: usize,
) -> Result<Value> {
    let &[frames, bands, _] = g.shape(x).dims() else { unreachable!("an image has three axes") };
    let flat = g.reshape(x, [1, frames, bands * inputs])?;
    let padded = g.pad(flat, Padding::Zero, 1, 1)?;
    let columns = (0..IMAGE_TAPS).map(|column| {
        let y = g.slice(padded, 1, column, frames)?;
        g.reshape(y, [frames, bands, inputs])
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    let x = g.concat(&columns, 2)?; // [T, F, 3 in]
    // [out, in, band, column] as [out, (column, in), band].
    let weight = w.get(&format!("{name}.weight"), [outputs, inputs, IMAGE_TAPS, IMAGE_TAPS]);
    let weight = weight.permute(&[0, 3, 1, 2]).reshape([outputs, IMAGE_TAPS * inputs, IMAGE_TAPS]);
    normed(g, &w.at(norm), (weight, name), |g, conv| match stride {
        1 => conv.centered(g, x, 1),
        _ => conv.with_stride(g, x, stride, 1),
    })
}

/// A layer of a dense block: `[1, T, C]` → `[1, T, growth]`.
fn dense(g: &mut Graph, w: &Scope<'_>, c: &SpeakerEncoderConfig, x: Value, dilation: usize) -> Result<Value> {
    let (width, inner, growth) = (g.shape(x).last(), c.bottleneck, c.growth);
    let y = batch_norm_relu(g, &w.at("nonlinear1.batchnorm"), x)?;
    let weight = w.get("linear1.weight", [inner, width, 1]);
    let y = normed(g, &w.at("nonlinear2.batchnorm"), (weight, "linear1"), |g, conv| conv.centered(g, y, 1))?;
    let y = g.activate(y, Activation::Relu)?; // [1, T, inner]
    let cam = w.at("cam_layer");
    let local = cam.get("linear_local.weight", [growth, inner, 3]);
    let local = Conv::of(cam.name("linear_local"), local, Weight::fill(0.0, [growth]));
    let local = local.centered(g, y, dilation)?;
    let mean = g.statistics(y, None, 0.0)?; // [1, 2 inner]
    let mean = g.slice(mean, 1, 0, inner)?;
    let context = g.segment_mean(y, SEGMENT)?;
    let context = g.add_row(context, mean)?;
    let context = Conv::new(&cam, "linear1", inner, inner / 2, 1).centered(g, context, 1)?;
    let context = g.activate(context, Activation::Relu)?;
    let gate = Conv::new(&cam, "linear2", inner / 2, growth, 1).centered(g, context, 1)?;
    let gate = g.activate(gate, Activation::Sigmoid)?;
    g.mul(local, gate)
}
