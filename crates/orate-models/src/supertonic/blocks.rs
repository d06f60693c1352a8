//! Blocks that several Supertonic networks share.
//!
//! `lens` is given when rows of a batch are padded to one length; without it every position counts.

use super::config::{AttnEncoder, ConvNeXtStack, SlotAttention};
use crate::blocks::{ConvNext, LAYER_NORM_EPS, Lengths, Scope, tap_channels_first};
use orate_graph::{
    Activation, AttentionMask, ConvGeometry, DType, Graph, GraphError, Op, RelativePositions, Value, Weight,
};

type Result<T> = std::result::Result<T, GraphError>;

/// Reach of the relative-position tables.
const RELATIVE_WINDOW: usize = 4;

/// Sizes of one plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// Utterances.
    pub batch: usize,
    /// Text tokens, of the longest row.
    pub tokens: usize,
    /// Latent frames, of the longest row.
    pub frames: usize,
    /// Euler steps.
    pub steps: usize,
    /// Lengths of rows.
    pub padding: Padding,
}

/// How rows of a batch have one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Padding {
    /// All are as long as the longest.
    None,
    /// Positions past a row's length are kept at zero, as in the official graphs. A row shorter than the
    /// longest differs slightly from the same row alone.
    Cleared,
    /// Positions past a row's length have arbitrary values that nothing reads: a row is what it would be
    /// alone.
    Ignored,
}

impl Sizes {
    /// The input `name` with the lengths of the rows, if they have their own.
    pub fn lens(self, g: &mut Graph, name: &str) -> Result<Option<Lengths>> {
        let lengths = |g: &mut Graph, clears| {
            Ok(Some(Lengths { lengths: g.input(name, DType::I32, [self.batch])?, clears }))
        };
        match self.padding {
            Padding::None => Ok(None),
            Padding::Cleared => lengths(g, true),
            Padding::Ignored => lengths(g, false),
        }
    }

    /// Whether rows have lengths of their own.
    pub fn has_lens(self) -> bool {
        self.padding != Padding::None
    }
}

/// A stack of symmetric blocks under `prefix.0`, `prefix.1`, … `tap` gets the value after each block.
pub fn convnext_stack(
    g: &mut Graph,
    w: &Scope<'_>,
    prefix: &str,
    stack: &ConvNeXtStack,
    mut x: Value,
    lens: Option<Lengths>,
    mut tap: impl FnMut(&mut Graph, usize, Value) -> Result<()>,
) -> Result<Value> {
    for (i, &dilation) in stack.dilations.iter().enumerate() {
        let block = ConvNext {
            width: stack.width,
            inner: stack.inner,
            geometry: ConvGeometry::symmetric(stack.kernel, dilation),
            depthwise: "dwconv",
            norm: "norm.norm",
        };
        x = block.build(g, &w.at(&format!("{prefix}.{i}")), x, lens)?;
        tap(g, i, x)?;
    }
    Ok(x)
}

/// A vector of each id, `[ids, width]`. Only the file says how many ids there are.
pub fn character_table(w: &Scope<'_>, width: usize) -> Weight {
    const TABLE: &str = "text_embedder.char_embedder.weight";
    let rows = w.shape(TABLE).and_then(|shape| shape.first().copied()).unwrap_or(1);
    w.get(TABLE, [rows, width])
}

/// `[1, …]` repeated to `[batch, …]`.
pub fn repeat(g: &mut Graph, x: Value, batch: usize) -> Result<Value> {
    if batch == 1 { Ok(x) } else { g.concat(&vec![x; batch], 0) }
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
    lens: Option<Lengths>,
    first_only: bool,
) -> Result<Value> {
    let (width, inner) = (c.width, c.inner);
    let mut x = x;
    for i in 0..c.layers {
        let only = first_only && i + 1 == c.layers;
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
    lens: Option<Lengths>,
) -> Result<Value> {
    let (width, heads) = (c.width, c.heads);
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
        bias: false,
        follows_weights: false,
    };
    let y = g.attention(op, q, k, v, lens.map(|l| l.lengths))?;
    w.linear(g, y, "conv_o", [width, width])
}

impl SlotAttention {
    /// Attention over a fixed set of slots: queries from x `[B, T, width]`; `keys` and `values` are
    /// `[B or 1, slots, units]`; the result is `[B, T, width]`. Weights `W_query` and `out_fc`.
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
            bias: false,
            follows_weights: false,
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
