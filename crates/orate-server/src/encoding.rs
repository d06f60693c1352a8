//! Formats and sample rates of answers.

use crate::error::{ApiError, Result};
use orate_audio::{AudioFormat, StreamEncoder, StreamResampler};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Default sample rate of `pcm`. It has no header, and clients assume the rate of OpenAI's service.
const PCM_RATE: u32 = 24_000;

/// Sample rates that a client may ask for.
const RATES: [u32; 8] = [8000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000];

/// A format, by the names of OpenAI's service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Name in requests.
    pub name: &'static str,
    /// Media type of answers.
    pub media_type: &'static str,
    audio: AudioFormat,
}

/// All formats; a build may lack some.
const FORMATS: [Format; 6] = [
    Format { name: "mp3", media_type: "audio/mpeg", audio: AudioFormat::Mp3 },
    Format { name: "opus", media_type: "audio/ogg", audio: AudioFormat::Opus },
    Format { name: "aac", media_type: "audio/aac", audio: AudioFormat::Aac },
    Format { name: "flac", media_type: "audio/flac", audio: AudioFormat::Flac },
    Format { name: "wav", media_type: "audio/wav", audio: AudioFormat::Wav16 },
    Format { name: "pcm", media_type: "audio/pcm", audio: AudioFormat::Raw16 },
];

/// Formats of this build.
pub fn formats() -> impl Iterator<Item = Format> {
    FORMATS.into_iter().filter(|format| AudioFormat::available().any(|audio| audio == format.audio))
}

impl Format {
    /// The format of a name.
    ///
    /// # Errors
    /// It is unknown or not part of this build: 400.
    pub fn read(name: &str) -> Result<Format> {
        formats().find(|format| format.name == name).ok_or_else(|| {
            let known = formats().map(|format| format.name).collect::<Vec<_>>().join(", ");
            let message = match FORMATS.iter().find(|format| format.name == name) {
                Some(format) => format!("this build has no {}; choose one of {known}", format.name),
                None => {
                    let name: String = name.chars().take(40).collect();
                    format!("the format {name:?} is unknown; choose one of {known}")
                }
            };
            ApiError::field("unsupported_format", "response_format", message)
        })
    }
}

/// Resamplers from a model's rate, each made once: their filters take a millisecond.
pub struct Resamplers {
    model_rate: u32,
    by_rate: Mutex<HashMap<u32, StreamResampler>>,
}

impl Resamplers {
    /// Resamplers from `model_rate` in Hz.
    pub fn new(model_rate: u32) -> Resamplers {
        Resamplers { model_rate, by_rate: Mutex::default() }
    }

    fn to(&self, rate: u32) -> Result<StreamResampler> {
        let mut by_rate = self.by_rate.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(resampler) = by_rate.get(&rate) {
            return Ok(resampler.clone());
        }
        let made = StreamResampler::new(self.model_rate, rate)
            .map_err(|e| ApiError::field("unsupported_format", "sample_rate", e.to_string()))?;
        Ok(by_rate.entry(rate).or_insert(made).clone())
    }
}

/// A format with a sample rate.
#[derive(Clone, Debug)]
pub struct Encoding {
    /// The format.
    pub format: Format,
    /// Samples per second of the answer.
    pub sample_rate: u32,
    /// Bits per second of lossy formats; `None` is the default for speech.
    bit_rate: Option<u32>,
    /// Unused, from the model's rate.
    resampler: StreamResampler,
}

impl Encoding {
    /// A format at the rate `asked`, or at the format's default.
    ///
    /// # Errors
    /// The format does not support the rate: 400.
    pub fn new(format: Format, asked: Option<u64>, resamplers: &Resamplers) -> Result<Encoding> {
        let sample_rate = match asked {
            None if format.audio == AudioFormat::Raw16 => PCM_RATE,
            None => format.audio.nearest_rate(resamplers.model_rate),
            Some(asked) => {
                let rates = format.audio.sample_rates().unwrap_or(&RATES);
                let known = rates.iter().find(|rate| u64::from(**rate) == asked);
                *known.ok_or_else(|| {
                    let rates = rates.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
                    let message = format!("`sample_rate` of {} is one of {rates}", format.name);
                    ApiError::field("invalid_value", "sample_rate", message)
                })?
            }
        };
        Ok(Encoding { format, sample_rate, bit_rate: None, resampler: resamplers.to(sample_rate)? })
    }

    /// Sets the bit rate, which lossless formats ignore.
    ///
    /// # Errors
    /// The format does not support it: 400.
    pub fn with_bit_rate(self, bit_rate: Option<u32>) -> Result<Encoding> {
        let encoding = Encoding { bit_rate, ..self };
        encoding.encoder().map(|_| encoding)
    }

    /// An encoder for an answer.
    ///
    /// # Errors
    /// The format does not support the settings: 400.
    pub fn encoder(&self) -> Result<StreamEncoder> {
        StreamEncoder::with_resampler(self.format.audio, self.resampler.clone(), self.bit_rate)
            .map_err(|e| ApiError::field("unsupported_format", "sample_rate", e.to_string()))
    }
}
