//! Reads WAV files: for tests, comparisons, reference voices.

use std::path::Path;

use hound::{SampleFormat, WavReader};

use crate::error::{AudioError, Cause, Result, check_sample_rate};
use crate::wav_length::OpenEnd;

/// Maximum bytes of a WAV file. Its size field has 32 bits, but is not set in streamed files.
const MAX_BYTES: u64 = 2 * u32::MAX as u64;

/// Mono audio in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waveform {
    /// Samples; full scale is -1..1.
    pub samples: Vec<f32>,
    /// Samples per second.
    pub sample_rate: u32,
}

impl Waveform {
    /// The length in seconds; 0 if the sample rate is 0.
    pub fn duration_s(&self) -> f64 {
        match self.sample_rate {
            0 => 0.0,
            rate => self.samples.len() as f64 / f64::from(rate),
        }
    }
}

/// Reads a WAV file with 8-, 16-, 24- or 32-bit integers or 32-bit floats.
///
/// Several channels are averaged to one. A streamed file, whose header says "length unknown", is read to its
/// end.
///
/// # Errors
///
/// [`AudioError::ReadWav`] if the file is missing, truncated or not a WAV file of these kinds.
pub fn read_wav(path: impl AsRef<Path>) -> Result<Waveform> {
    let path = path.as_ref();
    let failed = |source: Cause| AudioError::ReadWav { path: path.to_owned(), source };
    let mut bytes = orate_files::read(path, MAX_BYTES).map_err(|error| failed(error.into()))?;
    if let Some(open) = OpenEnd::find(&bytes) {
        open.close(&mut bytes);
    }
    let waveform = WavReader::new(bytes.as_slice()).and_then(decode).map_err(|error| failed(error.into()))?;
    check_sample_rate(waveform.sample_rate)?;
    Ok(waveform)
}

fn decode(reader: WavReader<&[u8]>) -> hound::Result<Waveform> {
    let spec = reader.spec();
    let interleaved: Vec<f32> = match spec.sample_format {
        SampleFormat::Float => reader.into_samples::<f32>().collect::<hound::Result<_>>()?,
        SampleFormat::Int => {
            let scale = 0.5_f64.powi(i32::from(spec.bits_per_sample) - 1);
            let to_float = |x: i32| (f64::from(x) * scale) as f32;
            reader.into_samples::<i32>().map(|sample| sample.map(to_float)).collect::<hound::Result<_>>()?
        }
    };
    let samples = match usize::from(spec.channels) {
        0 | 1 => interleaved,
        n => interleaved.chunks_exact(n).map(|frame| frame.iter().sum::<f32>() / n as f32).collect(),
    };
    Ok(Waveform { samples, sample_rate: spec.sample_rate })
}

#[cfg(test)]
mod tests {
    use std::{fs, io};

    use super::*;
    use crate::format::WavFormat;
    use crate::{AudioFormat, EncoderSettings, StreamEncoder};

    fn read_bytes(bytes: &[u8]) -> Result<Waveform> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in.wav");
        fs::write(&path, bytes).unwrap();
        read_wav(path)
    }

    fn wav(spec: hound::WavSpec, samples: &[i32]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = hound::WavWriter::new(io::Cursor::new(&mut bytes), spec).unwrap();
        samples.iter().for_each(|&x| writer.write_sample(x).unwrap());
        writer.finalize().unwrap();
        bytes
    }

    #[test]
    fn integers_of_every_width_and_channels() {
        let spec = |channels, bits_per_sample| hound::WavSpec {
            channels,
            sample_rate: 16_000,
            bits_per_sample,
            sample_format: SampleFormat::Int,
        };
        let cases: [(u16, u16, &[i32], &[f32]); 6] = [
            (1, 8, &[-128, 0, 64], &[-1.0, 0.0, 0.5]),
            (1, 16, &[-32768, 16384, 1], &[-1.0, 0.5, 1.0 / 32768.0]),
            (1, 24, &[-8388608, 4194304], &[-1.0, 0.5]),
            (1, 32, &[i32::MIN, 1 << 30], &[-1.0, 0.5]),
            (2, 16, &[16384, 0, -32768, -32768], &[0.25, -1.0]),
            (1, 16, &[], &[]),
        ];
        for (channels, bits, samples, want) in cases {
            let got = read_bytes(&wav(spec(channels, bits), samples)).unwrap();
            assert_eq!(got.samples, want, "{channels} channels, {bits} bits");
            assert_eq!(got.sample_rate, 16_000);
        }
    }

    #[test]
    fn a_saved_stream_is_read_to_its_end() {
        for (format, odd_bytes) in [
            (AudioFormat::Wav16, 0),
            (AudioFormat::Wav16, 1),
            (AudioFormat::WavFloat, 0),
            (AudioFormat::WavFloat, 3),
        ] {
            let mut encoder = StreamEncoder::new(format, 24_000, &EncoderSettings::default()).unwrap();
            let mut bytes = vec![];
            encoder.push(&[0.5, -0.25, 0.0], &mut bytes).unwrap();
            bytes.resize(bytes.len() + odd_bytes, 0);
            let got = read_bytes(&bytes).unwrap();
            assert_eq!(got.samples, [0.5, -0.25, 0.0], "{format:?} and {odd_bytes} bytes");
        }
    }

    #[test]
    fn broken_files_are_errors() {
        let spec = WavFormat::Pcm16.spec(8000);
        let good = wav(spec, &[1, 2, 3]);
        for length in 0..good.len() {
            assert!(read_bytes(&good[..length]).is_err(), "cut to {length} bytes");
        }
        let error = read_wav("/no/such/file.wav").unwrap_err();
        assert!(error.to_string().contains("/no/such/file.wav"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn devices_are_refused() {
        let error = read_wav("/dev/zero").unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(cause, "not a regular file");
    }

    #[test]
    fn damaged_headers_never_panic() {
        let good = wav(WavFormat::Pcm16.spec(8000), &[1, 2, 3]);
        for at in 0..44 {
            for value in [0, 1, 2, 0x7f, 0x80, 0xff] {
                let mut bytes = good.clone();
                bytes[at] = value;
                let _ = read_bytes(&bytes);
            }
        }
    }
}
