//! One utterance, or a padded batch of them, through the stages of synthesis.

use super::files::Files;
use super::networks::{Network, PlanKey};
use super::text::Piece;
use super::vector_estimator::Sizes;
use super::voice::Voice;
use crate::ModelError;
use crate::runtime::{PlanCache, PooledMemory, Profile};
use orate_graph::{Counters, DeviceError, Executable, Memory, Shape, TAP_PREFIX};
use std::sync::Arc;

/// A stage of synthesis, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Text to seconds.
    DurationPredictor,
    /// Text to vectors.
    TextEncoder,
    /// Noise to latent, all steps.
    VectorEstimator,
    /// Latent to waveform.
    Vocoder,
}

impl Stage {
    /// All stages in order.
    pub const ALL: [Stage; 4] =
        [Stage::DurationPredictor, Stage::TextEncoder, Stage::VectorEstimator, Stage::Vocoder];

    /// Name, as the official files are called.
    pub fn name(self) -> &'static str {
        match self {
            Stage::DurationPredictor => "duration_predictor",
            Stage::TextEncoder => "text_encoder",
            Stage::VectorEstimator => "vector_estimator",
            Stage::Vocoder => "vocoder",
        }
    }
}

/// What the denoising steps start with.
#[derive(Clone, Copy, Debug)]
pub enum Noise<'a> {
    /// Made on the device from a seed.
    Seed(u64),
    /// A latent `[B, L, D·K]`, channels last, zero past each row's length.
    Given(&'a [f32]),
}

/// Buffers and sizes of one utterance. The stages are called in order; each leaves its result on the device.
///
/// A batch with more than one row is padded to its longest, with the semantics of the official graphs: a row
/// shorter than the longest differs slightly from the same row alone.
pub struct Session<'m> {
    files: &'m Files,
    plans: &'m PlanCache<PlanKey>,
    memory: PooledMemory,
    sizes: Sizes,
    taps: bool,
}

impl<'m> Session<'m> {
    pub(super) fn new(files: &'m Files, plans: &'m PlanCache<PlanKey>, memory: PooledMemory) -> Self {
        let sizes = Sizes { batch: 0, tokens: 0, frames: 0, steps: 0, padded: false };
        Session { files, plans, memory, sizes, taps: false }
    }

    /// Records intermediate values in buffers `tap/<name>` from now on.
    pub fn record_taps(&mut self, on: bool) {
        self.taps = on;
    }

    /// Drops what [`Session::record_taps`] recorded so far.
    pub fn forget_taps(&mut self) {
        self.memory().forget(TAP_PREFIX);
    }

    /// Work asked of the device for this utterance.
    pub fn counters(&self) -> Counters {
        self.memory.counters()
    }

    fn memory(&mut self) -> &mut dyn Memory {
        self.memory.get()
    }

    fn plan(&self, key: PlanKey) -> Result<Arc<dyn Executable>, ModelError> {
        self.plans.get(key, |key| self.files.graph(*key))
    }

    fn run(&mut self, network: Network) -> Result<(), ModelError> {
        let key = PlanKey { network, sizes: network.relevant(self.sizes), taps: self.taps };
        let plan = self.plan(key)?;
        Ok(plan.run(self.memory())?)
    }

    /// Sets the text and voice of each row.
    ///
    /// # Errors
    /// There are no rows, a row has no ids, or a style has another size than the model's.
    pub fn set_text(&mut self, rows: &[(&[i32], &Voice)]) -> Result<(), ModelError> {
        let c = &self.files.config;
        let tokens = rows.iter().map(|(ids, _)| ids.len()).max().unwrap_or(0);
        if rows.iter().any(|(ids, _)| ids.is_empty()) || rows.is_empty() {
            return Err(orate_text::TextError::Empty.into());
        }
        let s = &c.ttl.style_encoder.style_token_layer;
        let p = &c.dp.predictor;
        for (_, v) in rows {
            if v.style_ttl.len() != s.n_style * s.style_value_dim
                || v.style_dp.len() != p.n_style * p.style_dim
            {
                let problem = "its sizes are those of another model".to_owned();
                return Err(ModelError::BadVoice { name: Some(v.name.clone()), problem });
            }
        }
        let batch = rows.len();
        self.sizes = Sizes { batch, tokens, frames: 0, steps: 0, padded: batch > 1 };
        let mut ids = vec![0; batch * tokens];
        for (row, (given, _)) in ids.chunks_exact_mut(tokens).zip(rows) {
            row[..given.len()].copy_from_slice(given);
        }
        let lens: Vec<i32> = rows.iter().map(|(ids, _)| ids.len() as i32).collect();
        let with_token: Vec<i32> = lens.iter().map(|n| n + 1).collect();
        let ttl: Vec<f32> = rows.iter().flat_map(|(_, v)| v.style_ttl.iter().copied()).collect();
        let dp: Vec<f32> = rows.iter().flat_map(|(_, v)| v.style_dp.iter().copied()).collect();
        let (n_style, width, dp_width) = (s.n_style, s.style_value_dim, p.n_style * p.style_dim);
        let m = self.memory();
        m.write_i32("text_ids", &[batch, tokens].into(), &ids)?;
        m.write_f32("style_ttl", &[batch, n_style, width].into(), &ttl)?;
        m.write_f32("style_dp", &[batch, 1, dp_width].into(), &dp)?;
        if batch > 1 {
            m.write_i32("text_lens", &[batch].into(), &lens)?;
            m.write_i32("dp_lens", &[batch].into(), &with_token)?;
        }
        Ok(())
    }

    /// Sets one piece and voice.
    ///
    /// # Errors
    /// As [`Session::set_text`].
    pub fn set_piece(&mut self, piece: &Piece, voice: &Voice) -> Result<(), ModelError> {
        self.set_text(&[(&piece.ids, voice)])
    }

    /// Predicted seconds of each row at speed 1.
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
    /// The number of lengths is not that of the rows, a given latent has another size, or the device failed.
    pub fn prepare(&mut self, frames: &[usize], steps: usize, noise: Noise<'_>) -> Result<(), ModelError> {
        let batch = self.sizes.batch;
        let longest = frames.iter().copied().max().unwrap_or(0);
        if frames.len() != batch || frames.contains(&0) || steps == 0 {
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
        if batch > 1 {
            let mut lens: Vec<i32> = frames.iter().map(|n| *n as i32).collect();
            m.write_i32("latent_lens", &[batch].into(), &lens)?;
            lens.extend_from_within(..);
            m.write_i32("latent_lens_twice", &[2 * batch].into(), &lens)?;
        }
        match noise {
            Noise::Seed(seed) => self.memory().set_index("seed", seed),
            Noise::Given(latent) => self.set_latent(latent)?,
        }
        self.run(Network::Prepare { noise: matches!(noise, Noise::Seed(_)) })
    }

    fn set_latent(&mut self, latent: &[f32]) -> Result<(), ModelError> {
        let shape = Shape::from([self.sizes.batch, self.sizes.frames, self.files.config.latent_channels()]);
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
        let key = PlanKey { network: Network::Step, sizes: self.sizes, taps: self.taps };
        let plan = self.plan(key)?;
        let steps = self.sizes.steps;
        Ok(plan.run_times(self.memory(), "step", steps, go_on)?)
    }

    /// Runs one Euler step, counted from 0, for callers that look at intermediate latents.
    ///
    /// # Errors
    /// The device failed.
    pub fn step(&mut self, step: usize) -> Result<(), ModelError> {
        self.memory().set_index("step", step as u64);
        self.run(Network::Step)
    }

    /// Turns the latent into samples `[B, L · samples_per_latent]`.
    ///
    /// # Errors
    /// The device failed.
    pub fn vocode(&mut self, out: &mut Vec<f32>) -> Result<(), ModelError> {
        self.run(Network::Vocoder)?;
        self.memory().read_f32("wav", out)?;
        Ok(())
    }

    /// Waits until the device has done everything so far. Reading waits by itself.
    ///
    /// # Errors
    /// The device failed.
    pub fn wait(&mut self) -> Result<(), ModelError> {
        Ok(self.memory().wait()?)
    }

    /// Sets up stages for timing alone: `tokens` ids of one character, and the model's default voice.
    ///
    /// # Errors
    /// The voice cannot be read.
    pub fn set_forced(&mut self, tokens: usize) -> Result<(), ModelError> {
        let files = self.files;
        let voice = files.voice(files.default_voice())?;
        self.set_text(&[(&vec![1; tokens], &voice)])
    }

    /// Reads any buffer, such as `text_emb` or a tap.
    ///
    /// # Errors
    /// There is no such buffer.
    pub fn read(&mut self, name: &str, out: &mut Vec<f32>) -> Result<Shape, ModelError> {
        Ok(self.memory().read_f32(name, out)?)
    }

    /// The plan of a stage, and the seconds that each of its steps takes.
    ///
    /// # Errors
    /// The device failed.
    pub fn profile(&mut self, stage: Stage) -> Result<Profile, ModelError> {
        let network = match stage {
            Stage::DurationPredictor => Network::DurationPredictor,
            Stage::TextEncoder => Network::TextEncoder,
            Stage::VectorEstimator => Network::Step,
            Stage::Vocoder => Network::Vocoder,
        };
        let key = PlanKey { network, sizes: network.relevant(self.sizes), taps: false };
        let plan = self.plan(key)?;
        Ok(self.memory.profile(plan)?)
    }
}
