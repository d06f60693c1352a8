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
//! Buffers are those of [`crate::decoding`], [`SEEN`], sampling settings, and what [`super::talker`] leaves.

use super::code_predictor::{self, Codes};
use super::config::{CONTROL_IDS, TalkerConfig};
use super::talker::{self, CacheSizes, HIDDEN, LOGITS};
use super::transformer;
use crate::decoding::{FEED, POSITION, SEED};
use orate_graph::{ControlIds, DType, Draw, Graph, GraphError, Op, SampleRules};

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
    frame(g, c, s, text_rows, false)
}

/// Builds the plan of a frame whose codes are read from [`GIVEN`]: nothing is drawn, and [`SEEN`] stays as it
/// is. For comparing what the networks make of the same codes.
pub fn of_given_codes(
    g: &mut Graph,
    c: &TalkerConfig,
    s: CacheSizes,
    text_rows: usize,
) -> Result<(), GraphError> {
    frame(g, c, s, text_rows, true)
}

fn frame(
    g: &mut Graph,
    c: &TalkerConfig,
    s: CacheSizes,
    text_rows: usize,
    is_given: bool,
) -> Result<(), GraphError> {
    let (batch, v, d) = (s.batch, c.vocab_size, c.transformer.hidden_size);
    let trailing = g.input(FEED, DType::F32, [batch, text_rows, d])?;
    let (number, code, others) = if is_given {
        let given = g.input(GIVEN, DType::I32, [batch, c.num_code_groups])?;
        let number = g.state(FRAME, DType::I32, [batch])?;
        (number, g.slice(given, 1, 0, 1)?, Codes::Given(given))
    } else {
        let seed = g.input(SEED, DType::I32, [batch, 2])?;
        let mut settings = |name: &str| g.input(name, DType::F32, [batch, 4]);
        let (own, others) = (settings(SAMPLING)?, settings(PREDICTOR_SAMPLING)?);
        let number = g.state(FRAME, DType::I32, [batch])?;
        let draw = Draw { settings: own, seed, number };
        let logits = g.state(LOGITS, DType::F32, [batch, 1, v])?;
        let seen = g.state(SEEN, DType::F32, [batch, v])?;
        let flat = g.reshape(logits, [batch, v])?;
        let rules = SampleRules { controls: Some(controls(c)), ..SampleRules::default() };
        let code = g.sample(Op::Sample(rules), flat, draw, Some(seen))?;
        g.mark(seen, code)?;
        (number, code, Codes::Drawn(Draw { settings: others, ..draw }))
    };

    let hidden = g.state(HIDDEN, DType::F32, [batch, 1, d])?;
    let first = talker::codec_rows(g, c, code)?; // [B, 1, D]
    let (predicted, sum) = code_predictor::build(g, c, hidden, first, others)?;
    let codes: Vec<_> = [code].into_iter().chain(predicted).collect();
    let codes = g.concat(&codes, 1)?;
    g.output(CODES, codes)?;

    let text = g.row_at(trailing, number)?;
    let row = g.add(sum, text)?;
    g.tap("row", row)?;
    let position = g.state(POSITION, DType::I32, [batch])?;
    let mut cache =
        transformer::declare_cache(g, "talker", &c.transformer, [s.batch, s.capacity], Some(s.kv))?;
    let (hidden, logits) = talker::read(g, c, row, (&mut cache, position), None, "layer")?;
    g.update(HIDDEN, hidden)?;
    let (position, number) = (g.increment(position, 1)?, g.increment(number, 1)?);
    g.update(POSITION, position)?;
    g.update(FRAME, number)?;
    if is_given { g.output(LOGITS, logits) } else { g.update(LOGITS, logits) }
}

/// The ids of the talker's vocabulary that are no codes.
pub fn controls(c: &TalkerConfig) -> ControlIds {
    ControlIds {
        first: c.vocab_size.saturating_sub(CONTROL_IDS),
        end: c.codec_eos_token_id as usize,
        min_draws: MIN_CODES,
    }
}
