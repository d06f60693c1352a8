//! Text encoder: characters to the vectors that the latent attends to.
//!
//!   ids                         `[B, T]`
//!   embed                       `[B, T, C]`
//!   ConvNeXt ×6                 `[B, T, C]`
//!   x + transformer(x)          `[B, T, C]`
//!   style attention ×2, norm    `[B, T, C]`    both residuals start from the encoder's output
//!
//! Paper: arXiv 2503.23108. Weights below `tts.ttl.text_encoder` and `tts.ttl.speech_prompted_text_encoder`.

use super::blocks::{Sizes, attn_encoder, character_table, convnext_stack, norm, repeat, style_keys};
use super::config::Config;
use super::stage::STYLE_KEY;
use crate::blocks::{Lengths, Scope, clear_after, tap_channels_first};
use orate_graph::{DType, Graph, GraphError, Value, Weight};

type Result<T> = std::result::Result<T, GraphError>;

/// Reads `text_ids` and `style_ttl`, and with padding also `text_lens`; writes `text_emb` `[B, T, C]`.
pub fn build(g: &mut Graph, w: &Scope<'_>, c: &Config, s: Sizes) -> Result<()> {
    let ids = g.input("text_ids", DType::I32, [s.batch, s.tokens])?;
    let style = g.input("style_ttl", DType::F32, [s.batch, c.style.tokens, c.style.width])?;
    let lens = s.lens(g, "text_lens")?;
    let x = encoder(g, w, c, ids, lens)?;
    let x = speech_prompted(g, w, c, x, style, lens)?;
    g.output("text_emb", x)
}

fn encoder(g: &mut Graph, w: &Scope<'_>, c: &Config, ids: Value, lens: Option<Lengths>) -> Result<Value> {
    let (e, w) = (&c.text_encoder, w.at("tts.ttl.text_encoder"));
    let x = g.embedding(ids, character_table(&w, e.width))?; // [B, T, C]
    let x = clear_after(g, x, lens)?;
    tap_channels_first(g, "embed", x)?;
    let x = convnext_stack(g, &w, "convnext.convnext", &e.convnext, x, lens, |g, i, x| {
        tap_channels_first(g, &format!("convnext.{i}"), x)
    })?;
    let y = attn_encoder(g, &w, &e.attention, x, lens, false)?;
    let x = g.add(x, y)?;
    let x = clear_after(g, x, lens)?;
    tap_channels_first(g, "encoder_out", x)?;
    Ok(x)
}

/// Two rounds of attention to the voice's style tokens.
fn speech_prompted(
    g: &mut Graph,
    w: &Scope<'_>,
    c: &Config,
    x: Value,
    style: Value,
    lens: Option<Lengths>,
) -> Result<Value> {
    let (p, s) = (&c.speech_prompted, c.style);
    let prompted = w.at("tts.ttl.speech_prompted_text_encoder");
    let mut y = x;
    for n in [1, 2] {
        let a = prompted.at(&format!("attention{n}"));
        // The keys are learned constants, not the voice. Versions 1 and 2 store them after the tanh.
        let keys = if a.has("W_key.linear.weight") {
            style_keys(&a, &w.get(STYLE_KEY, [s.tokens, s.width]), p.units)
        } else {
            folded_keys(&a, p.heads, p.units, s.tokens)
        };
        let k = g.constant(keys, 1)?;
        let v = a.linear(g, style, "W_value.linear", [s.width, p.units])?; // [B, slots, units]
        let batch = g.shape(v).dims()[0];
        let k = repeat(g, k, batch)?;
        let o = p.build(g, &a, y, k, v)?;
        let o = clear_after(g, o, lens)?;
        g.tap(&format!("style_attention.{n}"), o)?;
        y = g.add(x, o)?; // from x both times
    }
    let y = norm(g, &prompted, "norm.norm", y)?;
    clear_after(g, y, lens)
}

/// Stored keys `[H, 1, Dh, slots]` as `[1, slots, H·Dh]`.
fn folded_keys(w: &Scope<'_>, heads: usize, units: usize, slots: usize) -> Weight {
    let keys = w.get("tanh_key", [heads, units / heads, slots]).reshape([units, slots]);
    keys.transpose().reshape([1, slots, units])
}
