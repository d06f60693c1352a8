//! Joins units: levels, encodes, and writes chapter marks.

use crate::book::Book;
use crate::plan::Plan;
use crate::work::{WorkError, WorkFolder};
use orate_audio::{
    AudioError, AudioFormat, AudioWriter, ChapterMark, Level, Leveler, Loudness, LoudnessMeter, M4bWriter,
    Tags,
};
use std::fs;
use std::path::{Path, PathBuf};

/// Longest title in the name of a file, in characters and in bytes. File systems allow 255 bytes, with the
/// ending of a file that is being written.
const MAX_NAME: usize = 80;
const MAX_NAME_BYTES: usize = 200;

/// Where the sound of a book goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The file, or the folder for a file of each chapter.
    pub path: PathBuf,
    /// Whether each chapter has a file of its own.
    pub by_chapter: bool,
    /// Format of the files.
    pub container: Container,
}

/// Format of a file of speech.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// AAC in MP4 with chapters, as audiobook players want it.
    M4b,
    /// Another format. MP3 and Opus have chapters and tags.
    Audio(AudioFormat),
}

impl Container {
    /// File name extension without a dot.
    pub fn extension(self) -> &'static str {
        match self {
            Container::M4b => "m4b",
            Container::Audio(format) => format.extension(),
        }
    }

    /// Whether this build can write the format.
    pub fn is_available(self) -> bool {
        match self {
            Container::M4b => AudioFormat::Aac.is_available(),
            Container::Audio(format) => format.is_available(),
        }
    }
}

/// What was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Assembled {
    /// Seconds of sound.
    pub seconds: f64,
    /// The files, in order.
    pub files: Vec<PathBuf>,
}

/// Why units cannot be joined. They stay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum AssembleError {
    /// A unit cannot be read.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// An output cannot be written.
    #[error(transparent)]
    Audio(#[from] AudioError),
    /// The folder for chapters cannot be made.
    #[error("{}: cannot make this folder", orate_files::shown(path))]
    Folder { path: PathBuf, source: std::io::Error },
    /// The work was stopped.
    #[error("cancelled")]
    Cancelled,
}

type Result<T, E = AssembleError> = std::result::Result<T, E>;

/// Joins all units of a plan. `loudness` gives each chapter one gain, measured over all of it; without, the
/// samples stay as they are. `keep_going` is called with the fraction that is done, some times a second, and
/// returns whether to go on.
///
/// The files depend on the samples of the units and on nothing else. Each appears when it is complete.
///
/// # Errors
/// A unit or an output cannot be read or written, or the work was stopped.
pub fn assemble(
    folder: &WorkFolder,
    (book, plan): (&Book, &Plan),
    target: &Target,
    loudness: Option<Loudness>,
    keep_going: &mut dyn FnMut(f64) -> bool,
) -> Result<Assembled> {
    let rate = f64::from(folder.sample_rate());
    let samples_of =
        |units: std::ops::Range<usize>| units.filter_map(|unit| folder.length(unit)).sum::<u64>();
    let lengths: Vec<u64> = plan.chapters.iter().map(|chapter| samples_of(chapter.units.clone())).collect();
    let total: u64 = lengths.iter().sum();
    let mut joiner = Joiner { folder, plan, loudness, total, handled: 0, keep_going };
    let whole = Tags {
        title: book.title.clone(),
        album: book.title.clone(),
        artist: (!book.authors.is_empty()).then(|| book.authors.join(", ")),
        language: book.language.clone(),
        ..Tags::default()
    };
    let mut files = vec![];
    if target.by_chapter {
        fs::create_dir_all(&target.path)
            .map_err(|source| AssembleError::Folder { path: target.path.clone(), source })?;
        for (i, chapter) in plan.chapters.iter().enumerate() {
            let extension = target.container.extension();
            let path = target.path.join(file_name(i, plan.chapters.len(), &chapter.title, extension));
            let track = Some((i as u32 + 1, plan.chapters.len() as u32));
            let tags = Tags { title: Some(chapter.title.clone()), track, ..whole.clone() };
            let mut writer = Writer::create(&path, folder.sample_rate(), target.container, &tags)?;
            joiner.chapter(i, &mut writer)?;
            writer.finish()?;
            files.push(path);
        }
    } else {
        let mut start = 0;
        let mut marks = vec![];
        for (chapter, length) in plan.chapters.iter().zip(&lengths) {
            marks.push(ChapterMark { title: chapter.title.clone(), start: start as f64 / rate });
            start += length;
        }
        // One chapter is no division.
        let chapters = if marks.len() > 1 { marks } else { vec![] };
        let tags = Tags { chapters, seconds: total as f64 / rate, ..whole };
        let mut writer = Writer::create(&target.path, folder.sample_rate(), target.container, &tags)?;
        for i in 0..plan.chapters.len() {
            joiner.chapter(i, &mut writer)?;
        }
        writer.finish()?;
        files.push(target.path.clone());
    }
    Ok(Assembled { seconds: total as f64 / rate, files })
}

struct Joiner<'a> {
    folder: &'a WorkFolder,
    plan: &'a Plan,
    loudness: Option<Loudness>,
    /// Samples of all units, each of which is read twice if it is leveled.
    total: u64,
    handled: u64,
    keep_going: &'a mut dyn FnMut(f64) -> bool,
}

impl Joiner<'_> {
    /// Writes a chapter.
    fn chapter(&mut self, index: usize, writer: &mut Writer) -> Result<()> {
        let rate = self.folder.sample_rate();
        let Some(loudness) = self.loudness else {
            return self.read(index, |samples| Ok(writer.write(samples)?));
        };
        let mut meter = LoudnessMeter::new(rate)?;
        self.read(index, |samples| {
            meter.push(samples);
            Ok(())
        })?;
        let missing = loudness.target - meter.integrated();
        // Silence has no loudness.
        let gain =
            if missing.is_finite() { missing.clamp(-loudness.most_gain, loudness.most_gain) } else { 0.0 };
        let mut leveler = Leveler::new(&loudness, Level::Fixed(gain), rate)?;
        let mut leveled = vec![];
        self.read(index, |samples| {
            leveled.clear();
            leveler.push(samples, &mut leveled);
            Ok(writer.write(&leveled)?)
        })?;
        leveled.clear();
        leveler.finish(&mut leveled);
        Ok(writer.write(&leveled)?)
    }

    /// Reads all samples of a chapter in order.
    fn read(&mut self, index: usize, mut each: impl FnMut(&[f32]) -> Result<()>) -> Result<()> {
        let passes = if self.loudness.is_some() { 2 } else { 1 };
        let mut result = Ok(());
        for unit in self.plan.chapters[index].units.clone() {
            self.folder.read(unit, |samples| {
                if result.is_ok() {
                    result = each(samples);
                    self.handled += samples.len() as u64;
                }
            })?;
            std::mem::replace(&mut result, Ok(()))?;
            if !(self.keep_going)(self.handled as f64 / (passes * self.total).max(1) as f64) {
                return Err(AssembleError::Cancelled);
            }
        }
        Ok(())
    }
}

/// An output file, which appears when it is complete.
enum Writer {
    M4b(Box<M4bWriter>),
    Audio(Box<AudioWriter>),
}

impl Writer {
    fn create(path: &Path, sample_rate: u32, container: Container, tags: &Tags) -> Result<Writer> {
        Ok(match container {
            Container::M4b => Writer::M4b(Box::new(M4bWriter::create(path, sample_rate, tags)?)),
            Container::Audio(format) => {
                Writer::Audio(Box::new(AudioWriter::create_tagged(path, sample_rate, format, tags)?))
            }
        })
    }

    fn write(&mut self, samples: &[f32]) -> Result<(), AudioError> {
        match self {
            Writer::M4b(writer) => writer.write(samples),
            Writer::Audio(writer) => writer.write(samples),
        }
    }

    fn finish(self) -> Result<(), AudioError> {
        match self {
            Writer::M4b(writer) => writer.finish(),
            Writer::Audio(writer) => writer.finish(),
        }
    }
}

/// Name of a chapter's file: its number, and its title as far as file systems allow it.
fn file_name(index: usize, count: usize, title: &str, extension: &str) -> String {
    let digits = count.to_string().len().max(2);
    let is_safe = |c: &char| !c.is_control() && !r#"/\:*?"<>|"#.contains(*c) && !orate_text::is_invisible(*c);
    let mut bytes = 0;
    let fits = |c: &char| {
        bytes += c.len_utf8();
        bytes <= MAX_NAME_BYTES
    };
    let title: String = title.chars().filter(is_safe).take(MAX_NAME).take_while(fits).collect();
    let title = title.trim().trim_end_matches(['.', ' ']);
    let space = if title.is_empty() { "" } else { " " };
    format!("{:0digits$}{space}{title}.{extension}", index + 1)
}

#[cfg(test)]
mod tests {
    use super::file_name;

    #[test]
    fn names_of_files_are_safe() {
        let cases = [
            ("Chapter One", "01 Chapter One.mp3"),
            ("../../etc/passwd", "01 ....etcpasswd.mp3"),
            ("What? \"Why\"...", "01 What Why.mp3"),
            ("", "01.mp3"),
            ("...", "01.mp3"),
            ("a\nb\u{202e}c", "01 abc.mp3"),
        ];
        for (title, expected) in cases {
            assert_eq!(file_name(0, 9, title, "mp3"), expected);
        }
        assert_eq!(file_name(0, 1000, "A", "mp3"), "0001 A.mp3");
        for title in ["é", "漢", "😀"] {
            assert!(file_name(99_999, 100_000, &title.repeat(500), "flac").len() < 230);
        }
    }
}
