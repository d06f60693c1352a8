//! The networks of a model, and the graphs of their plans.

use super::config::Config;
use super::error::BuildError;
use super::files::Files;
use super::onnx::STYLE_KEY;
use super::vector_estimator::{Sizes, VectorEstimator};
use super::{duration_predictor, text_encoder, vocoder};
use crate::blocks::Scope;
use crate::{ModelError, checkpoint};
use orate_graph::{Graph, GraphError};
use orate_weights::WeightSource;

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

impl Network {
    /// In the order in which they run.
    pub const ALL: [Network; 5] = [
        Network::DurationPredictor,
        Network::TextEncoder,
        Network::Prepare { noise: true },
        Network::Step,
        Network::Vocoder,
    ];

    /// Name of its graphs.
    pub fn name(self) -> &'static str {
        match self {
            Network::DurationPredictor => "duration_predictor",
            Network::TextEncoder => "text_encoder",
            Network::Prepare { .. } => "vector_estimator.prepare",
            Network::Step => "vector_estimator.step",
            Network::Vocoder => "vocoder",
        }
    }

    /// The sizes that this network depends on. The others are set to one value, so that plans are shared.
    pub fn relevant(self, s: Sizes) -> Sizes {
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
            VectorEstimator::new(&all, &c.ttl).build_prepare(g, s)
        }
        Network::Step => VectorEstimator::new(&all, &c.ttl).build_step(g, s),
        Network::Vocoder => vocoder::build(g, &all, c, s.batch, s.frames),
    }
}

/// Sizes of the graphs that are built to find out which weights and ops a model has.
const SMALL: Sizes = Sizes { batch: 1, tokens: 4, frames: 2, steps: 1, padded: false };

impl Files {
    /// The graph of a plan.
    pub(super) fn graph(&self, key: PlanKey) -> Result<Graph, ModelError> {
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
    pub(super) fn check(&self) -> Result<Vec<Graph>, ModelError> {
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
