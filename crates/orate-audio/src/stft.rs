//! Short-time Fourier transform.
//!
//!   samples      [N]
//!   frames       [T, n_fft]            one every `hop_length`, times the window
//!   magnitudes   [T, n_fft / 2 + 1]    absolute values, not normalized
//!
//! The conventions are those of `torch.stft` and librosa, which the models' features come from: a periodic
//! Hann window centered in the frame, and reflected edges with `center`.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use realfft::{RealFftPlanner, RealToComplex};

use crate::error::{AudioError, Result};

/// Settings of an [`Stft`], in samples.
#[derive(Clone, Debug, PartialEq)]
pub struct StftConfig {
    /// Length of the transform, at least 2.
    pub n_fft: usize,
    /// Samples from one frame to the next, at least 1.
    pub hop_length: usize,
    /// Length of the Hann window, 1 to `n_fft`.
    pub win_length: usize,
    /// Whether frame `t` is centered on sample `t * hop_length`. Otherwise it starts there.
    pub center: bool,
    /// Added to the squared magnitude before the root is taken; usually 0.
    pub power_offset: f32,
}

impl StftConfig {
    /// A window as long as the transform, centered frames.
    pub fn new(n_fft: usize, hop_length: usize) -> Self {
        Self { n_fft, hop_length, win_length: n_fft, center: true, power_offset: 0.0 }
    }
}

/// A matrix of frames: a spectrum or mel bands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spectrogram {
    /// Number of frames, `T`.
    pub frames: usize,
    /// Values in each frame: frequency bins or mel bands.
    pub bins: usize,
    /// Values, `[frames, bins]`, one frame after the other.
    pub data: Vec<f32>,
}

impl Spectrogram {
    /// The values of one frame.
    ///
    /// # Panics
    ///
    /// If there is no such frame.
    pub fn frame(&self, index: usize) -> &[f32] {
        &self.data[index * self.bins..(index + 1) * self.bins]
    }

    /// The frames in order.
    pub fn iter(&self) -> impl Iterator<Item = &[f32]> {
        self.data.chunks_exact(self.bins.max(1))
    }
}

/// A planned short-time Fourier transform.
///
/// Planning takes well under a millisecond; keep the plan if there are several signals.
///
/// ```
/// use orate_audio::{Stft, StftConfig};
///
/// let stft = Stft::new(StftConfig::new(512, 128))?;
/// let spectrum = stft.magnitude(&[0.1; 1280]);
/// assert_eq!((spectrum.frames, spectrum.bins), (11, 257));
/// # Ok::<(), orate_audio::AudioError>(())
/// ```
#[derive(Clone)]
pub struct Stft {
    config: StftConfig,
    /// Padded with zeros to `n_fft`.
    window: Vec<f32>,
    fft: Arc<dyn RealToComplex<f32>>,
}

impl fmt::Debug for Stft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stft").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Stft {
    /// Plans a transform.
    ///
    /// # Errors
    ///
    /// [`AudioError::Config`] if a setting is out of its range.
    pub fn new(config: StftConfig) -> Result<Self> {
        let StftConfig { n_fft, hop_length, win_length, .. } = config;
        let rules = [
            ("n_fft", n_fft, n_fft >= 2, "it must be at least 2".to_owned()),
            ("hop_length", hop_length, hop_length >= 1, "it must be at least 1".to_owned()),
            (
                "win_length",
                win_length,
                (1..=n_fft).contains(&win_length),
                format!("it must be between 1 and n_fft = {n_fft}"),
            ),
        ];
        for (what, got, holds, want) in rules {
            if !holds {
                return Err(AudioError::Config { what, got: got.to_string(), want });
            }
        }
        let mut window = vec![0.0; n_fft];
        window[(n_fft - win_length) / 2..][..win_length].copy_from_slice(&hann(win_length));
        let fft = RealFftPlanner::new().plan_fft_forward(n_fft);
        Ok(Self { config, window, fft })
    }

    /// The settings.
    pub fn config(&self) -> &StftConfig {
        &self.config
    }

    /// Frequency bins of a frame: `n_fft / 2 + 1`.
    pub fn bins(&self) -> usize {
        self.config.n_fft / 2 + 1
    }

    /// The window, `n_fft` values.
    pub(crate) fn window(&self) -> &[f32] {
        &self.window
    }

    /// Magnitudes of all frames, `[T, n_fft / 2 + 1]`.
    ///
    /// With `center`, `T = N / hop_length + 1` and the edges are reflected. Without it,
    /// `T = (N - n_fft) / hop_length + 1`, or 0 for a signal shorter than `n_fft`. An empty signal has no
    /// frames.
    pub fn magnitude(&self, samples: &[f32]) -> Spectrogram {
        let StftConfig { n_fft, hop_length, center, .. } = self.config;
        let bins = self.bins();
        let signal = match center {
            true => Cow::Owned(reflect_pad(samples, n_fft / 2)),
            false => Cow::Borrowed(samples),
        };
        if samples.is_empty() || signal.len() < n_fft {
            return Spectrogram { frames: 0, bins, data: Vec::new() };
        }
        let frames = (signal.len() - n_fft) / hop_length + 1;
        let mut data = vec![0.0; frames * bins];
        let mut scratch = self.scratch();
        for (t, magnitudes) in data.chunks_exact_mut(bins).enumerate() {
            self.frame(&signal[t * hop_length..][..n_fft], &mut scratch, magnitudes);
        }
        Spectrogram { frames, bins, data }
    }

    pub(crate) fn scratch(&self) -> Scratch {
        Scratch {
            frame: self.fft.make_input_vec(),
            spectrum: self.fft.make_output_vec(),
            work: self.fft.make_scratch_vec(),
        }
    }

    /// Magnitudes of one frame: `samples` holds `n_fft` values, `magnitudes` has room for
    /// [`bins`](Self::bins).
    pub(crate) fn frame(&self, samples: &[f32], scratch: &mut Scratch, magnitudes: &mut [f32]) {
        let Scratch { frame, spectrum, work } = scratch;
        for ((x, &sample), &weight) in frame.iter_mut().zip(samples).zip(&self.window) {
            *x = sample * weight;
        }
        self.fft.process_with_scratch(frame, spectrum, work).expect("the plan made its own buffers");
        for (magnitude, value) in magnitudes.iter_mut().zip(spectrum.iter()) {
            *magnitude = match self.config.power_offset {
                0.0 => value.norm(),
                offset => (value.norm_sqr() + offset).sqrt(),
            };
        }
    }
}

/// Buffers of one running transform.
pub(crate) struct Scratch {
    frame: Vec<f32>,
    spectrum: Vec<realfft::num_complex::Complex32>,
    work: Vec<realfft::num_complex::Complex32>,
}

/// A periodic Hann window, the default of `torch.hann_window`.
pub fn hann(length: usize) -> Vec<f32> {
    let step = std::f64::consts::TAU / length as f64;
    (0..length).map(|i| (0.5 - 0.5 * (i as f64 * step).cos()) as f32).collect()
}

/// Extends a signal at both ends by its own mirror image, without repeating the edge sample.
///
/// A signal shorter than the padding is mirrored back and forth, as in numpy; an empty signal becomes
/// silence.
///
/// ```
/// assert_eq!(orate_audio::reflect_pad(&[1.0, 2.0, 3.0], 2), [3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 1.0]);
/// ```
pub fn reflect_pad(samples: &[f32], padding: usize) -> Vec<f32> {
    let length = samples.len();
    if length == 0 {
        return vec![0.0; 2 * padding];
    }
    let period = (2 * (length - 1)).max(1);
    let mirrored = |i: isize| {
        let i = i.rem_euclid(period as isize) as usize;
        samples[if length == 1 { 0 } else { i.min(period - i) }]
    };
    let mut padded = Vec::with_capacity(length + 2 * padding);
    padded.extend((0..padding).map(|i| mirrored(i as isize - padding as isize)));
    padded.extend_from_slice(samples);
    padded.extend((length..length + padding).map(|i| mirrored(i as isize)));
    padded
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Error of f32 transforms of signals of magnitude one with up to a few hundred samples.
    const MAX_DFT_ERROR: f32 = 1e-4;

    fn noise(length: usize) -> Vec<f32> {
        let mut state = 1_u32;
        (0..length)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    /// The definition, in f64.
    fn plain_dft(samples: &[f32], window: &[f32], bin: usize) -> f32 {
        let (mut re, mut im) = (0.0, 0.0);
        for (i, (&x, &w)) in samples.iter().zip(window).enumerate() {
            let angle = std::f64::consts::TAU * (i * bin) as f64 / samples.len() as f64;
            re += f64::from(x * w) * angle.cos();
            im -= f64::from(x * w) * angle.sin();
        }
        re.hypot(im) as f32
    }

    #[test]
    fn agrees_with_the_definition() {
        for (n_fft, hop_length, win_length, center) in [
            (16, 4, 16, true),
            (16, 4, 16, false),
            (60, 7, 33, true),
            (15, 5, 15, true),
            (15, 5, 8, false),
            (2, 1, 1, true),
        ] {
            let config = StftConfig { n_fft, hop_length, win_length, center, power_offset: 0.0 };
            let stft = Stft::new(config).unwrap();
            for length in [0, 1, 2, 7, 15, 16, 17, 100] {
                let samples = noise(length);
                let got = stft.magnitude(&samples);
                let case = format!("{:?}, {length} samples", stft.config());
                let signal = if center { reflect_pad(&samples, n_fft / 2) } else { samples.clone() };
                let frames = match signal.len().checked_sub(n_fft) {
                    Some(rest) if length > 0 => rest / hop_length + 1,
                    _ => 0,
                };
                assert_eq!((got.frames, got.bins), (frames, n_fft / 2 + 1), "{case}");
                assert_eq!(got.data.len(), frames * got.bins, "{case}");
                for t in 0..frames {
                    let frame = &signal[t * hop_length..][..n_fft];
                    for (bin, &value) in got.frame(t).iter().enumerate() {
                        let want = plain_dft(frame, stft.window(), bin);
                        assert!((value - want).abs() < MAX_DFT_ERROR, "{case}: {t}, {bin}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_sine_peaks_in_its_bin() {
        let stft = Stft::new(StftConfig::new(512, 128)).unwrap();
        let sine: Vec<f32> =
            (0..4096).map(|i| (i as f32 * std::f32::consts::TAU * 40.0 / 512.0).sin()).collect();
        let spectrum = stft.magnitude(&sine);
        for frame in spectrum.iter().skip(2).take(spectrum.frames - 4) {
            let peak = (0..frame.len()).max_by(|&a, &b| frame[a].total_cmp(&frame[b]));
            assert_eq!(peak, Some(40));
            // Half the sum of a Hann window.
            assert!((frame[40] - 128.0).abs() < 0.01, "{}", frame[40]);
        }
    }

    #[test]
    fn reflection() {
        let cases: [(&[f32], usize, &[f32]); 5] = [
            (&[], 1, &[0.0, 0.0]),
            (&[5.0], 2, &[5.0; 5]),
            (&[1.0, 2.0], 3, &[2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0]),
            (&[1.0, 2.0, 3.0], 0, &[1.0, 2.0, 3.0]),
            (&[1.0, 2.0, 3.0], 1, &[2.0, 1.0, 2.0, 3.0, 2.0]),
        ];
        for (samples, padding, want) in cases {
            assert_eq!(reflect_pad(samples, padding), want, "{samples:?} by {padding}");
        }
    }

    #[test]
    fn bad_settings_are_named() {
        let good = StftConfig::new(16, 4);
        let cases = [
            (StftConfig { n_fft: 1, ..good.clone() }, "n_fft is 1"),
            (StftConfig { hop_length: 0, ..good.clone() }, "hop_length is 0"),
            (StftConfig { win_length: 17, ..good.clone() }, "between 1 and n_fft = 16"),
            (StftConfig { win_length: 0, ..good }, "win_length is 0"),
        ];
        for (config, text) in cases {
            let error = Stft::new(config).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
