//! AAC-LC in ADTS.
//!
//! The encoder takes whole clips only, but a frame depends on little: on the block before, and on whether
//! there are onsets up to two blocks after and some before. So a window of the stream is encoded for a few
//! frames at a time, and the other frames of the window are dropped.

use rusty_aac::{AacEncoder, AacEncoderConfig, AdtsHeader, Error, write_adts_header};

use super::Encode;
use crate::error::{AudioError, Result};

/// Samples a block, and a frame.
const BLOCK: usize = 1024;
/// Blocks of a window before its first frame. Over them, what is before fades to a hundred thousandth in the
/// average level that onsets stand out from.
const HISTORY: usize = 7;
/// Blocks after a frame that it depends on.
const AHEAD: usize = 2;
/// Frames at a time, but for the first. From 16 blocks on, the encoder would start threads.
const FRAMES: usize = 15 - HISTORY - AHEAD - 1;
/// Bytes of a header.
const HEADER: usize = 7;

pub struct Aac {
    sample_rate: u32,
    config: AacEncoderConfig,
    /// Samples from block `first` on.
    window: Vec<f32>,
    first: usize,
    /// Frames written.
    done: usize,
}

impl Aac {
    pub fn new(sample_rate: u32, wanted: Option<u32>) -> Result<Self> {
        // At 24 kHz and 64,000 the crate has an SNR of 12 dB, and 21 dB at 96,000.
        let bit_rate = wanted.unwrap_or((4 * sample_rate).min(128_000));
        // A frame holds 6144 bits.
        let most = 6 * sample_rate;
        if !(8000..=most).contains(&bit_rate) {
            let want = format!("AAC at {sample_rate} Hz has 8000 to {most}");
            return Err(AudioError::Config { what: "bit_rate", got: bit_rate.to_string(), want });
        }
        // The default onset detector depends on the whole clip.
        let config =
            AacEncoderConfig { bitrate_bps: bit_rate, relative_transients: false, ..Default::default() };
        Ok(Self { sample_rate, config, window: vec![], first: 0, done: 0 })
    }

    /// Encodes the first `blocks` of the window, and writes their frames up to number `end`.
    fn frames(&mut self, blocks: usize, end: usize, bytes: &mut Vec<u8>) -> Result<()> {
        let samples = &self.window[..self.window.len().min(blocks * BLOCK)];
        let mut encoder = AacEncoder::new(self.config);
        encoder.push_pcm(samples, 1, self.sample_rate).map_err(failed)?;
        encoder.finish();
        for frame in self.first..end {
            let packet = encoder.next_packet().map_err(failed)?.data;
            if frame >= self.done {
                bytes.extend(write_adts_header(&AdtsHeader {
                    object_type: 2,
                    sample_rate: self.sample_rate,
                    channels: 1,
                    frame_length: HEADER + packet.len(),
                    header_len: HEADER,
                }));
                bytes.extend(packet);
            }
        }
        self.done = end;
        let first = self.done.saturating_sub(HISTORY);
        self.window.drain(..(first - self.first) * BLOCK);
        self.first = first;
        Ok(())
    }
}

impl Encode for Aac {
    fn begin(&mut self, _: &mut Vec<u8>) -> Result<()> {
        Ok(())
    }

    fn push(&mut self, samples: &[f32], bytes: &mut Vec<u8>) -> Result<()> {
        for piece in samples.chunks(BLOCK) {
            self.window.extend(piece.iter().map(|x| x.clamp(-1.0, 1.0)));
            let end = self.done + if self.done == 0 { 1 } else { FRAMES };
            let blocks = end + AHEAD - self.first;
            if self.window.len() >= blocks * BLOCK {
                self.frames(blocks, end, bytes)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        if self.first == 0 && self.window.is_empty() {
            // Players accept a first frame only when a second one follows.
            self.window.push(0.0);
        }
        let blocks = self.window.len().div_ceil(BLOCK);
        // A frame overlaps with the next, so one follows the last block.
        self.frames(blocks, self.first + blocks + 1, bytes)
    }
}

fn failed(source: Error) -> AudioError {
    AudioError::Encode { format: "aac", source: source.into() }
}
