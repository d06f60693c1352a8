//! The networks of a model, and the graphs of their plans.

use super::blocks::{Padding, Sizes};
use super::config::Config;
use super::files::Files;
use super::stage::STYLE_KEY;
use super::vector_estimator::VectorEstimator;
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
    /// A denoising step, which may also write the queries of text attention.
    Step {
        queries: bool,
    },
    Vocoder,
}

/// A plan's key: everything its graph depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PlanKey {
    network: Network,
    sizes: Sizes,
    taps: bool,
}

impl PlanKey {
    /// Sizes that the network does not depend on are set to one value, so that plans are shared.
    pub fn new(network: Network, s: Sizes, taps: bool) -> PlanKey {
        let none = Sizes { tokens: 0, frames: 0, steps: 0, ..s };
        let sizes = match network {
            Network::DurationPredictor | Network::TextEncoder => Sizes { tokens: s.tokens, ..none },
            Network::Vocoder => Sizes { frames: s.frames, padding: Padding::None, ..none },
            Network::Prepare { .. } | Network::Step { .. } => s,
        };
        PlanKey { network, sizes, taps }
    }
}

impl Network {
    /// In the order in which they run.
    pub const ALL: [Network; 5] = [
        Network::DurationPredictor,
        Network::TextEncoder,
        Network::Prepare { noise: true },
        Network::Step { queries: false },
        Network::Vocoder,
    ];

    /// Name of its graphs.
    pub fn name(self) -> &'static str {
        match self {
            Network::DurationPredictor => "duration_predictor",
            Network::TextEncoder => "text_encoder",
            Network::Prepare { .. } => "vector_estimator.prepare",
            Network::Step { .. } => "vector_estimator.step",
            Network::Vocoder => "vocoder",
        }
    }
}

/// The graphs of all networks at one size, in the order in which they run. Of `weights` only the names,
/// shapes and types are read.
///
/// # Errors
/// The weights are not those that `config` describes.
pub fn graphs(config: &Config, weights: &dyn WeightSource, sizes: Sizes) -> Result<Vec<Graph>, ModelError> {
    let mut graphs = vec![];
    let mut failure = None;
    for network in Network::ALL {
        let mut g = Graph::new(network.name());
        failure = describe(&mut g, config, weights, PlanKey::new(network, sizes, false)).err();
        graphs.push(g);
        if failure.is_some() {
            break;
        }
    }
    // A weight of another shape says more than the op that cannot read it.
    let may_be_left = |name: &str| failure.is_some() || may_be_left(name);
    checkpoint::compare(weights, "tts.json", &checkpoint::read_by(&graphs), may_be_left)?;
    match failure {
        Some(e) => Err(ModelError::Content { path: weights.describe().into(), problem: e.to_string() }),
        None => Ok(graphs),
    }
}

/// The graphs of all networks at a small size, without a comparison.
///
/// # Errors
/// The configuration contradicts itself.
pub(super) fn small_graphs(config: &Config, weights: &dyn WeightSource) -> Result<Vec<Graph>, ModelError> {
    let graph = |network: Network| {
        let mut g = Graph::new(network.name());
        describe(&mut g, config, weights, PlanKey::new(network, SMALL, false)).map(|()| g)
    };
    let content =
        |e: GraphError| ModelError::Content { path: weights.describe().into(), problem: e.to_string() };
    Network::ALL.into_iter().map(graph).collect::<Result<_, _>>().map_err(content)
}

/// Name of the seed of a row whose noise is its own.
pub(super) fn seed_of(row: usize) -> String {
    format!("seed.{row}")
}

/// The smallest sizes.
const SMALL: Sizes = Sizes { batch: 1, tokens: 4, frames: 2, steps: 1, padding: Padding::None };

/// Adds the network of a plan to a graph.
fn describe(g: &mut Graph, c: &Config, weights: &dyn WeightSource, plan: PlanKey) -> Result<(), GraphError> {
    let (all, s) = (Scope::of(weights), plan.sizes);
    match plan.network {
        Network::DurationPredictor => duration_predictor::build(g, &all, c, s),
        Network::TextEncoder => text_encoder::build(g, &all, c, s),
        Network::Prepare { noise } => {
            if noise {
                // That of a row alone does not depend on the others.
                let apart = s.padding == Padding::Ignored;
                let (count, rows) = if apart { (s.batch, 1) } else { (1, s.batch) };
                let shape = [rows, s.frames, c.latent_channels()];
                let noise = |g: &mut Graph, i: usize| {
                    let seed = g.scalar(&if apart { seed_of(i) } else { "seed".to_owned() });
                    g.random_normal(shape, seed, c.noise_scale)
                };
                let all = (0..count).map(|i| noise(g, i)).collect::<Result<Vec<_>, _>>()?;
                let z = if apart { g.concat(&all, 0)? } else { all[0] };
                g.output("latent", z)?;
            }
            VectorEstimator::new(&all, c).build_prepare(g, s)
        }
        Network::Step { queries } => VectorEstimator::new(&all, c).build_step(g, s, queries),
        Network::Vocoder => vocoder::build(g, &all, c, s),
    }
}

impl Files {
    /// The graph of a plan.
    pub(super) fn graph(&self, plan: PlanKey) -> Result<Graph, ModelError> {
        let g = Graph::new(plan.network.name());
        let mut g = if plan.taps { g.with_taps() } else { g };
        let built = describe(&mut g, &self.config, &*self.weights, plan);
        built.map_err(|e| self.content(e.to_string()))?;
        Ok(g)
    }

    /// Builds the graphs of all networks at a small size, and compares the weights that they read with the
    /// files.
    pub(super) fn check(&self) -> Result<Vec<Graph>, ModelError> {
        let graphs = graphs(&self.config, &*self.weights, SMALL)?;
        for encoder in ["tts.dp.sentence_encoder", "tts.ttl.text_encoder"] {
            let name = format!("{encoder}.text_embedder.char_embedder.weight");
            let rows = self.weights.info(&name).and_then(|i| i.shape.first().copied()).unwrap_or(0);
            let id = self.indexer.max_id();
            if usize::try_from(id).is_ok_and(|id| id >= rows) {
                return Err(self.content(format!(
                    "unicode_indexer.json has ids up to {id}, but `{name}` has {rows} rows; do both files \
                     come from the same model?"
                )));
            }
        }
        Ok(graphs)
    }

    fn content(&self, problem: String) -> ModelError {
        ModelError::Content { path: self.origin.clone().into(), problem }
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
