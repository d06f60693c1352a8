//! Rows beyond the ends of sequences: `[B, T, C]` → `[B, before + T + after, C]`, f32.
//!
//! Zeros, the edge row repeated, or the sequence mirrored at the edge row. The caller copies alone, since
//! padded inputs are short.

use crate::op::{Binding, Call, OpKernel};
use crate::weights::Core;
use orate_graph::Padding;
use orate_graph::ValueInfo;

/// Pads `x`, `batch` sequences of `time` rows of `channels`, with `before` rows at the start; the length of
/// `out` gives the rows at the end.
///
/// # Panics
/// `x` or `out` does not have this shape, or there are too few rows to mirror.
pub fn pad(x: &[f32], [batch, time, channels]: [usize; 3], padding: Padding, before: usize, out: &mut [f32]) {
    assert_eq!(x.len(), batch * time * channels, "x is [B, T, C]");
    if out.is_empty() {
        return;
    }
    let padded = out.len() / (batch * channels);
    assert!(out.len() == batch * padded * channels && padded >= before + time, "out is [B, … + T + …, C]");
    for (b, out) in out.chunks_exact_mut(padded * channels).enumerate() {
        let x = &x[b * time * channels..][..time * channels];
        for (t, out) in out.chunks_exact_mut(channels).enumerate() {
            match source(padding, t, before, time) {
                Some(row) => out.copy_from_slice(&x[row * channels..][..channels]),
                None => out.fill(0.0),
            }
        }
    }
}

/// Row of x at row `t` of the result, or `None` for zeros.
fn source(padding: Padding, t: usize, before: usize, time: usize) -> Option<usize> {
    let inside = (before..before + time).contains(&t);
    match padding {
        _ if inside => Some(t - before),
        Padding::Zero => None,
        Padding::Repeat => Some(t.saturating_sub(before).min(time - 1)),
        Padding::Reflect if t < before => Some(before - t),
        Padding::Reflect => Some(2 * (time - 1) - (t - before)),
    }
}

pub(crate) struct Pad {
    pub padding: Padding,
    pub before: usize,
}

impl OpKernel for Pad {
    fn name(&self, _: &Core, _: &[&ValueInfo]) -> String {
        "copy".to_owned()
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let (sizes, padding, before) = (step.dims(0), self.padding, self.before);
        Call::new(move |o| pad(o.inputs.floats(0), sizes, padding, before, o.out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sequences_of_three_rows() {
        let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        for (padding, want) in [
            (Padding::Zero, [0.0, 0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 4.0, 5.0, 6.0, 0.0]),
            (Padding::Repeat, [1.0, 1.0, 1.0, 2.0, 3.0, 3.0, 4.0, 4.0, 4.0, 5.0, 6.0, 6.0]),
            (Padding::Reflect, [3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 6.0, 5.0, 4.0, 5.0, 6.0, 5.0]),
        ] {
            let mut out = [9.0; 12];
            pad(&x, [2, 3, 1], padding, 2, &mut out);
            assert_eq!(out, want, "{padding:?}");
        }
    }
}
