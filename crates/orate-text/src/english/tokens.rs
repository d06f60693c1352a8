//! Splits a text into runs of letters, digits and spaces, and single marks.

use crate::traced::Make;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// Class of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Letters of any script, with apostrophes between them: `don't`.
    Word,
    /// ASCII digits.
    Digits,
    /// Whitespace.
    Space,
    /// One other character.
    Mark,
}

/// A piece of the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Token<'a> {
    pub kind: Kind,
    pub text: &'a str,
    /// Byte offset in the text.
    pub start: usize,
}

impl Token<'_> {
    pub fn end(&self) -> usize {
        self.start + self.text.len()
    }
}

fn kind(c: char) -> Kind {
    if c.is_ascii_digit() {
        Kind::Digits
    } else if c.is_whitespace() {
        Kind::Space
    } else if c.is_alphabetic() || (!c.is_ascii() && is_combining_mark(c)) {
        Kind::Word
    } else {
        Kind::Mark
    }
}

/// Splits `text`; the concatenated tokens are the text.
pub(super) fn tokens(text: &str) -> Tokens<'_> {
    Tokens { text, at: 0 }
}

/// The tokens of a text, in order.
pub(super) struct Tokens<'a> {
    text: &'a str,
    /// Where the next token starts.
    at: usize,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let start = self.at;
        let rest = &self.text[start..];
        let mut chars = rest.char_indices();
        let (_, first) = chars.next()?;
        let kind_here = kind(first);
        let ends = |(at, c): (usize, char)| {
            let apostrophe = kind_here == Kind::Word
                && matches!(c, '\'' | '\u{2019}')
                && rest[at + c.len_utf8()..].starts_with(char::is_alphabetic);
            (kind_here == Kind::Mark || kind(c) != kind_here && !apostrophe).then_some(at)
        };
        let text = &rest[..chars.find_map(ends).unwrap_or(rest.len())];
        self.at += text.len();
        Some(Token { kind: kind_here, text, start })
    }
}

/// Replaces full-width, circled, subscript and mathematical digits by plain ones; `None` if there are none.
/// Superscripts and fractions have other readings and stay.
pub(super) fn plain_digits<T: Make + Default>(text: &str) -> Option<T> {
    let has_digits = |c: char| {
        !c.is_ascii()
            && !is_superscript(c)
            && vulgar_fraction(c).is_none()
            && std::iter::once(c).nfkd().all(|part| part.is_ascii())
            && std::iter::once(c).nfkd().any(|part| part.is_ascii_digit())
    };
    if text.is_ascii() || !text.chars().any(has_digits) {
        return None;
    }
    let mut out = T::default();
    for (i, c) in text.char_indices() {
        if has_digits(c) {
            let digits: String = std::iter::once(c).nfkd().collect();
            out.make(&digits, i..i + c.len_utf8());
        } else {
            out.copy(c.encode_utf8(&mut [0; 4]), i);
        }
    }
    Some(out)
}

fn is_superscript(c: char) -> bool {
    superscript(c).is_some()
}

/// The digit of a superscript.
pub(super) fn superscript(c: char) -> Option<u32> {
    match c {
        '\u{B9}' => Some(1),
        '\u{B2}' => Some(2),
        '\u{B3}' => Some(3),
        '\u{2070}' | '\u{2074}'..='\u{2079}' => Some(u32::from(c) - 0x2070),
        _ => None,
    }
}

/// Numerator and denominator of a character such as `½`.
pub(super) fn vulgar_fraction(c: char) -> Option<(u64, u64)> {
    Some(match c {
        '¼' => (1, 4),
        '½' => (1, 2),
        '¾' => (3, 4),
        '⅐' => (1, 7),
        '⅑' => (1, 9),
        '⅒' => (1, 10),
        '⅓' => (1, 3),
        '⅔' => (2, 3),
        '⅕' => (1, 5),
        '⅖' => (2, 5),
        '⅗' => (3, 5),
        '⅘' => (4, 5),
        '⅙' => (1, 6),
        '⅚' => (5, 6),
        '⅛' => (1, 8),
        '⅜' => (3, 8),
        '⅝' => (5, 8),
        '⅞' => (7, 8),
        _ => return None,
    })
}
