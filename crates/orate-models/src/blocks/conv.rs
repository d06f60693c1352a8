//! Convolutions along time: weights `[out, in, taps]` and a bias, as PyTorch stores them.
//!
//! A convolution of stride s is one over rows that hold s rows each, of ⌈taps / s⌉ taps filled up with zeros,
//! so strides need no op of their own. Neither do transposed convolutions, see [`Upsampling`].

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

    /// A convolution of a weight `[out, in, taps]` and a bias `[out]` that are computed.
    pub fn of(name: String, weight: Weight, bias: Weight) -> Conv {
        Conv { name, weight, bias }
    }

    fn taps(&self) -> usize {
        self.weight.shape().dims()[2]
    }

    /// `[B, T, in]` → `[B, T, out]` with zeros beyond the ends of the sequence: half of the taps on either
    /// side.
    ///
    /// # Errors
    /// x has another width.
    pub fn centered(&self, g: &mut Graph, x: Value, dilation: usize) -> Result<Value> {
        self.between_zeros(g, x, ConvGeometry::symmetric(self.taps(), dilation))
    }

    /// [`Conv::centered`] with all zeros before the sequence.
    ///
    /// # Errors
    /// x has another width.
    pub fn after_zeros(&self, g: &mut Graph, x: Value) -> Result<Value> {
        self.between_zeros(g, x, ConvGeometry::causal(self.taps(), 1))
    }

    /// [`Conv::centered`] with all zeros after the sequence: each row is made of its own and later ones.
    ///
    /// # Errors
    /// x has another width.
    pub fn before_zeros(&self, g: &mut Graph, x: Value) -> Result<Value> {
        self.between_zeros(g, x, ConvGeometry { left: 0, ..ConvGeometry::causal(self.taps(), 1) })
    }

    fn between_zeros(&self, g: &mut Graph, x: Value, geometry: ConvGeometry) -> Result<Value> {
        let y = match self.taps() {
            1 => g.matmul(x, tap_major(&self.weight))?,
            _ => g.conv1d(x, tap_major(&self.weight), geometry.with_zeros())?,
        };
        g.add_bias(y, self.bias.clone())
    }

    /// `[B, T, in]` → `[B, (T + 2 · pad − taps) / stride + 1, out]`: centered, with a stride and `pad` zeros
    /// at either end.
    ///
    /// # Errors
    /// x has another width, or fewer rows than taps.
    pub fn with_stride(&self, g: &mut Graph, x: Value, stride: usize, pad: usize) -> Result<Value> {
        let &[outputs, inputs, taps] = self.weight.shape().dims() else {
            unreachable!("convolutions have three axes")
        };
        let time = g.shape(x).dims()[1];
        let rows = (time + 2 * pad - taps) / stride + 1;
        let folds = taps.div_ceil(stride);
        let needed = (rows + folds - 1) * stride;
        let read = g.pad(x, Padding::Zero, pad, (needed - pad).saturating_sub(time))?;
        let read = if pad + time > needed { g.slice(read, 1, 0, needed)? } else { read };
        let read = fold_time(g, read, stride)?;
        let missing = Weight::fill(0.0, [(folds * stride - taps) * inputs, outputs]);
        let weight = match folds * stride - taps {
            0 => tap_major(&self.weight),
            _ => Weight::concat(&[tap_major(&self.weight), missing]),
        };
        let y = match folds {
            1 => g.matmul(read, weight)?,
            _ => {
                let y = g.conv1d(
                    read,
                    weight,
                    ConvGeometry { left: 0, ..ConvGeometry::causal(folds, 1) }.with_zeros(),
                )?;
                g.slice(y, 1, 0, rows)?
            }
        };
        g.add_bias(y, self.bias.clone())
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

/// A transposed convolution: weight `[in, out, taps]`, bias `[out]`.
#[derive(Clone, Debug)]
pub struct Upsampling {
    /// Weight `[in, out, taps]`.
    pub weight: Weight,
    /// Bias `[out]`.
    pub bias: Weight,
    /// Rows of output for a row of input.
    pub stride: usize,
}

impl Upsampling {
    /// `[B, T, in]` → `[B, stride · T, out]`: (taps − stride) / 2 rows are cut off at either end.
    ///
    /// # Errors
    /// x has another width.
    pub fn build(&self, g: &mut Graph, x: Value) -> Result<Value> {
        let (s, &[inputs, outputs, taps]) = (self.stride, self.weight.shape().dims()) else {
            unreachable!("convolutions have three axes")
        };
        let &[batch, time, _] = g.shape(x).dims() else { unreachable!("sequences are [B, T, C]") };
        // Row q of all s · T + taps − s rows of output is made of ⌈taps / s⌉ rows of input up to q / s.
        let folds = taps.div_ceil(s);
        let by_tap = self.weight.permute(&[2, 0, 1]); // [taps, in, out]
        let by_tap = match folds * s - taps {
            0 => by_tap,
            missing => Weight::concat(&[by_tap, Weight::fill(0.0, [missing, inputs, outputs])]),
        };
        let weight = by_tap.reshape([folds, s, inputs, outputs]).flip().permute(&[0, 2, 1, 3]);
        let weight = weight.reshape([folds * inputs, s * outputs]);
        let x = g.pad(x, Padding::Zero, 0, folds - 1)?;
        let y = g.conv1d(x, weight, ConvGeometry::causal(folds, 1).with_zeros())?;
        let y = g.add_bias(y, Weight::concat(&vec![self.bias.clone(); s]))?;
        let y = g.reshape(y, [batch, (time + folds - 1) * s, outputs])?;
        g.slice(y, 1, (taps - s) / 2, s * time)
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
