//! Convolutions along time: weights `[out, in, taps]` and a bias, as PyTorch stores them.
//!
//! A convolution of stride s with 2s taps is one of two taps over rows that hold s rows each, so strides need
//! no op of their own. Neither do transposed convolutions, see [`crate::qwen3_tts::codec_decoder`].

use super::scope::Scope;
use orate_graph::{ConvGeometry, DType, Graph, GraphError, Padding, Value, Weight};

type Result<T> = std::result::Result<T, GraphError>;

/// What a causal convolution reads before the first row of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Past {
    /// Zeros: the sequence is whole.
    Silence,
    /// The end of the previous run's sequence, in states that this run replaces. They begin as zeros.
    Stream,
}

impl Past {
    /// The `rows` rows before x `[B, T, C]`: `[B, rows, C]`. In a stream they are the state `name`.
    ///
    /// # Errors
    /// The state exists with another shape.
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

    /// x `[B, T, C]` after the `rows` rows before it, `[B, rows + T, C]`; x alone where the sequence is
    /// whole.
    ///
    /// # Errors
    /// The state exists with another shape.
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
    /// Full name, which its state has too.
    name: String,
    weight: Weight,
    bias: Weight,
}

impl Conv {
    /// `name.weight` and `name.bias`.
    pub fn new(w: &Scope<'_>, name: &str, inputs: usize, outputs: usize, taps: usize) -> Conv {
        let weight = w.get(&format!("{name}.weight"), [outputs, inputs, taps]);
        Conv { name: w.name(name), weight, bias: w.bias(name, outputs) }
    }

    fn taps(&self) -> usize {
        self.weight.shape().dims()[2]
    }

    /// The convolution that reads x where this one reads `scale · x + shift`, both `[in]`. Exact if padding
    /// is scaled and shifted too.
    pub fn after(self, scale: &Weight, shift: &Weight) -> Conv {
        let inputs = scale.shape().len();
        let from_shift = self.weight.mul(&shift.reshape([1, inputs, 1])).sum_tail();
        let weight = self.weight.mul(&scale.reshape([1, inputs, 1]));
        Conv { weight, bias: self.bias.add(&from_shift), ..self }
    }

    /// `[B, T, in]` → `[B, T, out]`. The first row is repeated before the sequence, so that each row is made
    /// of rows up to its own.
    ///
    /// # Errors
    /// x has another width.
    pub fn repeating(&self, g: &mut Graph, x: Value) -> Result<Value> {
        let y = g.conv1d(x, tap_major(&self.weight), ConvGeometry::causal(self.taps(), 1))?;
        g.add_bias(y, self.bias.clone())
    }

    /// `[B, T, in]` → `[B, T, out]`, each row made of rows up to its own.
    ///
    /// # Errors
    /// x has another width.
    pub fn causal(&self, g: &mut Graph, past: Past, x: Value, dilation: usize) -> Result<Value> {
        let y = match self.taps() {
            1 => g.matmul(x, tap_major(&self.weight))?,
            taps => {
                let geometry = ConvGeometry::streaming(taps, dilation);
                let history = past.in_front_of(g, &self.name, x, geometry.left)?;
                g.conv1d_after(history, x, tap_major(&self.weight), geometry)?
            }
        };
        g.add_bias(y, self.bias.clone())
    }

    /// `[B, T, in]` → `[B, ⌈T / s⌉, out]` for 2s taps: causal with stride s. Zeros fill up the last stride.
    ///
    /// # Errors
    /// x has another width.
    pub fn strided(&self, g: &mut Graph, past: Past, x: Value) -> Result<Value> {
        let stride = self.taps() / 2;
        let x = fill_up(g, x, stride, Padding::Zero)?;
        let x = fold_time(g, x, stride)?;
        let geometry = ConvGeometry::streaming(2, 1);
        let history = past.in_front_of(g, &self.name, x, geometry.left)?;
        let y = g.conv1d_after(history, x, tap_major(&self.weight), geometry)?;
        g.add_bias(y, self.bias.clone())
    }

    /// `[B, T, in]` → `[B, T, out]` with half of the taps on either side and the sequence mirrored at its
    /// ends.
    ///
    /// # Errors
    /// x has another width, or fewer rows than are mirrored.
    pub fn mirrored(&self, g: &mut Graph, x: Value, dilation: usize) -> Result<Value> {
        let (taps, time) = (self.taps(), g.shape(x).dims()[1]);
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

/// `[out, in, taps]` as `[taps · in, out]`, the layout of convolution kernels.
pub fn tap_major(weight: &Weight) -> Weight {
    let &[outputs, inputs, taps] = weight.shape().dims() else {
        unreachable!("convolutions have three axes")
    };
    weight.transpose().reshape([outputs, taps * inputs]).transpose()
}

/// `[B, n · T, C]` → `[B, T, n · C]`, a view.
///
/// # Errors
/// The number of rows is no multiple of `n`.
pub fn fold_time(g: &mut Graph, x: Value, n: usize) -> Result<Value> {
    let &[batch, time, channels] = g.shape(x).dims() else { unreachable!("sequences are [B, T, C]") };
    g.reshape(x, [batch, time / n, n * channels])
}

/// Pads the end of a sequence to a multiple of `n` rows.
///
/// # Errors
/// The sequence is empty.
pub fn fill_up(g: &mut Graph, x: Value, n: usize, padding: Padding) -> Result<Value> {
    let time = g.shape(x).dims()[1];
    match time.next_multiple_of(n) - time {
        0 => Ok(x),
        missing => g.pad(x, padding, 0, missing),
    }
}
