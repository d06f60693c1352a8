//! Code predictor: code 0 of a frame and the talker's state to codes 1–15.
//!
//!   position 0        hidden            state of the talker, normed
//!   position 1        E(c0)             a row of the talker's table
//!   position g + 1    table g−1 (c_g)   g = 1 … 14
//!   each              projected to the predictor's width if it differs; Qwen3 layers; norm
//!   head g            `[B, V]`          at position g + 1: c_{g+1} is drawn from it
//!
//! So there are fifteen passes, the first over two rows. The cache lasts for a frame. Tables are as wide as
//! the talker, whose next input is the sum of a frame's rows.
//!
//! Official class: `Qwen3TTSTalkerCodePredictorModelForConditionalGeneration`. Weights below
//! `talker.code_predictor`.

use super::config::{TalkerConfig, TransformerConfig};
use super::transformer;
use crate::blocks::Scope;
use orate_graph::{Draw, Graph, GraphError, Op, Rows, SampleRules, Value};

type Result<T> = std::result::Result<T, GraphError>;

/// Where the codes of a frame come from.
#[derive(Clone, Copy, Debug)]
pub enum Codes {
    /// Sampled from the logits.
    Drawn(Draw),
    /// Given, i32 `[B, Q]`, to compare what the networks compute from them.
    Given(Value),
}

/// Builds all passes. `hidden` and `first`, the row of code 0, are `[B, 1, D]`. Returns codes 1 …, i32
/// `[B, 1]` each, and the sum of the rows of all codes, `[B, 1, D]`. With taps on, the logits of pass g are
/// recorded as `predictor_logits{g}` `[B, V]`.
pub fn build(
    g: &mut Graph,
    c: &TalkerConfig,
    hidden: Value,
    first: Value,
    from: Codes,
) -> Result<(Vec<Value>, Value)> {
    let w = Scope::new("talker.code_predictor");
    let p = &c.code_predictor_config;
    let (d, own) = (c.transformer.hidden_size, p.transformer.hidden_size);
    let batch = g.shape(hidden).dims()[0];
    let mut cache =
        transformer::declare_cache(g, "predictor", &p.transformer, [batch, p.num_code_groups], None)?;
    let mut rows = g.concat(&[hidden, first], 1)?;
    let positions = positions(g, &p.transformer, p.num_code_groups)?;
    let mut at = 0;
    let mut sum = first;
    let mut codes = vec![];
    for book in 0..p.num_code_groups - 1 {
        let time = g.shape(rows).dims()[1];
        let x = if d == own { rows } else { w.linear(g, rows, "small_to_mtp_projection", [d, own])? };
        let tap = format!("predictor_pass{book}_layer");
        let position = match time {
            1 => g.slice(positions, 0, at, 1)?,
            _ => g.rope_table(p.transformer.rope_theta, time, p.transformer.head_dim, Rows::From(at))?,
        };
        let at_rows = (&mut cache, Rows::From(at), position);
        let x = transformer::layers(g, &w.at("model"), &p.transformer, x, at_rows, &tap)?;
        at += time;
        let x = if time == 1 { x } else { g.slice(x, 1, time - 1, 1)? };
        let logits = g.matmul(x, w.matrix(&format!("lm_head.{book}"), own, p.vocab_size))?;
        let logits = g.reshape(logits, [batch, p.vocab_size])?;
        g.tap(&format!("predictor_logits{book}"), logits)?;
        let code = match from {
            Codes::Drawn(draw) => {
                let rules = SampleRules { codebook: book as u32 + 1, ..SampleRules::default() };
                g.sample(Op::Sample(rules), logits, draw, None)?
            }
            Codes::Given(codes) => g.slice(codes, 1, book + 1, 1)?,
        };
        rows = embed(g, c, book, code)?;
        sum = g.add(sum, rows)?;
        codes.push(code);
    }
    Ok((codes, sum))
}

/// Returns rotary tables of single rows at positions 0 … T − 1, `[T, 2, 1, Dh/2]`, for all passes.
fn positions(g: &mut Graph, c: &TransformerConfig, time: usize) -> Result<Value> {
    let table = g.rope_table(c.rope_theta, time, c.head_dim, Rows::From(0))?; // [1, 2, T, Dh/2]
    g.permute(table, &[2, 1, 0, 3])
}

/// Rows of the table of code `book` + 1: ids `[B, T]` → `[B, T, D]`.
pub(super) fn embed(g: &mut Graph, c: &TalkerConfig, book: usize, ids: Value) -> Result<Value> {
    let name = format!("codec_embedding.{book}.weight");
    let shape = [c.code_predictor_config.vocab_size, c.transformer.hidden_size];
    g.embedding(ids, Scope::new("talker.code_predictor.model").get(&name, shape))
}
