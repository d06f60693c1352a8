//! EPUB 2 and 3.
//!
//! Chapters are the entries of the table of contents, down to its second level. A book without one has a
//! chapter for each file that begins with a heading.

use crate::book::{Block, Book, BookError, Chapter, Line, MAX_TEXT};
use crate::html::{self, Page, Syntax};
use orate_text::decode_text;
use rbook::Epub;
use std::collections::HashMap;
use std::io::{self, Cursor, Read, Write};
use std::path::Path;
use std::sync::Arc;
use zip::ZipArchive;

/// Most bytes of all files in the book when they are unpacked, besides twice the size of the book: pictures
/// and sound hardly shrink.
const MAX_UNPACKED: u64 = 256 << 20;

/// Largest page in bytes.
const MAX_PAGE: usize = 16 << 20;

/// Most levels of a table of contents. Its tree is freed by recursion.
const MAX_LEVELS: usize = 1000;

/// Deepest level of the table of contents whose entries are chapters.
const CHAPTER_LEVEL: usize = 2;

/// Ways of encryption that hide fonts and leave the text readable.
const OF_FONTS: [&str; 2] = ["http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC"];

pub(crate) fn read(path: &Path, bytes: Vec<u8>) -> Result<Book, BookError> {
    let damaged = |problem: String| BookError::Damaged { path: path.to_owned(), problem };
    let bytes: Arc<[u8]> = bytes.into();
    check(path, &bytes)?;
    let epub = Epub::read(Cursor::new(bytes))
        .map_err(|e| damaged(format!("not an EPUB file, or a damaged one: {}", with_causes(&e))))?;
    let marks = marks(&epub);
    let mut chapters: Vec<Chapter> = vec![];
    let mut text = 0;
    for entry in epub.spine().iter().filter(|entry| entry.is_linear()) {
        let Some(entry) = entry.manifest_entry() else { continue };
        let is_page = ["application/xhtml+xml", "text/html", "text/x-oeb1-document"];
        if !is_page.contains(&entry.media_type()) || entry.properties().has_property("nav") {
            continue;
        }
        let href = entry.href();
        let name = href.path().as_str();
        let mut page = Bounded(vec![]);
        entry.copy_bytes(&mut page).map_err(|e| {
            damaged(format!(
                "{name}: cannot read this page ({}); repair the book with an editor",
                with_causes(&e)
            ))
        })?;
        text += page.0.len();
        if text > MAX_TEXT {
            return Err(damaged(format!("more than {} MiB of text", MAX_TEXT >> 20)));
        }
        let page = decode_text(page.0, "repair the book with an editor")
            .map_err(|problem| damaged(format!("{name}: {problem}")))?;
        let page = html::read(&page, Syntax::Xhtml);
        let known = marks.get(name).map(Vec::as_slice).unwrap_or_default();
        add_page(&mut chapters, page, known, !marks.is_empty());
    }
    let metadata = epub.metadata();
    let line = |text: &str| {
        let mut line = Line::default();
        line.push(text);
        line.take()
    };
    Ok(Book {
        title: metadata.title().and_then(|title| line(title.value())),
        authors: metadata.creators().filter_map(|author| line(author.value())).collect(),
        language: metadata.language().and_then(|language| line(language.value())),
        chapters,
    })
}

/// An entry of the table of contents: the id in its page where it begins, if not at the beginning, and its
/// title.
type Mark = (Option<String>, String);

/// Entries of the table of contents by page.
fn marks(epub: &Epub) -> HashMap<String, Vec<Mark>> {
    let mut marks: HashMap<String, Vec<Mark>> = HashMap::new();
    let Some(contents) = epub.toc().contents() else { return marks };
    for entry in contents.flatten().filter(|entry| entry.depth() <= CHAPTER_LEVEL) {
        let Some(href) = entry.href() else { continue };
        let mut title = Line::default();
        title.push(entry.label());
        let Some(title) = title.take() else { continue };
        let of_page = marks.entry(href.path().as_str().to_owned()).or_default();
        let place = href.fragment().map(str::to_owned);
        // The first one is the title that readers show.
        if !of_page.iter().any(|(known, _)| *known == place) {
            of_page.push((place, title));
        }
    }
    marks
}

/// Appends the blocks of a page to the chapters that they belong to.
fn add_page(chapters: &mut Vec<Chapter>, page: Page, marks: &[Mark], has_contents: bool) {
    let mut begins = marks.iter().find(|(place, _)| place.is_none()).map(|(_, title)| title.clone());
    let mut is_first = true;
    for (ids, block) in page.blocks {
        let at_id = |id: &String| marks.iter().find(|(place, _)| place.as_ref() == Some(id));
        let named = ids.iter().rev().find_map(at_id).map(|(_, title)| title.clone());
        // Of an entry for the page and one for its first block, the latter is more exact.
        let mut title = named.or_else(|| begins.take());
        if is_first
            && !has_contents
            && let Block::Heading(_, heading) = &block
        {
            title = Some(heading.clone());
        }
        is_first = false;
        begins = None;
        match (title, chapters.last_mut()) {
            (None, Some(chapter)) => chapter.blocks.push(block),
            (title, _) => chapters.push(Chapter { title, blocks: vec![block] }),
        }
    }
}

/// Refuses what would fill memory or the stack, and encrypted books. Sizes that the file states are not
/// trusted, so all of it is unpacked once.
fn check(path: &Path, bytes: &Arc<[u8]>) -> Result<(), BookError> {
    let damaged = |problem: String| BookError::Damaged { path: path.to_owned(), problem };
    let not_zip = |e: &dyn std::error::Error| {
        damaged(format!("not an EPUB file, or a damaged one: {}", with_causes(e)))
    };
    let mut archive = ZipArchive::new(Cursor::new(bytes.clone())).map_err(|e| not_zip(&e))?;
    let most = MAX_UNPACKED + 2 * bytes.len() as u64;
    let mut all = 0;
    for i in 0..archive.len() {
        let mut file = archive.by_index(i).map_err(|e| not_zip(&e))?;
        if file.encrypted() {
            return Err(BookError::Encrypted { path: path.to_owned() });
        }
        let name = file.name().map(|name| name.into_owned()).unwrap_or_default();
        let is_encryption = name == "META-INF/encryption.xml";
        let mut depth = Depth::default();
        let mut kept = Bounded(vec![]);
        let mut block = [0; 1 << 14];
        loop {
            let read = file.read(&mut block).map_err(|e| damaged(format!("{name}: {e}")))?;
            if read == 0 {
                break;
            }
            all += read as u64;
            if all > most {
                let mib = most >> 20;
                return Err(damaged(format!(
                    "unpacks to more than {mib} MiB, which no book of this size does"
                )));
            }
            depth.push(&block[..read]);
            if depth.most > MAX_LEVELS {
                return Err(damaged(format!("{name}: lists nest deeper than {MAX_LEVELS} levels")));
            }
            if is_encryption {
                kept.write_all(&block[..read]).map_err(|e| damaged(e.to_string()))?;
            }
        }
        if is_encryption && hides_text(&String::from_utf8_lossy(&kept.0)) {
            return Err(BookError::Encrypted { path: path.to_owned() });
        }
    }
    Ok(())
}

/// Whether the list of encrypted files has one that is no font.
fn hides_text(list: &str) -> bool {
    let algorithms = list.split("EncryptionMethod").skip(1).filter_map(|rest| {
        let (_, value) = rest.split('>').next()?.split_once("Algorithm")?;
        value.trim_start_matches(['=', ' ', '"', '\'']).split(['"', '\'']).next()
    });
    // Those of the keys to text come here, too.
    algorithms.into_iter().any(|algorithm| !OF_FONTS.contains(&algorithm))
}

/// Counts how deep lists and entries of tables of contents nest.
#[derive(Default)]
struct Depth {
    /// Name of the tag that is being read, with the sign that begins an end tag.
    tag: Option<Vec<u8>>,
    now: usize,
    most: usize,
}

impl Depth {
    fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match (&mut self.tag, byte) {
                (_, b'<') => self.tag = Some(vec![]),
                // A prefix.
                (Some(name), b':') => name.truncate(usize::from(name.first() == Some(&b'/'))),
                (Some(name), b'/') if name.is_empty() => name.push(b'/'),
                (Some(name), byte) if byte.is_ascii_alphanumeric() && name.len() < 16 => name.push(byte),
                (Some(name), _) => {
                    match name.as_slice() {
                        b"navPoint" | b"ol" | b"li" => self.now += 1,
                        b"/navPoint" | b"/ol" | b"/li" => self.now = self.now.saturating_sub(1),
                        _ => {}
                    }
                    self.most = self.most.max(self.now);
                    self.tag = None;
                }
                (None, _) => {}
            }
        }
    }
}

/// Bytes up to the size of a page.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_PAGE {
            let problem = format!("a page has more than {} MiB", MAX_PAGE >> 20);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A message with its causes in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut all = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !all.contains(&text) {
            all = format!("{all}: {text}");
        }
        cause = error.source();
    }
    all
}
