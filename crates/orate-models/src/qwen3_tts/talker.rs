//! Talker: rows of text and codes to the first code of a frame.
//!
//!   rows       `[B, T, D]`   text rows + codec rows
//!   layers     `[B, T, D]`   Qwen3, causal
//!   norm       `[B, 1, D]`   of the last row: `hidden`, which the code predictor reads too
//!   head       `[B, 1, V]`   `logits`
//!
//! Here is the prompt in one pass. Step by step, keys and values of every layer are states of a fixed capacity, and the
//! position a scalar.
//!
//! Official class: `Qwen3TTSTalkerForConditionalGeneration`. Weights below `talker`.

use super::config::TalkerConfig;
use super::transformer;
use super::weights::Scope;
use orate_graph::{DType, Graph, GraphError};

/// Builds the network for `batch` prompts of `time` rows. Reads `rows` `[B, T, D]`; writes `hidden` `[B, 1, D]` and
/// `logits` `[B, 1, V]`, both of the last row.
///
/// # Errors
/// The configuration contradicts itself.
pub fn prefill(g: &mut Graph, c: &TalkerConfig, batch: usize, time: usize) -> Result<(), GraphError> {
    let w = Scope::new("talker");
    let d = c.transformer.hidden_size;
    let rows = g.input("rows", DType::F32, [batch, time, d])?;
    let x = transformer::layers(g, &w.at("model"), &c.transformer, "prefill_layer", rows)?; // [B, T, D]
    let hidden = g.slice(x, 1, time.saturating_sub(1), 1)?; // [B, 1, D]
    g.output("hidden", hidden)?;
    let logits = g.matmul(hidden, w.matrix("codec_head", d, c.vocab_size))?; // [B, 1, V]
    g.output("logits", logits)
}
