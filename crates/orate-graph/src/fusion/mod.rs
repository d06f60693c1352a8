//! Passes that join steps into launches, by what a target's kernels can do, and turn moves into views.
//!
//! A kernel of a GPU can do more than one op, and launching one takes microseconds. [`Fusions`] says what a
//! target can fuse; each pass here is one pattern in one file. They run when a plan is compiled, after the
//! passes that hold for all targets (`passes`), and before memory is laid out.
//!
//! | file | steps | become |
//! | --- | --- | --- |
//! | `norm_activations` | layer norm, then an activation | the norm, which applies it |
//! | `add_row` | matmul or norm, then `AddRow` of a `SelectRow` | the matmul or norm, which adds the row |
//! | `snakes` | convolution, then Snake | the convolution, which applies it |
//! | `heads` | norms of heads, rotary positions, writes to caches | one launch |
//! | `attended` | heads, then attention of one query per sequence | attention, which does what they do |
//! | `rotate_queries` | `Rotary`, then attention of it as queries | attention, which rotates its queries |
//! | `matmuls` | matmuls of one operand | one matmul by weights that are packed together |
//! | `gates` | two such matmuls, then `Mul` of both | the matmul, which multiplies what it stores |
//! | `norms` | norm of rows, then the matmuls that read them | the matmuls, which norm the rows |
//! | `views` | `Slice` and `Concat` of whole blocks | places inside another value |
//!
//! Then `rounded` chooses values to store in 16 bits, and `feed_forward`, `normed_residuals`,
//! `followed_residuals`, `attended_outputs` and `draws` mark launches that a target can make one, or fewer.

mod add_row;
mod attended;
mod attended_outputs;
mod draft;
mod draws;
mod feed_forward;
mod followed_residuals;
mod gates;
mod heads;
mod matmuls;
mod norm_activations;
mod normed_residuals;
mod norms;
mod rotate_queries;
mod rounded;
mod snakes;
mod views;

use crate::Graph;
pub use draft::{
    AttendedOutputs, FeedForward, FollowedResiduals, Fused, Fusions, Head, LayerNorms, ManyRows,
    NormedResiduals, Pattern, RowNorm, Run,
};
pub(crate) use draft::{Draft, Launch};
pub use heads::MOST_HEADS;
pub use matmuls::MOST_PARTS;
pub use rounded::Rounding;
use rounded::RoundingOf;

/// Steps of a graph for a target: reshapes are views, and what the target can fuse is fused.
pub(crate) fn draft<'g>(graph: &'g Graph, fusions: &Fusions, rounding_of: &RoundingOf<'_>) -> Draft<'g> {
    let mut draft = Draft::new(graph);
    norm_activations::run(&mut draft, fusions.norm_activations);
    add_row::run(&mut draft, fusions.add_row, fusions.norm_activations);
    if fusions.snakes {
        snakes::run(&mut draft);
    }
    if fusions.heads {
        heads::run(&mut draft);
        attended::run(&mut draft, fusions);
    }
    if fusions.rotate_queries {
        rotate_queries::run(&mut draft);
    }
    if fusions.matmul_rows > 0 {
        matmuls::run(&mut draft, fusions);
        gates::run(&mut draft, fusions);
    }
    if let Some(multiple) = fusions.norm_multiple {
        norms::run(&mut draft, multiple, fusions);
    }
    if fusions.views {
        views::run(&mut draft);
    }
    rounded::run(&mut draft, rounding_of);
    if let Some(sizes) = &fusions.feed_forward {
        feed_forward::run(&mut draft, sizes);
    }
    if let Some(can) = &fusions.normed_residuals {
        normed_residuals::run(&mut draft, can);
    }
    if let Some(can) = &fusions.followed_residuals {
        followed_residuals::run(&mut draft, can);
    }
    if let Some(can) = &fusions.attended_outputs {
        attended_outputs::run(&mut draft, can);
    }
    if fusions.draws {
        draws::run(&mut draft);
    }
    draft
}
