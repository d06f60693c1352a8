//! Checks of groups of nodes, from attention to un-chunking, and the numbers that are read from them.

use super::file::{OnnxFile, canonical, refuse};
use super::walk::other;
use crate::ModelError;
use orate_weights::WeightSource;
use orate_weights::onnx::Node;

type Result<T> = std::result::Result<T, ModelError>;

/// Time runs from 0 to 1 in the flow, and from 0 to this in its embedding.
const TIME_SCALE: f32 = 1000.0;
const TIME_BASE: f64 = 10_000.0;

/// v = conditional · v_cond − unconditional · v_uncond
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guidance {
    /// Weight of the conditional velocity: 4 in v3.
    pub conditional: f32,
    /// Weight that is subtracted: 3 in v3.
    pub unconditional: f32,
}

impl OnnxFile {
    /// Queries of the relative-position layers are divided by the square root of the head width.
    pub(super) fn check_relative_attention(&self) -> Result<()> {
        for (stored, layer) in self.ending(".conv_q.weight") {
            let table = self.tensor(&stored.replace(".conv_q.weight", ".emb_rel_k"))?;
            let &[1, _, width] = table.shape.as_slice() else {
                refuse!(self, "`{layer}.emb_rel_k` is {:?} instead of [1, 2w + 1, d]", table.shape);
            };
            let (conv, _) = self.only_reader(stored, "Conv")?;
            let reached = self.reached(self.output(conv)?, &["Div", "MatMul", "Softmax"]);
            if reached.is_empty() || reached.iter().any(|(node, at)| node.op_type != "Div" || *at != 0) {
                refuse!(self, "the query of `{layer}` is not divided before it is used");
            }
            for (div, _) in reached {
                self.near(div, "the divisor", self.scalar(div, 1)?, (width as f32).sqrt())?;
            }
        }
        Ok(())
    }

    pub(super) fn text_dim(&self) -> Result<usize> {
        let shape = self.tensor("tts.ttl.text_encoder.text_embedder.char_embedder.weight")?.shape;
        let &[_, width] = shape.as_slice() else { refuse!(self, "the embedding has shape {shape:?}") };
        Ok(width)
    }

    /// Text and style attention: scores are divided by the square root of `text_dim` in every layer, and tanh
    /// is on style keys but not on text keys.
    pub(super) fn check_attention(&self, text_dim: usize) -> Result<()> {
        let queries: Vec<_> = self.ending(".W_query.linear.bias").collect();
        if queries.is_empty() {
            refuse!(self, "there is no attention");
        }
        for (bias, _) in queries {
            let matmul = self.query_matmul(bias)?;
            let (div, at) = self.only_reader(self.output(matmul)?, "Div")?;
            self.expect(div, "the position of the scores", at, 0)?;
            self.near(div, "the divisor", self.scalar(div, 1)?, (text_dim as f32).sqrt())?;
        }
        for (bias, layer) in self.ending(".W_key.linear.bias") {
            let is_text = layer.ends_with(".attn");
            let wanted = if is_text { "MatMul" } else { "Tanh" };
            let (add, at) = self.only_reader(bias, "Add")?;
            let reached = self.reached(self.output(add)?, &["MatMul", "Tanh"]);
            if reached.is_empty() || reached.iter().any(|(node, _)| node.op_type != wanted) {
                refuse!(self, "the keys of `{layer}` do not go to {wanted} first");
            }
            if is_text {
                let inputs = self.source_of(add, other(at), "MatMul")?;
                let weight = self.tensor(self.origin_of(inputs, 1)?)?;
                self.expect(inputs, "the text's width", weight.shape.first(), Some(&text_dim))?;
            }
        }
        Ok(())
    }

    /// The matmul of queries and keys, from the queries' bias.
    pub(super) fn query_matmul(&self, bias: &str) -> Result<&Node> {
        let of_v3 = format!("vector_estimator.{bias}");
        let (add, _) = self.only_reader(if self.model.contains(bias) { bias } else { &of_v3 }, "Add")?;
        match self.reached(self.output(add)?, &["MatMul", "Softmax"]).as_slice() {
            &[(matmul, 0)] if matmul.op_type == "MatMul" => Ok(matmul),
            _ => refuse!(self, "the queries of `{bias}` are not the left side of one matmul"),
        }
    }

    /// sin and cos of 1000 · t · 10000^(−j / (half − 1)), sines first.
    pub(super) fn check_time_embedding(&self) -> Result<()> {
        const WEIGHT: &str = "tts.ttl.vector_field.time_encoder.mlp.0.linear.weight";
        let Some((stored, _)) = self.ending(WEIGHT).next() else { refuse!(self, "no weight `{WEIGHT}`") };
        let (gemm, _) = self.only_reader(stored, "Gemm")?;
        self.check_mish(self.output(gemm)?)?;
        let concat = self.source_of(gemm, 0, "Concat")?;
        let angle = self.source_of(self.source_of(concat, 0, "Sin")?, 0, "Mul")?;
        let of_cos = self.source_of(self.source_of(concat, 1, "Cos")?, 0, "Mul")?;
        if self.output(of_cos)? != self.output(angle)? {
            refuse!(self, "node {} joins sines and cosines of different angles", concat.label());
        }
        let (frequencies, scaled) = self.constant_operand(angle)?;
        let frequencies = frequencies.to_f32();
        let steps = frequencies.len().saturating_sub(1).max(1) as f64;
        for (j, &found) in frequencies.iter().enumerate() {
            self.near(angle, "a frequency", found, TIME_BASE.powf(-(j as f64) / steps) as f32)?;
        }
        let Some(scale) = self.source(scaled).filter(|node| node.op_type == "Mul") else {
            refuse!(self, "the angles of node {} are not scaled", angle.label());
        };
        let (factor, _) = self.constant_operand(scale)?;
        self.near(scale, "the time's scale", factor.to_f32().first().copied().unwrap_or(f32::NAN), TIME_SCALE)
    }

    /// x · tanh(softplus(x))
    fn check_mish(&self, x: &str) -> Result<()> {
        let softplus = self.readers(x).into_iter().find(|(node, _)| node.op_type == "Softplus");
        let Some((softplus, _)) = softplus else { refuse!(self, "`{x}` should be read by Softplus") };
        let (tanh, _) = self.only_reader(self.output(softplus)?, "Tanh")?;
        self.gate(self.output(tanh)?, x).map(drop)
    }

    /// Scale and base of the rotary angles, confirmed for each.
    pub(super) fn rotary(&self) -> Result<(f32, f32)> {
        let Some((stored, _)) = self.ending(".attn.theta").next() else {
            refuse!(self, "no rotary angles (`….attn.theta`)");
        };
        let theta = self.tensor(stored)?.to_f32();
        let half = theta.len() as f32;
        let &[scale, second, ..] = theta.as_slice() else {
            refuse!(self, "`{stored}` has too few angles");
        };
        let base = (scale / second).powf(half);
        for (j, &found) in theta.iter().enumerate() {
            let want = scale * base.powf(-(j as f32) / half);
            // `base` comes from two rounded numbers, and the error grows with j.
            if (found - want).abs() > 50.0 * self.tolerance * want.abs() || !want.is_normal() {
                refuse!(self, "angle {j} of `{stored}` is {found} instead of {want}");
            }
        }
        // The base is a round number; take off the rounding of the angles.
        let round =
            [10_000.0, base.round()].into_iter().find(|r| (base - r).abs() < 50.0 * self.tolerance * r);
        Ok((scale, round.unwrap_or(base)))
    }

    /// v3: the factors of the two velocities whose difference is taken, of which the conditional one comes
    /// first.
    pub(super) fn guidance(&self) -> Result<Option<Guidance>> {
        let mut found = None;
        for sub in self.nodes("Sub") {
            let factor = |at: usize| {
                let mul = self.source(sub.inputs.get(at)?).filter(|node| node.op_type == "Mul")?;
                let (factor, rows) = self.constant_operand(mul).ok()?;
                let slice = self.source(rows).filter(|node| node.op_type == "Slice")?;
                (factor.len() == 1).then(|| (factor.to_f32()[0], slice))
            };
            let (Some((conditional, first_rows)), Some((unconditional, _))) = (factor(0), factor(1)) else {
                continue;
            };
            self.near(first_rows, "the first row", self.scalar(first_rows, 1)?, 0.0)?;
            self.near(sub, "the difference of both factors", conditional - unconditional, 1.0)?;
            if found.replace(Guidance { conditional, unconditional }).is_some() {
                refuse!(self, "guidance is there twice");
            }
        }
        let is_token = |name: &str| name.starts_with("tts.ttl.uncond_masker.");
        match (found.is_some(), self.model.names().into_iter().filter_map(canonical).any(is_token)) {
            (true, false) => refuse!(self, "guidance, but no unconditional tokens"),
            (false, true) => refuse!(self, "unconditional tokens, but no guidance"),
            _ => Ok(found),
        }
    }

    /// latent / scale → [B, D, K, L] → permute (0, 1, 3, 2). Returns the scale.
    pub(super) fn check_unchunking(&self) -> Result<f32> {
        let (div, _) = self.only_reader("tts.ttl.normalizer.scale", "Div")?;
        match self.reached(self.output(div)?, &["Transpose", "Mul", "Conv"]).as_slice() {
            [(transpose, _)] if transpose.op_type == "Transpose" => {
                let axes = transpose.ints("perm").unwrap_or_default();
                self.expect(transpose, "perm", axes, [0, 1, 3, 2].as_slice())?;
            }
            _ => refuse!(self, "latents are not un-chunked after they were scaled"),
        }
        self.scalar(div, 1)
    }
}
