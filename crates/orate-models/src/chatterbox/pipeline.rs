//! The model on a device.

use super::config::SAMPLE_RATE;
use super::encoders::Encoders;
use super::files::{Files, Talking};
use super::options::{Options as Own, accepted};
use super::s3gen::S3Gen;
use super::s3gen_plans::FlowSettings;
use super::t3_plans::{Conditioning, Prompt, T3};
use super::voice::{TalkingVoice, Voice};
use crate::decoding::{Decoding, DrawSettings, Sampling};
use crate::{Facts, Loader, ModelError, ModelFiles, OptionSpec, Options};
use orate_graph::{CacheFormat, Device};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// Bytes of kept states of voices: at least one of the largest, 376 rows of Turbo in f32.
pub(super) const PREFIX_BYTES: usize = 256 << 20;

/// Conditioning rows that are kept: they take a few megabytes at most.
const CONDITIONINGS_KEPT: usize = 16;

/// Exaggeration where nothing else is asked for.
pub(super) const EXAGGERATION: f32 = 0.5;

/// Most codes of a piece where nothing else is asked for: 40 seconds.
const MOST_CODES: usize = 1000;

/// What to do with a voice of another model.
const MAKE_AGAIN: &str = "make it again from its recording, with this model";

/// What conditioning rows depend on.
type ConditioningKey = (TalkingVoice, u32);

/// A Chatterbox model on a device. Shared by any number of threads.
pub struct Chatterbox {
    files: Files,
    pub(super) facts: Facts,
    accepts: Vec<OptionSpec>,
    t3: Option<Decoding<T3>>,
    /// T3 whose attention to the text is read, once it was asked for.
    watched: OnceLock<Decoding<T3>>,
    s3gen: S3Gen,
    device: Arc<dyn Device>,
    conditionings: Mutex<Vec<(ConditioningKey, Arc<Conditioning>)>>,
    /// On the device only while a voice is prepared or a recording converted.
    encoders: Mutex<Weak<Encoders>>,
}

impl Chatterbox {
    /// Puts a model on a device. Weights are loaded when they are first needed.
    pub fn new(files: Files, device: Arc<dyn Device>, kv: CacheFormat) -> Arc<Chatterbox> {
        let facts = Facts { kv: files.facts().kv.map(|_| kv), ..files.facts() };
        let t3 = files.talking.as_ref().map(|talking| {
            let weights = Arc::new(Loader(files.weights.clone()));
            Decoding::new(T3::new(talking.config.clone(), device.clone(), weights, kv), PREFIX_BYTES)
        });
        let s3gen = S3Gen::new(files.s3gen.clone(), device.clone(), files.weights.clone());
        let accepts = accepted(files.variant, files.s3gen.estimator.is_meanflow);
        Arc::new(Chatterbox {
            files,
            facts,
            accepts,
            t3,
            watched: OnceLock::new(),
            s3gen,
            device,
            conditionings: Mutex::default(),
            encoders: Mutex::default(),
        })
    }

    /// The model's files.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// The options that have an effect.
    pub(super) fn accepts(&self) -> &[OptionSpec] {
        &self.accepts
    }

    /// Where it runs.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The talking part of the files.
    ///
    /// # Errors
    /// The model only converts.
    pub fn talking(&self) -> Result<&Talking, ModelError> {
        self.files.talking.as_ref().ok_or_else(|| self.cannot_talk())
    }

    fn cannot_talk(&self) -> ModelError {
        let advice = match Path::new(&self.files.origin).is_dir() {
            true => "download the whole repository, t3_*.safetensors included",
            false => "give the folder of a whole model, or the GGUF file of the T3",
        };
        let problem = format!("it has no T3, so it converts speech but reads no texts; {advice}");
        ModelError::Mode { variant: self.files.variant.name(), problem }
    }

    /// The network that makes codes.
    ///
    /// # Errors
    /// The model only converts.
    pub fn t3(&self) -> Result<&Decoding<T3>, ModelError> {
        self.t3.as_ref().ok_or_else(|| self.cannot_talk())
    }

    /// The same, to be read by [`super::alignment::Watched`]; `None` if it is unknown which heads follow the
    /// text.
    ///
    /// # Errors
    /// The model only converts.
    pub(super) fn watched_t3(&self) -> Result<Option<&Decoding<T3>>, ModelError> {
        let t3 = self.t3()?;
        let watched = || t3.beside(t3.network().watched(), PREFIX_BYTES);
        let is_known = self.talking()?.config.aligned_heads().is_some();
        Ok(is_known.then(|| self.watched.get_or_init(watched)))
    }

    /// The same as options ask for it: under the alignment guard or not.
    ///
    /// # Errors
    /// The model only converts, or it is unknown which heads follow the text.
    pub(super) fn t3_for(&self, own: &Own) -> Result<&Decoding<T3>, ModelError> {
        if !own.is_guarded() {
            return self.t3();
        }
        let config = &self.talking()?.config;
        self.watched_t3()?.ok_or_else(|| {
            let got = format!("on, but this T3 has {} layers of {} heads", config.layers, config.heads);
            let allowed = "the heads that follow the text are known for 30 layers of 16 heads".to_owned();
            ModelError::Option { option: "alignment_guard", got, allowed }
        })
    }

    /// The network that turns codes into samples.
    pub fn s3gen(&self) -> &S3Gen {
        &self.s3gen
    }

    /// The encoders, shared by all callers that prepare a recording at the moment.
    pub(super) fn encoders(&self) -> Arc<Encoders> {
        let mut shared = self.encoders.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let encoders = Arc::new(Encoders::new(&self.files, self.device.clone()));
            *shared = Arc::downgrade(&encoders);
            encoders
        })
    }

    /// The voice to speak with: a cloned one, or the default one.
    ///
    /// # Errors
    /// There is none, it is unknown, or it does not fit.
    pub(super) fn voice(&self, options: &Options) -> Result<Voice, ModelError> {
        let voice = self.converting_voice(options)?;
        self.check_voice(&voice)?;
        Ok(voice)
    }

    /// The voice to convert to, of which only the reference of S3Gen is read.
    ///
    /// # Errors
    /// There is none, or it is unknown.
    pub(super) fn converting_voice(&self, options: &Options) -> Result<Voice, ModelError> {
        if let Some(cloned) = &options.cloned {
            return Voice::try_from(&**cloned);
        }
        if let Some(name) = options.voice.as_deref().filter(|name| *name != super::DEFAULT_VOICE) {
            let known = self.facts.voices.iter().map(|v| &*v.name).collect::<Vec<_>>().join(", ");
            let known = if known.is_empty() { "none".to_owned() } else { known };
            return Err(ModelError::UnknownVoice { name: name.to_owned(), known });
        }
        self.files.default_voice.clone().ok_or_else(|| {
            let problem = "it has no conds.pt with a default voice; give a recording of a voice";
            ModelError::Mode { variant: self.files.variant.name(), problem: problem.to_owned() }
        })
    }

    /// Refuses a voice that this model cannot speak with.
    pub(super) fn check_voice(&self, voice: &Voice) -> Result<(), ModelError> {
        let bad = |problem: String| Err(ModelError::BadVoice { name: None, problem });
        let Some(talking) = &self.files.talking else { return Ok(()) };
        let Some(own) = &voice.talking else {
            let problem = "it was made by a model for voice conversion, and lacks what T3 reads";
            return bad(format!("{problem}; {MAKE_AGAIN}"));
        };
        let most = talking.config.prompt_codes();
        if own.prompt.len() > most {
            let variant = self.files.variant.name();
            let got = own.prompt.len();
            return bad(format!(
                "its prompt has {got} codes, and {variant} models read {most} at most; {MAKE_AGAIN}"
            ));
        }
        Ok(())
    }

    /// The rows of a voice, which are kept for the next text.
    pub(super) fn conditioning(
        &self,
        voice: &TalkingVoice,
        exaggeration: f32,
    ) -> Result<Arc<Conditioning>, ModelError> {
        let key = (voice.clone(), exaggeration.to_bits());
        let kept = || self.conditionings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, rows)) = kept().iter().find(|(k, _)| *k == key) {
            return Ok(rows.clone());
        }
        let network = self.t3()?.network();
        let rows = Arc::new(network.conditioning(&voice.speaker, &voice.prompt, exaggeration)?);
        let mut kept = kept();
        if kept.len() >= CONDITIONINGS_KEPT {
            kept.remove(0);
        }
        kept.push((key, rows.clone()));
        Ok(rows)
    }

    /// A text in a voice, as T3 reads it.
    ///
    /// # Errors
    /// The text has more ids than the model has positions.
    pub(super) fn prompt(
        &self,
        conditioning: Arc<Conditioning>,
        text: Vec<i32>,
    ) -> Result<Prompt, ModelError> {
        let config = &self.talking()?.config;
        let most = match self.files.variant.is_fast() {
            true => config.positions(),
            false => config.text_positions,
        };
        if text.len() > most {
            return Err(ModelError::LongText { got: text.len(), most });
        }
        Ok(Prompt { conditioning, text })
    }

    /// How codes are drawn.
    pub(super) fn draw_settings(&self, own: &Own, seed: u64) -> DrawSettings {
        let is_fast = self.files.variant.is_fast();
        let or = |value: Option<f32>, default| value.unwrap_or(default);
        let sampling = Sampling {
            temperature: or(own.temperature, 0.8),
            top_k: own.top_k.unwrap_or(if is_fast { 1000 } else { 0 }),
            top_p: or(own.top_p, if is_fast { 0.95 } else { 1.0 }),
            repetition_penalty: or(own.repetition_penalty, if own.is_guarded() { 2.0 } else { 1.2 }),
            min_p: if is_fast { 0.0 } else { or(own.min_p, 0.05) },
            guidance: if is_fast { 0.0 } else { or(own.cfg_weight, 0.5) },
        };
        DrawSettings { sampling: vec![sampling], seed, max_frames: own.max_codes.unwrap_or(MOST_CODES) }
    }

    /// How the estimator runs.
    pub(super) fn flow_settings(&self, own: &Own) -> FlowSettings {
        let usual = self.s3gen.default_settings();
        FlowSettings {
            steps: own.steps.unwrap_or(usual.steps),
            guidance: own.flow_guidance.unwrap_or(usual.guidance),
        }
    }

    /// Samples per second.
    pub fn sample_rate(&self) -> u32 {
        SAMPLE_RATE
    }
}
