//! The model on a device: its plans, and the memories that utterances run in.

use super::files::Files;
use super::networks::{Network, PlanKey};
use super::session::Session;
use super::vector_estimator::Sizes;
use super::voice::Voice;
use crate::runtime::{MemoryPool, PlanCache};
use crate::{Facts, ModelError};
use orate_graph::{Device, Executable};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Plans kept for reuse. An utterance needs five; a plan has tens of kilobytes, and recompiling one takes
/// under a millisecond.
const PLANS_KEPT: usize = 48;

/// Sessions' memories kept for reuse.
const MEMORIES_KEPT: usize = 8;

/// Seconds that a text may take at speed 1: a constant, and a time for each character. Slow speech has five
/// characters in a second.
const MOST_SECONDS: (f32, f32) = (30.0, 2.0);

/// A Supertonic model on a device. Shared by any number of threads.
pub struct Supertonic {
    files: Files,
    plans: PlanCache<PlanKey>,
    memories: Arc<MemoryPool>,
    pub(super) facts: Facts,
    /// Parsed voices by what was asked for.
    pub(super) voices: Mutex<HashMap<String, Arc<Voice>>>,
}

impl Supertonic {
    /// Puts a model on a device, after checking that its weights are exactly those of the networks.
    ///
    /// # Errors
    /// Weights are missing, left over, or of other shapes than the configuration says.
    pub fn new(files: Files, device: Arc<dyn Device>) -> Result<Supertonic, ModelError> {
        files.check()?;
        let weights = Arc::new(crate::Loader(files.weights.clone()));
        let plans = PlanCache::new(device.clone(), weights, PLANS_KEPT);
        let memories = MemoryPool::new(device, MEMORIES_KEPT);
        let (facts, voices) = (files.facts(), Mutex::default());
        Ok(Supertonic { files, plans, memories, facts, voices })
    }

    /// The model's files.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// The device that runs it.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.plans.device()
    }

    /// Bytes of weights on the device so far. They are loaded when first used.
    pub fn weight_bytes(&self) -> u64 {
        self.plans.weight_bytes()
    }

    /// Samples per second of the output.
    pub fn sample_rate(&self) -> u32 {
        self.files.config.ae.sample_rate
    }

    /// Starts an utterance.
    pub fn session(&self) -> Session<'_> {
        Session::new(&self.files, &self.plans, self.memories.take())
    }

    /// Number of plans compiled so far, including those that are no longer kept.
    pub fn plans_made(&self) -> usize {
        self.plans.made()
    }

    /// The runnable plan for `key`, compiled if it is not kept.
    fn plan(&self, key: PlanKey) -> Result<Arc<dyn Executable>, ModelError> {
        self.plans.get(key, |key| self.files.graph(*key))
    }

    /// The plans that speak `tokens` characters in `frames` latent frames with `steps` steps, for `explain`.
    ///
    /// # Errors
    /// As for speaking.
    pub fn plans(
        &self,
        tokens: usize,
        frames: usize,
        steps: usize,
    ) -> Result<Vec<Arc<dyn Executable>>, ModelError> {
        let sizes = Sizes { batch: 1, tokens, frames, steps, padded: false };
        Network::ALL
            .into_iter()
            .map(|network| self.plan(PlanKey { network, sizes: network.relevant(sizes), taps: false }))
            .collect()
    }

    /// Refuses a predicted duration that no text of `characters` has, before memory is allocated for it.
    ///
    /// # Errors
    /// It is NaN, negative, or too long: the voice or the weights are damaged.
    pub fn check_duration(&self, seconds: f32, characters: usize) -> Result<(), ModelError> {
        let most = MOST_SECONDS.0 + MOST_SECONDS.1 * characters as f32;
        if (0.0..=most).contains(&seconds) {
            Ok(())
        } else {
            let problem = format!("{seconds} s of speech were predicted for {characters} characters");
            Err(ModelError::Damaged { problem })
        }
    }

    /// Latent frames and whole samples for a predicted duration, as the official code rounds them: single
    /// precision, truncated; at least one frame.
    pub fn frames_for(&self, seconds: f32, speed: f32) -> (usize, usize) {
        let c = &self.files.config;
        let samples = ((seconds / speed) * c.ae.sample_rate as f32).clamp(0.0, i32::MAX as f32) as usize;
        (samples.div_ceil(c.samples_per_latent()).max(1), samples)
    }
}
