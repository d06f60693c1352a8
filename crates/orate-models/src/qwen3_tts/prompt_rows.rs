//! Rows of a prompt from ids, on the device.
//!
//! ```text
//! text ids ─ table [T, Dt] ─ fc1, SiLU, fc2 ─ text rows [T, D]
//! what is beside them, [T, D]:
//!   nothing     0
//!   an id       a row of the talker's table
//!   x-vector    itself
//!   a frame     the sum of a row of each of sixteen tables, the talker's first
//! rows = text rows + what is beside them
//! ```
//!
//! Which row has what is data, so that one plan serves all prompts of a length: each kind is computed for all
//! rows, and cleared in rows of another kind.
//!
//! Weights below `talker`.

use super::code_predictor;
use super::config::TalkerConfig;
use super::talker::codec_rows;
use crate::blocks::Scope;
use orate_graph::{Activation, DType, Graph, GraphError, Value};

pub use crate::decoding::{FEED as TRAILING, ROWS};

/// A text id for each row, i32 `[1, T]`.
pub const TEXT_IDS: &str = "text_ids";
/// The id, or code 0 of the frame, of each row, i32 `[T, 1]`.
pub const CODEC_IDS: &str = "codec_ids";
/// 1 for each row with an id, else 0: i32 `[T]`.
pub const IS_ID: &str = "is_id";
/// The other codes of each row's frame, i32 `[T, Q − 1]`.
pub const OTHER_CODES: &str = "other_codes";
/// 1 for each row with a frame, else 0: i32 `[T]`.
pub const IS_FRAME: &str = "is_frame";
/// `[1, D]`
pub const X_VECTOR: &str = "x_vector";
/// 1 for the row of the x-vector, else 0: i32 `[T]`.
pub const IS_X_VECTOR: &str = "is_x_vector";
/// Ids of text that is fed later, i32 `[1, N]`.
pub const TRAILING_IDS: &str = "trailing_ids";

/// Builds the network for `time` rows. Reads [`TEXT_IDS`], [`CODEC_IDS`] and [`IS_ID`], and with `reference`,
/// for rows with an x-vector or a frame, [`OTHER_CODES`], [`IS_FRAME`], [`X_VECTOR`] and [`IS_X_VECTOR`].
/// Writes [`ROWS`].
pub fn build(g: &mut Graph, c: &TalkerConfig, time: usize, reference: bool) -> Result<(), GraphError> {
    let ids = g.input(TEXT_IDS, DType::I32, [1, time])?;
    let text = text_rows(g, c, ids)?; // [1, T, D]
    let ids = g.input(CODEC_IDS, DType::I32, [time, 1])?;
    let first = codec_rows(g, c, ids)?; // [T, 1, D], as all that is beside
    let is_id = g.input(IS_ID, DType::I32, [time])?;
    let mut beside = g.mask_rows(first, Some(is_id))?;
    if reference {
        // Where the x-vector goes there is 0 so far.
        let x_vector = g.input(X_VECTOR, DType::F32, [1, c.transformer.hidden_size])?;
        let x_vectors = g.add_row(beside, x_vector)?;
        let is_x_vector = g.input(IS_X_VECTOR, DType::I32, [time])?;
        let x_vectors = g.mask_rows(x_vectors, Some(is_x_vector))?;
        beside = g.add(beside, x_vectors)?;

        let codes = g.input(OTHER_CODES, DType::I32, [time, c.num_code_groups - 1])?;
        let mut frames = first;
        for book in 0..c.num_code_groups - 1 {
            let ids = g.slice(codes, 1, book, 1)?;
            let rows = code_predictor::embed(g, c, book, ids)?;
            frames = g.add(frames, rows)?;
        }
        let is_frame = g.input(IS_FRAME, DType::I32, [time])?;
        let frames = g.mask_rows(frames, Some(is_frame))?;
        beside = g.add(beside, frames)?;
    }
    let beside = g.reshape(beside, [1, time, c.transformer.hidden_size])?;
    let rows = g.add(text, beside)?;
    g.output(ROWS, rows)
}

/// Builds the network for `count` rows of text that is fed later. Reads [`TRAILING_IDS`], writes
/// [`TRAILING`].
pub fn trailing(g: &mut Graph, c: &TalkerConfig, count: usize) -> Result<(), GraphError> {
    let ids = g.input(TRAILING_IDS, DType::I32, [1, count])?;
    let rows = text_rows(g, c, ids)?;
    g.output(TRAILING, rows)
}

/// ids `[B, T]` → `[B, T, D]`: `fc2(silu(fc1(table[id])))`
fn text_rows(g: &mut Graph, c: &TalkerConfig, ids: Value) -> Result<Value, GraphError> {
    let w = Scope::new("talker");
    let wide = c.text_hidden_size;
    let x = g.embedding(ids, w.get("model.text_embedding.weight", [c.text_vocab_size, wide]))?;
    if c.text_is_projected {
        return Ok(x);
    }
    let w = w.at("text_projection");
    let x = w.linear(g, x, "linear_fc1", [wide, wide])?;
    let x = g.activate(x, Activation::Silu)?;
    w.linear(g, x, "linear_fc2", [wide, c.transformer.hidden_size])
}
