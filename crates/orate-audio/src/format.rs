//! File formats, and the conversion of samples to integers.

use std::path::Path;

use crate::error::{AudioError, Result};

/// Sample format of a WAV file or stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WavFormat {
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

/// File formats for writing. All are mono.
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
}

impl AudioFormat {
    /// File name extensions that [`AudioFormat::from_extension`] knows.
    pub const EXTENSIONS: &[&str] = &["wav", "flac"];

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
    /// let error = AudioFormat::from_extension("hello.ogg").unwrap_err();
    /// assert!(error.to_string().contains(".wav, .flac"));
    /// # Ok::<(), orate_audio::AudioError>(())
    /// ```
    pub fn from_extension(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let extension = path.extension().map(|e| e.to_string_lossy().into_owned());
        match extension.as_deref().map(str::to_ascii_lowercase).as_deref() {
            Some("wav") => Ok(Self::Wav16),
            Some("flac") => Ok(Self::Flac),
            _ => {
                let known: Vec<String> = Self::EXTENSIONS.iter().map(|e| format!(".{e}")).collect();
                let path = path.to_owned();
                Err(AudioError::UnknownFormat { path, extension, known: known.join(", ") })
            }
        }
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
            ("a.mp3", None),
            ("a.wav/b", None),
            ("wav", None),
            (".wav", None),
            ("", None),
        ];
        for (name, want) in cases {
            let got = AudioFormat::from_extension(name);
            assert_eq!(got.as_ref().ok().copied(), want, "{name}");
            if let Err(error) = got {
                assert!(error.to_string().contains(".wav, .flac"), "{error}");
            }
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
