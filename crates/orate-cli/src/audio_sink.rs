//! Where audio goes: a file that appears whole or not at all, or standard output.

use crate::failure::UsageError;
use anyhow::Context;
use clap::ValueEnum;
use orate::{AudioFormat, AudioWriter, PcmStream, WavFormat};
use orate_audio::AudioError;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Stdout};
use std::path::{Path, PathBuf};
use tempfile::TempPath;

/// How samples are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// WAV with 16-bit integers
    Wav16,
    /// WAV with 32-bit floats
    WavFloat,
    /// FLAC, lossless, 16 bits
    Flac,
    /// Bare 16-bit little-endian integers
    Raw,
    /// Bare 32-bit little-endian floats
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
}

/// The output as asked for, checked but not opened.
#[derive(Debug, PartialEq)]
pub struct Output {
    /// `None` for standard output.
    pub path: Option<PathBuf>,
    /// How samples are stored.
    pub format: Format,
}

impl Output {
    /// Chooses the format from the option or else the ending of the name. `-` is standard output.
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
        // Devices and named pipes, such as /dev/null, have no ending to go by.
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
                    "-o {}: the name does not say which audio format to write; end it in {}, or choose with --format",
                    path.display(),
                    known.join(" or ")
                ))
                .into());
            }
        };
        Ok(Output { path: Some(path.to_owned()), format })
    }

    /// Name for people and for JSON; `-` is standard output.
    pub fn name(&self) -> String {
        self.path.as_ref().map_or_else(|| "-".to_owned(), |p| p.display().to_string())
    }

    /// Opens it for audio of this rate.
    pub fn open(&self, sample_rate: u32) -> anyhow::Result<Sink> {
        let sample = if self.format == Format::RawFloat || self.format == Format::WavFloat {
            WavFormat::Float32
        } else {
            WavFormat::Pcm16
        };
        let file = match self.format {
            Format::Wav16 => AudioFormat::Wav16,
            Format::WavFloat => AudioFormat::WavFloat,
            Format::Flac => AudioFormat::Flac,
            Format::Raw | Format::RawFloat => {
                return Ok(match &self.path {
                    Some(path) => Sink::RawFile(RawFile::create(path, sample)?),
                    None => Sink::Stream(PcmStream::raw(io::stdout(), sample)),
                });
            }
        };
        Ok(match &self.path {
            Some(path) => Sink::File(AudioWriter::create(path, sample_rate, file)?),
            None => {
                let stream = PcmStream::wav(io::stdout(), sample_rate, sample);
                Sink::Stream(stream.map_err(system).context(STDOUT)?)
            }
        })
    }
}

const STDOUT: &str = "standard output: cannot write audio. Check the free space, or what it is sent to.";

/// What the system said, without advice that fits another case.
fn system(error: AudioError) -> anyhow::Error {
    match error {
        AudioError::WriteStream { source } => source.into(),
        other => other.into(),
    }
}

/// An open output. Dropped before [`Sink::finish`], it leaves no file.
pub enum Sink {
    /// WAV or FLAC.
    File(AudioWriter),
    /// Standard output.
    Stream(PcmStream<Stdout>),
    /// Samples without a header.
    RawFile(RawFile),
}

impl Sink {
    /// The name that a file has until it is complete.
    pub fn temporary_path(&self) -> Option<&Path> {
        match self {
            Sink::File(writer) => writer.temporary_path(),
            Sink::Stream(_) => None,
            Sink::RawFile(raw) => raw.temporary.as_deref(),
        }
    }

    /// Appends samples.
    pub fn write(&mut self, samples: &[f32]) -> anyhow::Result<()> {
        match self {
            Sink::File(writer) => writer.write(samples)?,
            Sink::Stream(stream) => stream.write(samples).map_err(system).context(STDOUT)?,
            Sink::RawFile(raw) => raw.stream.write(samples).map_err(system).with_context(|| raw.failed())?,
        }
        Ok(())
    }

    /// Completes the output and puts a file in its place.
    pub fn finish(self) -> anyhow::Result<()> {
        match self {
            Sink::File(writer) => writer.finish()?,
            Sink::Stream(_) => {}
            Sink::RawFile(raw) => raw.finish()?,
        }
        Ok(())
    }
}

/// A file of bare samples, under a temporary name until it is complete. What is not a regular file is written
/// directly.
pub struct RawFile {
    path: PathBuf,
    stream: PcmStream<BufWriter<File>>,
    temporary: Option<TempPath>,
}

impl RawFile {
    fn create(path: &Path, format: WavFormat) -> anyhow::Result<RawFile> {
        let open = || -> io::Result<(File, Option<TempPath>)> {
            match path.metadata() {
                Ok(m) if m.is_dir() => Err(io::Error::new(io::ErrorKind::IsADirectory, "this is a folder")),
                Ok(m) if !m.is_file() => Ok((OpenOptions::new().write(true).open(path)?, None)),
                _ => {
                    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
                    let mut builder = tempfile::Builder::new();
                    builder.prefix(".orate.").suffix(".part");
                    #[cfg(unix)]
                    {
                        use std::os::unix::fs::PermissionsExt;
                        // As for any new file; the process's umask still applies.
                        builder.permissions(std::fs::Permissions::from_mode(0o666));
                    }
                    let file = builder.tempfile_in(folder.unwrap_or(Path::new(".")))?;
                    let (file, temporary) = file.into_parts();
                    Ok((file, Some(temporary)))
                }
            }
        };
        let (file, temporary) = open().with_context(|| {
            let path = path.display();
            format!("{path}: cannot create this file. Check that its folder exists and may be written to.")
        })?;
        Ok(RawFile { path: path.to_owned(), stream: PcmStream::raw(BufWriter::new(file), format), temporary })
    }

    fn failed(&self) -> String {
        let path = self.path.display();
        format!("{path}: writing failed, and no incomplete file remains. Check the free space on that disk.")
    }

    fn finish(self) -> anyhow::Result<()> {
        let failed = self.failed();
        drop(self.stream); // every write was flushed
        match self.temporary {
            Some(temporary) => temporary.persist(&self.path).map_err(|e| e.error).context(failed),
            None => Ok(()),
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
