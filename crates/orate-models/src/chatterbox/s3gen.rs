//! S3Gen on a device: speech codes to samples in the voice of a recording.
//!
//! ```text
//! prepare    token encoder, rows that depend on time, noise       one run
//! step × N   estimator                                            one submission
//! vocode     vocoder over all frames, or some of them             one run
//! ```

use super::config::{FRAMES_PER_CODE, MEL, S3GenConfig, SAMPLES_PER_FRAME, X_VECTOR};
use super::estimator::{self, GUIDANCE};
use super::flow_encoder::{self, Offsets};
use super::vocoder::{self, HARMONICS, Source};
use crate::blocks::Scope;
use crate::runtime::{MemoryPool, PlanCache, PooledMemory, Profile};
use crate::{Cancel, Loader, ModelError};
use orate_graph::{Counters, DType, Device, Executable, Graph, GraphError, Shape, TAP_PREFIX};
use orate_weights::WeightSource;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Plans kept for reuse. An utterance needs three; its lengths are its own.
const PLANS_KEPT: usize = 24;
/// Memories of finished utterances kept for reuse.
const MEMORIES_KEPT: usize = 4;

/// What a plan computes, and everything its graph depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum S3GenPlan {
    /// Codes after a prompt of some mel frames, before the first step.
    Prepare { codes: usize, prompt: usize, steps: usize, noise: bool },
    /// A step.
    Step { frames: usize, steps: usize },
    /// Frames `first … first + count` of `frames` to samples.
    Vocoder { frames: usize, first: usize, count: usize, source: Source },
}

impl S3GenPlan {
    fn name(self) -> &'static str {
        match self {
            S3GenPlan::Prepare { .. } => "flow encoder",
            S3GenPlan::Step { .. } => "estimator",
            S3GenPlan::Vocoder { .. } => "vocoder",
        }
    }

    pub fn graph(self, weights: &dyn WeightSource, c: &S3GenConfig, taps: bool) -> Result<Graph, GraphError> {
        let g = Graph::new(self.name());
        let mut g = if taps { g.with_taps() } else { g };
        match self {
            S3GenPlan::Prepare { codes, prompt, steps, noise } => {
                flow_encoder::build(&mut g, &c.encoder, codes, prompt)?;
                estimator::prepare(&mut g, &c.estimator, steps)?;
                if noise {
                    let seed = g.scalar(LATENT_SEED);
                    let latent = g.random_normal([1, FRAMES_PER_CODE * codes, MEL], seed, 1.0)?;
                    g.output(estimator::LATENT, latent)?;
                }
            }
            S3GenPlan::Step { frames, steps } => estimator::step(&mut g, &c.estimator, frames, steps)?,
            S3GenPlan::Vocoder { frames, first, count, source } => {
                let latent = g.input(estimator::LATENT, DType::F32, [1, frames, MEL])?;
                let mel = g.slice(latent, 1, first - source.lead(), count + source.lead())?;
                vocoder::build(&mut g, &Scope::of(weights), &c.vocoder, mel, source)?;
            }
        }
        Ok(g)
    }

    /// The plans of `codes` codes after a prompt of `prompt` mel frames, and how often each runs.
    pub fn of_utterance(codes: usize, prompt: usize, steps: usize) -> [(S3GenPlan, usize); 3] {
        let (frames, source) = (FRAMES_PER_CODE * codes, Source::Seeded { before: 0 });
        [
            (S3GenPlan::Prepare { codes, prompt, steps, noise: true }, 1),
            (S3GenPlan::Step { frames, steps }, steps),
            (S3GenPlan::Vocoder { frames, first: prompt, count: frames - prompt, source }, 1),
        ]
    }
}

/// Scalar: seed of the noise that the estimator begins with.
const LATENT_SEED: &str = "latent_seed";

/// Samples at the beginning of speech that are silenced and faded in: the vocoder starts with a click.
const SILENCED: usize = 480;
const FADED: usize = 480;

/// What speech is to sound like: the recording of a voice as S3Gen reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// Speech codes of the recording.
    pub codes: Vec<i32>,
    /// Its mel spectrogram `[P, 80]`, of two frames for each code, or one more.
    pub mel: Vec<f32>,
    /// Its x-vector, `[192]`.
    pub x_vector: Vec<f32>,
}

impl Reference {
    /// Mel frames.
    pub fn frames(&self) -> usize {
        self.mel.len() / MEL
    }
}

/// Random numbers of speech.
#[derive(Clone, Copy, Debug)]
pub enum Noise<'a> {
    /// Made from a seed; those of a frame do not depend on how many frames follow.
    Seed(u64),
    /// What the estimator begins with, `[F, 80]`; phases of the harmonics `[9]`; noise of the source
    /// `[480T, 9]`.
    Given {
        /// Beginning of the mel spectrogram.
        latent: &'a [f32],
        /// Phase of each harmonic.
        phases: &'a [f32],
        /// Noise of the source.
        source: &'a [f32],
        /// Pitch of each frame, `[T]`, in place of that of the mel spectrogram.
        pitch: Option<&'a [f32]>,
    },
}

/// How the estimator runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowSettings {
    /// Euler steps.
    pub steps: usize,
    /// Weight of the guidance; meanflow has none.
    pub guidance: f32,
}

impl FlowSettings {
    /// Those of the official code.
    pub(super) fn usual(c: &S3GenConfig) -> FlowSettings {
        match c.estimator.is_meanflow {
            true => FlowSettings { steps: 2, guidance: 0.0 },
            false => FlowSettings { steps: 10, guidance: 0.7 },
        }
    }
}

/// S3Gen of a model on a device. Shared by any number of threads.
pub struct S3Gen {
    config: S3GenConfig,
    weights: Arc<dyn WeightSource>,
    /// By plan, and whether taps are recorded.
    plans: PlanCache<(S3GenPlan, bool)>,
    memories: Arc<MemoryPool>,
    offsets: Mutex<Offsets>,
}

impl S3Gen {
    pub(super) fn new(config: S3GenConfig, device: Arc<dyn Device>, weights: Arc<dyn WeightSource>) -> S3Gen {
        let plans = PlanCache::new(device.clone(), Arc::new(Loader(weights.clone())), PLANS_KEPT);
        let memories = MemoryPool::new(device, MEMORIES_KEPT);
        S3Gen { config, weights, plans, memories, offsets: Mutex::default() }
    }

    pub(super) fn plans(&self) -> &PlanCache<(S3GenPlan, bool)> {
        &self.plans
    }

    pub(super) fn plan(&self, plan: S3GenPlan, taps: bool) -> Result<Arc<dyn Executable>, ModelError> {
        self.plans.get((plan, taps), |_| Ok(plan.graph(&*self.weights, &self.config, taps)?))
    }

    /// Steps and guidance where nothing else is asked for.
    pub fn default_settings(&self) -> FlowSettings {
        FlowSettings::usual(&self.config)
    }

    /// Begins speech in the voice of `reference`.
    pub fn session<'a>(&'a self, reference: &'a Reference, taps: bool) -> Session<'a> {
        let mut memory = self.memories.take();
        memory.get().forget(TAP_PREFIX);
        Session { model: self, reference, memory, frames: 0, taps }
    }
}

/// Speech of some codes on its way through the stages.
pub struct Session<'a> {
    model: &'a S3Gen,
    reference: &'a Reference,
    memory: PooledMemory,
    /// Mel frames of prompt and speech.
    frames: usize,
    taps: bool,
}

impl Session<'_> {
    /// Codes to a mel spectrogram, which stays on the device.
    ///
    /// # Errors
    /// There are no codes, the caller cancelled, or the device failed.
    pub fn mel(
        &mut self,
        codes: &[i32],
        settings: FlowSettings,
        noise: Noise<'_>,
        cancel: &Cancel,
    ) -> Result<(), ModelError> {
        self.prepare(codes, settings, noise)?;
        let (model, steps) = (self.model, settings.steps);
        let step = model.plan(S3GenPlan::Step { frames: self.frames, steps }, self.taps)?;
        step.run_times(self.memory.get(), estimator::STEP, steps, &|| cancel.check().is_ok())?;
        cancel.check()
    }

    /// Everything up to the first step.
    ///
    /// # Errors
    /// As [`Session::mel`].
    pub fn prepare(
        &mut self,
        codes: &[i32],
        FlowSettings { steps, guidance }: FlowSettings,
        noise: Noise<'_>,
    ) -> Result<(), ModelError> {
        let (model, reference, prompt) = (self.model, self.reference, self.reference.frames());
        let c = &model.config;
        let all: Vec<i32> = reference.codes.iter().chain(codes).copied().collect();
        let frames = FRAMES_PER_CODE * all.len();
        if codes.is_empty() || prompt >= frames {
            return Err(ModelError::EmptyText { what: "text" });
        }
        self.frames = frames;
        let is_seeded = matches!(noise, Noise::Seed(_));
        let plan = S3GenPlan::Prepare { codes: all.len(), prompt, steps, noise: is_seeded };
        let plan = model.plan(plan, self.taps)?;
        let times = estimator::times(&c.estimator, steps);
        let width = c.encoder.width;
        let length = reference.x_vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt().max(1e-12);
        let x_vector: Vec<f32> = reference.x_vector.iter().map(|x| (f64::from(*x) / length) as f32).collect();
        let m = self.memory.get();
        m.write_i32(flow_encoder::CODES, &[1, all.len()].into(), &all)?;
        m.write_f32(flow_encoder::X_VECTOR_INPUT, &[1, X_VECTOR].into(), &x_vector)?;
        m.write_f32(flow_encoder::PROMPT_MEL, &[1, prompt, MEL].into(), &reference.mel)?;
        for (name, rows) in [(flow_encoder::OFFSETS, all.len()), (flow_encoder::UPSAMPLED_OFFSETS, frames)] {
            let mut kept = model.offsets.lock().unwrap_or_else(PoisonError::into_inner);
            m.write_f32(name, &[1, 2 * rows - 1, width].into(), kept.of(rows, width))?;
        }
        m.write_f32(estimator::TIMES, &[steps].into(), &times[..steps])?;
        if c.estimator.is_meanflow {
            m.write_f32(estimator::ENDS, &[steps].into(), &times[1..])?;
        }
        let lengths: Vec<f32> = times.windows(2).flat_map(|t| [t[1] - t[0]; MEL]).collect();
        m.write_f32(estimator::STEPS, &[steps, MEL].into(), &lengths)?;
        for (name, factor) in GUIDANCE.into_iter().zip([1.0 + guidance, -guidance]) {
            m.set_scalar(name, factor);
        }
        match noise {
            Noise::Seed(seed) => m.set_index(LATENT_SEED, seed),
            Noise::Given { latent, .. } => {
                m.write_f32(estimator::LATENT, &[1, frames, MEL].into(), latent)?;
            }
        }
        Ok(plan.run(m)?)
    }

    /// A single step, for callers that look at what lies between.
    ///
    /// # Errors
    /// The device failed.
    pub fn step(&mut self, step: usize, steps: usize) -> Result<(), ModelError> {
        let plan = self.model.plan(S3GenPlan::Step { frames: self.frames, steps }, self.taps)?;
        self.memory.get().set_index(estimator::STEP, step as u64);
        Ok(plan.run(self.memory.get())?)
    }

    /// Mel frames of the speech.
    pub fn frames(&self) -> usize {
        self.frames - self.reference.frames()
    }

    /// Some mel frames of the speech to samples.
    ///
    /// # Errors
    /// The device failed.
    pub fn vocode(&mut self, part: Range<usize>, noise: Noise<'_>) -> Result<Vec<f32>, ModelError> {
        let phases = match noise {
            Noise::Seed(seed) => random_phases(seed),
            Noise::Given { phases, .. } => phases.to_vec(),
        };
        self.vocode_from(part, noise, &phases)
    }

    /// As [`Session::vocode`], with phases of the harmonics at the first sample of the part in place of those
    /// of the noise, which are phases at the beginning of the speech.
    ///
    /// # Errors
    /// The device failed.
    pub fn vocode_from(
        &mut self,
        part: Range<usize>,
        noise: Noise<'_>,
        phases: &[f32],
    ) -> Result<Vec<f32>, ModelError> {
        let (model, count) = (self.model, part.len());
        let first = self.reference.frames() + part.start;
        let source = match noise {
            Noise::Seed(_) => Source::Seeded { before: part.start },
            Noise::Given { pitch: None, .. } => Source::Noise,
            Noise::Given { pitch: Some(_), .. } => Source::Pitch,
        };
        let plan = S3GenPlan::Vocoder { frames: self.frames, first, count, source };
        let plan = model.plan(plan, self.taps)?;
        let m = self.memory.get();
        match noise {
            Noise::Seed(seed) => m.set_index(vocoder::NOISE_SEED, seed ^ SOURCE),
            Noise::Given { source, pitch, .. } => {
                if let Some(pitch) = pitch {
                    m.write_f32(vocoder::PITCH, &[1, count, 1].into(), pitch)?;
                }
                let shape = [1, SAMPLES_PER_FRAME * count, HARMONICS];
                m.write_f32(vocoder::NOISE, &shape.into(), source)?;
            }
        }
        m.write_f32(vocoder::PHASES, &[1, HARMONICS].into(), phases)?;
        plan.run(m)?;
        let mut samples = vec![];
        m.read_f32(vocoder::WAV, &mut samples)?;
        if part.start == 0 {
            fade_in(&mut samples);
        }
        Ok(samples)
    }

    /// Reads a buffer, such as the latent or a tap.
    ///
    /// # Errors
    /// There is no such buffer.
    pub fn read(&mut self, name: &str, out: &mut Vec<f32>) -> Result<Shape, ModelError> {
        Ok(self.memory.get().read_f32(name, out)?)
    }

    /// Work asked of the device so far.
    pub fn counters(&self) -> Counters {
        self.memory.counters()
    }

    /// A plan, and the seconds that each of its steps takes.
    pub(super) fn profile(&mut self, plan: S3GenPlan) -> Result<Profile, ModelError> {
        let plan = self.model.plan(plan, false)?;
        Ok(self.memory.profile(plan)?)
    }
}

/// Separates the seed of the source from that of the estimator.
const SOURCE: u64 = 0x736f_7572_6365;

/// Phases of the harmonics: that of the first is 0, the others are anywhere.
pub(super) fn random_phases(seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        // SplitMix64 (Steele et al. 2014).
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 40) as f32 / (1 << 24) as f32
    };
    let any = |_| (2.0 * next() - 1.0) * std::f32::consts::PI;
    [0.0].into_iter().chain((1..HARMONICS).map(any)).collect()
}

fn fade_in(samples: &mut [f32]) {
    let (silenced, rest) = samples.split_at_mut(SILENCED.min(samples.len()));
    silenced.fill(0.0);
    for (i, x) in rest.iter_mut().take(FADED).enumerate() {
        let angle = std::f32::consts::PI * (1.0 - i as f32 / (FADED - 1) as f32);
        *x *= (angle.cos() + 1.0) / 2.0;
    }
}
