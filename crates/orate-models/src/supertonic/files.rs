//! Opens models: the official folder, a voice folder of this project, or a packed voice.
//!
//! ```text
//! official/   onnx/{duration_predictor,text_encoder,vector_estimator,vocoder}.onnx
//!             onnx/{tts,unicode_indexer}.json   voice_styles/*.json
//! folder/     model.safetensors   tts.json   unicode_indexer.json   voice.json
//! voice.gguf  everything in one file, see `orate_weights::voice_pack`
//! ```

use super::config::Config;
use super::onnx::OnnxWeights;
use super::voice::Voice;
use crate::files::read;
use crate::{Facts, ModelError, VoiceInfo};
use orate_text::supertonic::{UnicodeIndexer, Version};
use orate_weights::{GgufFile, SafeTensors, WeightSource, voice_pack};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the family.
pub(super) const NAME: &str = "Supertonic";

/// Rules by which text is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextRules {
    /// An official model.
    Official(Version),
    /// A voice trained by this project: letters only, no tags.
    Own,
}

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
    /// Text rules.
    pub family: TextRules,
    voices: BTreeMap<String, VoiceFile>,
    default_voice: String,
    onnx: Option<Arc<OnnxWeights>>,
}

enum VoiceFile {
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
}

/// Whether a file begins as GGUF files do, whatever its name.
fn has_magic(path: &Path) -> bool {
    let mut start = [0; 4];
    std::fs::File::open(path).and_then(|mut f| f.read_exact(&mut start)).is_ok() && start == *b"GGUF"
}

impl Files {
    /// Opens a model of any of these forms.
    ///
    /// # Errors
    /// The path has none of these forms, or one of its files is missing or damaged; the message says which.
    pub fn open(path: &Path) -> Result<Files, ModelError> {
        let not =
            |problem: &str| ModelError::NotAModel { path: path.to_owned(), problem: problem.to_owned() };
        if path.is_file() {
            return Self::packed(GgufFile::open(path)?, path.display().to_string());
        }
        // The folder itself, or its `onnx` folder.
        let onnx = if path.join("onnx").is_dir() { path.join("onnx") } else { path.to_owned() };
        if onnx.join("vector_estimator.onnx").exists()
            || onnx.join("tts.json").exists() && path.join("onnx").is_dir()
        {
            return Self::official(path, &onnx);
        }
        if path.join("model.safetensors").exists() {
            return Self::folder(path);
        }
        Err(not(
            "not a model folder: it has neither onnx/vector_estimator.onnx (Supertonic) nor config.json \
             (Qwen3-TTS) nor model.safetensors with tts.json (voices of this project)",
        ))
    }

    fn official(root: &Path, onnx: &Path) -> Result<Files, ModelError> {
        let config = read_config(&onnx.join("tts.json"))?;
        let indexer = read_indexer(&onnx.join("unicode_indexer.json"))?;
        let weights = Arc::new(super::onnx::open(onnx)?);
        let parent = if root == onnx { root.parent().unwrap_or(root) } else { root };
        let voices = list_voices(&parent.join("voice_styles"))?;
        let version = version_of(&config, &*weights, &onnx.join("tts.json"))?;
        let default_voice = voices.keys().next().cloned().unwrap_or_default();
        Ok(Files {
            origin: root.display().to_string(),
            config,
            indexer,
            weights: weights.clone(),
            family: TextRules::Official(version),
            voices,
            default_voice,
            onnx: Some(weights),
        })
    }

    fn folder(path: &Path) -> Result<Files, ModelError> {
        let weights: Arc<dyn WeightSource> = Arc::new(SafeTensors::open(path.join("model.safetensors"))?);
        let mut voices = BTreeMap::from([("default".to_owned(), VoiceFile::Path(path.join("voice.json")))]);
        if path.join("voice_styles").is_dir() {
            voices.extend(list_voices(&path.join("voice_styles"))?);
        }
        Ok(Files {
            origin: path.display().to_string(),
            config: read_config(&path.join("tts.json"))?,
            indexer: read_indexer(&path.join("unicode_indexer.json"))?,
            weights,
            family: TextRules::Own,
            voices,
            default_voice: "default".to_owned(),
            onnx: None,
        })
    }

    /// A packed voice.
    ///
    /// # Errors
    /// It lacks one of its parts, or one is damaged.
    pub fn packed(file: GgufFile, origin: String) -> Result<Files, ModelError> {
        let content = |problem: String| ModelError::Content { path: PathBuf::from(&origin), problem };
        let architecture = file.string("general.architecture")?;
        if architecture != voice_pack::ARCHITECTURE {
            let problem =
                format!("a GGUF file of architecture `{architecture}`, not `{}`", voice_pack::ARCHITECTURE);
            return Err(content(problem));
        }
        let config = Config::from_json(file.string(voice_pack::TTS_JSON)?.as_bytes())
            .map_err(|e| content(format!("its tts.json: {e}")))?;
        let indexer = UnicodeIndexer::from_json(file.string(voice_pack::UNICODE_INDEXER)?.as_bytes())?;
        let names = file.strings(voice_pack::VOICES)?.to_vec();
        let mut voices = BTreeMap::new();
        for name in &names {
            let text = file.string(&format!("{}{name}", voice_pack::VOICE_PREFIX))?.to_owned();
            voices.insert(name.clone(), VoiceFile::Text(text));
        }
        let Some(default_voice) = names.into_iter().next() else {
            return Err(content("it holds no voice".to_owned()));
        };
        Ok(Files {
            origin,
            config,
            indexer,
            weights: Arc::new(file),
            family: TextRules::Own,
            voices,
            default_voice,
            onnx: None,
        })
    }

    /// Names of the voices, sorted.
    pub fn voice_names(&self) -> Vec<String> {
        self.voices.keys().cloned().collect()
    }

    /// The voice that speaks by default.
    pub fn default_voice(&self) -> &str {
        &self.default_voice
    }

    /// The ONNX files of official models, with the facts read from their graphs.
    pub fn onnx(&self) -> Option<&OnnxWeights> {
        self.onnx.as_deref()
    }

    /// Reads one voice: a name of this model, or the path of a voice file.
    ///
    /// # Errors
    /// There is no such voice, or it does not fit the model.
    pub fn voice(&self, name: &str) -> Result<Voice, ModelError> {
        let json = match self.voices.get(name) {
            Some(VoiceFile::Text(text)) => {
                return self.own_voice(name, text.as_bytes(), Path::new(&self.origin));
            }
            Some(VoiceFile::Path(path)) => return self.own_voice(name, &read(path)?, path),
            None if Path::new(name).extension().is_some_and(|e| e == "json") => read(Path::new(name))?,
            None => {
                let known = self.voice_names().join(", ");
                let known = if known.is_empty() { "none (voice_styles/ is empty)".to_owned() } else { known };
                return Err(ModelError::UnknownVoice { name: name.to_owned(), known });
            }
        };
        Voice::from_json(name, &json, &self.config)
    }

    /// A voice that comes with the model, so that damage is the model's and not the caller's.
    fn own_voice(&self, name: &str, json: &[u8], path: &Path) -> Result<Voice, ModelError> {
        Voice::from_json(name, json, &self.config)
            .map_err(|e| ModelError::Content { path: path.to_owned(), problem: e.to_string() })
    }
}

fn read_config(path: &Path) -> Result<Config, ModelError> {
    Config::from_json(&read(path)?).map_err(|problem| ModelError::Content { path: path.to_owned(), problem })
}

fn read_indexer(path: &Path) -> Result<UnicodeIndexer, ModelError> {
    UnicodeIndexer::from_json(&read(path)?)
        .map_err(|e| ModelError::Content { path: path.to_owned(), problem: e.to_string() })
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
fn version_of(c: &Config, weights: &dyn WeightSource, path: &Path) -> Result<Version, ModelError> {
    let content = |problem: String| ModelError::Content { path: path.to_owned(), problem };
    let guidance = weights.contains("tts.ttl.uncond_masker.text_special_token");
    let minor = c
        .tts_version
        .strip_prefix("v1.")
        .and_then(|v| v.split('.').next())
        .and_then(|v| v.parse::<u32>().ok());
    let version = match minor {
        Some(5) => Version::V1,
        Some(6) => Version::V2,
        Some(7) => Version::V3,
        _ => {
            let known = "v1.5 (Supertonic 1), v1.6 (2) and v1.7 (3) are known";
            return Err(content(format!("`tts_version` is `{}`; {known}", c.tts_version)));
        }
    };
    if guidance != (version == Version::V3) {
        let (is, has) = (&c.tts_version, if guidance { "has" } else { "lacks" });
        return Err(content(format!(
            "`tts_version` is {is}, but the vector estimator {has} guidance; files of two models?"
        )));
    }
    Ok(version)
}

impl Files {
    /// The model as others see it.
    pub(super) fn facts(&self) -> Facts {
        let info = |name: String| VoiceInfo { is_default: name == self.default_voice(), name };
        Facts {
            family: NAME,
            origin: self.origin.clone(),
            sample_rate: self.config.ae.sample_rate,
            voices: self.voice_names().into_iter().map(info).collect(),
            without_voices: "has no voices; name a voice file with --voice FILE.json when speaking",
            texts_at_once: 1,
            kv: None,
        }
    }

    /// Default speaking rate: 1.05 for the official models, as in their package.
    pub fn default_speed(&self) -> f32 {
        match self.family {
            TextRules::Official(_) => 1.05,
            TextRules::Own => 1.0,
        }
    }
}
