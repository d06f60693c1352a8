//! Families of models, and what an engine can say of each.

use crate::precision::{Product, Stored};
use crate::{Error, Options, Result, Unknown, VoiceInfo};
use orate_graph::{CacheFormat, Device, Executable, GraphError, Precision, PrecisionPolicy, Target};
use orate_models::qwen3_tts::{self, Batch, Qwen3Tts};
use orate_models::supertonic::{self, Supertonic};
use orate_weights::{DType, WeightSource};
use std::path::Path;
use std::sync::Arc;

/// What names of the weights begin with that every frame of Qwen3-TTS reads: talker and code predictor.
const TALKER: &str = "talker.";

/// A model's files.
pub(crate) enum FamilyFiles {
    Supertonic(Box<supertonic::Files>),
    Qwen3Tts(Box<qwen3_tts::Files>),
}

impl FamilyFiles {
    /// What is meant by a policy, which may name no weights. In blocks of 8 or 4 bits the transformers of Qwen3-TTS are, which read all their
    /// weights for every frame; the codec, which makes the samples, stays exact, and hardly gains by them.
    ///
    /// # Errors
    /// As [`Self::check_patterns`].
    pub fn precision(&self, asked: PrecisionPolicy) -> Result<PrecisionPolicy> {
        self.check_patterns(&asked.allow, &asked.deny)?;
        let blocks = !Precision::FLOATS.contains(&asked.precision);
        let allow = if blocks { self.probed(asked.allow) } else { asked.allow };
        Ok(PrecisionPolicy { allow, ..asked })
    }

    /// The weights that probes by [`Self::product`] speak for, unless somebody names others: of Qwen3-TTS those that every frame reads.
    /// The codec's are stored in another format, and enlarge errors.
    pub fn probed(&self, asked: Vec<String>) -> Vec<String> {
        match self {
            FamilyFiles::Qwen3Tts(_) if asked.is_empty() => vec![format!("{TALKER}*")],
            _ => asked,
        }
    }

    /// Refuses patterns that are like no weight's name: nothing would come of them, and nobody would be told.
    pub fn check_patterns(&self, allow: &[String], deny: &[String]) -> Result<()> {
        let weights = match self {
            FamilyFiles::Supertonic(files) => &files.weights,
            FamilyFiles::Qwen3Tts(files) => &files.weights,
        };
        crate::precision::check_patterns(allow.iter().chain(deny), &weights.names())
    }

    /// A product like those that take the model's time: of one row with Qwen3-TTS, which speaks frame by frame, and of as many as
    /// a sentence has frames with Supertonic.
    pub fn product(&self) -> Product {
        let (weights, prefix, rows, width) = match self {
            FamilyFiles::Supertonic(files) => (&files.weights, "", 72, 1024),
            FamilyFiles::Qwen3Tts(files) => (&files.weights, TALKER, 1, 2048),
        };
        Product { rows, width, stored: stored(&**weights, prefix) }
    }

    /// Opens a folder or packed voice of any family.
    pub fn open(path: &Path) -> Result<FamilyFiles> {
        if let Some(folder) = folder_around(path) {
            let problem = format!("a file of a model; give the folder, {}", folder.display());
            return Err(supertonic::ModelError::NotAModel { path: path.to_owned(), problem }.into());
        }
        if qwen3_tts::Files::detect(path) {
            return Ok(FamilyFiles::Qwen3Tts(Box::new(qwen3_tts::Files::open(path)?)));
        }
        Ok(FamilyFiles::Supertonic(Box::new(supertonic::Files::open(path)?)))
    }

    /// Steps of the model that a device cannot run.
    pub fn unsupported(&self, target: &dyn Target, kv: CacheFormat) -> Result<Vec<GraphError>> {
        Ok(match self {
            FamilyFiles::Supertonic(files) => files.unsupported(target)?,
            FamilyFiles::Qwen3Tts(files) => files.unsupported(target, kv)?,
        })
    }

    /// Puts the model on a device.
    ///
    /// # Errors
    /// The model keeps no keys and values, and a format for them was asked for.
    pub fn place(self, device: Arc<dyn Device>, kv: CacheFormat) -> Result<Family> {
        Ok(match self {
            FamilyFiles::Supertonic(files) if kv != CacheFormat::F32 => {
                let (model, family) = (files.origin, "Supertonic");
                let what = "a format of keys and values (`kv`)";
                return Err(Error::OtherFamily { what, needed: "Qwen3-TTS", model, family });
            }
            FamilyFiles::Supertonic(files) => Family::Supertonic(Box::new(Supertonic::new(*files, device)?)),
            // A codec alone encodes, decodes and is verified; who asks it to speak is told what it lacks.
            FamilyFiles::Qwen3Tts(files) => Family::Qwen3Tts(Qwen3Tts::with_cache(*files, device, kv)),
        })
    }
}

/// The folder of the model that a file is a part of; `None` for packed voices, which are a model each, and for all else.
fn folder_around(path: &Path) -> Option<&Path> {
    let is_part = path.extension().is_some_and(|e| e == "safetensors" || e == "onnx" || e == "json");
    if !is_part || !path.is_file() {
        return None;
    }
    let folder = path.parent()?;
    let is_inner = folder.file_name().is_some_and(|name| name == "speech_tokenizer" || name == "onnx");
    let around = if is_inner { folder.parent()? } else { folder };
    Some(if around.as_os_str().is_empty() { Path::new(".") } else { around })
}

/// What most of the numbers are in tensors whose names begin so.
fn stored(weights: &dyn WeightSource, prefix: &str) -> Stored {
    let (mut all, mut f16, mut bf16) = (0, 0, 0);
    let names = weights.names().into_iter().filter(|name| name.starts_with(prefix));
    for info in names.filter_map(|name| weights.info(name)) {
        let count = info.shape.iter().product::<usize>();
        all += count;
        match info.dtype {
            DType::F16 => f16 += count,
            DType::BF16 => bf16 += count,
            _ => {}
        }
    }
    match () {
        () if 2 * bf16 > all => Stored::Bf16,
        () if 2 * f16 > all => Stored::F16,
        () => Stored::F32,
    }
}

/// A model on a device.
pub(crate) enum Family {
    Supertonic(Box<Supertonic>),
    Qwen3Tts(Arc<Qwen3Tts>),
}

impl Family {
    /// Texts that are best spoken at once.
    pub fn at_once(&self) -> usize {
        match self {
            Family::Supertonic(_) => 1,
            Family::Qwen3Tts(_) => Batch::MOST,
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Family::Supertonic(_) => "Supertonic",
            Family::Qwen3Tts(_) => "Qwen3-TTS",
        }
    }

    /// Path, or `built-in voice`.
    pub fn origin(&self) -> &str {
        match self {
            Family::Supertonic(m) => &m.files().origin,
            Family::Qwen3Tts(m) => &m.files().origin,
        }
    }

    pub fn sample_rate(&self) -> u32 {
        match self {
            Family::Supertonic(m) => m.sample_rate(),
            Family::Qwen3Tts(m) => m.sample_rate(),
        }
    }

    pub fn voices(&self) -> Vec<VoiceInfo> {
        let (names, default) = match self {
            Family::Supertonic(m) => (m.files().voice_names(), Some(m.files().default_voice().to_owned())),
            Family::Qwen3Tts(m) => {
                let talking = m.files().talking.as_ref();
                let names = talking.map(|t| t.config.speakers()).unwrap_or_default();
                let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
                let default = names.first().cloned();
                (names, default)
            }
        };
        let info = |name: String| VoiceInfo { is_default: default.as_ref() == Some(&name), name };
        names.into_iter().map(info).collect()
    }

    /// The plans that speak `tokens` characters or rows of prompt in `frames` frames.
    pub fn plans(&self, tokens: usize, frames: usize, steps: usize) -> Result<Vec<Arc<dyn Executable>>> {
        Ok(match self {
            Family::Supertonic(m) => m.plans(tokens, frames, steps)?,
            Family::Qwen3Tts(m) => m.plans(tokens, frames)?,
        })
    }

    /// Refuses what only other families have: an option that has no effect is not silently passed over.
    pub fn check(&self, o: &Options) -> Result<()> {
        let refused = |option: &'static str, got: String, allowed: &str| {
            let allowed = format!("{} models {allowed}", self.name());
            Err(Error::Option { option, got, allowed })
        };
        match self {
            Family::Supertonic(_) => {
                if let Some(words) = &o.instruct {
                    return refused("instruction", format!("`{words}`"), "follow none; leave it out");
                }
                if o.cloned.is_some() {
                    return refused("voice", "one made from a recording".to_owned(), "cannot clone");
                }
                if let Some(feeding) = o.feeding {
                    return refused(
                        "feeding of the text",
                        feeding.to_string(),
                        "take all of it; leave it out",
                    );
                }
                if o.codec_beside.is_some() {
                    return refused(
                        "codec beside the talker",
                        "asked for".to_owned(),
                        "have no talker; leave it out",
                    );
                }
                let sampling = [
                    ("temperature", o.temperature.map(|x| x.to_string())),
                    ("top-k", o.top_k.map(|x| x.to_string())),
                    ("top-p", o.top_p.map(|x| x.to_string())),
                    ("repetition penalty", o.repetition_penalty.map(|x| x.to_string())),
                    ("temperature of the predictor", o.predictor_temperature.map(|x| x.to_string())),
                    ("top-k of the predictor", o.predictor_top_k.map(|x| x.to_string())),
                    ("top-p of the predictor", o.predictor_top_p.map(|x| x.to_string())),
                    ("number of frames", o.max_frames.map(|x| x.to_string())),
                    ("number of retries", o.retries.map(|x| x.to_string())),
                ];
                for (option, got) in sampling {
                    if let Some(got) = got {
                        return refused(option, got, "draw no codes; leave it out");
                    }
                }
            }
            Family::Qwen3Tts(m) => {
                if m.files().trimmed {
                    let path = m.files().origin.clone().into();
                    let problem =
                        "a checkpoint that was cut down to what its goldens read cannot speak".to_owned();
                    return Err(qwen3_tts::QwenError::NotAModel { path, problem }.into());
                }
                if let (Some(voice), Some(_)) = (&o.voice, &o.cloned) {
                    return refused(
                        "voice",
                        format!("`{voice}` and a recording"),
                        "speak with one or the other",
                    );
                }
                if let Some(speed) = o.speed {
                    return refused(
                        "speed",
                        speed.to_string(),
                        "have no rate; leave it out, or ask for one in an instruction",
                    );
                }
                if let Some(steps) = o.steps {
                    return refused("steps", steps.to_string(), "take none; leave it out");
                }
                if o.unknown == Unknown::Skip {
                    let got = "to skip them".to_owned();
                    return refused("treatment of unknown characters", got, "know all of them; leave it out");
                }
                if !o.trim {
                    return refused("trim", "off".to_owned(), "end where they say so; leave it on");
                }
                if let Some(voice) = &o.cloned {
                    m.check_voice(voice)?;
                }
                if o.read_numbers == Some(true) {
                    return refused("reading of numbers", "asked for".to_owned(), "read them by themselves");
                }
            }
        }
        Ok(())
    }
}
