//! Canonical names for all tensors of a file, found through the nodes that read them where the exporter took
//! them away.

use std::collections::{HashMap, HashSet};

use orate_weights::WeightSource;

use super::stage::{Stage, canonical};
use super::{Entry, ImportError, STYLE_KEY, View};

/// Canonical names as they are found, file by file.
#[derive(Default)]
pub(super) struct Names {
    stage: usize,
    entries: Vec<(String, Entry)>,
    /// Stored names of the current file that have an owner.
    claimed: HashSet<String>,
}

impl Names {
    pub(super) fn begin(&mut self, stage: usize) {
        self.stage = stage;
        self.claimed.clear();
    }

    fn add(&mut self, name: impl Into<String>, stored: &str, view: View) {
        self.claimed.insert(stored.to_owned());
        self.entries.push((name.into(), Entry { stage: self.stage, stored: stored.to_owned(), view }));
    }

    /// Refuses names that occur twice. Only the style key may, in two files, if both agree.
    #[expect(clippy::type_complexity, reason = "the two fields of OnnxWeights, made here and nowhere else")]
    pub(super) fn merge(
        self,
        stages: &[Stage],
    ) -> Result<(Vec<(String, Entry)>, HashMap<String, usize>), ImportError> {
        let mut entries: Vec<(String, Entry)> = Vec::with_capacity(self.entries.len());
        let mut index: HashMap<String, usize> = HashMap::new();
        for (name, entry) in self.entries {
            if let Some(&i) = index.get(&name) {
                let first: &Entry = &entries[i].1;
                let (a, b) = (&stages[first.stage], &stages[entry.stage]);
                let (x, y) = (a.model.get(&first.stored)?, b.model.get(&entry.stored)?);
                let equal = x.dtype == y.dtype && x.shape == y.shape && x.bytes == y.bytes;
                if name != STYLE_KEY || !equal {
                    return Err(ImportError::Conflict {
                        name,
                        first: a.file.clone(),
                        second: b.file.clone(),
                    });
                }
                continue;
            }
            index.insert(name.clone(), entries.len());
            entries.push((name, entry));
        }
        Ok((entries, index))
    }
}

impl Stage {
    /// Tensors that kept their names.
    pub(super) fn named(&self, weights: &mut Names) -> Result<(), ImportError> {
        let mut found = 0;
        for stored in self.model.names() {
            let Some(name) = canonical(stored) else { continue };
            if !self.kind.prefixes().iter().any(|prefix| name.starts_with(prefix)) {
                return self
                    .structure(format!("weight `{name}` does not belong in {}", self.kind.file_name()));
            }
            let view = self.named_view(name, stored)?;
            weights.add(name, stored, view);
            found += 1;
        }
        if found == 0 {
            return self.structure("no weight has a name that begins with `tts.`".to_owned());
        }
        Ok(())
    }

    /// Linear weights that kept their names are stored in the layout of the node that reads them.
    fn named_view(&self, name: &str, stored: &str) -> Result<View, ImportError> {
        let info = self.tensor(stored)?.info();
        let read_by_matmul =
            || self.readers(stored).iter().any(|(node, at)| node.op_type == "MatMul" && *at == 1);
        Ok(if name.ends_with(".linear.weight") && info.shape.len() == 2 && read_by_matmul() {
            View::Transposed
        } else if name.ends_with(".act.weight") && info.len() == 1 {
            View::Flat
        } else {
            View::AsStored
        })
    }

    /// Weights of linear layers, from their biases.
    pub(super) fn linears(&self, weights: &mut Names) -> Result<(), ImportError> {
        for stored in self.model.names() {
            let Some(layer) = canonical(stored).and_then(|name| name.strip_suffix(".linear.bias")) else {
                continue;
            };
            let readers = self.readers(stored);
            if readers.iter().all(|(node, _)| node.op_type == "Gemm") && !readers.is_empty() {
                continue; // its weight is the Gemm's, and has a name
            }
            let product = match readers.as_slice() {
                [(add, at)] if add.op_type == "Add" => self.source(self.input(add, 1 - at)?),
                _ => None,
            };
            let Some(product) = product.filter(|node| node.op_type == "MatMul") else {
                return self.structure(format!("`{layer}.linear.bias` is not added to a matrix product"));
            };
            let weight = self.origin(self.input(product, 1)?);
            let Some(tensor) = self.constant(weight) else {
                return self
                    .structure(format!("the second input of node {} is not a constant", product.label()));
            };
            let outputs = self.tensor(stored)?.len();
            if tensor.shape.len() != 2 || tensor.shape[1] != outputs {
                let want = format!("[_, {outputs}], to match `{layer}.linear.bias`");
                return self.assumption(product, "the weight's shape", format!("{:?}", tensor.shape), want);
            }
            let name = format!("{layer}.linear.weight");
            match canonical(weight) {
                None => weights.add(name, weight, View::Transposed),
                Some(kept) if kept == name => {} // seen above
                Some(kept) => {
                    return self
                        .structure(format!("`{layer}.linear.bias` is added to a product with `{kept}`"));
                }
            }
        }
        Ok(())
    }

    /// v1 and v2: keys of the speech-prompted attentions, as constants.
    pub(super) fn folded_keys(&self, weights: &mut Names) -> Result<(), ImportError> {
        const OWNER: &str = "speech_prompted_text_encoder";
        for stored in self.model.names() {
            let Some(path) = stored.strip_suffix("/tanh/Tanh_output_0") else { continue };
            let layer = format!("tts.ttl{}", path.replace('/', "."));
            if !layer.contains(OWNER) {
                return self.structure(format!("folded keys `{stored}` outside of `{OWNER}`"));
            }
            // The keys must meet the query of the layer they are named after.
            let bias = format!("{layer}.W_query.linear.bias");
            let product = self.query_product(&bias)?;
            if self.origin(self.input(product, 1)?) != stored {
                return self.structure(format!("`{stored}` is not multiplied with the query of `{layer}`"));
            }
            let shape = self.tensor(stored)?.shape;
            if shape.len() != 4 || shape[1] != 1 {
                let want = "[heads, 1, width, slots]".to_owned();
                return self.assumption(product, "the shape of the folded keys", format!("{shape:?}"), want);
            }
            weights.add(format!("{layer}.tanh_key"), stored, View::AsStored);
        }
        Ok(())
    }

    /// The vector estimator's style keys: what is tiled before it enters the style attentions' `W_key`.
    pub(super) fn style_key(&self, weights: &mut Names) -> Result<(), ImportError> {
        let mut found: Option<&str> = None;
        for stored in self.model.names() {
            let is_style_key = |name: &str| name.ends_with(".attention.W_key.linear.bias");
            if !canonical(stored).is_some_and(is_style_key) {
                continue;
            }
            let (add, at) = self.only_reader(stored, "Add")?;
            let product = self.source_of(add, 1 - at, "MatMul")?;
            // v3 has [conditional; unconditional] here.
            let mut tile = self.input(product, 0)?;
            if let Some(concat) = self.source(tile).filter(|node| node.op_type == "Concat") {
                tile = self.input(concat, 0)?;
            }
            let key = match self.source(tile) {
                Some(node) if node.op_type == "Tile" || node.op_type == "Expand" => {
                    self.origin(self.input(node, 0)?)
                }
                _ => self.origin(tile),
            };
            if self.constant(key).is_none_or(|tensor| tensor.shape.len() != 3) {
                return self
                    .structure(format!("the style keys of `{stored}` are not a constant [1, slots, width]"));
            }
            match found {
                Some(other) if other != key => {
                    return self
                        .structure(format!("style attentions read different keys, `{other}` and `{key}`"));
                }
                _ => found = Some(key),
            }
        }
        let Some(key) = found else { return self.structure("there is no style attention".to_owned()) };
        if canonical(key) != Some(STYLE_KEY) {
            weights.add(STYLE_KEY, key, View::AsStored);
        }
        Ok(())
    }

    /// First convolution and PRelu of the vocoder.
    pub(super) fn vocoder_ends(&self, weights: &mut Names) -> Result<(), ImportError> {
        const EMBED: &str = "tts.ae.decoder.embed.net";
        let (mean, _) = self.only_reader("tts.ae.latent_mean", "Add")?;
        let (pad, _) = self.only_reader(self.output(mean)?, "Pad")?;
        let (embed, _) = self.only_reader(self.output(pad)?, "Conv")?;
        for (at, part) in [(1, "weight"), (2, "bias")] {
            let stored = self.origin(self.input(embed, at)?);
            if canonical(stored).is_none() {
                self.tensor(stored)?;
                weights.add(format!("{EMBED}.{part}"), stored, View::AsStored);
            }
        }

        let (layer1, _) = self.only_reader("tts.ae.decoder.head.layer1.net.weight", "Conv")?;
        let (act, _) = self.only_reader(self.output(layer1)?, "PRelu")?;
        let slope = self.origin(self.input(act, 1)?);
        if canonical(slope).is_none() {
            let shape = self.tensor(slope)?.shape;
            if shape.iter().product::<usize>() != 1 {
                return self.assumption(
                    act,
                    "the slopes' shape",
                    format!("{shape:?}"),
                    "one number".to_owned(),
                );
            }
            weights.add("tts.ae.decoder.head.act.weight", slope, View::Flat);
        }
        Ok(())
    }

    /// Every constant that a layer multiplies with must have been given a name.
    pub(super) fn nothing_left(&self, weights: &Names) -> Result<(), ImportError> {
        for node in self.model.nodes() {
            let inputs: &[usize] = match node.op_type.as_str() {
                "MatMul" | "PRelu" => &[1],
                "Conv" | "Gemm" | "LayerNormalization" => &[1, 2],
                "BatchNormalization" => &[1, 2, 3, 4],
                _ => &[],
            };
            for stored in inputs.iter().filter_map(|&i| node.inputs.get(i)).map(|value| self.origin(value)) {
                if self.constant(stored).is_some() && !weights.claimed.contains(stored) {
                    return self
                        .structure(format!("node {} reads the unknown weight `{stored}`", node.label()));
                }
            }
        }
        Ok(())
    }
}
