//! WAV streams saved to a file, whose header was written before the length was known.
//!
//! Such a header has `0xFFFFFFFF`, or a value close to it, as the size of the samples (ffmpeg and sox also
//! write this), or 0 in all sizes. Decoders take these values literally.

use std::io::{self, Read};

/// Bytes at the start of a file in which to look for the header of the samples.
pub(crate) const HEADER: usize = 1 << 16;

/// Minimum size that means "until the end".
const UNKNOWN: u32 = u32::MAX - 4096;

/// A header without the length of its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenEnd {
    /// Offset of the samples in bytes.
    body: usize,
    /// Bytes of one sample of all channels.
    block_align: usize,
    /// Samples per second.
    sample_rate: u32,
}

impl OpenEnd {
    /// Parses the first bytes of a file. `None` if it is not a WAV file, or its header has a length.
    pub fn find(bytes: &[u8]) -> Option<OpenEnd> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        if bytes.get(..4)? != b"RIFF" || bytes.get(8..12)? != b"WAVE" {
            return None;
        }
        let whole = word(4)?;
        let (mut block_align, mut sample_rate) = (1, 0);
        let mut at = 12;
        loop {
            let (name, length, body) = (bytes.get(at..at + 4)?, word(at + 4)?, at + 8);
            match name {
                b"fmt " => {
                    sample_rate = word(body + 4)?;
                    let &[low, high] = bytes.get(body + 12..body + 14)? else { return None };
                    block_align = usize::from(u16::from_le_bytes([low, high])).max(1);
                }
                b"data" => {
                    // A completed header of an empty file has the file's size.
                    let never_completed = length == 0 && (whole as usize).saturating_add(8) <= body;
                    let open = body < UNKNOWN as usize && (length >= UNKNOWN || never_completed);
                    return open.then_some(OpenEnd { body, block_align, sample_rate });
                }
                _ => {}
            }
            // Chunks are padded to an even length.
            at = body.checked_add(length as usize)?.checked_add(length as usize % 2)?;
        }
    }

    /// Reads the rest of the file after `bytes`, its beginning, up to `seconds` of audio and at most the size
    /// limit of WAV files.
    pub fn read_rest(&self, bytes: &mut Vec<u8>, file: impl Read, seconds: f64) -> io::Result<()> {
        let rate = self.block_align as f64 * f64::from(self.sample_rate);
        let most = (seconds * rate).min(f64::from(UNKNOWN)) as u64;
        file.take(most).read_to_end(bytes).map(drop)
    }

    /// Writes the true sizes into the header of a whole file. Trailing bytes that are not a whole sample are
    /// removed.
    pub fn close(&self, bytes: &mut Vec<u8>) {
        let most = (UNKNOWN as usize).min(bytes.len()) - self.body;
        let samples = most - most % self.block_align;
        bytes.truncate(self.body + samples);
        // Both are less than `UNKNOWN`.
        let mut put =
            |at: usize, size: usize| bytes[at..at + 4].copy_from_slice(&(size as u32).to_le_bytes());
        put(4, self.body + samples - 8);
        put(self.body - 4, samples);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A WAV file of 16-bit samples with an extra chunk before them, with the given sizes in its header, and
    /// bytes after it.
    fn wav(whole: u32, data: u32, after: usize) -> Vec<u8> {
        let mut bytes = [&b"RIFF"[..], &whole.to_le_bytes(), b"WAVEfmt \x10\0\0\0\x01\0\x01\0"].concat();
        bytes.extend([8000_u32.to_le_bytes(), 16_000_u32.to_le_bytes()].concat());
        bytes.extend(b"\x02\0\x10\0LIST\x03\0\0\0abc\0data");
        bytes.extend(data.to_le_bytes());
        bytes.resize(bytes.len() + after, 1);
        bytes
    }

    #[test]
    fn sizes_that_were_never_written_are_those_of_the_file() {
        let min = 48;
        for (whole, data) in [
            (u32::MAX, u32::MAX),
            (u32::MAX, u32::MAX - 59),
            (min + 6, u32::MAX),
            (0, 0),
            (min, 0),
            (min, u32::MAX),
        ] {
            for (after, samples) in [(6, 6), (7, 6), (1, 0)] {
                let mut bytes = wav(whole, data, after);
                let open = OpenEnd::find(&bytes).expect("the size is not known");
                open.close(&mut bytes);
                assert_eq!(bytes, wav(min + samples, samples, samples as usize), "{whole} {data} {after}");
            }
        }
    }

    #[test]
    fn sizes_that_were_written_are_left_alone() {
        for (whole, data, after) in [(54, 6, 6), (48, 6, 3), (60, 0, 12), (u32::MAX, 6, 6)] {
            assert_eq!(OpenEnd::find(&wav(whole, data, after)), None, "{whole} {data} {after}");
        }
        let good = wav(0, 0, 6);
        (0..good.len() - 7).for_each(|n| assert_eq!(OpenEnd::find(&good[..n]), None, "cut to {n} bytes"));
        assert_eq!(OpenEnd::find(b"RIFX\0\0\0\0WAVEdata\0\0\0\0"), None);
    }

    #[test]
    fn no_more_is_read_than_is_asked_for() {
        let mut bytes = wav(0, 0, 0);
        let open = OpenEnd::find(&bytes).expect("the size is not known");
        let header = bytes.len();
        open.read_rest(&mut bytes, io::repeat(0), 2.5).expect("reads");
        assert_eq!(bytes.len() - header, 40_000);
    }
}
