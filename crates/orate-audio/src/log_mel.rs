//! Log-mel features for neural vocoders and speaker encoders.
//!
//!   samples      [N]         mirrored by (n_fft − hop_length) / 2 at both ends
//!   magnitudes   [T, n_fft / 2 + 1]   √(re² + im² + power_offset)
//!   bands        [T, n_mels]          equal areas
//!   logarithm    [T, n_mels]          ln(max(x, floor))
//!
//! So T = ⌊N / hop_length⌋. HiFi-GAN introduced these features, and many models use them.

use crate::error::Result;
use crate::mel::{MelConfig, MelFilterBank, MelScale, log_compress};
use crate::stft::{Spectrogram, Stft, StftConfig, reflect_pad};

/// Settings of a [`LogMel`].
#[derive(Clone, Debug, PartialEq)]
pub struct LogMelConfig {
    /// Samples per second.
    pub sample_rate: u32,
    /// Length of transform and window, in samples.
    pub n_fft: usize,
    /// Samples from one frame to the next.
    pub hop_length: usize,
    /// Number of bands.
    pub n_mels: usize,
    /// Lower edge of the lowest band, in Hz.
    pub f_min: f64,
    /// Upper edge of the highest band, in Hz.
    pub f_max: f64,
    /// The mel formula.
    pub scale: MelScale,
    /// Added to squared magnitudes.
    pub power_offset: f32,
    /// Floor of values before the logarithm; positive.
    pub floor: f32,
}

/// Log-mel features, with transform and filters prepared.
#[derive(Clone, Debug)]
pub struct LogMel {
    stft: Stft,
    bank: MelFilterBank,
    floor: f32,
}

impl LogMel {
    /// Prepares the transform and the filters.
    ///
    /// # Errors
    ///
    /// [`AudioError::Config`](crate::AudioError::Config) or
    /// [`AudioError::SampleRate`](crate::AudioError::SampleRate) if a setting is out of its range.
    pub fn new(config: &LogMelConfig) -> Result<Self> {
        let &LogMelConfig {
            sample_rate, n_fft, hop_length, n_mels, f_min, f_max, scale, power_offset, ..
        } = config;
        let stft =
            Stft::new(StftConfig { center: false, power_offset, ..StftConfig::new(n_fft, hop_length) })?;
        let bank = MelFilterBank::new(&MelConfig {
            sample_rate,
            n_fft,
            n_mels,
            f_min,
            f_max,
            scale,
            equal_area: true,
        })?;
        Ok(Self { stft, bank, floor: config.floor })
    }

    /// Computes the features of mono audio, `[T, n_mels]`.
    pub fn apply(&self, samples: &[f32]) -> Spectrogram {
        let StftConfig { n_fft, hop_length, .. } = *self.stft.config();
        let signal = reflect_pad(samples, n_fft.saturating_sub(hop_length) / 2);
        let mut mel = self.bank.apply(&self.stft.magnitude(&signal));
        log_compress(&mut mel, self.floor);
        mel
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> LogMelConfig {
        LogMelConfig {
            sample_rate: 24_000,
            n_fft: 1024,
            hop_length: 256,
            n_mels: 80,
            f_min: 0.0,
            f_max: 8000.0,
            scale: MelScale::Slaney,
            power_offset: 1e-9,
            floor: 1e-5,
        }
    }

    #[test]
    fn a_frame_for_every_hop() {
        let mel = LogMel::new(&config()).unwrap();
        for length in [0, 255, 256, 1000, 24_000] {
            let got = mel.apply(&vec![0.1; length]);
            assert_eq!((got.frames, got.bins), (length / 256, 80), "{length} samples");
        }
    }

    #[test]
    fn silence_is_the_floor() {
        let silent = LogMel::new(&config()).unwrap().apply(&[0.0; 2048]);
        assert!(silent.data.iter().all(|x| (x - 1e-5_f32.ln()).abs() < 1e-6));
    }

    #[test]
    fn bad_settings_are_named() {
        let error = LogMel::new(&LogMelConfig { hop_length: 0, ..config() }).unwrap_err().to_string();
        assert!(error.contains("hop_length is 0"), "{error}");
    }
}
