//! Talker: rows of text and codes to the first code of a frame.
//!
//!   rows       `[B, T, D]`   text rows + codec rows
//!   layers     `[B, T, D]`   Qwen3, causal, behind what the cache holds
//!   norm       `[B, 1, D]`   of the last row: `hidden`, which the code predictor reads too
//!   head       `[B, 1, V]`   `logits`
//!
//! Keys and values of every layer are states of a fixed capacity, and so is `position`, i32 `[B]`: how many rows each
//! batch row has behind it. [`prefill`] is some rows of a prompt in one pass; the frame plan ([`super::frame`]) has the same
//! layers for one row.
//!
//! Official class: `Qwen3TTSTalkerForConditionalGeneration`. Weights below `talker`.

use super::config::TalkerConfig;
use super::prompt_rows::ROWS;
use super::transformer::{self, Cache};
use crate::blocks::Scope;
use orate_graph::{CacheFormat, DType, Graph, GraphError, Rows, Value};

/// Number of rows behind each batch row, i32 `[B]`.
pub const POSITION: &str = "position";
/// Output of the talker's last norm for the last row, `[B, 1, D]`.
pub const HIDDEN: &str = "hidden";
/// What code 0 of the next frame is drawn from, `[B, 1, V]`.
pub const LOGITS: &str = "logits";

/// What the names of the cache's states begin with.
const CACHE: &str = "talker";

/// Sizes that a talker's states have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// Utterances side by side.
    pub batch: usize,
    /// Rows that the cache can hold: prompt and frames.
    pub capacity: usize,
    /// In which format the cache keeps them.
    pub kv: CacheFormat,
}

/// Number of the last row of a prompt that is no padding, i32 `[B]`.
pub const LAST: &str = "last";

/// Builds the network for prompts of `time` rows. Reads `rows` `[B, T, D]`, which begin at state `position`, and [`LAST`]; fills the cache,
/// and writes `hidden` and `logits` of the last row that is no padding. `position` stays: whoever runs the plan sets it to what is behind
/// that row, so that what padding leaves in the cache is never seen, and written over.
///
/// # Errors
/// The configuration contradicts itself, or the capacity is below `time`.
pub fn prefill(g: &mut Graph, c: &TalkerConfig, s: Sizes, time: usize) -> Result<(), GraphError> {
    let rows = g.input(ROWS, DType::F32, [s.batch, time, c.transformer.hidden_size])?;
    let position = g.state(POSITION, DType::I32, [s.batch])?;
    let mut cache = cache(g, c, s)?;
    let last = g.input(LAST, DType::I32, [s.batch])?;
    let (hidden, logits) = read(g, c, rows, (&mut cache, position), Some(last), "prefill_layer")?;
    g.output(HIDDEN, hidden)?;
    g.output(LOGITS, logits)
}

/// Declares the cache.
///
/// # Errors
/// It was declared before.
pub(crate) fn cache(g: &mut Graph, c: &TalkerConfig, s: Sizes) -> Result<Cache, GraphError> {
    Cache::declare(g, CACHE, &c.transformer, [s.batch, s.capacity], s.kv)
}

/// Whether a state is one of the cache's.
pub(crate) fn is_cache(state: &str) -> bool {
    state.strip_prefix(CACHE).is_some_and(|rest| rest.starts_with('.'))
}

/// Rows `[B, T, D]` from `position` on → hidden state `[B, 1, D]` and logits `[B, 1, V]` of row `last`, i32 `[B]`, or of the only one.
///
/// # Errors
/// The configuration contradicts itself.
pub(crate) fn read(
    g: &mut Graph,
    c: &TalkerConfig,
    rows: Value,
    (cache, position): (&mut Cache, Value),
    last: Option<Value>,
    tap: &str,
) -> Result<(Value, Value), GraphError> {
    let w = Scope::new("talker");
    let d = c.transformer.hidden_size;
    let at = (cache, Rows::At(position));
    let x = transformer::layers(g, &w.at("model"), &c.transformer, rows, at, tap)?; // [B, T, D]
    let hidden = match last {
        Some(last) => g.row_at(x, last)?,
        None => x,
    }; // [B, 1, D]
    let logits = g.matmul(hidden, w.matrix("codec_head", d, c.vocab_size))?; // [B, 1, V]
    Ok((hidden, logits))
}

/// Rows of the codec table: ids `[B, T]` → `[B, T, D]`.
///
/// # Errors
/// Ids are no integers.
pub(crate) fn codec_rows(g: &mut Graph, c: &TalkerConfig, ids: Value) -> Result<Value, GraphError> {
    let table =
        Scope::new("talker.model").get("codec_embedding.weight", [c.vocab_size, c.transformer.hidden_size]);
    g.embedding(ids, table)
}
