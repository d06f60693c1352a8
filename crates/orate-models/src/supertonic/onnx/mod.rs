//! Supertonic as released: four ONNX files become one set of named weights.
//!
//! The graphs are not run. Most tensors carry their parameter's name. The exporter took the names of others
//! away; those are found through the nodes that read them:
//!
//! | stored as | found through |
//! | --- | --- |
//! | `onnx::MatMul_…`, `[in, out]` | bias `X.linear.bias` → Add → MatMul → second input |
//! | `onnx::Conv_…`, two of them | the convolution that reads the latent after `tts.ae.latent_mean` |
//! | `onnx::PRelu_…` | the PRelu after `tts.ae.decoder.head.layer1` |
//! | `…/attention1/tanh/Tanh_output_0` (v1, v2) | its name, and the MatMul with the scaled query |
//! | `/Expand_output_0` | the Tile before the style attentions' `W_key` |
//!
//! In the same order they are named:
//!
//! - `X.linear.weight`, `[out, in]`
//! - `tts.ae.decoder.embed.net.{weight,bias}`
//! - `tts.ae.decoder.head.act.weight`, `[1]`
//! - `….attention1.tanh_key`, `[H, 1, d, slots]`
//! - `tts.ttl.style_encoder.style_token_layer.style_key`
//!
//! This needs no node name, and no number in a name. v3's leading `vector_estimator.` is dropped, so that
//! names agree in all versions.
//!
//! The importer also checks what our networks take for granted: padding, dilations, epsilons, scalars. A
//! graph that differs is refused with the name of the node. What may differ between models and shows in no
//! weight's shape is returned in [`GraphFacts`].
//!
//! | file | answers |
//! | --- | --- |
//! | `stage` | which files there are, and the errors about one that is not as expected |
//! | `walk` | which nodes compute and read a value |
//! | `naming` | what a tensor is called |
//! | `nodes`, `parts` | whether single nodes, and groups of several, compute what our networks compute |

mod naming;
mod nodes;
mod parts;
mod stage;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use naming::Names;
use orate_weights::{TensorInfo, TensorRef, WeightError, WeightSource};
use stage::{Stage, StageKind};

/// Canonical name of the learned style keys, in all versions and in packed voices.
pub const STYLE_KEY: &str = "tts.ttl.style_encoder.style_token_layer.style_key";

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
