//! Destination of audio: standard output, a player, or a file that appears only when it is complete.

use crate::ahead::Ahead;
use crate::failure::UsageError;
use crate::outputs;
use crate::player::{Player, Playing};
use anyhow::Context;
use clap::ValueEnum;
use orate::{AudioFormat, AudioWriter, EncoderSettings, StreamEncoder};
use std::io::{self, IsTerminal};
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
    /// MP3, 64 kbit/s up to 24 kHz, else 128
    Mp3,
    /// Opus in Ogg, 48 kbit/s
    Opus,
    /// AAC in ADTS, in builds with the feature `aac`
    Aac,
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
            Format::Mp3 => "mp3",
            Format::Opus => "opus",
            Format::Aac => "aac",
        }
    }

    /// Checks that this build has the format.
    fn check(self) -> Result<(), UsageError> {
        if self.of_file().is_available() {
            return Ok(());
        }
        let known = Self::value_variants().iter().filter(|known| known.of_file().is_available());
        let known = known.map(|known| known.name()).collect::<Vec<_>>().join(", ");
        let name = self.name();
        Err(UsageError(format!(
            "format {name}: this build of Orate lacks it and has {known}; build with the feature `{name}`"
        )))
    }

    /// The format of files.
    pub fn of_file(self) -> AudioFormat {
        match self {
            Format::Wav16 => AudioFormat::Wav16,
            Format::WavFloat => AudioFormat::WavFloat,
            Format::Flac => AudioFormat::Flac,
            Format::Raw => AudioFormat::Raw16,
            Format::RawFloat => AudioFormat::RawFloat,
            Format::Mp3 => AudioFormat::Mp3,
            Format::Opus => AudioFormat::Opus,
            Format::Aac => AudioFormat::Aac,
        }
    }

    /// The format of a file with this extension, if there is one.
    fn of_extension(path: &Path) -> Option<Format> {
        let format = AudioFormat::from_extension(path).ok()?;
        Self::value_variants().iter().copied().find(|known| known.of_file() == format)
    }
}

/// Destination of audio, checked but not opened.
#[derive(Debug, PartialEq)]
pub struct Output {
    /// `None` for standard output and players.
    pub path: Option<PathBuf>,
    pub player: Option<Player>,
    /// Format of the samples.
    pub format: Format,
}

impl Output {
    /// Takes the format from the option, or else from the file name extension. `-` is standard output.
    pub fn choose(path: &Path, format: Option<Format>) -> anyhow::Result<Output> {
        if path.as_os_str() == "-" {
            let format = format.unwrap_or(Format::Wav16);
            format.check()?;
            if io::stdout().is_terminal() {
                let problem = "-o -: standard output is a terminal; send it to a file or a player, \
                               such as `orate say … -o - | aplay`";
                return Err(UsageError(problem.to_owned()).into());
            }
            return Ok(Output { path: None, player: None, format });
        }
        // Devices and named pipes, such as /dev/null, have no extension.
        let is_special = || path.metadata().is_ok_and(|m| !m.is_file() && !m.is_dir());
        let format = match format.or_else(|| Format::of_extension(path)) {
            Some(format) => format,
            None if is_special() => Format::Wav16,
            None if outputs::is_folder(path) => {
                let (folder, file) = (path.display(), path.join("speech.wav"));
                let problem =
                    format!("-o {folder}: this is a folder; name a file in it, such as {}", file.display());
                return Err(UsageError(problem).into());
            }
            None => {
                let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
                let extension = extension.map(|e| if e == "ogg" { "opus".to_owned() } else { e });
                let named = Format::value_variants()
                    .iter()
                    .copied()
                    .find(|format| extension.as_deref() == Some(format.name()));
                named.map_or(Ok(()), Format::check)?;
                let known = AudioFormat::EXTENSIONS.iter().map(|e| format!(".{e}")).collect::<Vec<_>>();
                let (last, others) = known.split_last().expect("there are formats");
                let why = match extension.as_deref() {
                    Some(e @ ("m4b" | "m4a")) => {
                        format!(".{e} is for books (`orate say --file BOOK`); otherwise")
                    }
                    _ => "unknown audio format;".to_owned(),
                };
                let (path, others) = (path.display(), others.join(", "));
                let problem =
                    format!("-o {path}: {why} use the extension {others} or {last}, or choose with --format");
                return Err(UsageError(problem).into());
            }
        };
        format.check()?;
        Ok(Output { path: Some(path.to_owned()), player: None, format })
    }

    /// A player in place of a file.
    pub fn played() -> anyhow::Result<Output> {
        let player = Player::find()?;
        Ok(Output { path: None, format: player.format(), player: Some(player) })
    }

    /// Whether it is standard output.
    pub fn is_standard(&self) -> bool {
        self.path.is_none() && self.player.is_none()
    }

    /// Whether sound is heard while it is made, so that it cannot be taken back.
    pub fn is_heard(&self) -> bool {
        self.path.is_none() && !self.player.as_ref().is_some_and(Player::needs_file)
    }

    /// Path, name of the player, or `-` for standard output.
    pub fn name(&self) -> String {
        match (&self.path, &self.player) {
            (Some(path), _) => path.display().to_string(),
            (None, Some(player)) => player.name(),
            (None, None) => "-".to_owned(),
        }
    }

    /// Opens the output for audio of this sample rate, in Hz.
    pub fn open(&self, sample_rate: u32) -> anyhow::Result<Sink> {
        let format = self.format.of_file();
        let create = |path: &Path| AudioWriter::create(path, sample_rate, format).map(Box::new);
        let (playing, writer) = match (&self.path, &self.player) {
            (Some(path), _) => return Ok(Sink::File(create(path)?)),
            (None, Some(player)) if player.needs_file() => {
                let file = TemporaryFile::new();
                return Ok(Sink::Played(create(&file.0)?, file, player.clone()));
            }
            (None, Some(player)) => {
                let (playing, stdin) = player.start(sample_rate)?;
                (Some(playing), Ahead::new(stdin))
            }
            (None, None) => (None, Ahead::new(io::stdout())),
        };
        let encoder = StreamEncoder::new(format, sample_rate, &EncoderSettings::default())?;
        let mut pipe = Pipe { encoder, bytes: vec![], writer: writer.context(STDOUT)?, playing };
        pipe.encoder.begin(&mut pipe.bytes)?;
        pipe.send()?;
        Ok(Sink::Stream(Box::new(pipe)))
    }
}

const STDOUT: &str =
    "standard output: cannot write audio. Check the free disk space, or the receiving program.";

/// An open output. Dropping it before [`Sink::finish`] leaves no file.
pub enum Sink {
    /// A file, or a device or pipe with a name.
    File(Box<AudioWriter>),
    /// A file for a player, which plays it when it is complete.
    Played(Box<AudioWriter>, TemporaryFile, Player),
    /// Standard output, or a player.
    Stream(Box<Pipe>),
}

/// A file that is deleted when it is dropped.
pub struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn new() -> TemporaryFile {
        TemporaryFile(std::env::temp_dir().join(format!("orate-{}.wav", std::process::id())))
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // It may not be there yet.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A stream to a program that reads it.
pub struct Pipe {
    encoder: StreamEncoder,
    /// Encoded, and not yet sent.
    bytes: Vec<u8>,
    writer: Ahead,
    /// `None` for standard output.
    playing: Option<Playing>,
}

impl Pipe {
    /// Sends what is encoded, so that a player gets it at once.
    fn send(&mut self) -> anyhow::Result<()> {
        let sent = self.writer.send(std::mem::take(&mut self.bytes));
        sent.map_err(|e| Self::lost(e, self.playing.take()))
    }

    fn finish(self, stops: impl Fn() -> bool) -> anyhow::Result<()> {
        let Pipe { encoder, mut bytes, mut writer, playing } = self;
        encoder.finish(&mut bytes)?;
        if let Err(e) = writer.send(bytes).and_then(|()| writer.finish(&stops)) {
            return Err(Self::lost(e, playing));
        }
        playing.map_or(Ok(()), |playing| playing.end(stops))
    }

    fn lost(e: io::Error, playing: Option<Playing>) -> anyhow::Error {
        match playing {
            Some(playing) => playing.lost(e),
            None => anyhow::Error::from(e).context(STDOUT),
        }
    }
}

impl Sink {
    /// Temporary name of the unfinished file.
    pub fn temporary_path(&self) -> Option<&Path> {
        match self {
            Sink::File(writer) | Sink::Played(writer, ..) => writer.temporary_path(),
            Sink::Stream(_) => None,
        }
    }

    /// Appends samples.
    pub fn write(&mut self, samples: &[f32]) -> anyhow::Result<()> {
        match self {
            Sink::File(writer) | Sink::Played(writer, ..) => Ok(writer.write(samples)?),
            Sink::Stream(pipe) => {
                pipe.encoder.push(samples, &mut pipe.bytes)?;
                pipe.send()
            }
        }
    }

    /// Ends an output that stays incomplete: a file is removed, and a reader gets what was made before,
    /// unless `stops` says to stop it.
    pub fn leave(self, stops: impl Fn() -> bool) {
        if let Sink::Stream(pipe) = self {
            let Pipe { writer, playing, .. } = *pipe;
            // The reason why it is incomplete is told; problems of the reader would hide it.
            let _ = writer.finish(&stops);
            let _ = playing.map(|playing| playing.end(stops));
        }
    }

    /// Completes the output: a file gets its final name, and a player has played all, unless `stops` says to
    /// stop it.
    pub fn finish(self, stops: impl Fn() -> bool) -> anyhow::Result<()> {
        match self {
            Sink::File(writer) => Ok(writer.finish()?),
            Sink::Played(writer, file, player) => {
                writer.finish()?;
                player.play(&file.0, stops)
            }
            Sink::Stream(pipe) => pipe.finish(stops),
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
            ("a.mp3", None, cfg!(feature = "mp3").then_some(Format::Mp3)),
            ("a.OGG", None, cfg!(feature = "opus").then_some(Format::Opus)),
            ("a.m4a", None, None),
            ("a", None, None),
            ("a.wav", Some(Format::Aac), cfg!(feature = "aac").then_some(Format::Aac)),
        ];
        for (path, format, expected) in cases {
            let got = Output::choose(Path::new(path), format).ok().map(|o| o.format);
            assert_eq!(got, expected, "{path} {format:?}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn what_was_made_before_an_error_is_played() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (script, path) = (folder.path().join("player"), folder.path().join("played"));
        std::fs::write(&script, "#!/bin/sh\nsleep 0.2; cat > \"$1\"\n").unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let played = |stops: bool| {
            let player = Player::of_command(&format!("{} {}", script.display(), path.display()));
            let output = Output { path: None, format: Format::Raw, player };
            let mut sink = output.open(24_000).unwrap();
            (0..100).for_each(|_| sink.write(&[0.5; 2400]).unwrap());
            sink.leave(|| stops);
            std::fs::read(&path).map_or(0, |bytes| bytes.len())
        };
        assert_eq!(played(false), 2 * 240_000);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(played(true), 0, "it is stopped");
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
        sink.finish(|| false).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [0x00, 0x40, 0x00, 0x80]);
    }
}
