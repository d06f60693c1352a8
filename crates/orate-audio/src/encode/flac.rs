//! FLAC, one frame after another.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use flac_codec::encode::{FlacStreamWriter, Options};
use md5::Context;

use super::Encode;
use crate::error::{AudioError, Result};
use crate::format::to_pcm16;

/// Highest sample rate in Hz that the header of a frame can state.
const MAX_RATE: u32 = 655_350;

pub struct Flac {
    writer: FlacStreamWriter<Shared>,
    /// What `writer` wrote.
    frames: Shared,
    sample_rate: u32,
    /// Samples a frame, but for the last.
    block: usize,
    /// Samples of the frame that is not complete.
    pending: Vec<i32>,
    samples: u64,
    /// Bytes of the smallest and of the largest frame.
    sizes: Option<(u32, u32)>,
    md5: Context,
    /// Of the whole, when that is known.
    digest: [u8; 16],
}

impl Flac {
    pub fn new(sample_rate: u32) -> Result<Self> {
        // Beyond 16 bits, frames state tens of Hz.
        if sample_rate > MAX_RATE || (sample_rate > u32::from(u16::MAX) && !sample_rate.is_multiple_of(10)) {
            let want = format!("FLAC has up to {MAX_RATE} Hz, and beyond 65535 Hz only multiples of 10");
            return Err(AudioError::Config { what: "sample_rate", got: sample_rate.to_string(), want });
        }
        // At most 50 ms, so that streams start soon.
        let block = 1 << (sample_rate / 20).clamp(16, 4096).ilog2();
        let frames = Shared::default();
        Ok(Self {
            writer: FlacStreamWriter::new(frames.clone(), Options::default()),
            frames,
            sample_rate,
            block,
            pending: Vec::with_capacity(block),
            samples: 0,
            sizes: None,
            md5: Context::new(),
            digest: [0; 16],
        })
    }

    /// Writes the pending samples as one frame.
    fn frame(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        self.writer
            .write(self.sample_rate, 1, 16, &self.pending)
            .map_err(|error| AudioError::Encode { format: "flac", source: error.into() })?;
        self.pending.iter().for_each(|&x| self.md5.consume((x as i16).to_le_bytes()));
        self.samples += self.pending.len() as u64;
        self.pending.clear();
        let mut frame = self.frames.lock();
        let size = frame.len() as u32;
        let (least, most) = self.sizes.unwrap_or((size, size));
        self.sizes = Some((least.min(size), most.max(size)));
        bytes.append(&mut frame);
        Ok(())
    }

    /// The mark of the format and STREAMINFO.
    fn head(&self) -> Vec<u8> {
        let mut head = b"fLaC\x80\0\0\x22".to_vec();
        let block = (self.block as u16).to_be_bytes();
        head.extend([block, block].concat());
        let (least, most) = self.sizes.unwrap_or_default();
        head.extend(&least.to_be_bytes()[1..]);
        head.extend(&most.to_be_bytes()[1..]);
        // 20 bits of the rate, 3 of the channels less one, 5 of the bits less one, 36 of the samples: unknown
        // is 0, also what does not fit.
        let samples = if self.samples < 1 << 36 { self.samples } else { 0 };
        head.extend((u64::from(self.sample_rate) << 44 | 15 << 36 | samples).to_be_bytes());
        head.extend(self.digest);
        head
    }
}

impl Encode for Flac {
    fn begin(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        bytes.extend(self.head());
        Ok(())
    }

    fn push(&mut self, mut samples: &[f32], bytes: &mut Vec<u8>) -> Result<()> {
        while !samples.is_empty() {
            let (now, later) = samples.split_at(samples.len().min(self.block - self.pending.len()));
            self.pending.extend(now.iter().map(|&x| i32::from(to_pcm16(x))));
            if self.pending.len() == self.block {
                self.frame(bytes)?;
            }
            samples = later;
        }
        Ok(())
    }

    fn finish(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        if !self.pending.is_empty() {
            self.frame(bytes)?;
        }
        self.digest = self.md5.clone().finalize().0;
        Ok(())
    }

    fn header(&self) -> Option<Vec<u8>> {
        Some(self.head())
    }
}

/// Bytes that a writer wrote, shared with its owner.
#[derive(Clone, Debug, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
