//! Gated MLP of Llama-like transformers.

use super::scope::Scope;
use orate_graph::{Activation, Graph, GraphError, Value, Weight};

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
