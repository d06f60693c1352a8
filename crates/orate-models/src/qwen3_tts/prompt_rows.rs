//! Rows of a prompt from ids, on the device.
//!
//!   text ids ─ table `[T, Dt]` ─ fc1, SiLU, fc2 ─ text rows `[T, D]`
//!   codec ids, x-vector, frames of reference codes ─ codec rows `[T − plain, D]`
//!   rows = text rows, the codec rows added to all but the first `plain`
//!
//! Every row has a text, and after some that have nothing else every row has a codec part: ids, perhaps an x-vector, ids,
//! and perhaps frames, of which a row is the sum of sixteen table rows. [`super::prompt`] says which.
//!
//! Weights below `talker`.

use super::code_predictor;
use super::config::TalkerConfig;
use super::talker::codec_rows;
use super::weights::Scope;
use orate_graph::{Activation, DType, Graph, GraphError, Value};

/// The rows, `[1, T, D]`.
pub const ROWS: &str = "rows";

/// How many rows of each kind a prompt has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PromptSizes {
    /// Rows of text alone, in front.
    pub plain: usize,
    /// Rows with a codec id, behind them.
    pub before: usize,
    /// Whether the row behind those has an x-vector.
    pub x_vector: bool,
    /// Rows with a codec id behind that.
    pub after: usize,
    /// Rows with a frame of reference codes, at the end.
    pub frames: usize,
    /// Rows of text that are fed later.
    pub trailing: usize,
}

impl PromptSizes {
    /// T
    pub fn rows(&self) -> usize {
        self.plain + self.before + usize::from(self.x_vector) + self.after + self.frames
    }
}

/// Builds the network. Reads `text_ids` i32 `[1, T]`, `codec_ids` i32 `[1, before + after]`, `x_vector` `[1, 1, D]` and `reference_codes`
/// i32 `[1, frames, Q]` where there are any, and `trailing_ids` i32 `[1, N]` if N is not 0. Writes `rows` `[1, T, D]` and `trailing` `[1, N, D]`.
///
/// # Errors
/// The configuration contradicts itself.
pub fn build(g: &mut Graph, c: &TalkerConfig, s: PromptSizes) -> Result<(), GraphError> {
    let d = c.transformer.hidden_size;
    let ids = g.input("text_ids", DType::I32, [1, s.rows()])?;
    let text = text_rows(g, c, ids)?; // [1, T, D]
    let mut codec = vec![];
    if s.before + s.after > 0 {
        let ids = g.input("codec_ids", DType::I32, [1, s.before + s.after])?;
        let rows = codec_rows(g, c, ids)?;
        if s.before > 0 {
            codec.push(g.slice(rows, 1, 0, s.before)?);
        }
        if s.x_vector {
            codec.push(g.input("x_vector", DType::F32, [1, 1, d])?);
        }
        if s.after > 0 {
            codec.push(g.slice(rows, 1, s.before, s.after)?);
        }
    } else if s.x_vector {
        codec.push(g.input("x_vector", DType::F32, [1, 1, d])?);
    }
    if s.frames > 0 {
        let codes = g.input("reference_codes", DType::I32, [1, s.frames, c.num_code_groups])?;
        codec.push(frame_rows(g, c, codes)?);
    }
    let rows = if codec.is_empty() {
        text
    } else {
        let codec = g.concat(&codec, 1)?; // [1, T − plain, D]
        let both = g.slice(text, 1, s.plain, s.rows() - s.plain)?;
        let both = g.add(both, codec)?;
        if s.plain == 0 {
            both
        } else {
            let plain = g.slice(text, 1, 0, s.plain)?;
            g.concat(&[plain, both], 1)?
        }
    };
    g.output(ROWS, rows)?;
    if s.trailing == 0 {
        return Ok(());
    }
    let ids = g.input("trailing_ids", DType::I32, [1, s.trailing])?;
    let trailing = text_rows(g, c, ids)?;
    g.output("trailing", trailing)
}

/// ids `[B, T]` → `[B, T, D]`: `fc2(silu(fc1(table[id])))`
fn text_rows(g: &mut Graph, c: &TalkerConfig, ids: Value) -> Result<Value, GraphError> {
    let w = Scope::new("talker");
    let wide = c.text_hidden_size;
    let x = g.embedding(ids, w.get("model.text_embedding.weight", [c.text_vocab_size, wide]))?;
    let w = w.at("text_projection");
    let x = w.linear(g, x, "linear_fc1", [wide, wide])?;
    let x = g.activate(x, Activation::Silu)?;
    w.linear(g, x, "linear_fc2", [wide, c.transformer.hidden_size])
}

/// codes `[1, F, Q]` → `[1, F, D]`: the sum of a row of each code's table.
fn frame_rows(g: &mut Graph, c: &TalkerConfig, codes: Value) -> Result<Value, GraphError> {
    let frames = g.shape(codes).dims()[1];
    let mut sum = None;
    for q in 0..c.num_code_groups {
        let ids = g.slice(codes, 2, q, 1)?;
        let ids = g.reshape(ids, [1, frames])?;
        let rows = match q.checked_sub(1) {
            None => codec_rows(g, c, ids)?,
            Some(book) => code_predictor::embed(g, c, book, ids)?,
        };
        sum = Some(match sum {
            None => rows,
            Some(sum) => g.add(sum, rows)?,
        });
    }
    sum.ok_or_else(|| GraphError::Shape {
        graph: g.name().to_owned(),
        node: "reference frames".to_owned(),
        got: "no codes".to_owned(),
        needed: "a code for each frame".to_owned(),
    })
}
