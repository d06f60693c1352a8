//! The transformers that T3 is made of: rows `[B, T, D]` to rows `[B, T, D]` after the final norm.
//!
//! ```text
//! Llama (English, Multilingual)               GPT-2 (Turbo, Nano)
//! x += o(attention(rms(x)))                   x += c_proj(attention(norm(x)))
//! x += down(silu(gate(rms(x))) · up(rms(x)))  x += c_proj(gelu(c_fc(norm(x))))
//! rotary positions, no biases                 positions are part of the rows, biases everywhere
//! ```
//!
//! Positions count all rows, those of the conditioning too. Official classes: `LlamaModel` and `GPT2Model` of
//! transformers. Weights below `tfmr`.

use super::config::{Backbone, T3Config};
use crate::blocks::{Attention, Cache, Scope, gated_mlp};
use orate_graph::{Activation, Graph, GraphError, Norm, RopeScaling, Rows, Value, Weight};

type Result<T> = std::result::Result<T, GraphError>;

/// Epsilon of all norms.
const EPS: f32 = 1e-5;
/// Base of the rotary frequencies of Llama 3.
const ROPE_BASE: f64 = 500_000.0;
/// Frequencies of long wavelengths are lowered, as in Llama 3.
const ROPE_SCALING: RopeScaling = RopeScaling { factor: 8.0, low: 1.0, high: 4.0, length: 8192 };

/// All layers and the final norm. Row 0 stands at `first`, and each row sees those of the cache up to its
/// own; `shared` may say what rows of GPT-2 have in common. With taps on, layer i is recorded as `<tap>{i}`.
/// Also returns rotated queries and keys of each layer of Llama.
pub fn layers(
    g: &mut Graph,
    c: &T3Config,
    x: Value,
    (cache, first, shared): (&mut Cache, Rows, Option<Value>),
    tap: &str,
) -> Result<(Value, Vec<[Value; 2]>)> {
    let w = Scope::new("tfmr");
    let (mut x, mut rotated) = (x, vec![]);
    match c.backbone {
        Backbone::Llama => {
            let time = g.shape(x).dims()[1];
            let positions = g.rope_table_scaled(ROPE_BASE, Some(ROPE_SCALING), time, c.head_dim(), first)?;
            for (i, kept) in cache.layers().enumerate() {
                let (y, of_layer) = llama(g, &w.at(&format!("layers.{i}")), c, x, positions, (kept, first))?;
                g.tap(&format!("{tap}{i}"), y)?;
                x = y;
                rotated.push(of_layer);
            }
            Ok((rms_norm(g, &w, "norm", x)?, rotated))
        }
        Backbone::Gpt2 => {
            for (i, kept) in cache.layers().enumerate() {
                x = gpt2(g, &w.at(&format!("h.{i}")), c, x, (kept, first, shared))?;
                g.tap(&format!("{tap}{i}"), x)?;
            }
            Ok((w.layer_norm(g, x, "ln_f", EPS)?, rotated))
        }
    }
}

fn attention(c: &T3Config) -> Attention {
    Attention::of_heads(c.heads, c.width)
}

fn rms_norm(g: &mut Graph, w: &Scope<'_>, name: &str, x: Value) -> Result<Value> {
    let width = g.shape(x).last();
    g.rms_norm(x, w.get(&format!("{name}.weight"), [width]), EPS)
}

fn llama(
    g: &mut Graph,
    w: &Scope<'_>,
    c: &T3Config,
    x: Value,
    positions: Value,
    (kept, first): (&mut [Value; 2], Rows),
) -> Result<(Value, [Value; 2])> {
    let (d, inner) = (c.width, c.inner);
    let y = rms_norm(g, w, "input_layernorm", x)?;
    let [q, k, v] = attention(c).project(g, &w.at("self_attn"), y, positions)?;
    let y = attention(c).cached(g, [q, k, v], kept, (first, None))?;
    let y = g.matmul(y, w.matrix("self_attn.o_proj", d, d))?;
    let x = g.add(x, y)?;
    let y = rms_norm(g, w, "post_attention_layernorm", x)?;
    let y = gated_mlp(g, &w.at("mlp"), y, [d, inner], w.matrix("mlp.down_proj", inner, d))?;
    Ok((g.add(x, y)?, [q, k]))
}

fn gpt2(
    g: &mut Graph,
    w: &Scope<'_>,
    c: &T3Config,
    x: Value,
    (kept, first, shared): (&mut [Value; 2], Rows, Option<Value>),
) -> Result<Value> {
    let (d, inner) = (c.width, c.inner);
    let y = w.layer_norm(g, x, "ln_1", EPS)?;
    let y = conv1d(g, w, c, y, "attn.c_attn", [d, 3 * d])?;
    let projected = [0, d, 2 * d].map(|start| g.slice(y, 2, start, d));
    let [q, k, v] = projected;
    let y = attention(c).cached(g, [q?, k?, v?], kept, (first, shared))?;
    let y = conv1d(g, w, c, y, "attn.c_proj", [d, d])?;
    let x = g.add(x, y)?;
    let y = w.layer_norm(g, x, "ln_2", EPS)?;
    let y = conv1d(g, w, c, y, "mlp.c_fc", [d, inner])?;
    let y = g.activate(y, Activation::GeluTanh)?;
    let y = conv1d(g, w, c, y, "mlp.c_proj", [inner, d])?;
    g.add(x, y)
}

/// `x · weight + bias`. GPT-2 stores matrices `[in, out]`, and calls this a convolution.
fn conv1d(
    g: &mut Graph,
    w: &Scope<'_>,
    c: &T3Config,
    x: Value,
    name: &str,
    sizes: [usize; 2],
) -> Result<Value> {
    let weight = match c.is_turned {
        true => w.matrix(name, sizes[0], sizes[1]),
        false => w.get(&format!("{name}.weight"), sizes),
    };
    g.linear(x, weight, w.bias(name, sizes[1]))
}

/// Scale and shift of a layer norm, for blocks that name them otherwise.
pub(super) fn norm(weight: Weight, bias: Weight) -> Norm {
    Norm { weight, bias, eps: EPS }
}
