//! Means of segments: each row becomes the mean of the rows of its segment.
//!
//! `x`, `out` [B, T, C]; f32. A segment has `rows` rows, the last one of a sequence may have fewer. A task is
//! a segment of a sequence, or some of its channels; each sum goes over rows in order.

use crate::kernels::elementwise::SharedMut;
use crate::op::{Binding, Call, OpKernel};
use crate::simd::{Kernel, Simd};
use crate::weights::Core;
use crate::{Isa, Team};
use orate_graph::ValueInfo;

/// Channels per task: a few cache lines of each row.
const TASK: usize = 64;

/// Fills `out` for `x` of `batch` sequences of rows of `channels`.
///
/// # Panics
/// `x` and `out` are not [B, T, C], or segments have no rows.
pub fn segment_mean(
    isa: Isa,
    team: &Team,
    x: &[f32],
    (batch, channels): (usize, usize),
    rows: usize,
    out: &mut [f32],
) {
    assert_eq!(x.len(), out.len(), "input and output of equal size");
    assert!(rows > 0, "segments of at least a row");
    if out.is_empty() {
        return;
    }
    let time = x.len() / (batch * channels);
    assert_eq!(x.len(), batch * time * channels, "x is [B, T, C]");
    let (segments, parts) = (time.div_ceil(rows), channels.div_ceil(TASK));
    let out = SharedMut::new(out);
    team.run(batch * segments * parts, &|_, task| {
        let (b, segment, part) = (task / parts / segments, task / parts % segments, task % parts);
        let (first, end) = (segment * rows, time.min((segment + 1) * rows));
        let at = (b * time + first) * channels + part * TASK;
        isa.run(Segment {
            x: &x[at..],
            rows: end - first,
            channels,
            count: TASK.min(channels - part * TASK),
            // SAFETY: within the result; only this task writes these channels of these rows.
            out: unsafe { out.as_ptr().add(at) },
        });
    });
}

/// `count` channels of a segment.
struct Segment<'a> {
    x: &'a [f32],
    rows: usize,
    channels: usize,
    count: usize,
    out: *mut f32,
}

impl Kernel for Segment<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let factor = s.splat(1.0 / self.rows as f32);
        let end = (self.rows - 1) * self.channels + self.count;
        let x = self.x[..end].as_ptr();
        for c in (0..self.count).step_by(S::LANES) {
            let n = S::LANES.min(self.count - c);
            // SAFETY: each row has `n` channels from `c` on.
            unsafe {
                let mut sum = s.splat(0.0);
                for row in 0..self.rows {
                    sum = s.add(sum, s.load_partial(x.add(row * self.channels + c), n));
                }
                let mean = s.mul(sum, factor);
                for row in 0..self.rows {
                    s.store_partial(self.out.add(row * self.channels + c), mean, n);
                }
            }
        }
    }
}

pub(crate) struct SegmentMean {
    pub rows: usize,
}

impl OpKernel for SegmentMean {
    fn name(&self, core: &Core, _: &[&ValueInfo]) -> String {
        format!("{}-segment-mean", core.isa.vectors())
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let (rows, [batch, _, channels]) = (self.rows, step.dims(0));
        Call::new(move |o| segment_mean(o.isa, o.team, o.inputs.floats(0), (batch, channels), rows, o.out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::elementwise::testing::*;

    /// Sums of up to 100 numbers up to 1 in order, and a product.
    const ERROR: f64 = 2e-6;

    #[test]
    fn matches_the_formula() {
        for (batch, time, channels, rows) in
            [(1, 1, 1, 1), (1, 250, 128, 100), (2, 7, 33, 3), (1, 100, 17, 100), (3, 5, 70, 9)]
        {
            let x = noise(batch * time * channels, 1);
            let want: Vec<f64> = (0..x.len())
                .map(|i| {
                    let (c, t, b) = (i % channels, i / channels % time, i / channels / time);
                    let first = t / rows * rows;
                    let segment = first..time.min(first + rows);
                    let sum: f64 = segment.clone().map(|t| f64::from(x[(b * time + t) * channels + c])).sum();
                    sum / segment.len() as f64
                })
                .collect();
            everywhere(
                |isa, team| {
                    let mut out = vec![9.0; x.len()];
                    segment_mean(isa, team, &x, (batch, channels), rows, &mut out);
                    out
                },
                |isa, got| {
                    assert_close(got, &want, ERROR, &format!("{batch} {time} {channels} {rows} {isa}"))
                },
            );
        }
    }
}
