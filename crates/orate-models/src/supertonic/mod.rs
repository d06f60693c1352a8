//! Supertonic 1, 2 and 3, and the voices trained by this project in the same structure.
//!
//! ```text
//! text ── pieces ── ids [1, T]
//!                     ├─► duration_predictor ─► seconds ─► frames L
//!                     ├─► text_encoder ─► text_emb [1, T, C]
//!                     └─► noise [1, L, D·K] ─► vector_estimator × steps ─► vocoder ─► wav
//! ```
//!
//! [`Supertonic`] owns the model on a device. A [`Session`] is one utterance on its way through the stages; its
//! values stay in device memory between them.

mod blocks;
pub mod config;
mod duration_predictor;
mod error;
mod family;
mod files;
pub mod names;
pub mod onnx;
mod options;
mod session;
mod speak;
mod text;
mod text_encoder;
mod vector_estimator;
mod vocoder;
mod voice;

pub use config::Config;
pub use error::BuildError;
pub use family::{FAMILY, open_packed};
pub use files::{Files, TextRules};
pub use options::Options;
pub use session::{Noise, Session, Stage};
pub use text::{Piece, SpeakOptions};
pub use vector_estimator::{GUIDANCE, Sizes};
pub use voice::{Voice, parse_mix};

use crate::ModelError;
use crate::runtime::{MemoryPool, PlanCache};
use names::Names;
use orate_graph::{Device, Executable, Graph};
use orate_weights::WeightSource;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

/// Canonical name of the learned style keys. The official text encoder of version 3 and our voices call them so.
pub(crate) const STYLE_KEY: &str = "tts.ttl.style_encoder.style_token_layer.style_key";

/// Plans kept for reuse. One utterance needs five; a plan is tens of kilobytes, and remaking one takes under a
/// millisecond.
const PLANS_KEPT: usize = 48;

/// Sessions' memories kept for reuse.
const MEMORIES_KEPT: usize = 8;

/// What a plan computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Network {
    DurationPredictor,
    TextEncoder,
    /// What all denoising steps share, and if need be the noise they start with.
    Prepare {
        noise: bool,
    },
    Step,
    Vocoder,
}

/// A plan's key: everything its graph depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PlanKey {
    pub network: Network,
    pub sizes: Sizes,
    pub taps: bool,
}

/// A Supertonic model on a device. Shared by any number of threads.
pub struct Supertonic {
    files: Files,
    plans: PlanCache<PlanKey>,
    memories: Arc<MemoryPool>,
    facts: crate::Facts,
    /// Parsed voices by what was asked for.
    voices: Mutex<HashMap<String, Arc<Voice>>>,
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
        let (facts, voices) = (family::facts(&files), Mutex::default());
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

    /// Bytes of weights on the device so far; they are loaded when first used.
    pub fn weight_bytes(&self) -> u64 {
        self.plans.weight_bytes()
    }

    /// Samples per second of the output.
    pub fn sample_rate(&self) -> u32 {
        self.files.config.ae.sample_rate
    }

    /// Starts an utterance.
    pub fn session(&self) -> Session<'_> {
        Session::new(self, self.memories.take())
    }

    /// Plans that were made so far, those that are not kept any more included.
    pub fn plans_made(&self) -> usize {
        self.plans.made()
    }

    /// The runnable plan for `key`, made now if it is not kept.
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
}

impl Network {
    /// In the order in which they run.
    const ALL: [Network; 5] = [
        Network::DurationPredictor,
        Network::TextEncoder,
        Network::Prepare { noise: true },
        Network::Step,
        Network::Vocoder,
    ];

    /// The sizes that this network depends on; the others are set to one value, so that plans are shared.
    fn relevant(self, s: Sizes) -> Sizes {
        let none = Sizes { tokens: 0, frames: 0, steps: 0, ..s };
        match self {
            Network::DurationPredictor | Network::TextEncoder => Sizes { tokens: s.tokens, ..none },
            Network::Vocoder => Sizes { frames: s.frames, padded: false, ..none },
            Network::Prepare { .. } | Network::Step => s,
        }
    }
}

/// The graphs of all networks at one size, in the order in which they run, for tests and tools. Only the names and
/// shapes of `weights` are looked at.
///
/// # Errors
/// A weight is missing, or has another shape than `config` says.
pub fn graphs(config: &Config, weights: &dyn WeightSource, sizes: Sizes) -> Result<Vec<Graph>, BuildError> {
    let graph = |network: Network| {
        let key = PlanKey { network, sizes: network.relevant(sizes), taps: false };
        describe(config, weights, key, &RefCell::default())
    };
    Network::ALL.into_iter().map(graph).collect()
}

/// The graph of one network. Names of the weights that it asks for are added to `used`.
fn describe(
    c: &Config,
    weights: &dyn WeightSource,
    key: PlanKey,
    used: &RefCell<BTreeSet<String>>,
) -> Result<Graph, BuildError> {
    let s = key.sizes;
    let names = Names::new(weights, used);
    let new = |name: &str| {
        let g = Graph::new(name);
        if key.taps { g.with_taps() } else { g }
    };
    Ok(match key.network {
        Network::DurationPredictor => {
            let mut g = new("duration_predictor");
            duration_predictor::build(&mut g, &names, &c.dp, s.batch, s.tokens, s.padded)?;
            g
        }
        Network::TextEncoder => {
            let mut g = new("text_encoder");
            text_encoder::build(&mut g, &names, &c.ttl, s.batch, s.tokens, s.padded)?;
            g
        }
        Network::Prepare { noise } => {
            let mut g = new("vector_estimator.prepare");
            if noise {
                let seed = g.scalar("seed");
                let z = g.random_normal([s.batch, s.frames, c.latent_channels()], seed, c.noise_scale)?;
                g.output("latent", z)?;
            }
            vector_estimator::VectorEstimator::new(&names, &c.ttl).build_prepare(&mut g, s)?;
            g
        }
        Network::Step => {
            let mut g = new("vector_estimator.step");
            vector_estimator::VectorEstimator::new(&names, &c.ttl).build_step(&mut g, s)?;
            g
        }
        Network::Vocoder => {
            let mut g = new("vocoder");
            vocoder::build(&mut g, &names, c, s.batch, s.frames)?;
            g
        }
    })
}

impl Files {
    /// The graph of a network.
    fn graph(&self, key: PlanKey) -> Result<Graph, ModelError> {
        self.describe(key, &RefCell::default())
    }

    fn describe(&self, key: PlanKey, used: &RefCell<BTreeSet<String>>) -> Result<Graph, ModelError> {
        describe(&self.config, &*self.weights, key, used)
            .map_err(|e| ModelError::Content { path: self.origin.clone().into(), problem: e.to_string() })
    }

    /// Describes all networks once, at a small size, and compares the weights they name with those in the files.
    fn check(&self) -> Result<(), ModelError> {
        let used = RefCell::default();
        let sizes = Sizes { batch: 1, tokens: 4, frames: 2, steps: 1, padded: false };
        for network in Network::ALL {
            let key = PlanKey { network, sizes, taps: false };
            self.describe(key, &used)?;
        }
        for encoder in ["tts.dp.sentence_encoder", "tts.ttl.text_encoder"] {
            let name = format!("{encoder}.text_embedder.char_embedder.weight");
            let rows = self.weights.info(&name).and_then(|i| i.shape.first().copied()).unwrap_or(0);
            if usize::try_from(self.indexer.max_id()).is_ok_and(|id| id >= rows) {
                let problem = format!(
                    "unicode_indexer.json has ids up to {}, but `{name}` has {rows} rows; do both files come from \
                     the same model?",
                    self.indexer.max_id()
                );
                return Err(ModelError::Content { path: self.origin.clone().into(), problem });
            }
        }
        let used = used.into_inner();
        let extra: Vec<&str> = self
            .weights
            .names()
            .into_iter()
            .filter(|n| n.starts_with("tts.") && !used.contains(*n) && !is_redundant(n))
            .collect();
        match extra.first() {
            Some(example) => {
                let problem = format!(
                    "{} weights are not part of the network, such as `{example}`; is this another version of the model?",
                    extra.len()
                );
                Err(ModelError::Content { path: self.origin.clone().into(), problem })
            }
            None => Ok(()),
        }
    }
}

/// Weights that files hold besides what is used: positions that we compute, and style keys stored both as they
/// are and folded.
fn is_redundant(name: &str) -> bool {
    name.ends_with(".attn.increments") || name.ends_with(".tanh_key") || name == STYLE_KEY
}
