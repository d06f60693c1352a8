//! Parts of Llama-like transformers: attention with rotary positions, gated MLP.

use super::scope::Scope;
use orate_graph::{Activation, AttentionMask, Graph, GraphError, Op, Value, Weight};

/// Sizes of an attention. `heads` is a multiple of `kv_heads`: several heads of queries may share one of keys
/// and values.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Width of its input.
    pub width: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl Attention {
    /// Queries `[B, T, H·Dh]`, keys and values `[B, T, Hkv·Dh]` of x, queries and keys rotated by
    /// `positions`. Weights `q_proj`, `k_proj` and `v_proj`.
    ///
    /// # Errors
    /// x has another width.
    pub fn project(
        &self,
        g: &mut Graph,
        w: &Scope<'_>,
        x: Value,
        positions: Value,
    ) -> Result<[Value; 3], GraphError> {
        let q = g.matmul(x, w.matrix("q_proj", self.width, self.heads * self.head_dim))?;
        let k = g.matmul(x, w.matrix("k_proj", self.width, self.kv_heads * self.head_dim))?;
        let v = g.matmul(x, w.matrix("v_proj", self.width, self.kv_heads * self.head_dim))?;
        let q = g.rotary(q, positions, self.heads)?;
        Ok([q, g.rotary(k, positions, self.kv_heads)?, v])
    }

    /// The attention itself: `softmax(q · k / √Dh) · v`.
    pub fn op(&self, mask: AttentionMask) -> Op {
        Op::Attention { heads: self.heads, scale: 1.0 / (self.head_dim as f32).sqrt(), mask, relative: None }
    }
}

/// `down(silu(gate(x)) · up(x))`, `[B, T, width]` → `[B, T, width]`, with `inner` channels between. Weights
/// `gate_proj` and `up_proj`; `down` `[inner, width]` is given, as a layer scale may be folded into it.
pub fn gated_mlp(
    g: &mut Graph,
    w: &Scope<'_>,
    x: Value,
    [width, inner]: [usize; 2],
    down: Weight,
) -> Result<Value, GraphError> {
    let gate = g.matmul(x, w.matrix("gate_proj", width, inner))?;
    let gate = g.activate(gate, Activation::Silu)?;
    let up = g.matmul(x, w.matrix("up_proj", width, inner))?;
    let y = g.mul(gate, up)?;
    g.matmul(y, down)
}
