//! Vector estimator: one Euler step of flow matching, from noise toward the latent.
//!
//!   latent               `[B, L, D·K]`
//!   proj_in              `[B, L, C]`
//!   ×n_blocks:
//!     ConvNeXt ×4        dilations 1 2 4 8
//!     + time             one row for all positions
//!     ConvNeXt
//!     text attention     rotary positions as parts of each length, then norm
//!     ConvNeXt
//!     style attention    then norm
//!   ConvNeXt ×4
//!   proj_out             `[B, L, D·K]`, the velocity
//!   latent + velocity / steps
//!
//! What does not change from step to step is computed by [`VectorEstimator::build_prepare`], once per
//! utterance: keys and values of both attentions, rotary tables, and the time rows of all steps.
//!
//! Version 3 runs every position twice, with the text and voice and without (classifier-free guidance), and
//! combines `4 · with − 3 · without`. Until the first text attention both halves are equal and computed once.
//! In the half without text all keys have one value, so attention returns it: a constant, known at load.
//!
//! Paper: arXiv 2503.23108; rotary positions: arXiv 2509.11084. Weights below `tts.ttl.vector_field`.

use super::blocks::{Sizes, convnext_stack, norm, repeat, style_keys};
use super::config::Config;
use super::stage::STYLE_KEY;
use crate::blocks::{Lengths, Scope, clear_after, tap_channels_first};
use orate_graph::{Activation, DType, Factor, Graph, GraphError, Value, Weight};

type Result<T> = std::result::Result<T, GraphError>;

/// Factors of the velocities with and without text and voice, from the official graph.
const GUIDANCE: (f32, f32) = (4.0, 3.0);

/// Prefix of the weights that stand in for text and voice.
const UNCONDITIONAL: &str = "tts.ttl.uncond_masker";

/// What text attention needs besides its weights.
struct TextContext {
    table: Value,
    lens: Option<Lengths>,
    text_lens: Option<Lengths>,
    /// Whether the batch already has rows without text.
    split: bool,
    /// Whether queries are written.
    queries: bool,
}

/// The network: configuration, weights, and whether they hold guidance.
pub struct VectorEstimator<'a> {
    config: &'a Config,
    /// All weights of the model, and those of this network.
    all: &'a Scope<'a>,
    own: Scope<'a>,
    guidance: bool,
}

impl<'a> VectorEstimator<'a> {
    /// Looks whether the weights have guidance.
    pub fn new(all: &'a Scope<'a>, config: &'a Config) -> Self {
        let guidance = all.has(&format!("{UNCONDITIONAL}.text_special_token"));
        VectorEstimator { config, all, own: all.at("tts.ttl.vector_field"), guidance }
    }

    /// Everything that all steps share. Reads `text_emb`, `style_ttl`, `times` `[steps]` and with padding
    /// `text_lens` and `latent_lens`; writes `ve.*`.
    pub fn build_prepare(&self, g: &mut Graph, s: Sizes) -> Result<()> {
        let (c, vf) = (self.config, &self.config.vector_field);
        let (t, text_dim) = (vf.text, vf.text_dim);
        let text = g.input("text_emb", DType::F32, [s.batch, s.tokens, text_dim])?;
        let style = g.input("style_ttl", DType::F32, [s.batch, c.style.tokens, c.style.width])?;
        let times = g.input("times", DType::F32, [s.steps])?;
        let (text_lens, latent_lens) = (s.lens(g, "text_lens")?, s.lens(g, "latent_lens")?);
        let table_rows = if s.has_lens() { s.batch } else { 1 };
        let e = self.time_embedding(g, times)?; // [steps, time_dim]
        let own_thetas = self.own_thetas();
        // Without angles of its own, a block uses those of the first.
        let mut text_table = None;
        for b in 0..vf.blocks {
            let i = 6 * b;
            let linear = self.own.at(&format!("main_blocks.{}.linear", i + 1));
            let row = linear.linear(g, e, "linear", [vf.time_dim, t.width])?; // [steps, C]
            g.output(&format!("ve.time.{b}"), row)?;

            let table = match text_table.filter(|_| !own_thetas) {
                Some(table) => table,
                None => {
                    let theta = self.theta(b);
                    let for_latent =
                        g.rotary_table(theta.clone(), table_rows, s.frames, latent_lens.map(|l| l.lengths))?;
                    g.output(&format!("ve.rotary.{b}"), for_latent)?;
                    g.rotary_table(theta, table_rows, s.tokens, text_lens.map(|l| l.lengths))?
                }
            };
            text_table = Some(table);
            let w = self.own.at(&format!("main_blocks.{}.attn", i + 3));
            let k = w.linear(g, text, "W_key.linear", [text_dim, t.units])?;
            let k = g.rotary(k, table, t.heads)?;
            let v = w.linear(g, text, "W_value.linear", [text_dim, t.units])?;
            g.output(&format!("ve.text_key.{b}"), k)?;
            g.output(&format!("ve.text_value.{b}"), v)?;
            let w = self.own.at(&format!("main_blocks.{}.attention", i + 5));
            self.style_slots(g, &w, style, s.batch, b)?;
        }
        Ok(())
    }

    /// Sines and cosines of the time, through a small MLP: `[steps]` → `[steps, time_dim]`.
    fn time_embedding(&self, g: &mut Graph, times: Value) -> Result<Value> {
        let (vf, w) = (&self.config.vector_field, self.own.at("time_encoder.mlp"));
        let (width, inner) = (vf.time_dim, vf.time_inner);
        let e = g.time_embedding(times, width)?;
        let e = w.linear(g, e, "0.linear", [width, inner])?;
        let e = g.activate(e, Activation::Mish)?;
        let e = w.linear(g, e, "2.linear", [inner, width])?;
        if g.has_taps() {
            let first = g.slice(e, 0, 0, 1)?;
            let rows = if self.guidance { g.concat(&[first, first], 0)? } else { first };
            g.tap("time_embedding", rows)?;
        }
        Ok(e)
    }

    /// Whether each block stores its rotary angles. The official files store them once, in the first.
    fn own_thetas(&self) -> bool {
        self.own.has("main_blocks.9.attn.theta")
    }

    /// Rotary angles of block `b`, `[Dh / 2]`.
    fn theta(&self, b: usize) -> Weight {
        let text = &self.config.vector_field.text;
        let module = if self.own_thetas() { 6 * b + 3 } else { 3 };
        self.own.get(&format!("main_blocks.{module}.attn.theta"), [text.units / text.heads / 2])
    }

    /// Keys and values of a style attention: constants for the model, values of the voice.
    fn style_slots(&self, g: &mut Graph, w: &Scope<'_>, style: Value, batch: usize, b: usize) -> Result<()> {
        let (units, style_sizes) = (self.config.vector_field.style.units, self.config.style);
        let (n, width) = (style_sizes.tokens, style_sizes.width);
        let key = self.all.get(STYLE_KEY, [n, width]);
        let k = g.constant(style_keys(w, &key, units), batch)?;
        let v = w.linear(g, style, "W_value.linear", [width, units])?;
        let (k, v) = if self.guidance {
            let special = |name: &str| self.all.get(&format!("{UNCONDITIONAL}.{name}"), [n, width]);
            let key = special("style_key_special_token");
            let k_without = g.constant(style_keys(w, &key, units), batch)?;
            let value = w.matrix("W_value.linear", width, units);
            let bias = w.bias("W_value.linear", units).reshape([1, units]);
            let v_without = special("style_value_special_token").matmul(&value).add(&bias);
            let v_without = g.constant(v_without.reshape([1, n, units]), batch)?;
            (g.concat(&[k, k_without], 0)?, g.concat(&[v, v_without], 0)?)
        } else {
            (k, v)
        };
        g.output(&format!("ve.style_key.{b}"), k)?;
        g.output(&format!("ve.style_value.{b}"), v)
    }

    /// One Euler step. Reads what [`Self::build_prepare`] wrote; replaces the state `latent` `[B, L, D·K]`.
    /// Scalars: `step` from 0, and `dt` = 1 / steps. With `queries` it also writes `ve.text_query.*`, which
    /// say with the keys how text and speech are aligned.
    pub fn build_step(&self, g: &mut Graph, s: Sizes, queries: bool) -> Result<()> {
        let vf = &self.config.vector_field;
        let (width, ldim) = (vf.text.width, self.config.latent_channels());
        let (step, dt) = (g.scalar("step"), g.scalar("dt"));
        let latent = g.state("latent", DType::F32, [s.batch, s.frames, ldim])?;
        let (lens, text_lens) = (s.lens(g, "latent_lens")?, s.lens(g, "text_lens")?);
        let twice = Sizes { batch: 2 * s.batch, ..s };
        let both = if self.guidance { twice.lens(g, "latent_lens_twice")? } else { lens };
        let w = &self.own;
        // Stack `n` of three, under the name of this module.
        let stack = |g: &mut Graph, module: usize, n: usize, x: Value, lens: Option<Lengths>| {
            let prefix = format!("main_blocks.{module}.convnext");
            convnext_stack(g, w, &prefix, &vf.convnext[n], x, lens, |_, _, _| Ok(()))
        };
        let x = g.matmul(latent, w.matrix("proj_in.net", ldim, width))?; // [B, L, C]
        let mut x = clear_after(g, x, lens)?;
        self.tap(g, "proj_in", x, false)?;
        // After the first text attention, rows B… are those without text.
        let mut split = false;
        let mut rotary = None;
        for b in 0..vf.blocks {
            let i = 6 * b;
            let now = |split: bool| if split { both } else { lens };
            x = stack(g, i, 0, x, now(split))?;
            self.tap(g, &format!("main_blocks.{i}"), x, split)?;
            let times = g.input(&format!("ve.time.{b}"), DType::F32, [s.steps, width])?;
            let row = g.select_row(times, step)?; // [1, C]
            x = g.add_row(x, row)?;
            x = clear_after(g, x, now(split))?;
            self.tap(g, &format!("main_blocks.{}", i + 1), x, split)?;
            x = stack(g, i + 2, 1, x, now(split))?;
            self.tap(g, &format!("main_blocks.{}", i + 2), x, split)?;
            let table = match rotary.filter(|_| !self.own_thetas()) {
                Some(table) => table,
                None => {
                    let rows = if s.has_lens() { s.batch } else { 1 };
                    let half = self.theta(b).shape().len();
                    g.input(&format!("ve.rotary.{b}"), DType::F32, [rows, 2, s.frames, half])?
                }
            };
            rotary = Some(table);
            let around = TextContext { table, lens, text_lens, split, queries };
            x = self.text_attention(g, &w.at(&format!("main_blocks.{}", i + 3)), s, b, x, &around)?;
            split = self.guidance;
            x = clear_after(g, x, now(split))?;
            self.tap(g, &format!("main_blocks.{}", i + 3), x, split)?;
            x = stack(g, i + 4, 2, x, now(split))?;
            self.tap(g, &format!("main_blocks.{}", i + 4), x, split)?;
            x = self.style_attention(g, &w.at(&format!("main_blocks.{}", i + 5)), s, b, x)?;
            x = clear_after(g, x, now(split))?;
            self.tap(g, &format!("main_blocks.{}", i + 5), x, split)?;
        }
        let x = convnext_stack(g, w, "last_convnext.convnext", &vf.last_convnext, x, both, |g, i, x| {
            self.tap(g, &format!("last_convnext.{i}"), x, split)
        })?;
        let v = g.matmul(x, w.matrix("proj_out.net", width, ldim))?; // [rows, L, D·K]
        let v = clear_after(g, v, both)?;
        self.tap(g, "velocity", v, split)?;
        let v = if self.guidance {
            let with = g.slice(v, 0, 0, s.batch)?;
            let without = g.slice(v, 0, s.batch, s.batch)?;
            g.combine(Factor::Const(GUIDANCE.0), with, Factor::Const(-GUIDANCE.1), without)?
        } else {
            v
        };
        let next = g.combine(Factor::Const(1.0), latent, Factor::Scalar(dt), v)?;
        g.update("latent", next)
    }

    /// `norm(x + attention(x, text))`. With guidance the rows without text follow those with text.
    fn text_attention(
        &self,
        g: &mut Graph,
        w: &Scope<'_>,
        s: Sizes,
        b: usize,
        x: Value,
        c: &TextContext,
    ) -> Result<Value> {
        let a = self.config.vector_field.text;
        let (x, x_without) =
            if c.split { (g.slice(x, 0, 0, s.batch)?, g.slice(x, 0, s.batch, s.batch)?) } else { (x, x) };
        let k = g.input(&format!("ve.text_key.{b}"), DType::F32, [s.batch, s.tokens, a.units])?;
        let v = g.input(&format!("ve.text_value.{b}"), DType::F32, [s.batch, s.tokens, a.units])?;
        let heads = w.at("attn");
        let q = heads.linear(g, x, "W_query.linear", [a.width, a.units])?;
        let q = g.rotary(q, c.table, a.heads)?;
        if b == 0 && !self.guidance {
            self.tap_heads(g, "rotated_query", q)?;
            self.tap_heads(g, "rotated_key", k)?;
        }
        if c.queries {
            g.output(&format!("ve.text_query.{b}"), q)?;
        }
        let y = g.attention(a.op(), q, k, v, c.text_lens.map(|l| l.lengths))?;
        let y = a.out(g, &heads, y)?;
        let y = clear_after(g, y, c.lens)?;
        let y = g.add(x, y)?;
        let with = norm(g, w, "norm.norm", y)?;
        if !self.guidance {
            return Ok(with);
        }
        let y = g.add_bias(x_without, self.attention_without_text(&heads))?;
        let without = norm(g, w, "norm.norm", y)?;
        g.concat(&[with, without], 0)
    }

    /// Records heads as the reference lays them out: `[B, T, H·D]` → `[H, B, T, D]`.
    fn tap_heads(&self, g: &mut Graph, name: &str, x: Value) -> Result<()> {
        if g.has_taps() {
            let &[b, t, c] = g.shape(x).dims() else { unreachable!("heads have three axes") };
            let h = self.config.vector_field.text.heads;
            let x = g.reshape(x, [b, t, h, c / h])?;
            let x = g.permute(x, &[2, 0, 1, 3])?;
            g.tap(name, x)?;
        }
        Ok(())
    }

    /// What text attention adds where there is no text: `out(W_value · token + b) + b`, `[C]`.
    fn attention_without_text(&self, w: &Scope<'_>) -> Weight {
        let (a, text_dim) = (self.config.vector_field.text, self.config.vector_field.text_dim);
        let token = self.all.get(&format!("{UNCONDITIONAL}.text_special_token"), [1, text_dim]);
        let bias = |name: &str, width: usize| w.bias(name, width).reshape([1, width]);
        let value = w.matrix("W_value.linear", text_dim, a.units);
        let v = token.matmul(&value).add(&bias("W_value.linear", a.units));
        let out = v.matmul(&w.matrix("out_fc.linear", a.units, a.width));
        out.add(&bias("out_fc.linear", a.width)).reshape([a.width])
    }

    /// `norm(x + attention(x, style))`.
    fn style_attention(&self, g: &mut Graph, w: &Scope<'_>, s: Sizes, b: usize, x: Value) -> Result<Value> {
        let (a, slots) = (self.config.vector_field.style, self.config.style.tokens);
        let rows = if self.guidance { 2 * s.batch } else { s.batch };
        let k = g.input(&format!("ve.style_key.{b}"), DType::F32, [rows, slots, a.units])?;
        let v = g.input(&format!("ve.style_value.{b}"), DType::F32, [rows, slots, a.units])?;
        let y = a.build(g, &w.at("attention"), x, k, v)?;
        let y = g.add(x, y)?;
        norm(g, w, "norm.norm", y)
    }

    /// Records `[B, L, C]` as `[rows, C, L]`, doubling what is computed once for both halves.
    fn tap(&self, g: &mut Graph, name: &str, x: Value, split: bool) -> Result<()> {
        if !g.has_taps() {
            return Ok(());
        }
        let x = if self.guidance && !split { repeat(g, x, 2)? } else { x };
        tap_channels_first(g, name, x)
    }
}
