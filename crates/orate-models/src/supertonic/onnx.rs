//! Supertonic as released: four ONNX files become one set of named weights.
//!
//! The graphs are not run. Most tensors carry their parameter's name; the exporter took the names of others away,
//! and those are found through the nodes that read them:
//!
//! | stored as | found through | named |
//! | --- | --- | --- |
//! | `onnx::MatMul_…`, `[in, out]` | bias `X.linear.bias` → Add → MatMul → second input | `X.linear.weight`, `[out, in]` |
//! | `onnx::Conv_…`, two of them | the convolution that reads the latent after `tts.ae.latent_mean` | `tts.ae.decoder.embed.net.{weight,bias}` |
//! | `onnx::PRelu_…` | the PRelu after `tts.ae.decoder.head.layer1` | `tts.ae.decoder.head.act.weight`, `[1]` |
//! | `…/attention1/tanh/Tanh_output_0` (v1, v2) | its name, and the MatMul with the scaled query | `….attention1.tanh_key`, `[H, 1, d, slots]` |
//! | `/Expand_output_0` | the Tile before the style attentions' `W_key` | `tts.ttl.style_encoder.style_token_layer.style_key` |
//!
//! No node name is needed for this, and no number in a name. v3's leading `vector_estimator.` is dropped, so that names agree in all versions.
//!
//! While it looks, the importer checks what our own networks take for granted: padding, dilations, epsilons, scalars.
//! A graph that differs is refused by the name of the node, rather than spoken wrongly. What may differ from model to
//! model and cannot be seen in a weight's shape is returned in [`GraphFacts`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use orate_weights::onnx::Node;
use orate_weights::{OnnxModel, TensorInfo, TensorRef, WeightError, WeightSource};

/// Name of the learned style keys, in all versions and in packed voices.
pub const STYLE_KEY: &str = "tts.ttl.style_encoder.style_token_layer.style_key";

const LAYER_NORM_EPSILON: f32 = 1e-6;
const BATCH_NORM_EPSILON: f32 = 1e-5;
/// Time runs from 0 to 1 in the flow, and from 0 to this in its embedding.
const TIME_SCALE: f32 = 1000.0;
const TIME_BASE: f64 = 10_000.0;
/// Score of masked positions in the relative-position layers.
const RELATIVE_MASK: f32 = -1e4;

/// The folder cannot be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// A file cannot be read.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// A node does something else than the networks here.
    #[error("{file}: node {node}: {what} is {got}, but only {want} is implemented")]
    Assumption {
        /// The ONNX file.
        file: String,
        /// Name and operation.
        node: String,
        /// Attribute or constant.
        what: &'static str,
        /// What the file says.
        got: String,
        /// What it should say.
        want: String,
    },
    /// The graph is not put together as expected.
    #[error(
        "{file}: {problem}. Is this a Supertonic model as released (or converted to f16 with its names kept)?"
    )]
    Structure {
        /// The ONNX file.
        file: String,
        /// What was not found, or found too often.
        problem: String,
    },
    /// Two files define one weight, differently or where only one should.
    #[error("weight `{name}` is in {first} and in {second}; do all four files come from the same model?")]
    Conflict {
        /// Canonical name.
        name: String,
        /// A file.
        first: String,
        /// Another.
        second: String,
    },
}

/// What the graphs say beyond their weights.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphFacts {
    /// Version of the ONNX operator set.
    pub opset: i64,
    /// Scores of text and style attention are divided by this: the square root of `text_dim` in every layer.
    pub attention_divisor: f32,
    /// Width of the text embedding.
    pub text_dim: usize,
    /// v3's guidance; `None` for v1 and v2.
    pub guidance: Option<Guidance>,
    /// The vocoder divides latents by this.
    pub normalizer_scale: f32,
    /// `theta[j] = rotary_scale · rotary_base^(−j / half)`, confirmed for every stored angle.
    pub rotary_scale: f32,
    /// See `rotary_scale`.
    pub rotary_base: f32,
    /// Dilations of each stack of ConvNeXt blocks, by the stack's name (`tts.ae.decoder.convnext`).
    pub dilations: BTreeMap<String, Vec<usize>>,
}

/// v = conditional · v_cond − unconditional · v_uncond
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guidance {
    /// Weight of the conditional velocity: 4 in v3.
    pub conditional: f32,
    /// Weight that is subtracted: 3 in v3.
    pub unconditional: f32,
}

/// The four networks' weights under canonical names. Nothing is copied.
#[derive(Debug)]
pub struct OnnxWeights {
    folder: String,
    stages: Vec<Stage>,
    entries: Vec<(String, Entry)>,
    index: HashMap<String, usize>,
    facts: GraphFacts,
}

#[derive(Clone, Debug)]
struct Entry {
    stage: usize,
    stored: String,
    view: View,
}

/// How the stored tensor is seen.
#[derive(Clone, Copy, Debug, PartialEq)]
enum View {
    AsStored,
    Transposed,
    /// `[1, 1]` as `[1]`.
    Flat,
}

/// Opens the folder that holds `duration_predictor.onnx`, `text_encoder.onnx`, `vector_estimator.onnx` and
/// `vocoder.onnx`.
///
/// # Errors
///
/// A file is missing or broken, or a graph differs from what the networks here compute.
pub fn open(folder: &Path) -> Result<OnnxWeights, ImportError> {
    let stages = StageKind::ALL
        .map(|kind| Stage::open(folder, kind))
        .into_iter()
        .collect::<Result<Vec<_>, ImportError>>()?;
    OnnxWeights::import(folder.display().to_string(), stages)
}

impl OnnxWeights {
    /// What the graphs say beyond their weights.
    pub fn facts(&self) -> &GraphFacts {
        &self.facts
    }

    fn import(folder: String, stages: Vec<Stage>) -> Result<Self, ImportError> {
        let mut weights = Names::default();
        for (i, stage) in stages.iter().enumerate() {
            weights.begin(i);
            stage.named(&mut weights)?;
            stage.linears(&mut weights)?;
            match stage.kind {
                StageKind::TextEncoder => stage.folded_keys(&mut weights)?,
                StageKind::VectorEstimator => stage.style_key(&mut weights)?,
                StageKind::Vocoder => stage.vocoder_ends(&mut weights)?,
                StageKind::DurationPredictor => {}
            }
            stage.nothing_left(&weights)?;
        }
        let (entries, index) = weights.merge(&stages)?;

        let mut dilations = BTreeMap::new();
        for stage in &stages {
            stage.check_readers()?;
            dilations.append(&mut stage.check_convolutions()?);
            stage.check_small_nodes()?;
            stage.check_relative_attention()?;
        }
        let [_, text_encoder, vector_estimator, vocoder] = stages.as_slice() else {
            unreachable!("there are four stages");
        };
        let text_dim = text_encoder.text_dim()?;
        let attention_divisor = text_encoder.check_attention(text_dim)?;
        vector_estimator.check_attention(text_dim)?;
        vector_estimator.check_time_embedding()?;
        let (rotary_scale, rotary_base) = vector_estimator.rotary()?;
        let facts = GraphFacts {
            opset: vector_estimator.model.opset(),
            attention_divisor,
            text_dim,
            guidance: vector_estimator.guidance()?,
            normalizer_scale: vocoder.check_unchunking()?,
            rotary_scale,
            rotary_base,
            dilations,
        };
        Ok(Self { folder, stages, entries, index, facts })
    }
}

impl WeightSource for OnnxWeights {
    fn get(&self, name: &str) -> Result<TensorRef<'_>, WeightError> {
        let Some(&i) = self.index.get(name) else { return Err(self.missing(name)) };
        let Entry { stage, stored, view } = &self.entries[i].1;
        let tensor = self.stages[*stage].model.get(stored)?;
        Ok(match view {
            View::AsStored => tensor,
            View::Transposed => tensor.transpose(),
            View::Flat => tensor.reshape(&[1]).expect("one element, checked when opened"),
        })
    }

    fn names(&self) -> Vec<&str> {
        self.entries.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        let Entry { stage, stored, view } = &self.entries[*self.index.get(name)?].1;
        let mut info = self.stages[*stage].model.info(stored)?;
        match view {
            View::AsStored => {}
            View::Transposed => info.shape.swap(0, 1), // linear weights have two axes
            View::Flat => info.shape = vec![1],
        }
        Some(info)
    }

    fn describe(&self) -> String {
        self.folder.clone()
    }
}

/// Canonical names as they are found, file by file.
#[derive(Default)]
struct Names {
    stage: usize,
    entries: Vec<(String, Entry)>,
    /// Stored names of the current file that have an owner.
    claimed: HashSet<String>,
}

impl Names {
    fn begin(&mut self, stage: usize) {
        self.stage = stage;
        self.claimed.clear();
    }

    fn add(&mut self, name: impl Into<String>, stored: &str, view: View) {
        self.claimed.insert(stored.to_owned());
        self.entries.push((name.into(), Entry { stage: self.stage, stored: stored.to_owned(), view }));
    }

    /// Refuses names that occur twice. Only the style key may, in two files, if both agree.
    #[expect(clippy::type_complexity, reason = "the two fields of OnnxWeights, made here and nowhere else")]
    fn merge(self, stages: &[Stage]) -> Result<(Vec<(String, Entry)>, HashMap<String, usize>), ImportError> {
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

#[derive(Clone, Copy, Debug, PartialEq)]
enum StageKind {
    DurationPredictor,
    TextEncoder,
    VectorEstimator,
    Vocoder,
}

impl StageKind {
    const ALL: [Self; 4] = [Self::DurationPredictor, Self::TextEncoder, Self::VectorEstimator, Self::Vocoder];

    fn file_name(self) -> &'static str {
        match self {
            Self::DurationPredictor => "duration_predictor.onnx",
            Self::TextEncoder => "text_encoder.onnx",
            Self::VectorEstimator => "vector_estimator.onnx",
            Self::Vocoder => "vocoder.onnx",
        }
    }

    /// What the canonical names in this file begin with.
    fn prefixes(self) -> &'static [&'static str] {
        match self {
            Self::DurationPredictor => &["tts.dp."],
            Self::TextEncoder => {
                &["tts.ttl.text_encoder.", "tts.ttl.speech_prompted_text_encoder.", "tts.ttl.style_encoder."]
            }
            Self::VectorEstimator => &["tts.ttl.vector_field.", "tts.ttl.uncond_masker."],
            Self::Vocoder => &["tts.ae.", "tts.ttl.normalizer."],
        }
    }
}

/// Drops v3's extra level. `None` for anonymous tensors.
fn canonical(stored: &str) -> Option<&str> {
    let name = stored.strip_prefix("vector_estimator.").unwrap_or(stored);
    name.starts_with("tts.").then_some(name)
}

/// One of the four files.
#[derive(Debug)]
struct Stage {
    kind: StageKind,
    file: String,
    model: OnnxModel,
    /// Largest relative difference between a constant and what it should be. Larger for files in f16.
    tolerance: f32,
}

// ---- names -----------------------------------------------------------------------------------------------------

impl Stage {
    fn open(folder: &Path, kind: StageKind) -> Result<Self, ImportError> {
        Ok(Self::new(kind, OnnxModel::open(folder.join(kind.file_name()))?))
    }

    fn new(kind: StageKind, model: OnnxModel) -> Self {
        let half = |name: &str| model.info(name).is_some_and(|info| info.dtype == orate_weights::DType::F16);
        let tolerance = if model.names().into_iter().any(half) { 1e-3 } else { 1e-5 };
        Self { kind, file: model.describe(), model, tolerance }
    }

    /// Tensors that kept their names.
    fn named(&self, weights: &mut Names) -> Result<(), ImportError> {
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

    /// Linear weights that kept their names are nevertheless stored as their reader wants them.
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
    fn linears(&self, weights: &mut Names) -> Result<(), ImportError> {
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
    fn folded_keys(&self, weights: &mut Names) -> Result<(), ImportError> {
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
    fn style_key(&self, weights: &mut Names) -> Result<(), ImportError> {
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
    fn vocoder_ends(&self, weights: &mut Names) -> Result<(), ImportError> {
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
    fn nothing_left(&self, weights: &Names) -> Result<(), ImportError> {
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

// ---- checks ----------------------------------------------------------------------------------------------------

impl Stage {
    /// Weights are read by the operation that their names promise.
    fn check_readers(&self) -> Result<(), ImportError> {
        for stored in self.model.names() {
            let Some(name) = canonical(stored) else { continue };
            let axes = self.tensor(stored)?.shape.len();
            let (operations, at): (&[&str], Option<usize>) = match name {
                _ if name.ends_with(".char_embedder.weight") => (&["Gather"], Some(0)),
                _ if name.ends_with(".norm.weight") => {
                    (&["LayerNormalization", "BatchNormalization"], Some(1))
                }
                _ if name.ends_with(".norm.bias") => (&["LayerNormalization", "BatchNormalization"], Some(2)),
                _ if name.ends_with(".norm.running_mean") => (&["BatchNormalization"], Some(3)),
                _ if name.ends_with(".norm.running_var") => (&["BatchNormalization"], Some(4)),
                _ if name.ends_with(".gamma") || name.ends_with(".latent_std") => (&["Mul"], None),
                _ if name.ends_with(".latent_mean") => (&["Add"], None),
                _ if name.ends_with(".normalizer.scale") => (&["Div"], Some(1)),
                _ if name.ends_with(".activation.weight") || name.ends_with(".act.weight") => {
                    (&["PRelu"], Some(1))
                }
                _ if name.contains(".emb_rel_") => (&["Pad"], Some(0)),
                _ if name.ends_with(".weight") && axes == 3 => (&["Conv"], Some(1)),
                _ if name.ends_with(".weight") && axes == 2 => (&["Gemm", "MatMul"], Some(1)),
                _ if name.ends_with(".bias") => (&["Conv", "Gemm", "Add"], None),
                _ => continue,
            };
            let readers = self.readers(stored);
            let fits = |(node, i): &(&Node, usize)| {
                operations.contains(&node.op_type.as_str()) && at.is_none_or(|at| at == *i)
            };
            if readers.is_empty() || !readers.iter().all(fits) {
                let labels: Vec<String> =
                    readers.iter().map(|(node, i)| format!("{} as input {i}", node.label())).collect();
                return self
                    .structure(format!("`{name}` should be read by {operations:?}, but is by {labels:?}"));
            }
        }
        Ok(())
    }

    /// Padding, strides, groups. Returns the dilations of the ConvNeXt stacks.
    fn check_convolutions(&self) -> Result<BTreeMap<String, Vec<usize>>, ImportError> {
        let mut stacks: BTreeMap<String, BTreeMap<usize, usize>> = BTreeMap::new();
        for node in self.nodes("Conv") {
            let stored = self.origin(self.input(node, 1)?);
            let shape = self.tensor(stored)?.shape;
            let &[outputs, _, kernel] = shape.as_slice() else {
                return self.assumption(
                    node,
                    "the weight's shape",
                    format!("{shape:?}"),
                    "three axes".to_owned(),
                );
            };
            let name = canonical(stored).unwrap_or_default();
            let depthwise = name.contains(".dwconv.");

            let ones = |what| self.ints(node, what, &[1]);
            if !matches!(node.string("auto_pad"), None | Some("NOTSET" | "VALID")) {
                return self.assumption(
                    node,
                    "auto_pad",
                    format!("{:?}", node.string("auto_pad")),
                    "none".to_owned(),
                );
            }
            self.expect(node, "strides", ones("strides"), vec![1])?;
            self.expect(node, "pads", self.ints(node, "pads", &[0, 0]), vec![0, 0])?;
            self.expect(
                node,
                "kernel_shape",
                self.ints(node, "kernel_shape", &[kernel as i64]),
                vec![kernel as i64],
            )?;
            let groups = if depthwise { outputs as i64 } else { 1 };
            self.expect(node, "group", node.int("group").unwrap_or(1), groups)?;
            let dilation = match ones("dilations").as_slice() {
                &[d] if d >= 1 && (d == 1 || depthwise) && d < 1 << 16 => d as usize,
                other => {
                    return self.assumption(
                        node,
                        "dilations",
                        format!("{other:?}"),
                        "one (depthwise)".to_owned(),
                    );
                }
            };
            if kernel > 1 {
                self.check_padding(node, (kernel - 1) * dilation)?;
            }

            let block = name.strip_suffix(".weight").filter(|_| depthwise);
            let block =
                block.map(|b| b.strip_suffix(".net").unwrap_or(b)).and_then(|b| b.strip_suffix(".dwconv"));
            if let Some((stack, number)) = block.and_then(|b| b.rsplit_once('.'))
                && let Ok(number) = number.parse()
            {
                stacks.entry(stack.to_owned()).or_default().insert(number, dilation);
            }
        }
        for (stack, blocks) in &stacks {
            if blocks.keys().copied().ne(0..blocks.len()) {
                return self.structure(format!("blocks of `{stack}` are not numbered from 0 without gaps"));
            }
        }
        Ok(stacks.into_iter().map(|(stack, blocks)| (stack, blocks.into_values().collect())).collect())
    }

    /// The convolution's input repeats its edges: `reach` samples on the left in the vocoder, half of it on each side
    /// elsewhere.
    fn check_padding(&self, conv: &Node, reach: usize) -> Result<(), ImportError> {
        let pad = self.source_of(conv, 0, "Pad")?;
        self.expect(pad, "mode", pad.string("mode").unwrap_or("constant"), "edge")?;
        let Some(amounts) = pad.inputs.get(1).and_then(|value| self.constant(self.origin(value))) else {
            return self.structure(format!("the amounts of node {} are not a constant", pad.label()));
        };
        let (left, right) = match self.kind {
            StageKind::Vocoder => (reach, 0),
            _ => (reach / 2, reach - reach / 2),
        };
        let (left, right) = (left as f32, right as f32);
        let axes =
            pad.inputs.get(3).and_then(|value| self.constant(self.origin(value))).map(|axes| axes.to_f32());
        let want = match axes.as_deref() {
            None => vec![0.0, 0.0, left, 0.0, 0.0, right],
            Some([2.0 | -1.0]) => vec![left, right],
            Some(_) => return self.assumption(pad, "axes", format!("{axes:?}"), "the last".to_owned()),
        };
        self.expect(pad, "padding", amounts.to_f32(), want)
    }

    /// Norms, dense layers, GELU and softmax.
    fn check_small_nodes(&self) -> Result<(), ImportError> {
        for node in self.model.nodes() {
            match node.op_type.as_str() {
                "LayerNormalization" => {
                    self.near(node, "epsilon", node.float("epsilon").unwrap_or(1e-5), LAYER_NORM_EPSILON)?;
                    if !matches!(node.int("axis"), None | Some(-1 | 2)) {
                        return self.assumption(
                            node,
                            "axis",
                            format!("{:?}", node.int("axis")),
                            "the last".to_owned(),
                        );
                    }
                }
                "BatchNormalization" => {
                    self.near(node, "epsilon", node.float("epsilon").unwrap_or(1e-5), BATCH_NORM_EPSILON)?;
                    self.expect(node, "training_mode", node.int("training_mode").unwrap_or(0), 0)?;
                }
                "Gemm" => {
                    self.expect(node, "transA", node.int("transA").unwrap_or(0), 0)?;
                    self.expect(node, "transB", node.int("transB").unwrap_or(0), 1)?;
                    self.expect(node, "alpha", node.float("alpha").unwrap_or(1.0), 1.0)?;
                    self.expect(node, "beta", node.float("beta").unwrap_or(1.0), 1.0)?;
                }
                "Erf" => self.check_gelu(node)?,
                "Softmax" => {
                    if !matches!(node.int("axis"), None | Some(-1 | 3)) {
                        return self.assumption(
                            node,
                            "axis",
                            format!("{:?}", node.int("axis")),
                            "the last".to_owned(),
                        );
                    }
                    // Style attention has no mask before the softmax.
                    if let Some(mask) = self.source(self.input(node, 0)?).filter(|n| n.op_type == "Where") {
                        let want = match self.kind {
                            StageKind::VectorEstimator => f32::NEG_INFINITY,
                            _ => RELATIVE_MASK,
                        };
                        self.near(mask, "the masked score", self.scalar(mask, 1)?, want)?;
                    }
                }
                "Gelu" => {
                    let kind = node.string("approximate").unwrap_or("none");
                    self.expect(node, "approximate", kind, "none")?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// x / √2 → Erf → + 1 → · x → · 0.5
    fn check_gelu(&self, erf: &Node) -> Result<(), ImportError> {
        let div = self.source_of(erf, 0, "Div")?;
        self.near(div, "the divisor", self.scalar(div, 1)?, std::f32::consts::SQRT_2)?;
        let x = self.origin(self.input(div, 0)?);
        let (add, at) = self.only_reader(self.output(erf)?, "Add")?;
        self.near(add, "the summand", self.scalar(add, 1 - at)?, 1.0)?;
        let (gate, at) = self.only_reader(self.output(add)?, "Mul")?;
        if self.origin(self.input(gate, 1 - at)?) != x {
            return self.structure(format!("node {} does not multiply with the input of GELU", gate.label()));
        }
        let (half, at) = self.only_reader(self.output(gate)?, "Mul")?;
        self.near(half, "the factor", self.scalar(half, 1 - at)?, 0.5)
    }

    /// Queries of the relative-position layers are divided by the square root of the head width.
    fn check_relative_attention(&self) -> Result<(), ImportError> {
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

    fn text_dim(&self) -> Result<usize, ImportError> {
        let info = self.tensor("tts.ttl.text_encoder.text_embedder.char_embedder.weight")?.info();
        match info.shape.as_slice() {
            &[_, width] => Ok(width),
            other => self.structure(format!("the embedding has shape {other:?}")),
        }
    }

    /// Text and style attention: the scores' divisor, and tanh on style keys but not on text keys.
    fn check_attention(&self, text_dim: usize) -> Result<f32, ImportError> {
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

    /// The product of queries and keys, from the queries' bias.
    fn query_product(&self, bias: &str) -> Result<&Node, ImportError> {
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
    fn check_time_embedding(&self) -> Result<(), ImportError> {
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
    fn rotary(&self) -> Result<(f32, f32), ImportError> {
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

    /// v3: the factors of the two velocities whose difference is taken, of which the conditional one comes first.
    fn guidance(&self) -> Result<Option<Guidance>, ImportError> {
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
    fn check_unchunking(&self) -> Result<f32, ImportError> {
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

// ---- walking the graph -----------------------------------------------------------------------------------------

impl Stage {
    fn structure<T>(&self, problem: String) -> Result<T, ImportError> {
        Err(ImportError::Structure { file: self.file.clone(), problem })
    }

    fn assumption<T>(
        &self,
        node: &Node,
        what: &'static str,
        got: String,
        want: String,
    ) -> Result<T, ImportError> {
        Err(ImportError::Assumption { file: self.file.clone(), node: node.label(), what, got, want })
    }

    fn expect<T: PartialEq + std::fmt::Debug>(
        &self,
        node: &Node,
        what: &'static str,
        got: T,
        want: T,
    ) -> Result<(), ImportError> {
        if got == want {
            Ok(())
        } else {
            self.assumption(node, what, format!("{got:?}"), format!("{want:?}"))
        }
    }

    fn near(&self, node: &Node, what: &'static str, got: f32, want: f32) -> Result<(), ImportError> {
        if got == want || (want.is_finite() && (got - want).abs() <= self.tolerance * want.abs()) {
            return Ok(());
        }
        self.assumption(node, what, got.to_string(), want.to_string())
    }

    fn nodes(&self, op_type: &str) -> impl Iterator<Item = &Node> {
        self.model.nodes().iter().filter(move |node| node.op_type == op_type)
    }

    fn ints(&self, node: &Node, attribute: &str, default: &[i64]) -> Vec<i64> {
        node.ints(attribute).unwrap_or(default).to_vec()
    }

    fn input<'a>(&self, node: &'a Node, at: usize) -> Result<&'a str, ImportError> {
        match node.inputs.get(at) {
            Some(value) => Ok(value),
            None => self.structure(format!("node {} has no input {at}", node.label())),
        }
    }

    fn output<'a>(&self, node: &'a Node) -> Result<&'a str, ImportError> {
        match node.outputs.first() {
            Some(value) => Ok(value),
            None => self.structure(format!("node {} has no output", node.label())),
        }
    }

    fn position(&self, node: &Node, value: &str) -> Result<usize, ImportError> {
        match node.inputs.iter().position(|input| self.origin(input) == value) {
            Some(at) => Ok(at),
            None => self.structure(format!("node {} does not read `{value}`", node.label())),
        }
    }

    /// Where a value comes from if copies and conversions (of f16 bundles) are passed over.
    fn origin<'a>(&'a self, value: &'a str) -> &'a str {
        let mut value = value;
        for _ in 0..8 {
            match self.model.producer(value) {
                Some(node) if is_copy(node) && node.inputs.len() == 1 => value = &node.inputs[0],
                _ => break,
            }
        }
        value
    }

    /// The node that computes a value.
    fn source(&self, value: &str) -> Option<&Node> {
        self.model.producer(self.origin(value))
    }

    /// The node behind an input, which must be of one kind.
    fn source_of(&self, node: &Node, at: usize, op_type: &str) -> Result<&Node, ImportError> {
        match self.source(self.input(node, at)?) {
            Some(source) if source.op_type == op_type => Ok(source),
            other => {
                let got = other.map_or_else(|| "no node".to_owned(), Node::label);
                self.structure(format!(
                    "input {at} of node {} comes from {got}, not from {op_type}",
                    node.label()
                ))
            }
        }
    }

    /// Readers of a value with the position they read it at. Copies are passed over.
    fn readers(&self, value: &str) -> Vec<(&Node, usize)> {
        let mut found = Vec::new();
        let mut values = vec![value];
        let mut seen = HashSet::from([value]);
        while let Some(value) = values.pop() {
            for node in self.model.consumers(value) {
                if is_copy(node) {
                    values
                        .extend(node.outputs.iter().map(String::as_str).filter(|output| seen.insert(output)));
                } else {
                    let at = node.inputs.iter().enumerate().filter(|(_, input)| *input == value);
                    found.extend(at.map(|(at, _)| (node, at)));
                }
            }
        }
        found
    }

    /// The one reader of a value, which must be of one kind. Questions about its shape do not count.
    fn only_reader(&self, value: &str, op_type: &str) -> Result<(&Node, usize), ImportError> {
        let mut readers = self.readers(value);
        readers.retain(|(node, _)| node.op_type != "Shape");
        match readers.as_slice() {
            &[(node, at)] if node.op_type == op_type => Ok((node, at)),
            _ => {
                let labels: Vec<String> = readers.iter().map(|(node, _)| node.label()).collect();
                self.structure(format!("`{value}` should be read by one {op_type}, but is by {labels:?}"))
            }
        }
    }

    /// The first nodes of the given kinds on every way down from a value.
    fn reached(&self, value: &str, kinds: &[&str]) -> Vec<(&Node, usize)> {
        let mut found: Vec<(&Node, usize)> = Vec::new();
        let mut values = vec![value];
        let mut seen = HashSet::from([value]);
        while let Some(value) = values.pop() {
            for (node, at) in self.readers(value) {
                if kinds.contains(&node.op_type.as_str()) {
                    if !found.iter().any(|(other, i)| std::ptr::eq(*other, node) && *i == at) {
                        found.push((node, at));
                    }
                } else if node.op_type != "Shape" {
                    values
                        .extend(node.outputs.iter().map(String::as_str).filter(|output| seen.insert(output)));
                }
            }
        }
        found
    }

    fn constant(&self, value: &str) -> Option<TensorRef<'_>> {
        self.model.get(self.origin(value)).ok()
    }

    /// A tensor by its stored name.
    fn tensor(&self, stored: &str) -> Result<TensorRef<'_>, ImportError> {
        Ok(self.model.get(stored)?)
    }

    /// An input that must be a constant of one element.
    fn scalar(&self, node: &Node, at: usize) -> Result<f32, ImportError> {
        match self.constant(self.input(node, at)?) {
            Some(tensor) if tensor.len() == 1 => Ok(tensor.to_f32()[0]),
            _ => self.structure(format!("input {at} of node {} is not a constant number", node.label())),
        }
    }

    /// The constant one of two operands, and the other's name.
    fn constant_operand<'a>(&'a self, node: &'a Node) -> Result<(TensorRef<'a>, &'a str), ImportError> {
        if let [a, b] = node.inputs.as_slice() {
            match (self.constant(a), self.constant(b)) {
                (Some(constant), None) => return Ok((constant, b)),
                (None, Some(constant)) => return Ok((constant, a)),
                _ => {}
            }
        }
        self.structure(format!("node {} should have one constant operand", node.label()))
    }
}

fn is_copy(node: &Node) -> bool {
    matches!(node.op_type.as_str(), "Cast" | "Identity")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../oracle/supertonic/golden");

    type Files = [Vec<u8>; 4];

    fn files(model: &str) -> Files {
        StageKind::ALL.map(|kind| {
            let path = Path::new(GOLDEN).join(model).join("onnx").join(kind.file_name());
            std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        })
    }

    fn import(files: &Files) -> Result<OnnxWeights, ImportError> {
        let mut stages = Vec::new();
        for (kind, bytes) in StageKind::ALL.into_iter().zip(files) {
            stages.push(Stage::new(kind, OnnxModel::from_bytes(kind.file_name(), bytes.clone())?));
        }
        OnnxWeights::import("test".to_owned(), stages)
    }

    /// Overwrites the first place where `old` stands.
    fn patch(bytes: &mut [u8], old: &[u8], new: &[u8]) {
        assert_eq!(old.len(), new.len());
        let at =
            bytes.windows(old.len()).position(|window| window == old).expect("the pattern is in the file");
        bytes[at..at + new.len()].copy_from_slice(new);
    }

    #[test]
    fn all_versions_get_the_same_names() {
        let open_golden = |model| open(&Path::new(GOLDEN).join(model).join("onnx")).unwrap();
        let (v1, v2, v3) = (open_golden("tiny1"), open_golden("tiny"), open_golden("tiny3"));
        assert_eq!(v1.names(), v2.names());
        let names =
            |weights: &OnnxWeights| weights.names().into_iter().map(str::to_owned).collect::<HashSet<_>>();
        let (v2_names, v3_names) = (names(&v2), names(&v3));
        // Apart from sizes (one ConvNeXt block more or less would show here), only these differ.
        for name in v2_names.difference(&v3_names) {
            assert!(name.ends_with(".tanh_key"), "{name}");
        }
        for name in v3_names.difference(&v2_names) {
            assert!(name.contains(".uncond_masker.") || name.contains(".W_key.linear."), "{name}");
        }
        for weights in [&v1, &v2, &v3] {
            for name in weights.names() {
                assert!(name.starts_with("tts."), "{name}");
                let tensor = weights.get(name).unwrap();
                assert_eq!(weights.info(name), Some(tensor.info()), "{name}");
                assert!(tensor.to_f32().iter().all(|v| v.is_finite()), "{name}");
            }
        }
        assert!(v2.get("tts.nothing").is_err());
    }

    #[test]
    fn anonymous_weights() {
        let weights = import(&files("tiny")).unwrap();
        let shape = |name: &str| weights.info(name).unwrap_or_else(|| panic!("{name}")).shape;
        let block = "tts.ttl.vector_field.main_blocks.3.attn";
        let latent = shape("tts.ttl.vector_field.proj_in.net.weight")[0];
        let text = shape("tts.ttl.text_encoder.text_embedder.char_embedder.weight")[1];
        assert_ne!(latent, text);
        assert_eq!(shape(&format!("{block}.W_query.linear.weight")), [text, latent]);
        assert_eq!(shape(&format!("{block}.out_fc.linear.weight")), [latent, text]);
        let keys = shape("tts.ttl.speech_prompted_text_encoder.attention2.tanh_key");
        assert_eq!(shape(STYLE_KEY), [1, keys[3], text]);
        assert_eq!(keys[..3], [2, 1, text / 2]);
        let embed = shape("tts.ae.decoder.embed.net.weight");
        assert_eq!(shape("tts.ae.decoder.embed.net.bias"), embed[..1]);
        assert_eq!(shape("tts.ae.decoder.head.act.weight"), [1]);

        // Row r of the logical weight is column r of the stored one.
        let linear = weights.get(&format!("{block}.W_query.linear.weight")).unwrap();
        let stored = weights.stages[2].model.get("onnx::MatMul_3101").unwrap();
        assert_eq!(stored.shape, [latent, text]);
        let (linear, stored) = (linear.to_f32(), stored.to_f32());
        assert!((0..text).all(|r| (0..latent).all(|c| linear[r * latent + c] == stored[c * text + r])));
    }

    #[test]
    fn facts() {
        let v2 = import(&files("tiny")).unwrap().facts().clone();
        assert_eq!((v2.opset, v2.text_dim, v2.attention_divisor), (19, 32, 32f32.sqrt()));
        assert_eq!(
            (v2.guidance, v2.normalizer_scale, v2.rotary_scale, v2.rotary_base),
            (None, 0.25, 10.0, 10_000.0)
        );
        assert_eq!(v2.dilations["tts.ae.decoder.convnext"], [1, 2, 4, 1]);
        assert_eq!(v2.dilations["tts.ttl.vector_field.main_blocks.6.convnext"], [1, 2, 4, 8]);
        assert_eq!(v2.dilations["tts.ttl.vector_field.last_convnext.convnext"], [1, 1]);
        assert_eq!(v2.dilations["tts.ttl.text_encoder.convnext.convnext"], [1, 1, 1]);
        assert_eq!(v2.dilations["tts.dp.sentence_encoder.convnext.convnext"], [1, 1]);

        let v3 = import(&files("tiny3")).unwrap().facts().clone();
        assert_eq!(v3.guidance, Some(Guidance { conditional: 4.0, unconditional: 3.0 }));
        assert_eq!(v3.attention_divisor, 32f32.sqrt());
        assert_eq!(v3.dilations["tts.ttl.text_encoder.convnext.convnext"], [1, 2, 4]);
    }

    #[test]
    fn other_graphs_are_refused() {
        struct Case {
            model: &'static str,
            stage: usize,
            old: Vec<u8>,
            new: Vec<u8>,
            expected: &'static str,
        }
        let number = |model, stage, old: f32, new: f32, expected| {
            let (old, new) = (old.to_le_bytes().to_vec(), new.to_le_bytes().to_vec());
            Case { model, stage, old, new, expected }
        };
        let text = |stage, old: &str, new: &str, expected| {
            let (old, new) = (old.as_bytes().to_vec(), new.as_bytes().to_vec());
            Case { model: "tiny", stage, old, new, expected }
        };
        let key = |n| format!("/speech_prompted_text_encoder/attention{n}/tanh/Tanh_output_0");
        let cases = [
            number("tiny", 0, 1e-6, 1e-5, "LayerNormalization): epsilon"),
            number("tiny", 1, 1e-6, 1e-5, "LayerNormalization): epsilon"),
            number("tiny", 3, 1e-5, 1e-6, "BatchNormalization): epsilon"),
            number("tiny", 1, std::f32::consts::SQRT_2, 1.5, "act/Div (Div): the divisor"),
            number("tiny", 1, 32f32.sqrt(), 4.0, "attention1/Div (Div): the divisor"),
            number("tiny", 2, 32f32.sqrt(), 4.0, "attn/Div_4 (Div): the divisor"),
            number("tiny", 0, 8f32.sqrt(), 4.0, "attn_layers.0/Div (Div): the divisor"),
            number("tiny", 1, -1e4, -1e5, "the masked score"),
            number("tiny", 2, f32::NEG_INFINITY, -1e4, "the masked score"),
            number("tiny", 2, 1000.0, 100.0, "the time's scale"),
            number("tiny3", 2, 3.0, 2.0, "the difference of both factors"),
            text(0, "edge", "wrap", "Pad): mode"),
            text(3, "edge", "wrap", "Pad): mode"),
            text(2, "\"\u{3}Sin", "\"\u{3}Cos", "not from Sin"), // field 4: the operation,
            text(3, "tts.ae.latent_std", "tts.dp.latent_std", "should be read by"),
            text(1, &key(1), &key(2), "attention"),
            text(2, "\"\u{4}Tanh", "\"\u{4}Relu", "by one Tanh"),
        ];
        for Case { model, stage, old, new, expected } in cases {
            let mut files = files(model);
            patch(&mut files[stage], &old, &new);
            let message = match import(&files) {
                Ok(_) => "accepted".to_owned(),
                Err(error) => error.to_string(),
            };
            assert!(expected.split('|').any(|e| message.contains(e)), "{expected}: {message}");
        }
        let mut swapped = files("tiny");
        swapped.swap(1, 3);
        assert!(import(&swapped).unwrap_err().to_string().contains("does not belong"));
    }

    #[test]
    fn style_keys_must_agree() {
        let mut files = files("tiny3");
        let weights = import(&files).unwrap();
        let key = weights.get(STYLE_KEY).unwrap().bytes[..16].to_vec();
        patch(&mut files[2], &key, &[0; 16]);
        assert!(matches!(import(&files), Err(ImportError::Conflict { .. })));
    }

    #[test]
    fn survives_damage() {
        let mut random = 0x0a7e_u64;
        let mut next = |n: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % n
        };
        let originals = [files("tiny"), files("tiny3")];
        for _ in 0..400 {
            let mut files = originals[next(2)].clone();
            let stage = next(4);
            for _ in 0..=next(20) {
                let at = next(files[stage].len());
                files[stage][at] = next(256) as u8;
            }
            if next(4) == 0 {
                let len = next(files[stage].len());
                files[stage].truncate(len);
            }
            if let Ok(weights) = import(&files) {
                for name in weights.names() {
                    let _ = weights.get(name).map(|tensor| tensor.to_f32());
                }
            }
        }
    }
}
