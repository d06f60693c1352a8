//! The model on a device, and one utterance, or a padded batch of them, through its stages.

use super::alignment::{LAG, add_weights};
use super::blocks::{Padding, Sizes};
use super::files::Files;
use super::networks::{Network, PlanKey, seed_of};
use super::rows::{MOST_ROWS, SharedRows};
use super::voice::Voice;
use crate::alignment::starts;
use crate::decoding::coalescer::padded_rows;
use crate::runtime::{MemoryPool, PlanCache, PooledMemory, Profile};
use crate::{Facts, Loader, ModelError, ModelFiles};
use orate_graph::{Counters, Device, DeviceError, Executable, Memory, Shape, SharedFloats, TAP_PREFIX};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Plans kept for reuse: of utterances alone, and where rows of several share runs. An utterance needs five;
/// a plan has tens of kilobytes, and recompiling one takes under a millisecond.
const PLANS_KEPT: [usize; 2] = [48, 192];

/// Where rows share runs, sizes are multiples of these, so that rows of all lengths need few plans.
const TOKEN_STEP: usize = 32;
/// See [`TOKEN_STEP`].
const FRAME_STEP: usize = 8;

/// Sessions' memories kept for reuse.
const MEMORIES_KEPT: usize = 8;

/// Seconds that a text may take at speed 1: a constant, and a time for each character. Slow speech has five
/// characters in a second.
const MOST_SECONDS: (f32, f32) = (30.0, 2.0);

/// A Supertonic model on a device. Shared by any number of threads.
pub struct Supertonic {
    files: Files,
    pub(super) plans: PlanCache<PlanKey>,
    memories: Arc<MemoryPool>,
    pub(super) facts: Facts,
    /// Parsed voices by what was asked for.
    pub(super) voices: Mutex<HashMap<String, Arc<Voice>>>,
    /// Runs of several rows, where the device is faster with them.
    pub(super) shared: Option<SharedRows>,
}

impl Supertonic {
    /// Puts a model on a device, after checking that its weights are exactly those of the networks.
    ///
    /// # Errors
    /// Weights are missing, left over, or of other shapes than the configuration says.
    pub fn new(files: Files, device: Arc<dyn Device>) -> Result<Supertonic, ModelError> {
        files.check()?;
        let pacing = device.pacing();
        let shared = pacing.side_by_side.then(|| SharedRows::new(pacing.runs_apart));
        let most = PLANS_KEPT[usize::from(shared.is_some())];
        let plans = PlanCache::new(device.clone(), Arc::new(Loader(files.weights.clone())), most);
        let memories = MemoryPool::new(device, MEMORIES_KEPT);
        let (mut facts, voices) = (files.facts(), Mutex::default());
        if shared.is_some() {
            facts.texts_at_once = MOST_ROWS;
        }
        Ok(Supertonic { files, plans, memories, facts, voices, shared })
    }

    /// The model's files.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Starts an utterance.
    pub fn session(&self) -> Session<'_> {
        let sizes = Sizes { batch: 0, tokens: 0, frames: 0, steps: 0, padding: Padding::None };
        Session { model: self, memory: self.memories.take(), sizes, taps: false, aligns: false }
    }

    /// The plan of a network, compiled if it is not kept.
    pub(super) fn plan(
        &self,
        network: Network,
        sizes: Sizes,
        taps: bool,
    ) -> Result<Arc<dyn Executable>, ModelError> {
        self.plans.get(PlanKey::new(network, sizes, taps), |key| self.files.graph(*key))
    }

    /// Refuses a predicted duration that no text of `characters` has (NaN, negative, too long: voice or
    /// weights are damaged), before memory is allocated for it.
    pub(super) fn check_duration(&self, seconds: f32, characters: usize) -> Result<(), ModelError> {
        let most = MOST_SECONDS.0 + MOST_SECONDS.1 * characters as f32;
        if (0.0..=most).contains(&seconds) {
            return Ok(());
        }
        let problem = format!("{seconds} s of speech were predicted for {characters} characters");
        Err(ModelError::Damaged { problem })
    }

    /// Latent frames and whole samples for a predicted duration, as the official code rounds them: single
    /// precision, truncated; at least one frame.
    pub(super) fn frames_for(&self, seconds: f32, speed: f32) -> (usize, usize) {
        let c = &self.files.config;
        let samples = ((seconds / speed) * c.sample_rate as f32).clamp(0.0, i32::MAX as f32) as usize;
        (samples.div_ceil(c.samples_per_latent()).max(1), samples)
    }
}

/// What the denoising steps start with.
#[derive(Clone, Copy, Debug)]
pub enum Noise<'a> {
    /// Made on the device from a seed.
    Seed(u64),
    /// Made on the device from a seed for each row, after [`Session::set_texts`].
    Seeds(&'a [u64]),
    /// A latent `[B, L, D·K]`, channels last, zero past each row's length.
    Given(&'a [f32]),
}

/// Buffers and sizes of one utterance. The stages are called in order; each leaves its result on the device.
///
/// Rows of a batch are padded to one length: [`Padding::Cleared`] after [`Session::set_text`],
/// [`Padding::Ignored`] after [`Session::set_texts`].
pub struct Session<'m> {
    model: &'m Supertonic,
    memory: PooledMemory,
    sizes: Sizes,
    taps: bool,
    /// Whether denoising leaves what [`Session::letter_starts`] reads.
    aligns: bool,
}

impl Session<'_> {
    /// Records intermediate values in buffers `tap/<name>` from now on.
    pub fn record_taps(&mut self, on: bool) {
        self.taps = on;
    }

    /// Lets denoising say when letters are spoken from now on; see [`Session::letter_starts`].
    pub fn align(&mut self) {
        self.aligns = true;
    }

    /// Drops what [`Session::record_taps`] recorded so far.
    pub fn forget_taps(&mut self) {
        self.memory().forget(TAP_PREFIX);
    }

    /// Whether denoising leaves what [`Session::letter_starts`] reads.
    pub(super) fn aligns(&self) -> bool {
        self.aligns
    }

    /// Whether sizes are those of [`Session::set_texts`].
    pub(super) fn is_rounded(&self) -> bool {
        self.sizes.padding == Padding::Ignored
    }

    /// Rows of the batch, those that mean nothing included.
    pub(super) fn rows(&self) -> usize {
        self.sizes.batch
    }

    /// Work asked of the device for this utterance.
    pub fn counters(&self) -> Counters {
        self.memory.counters()
    }

    fn memory(&mut self) -> &mut dyn Memory {
        self.memory.get()
    }

    fn plan(&self, network: Network) -> Result<Arc<dyn Executable>, ModelError> {
        self.model.plan(network, self.sizes, self.taps)
    }

    fn run(&mut self, network: Network) -> Result<(), ModelError> {
        let plan = self.plan(network)?;
        Ok(plan.run(self.memory())?)
    }

    /// Sets the text and voice of each row.
    ///
    /// # Errors
    /// There are no rows, a row has no ids, or a style has another size than the model's.
    pub fn set_text(&mut self, rows: &[(&[i32], &Voice)]) -> Result<(), ModelError> {
        self.set_rows(rows, if rows.len() > 1 { Padding::Cleared } else { Padding::None })
    }

    /// As [`Session::set_text`], where each row is what it would be alone. There may be further rows, which
    /// mean nothing.
    ///
    /// # Errors
    /// As [`Session::set_text`].
    pub fn set_texts(&mut self, rows: &[(&[i32], &Voice)]) -> Result<(), ModelError> {
        self.set_rows(rows, Padding::Ignored)
    }

    fn set_rows(&mut self, rows: &[(&[i32], &Voice)], padding: Padding) -> Result<(), ModelError> {
        let (s, dp_width) = (self.model.files.config.style, self.model.files.config.dp_style.count());
        let longest = rows.iter().map(|(ids, _)| ids.len()).max().unwrap_or(0);
        let (batch, tokens) = match padding {
            Padding::Ignored => (padded_rows(rows.len()), longest.next_multiple_of(TOKEN_STEP)),
            Padding::None | Padding::Cleared => (rows.len(), longest),
        };
        if rows.iter().any(|(ids, _)| ids.is_empty()) || rows.is_empty() {
            return Err(orate_text::TextError::Empty.into());
        }
        for (_, v) in rows {
            if v.style_ttl.len() != s.count() || v.style_dp.len() != dp_width {
                let problem = "its sizes are those of another model".to_owned();
                return Err(ModelError::BadVoice { name: Some(v.name.clone()), problem });
            }
        }
        self.sizes = Sizes { batch, tokens, frames: 0, steps: 0, padding };
        let mut ids = vec![0; batch * tokens];
        for (row, (given, _)) in ids.chunks_exact_mut(tokens).zip(rows) {
            row[..given.len()].copy_from_slice(given);
        }
        let mut lens: Vec<i32> = rows.iter().map(|(ids, _)| ids.len() as i32).collect();
        lens.resize(batch, 1);
        let with_token: Vec<i32> = lens.iter().map(|n| n + 1).collect();
        let mut ttl = rows.iter().map(|(_, v)| &*v.style_ttl).collect::<Vec<&[f32]>>().concat();
        ttl.resize(batch * s.count(), 0.0);
        let mut dp = rows.iter().map(|(_, v)| &*v.style_dp).collect::<Vec<&[f32]>>().concat();
        dp.resize(batch * dp_width, 0.0);
        let m = self.memory();
        m.write_i32("text_ids", &[batch, tokens].into(), &ids)?;
        m.write_f32("style_ttl", &[batch, s.tokens, s.width].into(), &ttl)?;
        m.write_f32("style_dp", &[batch, 1, dp_width].into(), &dp)?;
        if padding != Padding::None {
            m.write_i32("text_lens", &[batch].into(), &lens)?;
            m.write_i32("dp_lens", &[batch].into(), &with_token)?;
        }
        Ok(())
    }

    /// Predicted seconds of each row at speed 1, those that mean nothing included.
    ///
    /// # Errors
    /// The device failed.
    pub fn durations(&mut self) -> Result<Vec<f32>, ModelError> {
        self.run(Network::DurationPredictor)?;
        let mut out = Vec::new();
        self.memory().read_f32("duration", &mut out)?;
        Ok(out)
    }

    /// Encodes the text.
    ///
    /// # Errors
    /// The device failed.
    pub fn encode_text(&mut self) -> Result<(), ModelError> {
        self.run(Network::TextEncoder)
    }

    /// Sets the latent length of each row, at least one frame, and the noise, and computes what all steps
    /// share.
    ///
    /// # Errors
    /// The number of lengths or seeds is not that of the rows, a given latent has another size, or the device
    /// failed.
    pub fn prepare(&mut self, frames: &[usize], steps: usize, noise: Noise<'_>) -> Result<(), ModelError> {
        let Sizes { batch, padding, .. } = self.sizes;
        let fits = match (padding, noise) {
            (Padding::Ignored, Noise::Seeds(seeds)) => seeds.len() == frames.len() && frames.len() <= batch,
            (Padding::Ignored, _) | (_, Noise::Seeds(_)) => false,
            _ => frames.len() == batch,
        };
        let mut longest = frames.iter().copied().max().unwrap_or(0);
        if padding == Padding::Ignored {
            longest = longest.next_multiple_of(FRAME_STEP);
        }
        if !fits || frames.contains(&0) || steps == 0 {
            return Err(ModelError::Option {
                option: "latent lengths",
                got: format!("{frames:?} with {steps} steps"),
                allowed: format!("one length of at least 1 for each of {batch} rows, and at least one step"),
            });
        }
        self.sizes = Sizes { frames: longest, steps, ..self.sizes };
        let times: Vec<f32> = (0..steps).map(|s| s as f32 / steps as f32).collect();
        let m = self.memory();
        m.write_f32("times", &[steps].into(), &times)?;
        m.set_scalar("dt", 1.0 / steps as f32);
        if padding != Padding::None {
            let mut lens: Vec<i32> = frames.iter().map(|n| *n as i32).collect();
            lens.resize(batch, 1);
            m.write_i32("latent_lens", &[batch].into(), &lens)?;
            lens.extend_from_within(..);
            m.write_i32("latent_lens_twice", &[2 * batch].into(), &lens)?;
        }
        match noise {
            Noise::Seed(seed) => self.memory().set_index("seed", seed),
            Noise::Seeds(seeds) => {
                (0..batch)
                    .for_each(|i| self.memory().set_index(&seed_of(i), seeds.get(i).copied().unwrap_or(0)));
            }
            Noise::Given(latent) => self.set_latent(latent)?,
        }
        self.run(Network::Prepare { noise: !matches!(noise, Noise::Given(_)) })
    }

    fn set_latent(&mut self, latent: &[f32]) -> Result<(), ModelError> {
        let channels = self.model.files.config.latent_channels();
        let shape = Shape::from([self.sizes.batch, self.sizes.frames, channels]);
        if latent.len() != shape.len() {
            let needed = format!("{} elements for {shape}", shape.len());
            let got = format!("{} elements", latent.len());
            return Err(
                DeviceError::Buffer { name: "latent".into(), plan: "caller".into(), got, needed }.into()
            );
        }
        Ok(self.memory().write_f32("latent", &shape, latent)?)
    }

    /// Runs all Euler steps, in one submission where the device can. Where the host is in the loop, it stops
    /// when `go_on` returns false; the latent is then unfinished.
    ///
    /// # Errors
    /// The device failed.
    pub fn denoise(&mut self, go_on: &dyn Fn() -> bool) -> Result<(), ModelError> {
        let (plan, steps) = (self.plan(self.step_network())?, self.sizes.steps);
        Ok(plan.run_times(self.memory(), "step", steps, go_on)?)
    }

    /// Runs one Euler step, counted from 0, for callers that look at intermediate latents.
    ///
    /// # Errors
    /// The device failed.
    pub fn step(&mut self, step: usize) -> Result<(), ModelError> {
        self.memory().set_index("step", step as u64);
        self.run(self.step_network())
    }

    fn step_network(&self) -> Network {
        Network::Step { queries: self.aligns }
    }

    /// Latent frame, with a fraction, in which each letter of a text begins; none without [`Session::align`].
    /// The text is alone, and a voice of this project denoised it, whose attention is trained to align.
    ///
    /// # Errors
    /// The device failed.
    pub fn letter_starts(&mut self) -> Result<Vec<f32>, ModelError> {
        if !self.aligns {
            return Ok(vec![]);
        }
        let vf = &self.model.files.config.vector_field;
        let (blocks, attention, letters) = (vf.blocks, vf.text, self.sizes.tokens);
        let mut map = vec![0.0; self.sizes.frames * letters];
        let (mut queries, mut keys) = (vec![], vec![]);
        for b in 0..blocks {
            self.memory().read_f32(&format!("ve.text_query.{b}"), &mut queries)?;
            self.memory().read_f32(&format!("ve.text_key.{b}"), &mut keys)?;
            add_weights(&mut map, attention, &queries, &keys);
        }
        Ok(starts(&map, letters, LAG))
    }

    /// Turns the latent into samples `[B, L · samples_per_latent]`, where L is that of the longest row or,
    /// after [`Session::set_texts`], more.
    ///
    /// # Errors
    /// The device failed.
    pub fn vocode(&mut self, out: &mut Vec<f32>) -> Result<(), ModelError> {
        self.run(Network::Vocoder)?;
        self.memory().read_f32("wav", out)?;
        Ok(())
    }

    /// As [`Session::vocode`], for the callers of all rows to read.
    pub(super) fn vocode_for_all(&mut self) -> Result<SharedFloats, ModelError> {
        self.run(Network::Vocoder)?;
        Ok(self.memory().read_shared("wav")?.1)
    }

    /// Waits until the device has done everything so far. Reading waits by itself.
    ///
    /// # Errors
    /// The device failed.
    pub fn wait(&mut self) -> Result<(), ModelError> {
        Ok(self.memory().wait()?)
    }

    /// Reads any buffer, such as `text_emb` or a tap.
    ///
    /// # Errors
    /// There is no such buffer.
    pub fn read(&mut self, name: &str, out: &mut Vec<f32>) -> Result<Shape, ModelError> {
        Ok(self.memory().read_f32(name, out)?)
    }

    /// The plan of a network, and the seconds that each of its steps takes.
    pub(super) fn profile(&mut self, network: Network) -> Result<Profile, ModelError> {
        let plan = self.plan(network)?;
        Ok(self.memory.profile(plan)?)
    }
}
