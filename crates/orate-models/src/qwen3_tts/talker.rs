//! Talker: rows of text and codes to the first code of a frame.
//!
//!   rows       `[B, T, D]`   text rows + codec rows
//!   layers     `[B, T, D]`   Qwen3, causal, after the rows of the cache
//!   norm       `[B, 1, D]`   of the last row: `hidden`, which the code predictor reads too
//!   head       `[B, 1, V]`   `logits`
//!
//! Keys and values of every layer are caches of a fixed capacity. The state `position`, i32 `[B]`, counts
//! their rows. [`prefill`] is some rows of a prompt in one pass; the frame plan ([`super::frame`]) has the
//! same layers for one row.
//!
//! Official class: `Qwen3TTSTalkerForConditionalGeneration`. Weights below `talker`.

use super::config::TalkerConfig;
use super::transformer;
use crate::blocks::{Cache, Scope};
use crate::decoding::ROWS;
pub use crate::decoding::{LAST, POSITION};
use orate_graph::{CacheFormat, DType, Graph, GraphError, Rows, Value};

/// Output of the talker's last norm for the last row, `[B, 1, D]`.
pub const HIDDEN: &str = "hidden";
/// Distribution of code 0 of the next frame, `[B, 1, V]`.
pub const LOGITS: &str = "logits";

/// Extents and format of a talker's caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheSizes {
    /// Utterances side by side.
    pub batch: usize,
    /// Rows that the cache can hold: prompt and frames.
    pub capacity: usize,
    /// Their format.
    pub kv: CacheFormat,
}

/// Builds the network for prompts of `time` rows. Reads `rows` `[B, T, D]`, which begin at state `position`,
/// and [`LAST`]; fills the cache, and writes `hidden` and `logits` of the last row that is not padding.
/// `position` stays: the caller sets it to the row after that, so that rows of padding are overwritten before
/// they are seen.
pub fn prefill(g: &mut Graph, c: &TalkerConfig, s: CacheSizes, time: usize) -> Result<(), GraphError> {
    let rows = g.input(ROWS, DType::F32, [s.batch, time, c.transformer.hidden_size])?;
    let position = g.state(POSITION, DType::I32, [s.batch])?;
    let mut cache =
        transformer::declare_cache(g, "talker", &c.transformer, [s.batch, s.capacity], Some(s.kv))?;
    let last = g.input(LAST, DType::I32, [s.batch])?;
    let (hidden, logits) = read(g, c, rows, (&mut cache, position), Some(last), "prefill_layer")?;
    g.output(HIDDEN, hidden)?;
    g.output(LOGITS, logits)
}

/// Rows `[B, T, D]` from `position` on → hidden state `[B, 1, D]` and logits `[B, 1, V]` of row `last`, i32
/// `[B]`, or of the only one.
pub(super) fn read(
    g: &mut Graph,
    c: &TalkerConfig,
    rows: Value,
    (cache, position): (&mut Cache, Value),
    last: Option<Value>,
    tap: &str,
) -> Result<(Value, Value), GraphError> {
    let w = Scope::new("talker");
    let d = c.transformer.hidden_size;
    let (theta, width, first) = (c.transformer.rope_theta, c.transformer.head_dim, Rows::At(position));
    let at = (cache, first, g.rope_table(theta, g.shape(rows).dims()[1], width, first)?);
    let x = transformer::layers(g, &w.at("model"), &c.transformer, rows, at, tap)?; // [B, T, D]
    let hidden = match last {
        Some(last) => g.row_at(x, last)?,
        None => x,
    }; // [B, 1, D]
    let logits = g.matmul(hidden, w.matrix("codec_head", d, c.vocab_size))?; // [B, 1, V]
    Ok((hidden, logits))
}

/// Rows of the codec table: ids `[B, T]` → `[B, T, D]`.
pub(super) fn codec_rows(g: &mut Graph, c: &TalkerConfig, ids: Value) -> Result<Value, GraphError> {
    let table =
        Scope::new("talker.model").get("codec_embedding.weight", [c.vocab_size, c.transformer.hidden_size]);
    g.embedding(ids, table)
}
