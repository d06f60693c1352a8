//! Overlap-add of frames: the second half of an inverse STFT.
//!
//! ```text
//! p      = s + N/2                                       position of sample s among all frames
//! out[s] = Σ_f x[f, p − f·hop] / Σ_f window[p − f·hop]²   over the frames that cover p
//! ```
//!
//! `x` [B, F, N], already multiplied by the window; `window` `[N]`, `out` [B, (F − 1) · hop]; f32. Each
//! sample is summed in the order of frames. A frame adds to a contiguous run of samples, so the compiler
//! vectorizes the plain loops. The caller computes all batch rows alone: a second of audio takes some tens of
//! microseconds.

use crate::op::{Binding, Call, OpKernel};
use crate::weights::Core;
use orate_graph::{ValueInfo, Weight};

/// Fills `out`; `squares` is scratch for one row of `out`.
///
/// # Panics
/// `frames` is not `[B, F, N]`, `out` does not match it, or there is less scratch than for a row.
pub fn overlap_add(
    frames: &[f32],
    window: &[f32],
    (count, hop): (usize, usize),
    squares: &mut [f32],
    out: &mut [f32],
) {
    let (n, samples) = (window.len(), (count - 1) * hop);
    assert_eq!(frames.len() * samples, out.len() * count * n, "a sequence of samples for each of frames");
    // Samples that frame `f` covers, and the offset of the first of them in the frame.
    let covered = |f: usize| {
        let start = (f * hop).saturating_sub(n / 2);
        (start..(f * hop + n / 2).min(samples), start + n / 2 - f * hop)
    };
    let squares = &mut squares[..samples];
    squares.fill(0.0);
    for f in 0..count {
        let (range, first) = covered(f);
        squares[range].iter_mut().zip(&window[first..]).for_each(|(sum, w)| *sum += w * w);
    }
    for (frames, out) in frames.chunks_exact(count * n).zip(out.chunks_exact_mut(samples)) {
        out.fill(0.0);
        for (f, frame) in frames.chunks_exact(n).enumerate() {
            let (range, first) = covered(f);
            out[range].iter_mut().zip(&frame[first..]).for_each(|(sum, x)| *sum += x);
        }
        out.iter_mut().zip(&*squares).for_each(|(sum, squares)| *sum /= squares);
    }
}

pub(crate) struct OverlapAdd<'a> {
    pub window: &'a Weight,
    pub hop: usize,
}

impl OpKernel for OverlapAdd<'_> {
    fn name(&self, _: &Core, _: &[&ValueInfo]) -> String {
        "overlap-add".to_owned()
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let (window, hop, [_, count, _]) = (step.dense(self.window), self.hop, step.dims(0));
        Call::new(move |o| overlap_add(o.inputs.floats(0), &window, (count, hop), o.scratch, o.out))
            .with_scratch(step.out().shape.last())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::elementwise::testing::*;

    /// Sums of four terms and a quotient.
    const ERROR: f64 = 2e-6;

    /// The formula in f64, sample by sample.
    fn plain(frames: &[f32], window: &[f32], (count, hop): (usize, usize)) -> Vec<f64> {
        let n = window.len();
        let mut out = vec![];
        for frames in frames.chunks_exact(count * n) {
            for s in 0..(count - 1) * hop {
                let at = |f: usize| (s + n / 2).checked_sub(f * hop).filter(|j| *j < n);
                let covering: Vec<_> = (0..count).filter_map(|f| at(f).map(|j| (f, j))).collect();
                let sum: f64 = covering.iter().map(|(f, j)| f64::from(frames[f * n + j])).sum();
                let squares: f64 = covering.iter().map(|(_, j)| f64::from(window[*j]).powi(2)).sum();
                out.push(sum / squares);
            }
        }
        out
    }

    fn run(frames: &[f32], window: &[f32], batch: usize, (count, hop): (usize, usize)) -> Vec<f32> {
        let samples = (count - 1) * hop;
        let (mut squares, mut out) = (vec![9.0; samples], vec![9.0; batch * samples]);
        overlap_add(frames, window, (count, hop), &mut squares, &mut out);
        out
    }

    #[test]
    fn matches_the_formula() {
        for (batch, count, n, hop) in
            [(1, 121, 16, 4), (2, 2, 16, 4), (3, 9, 20, 7), (1, 5, 2, 1), (2, 6, 8, 8)]
        {
            let frames = noise(batch * count * n, 1);
            let window: Vec<f32> = noise(n, 2).iter().map(|w| w + 2.0).collect();
            let want = plain(&frames, &window, (count, hop));
            let what = format!("{batch} {count} {n} {hop}");
            assert_close(&run(&frames, &window, batch, (count, hop)), &want, ERROR, &what);
        }
    }

    /// A signal cut into frames and multiplied by the window twice is restored.
    #[test]
    fn a_signal_comes_back() {
        let (count, n, hop) = (41, 16, 4);
        let window: Vec<f32> =
            (0..n).map(|j| (std::f32::consts::PI * j as f32 / n as f32).sin().powi(2)).collect();
        let signal = noise(count * hop + n, 3);
        let frame = |f: usize| (0..n).map(move |j| (f * hop + j, j));
        let frames: Vec<f32> =
            (0..count).flat_map(frame).map(|(s, j)| signal[s] * window[j] * window[j]).collect();
        let want: Vec<f64> = signal[n / 2..][..(count - 1) * hop].iter().map(|x| f64::from(*x)).collect();
        assert_close(&run(&frames, &window, 1, (count, hop)), &want, ERROR, "overlapping frames");
    }
}
