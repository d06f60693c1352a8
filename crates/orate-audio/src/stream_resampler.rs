//! Sample rate conversion of a stream, piece by piece.

use std::sync::Arc;

use crate::error::{AudioError, Result, check_sample_rate};
use crate::resample::{LARGEST_TERM, Phases, SincFilter};

/// Independent partial sums.
const LANES: usize = 16;

/// Converts mono audio from one sample rate to another as it arrives.
///
/// As [`resample_sinc`](crate::resample_sinc) with [`SincFilter::SoxrHq`]: the result is aligned with the
/// input, without delay, and has `ceil(N * to / from)` samples, the same however the input is divided. It
/// looks about 100 samples of the lower rate ahead. Clones share the filter, which takes a
/// millisecond to compute.
///
/// ```
/// let mut resampler = orate_audio::StreamResampler::new(44_100, 24_000)?;
/// let mut output = vec![];
/// for piece in [[0.0; 20_000], [0.5; 20_000]] {
///     resampler.push(&piece, &mut output);
/// }
/// resampler.finish(&mut output);
/// assert_eq!(output.len(), 21_769);
/// # Ok::<(), orate_audio::AudioError>(())
/// ```
#[derive(Clone, Debug)]
pub struct StreamResampler {
    /// `None` if both rates are the same.
    filter: Option<Arc<Filter>>,
    /// Rate of the output in Hz.
    to: u32,
    /// Input that is still needed. Zeros precede the first sample, one per tap of a phase.
    input: Vec<f32>,
    /// How much of the input was dropped.
    dropped: u64,
    /// Where the group of inputs begins that the phases are relative to.
    group: u64,
    /// Phase of the next output.
    phase: usize,
    taken: u64,
    returned: u64,
}

#[derive(Debug)]
struct Filter {
    from: usize,
    to: usize,
    /// Taps of each phase, a multiple of [`LANES`].
    width: usize,
    /// Taps of all phases.
    taps: Vec<f32>,
    /// Where the taps of each phase end, relative to its group of inputs.
    ends: Vec<usize>,
}

impl StreamResampler {
    /// Prepares to convert from one rate in Hz to another.
    ///
    /// # Errors
    ///
    /// [`AudioError::SampleRate`] for a rate of 0 or beyond [`MAX_SAMPLE_RATE`](crate::MAX_SAMPLE_RATE),
    /// [`AudioError::Resample`] if their ratio takes numbers above 2000.
    pub fn new(from: u32, to: u32) -> Result<Self> {
        check_sample_rate(from)?;
        check_sample_rate(to)?;
        let mut this =
            Self { filter: None, to, input: vec![], dropped: 0, group: 0, phase: 0, taken: 0, returned: 0 };
        if from != to {
            let phases = Phases::new(from, to, SincFilter::SoxrHq).ok_or_else(|| {
                let source = format!("their ratio takes a number above {LARGEST_TERM}").into();
                AudioError::Resample { from, to, source }
            })?;
            let width = phases.taps.iter().map(|(_, taps)| taps.len()).max().unwrap_or(0);
            let width = width.next_multiple_of(LANES);
            let mut filter = Filter { from: phases.from, to: phases.to, width, taps: vec![], ends: vec![] };
            for (first, taps) in &phases.taps {
                // Zeros in front, where they cost no delay.
                filter.taps.resize(filter.taps.len() + width - taps.len(), 0.0);
                filter.taps.extend(taps);
                filter.ends.push(first.saturating_add_unsigned(taps.len()).unsigned_abs());
            }
            this.group = width as u64;
            this.input = vec![0.0; width];
            this.filter = Some(Arc::new(filter));
        }
        Ok(this)
    }

    /// Rate of the output in Hz.
    pub fn output_rate(&self) -> u32 {
        self.to
    }

    /// Whether the rates differ.
    pub fn converts(&self) -> bool {
        self.filter.is_some()
    }

    /// Appends the output that `samples` complete.
    pub fn push(&mut self, samples: &[f32], output: &mut Vec<f32>) {
        self.taken += samples.len() as u64;
        let Some(filter) = self.filter.clone() else {
            output.extend_from_slice(samples);
            return;
        };
        self.input.extend_from_slice(samples);
        self.convert(&filter, u64::MAX, output);
    }

    /// Appends the rest of the output. What is pushed later begins a new stream.
    pub fn finish(&mut self, output: &mut Vec<f32>) {
        let Some(filter) = self.filter.clone() else { return };
        let length = (self.taken * filter.to as u64).div_ceil(filter.from as u64);
        self.input.resize(self.input.len() + filter.width + filter.from, 0.0);
        self.convert(&filter, length, output);
        self.input.clear();
        self.input.resize(filter.width, 0.0);
        (self.dropped, self.group, self.phase) = (0, filter.width as u64, 0);
        (self.taken, self.returned) = (0, 0);
    }

    /// Appends what the input suffices for, at most until `length` samples were returned.
    fn convert(&mut self, filter: &Filter, length: u64, output: &mut Vec<f32>) {
        // Where the next output begins in `input`; none after it begins earlier.
        let begin = |this: &Self| {
            let end = this.group + filter.ends[this.phase] as u64;
            (end - this.dropped) as usize - filter.width
        };
        while self.returned < length {
            let begin = begin(self);
            let Some(input) = self.input.get(begin..begin + filter.width) else { break };
            let taps = &filter.taps[self.phase * filter.width..][..filter.width];
            output.push(dot(input, taps));
            self.returned += 1;
            self.phase += 1;
            if self.phase == filter.to {
                self.phase = 0;
                self.group += filter.from as u64;
            }
        }
        let used = begin(self).min(self.input.len());
        self.input.drain(..used);
        self.dropped += used as u64;
    }
}

/// Dot product in lanes: a single sum would wait for each addition.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    for (a, b) in a.as_chunks::<LANES>().0.iter().zip(b.as_chunks::<LANES>().0) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::snr_db;
    use crate::resample::resample_sinc;

    const RATES: [(u32, u32); 9] = [
        (44_100, 24_000),
        (24_000, 44_100),
        (44_100, 48_000),
        (24_000, 48_000),
        (48_000, 24_000),
        (44_100, 8000),
        (8000, 44_100),
        (44_100, 96_000),
        (22_050, 16_000),
    ];

    fn noise(length: usize) -> Vec<f32> {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state as i32 as f32 / i32::MAX as f32
        };
        (0..length).map(|_| next()).collect()
    }

    fn convert(resampler: &mut StreamResampler, mut input: &[f32], pieces: &[usize]) -> Vec<f32> {
        let mut output = vec![];
        for &piece in pieces.iter().cycle() {
            let (now, later) = input.split_at(piece.min(input.len()));
            resampler.push(now, &mut output);
            input = later;
            if input.is_empty() {
                break;
            }
        }
        resampler.finish(&mut output);
        output
    }

    #[test]
    fn pieces_joined_are_the_whole_clip() {
        for (from, to) in RATES {
            let resampler = StreamResampler::new(from, to).unwrap();
            let mut used = resampler.clone();
            for length in [0, 1, 2, 147, 1000, 20_001] {
                let input = noise(length);
                let whole = convert(&mut resampler.clone(), &input, &[length.max(1)]);
                let want = resample_sinc(&input, from, to, SincFilter::SoxrHq).unwrap();
                assert_eq!(whole.len(), want.len(), "{length} samples from {from} to {to} Hz");
                let error = whole.iter().zip(&want).fold(0.0_f32, |e, (a, b)| e.max((a - b).abs()));
                assert!(error < 2e-6, "{error}, {length} samples from {from} to {to} Hz");
                for pieces in [&[1][..], &[441], &[1000, 0, 7]] {
                    // Also a second stream through the same one.
                    assert!(convert(&mut used, &input, pieces) == whole, "{pieces:?} from {from} to {to} Hz");
                }
            }
        }
    }

    #[test]
    fn output_follows_the_input_at_once_and_memory_is_bounded() {
        for (from, to) in RATES {
            let mut resampler = StreamResampler::new(from, to).unwrap();
            let mut output = vec![];
            for (i, piece) in noise(from as usize).chunks(100).enumerate() {
                resampler.push(piece, &mut output);
                let behind =
                    (i * 100 + piece.len()) as f64 / f64::from(from) - output.len() as f64 / f64::from(to);
                assert!(behind < 110.0 / f64::from(from.min(to)), "{behind} s from {from} to {to} Hz");
                assert!(resampler.input.len() < 3000, "from {from} to {to} Hz");
            }
        }
    }

    #[test]
    fn a_sine_stays_the_same_sine() {
        for (from, to) in RATES {
            for part in [0.02, 0.2, 0.45] {
                let step = std::f64::consts::TAU * f64::from(from.min(to)) * part;
                let sine = |rate: u32, length: usize| -> Vec<f32> {
                    (0..length).map(|i| (0.5 * (i as f64 * step / f64::from(rate)).sin()) as f32).collect()
                };
                let mut resampler = StreamResampler::new(from, to).unwrap();
                let got = convert(&mut resampler, &sine(from, from as usize), &[1024]);
                let want = sine(to, got.len());
                let inner = got.len() / 4..got.len() * 3 / 4;
                let snr = snr_db(&want[inner.clone()], &got[inner]).unwrap();
                assert!(snr > 90.0, "{part} of {from} to {to} Hz: SNR {snr:.1} dB");
            }
        }
    }

    #[test]
    fn equal_rates_and_impossible_ones() {
        let input = noise(1000);
        assert_eq!(convert(&mut StreamResampler::new(8000, 8000).unwrap(), &input, &[9]), input);
        for (from, to) in [(0, 8000), (8000, u32::MAX), (44_100, 44_101)] {
            assert!(StreamResampler::new(from, to).is_err(), "{from} to {to}");
        }
    }
}
