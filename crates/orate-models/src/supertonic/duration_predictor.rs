//! Duration predictor: how long an utterance will be.
//!
//!   ids                     `[B, T]`
//!   embed, sentence token   `[B, T + 1, C]`    the token is position 0
//!   ConvNeXt ×6             `[B, T + 1, C]`
//!   x + transformer(x)      `[B, 1, C]`        only position 0 is needed
//!   with the style          `[B, C + 128]`
//!   MLP, exp                `[B, 1]`           seconds at speed 1
//!
//! Paper: arXiv 2503.23108. Weights below `tts.dp`.

use super::blocks::{Sizes, attn_encoder, character_table, convnext_stack};
use super::config::Config;
use crate::blocks::{Scope, clear_after, tap_channels_first};
use orate_graph::{Activation, DType, Graph, GraphError};

/// Reads `text_ids` and `style_dp`, and with padding also `dp_lens` (tokens of each row, plus one); writes
/// `duration` `[B, 1]`.
pub fn build(g: &mut Graph, w: &Scope<'_>, c: &Config, s: Sizes) -> Result<(), GraphError> {
    let (e, batch) = (&c.dp_encoder, s.batch);
    let (width, style) = (e.width, c.dp_style.count());
    let ids = g.input("text_ids", DType::I32, [batch, s.tokens])?;
    let style_dp = g.input("style_dp", DType::F32, [batch, 1, style])?;
    let lens = s.lens(g, "dp_lens")?;

    let (predictor, w) = (w.at("tts.dp.predictor"), w.at("tts.dp.sentence_encoder"));
    let x = g.embedding(ids, character_table(&w, width))?; // [B, T, C]
    let token = g.constant(w.get("sentence_token", [1, 1, width]), batch)?; // [B, 1, C]
    let x = g.concat(&[token, x], 1)?; // [B, T + 1, C]
    let x = clear_after(g, x, lens)?;
    tap_channels_first(g, "embed_with_sentence_token", x)?;
    let x = convnext_stack(g, &w, "convnext.convnext", &e.convnext, x, lens, |g, i, x| {
        tap_channels_first(g, &format!("convnext.{i}"), x)
    })?;
    let first_only = !g.has_taps();
    let y = attn_encoder(g, &w, &e.attention, x, lens, first_only)?;
    let x = g.slice(x, 1, 0, 1)?;
    let y = if first_only { y } else { g.slice(y, 1, 0, 1)? };
    let x = g.add(x, y)?; // [B, 1, C]
    let sentence = g.matmul(x, w.matrix("proj_out.net", width, width))?;
    tap_channels_first(g, "sentence", sentence)?;

    let (w, inner) = (predictor, c.dp_inner);
    let x = g.concat(&[sentence, style_dp], 2)?; // [B, 1, C + style]
    let x = w.linear(g, x, "layers.0", [width + style, inner])?;
    let x = g.activate(x, Activation::PRelu(w.get("activation.weight", [1])))?;
    let hidden = g.reshape(x, [batch, inner])?;
    g.tap("mlp_hidden", hidden)?;
    let x = w.linear(g, x, "layers.1", [inner, 1])?;
    let x = g.activate(x, Activation::Exp)?;
    let x = g.reshape(x, [batch, 1])?;
    g.output("duration", x)
}
