//! Tensors that no checkpoint has: transforms of the vocoder, under names of their own.

use orate_graph::Weight;
use orate_weights::{SafeTensors, WeightError, WeightSource};
use safetensors::tensor::{Dtype, TensorView};
use std::f64::consts::TAU;

/// Samples of an STFT frame.
pub const N_FFT: usize = 16;
/// Real and imaginary parts of a frame.
pub const BINS: usize = N_FFT + 2;

const STFT: &str = "constants.stft";
const INVERSE_STFT: &str = "constants.inverse_stft";
const WINDOW: &str = "constants.window";

/// Samples to real and imaginary parts, `[16, 18]`, windowed.
pub fn stft() -> Weight {
    Weight::named(STFT, [N_FFT, BINS])
}

/// Real and imaginary parts to windowed samples, `[18, 16]`.
pub fn inverse_stft() -> Weight {
    Weight::named(INVERSE_STFT, [BINS, N_FFT])
}

/// Periodic Hann window, `[16]`.
pub fn window() -> Weight {
    Weight::named(WINDOW, [N_FFT])
}

/// All constants as weights.
///
/// # Errors
/// Never, unless the format changes.
pub fn source() -> Result<Box<dyn WeightSource>, WeightError> {
    let turn = |i: usize| TAU * i as f64 / N_FFT as f64;
    let window = |n: usize| 0.5 - 0.5 * turn(n).cos();
    let bins = BINS / 2;
    let stft = |n: usize, k: usize| match k < bins {
        true => window(n) * turn(n * k % N_FFT).cos(),
        false => -window(n) * turn(n * (k - bins) % N_FFT).sin(),
    };
    let inverse = |k: usize, n: usize| {
        let bin = k % bins;
        // Bins between the first and the last stand for two.
        let share = if bin == 0 || bin + 1 == bins { 1.0 } else { 2.0 } / N_FFT as f64;
        window(n) * share * if k < bins { turn(n * bin % N_FFT).cos() } else { -turn(n * bin % N_FFT).sin() }
    };
    let table = |rows: usize, columns: usize, at: &dyn Fn(usize, usize) -> f64| -> Vec<f32> {
        (0..rows * columns).map(|i| at(i / columns, i % columns) as f32).collect()
    };
    let all = [
        (STFT, vec![N_FFT, BINS], table(N_FFT, BINS, &stft)),
        (INVERSE_STFT, vec![BINS, N_FFT], table(BINS, N_FFT, &inverse)),
        (WINDOW, vec![N_FFT], table(1, N_FFT, &|_, n| window(n))),
    ];
    let bytes = all.map(|(name, shape, data)| {
        (name, shape, data.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
    });
    let views = bytes.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes);
        (*name, view.expect("as many bytes as the shape takes"))
    });
    let file = safetensors::serialize(views, None).expect("three distinct names");
    Ok(Box::new(SafeTensors::from_bytes("constants of Chatterbox", file)?))
}
