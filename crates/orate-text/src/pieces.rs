//! Splits a text into pieces of whole sentences, which a model speaks one after the other.
//!
//! The rules are those of Supertonic's pip package (1.3.1) and apply to every family.

use std::ops::Range;

/// Silence between two pieces, in seconds.
pub const SILENCE_SECONDS: f64 = 0.3;

/// What to do with a character that a model does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unknown {
    /// Report it as [`TextError::Unsupported`](crate::TextError::Unsupported), as Supertonic's pip package
    /// does.
    #[default]
    Refuse,
    /// Leave it out.
    Skip,
    /// Use the last embedding row, which belongs to no character. Supertonic's example scripts do this by
    /// accident: they pass -1, and ONNX counts negative rows from the end.
    LastRow,
}

/// Abbreviations after which a full stop does not end a sentence. A plain suffix match, as upstream.
const NO_SPLIT_AFTER: [&str; 19] = [
    "Mr.", "Mrs.", "Ms.", "Dr.", "Prof.", "Sr.", "Jr.", "Ph.D.", "etc.", "e.g.", "i.e.", "vs.", "Inc.",
    "Ltd.", "Co.", "Corp.", "St.", "Ave.", "Blvd.",
];

/// By how much a piece may be longer than the one before it while pieces grow: three to two.
const GROWTH: (usize, usize) = (3, 2);

/// Splits a text into pieces of whole sentences, exactly as Supertonic's pip package does.
///
/// Sentences end at `.`, `!` or `?` followed by whitespace. They are packed into pieces of at most
/// `max_chars` code points, which never span blank lines. A longer sentence stays whole. A text of only
/// whitespace has no pieces.
///
/// ```
/// use orate_text::pieces;
///
/// assert_eq!(pieces::of_sentences("Dr. Who left. Bye!  Ok", 15), ["Dr. Who left.", "Bye! Ok"]);
/// ```
#[must_use]
pub fn of_sentences(text: &str, max_chars: usize) -> Vec<String> {
    pack(text, max_chars, false).iter().map(|parts| parts.join(" ")).collect()
}

/// [`of_sentences`] with at most `max_chars` code points in every piece.
///
/// A longer sentence is split after a clause mark if there is one in its second half, else at a space, else
/// anywhere.
///
/// ```
/// use orate_text::pieces;
///
/// let cut = pieces::at_most("First this, then that happened.", 16);
/// assert_eq!(cut, ["First this,", "then that", "happened."]);
/// ```
#[must_use]
pub fn at_most(text: &str, max_chars: usize) -> Vec<String> {
    pack(text, max_chars, true).iter().map(|parts| parts.join(" ")).collect()
}

/// A piece of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Its sentences, joined by single spaces.
    pub text: String,
    /// Bytes of the whole text, from the first to the last sentence.
    pub span: Range<usize>,
}

/// Cuts as [`at_most`] does, and says where each piece comes from.
///
/// ```
/// use orate_text::pieces;
///
/// let cut = pieces::cut("One.  Two.\n\nThree.", 40);
/// assert_eq!((cut[0].text.as_str(), cut[0].span.clone()), ("One. Two.", 0..10));
/// assert_eq!((cut[1].text.as_str(), cut[1].span.clone()), ("Three.", 12..18));
/// ```
#[must_use]
pub fn cut(text: &str, max_chars: usize) -> Vec<Piece> {
    let piece = |parts: &Vec<&str>| Piece { text: parts.join(" "), span: span(parts, text) };
    pack(text, max_chars, true).iter().map(piece).collect()
}

/// Bytes from the first to the last of some slices of `text`.
fn span(parts: &[&str], text: &str) -> Range<usize> {
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return 0..0 };
    place(first, text).start..place(last, text).end
}

/// Where a slice of `text` stands in it.
pub(crate) fn place(part: &str, text: &str) -> Range<usize> {
    let start = part.as_ptr().addr() - text.as_ptr().addr();
    start..start + part.len()
}

/// The slices of `text` that make up each piece.
pub(crate) fn pack(text: &str, max_chars: usize, cut_sentences: bool) -> Vec<Vec<&str>> {
    let mut packing = Packing::new(text, max_chars, max_chars);
    for paragraph in paragraphs(text) {
        for sentence in sentences(paragraph) {
            if cut_sentences {
                cut_sentence(sentence, packing.max_chars).into_iter().for_each(|part| packing.add(part));
            } else {
                packing.add(sentence);
            }
        }
        packing.end_piece();
    }
    packing.pieces
}

/// [`pack`] with short pieces in the beginning: [`Traced::growing_pieces`](crate::Traced::growing_pieces).
pub(crate) fn pack_growing(text: &str, first_chars: usize, max_chars: usize) -> Vec<Vec<&str>> {
    let mut packing = Packing::new(text, first_chars, max_chars);
    for paragraph in paragraphs(text) {
        for sentence in sentences(paragraph) {
            for part in cut_sentence(sentence, packing.max_chars) {
                part.split_inclusive(is_wide_end).for_each(|part| packing.add(part));
            }
        }
        packing.end_piece();
    }
    packing.pieces
}

/// Packs sentences into pieces.
struct Packing<'t> {
    text: &'t str,
    pieces: Vec<Vec<&'t str>>,
    current: Vec<&'t str>,
    /// Characters of `current`.
    chars: usize,
    /// What a piece may have now, and later.
    limit: usize,
    max_chars: usize,
}

impl<'t> Packing<'t> {
    fn new(text: &'t str, first_chars: usize, max_chars: usize) -> Packing<'t> {
        let max_chars = max_chars.max(1);
        let limit = first_chars.min(max_chars);
        Packing { text, pieces: vec![], current: vec![], chars: 0, limit, max_chars }
    }

    fn add(&mut self, part: &'t str) {
        let part_chars = part.chars().count();
        // Upstream counts the joining space even for the first sentence of a piece.
        if self.chars + part_chars < self.limit {
            self.chars += usize::from(!self.current.is_empty());
        } else {
            self.end_piece();
        }
        self.chars += part_chars;
        let here = place(part, self.text);
        match self.current.last_mut() {
            // No space is between the two.
            Some(last) if place(last, self.text).end == here.start => {
                *last = &self.text[place(last, self.text).start..here.end];
            }
            _ => self.current.push(part),
        }
    }

    fn end_piece(&mut self) {
        if !self.current.is_empty() {
            self.pieces.push(std::mem::take(&mut self.current));
            self.limit = (self.limit.max(self.chars).saturating_mul(GROWTH.0) / GROWTH.1).min(self.max_chars);
            self.chars = 0;
        }
    }
}

/// Python's `str.isspace`: Rust's set and the four information separators.
pub(crate) fn is_python_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1C}'..='\u{1F}').contains(&c)
}

/// Reduces runs of whitespace to one space, and removes it at both ends.
pub(crate) fn collapse_spaces(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split(is_python_space).filter(|word| !word.is_empty()) {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}

fn trim(text: &str) -> &str {
    text.trim_matches(is_python_space)
}

/// Splits at whitespace that contains two or more line feeds.
fn paragraphs(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut start = 0;
    for (run_start, run_end) in space_runs(text) {
        if text[run_start..run_end].matches('\n').count() >= 2 {
            out.push(&text[start..run_start]);
            start = run_end;
        }
    }
    out.push(&text[start..]);
    out.into_iter().map(trim).filter(|p| !p.is_empty()).collect()
}

/// Splits at whitespace after `.`, `!` or `?`, unless an abbreviation or initial precedes.
fn sentences(paragraph: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut start = 0;
    for (run_start, run_end) in space_runs(paragraph) {
        let head = &paragraph[..run_start];
        if head.ends_with(['.', '!', '?']) && !ends_in_abbreviation(head) {
            out.push(&paragraph[start..run_start]);
            start = run_end;
        }
    }
    out.push(&paragraph[start..]);
    out.into_iter().map(trim).filter(|s| !s.is_empty()).collect()
}

pub(crate) fn ends_in_abbreviation(head: &str) -> bool {
    if NO_SPLIT_AFTER.iter().any(|ending| head.ends_with(ending)) {
        return true;
    }
    // One ASCII capital and a period, not preceded by a word character.
    let mut back = head.chars().rev();
    back.next() == Some('.')
        && back.next().is_some_and(|c| c.is_ascii_uppercase())
        && !back.next().is_some_and(|c| c.is_alphanumeric() || c == '_')
}

/// Byte ranges of the whitespace runs.
fn space_runs(text: &str) -> impl Iterator<Item = (usize, usize)> + '_ {
    let mut rest_start = 0;
    std::iter::from_fn(move || {
        let rest = &text[rest_start..];
        let start = rest_start + rest.find(is_python_space)?;
        let run = &text[start..];
        let end = start + run.find(|c| !is_python_space(c)).unwrap_or(run.len());
        rest_start = end;
        Some((start, end))
    })
}

/// Splits one sentence into pieces of at most `max_chars`.
fn cut_sentence(sentence: &str, max_chars: usize) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = sentence;
    // A clause mark counts only in the second half of `max_chars`, so that pieces shrink by half at most, and
    // time stays linear.
    while let Some((limit, _)) = rest.char_indices().nth(max_chars) {
        let window = &rest[..limit];
        let half = window.char_indices().nth(max_chars / 2).map_or(0, |(i, _)| i);
        let mut clause = None;
        let mut space = None;
        let mut previous = None;
        for (i, c) in rest.char_indices().take(max_chars + 1) {
            if is_python_space(c) && i > 0 {
                space = Some(i);
                if i >= half && previous.is_some_and(|p| ",;:\u{2013}\u{2014}-)".contains(p)) {
                    clause = Some(i);
                }
            } else if i >= half && i > 0 && previous.is_some_and(is_wide_mark) {
                clause = Some(i);
            }
            previous = Some(c);
        }
        let cut = clause.or(space).unwrap_or_else(|| whole_character_cut(rest, limit));
        out.push(trim(&rest[..cut]));
        rest = trim(&rest[cut..]);
    }
    out.push(rest);
    out.retain(|piece| !piece.is_empty());
    out
}

/// East Asian and Devanagari marks, which are not followed by a space.
fn is_wide_mark(c: char) -> bool {
    "\u{3001}\u{3002}\u{FF0C}\u{FF01}\u{FF1F}\u{FF1B}\u{FF1A}\u{0964}\u{060C}\u{061F}".contains(c)
}

/// Marks that end a sentence without a space after them.
fn is_wide_end(c: char) -> bool {
    "\u{3002}\u{FF01}\u{FF1F}\u{0964}\u{061F}".contains(c)
}

/// The last position at or before `limit` that does not separate a combining mark from its letter.
fn whole_character_cut(text: &str, limit: usize) -> usize {
    /// More marks than this on one letter are noise.
    const MAX_MARKS: usize = 8;
    let follows = |i: usize| text[i..].chars().next();
    std::iter::once(limit)
        .chain(text[..limit].char_indices().rev().map(|(i, _)| i).take(MAX_MARKS))
        .find(|&i| i > 0 && !follows(i).is_some_and(unicode_normalization::char::is_combining_mark))
        .unwrap_or(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sentences_are_cut_only_on_request() {
        let text = "one two three four five, six seven eight nine ten";
        assert_eq!(of_sentences(text, 20), [text]);
        assert_eq!(at_most(text, 25), ["one two three four five,", "six seven eight nine ten"]);
    }

    #[test]
    fn pieces_never_exceed_the_limit_and_lose_only_spaces() {
        let japanese = "雨がやんだ。湯が沸いた。お茶にしよう！本当？".repeat(9);
        let no_spaces = "x".repeat(1000);
        let marks = "e\u{301}".repeat(500);
        for text in ["a b c d e f g h i j", &japanese, &no_spaces, &marks, " ,,, , "] {
            for max_chars in [0, 1, 2, 7, 40, 300] {
                let pieces = at_most(text, max_chars);
                for piece in &pieces {
                    assert!(piece.chars().count() <= max_chars.max(1), "{max_chars}: {piece:?}");
                }
                let squeeze = |s: &str| s.split_whitespace().collect::<String>();
                assert_eq!(squeeze(&pieces.concat()), squeeze(text));
            }
        }
    }

    fn growing(text: &str, first_chars: usize, max_chars: usize) -> Vec<String> {
        let text = crate::Traced::from(text);
        text.growing_pieces(first_chars, max_chars).iter().map(|piece| piece.text().to_owned()).collect()
    }

    #[test]
    fn the_first_pieces_are_short() {
        let text = "One two three. Four five. Six seven eight nine. Ten. Eleven. Twelve thirteen. ".repeat(3);
        let pieces = growing(&text, 20, 60);
        assert_eq!(
            pieces[..4],
            [
                "One two three.",
                "Four five.",
                "Six seven eight nine. Ten. Eleven.",
                "Twelve thirteen. One two three. Four five."
            ]
        );
        assert!(pieces[4..].iter().all(|piece| piece.len() <= 60));
        assert_eq!(pieces.join(" "), text.trim());
        assert_eq!(growing(&text, 60, 60), at_most(&text, 60));
        // A long first sentence stays whole, and a paragraph ends a piece.
        assert_eq!(growing("One, two, three, four.\n\nFive.", 5, 60), ["One, two, three, four.", "Five."]);
        assert_eq!(growing(" \n\n ", 5, 60), [""; 0]);
        assert_eq!(growing("One. Two.", 0, usize::MAX), ["One.", "Two."]);
    }

    #[test]
    fn wide_marks_end_sentences_of_growing_pieces() {
        let text = "雨がやんだ。湯が沸いた。お茶にしよう！本当？".repeat(2);
        let pieces = growing(&text, 8, 30);
        assert_eq!(pieces[..2], ["雨がやんだ。", "湯が沸いた。"]);
        assert_eq!(pieces.concat(), text, "without spaces between");
    }

    #[test]
    fn a_cut_word_keeps_its_accents() {
        let pieces = at_most(&"e\u{301}".repeat(4), 3);
        assert!(pieces.iter().all(|p| p.starts_with('e')), "{pieces:?}");
    }
}
