//! Checks of groups of nodes, from attention to un-chunking, and the numbers that are read from them.

use orate_weights::WeightSource;
use orate_weights::onnx::Node;

use super::stage::{Stage, canonical};
use super::{Guidance, ImportError};

/// Time runs from 0 to 1 in the flow, and from 0 to this in its embedding.
const TIME_SCALE: f32 = 1000.0;
const TIME_BASE: f64 = 10_000.0;

impl Stage {
    /// Queries of the relative-position layers are divided by the square root of the head width.
    pub(super) fn check_relative_attention(&self) -> Result<(), ImportError> {
        for stored in self.model.names() {
            let Some(layer) = canonical(stored).and_then(|name| name.strip_suffix(".conv_q.weight")) else {
                continue;
            };
            let table = self.tensor(&stored.replace(".conv_q.weight", ".emb_rel_k"))?;
            let &[1, _, width] = table.shape.as_slice() else {
                return self.structure(format!(
                    "`{layer}.emb_rel_k` is {:?} instead of [1, 2w + 1, d]",
                    table.shape
                ));
            };
            let (conv, _) = self.only_reader(stored, "Conv")?;
            let reached = self.reached(self.output(conv)?, &["Div", "MatMul", "Softmax"]);
            if reached.is_empty() || reached.iter().any(|(node, at)| node.op_type != "Div" || *at != 0) {
                return self.structure(format!("the query of `{layer}` is not divided before it is used"));
            }
            for (div, _) in reached {
                self.near(div, "the divisor", self.scalar(div, 1)?, (width as f32).sqrt())?;
            }
        }
        Ok(())
    }

    pub(super) fn text_dim(&self) -> Result<usize, ImportError> {
        let info = self.tensor("tts.ttl.text_encoder.text_embedder.char_embedder.weight")?.info();
        match info.shape.as_slice() {
            &[_, width] => Ok(width),
            other => self.structure(format!("the embedding has shape {other:?}")),
        }
    }

    /// Text and style attention: the scores' divisor, and tanh on style keys but not on text keys.
    pub(super) fn check_attention(&self, text_dim: usize) -> Result<f32, ImportError> {
        let divisor = (text_dim as f32).sqrt();
        let mut found = false;
        for stored in self.model.names() {
            let Some(name) = canonical(stored) else { continue };
            if name.ends_with(".W_query.linear.bias") {
                let product = self.query_product(stored)?;
                let (div, at) = self.only_reader(self.output(product)?, "Div")?;
                self.expect(div, "the position of the scores", at, 0)?;
                self.near(div, "the divisor", self.scalar(div, 1)?, divisor)?;
                found = true;
            } else if let Some(layer) = name.strip_suffix(".W_key.linear.bias") {
                let wanted = if layer.ends_with(".attn") { "MatMul" } else { "Tanh" };
                let (add, _) = self.only_reader(stored, "Add")?;
                let reached = self.reached(self.output(add)?, &["MatMul", "Tanh"]);
                if reached.is_empty() || reached.iter().any(|(node, _)| node.op_type != wanted) {
                    return self.structure(format!("the keys of `{layer}` do not go to {wanted} first"));
                }
                if wanted == "MatMul" {
                    let inputs = self.source_of(add, 1 - self.position(add, stored)?, "MatMul")?;
                    let weight = self.tensor(self.origin(self.input(inputs, 1)?))?;
                    self.expect(inputs, "the text's width", weight.shape[0], text_dim)?;
                }
            }
        }
        if found { Ok(divisor) } else { self.structure("there is no attention".to_owned()) }
    }

    /// The matmul of queries and keys, from the queries' bias.
    pub(super) fn query_product(&self, bias: &str) -> Result<&Node, ImportError> {
        let stored =
            if self.model.contains(bias) { bias.to_owned() } else { format!("vector_estimator.{bias}") };
        let (add, _) = self.only_reader(&stored, "Add")?;
        match self.reached(self.output(add)?, &["MatMul", "Softmax"]).as_slice() {
            &[(product, 0)] if product.op_type == "MatMul" => Ok(product),
            _ => {
                self.structure(format!("the queries of `{bias}` are not the left side of one matrix product"))
            }
        }
    }

    /// sin and cos of 1000 · t · 10000^(−j / (half − 1)), sines first.
    pub(super) fn check_time_embedding(&self) -> Result<(), ImportError> {
        const WEIGHT: &str = "tts.ttl.vector_field.time_encoder.mlp.0.linear.weight";
        let Some(stored) = self.model.names().into_iter().find(|name| canonical(name) == Some(WEIGHT)) else {
            return self.structure(format!("no weight `{WEIGHT}`"));
        };
        let (gemm, _) = self.only_reader(stored, "Gemm")?;
        self.check_mish(self.output(gemm)?)?;
        let concat = self.source_of(gemm, 0, "Concat")?;
        let sin = self.source_of(concat, 0, "Sin")?;
        let cos = self.source_of(concat, 1, "Cos")?;
        let angle = self.source_of(sin, 0, "Mul")?;
        let same = self.output(self.source_of(cos, 0, "Mul")?)? == self.output(angle)?;
        if !same {
            return self
                .structure(format!("node {} joins sines and cosines of different angles", concat.label()));
        }

        let (frequencies, scaled) = self.constant_operand(angle)?;
        let frequencies = frequencies.to_f32();
        let steps = frequencies.len().saturating_sub(1).max(1) as f64;
        for (j, &found) in frequencies.iter().enumerate() {
            self.near(angle, "a frequency", found, TIME_BASE.powf(-(j as f64) / steps) as f32)?;
        }
        let Some(scale) = self.source(scaled).filter(|node| node.op_type == "Mul") else {
            return self.structure(format!("the angles of node {} are not scaled", angle.label()));
        };
        let (factor, _) = self.constant_operand(scale)?;
        self.near(scale, "the time's scale", factor.to_f32().first().copied().unwrap_or(f32::NAN), TIME_SCALE)
    }

    /// x · tanh(softplus(x))
    fn check_mish(&self, x: &str) -> Result<(), ImportError> {
        let softplus = self.readers(x).into_iter().find(|(node, _)| node.op_type == "Softplus");
        let Some((softplus, _)) = softplus else {
            return self.structure(format!("`{x}` should be read by Softplus"));
        };
        let (tanh, _) = self.only_reader(self.output(softplus)?, "Tanh")?;
        let (gate, at) = self.only_reader(self.output(tanh)?, "Mul")?;
        if self.origin(self.input(gate, 1 - at)?) != self.origin(x) {
            return self.structure(format!("node {} does not multiply with the input of Mish", gate.label()));
        }
        Ok(())
    }

    /// Scale and base of the rotary angles, confirmed for each.
    pub(super) fn rotary(&self) -> Result<(f32, f32), ImportError> {
        let is_theta = |name: &&str| canonical(name).is_some_and(|name| name.ends_with(".attn.theta"));
        let Some(stored) = self.model.names().into_iter().find(is_theta) else {
            return self.structure("no rotary angles (`….attn.theta`)".to_owned());
        };
        let theta = self.tensor(stored)?.to_f32();
        let half = theta.len() as f32;
        let (&[scale, second, ..], 2..) = (theta.as_slice(), theta.len()) else {
            return self.structure(format!("`{stored}` has too few angles"));
        };
        let base = (scale / second).powf(half);
        for (j, &found) in theta.iter().enumerate() {
            let want = scale * base.powf(-(j as f32) / half);
            // `base` comes from two rounded numbers, and the error grows with j.
            if (found - want).abs() > 50.0 * self.tolerance * want.abs() || !want.is_normal() {
                return self.structure(format!("angle {j} of `{stored}` is {found} instead of {want}"));
            }
        }
        // The base is a round number; take off the rounding of the angles.
        let round =
            [10_000.0, base.round()].into_iter().find(|r| (base - r).abs() < 50.0 * self.tolerance * r);
        Ok((scale, round.unwrap_or(base)))
    }

    /// v3: the factors of the two velocities whose difference is taken, of which the conditional one comes
    /// first.
    pub(super) fn guidance(&self) -> Result<Option<Guidance>, ImportError> {
        let is_token =
            |name: &str| canonical(name).is_some_and(|name| name.starts_with("tts.ttl.uncond_masker."));
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
                return self.structure("guidance is there twice".to_owned());
            }
        }
        match (found.is_some(), self.model.names().into_iter().any(is_token)) {
            (true, false) => self.structure("guidance, but no unconditional tokens".to_owned()),
            (false, true) => self.structure("unconditional tokens, but no guidance".to_owned()),
            _ => Ok(found),
        }
    }

    /// latent / scale → [B, D, K, L] → permute (0, 1, 3, 2). Returns the scale.
    pub(super) fn check_unchunking(&self) -> Result<f32, ImportError> {
        let (div, _) = self.only_reader("tts.ttl.normalizer.scale", "Div")?;
        let scale = self.scalar(div, 1)?;
        let reached = self.reached(self.output(div)?, &["Transpose", "Mul", "Conv"]);
        match reached.as_slice() {
            [(transpose, _)] if transpose.op_type == "Transpose" => {
                self.expect(
                    transpose,
                    "perm",
                    transpose.ints("perm").unwrap_or_default(),
                    [0, 1, 3, 2].as_slice(),
                )?;
            }
            _ => return self.structure("latents are not un-chunked after they were scaled".to_owned()),
        }
        Ok(scale)
    }
}
