//! Writes audio files piece by piece.

use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use orate_files::OutputFile;

use crate::encode::{EncoderSettings, StreamEncoder};
use crate::error::{AudioError, Result};
use crate::format::{AudioFormat, WavFormat};
use crate::output::{create, write_error};
use crate::tags::Tags;

/// Maximum bytes of samples in a WAV file: its 32-bit size field, less any header.
const MAX_WAV_DATA_BYTES: u64 = u32::MAX as u64 - 1024;

/// Samples that are encoded at a time; limits memory.
const BLOCK: usize = 1 << 14;

/// Writes one mono audio file as its samples arrive, in bounded memory.
///
/// The file gets its name only when [`finish`](Self::finish) succeeds. So there is never a partial output,
/// and an existing file stays until then. Devices and FIFOs are written directly; a WAV header then says that
/// the length is unknown.
///
/// ```
/// use orate_audio::{AudioFormat, AudioWriter, read_wav};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("hello.wav");
/// let mut writer = AudioWriter::create(&path, 24_000, AudioFormat::WavFloat)?;
/// writer.write(&[0.0, 0.25])?;
/// writer.write(&[-0.5])?;
/// writer.finish()?;
/// assert_eq!(read_wav(&path)?.samples, [0.0, 0.25, -0.5]);
/// # Ok::<(), orate_audio::AudioError>(())
/// ```
#[derive(Debug)]
pub struct AudioWriter {
    path: PathBuf,
    sample_rate: u32,
    samples_written: u64,
    wav_limit_bytes: u64,
    /// `None` after an error.
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    encoder: StreamEncoder,
    output: OutputFile,
    /// Encoded, and not yet written.
    bytes: Vec<u8>,
}

impl AudioWriter {
    /// Starts a file. If the format cannot have this sample rate, the audio is resampled to
    /// [`AudioFormat::nearest_rate`].
    ///
    /// # Errors
    ///
    /// As for [`StreamEncoder::new`], and [`AudioError::Create`] if the folder is missing or may not be
    /// written to.
    pub fn create(path: impl AsRef<Path>, sample_rate: u32, format: AudioFormat) -> Result<Self> {
        Self::create_tagged(path, sample_rate, format, &Tags::default())
    }

    /// As [`create`](Self::create), with title, author and chapters for formats that have them, as in
    /// [`StreamEncoder::tagged`].
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create).
    pub fn create_tagged(
        path: impl AsRef<Path>,
        sample_rate: u32,
        format: AudioFormat,
        tags: &Tags,
    ) -> Result<Self> {
        let path = path.as_ref();
        let encoder = StreamEncoder::tagged(format, sample_rate, &EncoderSettings::default(), tags)?;
        let mut open = Open { encoder, output: create(path)?, bytes: vec![] };
        if !open.output.is_seekable() {
            // Players want the header at once.
            open.encoder.begin(&mut open.bytes)?;
            open.write(path)?;
        }
        Ok(Self {
            path: path.to_owned(),
            sample_rate,
            samples_written: 0,
            wav_limit_bytes: MAX_WAV_DATA_BYTES,
            open: Some(open),
        })
    }

    /// Name of the file until it is complete, for programs that may end without dropping the writer. `None`
    /// if it has no name until then (as on Linux), for devices and pipes, and after an error.
    pub fn temporary_path(&self) -> Option<&Path> {
        self.open.as_ref()?.output.temporary_path()
    }

    /// The sample rate in Hz, as given to [`create`](Self::create).
    pub fn sample_rate(&self) -> u32 {
        self.sample_rate
    }

    /// Number of samples written so far.
    pub fn samples_written(&self) -> u64 {
        self.samples_written
    }

    /// Appends samples. Integer formats clip them to -1..1.
    ///
    /// # Errors
    ///
    /// [`AudioError::BadSample`] if a sample is not finite, [`AudioError::Write`] if the disk is full,
    /// [`AudioError::WavTooLong`] before a WAV file would exceed 4 GiB. After an error nothing remains of the
    /// file, and every further call returns [`AudioError::Abandoned`].
    pub fn write(&mut self, samples: &[f32]) -> Result<()> {
        let Some(mut open) = self.open.take() else {
            return Err(AudioError::Abandoned { path: self.path.clone() });
        };
        let total = self.samples_written + samples.len() as u64;
        let bytes_per_sample = match open.encoder.format() {
            AudioFormat::Wav16 => WavFormat::Pcm16.bytes_per_sample(),
            AudioFormat::WavFloat => WavFormat::Float32.bytes_per_sample(),
            _ => 0,
        };
        // Of what cannot be rewound, the header says that the length is unknown.
        if open.output.is_seekable() && total * bytes_per_sample as u64 > self.wav_limit_bytes {
            let limit_bytes = self.wav_limit_bytes;
            return Err(AudioError::WavTooLong { path: self.path.clone(), limit_bytes });
        }
        for block in samples.chunks(BLOCK) {
            open.encoder.push(block, &mut open.bytes)?;
            open.write(&self.path)?;
        }
        self.samples_written = total;
        self.open = Some(open);
        Ok(())
    }

    /// Completes the file and gives it its final name, replacing an existing file.
    ///
    /// The data is not forced to the disk (no `fsync`).
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write). Nothing remains then.
    pub fn finish(mut self) -> Result<()> {
        let Some(Open { encoder, output, mut bytes }) = self.open.take() else {
            return Err(AudioError::Abandoned { path: self.path.clone() });
        };
        let header = encoder.finish(&mut bytes)?;
        let mut sink = output.sink();
        let write = || {
            sink.write_all(&bytes)?;
            if let Some(header) = header.filter(|_| output.is_seekable()) {
                sink.seek(SeekFrom::Start(0))?;
                sink.write_all(&header)?;
            }
            drop(sink);
            output.commit()
        };
        write().map_err(|error| write_error(&self.path, error))
    }
}

impl Open {
    /// Writes what is encoded, to devices and pipes at once.
    fn write(&mut self, path: &Path) -> Result<()> {
        let mut sink = self.output.sink();
        let mut write = || {
            sink.write_all(&self.bytes)?;
            if self.output.is_seekable() { Ok(()) } else { sink.flush() }
        };
        write().map_err(|error| write_error(path, error))?;
        self.bytes.clear();
        Ok(())
    }
}

/// Writes a whole clip to a file: [`AudioWriter`] in one call.
///
/// # Errors
///
/// As for [`AudioWriter`].
pub fn write_audio(
    path: impl AsRef<Path>,
    samples: &[f32],
    sample_rate: u32,
    format: AudioFormat,
) -> Result<()> {
    let mut writer = AudioWriter::create(path, sample_rate, format)?;
    writer.write(samples)?;
    writer.finish()
}

#[cfg(test)]
mod tests;
