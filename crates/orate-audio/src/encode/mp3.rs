//! MP3 of constant bit rate, one frame after another.
//!
//! No frame borrows bits of another (no bit reservoir) and no Xing frame comes first, so bytes go out at once
//! and a stream plays from any frame on.

use rusty_mp3::encode::Mp3Encode;
use rusty_mp3::encoder_header;
use rusty_mp3::header::FrameHeader;

use super::Encode;
use crate::error::{AudioError, Cause, Result};

/// Samples that encoder and decoder hold back, 528 and 529. As much silence at the end pushes them out.
const DELAY: usize = 1057;

pub struct Mp3 {
    encoder: Box<Mp3Encode>,
    header: FrameHeader,
    /// Samples of the frame that is not complete.
    pending: Vec<f32>,
    /// Samples a frame.
    block: usize,
    frames: u64,
    /// Bytes that the frames so far fall short of the bit rate, times `sample_rate`.
    lacking: u32,
    /// Tag before the first frame.
    #[cfg(feature = "chapters")]
    tag: Vec<u8>,
}

impl Mp3 {
    pub fn new(sample_rate: u32, wanted: Option<u32>) -> Result<Self> {
        let kbps: &[u32] = match sample_rate {
            32_000.. => &[32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320],
            _ => &[8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160],
        };
        let bit_rate = wanted.unwrap_or(match sample_rate {
            ..16_000 => 32_000,
            16_000..=24_000 => 64_000,
            _ => 128_000,
        });
        if !kbps.iter().any(|kbps| kbps * 1000 == bit_rate) {
            let want = format!("MP3 at {sample_rate} Hz has one of {} thousand", super::list(kbps));
            return Err(AudioError::Config { what: "bit_rate", got: bit_rate.to_string(), want });
        }
        let header = encoder_header(sample_rate, 1, bit_rate / 1000).map_err(|error| failed(error.into()))?;
        let block = header.version.samples_per_frame();
        Ok(Self {
            encoder: Box::default(),
            header,
            pending: Vec::with_capacity(block),
            block,
            frames: 0,
            lacking: 0,
            #[cfg(feature = "chapters")]
            tag: vec![],
        })
    }

    /// Encodes the pending samples.
    fn frame(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        let rate = self.header.sample_rate;
        // The size of a frame is rounded down; padding bytes make up for it.
        self.lacking += self.block as u32 / 8 * self.header.bitrate_kbps * 1000 % rate;
        self.header.padding = self.lacking >= rate;
        self.lacking %= rate;
        let frame = self.encoder.encode_frame(&self.header, &[&self.pending], None);
        bytes.extend(frame.map_err(|error| failed(error.into()))?);
        self.pending.clear();
        self.frames += 1;
        Ok(())
    }
}

impl Encode for Mp3 {
    #[cfg(feature = "chapters")]
    fn set_tags(&mut self, tags: &crate::tags::Tags) -> Result<()> {
        self.tag = crate::tags::id3(tags)?;
        Ok(())
    }

    #[cfg_attr(not(feature = "chapters"), expect(unused_variables, reason = "a stream begins with a frame"))]
    fn begin(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        #[cfg(feature = "chapters")]
        bytes.append(&mut self.tag);
        Ok(())
    }

    fn push(&mut self, mut samples: &[f32], bytes: &mut Vec<u8>) -> Result<()> {
        while !samples.is_empty() {
            let (now, later) = samples.split_at(samples.len().min(self.block - self.pending.len()));
            self.pending.extend(now.iter().map(|x| x.clamp(-1.0, 1.0)));
            if self.pending.len() == self.block {
                self.frame(bytes)?;
            }
            samples = later;
        }
        Ok(())
    }

    fn finish(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        self.push(&[0.0; DELAY], bytes)?;
        // Players accept a first frame only when a second one follows.
        while !self.pending.is_empty() || self.frames < 2 {
            self.pending.resize(self.block, 0.0);
            self.frame(bytes)?;
        }
        Ok(())
    }
}

fn failed(source: Cause) -> AudioError {
    AudioError::Encode { format: "mp3", source }
}
