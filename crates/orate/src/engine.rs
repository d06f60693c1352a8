//! The engine: one model on one device.

use crate::{Audio, DeviceChoice, Options, Result, Stream, devices};
use orate_graph::{Device, DeviceInfo, DeviceKind, PrecisionPolicy};
use orate_models::qwen3_tts;
use orate_models::supertonic::{Files, ModelError, SpeakOptions, Supertonic, Voice, parse_mix};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Where the model comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Model {
    /// The English voice inside this program.
    #[default]
    BuiltIn,
    /// A model folder or a packed voice.
    Path(PathBuf),
}

/// How an engine is set up.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// The model.
    pub model: Model,
    /// The device.
    pub device: DeviceChoice,
    /// CPU threads. `None`: as many as the machine has processors, at most 8.
    pub threads: Option<usize>,
    /// CPU instruction set: `amx`, `avx512`, `avx2` or `portable`. `None`: the environment variable
    /// [`crate::ISA_VARIABLE`], or else the best this machine has.
    pub isa: Option<String>,
    /// In which format products are computed, and for which weights. What the device cannot do is refused.
    pub precision: PrecisionPolicy,
    /// Folder for compiled kernels. `None`: [`crate::cache_folder`].
    pub cache: Option<PathBuf>,
    /// Whether the CPU may take the place of a device that cannot be opened or cannot run the model;
    /// [`Engine::fallbacks`] then says why.
    pub allow_fallback: bool,
}

/// A voice of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoiceInfo {
    /// Name to ask for.
    pub name: String,
    /// Whether it speaks when none is named.
    pub is_default: bool,
}

/// Parsed voices kept; one is some tens of kilobytes.
const VOICES_KEPT: usize = 64;

/// A model on a device, ready to speak. Clones share everything.
///
/// A process that forks opens engines in the child: GPU drivers do not survive a fork, and report an error there.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    model: Supertonic,
    device: Arc<dyn Device>,
    precision: PrecisionPolicy,
    fallbacks: Vec<String>,
    voices: Mutex<HashMap<String, Arc<Voice>>>,
}

impl Engine {
    /// The built-in voice on the best device.
    ///
    /// # Errors
    /// The build has no built-in voice and its file is not found, or threads cannot be started.
    pub fn new() -> Result<Engine> {
        Self::with_options(EngineOptions::default())
    }

    /// A model folder or packed voice on the best device.
    ///
    /// # Errors
    /// The model is missing, damaged or of an unknown kind.
    pub fn open(path: impl Into<PathBuf>) -> Result<Engine> {
        Self::with_options(EngineOptions { model: Model::Path(path.into()), ..Default::default() })
    }

    /// An engine set up as `options` say.
    ///
    /// # Errors
    /// The model cannot be opened, or the device is not to be had.
    pub fn with_options(options: EngineOptions) -> Result<Engine> {
        let files = match &options.model {
            Model::BuiltIn => crate::default_voice::open()?,
            Model::Path(path) if qwen3_tts::Files::detect(path) => {
                let problem =
                    "a Qwen3-TTS model, which this version cannot speak with yet; `orate inspect` shows it";
                return Err(ModelError::NotAModel { path: path.clone(), problem: problem.to_owned() }.into());
            }
            Model::Path(path) => Files::open(path)?,
        };
        let mut fallbacks = vec![];
        let mut precision = options.precision.clone();
        let on_cpu =
            || devices::open_cpu(&EngineOptions { precision: PrecisionPolicy::default(), ..options.clone() });
        let mut device = devices::open(&options, &mut fallbacks);
        if options.allow_fallback {
            let cannot = match &device {
                Ok(device) => files.unsupported(&**device)?.iter().map(ToString::to_string).collect(),
                Err(e) => vec![e.to_string()],
            };
            if !cannot.is_empty() {
                fallbacks.extend(cannot);
                device = Ok(Arc::new(on_cpu()?));
                // The CPU computes in f32, whatever the other device was asked for.
                precision = PrecisionPolicy::default();
            }
        }
        let device = device?;
        for why in &fallbacks {
            tracing::warn!(%why, used = device.describe(), "a device was passed over");
        }
        let model = Supertonic::new(files, device.clone())?;
        tracing::debug!(model = %model.files().origin, device = device.describe(), %precision, "engine ready");
        let inner = Inner { model, device, precision, fallbacks, voices: Mutex::default() };
        Ok(Engine { inner: Arc::new(inner) })
    }

    /// Speaks with default options.
    ///
    /// # Errors
    /// As [`Engine::speak`].
    pub fn say(&self, text: &str) -> Result<Audio> {
        self.speak(text, &Options::default())
    }

    /// Speaks a text of any length and returns all of it.
    ///
    /// # Errors
    /// There is nothing to say, an option is out of range, a character or voice is unknown, or the device failed.
    pub fn speak(&self, text: &str, options: &Options) -> Result<Audio> {
        let mut samples = Vec::new();
        for chunk in self.stream(text, options)? {
            samples.extend_from_slice(&chunk?.samples);
        }
        Ok(Audio { samples, sample_rate: self.sample_rate() })
    }

    /// Speaks several texts with the same options. Each result is what the text would have been alone.
    ///
    /// # Errors
    /// As [`Engine::speak`], for the first text that fails.
    pub fn speak_batch(&self, texts: &[&str], options: &Options) -> Result<Vec<Audio>> {
        texts.iter().map(|t| self.speak(t, options)).collect()
    }

    /// Speaks piece by piece: the iterator computes a piece when asked for it, so memory does not grow with the
    /// text, and dropping it stops all work.
    ///
    /// ```
    /// let engine = orate::Engine::new()?;
    /// let mut seconds = 0.0;
    /// for chunk in engine.stream("First sentence.\n\nSecond one.", &Default::default())? {
    ///     seconds += chunk?.samples.len() as f64 / 24_000.0;
    /// }
    /// assert!(seconds > 1.0);
    /// # Ok::<(), orate::Error>(())
    /// ```
    ///
    /// # Errors
    /// What can be checked before speaking: text, options and voice.
    pub fn stream(&self, text: &str, options: &Options) -> Result<Stream> {
        Stream::new(self.clone(), text, options)
    }

    /// Makes everything ready for short texts, so that the first one is as fast as the others.
    ///
    /// # Errors
    /// As [`Engine::speak`].
    pub fn warm_up(&self) -> Result<()> {
        self.say("Warm up.").map(|_| ())
    }

    /// Names of the voices.
    pub fn voices(&self) -> Vec<VoiceInfo> {
        let files = self.inner.model.files();
        let info = |name: String| VoiceInfo { is_default: name == files.default_voice(), name };
        files.voice_names().into_iter().map(info).collect()
    }

    /// A voice by name, file, or mix such as `F1:0.7+M2:0.3`.
    ///
    /// # Errors
    /// A voice is unknown or does not fit the model.
    pub fn voice(&self, spec: &str) -> Result<Arc<Voice>> {
        let mut kept = self.inner.voices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(v) = kept.get(spec) {
            return Ok(v.clone());
        }
        let files = self.inner.model.files();
        let voice = if files.voice_names().iter().any(|n| n == spec) {
            files.voice(spec)?
        } else {
            let parts = parse_mix(spec)?;
            let parts = parts.into_iter().map(|(name, w)| Ok((w, files.voice(&name)?)));
            match parts.collect::<Result<Vec<_>, ModelError>>()? {
                one if one.len() == 1 && one[0].0 > 0.0 => one.into_iter().next().expect("one part").1,
                several => Voice::mix(spec, &several)?,
            }
        };
        if kept.len() >= VOICES_KEPT {
            kept.clear();
        }
        let voice = Arc::new(voice);
        kept.insert(spec.to_owned(), voice.clone());
        Ok(voice)
    }

    /// Samples per second of all audio from this engine.
    pub fn sample_rate(&self) -> u32 {
        self.inner.model.sample_rate()
    }

    /// What runs the model, such as `cpu (amx, 2 threads)` or `cuda:0 (NVIDIA H200, bf16)`.
    pub fn device(&self) -> String {
        let device = self.inner.device.describe();
        match self.inner.device.info().kind {
            DeviceKind::Cpu => device,
            _ => format!("{}, {})", device.strip_suffix(')').unwrap_or(&device), self.inner.precision),
        }
    }

    /// Facts about the device.
    pub fn device_info(&self) -> DeviceInfo {
        self.inner.device.info()
    }

    /// In which format products are computed.
    pub fn precision(&self) -> &PrecisionPolicy {
        &self.inner.precision
    }

    /// Why another device was passed over: one that an automatic choice would have preferred, or, with
    /// [`EngineOptions::allow_fallback`], the one that was asked for. Empty if none was.
    pub fn fallbacks(&self) -> &[String] {
        &self.inner.fallbacks
    }

    /// Threads that take part; 0 where that means nothing.
    pub fn threads(&self) -> usize {
        self.inner.device.threads()
    }

    /// Path of the model, or `built-in voice`.
    pub fn model_name(&self) -> &str {
        &self.inner.model.files().origin
    }

    /// The model itself, for tools.
    pub fn model(&self) -> &Supertonic {
        &self.inner.model
    }

    /// Prints the plans that speak `tokens` characters in `frames` latent frames, with the least time each step
    /// can take at `gflops` and `gbps`, if given.
    ///
    /// # Errors
    /// As [`Engine::speak`].
    pub fn explain(
        &self,
        tokens: usize,
        frames: usize,
        roofline: Option<orate_graph::Roofline>,
    ) -> Result<String> {
        let steps = self.speak_options(&Options::default())?.1;
        let plans = self.inner.model.plans(tokens, frames, steps)?;
        Ok(plans.iter().map(|p| p.plan().explain(roofline)).collect::<Vec<_>>().join("\n"))
    }

    /// Options as the model sees them, and the number of steps.
    pub(crate) fn speak_options(&self, o: &Options) -> Result<(SpeakOptions, usize)> {
        let files = self.inner.model.files();
        let options = SpeakOptions {
            language: o.language.clone(),
            speed: o.speed.unwrap_or(files.default_speed()),
            steps: o.steps,
            seed: o.seed,
            read_numbers: o.read_numbers,
            unknown: o.unknown,
        };
        let steps = options.check(&files.config)?;
        Ok((options, steps))
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("model", &self.model_name()).field("device", &self.device()).finish()
    }
}
