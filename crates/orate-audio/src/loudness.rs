//! Levels: peak, RMS, and integrated loudness according to ITU-R BS.1770-4.
//!
//! Everything is mono, in decibels relative to full scale. Silence is minus infinity.

use crate::error::{Result, check_sample_rate};
use std::ops::Range;

/// The largest absolute sample; 0 for an empty clip. NaN samples are skipped.
pub fn peak(samples: &[f32]) -> f32 {
    samples.iter().fold(0.0, |peak, x| x.abs().max(peak))
}

/// The sample peak in dBFS: 0 is full scale. (Not the true peak between samples.)
///
/// ```
/// assert_eq!(orate_audio::peak_dbfs(&[0.1, -1.0]), 0.0);
/// ```
pub fn peak_dbfs(samples: &[f32]) -> f64 {
    20.0 * f64::from(peak(samples)).log10()
}

/// The root mean square in dBFS. A full-scale sine has -3.01, a full-scale square wave 0.
pub fn rms_dbfs(samples: &[f32]) -> f64 {
    10.0 * mean_square(samples.iter().map(|&x| f64::from(x))).log10()
}

fn mean_square(samples: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = samples.len().max(1) as f64;
    samples.map(|x| x * x).sum::<f64>() / count
}

/// Length of a gating block in seconds, and the number of steps per block (75 % overlap).
const BLOCK_S: f64 = 0.4;
const STEPS_PER_BLOCK: usize = 4;
/// Blocks below this loudness are ignored, in LUFS.
const ABSOLUTE_GATE: f64 = -70.0;
/// Blocks this far below the mean of the remaining ones are ignored as well, in LU.
const RELATIVE_GATE: f64 = -10.0;

/// Integrated loudness in LUFS (ITU-R BS.1770-4): K-weighted, gated.
///
/// A 997 Hz sine at full scale has -3.01 LUFS. A clip shorter than one block of 400 ms is measured as a
/// single block, a case that the standard does not define. A clip without any block above -70 LUFS is minus
/// infinity.
///
/// # Errors
///
/// [`AudioError::SampleRate`](crate::AudioError::SampleRate).
pub fn integrated_loudness(samples: &[f32], sample_rate: u32) -> Result<f64> {
    check_sample_rate(sample_rate)?;
    let mut blocks = LoudnessBlocks::new(sample_rate);
    let mut powers: Vec<f64> = samples.iter().filter_map(|&x| blocks.push(f64::from(x))).collect();
    if powers.is_empty() {
        powers.push(blocks.mean());
    }
    Ok(gated(&powers))
}

/// Scales a clip to an integrated loudness in LUFS and returns the gain, as pyloudnorm with its default
/// filters: they differ a little from the standard, and so do blocks at the end of the clip.
///
/// A clip that is shorter than a block of 400 ms or has no block above -70 LUFS stays as it is.
///
/// # Errors
///
/// [`AudioError::SampleRate`](crate::AudioError::SampleRate).
pub fn normalize_loudness(samples: &mut [f32], sample_rate: u32, target: f64) -> Result<f64> {
    let gain = 10_f64.powf((target - pyloudnorm(samples, sample_rate)?) / 20.0);
    if !gain.is_finite() || gain <= 0.0 {
        return Ok(1.0);
    }
    samples.iter_mut().for_each(|x| *x *= gain as f32);
    Ok(gain)
}

/// Integrated loudness as measured by pyloudnorm 0.2; −∞ if a block is longer than the clip.
fn pyloudnorm(samples: &[f32], sample_rate: u32) -> Result<f64> {
    check_sample_rate(sample_rate)?;
    let (rate, step) = (f64::from(sample_rate), 1.0 / STEPS_PER_BLOCK as f64);
    let seconds = samples.len() as f64 / rate;
    if seconds < BLOCK_S {
        return Ok(f64::NEG_INFINITY);
    }
    // The last block may end after the clip. It counts as if zeros followed.
    let count = ((seconds - BLOCK_S) / (BLOCK_S * step)).round_ties_even() as usize + 1;
    let edge = |steps: f64| ((BLOCK_S * steps * rate) as usize).min(samples.len());
    let mut weighting = KWeighting(cookbook_weighting(rate));
    let squares: Vec<f64> = samples.iter().map(|&x| weighting.power(f64::from(x))).collect();
    let blocks = (0..count).map(|j| edge(j as f64 * step)..edge(j as f64 * step + 1.0));
    let powers: Vec<f64> = blocks
        .filter_map(|block: Range<usize>| Some(squares.get(block)?.iter().sum::<f64>() / (BLOCK_S * rate)))
        .collect();
    Ok(gated(&powers))
}

/// Loudness of the blocks with these powers that pass both gates.
fn gated(powers: &[f64]) -> f64 {
    let mean_above = |gate: f64| {
        let kept: Vec<f64> = powers.iter().copied().filter(|&p| lufs(p) > gate).collect();
        kept.iter().sum::<f64>() / kept.len().max(1) as f64
    };
    let relative_gate = lufs(mean_above(ABSOLUTE_GATE)) + RELATIVE_GATE;
    lufs(mean_above(relative_gate.max(ABSOLUTE_GATE)))
}

/// Powers of the gating blocks of a stream.
#[derive(Clone, Debug)]
pub(crate) struct LoudnessBlocks {
    weighting: KWeighting,
    /// Samples from one block to the next.
    step: usize,
    /// Energy of the last steps, the newest last.
    steps: [f64; STEPS_PER_BLOCK],
    /// Energy of the step that is incomplete.
    energy: f64,
    /// Samples of that step.
    filled: usize,
    /// Complete steps.
    complete: usize,
}

impl LoudnessBlocks {
    /// Seconds from one block to the next.
    pub const STEP_S: f64 = BLOCK_S / STEPS_PER_BLOCK as f64;

    pub fn new(sample_rate: u32) -> Self {
        let rate = f64::from(sample_rate);
        Self {
            weighting: KWeighting::new(rate),
            step: ((Self::STEP_S * rate).round() as usize).max(1),
            steps: [0.0; STEPS_PER_BLOCK],
            energy: 0.0,
            filled: 0,
            complete: 0,
        }
    }

    /// Samples from one block to the next.
    pub fn step(&self) -> usize {
        self.step
    }

    /// Takes a sample. Returns the power of the block that it completes, if it does.
    pub fn push(&mut self, x: f64) -> Option<f64> {
        self.energy += self.weighting.power(x);
        self.filled += 1;
        if self.filled < self.step {
            return None;
        }
        self.weighting.settle();
        self.steps.rotate_left(1);
        self.steps[STEPS_PER_BLOCK - 1] = self.energy;
        (self.energy, self.filled) = (0.0, 0);
        self.complete += 1;
        let block = (self.step * STEPS_PER_BLOCK) as f64;
        (self.complete >= STEPS_PER_BLOCK).then(|| self.steps.iter().sum::<f64>() / block)
    }

    /// Mean power of all samples, if they are fewer than a block.
    fn mean(&self) -> f64 {
        let energy = self.steps.iter().sum::<f64>() + self.energy;
        energy / (self.complete * self.step + self.filled).max(1) as f64
    }
}

/// Integrated loudness of a stream in bounded memory: powers of blocks, counted in classes of 0.1 LU.
///
/// Differs from that of a list of all blocks only by those within 0.1 LU of the relative gate.
#[derive(Clone, Debug)]
pub(crate) struct LoudnessHistogram {
    /// Number and sum of the powers in each class. The first begins at the absolute gate.
    classes: Vec<(u32, f64)>,
    blocks: u32,
}

impl LoudnessHistogram {
    const CLASSES_PER_LU: f64 = 10.0;
    /// Up to 20 LUFS.
    const CLASSES: usize = 900;

    pub fn new() -> Self {
        Self { classes: vec![(0, 0.0); Self::CLASSES], blocks: 0 }
    }

    /// Counts the power of a block.
    pub fn push(&mut self, power: f64) {
        if lufs(power) > ABSOLUTE_GATE {
            let (count, sum) = &mut self.classes[Self::class(lufs(power))];
            *count += 1;
            *sum += power;
            self.blocks += 1;
        }
    }

    /// Loudness in LUFS of the blocks so far, and how many of them passed both gates.
    pub fn integrated(&self) -> (f64, u32) {
        let all: f64 = self.classes.iter().map(|class| class.1).sum();
        let gate = lufs(all / f64::from(self.blocks.max(1))) + RELATIVE_GATE;
        let kept = &self.classes[Self::class(gate)..];
        let count = kept.iter().map(|class| class.0).sum::<u32>();
        let sum: f64 = kept.iter().map(|class| class.1).sum();
        (lufs(sum / f64::from(count.max(1))), count)
    }

    fn class(lufs: f64) -> usize {
        // Negative and infinite ones saturate.
        (((lufs - ABSOLUTE_GATE) * Self::CLASSES_PER_LU) as usize).min(Self::CLASSES - 1)
    }
}

/// Integrated loudness (ITU-R BS.1770-4) of sound that arrives piece by piece, in bounded memory.
///
/// ```
/// let mut meter = orate_audio::LoudnessMeter::new(48_000)?;
/// assert_eq!(meter.integrated(), f64::NEG_INFINITY);
/// let tone: Vec<f32> = (0..48_000).map(|i| (i as f32 * 0.1305).sin()).collect();
/// tone.chunks(1000).for_each(|piece| meter.push(piece));
/// assert!((meter.integrated() + 3.01).abs() < 0.1);
/// # Ok::<(), orate_audio::AudioError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LoudnessMeter {
    blocks: LoudnessBlocks,
    histogram: LoudnessHistogram,
    /// Whether a block is complete.
    has_block: bool,
}

impl LoudnessMeter {
    /// Prepares to measure sound with this sample rate in Hz.
    ///
    /// # Errors
    ///
    /// [`AudioError::SampleRate`](crate::AudioError::SampleRate).
    pub fn new(sample_rate: u32) -> Result<Self> {
        check_sample_rate(sample_rate)?;
        let blocks = LoudnessBlocks::new(sample_rate);
        Ok(Self { blocks, histogram: LoudnessHistogram::new(), has_block: false })
    }

    /// Takes samples. Those that are not finite count as silence.
    pub fn push(&mut self, samples: &[f32]) {
        for &x in samples {
            let x = if x.is_finite() { f64::from(x) } else { 0.0 };
            if let Some(power) = self.blocks.push(x) {
                self.histogram.push(power);
                self.has_block = true;
            }
        }
    }

    /// Loudness so far in LUFS, as by [`integrated_loudness`] within 0.1 LU; minus infinity for silence.
    pub fn integrated(&self) -> f64 {
        if !self.has_block {
            let loudness = lufs(self.blocks.mean());
            return if loudness > ABSOLUTE_GATE { loudness } else { f64::NEG_INFINITY };
        }
        match self.histogram.integrated() {
            (loudness, 1..) => loudness,
            _ => f64::NEG_INFINITY,
        }
    }
}

fn lufs(mean_square: f64) -> f64 {
    -0.691 + 10.0 * mean_square.log10()
}

/// The K weighting, sample by sample.
#[derive(Clone, Debug)]
pub(crate) struct KWeighting([Biquad; 2]);

impl KWeighting {
    pub fn new(sample_rate: f64) -> Self {
        Self(k_weighting(sample_rate))
    }

    /// The square of the next filtered sample.
    pub fn power(&mut self, x: f64) -> f64 {
        let [first, second] = &mut self.0;
        let y = second.step(first.step(x));
        y * y
    }

    /// Forgets what came before.
    pub fn reset(&mut self) {
        self.0.iter_mut().for_each(|filter| filter.state = [0.0; 2]);
    }

    /// Ends what rings too long after the last sound: denormal numbers are slow.
    pub fn settle(&mut self) {
        let states = self.0.iter_mut().flat_map(|filter| &mut filter.state);
        states.filter(|x| x.abs() < 1e-100).for_each(|x| *x = 0.0);
    }
}

/// The two filters of the K weighting for any sample rate.
///
/// BS.1770 gives coefficients for 48 kHz only. These analog parameters, also used by libebur128, reproduce
/// them.
fn k_weighting(sample_rate: f64) -> [Biquad; 2] {
    let warped = |hz: f64| (std::f64::consts::PI * hz / sample_rate).tan();

    // High shelf, the effect of the head: +4 dB above about 1.7 kHz.
    let (k, q) = (warped(1681.974450955533_f64.min(0.49 * sample_rate)), 0.7071752369554196);
    let gain = 10_f64.powf(3.999843853973347 / 20.0);
    let root = gain.powf(0.4996667741545416);
    let shelf = Biquad::new(
        [gain + root * k / q + k * k, 2.0 * (k * k - gain), gain - root * k / q + k * k],
        [1.0 + k / q + k * k, 2.0 * (k * k - 1.0), 1.0 - k / q + k * k],
    );

    // High-pass at about 38 Hz. Its numerator is not normalized, as in the standard.
    let (k, q) = (warped(38.13547087602444_f64.min(0.49 * sample_rate)), 0.5003270373238773);
    let a0 = 1.0 + k / q + k * k;
    let high_pass = Biquad::new([a0, -2.0 * a0, a0], [a0, 2.0 * (k * k - 1.0), 1.0 - k / q + k * k]);
    [shelf, high_pass]
}

/// The filters of pyloudnorm: a high shelf and a high-pass of the Audio EQ Cookbook (Bristow-Johnson).
fn cookbook_weighting(sample_rate: f64) -> [Biquad; 2] {
    let angle = |hz: f64| std::f64::consts::TAU * hz / sample_rate;

    let (w, amplitude) = (angle(1500.0), 10_f64.powf(4.0 / 40.0));
    let (cos, plus, minus) = (w.cos(), amplitude + 1.0, amplitude - 1.0);
    // 2 √A α, where α = sin w / 2 Q and Q = 1 / √2
    let slope = 2.0 * amplitude.sqrt() * w.sin() / std::f64::consts::SQRT_2;
    let shelf = Biquad::new(
        [
            amplitude * (plus + minus * cos + slope),
            -2.0 * amplitude * (minus + plus * cos),
            amplitude * (plus + minus * cos - slope),
        ],
        [plus - minus * cos + slope, 2.0 * (minus - plus * cos), plus - minus * cos - slope],
    );

    // Q is 1/2, so α is sin w.
    let w = angle(38.0);
    let (cos, alpha) = (w.cos(), w.sin());
    let high_pass = Biquad::new(
        [(1.0 + cos) / 2.0, -(1.0 + cos), (1.0 + cos) / 2.0],
        [1.0 + alpha, -2.0 * cos, 1.0 - alpha],
    );
    [shelf, high_pass]
}

/// A second-order filter in transposed direct form II.
#[derive(Clone, Debug)]
struct Biquad {
    b: [f64; 3],
    a: [f64; 2],
    state: [f64; 2],
}

impl Biquad {
    fn new(b: [f64; 3], a: [f64; 3]) -> Self {
        Self { b: b.map(|x| x / a[0]), a: [a[1] / a[0], a[2] / a[0]], state: [0.0; 2] }
    }

    fn step(&mut self, x: f64) -> f64 {
        let y = self.b[0] * x + self.state[0];
        self.state[0] = self.b[1] * x - self.a[0] * y + self.state[1];
        self.state[1] = self.b[2] * x - self.a[1] * y;
        y
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sine(hz: f64, amplitude: f64, sample_rate: u32, seconds: f64) -> Vec<f32> {
        let step = std::f64::consts::TAU * hz / f64::from(sample_rate);
        let length = (seconds * f64::from(sample_rate)) as usize;
        (0..length).map(|i| (amplitude * (i as f64 * step).sin()) as f32).collect()
    }

    fn db(decibels: f64) -> f64 {
        10_f64.powf(decibels / 20.0)
    }

    #[test]
    fn coefficients_at_48_khz_are_those_of_the_standard() {
        let [shelf, high_pass] = k_weighting(48_000.0);
        let want = [
            (shelf.b[0], 1.53512485958697),
            (shelf.b[1], -2.69169618940638),
            (shelf.b[2], 1.19839281085285),
            (shelf.a[0], -1.69065929318241),
            (shelf.a[1], 0.73248077421585),
            (high_pass.b[0], 1.0),
            (high_pass.b[1], -2.0),
            (high_pass.b[2], 1.0),
            (high_pass.a[0], -1.99004745483398),
            (high_pass.a[1], 0.99007225036621),
        ];
        for (i, (got, want)) in want.into_iter().enumerate() {
            assert!((got - want).abs() < 1e-7, "coefficient {i}: {got}, expected {want}");
        }
    }

    #[test]
    fn a_997_hz_sine_is_at_its_level() {
        for (rate, tolerance) in [(48_000, 0.01), (44_100, 0.01), (24_000, 0.05), (16_000, 0.1)] {
            for level in [0.0, -23.0, -40.0] {
                let tone = sine(997.0, db(level), rate, 3.0);
                let got = integrated_loudness(&tone, rate).unwrap();
                let want = level - 3.01;
                assert!((got - want).abs() < tolerance, "{rate} Hz, {level} dB: {got:.3} LUFS");
            }
        }
    }

    #[test]
    fn silence_and_quiet_parts_are_gated_out() {
        let rate = 48_000;
        let tone = sine(997.0, db(-20.0), rate, 4.0);
        // Both far below the tone: one by the absolute gate, one by the relative gate.
        for pause_level in [-90.0, -45.0] {
            let mut clip = sine(997.0, db(pause_level), rate, 10.0);
            clip.extend(&tone);
            clip.extend(sine(997.0, db(pause_level), rate, 10.0));
            let got = integrated_loudness(&clip, rate).unwrap();
            // Blocks that straddle an edge count in part.
            assert!((got + 23.01).abs() < 0.4, "{pause_level}: {got}");
        }
    }

    #[test]
    fn edge_lengths() {
        for (samples, finite) in [
            (vec![], false),
            (vec![0.0], false),
            (vec![0.5], true),
            (vec![0.0; 48_000], false),
            (sine(997.0, 0.5, 48_000, 0.1), true),
            (sine(997.0, 0.5, 48_000, 0.3999), true),
            (sine(997.0, 0.5, 48_000, 0.4001), true),
        ] {
            let got = integrated_loudness(&samples, 48_000).unwrap();
            assert_eq!(got.is_finite(), finite, "{} samples: {got}", samples.len());
            assert!(finite || got == f64::NEG_INFINITY);
        }
        assert!(integrated_loudness(&[0.1], 0).is_err());
        assert!(integrated_loudness(&[0.1; 10], 1).unwrap().is_finite());
    }

    #[test]
    fn normalized_clips_have_the_loudness() {
        let rate = 24_000;
        for level in [-3.0, -40.0] {
            let mut tone = sine(440.0, db(level), rate, 2.0);
            let gain = normalize_loudness(&mut tone, rate, -27.0).unwrap();
            assert!(gain.is_finite() && gain != 1.0);
            assert!((pyloudnorm(&tone, rate).unwrap() + 27.0).abs() < 1e-5);
            // The filters of the standard agree within tenths.
            assert!((integrated_loudness(&tone, rate).unwrap() + 27.0).abs() < 0.3);
        }
        for mut kept in [vec![], vec![0.5; 9599], vec![0.0; 24_000], sine(440.0, 1e-5, rate, 1.0)] {
            let before = kept.clone();
            assert_eq!(normalize_loudness(&mut kept, rate, -27.0).unwrap(), 1.0);
            assert_eq!(before, kept);
        }
        assert!(normalize_loudness(&mut [0.1], 0, -27.0).is_err());
    }

    #[test]
    fn loudness_is_that_of_pyloudnorm() {
        // `runs.front_ends.loudness` of oracle/chatterbox/golden/manifest.json
        for (rate, seconds, gain, want) in [
            (24_000, 5.1, 0.5, -8.702342164693128),
            (24_000, 5.1, 0.01, -42.6817422116536),
            (24_000, 0.95, 0.9, -5.192651402022906),
            (16_000, 3.33, 0.2, -17.179710965062448),
            (48_000, 2.0, 0.2, -16.954959983617467),
            (24_000, 1.0, 0.0001, f64::NEG_INFINITY),
        ] {
            let got = pyloudnorm(&crate::goldens::signal(3, seconds, rate, gain), rate).unwrap();
            // It keeps filtered samples in f32.
            assert!(got == want || (got - want).abs() < 1e-5, "{rate} Hz, {seconds} s: {got}, {want}");
        }
    }

    #[test]
    fn levels() {
        let cases: [(&[f32], f64, f64); 5] = [
            (&[], f64::NEG_INFINITY, f64::NEG_INFINITY),
            (&[0.0], f64::NEG_INFINITY, f64::NEG_INFINITY),
            (&[-1.0], 0.0, 0.0),
            (&[0.5, -0.5, 0.5], -6.0206, -6.0206),
            (&[1.0, 0.0], 0.0, -3.0103),
        ];
        for (samples, peak, rms) in cases {
            let close = |a: f64, b: f64| a == b || (a - b).abs() < 1e-4;
            assert!(close(peak_dbfs(samples), peak), "{samples:?}");
            assert!(close(rms_dbfs(samples), rms), "{samples:?}");
        }
        let tone = sine(1000.0, 1.0, 48_000, 1.0);
        assert!((rms_dbfs(&tone) + 3.0103).abs() < 1e-3);
    }
}
