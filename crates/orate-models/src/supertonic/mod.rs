//! Supertonic 1, 2 and 3, and the voices trained by this project in the same structure.
//!
//! ```text
//! text ── pieces ── ids [1, T]
//!                     ├─► duration_predictor ─► seconds ─► frames L
//!                     ├─► text_encoder ─► text_emb [1, T, C]
//!                     └─► noise [1, L, D·K] ─► vector_estimator × steps ─► vocoder ─► wav
//! ```
//!
//! [`Supertonic`] owns the model on a device. A [`Session`] takes one utterance through the stages; its
//! values stay in device memory between them.

mod blocks;
pub mod config;
mod duration_predictor;
mod error;
mod family;
mod files;
mod goldens;
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
use crate::blocks::Scope;
use crate::checkpoint;
use crate::runtime::{MemoryPool, PlanCache};
use onnx::STYLE_KEY;
use orate_graph::{Device, Executable, Graph, GraphError};
use orate_weights::WeightSource;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Plans kept for reuse. An utterance needs five; a plan has tens of kilobytes, and recompiling one takes
/// under a millisecond.
const PLANS_KEPT: usize = 48;

/// Sessions' memories kept for reuse.
const MEMORIES_KEPT: usize = 8;

/// What a plan computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Network {
    DurationPredictor,
    TextEncoder,
    /// What all denoising steps share, and optionally the noise that they start with.
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
        Session::new(self, self.memories.take())
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

    /// Name of its graphs.
    fn name(self) -> &'static str {
        match self {
            Network::DurationPredictor => "duration_predictor",
            Network::TextEncoder => "text_encoder",
            Network::Prepare { .. } => "vector_estimator.prepare",
            Network::Step => "vector_estimator.step",
            Network::Vocoder => "vocoder",
        }
    }

    /// The sizes that this network depends on. The others are set to one value, so that plans are shared.
    fn relevant(self, s: Sizes) -> Sizes {
        let none = Sizes { tokens: 0, frames: 0, steps: 0, ..s };
        match self {
            Network::DurationPredictor | Network::TextEncoder => Sizes { tokens: s.tokens, ..none },
            Network::Vocoder => Sizes { frames: s.frames, padded: false, ..none },
            Network::Prepare { .. } | Network::Step => s,
        }
    }
}

/// The graphs of all networks at one size, in the order in which they run, for tests and tools. Only the
/// names, shapes and types of `weights` are read.
///
/// # Errors
/// The weights are not those that `config` describes.
pub fn graphs(config: &Config, weights: &dyn WeightSource, sizes: Sizes) -> Result<Vec<Graph>, BuildError> {
    let mut graphs = vec![];
    let mut failure = None;
    for network in Network::ALL {
        let mut g = Graph::new(network.name());
        let built = describe(&mut g, config, weights, network, network.relevant(sizes));
        graphs.push(g);
        if let Err(e) = built {
            failure = Some(e);
            break;
        }
    }
    // A weight of another shape says more than the op that cannot read it.
    let may_be_left = |name: &str| failure.is_some() || may_be_left(name);
    checkpoint::compare(weights, &checkpoint::read_by(&graphs), may_be_left)
        .map_err(|differences| BuildError::Tensors(Box::new(differences)))?;
    match failure {
        Some(e) => Err(e.into()),
        None => Ok(graphs),
    }
}

/// Adds a network to a graph.
fn describe(
    g: &mut Graph,
    c: &Config,
    weights: &dyn WeightSource,
    network: Network,
    s: Sizes,
) -> Result<(), GraphError> {
    let all = Scope::of(weights);
    match network {
        Network::DurationPredictor => duration_predictor::build(g, &all, &c.dp, s.batch, s.tokens, s.padded),
        Network::TextEncoder => text_encoder::build(g, &all, &c.ttl, s.batch, s.tokens, s.padded),
        Network::Prepare { noise } => {
            if noise {
                let seed = g.scalar("seed");
                let z = g.random_normal([s.batch, s.frames, c.latent_channels()], seed, c.noise_scale)?;
                g.output("latent", z)?;
            }
            vector_estimator::VectorEstimator::new(&all, &c.ttl).build_prepare(g, s)
        }
        Network::Step => vector_estimator::VectorEstimator::new(&all, &c.ttl).build_step(g, s),
        Network::Vocoder => vocoder::build(g, &all, c, s.batch, s.frames),
    }
}

/// Sizes of the graphs that are built to find out which weights and ops a model has.
const SMALL: Sizes = Sizes { batch: 1, tokens: 4, frames: 2, steps: 1, padded: false };

impl Files {
    /// The graph of a plan.
    fn graph(&self, key: PlanKey) -> Result<Graph, ModelError> {
        let g = Graph::new(key.network.name());
        let mut g = if key.taps { g.with_taps() } else { g };
        describe(&mut g, &self.config, &*self.weights, key.network, key.sizes)
            .map_err(|e| self.not_described(e.into()))?;
        Ok(g)
    }

    fn not_described(&self, e: BuildError) -> ModelError {
        ModelError::Content { path: self.origin.clone().into(), problem: e.to_string() }
    }

    /// Builds the graphs of all networks at a small size, and compares the weights that they read with the
    /// files.
    fn check(&self) -> Result<Vec<Graph>, ModelError> {
        let graphs = graphs(&self.config, &*self.weights, SMALL).map_err(|e| self.not_described(e))?;
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
        Ok(graphs)
    }
}

/// Tensors that files may hold besides those that are read: settings of the training, positions that are
/// computed here, and style keys stored both as they are and folded.
fn may_be_left(name: &str) -> bool {
    !name.starts_with("tts.")
        || name.ends_with(".attn.increments")
        || name.ends_with(".tanh_key")
        || name == STYLE_KEY
}
