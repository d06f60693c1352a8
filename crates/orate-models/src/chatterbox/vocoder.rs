//! Vocoder: mel spectrogram to samples, by a source of harmonics and an inverse STFT.
//!
//! ```text
//! mel            [R, T, 80]          R callers
//! pitch          [R, T, 1]           five convolutions, linear, absolute value: Hz
//! source         [R, 480T, 9]        sines of nine harmonics, or noise where there is no voice
//! merged         [R, 480T, 1]
//! its STFT       [R, 120T + 1, 20]   16 samples every 4: 9 real parts, 9 imaginary parts, 2 zeros
//! x              [R, T, C]           convolution, k 7
//! stage 0, 1, 2  [R, 8T, C / 2], [R, 40T, C / 4], [R, 120T + 1, C / 8]
//!                upsampling; + source, downsampled; sum of three residual blocks, whose mean is what
//!                weights of the next layer read
//! convolution    [R, 120T + 1, 18]   log magnitudes, then phases
//! inverse STFT   [R, 480T]
//! ```
//!
//! HiFT of CosyVoice (HiFi-GAN, Kong et al. 2020, with the source of Wang et al. 2019 and the output of
//! iSTFTNet, Kaneko et al. 2022). Weights below `mel2wav`, with weight norm.

use super::config::{MEL, SAMPLE_RATE, SAMPLES_PER_FRAME, VocoderConfig};
use super::constants::{self, BINS, N_FFT};
use super::estimator::one_below_the_other;
use crate::blocks::{Conv, Scope, Upsampling, tap_channels_first};
use orate_graph::{Activation, ConvGeometry, DType, Factor, Graph, GraphError, Padding, Value, Weight};
use orate_weights::WeightSource;

type Result<T> = std::result::Result<T, GraphError>;

/// Mel spectrogram with the lead of its source, `[R, L + T, 80]`.
pub const MEL_INPUT: &str = "mel";
/// Phase of each harmonic at the first sample, `[R, 9]`, in radians.
pub const PHASES: &str = "phases";
/// Noise of the source, `[R, 480T, 9]`.
pub const NOISE: &str = "noise";
/// Pitch that is given, `[R, T, 1]`, in Hz.
pub const PITCH: &str = "pitch";
/// Pitch of the mel spectrogram, `[R, T, 1]`, in Hz.
pub const FOUND_PITCH: &str = "found_pitch";
/// Samples, `[R, 480T]`.
pub const WAV: &str = "wav";

/// Harmonics of the source.
pub const HARMONICS: usize = 9;
/// Samples from one frame to the next.
pub const HOP: usize = 4;

const STRIDES: [usize; 3] = [8, 5, 3];
const KERNELS: [usize; 3] = [16, 11, 7];
/// Kernels of the residual blocks that a stage averages.
const BLOCKS: [usize; 3] = [3, 7, 11];
/// Kernels of the residual block of the source in each stage.
const SOURCE_BLOCKS: [usize; 3] = [7, 7, 11];
/// Stride of the source's downsampling in each stage; the kernel is twice as long, but for stride 1.
const SOURCE_STRIDES: [usize; 3] = [15, 3, 1];
const DILATIONS: [usize; 3] = [1, 3, 5];
const SLOPE: f32 = 0.1;
const LAST_SLOPE: f32 = 0.01;
/// Channels of the source's STFT: its bins and zeros, as devices read four at a time.
const SPECTRUM: usize = BINS.next_multiple_of(4);
/// Largest magnitude of the spectrum.
const LOUDEST: f32 = 100.0;
/// Largest sample.
const CLIP: f32 = 0.99;
/// Added to the divisor of Snake.
const SNAKE_EPS: f32 = 1e-9;

/// Layers of the pitch, each of which reads a frame before and one after.
const PITCH_LAYERS: usize = 5;

/// What the source is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Pitch of the mel spectrogram, noise from [`noise_seed`] after that of some frames before.
    Seeded {
        /// Frames before.
        before: usize,
    },
    /// Pitch of the mel spectrogram, [`NOISE`].
    Noise,
    /// [`PITCH`] and [`NOISE`]: phases add up the pitch, so that a different rounding shows after a second.
    Pitch,
}

impl Source {
    /// Frames of the mel spectrogram before those that become samples: only the pitch reads them.
    pub fn lead(self) -> usize {
        match self {
            Source::Seeded { before } => lead(before),
            Source::Noise | Source::Pitch => 0,
        }
    }
}

/// Frames that the pitch reads before those that become samples, of `before` that are there.
pub fn lead(before: usize) -> usize {
    before.min(PITCH_LAYERS)
}

/// Scalar: seed of the noise of a row.
pub fn noise_seed(row: usize) -> String {
    format!("noise_seed.{row}")
}

/// Builds the network for `rows` rows of `frames` frames after a lead of L ([`Source::lead`]). Reads
/// [`MEL_INPUT`], [`PHASES`], and what `given` names. Writes [`WAV`], and [`FOUND_PITCH`] unless the pitch is
/// given. `weights` say how the file names those with weight norm.
pub fn build(
    g: &mut Graph,
    weights: &dyn WeightSource,
    c: &VocoderConfig,
    [rows, frames]: [usize; 2],
    given: Source,
) -> Result<()> {
    let (w, lead) = (Scope::of(weights).at("mel2wav"), given.lead());
    let mel = g.input(MEL_INPUT, DType::F32, [rows, lead + frames, MEL])?;
    let source = source(g, &w, c, mel, given)?; // [R, 480T, 1]
    let mel = g.slice(mel, 1, lead, frames)?;
    tap_channels_first(g, "source", source)?;
    let spectrum = stft(g, source)?; // [R, 120T + 1, 20]
    if g.has_taps() {
        let bins = g.slice(spectrum, 2, 0, BINS)?;
        tap_channels_first(g, "hift.source_stft", bins)?;
    }
    let mut x = normed(&w, "conv_pre", [c.width, MEL, 7]).centered(g, mel, 1)?;
    tap_channels_first(g, "hift.conv_pre", x)?;
    for stage in 0..STRIDES.len() {
        x = upsample(g, &w, c, x, spectrum, stage)?;
    }
    let x = leaky(g, x, LAST_SLOPE)?;
    let width = c.width >> STRIDES.len();
    let weight = of_mean(&weight(&w, "conv_post", [BINS, width, 7]));
    let x = Conv::of(w.name("conv_post"), weight, w.bias("conv_post", BINS)).centered(g, x, 1)?;
    tap_channels_first(g, "hift.conv_post", x)?;
    let samples = inverse_stft(g, x)?; // [R, 480T]
    let samples = g.scale(samples, Factor::Const(1.0 / CLIP))?;
    let samples = g.activate(samples, Activation::Clip)?;
    let samples = g.scale(samples, Factor::Const(CLIP))?;
    g.output(WAV, samples)
}

fn leaky(g: &mut Graph, x: Value, slope: f32) -> Result<Value> {
    g.activate(x, Activation::PRelu(Weight::fill(slope, [1])))
}

/// The weight of `name`, of which checkpoints store direction and magnitude along the first axis: `g · v /
/// ‖v‖`. Older files name these otherwise, or hold the product.
fn weight(w: &Scope<'_>, name: &str, shape: [usize; 3]) -> Weight {
    let w = w.at(name);
    let names = [
        ["parametrizations.weight.original0", "parametrizations.weight.original1"],
        ["weight_g", "weight_v"],
    ];
    if w.has("weight") {
        return w.get("weight", shape);
    }
    let [magnitude, direction] = names.into_iter().find(|[_, v]| w.has(v)).unwrap_or(names[0]);
    let direction = w.get(direction, shape);
    let length = direction.mul(&direction).sum_tail().sqrt().reshape([shape[0], 1, 1]);
    let factor = w.get(magnitude, [shape[0], 1, 1]).mul(&length.reciprocal());
    direction.mul(&factor)
}

/// A convolution with weight norm, of weight `[out, in, taps]`.
fn normed(w: &Scope<'_>, name: &str, shape: [usize; 3]) -> Conv {
    Conv::of(w.name(name), weight(w, name, shape), w.bias(name, shape[0]))
}

/// `[R, T, 80]` → `[R, T, 1]`, in Hz. Phases add it up, so what rounding to 16 bits makes of it would be
/// heard where parts of speech join.
fn pitch(g: &mut Graph, w: &Scope<'_>, c: &VocoderConfig, mel: Value) -> Result<Value> {
    let (mut x, mut inputs) = (mel, MEL);
    for i in 0..PITCH_LAYERS {
        let name = format!("condnet.{}", 2 * i);
        let weight = weight(w, &name, [c.pitch_width, inputs, 3]).exact();
        let conv = Conv::of(w.name(&name), weight, w.bias(&name, c.pitch_width));
        x = conv.centered(g, x, 1)?;
        x = g.activate(x, Activation::Elu)?;
        inputs = c.pitch_width;
    }
    let x = g.linear(x, w.matrix("classifier", c.pitch_width, 1).exact(), w.bias("classifier", 1))?;
    g.activate(x, Activation::PRelu(Weight::fill(-1.0, [1]))) // absolute value
}

/// `[R, T, 80]` → `[R, 480T, 1]`: harmonics of the pitch, or noise.
fn source(g: &mut Graph, w: &Scope<'_>, c: &VocoderConfig, mel: Value, given: Source) -> Result<Value> {
    let (rows, frames) = (g.shape(mel).dims()[0], g.shape(mel).dims()[1] - given.lead());
    let pitch = match given {
        Source::Pitch => g.input(PITCH, DType::F32, [rows, frames, 1])?,
        Source::Seeded { .. } | Source::Noise => {
            let pitch = pitch(g, &w.at("f0_predictor"), c, mel)?;
            let pitch = g.slice(pitch, 1, given.lead(), frames)?;
            g.output(FOUND_PITCH, pitch)?;
            pitch
        }
    };
    let flat = g.reshape(pitch, [rows, frames])?;
    g.tap("hift.f0", flat)?;
    let samples = SAMPLES_PER_FRAME * frames;
    let phases = g.input(PHASES, DType::F32, [rows, HARMONICS])?;
    let noise = match given {
        Source::Noise | Source::Pitch => g.input(NOISE, DType::F32, [rows, samples, HARMONICS])?,
        Source::Seeded { before } => {
            let before = SAMPLES_PER_FRAME * before;
            one_below_the_other(g, rows, |g, row| {
                let seed = g.scalar(&noise_seed(row));
                let noise = g.random_normal([1, before + samples, HARMONICS], seed, 1.0)?;
                g.slice(noise, 1, before, samples)
            })?
        }
    };
    let harmonics = g.harmonic_source(pitch, phases, noise, SAMPLES_PER_FRAME, SAMPLE_RATE as usize)?;
    let merged = w.at("m_source").linear(g, harmonics, "l_linear", [HARMONICS, 1])?;
    g.activate(merged, Activation::Tanh)
}

/// `[R, 4N, 1]` → `[R, N + 1, 20]`: centered frames.
fn stft(g: &mut Graph, x: Value) -> Result<Value> {
    let (rows, samples) = (g.shape(x).dims()[0], g.shape(x).dims()[1]);
    let x = g.pad(x, Padding::Reflect, N_FFT / 2, N_FFT / 2)?;
    let folded = g.reshape(x, [rows, samples / HOP + N_FFT / HOP, HOP])?;
    let geometry = ConvGeometry { left: 0, ..ConvGeometry::causal(N_FFT / HOP, 1) };
    let zeros = Weight::fill(0.0, [SPECTRUM - BINS, N_FFT]);
    let bins = Weight::concat(&[constants::stft().transpose(), zeros]).transpose();
    let x = g.conv1d(folded, bins, geometry.with_zeros())?;
    g.slice(x, 1, 0, samples / HOP + 1)
}

/// `[R, N + 1, 18]` → `[R, 4N]`: log magnitudes and phases to samples.
fn inverse_stft(g: &mut Graph, x: Value) -> Result<Value> {
    let bins = BINS / 2;
    let magnitude = g.slice(x, 2, 0, bins)?;
    // min(eˣ, 100), as 100 · clip(e^(x − ln 100)); the factor is part of the transform.
    let magnitude = g.add_bias(magnitude, Weight::fill(-LOUDEST.ln(), [bins]))?;
    let magnitude = g.activate(magnitude, Activation::Exp)?;
    let magnitude = g.activate(magnitude, Activation::Clip)?;
    let phase = g.slice(x, 2, bins, bins)?;
    let phase = g.activate(phase, Activation::Sin)?;
    let cosine = g.activate(phase, Activation::Cos)?;
    let sine = g.activate(phase, Activation::Sin)?;
    let real = g.mul(magnitude, cosine)?;
    let imaginary = g.mul(magnitude, sine)?;
    let spectrum = g.concat(&[real, imaginary], 2)?;
    let frames = g.matmul(spectrum, constants::inverse_stft().scale(LOUDEST))?; // [R, N + 1, 16]
    g.overlap_add(frames, constants::window(), HOP)
}

fn upsample(
    g: &mut Graph,
    w: &Scope<'_>,
    c: &VocoderConfig,
    x: Value,
    spectrum: Value,
    stage: usize,
) -> Result<Value> {
    let (inputs, width) = (c.width >> stage, c.width >> (stage + 1));
    let name = format!("ups.{stage}");
    let x = leaky(g, x, SLOPE)?;
    let weight = weight(w, &name, [inputs, width, KERNELS[stage]]);
    let up = Upsampling {
        weight: if stage > 0 { of_mean(&weight) } else { weight },
        bias: w.bias(&name, width),
        stride: STRIDES[stage],
    };
    let mut x = up.build(g, x)?;
    tap_channels_first(g, &format!("hift.ups{stage}"), x)?;
    if stage + 1 == STRIDES.len() {
        x = g.pad(x, Padding::Reflect, 1, 0)?;
    }
    let s = source_rows(g, w, spectrum, width, stage)?;
    tap_channels_first(g, &format!("hift.source_down{stage}"), s)?;
    let s = residual(g, &w.at(&format!("source_resblocks.{stage}")), s, [width, SOURCE_BLOCKS[stage]])?;
    tap_channels_first(g, &format!("hift.source_resblock{stage}"), s)?;
    let x = g.add(x, s)?;
    let mut sum = None;
    for (i, taps) in BLOCKS.into_iter().enumerate() {
        let number = BLOCKS.len() * stage + i;
        let y = residual(g, &w.at(&format!("resblocks.{number}")), x, [width, taps])?;
        tap_channels_first(g, &format!("hift.resblock{number}"), y)?;
        sum = Some(match sum {
            None => y,
            Some(sum) => g.add(sum, y)?,
        });
    }
    Ok(sum.expect("there are blocks"))
}

/// The weight of a layer that reads the mean of a stage's residual blocks: it is given their sum, as what is
/// between them, [`leaky`], may be scaled before or after.
fn of_mean(weight: &Weight) -> Weight {
    weight.scale(1.0 / BLOCKS.len() as f32)
}

/// The source at the rate of a stage.
fn source_rows(g: &mut Graph, w: &Scope<'_>, x: Value, width: usize, stage: usize) -> Result<Value> {
    let (stride, name) = (SOURCE_STRIDES[stage], format!("source_downs.{stage}"));
    let taps = if stride == 1 { 1 } else { 2 * stride };
    let bins = w.get(&format!("{name}.weight"), [width, BINS, taps]).permute(&[1, 0, 2]);
    let zeros = Weight::fill(0.0, [SPECTRUM - BINS, width, taps]);
    let weight = Weight::concat(&[bins, zeros]).permute(&[1, 0, 2]);
    let conv = Conv::of(w.name(&name), weight, w.bias(&name, width));
    match stride {
        1 => conv.centered(g, x, 1),
        _ => conv.with_stride(g, x, stride, stride / 2),
    }
}

/// `x + conv(snake(conv(snake(x))))` for each dilation.
fn residual(g: &mut Graph, w: &Scope<'_>, x: Value, [width, taps]: [usize; 2]) -> Result<Value> {
    let mut x = x;
    for (i, dilation) in DILATIONS.into_iter().enumerate() {
        let y = snake(g, &w.at(&format!("activations1.{i}")), x, width)?;
        let y = normed(w, &format!("convs1.{i}"), [width, width, taps]).centered(g, y, dilation)?;
        let y = snake(g, &w.at(&format!("activations2.{i}")), y, width)?;
        let y = normed(w, &format!("convs2.{i}"), [width, width, taps]).centered(g, y, 1)?;
        x = g.add(x, y)?;
    }
    Ok(x)
}

/// `x + sin²(α · x) / (α + 10⁻⁹)`
fn snake(g: &mut Graph, w: &Scope<'_>, x: Value, width: usize) -> Result<Value> {
    let alpha = w.get("alpha", [width]);
    let gain = alpha.add(&Weight::fill(SNAKE_EPS, [1])).reciprocal();
    g.snake(x, alpha, gain)
}
