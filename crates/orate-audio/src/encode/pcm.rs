//! WAV and raw samples.

use super::Encode;
use crate::error::Result;
use crate::format::{WavFormat, to_pcm16};

pub struct Pcm {
    format: WavFormat,
    /// Sample rate of a WAV stream in Hz; `None` for raw samples.
    header: Option<u32>,
    data_bytes: u64,
}

impl Pcm {
    pub fn wav(sample_rate: u32, format: WavFormat) -> Self {
        Self { format, header: Some(sample_rate), data_bytes: 0 }
    }

    pub fn raw(format: WavFormat) -> Self {
        Self { format, header: None, data_bytes: 0 }
    }
}

impl Encode for Pcm {
    fn begin(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        bytes.extend(self.header.iter().flat_map(|&rate| open_header(rate, self.format)));
        Ok(())
    }

    fn push(&mut self, samples: &[f32], bytes: &mut Vec<u8>) -> Result<()> {
        match self.format {
            WavFormat::Pcm16 => bytes.extend(samples.iter().flat_map(|&x| to_pcm16(x).to_le_bytes())),
            WavFormat::Float32 => bytes.extend(samples.iter().flat_map(|x| x.to_le_bytes())),
        }
        self.data_bytes += (samples.len() * self.format.bytes_per_sample()) as u64;
        Ok(())
    }

    fn finish(&mut self, _: &mut Vec<u8>) -> Result<()> {
        Ok(())
    }

    fn header(&self) -> Option<Vec<u8>> {
        let mut header = open_header(self.header?, self.format);
        let length = header.len();
        // Longer ones stay of unknown length.
        if let Ok(riff) = u32::try_from(self.data_bytes + length as u64 - 8) {
            header[4..8].copy_from_slice(&riff.to_le_bytes());
            // Fits, being less.
            header[length - 4..].copy_from_slice(&(self.data_bytes as u32).to_le_bytes());
        }
        Some(header)
    }
}

/// The header of a WAV stream: with the conventional length `0xFFFFFFFF` for "unknown", which players take as
/// "until the end".
fn open_header(sample_rate: u32, format: WavFormat) -> Vec<u8> {
    format.spec(sample_rate).into_header_for_infinite_file()
}
