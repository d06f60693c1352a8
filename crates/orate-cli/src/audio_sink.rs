//! Destination of audio: standard output, or a file that appears only when it is complete.

use crate::failure::UsageError;
use anyhow::Context;
use clap::ValueEnum;
use orate::{AudioError, AudioFormat, AudioWriter, PcmStream, WavFormat};
use std::io::{self, IsTerminal, Stdout};
use std::path::{Path, PathBuf};

/// Format of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// WAV with 16-bit integers
    Wav16,
    /// WAV with 32-bit floats
    WavFloat,
    /// FLAC, lossless, 16 bits
    Flac,
    /// Raw 16-bit little-endian integers
    Raw,
    /// Raw 32-bit little-endian floats
    RawFloat,
}

impl Format {
    /// Name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Format::Wav16 => "wav16",
            Format::WavFloat => "wav-float",
            Format::Flac => "flac",
            Format::Raw => "raw",
            Format::RawFloat => "raw-float",
        }
    }

    fn of_file(self) -> AudioFormat {
        match self {
            Format::Wav16 => AudioFormat::Wav16,
            Format::WavFloat => AudioFormat::WavFloat,
            Format::Flac => AudioFormat::Flac,
            Format::Raw => AudioFormat::Raw16,
            Format::RawFloat => AudioFormat::RawFloat,
        }
    }
}

/// Destination of audio, checked but not opened.
#[derive(Debug, PartialEq)]
pub struct Output {
    /// `None` for standard output.
    pub path: Option<PathBuf>,
    /// Format of the samples.
    pub format: Format,
}

impl Output {
    /// Takes the format from the option, or else from the file name extension. `-` is standard output.
    pub fn choose(path: &Path, format: Option<Format>) -> anyhow::Result<Output> {
        if path.as_os_str() == "-" {
            let format = format.unwrap_or(Format::Wav16);
            if format == Format::Flac {
                let problem = "-o -: FLAC cannot be streamed; choose wav16, wav-float, raw or raw-float";
                return Err(UsageError(problem.to_owned()).into());
            }
            if io::stdout().is_terminal() {
                let problem = "-o -: standard output is a terminal; send it to a file or a player, \
                               such as `orate say … -o - | aplay`";
                return Err(UsageError(problem.to_owned()).into());
            }
            return Ok(Output { path: None, format });
        }
        // Devices and named pipes, such as /dev/null, have no extension.
        let is_special = || path.metadata().is_ok_and(|m| !m.is_file() && !m.is_dir());
        let format = match (format, AudioFormat::from_extension(path)) {
            (Some(format), _) => format,
            (None, Ok(AudioFormat::Flac)) => Format::Flac,
            (None, Ok(_)) => Format::Wav16,
            (None, Err(_)) if is_special() => Format::Wav16,
            (None, Err(_)) if path.is_dir() => {
                let (folder, file) = (path.display(), path.join("speech.wav"));
                let problem =
                    format!("-o {folder}: this is a folder; name a file in it, such as {}", file.display());
                return Err(UsageError(problem).into());
            }
            (None, Err(_)) => {
                let known = AudioFormat::EXTENSIONS.iter().map(|e| format!(".{e}")).collect::<Vec<_>>();
                return Err(UsageError(format!(
                    "-o {}: unknown audio format; use the extension {}, or choose with \
                     --format",
                    path.display(),
                    known.join(" or ")
                ))
                .into());
            }
        };
        Ok(Output { path: Some(path.to_owned()), format })
    }

    /// Path, or `-` for standard output.
    pub fn name(&self) -> String {
        self.path.as_ref().map_or_else(|| "-".to_owned(), |p| p.display().to_string())
    }

    /// Opens the output for audio of this sample rate, in Hz.
    pub fn open(&self, sample_rate: u32) -> anyhow::Result<Sink> {
        let format = self.format.of_file();
        if let Some(path) = &self.path {
            return Ok(Sink::File(Box::new(AudioWriter::create(path, sample_rate, format)?)));
        }
        let samples = match self.format {
            Format::WavFloat | Format::RawFloat => WavFormat::Float32,
            _ => WavFormat::Pcm16,
        };
        let stream = match format {
            AudioFormat::Raw16 | AudioFormat::RawFloat => PcmStream::raw(io::stdout(), samples),
            _ => PcmStream::wav(io::stdout(), sample_rate, samples).map_err(system).context(STDOUT)?,
        };
        Ok(Sink::Stream(stream))
    }
}

const STDOUT: &str =
    "standard output: cannot write audio. Check the free disk space, or the receiving program.";

/// The system's error without the advice, which fits only files.
fn system(error: AudioError) -> anyhow::Error {
    match error {
        AudioError::WriteStream { source } => source.into(),
        other => other.into(),
    }
}

/// An open output. Dropping it before [`Sink::finish`] leaves no file.
pub enum Sink {
    /// A file, or a device or pipe with a name.
    File(Box<AudioWriter>),
    /// Standard output.
    Stream(PcmStream<Stdout>),
}

impl Sink {
    /// Temporary name of the unfinished file.
    pub fn temporary_path(&self) -> Option<&Path> {
        match self {
            Sink::File(writer) => writer.temporary_path(),
            Sink::Stream(_) => None,
        }
    }

    /// Appends samples.
    pub fn write(&mut self, samples: &[f32]) -> anyhow::Result<()> {
        match self {
            Sink::File(writer) => Ok(writer.write(samples)?),
            Sink::Stream(stream) => stream.write(samples).map_err(system).context(STDOUT),
        }
    }

    /// Completes the output; a file gets its final name.
    pub fn finish(self) -> anyhow::Result<()> {
        match self {
            Sink::File(writer) => Ok(writer.finish()?),
            Sink::Stream(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_come_from_the_option_or_the_name() {
        let cases = [
            ("a.wav", None, Some(Format::Wav16)),
            ("a.WAV", None, Some(Format::Wav16)),
            ("a.flac", None, Some(Format::Flac)),
            ("a.flac", Some(Format::WavFloat), Some(Format::WavFloat)),
            ("a", Some(Format::Raw), Some(Format::Raw)),
            #[cfg(unix)]
            ("/dev/null", None, Some(Format::Wav16)),
            ("a.mp3", None, None),
            ("a", None, None),
        ];
        for (path, format, expected) in cases {
            let got = Output::choose(Path::new(path), format).ok().map(|o| o.format);
            assert_eq!(got, expected, "{path} {format:?}");
        }
    }

    #[test]
    fn raw_files_appear_when_finished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.raw");
        let output = Output::choose(&path, Some(Format::Raw)).unwrap();
        let mut sink = output.open(24_000).unwrap();
        sink.write(&[0.5, -1.0]).unwrap();
        assert!(!path.exists());
        drop(sink);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "an unfinished file is removed");
        let mut sink = output.open(24_000).unwrap();
        sink.write(&[0.5, -1.0]).unwrap();
        sink.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [0x00, 0x40, 0x00, 0x80]);
    }
}
