//! Voice encoder: mel spectrogram of a recording at 16 kHz to the speaker embedding that T3 reads.
//!
//! ```text
//! mel              [B, 160, 40]    windows of the recording
//! LSTM × 3         [B, 160, H]
//! last state       [B, 256]        linear, ReLU: `windows`
//! embedding        [256]           mean of the windows, each of length 1, on the host ([`embedding`])
//! ```
//!
//! GE2E (Wan et al. 2018), as in Resemblyzer.

use super::config::SPEAKER;
use crate::blocks::Scope;
use orate_graph::{Activation, DType, Graph, GraphError};

type Result<T> = std::result::Result<T, GraphError>;

/// Windows of the mel spectrogram, `[B, 160, 40]`.
pub const MEL_WINDOWS: &str = "mel";
/// A vector for each window, `[B, 256]`.
pub const WINDOWS: &str = "windows";
/// Bands.
pub const BANDS: usize = 40;
/// Frames of a window.
pub const FRAMES: usize = 160;

const LAYERS: usize = 3;

/// Builds the network for `windows` windows, with states of `hidden` numbers. Reads [`MEL_WINDOWS`]; writes
/// [`WINDOWS`].
pub fn build(g: &mut Graph, hidden: usize, windows: usize) -> Result<()> {
    let w = Scope::new("lstm");
    let mut x = g.input(MEL_WINDOWS, DType::F32, [windows, FRAMES, BANDS])?;
    for layer in 0..LAYERS {
        let inputs = g.shape(x).last();
        let part = |name: &str| format!("{name}_l{layer}");
        let bias = w.get(&part("bias_ih"), [4 * hidden]).add(&w.get(&part("bias_hh"), [4 * hidden]));
        let gates = g.linear(x, w.get(&part("weight_ih"), [4 * hidden, inputs]).transpose(), bias)?;
        x = g.lstm(gates, w.get(&part("weight_hh"), [4 * hidden, hidden]).transpose())?;
    }
    let x = g.slice(x, 1, FRAMES - 1, 1)?; // [B, 1, H]
    let x = g.reshape(x, [windows, hidden])?;
    let x = Scope::new("").linear(g, x, "proj", [hidden, SPEAKER])?;
    let x = g.activate(x, Activation::Relu)?;
    g.output(WINDOWS, x)
}

/// The embedding, of length 1: the mean of the windows' directions.
pub fn embedding(windows: &[f32]) -> Vec<f32> {
    let mut sum = vec![0f32; SPEAKER];
    for window in windows.chunks_exact(SPEAKER) {
        let length = norm(window);
        sum.iter_mut().zip(window).for_each(|(sum, x)| *sum += x / length);
    }
    let length = norm(&sum);
    sum.iter().map(|x| x / length).collect()
}

fn norm(x: &[f32]) -> f32 {
    x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt() as f32
}
