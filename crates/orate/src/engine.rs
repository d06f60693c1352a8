//! The engine: one model on one device.

use crate::{Audio, Error, Options, Result, Stream};
use orate_cpu::{CpuDevice, Isa};
use orate_graph::DeviceError;
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

/// What runs the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceChoice {
    /// The best device there is.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
}

impl std::str::FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        match s {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            other => Err(Error::Option {
                option: "device",
                got: format!("`{other}`"),
                allowed: "this build has: auto, cpu".to_owned(),
            }),
        }
    }
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

/// Threads used when nothing is said: more gain little at these sizes.
const MOST_DEFAULT_THREADS: usize = 8;

/// A model on a device, ready to speak. Clones share everything.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    model: Supertonic,
    device: Arc<CpuDevice>,
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
        let isa = match &options.isa {
            Some(name) => Isa::named(name),
            None => Isa::detect(),
        };
        let isa = isa.map_err(|e| DeviceError::Setup { device: "cpu".to_owned(), problem: e.to_string() })?;
        let threads = options.threads.unwrap_or_else(|| {
            std::thread::available_parallelism().map_or(1, usize::from).min(MOST_DEFAULT_THREADS)
        });
        let device = Arc::new(CpuDevice::new(threads, isa)?);
        let files = match &options.model {
            Model::BuiltIn => crate::default_voice::open()?,
            Model::Path(path) => Files::open(path)?,
        };
        let model = Supertonic::new(files, device.clone())?;
        tracing::debug!(model = %model.files().origin, device = "cpu", %isa, threads, "engine ready");
        Ok(Engine { inner: Arc::new(Inner { model, device, voices: Mutex::default() }) })
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
                one if one.len() == 1 => one.into_iter().next().expect("one part").1,
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

    /// What runs the model, such as `cpu (avx512, 2 threads)`.
    pub fn device(&self) -> String {
        let d = &self.inner.device;
        let threads = d.team().threads();
        format!("cpu ({}, {threads} thread{})", d.isa(), if threads == 1 { "" } else { "s" })
    }

    /// Threads that take part.
    pub fn threads(&self) -> usize {
        self.inner.device.team().threads()
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
