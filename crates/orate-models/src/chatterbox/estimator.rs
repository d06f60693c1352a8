//! Estimator of the flow: from noise to a mel spectrogram, in a few Euler steps.
//!
//! ```text
//! x, mu, speaker, condition    [R, F, 320]   side by side; with guidance R is twice the callers, and the
//!                                            second half is without mu, speaker and condition
//! down                         [R, F, C]     residual block, transformer blocks, causal convolution
//! middle × 12                  [R, F, C]     residual block, transformer blocks
//! up                           [R, F, C]     as down, after joining what went into its convolution
//! last block, linear           [R, F, 80]    velocity
//! x += Δt · ((1 + g) · v − g · v without)
//! ```
//!
//! The U-Net has no resampling. Convolutions are causal, attention is not. What depends on time alone, a row
//! for each residual block and step, is computed for all steps at once ([`prepare`]), so that all steps
//! replay one plan ([`step`]).
//!
//! Official class: `ConditionalDecoder` of CosyVoice. Weights below `flow.decoder.estimator`.

use super::config::{EstimatorConfig, MEL};
use super::flow_encoder::{FRAME_LENGTHS, Rows};
use crate::blocks::{Conv, Scope, tap_channels_first};
use orate_graph::{Activation, AttentionMask, DType, Factor, Graph, GraphError, Op, Scalar, Value, Weight};

type Result<T> = std::result::Result<T, GraphError>;

/// The mel spectrogram while it is made, `[B, F, 80]` for B callers.
pub const LATENT: &str = "latent";
/// The mel spectrogram of the prompt, then zeros, `[B, F, 80]`.
pub const CONDITION: &str = "condition";
/// What x is beside in all steps, `[R, F, 240]`.
const GIVEN: &str = "given";
/// Where each step begins, `[S]`.
pub const TIMES: &str = "times";
/// Where each step ends, `[S]`; only for meanflow.
pub const ENDS: &str = "ends";
/// Length of each step, repeated for all bands, `[S, 80]`.
pub const STEPS: &str = "steps";
/// What each step adds in each residual block, `[S, C]`: prefix of the names of states.
const TIME_ROWS: &str = "time";
/// Scalar: number of the step.
pub const STEP: &str = "step";
/// Scalars of the guidance g: 1 + g, and −g.
pub const GUIDANCE: [&str; 2] = ["guided", "unguided"];

const EPS: f32 = 1e-5;
const TAPS: usize = 3;
/// Values that stand side by side.
const INPUTS: usize = 4;

impl EstimatorConfig {
    /// Rows of a caller: with and without what is to be spoken.
    pub fn rows(&self) -> usize {
        if self.is_meanflow { 1 } else { 2 }
    }

    /// Names of the stages, and channels that they read.
    fn stages(&self) -> Vec<(String, usize)> {
        let middle = (0..self.middle).map(|i| (format!("mid_blocks.{i}"), self.width));
        [("down_blocks.0".to_owned(), INPUTS * MEL)]
            .into_iter()
            .chain(middle)
            .chain([("up_blocks.0".to_owned(), 2 * self.width)])
            .collect()
    }
}

fn scope() -> Scope<'static> {
    Scope::new("flow.decoder.estimator")
}

/// Builds what all `steps` steps share. Reads [`CONDITION`], [`TIMES`], and for meanflow [`ENDS`]; writes
/// what x is beside, and the rows that depend on time.
pub fn prepare(
    g: &mut Graph,
    c: &EstimatorConfig,
    all: Rows,
    [mu, speaker]: [Value; 2],
    steps: usize,
) -> Result<()> {
    let (w, width, frames) = (scope(), c.time, all.frames());
    // A row that is repeated: a device keeps constants, and there are many lengths.
    let zeros = |g: &mut Graph, width: usize, rows: usize| {
        let zeros = g.constant(Weight::fill(0.0, [1, width]), rows * frames)?;
        g.reshape(zeros, [rows, frames, width])
    };
    let one = zeros(g, MEL, 1)?;
    let speakers = one_below_the_other(g, all.rows, |g, row| {
        let speaker = g.slice(speaker, 0, row, 1)?;
        g.add_row(one, speaker)
    })?;
    let condition = g.input(CONDITION, DType::F32, [all.rows, frames, MEL])?;
    let mut given = g.concat(&[mu, speakers, condition], 2)?;
    if c.rows() == 2 {
        let without = zeros(g, (INPUTS - 1) * MEL, all.rows)?;
        given = g.concat(&[given, without], 0)?;
    }
    g.output(GIVEN, given)?;
    let mut embedded = |name: &str| -> Result<Value> {
        let times = g.input(name, DType::F32, [steps])?;
        let x = g.time_embedding(times, INPUTS * MEL)?; // [S, 320]
        let x = w.linear(g, x, "time_mlp.linear_1", [INPUTS * MEL, width])?;
        let x = g.activate(x, Activation::Silu)?;
        w.linear(g, x, "time_mlp.linear_2", [width, width])
    };
    let mut x = embedded(TIMES)?;
    if c.is_meanflow {
        let ends = embedded(ENDS)?;
        x = g.concat(&[x, ends], 1)?;
        x = g.matmul(x, w.matrix("time_embed_mixer", 2 * width, width))?;
    }
    g.tap("time_embedding", x)?;
    let x = g.activate(x, Activation::Mish)?;
    for (stage, _) in c.stages() {
        let row = w.linear(g, x, &format!("{stage}.0.mlp.1"), [width, c.width])?; // [S, C]
        g.output(&format!("{TIME_ROWS}.{stage}"), row)?;
    }
    Ok(())
}

/// Joins `rows` values `[1, …]`.
pub(super) fn one_below_the_other(
    g: &mut Graph,
    rows: usize,
    value: impl Fn(&mut Graph, usize) -> Result<Value>,
) -> Result<Value> {
    let all = (0..rows).map(|row| value(g, row)).collect::<Result<Vec<_>>>()?;
    if let [one] = *all { Ok(one) } else { g.concat(&all, 0) }
}

/// Builds a step. Replaces [`LATENT`].
pub fn step(g: &mut Graph, c: &EstimatorConfig, all: Rows, steps: usize) -> Result<()> {
    let (index, rows, frames) = (g.scalar(STEP), c.rows() * all.rows, all.frames());
    let x = g.state(LATENT, DType::F32, [all.rows, frames, MEL])?;
    let given = g.input(GIVEN, DType::F32, [rows, frames, (INPUTS - 1) * MEL])?;
    let lens = all.lengths(g, FRAME_LENGTHS, rows)?;
    let twice = if c.rows() == 2 { g.concat(&[x, x], 0)? } else { x };
    let beside = g.concat(&[twice, given], 2)?; // [R, F, 320]
    let at = Time { index, steps };
    let velocity = estimate(g, c, beside, (at, lens))?; // [R, F, 80]
    tap_channels_first(g, "dxdt", velocity)?;
    let velocity = match c.rows() {
        1 => velocity,
        _ => {
            let [guided, unguided] = GUIDANCE.map(|name| Factor::Scalar(g.scalar(name)));
            let with = g.slice(velocity, 0, 0, all.rows)?;
            let without = g.slice(velocity, 0, all.rows, all.rows)?;
            g.combine(guided, with, unguided, without)?
        }
    };
    let lengths = g.input(STEPS, DType::F32, [steps, MEL])?;
    let length = g.select_row(lengths, index)?; // [1, 80]
    let change = g.mul_row(velocity, length)?;
    let x = g.add(x, change)?;
    g.update(LATENT, x)
}

/// Which step of how many.
#[derive(Clone, Copy)]
struct Time {
    index: Scalar,
    steps: usize,
}

/// `[R, F, 320]` → `[R, F, 80]`; attention sees the rows' lengths.
fn estimate(
    g: &mut Graph,
    c: &EstimatorConfig,
    x: Value,
    (at, lens): (Time, Option<Value>),
) -> Result<Value> {
    let (w, width, stages) = (scope(), c.width, c.stages());
    let (mut x, mut skip) = (x, None);
    for (i, (stage, inputs)) in stages.iter().enumerate() {
        let (is_first, is_last) = (i == 0, i + 1 == stages.len());
        if is_last && let Some(skip) = skip {
            x = g.concat(&[x, skip], 2)?;
        }
        let s = w.at(stage);
        x = residual(g, &s.at("0"), x, [*inputs, width], (stage, at))?;
        tap_channels_first(g, &format!("{stage}.resnet"), x)?;
        for block in 0..c.blocks {
            x = transformer(g, &s.at(&format!("1.{block}")), c, x, lens)?;
        }
        g.tap(&format!("{stage}.blocks"), x)?;
        if is_first {
            skip = Some(x);
        }
        if is_first || is_last {
            x = Conv::new(&s, "2", width, width, TAPS).after_zeros(g, x)?;
            tap_channels_first(g, &format!("{stage}.conv"), x)?;
        }
    }
    let x = causal_block(g, &w.at("final_block.block"), x, [width, width])?;
    tap_channels_first(g, "final_block", x)?;
    Conv::new(&w, "final_proj", width, MEL, 1).centered(g, x, 1)
}

/// Convolution after zeros, layer norm, Mish.
fn causal_block(g: &mut Graph, w: &Scope<'_>, x: Value, [inputs, outputs]: [usize; 2]) -> Result<Value> {
    let x = Conv::new(w, "0", inputs, outputs, TAPS).after_zeros(g, x)?;
    let x = w.layer_norm(g, x, "2", EPS)?;
    g.activate(x, Activation::Mish)
}

/// `B2(B1(x) + time) + x`, where the last x goes through a convolution of one tap.
fn residual(
    g: &mut Graph,
    w: &Scope<'_>,
    x: Value,
    sizes: [usize; 2],
    (stage, at): (&str, Time),
) -> Result<Value> {
    let [_, width] = sizes;
    let y = causal_block(g, &w.at("block1.block"), x, sizes)?;
    let rows = g.input(&format!("{TIME_ROWS}.{stage}"), DType::F32, [at.steps, width])?;
    let row = g.select_row(rows, at.index)?; // [1, C]
    let y = g.add_row(y, row)?;
    let y = causal_block(g, &w.at("block2.block"), y, [width, width])?;
    let x = Conv::new(w, "res_conv", sizes[0], width, 1).centered(g, x, 1)?;
    g.add(x, y)
}

fn transformer(
    g: &mut Graph,
    w: &Scope<'_>,
    c: &EstimatorConfig,
    x: Value,
    lens: Option<Value>,
) -> Result<Value> {
    let (width, all, heads) = (c.width, c.attention, c.heads);
    let y = w.layer_norm(g, x, "norm1", EPS)?;
    let a = w.at("attn1");
    let q = g.matmul(y, a.matrix("to_q", width, all))?;
    let k = g.matmul(y, a.matrix("to_k", width, all))?;
    let v = g.matmul(y, a.matrix("to_v", width, all))?;
    let scale = 1.0 / ((all / heads) as f32).sqrt();
    let mask = AttentionMask::None;
    let op = Op::Attention { heads, scale, mask, relative: None, bias: false, follows_weights: true };
    let y = g.attention(op, q, k, v, lens)?;
    let y = a.linear(g, y, "to_out.0", [all, width])?;
    let x = g.add(y, x)?;
    let y = w.layer_norm(g, x, "norm3", EPS)?;
    let y = w.linear(g, y, "ff.net.0.proj", [width, c.inner])?;
    let y = g.activate(y, Activation::Gelu)?;
    let y = w.linear(g, y, "ff.net.2", [c.inner, width])?;
    g.add(y, x)
}

/// Times of `steps` steps from noise to speech, `steps + 1` of them.
///
/// With guidance they are dense at first; meanflow divides the way evenly.
pub fn times(c: &EstimatorConfig, steps: usize) -> Vec<f32> {
    let even = (0..=steps).map(|i| i as f32 / steps as f32);
    match c.is_meanflow {
        true => even.collect(),
        false => even.map(|t| 1.0 - (t * 0.5 * std::f32::consts::PI).cos()).collect(),
    }
}
