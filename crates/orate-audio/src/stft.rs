//! Short-time Fourier transform.
//!
//!   samples      [N]                   padded at both ends
//!   frames       [T, n_fft]            one every `hop_length`, times the window
//!   spectrum     [T, n_fft / 2 + 1]    magnitudes or powers, not normalized
//!
//! The defaults are those of `torch.stft` and librosa, which most features of models come from: a periodic
//! Hann window centered in the frame, and reflected edges. Kaldi's features need the other settings.

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
    /// Length of the window, 1 to `n_fft`.
    pub win_length: usize,
    /// Shape of the window.
    pub window: Window,
    /// What is added at both ends. `n_fft / 2` samples center frame `t` on sample `t * hop_length`.
    pub padding: Padding,
    /// Kaldi's preparation of each frame before the window: the mean is removed, then sample `i` becomes
    /// `x[i] - pre_emphasis * x[i - 1]`, where the first sample precedes itself. `None` for none.
    pub pre_emphasis: Option<f32>,
    /// Whether values are powers, `re² + im²`, rather than their roots.
    pub power: bool,
    /// Added to powers, before the root is taken; usually 0.
    pub power_offset: f32,
}

impl StftConfig {
    /// Magnitudes with a Hann window as long as the transform, of centered frames.
    pub fn new(n_fft: usize, hop_length: usize) -> Self {
        Self {
            n_fft,
            hop_length,
            win_length: n_fft,
            window: Window::Hann,
            padding: Padding::Reflect(n_fft / 2),
            pre_emphasis: None,
            power: false,
            power_offset: 0.0,
        }
    }
}

/// Shape of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// [`hann`]
    Hann,
    /// Kaldi's default: a symmetric Hann window to the power of 0.85.
    Povey,
}

/// Samples added at both ends of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Padding {
    /// As many mirrored samples; see [`reflect_pad`].
    Reflect(usize),
    /// As many zeros.
    Zeros(usize),
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

    /// Subtracts the mean over time from each bin.
    pub fn subtract_mean(&mut self) {
        let mut means = vec![0.0; self.bins];
        for frame in self.iter() {
            means.iter_mut().zip(frame).for_each(|(mean, x)| *mean += f64::from(*x));
        }
        means.iter_mut().for_each(|mean| *mean /= self.frames as f64);
        for frame in self.data.chunks_exact_mut(self.bins.max(1)) {
            frame.iter_mut().zip(&means).for_each(|(x, mean)| *x -= *mean as f32);
        }
    }

    /// Cuts overlapping windows of `length` frames, one every `step`: `[n, length, bins]`, and returns `n`.
    ///
    /// The frames after the last whole window make another one if they cover at least `min_coverage` of it,
    /// or if there is no other. It is filled up with zeros. Other frames are left out.
    ///
    /// Speaker encoders compute an embedding of each window, and their mean.
    ///
    /// # Panics
    ///
    /// If `step` is 0 or longer than `length`.
    pub fn windows(&self, length: usize, step: usize, min_coverage: f64) -> (usize, Vec<f32>) {
        assert!((1..=length).contains(&step), "windows of {length} frames cannot be {step} apart");
        let covered = (self.frames + step).saturating_sub(length);
        let (mut count, rest) = (covered / step, covered % step);
        if count == 0 || (rest + length - step) as f64 / length as f64 >= min_coverage {
            count += 1;
        }
        let mut windows = Vec::with_capacity(count * length * self.bins);
        for start in (0..count).map(|i| i * step * self.bins) {
            let end = windows.len() + length * self.bins;
            let whole = (start + length * self.bins).min(self.data.len());
            windows.extend_from_slice(self.data.get(start..whole).unwrap_or_default());
            windows.resize(end, 0.0);
        }
        (count, windows)
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
/// let spectrum = stft.spectrum(&[0.1; 1280]);
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
        let shape = match config.window {
            Window::Hann => hann(win_length),
            Window::Povey => povey(win_length),
        };
        window[(n_fft - win_length) / 2..][..win_length].copy_from_slice(&shape);
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

    /// Values of all frames, `[T, n_fft / 2 + 1]`.
    ///
    /// With padding `P`, `T = (N + 2 P - n_fft) / hop_length + 1`, or 0 if there are less than `n_fft`
    /// samples. An empty signal has no frames.
    pub fn spectrum(&self, samples: &[f32]) -> Spectrogram {
        let StftConfig { n_fft, hop_length, padding, .. } = self.config;
        let bins = self.bins();
        let signal = match padding {
            Padding::Reflect(0) | Padding::Zeros(0) => Cow::Borrowed(samples),
            Padding::Reflect(n) => Cow::Owned(reflect_pad(samples, n)),
            Padding::Zeros(n) => Cow::Owned([&vec![0.0; n], samples, &vec![0.0; n]].concat()),
        };
        if samples.is_empty() || signal.len() < n_fft {
            return Spectrogram { frames: 0, bins, data: Vec::new() };
        }
        let frames = (signal.len() - n_fft) / hop_length + 1;
        let mut data = vec![0.0; frames * bins];
        let mut scratch = self.scratch();
        for (t, values) in data.chunks_exact_mut(bins).enumerate() {
            self.frame(&signal[t * hop_length..][..n_fft], &mut scratch, values);
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

    /// Values of one frame: `samples` holds `n_fft` of them, `values` has room for [`bins`](Self::bins).
    pub(crate) fn frame(&self, samples: &[f32], scratch: &mut Scratch, values: &mut [f32]) {
        let Scratch { frame, spectrum, work } = scratch;
        frame.copy_from_slice(samples);
        if let Some(factor) = self.config.pre_emphasis {
            let win_length = self.config.win_length;
            emphasize(&mut frame[(samples.len() - win_length) / 2..][..win_length], factor);
        }
        for (x, &weight) in frame.iter_mut().zip(&self.window) {
            *x *= weight;
        }
        self.fft.process_with_scratch(frame, spectrum, work).expect("the plan made its own buffers");
        for (value, complex) in values.iter_mut().zip(spectrum.iter()) {
            *value = match (self.config.power, self.config.power_offset) {
                (true, offset) => complex.norm_sqr() + offset,
                (false, 0.0) => complex.norm(),
                (false, offset) => (complex.norm_sqr() + offset).sqrt(),
            };
        }
    }
}

/// Removes the mean of a frame, and its low frequencies; see [`StftConfig::pre_emphasis`].
fn emphasize(frame: &mut [f32], factor: f32) {
    let mean = (frame.iter().map(|x| f64::from(*x)).sum::<f64>() / frame.len() as f64) as f32;
    let mut before = frame[0] - mean;
    for x in frame {
        let centered = *x - mean;
        *x = centered - factor * before;
        before = centered;
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

fn povey(length: usize) -> Vec<f32> {
    let step = std::f64::consts::TAU / (length.max(2) - 1) as f64;
    (0..length).map(|i| (0.5 - 0.5 * (i as f64 * step).cos()).powf(0.85) as f32).collect()
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
        for (n_fft, hop_length, win_length, padding) in
            [(16, 4, 16, 8), (16, 4, 16, 0), (60, 7, 33, 30), (15, 5, 15, 7), (15, 5, 8, 0), (2, 1, 1, 1)]
        {
            let padding = Padding::Reflect(padding);
            let config = StftConfig { win_length, padding, ..StftConfig::new(n_fft, hop_length) };
            let stft = Stft::new(config.clone()).unwrap();
            let powers = Stft::new(StftConfig { power: true, ..config }).unwrap();
            for length in [0, 1, 2, 7, 15, 16, 17, 100] {
                let samples = noise(length);
                let (got, powers) = (stft.spectrum(&samples), powers.spectrum(&samples));
                let case = format!("{:?}, {length} samples", stft.config());
                let Padding::Reflect(padded) = padding else { unreachable!("as above") };
                let signal = if length > 0 { reflect_pad(&samples, padded) } else { vec![] };
                let frames = match signal.len().checked_sub(n_fft) {
                    Some(rest) if length > 0 => rest / hop_length + 1,
                    _ => 0,
                };
                assert_eq!((got.frames, got.bins), (frames, n_fft / 2 + 1), "{case}");
                assert_eq!(got.data.len(), frames * got.bins, "{case}");
                for (x, square) in got.data.iter().zip(&powers.data) {
                    assert!((x * x - square).abs() <= 1e-5 * square.max(1.0), "{case}: {x}, {square}");
                }
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
        let spectrum = stft.spectrum(&sine);
        for frame in spectrum.iter().skip(2).take(spectrum.frames - 4) {
            let peak = (0..frame.len()).max_by(|&a, &b| frame[a].total_cmp(&frame[b]));
            assert_eq!(peak, Some(40));
            // Half the sum of a Hann window.
            assert!((frame[40] - 128.0).abs() < 0.01, "{}", frame[40]);
        }
    }

    #[test]
    fn zeros_are_padded_and_windows_are_whole() {
        // Kaldi's frames of 5 in a transform of 8: as many as fit without padding.
        let config = StftConfig {
            win_length: 5,
            window: Window::Povey,
            padding: Padding::Zeros(1),
            ..StftConfig::new(8, 2)
        };
        let stft = Stft::new(config).unwrap();
        for (length, frames) in [(5, 0), (6, 1), (7, 1), (8, 2), (100, 48)] {
            assert_eq!(stft.spectrum(&noise(length)).frames, frames, "{length} samples");
        }
        let w = povey(5);
        assert_eq!((w[0], w[2], w[4]), (0.0, 1.0, 0.0));
        assert!((w[1] - 0.5_f32.powf(0.85)).abs() < 1e-6);
    }

    #[test]
    fn emphasis_removes_mean_and_low_frequencies() {
        let mut constant = [3.0; 4];
        emphasize(&mut constant, 0.97);
        assert_eq!(constant, [0.0; 4]);
        let mut ramp = [1.0, 2.0, 3.0];
        emphasize(&mut ramp, 0.5);
        assert_eq!(ramp, [-0.5, 0.5, 1.0]);
    }

    #[test]
    fn mean_over_time() {
        let mut s = Spectrogram { frames: 2, bins: 2, data: vec![1.0, 5.0, 3.0, 5.0] };
        s.subtract_mean();
        assert_eq!(s.data, [-1.0, 0.0, 1.0, 0.0]);
        Spectrogram::default().subtract_mean();
    }

    #[test]
    fn windows_overlap_and_the_last_is_filled_up() {
        let spectrum =
            |frames: usize| Spectrogram { frames, bins: 1, data: (0..frames).map(|x| x as f32).collect() };
        for (frames, want) in [
            (0, vec![[0.0; 4]]),
            (2, vec![[0.0, 1.0, 0.0, 0.0]]),
            (4, vec![[0.0, 1.0, 2.0, 3.0]]),
            // The second covers 3 of 4, then all.
            (6, vec![[0.0, 1.0, 2.0, 3.0], [3.0, 4.0, 5.0, 0.0]]),
            (7, vec![[0.0, 1.0, 2.0, 3.0], [3.0, 4.0, 5.0, 6.0]]),
        ] {
            let (count, got) = spectrum(frames).windows(4, 3, 0.75);
            assert_eq!((count, got), (want.len(), want.concat()), "{frames} frames");
        }
        assert_eq!(spectrum(6).windows(4, 3, 0.8).0, 1);
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
