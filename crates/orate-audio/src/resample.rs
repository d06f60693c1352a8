//! Sample rate conversion of whole clips: by rubato's FFT resampler, and with the filters of other packages.

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Resampler, WindowFunction};

use crate::error::{AudioError, Cause, Result, check_sample_rate};
use std::f64::consts::PI;

/// Samples of the lower rate per transform. More give a steeper filter; with this length it starts about 1 %
/// below the edge of the band that both rates share.
const LOWER_RATE_FRAME: usize = 2048;
/// Limit for the higher rate, reached only by ratios that do not occur in real audio.
const HIGHER_RATE_FRAME: usize = 1 << 18;

/// Converts mono audio from one sample rate to another.
///
/// The result is aligned with the input, without delay, and has `ceil(N * to / from)` samples. With equal
/// rates the samples are copied. Frequencies above half the lower rate are filtered out.
///
/// # Errors
///
/// [`AudioError::SampleRate`] for a rate of 0 or beyond
/// [`MAX_SAMPLE_RATE`](crate::MAX_SAMPLE_RATE).
///
/// ```
/// let one_second = vec![0.0; 44_100];
/// assert_eq!(orate_audio::resample(&one_second, 44_100, 24_000)?.len(), 24_000);
/// # Ok::<(), orate_audio::AudioError>(())
/// ```
pub fn resample(samples: &[f32], from: u32, to: u32) -> Result<Vec<f32>> {
    check_sample_rate(from)?;
    check_sample_rate(to)?;
    if from == to || samples.is_empty() {
        return Ok(samples.to_vec());
    }
    let failed = |source: Cause| AudioError::Resample { from, to, source };
    let mut resampler = Fft::<f32>::new_custom(
        from as usize,
        to as usize,
        input_frame(from, to),
        1,
        1,
        WindowFunction::BlackmanHarris2,
        FixedSync::Both,
    )
    .map_err(|error| failed(error.into()))?;
    let input = InterleavedSlice::new(samples, 1, samples.len()).map_err(|error| failed(error.into()))?;
    let output = resampler.process_all(&input, samples.len(), None).map_err(|error| failed(error.into()))?;
    let mut output = output.take_data();
    // rubato computes the length in floating point, which may be off by one.
    let length = (samples.len() as u64 * u64::from(to)).div_ceil(u64::from(from));
    output.resize(length as usize, 0.0);
    Ok(output)
}

/// Input samples per transform.
///
/// The frames of both sides must be even: rubato trims a delay of half a frame, and an odd frame would shift
/// the output by half a sample.
fn input_frame(from: u32, to: u32) -> usize {
    let divisor = gcd(from, to);
    let (unit_in, unit_out) = ((from / divisor) as usize, (to / divisor) as usize);
    let wanted = LOWER_RATE_FRAME.div_ceil(unit_in.min(unit_out));
    let allowed = HIGHER_RATE_FRAME / unit_in.max(unit_out);
    unit_in * wanted.min(allowed).max(1).next_multiple_of(2)
}

/// Limit for both terms of the ratio of rates, so that a table of filters has at most 400,000 numbers.
pub(crate) const LARGEST_TERM: u32 = 2000;

/// Low-pass filters of other packages, for [`resample_sinc`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SincFilter {
    /// That of torchaudio's `Resample` with default settings: short, with a gentle slope.
    Torchaudio,
    /// That of soxr's HQ quality, librosa's default: passes 91 % of the band. Differs from it by 65 dB on
    /// white noise, and by 55 dB where soxr interpolates its filter, as between 44.1 and 24 kHz.
    SoxrHq,
}

impl SincFilter {
    /// Cutoff as a part of half the lower rate, and zero crossings of the sinc on either side.
    fn shape(self) -> (f64, f64) {
        match self {
            Self::Torchaudio => (0.99, 6.0),
            // A Kaiser design with a transition from 0.9136 to 1 and 126 dB of attenuation.
            Self::SoxrHq => (0.9568, 91.0),
        }
    }

    /// The window at `x` from -1 to 1.
    fn window(self, x: f64) -> f64 {
        const BETA: f64 = 12.6;
        /// `bessel_i0(BETA * BETA)`
        const I0_BETA: f64 = 33_676.811_269_167_56;
        match self {
            Self::Torchaudio => (x * PI / 2.0).cos().powi(2),
            Self::SoxrHq => bessel_i0(BETA * BETA * (1.0 - x * x).max(0.0)) / I0_BETA,
        }
    }
}

/// Modified Bessel function of the first kind and order 0, of the square root of `squared`.
pub(crate) fn bessel_i0(squared: f64) -> f64 {
    let (mut sum, mut term) = (1.0, 1.0);
    let mut k = 1.0;
    while term > sum * f64::EPSILON {
        term *= squared / (4.0 * k * k);
        sum += term;
        k += 1.0;
    }
    sum
}

/// A low-pass filter at all offsets that samples of one rate have between those of another.
///
/// Sample n of the output is at n · from / to of the input: all that have the same n mod `to` share taps.
pub(crate) struct Phases {
    /// Rate of the input, divided by what both rates have in common.
    pub from: usize,
    /// Rate of the output, likewise; the number of phases.
    pub to: usize,
    /// Of each phase: the first sample that it needs, relative to the sample of phase 0, and factors.
    pub taps: Vec<(isize, Vec<f32>)>,
}

impl Phases {
    /// `None` if the ratio of rates takes large numbers.
    pub fn new(from: u32, to: u32, filter: SincFilter) -> Option<Self> {
        let divisor = gcd(from, to);
        if from.max(to) / divisor > LARGEST_TERM {
            return None;
        }
        let (from, to) = ((from / divisor) as usize, (to / divisor) as usize);
        let (cutoff, crossings) = filter.shape();
        let cutoff = from.min(to) as f64 * cutoff;
        let reach = crossings * from as f64 / cutoff;
        let taps = (0..to)
            .map(|phase| {
                let at = phase as f64 * from as f64 / to as f64;
                let (first, last) = ((at - reach).ceil() as isize, (at + reach).floor() as isize);
                let tap = |j: isize| {
                    let t = (j as f64 / from as f64 - phase as f64 / to as f64) * cutoff;
                    let sinc = if t == 0.0 { 1.0 } else { (t * PI).sin() / (t * PI) };
                    (sinc * filter.window(t / crossings) * cutoff / from as f64) as f32
                };
                (first, (first..=last).map(tap).collect())
            })
            .collect();
        Some(Self { from, to, taps })
    }
}

/// Converts mono audio from one sample rate to another with a windowed sinc.
///
/// For models that were trained with another package's resampler. [`resample`] is faster and keeps more of
/// the band; lengths are the same. It also converts rates whose ratio takes numbers above 2000, such as
/// 44,099 to 16,000 Hz.
///
/// # Errors
///
/// As [`resample`].
pub fn resample_sinc(samples: &[f32], from: u32, to: u32, filter: SincFilter) -> Result<Vec<f32>> {
    check_sample_rate(from)?;
    check_sample_rate(to)?;
    if from == to {
        return Ok(samples.to_vec());
    }
    let Some(Phases { from, to, taps: phases }) = Phases::new(from, to, filter) else {
        return resample(samples, from, to);
    };
    let length = (samples.len() as u64 * to as u64).div_ceil(from as u64) as usize;
    let sample = |n: usize| {
        let (first, taps) = &phases[n % to];
        let start = *first + (n / to * from) as isize;
        // Zeros precede and follow the clip.
        let taps = &taps[(-start).clamp(0, taps.len() as isize) as usize..];
        let rest = samples.get(start.max(0) as usize..).unwrap_or_default();
        taps.iter().zip(rest).map(|(w, x)| w * x).sum()
    };
    Ok((0..length).map(sample).collect())
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::snr_db;

    fn sine(hz: f64, sample_rate: u32, length: usize) -> Vec<f32> {
        let step = std::f64::consts::TAU * hz / f64::from(sample_rate);
        (0..length).map(|i| (0.5 * (i as f64 * step).sin()) as f32).collect()
    }

    #[test]
    fn a_sine_stays_the_same_sine() {
        for (from, to) in [
            (44_100, 24_000),
            (24_000, 44_100),
            (24_000, 48_000),
            (48_000, 16_000),
            (22_050, 16_000),
            (44_100, 44_101),
            (96_000, 8000),
            (11_025, 48_000),
        ] {
            let lower = f64::from(from.min(to));
            for part in [0.01, 0.1, 0.4] {
                let hz = lower * part;
                let input = sine(hz, from, 2 * from as usize + 4000);
                let output = resample(&input, from, to).unwrap();
                let want = sine(hz, to, output.len());
                // The signal starts and stops abruptly, so its ends ring.
                let margin = output.len() / 4;
                let inner = margin..output.len() - margin;
                let snr = snr_db(&want[inner.clone()], &output[inner]).unwrap();
                assert!(snr > 90.0, "{hz} Hz from {from} to {to} Hz: SNR {snr:.1} dB");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_filtered_out() {
        let output = resample(&sine(15_000.0, 48_000, 48_000), 48_000, 24_000).unwrap();
        let loudest = output[4000..20_000].iter().fold(0.0_f32, |a, x| a.max(x.abs()));
        assert!(loudest < 1e-4, "{loudest}");
    }

    #[test]
    fn lengths_and_edges() {
        for length in [0_usize, 1, 2, 3, 100, 1023, 2048, 2049, 44_100] {
            for (from, to) in [(44_100, 24_000), (24_000, 44_100), (3, 2), (16_000, 16_000)] {
                let got = resample(&vec![0.25; length], from, to).unwrap();
                let want = (length * to as usize).div_ceil(from as usize);
                assert_eq!(got.len(), want, "{length} samples from {from} to {to} Hz");
                assert!(got.iter().all(|x| x.is_finite()));
                // Beyond its reach from the ends, a filter passes a constant.
                for (filter, reach) in [(SincFilter::Torchaudio, 20), (SincFilter::SoxrHq, 300)] {
                    let got = resample_sinc(&vec![0.25; length], from, to, filter).unwrap();
                    assert_eq!(got.len(), want, "{length} samples from {from} to {to} Hz, {filter:?}");
                    let inner = got.get(reach..want.saturating_sub(reach)).unwrap_or_default();
                    assert!(
                        inner.iter().all(|x| (x - 0.25).abs() < 5e-4),
                        "{filter:?} from {from} to {to} Hz"
                    );
                }
            }
        }
        for (from, to) in [(0, 8000), (8000, 0), (u32::MAX, 8000)] {
            assert!(resample(&[0.0], from, to).is_err(), "{from} to {to}");
            assert!(resample_sinc(&[0.0], from, to, SincFilter::SoxrHq).is_err(), "{from} to {to}");
        }
    }
}
