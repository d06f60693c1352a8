//! Plain text: paragraphs between blank lines, and chapters where a paragraph is a heading such as
//! `Chapter 3`, `Epilogue` or `XIV`.

use crate::book::{Book, Line, by_headings};

/// Longest heading in characters.
const MAX_HEADING: usize = 80;

/// Words that begin a heading, with a number after them.
const NUMBERED: [&str; 16] = [
    "act",
    "book",
    "canto",
    "capítulo",
    "capitolo",
    "chapter",
    "chapitre",
    "kapitel",
    "letter",
    "part",
    "parte",
    "partie",
    "section",
    "stave",
    "teil",
    "volume",
];

/// Words that are a heading.
const ALONE: [&str; 12] = [
    "afterword",
    "conclusion",
    "epilog",
    "epilogue",
    "foreword",
    "introduction",
    "postscript",
    "preface",
    "prolog",
    "prologue",
    "vorwort",
    "nachwort",
];

const NUMBERS: [&str; 24] = [
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
    "thirty",
    "forty",
    "fifty",
    "sixty",
];

/// Reads a text.
pub(crate) fn read(text: &str) -> Book {
    let mut blocks = vec![];
    let mut paragraph: Vec<&str> = vec![];
    for line in text.lines().chain([""]) {
        if !line.trim().is_empty() {
            paragraph.push(line.trim());
            continue;
        }
        let level = is_heading(&paragraph).then_some(1);
        let mut all = Line::default();
        for (i, line) in paragraph.drain(..).enumerate() {
            if i > 0 && level.is_some() {
                all.separate(".");
            }
            all.push(line);
            all.push(" ");
        }
        blocks.extend(all.take_block(level));
    }
    let (_, chapters) = by_headings(blocks);
    Book { chapters, ..Book::default() }
}

/// Whether a paragraph is a heading: a number, or one or two short lines, the first of which begins with a
/// word for chapters and a number, or is such a word alone.
fn is_heading(lines: &[&str]) -> bool {
    let Some((line, rest)) = lines.split_first() else { return false };
    let is_long = |line: &&str| line.chars().count() > MAX_HEADING;
    if rest.len() > 1 || lines.iter().any(is_long) {
        return false;
    }
    let mut words = line.split(|c: char| c.is_whitespace() || ".:—–".contains(c)).filter(|w| !w.is_empty());
    let Some(first) = words.next() else { return false };
    let Some(second) = words.next() else {
        return ALONE.contains(&&*first.to_lowercase()) || is_figure(first);
    };
    // A sentence that happens to begin so is longer.
    NUMBERED.contains(&&*first.to_lowercase()) && is_number(second) && words.count() <= 8
}

/// Whether a word is a number in figures or words.
fn is_number(word: &str) -> bool {
    let lower = word.to_lowercase();
    is_figure(word) || lower.split('-').next().is_some_and(|word| NUMBERS.contains(&word))
}

fn is_figure(word: &str) -> bool {
    let is_roman = word.len() <= 8 && word.bytes().all(|b| b"IVXLCDM".contains(&b));
    is_roman || (word.len() <= 3 && word.bytes().all(|b| b.is_ascii_digit()))
}
