//! Supertonic as released: four ONNX files become one set of named weights.
//!
//! The graphs are not run. Most tensors carry their parameter's name. The exporter took the names of others
//! away; those are found through the nodes that read them:
//!
//! | name | found through |
//! | --- | --- |
//! | `X.linear.weight` | bias `X.linear.bias` → Add → MatMul → second input, `[in, out]` |
//! | `tts.ae.decoder.embed.net.{weight,bias}` | the convolution after `tts.ae.latent_mean` |
//! | `tts.ae.decoder.head.act.weight` | the PRelu after `tts.ae.decoder.head.layer1` |
//! | `….attention1.tanh_key` (v1, v2) | `…/attention1/tanh/Tanh_output_0`, which the query's MatMul reads |
//! | `STYLE_KEY` | the Tile before the style attentions' `W_key` |
//!
//! Apart from that path, names of nodes and numbers in names (`onnx::MatMul_3101`) do not matter: each export
//! has others. v3's leading `vector_estimator.` is dropped, so that names agree in all versions.
//!
//! The importer also checks what our networks take for granted: padding, dilations, epsilons, scalars. A
//! graph that differs is refused with the name of the node. What may differ between models and shows in no
//! weight's shape is returned in [`GraphFacts`].
//!
//! | file | answers |
//! | --- | --- |
//! | `file` | one of the four files, and the error about one that is not as expected |
//! | `walk` | which nodes compute and read a value |
//! | `naming` | what a tensor is called |
//! | `nodes`, `parts` | whether single nodes, and groups of several, compute what our networks compute |

mod file;
mod naming;
mod nodes;
mod parts;
#[cfg(test)]
mod tests;
mod walk;

use crate::ModelError;
use crate::supertonic::stage::{STYLE_KEY, Stage};
use file::OnnxFile;
use naming::View;
use orate_weights::{OnnxModel, TensorInfo, TensorRef, WeightError, WeightSource};
pub use parts::Guidance;
use std::collections::BTreeMap;
use std::path::Path;

/// What the graphs say beyond their weights.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphFacts {
    /// Version of the ONNX operator set.
    pub opset: i64,
    /// Width of the text embedding. Scores of text and style attention are divided by its square root.
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

/// The four networks' weights under canonical names. Nothing is copied.
#[derive(Debug)]
pub struct OnnxWeights {
    folder: String,
    files: Vec<OnnxFile>,
    entries: BTreeMap<String, Entry>,
    facts: GraphFacts,
}

/// Where a tensor is.
#[derive(Debug)]
struct Entry {
    file: usize,
    stored: String,
    view: View,
}

/// Opens the folder that holds `duration_predictor.onnx`, `text_encoder.onnx`, `vector_estimator.onnx` and
/// `vocoder.onnx`.
///
/// # Errors
///
/// A file is missing or broken, or a graph differs from what the networks here compute.
pub fn open(folder: &Path) -> Result<OnnxWeights, ModelError> {
    let open = |stage: Stage| OnnxModel::open(folder.join(format!("{}.onnx", stage.name())));
    let files = Stage::ALL.into_iter().map(|stage| Ok(OnnxFile::new(stage, open(stage)?)));
    OnnxWeights::import(folder.display().to_string(), files.collect::<Result<_, WeightError>>()?)
}

impl OnnxWeights {
    /// What the graphs say beyond their weights.
    pub fn facts(&self) -> &GraphFacts {
        &self.facts
    }

    fn import(folder: String, files: Vec<OnnxFile>) -> Result<Self, ModelError> {
        let entries = merge(&files)?;
        let mut dilations = BTreeMap::new();
        for file in &files {
            file.check_readers()?;
            dilations.append(&mut file.check_convolutions()?);
            file.check_small_nodes()?;
            file.check_relative_attention()?;
        }
        let [_, text_encoder, vector_estimator, vocoder] = files.as_slice() else {
            unreachable!("there are four stages");
        };
        let text_dim = text_encoder.text_dim()?;
        text_encoder.check_attention(text_dim)?;
        vector_estimator.check_attention(text_dim)?;
        vector_estimator.check_time_embedding()?;
        let (rotary_scale, rotary_base) = vector_estimator.rotary()?;
        let facts = GraphFacts {
            opset: vector_estimator.model.opset(),
            text_dim,
            guidance: vector_estimator.guidance()?,
            normalizer_scale: vocoder.check_unchunking()?,
            rotary_scale,
            rotary_base,
            dilations,
        };
        Ok(Self { folder, files, entries, facts })
    }

    fn entry(&self, name: &str) -> Option<(&OnnxModel, &Entry)> {
        let entry = self.entries.get(name)?;
        Some((&self.files[entry.file].model, entry))
    }
}

/// The weights of all files. Only the style key may be in two of them, if both agree.
fn merge(files: &[OnnxFile]) -> Result<BTreeMap<String, Entry>, ModelError> {
    let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
    for (i, file) in files.iter().enumerate() {
        for (name, stored, view) in file.weights()? {
            if let Some(Entry { file: earlier, stored: there, .. }) = entries.get(&name) {
                let (a, b) = (files[*earlier].tensor(there)?, file.tensor(stored)?);
                let equal = a.dtype == b.dtype && a.shape == b.shape && a.bytes == b.bytes;
                if name != STYLE_KEY || !equal {
                    let first = files[*earlier].model.describe();
                    let problem = format!(
                        "weight `{name}` is in {first}, too; do all four files come from the same model?"
                    );
                    return Err(ModelError::Content { path: file.model.describe().into(), problem });
                }
                continue;
            }
            entries.insert(name, Entry { file: i, stored: stored.to_owned(), view });
        }
    }
    Ok(entries)
}

impl WeightSource for OnnxWeights {
    fn get(&self, name: &str) -> Result<TensorRef<'_>, WeightError> {
        let Some((model, entry)) = self.entry(name) else { return Err(self.missing(name)) };
        let tensor = model.get(&entry.stored)?;
        Ok(match entry.view {
            View::AsStored => tensor,
            View::Transposed => tensor.transpose(),
            View::Flat => tensor.reshape(&[1]).expect("one element, checked when opened"),
        })
    }

    fn names(&self) -> Vec<&str> {
        self.entries.keys().map(String::as_str).collect()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        let (model, entry) = self.entry(name)?;
        let mut info = model.info(&entry.stored)?;
        match entry.view {
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
