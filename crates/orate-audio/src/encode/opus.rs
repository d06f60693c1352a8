//! Opus in Ogg, packets of 20 ms.

use opus_pure::{Application, Error, MAX_PACKET_BYTES, OggOpusWriter, OpusEncoder, OpusHead, OpusTags};

use super::Encode;
use crate::error::{AudioError, Result};
use crate::tags::Tags;

/// Packets on each of the first pages: one, so that players start at once.
const FIRST_PAGES: u64 = 5;
/// Packets on a later page: 200 ms.
const PACKETS: u64 = 10;
/// Bits per second.
const DEFAULT_BIT_RATE: u32 = 48_000;
/// Of granule positions in Ogg, whatever the rate of the encoder.
const GRANULE_RATE: u64 = 48_000;

pub struct Opus {
    encoder: OpusEncoder,
    head: OpusHead,
    tags: OpusTags,
    /// `None` before the beginning and after the end.
    writer: Option<OggOpusWriter<Vec<u8>>>,
    /// Samples of the packet that is not complete.
    pending: Vec<f32>,
    /// Samples a packet.
    block: usize,
    samples: u64,
    packets: u64,
    packet: Vec<u8>,
}

impl Opus {
    pub fn new(sample_rate: u32, wanted: Option<u32>) -> Result<Self> {
        let bit_rate = wanted.unwrap_or(DEFAULT_BIT_RATE);
        if !(6000..=256_000).contains(&bit_rate) {
            let want = "Opus has 6000 to 256000 for one channel".to_owned();
            return Err(AudioError::Config { what: "bit_rate", got: bit_rate.to_string(), want });
        }
        let mut encoder = OpusEncoder::new(sample_rate as i32, 1, Application::Audio).map_err(failed)?;
        encoder.bitrate_bps = bit_rate as i32;
        let block = sample_rate as usize / 50;
        Ok(Self {
            head: OpusHead::for_encoder(&encoder, sample_rate),
            tags: OpusTags::new(),
            encoder,
            writer: None,
            pending: Vec::with_capacity(block),
            block,
            samples: 0,
            packets: 0,
            packet: vec![0; MAX_PACKET_BYTES],
        })
    }

    /// Encodes the pending samples, the last of the stream if `end` says at which granule that ends.
    fn frame(&mut self, end: Option<u64>, bytes: &mut Vec<u8>) -> Result<()> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let size = self.encoder.encode(&self.pending, self.block, &mut self.packet).map_err(failed)?;
        self.pending.clear();
        // A page goes out when the next packet comes. The limit is in packets and not in bytes, because those
        // of silence are small.
        let is_due = self.packets <= FIRST_PAGES || (self.packets - FIRST_PAGES).is_multiple_of(PACKETS);
        writer.set_page_target(if is_due { 1 } else { usize::MAX });
        match end {
            None => writer.write_packet(&self.packet[..size]),
            Some(end) => {
                let left = end.saturating_sub(writer.granule() as u64);
                writer.write_packet_with_duration(&self.packet[..size], left as u32)
            }
        }
        .map_err(failed)?;
        self.packets += 1;
        bytes.append(writer.get_mut().expect("the writer is open"));
        Ok(())
    }
}

impl Encode for Opus {
    fn set_tags(&mut self, tags: &Tags) -> Result<()> {
        let texts = [("TITLE", &tags.title), ("ALBUM", &tags.album), ("ARTIST", &tags.artist)];
        for (name, text) in texts.into_iter().chain([("LANGUAGE", &tags.language)]) {
            if let Some(text) = text {
                self.tags.push(name, text).map_err(failed)?;
            }
        }
        if let Some((number, count)) = tags.track {
            self.tags.push("TRACKNUMBER", &number.to_string()).map_err(failed)?;
            self.tags.push("TRACKTOTAL", &count.to_string()).map_err(failed)?;
        }
        for (i, chapter) in tags.chapters.iter().enumerate() {
            let ms = (chapter.start * 1000.0).round() as u64;
            let (h, m, s, ms) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000);
            let (name, time) = (format!("CHAPTER{i:03}"), format!("{h:02}:{m:02}:{s:02}.{ms:03}"));
            self.tags.push(&name, &time).map_err(failed)?;
            self.tags.push(&format!("{name}NAME"), &chapter.title).map_err(failed)?;
        }
        Ok(())
    }

    fn begin(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        let mut writer =
            OggOpusWriter::with_tags(vec![], self.head.clone(), self.tags.clone()).map_err(failed)?;
        bytes.append(writer.get_mut().expect("the writer is open"));
        self.writer = Some(writer);
        Ok(())
    }

    fn push(&mut self, mut samples: &[f32], bytes: &mut Vec<u8>) -> Result<()> {
        self.samples += samples.len() as u64;
        while !samples.is_empty() {
            // Only when more comes, so that the last packet of a stream is known as such.
            if self.pending.len() == self.block {
                self.frame(None, bytes)?;
            }
            let (now, later) = samples.split_at(samples.len().min(self.block - self.pending.len()));
            self.pending.extend(now.iter().map(|x| x.clamp(-1.0, 1.0)));
            samples = later;
        }
        Ok(())
    }

    fn finish(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        if self.samples > 0 {
            // Audio leaves a decoder `pre_skip` later; silence pushes it out, and the end is stated.
            let ticks = GRANULE_RATE / self.encoder.sample_rate() as u64;
            let end = u64::from(self.head.pre_skip) + self.samples * ticks;
            let delay = usize::from(self.head.pre_skip).div_ceil(ticks as usize);
            let mut rest = (self.pending.len() + delay).div_ceil(self.block);
            while rest > 0 {
                rest -= 1;
                self.pending.resize(self.block, 0.0);
                self.frame(Some(end).filter(|_| rest == 0), bytes)?;
            }
        }
        if let Some(writer) = self.writer.take() {
            bytes.extend(writer.finish().map_err(failed)?);
        }
        Ok(())
    }
}

fn failed(source: Error) -> AudioError {
    AudioError::Encode { format: "opus", source: source.into() }
}
