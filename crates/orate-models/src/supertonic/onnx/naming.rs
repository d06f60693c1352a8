//! Canonical names for all tensors of a file, found through the nodes that read them where the exporter took
//! them away.

use super::file::{OnnxFile, canonical, refuse};
use super::walk::other;
use crate::ModelError;
use crate::supertonic::stage::{STYLE_KEY, Stage};
use orate_weights::WeightSource;

type Result<T> = std::result::Result<T, ModelError>;

/// A tensor: its canonical name, its stored name, and how it is seen.
pub(super) type Named<'a> = (String, &'a str, View);

/// How the stored tensor is seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum View {
    AsStored,
    Transposed,
    /// `[1, 1]` as `[1]`.
    Flat,
}

impl OnnxFile {
    /// Every weight. All constants that a layer multiplies with are among them.
    pub(super) fn weights(&self) -> Result<Vec<Named<'_>>> {
        let mut weights = self.named()?;
        weights.extend(self.linears()?);
        match self.stage {
            Stage::TextEncoder => weights.extend(self.folded_keys()?),
            Stage::VectorEstimator => weights.extend(self.style_key()?),
            Stage::Vocoder => weights.extend(self.vocoder_ends()?),
            Stage::DurationPredictor => {}
        }
        for node in self.model.nodes() {
            let inputs: &[usize] = match node.op_type.as_str() {
                "MatMul" | "PRelu" => &[1],
                "Conv" | "Gemm" | "LayerNormalization" => &[1, 2],
                "BatchNormalization" => &[1, 2, 3, 4],
                _ => &[],
            };
            for stored in inputs.iter().filter_map(|&i| node.inputs.get(i)).map(|value| self.origin(value)) {
                if self.constant(stored).is_some() && !weights.iter().any(|(_, known, _)| *known == stored) {
                    refuse!(self, "node {} reads the unknown weight `{stored}`", node.label());
                }
            }
        }
        Ok(weights)
    }

    /// Tensors that kept their names.
    fn named(&self) -> Result<Vec<Named<'_>>> {
        let mut weights = vec![];
        for (stored, name) in self.ending("") {
            let is_shared = self.stage == Stage::TextEncoder && name.starts_with("tts.ttl.style_encoder.");
            if !self.stage.owns(name) && !is_shared {
                refuse!(self, "weight `{name}` does not belong in {}.onnx", self.stage.name());
            }
            // Linear weights are stored in the layout of the node that reads them.
            let info = self.tensor(stored)?.info();
            let is_read_by_matmul =
                || self.readers(stored).iter().any(|(node, at)| node.op_type == "MatMul" && *at == 1);
            let view = if name.ends_with(".linear.weight") && info.shape.len() == 2 && is_read_by_matmul() {
                View::Transposed
            } else if name.ends_with(".act.weight") && info.len() == 1 {
                View::Flat
            } else {
                View::AsStored
            };
            weights.push((name.to_owned(), stored, view));
        }
        if weights.is_empty() {
            refuse!(self, "no weight has a name that begins with `tts.`");
        }
        Ok(weights)
    }

    /// Weights of linear layers, from their biases.
    fn linears(&self) -> Result<Vec<Named<'_>>> {
        let mut weights = vec![];
        for (bias, layer) in self.ending(".linear.bias") {
            let readers = self.readers(bias);
            if readers.iter().all(|(node, _)| node.op_type == "Gemm") && !readers.is_empty() {
                continue; // its weight is the Gemm's, and has a name
            }
            let matmul = match readers.as_slice() {
                [(add, at)] if add.op_type == "Add" => self.source(self.input(add, other(*at))?),
                _ => None,
            };
            let Some(matmul) = matmul.filter(|node| node.op_type == "MatMul") else {
                refuse!(self, "`{layer}.linear.bias` is not added to a matmul");
            };
            let weight = self.origin_of(matmul, 1)?;
            let Some(tensor) = self.constant(weight) else {
                refuse!(self, "the second input of node {} is not a constant", matmul.label());
            };
            let outputs = self.tensor(bias)?.len();
            if tensor.shape.len() != 2 || tensor.shape[1] != outputs {
                let (node, shape) = (matmul.label(), tensor.shape);
                refuse!(
                    self,
                    "node {node}: the weight is {shape:?}, but `{layer}.linear.bias` has {outputs}"
                );
            }
            let name = format!("{layer}.linear.weight");
            match canonical(weight) {
                None => weights.push((name, weight, View::Transposed)),
                Some(kept) if kept == name => {} // seen above
                Some(kept) => refuse!(self, "`{layer}.linear.bias` is added to a matmul with `{kept}`"),
            }
        }
        Ok(weights)
    }

    /// v1 and v2: keys of the speech-prompted attentions, as constants.
    fn folded_keys(&self) -> Result<Vec<Named<'_>>> {
        const OWNER: &str = "speech_prompted_text_encoder";
        let mut weights = vec![];
        for stored in self.model.names() {
            let Some(path) = stored.strip_suffix("/tanh/Tanh_output_0") else { continue };
            let layer = format!("tts.ttl{}", path.replace('/', "."));
            if !layer.contains(OWNER) {
                refuse!(self, "folded keys `{stored}` outside of `{OWNER}`");
            }
            // The keys must meet the query of the layer they are named after.
            let matmul = self.query_matmul(&format!("{layer}.W_query.linear.bias"))?;
            if self.origin_of(matmul, 1)? != stored {
                refuse!(self, "`{stored}` is not multiplied with the query of `{layer}`");
            }
            let shape = self.tensor(stored)?.shape;
            if shape.len() != 4 || shape[1] != 1 {
                refuse!(self, "the keys `{stored}` are {shape:?} instead of [heads, 1, width, slots]");
            }
            weights.push((format!("{layer}.tanh_key"), stored, View::AsStored));
        }
        Ok(weights)
    }

    /// The vector estimator's style keys: what is tiled before it enters the style attentions' `W_key`.
    fn style_key(&self) -> Result<Option<Named<'_>>> {
        let mut found: Option<&str> = None;
        for (bias, layer) in self.ending(".attention.W_key.linear.bias") {
            let (add, at) = self.only_reader(bias, "Add")?;
            let matmul = self.source_of(add, other(at), "MatMul")?;
            let mut key = self.input(matmul, 0)?;
            // v3 has [conditional; unconditional] here.
            for joining in [&["Concat"] as &[&str], &["Tile", "Expand"]] {
                if let Some(node) = self.source(key).filter(|node| joining.contains(&&*node.op_type)) {
                    key = self.input(node, 0)?;
                }
            }
            let key = self.origin(key);
            if self.constant(key).is_none_or(|tensor| tensor.shape.len() != 3) {
                refuse!(self, "the style keys of `{layer}` are not a constant [1, slots, width]");
            }
            if let Some(earlier) = found.replace(key).filter(|earlier| *earlier != key) {
                refuse!(self, "style attentions read different keys, `{earlier}` and `{key}`");
            }
        }
        let Some(key) = found else { refuse!(self, "there is no style attention") };
        let is_anonymous = canonical(key) != Some(STYLE_KEY);
        Ok(is_anonymous.then(|| (STYLE_KEY.to_owned(), key, View::AsStored)))
    }

    /// First convolution and PRelu of the vocoder.
    fn vocoder_ends(&self) -> Result<Vec<Named<'_>>> {
        let (mean, _) = self.only_reader("tts.ae.latent_mean", "Add")?;
        let (pad, _) = self.only_reader(self.output(mean)?, "Pad")?;
        let (embed, _) = self.only_reader(self.output(pad)?, "Conv")?;
        let (layer1, _) = self.only_reader("tts.ae.decoder.head.layer1.net.weight", "Conv")?;
        let (act, _) = self.only_reader(self.output(layer1)?, "PRelu")?;
        let mut weights = vec![];
        for (node, at, name, view) in [
            (embed, 1, "tts.ae.decoder.embed.net.weight", View::AsStored),
            (embed, 2, "tts.ae.decoder.embed.net.bias", View::AsStored),
            (act, 1, "tts.ae.decoder.head.act.weight", View::Flat),
        ] {
            let stored = self.origin_of(node, at)?;
            let count = self.tensor(stored)?.len();
            if canonical(stored).is_some() {
                continue; // seen above
            }
            if view == View::Flat && count != 1 {
                refuse!(self, "node {}: {count} slopes, but only one is implemented", node.label());
            }
            weights.push((name.to_owned(), stored, view));
        }
        Ok(weights)
    }
}
