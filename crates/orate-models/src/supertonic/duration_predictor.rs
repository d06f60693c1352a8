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

use super::blocks::{attn_encoder, convnext_stack, tap_channels_first};
use super::{BuildError, config::Dp, names::Names};
use orate_graph::{Activation, DType, Graph, Value};

/// Builds the network for `batch` texts of `tokens` ids. Reads `text_ids` and `style_dp`, and with `padded` also
/// `dp_lens` (tokens of each row, plus one); writes `duration` `[B, 1]`.
pub fn build(
    g: &mut Graph,
    w: &Names<'_>,
    c: &Dp,
    batch: usize,
    tokens: usize,
    padded: bool,
) -> Result<(), BuildError> {
    let e = &c.sentence_encoder;
    let (width, style) = (e.text_embedder.char_emb_dim, c.predictor.n_style * c.predictor.style_dim);
    let ids = g.input("text_ids", DType::I32, [batch, tokens])?;
    let style_dp = g.input("style_dp", DType::F32, [batch, 1, style])?;
    let lens = if padded { Some(g.input("dp_lens", DType::I32, [batch])?) } else { None };

    let sentence = w.within("tts.dp.sentence_encoder", |w| -> Result<Value, BuildError> {
        let table = "text_embedder.char_embedder.weight";
        let rows = w.shape(table).and_then(|s| s.first().copied()).unwrap_or(0);
        let x = g.embedding(ids, w.get(table, [rows, width])?)?; // [B, T, C]
        let token = g.constant(w.get("sentence_token", [1, 1, width])?, batch)?; // [B, 1, C]
        let x = g.concat(&[token, x], 1)?; // [B, T + 1, C]
        let x = g.mask_rows(x, lens)?;
        tap_channels_first(g, "embed_with_sentence_token", x)?;
        let x = convnext_stack(g, w, "convnext.convnext", &e.convnext, x, lens, |g, i, x| {
            tap_channels_first(g, &format!("convnext.{i}"), x)
        })?;
        let first_only = !g.has_taps();
        let y = attn_encoder(g, w, &e.attn_encoder, x, lens, first_only)?;
        let x = g.slice(x, 1, 0, 1)?;
        let y = if first_only { y } else { g.slice(y, 1, 0, 1)? };
        let x = g.add(x, y)?; // [B, 1, C]
        let x = g.matmul(x, w.get("proj_out.net.weight", [width, width])?.transpose())?;
        tap_channels_first(g, "sentence", x)?;
        Ok(x)
    })?;

    w.within("tts.dp.predictor", |w| {
        let x = g.concat(&[sentence, style_dp], 2)?; // [B, 1, C + style]
        let (w0, b0) = w.linear("layers.0", width + style, c.predictor.hdim)?;
        let x = g.linear(x, w0, b0)?;
        let x = g.activate(x, Activation::PRelu(w.get("activation.weight", [1])?))?;
        let hidden = g.reshape(x, [batch, c.predictor.hdim])?;
        g.tap("mlp_hidden", hidden)?;
        let (w1, b1) = w.linear("layers.1", c.predictor.hdim, 1)?;
        let x = g.linear(x, w1, b1)?;
        let x = g.activate(x, Activation::Exp)?;
        let x = g.reshape(x, [batch, 1])?;
        Ok(g.output("duration", x)?)
    })
}
