//! Codebooks of a residual vector quantizer, as they are while they are trained.

use super::scope::Scope;
use orate_graph::Weight;

/// Least number of uses that a codebook's sums are divided by.
const LEAST_USAGE: f32 = 1e-5;

/// Entries of a codebook, `[V, E]`: the sum of the vectors that were assigned to each, in `sums`, divided by
/// their count in `cluster_usage`.
pub fn centroids(w: &Scope<'_>, sums: &str, [entries, width]: [usize; 2]) -> Weight {
    let usage = w.get("cluster_usage", [entries]).at_least(LEAST_USAGE).reshape([entries, 1]);
    w.get(sums, [entries, width]).div(&usage)
}
