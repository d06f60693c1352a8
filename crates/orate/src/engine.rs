//! The engine: one model on one device.

use crate::family::{Family, FamilyFiles};
use crate::precision::{self, PrecisionChoice, Probes};
use crate::{Audio, CACHE_VARIABLE, DeviceChoice, Error, Options, Result, Stream, devices};
use orate_graph::{CacheFormat, Device, DeviceInfo, DeviceKind, HomeProcess, PrecisionPolicy};
use orate_models::qwen3_tts::{ClonedVoice, Files, Footprint, Qwen3Tts, Variant};
use orate_models::supertonic::{ModelError, SpeakOptions, Supertonic, Voice, parse_mix};
use std::collections::HashMap;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Where the model comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Model {
    /// The English voice inside this program.
    #[default]
    BuiltIn,
    /// A model folder or a packed voice.
    Path(PathBuf),
    /// A Qwen3-TTS checkpoint that was cut down to what its goldens read. It is for comparing it with them; speaking is refused.
    Trimmed(PathBuf),
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
    pub precision: PrecisionChoice,
    /// In which format a Qwen3-TTS model keeps keys and values while it speaks. Other models keep none, and refuse everything but
    /// [`CacheFormat::F32`].
    pub kv: CacheFormat,
    /// Folder for compiled kernels. `None`: [`crate::cache_folder`].
    pub cache: Option<PathBuf>,
    /// Whether the CPU may take the place of a device that cannot be opened or cannot run the model;
    /// [`Engine::fallbacks`] then says why. It computes in the format that was asked for, or says there that it cannot.
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
/// An engine belongs to the process that opened it, as threads and GPU drivers do not survive a fork. In a forked child
/// everything that computes is an error at once, whatever other threads were doing; dropping the engine there is safe
/// and leaves the parent's alone. Open engines after forking.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    model: Family,
    device: Arc<dyn Device>,
    precision: PrecisionPolicy,
    probes: Option<Probes>,
    fallbacks: Vec<String>,
    voices: Mutex<HashMap<String, Arc<Voice>>>,
    home: HomeProcess,
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
        let files = Self::files(&options.model)?;
        let mut fallbacks = vec![];
        let opened = match &options.precision {
            PrecisionChoice::Exactly(policy) => {
                let policy = files.precision(policy.clone())?;
                devices::open(&options, &policy, &mut fallbacks).map(|device| (device, policy, None))
            }
            PrecisionChoice::Auto { allow, deny } => {
                files.check_patterns(allow, deny)?;
                let product = files.product();
                let allow = files.probed(allow.clone());
                let opened = precision::open_by_probes(&options, (&allow, deny), product, &mut fallbacks);
                opened.map(|(device, policy, probes)| (device, policy, Some(probes)))
            }
        };
        let (mut device, mut precision, mut probes) = match opened {
            Ok((device, policy, probes)) => (Ok(device), policy, probes),
            Err(e) => (Err(e), PrecisionPolicy::default(), None),
        };
        if options.allow_fallback {
            let cannot = match &device {
                Ok(device) => {
                    files.unsupported(&**device, options.kv)?.iter().map(ToString::to_string).collect()
                }
                Err(e) => vec![e.to_string()],
            };
            if !cannot.is_empty() {
                fallbacks.extend(cannot);
                // In the format that was asked for, if the CPU has it. What probes found holds for the other device.
                precision = match &options.precision {
                    PrecisionChoice::Exactly(policy) => files.precision(policy.clone())?,
                    PrecisionChoice::Auto { .. } => PrecisionPolicy::default(),
                };
                probes = None;
                let cpu = match devices::open_cpu(&options, &precision) {
                    Err(e) if precision != PrecisionPolicy::default() => {
                        fallbacks.push(e.to_string());
                        precision = PrecisionPolicy::default();
                        devices::open_cpu(&options, &precision)
                    }
                    opened => opened,
                };
                device = Ok(Arc::new(cpu?));
            }
        }
        let device = device?;
        for why in &fallbacks {
            tracing::warn!(%why, used = device.describe(), "a device was passed over");
        }
        Self::place(files, device, options.kv, precision, probes, fallbacks)
    }

    /// As [`Engine::with_options`], on a device that is open already: for tests that hold it too.
    ///
    /// # Errors
    /// The model cannot be opened.
    #[doc(hidden)]
    pub fn on_device(options: &EngineOptions, device: Arc<dyn Device>) -> Result<Engine> {
        let files = Self::files(&options.model)?;
        Self::place(files, device, options.kv, PrecisionPolicy::default(), None, vec![])
    }

    fn files(model: &Model) -> Result<FamilyFiles> {
        match model {
            Model::BuiltIn => Ok(FamilyFiles::Supertonic(Box::new(crate::default_voice::open()?))),
            Model::Path(path) => FamilyFiles::open(path),
            Model::Trimmed(path) => Ok(FamilyFiles::Qwen3Tts(Box::new(Files::open_trimmed(path)?))),
        }
    }

    fn place(
        files: FamilyFiles,
        device: Arc<dyn Device>,
        kv: CacheFormat,
        precision: PrecisionPolicy,
        probes: Option<Probes>,
        fallbacks: Vec<String>,
    ) -> Result<Engine> {
        let model = files.place(device.clone(), kv)?;
        tracing::debug!(model = model.origin(), device = device.describe(), %precision, "engine ready");
        let home = HomeProcess::current();
        let inner = Inner { model, device, precision, probes, fallbacks, voices: Mutex::default(), home };
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
        let whole = Options { whole_pieces: true, ..options.clone() };
        for chunk in self.stream(text, &whole)? {
            samples.extend_from_slice(&chunk?.samples);
        }
        Ok(Audio { samples, sample_rate: self.sample_rate() })
    }

    /// Speaks several texts with the same options, side by side where the model makes frames of several at once. Each result is
    /// what the text would have been alone.
    ///
    /// # Errors
    /// As [`Engine::speak`], for the first text that fails.
    pub fn speak_batch(&self, texts: &[&str], options: &Options) -> Result<Vec<Audio>> {
        let at_once = self.inner.model.at_once().min(texts.len());
        if at_once < 2 {
            return texts.iter().map(|t| self.speak(t, options)).collect();
        }
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let speak = || {
            let mut spoken = vec![];
            while !failed.load(Ordering::Relaxed) {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(text) = texts.get(i) else { break };
                let audio = self.speak(text, options);
                failed.fetch_or(audio.is_err(), Ordering::Relaxed);
                spoken.push((i, audio));
            }
            spoken
        };
        let mut all: Vec<(usize, Result<Audio>)> = std::thread::scope(|threads| {
            // Where the system has no more threads, fewer texts are spoken at once.
            let start = |_| std::thread::Builder::new().spawn_scoped(threads, speak).ok();
            let callers: Vec<_> = (1..at_once).map_while(start).collect();
            let own = speak();
            let others = callers.into_iter().map(|c| c.join().unwrap_or_else(|p| resume_unwind(p)));
            others.flatten().chain(own).collect()
        });
        // Texts are taken in order, so none is missing in front of one that failed.
        all.sort_by_key(|(i, _)| *i);
        all.into_iter().map(|(_, audio)| audio).collect()
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
        self.check_home()?;
        self.inner.model.check(options)?;
        Stream::new(self.clone(), text, options)
    }

    /// Makes everything ready for short texts, so that the first one is as fast as the others.
    ///
    /// # Errors
    /// As [`Engine::speak`].
    pub fn warm_up(&self) -> Result<()> {
        self.warm_up_for(&Options::default())
    }

    /// As [`Engine::warm_up`], for a voice: a Qwen3-TTS model reads what all texts with these options have in front (voice, language,
    /// instruction, reference), and keeps the state behind it.
    ///
    /// # Errors
    /// As [`Engine::speak`].
    pub fn warm_up_for(&self, options: &Options) -> Result<()> {
        self.warm_up_for_callers(options, 1)
    }

    /// As [`Engine::warm_up_for`], for so many callers that speak at once with these options. A server does it before it answers.
    ///
    /// # Errors
    /// As [`Engine::speak`].
    pub fn warm_up_for_callers(&self, options: &Options, callers: usize) -> Result<()> {
        self.speak("Warm up.", options)?;
        match &self.inner.model {
            Family::Qwen3Tts(model) => crate::speak_qwen3::make_plans(model, options, callers),
            Family::Supertonic(_) => Ok(()),
        }
    }

    /// Plans that were made so far. Making one takes some milliseconds, and at first kernels may have to be compiled. A Qwen3-TTS model makes
    /// none between the frames of an utterance, and none for a text of usual length, if it was warmed up for the voice and as many
    /// callers. Supertonic makes five for each length of text that it has not spoken lately.
    pub fn plans_made(&self) -> usize {
        match &self.inner.model {
            Family::Supertonic(model) => model.plans_made(),
            Family::Qwen3Tts(model) => model.plans_made(),
        }
    }

    /// Names of the voices.
    pub fn voices(&self) -> Vec<VoiceInfo> {
        self.inner.model.voices()
    }

    /// A voice by name, file, or mix such as `F1:0.7+M2:0.3`.
    ///
    /// # Errors
    /// A voice is unknown or does not fit the model, or the model is none of Supertonic.
    pub fn voice(&self, spec: &str) -> Result<Arc<Voice>> {
        self.check_home()?;
        let mut kept = self.inner.voices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(v) = kept.get(spec) {
            return Ok(v.clone());
        }
        let files = self.supertonic()?.files();
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

    /// The voice of a recording in a file of any common kind, for [`Options::cloned`]. Silence around the speech is cut. With the
    /// words that are spoken there, the model goes on in their manner; without, it only takes the voice.
    ///
    /// # Errors
    /// The model cannot clone, the file cannot be read, or the recording is silent, too short or too long.
    pub fn clone_voice(
        &self,
        recording: impl AsRef<std::path::Path>,
        transcript: Option<&str>,
    ) -> Result<Arc<ClonedVoice>> {
        self.check_home()?;
        let Family::Qwen3Tts(model) = &self.inner.model else {
            return Err(self.other_family("making a voice of a recording", "Qwen3-TTS"));
        };
        let options = orate_audio::ReferenceOptions::new(self.sample_rate());
        let samples = orate_audio::read_reference(recording, &options)?;
        Ok(Arc::new(model.clone_voice(&samples, transcript)?))
    }

    /// Width of voices made from recordings ([`ClonedVoice::width`]) that fit the model; `None` where it has other voices.
    pub fn cloned_voice_width(&self) -> Option<usize> {
        let Family::Qwen3Tts(model) = &self.inner.model else { return None };
        let config = &model.files().talking.as_ref()?.config;
        (config.tts_model_type == Variant::Base).then_some(config.talker_config.transformer.hidden_size)
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

    /// The device itself, for tools.
    pub fn device_object(&self) -> &Arc<dyn Device> {
        &self.inner.device
    }

    /// Facts about the device.
    pub fn device_info(&self) -> DeviceInfo {
        self.inner.device.info()
    }

    /// In which format products are computed.
    pub fn precision(&self) -> &PrecisionPolicy {
        &self.inner.precision
    }

    /// In which format keys and values are kept; `None` for models that keep none.
    pub fn kv(&self) -> Option<CacheFormat> {
        match &self.inner.model {
            Family::Qwen3Tts(model) => Some(model.kv()),
            Family::Supertonic(_) => None,
        }
    }

    /// What was measured to choose the format, where [`PrecisionChoice::Auto`] was asked for.
    pub fn probes(&self) -> Option<&Probes> {
        self.inner.probes.as_ref()
    }

    /// Why another device was passed over: one that an automatic choice would have preferred, or, with
    /// [`EngineOptions::allow_fallback`], the one that was asked for. Empty if none was.
    pub fn fallbacks(&self) -> &[String] {
        &self.inner.fallbacks
    }

    /// What is not as it should be though everything works, in words, so far: kernels that were compiled for a GPU and could not
    /// be kept. Empty if all is well. A device learns of it when it compiles, so ask after speaking.
    pub fn warnings(&self) -> Vec<String> {
        let not_kept = |problem: String| {
            format!(
                "compiled kernels are not kept, so every start compiles them again: {problem}; let the folder be written and \
                 have some room, or name another one with {CACHE_VARIABLE}"
            )
        };
        self.inner.device.cache_problem().map(not_kept).into_iter().collect()
    }

    /// Threads that take part; 0 where that means nothing.
    pub fn threads(&self) -> usize {
        self.inner.device.threads()
    }

    /// Path of the model, or `built-in voice`.
    pub fn model_name(&self) -> &str {
        self.inner.model.origin()
    }

    /// The family of the model: `Supertonic` or `Qwen3-TTS`.
    pub fn family_name(&self) -> &'static str {
        self.inner.model.name()
    }

    pub(crate) fn family(&self) -> &Family {
        &self.inner.model
    }

    /// The model itself, for tools.
    ///
    /// # Errors
    /// It is of another family.
    pub fn supertonic(&self) -> Result<&Supertonic> {
        match &self.inner.model {
            Family::Supertonic(model) => Ok(model),
            Family::Qwen3Tts(_) => Err(self.other_family("what you ask for", "Supertonic")),
        }
    }

    /// The model itself, for tools.
    ///
    /// # Errors
    /// It is of another family.
    pub fn qwen3_tts(&self) -> Result<&Arc<Qwen3Tts>> {
        match &self.inner.model {
            Family::Qwen3Tts(model) => Ok(model),
            Family::Supertonic(_) => Err(self.other_family("what you ask for", "Qwen3-TTS")),
        }
    }

    /// Memory that the model takes on its device, with one utterance of at most so many seconds, and with a reference of so many. Nothing is
    /// loaded for it.
    ///
    /// # Errors
    /// The model is none of Qwen3-TTS, or the device cannot run it.
    pub fn footprint(&self, seconds: f64, reference: f64) -> Result<Footprint> {
        let model = self.qwen3_tts()?;
        let frames = (seconds * model.files().codec.frame_rate()).ceil() as usize;
        Ok(model.files().footprint(&*self.inner.device, model.kv(), frames, reference)?)
    }

    fn other_family(&self, what: &'static str, needed: &'static str) -> Error {
        let model = self.model_name().to_owned();
        Error::OtherFamily { what, needed, model, family: self.family_name() }
    }

    /// The plans that speak `tokens` characters in `frames` frames: latent ones, with `steps` denoising steps, or those of a
    /// codec, behind a prompt of `tokens` rows.
    ///
    /// # Errors
    /// As [`Engine::speak`].
    pub fn plans(
        &self,
        tokens: usize,
        frames: usize,
        steps: usize,
    ) -> Result<Vec<Arc<dyn orate_graph::Executable>>> {
        self.check_home()?;
        self.inner.model.plans(tokens, frames, steps)
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
        let steps = match &self.inner.model {
            Family::Supertonic(_) => self.speak_options(&Options::default())?.1,
            Family::Qwen3Tts(_) => 0,
        };
        let plans = self.plans(tokens, frames, steps)?;
        Ok(plans.iter().map(|p| p.plan().explain(roofline)).collect::<Vec<_>>().join("\n"))
    }

    /// An error in a forked process, before any lock that may be held for ever there.
    fn check_home(&self) -> Result<()> {
        Ok(self.inner.home.check(&self.inner.device.name())?)
    }

    /// Options as the model sees them, and the number of steps.
    pub(crate) fn speak_options(&self, o: &Options) -> Result<(SpeakOptions, usize)> {
        let files = self.supertonic()?.files();
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
