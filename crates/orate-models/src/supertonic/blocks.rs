//! Blocks that several Supertonic networks share.
//!
//! `lens` is given when rows of a batch are padded to one length. Positions past a row's length are then kept
//! at zero, as in the official graphs. Without it every position counts.

use super::config::{AttnEncoder, ConvNeXtStack};
use crate::blocks::{ConvNext, Scope, tap_channels_first};
use orate_graph::{
    Activation, AttentionMask, ConvGeometry, Graph, GraphError, Op, RelativePositions, Value, Weight,
};

type Result<T> = std::result::Result<T, GraphError>;

/// Epsilon of every layer norm, as exported (PyTorch's default would be 1e-5).
pub const LAYER_NORM_EPS: f32 = 1e-6;

/// Reach of the relative-position tables.
const RELATIVE_WINDOW: usize = 4;

/// A stack of symmetric blocks under `prefix.0`, `prefix.1`, … Values are tapped as `tap.0`, … if `tap` is
/// given.
pub fn convnext_stack(
    g: &mut Graph,
    w: &Scope<'_>,
    prefix: &str,
    stack: &ConvNeXtStack,
    mut x: Value,
    lens: Option<Value>,
    mut tap: impl FnMut(&mut Graph, usize, Value) -> Result<()>,
) -> Result<Value> {
    for (i, &dilation) in stack.dilation_lst.iter().enumerate() {
        let block = ConvNext {
            width: stack.idim,
            inner: stack.intermediate_dim,
            geometry: ConvGeometry::symmetric(stack.ksz, dilation),
            depthwise: "dwconv",
            norm: "norm.norm",
        };
        x = block.build(g, &w.at(&format!("{prefix}.{i}")), x, lens)?;
        tap(g, i, x)?;
    }
    Ok(x)
}

/// Layer norm of x with `name.weight` and `name.bias`.
pub fn norm(g: &mut Graph, w: &Scope<'_>, name: &str, x: Value) -> Result<Value> {
    w.layer_norm(g, x, name, LAYER_NORM_EPS)
}

/// Relative-position transformer (VITS encoder): post-norm, window 4, ReLU. Weights below `attn_encoder`.
///
/// With `first_only` the last layer computes position 0 alone: `[B, T, C]` → `[B, 1, C]`.
pub fn attn_encoder(
    g: &mut Graph,
    w: &Scope<'_>,
    c: &AttnEncoder,
    x: Value,
    lens: Option<Value>,
    first_only: bool,
) -> Result<Value> {
    let (width, inner) = (c.hidden_channels, c.filter_channels);
    let mut x = x;
    for i in 0..c.n_layers {
        let only = first_only && i + 1 == c.n_layers;
        let query_rows = if only { g.slice(x, 1, 0, 1)? } else { x };
        let attention = w.at(&format!("attn_encoder.attn_layers.{i}"));
        let y = relative_attention(g, &attention, c, query_rows, x, lens)?;
        if i == 0 {
            tap_channels_first(g, "attn_layer.0.self_attention", y)?;
        }
        let y = g.add(query_rows, y)?;
        let y = norm(g, w, &format!("attn_encoder.norm_layers_1.{i}.norm"), y)?;
        let mlp = w.at(&format!("attn_encoder.ffn_layers.{i}"));
        let h = mlp.linear(g, y, "conv_1", [width, inner])?;
        let h = g.activate(h, Activation::Relu)?;
        let h = mlp.linear(g, h, "conv_2", [inner, width])?;
        let y = g.add(y, h)?;
        x = norm(g, w, &format!("attn_encoder.norm_layers_2.{i}.norm"), y)?;
        tap_channels_first(g, &format!("attn_layer.{i}"), x)?;
    }
    Ok(x)
}

/// Attention whose scores and values get learned terms for offsets up to ±4.
fn relative_attention(
    g: &mut Graph,
    w: &Scope<'_>,
    c: &AttnEncoder,
    queries: Value,
    keys: Value,
    lens: Option<Value>,
) -> Result<Value> {
    let (width, heads) = (c.hidden_channels, c.n_heads);
    let q = w.linear(g, queries, "conv_q", [width, width])?;
    let k = w.linear(g, keys, "conv_k", [width, width])?;
    let v = w.linear(g, keys, "conv_v", [width, width])?;
    let d = width / heads;
    let table = [2 * RELATIVE_WINDOW + 1, d];
    let op = Op::Attention {
        heads,
        scale: 1.0 / (d as f32).sqrt(),
        mask: AttentionMask::None,
        relative: Some(RelativePositions {
            key: w.get("emb_rel_k", table),
            value: w.get("emb_rel_v", table),
            window: RELATIVE_WINDOW,
        }),
    };
    let y = g.attention(op, q, k, v, lens)?;
    w.linear(g, y, "conv_o", [width, width])
}

/// Attention over a fixed set of slots: queries from `x`, keys and values given. Weights `W_query` and
/// `out_fc`.
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
    pub fn build(&self, g: &mut Graph, w: &Scope<'_>, x: Value, keys: Value, values: Value) -> Result<Value> {
        let q = w.linear(g, x, "W_query.linear", [self.width, self.units])?;
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
    pub fn out(&self, g: &mut Graph, w: &Scope<'_>, y: Value) -> Result<Value> {
        w.linear(g, y, "out_fc.linear", [self.units, self.width])
    }
}

/// `tanh(key · W_key + b)` as a weight `[1, slots, units]`; `key` is `[slots, key_width]`.
pub fn style_keys(w: &Scope<'_>, key: &Weight, units: usize) -> Weight {
    let (slots, width) = (key.shape().dims()[0], key.shape().dims()[1]);
    let bias = w.bias("W_key.linear", units).reshape([1, units]);
    key.matmul(&w.matrix("W_key.linear", width, units)).add(&bias).tanh().reshape([1, slots, units])
}
