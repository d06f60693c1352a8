//! Opens models: an official repository, or the codec's repository alone.
//!
//! ```text
//! model/      config.json  generation_config.json
//!             vocab.json  merges.txt  tokenizer_config.json
//!             model.safetensors, or model.safetensors.index.json and what it lists
//!             speech_tokenizer/    as below
//! codec/      config.json  model.safetensors
//! ```
//!
//! A trimmed checkpoint has `trimmed.json` in place of `model.safetensors`. It holds only what recorded calls
//! read, and serves to compare with their results.

use super::config::{CODEC_TYPE, CodecConfig, Config, GenerationConfig, MODEL_TYPE, Variant};
use super::layout;
use crate::checkpoint::{self, Expected};
use crate::files::{SmallFiles, read};
use crate::gguf::Report;
use crate::{Facts, MatmulSize, ModelError, VoiceInfo};
use orate_graph::{CacheFormat, Pacing};
use orate_text::qwen::QwenTokenizer;
use orate_weights::{Joined, SafeTensors, Scattered, WeightSource};
use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Component, Path};
use std::sync::Arc;

pub(super) const NAME: &str = "Qwen3-TTS";

/// A model's files, opened and checked but not yet on a device.
pub struct Files {
    /// Path.
    pub origin: String,
    /// The talking part, unless this is a codec alone.
    pub talking: Option<Talking>,
    /// `speech_tokenizer/config.json`
    pub codec: CodecConfig,
    /// All weights, under the checkpoint's names.
    pub weights: Arc<dyn WeightSource>,
    /// Whether the checkpoint is trimmed, see [`Files::open_trimmed`].
    pub trimmed: bool,
    /// How GGUF files were read.
    pub report: Option<Report>,
}

/// What a model has beyond its codec.
pub struct Talking {
    /// `config.json`
    pub config: Config,
    /// `generation_config.json`
    pub generation: GenerationConfig,
    /// Text to ids.
    pub tokenizer: QwenTokenizer,
}

/// Folder of the codec in a model's folder.
pub(super) const CODEC: &str = "speech_tokenizer";
pub(super) const CONFIG: &str = "config.json";
pub(super) const GENERATION: &str = "generation_config.json";
pub(super) const TOKENIZER: [&str; 3] = ["vocab.json", "merges.txt", "tokenizer_config.json"];
const WEIGHTS: &str = "model.safetensors";
/// List of the weight files of a trimmed checkpoint.
const TRIMMED: &str = "trimmed.json";
const INDEX: &str = "model.safetensors.index.json";

impl Files {
    /// Whether a folder is meant to be a model of this family, also if it is incomplete: its `config.json`
    /// says so, or it has a codec's folder.
    pub fn detect(path: &Path) -> bool {
        model_type(&path.join(CONFIG)).is_some_and(|t| t == CODEC_TYPE || t.starts_with(MODEL_TYPE))
            || path.join(CODEC).is_dir()
    }

    /// Opens a folder. Of the weights only names, shapes and types are read, all of which are checked.
    ///
    /// # Errors
    /// It is no model of this family, files are missing or damaged, the configuration asks for something that
    /// is not supported, or the weights are not those that it describes. The message says which.
    pub fn open(path: &Path) -> Result<Files, ModelError> {
        let refused = |problem: String| Err(ModelError::NotAModel { path: path.to_owned(), problem });
        if !path.is_dir() {
            let problem = "no such folder; a Qwen3-TTS model is the folder of an official repository";
            return refused(problem.to_owned());
        }
        if !Self::detect(path) {
            return refused(format!(
                "not a Qwen3-TTS model: it has no {CONFIG} with `model_type` `{MODEL_TYPE}` or \
                 `{CODEC_TYPE}`, and no folder {CODEC}"
            ));
        }
        if Self::is_trimmed(path) {
            return refused(format!(
                "it has {TRIMMED}: a checkpoint that was cut down to what its goldens read, which only \
                 `orate verify` opens"
            ));
        }
        if model_type(&path.join(CONFIG)).as_deref() == Some(CODEC_TYPE) {
            Self::codec(path)
        } else {
            Self::model(path)
        }
    }

    /// Whether a folder is a trimmed checkpoint, for [`Files::open_trimmed`].
    pub fn is_trimmed(path: &Path) -> bool {
        path.join(TRIMMED).is_file()
    }

    /// Opens a trimmed checkpoint. `trimmed.json` lists its weight files, relative to the folder, as
    /// `{"weights": […]}`. Tensors may be missing, and tables may lack rows, which are zero ([`Scattered`]).
    /// A network that needs a missing tensor is an error.
    pub fn open_trimmed(path: &Path) -> Result<Files, ModelError> {
        let list: Trimmed = parse(&SmallFiles::of_folder(path), TRIMMED, |json| {
            serde_json::from_slice(json).map_err(|e| e.to_string())
        })?;
        let (talking, codec) = Self::described(path, &[])?;
        let expected = [layout::model(&talking.config)?, layout::codec(&codec)?].concat();
        let shapes: HashMap<&str, &Vec<usize>> = expected.iter().map(|e| (&*e.name, &e.shape)).collect();
        let mut sources: Vec<Box<dyn WeightSource>> = vec![];
        for file in &list.weights {
            let inside = Path::new(file).components().all(|c| matches!(c, Component::Normal(_)));
            if !inside {
                let problem = format!("`{file}` is no file in this folder");
                return Err(ModelError::Content { path: path.join(TRIMMED), problem });
            }
            let file = SafeTensors::open(path.join(file))?;
            sources.push(Box::new(Scattered::new(file, |name| shapes.get(name).map(|s| s.to_vec()))?));
        }
        let origin = path.display().to_string();
        let weights = Arc::new(Joined::new(&*origin, sources)?);
        let there: Vec<Expected> = expected.iter().filter(|e| weights.contains(&e.name)).cloned().collect();
        check(&*weights, &there)?;
        Ok(Files { origin, talking: Some(talking), codec, weights, trimmed: true, report: None })
    }

    fn model(path: &Path) -> Result<Files, ModelError> {
        let (talking, codec) = Self::described(path, &["", CODEC])?;
        let own = weights(path, &layout::model(&talking.config)?)?;
        let of_codec = weights(&path.join(CODEC), &layout::codec(&codec)?)?;
        let origin = path.display().to_string();
        let weights = Arc::new(Joined::new(&*origin, vec![own, of_codec])?);
        Ok(Files { origin, talking: Some(talking), codec, weights, trimmed: false, report: None })
    }

    /// Everything but the weights, which have to be in the folders `weights`.
    fn described(path: &Path, weights: &[&str]) -> Result<(Talking, CodecConfig), ModelError> {
        let of_codec = format!("{CODEC}/{CONFIG}");
        complete(path, &[&[CONFIG], &TOKENIZER[..], &[&*of_codec]].concat(), weights)?;
        let files = SmallFiles::of_folder(path);
        let config = parse(&files, CONFIG, Config::from_json)?;
        let codec = parse(&files, &of_codec, CodecConfig::from_json)?;
        Ok((talking(&files, config, &codec)?, codec))
    }

    fn codec(path: &Path) -> Result<Files, ModelError> {
        complete(path, &[CONFIG], &[""])?;
        let codec = parse(&SmallFiles::of_folder(path), CONFIG, CodecConfig::from_json)?;
        let weights = weights(path, &layout::codec(&codec)?)?;
        let origin = path.display().to_string();
        Ok(Files { origin, talking: None, codec, weights: weights.into(), trimmed: false, report: None })
    }
}

pub(super) fn facts(files: &Files, kv: CacheFormat) -> Facts {
    let config = files.talking.as_ref().map(|t| &t.config);
    let names = config.map(|c| c.speakers()).unwrap_or_default();
    let info = |(i, name): (usize, &str)| VoiceInfo { name: name.to_owned(), is_default: i == 0 };
    Facts {
        family: NAME,
        origin: files.origin.clone(),
        sample_rate: files.codec.output_sample_rate,
        voices: names.into_iter().enumerate().map(info).collect(),
        without_voices: match config.map(|c| c.tts_model_type) {
            None => "is a codec without a talker, which has no voices",
            Some(Variant::Base) => {
                "has no voices of its own, and none that fits it is kept; `orate voices add` makes one"
            }
            Some(_) => "has no voices; describe one with `instruct` when speaking",
        },
        loudness: None,
        texts_at_once: Pacing::SHARED_THREADS.batch,
        kv: Some(kv),
        can_speak: files.talking.is_some(),
        // Talker and predictor, which every frame reads. The codec hardly gains by fewer bits, and is
        // stored in another format.
        precision_scope: &["talker.*"],
        half_scope: &["decoder.*"],
        // The talker makes one frame at a time.
        typical_matmul: MatmulSize { rows: 1, width: 2048 },
    }
}

#[derive(Deserialize)]
struct Trimmed {
    weights: Vec<String>,
}

fn model_type(path: &Path) -> Option<String> {
    let json: serde_json::Value = serde_json::from_slice(&read(path).ok()?).ok()?;
    Some(json.get("model_type")?.as_str()?.to_owned())
}

/// Refuses a folder that lacks some of `files`, or weights in one of the folders below it.
fn complete(path: &Path, files: &[&str], weights: &[&str]) -> Result<(), ModelError> {
    let exists = |file: &str| path.join(file).exists();
    let mut missing: Vec<String> = files.iter().filter(|f| !exists(f)).map(|f| (*f).to_owned()).collect();
    for folder in weights {
        let at = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        if !exists(&format!("{at}{WEIGHTS}")) && !exists(&format!("{at}{INDEX}")) {
            missing.push(format!("{at}{WEIGHTS} (or {INDEX})"));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let advice = "download the whole repository, with its speech_tokenizer folder";
    Err(ModelError::Incomplete { family: NAME, path: path.to_owned(), files: missing, advice })
}

/// The weights of a folder, which have to be those that networks read.
fn weights(path: &Path, expected: &[Expected]) -> Result<Box<dyn WeightSource>, ModelError> {
    let weights = Joined::open_folder(path)?;
    check(&*weights, expected)?;
    Ok(weights)
}

pub(super) fn parse<T>(
    files: &SmallFiles,
    name: &str,
    from_json: impl Fn(&[u8]) -> Result<T, String>,
) -> Result<T, ModelError> {
    from_json(&files.read(name)?).map_err(|problem| ModelError::Content { path: files.path(name), problem })
}

/// What a model has beyond its codec, with which it has to agree.
pub(super) fn talking(
    files: &SmallFiles,
    config: Config,
    codec: &CodecConfig,
) -> Result<Talking, ModelError> {
    let generation = match files.has(GENERATION) {
        true => parse(files, GENERATION, GenerationConfig::from_json)?,
        false => GenerationConfig::default(),
    };
    agree(&config, codec)
        .map_err(|problem| ModelError::Content { path: files.path(&format!("{CODEC}/{CONFIG}")), problem })?;
    let tokenizer = open_tokenizer(files, &config)?;
    Ok(Talking { config, generation, tokenizer })
}

fn open_tokenizer(files: &SmallFiles, config: &Config) -> Result<QwenTokenizer, ModelError> {
    let [vocab, merges, added] = TOKENIZER;
    let tokenizer = QwenTokenizer::from_files(&files.read(vocab)?, &files.read(merges)?, &files.read(added)?)
        .map_err(|e| ModelError::Tokenizer { path: files.path(vocab), source: Box::new(e) })?;
    let content = |name: &str, problem: String| Err(ModelError::Content { path: files.path(name), problem });
    let turns = [("<|im_start|>", config.im_start_token_id), ("<|im_end|>", config.im_end_token_id)];
    for (token, id) in turns {
        let got = tokenizer.added(token);
        if got != Some(id) {
            let got = got.map_or_else(|| "missing".to_owned(), |id| id.to_string());
            return content(added, format!("`{token}` is {got}, but {CONFIG} says {id}"));
        }
    }
    let (last, rows) = (tokenizer.max_id(), config.talker_config.text_vocab_size);
    if last as usize >= rows {
        return content(vocab, format!("ids go up to {last}, but the model's table has {rows} rows"));
    }
    Ok(tokenizer)
}

/// Checks that a model and its codec have the same codes and sample rate.
fn agree(config: &Config, codec: &CodecConfig) -> Result<(), String> {
    let t = &config.talker_config;
    let talker = (t.num_code_groups, t.code_predictor_config.vocab_size);
    let decoder = (codec.decoder_config.num_quantizers, codec.decoder_config.codebook_size);
    if talker != decoder {
        return Err(format!(
            "the talker makes {} codes a frame of {} values each, this codec has {} of {}",
            talker.0, talker.1, decoder.0, decoder.1
        ));
    }
    match &config.speaker_encoder_config {
        Some(s) if s.sample_rate != codec.input_sample_rate => Err(format!(
            "the speaker encoder takes {} Hz, this codec {} Hz",
            s.sample_rate, codec.input_sample_rate
        )),
        _ => Ok(()),
    }
}

/// Compares the tensors of a source with those of networks.
pub(super) fn check(file: &dyn WeightSource, expected: &[Expected]) -> Result<(), ModelError> {
    checkpoint::compare(file, "config.json", expected, |_| false)
}

/// As [`check`], for a source that may have others too.
pub(super) fn check_some(file: &dyn WeightSource, expected: &[Expected]) -> Result<(), ModelError> {
    checkpoint::compare(file, "config.json", expected, |_| true)
}
