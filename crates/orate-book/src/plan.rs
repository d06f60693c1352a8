//! Divides a book into units, which are spoken on their own.

use crate::book::{Block, Book};
use orate_text::pieces;
use sha2::{Digest, Sha256};
use std::ops::Range;

/// Characters of a unit, unless its last paragraph has more: about 80 seconds of speech. A killed process
/// loses one unit. A paragraph with more is divided between sentences.
const UNIT_CHARS: usize = 1200;

/// Silence in seconds after a paragraph, a heading, a break between scenes, and a chapter.
const AFTER_PARAGRAPH: f32 = 0.6;
const AFTER_HEADING: f32 = 1.0;
const AT_BREAK: f32 = 1.5;
const AFTER_CHAPTER: f32 = 2.0;

/// A book in units.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The chapters.
    pub chapters: Vec<PlannedChapter>,
    /// The units of all chapters, in order.
    pub units: Vec<Unit>,
}

/// A chapter, and which units it consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedChapter {
    /// Title; that of the book, or `Beginning`, if it has none of its own.
    pub title: String,
    /// Its units.
    pub units: Range<usize>,
    /// Characters of its text.
    pub chars: usize,
}

/// Text that is spoken on its own. Its sound depends on nothing but the text, the index and the options.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// Number in the book, from 0.
    pub index: usize,
    /// Its paragraphs.
    pub paragraphs: Vec<Paragraph>,
    /// Characters of its text.
    pub chars: usize,
}

/// A paragraph, or some sentences of a long one.
#[derive(Clone, Debug, PartialEq)]
pub struct Paragraph {
    /// The text in one line.
    pub text: String,
    /// Silence after it in seconds. 0 is the silence between sentences, which precedes what follows.
    pub pause_after: f32,
}

impl Plan {
    /// Divides a book. `silence`, in seconds, precedes each unit but the first, as [`Unit::first_piece`] is
    /// not 0 there; the pause before it is shorter by that.
    pub fn new(book: &Book, silence: f32) -> Plan {
        let (mut chapters, mut units) = (vec![], vec![]);
        for (i, chapter) in book.chapters.iter().enumerate() {
            let mut paragraphs: Vec<Paragraph> = vec![];
            for (block, next) in
                chapter.blocks.iter().zip(chapter.blocks.iter().skip(1).map(Some).chain([None]))
            {
                let pause_after = match (block, next) {
                    (Block::Break, _) => {
                        if let Some(last) = paragraphs.last_mut() {
                            last.pause_after = last.pause_after.max(AT_BREAK);
                        }
                        continue;
                    }
                    (Block::Heading(..), _) | (_, Some(Block::Heading(..))) => AFTER_HEADING,
                    _ => AFTER_PARAGRAPH,
                };
                // A long paragraph is cut between sentences.
                let parts = pieces::cut(block.text(), UNIT_CHARS);
                paragraphs
                    .extend(parts.into_iter().map(|part| Paragraph { text: part.text, pause_after: 0.0 }));
                if let Some(last) = paragraphs.last_mut() {
                    last.pause_after = pause_after;
                }
            }
            if let Some(last) = paragraphs.last_mut() {
                last.pause_after = if i + 1 < book.chapters.len() { AFTER_CHAPTER } else { AFTER_HEADING };
            }
            let first = units.len();
            let mut chars = 0;
            for paragraph in paragraphs {
                let more = paragraph.text.chars().count();
                chars += more;
                match units[first..].last_mut() {
                    Some(Unit { paragraphs, chars, .. }) if *chars + more <= UNIT_CHARS => {
                        paragraphs.push(paragraph);
                        *chars += more;
                    }
                    _ => units.push(Unit { index: units.len(), paragraphs: vec![paragraph], chars: more }),
                }
            }
            let title = chapter.title.clone().or_else(|| book.title.clone());
            let title = title.unwrap_or_else(|| "Beginning".to_owned());
            chapters.push(PlannedChapter { title, units: first..units.len(), chars });
        }
        for unit in &mut units {
            let last = unit.paragraphs.last_mut().expect("a unit has a paragraph");
            last.pause_after = (last.pause_after - silence).max(0.0);
        }
        Plan { chapters, units }
    }

    /// Characters of all units.
    pub fn chars(&self) -> usize {
        self.units.iter().map(|unit| unit.chars).sum()
    }

    /// SHA-256 of all that is spoken and written as titles, in hexadecimal.
    pub fn digest(&self, book: &Book) -> String {
        let mut hash = Sha256::new();
        let mut field = |text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        book.title.iter().chain(&book.authors).chain(&book.language).for_each(|text| field(text));
        for chapter in &self.chapters {
            field(&chapter.title);
            field(&format!("{:?}", chapter.units));
        }
        for paragraph in self.units.iter().flat_map(|unit| &unit.paragraphs) {
            field(&paragraph.text);
            field(&paragraph.pause_after.to_string());
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Unit {
    /// Number of its first piece: pieces of other units have other numbers, and so other random numbers.
    pub fn first_piece(&self) -> usize {
        // A piece has a character at least.
        self.index * 2 * UNIT_CHARS
    }
}
