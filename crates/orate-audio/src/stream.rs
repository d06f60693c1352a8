//! Audio for pipes: samples are written at once, and nothing is rewound.

use std::io::Write;

use crate::error::{AudioError, Result, check_sample_rate, check_samples};
use crate::format::{WavFormat, to_pcm16};

/// Writes mono samples to a pipe, a socket or standard output.
///
/// Every [`write`](Self::write) is flushed, so that a player gets it at once.
///
/// ```
/// use orate_audio::{PcmStream, WavFormat};
///
/// let mut stream = PcmStream::raw(Vec::new(), WavFormat::Pcm16);
/// stream.write(&[0.0, 0.5])?;
/// assert_eq!(stream.into_inner(), [0x00, 0x00, 0x00, 0x40]);
/// # Ok::<(), orate_audio::AudioError>(())
/// ```
#[derive(Debug)]
pub struct PcmStream<W> {
    writer: W,
    format: WavFormat,
    samples_written: u64,
    bytes: Vec<u8>,
}

impl<W: Write> PcmStream<W> {
    /// Starts a WAV stream: a header with the conventional length `0xFFFFFFFF` for "unknown", which players
    /// take as "until the end". The length is not limited.
    ///
    /// # Errors
    ///
    /// [`AudioError::SampleRate`], or [`AudioError::WriteStream`] if the header cannot be
    /// written.
    pub fn wav(mut writer: W, sample_rate: u32, format: WavFormat) -> Result<Self> {
        check_sample_rate(sample_rate)?;
        writer
            .write_all(&wav_stream_header(sample_rate, format))
            .and_then(|()| writer.flush())
            .map_err(|source| AudioError::WriteStream { source })?;
        Ok(Self::raw(writer, format))
    }

    /// Starts a stream of bare little-endian samples, without any header.
    pub fn raw(writer: W, format: WavFormat) -> Self {
        Self { writer, format, samples_written: 0, bytes: Vec::new() }
    }

    /// Writes samples and flushes. 16-bit samples are clipped to -1..1.
    ///
    /// # Errors
    ///
    /// [`AudioError::BadSample`] if a sample is not finite; [`AudioError::WriteStream`], whose source is
    /// `BrokenPipe` if the reader is gone.
    pub fn write(&mut self, samples: &[f32]) -> Result<()> {
        check_samples(samples, self.samples_written)?;
        for chunk in samples.chunks(16 * 1024) {
            self.bytes.clear();
            for &x in chunk {
                match self.format {
                    WavFormat::Pcm16 => self.bytes.extend(to_pcm16(x).to_le_bytes()),
                    WavFormat::Float32 => self.bytes.extend(x.to_le_bytes()),
                }
            }
            self.writer.write_all(&self.bytes).map_err(|source| AudioError::WriteStream { source })?;
            self.samples_written += chunk.len() as u64;
        }
        self.writer.flush().map_err(|source| AudioError::WriteStream { source })
    }

    /// Returns the writer.
    pub fn into_inner(self) -> W {
        self.writer
    }
}

/// Returns the header of a WAV stream of unknown length, for servers that write samples themselves.
///
/// `sample_rate` in Hz is not checked, as it is in [`PcmStream::wav`].
pub fn wav_stream_header(sample_rate: u32, format: WavFormat) -> Vec<u8> {
    format.spec(sample_rate).into_header_for_infinite_file()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn header_is_as_players_expect() {
        let header = wav_stream_header(24_000, WavFormat::Pcm16);
        assert_eq!(&header[..16], b"RIFF\xff\xff\xff\xffWAVEfmt ");
        assert_eq!(header[22..24], [1, 0]);
        assert_eq!(header[24..28], 24_000_u32.to_le_bytes());
        assert_eq!(header[28..32], 48_000_u32.to_le_bytes());
        assert_eq!(&header[36..], b"data\xff\xff\xff\xff");
        let float = wav_stream_header(24_000, WavFormat::Float32);
        assert_eq!(float.last_chunk(), Some(b"data\xff\xff\xff\xff"));
    }

    /// Fails after some bytes and counts flushes.
    struct Pipe {
        room: usize,
        flushes: usize,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room == 0 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let taken = bytes.len().min(self.room);
            self.room -= taken;
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.flushes += 1;
            Ok(())
        }
    }

    #[test]
    fn every_write_is_flushed_and_errors_surface() {
        let pipe = Pipe { room: 44 + 200, flushes: 0 };
        let mut stream = PcmStream::wav(pipe, 8000, WavFormat::Pcm16).unwrap();
        stream.write(&[0.0; 50]).unwrap();
        stream.write(&[0.0; 50]).unwrap();
        assert_eq!(stream.writer.flushes, 3);
        let error = stream.write(&[0.0]).unwrap_err();
        assert!(
            matches!(&error, AudioError::WriteStream { source } if source.kind() == io::ErrorKind::BrokenPipe)
        );
        let no_room = PcmStream::wav(Pipe { room: 10, flushes: 0 }, 8000, WavFormat::Pcm16);
        assert!(no_room.is_err());
        assert!(PcmStream::wav(Vec::new(), 0, WavFormat::Pcm16).is_err());
    }
}
