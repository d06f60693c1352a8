//! A book as it is read aloud: chapters of headings and paragraphs.

use orate_files::{one_line, shown};
use orate_text::decode_text;
use std::path::{Path, PathBuf};

/// Largest file in bytes. Books with many pictures have 200 MB.
pub(crate) const MAX_FILE: u64 = 1 << 30;

/// Most text in bytes, about 1000 hours of speech.
pub(crate) const MAX_TEXT: usize = 64 << 20;

/// A book.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Book {
    /// Title of the book.
    pub title: Option<String>,
    /// Authors, in order.
    pub authors: Vec<String>,
    /// Language code as the book states it, such as `en-GB`.
    pub language: Option<String>,
    /// Chapters that have something to speak, in order.
    pub chapters: Vec<Chapter>,
}

/// A chapter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chapter {
    /// Title, from the table of contents or the first heading.
    pub title: Option<String>,
    /// What is read aloud. A heading is part of it if the book prints it.
    pub blocks: Vec<Block>,
}

/// A part of a chapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// A heading of level 1 to 6.
    Heading(u8, String),
    /// A paragraph, list item, line of a table or caption, in one line.
    Paragraph(String),
    /// A rule or a line such as `* * *`, between scenes.
    Break,
}

impl Block {
    /// Text of the block; empty for a break.
    pub fn text(&self) -> &str {
        match self {
            Block::Heading(_, text) | Block::Paragraph(text) => text,
            Block::Break => "",
        }
    }
}

/// Formats of books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BookFormat {
    /// EPUB 2 and 3.
    Epub,
    /// HTML and XHTML.
    Html,
    /// CommonMark with tables, footnotes and a YAML header.
    Markdown,
    /// Text, whose paragraphs are separated by blank lines.
    Text,
}

impl BookFormat {
    /// Format of a file by its extension; other extensions are text.
    pub fn of(path: &Path) -> BookFormat {
        let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
        match extension.as_deref() {
            Some("epub") => BookFormat::Epub,
            Some("html" | "htm" | "xhtml" | "xht") => BookFormat::Html,
            Some("md" | "markdown" | "mkd") => BookFormat::Markdown,
            _ => BookFormat::Text,
        }
    }
}

/// Why a book cannot be read. The message says what, where, and how to fix it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum BookError {
    /// The file is missing, or no regular file, or too large.
    #[error("{}: cannot read the book", shown(path))]
    Open { path: PathBuf, source: std::io::Error },
    /// The file is not what its extension says, or damaged.
    #[error("{}: {}", shown(path), one_line(problem))]
    Damaged { path: PathBuf, problem: String },
    /// The book is encrypted.
    #[error(
        "{}: this book is encrypted (DRM), and Orate cannot open it; use a copy without DRM",
        shown(path)
    )]
    Encrypted { path: PathBuf },
    /// Nothing in the book can be read aloud.
    #[error("{}: no text to read aloud. A book of pictures needs text recognition first.", shown(path))]
    Empty { path: PathBuf },
}

/// Reads a book by the extension of its file.
///
/// # Errors
/// The file cannot be read, is neither UTF-8 nor UTF-16, is not of the format, is encrypted, too large, or
/// has no text.
pub fn read(path: &Path) -> Result<Book, BookError> {
    let format = BookFormat::of(path);
    let bytes = orate_files::read(path, MAX_FILE)
        .map_err(|source| BookError::Open { path: path.to_owned(), source })?;
    parse(path, bytes, format)
}

/// Reads a book from the bytes of its file. Errors name it `path`.
///
/// # Errors
/// As for [`read`].
pub fn parse(path: &Path, bytes: Vec<u8>, format: BookFormat) -> Result<Book, BookError> {
    let damaged = |problem: String| BookError::Damaged { path: path.to_owned(), problem };
    let mut book = if format == BookFormat::Epub {
        crate::epub::read(path, bytes)?
    } else {
        if bytes.len() > MAX_TEXT {
            return Err(damaged(format!("more than {} MiB of text; split it", MAX_TEXT >> 20)));
        }
        let text = decode_text(bytes, "convert it first, for example with `iconv -f LATIN1 -t UTF-8`")
            .map_err(|e| damaged(e.to_string()))?;
        if text.contains('\0') {
            return Err(damaged("not a text file: it contains NUL characters".to_owned()));
        }
        match format {
            BookFormat::Html => crate::html::read(&text, crate::html::Syntax::of(&text)).into_book(),
            BookFormat::Markdown => crate::markdown::read(&text),
            _ => crate::text::read(&text),
        }
    };
    book.chapters.retain(|chapter| chapter.blocks.iter().any(|block| block.text() != ""));
    if book.chapters.is_empty() {
        return Err(BookError::Empty { path: path.to_owned() });
    }
    Ok(book)
}

/// Text of a block as it grows: white space is collapsed, and invisible signs of typesetting left out.
#[derive(Debug, Default)]
pub(crate) struct Line(String);

impl Line {
    pub fn push(&mut self, text: &str) {
        for c in text.chars() {
            match c {
                // Soft hyphen, zero-width space, byte order mark.
                '\u{AD}' | '\u{200B}' | '\u{FEFF}' => {}
                c if c.is_whitespace() || c.is_control() => {
                    if !self.0.is_empty() && !self.0.ends_with(' ') {
                        self.0.push(' ');
                    }
                }
                c => self.0.push(c),
            }
        }
    }

    /// Appends `mark` after a word that no mark follows.
    pub fn separate(&mut self, mark: &str) {
        let end = self.0.trim_end().len();
        self.0.truncate(end);
        if self.0.ends_with(char::is_alphanumeric) {
            self.0.push_str(mark);
        }
        self.push(" ");
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Text from a length that [`Line::len`] returned.
    pub fn since(&self, start: usize) -> &str {
        self.0.get(start..).unwrap_or_default()
    }

    pub fn truncate(&mut self, length: usize) {
        if self.0.is_char_boundary(length) {
            self.0.truncate(length);
        }
    }

    /// The text, if it is not blank. The line is empty then.
    pub fn take(&mut self) -> Option<String> {
        let text = std::mem::take(&mut self.0);
        let text = text.trim_end();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// The block of the text, if it is not blank. Signs alone are a break.
    pub fn take_block(&mut self, heading: Option<u8>) -> Option<Block> {
        let text = self.take()?;
        Some(match heading {
            _ if !text.chars().any(char::is_alphanumeric) => Block::Break,
            Some(level) => Block::Heading(level, text),
            None => Block::Paragraph(text),
        })
    }
}

/// Divides a text into chapters at its headings, and returns them with the title of the whole.
///
/// A first heading whose level no other has is the title. Chapters begin at headings of the highest level
/// after it, and at those of the next level if the highest has only one heading.
pub(crate) fn by_headings(blocks: Vec<Block>) -> (Option<String>, Vec<Chapter>) {
    let levels: Vec<u8> = blocks.iter().filter_map(level).collect();
    let count = |level: u8| levels.iter().filter(|l| **l == level).count();
    let title = match (blocks.first(), levels.first()) {
        (Some(Block::Heading(level, text)), Some(first))
            if levels.len() > 1 && count(*level) == 1 && levels.iter().all(|l| l >= first) =>
        {
            Some(text.clone())
        }
        _ => None,
    };
    let mut of_chapters = levels.clone();
    of_chapters.drain(..usize::from(title.is_some()));
    of_chapters.sort_unstable();
    let deepest = match of_chapters.as_slice() {
        [one, next, ..] if one != next => *next,
        [one, ..] => *one,
        [] => 0,
    };
    let mut chapters: Vec<Chapter> = vec![];
    for (i, block) in blocks.into_iter().enumerate() {
        let is_title = i == 0 && title.is_some();
        let begins = level(&block).is_some_and(|level| level <= deepest && !is_title);
        match chapters.last_mut() {
            // A title without a text of its own is read before the first chapter.
            Some(chapter) if begins && chapter.title.is_none() && has_headings_only(chapter) => {
                chapter.title = Some(block.text().to_owned());
                chapter.blocks.push(block);
            }
            Some(chapter) if !begins => chapter.blocks.push(block),
            _ => {
                let title = begins.then(|| block.text().to_owned());
                chapters.push(Chapter { title, blocks: vec![block] });
            }
        }
    }
    (title, chapters)
}

fn level(block: &Block) -> Option<u8> {
    match block {
        Block::Heading(level, _) => Some(*level),
        _ => None,
    }
}

fn has_headings_only(chapter: &Chapter) -> bool {
    !chapter.blocks.iter().any(|block| matches!(block, Block::Paragraph(_)))
}
