//! Opens models: the official folder, a voice folder of this project, or a packed voice.
//!
//! ```text
//! official/   onnx/{duration_predictor,text_encoder,vector_estimator,vocoder}.onnx
//!             onnx/{tts,unicode_indexer}.json   voice_styles/*.json
//! folder/     model.safetensors   tts.json   unicode_indexer.json   voice.json
//! voice.gguf  everything in one file, see `orate_weights::voice_pack`
//! ```

use super::config::Config;
use super::onnx::{self, OnnxWeights};
use super::voice::Voice;
use crate::ModelError;
use crate::files::read;
use crate::gguf::{self, Report, has_magic};
use orate_text::supertonic::{UnicodeIndexer, Version};
use orate_weights::{GgufFile, SafeTensors, WeightSource, voice_pack};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// [`Family::tag`](crate::Family::tag) of the family.
pub(super) const TAG: &str = "supertonic";

/// A model's files, opened but not yet on a device.
pub struct Files {
    /// Path, or a name for an embedded voice.
    pub origin: String,
    /// `tts.json`
    pub config: Config,
    /// Characters to ids.
    pub indexer: UnicodeIndexer,
    /// Weights under canonical names.
    pub weights: Arc<dyn WeightSource>,
    /// Version of an official model. `None`: a voice trained by this project, which knows letters only and no
    /// language tags.
    pub version: Option<Version>,
    /// The ONNX files of official models.
    pub(super) onnx: Option<Arc<OnnxWeights>>,
    pub(super) voices: BTreeMap<String, VoiceFile>,
    pub(super) default_voice: String,
    /// How a GGUF file of another engine, or one of `orate quantize`, was read.
    pub report: Option<Report>,
}

pub(super) enum VoiceFile {
    Path(PathBuf),
    Text(String),
}

/// Whether a path is meant to be a model of this family.
pub(super) fn detect(path: &Path) -> bool {
    let is_gguf = || path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) || has_magic(path);
    path.is_file() && is_gguf()
        || path.join("onnx").is_dir()
        || path.join("vector_estimator.onnx").exists()
        || path.join("model.safetensors").exists()
        || gguf::is_of(path, TAG)
}

impl Files {
    /// Opens a model of any of these forms.
    ///
    /// # Errors
    /// The path has none of these forms, or one of its files is missing or damaged; the message says which.
    pub fn open(path: &Path) -> Result<Files, ModelError> {
        if path.is_file() {
            return Self::packed(GgufFile::open(path)?, path.display().to_string());
        }
        // The folder itself, or its `onnx` folder.
        let has_inner = path.join("onnx").is_dir();
        let onnx = if has_inner { path.join("onnx") } else { path.to_owned() };
        if onnx.join("vector_estimator.onnx").exists() || has_inner && onnx.join("tts.json").exists() {
            return Self::official(path, &onnx);
        }
        if path.join("model.safetensors").exists() {
            return Self::folder(path);
        }
        let problem = "not a model folder: it has neither onnx/vector_estimator.onnx (Supertonic) nor \
                       config.json (Qwen3-TTS) nor model.safetensors with tts.json (voices of this project)";
        Err(ModelError::NotAModel { path: path.to_owned(), problem: problem.to_owned() })
    }

    fn official(root: &Path, onnx: &Path) -> Result<Files, ModelError> {
        let config = parse(&onnx.join("tts.json"), Config::from_json)?;
        let indexer = parse(&onnx.join("unicode_indexer.json"), UnicodeIndexer::from_json)?;
        let weights = Arc::new(onnx::open(onnx)?);
        let parent = if root == onnx { root.parent().unwrap_or(root) } else { root };
        let voices = list_voices(&parent.join("voice_styles"))?;
        let version = version_of(&config, &*weights).map_err(|e| content(&onnx.join("tts.json"), e))?;
        Ok(Files {
            origin: root.display().to_string(),
            config,
            indexer,
            weights: weights.clone(),
            version: Some(version),
            onnx: Some(weights),
            default_voice: voices.keys().next().cloned().unwrap_or_default(),
            voices,
            report: None,
        })
    }

    fn folder(path: &Path) -> Result<Files, ModelError> {
        let weights = Arc::new(SafeTensors::open(path.join("model.safetensors"))?);
        let mut voices = BTreeMap::from([("default".to_owned(), VoiceFile::Path(path.join("voice.json")))]);
        if path.join("voice_styles").is_dir() {
            voices.extend(list_voices(&path.join("voice_styles"))?);
        }
        Ok(Files {
            origin: path.display().to_string(),
            config: parse(&path.join("tts.json"), Config::from_json)?,
            indexer: parse(&path.join("unicode_indexer.json"), UnicodeIndexer::from_json)?,
            weights,
            version: None,
            onnx: None,
            voices,
            default_voice: "default".to_owned(),
            report: None,
        })
    }

    /// A packed voice.
    ///
    /// # Errors
    /// It lacks one of its parts, or one is damaged.
    pub fn packed(file: GgufFile, origin: String) -> Result<Files, ModelError> {
        let content = |problem: String| content(origin.as_ref(), problem);
        let (architecture, own) = (file.string("general.architecture")?, voice_pack::ARCHITECTURE);
        if architecture != own {
            return Err(content(gguf::stranger(&file)));
        }
        let config = Config::from_json(file.string(voice_pack::TTS_JSON)?.as_bytes())
            .map_err(|e| content(format!("its tts.json: {e}")))?;
        let indexer = UnicodeIndexer::from_json(file.string(voice_pack::UNICODE_INDEXER)?.as_bytes())
            .map_err(|e| content(e.to_string()))?;
        let names = file.strings(voice_pack::VOICES)?;
        let Some(default_voice) = names.first().cloned() else {
            return Err(content("it holds no voice".to_owned()));
        };
        let mut voices = BTreeMap::new();
        for name in names {
            let text = file.string(&format!("{}{name}", voice_pack::VOICE_PREFIX))?.to_owned();
            voices.insert(name.clone(), VoiceFile::Text(text));
        }
        let weights = Arc::new(file);
        Ok(Files {
            origin,
            config,
            indexer,
            weights,
            version: None,
            onnx: None,
            voices,
            default_voice,
            report: None,
        })
    }

    /// Names of the voices, sorted.
    pub(super) fn voice_names(&self) -> impl Iterator<Item = &str> {
        self.voices.keys().map(String::as_str)
    }

    /// The voice that speaks by default.
    pub fn default_voice(&self) -> &str {
        &self.default_voice
    }

    /// Reads one voice: a name of this model, or the path of a voice file.
    ///
    /// # Errors
    /// There is no such voice, or it does not fit the model.
    pub fn voice(&self, name: &str) -> Result<Voice, ModelError> {
        let parse = |json: &[u8]| Voice::from_json(name, json, &self.config);
        // Damage of a voice that comes with the model is the model's and not the caller's.
        match self.voices.get(name) {
            Some(VoiceFile::Text(text)) => {
                parse(text.as_bytes()).map_err(|e| content(self.origin.as_ref(), e))
            }
            Some(VoiceFile::Path(path)) => parse(&read(path)?).map_err(|e| content(path, e)),
            None if Path::new(name).extension().is_some_and(|e| e == "json") => {
                parse(&read(Path::new(name))?)
            }
            None => {
                let known = self.voice_names().collect::<Vec<_>>().join(", ");
                let known = if known.is_empty() { "none (voice_styles/ is empty)".to_owned() } else { known };
                Err(ModelError::UnknownVoice { name: name.to_owned(), known })
            }
        }
    }
}

pub(super) fn content(path: &Path, problem: impl Display) -> ModelError {
    ModelError::Content { path: path.to_owned(), problem: problem.to_string() }
}

/// Reads and parses a small file.
pub(super) fn parse<T, E: Display>(
    path: &Path,
    parse: impl Fn(&[u8]) -> Result<T, E>,
) -> Result<T, ModelError> {
    parse(&read(path)?).map_err(|e| content(path, e))
}

fn list_voices(folder: &Path) -> Result<BTreeMap<String, VoiceFile>, ModelError> {
    let io = |source| ModelError::Io { path: folder.to_owned(), source };
    let mut voices = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|e| e == "json")
            && let Some(name) = path.file_stem().and_then(|s| s.to_str())
        {
            voices.insert(name.to_owned(), VoiceFile::Path(path));
        }
    }
    Ok(voices)
}

/// The version in `tts.json`, confirmed by the weights.
pub(super) fn version_of(c: &Config, weights: &dyn WeightSource) -> Result<Version, String> {
    let stated = &c.tts_version;
    let version = match stated.strip_prefix("v1.").and_then(|v| v.split('.').next()) {
        Some("5") => Version::V1,
        Some("6") => Version::V2,
        Some("7") => Version::V3,
        _ => {
            let known = "v1.5 (Supertonic 1), v1.6 (2) and v1.7 (3) are known";
            return Err(format!("`tts_version` is `{stated}`; {known}"));
        }
    };
    let guidance = weights.contains("tts.ttl.uncond_masker.text_special_token");
    if guidance != (version == Version::V3) {
        let has = if guidance { "has" } else { "lacks" };
        return Err(format!(
            "`tts_version` is {stated}, but the vector estimator {has} guidance; files of two models?"
        ));
    }
    Ok(version)
}
