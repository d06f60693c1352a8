//! One frame as one plan: draw code 0, predict the others, read them back in.
//!
//!   logits, seen ─ sample ─ c0                          state `logits` is that of the row before
//!   hidden, E(c0) ─ code predictor ─ c1 … c15           `codes` i32 `[B, 16]`
//!   Σ rows of the codes + text row ─ talker ─ hidden, logits
//!
//! What changes from frame to frame are states of each batch row, so the plan is replayed for all frames, and
//! the host only sees the codes. It stops when code 0 is the end of speech; the rest of that frame means
//! nothing.
//!
//! | buffer | | |
//! | --- | --- | --- |
//! | `codes` | i32 `[B, 16]` | the frame |
//! | `trailing` | `[B, N, D]` | text rows, one for each frame; the last one for all that follow |
//! | `sampling`, `predictor_sampling` | `[B, 4]` | temperature, k, p, penalty ([`Op::Sample`]) of code 0 and of the others |
//! | `seed` | i32 `[B, 2]` | key of the random numbers |
//! | `frame` | state, i32 `[B]` | number of the frame, from 0 |
//! | `seen` | state, `[B, V]` | 1 where a code 0 was drawn before |
//! | `position`, `hidden`, `logits`, cache | states | as [`super::talker`] leaves them |

use super::code_predictor::{self, Codes};
use super::config::{CONTROL_IDS, TalkerConfig};
use super::talker::{self, CacheSizes, HIDDEN, LOGITS};
use crate::decoding::{FEED, POSITION, SEED};
use orate_graph::{ControlIds, DType, Draw, Graph, GraphError, Op, Value};

pub use crate::decoding::{CODES, FRAME, GIVEN};

/// Where a code 0 was drawn before, `[B, V]`.
pub const SEEN: &str = "seen";
/// Sampling settings of code 0, `[B, 4]`.
pub const SAMPLING: &str = "sampling";
/// Sampling settings of the other codes, `[B, 4]`.
pub const PREDICTOR_SAMPLING: &str = "predictor_sampling";

/// Number of first frames that cannot end the utterance.
pub const MIN_CODES: usize = 2;

/// Builds the plan for `text_rows` rows of trailing text.
pub fn build(g: &mut Graph, c: &TalkerConfig, s: CacheSizes, text_rows: usize) -> Result<(), GraphError> {
    let (batch, v) = (s.batch, c.vocab_size);
    let trailing = trailing(g, c, s, text_rows)?;
    let seed = g.input(SEED, DType::I32, [batch, 2])?;
    let mut settings = |name: &str| g.input(name, DType::F32, [batch, 4]);
    let (own, others) = (settings(SAMPLING)?, settings(PREDICTOR_SAMPLING)?);
    let number = g.state(FRAME, DType::I32, [batch])?;
    let draw = Draw { settings: own, seed, number };

    let logits = g.state(LOGITS, DType::F32, [batch, 1, v])?;
    let seen = g.state(SEEN, DType::F32, [batch, v])?;
    let flat = g.reshape(logits, [batch, v])?;
    let code = g.sample(Op::Sample { codebook: 0, controls: Some(controls(c)) }, flat, draw, Some(seen))?;
    g.mark(seen, code)?;

    let others = Codes::Drawn(Draw { settings: others, ..draw });
    let logits = finish(g, c, s, Frame { trailing, number, code, others })?;
    g.update(LOGITS, logits)
}

/// Builds the plan of a frame whose codes are read from [`GIVEN`]: nothing is drawn, and [`SEEN`] stays as it
/// is. For comparing what the networks make of the same codes.
pub fn of_given_codes(
    g: &mut Graph,
    c: &TalkerConfig,
    s: CacheSizes,
    text_rows: usize,
) -> Result<(), GraphError> {
    let trailing = trailing(g, c, s, text_rows)?;
    let given = g.input(GIVEN, DType::I32, [s.batch, c.num_code_groups])?;
    let number = g.state(FRAME, DType::I32, [s.batch])?;
    let code = g.slice(given, 1, 0, 1)?;
    let logits = finish(g, c, s, Frame { trailing, number, code, others: Codes::Given(given) })?;
    g.output(LOGITS, logits)
}

fn trailing(g: &mut Graph, c: &TalkerConfig, s: CacheSizes, text_rows: usize) -> Result<Value, GraphError> {
    g.input(FEED, DType::F32, [s.batch, text_rows, c.transformer.hidden_size])
}

/// A frame whose code 0 is there.
struct Frame {
    trailing: Value,
    number: Value,
    code: Value,
    others: Codes,
}

/// From code 0 to the logits of the next frame, which are for the caller to keep.
fn finish(g: &mut Graph, c: &TalkerConfig, s: CacheSizes, f: Frame) -> Result<Value, GraphError> {
    let (batch, d) = (s.batch, c.transformer.hidden_size);
    let hidden = g.state(HIDDEN, DType::F32, [batch, 1, d])?;
    let first = talker::codec_rows(g, c, f.code)?; // [B, 1, D]
    let predicted = code_predictor::build(g, c, hidden, first, f.others)?;
    let codes: Vec<_> = [f.code].into_iter().chain(predicted.codes).collect();
    let codes = g.concat(&codes, 1)?;
    g.output(CODES, codes)?;

    let text = g.row_at(f.trailing, f.number)?;
    let row = g.add(predicted.sum, text)?;
    g.tap("row", row)?;
    let position = g.state(POSITION, DType::I32, [batch])?;
    let mut cache = talker::cache(g, c, s)?;
    let (hidden, logits) = talker::read(g, c, row, (&mut cache, position), None, "layer")?;
    g.update(HIDDEN, hidden)?;
    let (position, number) = (g.increment(position, 1)?, g.increment(f.number, 1)?);
    g.update(POSITION, position)?;
    g.update(FRAME, number)?;
    Ok(logits)
}

/// The ids of the talker's vocabulary that are no codes.
pub fn controls(c: &TalkerConfig) -> ControlIds {
    ControlIds {
        first: c.vocab_size.saturating_sub(CONTROL_IDS),
        end: c.codec_eos_token_id as usize,
        min_draws: MIN_CODES,
    }
}
