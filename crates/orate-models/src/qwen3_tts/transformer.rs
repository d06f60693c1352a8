//! Qwen3 transformer layers, which talker and code predictor are made of.
//!
//!   x += o(attention(rms(x)))          RMS norm of each head of q and k, then rotary positions
//!   x += down(silu(gate(rms(x))) · up(rms(x)))
//!
//! Keys and values go to a [`Cache`] and are read from it, so a prompt in one pass, its continuation and a
//! single row are one network of several sizes. A rotary position turns the two halves of a head against each
//! other. (The configuration's `interleaved` is about which of three position axes a frequency reads, and all
//! three hold one number here.)
//!
//! Official class: `Qwen3TTSTalkerDecoderLayer`, of Qwen3. Weights below `model`.

use super::config::TransformerConfig;
use crate::blocks::{Scope, gated_mlp};
use orate_graph::{AttentionMask, CacheFormat, DType, Graph, GraphError, Rows, Value};

type Result<T> = std::result::Result<T, GraphError>;

/// Keys and values of all layers, `[B, capacity, Hkv·Dh]` each.
pub struct Cache(Vec<[Value; 2]>);

impl Cache {
    /// Declares the caches `<name>.keys.<layer>` and `<name>.values.<layer>`, of rows that outlive a run in
    /// `format`. Without one they live as long as a run, in f32.
    pub fn declare(
        g: &mut Graph,
        name: &str,
        c: &TransformerConfig,
        [batch, capacity]: [usize; 2],
        format: Option<CacheFormat>,
    ) -> Result<Cache> {
        let shape = [batch, capacity, c.num_key_value_heads * c.head_dim];
        let mut declare = |name: String| match format {
            Some(format) => g.cache(&name, format.dtype(), shape),
            None => g.scratch(&name, DType::F32, shape),
        };
        let layer = |i| Ok([declare(format!("{name}.keys.{i}"))?, declare(format!("{name}.values.{i}"))?]);
        (0..c.num_hidden_layers).map(layer).collect::<Result<_>>().map(Cache)
    }
}

/// All layers and the final norm: `[B, T, D]` → `[B, T, D]`. Row 0 stands at `first`, and each row sees
/// those of the cache up to its own. With taps on, layer i is recorded as `<tap>{i}`.
pub fn layers(
    g: &mut Graph,
    w: &Scope<'_>,
    c: &TransformerConfig,
    x: Value,
    (cache, first): (&mut Cache, Rows),
    tap: &str,
) -> Result<Value> {
    let time = g.shape(x).dims()[1];
    let positions = g.rope_table(c.rope_theta, time, c.head_dim, first)?;
    let mut x = x;
    for (i, kept) in cache.0.iter_mut().enumerate() {
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
    let [keys, values] = kept;
    *keys = g.write_rows(*keys, k, first)?;
    *values = g.write_rows(*values, v, first)?;
    let op = c.attention().op(AttentionMask::Cached(first.kind()));
    let y = g.attention(op, q, *keys, *values, first.operand())?;
    g.matmul(y, w.matrix("o_proj", heads * dh, d))
}
