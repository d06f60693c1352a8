//! Mel filter banks and log-mel spectra.

use crate::error::{AudioError, Result, check_sample_rate};
use crate::stft::Spectrogram;

/// Formula that converts Hz to mel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MelScale {
    /// `2595 log10(1 + f / 700)`, as in HTK and torchaudio's default.
    Htk,
    /// Linear to 1 kHz and logarithmic above, as in Slaney's toolbox and librosa's default.
    Slaney,
}

impl MelScale {
    /// Slaney: 15 mel at 1 kHz, the end of the linear part.
    const SLANEY_HZ_PER_MEL: f64 = 200.0 / 3.0;
    const SLANEY_BREAK_HZ: f64 = 1000.0;
    const SLANEY_BREAK_MEL: f64 = 15.0;

    fn slaney_log_step() -> f64 {
        6.4_f64.ln() / 27.0
    }

    /// Hz to mel.
    ///
    /// ```
    /// use orate_audio::MelScale;
    ///
    /// assert!((MelScale::Htk.from_hz(1000.0) - 999.99).abs() < 0.01);
    /// assert!((MelScale::Slaney.from_hz(1000.0) - 15.0).abs() < 1e-9);
    /// ```
    pub fn from_hz(self, hz: f64) -> f64 {
        match self {
            Self::Htk => 2595.0 * (1.0 + hz / 700.0).log10(),
            Self::Slaney if hz < Self::SLANEY_BREAK_HZ => hz / Self::SLANEY_HZ_PER_MEL,
            Self::Slaney => {
                Self::SLANEY_BREAK_MEL + (hz / Self::SLANEY_BREAK_HZ).ln() / Self::slaney_log_step()
            }
        }
    }

    /// Mel to Hz, the inverse of [`from_hz`](Self::from_hz).
    pub fn to_hz(self, mel: f64) -> f64 {
        match self {
            Self::Htk => 700.0 * (10_f64.powf(mel / 2595.0) - 1.0),
            Self::Slaney if mel < Self::SLANEY_BREAK_MEL => mel * Self::SLANEY_HZ_PER_MEL,
            Self::Slaney => {
                let steps = mel - Self::SLANEY_BREAK_MEL;
                Self::SLANEY_BREAK_HZ * (steps * Self::slaney_log_step()).exp()
            }
        }
    }
}

/// Settings of a [`MelFilterBank`].
#[derive(Clone, Debug, PartialEq)]
pub struct MelConfig {
    /// Samples per second.
    pub sample_rate: u32,
    /// Length of the transform whose bins are summed.
    pub n_fft: usize,
    /// Number of bands.
    pub n_mels: usize,
    /// Lower edge of the lowest band, in Hz.
    pub f_min: f64,
    /// Upper edge of the highest band, in Hz; at most half the sample rate.
    pub f_max: f64,
    /// The mel formula.
    pub scale: MelScale,
    /// Whether each filter is scaled to the same area (librosa's `norm="slaney"`) rather than to
    /// a peak of 1.
    pub equal_area: bool,
    /// Whether the flanks of filters are straight in mel, as in Kaldi, rather than in Hz.
    pub straight_in_mel: bool,
}

impl MelConfig {
    /// All frequencies, with librosa's defaults: Slaney's scale and equal areas.
    pub fn new(sample_rate: u32, n_fft: usize, n_mels: usize) -> Self {
        Self {
            sample_rate,
            n_fft,
            n_mels,
            f_min: 0.0,
            f_max: f64::from(sample_rate) / 2.0,
            scale: MelScale::Slaney,
            equal_area: true,
            straight_in_mel: false,
        }
    }
}

/// Overlapping triangular filters, evenly spaced in mel.
#[derive(Clone, Debug, PartialEq)]
pub struct MelFilterBank {
    bins: usize,
    filters: Vec<Filter>,
}

/// The part of a filter that is not zero.
#[derive(Clone, Debug, PartialEq)]
struct Filter {
    first_bin: usize,
    weights: Vec<f32>,
}

impl MelFilterBank {
    /// Computes the filters.
    ///
    /// # Errors
    ///
    /// [`AudioError::SampleRate`], or [`AudioError::Config`] if there are no bands, `n_fft` is
    /// below 2 or the edges are not `0 <= f_min < f_max <= sample_rate / 2`.
    pub fn new(config: &MelConfig) -> Result<Self> {
        let &MelConfig { sample_rate, n_fft, n_mels, f_min, f_max, scale, equal_area, straight_in_mel } =
            config;
        check_sample_rate(sample_rate)?;
        let nyquist = f64::from(sample_rate) / 2.0;
        let at_least = |n: usize| format!("it must be at least {n}");
        let rules = [
            ("n_fft", n_fft.to_string(), n_fft >= 2, at_least(2)),
            ("n_mels", n_mels.to_string(), n_mels >= 1, at_least(1)),
            (
                "f_min",
                format!("{f_min} Hz"),
                f_min >= 0.0 && f_min < f_max,
                format!("it must be at least 0 and below f_max = {f_max} Hz"),
            ),
            (
                "f_max",
                format!("{f_max} Hz"),
                f_max <= nyquist,
                format!("it must be at most half the sample rate, {nyquist} Hz"),
            ),
        ];
        for (what, got, holds, want) in rules {
            if !holds {
                return Err(AudioError::Config { what, got, want });
            }
        }

        let (low, high) = (scale.from_hz(f_min), scale.from_hz(f_max));
        let edge = |i: usize| scale.to_hz(low + (high - low) * i as f64 / (n_mels + 1) as f64);
        let bins = n_fft / 2 + 1;
        let hz_per_bin = f64::from(sample_rate) / n_fft as f64;
        let filters = (0..n_mels)
            .map(|m| {
                let (left, center, right) = (edge(m), edge(m + 1), edge(m + 2));
                let peak = if equal_area { 2.0 / (right - left) } else { 1.0 };
                let unit = |hz: f64| if straight_in_mel { scale.from_hz(hz) } else { hz };
                let weight = |bin: usize| {
                    let at = unit(bin as f64 * hz_per_bin);
                    let rise = (at - unit(left)) / (unit(center) - unit(left));
                    let fall = (unit(right) - at) / (unit(right) - unit(center));
                    (rise.min(fall).max(0.0) * peak) as f32
                };
                let first_bin = ((left / hz_per_bin).floor() as usize).min(bins);
                let end = ((right / hz_per_bin).ceil() as usize + 1).min(bins);
                Filter { first_bin, weights: (first_bin..end).map(weight).collect() }
            })
            .collect();
        Ok(Self { bins, filters })
    }

    /// Number of bands.
    pub fn n_mels(&self) -> usize {
        self.filters.len()
    }

    /// The weights of one band, a value per frequency bin.
    ///
    /// # Panics
    ///
    /// If there is no such band.
    pub fn weights(&self, band: usize) -> Vec<f32> {
        let filter = &self.filters[band];
        let mut weights = vec![0.0; self.bins];
        weights[filter.first_bin..][..filter.weights.len()].copy_from_slice(&filter.weights);
        weights
    }

    /// Sums the bins of every frame into bands: `[T, bins]` → `[T, n_mels]`.
    ///
    /// The bank is linear: give it magnitudes or powers, whichever the model was trained on.
    ///
    /// # Panics
    ///
    /// If the spectrum is of another `n_fft`.
    pub fn apply(&self, spectrum: &Spectrogram) -> Spectrogram {
        assert_eq!(spectrum.bins, self.bins, "spectrum and filter bank differ in n_fft");
        let mut data = vec![0.0; spectrum.frames * self.n_mels()];
        for (frame, bands) in spectrum.iter().zip(data.chunks_exact_mut(self.n_mels())) {
            self.apply_frame(frame, bands);
        }
        Spectrogram { frames: spectrum.frames, bins: self.n_mels(), data }
    }

    pub(crate) fn apply_frame(&self, frame: &[f32], bands: &mut [f32]) {
        for (band, filter) in bands.iter_mut().zip(&self.filters) {
            let bins = &frame[filter.first_bin..];
            *band = filter.weights.iter().zip(bins).map(|(w, x)| w * x).sum();
        }
    }
}

/// Logarithms of Whisper and of the S3 speech tokenizer: `(log10(x) + 4) / 4`, at most 8 decades below the
/// loudest value of the clip. Values below 1e-10 count as 1e-10.
pub fn log_compress_whisper(mel: &mut Spectrogram) {
    let mut loudest = f32::NEG_INFINITY;
    for x in &mut mel.data {
        *x = x.max(1e-10).log10();
        loudest = loudest.max(*x);
    }
    for x in &mut mel.data {
        *x = (x.max(loudest - 8.0) + 4.0) / 4.0;
    }
}

/// Natural logarithm of every value; values below `floor` count as `floor`.
///
/// `floor` is positive, usually 1e-5; it keeps silence finite.
pub fn log_compress(mel: &mut Spectrogram, floor: f32) {
    for x in &mut mel.data {
        *x = x.max(floor).ln();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stft::{Stft, StftConfig};

    #[test]
    fn scales_at_known_points_and_back() {
        // Slaney: 60 Hz is 0.9 mel and 4000 Hz 35.16 mel in librosa's documentation and tests.
        let cases = [
            (MelScale::Htk, 0.0, 0.0),
            (MelScale::Htk, 700.0, 2595.0 * 2_f64.log10()),
            (MelScale::Htk, 6300.0, 2595.0),
            (MelScale::Slaney, 0.0, 0.0),
            (MelScale::Slaney, 60.0, 0.9),
            (MelScale::Slaney, 1000.0, 15.0),
            (MelScale::Slaney, 6400.0, 42.0),
        ];
        for (scale, hz, mel) in cases {
            assert!((scale.from_hz(hz) - mel).abs() < 1e-9, "{scale:?} {hz} Hz");
            assert!((scale.to_hz(mel) - hz).abs() < 1e-6, "{scale:?} {mel} mel");
        }
    }

    #[test]
    fn peak_scaled_filters_sum_to_one_between_the_outer_centers() {
        for scale in [MelScale::Htk, MelScale::Slaney] {
            let config = MelConfig { scale, equal_area: false, ..MelConfig::new(24_000, 2048, 20) };
            let bank = MelFilterBank::new(&config).unwrap();
            let rows: Vec<_> = (0..20).map(|m| bank.weights(m)).collect();
            let center = |row: &Vec<f32>| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
            for bin in center(&rows[0]) + 1..center(&rows[19]) {
                let sum: f32 = rows.iter().map(|row| row[bin]).sum();
                assert!((sum - 1.0).abs() < 1e-5, "{scale:?}: {sum} at bin {bin}");
            }
        }
    }

    #[test]
    fn equal_area_filters_have_area_one() {
        let bank = MelFilterBank::new(&MelConfig::new(24_000, 8192, 40)).unwrap();
        let hz_per_bin = 24_000.0 / 8192.0;
        for band in 0..40 {
            let area = bank.weights(band).iter().sum::<f32>() * hz_per_bin;
            assert!((area - 1.0).abs() < 0.01, "band {band}: {area}");
        }
    }

    #[test]
    fn a_tone_is_loudest_in_its_band() {
        let stft = Stft::new(StftConfig::new(1024, 256)).unwrap();
        let bank = MelFilterBank::new(&MelConfig::new(24_000, 1024, 80)).unwrap();
        for hz in [300.0, 1000.0, 3000.0, 9000.0] {
            let tone: Vec<f32> = (0..6000)
                .map(|i| (std::f64::consts::TAU * hz * f64::from(i) / 24_000.0).sin() as f32)
                .collect();
            let mut mel = bank.apply(&stft.spectrum(&tone));
            log_compress(&mut mel, 1e-5);
            assert_eq!((mel.frames, mel.bins), (24, 80));
            let frame = mel.frame(12);
            let peak = (0..80).max_by(|&a, &b| frame[a].total_cmp(&frame[b])).unwrap() as f64;
            let top = MelScale::Slaney.from_hz(12_000.0);
            let want = MelScale::Slaney.from_hz(hz) / top * 81.0 - 1.0;
            assert!((peak - want).abs() <= 1.0, "{hz} Hz: band {peak}, expected {want}");
        }
    }

    #[test]
    fn bad_settings_are_named() {
        let good = MelConfig::new(24_000, 1024, 80);
        let cases = [
            (MelConfig { n_mels: 0, ..good.clone() }, "n_mels is 0"),
            (MelConfig { n_fft: 0, ..good.clone() }, "n_fft is 0"),
            (MelConfig { f_min: -1.0, ..good.clone() }, "f_min is -1 Hz"),
            (MelConfig { f_min: 12_000.0, ..good.clone() }, "f_min is 12000 Hz"),
            (MelConfig { f_max: 12_001.0, ..good.clone() }, "f_max is 12001 Hz"),
            (MelConfig { f_max: f64::NAN, ..good.clone() }, "NaN"),
            (MelConfig { sample_rate: 0, ..good }, "0 Hz"),
        ];
        for (config, text) in cases {
            let error = MelFilterBank::new(&config).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
