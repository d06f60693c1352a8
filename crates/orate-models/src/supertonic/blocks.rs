//! Blocks that several Supertonic networks share. All values are `[B, T, C]`, channels last.
//!
//! `lens` is given when rows of a batch are padded to one length; positions past a row's length are then kept
//! at zero, as the official graphs do. Without it every position counts.

use super::config::{AttnEncoder, ConvNeXtStack};
use super::{BuildError, names::Names};
use orate_graph::{
    Activation, AttentionMask, ConvGeometry, Graph, Norm, Op, RelativePositions, Value, Weight,
};

/// Epsilon of every layer norm, as exported (PyTorch's default would be 1e-5).
pub const LAYER_NORM_EPS: f32 = 1e-6;

/// Reach of the relative-position tables.
const RELATIVE_WINDOW: usize = 4;

/// One ConvNeXt block's sizes.
pub struct ConvNeXt {
    /// Width.
    pub width: usize,
    /// Width between the pointwise convolutions.
    pub inner: usize,
    /// Depthwise taps.
    pub geometry: ConvGeometry,
    /// Name of the depthwise convolution: `dwconv`, or `dwconv.net` in the vocoder.
    pub depthwise: &'static str,
}

impl ConvNeXt {
    /// `x + gamma · pointwise2(gelu(pointwise1(norm(depthwise(x)))))`. `gamma` is folded into pointwise2.
    pub fn build(
        &self,
        g: &mut Graph,
        w: &Names<'_>,
        x: Value,
        lens: Option<Value>,
    ) -> Result<Value, BuildError> {
        let (c, taps) = (self.width, self.geometry.taps);
        let depthwise = w.get(&format!("{}.weight", self.depthwise), [c, taps])?.transpose();
        let depthwise_bias = w.get(&format!("{}.bias", self.depthwise), [c])?;
        let y = g.depthwise_conv1d(x, depthwise, depthwise_bias, self.geometry)?;
        let y = g.layer_norm(y, norm(w, "norm.norm", c)?)?;
        let (up, up_bias) = w.linear("pwconv1", c, self.inner)?; // [C, C']
        let y = g.linear(y, up, up_bias)?;
        let y = g.activate(y, Activation::Gelu)?;
        let gamma = w.get("gamma", [c])?;
        let down = w.get("pwconv2.weight", [c, self.inner])?.mul(&gamma.reshape([c, 1])).transpose(); // [C', C]
        let y = g.linear(y, down, w.get("pwconv2.bias", [c])?.mul(&gamma))?;
        let y = g.add(x, y)?;
        Ok(g.mask_rows(y, lens)?)
    }
}

/// A stack of symmetric blocks under `prefix.0`, `prefix.1`, … Values are tapped as `tap.0`, … if `tap` is given.
pub fn convnext_stack(
    g: &mut Graph,
    w: &Names<'_>,
    prefix: &str,
    stack: &ConvNeXtStack,
    mut x: Value,
    lens: Option<Value>,
    mut tap: impl FnMut(&mut Graph, usize, Value) -> Result<(), BuildError>,
) -> Result<Value, BuildError> {
    for (i, &dilation) in stack.dilation_lst.iter().enumerate() {
        let block = ConvNeXt {
            width: stack.idim,
            inner: stack.intermediate_dim,
            geometry: ConvGeometry::symmetric(stack.ksz, dilation),
            depthwise: "dwconv",
        };
        x = w.within(&format!("{prefix}.{i}"), |w| block.build(g, w, x, lens))?;
        tap(g, i, x)?;
    }
    Ok(x)
}

/// Scale and shift of a layer norm.
pub fn norm(w: &Names<'_>, name: &str, width: usize) -> Result<Norm, BuildError> {
    Ok(Norm {
        weight: w.get(&format!("{name}.weight"), [width])?,
        bias: w.get(&format!("{name}.bias"), [width])?,
        eps: LAYER_NORM_EPS,
    })
}

/// Records `[B, T, C]` as `[B, C, T]`, the layout of the reference.
pub fn tap_channels_first(g: &mut Graph, name: &str, x: Value) -> Result<(), BuildError> {
    if g.has_taps() {
        let y = g.permute(x, &[0, 2, 1])?;
        g.tap(name, y)?;
    }
    Ok(())
}

/// Relative-position transformer (VITS encoder): post-norm, window 4, ReLU. Weights below `attn_encoder`.
///
/// With `first_only` the last layer computes position 0 alone: `[B, T, C]` → `[B, 1, C]`.
pub fn attn_encoder(
    g: &mut Graph,
    w: &Names<'_>,
    c: &AttnEncoder,
    x: Value,
    lens: Option<Value>,
    first_only: bool,
) -> Result<Value, BuildError> {
    let (width, inner) = (c.hidden_channels, c.filter_channels);
    let mut x = x;
    for i in 0..c.n_layers {
        let only = first_only && i + 1 == c.n_layers;
        let query_rows = if only { g.slice(x, 1, 0, 1)? } else { x };
        let y = w.within(&format!("attn_encoder.attn_layers.{i}"), |w| {
            relative_attention(g, w, c, query_rows, x, lens)
        })?;
        if i == 0 {
            tap_channels_first(g, "attn_layer.0.self_attention", y)?;
        }
        let y = g.add(query_rows, y)?;
        let y = g.layer_norm(y, norm(w, &format!("attn_encoder.norm_layers_1.{i}.norm"), width)?)?;
        let f = w.within(&format!("attn_encoder.ffn_layers.{i}"), |w| -> Result<Value, BuildError> {
            let (up, up_bias) = w.linear("conv_1", width, inner)?;
            let h = g.linear(y, up, up_bias)?;
            let h = g.activate(h, Activation::Relu)?;
            let (down, down_bias) = w.linear("conv_2", inner, width)?;
            Ok(g.linear(h, down, down_bias)?)
        })?;
        let y = g.add(y, f)?;
        x = g.layer_norm(y, norm(w, &format!("attn_encoder.norm_layers_2.{i}.norm"), width)?)?;
        tap_channels_first(g, &format!("attn_layer.{i}"), x)?;
    }
    Ok(x)
}

/// Attention whose scores and values get learned terms for offsets up to ±4.
fn relative_attention(
    g: &mut Graph,
    w: &Names<'_>,
    c: &AttnEncoder,
    queries: Value,
    keys: Value,
    lens: Option<Value>,
) -> Result<Value, BuildError> {
    let (width, heads) = (c.hidden_channels, c.n_heads);
    let mut project = |name: &str, x: Value| -> Result<Value, BuildError> {
        let (weight, bias) = w.linear(name, width, width)?;
        Ok(g.linear(x, weight, bias)?)
    };
    let q = project("conv_q", queries)?;
    let k = project("conv_k", keys)?;
    let v = project("conv_v", keys)?;
    let d = width / heads;
    let table = [2 * RELATIVE_WINDOW + 1, d];
    let op = Op::Attention {
        heads,
        scale: 1.0 / (d as f32).sqrt(),
        mask: AttentionMask::None,
        relative: Some(RelativePositions {
            key: w.get("emb_rel_k", table)?,
            value: w.get("emb_rel_v", table)?,
            window: RELATIVE_WINDOW,
        }),
    };
    let y = g.attention(op, q, k, v, lens)?;
    let (weight, bias) = w.linear("conv_o", width, width)?;
    Ok(g.linear(y, weight, bias)?)
}

/// Attention over a fixed set of slots: queries from `x`, keys and values given. Weights `W_query` and `out_fc`.
///
/// `x` is `[B, T, width]`, `keys` and `values` `[B or 1, slots, units]`; the result is `[B, T, width]`. The
/// divisor is √`divisor_of` whatever the head width.
#[derive(Clone, Copy)]
pub struct SlotAttention {
    /// Width of x.
    pub width: usize,
    /// Width of queries.
    pub units: usize,
    /// Heads.
    pub heads: usize,
    /// Number whose square root divides the scores.
    pub divisor_of: usize,
}

impl SlotAttention {
    /// See the type.
    pub fn build(
        &self,
        g: &mut Graph,
        w: &Names<'_>,
        x: Value,
        keys: Value,
        values: Value,
    ) -> Result<Value, BuildError> {
        let (query, query_bias) = w.linear("W_query.linear", self.width, self.units)?;
        let q = g.linear(x, query, query_bias)?;
        let y = g.attention(self.op(), q, keys, values, None)?;
        self.out(g, w, y)
    }

    /// The attention itself.
    pub fn op(&self) -> Op {
        Op::Attention {
            heads: self.heads,
            scale: 1.0 / (self.divisor_of as f32).sqrt(),
            mask: AttentionMask::None,
            relative: None,
        }
    }

    /// The output projection.
    pub fn out(&self, g: &mut Graph, w: &Names<'_>, y: Value) -> Result<Value, BuildError> {
        let (out, out_bias) = w.linear("out_fc.linear", self.units, self.width)?;
        Ok(g.linear(y, out, out_bias)?)
    }
}

/// `tanh(key · W_key + b)` as a weight `[1, slots, units]`; `key` is `[slots, key_width]`.
pub fn style_keys(w: &Names<'_>, key: &Weight, units: usize) -> Result<Weight, BuildError> {
    let (slots, width) = (key.shape().dims()[0], key.shape().dims()[1]);
    let (weight, bias) = w.linear("W_key.linear", width, units)?;
    Ok(key.matmul(&weight).add(&bias.reshape([1, units])).tanh().reshape([1, slots, units]))
}
