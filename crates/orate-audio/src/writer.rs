//! Writes audio files piece by piece.

use std::path::{Path, PathBuf};

use flac_codec::encode::{FlacSampleWriter, Options};
use hound::WavWriter;
use orate_files::{OutputFile, Sink};

use crate::error::{AudioError, Result, check_sample_rate, check_samples};
use crate::format::{AudioFormat, WavFormat, to_pcm16};
use crate::output::{create, write_error};
use crate::stream::PcmStream;

/// Maximum bytes of samples in a WAV file: its 32-bit size field, less any header.
const MAX_WAV_DATA_BYTES: u64 = u32::MAX as u64 - 1024;

/// Samples that are converted at a time; limits the memory of the FLAC encoder.
const BLOCK: usize = 4096;

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

struct Open {
    // Before `output` in drop order, because encoders write when they are dropped.
    encoder: Encoder,
    output: OutputFile,
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open").field("output", &self.output).finish_non_exhaustive()
    }
}

enum Encoder {
    Wav(WavWriter<Sink>, WavFormat),
    /// Raw samples, or WAV for an output that cannot be rewound.
    Stream(PcmStream<Sink>),
    Flac(Box<FlacSampleWriter<Sink>>),
}

impl AudioWriter {
    /// Starts a file.
    ///
    /// # Errors
    ///
    /// [`AudioError::SampleRate`] for a rate of 0 or above [`MAX_SAMPLE_RATE`](crate::MAX_SAMPLE_RATE),
    /// [`AudioError::Create`] if the folder is missing or may not be written to.
    pub fn create(path: impl AsRef<Path>, sample_rate: u32, format: AudioFormat) -> Result<Self> {
        let path = path.as_ref();
        check_sample_rate(sample_rate)?;
        let output = create(path)?;
        let encoder = Encoder::new(&output, path, sample_rate, format)?;
        Ok(Self {
            path: path.to_owned(),
            sample_rate,
            samples_written: 0,
            wav_limit_bytes: MAX_WAV_DATA_BYTES,
            open: Some(Open { encoder, output }),
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
        check_samples(samples, self.samples_written)?;
        let total = self.samples_written + samples.len() as u64;
        if let Encoder::Wav(_, format) = &open.encoder
            && total * format.bytes_per_sample() as u64 > self.wav_limit_bytes
        {
            let limit_bytes = self.wav_limit_bytes;
            return Err(AudioError::WavTooLong { path: self.path.clone(), limit_bytes });
        }
        open.encoder.write(samples, &self.path)?;
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
        let Some(Open { encoder, output }) = self.open.take() else {
            return Err(AudioError::Abandoned { path: self.path.clone() });
        };
        encoder.finish(&self.path)?;
        output.commit().map_err(|error| write_error(&self.path, error))
    }
}

impl Encoder {
    fn new(output: &OutputFile, path: &Path, sample_rate: u32, format: AudioFormat) -> Result<Self> {
        let wav = |format: WavFormat| {
            if output.is_seekable() {
                let writer = WavWriter::new(output.sink(), format.spec(sample_rate));
                Ok(Self::Wav(writer.map_err(|error| hound_error(error, path))?, format))
            } else {
                let stream = PcmStream::wav(output.sink(), sample_rate, format);
                Ok(Self::Stream(stream.map_err(|error| stream_error(error, path))?))
            }
        };
        match format {
            AudioFormat::Wav16 => wav(WavFormat::Pcm16),
            AudioFormat::WavFloat => wav(WavFormat::Float32),
            AudioFormat::Raw16 => Ok(Self::Stream(PcmStream::raw(output.sink(), WavFormat::Pcm16))),
            AudioFormat::RawFloat => Ok(Self::Stream(PcmStream::raw(output.sink(), WavFormat::Float32))),
            AudioFormat::Flac => {
                let options = Options::default().no_padding().no_seektable();
                FlacSampleWriter::new(output.sink(), options, sample_rate, 16, 1, None)
                    .map(|writer| Self::Flac(Box::new(writer)))
                    .map_err(|error| flac_error(error, path))
            }
        }
    }

    fn write(&mut self, samples: &[f32], path: &Path) -> Result<()> {
        match self {
            Self::Wav(writer, format) => samples
                .iter()
                .try_for_each(|&x| match format {
                    WavFormat::Pcm16 => writer.write_sample(to_pcm16(x)),
                    WavFormat::Float32 => writer.write_sample(x),
                })
                .map_err(|error| hound_error(error, path)),
            Self::Stream(stream) => stream.write(samples).map_err(|error| stream_error(error, path)),
            Self::Flac(writer) => {
                let mut integers = [0; BLOCK];
                samples.chunks(BLOCK).try_for_each(|chunk| {
                    for (integer, &x) in integers.iter_mut().zip(chunk) {
                        *integer = i32::from(to_pcm16(x));
                    }
                    writer.write(&integers[..chunk.len()]).map_err(|error| flac_error(error, path))
                })
            }
        }
    }

    fn finish(self, path: &Path) -> Result<()> {
        match self {
            Self::Wav(writer, _) => writer.finalize().map_err(|error| hound_error(error, path)),
            Self::Stream(_) => Ok(()),
            Self::Flac(writer) => match writer.finalize() {
                // The header written at the start already describes an empty stream.
                Err(flac_codec::Error::NoSamples) => Ok(()),
                result => result.map_err(|error| flac_error(error, path)),
            },
        }
    }
}

fn hound_error(error: hound::Error, path: &Path) -> AudioError {
    let source = match error {
        hound::Error::IoError(error) => error,
        other => std::io::Error::other(other),
    };
    write_error(path, source)
}

fn stream_error(error: AudioError, path: &Path) -> AudioError {
    match error {
        AudioError::WriteStream { source } => write_error(path, source),
        other => other,
    }
}

fn flac_error(error: flac_codec::Error, path: &Path) -> AudioError {
    match error {
        flac_codec::Error::Io(error) => write_error(path, error),
        other => AudioError::EncodeFlac { path: path.to_owned(), source: Box::new(other) },
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
