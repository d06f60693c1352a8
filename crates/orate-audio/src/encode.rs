//! Encoders of streams: bytes go out as samples come in.

#[cfg(feature = "aac")]
mod aac;
mod flac;
#[cfg(feature = "mp3")]
mod mp3;
#[cfg(feature = "opus")]
mod opus;
mod pcm;

use crate::error::{AudioError, Result, check_sample_rate, check_samples};
use crate::format::{AudioFormat, WavFormat};
use crate::stream_resampler::StreamResampler;
use crate::tags::Tags;

/// Encoder of one format, for finite samples at the rate of the stream. It neither seeks nor starts threads,
/// and its memory is bounded.
trait Encode: Send {
    /// Sets what the header says about the file, before it is written. Formats without tags leave it out.
    fn set_tags(&mut self, _tags: &Tags) -> Result<()> {
        Ok(())
    }

    /// Appends the header.
    fn begin(&mut self, bytes: &mut Vec<u8>) -> Result<()>;

    /// Appends the bytes that `samples` complete. They do not depend on how the samples were divided.
    fn push(&mut self, samples: &[f32], bytes: &mut Vec<u8>) -> Result<()>;

    /// Appends the rest.
    fn finish(&mut self, bytes: &mut Vec<u8>) -> Result<()>;

    /// After [`finish`](Self::finish): the header with the true length. `None` if the format's has no length.
    fn header(&self) -> Option<Vec<u8>> {
        None
    }
}

/// Settings of a [`StreamEncoder`]; the default suits speech.
#[derive(Clone, Debug, Default)]
pub struct EncoderSettings {
    /// Sample rate of the stream in Hz; audio of another rate is resampled. `None` is
    /// [`AudioFormat::nearest_rate`].
    pub sample_rate: Option<u32>,
    /// Bits per second of lossy formats. `None` is 48,000 for Opus; for MP3 32,000 below 16 kHz, 64,000 up to
    /// 24 kHz and 128,000 beyond; for AAC 4 a sample, at most 128,000.
    pub bit_rate: Option<u32>,
}

/// Encodes mono audio as its samples arrive, in bounded memory and without seeking.
///
/// The bytes do not depend on how the samples were divided, and come after at most 60 ms of samples; for AAC
/// after 3072 samples, for MP3 below 11 kHz after 85 ms. A stream that breaks off plays up to there.
///
/// ```
/// use orate_audio::{AudioFormat, EncoderSettings, StreamEncoder};
///
/// let mut encoder = StreamEncoder::new(AudioFormat::Flac, 24_000, &EncoderSettings::default())?;
/// let mut bytes = Vec::new();
/// encoder.begin(&mut bytes)?;
/// for piece in [[0.0; 1000], [0.5; 1000]] {
///     encoder.push(&piece, &mut bytes)?;
///     // Send the bytes, and clear them.
/// }
/// let header = encoder.finish(&mut bytes)?;
/// // Outputs that can be rewound, such as files, get the true length.
/// if let Some(header) = header {
///     bytes[..header.len()].copy_from_slice(&header);
/// }
/// assert!(bytes.starts_with(b"fLaC"));
/// # Ok::<(), orate_audio::AudioError>(())
/// ```
pub struct StreamEncoder {
    format: AudioFormat,
    sample_rate: u32,
    encoder: Box<dyn Encode>,
    resampler: Option<StreamResampler>,
    resampled: Vec<f32>,
    samples: u64,
    has_begun: bool,
}

impl std::fmt::Debug for StreamEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("StreamEncoder");
        f.field("format", &self.format).field("sample_rate", &self.sample_rate).finish_non_exhaustive()
    }
}

impl StreamEncoder {
    /// Prepares a stream of `format` from samples at `sample_rate` in Hz.
    ///
    /// # Errors
    ///
    /// [`AudioError::NotBuilt`] if this build lacks the format, [`AudioError::SampleRate`] for a rate of 0 or
    /// above [`MAX_SAMPLE_RATE`](crate::MAX_SAMPLE_RATE), [`AudioError::Config`] for settings that the format
    /// cannot have, and [`AudioError::Resample`] if the rates' ratio takes numbers above 2000.
    pub fn new(format: AudioFormat, sample_rate: u32, settings: &EncoderSettings) -> Result<Self> {
        check_sample_rate(sample_rate)?;
        let rate = settings.sample_rate.unwrap_or_else(|| format.nearest_rate(sample_rate));
        let encoder = Self::at(format, rate, settings.bit_rate)?;
        if rate == sample_rate {
            return Ok(encoder);
        }
        Ok(Self { resampler: Some(StreamResampler::new(sample_rate, rate)?), ..encoder })
    }

    /// As [`new`](Self::new), with title, author and chapters for formats that have them: MP3 (with the
    /// feature `chapters`) and Opus.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new), and [`AudioError::Encode`] if the encoder refuses the tags.
    pub fn tagged(
        format: AudioFormat,
        sample_rate: u32,
        settings: &EncoderSettings,
        tags: &Tags,
    ) -> Result<Self> {
        let mut encoder = Self::new(format, sample_rate, settings)?;
        encoder.encoder.set_tags(tags)?;
        Ok(encoder)
    }

    /// As [`new`](Self::new), from the input rate of an unused resampler to its output rate. The filter of a
    /// resampler takes a millisecond to compute, and clones share it.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn with_resampler(
        format: AudioFormat,
        resampler: StreamResampler,
        bit_rate: Option<u32>,
    ) -> Result<Self> {
        let encoder = Self::at(format, resampler.output_rate(), bit_rate)?;
        Ok(Self { resampler: resampler.converts().then_some(resampler), ..encoder })
    }

    /// An encoder of samples at the rate of the stream.
    #[cfg_attr(
        not(any(feature = "mp3", feature = "opus", feature = "aac")),
        expect(unused_variables, reason = "formats without loss have no bit rate")
    )]
    fn at(format: AudioFormat, rate: u32, bit_rate: Option<u32>) -> Result<Self> {
        check_sample_rate(rate)?;
        if let Some(rates) = format.sample_rates()
            && !rates.contains(&rate)
        {
            let want = format!("{} has one of {}", format.name(), list(rates));
            return Err(AudioError::Config { what: "sample_rate", got: rate.to_string(), want });
        }
        let encoder: Box<dyn Encode> = match format {
            AudioFormat::Wav16 => Box::new(pcm::Pcm::wav(rate, WavFormat::Pcm16)),
            AudioFormat::WavFloat => Box::new(pcm::Pcm::wav(rate, WavFormat::Float32)),
            AudioFormat::Raw16 => Box::new(pcm::Pcm::raw(WavFormat::Pcm16)),
            AudioFormat::RawFloat => Box::new(pcm::Pcm::raw(WavFormat::Float32)),
            AudioFormat::Flac => Box::new(flac::Flac::new(rate)?),
            #[cfg(feature = "mp3")]
            AudioFormat::Mp3 => Box::new(mp3::Mp3::new(rate, bit_rate)?),
            #[cfg(feature = "opus")]
            AudioFormat::Opus => Box::new(opus::Opus::new(rate, bit_rate)?),
            #[cfg(feature = "aac")]
            AudioFormat::Aac => Box::new(aac::Aac::new(rate, bit_rate)?),
            #[allow(unreachable_patterns, reason = "with all features, none is left")]
            _ => {
                let known = AudioFormat::available().map(AudioFormat::name).collect::<Vec<_>>().join(", ");
                return Err(AudioError::NotBuilt { format: format.name(), known });
            }
        };
        let (resampler, resampled) = (None, vec![]);
        Ok(Self { format, sample_rate: rate, encoder, resampler, resampled, samples: 0, has_begun: false })
    }

    /// The format.
    pub fn format(&self) -> AudioFormat {
        self.format
    }

    /// Sample rate of the stream in Hz.
    pub fn sample_rate(&self) -> u32 {
        self.sample_rate
    }

    /// Number of samples pushed so far.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Appends the header, once. The first [`push`](Self::push) does so otherwise.
    ///
    /// # Errors
    ///
    /// [`AudioError::Encode`] if the encoder fails.
    pub fn begin(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.encoder.begin(bytes)?;
        }
        Ok(())
    }

    /// Appends the bytes that `samples` complete. Only `WavFloat` and `RawFloat` keep what is beyond -1..1;
    /// others clip it.
    ///
    /// # Errors
    ///
    /// [`AudioError::BadSample`] if a sample is not finite; the stream stays as it was then.
    /// [`AudioError::Encode`] if the encoder fails, which ends the stream.
    pub fn push(&mut self, samples: &[f32], bytes: &mut Vec<u8>) -> Result<()> {
        check_samples(samples, self.samples)?;
        self.begin(bytes)?;
        self.samples += samples.len() as u64;
        let Some(resampler) = &mut self.resampler else { return self.encoder.push(samples, bytes) };
        // In pieces, which bound the memory.
        for piece in samples.chunks(1 << 14) {
            self.resampled.clear();
            resampler.push(piece, &mut self.resampled);
            self.encoder.push(&self.resampled, bytes)?;
        }
        Ok(())
    }

    /// Appends the rest. Returns a header of the same size as that of [`begin`](Self::begin), with the true
    /// length, for outputs that can seek; `None` if the format's has no length.
    ///
    /// # Errors
    ///
    /// As for [`push`](Self::push).
    pub fn finish(mut self, bytes: &mut Vec<u8>) -> Result<Option<Vec<u8>>> {
        self.begin(bytes)?;
        if let Some(resampler) = &mut self.resampler {
            self.resampled.clear();
            resampler.finish(&mut self.resampled);
            self.encoder.push(&self.resampled, bytes)?;
        }
        self.encoder.finish(bytes)?;
        Ok(self.encoder.header())
    }
}

/// Encodes a whole clip at once, with true lengths in its header.
///
/// # Errors
///
/// As for [`StreamEncoder`].
pub fn encode(
    samples: &[f32],
    sample_rate: u32,
    format: AudioFormat,
    settings: &EncoderSettings,
) -> Result<Vec<u8>> {
    let mut encoder = StreamEncoder::new(format, sample_rate, settings)?;
    let mut bytes = vec![];
    encoder.push(samples, &mut bytes)?;
    if let Some(header) = encoder.finish(&mut bytes)? {
        bytes[..header.len()].copy_from_slice(&header);
    }
    Ok(bytes)
}

fn list(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
