//! How the sound of an answer is written.

use crate::error::{ApiError, Result};
use orate_audio::{AudioFormat, EncoderSettings, StreamEncoder};

/// Sample rate of raw samples where none is asked for: that of OpenAI's service, which clients assume, as raw
/// samples have no header.
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

/// All of them; a build may lack some.
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
                None => format!("choose one of {known}"),
            };
            ApiError::field("unsupported_format", "response_format", message)
        })
    }
}

/// A format with a sample rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// The format.
    pub format: Format,
    /// Samples per second of the answer.
    pub sample_rate: u32,
    /// Bits per second of formats with loss; `None` for what suits speech.
    bit_rate: Option<u32>,
    model_rate: u32,
}

impl Encoding {
    /// Sound of a model with `model_rate` samples per second, in this format, at the rate asked for.
    ///
    /// # Errors
    /// The format cannot have the rate: 400.
    pub fn new(format: Format, asked: Option<u64>, model_rate: u32) -> Result<Encoding> {
        let usual = match format.audio {
            AudioFormat::Raw16 => PCM_RATE,
            audio => audio.nearest_rate(model_rate),
        };
        let sample_rate = match asked {
            None => usual,
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
        Ok(Encoding { format, sample_rate, bit_rate: None, model_rate })
    }

    /// The same with so many bits per second, which formats without loss ignore.
    ///
    /// # Errors
    /// The format cannot have them: 400.
    pub fn with_bit_rate(self, bit_rate: Option<u32>) -> Result<Encoding> {
        let encoding = Encoding { bit_rate, ..self };
        encoding.encoder().map(|_| encoding)
    }

    /// An encoder for an answer.
    ///
    /// # Errors
    /// The rates have no common multiple that a resampler can work with.
    pub fn encoder(&self) -> Result<StreamEncoder> {
        let settings = EncoderSettings { sample_rate: Some(self.sample_rate), bit_rate: self.bit_rate };
        StreamEncoder::new(self.format.audio, self.model_rate, &settings)
            .map_err(|e| ApiError::field("unsupported_format", "sample_rate", e.to_string()))
    }
}
