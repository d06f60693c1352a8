//! Talker: rows of text and codes to the first code of a frame.
//!
//!   rows       `[B, T, D]`   text rows + codec rows
//!   layers     `[B, T, D]`   Qwen3, causal, behind what the cache holds
//!   norm       `[B, 1, D]`   of the last row: `hidden`, which the code predictor reads too
//!   head       `[B, 1, V]`   `logits`
//!
//! Keys and values of every layer are states of a fixed capacity, and so is `position`, i32 `[B]`: how many rows each
//! batch row has behind it. [`prefill`] is a prompt in one pass, or what follows one that was kept; the frame plan
//! ([`super::frame`]) has the same layers for one row.
//!
//! Official class: `Qwen3TTSTalkerForConditionalGeneration`. Weights below `talker`.

use super::config::TalkerConfig;
use super::prompt_rows::ROWS;
use super::transformer::{self, Cache};
use super::weights::Scope;
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

/// Which row of a prompt is the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PromptEnd {
    /// The last of all.
    Last,
    /// The one that input [`LAST`] names; those behind are padding. Whoever runs the plan sets `position` to what is behind it: the
    /// rows that padding leaves in the cache are never seen, and written over.
    Named,
}

/// Builds the network for prompts of `time` rows. Reads `rows` `[B, T, D]`, which begin at state `position`; moves `position` on
/// (but see [`PromptEnd::Named`]), fills the cache, and writes `hidden` and `logits` of the last row.
///
/// # Errors
/// The configuration contradicts itself, or the capacity is below `time`.
pub fn prefill(
    g: &mut Graph,
    c: &TalkerConfig,
    s: Sizes,
    time: usize,
    end: PromptEnd,
) -> Result<(), GraphError> {
    let rows = g.input(ROWS, DType::F32, [s.batch, time, c.transformer.hidden_size])?;
    let position = g.state(POSITION, DType::I32, [s.batch])?;
    let mut cache = cache(g, c, s)?;
    let last = match end {
        PromptEnd::Last => None,
        PromptEnd::Named => Some(g.input(LAST, DType::I32, [s.batch])?),
    };
    let (hidden, logits) = read(g, c, rows, (&mut cache, position), last, "prefill_layer")?;
    g.output(HIDDEN, hidden)?;
    g.output(LOGITS, logits)?;
    if end == PromptEnd::Last {
        let position = g.increment(position, time as i32)?;
        g.update(POSITION, position)?;
    }
    Ok(())
}

/// Declares the cache.
///
/// # Errors
/// It was declared before.
pub(super) fn cache(g: &mut Graph, c: &TalkerConfig, s: Sizes) -> Result<Cache, GraphError> {
    Cache::declare(g, CACHE, &c.transformer, [s.batch, s.capacity], s.kv)
}

/// Whether a state is one of the cache's.
pub(super) fn is_cache(state: &str) -> bool {
    state.strip_prefix(CACHE).is_some_and(|rest| rest.starts_with('.'))
}

/// Rows `[B, T, D]` from `position` on → hidden state `[B, 1, D]` and logits `[B, 1, V]` of the last, or of row `last`, i32 `[B]`.
///
/// # Errors
/// The configuration contradicts itself.
pub(super) fn read(
    g: &mut Graph,
    c: &TalkerConfig,
    rows: Value,
    (cache, position): (&mut Cache, Value),
    last: Option<Value>,
    tap: &str,
) -> Result<(Value, Value), GraphError> {
    let w = Scope::new("talker");
    let (time, d) = (g.shape(rows).dims()[1], c.transformer.hidden_size);
    let at = (cache, Rows::At(position));
    let x = transformer::layers(g, &w.at("model"), &c.transformer, rows, at, tap)?; // [B, T, D]
    let hidden = match last {
        Some(last) => g.row_at(x, last)?,
        None if time == 1 => x,
        None => g.slice(x, 1, time.saturating_sub(1), 1)?,
    }; // [B, 1, D]
    let logits = g.matmul(hidden, w.matrix("codec_head", d, c.vocab_size))?; // [B, 1, V]
    Ok((hidden, logits))
}

/// Rows of the codec table: ids `[B, T]` → `[B, T, D]`.
///
/// # Errors
/// Ids are no integers.
pub(super) fn codec_rows(g: &mut Graph, c: &TalkerConfig, ids: Value) -> Result<Value, GraphError> {
    let table =
        Scope::new("talker.model").get("codec_embedding.weight", [c.vocab_size, c.transformer.hidden_size]);
    g.embedding(ids, table)
}
