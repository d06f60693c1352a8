//! Depthwise convolution over time, alone or followed by a layer norm.
//!
//! ```text
//! y[b,t,c] = bias[c] + Σ_j weights[j,c] · x[b, t − left + j·dilation, c]
//! ```
//!
//! `x`, `y` [B, T, C], `weights` [taps, C] (tap-major, so that channels are contiguous), `bias` `[C]`; f32.
//! Rows before and after x are its [`Edges`]. Each sum starts with the bias and adds taps in order, in f32.
//!
//! Rows t, t + dilation, t + 2·dilation … read overlapping inputs. The fast version computes four such rows
//! together, one vector of channels at a time: with 5 taps it loads 8 inputs and 5 weights for 4 results
//! instead of 40. The normalization follows while the rows are in the first-level cache. Chunks of rows are
//! split over the team. Buffers and C should be multiples of 64 bytes: vectors that cross cache lines slow
//! AVX-512 from 0.10 to 0.28 ns per output (72 rows of 512, 5 taps, one core of a 2.6 GHz Xeon). Results do
//! not depend on the chunks.

use crate::kernels::elementwise::for_rows;
use crate::kernels::layer_norm::{LayerNorm, OwnedNorm, normalize_row};
use crate::kernels::matmul::Edges;
use crate::op::{Binding, Call, OpKernel};
use crate::simd::{Kernel, Simd};
use crate::weights::Core;
use crate::{Isa, Team};
use orate_graph::{ConvGeometry, Norm, ValueInfo, Weight};

/// Rows that are computed together.
const BLOCK: usize = 4;

/// Taps at a time, if not all of them fit the registers.
const TAPS: usize = 32;

/// A depthwise convolution with as many outputs as inputs.
#[derive(Clone, Copy, Debug)]
pub struct DepthwiseConv<'a> {
    /// [taps, C], tap-major.
    pub weights: &'a [f32],
    /// `[C]`
    pub bias: &'a [f32],
    /// Number of taps, at least 1.
    pub taps: usize,
    /// Distance of neighboring taps in time steps, at least 1.
    pub dilation: usize,
    /// Padding before the first row: (taps−1)·dilation if causal, half of it if centered. The rest of
    /// (taps−1)·dilation is after the last row.
    pub left: usize,
}

/// Input of a convolution.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'a> {
    /// [B, T, C]
    pub x: &'a [f32],
    /// B
    pub batch: usize,
    /// Rows before and after x.
    pub edges: Edges<'a>,
    /// `[B]`: with [`Edges::Repeat`], rows of a sequence after its length, at least 1, are read as its last.
    pub lengths: Option<&'a [i32]>,
}

impl Frames<'_> {
    /// Rows of a sequence of `steps`.
    fn length(&self, batch: usize, steps: usize) -> usize {
        self.lengths.map_or(steps, |lengths| lengths[batch].clamp(1, steps as i32) as usize)
    }
}

impl DepthwiseConv<'_> {
    /// `out` [B, T, C] = the convolution of `frames`, then `norm` if given. Not in place.
    ///
    /// # Panics
    /// Slice lengths do not match.
    pub fn run(
        &self,
        isa: Isa,
        team: &Team,
        frames: Frames<'_>,
        norm: Option<&LayerNorm<'_>>,
        out: &mut [f32],
    ) {
        let channels = self.bias.len();
        assert!(self.taps > 0 && self.dilation > 0, "at least one tap, at least one step apart");
        assert_eq!(self.weights.len(), self.taps * channels, "weights are [taps, C]");
        assert_eq!(frames.x.len(), out.len(), "input and output of equal size");
        assert!(norm.is_none_or(|n| n.weight.len() == channels && n.bias.len() == channels), "norm over C");
        if out.is_empty() {
            return;
        }
        let steps = out.len() / channels / frames.batch;
        let beyond = match frames.edges {
            Edges::Repeat => 0,
            Edges::Zeros(_) => 1,
            Edges::History(_) => frames.batch * self.left,
        };
        assert_eq!(frames.edges.rows().len(), beyond * channels, "rows beyond the ends are [{beyond}, C]");
        assert_eq!(out.len(), frames.batch * steps * channels, "input is [B, T, C]");
        assert!(frames.lengths.is_none_or(|l| l.len() == frames.batch), "a length for each sequence");
        for_rows(team, out, channels, &|rows, out| {
            let mut row = rows.start;
            // A chunk may extend past the end of a batch row.
            while row < rows.end {
                let (b, t) = (row / steps, row % steps);
                let count = (steps - t).min(rows.end - row);
                let out = &mut out[(row - rows.start) * channels..][..count * channels];
                let last = frames.length(b, steps) - 1;
                isa.run(Rows { conv: *self, norm, frames, steps, last, batch_row: b, first: t, out });
                row += count;
            }
        });
    }
}

/// Output rows from time `first` on, of one batch row with `steps` rows.
struct Rows<'a> {
    conv: DepthwiseConv<'a>,
    norm: Option<&'a LayerNorm<'a>>,
    frames: Frames<'a>,
    steps: usize,
    /// The last row that is read.
    last: usize,
    batch_row: usize,
    first: usize,
    out: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (channels, dilation) = (self.conv.bias.len(), self.conv.dilation);
        let rows = self.out.len() / channels;
        let out = self.out.as_mut_ptr();
        for residue in 0..dilation.min(rows) {
            let mut row = residue;
            while row < rows {
                let left = (rows - row).div_ceil(dilation);
                let count = if left >= BLOCK { BLOCK } else { 1 };
                // SAFETY: the last of `count` rows, `dilation` apart, is still below `rows`.
                unsafe {
                    match (self.conv.taps, count) {
                        (3, BLOCK) => self.block::<S, 3, BLOCK>(s, row, out),
                        (3, _) => self.block::<S, 3, 1>(s, row, out),
                        (5, BLOCK) => self.block::<S, 5, BLOCK>(s, row, out),
                        (5, _) => self.block::<S, 5, 1>(s, row, out),
                        (7, BLOCK) => self.block::<S, 7, BLOCK>(s, row, out),
                        (7, _) => self.block::<S, 7, 1>(s, row, out),
                        (_, BLOCK) => self.any_taps::<S, BLOCK>(s, row, out),
                        (_, _) => self.any_taps::<S, 1>(s, row, out),
                    }
                    if let Some(norm) = self.norm {
                        for i in 0..count {
                            let y = out.add((row + i * dilation) * channels);
                            normalize_row(s, norm, y, y);
                        }
                    }
                }
                row += count * dilation;
            }
        }
    }
}

impl Rows<'_> {
    /// The position beyond which taps read the last row of a sequence that has a length.
    #[inline(always)]
    fn last_tapped(&self) -> usize {
        if self.frames.lengths.is_some() { self.conv.left + self.last } else { usize::MAX }
    }

    /// Input row that tap `tap` reads for output row `row`.
    #[inline(always)]
    fn input(&self, row: usize, tap: usize) -> *const f32 {
        let channels = self.conv.bias.len();
        let (at, edges) = (self.first + row + tap * self.conv.dilation, self.frames.edges);
        let at = at.min(self.last_tapped());
        let (beyond, row) = edges.find(self.batch_row, at, self.conv.left, self.steps);
        let rows = if beyond { edges.rows() } else { self.frames.x };
        rows[row * channels..][..channels].as_ptr()
    }

    /// Computes `R` output rows with stride `dilation`, for `K` taps.
    ///
    /// # Safety
    /// All of them lie within `out`, and the convolution has `K` taps.
    #[inline(always)]
    unsafe fn block<S: Simd, const K: usize, const R: usize>(&self, s: S, row: usize, out: *mut f32) {
        let (channels, dilation) = (self.conv.bias.len(), self.conv.dilation);
        // Input i contributes to output r through tap i − r. R + K − 1 of these are used.
        let mut inputs = [std::ptr::null(); 16];
        for (i, input) in inputs.iter_mut().enumerate().take(R + K - 1) {
            *input = self.input(row, i);
        }
        let pitch = dilation * channels;
        // SAFETY: the caller vouches for the output rows; `n` floats from `c` on are within `channels`.
        unsafe {
            let out = out.add(row * channels);
            let mut c = 0;
            while c + S::LANES <= channels {
                self.vector::<S, K, R>(s, &inputs, (c, S::LANES), out, pitch);
                c += S::LANES;
            }
            if c < channels {
                self.vector::<S, K, R>(s, &inputs, (c, channels - c), out, pitch);
            }
        }
    }

    /// Computes `n` channels from `c` on of `R` output rows with stride `pitch`.
    ///
    /// # Safety
    /// All rows have `c + n` channels.
    #[inline(always)]
    unsafe fn vector<S: Simd, const K: usize, const R: usize>(
        &self,
        s: S,
        inputs: &[*const f32; 16],
        (c, n): (usize, usize),
        out: *mut f32,
        pitch: usize,
    ) {
        let channels = self.conv.bias.len();
        let weights = self.conv.weights.as_ptr();
        // SAFETY: tap j's weights start at `j * channels`; the caller vouches for the rest.
        unsafe {
            let mut sums = [load(s, self.conv.bias.as_ptr().add(c), n); R];
            let mut w = [s.splat(0.0); K];
            for (j, w) in w.iter_mut().enumerate() {
                *w = load(s, weights.add(j * channels + c), n);
            }
            for (i, input) in inputs.iter().enumerate().take(R + K - 1) {
                let x = load(s, input.add(c), n);
                for (r, sum) in sums.iter_mut().enumerate() {
                    if i >= r && i - r < K {
                        *sum = s.fma(w[i - r], x, *sum);
                    }
                }
            }
            for (r, sum) in sums.iter().enumerate() {
                let y = out.add(r * pitch + c);
                if n == S::LANES { s.store(y, *sum) } else { s.store_partial(y, *sum, n) }
            }
        }
    }

    /// Computes `R` output rows with stride `dilation` for any number of taps, with the same steps as
    /// [`Rows::block`]: some taps at a time, between which sums wait in `out`.
    ///
    /// # Safety
    /// All of them lie within `out`.
    #[inline(always)]
    unsafe fn any_taps<S: Simd, const R: usize>(&self, s: S, row: usize, out: *mut f32) {
        let (channels, taps) = (self.conv.bias.len(), self.conv.taps);
        let pitch = self.conv.dilation * channels;
        for first in (0..taps).step_by(TAPS) {
            let count = TAPS.min(taps - first);
            let mut inputs = [std::ptr::null(); TAPS + BLOCK - 1];
            for (i, input) in inputs.iter_mut().enumerate().take(count + R - 1) {
                *input = self.input(row, first + i);
            }
            for c in (0..channels).step_by(S::LANES) {
                let n = S::LANES.min(channels - c);
                // SAFETY: `n` floats from `c` on are within each row of `channels` floats.
                unsafe {
                    let out = out.add(row * channels + c);
                    let mut sums = [load(s, self.conv.bias.as_ptr().add(c), n); R];
                    if first > 0 {
                        (0..R).for_each(|r| sums[r] = load(s, out.add(r * pitch), n));
                    }
                    // Weights of taps i, i − 1, …
                    let mut w = [s.splat(0.0); R];
                    for (i, input) in inputs.iter().enumerate().take(count + R - 1) {
                        let x = load(s, input.add(c), n);
                        w.copy_within(..R - 1, 1);
                        if i < count {
                            w[0] = load(s, self.conv.weights.as_ptr().add((first + i) * channels + c), n);
                        }
                        if i + 1 >= R && i < count {
                            (0..R).for_each(|r| sums[r] = s.fma(w[r], x, sums[r]));
                        } else {
                            for r in (0..R).filter(|r| (*r..*r + count).contains(&i)) {
                                sums[r] = s.fma(w[r], x, sums[r]);
                            }
                        }
                    }
                    for (r, sum) in sums.iter().enumerate() {
                        let y = out.add(r * pitch);
                        if n == S::LANES { s.store(y, *sum) } else { s.store_partial(y, *sum, n) }
                    }
                }
            }
        }
    }
}

/// # Safety
/// `p` is valid for `n` floats.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, p: *const f32, n: usize) -> S::V {
    // SAFETY: the caller vouches for `n` floats.
    unsafe { if n == S::LANES { s.load(p) } else { s.load_partial(p, n) } }
}

pub(crate) struct DepthwiseConv1d<'a> {
    pub weight: &'a Weight,
    pub bias: &'a Weight,
    pub geometry: ConvGeometry,
    pub norm: Option<&'a Norm>,
}

impl OpKernel for DepthwiseConv1d<'_> {
    fn name(&self, core: &Core, _: &[&ValueInfo]) -> String {
        let norm = if self.norm.is_some() { "-norm" } else { "" };
        format!("{}-depthwise{norm}", core.isa.vectors())
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let (weights, bias) = (step.dense(self.weight), step.dense(self.bias));
        let norm = self.norm.map(|n| OwnedNorm::new(n, step));
        let (g, [batch, _, channels]) = (self.geometry, step.dims::<3>(0));
        let zeros = vec![0.0; channels];
        let has_lengths = g.edges == orate_graph::Edges::Lengths;
        Call::new(move |o| {
            let conv = DepthwiseConv {
                weights: &weights,
                bias: &bias,
                taps: g.taps,
                dilation: g.dilation,
                left: g.left,
            };
            let edges = Edges::of(&g, &zeros, || o.inputs.floats(1));
            let lengths = has_lengths.then(|| o.inputs.integers(1));
            let frames = Frames { x: o.inputs.floats(0), batch, edges, lengths };
            conv.run(o.isa, o.team, frames, norm.as_ref().map(OwnedNorm::get).as_ref(), o.out);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::elementwise::testing::*;
    use crate::kernels::layer_norm;

    /// Up to eight products of magnitude one, each rounded. With more taps, as many times this.
    const ERROR: f64 = 1e-6;
    /// The error after a normalization, which divides by a deviation near one.
    const NORM_ERROR: f64 = 4e-6;

    fn plain(conv: &DepthwiseConv<'_>, frames: Frames<'_>) -> Vec<f64> {
        let channels = conv.bias.len();
        let steps = frames.x.len() / channels / frames.batch;
        let mut y = vec![0.0; frames.x.len()];
        for b in 0..frames.batch {
            for t in 0..steps {
                for c in 0..channels {
                    y[(b * steps + t) * channels + c] = (0..conv.taps).fold(conv.bias[c] as f64, |sum, j| {
                        let from = t as isize - conv.left as isize + (j * conv.dilation) as isize;
                        let near = from.clamp(0, steps as isize - 1);
                        if near != from && matches!(frames.edges, Edges::Zeros(_)) {
                            return sum;
                        }
                        let x = frames.x[(b * steps + near as usize) * channels + c] as f64;
                        sum + conv.weights[j * channels + c] as f64 * x
                    });
                }
            }
        }
        y
    }

    #[test]
    fn matches_the_formula() {
        // B, T, C, taps, dilation, causal
        let cases = [
            (2, 72, 512, 5, 1, false),
            (2, 72, 512, 5, 8, false),
            (1, 72, 512, 5, 4, false),
            (1, 432, 512, 7, 4, true),
            (1, 80, 256, 5, 2, false),
            (1, 81, 64, 5, 1, false),
            (2, 30, 24, 7, 1, true),
            (1, 20, 32, 3, 2, true),
            (1, 19, 48, 4, 3, false),
            (3, 1, 8, 5, 2, false),
            (1, 2, 1, 7, 1, true),
            (2, 5, 17, 5, 8, false),
            (1, 9, 15, 1, 1, false),
            (1, 40, 67, 31, 1, true),
            (2, 21, 33, 70, 2, false),
        ];
        for case @ (batch, steps, channels, taps, dilation, causal) in cases {
            let x = noise(batch * steps * channels, 1);
            let (weights, bias) = (noise(taps * channels, 2), noise(channels, 3));
            let total = (taps - 1) * dilation;
            let left = if causal { total } else { total / 2 };
            let conv = DepthwiseConv { weights: &weights, bias: &bias, taps, dilation, left };
            let zeros = vec![0.0; channels];
            let edges = if causal { Edges::Zeros(&zeros) } else { Edges::Repeat };
            let frames = Frames { x: &x, batch, edges, lengths: None };
            let want = plain(&conv, frames);
            let run = |isa: Isa, team: &Team, norm: Option<&LayerNorm<'_>>| {
                let mut out = vec![9.0; x.len()];
                conv.run(isa, team, frames, norm, &mut out);
                out
            };
            let what = |isa: Isa| format!("{case:?} {isa}");
            let more = (taps as f64 / 8.0).max(1.0);
            everywhere(
                |isa, team| run(isa, team, None),
                |isa, got| assert_close(got, &want, more * ERROR, &what(isa)),
            );
            let norm = LayerNorm { weight: &weights[..channels], bias: &bias, eps: 1e-3 };
            let want = layer_norm::plain(&norm, &want);
            let limit = if channels < 4 { 1e-3 } else { more * NORM_ERROR };
            everywhere(
                |isa, team| run(isa, team, Some(&norm)),
                |isa, got| assert_close(got, &want, limit, &what(isa)),
            );
        }
    }

    #[test]
    fn a_batch_row_equals_the_row_alone() {
        let (steps, channels) = (20, 40);
        let x = noise(2 * steps * channels, 1);
        let (weights, bias) = (noise(5 * channels, 2), noise(channels, 3));
        let conv = DepthwiseConv { weights: &weights, bias: &bias, taps: 5, dilation: 2, left: 4 };
        everywhere(
            |isa, team| {
                let run = |x: &[f32], batch| {
                    let mut out = vec![0.0; x.len()];
                    conv.run(
                        isa,
                        team,
                        Frames { x, batch, edges: Edges::Repeat, lengths: None },
                        None,
                        &mut out,
                    );
                    out
                };
                let both = run(&x, 2);
                assert_eq!(both[..steps * channels], run(&x[..steps * channels], 1), "{isa}");
                both
            },
            |_, _| {},
        );
    }

    #[test]
    #[ignore = "timing; run with --ignored --nocapture"]
    fn bench() {
        let team = Team::new(1).expect("a thread");
        for isa in Isa::available() {
            for (rows, channels, taps, dilation) in
                [(72, 512, 5, 1), (72, 512, 5, 8), (432, 512, 7, 4), (80, 256, 5, 1), (250, 1280, 31, 1)]
            {
                let mut stores: [Vec<f32>; 4] = Default::default();
                let [x, weights, bias, out] = &mut stores;
                let x = &*aligned(x, rows * channels);
                let (weights, bias) = (&*aligned(weights, taps * channels), &*aligned(bias, channels));
                let mut out = aligned(out, rows * channels);
                let left = (taps - 1) * dilation / 2;
                let conv = DepthwiseConv { weights, bias, taps, dilation, left };
                let norm = LayerNorm { weight: bias, bias, eps: 1e-6 };
                for norm in [None, Some(&norm)] {
                    let frames = Frames { x, batch: 1, edges: Edges::Repeat, lengths: None };
                    let t =
                        best_of(200, || conv.run(isa, &team, frames, norm, std::hint::black_box(&mut out)));
                    let ns = t / x.len() as f64 * 1e9;
                    println!(
                        "{isa} {rows}x{channels} k{taps} d{dilation} norm {}: {ns:.3} ns",
                        norm.is_some()
                    );
                }
            }
        }
    }
}
