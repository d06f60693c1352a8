//! Blocks that several networks share.
//!
//! Values are `[B, T, C]`: batch, time, channels. Weights have the names and shapes of the checkpoint, below
//! a [`Scope`].

mod codebook;
mod conv;
mod convnext;
mod scope;
mod transformer;

pub use codebook::centroids;
pub use conv::{Conv, Past, Upsampling, fill_up, fold_time, tap_major};
pub use convnext::{ConvNext, LAYER_NORM_EPS, Lengths, clear_after};
pub use scope::Scope;
pub use transformer::{Attention, Cache, gated_mlp};

use orate_graph::{Graph, GraphError, Value};

/// Records `[B, T, C]` as `[B, C, T]`, the layout of the references.
pub fn tap_channels_first(g: &mut Graph, name: &str, x: Value) -> Result<(), GraphError> {
    if g.has_taps() {
        let y = g.permute(x, &[0, 2, 1])?;
        g.tap(name, y)?;
    }
    Ok(())
}
