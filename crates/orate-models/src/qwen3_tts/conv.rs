//! Convolutions along time, as networks of this family have them: weights `[out, in, taps]` and a bias, channels last.
//!
//! A convolution of stride s with 2s taps is one of two taps over rows of s rows each, so strides need no op of their own;
//! neither do transposed convolutions, see [`super::codec_decoder`].

use super::weights::Scope;
use orate_graph::{ConvGeometry, DType, Graph, GraphError, Padding, Value, Weight};

type Result<T> = std::result::Result<T, GraphError>;

/// What causal convolutions find in front of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Past {
    /// Zeros: the sequence is whole.
    Silence,
    /// The end of what came before, in states that become the end of this sequence. They begin as zeros.
    Stream,
}

impl Past {
    /// `rows` rows in front of x `[B, T, C]`: `[B, rows, C]`. In a stream they are a state of this name.
    pub fn in_front_of(self, g: &mut Graph, name: &str, x: Value, rows: usize) -> Result<Value> {
        let &[batch, time, channels] = g.shape(x).dims() else { unreachable!("sequences are [B, T, C]") };
        if self == Past::Silence {
            return g.constant(Weight::fill(0.0, [1, rows, channels]), batch);
        }
        let past = g.state(name, DType::F32, [batch, rows, channels])?;
        let next = if time >= rows {
            g.slice(x, 1, time - rows, rows)?
        } else {
            let kept = g.slice(past, 1, time, rows - time)?;
            g.concat(&[kept, x], 1)?
        };
        g.update(name, next)?;
        Ok(past)
    }

    /// x `[B, T, C]` behind the `rows` rows in front of it, `[B, rows + T, C]`; x alone where the sequence is whole.
    pub fn joined_with(self, g: &mut Graph, name: &str, x: Value, rows: usize) -> Result<Value> {
        let &[batch, time, channels] = g.shape(x).dims() else { unreachable!("sequences are [B, T, C]") };
        if self == Past::Silence {
            return Ok(x);
        }
        let past = g.state(name, DType::F32, [batch, rows, channels])?;
        let joined = g.concat(&[past, x], 1)?;
        let next = g.slice(joined, 1, time, rows)?;
        g.update(name, next)?;
        Ok(joined)
    }
}

/// A convolution's weight `[out, in, taps]` and bias `[out]`.
#[derive(Clone, Debug)]
pub struct Conv {
    /// For its state's name.
    name: String,
    weight: Weight,
    bias: Weight,
}

impl Conv {
    /// `name.weight` and `name.bias`.
    pub fn new(w: &Scope, name: &str, inputs: usize, outputs: usize, taps: usize) -> Conv {
        Conv {
            name: w.name(name),
            weight: w.get(&format!("{name}.weight"), [outputs, inputs, taps]),
            bias: w.get(&format!("{name}.bias"), [outputs]),
        }
    }

    /// `[B, T, in]` → `[B, T, out]`, each row made of rows up to its own.
    pub fn causal(&self, g: &mut Graph, past: Past, x: Value, dilation: usize) -> Result<Value> {
        let y = match self.weight.shape().dims()[2] {
            1 => g.matmul(x, tap_major(&self.weight))?,
            taps => {
                let geometry = ConvGeometry::streaming(taps, dilation);
                let history = past.in_front_of(g, &self.name, x, geometry.left)?;
                g.conv1d_after(history, x, tap_major(&self.weight), geometry)?
            }
        };
        g.add_bias(y, self.bias.clone())
    }

    /// `[B, T, in]` → `[B, ⌈T / s⌉, out]` for 2s taps: causal with stride s. Zeros fill the last stride up.
    pub fn strided(&self, g: &mut Graph, past: Past, x: Value) -> Result<Value> {
        let stride = self.weight.shape().dims()[2] / 2;
        let x = fill_up(g, x, stride, Padding::Zero)?;
        let x = fold_time(g, x, stride)?;
        let geometry = ConvGeometry::streaming(2, 1);
        let history = past.in_front_of(g, &self.name, x, geometry.left)?;
        let y = g.conv1d_after(history, x, tap_major(&self.weight), geometry)?;
        g.add_bias(y, self.bias.clone())
    }

    /// `[B, T, in]` → `[B, T, out]` with half of the taps on either side and the sequence mirrored at its ends.
    pub fn mirrored(&self, g: &mut Graph, x: Value, dilation: usize) -> Result<Value> {
        let (taps, time) = (self.weight.shape().dims()[2], g.shape(x).dims()[1]);
        let reach = (taps - 1) * dilation;
        let y = if reach == 0 {
            g.matmul(x, tap_major(&self.weight))?
        } else {
            let padded = g.pad(x, Padding::Reflect, reach / 2, reach - reach / 2)?;
            let history = g.slice(padded, 1, 0, reach)?;
            let x = g.slice(padded, 1, reach, time)?;
            g.conv1d_after(history, x, tap_major(&self.weight), ConvGeometry::streaming(taps, dilation))?
        };
        g.add_bias(y, self.bias.clone())
    }
}

/// `[out, in, taps]` as `[taps · in, out]`.
pub fn tap_major(weight: &Weight) -> Weight {
    let &[outputs, inputs, taps] = weight.shape().dims() else {
        unreachable!("convolutions have three axes")
    };
    weight.transpose().reshape([outputs, taps * inputs]).transpose()
}

/// `[B, n · T, C]` → `[B, T, n · C]`, which costs nothing.
pub fn fold_time(g: &mut Graph, x: Value, n: usize) -> Result<Value> {
    let &[batch, time, channels] = g.shape(x).dims() else { unreachable!("sequences are [B, T, C]") };
    g.reshape(x, [batch, time / n, n * channels])
}

/// Records `[B, T, C]` as `[B, C, T]`, the layout of the reference.
pub fn tap_channels_first(g: &mut Graph, name: &str, x: Value) -> Result<()> {
    if g.has_taps() {
        let y = g.permute(x, &[0, 2, 1])?;
        g.tap(name, y)?;
    }
    Ok(())
}

/// Rows behind a sequence, so that it has a multiple of `n`.
pub fn fill_up(g: &mut Graph, x: Value, n: usize, padding: Padding) -> Result<Value> {
    let time = g.shape(x).dims()[1];
    match time.next_multiple_of(n) - time {
        0 => Ok(x),
        missing => g.pad(x, padding, 0, missing),
    }
}
