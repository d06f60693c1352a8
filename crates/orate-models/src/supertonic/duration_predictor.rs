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

use super::blocks::{attn_encoder, convnext_stack};
use super::config::Dp;
use super::text_encoder::character_table;
use crate::blocks::{Scope, tap_channels_first};
use orate_graph::{Activation, DType, Graph, GraphError};

/// Builds the network for `batch` texts of `tokens` ids. Reads `text_ids` and `style_dp`, and with `padded`
/// also `dp_lens` (tokens of each row, plus one); writes `duration` `[B, 1]`.
pub fn build(
    g: &mut Graph,
    w: &Scope<'_>,
    c: &Dp,
    batch: usize,
    tokens: usize,
    padded: bool,
) -> Result<(), GraphError> {
    let e = &c.sentence_encoder;
    let (width, style) = (e.text_embedder.char_emb_dim, c.predictor.n_style * c.predictor.style_dim);
    let ids = g.input("text_ids", DType::I32, [batch, tokens])?;
    let style_dp = g.input("style_dp", DType::F32, [batch, 1, style])?;
    let lens = if padded { Some(g.input("dp_lens", DType::I32, [batch])?) } else { None };

    let (predictor, w) = (w.at("tts.dp.predictor"), w.at("tts.dp.sentence_encoder"));
    let x = g.embedding(ids, character_table(&w, width))?; // [B, T, C]
    let token = g.constant(w.get("sentence_token", [1, 1, width]), batch)?; // [B, 1, C]
    let x = g.concat(&[token, x], 1)?; // [B, T + 1, C]
    let x = g.mask_rows(x, lens)?;
    tap_channels_first(g, "embed_with_sentence_token", x)?;
    let x = convnext_stack(g, &w, "convnext.convnext", &e.convnext, x, lens, |g, i, x| {
        tap_channels_first(g, &format!("convnext.{i}"), x)
    })?;
    let first_only = !g.has_taps();
    let y = attn_encoder(g, &w, &e.attn_encoder, x, lens, first_only)?;
    let x = g.slice(x, 1, 0, 1)?;
    let y = if first_only { y } else { g.slice(y, 1, 0, 1)? };
    let x = g.add(x, y)?; // [B, 1, C]
    let sentence = g.matmul(x, w.matrix("proj_out.net", width, width))?;
    tap_channels_first(g, "sentence", sentence)?;

    let (w, inner) = (predictor, c.predictor.hdim);
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
