//! Peaks between samples, according to ITU-R BS.1770-4.

use std::f64::consts::PI;

use crate::resample::bessel_i0;

/// Taps of each phase.
const TAPS: usize = 12;

/// Two of the four phases of the interpolation filter in annex 2. The other two are these reversed.
#[expect(clippy::excessive_precision, reason = "as printed in the recommendation")]
const PHASES: [[f32; TAPS]; 2] = [
    [
        0.0017089843750,
        0.0109863281250,
        -0.0196533203125,
        0.0332031250000,
        -0.0594482421875,
        0.1373291015625,
        0.9721679687500,
        -0.1022949218750,
        0.0476074218750,
        -0.0266113281250,
        0.0148925781250,
        -0.0083007812500,
    ],
    [
        -0.0291748046875,
        0.0292968750000,
        -0.0517578125000,
        0.0891113281250,
        -0.1665039062500,
        0.4650878906250,
        0.7797851562500,
        -0.2003173828125,
        0.1015625000000,
        -0.0582275390625,
        0.0330810546875,
        -0.0189208984375,
    ],
];

/// Gaps between samples that are handled at once.
pub(crate) const BLOCK: usize = 64;

/// The true peak in dBTP: the largest of all samples and of four values between each two.
///
/// Measured as annex 2 says, by fourfold oversampling with its filter, at any sample rate. It finds tones up
/// to 0.45 of the sample rate within -0.2 to +0.7 dB. Samples that are not finite count as silence.
///
/// ```
/// // A tone at a quarter of the sample rate, of which every sample is 3 dB below the peak.
/// let tone: Vec<f32> = [1.0, 1.0, -1.0, -1.0].repeat(100);
/// assert!((orate_audio::true_peak_dbtp(&tone) - 3.0).abs() < 0.5);
/// ```
pub fn true_peak_dbtp(samples: &[f32]) -> f64 {
    let half = TAPS / 2;
    let mut padded = vec![0.0; samples.len() + 2 * half];
    for (to, &x) in padded[half..].iter_mut().zip(samples) {
        *to = if x.is_finite() { x } else { 0.0 };
    }
    let mut peak = 0.0_f32;
    for start in (0..=samples.len()).step_by(BLOCK) {
        let gaps = BLOCK.min(samples.len() + 1 - start);
        let mut peaks = [0.0; BLOCK];
        standard_peaks(&padded[start..start + gaps + TAPS - 1], &mut peaks[..gaps]);
        peak = peaks.iter().fold(peak, |a, &b| a.max(b));
    }
    20.0 * f64::from(peak).log10()
}

/// Raises each of `peaks` to the largest absolute value in a gap between two samples and of both. The first
/// gap is that in the middle of the first [`TAPS`] samples, which must be finite.
fn standard_peaks(samples: &[f32], peaks: &mut [f32]) {
    let middle = &samples[TAPS / 2 - 1..];
    for ((peak, a), b) in peaks.iter_mut().zip(middle).zip(&middle[1..]) {
        *peak = peak.max(a.abs()).max(b.abs());
    }
    PHASES.iter().for_each(|phase| interpolated_peaks(phase, samples, peaks));
}

/// The same for one phase of a filter and for the phase that is this reversed.
fn interpolated_peaks(phase: &[f32], samples: &[f32], peaks: &mut [f32]) {
    let (mut there, mut back) = ([0.0_f32; BLOCK], [0.0_f32; BLOCK]);
    // A loop over gaps within one over taps is vectorized, and sums do not depend on how many gaps there are.
    for (k, &tap) in phase.iter().enumerate() {
        let (a, b) = (&samples[k..], &samples[phase.len() - 1 - k..]);
        for ((there, back), (a, b)) in there.iter_mut().zip(&mut back).zip(a.iter().zip(b)).take(peaks.len())
        {
            *there += tap * a;
            *back += tap * b;
        }
    }
    for (peak, (there, back)) in peaks.iter_mut().zip(there.iter().zip(&back)) {
        *peak = peak.max(there.abs()).max(back.abs());
    }
}

/// Measures true peaks for a limiter: with the filter of annex 2, because others do, and with a longer one
/// that is right within 0.1 dB up to 0.45 of the sample rate.
#[derive(Clone, Debug)]
pub(crate) struct PeakMeter {
    phases: [[f32; PeakMeter::TAPS]; 4],
    /// The largest value between samples, as a multiple of the largest sample.
    most_gain: f32,
}

impl PeakMeter {
    /// Samples around a gap that its peak is computed from, half of them before it.
    pub const TAPS: usize = 24;
    /// Of the Kaiser window.
    const BETA: f64 = 3.0;

    pub fn new() -> Self {
        let phases = [1, 2, 3, 4].map(|eighths| {
            std::array::from_fn(|k| {
                let half = Self::TAPS as f64 / 2.0;
                let distance = f64::from(eighths) / 8.0 + half - 1.0 - k as f64;
                let within = 1.0 - (distance / half).powi(2);
                let window = bessel_i0(Self::BETA.powi(2) * within) / bessel_i0(Self::BETA.powi(2));
                ((PI * distance).sin() / (PI * distance) * window) as f32
            })
        });
        let sum = |phase: &[f32]| phase.iter().map(|tap| tap.abs()).sum::<f32>();
        let sums = phases.iter().map(|phase| sum(phase)).chain(PHASES.iter().map(|phase| sum(phase)));
        // A little more, for rounding.
        Self { phases, most_gain: 1.01 * sums.fold(0.0, f32::max) }
    }

    /// Sets `peaks`, at most [`BLOCK`], to the largest absolute values in the gaps between two samples and of
    /// both. The first gap is that in the middle of the first [`Self::TAPS`] samples, which must be finite.
    /// Peaks that cannot be above `ceiling` may be 0.
    pub fn measure(&self, samples: &[f32], ceiling: f32, peaks: &mut [f32]) {
        peaks.fill(0.0);
        let largest = samples.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        if largest * self.most_gain <= ceiling {
            return;
        }
        let skipped = (Self::TAPS - TAPS) / 2;
        standard_peaks(&samples[skipped..samples.len() - skipped], peaks);
        self.phases.iter().for_each(|phase| interpolated_peaks(phase, samples, peaks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::TAU;

    #[test]
    fn tones_have_their_peak() {
        for cycles in [0.01, 0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.45] {
            for phase in [0.0, 0.3, 0.7, 1.1, 1.5] {
                let value = |i: usize| (0.5 * (TAU * cycles * i as f64 + phase).sin()) as f32;
                let tone: Vec<f32> = (0..2000).map(value).collect();
                // Without ends: there, a tone has a peak of its own.
                let error = |peaks: &[f32]| {
                    20.0 * (f64::from(peaks.iter().fold(0.0_f32, |a, &b| a.max(b))) / 0.5).log10()
                };
                let (mut standard, mut longer) = ([0.0; BLOCK], [0.0; BLOCK]);
                standard_peaks(&tone[..BLOCK + TAPS - 1], &mut standard);
                PeakMeter::new().measure(&tone[..BLOCK + PeakMeter::TAPS - 1], 0.0, &mut longer);
                let (standard, longer) = (error(&standard), error(&longer));
                let what = format!("{cycles} of the rate, phase {phase}: {standard:.2} dB, {longer:.2} dB");
                // A low tone may have no peak among so few gaps.
                assert!(cycles < 0.02 || (-0.2..0.7).contains(&standard), "{what}");
                assert!(cycles < 0.02 || (-0.1..0.7).contains(&longer), "{what}");
                assert!(longer >= standard, "{what}");
            }
        }
    }

    #[test]
    fn taps_are_those_of_the_recommendation() {
        // Each phase passes a constant, within 0.25 dB.
        for phase in &PHASES {
            let sum = phase.iter().sum::<f32>();
            assert!((0.972..1.003).contains(&sum), "{sum}");
        }
    }

    #[test]
    fn edges() {
        for silence in [&[][..], &[0.0], &[f32::NAN, f32::INFINITY]] {
            assert_eq!(true_peak_dbtp(silence), f64::NEG_INFINITY);
        }
        // A sample alone is its own peak.
        for length in [1, 2, 63, 64, 65, 200] {
            for at in [0, length / 2, length - 1] {
                let mut click = vec![0.0; length];
                click[at] = -0.5;
                assert!((true_peak_dbtp(&click) + 6.0206).abs() < 1e-3, "{at} of {length}");
            }
        }
        // The number of gaps changes nothing.
        let samples: Vec<f32> = (0..200).map(|i| ((i * i) as f32 * 0.37).sin()).collect();
        let (meter, mut whole) = (PeakMeter::new(), [0.0; BLOCK]);
        meter.measure(&samples[..BLOCK + PeakMeter::TAPS - 1], 0.5, &mut whole);
        for (window, peak) in samples.windows(PeakMeter::TAPS).zip(whole) {
            let mut single = [0.0];
            meter.measure(window, 0.5, &mut single);
            assert_eq!(single[0], peak);
        }
        // What is left out is not above the ceiling.
        for ceiling in [0.1, 0.3, 1.0, 1.9, 2.4] {
            let mut peaks = [0.0; BLOCK];
            meter.measure(&samples[..BLOCK + PeakMeter::TAPS - 1], ceiling, &mut peaks);
            assert!(peaks == whole || (peaks == [0.0; BLOCK] && whole.iter().all(|&x| x <= ceiling)));
        }
    }
}
