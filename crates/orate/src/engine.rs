//! The engine: one model on one device.

use crate::precision::{self, Probes};
use crate::{
    Audio, CACHE_VARIABLE, CacheChoice, EngineOptions, Error, ModelSource, Options, PrecisionChoice, Result,
    Stream, devices, families, languages,
};
use orate_audio::{
    AudioError, Finish, ReferenceOptions, Waveform, check_recording, prepare_reference, read_audio,
    read_audio_bytes, read_audio_from,
};
use orate_graph::{CacheFormat, Device, DeviceInfo, DeviceKind, HomeProcess, PrecisionPolicy};
use orate_models::{
    ClonedVoice, Conversion, Description, Facts, Family, FinishReason, Footprint, Loader, Model, ModelError,
    ModelFiles, Opening, OptionSpec, PlaceOptions, Runs, Size, SpeechLength, VoiceInfo,
};
use std::any::Any;
use std::io::Read;
use std::ops::RangeInclusive;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Length of a recording that is converted, in seconds.
const SOURCE_SECONDS: RangeInclusive<f64> = 0.1..=3600.0;

/// Length of speech and references whose memory [`Engine::texts_at_once`] counts, in seconds.
const USUAL_SECONDS: f64 = 20.0;
/// How often there: for the utterance alone, and in its batch.
const BATCHED: u64 = 2;
/// Fewest texts at once on a GPU.
const FEWEST: usize = 4;

/// A model on a device, ready to speak. Clones share everything.
///
/// An engine belongs to the process that opened it: threads and GPU drivers do not survive a fork. In a
/// forked child everything that computes returns an error at once; dropping the engine there is safe and does
/// not affect the parent. Open engines after forking.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    model: Arc<dyn Model>,
    families: &'static [&'static Family],
    device: Arc<dyn Device>,
    precision: PrecisionPolicy,
    probes: Option<Probes>,
    fallbacks: Vec<String>,
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
        Self::with_options(EngineOptions { model: ModelSource::Path(path.into()), ..Default::default() })
    }

    /// Opens an engine with these settings.
    ///
    /// # Errors
    /// The model or the device cannot be opened.
    pub fn with_options(options: EngineOptions) -> Result<Engine> {
        let files = open_files(&options)?;
        let policy = precision::policy(&*files, &options.precision)?;
        let is_probed = matches!(options.precision, PrecisionChoice::Auto { .. });
        let mut fallbacks = vec![];
        let mut opened = if is_probed {
            let size = precision::matmul_of(&*files);
            precision::open_by_probes(&options, &policy, size, &mut fallbacks)
        } else {
            devices::open(&options, &policy, &mut fallbacks).map(|device| {
                let policy = device.weight_formats();
                (device, policy, None)
            })
        };
        if options.allow_fallback {
            let cannot = match &opened {
                Ok((device, policy, _)) => {
                    let place = place_options(&options, &**device, policy);
                    files.unsupported(&**device, &place)?.iter().map(ToString::to_string).collect()
                }
                Err(e) => vec![e.to_string()],
            };
            if !cannot.is_empty() {
                fallbacks.extend(cannot);
                // Probes hold for the other device only.
                let mut policy = if is_probed { PrecisionPolicy::default() } else { policy };
                let cpu = devices::open_cpu(&options, &policy).or_else(|e| {
                    if policy == PrecisionPolicy::default() {
                        return Err(e);
                    }
                    fallbacks.push(e.to_string());
                    policy = PrecisionPolicy::default();
                    devices::open_cpu(&options, &policy)
                });
                let cpu: Arc<dyn Device> = Arc::new(cpu?);
                let policy = cpu.weight_formats();
                opened = Ok((cpu, policy, None));
            }
        }
        let (device, precision, probes) = opened?;
        for why in &fallbacks {
            tracing::warn!(%why, used = device.describe(), "a device was passed over");
        }
        Self::place(files, device, &options, precision, probes, fallbacks)
    }

    /// As [`Engine::with_options`], on a device that is already open: for tests that use it too.
    ///
    /// # Errors
    /// The model cannot be opened.
    #[doc(hidden)]
    pub fn on_device(options: &EngineOptions, device: Arc<dyn Device>) -> Result<Engine> {
        let files = open_files(options)?;
        Self::place(files, device, options, PrecisionPolicy::default(), None, vec![])
    }

    fn place(
        files: Box<dyn ModelFiles>,
        device: Arc<dyn Device>,
        options: &EngineOptions,
        precision: PrecisionPolicy,
        probes: Option<Probes>,
        fallbacks: Vec<String>,
    ) -> Result<Engine> {
        let place = place_options(options, &*device, &precision);
        let rounds = matches!(options.kv, CacheChoice::Exactly(format) if format != CacheFormat::F32);
        if rounds && files.facts().kv.is_none() {
            let allowed = format!("{} models keep no keys and values; leave it out", files.family().name);
            return Err(Error::Option { option: "kv", got: options.kv.to_string(), allowed });
        }
        // Graphs that cannot be built are reported when they are needed.
        let graphs = || files.usual_graphs(device.pacing(), &place).unwrap_or_default();
        let what = || {
            let Description { kind, facts } = files.describe();
            format!("{kind} {facts:?}, {}", place.kv)
        };
        device.prepare(&what, &graphs, &Loader(files.weights().clone()));
        let model = files.place(device.clone(), &place)?;
        let origin = &model.facts().origin;
        tracing::debug!(model = origin, device = device.describe(), %precision, "engine ready");
        let (home, families) = (HomeProcess::current(), options.families);
        let inner = Inner { model, families, device, precision, probes, fallbacks, home };
        Ok(Engine { inner: Arc::new(inner) })
    }

    /// Speaks with default options.
    ///
    /// # Errors
    /// As [`Engine::speak`].
    pub fn say(&self, text: &str) -> Result<Audio> {
        self.speak(text, &Options::default())
    }

    /// Speaks a text of any length and returns all of it. Speech that ran away is cut and logged; a stream
    /// reports it in [`orate_models::Chunk::finish`].
    ///
    /// # Errors
    /// The text has nothing to say, an option is out of range, a character or voice is unknown, or the device
    /// failed.
    pub fn speak(&self, text: &str, options: &Options) -> Result<Audio> {
        let whole = Options { whole: true, ..options.clone() };
        self.collect(self.stream(text, &whole)?)
    }

    fn collect(&self, stream: Stream) -> Result<Audio> {
        let mut samples = Vec::new();
        for chunk in stream {
            let chunk = chunk?;
            if let Some(warning) = chunk.finish.and_then(FinishReason::warning) {
                tracing::warn!(piece = chunk.index, "{warning}");
            }
            samples.extend_from_slice(&chunk.samples);
        }
        Ok(Audio { samples, sample_rate: self.sample_rate() })
    }

    /// Speaks several texts with the same options, at once where the model is faster that way. Each result is
    /// what the text would have been alone.
    ///
    /// # Errors
    /// As [`Engine::speak`], for the first text that fails.
    pub fn speak_batch(&self, texts: &[&str], options: &Options) -> Result<Vec<Audio>> {
        self.at_once(texts.len(), |i| self.speak(texts[i], options))
    }

    /// Calls `speak` for each index below `count`, from several threads if the model is faster when it speaks
    /// several texts at once. Returns the results in order of their index.
    ///
    /// # Errors
    /// The error of the lowest index that has one; no further calls begin after an error.
    pub fn at_once<T: Send>(
        &self,
        count: usize,
        speak: impl Fn(usize) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        if count < 2 {
            return (0..count).map(speak).collect();
        }
        let threads = self.texts_at_once().min(count);
        if threads < 2 {
            return (0..count).map(speak).collect();
        }
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let work = || {
            let mut done = vec![];
            while !failed.load(Ordering::Relaxed) {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= count {
                    break;
                }
                let result = speak(i);
                failed.fetch_or(result.is_err(), Ordering::Relaxed);
                done.push((i, result));
            }
            done
        };
        let mut all: Vec<(usize, Result<T>)> = std::thread::scope(|scope| {
            // If the system has no more threads, fewer texts are spoken at once.
            let start = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
            let callers: Vec<_> = (1..threads).map_while(start).collect();
            let own = work();
            let others = callers.into_iter().map(|c| c.join().unwrap_or_else(|p| resume_unwind(p)));
            others.flatten().chain(own).collect()
        });
        // Texts are taken in order, so none is missing before the one that failed.
        all.sort_by_key(|(i, _)| *i);
        all.into_iter().map(|(_, result)| result).collect()
    }

    /// Speaks piece by piece: the iterator computes a piece when asked for it, so memory does not grow with
    /// the text, and dropping it stops all work.
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
    /// Text, options or voice are wrong. What fails later, the iterator returns.
    pub fn stream(&self, text: &str, options: &Options) -> Result<Stream> {
        self.check_all(options)?;
        let chunks = self.inner.model.clone().speak(text, options)?;
        Stream::new(self.origin(), text, chunks, options)
    }

    /// Loads weights and compiles plans for short texts, so that the first text is as fast as later ones.
    ///
    /// # Errors
    /// As [`Engine::speak`].
    pub fn warm_up(&self) -> Result<()> {
        self.warm_up_for(&Options::default())
    }

    /// As [`Engine::warm_up`], for texts with these options: a model that reads voice, language, instruction
    /// or reference before each text keeps the state after them.
    ///
    /// # Errors
    /// As [`Engine::speak`].
    pub fn warm_up_for(&self, options: &Options) -> Result<()> {
        self.warm_up_for_callers(options, 1)
    }

    /// As [`Engine::warm_up_for`], for `callers` that speak at once with these options. A server does it
    /// before it answers. For several callers, all kernels of the device are compiled, too.
    ///
    /// # Errors
    /// As [`Engine::speak`].
    pub fn warm_up_for_callers(&self, options: &Options, callers: usize) -> Result<()> {
        if callers > 1 {
            self.inner.device.prepare_all()?;
        }
        self.speak("Warm up.", options)?;
        Ok(self.inner.model.clone().warm_up(options, callers)?)
    }

    /// Plans compiled so far. Compiling one takes some milliseconds, and at first kernels may have to be
    /// compiled. An autoregressive model compiles none between the frames of an utterance, and none for a
    /// text of usual length if it was warmed up for the voice and as many callers. Others compile some for
    /// each length of text that they have not spoken lately.
    pub fn plans_made(&self) -> usize {
        self.inner.model.plans_made()
    }

    /// The voices.
    pub fn voices(&self) -> &[VoiceInfo] {
        &self.facts().voices
    }

    /// The voice of a recording in a file of any common kind, for [`Options::cloned`]. Silence around the
    /// speech is cut. With `transcript`, the words that are spoken there, the model also takes over the
    /// manner; without, only the voice.
    ///
    /// # Errors
    /// The model cannot clone, the file cannot be read, or the recording is silent, too short or too long.
    pub fn clone_voice(
        &self,
        recording: impl AsRef<Path>,
        transcript: Option<&str>,
    ) -> Result<Arc<ClonedVoice>> {
        let recording = recording.as_ref();
        let what = recording.display().to_string();
        self.clone_from(&what, transcript, |most| read_audio(recording, most))
    }

    /// As [`Engine::clone_voice`], for the bytes of a file, such as an upload. `what` names them in errors.
    ///
    /// # Errors
    /// As [`Engine::clone_voice`].
    pub fn clone_voice_from(
        &self,
        what: &str,
        recording: Vec<u8>,
        transcript: Option<&str>,
    ) -> Result<Arc<ClonedVoice>> {
        self.clone_from(what, transcript, |most| read_audio_bytes(what, recording, most))
    }

    /// As [`Engine::clone_voice`], from a stream such as standard input. `what` names it in errors.
    ///
    /// # Errors
    /// As [`Engine::clone_voice`].
    pub fn clone_voice_from_reader(
        &self,
        what: &str,
        recording: impl Read + Send + Sync + 'static,
        transcript: Option<&str>,
    ) -> Result<Arc<ClonedVoice>> {
        self.clone_from(what, transcript, |most| read_audio_from(what, recording, most))
    }

    /// As [`Engine::clone_voice`], for mono samples of any rate. `what` names them in errors.
    ///
    /// # Errors
    /// As [`Engine::clone_voice`].
    pub fn clone_voice_samples(
        &self,
        what: &str,
        samples: Vec<f32>,
        sample_rate: u32,
        transcript: Option<&str>,
    ) -> Result<Arc<ClonedVoice>> {
        self.clone_from(what, transcript, |_| Ok(Waveform { samples, sample_rate }))
    }

    fn clone_from(
        &self,
        what: &str,
        transcript: Option<&str>,
        read: impl FnOnce(f64) -> orate_audio::Result<Waveform>,
    ) -> Result<Arc<ClonedVoice>> {
        self.check_home()?;
        let cloning = self.inner.model.cloning()?;
        let options = ReferenceOptions::new(self.sample_rate());
        let recording = read(options.max_seconds)?;
        let whole = recording.samples.len() as f64 / f64::from(recording.sample_rate);
        let samples = prepare_reference(what, &recording, &options)?;
        let seconds = |samples: usize| samples as f64 / f64::from(self.sample_rate());
        let named = |e| match e {
            ModelError::TooShort { got, least } => {
                // What was padded is not the recording's. Rounded up, so that one of this length suffices.
                let (seconds, least_s) = (seconds(got).min(whole), (100.0 * seconds(least)).ceil() / 100.0);
                Error::from(AudioError::TooShort { what: what.to_owned(), seconds, least_s })
            }
            other => other.into(),
        };
        Ok(Arc::new(cloning.clone_voice(&samples, transcript).map_err(named)?))
    }

    /// Whether the model reads transcripts of recordings that voices are made from.
    pub fn reads_transcripts(&self) -> bool {
        self.inner.model.cloning().is_ok_and(|cloning| cloning.continues_recordings())
    }

    /// Checks that the model can speak with a voice made from a recording.
    ///
    /// # Errors
    /// The model cannot clone voices, or the voice belongs to another one.
    pub fn check_voice(&self, voice: &ClonedVoice) -> Result<()> {
        Ok(self.inner.model.cloning()?.check_voice(voice)?)
    }

    /// Whether the model speaks with voices made from recordings.
    pub fn can_clone(&self) -> bool {
        self.inner.model.cloning().is_ok()
    }

    /// Speaks a recording again in the voice of `options`, and returns all of it: a file of any common kind,
    /// of up to an hour.
    ///
    /// # Errors
    /// The model cannot convert, the file cannot be read, the recording is silent, too short or too long, an
    /// option is out of range or has no effect here, or the device failed.
    pub fn convert(&self, recording: impl AsRef<Path>, options: &Options) -> Result<Audio> {
        self.collect(self.convert_stream(recording, options)?)
    }

    /// As [`Engine::convert`], piece by piece; see [`Engine::stream`].
    ///
    /// # Errors
    /// As [`Engine::convert`]. What fails later, the iterator returns.
    pub fn convert_stream(&self, recording: impl AsRef<Path>, options: &Options) -> Result<Stream> {
        self.conversion_with(options)?;
        let path = recording.as_ref();
        let Waveform { samples, sample_rate } = read_audio(path, *SOURCE_SECONDS.end())?;
        self.begin_conversion(&path.display().to_string(), &samples, sample_rate, options)
    }

    /// As [`Engine::convert_stream`], from a stream such as standard input. `what` names it in errors.
    ///
    /// # Errors
    /// As [`Engine::convert_stream`].
    pub fn convert_stream_from(
        &self,
        what: &str,
        recording: impl Read + Send + Sync + 'static,
        options: &Options,
    ) -> Result<Stream> {
        self.conversion_with(options)?;
        let Waveform { samples, sample_rate } = read_audio_from(what, recording, *SOURCE_SECONDS.end())?;
        self.begin_conversion(what, &samples, sample_rate, options)
    }

    /// As [`Engine::convert_stream`], for mono samples of any rate.
    ///
    /// # Errors
    /// As [`Engine::convert_stream`].
    pub fn convert_samples(&self, samples: &[f32], sample_rate: u32, options: &Options) -> Result<Stream> {
        self.begin_conversion("the source", samples, sample_rate, options)
    }

    fn begin_conversion(&self, what: &str, samples: &[f32], rate: u32, options: &Options) -> Result<Stream> {
        let conversion = self.conversion_with(options)?;
        check_recording(what, samples, rate, SOURCE_SECONDS)?;
        let pieces = conversion.convert(samples, rate, options)?;
        Stream::new(
            self.origin(),
            "",
            pieces,
            &Options { silence: 0.0, finish: Finish::NONE, ..options.clone() },
        )
    }

    /// Voice conversion, for models that have it. No options are checked.
    ///
    /// # Errors
    /// This model cannot convert, in words that say which ones can.
    pub fn conversion(&self) -> Result<Arc<dyn Conversion>> {
        self.inner.model.clone().conversion().ok_or_else(|| {
            let converts = |family: &&&Family| family.options.iter().any(|spec| spec.converts);
            let families: Vec<_> =
                self.families().iter().filter(converts).map(|family| family.name).collect();
            let problem = format!("it cannot convert recordings; {} models can", families.join(" and "));
            ModelError::Mode { variant: self.family_name(), problem }.into()
        })
    }

    /// The model's conversion, with options that it has.
    fn conversion_with(&self, options: &Options) -> Result<Arc<dyn Conversion>> {
        self.check_home()?;
        let conversion = self.conversion()?;
        let accepts: Vec<_> =
            self.inner.model.accepts().iter().filter(|spec| spec.converts).copied().collect();
        // Those that convert with other models of the family.
        let declared: Vec<_> = families::declared(self.inner.families)
            .into_iter()
            .filter(|(f, _)| *f == self.family_name())
            .collect();
        let is_given = |spec: &&OptionSpec| spec.converts && options.get(spec.name).is_some();
        let is_other = |spec: &OptionSpec| !accepts.iter().any(|own| own.name == spec.name);
        let mut given = declared.iter().flat_map(|(_, specs)| *specs).filter(is_given);
        match given.any(is_other) {
            true => options.check(self.family_name(), &accepts, &declared)?,
            false => {
                options.check(&format!("voice conversion with {}", self.family_name()), &accepts, &[])?
            }
        }
        // Which voices it can take is known to the conversion, which needs less of them than speech.
        one_voice(options)?;
        match options.language.as_ref().filter(|name| !languages::is_auto(name)) {
            None => Ok(conversion),
            Some(language) => Err(Error::Option {
                option: "language",
                got: language.clone(),
                allowed: "a recording is converted in the language that it has; leave it out".to_owned(),
            }),
        }
    }

    /// Samples per second of all audio from this engine.
    pub fn sample_rate(&self) -> u32 {
        self.facts().sample_rate
    }

    /// What runs the model, such as `cpu (amx, 2 threads)` or `cuda:0 (NVIDIA H200, bf16)`.
    pub fn device(&self) -> String {
        let (info, mut details) = (self.inner.device.info(), self.inner.device.details());
        if info.kind != DeviceKind::Cpu {
            details.push(self.inner.precision.to_string());
        }
        format!("{} ({})", info.id(), details.join(", "))
    }

    /// The device itself, for tools.
    pub fn device_object(&self) -> &Arc<dyn Device> {
        &self.inner.device
    }

    /// The model itself, for tools.
    pub fn model(&self) -> &Arc<dyn Model> {
        &self.inner.model
    }

    /// The model as that of a family, for tools; `None` if it is of another.
    pub fn model_as<M: Model>(&self) -> Option<Arc<M>> {
        let model: Arc<dyn Any + Send + Sync> = self.inner.model.clone();
        model.downcast().ok()
    }

    /// What is known of the model.
    pub fn facts(&self) -> &Facts {
        self.inner.model.facts()
    }

    /// Families that the model could have been of; see [`EngineOptions::families`].
    pub fn families(&self) -> &'static [&'static Family] {
        self.inner.families
    }

    /// Facts about the device.
    pub fn device_info(&self) -> DeviceInfo {
        self.inner.device.info()
    }

    /// Format of weights in matmuls.
    pub fn precision(&self) -> &PrecisionPolicy {
        &self.inner.precision
    }

    /// Format of keys and values; `None` for models that keep none.
    pub fn kv(&self) -> Option<CacheFormat> {
        self.facts().kv
    }

    /// Measurements of [`PrecisionChoice::Auto`], if it chose the format.
    pub fn probes(&self) -> Option<&Probes> {
        self.inner.probes.as_ref()
    }

    /// Reasons why devices were skipped: those that an automatic choice prefers, or, with
    /// [`EngineOptions::allow_fallback`], the one that was named.
    pub fn fallbacks(&self) -> &[String] {
        &self.inner.fallbacks
    }

    /// Problems that do not stop work, in words: compiled GPU kernels that could not be kept. A device finds
    /// out when it compiles, so ask after speaking.
    pub fn warnings(&self) -> Vec<String> {
        let not_kept = |problem: String| {
            format!(
                "compiled kernels are not kept, so every start compiles them again: {problem}; let the \
                 folder be written and have some room, or name another one with {CACHE_VARIABLE}"
            )
        };
        self.inner.device.cache_problem().map(not_kept).into_iter().collect()
    }

    /// CPU threads; 0 on other devices.
    pub fn threads(&self) -> usize {
        self.inner.device.threads()
    }

    /// Path of the model, or `built-in voice`.
    pub fn model_name(&self) -> &str {
        &self.facts().origin
    }

    /// Speaking rate of the model if none is asked for; `None` if it has only one.
    pub fn usual_speed(&self) -> Option<f32> {
        let facts = self.inner.model.files().describe().facts;
        let speed = facts.into_iter().find(|(name, _)| *name == "default speed");
        speed.and_then(|(_, speed)| speed.as_f64()).map(|speed| speed as f32)
    }

    /// Name of the model's family.
    pub fn family_name(&self) -> &'static str {
        self.facts().family
    }

    /// Memory that the model takes on its device while it speaks; `None` where its family does not predict
    /// it. Nothing is loaded.
    ///
    /// # Errors
    /// The device cannot run the model.
    pub fn footprint(&self, length: SpeechLength) -> Result<Option<Footprint>> {
        let place = PlaceOptions { kv: self.kv().unwrap_or_default() };
        Ok(self.inner.model.files().footprint(&*self.inner.device, &place, length)?)
    }

    /// Number of texts that are best spoken at once: one for models that do not decode texts in a batch. On a
    /// GPU, as many as a batch may have and half of the memory holds that is free now.
    pub fn texts_at_once(&self) -> usize {
        let (usual, device) = (self.facts().texts_at_once, &self.inner.device);
        let most = device.pacing().batch;
        if usual < 2 || most <= usual {
            return usual;
        }
        let length = SpeechLength { speech: USUAL_SECONDS, reference: USUAL_SECONDS };
        let bytes = |f: Footprint| BATCHED * f.utterance.max(f.in_context);
        match (device.info().free_memory, self.footprint(length)) {
            (Some(free), Ok(Some(footprint))) => {
                let fits = (free / 2 / bytes(footprint).max(1)) as usize;
                let rows = if fits.is_power_of_two() { fits } else { fits.next_power_of_two() / 2 };
                rows.clamp(FEWEST, most)
            }
            _ => usual,
        }
    }

    /// The plans that speak a text of some size.
    ///
    /// # Errors
    /// As [`Engine::speak`].
    pub fn plans(&self, size: Size, options: &Options) -> Result<Runs> {
        self.check_home()?;
        self.check(options)?;
        Ok(self.inner.model.plans(size, options)?)
    }

    /// Refuses options without an effect, and values out of range. [`Engine::stream`] does it too; a server
    /// does it before a request waits.
    ///
    /// # Errors
    /// An option is not one of this model, or out of range; or the voice is of another model.
    pub fn check(&self, options: &Options) -> Result<()> {
        if !self.facts().can_speak {
            // No option would help: the model says what it lacks.
            return Ok(());
        }
        let accepts = self.inner.model.accepts();
        options.check(self.family_name(), accepts, &families::declared(self.inner.families))?;
        one_voice(options)?;
        options.cloned.iter().try_for_each(|voice| self.check_voice(voice))
    }

    /// What a stream has to know of this engine.
    pub(crate) fn origin(&self) -> (&Facts, String) {
        (self.facts(), self.inner.device.name())
    }

    /// Refuses to speak in a forked process, and wrong options.
    pub(crate) fn check_all(&self, options: &Options) -> Result<()> {
        self.check_home()?;
        self.check(options)
    }

    /// Returns an error in a forked process, before taking any lock that may be held forever there.
    fn check_home(&self) -> Result<()> {
        Ok(self.inner.home.check(&self.inner.device.name())?)
    }
}

/// Refuses two voices at once.
fn one_voice(options: &Options) -> Result<()> {
    match (&options.cloned, &options.voice) {
        (Some(_), Some(voice)) => Err(Error::Option {
            option: "voice",
            got: format!("`{voice}` and one made from a recording"),
            allowed: "speak with one or the other".to_owned(),
        }),
        _ => Ok(()),
    }
}

/// What `options` say of a model on a device that multiplies by such weights.
fn place_options(options: &EngineOptions, device: &dyn Device, weights: &PrecisionPolicy) -> PlaceOptions {
    PlaceOptions { kv: options.kv.on(device.info().kind, weights.precision) }
}

/// Opens the files of a model.
fn open_files(options: &EngineOptions) -> Result<Box<dyn ModelFiles>> {
    match &options.model {
        ModelSource::BuiltIn if options.codec.is_some() => Err(Error::Option {
            option: "codec",
            got: "a file".to_owned(),
            allowed: "it is the second file of a model of two GGUF files; name the first as the model"
                .to_owned(),
        }),
        ModelSource::BuiltIn => crate::default_voice::open(),
        ModelSource::Path(path) => {
            let opening = options.codec.as_deref().map_or(Opening::Whole, |codec| Opening::With { codec });
            families::open(options.families, path, opening)
        }
        ModelSource::Goldens(path) => families::open(options.families, path, Opening::Goldens),
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("model", &self.model_name()).field("device", &self.device()).finish()
    }
}
