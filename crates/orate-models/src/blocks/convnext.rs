//! ConvNeXt block along time.

use super::conv::Past;
use super::scope::Scope;
use orate_graph::{Activation, ConvGeometry, Graph, GraphError, Value, Weight};

type Result<T> = std::result::Result<T, GraphError>;

/// Epsilon of the layer norms, as exported. PyTorch's default would be 1e-5.
pub const LAYER_NORM_EPS: f32 = 1e-6;

/// Lengths of the sequences of a batch, which are padded to one length.
#[derive(Clone, Copy, Debug)]
pub struct Lengths {
    /// i32 `[B]`
    pub lengths: Value,
    /// Whether rows after a sequence are cleared, as in the official graphs of Supertonic, so that
    /// convolutions read zeros there. Otherwise they have arbitrary values and are not read, and each
    /// sequence is what it would be alone.
    pub clears: bool,
}

/// Clears the rows of x that `lengths` says are to be cleared.
///
/// # Errors
/// x has another number of sequences.
pub fn clear_after(g: &mut Graph, x: Value, lengths: Option<Lengths>) -> Result<Value> {
    g.mask_rows(x, lengths.filter(|l| l.clears).map(|l| l.lengths))
}

/// `x + gamma · pointwise2(gelu(pointwise1(norm(depthwise(x)))))`, `[B, T, C]` → `[B, T, C]`. `gamma` is
/// folded into pointwise2.
#[derive(Clone, Copy, Debug)]
pub struct ConvNext {
    /// Channels.
    pub width: usize,
    /// Channels between the pointwise convolutions.
    pub inner: usize,
    /// Taps of the depthwise convolution.
    pub geometry: ConvGeometry,
    /// Name of the depthwise convolution.
    pub depthwise: &'static str,
    /// Name of the layer norm.
    pub norm: &'static str,
}

impl ConvNext {
    /// Builds the block for whole sequences.
    ///
    /// # Errors
    /// x has another width.
    pub fn build(&self, g: &mut Graph, w: &Scope<'_>, x: Value, lengths: Option<Lengths>) -> Result<Value> {
        let (weight, bias) = self.depthwise(w);
        let y = match lengths.filter(|l| !l.clears) {
            Some(l) => g.depthwise_conv1d_of(l.lengths, x, weight, bias, self.geometry.with_lengths())?,
            None => g.depthwise_conv1d(x, weight, bias, self.geometry)?,
        };
        let y = self.after_depthwise(g, w, x, y)?;
        clear_after(g, y, lengths)
    }

    /// Builds the block for sequences that continue `past`.
    ///
    /// # Errors
    /// As [`ConvNext::build`].
    pub fn streaming(&self, g: &mut Graph, w: &Scope<'_>, past: Past, x: Value) -> Result<Value> {
        let history = past.in_front_of(g, &w.name("dwconv"), x, self.geometry.left)?;
        let (weight, bias) = self.depthwise(w);
        let y = g.depthwise_conv1d_after(history, x, weight, bias, self.geometry)?;
        self.after_depthwise(g, w, x, y)
    }

    /// Weight `[taps, C]` and bias `[C]`.
    fn depthwise(&self, w: &Scope<'_>) -> (Weight, Weight) {
        let (width, taps) = (self.width, self.geometry.taps);
        let weight = w.get(&format!("{}.weight", self.depthwise), [width, 1, taps]);
        (weight.reshape([width, taps]).transpose(), w.bias(self.depthwise, width))
    }

    fn after_depthwise(&self, g: &mut Graph, w: &Scope<'_>, x: Value, y: Value) -> Result<Value> {
        let (width, inner) = (self.width, self.inner);
        let y = w.layer_norm(g, y, self.norm, LAYER_NORM_EPS)?;
        let y = w.linear(g, y, "pwconv1", [width, inner])?;
        let y = g.activate(y, Activation::Gelu)?;
        let gamma = w.get("gamma", [width]);
        let down = w.get("pwconv2.weight", [width, inner]).mul(&gamma.reshape([width, 1])).transpose();
        let y = g.linear(y, down, w.bias("pwconv2", width).mul(&gamma))?;
        g.add(x, y)
    }
}
