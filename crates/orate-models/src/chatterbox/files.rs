//! Opens models: the folder of an official repository, or one of its files.
//!
//! ```text
//! T3              t3_cfg, t3_turbo_v1, t3_nano_v1, t3_mtl23ls_v2, … .safetensors   absent: conversion only
//! S3Gen           s3gen_meanflow (Turbo, Nano), s3gen, s3gen_v3                    .safetensors or .pt
//! voice encoder   ve                                                               .safetensors or .pt
//! default voice   conds.pt
//! tokenizer       tokenizer.json (English), grapheme_mtl_merged_expanded_v1.json (Multilingual),
//!                 vocab.json, merges.txt, added_tokens.json (Turbo, Nano)
//! ```
//!
//! A folder may hold several T3s, as the official repository of English and Multilingual does. The folder
//! then stands for the first in the list above; the path of a file chooses another one, and that of an S3Gen
//! opens the folder for conversion. So does a folder without a T3.

use super::config::{NAME, S3GenConfig, T3Config, Variant};
use super::text::Text;
use super::voice::Voice;
use super::{constants, s3gen_plans, speaker_encoder, speech_tokenizer, t3_plans, voice_encoder};
use crate::checkpoint::{self, Expected};
use crate::files::SmallFiles;
use crate::gguf::Report;
use crate::{ModelError, PlaceOptions};
use orate_graph::{Graph, GraphError};
use orate_weights::{Joined, PtFile, Renamed, SafeTensors, WeightSource};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names of T3 files, without extension. Files of single languages have other names.
const T3: [&str; 5] = ["t3_cfg", "t3_turbo_v1", "t3_nano_v1", "t3_mtl23ls_v2", "t3_mtl23ls_v3"];
/// How names of T3 files begin.
const T3_PREFIX: &str = "t3_";
/// How names of S3Gen files begin.
const S3GEN_PREFIX: &str = "s3gen";
/// Files of S3Gen for models with guidance, and of its meanflow version.
const S3GEN: &[&str] = &["s3gen"];
/// Single languages come with a newer one.
const S3GEN_OF_LANGUAGE: &[&str] = &["s3gen_v3", "s3gen"];
const S3GEN_MEANFLOW: &[&str] = &[MEANFLOW];
const MEANFLOW: &str = "s3gen_meanflow";
/// All of them convert recordings without a T3.
const ANY_S3GEN: &[&str] = &["s3gen", "s3gen_v3", MEANFLOW];
const VOICE_ENCODER: &str = "ve";
/// A file of the tokenizer of Turbo and Nano, which only a T3 needs.
const FAST_TOKENIZER: &str = "vocab.json";
pub(super) const CONDITIONALS: &str = "conds.pt";
/// Kinds of weight files, the preferred one first.
const EXTENSIONS: [&str; 2] = ["safetensors", "pt"];
/// Models without guidance, and the others.
const FAST: &str = "Turbo and Nano";
const GUIDED: &str = "English and Multilingual";
/// Text ids of the English T3; Multilingual has more.
const ENGLISH_IDS: usize = 704;

/// A model's files, opened and checked but not yet on a device.
pub struct Files {
    /// Path.
    pub origin: String,
    /// What it is for.
    pub variant: Variant,
    /// The talking part; none for conversion only.
    pub talking: Option<Talking>,
    /// Sizes of S3Gen.
    pub s3gen: S3GenConfig,
    /// Width of the voice encoder's states; none if its file is missing.
    pub voice_encoder: Option<usize>,
    /// `conds.pt`
    pub default_voice: Option<Voice>,
    /// All weights, under the checkpoints' names.
    pub weights: Arc<dyn WeightSource>,
    /// How GGUF files were read.
    pub report: Option<Report>,
}

/// What a model has beyond S3Gen.
pub struct Talking {
    /// Sizes of T3.
    pub config: T3Config,
    /// Text to ids.
    pub text: Text,
}

fn refused(path: &Path, problem: impl Into<String>) -> ModelError {
    ModelError::NotAModel { path: path.to_owned(), problem: problem.into() }
}

fn content(path: &Path, problem: impl Into<String>) -> ModelError {
    ModelError::Content { path: path.to_owned(), problem: problem.into() }
}

/// Name of a file without its extension, if it is a kind of weights.
fn stem(path: &Path) -> Option<&str> {
    let extension = path.extension()?.to_str()?;
    EXTENSIONS.contains(&extension).then(|| path.file_stem()?.to_str())?
}

/// Whether a path is a file of T3 or S3Gen, by its name.
fn is_weights(path: &Path) -> bool {
    stem(path).is_some_and(|name| name.starts_with(T3_PREFIX) || name.starts_with(S3GEN_PREFIX))
}

fn open_weights(path: &Path) -> Result<Box<dyn WeightSource>, ModelError> {
    Ok(match path.extension().is_some_and(|e| e == "pt") {
        true => Box::new(PtFile::open(path)?),
        false => Box::new(SafeTensors::open(path)?),
    })
}

/// The weight file of one of these names in a folder.
fn find(folder: &Path, names: &[&str]) -> Option<PathBuf> {
    let all = names.iter().flat_map(|name| EXTENSIONS.map(|e| folder.join(format!("{name}.{e}"))));
    all.into_iter().find(|path| path.is_file())
}

/// Weight files of a folder whose names begin with `prefix`, sorted.
fn beginning_with(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
    let mut all: Vec<_> =
        entries.filter(|p| p.is_file() && stem(p).is_some_and(|name| name.starts_with(prefix))).collect();
    all.sort();
    all
}

impl Files {
    /// Whether a path is meant to be a model of this family, complete or not.
    pub fn detect(path: &Path) -> bool {
        match path.is_dir() {
            true => {
                !beginning_with(path, T3_PREFIX).is_empty() || !beginning_with(path, S3GEN_PREFIX).is_empty()
            }
            false => is_weights(path),
        }
    }

    /// Opens a model. Of the weights only names, shapes and types are read, all of which are checked.
    ///
    /// # Errors
    /// Files are missing, damaged, or do not belong together. The message says which.
    pub fn open(path: &Path) -> Result<Files, ModelError> {
        let (folder, chosen) = match path.is_dir() {
            true => (path.to_owned(), None),
            false if path.is_file() && is_weights(path) => {
                (path.parent().unwrap_or(Path::new(".")).to_owned(), Some(path.to_owned()))
            }
            false => return Err(refused(path, "not a folder, nor a file of T3 or S3Gen of Chatterbox")),
        };
        let is_s3gen = |p: &Path| stem(p).is_some_and(|name| name.starts_with(S3GEN_PREFIX));
        if let Some(s3gen) = chosen.as_deref().filter(|p| is_s3gen(p)) {
            return Self::assemble(path, &folder, None, s3gen);
        }
        let found = || find(&folder, &T3).or_else(|| beginning_with(&folder, T3_PREFIX).into_iter().next());
        let Some(t3) = chosen.or_else(found) else {
            return match find(&folder, ANY_S3GEN) {
                // Part of a download of Turbo or Nano, to speak with.
                Some(s3gen) if stem(&s3gen) == Some(MEANFLOW) && folder.join(FAST_TOKENIZER).is_file() => {
                    let files = &["t3_turbo_v1.safetensors (Turbo) or t3_nano_v1.safetensors (Nano)"];
                    let advice = "download the whole repository; to convert recordings only, give the path \
                                  of s3gen_meanflow.safetensors";
                    Err(incomplete(&folder, files, advice))
                }
                Some(s3gen) => Self::assemble(path, &folder, None, &s3gen),
                None => Err(incomplete(&folder, &["s3gen.safetensors"], WHOLE)),
            };
        };
        let weights = open_weights(&t3)?;
        let is_fast = weights.contains("tfmr.wpe.weight");
        let is_known = T3.iter().any(|name| stem(&t3) == Some(name));
        let names = if is_fast {
            S3GEN_MEANFLOW
        } else if is_known {
            S3GEN
        } else {
            S3GEN_OF_LANGUAGE
        };
        let Some(s3gen) = find(&folder, names) else {
            let others = if is_fast { S3GEN } else { S3GEN_MEANFLOW };
            if let Some(other) = find(&folder, others).filter(|_| is_known) {
                let (kind, other) =
                    (if is_fast { FAST } else { GUIDED }, other.file_name().unwrap_or_default());
                let problem = format!(
                    "it is a T3 of {kind}, which need {}.safetensors, and beside it is {}; are both from one \
                     repository?",
                    names[0],
                    other.display()
                );
                return Err(content(&t3, problem));
            }
            return Err(incomplete(&folder, &[&format!("{}.safetensors (or .pt)", names[0])], WHOLE));
        };
        Self::assemble(path, &folder, Some((&t3, weights)), &s3gen)
    }

    fn assemble(
        path: &Path,
        folder: &Path,
        t3: Option<(&Path, Box<dyn WeightSource>)>,
        s3gen_path: &Path,
    ) -> Result<Files, ModelError> {
        let mut sources = vec![];
        let mut variant = Variant::Conversion;
        let talking = match t3 {
            None => None,
            Some((t3_path, weights)) => {
                let (config, kind) = t3_config(t3_path, &*weights, None)?;
                variant = kind;
                let text = Text::open(&SmallFiles::of_folder(folder), variant)?;
                agree(t3_path, &config, &text)?;
                sources.push((t3_path.to_owned(), weights));
                Some(Talking { config, text })
            }
        };
        let weights = open_weights(s3gen_path)?;
        let s3gen = S3GenConfig::of(&*weights).map_err(|e| content(s3gen_path, e))?;
        if talking.is_some() && s3gen.estimator.is_meanflow != variant.is_fast() {
            let (is, needs) = match s3gen.estimator.is_meanflow {
                true => (format!("the meanflow S3Gen of {FAST}"), "s3gen.safetensors"),
                false => (format!("the S3Gen of {GUIDED}"), "s3gen_meanflow.safetensors"),
            };
            let name = variant.name();
            let problem = format!("it is {is}; this {name} model needs {needs} of its own repository");
            return Err(content(s3gen_path, problem));
        }
        sources.push((s3gen_path.to_owned(), weights));
        let mut voice_encoder = None;
        if let Some(path) = find(folder, &[VOICE_ENCODER]).filter(|_| talking.is_some()) {
            let weights = open_weights(&path)?;
            let shape = weights.info("lstm.weight_hh_l0").map(|info| info.shape).unwrap_or_default();
            let [_, hidden] = shape[..] else {
                let problem = "it has no matrix `lstm.weight_hh_l0`, so it is no voice encoder; copy the file from \
                               the model's repository";
                return Err(content(&path, problem));
            };
            voice_encoder = Some(hidden);
            sources.push((path, weights));
        }
        let conds = folder.join(CONDITIONALS);
        let default_voice = match conds.is_file() {
            true => Some(Voice::read_conditionals(&conds, talking.is_some())?),
            false => None,
        };
        let prompt = default_voice.as_ref().and_then(|v| v.talking.as_ref()).map_or(0, |v| v.prompt.len());
        if let Some(most) = talking.as_ref().map(|t| t.config.prompt_codes()).filter(|most| prompt > *most) {
            let name = variant.name();
            let problem = format!(
                "its prompt has {prompt} codes, and {name} models read {most} at most; copy the file from the \
                 model's repository"
            );
            return Err(content(&conds, problem));
        }
        let files = Files {
            origin: path.display().to_string(),
            variant,
            talking,
            s3gen,
            voice_encoder,
            default_voice,
            weights: Arc::new(Joined::new("", vec![])?),
            report: None,
        };
        files.with_weights(sources)
    }

    /// Checks each file against the networks that read it, and joins them.
    fn with_weights(mut self, sources: Vec<(PathBuf, Box<dyn WeightSource>)>) -> Result<Files, ModelError> {
        // Which names a file has decides how some weights are read.
        let joined =
            Joined::new(self.origin.clone(), sources.into_iter().map(|(_, source)| source).collect())?;
        let graphs = self.all_graphs(&joined, &PlaceOptions::default())?;
        let expected = checkpoint::read_by(&graphs);
        let expected: Vec<_> = expected.into_iter().filter(|e| !e.name.starts_with("constants.")).collect();
        checkpoint::compare(&joined, "all files", &expected, may_be_left)?;
        self.weights =
            Arc::new(Joined::new(self.origin.clone(), vec![Box::new(joined), constants::source()?])?);
        Ok(self)
    }

    /// As [`Files::with_weights`], for weights that are under official names and no others.
    pub(super) fn with_map(
        mut self,
        map: Renamed,
        expected: &[Expected],
        report: Report,
    ) -> Result<Files, ModelError> {
        checkpoint::compare(&map, "metadata", expected, |_| false)?;
        self.weights = Arc::new(Joined::new(self.origin.clone(), vec![Box::new(map), constants::source()?])?);
        self.report = Some(report);
        Ok(self)
    }

    /// Every network at a small size.
    pub(super) fn all_graphs(
        &self,
        weights: &dyn WeightSource,
        options: &PlaceOptions,
    ) -> Result<Vec<Graph>, ModelError> {
        let mut all = self.speaking_graphs(weights, options)?;
        all.extend(self.encoder_graphs_of(25)?);
        Ok(all)
    }

    /// Every network that speaks, at a small size.
    pub(super) fn speaking_graphs(
        &self,
        weights: &dyn WeightSource,
        options: &PlaceOptions,
    ) -> Result<Vec<Graph>, ModelError> {
        let mut all = vec![];
        if let Some(talking) = &self.talking {
            all.extend(t3_plans::smallest_graphs(&talking.config, options.kv)?);
        }
        for (plan, _) in s3gen_plans::S3GenPlan::of_utterance([4, 4], 2, true) {
            all.push(plan.graph(weights, &self.s3gen, false)?);
        }
        Ok(all)
    }

    /// Every network that reads recordings, for `codes` codes of one.
    pub(super) fn encoder_graphs_of(&self, codes: usize) -> Result<Vec<Graph>, GraphError> {
        let named = |name: &str, build: &dyn Fn(&mut Graph) -> Result<(), GraphError>| {
            let mut g = Graph::new(name);
            build(&mut g).map(|()| g)
        };
        let mut all = vec![];
        if let Some(c) = &self.s3gen.encoders {
            all.push(named("speech tokenizer", &|g| speech_tokenizer::build(g, &c.tokenizer, 4 * codes))?);
            all.push(named("speaker encoder", &|g| speaker_encoder::build(g, &c.speaker, 4 * codes))?);
        }
        if let Some(hidden) = self.voice_encoder {
            all.push(named("voice encoder", &|g| voice_encoder::build(g, hidden, 1))?);
        }
        Ok(all)
    }
}

/// How to get missing files.
const WHOLE: &str = "download the whole repository";

fn incomplete(folder: &Path, files: &[&str], advice: &'static str) -> ModelError {
    let files = files.iter().map(|f| (*f).to_owned()).collect();
    ModelError::Incomplete { family: NAME, path: folder.to_owned(), files, advice }
}

/// Refuses a tokenizer that has other ids than the table of text.
pub(super) fn agree(path: &Path, config: &T3Config, text: &Text) -> Result<(), ModelError> {
    let ids = text.ids();
    match ids == config.text_ids {
        true => Ok(()),
        false => Err(content(
            path,
            format!(
                "its table of text has {} rows, the tokenizer in this folder has {ids} ids; are both from one \
                 model?",
                config.text_ids
            ),
        )),
    }
}

/// Sizes and variant of a T3. `recorded` is the name of the variant in the file's metadata. Turbo and Nano
/// have the same tensors: without metadata, the file's name decides.
pub(super) fn t3_config(
    path: &Path,
    weights: &dyn WeightSource,
    recorded: Option<&str>,
) -> Result<(T3Config, Variant), ModelError> {
    let config = T3Config::of(weights).map_err(|e| content(path, e))?;
    let name = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default().to_ascii_lowercase();
    let is_nano = match [Variant::Nano, Variant::Turbo].into_iter().find(|v| Some(v.name()) == recorded) {
        Some(variant) => variant == Variant::Nano,
        None => name.contains("nano"),
    };
    let variant = match weights.contains("tfmr.wpe.weight") {
        true if is_nano => Variant::Nano,
        true => Variant::Turbo,
        false if config.text_ids > ENGLISH_IDS => Variant::Multilingual,
        false => Variant::English,
    };
    Ok((config, variant))
}

/// Tensors that files may hold besides those that are read: parts of the official modules without effect,
/// and constants that are computed here.
pub(super) fn may_be_left(name: &str) -> bool {
    name.ends_with("num_batches_tracked")
        || [
            "tfmr.embed_tokens.weight",
            "tfmr.wte.weight",
            "text_head.weight",
            "text_head.bias",
            "similarity_weight",
            "similarity_bias",
            "tokenizer._mel_filters",
            "tokenizer.window",
        ]
        .contains(&name)
}
