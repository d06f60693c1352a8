//! Qwen3 transformer layers, which talker and code predictor are made of.
//!
//!   x += o(attention(rms(x)))          RMS norm of each head of q and k, then rotary positions
//!   x += down(silu(gate(rms(x))) · up(rms(x)))
//!
//! Keys and values go to a [`Cache`]. A rotary position turns the two halves of a head against each
//! other. (The configuration's `interleaved` is about which of three position axes a frequency reads, and all
//! three hold one number here.)
//!
//! Official class: `Qwen3TTSTalkerDecoderLayer`, of Qwen3. Weights below `model`.

use super::config::TransformerConfig;
use crate::blocks::{Cache, Scope, gated_mlp};
use orate_graph::{CacheFormat, Graph, GraphError, Rows, Value};

type Result<T> = std::result::Result<T, GraphError>;

/// Declares the caches of all layers, as [`Cache::declare`].
pub fn declare_cache(
    g: &mut Graph,
    name: &str,
    c: &TransformerConfig,
    [batch, capacity]: [usize; 2],
    format: Option<CacheFormat>,
) -> Result<Cache> {
    let shape = [batch, capacity, c.num_key_value_heads * c.head_dim];
    Cache::declare(g, name, c.num_hidden_layers, shape, format)
}

/// All layers and the final norm: `[B, T, D]` → `[B, T, D]`. Row 0 stands at `first`, with rotary `positions`
/// from there on, and each row sees those of the cache up to its own. With taps on, layer i is recorded as
/// `<tap>{i}`.
pub fn layers(
    g: &mut Graph,
    w: &Scope<'_>,
    c: &TransformerConfig,
    x: Value,
    (cache, first, positions): (&mut Cache, Rows, Value),
    tap: &str,
) -> Result<Value> {
    let mut x = x;
    for (i, kept) in cache.layers().enumerate() {
        let w = w.at(&format!("layers.{i}"));
        let y = norm(g, &w, "input_layernorm", c, x)?;
        let y = attention(g, &w.at("self_attn"), c, y, positions, (kept, first))?;
        x = g.add(x, y)?;
        let y = norm(g, &w, "post_attention_layernorm", c, x)?;
        let (w, sizes) = (w.at("mlp"), [c.hidden_size, c.intermediate_size]);
        let y = gated_mlp(g, &w, y, sizes, w.matrix("down_proj", c.intermediate_size, c.hidden_size))?;
        x = g.add(x, y)?;
        g.tap(&format!("{tap}{i}"), x)?;
    }
    norm(g, w, "norm", c, x)
}

/// RMS norm with the weight of this name.
pub(super) fn norm(
    g: &mut Graph,
    w: &Scope<'_>,
    name: &str,
    c: &TransformerConfig,
    x: Value,
) -> Result<Value> {
    let width = g.shape(x).last();
    g.rms_norm(x, w.get(&format!("{name}.weight"), [width]), c.rms_norm_eps)
}

/// `[B, T, D]` → `[B, T, D]`: H heads of queries, Hkv of keys and values, which become what `kept` holds from
/// `first` on.
fn attention(
    g: &mut Graph,
    w: &Scope<'_>,
    c: &TransformerConfig,
    x: Value,
    positions: Value,
    (kept, first): (&mut [Value; 2], Rows),
) -> Result<Value> {
    let [d, heads, kv_heads, dh] = [c.hidden_size, c.num_attention_heads, c.num_key_value_heads, c.head_dim];
    let v = g.matmul(x, w.matrix("v_proj", d, kv_heads * dh))?;
    let mut turned = |name: &str, heads: usize| -> Result<Value> {
        let y = g.matmul(x, w.matrix(&format!("{name}_proj"), d, heads * dh))?; // [B, T, H·Dh]
        let &[batch, time, width] = g.shape(y).dims() else { unreachable!("x has three axes") };
        let y = g.reshape(y, [batch, time, heads, dh])?;
        let y = norm(g, w, &format!("{name}_norm"), c, y)?; // one weight for all heads
        let y = g.reshape(y, [batch, time, width])?;
        g.rotary(y, positions, heads)
    };
    let (q, k) = (turned("q", heads)?, turned("k", kv_heads)?);
    let y = c.attention().cached(g, [q, k, v], kept, (first, None))?;
    g.matmul(y, w.matrix("o_proj", heads * dh, d))
}
