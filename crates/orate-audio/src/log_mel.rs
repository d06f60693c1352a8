//! Log-mel features for neural vocoders, tokenizers and speaker encoders.
//!
//!   samples      [N]
//!   spectrum     [T, n_fft / 2 + 1]   see [`Stft`]
//!   bands        [T, n_mels]          see [`MelFilterBank`]
//!   logarithm    [T, n_mels]          see [`Compression`]
//!
//! Three sets of conventions cover most models: those of HiFi-GAN, Whisper and Kaldi.

use crate::error::{AudioError, Result};
use crate::mel::{MelConfig, MelFilterBank, MelScale, log_compress, log_compress_whisper};
use crate::stft::{Padding, Spectrogram, Stft, StftConfig, Window};

/// Settings of a [`LogMel`].
#[derive(Clone, Debug, PartialEq)]
pub struct LogMelConfig {
    /// The transform.
    pub stft: StftConfig,
    /// The bands, for the same `n_fft`.
    pub mel: MelConfig,
    /// The logarithm.
    pub compression: Compression,
}

/// Logarithm of bands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Compression {
    /// [`log_compress`] with this floor, which is positive.
    Ln(f32),
    /// [`log_compress_whisper`] of all frames but the last.
    Whisper,
}

impl LogMelConfig {
    /// HiFi-GAN's features, of vocoders and many speaker encoders: ⌊N / hop_length⌋ frames of magnitudes.
    ///
    /// `n_fft - hop_length` mirrored samples are added, half of them at either end.
    pub fn hifi_gan(sample_rate: u32, n_fft: usize, hop_length: usize, n_mels: usize, f_max: f64) -> Self {
        let padding = Padding::Reflect(n_fft.saturating_sub(hop_length) / 2);
        Self {
            stft: StftConfig { padding, power_offset: 1e-9, ..StftConfig::new(n_fft, hop_length) },
            mel: MelConfig { f_max, ..MelConfig::new(sample_rate, n_fft, n_mels) },
            compression: Compression::Ln(1e-5),
        }
    }

    /// Whisper's features, also those of S3 speech tokenizers: 16 kHz, ⌊N / 160⌋ frames of powers.
    pub fn whisper(n_mels: usize) -> Self {
        Self {
            stft: StftConfig { power: true, ..StftConfig::new(400, 160) },
            mel: MelConfig::new(16_000, 400, n_mels),
            compression: Compression::Whisper,
        }
    }

    /// Kaldi's filter bank features at 16 kHz with its default options, but without dither: frames of 25 ms
    /// every 10 ms, as many as fit.
    ///
    /// Kaldi reads 16-bit integers. The floor of values, the machine epsilon of `f32`, is that of samples
    /// from -1 to 1, which 3D-Speaker and other torchaudio users pass.
    pub fn kaldi_fbank(n_mels: usize) -> Self {
        // Frames of 400 samples in the middle of a transform of 512.
        let (n_fft, win_length) = (512, 400);
        Self {
            stft: StftConfig {
                win_length,
                window: Window::Povey,
                padding: Padding::Zeros((n_fft - win_length) / 2),
                pre_emphasis: Some(0.97),
                power: true,
                ..StftConfig::new(n_fft, 160)
            },
            mel: MelConfig {
                f_min: 20.0,
                scale: MelScale::Htk,
                equal_area: false,
                straight_in_mel: true,
                ..MelConfig::new(16_000, n_fft, n_mels)
            },
            compression: Compression::Ln(f32::EPSILON),
        }
    }
}

/// Log-mel features, with transform and filters prepared.
#[derive(Clone, Debug)]
pub struct LogMel {
    stft: Stft,
    bank: MelFilterBank,
    compression: Compression,
}

impl LogMel {
    /// Prepares the transform and the filters.
    ///
    /// # Errors
    ///
    /// [`AudioError::Config`] or [`AudioError::SampleRate`] if a setting is out of its range.
    pub fn new(config: &LogMelConfig) -> Result<Self> {
        let LogMelConfig { stft, mel, compression } = config;
        if mel.n_fft != stft.n_fft {
            return Err(AudioError::Config {
                what: "mel.n_fft",
                got: mel.n_fft.to_string(),
                want: format!("it must be that of the transform, {}", stft.n_fft),
            });
        }
        let (stft, bank) = (Stft::new(stft.clone())?, MelFilterBank::new(mel)?);
        Ok(Self { stft, bank, compression: *compression })
    }

    /// Computes the features of mono audio, `[T, n_mels]`.
    pub fn apply(&self, samples: &[f32]) -> Spectrogram {
        let mut mel = self.bank.apply(&self.stft.spectrum(samples));
        match self.compression {
            Compression::Ln(floor) => log_compress(&mut mel, floor),
            Compression::Whisper => {
                mel.frames = mel.frames.saturating_sub(1);
                mel.data.truncate(mel.frames * mel.bins);
                log_compress_whisper(&mut mel);
            }
        }
        mel
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> LogMelConfig {
        LogMelConfig::hifi_gan(24_000, 1024, 256, 80, 8000.0)
    }

    #[test]
    fn frames_of_every_convention() {
        let cases: [(LogMelConfig, [usize; 6]); 3] = [
            (config(), [0, 0, 1, 3, 4, 93]),
            (LogMelConfig::whisper(128), [0, 1, 1, 6, 6, 150]),
            (LogMelConfig::kaldi_fbank(80), [0, 0, 0, 4, 4, 148]),
        ];
        for (config, frames) in cases {
            let mel = LogMel::new(&config).unwrap();
            for (length, frames) in [0, 255, 256, 1000, 1024, 24_000].into_iter().zip(frames) {
                let got = mel.apply(&vec![0.1; length]);
                assert_eq!(
                    (got.frames, got.bins),
                    (frames, config.mel.n_mels),
                    "{length} samples, {config:?}"
                );
                assert_eq!(got.data.len(), got.frames * got.bins);
            }
        }
    }

    #[test]
    fn silence_is_the_floor() {
        for (config, want) in [
            (config(), 1e-5_f32.ln()),
            (LogMelConfig::whisper(80), -1.5),
            (LogMelConfig::kaldi_fbank(80), f32::EPSILON.ln()),
        ] {
            let silent = LogMel::new(&config).unwrap().apply(&[0.0; 2048]);
            assert!(silent.data.iter().all(|x| (x - want).abs() < 1e-6), "{config:?}");
        }
    }

    #[test]
    fn bad_settings_are_named() {
        let mut no_hop = config();
        no_hop.stft.hop_length = 0;
        let mut mixed = config();
        mixed.mel.n_fft = 512;
        for (config, words) in [(no_hop, "hop_length is 0"), (mixed, "mel.n_fft is 512")] {
            let error = LogMel::new(&config).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
