//! File formats, and the conversion of samples to integers.

use std::path::Path;

use crate::error::{AudioError, Result};

/// Sample format of a WAV file or stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum WavFormat {
    /// 16-bit signed integers, which every player plays.
    #[default]
    Pcm16,
    /// 32-bit floats: the samples unchanged, also beyond full scale.
    Float32,
}

impl WavFormat {
    /// Bytes of a mono sample.
    pub fn bytes_per_sample(self) -> usize {
        match self {
            Self::Pcm16 => 2,
            Self::Float32 => 4,
        }
    }

    pub(crate) fn spec(self, sample_rate: u32) -> hound::WavSpec {
        let (bits_per_sample, sample_format) = match self {
            Self::Pcm16 => (16, hound::SampleFormat::Int),
            Self::Float32 => (32, hound::SampleFormat::Float),
        };
        hound::WavSpec { channels: 1, sample_rate, bits_per_sample, sample_format }
    }
}

/// Formats for writing files and streams. All are mono.
///
/// Lossy formats are features of this crate: [`AudioFormat::available`] lists what this build has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AudioFormat {
    /// WAV with 16-bit integers.
    Wav16,
    /// WAV with 32-bit floats.
    WavFloat,
    /// FLAC with 16-bit integers: lossless, and about half the size of [`AudioFormat::Wav16`].
    Flac,
    /// Little-endian 16-bit integers without a header.
    Raw16,
    /// Little-endian 32-bit floats without a header.
    RawFloat,
    /// MP3 of constant bit rate. Feature `mp3`.
    Mp3,
    /// Opus in Ogg. Feature `opus`.
    Opus,
    /// AAC-LC in ADTS. Feature `aac`.
    Aac,
}

impl AudioFormat {
    /// File name extensions that [`AudioFormat::from_extension`] knows in this build.
    pub const EXTENSIONS: &[&str] = &[
        "wav",
        "flac",
        #[cfg(feature = "mp3")]
        "mp3",
        #[cfg(feature = "opus")]
        "opus",
        #[cfg(feature = "opus")]
        "ogg",
        #[cfg(feature = "aac")]
        "aac",
    ];

    /// All formats, those that this build lacks included.
    pub const ALL: &[AudioFormat] = &[
        Self::Wav16,
        Self::WavFloat,
        Self::Flac,
        Self::Raw16,
        Self::RawFloat,
        Self::Mp3,
        Self::Opus,
        Self::Aac,
    ];

    /// Chooses the format by the extension of a file name, in upper or lower case.
    ///
    /// `.wav` means [`AudioFormat::Wav16`]; floats and raw samples must be requested explicitly.
    ///
    /// # Errors
    ///
    /// [`AudioError::UnknownFormat`], which lists the known extensions.
    ///
    /// ```
    /// use orate_audio::AudioFormat;
    ///
    /// assert_eq!(AudioFormat::from_extension("hello.flac")?, AudioFormat::Flac);
    /// let error = AudioFormat::from_extension("hello.txt").unwrap_err();
    /// assert!(error.to_string().contains(".wav, .flac"));
    /// # Ok::<(), orate_audio::AudioError>(())
    /// ```
    pub fn from_extension(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let extension = path.extension().map(|e| e.to_string_lossy().into_owned());
        let lower = extension.as_deref().map(str::to_ascii_lowercase);
        match lower.as_deref().filter(|e| Self::EXTENSIONS.contains(e)) {
            Some("wav") => Ok(Self::Wav16),
            Some("flac") => Ok(Self::Flac),
            Some("mp3") => Ok(Self::Mp3),
            Some("opus" | "ogg") => Ok(Self::Opus),
            Some("aac") => Ok(Self::Aac),
            _ => {
                let known: Vec<String> = Self::EXTENSIONS.iter().map(|e| format!(".{e}")).collect();
                let path = path.to_owned();
                Err(AudioError::UnknownFormat { path, extension, known: known.join(", ") })
            }
        }
    }

    /// Returns the format of a name as [`AudioFormat::name`] returns it, in this build or not.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|format| format.name() == name)
    }

    /// Returns the name by which clients of speech servers ask for the format: `mp3`, `opus`, `aac`, `flac`,
    /// `wav`, `pcm`; and `wav-float`, `pcm-float`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wav16 => "wav",
            Self::WavFloat => "wav-float",
            Self::Flac => "flac",
            Self::Raw16 => "pcm",
            Self::RawFloat => "pcm-float",
            Self::Mp3 => "mp3",
            Self::Opus => "opus",
            Self::Aac => "aac",
        }
    }

    /// Returns the usual file name extension, without a dot.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Wav16 | Self::WavFloat => "wav",
            Self::Raw16 | Self::RawFloat => "pcm",
            other => other.name(),
        }
    }

    /// Returns the media type, for `Content-Type`.
    pub fn mime_type(self) -> &'static str {
        match self {
            Self::Wav16 | Self::WavFloat => "audio/wav",
            Self::Flac => "audio/flac",
            Self::Raw16 | Self::RawFloat => "audio/pcm",
            Self::Mp3 => "audio/mpeg",
            Self::Opus => "audio/ogg",
            Self::Aac => "audio/aac",
        }
    }

    /// Returns whether this build can write the format.
    pub fn is_available(self) -> bool {
        let features = [
            (Self::Mp3, cfg!(feature = "mp3")),
            (Self::Opus, cfg!(feature = "opus")),
            (Self::Aac, cfg!(feature = "aac")),
        ];
        features.iter().all(|&(format, is_built)| format != self || is_built)
    }

    /// Returns the formats that this build can write.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|format| format.is_available())
    }

    /// Returns the sample rates in Hz that the format can have, ascending; `None` if it can have any.
    pub fn sample_rates(self) -> Option<&'static [u32]> {
        match self {
            Self::Mp3 => Some(&[8000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000]),
            Self::Opus => Some(&[8000, 12_000, 16_000, 24_000, 48_000]),
            Self::Aac => Some(&[
                8000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 64_000, 88_200, 96_000,
            ]),
            _ => None,
        }
    }

    /// Returns the rate in Hz at which audio of `sample_rate` is encoded: the same if the format can have it,
    /// else the next higher one, else the highest.
    ///
    /// ```
    /// use orate_audio::AudioFormat;
    ///
    /// assert_eq!(AudioFormat::Opus.nearest_rate(44_100), 48_000);
    /// assert_eq!(AudioFormat::Flac.nearest_rate(44_100), 44_100);
    /// ```
    pub fn nearest_rate(self, sample_rate: u32) -> u32 {
        let Some(rates) = self.sample_rates() else { return sample_rate };
        rates.iter().copied().find(|&rate| rate >= sample_rate).unwrap_or(rates[rates.len() - 1])
    }
}

/// Converts a sample to 16 bits: 1.0 is 32768, rounded to nearest, clipped to the range.
///
/// [`read_wav`](crate::read_wav) uses the inverse scale, so 16-bit audio survives any number of round trips
/// unchanged. NaN becomes silence.
///
/// ```
/// use orate_audio::to_pcm16;
///
/// assert_eq!([0.5, -1.0, 1.0, 7.0, f32::NAN].map(to_pcm16), [16384, -32768, 32767, 32767, 0]);
/// ```
#[inline]
pub fn to_pcm16(sample: f32) -> i16 {
    // `as` saturates and turns NaN into 0.
    (sample * 32768.0).round_ties_even() as i16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_by_extension() {
        let cases = [
            ("a.wav", Some(AudioFormat::Wav16)),
            ("a.WAV", Some(AudioFormat::Wav16)),
            ("/x.wav/a.Flac", Some(AudioFormat::Flac)),
            ("a.mp3", Some(AudioFormat::Mp3).filter(|f| f.is_available())),
            ("a.Opus", Some(AudioFormat::Opus).filter(|f| f.is_available())),
            ("a.ogg", Some(AudioFormat::Opus).filter(|f| f.is_available())),
            ("a.aac", Some(AudioFormat::Aac).filter(|f| f.is_available())),
            ("a.m4a", None),
            ("a.wav/b", None),
            ("wav", None),
            (".wav", None),
            ("", None),
        ];
        for (name, want) in cases {
            let got = AudioFormat::from_extension(name);
            assert_eq!(got.as_ref().ok().copied(), want, "{name}");
            if let Err(error) = got {
                let known =
                    AudioFormat::EXTENSIONS.iter().all(|e| error.to_string().contains(&format!(".{e}")));
                assert!(known, "{error}");
            }
        }
    }

    #[test]
    fn names_and_extensions_belong_to_one_format() {
        for &format in AudioFormat::ALL {
            assert_eq!(AudioFormat::from_name(format.name()), Some(format));
            let named = AudioFormat::from_extension(format!("a.{}", format.extension()));
            match format {
                AudioFormat::Raw16 | AudioFormat::RawFloat => assert!(named.is_err()),
                AudioFormat::WavFloat => assert_eq!(named.unwrap(), AudioFormat::Wav16),
                _ => assert_eq!(named.ok(), Some(format).filter(|f| f.is_available())),
            }
        }
        assert_eq!(AudioFormat::from_name("m4a"), None);
    }

    #[test]
    fn rates_are_those_of_the_format_or_higher() {
        let cases = [
            (AudioFormat::Mp3, 24_000, 24_000),
            (AudioFormat::Mp3, 44_099, 44_100),
            (AudioFormat::Mp3, 96_000, 48_000),
            (AudioFormat::Opus, 22_050, 24_000),
            (AudioFormat::Opus, 1, 8000),
            (AudioFormat::Wav16, 12_345, 12_345),
        ];
        for (format, rate, want) in cases {
            assert_eq!(format.nearest_rate(rate), want, "{format:?} at {rate} Hz");
        }
    }

    #[test]
    fn pcm16_rounds_and_clips() {
        let lsb = 1.0 / 32768.0;
        let cases = [
            (0.0, 0),
            (-0.0, 0),
            (lsb, 1),
            (0.4 * lsb, 0),
            (0.6 * lsb, 1),
            (-0.6 * lsb, -1),
            (1.0 - lsb, 32767),
            (1.0, 32767),
            (-1.0, -32768),
            (-1.5, -32768),
            (f32::INFINITY, 32767),
            (f32::NEG_INFINITY, -32768),
            (f32::NAN, 0),
        ];
        for (sample, want) in cases {
            assert_eq!(to_pcm16(sample), want, "{sample}");
        }
    }
}
