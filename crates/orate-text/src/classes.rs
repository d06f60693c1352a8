//! Classes of characters that the patterns of byte-level tokenizers distinguish.

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// CR or LF.
    Break,
    /// Other white space.
    Space,
    /// `\p{L}`
    Letter,
    /// `\p{N}`
    Number,
    /// Punctuation, symbols, marks, unassigned code points.
    Other,
}

pub(crate) fn class(c: char) -> Class {
    match c {
        '\r' | '\n' => Class::Break,
        'a'..='z' | 'A'..='Z' => Class::Letter,
        '0'..='9' => Class::Number,
        c if c.is_whitespace() => Class::Space,
        c if c.is_ascii() => Class::Other,
        c => match c.general_category_group() {
            GeneralCategoryGroup::Letter => Class::Letter,
            GeneralCategoryGroup::Number => Class::Number,
            _ => Class::Other,
        },
    }
}

/// Bytes of the leading characters whose class is wanted.
pub(crate) fn run(text: &str, wanted: impl Fn(Class) -> bool) -> usize {
    text.find(|c| !wanted(class(c))).unwrap_or(text.len())
}

/// Bytes of the white space at the start of `text`. Its last character belongs to the next piece, if there is
/// one and the white space has others.
pub(crate) fn spaces_len(text: &str) -> usize {
    let spaces = run(text, |c| matches!(c, Class::Space | Class::Break));
    match text[..spaces].char_indices().next_back() {
        Some((last, _)) if last > 0 && spaces < text.len() => last,
        _ => spaces,
    }
}

/// The pieces of a text in order; joined, they are the text. `len` returns the bytes of the first piece.
pub(crate) fn pieces(text: &str, len: impl Fn(&str) -> usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, after) = rest.split_at(len(rest));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}
