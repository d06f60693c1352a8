//! S3Gen on a device: speech codes to samples in the voice of a recording.
//!
//! ```text
//! prepare    token encoder, rows that depend on time, noise       one run
//! step × N   estimator                                            one submission
//! vocode     vocoder over all frames, or some of them             one run
//! ```

use super::config::{FRAMES_PER_CODE, MEL, S3GenConfig, SAMPLES_PER_FRAME};
use super::estimator;
use super::flow_encoder::Rows;
use super::s3gen_plans::{FlowSettings, S3GenPlan, S3GenPlans};
use super::shared_flow::{Announced, Flows, Job, Row, Start, copy_mel};
use super::shared_vocoder::{SharedRow, Voicing};
use super::vocoder::{self, HARMONICS, Source};
use crate::runtime::{MemoryPool, PooledMemory, Profile};
use crate::{Cancel, ModelError};
use orate_graph::{Counters, Device, Shape, TAP_PREFIX};
use orate_weights::WeightSource;
use std::ops::Range;
use std::sync::Arc;

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

/// S3Gen of a model on a device. Shared by any number of threads.
pub struct S3Gen {
    pub(super) flows: Flows,
    /// Of the vocoder.
    memories: Arc<MemoryPool>,
}

impl S3Gen {
    pub(super) fn new(config: S3GenConfig, device: Arc<dyn Device>, weights: Arc<dyn WeightSource>) -> S3Gen {
        // For as many as may speak at once: freeing one synchronizes the device.
        let memories = MemoryPool::new(device.clone(), device.pacing().batch);
        S3Gen { flows: Flows::new(S3GenPlans::new(config, device, weights)), memories }
    }

    pub(super) fn plans(&self) -> &S3GenPlans {
        &self.flows.plans
    }

    /// Steps and guidance where nothing else is asked for.
    pub fn default_settings(&self) -> FlowSettings {
        FlowSettings::usual(&self.plans().config)
    }

    /// Begins speech in the voice of `reference`.
    pub fn session<'a>(&'a self, reference: &'a Reference, taps: bool) -> Session<'a> {
        let mut memory = self.memories.take();
        memory.get().forget(TAP_PREFIX);
        let (flow, coming, phases, shared, pitch) = (None, None, None, None, None);
        Session { model: self, reference, memory, flow, part: 0..0, coming, phases, shared, pitch, taps }
    }
}

/// Speech of some codes on its way through the stages.
pub struct Session<'a> {
    model: &'a S3Gen,
    reference: &'a Reference,
    /// That of the vocoder.
    pub(super) memory: PooledMemory,
    /// That of the flow, and what it holds, where other callers do not share it.
    flow: Option<(PooledMemory, Rows)>,
    /// Mel frames of the speech that become samples.
    part: Range<usize>,
    /// What was announced to other callers.
    pub(super) coming: Option<Announced<'a>>,
    /// Phases of the harmonics at the first sample of the part, `[9]`, where it is not the beginning of the
    /// speech.
    pub(super) phases: Option<Vec<f32>>,
    /// Where the frames are if not in the memory of the vocoder.
    pub(super) shared: Option<SharedRow>,
    /// Pitch of the frames, where samples were made with those of others.
    pitch: Option<Vec<f32>>,
    taps: bool,
}

impl Session<'_> {
    /// Mel frames of the speech of `codes` codes.
    pub fn frames(&self, codes: usize) -> usize {
        (FRAMES_PER_CODE * (self.reference.codes.len() + codes)).saturating_sub(self.reference.frames())
    }

    /// Codes to a mel spectrogram, of which the frames `part` stay on the device.
    ///
    /// # Errors
    /// There are no codes, the caller cancelled, or the device failed.
    pub fn mel(
        &mut self,
        codes: &[i32],
        part: Range<usize>,
        (settings, noise): (FlowSettings, Noise<'_>),
        cancel: &Cancel,
    ) -> Result<(), ModelError> {
        let model = self.model;
        self.shared = None;
        let seed = match noise {
            Noise::Seed(seed) if model.plans().are_shared && !self.taps => Some(seed),
            _ => None,
        };
        let Some(seed) = seed else {
            self.prepare(codes, settings, noise)?;
            let (flow, all) = self.flow.as_mut().expect("prepared");
            let (all, steps) = (*all, settings.steps);
            let step = model.plans().get(S3GenPlan::Step { all, steps }, self.taps)?;
            step.run_times(flow.get(), estimator::STEP, steps, &|| cancel.check().is_ok())?;
            cancel.check()?;
            return self.finish(part);
        };
        let job = self.job(codes, part, (settings, seed), cancel)?;
        let (memory, result) = model.flows.share(self.coming.take(), job);
        self.memory = memory.unwrap_or_else(|| model.memories.take());
        self.shared = result?;
        cancel.check()
    }

    /// What [`Session::mel`] asks of a run that callers share. The session's memory is lent to it.
    pub(super) fn job(
        &mut self,
        codes: &[i32],
        part: Range<usize>,
        (settings, seed): (FlowSettings, u64),
        cancel: &Cancel,
    ) -> Result<Job, ModelError> {
        let noise = Noise::Seed(seed);
        let row = self.row(codes, settings, noise)?;
        let (wanted, phases) = (self.wanted(&part), self.phases(noise));
        let voicing = Voicing { part: part.clone(), seed: seed ^ SOURCE, phases };
        self.part = part;
        Ok(Job { row, wanted, voicing, memory: self.memory.lend(), cancel: cancel.clone(), shared: None })
    }

    /// Everything up to the first step.
    ///
    /// # Errors
    /// As [`Session::mel`].
    pub fn prepare(
        &mut self,
        codes: &[i32],
        settings: FlowSettings,
        noise: Noise<'_>,
    ) -> Result<(), ModelError> {
        let row = self.row(codes, settings, noise)?;
        let flow = self.flow.take();
        let mut flow = flow.map_or_else(|| self.model.flows.memories.take(), |(flow, _)| flow);
        flow.get().forget(TAP_PREFIX);
        let all = self.model.flows.prepare(flow.get(), &[&row], self.taps)?;
        self.flow = Some((flow, all));
        Ok(())
    }

    /// A single step, for callers that look at what lies between.
    ///
    /// # Errors
    /// The device failed.
    pub fn step(&mut self, step: usize, steps: usize) -> Result<(), ModelError> {
        let (flow, all) = self.flow.as_mut().expect("prepared");
        let plan = self.model.plans().get(S3GenPlan::Step { all: *all, steps }, self.taps)?;
        flow.get().set_index(estimator::STEP, step as u64);
        Ok(plan.run(flow.get())?)
    }

    /// Keeps the frames `part` of the mel spectrogram after the last step.
    ///
    /// # Errors
    /// The device failed.
    pub fn finish(&mut self, part: Range<usize>) -> Result<(), ModelError> {
        let wanted = self.wanted(&part);
        let (flow, all) = self.flow.as_mut().expect("prepared");
        copy_mel((flow.get(), 0, *all), wanted, self.memory.get())?;
        self.part = part;
        Ok(())
    }

    /// Frames of prompt and speech that the vocoder reads for a part of the speech.
    fn wanted(&self, part: &Range<usize>) -> Range<usize> {
        let prompt = self.reference.frames();
        prompt + part.start - vocoder::lead(part.start)..prompt + part.end
    }

    /// What the flow reads.
    pub(super) fn row(
        &self,
        codes: &[i32],
        settings: FlowSettings,
        noise: Noise<'_>,
    ) -> Result<Row, ModelError> {
        let reference = self.reference;
        if codes.is_empty() || self.frames(codes.len()) == 0 {
            return Err(ModelError::EmptyText { what: "text" });
        }
        let length = reference.x_vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt().max(1e-12);
        Ok(Row {
            codes: reference.codes.iter().chain(codes).copied().collect(),
            x_vector: reference.x_vector.iter().map(|x| (f64::from(*x) / length) as f32).collect(),
            prompt: reference.mel.clone(),
            start: match noise {
                Noise::Seed(seed) => Start::Seed(seed),
                Noise::Given { latent, .. } => Start::Given(latent.to_vec()),
            },
            settings,
        })
    }

    /// Phases of the harmonics at the first sample of the part.
    fn phases(&self, noise: Noise<'_>) -> Vec<f32> {
        match (&self.phases, noise) {
            (Some(phases), _) => phases.clone(),
            (None, Noise::Seed(seed)) => random_phases(seed),
            (None, Noise::Given { phases, .. }) => phases.to_vec(),
        }
    }

    /// Frames of the mel spectrogram to samples. Noise of a seed is that which the frames were made with.
    ///
    /// # Errors
    /// The device failed.
    pub fn vocode(&mut self, noise: Noise<'_>) -> Result<Vec<f32>, ModelError> {
        let model = self.model;
        if let Some(shared) = self.shared.take() {
            if let (Noise::Seed(_), Some((sound, counters))) = (noise, shared.sound(model.plans())) {
                self.memory.count(counters);
                self.pitch = Some(sound.pitch);
                return Ok(self.faded_in(sound.samples));
            }
            shared.copy_mel(self.memory.get())?;
        }
        self.pitch = None;
        let (phases, part, count) = (self.phases(noise), self.part.clone(), self.part.len());
        let source = match noise {
            Noise::Seed(_) => Source::Seeded { before: part.start },
            Noise::Given { pitch: None, .. } => Source::Noise,
            Noise::Given { pitch: Some(_), .. } => Source::Pitch,
        };
        let plan = model.plans().get(S3GenPlan::Vocoder { rows: 1, frames: count, source }, self.taps)?;
        let m = self.memory.get();
        match noise {
            Noise::Seed(seed) => m.set_index(&vocoder::noise_seed(0), seed ^ SOURCE),
            Noise::Given { source, pitch, .. } => {
                if let Some(pitch) = pitch {
                    m.write_f32(vocoder::PITCH, &[1, count, 1].into(), pitch)?;
                }
                let shape = [1, SAMPLES_PER_FRAME * count, HARMONICS];
                m.write_f32(vocoder::NOISE, &shape.into(), source)?;
            }
        }
        m.write_f32(vocoder::PHASES, &[1, HARMONICS].into(), &phases)?;
        plan.run(m)?;
        let mut samples = vec![];
        m.read_f32(vocoder::WAV, &mut samples)?;
        Ok(self.faded_in(samples))
    }

    fn faded_in(&self, mut samples: Vec<f32>) -> Vec<f32> {
        if self.part.start == 0 {
            fade_in(&mut samples);
        }
        samples
    }

    /// Pitch of the frames that became samples, `[T]`, in Hz.
    ///
    /// # Errors
    /// The device failed, or the pitch was given.
    pub fn pitch(&mut self) -> Result<Vec<f32>, ModelError> {
        if let Some(pitch) = &self.pitch {
            return Ok(pitch.clone());
        }
        let mut pitch = vec![];
        self.memory.get().read_f32(vocoder::FOUND_PITCH, &mut pitch)?;
        Ok(pitch)
    }

    /// Reads a buffer of the vocoder, such as a tap.
    ///
    /// # Errors
    /// There is no such buffer.
    pub fn read(&mut self, name: &str, out: &mut Vec<f32>) -> Result<Shape, ModelError> {
        Ok(self.memory.get().read_f32(name, out)?)
    }

    /// Reads a buffer of the flow that no other callers share, such as the latent or a tap.
    ///
    /// # Errors
    /// There is no such buffer.
    pub fn read_flow(&mut self, name: &str, out: &mut Vec<f32>) -> Result<Shape, ModelError> {
        let (flow, _) = self.flow.as_mut().expect("prepared");
        Ok(flow.get().read_f32(name, out)?)
    }

    /// Work asked of the device so far.
    pub fn counters(&self) -> Counters {
        let mut all = self.memory.counters();
        all += self.flow.as_ref().map(|(flow, _)| flow.counters()).unwrap_or_default();
        all
    }

    /// A plan, and the seconds that each of its steps takes. Those of the flow need one that is prepared.
    pub(super) fn profile(&mut self, plan: S3GenPlan) -> Result<Profile, ModelError> {
        let memory = match (plan, &mut self.flow) {
            (S3GenPlan::Prepare { .. } | S3GenPlan::Step { .. }, Some((flow, _))) => flow,
            _ => &mut self.memory,
        };
        Ok(memory.profile(self.model.plans().get(plan, false)?)?)
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
