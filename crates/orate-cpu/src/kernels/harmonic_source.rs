//! Source signal of a vocoder: a sine for each harmonic of a fundamental frequency, and noise.
//!
//! ```text
//! r       = f0[frame] · (h + 1) / rate              cycles per sample, both operations rounded to f32
//! cycles  = Σ r up to and with the sample, in f64; rounded to f32; then modulo 1
//! voiced  = f0[frame] > 10
//! out     = voiced:  0.1 · sin(2π · cycles + phases[h]) + 0.003 · noise
//!           else:    0.1 / 3 · noise
//! ```
//!
//! `f0` [B, T], `phases` [B, H], `noise` and `out` [B, T · hop, H]; f32. f0 is constant within a frame, so a
//! sum is the sum before the frame plus a multiple of r. The terms have 24 bits, so f64 sums them without
//! rounding, and their order does not matter. The sums before all frames come first; then threads share the
//! frames.

use crate::kernels::elementwise::for_rows;
use crate::kernels::vecmath::sine;
use crate::op::{Binding, Call, OpKernel};
use crate::simd::{Kernel, Simd};
use crate::weights::Core;
use crate::{Isa, Team};
use orate_graph::ValueInfo;

/// Samples of a harmonic at a time.
const BLOCK: usize = 64;

/// Frames with a lower frequency have noise only.
const LEAST: f32 = 10.0;

/// Operands of [`harmonic_source`].
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// [B, T], in Hz.
    pub f0: &'a [f32],
    /// [B, H], in radians.
    pub phases: &'a [f32],
    /// [B, T · hop, H]
    pub noise: &'a [f32],
    /// B
    pub batch: usize,
    /// Samples per frame.
    pub hop: usize,
    /// Samples per second.
    pub rate: f32,
}

impl Source<'_> {
    fn harmonics(&self) -> usize {
        self.phases.len() / self.batch
    }

    /// Cycles per sample of harmonic `h` in a frame, counted over all sequences.
    #[inline(always)]
    fn step(&self, frame: usize, h: usize) -> f32 {
        self.f0[frame] * (h + 1) as f32 / self.rate
    }
}

/// Floats of scratch memory for `frames` frames of all sequences.
pub fn scratch_len(frames: usize, harmonics: usize) -> usize {
    2 * frames * harmonics
}

/// Fills `out` [B, T · hop, H].
///
/// # Panics
/// Sizes do not match, or there is less scratch than [`scratch_len`].
pub fn harmonic_source(isa: Isa, team: &Team, x: Source<'_>, scratch: &mut [f32], out: &mut [f32]) {
    if out.is_empty() {
        return;
    }
    let (frames, harmonics) = (x.f0.len(), x.harmonics());
    assert_eq!(x.phases.len(), x.batch * harmonics, "phases are [B, H]");
    assert_eq!(out.len(), frames * x.hop * harmonics, "out is [B, T · hop, H]");
    assert_eq!(x.noise.len(), out.len(), "as much noise");
    let before = &mut scratch[..scratch_len(frames, harmonics)];
    let time = frames / x.batch;
    for (i, words) in before.chunks_exact_mut(2 * harmonics * time).enumerate() {
        for h in 0..harmonics {
            let mut sum = 0.0;
            for (t, words) in words.chunks_exact_mut(2 * harmonics).enumerate() {
                store(&mut words[2 * h..], sum);
                sum += x.hop as f64 * f64::from(x.step(i * time + t, h));
            }
        }
    }
    let before = &*before;
    for_rows(team, out, x.hop * harmonics, &|frames, out| {
        isa.run(Frames { x, before, first: frames.start, out });
    });
}

/// A double as two floats with its bits.
fn store(words: &mut [f32], x: f64) {
    let bits = x.to_bits();
    (words[0], words[1]) = (f32::from_bits(bits as u32), f32::from_bits((bits >> 32) as u32));
}

/// See [`store`].
#[inline(always)]
fn load(words: &[f32]) -> f64 {
    f64::from_bits(u64::from(words[1].to_bits()) << 32 | u64::from(words[0].to_bits()))
}

/// Whole frames from `first` on.
struct Frames<'a> {
    x: Source<'a>,
    /// Sum before each frame and harmonic.
    before: &'a [f32],
    first: usize,
    out: &'a mut [f32],
}

impl Kernel for Frames<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (x, harmonics) = (self.x, self.x.harmonics());
        let (len, time) = (x.hop * harmonics, x.f0.len() / x.batch);
        for (i, out) in self.out.chunks_exact_mut(len).enumerate() {
            let frame = self.first + i;
            let noise = &x.noise[frame * len..][..len];
            if x.f0[frame] <= LEAST || x.f0[frame].is_nan() {
                out.iter_mut().zip(noise).for_each(|(y, noise)| *y = noise * (0.1 / 3.0));
                continue;
            }
            for h in 0..harmonics {
                let before = load(&self.before[2 * (frame * harmonics + h)..]);
                let (step, phase) = (f64::from(x.step(frame, h)), x.phases[frame / time * harmonics + h]);
                for start in (0..x.hop).step_by(BLOCK) {
                    let mut wave = [0.0f32; BLOCK];
                    for (k, cycles) in wave.iter_mut().enumerate() {
                        let sum = (before + (start + k + 1) as f64 * step) as f32;
                        *cycles = sum - sum.floor();
                    }
                    for part in wave.chunks_exact_mut(S::LANES) {
                        // SAFETY: a part has `LANES` floats.
                        unsafe {
                            let cycles = s.load(part.as_ptr());
                            let angle = s.fma(cycles, s.splat(std::f32::consts::TAU), s.splat(phase));
                            s.store(part.as_mut_ptr(), s.mul(sine(s, angle, 0.0), s.splat(0.1)));
                        }
                    }
                    let at = start * harmonics + h;
                    let out = out[at..].iter_mut().step_by(harmonics);
                    let noise = noise[at..].iter().step_by(harmonics);
                    out.zip(noise).zip(&wave).for_each(|((y, noise), wave)| *y = wave + noise * 0.003);
                }
            }
        }
    }
}

pub(crate) struct HarmonicSource {
    pub hop: usize,
    pub rate: usize,
}

impl OpKernel for HarmonicSource {
    fn name(&self, core: &Core, _: &[&ValueInfo]) -> String {
        format!("{}-harmonic-source", core.isa.vectors())
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let (hop, rate, [batch, time, _]) = (self.hop, self.rate as f32, step.dims(0));
        Call::new(move |o| {
            let [f0, phases, noise] = [0, 1, 2].map(|i| o.inputs.floats(i));
            harmonic_source(o.isa, o.team, Source { f0, phases, noise, batch, hop, rate }, o.scratch, o.out);
        })
        .with_scratch(scratch_len(batch * time, step.shape(1).last()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::elementwise::testing::*;

    /// A tenth of a sine, whose argument of up to 10 is rounded.
    const ERROR: f64 = 2e-7;

    /// Sample by sample, as the official code computes it.
    fn plain(x: &Source<'_>) -> Vec<f64> {
        let (harmonics, time) = (x.harmonics(), x.f0.len() / x.batch);
        let mut out = vec![0.0; x.noise.len()];
        for b in 0..x.batch {
            for h in 0..harmonics {
                let mut sum = 0.0;
                for sample in 0..time * x.hop {
                    let f0 = x.f0[b * time + sample / x.hop];
                    sum += f64::from(f0 * (h + 1) as f32 / x.rate);
                    let cycles = f64::from((sum as f32).rem_euclid(1.0));
                    let at = (b * time * x.hop + sample) * harmonics + h;
                    let phase = f64::from(x.phases[b * harmonics + h]);
                    let wave = 0.1 * (std::f64::consts::TAU * cycles + phase).sin();
                    let noise = f64::from(x.noise[at]);
                    out[at] = if f0 > 10.0 { wave + 0.003 * noise } else { 0.1 / 3.0 * noise };
                }
            }
        }
        out
    }

    #[test]
    fn matches_the_formula() {
        for (batch, time, hop, harmonics) in
            [(1, 1, 1, 1), (1, 100, 480, 9), (2, 7, 65, 3), (1, 5, 64, 17), (3, 3, 130, 9)]
        {
            let f0: Vec<f32> = noise(batch * time, 1).iter().map(|x| (x * 300.0).max(-5.0).abs()).collect();
            let phases: Vec<f32> = noise(batch * harmonics, 2).iter().map(|x| x * 3.1).collect();
            let noise = noise(batch * time * hop * harmonics, 3);
            let x = Source { f0: &f0, phases: &phases, noise: &noise, batch, hop, rate: 24_000.0 };
            let want = plain(&x);
            everywhere(
                |isa, team| {
                    let mut out = vec![9.0; noise.len()];
                    let mut scratch = vec![f32::NAN; scratch_len(f0.len(), harmonics)];
                    harmonic_source(isa, team, x, &mut scratch, &mut out);
                    out
                },
                |isa, got| {
                    assert_close(got, &want, ERROR, &format!("{batch} {time} {hop} {harmonics} {isa}"))
                },
            );
        }
    }

    /// After 40 s of 400 Hz the ninth harmonic has had 144,000 cycles, of which f32 keeps 6 bits after the
    /// point.
    #[test]
    fn long_sums_are_rounded_as_one_by_one() {
        let (time, hop, harmonics) = (2000, 480, 9);
        let f0: Vec<f32> = noise(time, 1).iter().map(|x| 400.0 + 20.0 * x).collect();
        let (phases, noise) = (vec![0.0; harmonics], vec![0.0; time * hop * harmonics]);
        let x = Source { f0: &f0, phases: &phases, noise: &noise, batch: 1, hop, rate: 24_000.0 };
        let (mut out, mut scratch) = (noise.clone(), vec![0.0; scratch_len(time, harmonics)]);
        let team = Team::new(2).expect("threads");
        harmonic_source(*Isa::available().first().expect("one"), &team, x, &mut scratch, &mut out);
        assert_close(&out, &plain(&x), ERROR, "40 s");
    }
}
