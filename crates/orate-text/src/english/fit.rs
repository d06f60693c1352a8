//! Converts a text to the letters that a voice knows.

use std::collections::BTreeSet;
use std::ops::Range;

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use super::{Rules, read_with};
use crate::pictures::is_picture;
use crate::pieces::place;
use crate::traced::Make;
use crate::{TextError, Traced, is_invisible};

/// Replaces characters that a voice does not know by ones that it does.
///
/// Characters for which `is_known` returns true stay. Others are folded: accents are removed (`é` to `e`),
/// `ß` and `æ` are written out, curly quotes and dashes become plain ones, brackets become commas. Emoji,
/// invisible characters and opening Spanish marks are dropped; between letters, an emoji becomes a space. Run
/// [`read_aloud`](super::read_aloud) first, so that digits and signs are already words.
///
/// # Errors
///
/// The characters without a counterpart, each once, in order of code point. Includes emoji if nothing else
/// could be spoken. An empty text is not an error.
///
/// ```
/// use orate_text::english::fit_alphabet;
///
/// let known = |c: char| c.is_ascii_alphabetic() || " .,?!'-;:\"".contains(c);
/// assert_eq!(fit_alphabet("“Café” (naïve) 🙂", known).unwrap(), "\"Cafe\", naive");
/// assert_eq!(fit_alphabet("漢字", known), Err(vec!['字', '漢']));
/// ```
pub fn fit_alphabet(text: &str, is_known: impl Fn(char) -> bool) -> Result<String, Vec<char>> {
    fit_into(String::with_capacity(text.len()), text, is_known)
}

/// Fits as [`fit_alphabet`], and says where each part of the result comes from.
///
/// # Errors
///
/// As [`fit_alphabet`].
pub fn fit(text: &str, is_known: impl Fn(char) -> bool) -> Result<Traced, Vec<char>> {
    fit_into(Traced::default(), text, is_known)
}

fn fit_into<O: Make>(out: O, text: &str, is_known: impl Fn(char) -> bool) -> Result<O, Vec<char>> {
    let mut fit = Fit { out, at: 0..0, pause: None, picture: None, is_known };
    let mut missing = BTreeSet::new();
    let mut pictures = BTreeSet::new();
    for (i, c) in text.char_indices() {
        fit.at = i..i + c.len_utf8();
        if (fit.is_known)(c) {
            fit.push(c, true);
        } else if is_picture(c) {
            pictures.insert(c);
            let start = fit.picture.take().map_or(i, |picture| picture.start);
            fit.picture = fit.out.text().ends_with(char::is_alphanumeric).then_some(start..fit.at.end);
        } else if !is_silent(c) && !fit.fold(c) {
            missing.insert(c);
        }
    }
    let silent = !fit.out.text().chars().any(char::is_alphanumeric);
    if !missing.is_empty() || (silent && !pictures.is_empty()) {
        if silent {
            missing.extend(pictures);
        }
        return Err(missing.into_iter().collect());
    }
    // The space before a dropped emoji or bracket is dropped too.
    let trimmed = fit.out.text().trim_end_matches(' ').len();
    if fit.out.text().len() > trimmed && !text.ends_with(char::is_whitespace) {
        fit.out.truncate(trimmed);
    }
    Ok(fit.out)
}

struct Fit<O, F> {
    out: O,
    /// The current character in the source.
    at: Range<usize>,
    /// A bracket was here; it becomes a comma if letters follow.
    pause: Option<Range<usize>>,
    /// An emoji was here, right after a letter; it becomes a space if a letter follows.
    picture: Option<Range<usize>>,
    is_known: F,
}

impl<O: Make, F: Fn(char) -> bool> Fit<O, F> {
    /// Writes a character: the current one, or one made of it.
    fn push(&mut self, c: char, is_copy: bool) {
        if !c.is_whitespace()
            && let Some(bracket) = self.pause.take()
        {
            let before = self.out.text().trim_end();
            let trimmed = before.len();
            let after_mark = before.ends_with(|p: char| ",.;:!?-".contains(p));
            if c.is_alphanumeric() || c == '"' || c == '\'' {
                self.out.truncate(trimmed);
                if trimmed > 0 {
                    if !after_mark && (self.is_known)(',') {
                        self.out.make(",", bracket.clone());
                    }
                    if (self.is_known)(' ') {
                        self.out.make(" ", bracket);
                    }
                }
            } else {
                self.out.truncate(trimmed);
            }
        }
        if let Some(picture) = self.picture.take()
            && c.is_alphanumeric()
            && self.out.text().ends_with(char::is_alphanumeric)
            && (self.is_known)(' ')
        {
            self.out.make(" ", picture);
        }
        let mut bytes = [0; 4];
        let text = c.encode_utf8(&mut bytes);
        if is_copy { self.out.copy(text, self.at.start) } else { self.out.make(text, self.at.clone()) }
    }

    /// Writes the replacement of an unknown character; returns false if there is none.
    fn fold(&mut self, c: char) -> bool {
        if is_pause(c) {
            self.pause = Some(self.at.clone());
            return true;
        }
        if c.is_whitespace() || c.is_control() {
            if (self.is_known)(' ') {
                self.push(' ', false);
            }
            return true;
        }
        if let Some(plain) = plain(c) {
            return self.push_all(plain.chars());
        }
        // NFKD, whose results are folded again: a full-width quote gives a plain one.
        let mut parts = String::new();
        for part in std::iter::once(c).nfkd().filter(|&part| !is_combining_mark(part)) {
            match plain(part) {
                Some(plain) if !(self.is_known)(part) => parts.push_str(plain),
                _ => parts.push(part),
            }
        }
        if parts.chars().eq([c]) {
            return false;
        }
        if parts.chars().all(|part| is_pause(part) && !(self.is_known)(part)) && !parts.is_empty() {
            self.pause = Some(self.at.clone());
            return true;
        }
        self.push_all(parts.chars())
    }

    fn push_all(&mut self, parts: impl Iterator<Item = char> + Clone) -> bool {
        let known = parts.clone().all(|part| (self.is_known)(part));
        if known {
            parts.for_each(|part| self.push(part, false));
        }
        known
    }
}

/// Characters that become a short pause.
fn is_pause(c: char) -> bool {
    matches!(
        c,
        '(' | ')'
            | '['
            | ']'
            | '{'
            | '}'
            | '\u{2014}'
            | '\u{2015}'
            | '\u{2022}'
            | '\u{B7}'
            | '\u{3001}'
            | '\u{2E3A}'
            | '⟨'
            | '⟩'
            | '‹'
            | '›'
    )
}

/// Characters with no sound of their own.
fn is_silent(c: char) -> bool {
    is_combining_mark(c) || is_invisible(c) || "¿¡`´¨†‡\u{2122}\u{AE}".contains(c)
}

/// Letters and marks that NFKD does not decompose.
fn plain(c: char) -> Option<&'static str> {
    Some(match c {
        '\u{2018}' | '\u{2019}' | '\u{201A}' | '\u{201B}' | '\u{2032}' | '\u{2BC}' | '\u{2BB}' => "'",
        '\u{201C}'..='\u{201F}' | '\u{2033}' | '«' | '»' | '\u{301D}'..='\u{301F}' => "\"",
        '\u{300C}'..='\u{300F}' => "\"",
        '\u{2010}'..='\u{2013}' | '\u{2212}' | '\u{2043}' => "-",
        '\u{2026}' => ".",
        '\u{3002}' => ".",
        'ß' => "ss",
        'ẞ' => "SS",
        'æ' | 'ǽ' => "ae",
        'Æ' | 'Ǽ' => "Ae",
        'œ' => "oe",
        'Œ' => "Oe",
        'ø' | 'ǿ' => "o",
        'Ø' | 'Ǿ' => "O",
        'đ' | 'ð' | 'ɖ' => "d",
        'Đ' | 'Ð' => "D",
        'þ' => "th",
        'Þ' => "Th",
        'ł' => "l",
        'Ł' => "L",
        'ħ' => "h",
        'Ħ' => "H",
        'ı' => "i",
        'ŧ' => "t",
        'Ŧ' => "T",
        'ŋ' => "ng",
        'Ŋ' => "Ng",
        'ə' => "e",
        'Ə' => "E",
        'ƒ' => "f",
        'ĸ' => "k",
        'µ' | 'μ' => "mu",
        'α' => "alpha",
        'β' => "beta",
        'γ' => "gamma",
        'δ' | 'Δ' => "delta",
        'ε' => "epsilon",
        'θ' => "theta",
        'λ' => "lambda",
        'π' => "pi",
        'σ' | 'Σ' => "sigma",
        'φ' => "phi",
        'ω' => "omega",
        'Ω' => "omega",
        _ => return None,
    })
}

/// Pieces that a plain-letter voice can say: [`read_aloud_with`](super::read_aloud_with), [`fit_alphabet`],
/// runs of marks reduced to one, sentences capitalized, split at `max_chars`, each piece with a final mark.
///
/// `max_chars` counts characters of the result, including the final mark; `is_known` is the voice's alphabet.
///
/// # Errors
///
/// [`TextError::Unsupported`] with the characters that have no counterpart; [`TextError::Empty`] if nothing
/// is left to speak.
///
/// ```
/// use orate_text::english::{Rules, speakable};
///
/// let known = |c: char| c.is_ascii_alphabetic() || " .,?!'-;:\"".contains(c);
/// let pieces = speakable("Wait... 5 km?! Yes", &Rules::default(), 168, known)?;
/// assert_eq!(pieces, ["Wait, five kilometers? Yes."]);
/// # Ok::<(), orate_text::TextError>(())
/// ```
pub fn speakable(
    text: &str,
    rules: &Rules,
    max_chars: usize,
    is_known: impl Fn(char) -> bool,
) -> Result<Vec<String>, TextError> {
    let pieces = speakable_pieces(text, rules, max_chars, is_known)?;
    Ok(pieces.into_iter().map(Traced::into_text).collect())
}

/// Makes the pieces of [`speakable`], and says where each part of them comes from.
///
/// # Errors
///
/// As [`speakable`].
///
/// ```
/// use orate_text::english::{Rules, speakable_pieces};
///
/// let known = |c: char| c.is_ascii_alphabetic() || " .,?!'-;:\"".contains(c);
/// let pieces = speakable_pieces("Yes (5 km). No", &Rules::default(), 24, known)?;
/// assert_eq!((pieces[0].text(), pieces[0].span()), ("Yes, five kilometers.", 0..11));
/// assert_eq!(pieces[0].source(5..9), 5..9); // "five" comes from "5 km"
/// # Ok::<(), orate_text::TextError>(())
/// ```
pub fn speakable_pieces(
    text: &str,
    rules: &Rules,
    max_chars: usize,
    is_known: impl Fn(char) -> bool,
) -> Result<Vec<Traced>, TextError> {
    let read = read_with(text, rules);
    // Blank lines separate paragraphs, so they are kept for the splitting.
    let fitted = fit(read.text(), |c| c == '\n' || is_known(c))
        .map_err(|characters| TextError::Unsupported { characters })?;
    let calm = calm(fitted.text()).after(&fitted).after(&read);
    let max_chars = max_chars.saturating_sub(1).max(1); // room for the full stop
    let pieces: Vec<Traced> = capitalize_sentences(calm)
        .pieces(max_chars)
        .iter()
        .map(|piece| piece.joined(&piece.text().split_whitespace().collect::<Vec<_>>()))
        .filter(|piece| piece.text().chars().any(char::is_alphanumeric))
        .map(|mut piece| {
            if !piece.text().ends_with(['.', '?', '!', ',', ';', ':']) {
                let end = piece.span().end;
                piece.make(".", end..end);
            }
            piece
        })
        .collect();
    if pieces.is_empty() { Err(TextError::Empty) } else { Ok(pieces) }
}

/// Reduces runs of marks to the strongest one: `?!` to `?`, `...` to `.` or a comma, `--` to a comma. Voices
/// trained on plain sentences stumble over runs.
fn calm(text: &str) -> Traced {
    const BY_STRENGTH: &str = "?!.:;,";
    let mut out = Traced::default();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let run = &rest[..rest.find(|d: char| !BY_STRENGTH.contains(d)).unwrap_or(rest.len())];
        if !run.is_empty() {
            let rest = &rest[run.len()..];
            // "Well... maybe" continues a sentence; "Well... Maybe" starts a new one.
            let goes_on = run.len() > 1
                && run.bytes().all(|b| b == b'.')
                && rest.trim_start().starts_with(char::is_lowercase);
            let strongest = || BY_STRENGTH.chars().find(|&mark| run.contains(mark)).unwrap_or(c);
            let mark = if goes_on { ',' } else { strongest() };
            out.make(mark.encode_utf8(&mut [0; 4]), at..at + run.len());
            at += run.len();
            continue;
        }
        let dashes = rest.len() - rest.trim_start_matches('-').len();
        if dashes > 1 {
            out.truncate(out.text().trim_end_matches(' ').len());
            out.make(", ", at..at + dashes);
            at += dashes;
            continue;
        }
        out.copy(c.encode_utf8(&mut [0; 4]), at);
        at += c.len_utf8();
    }
    out
}

/// Capitalizes numbers at the beginning of sentences, which have become lowercase words. Words with an inner
/// capital ("iPhone") stay.
fn capitalize_sentences(text: Traced) -> Traced {
    let mut first_letters = Vec::new();
    let mut begins = true;
    for word in text.text().split_inclusive(char::is_whitespace) {
        let bare = word.trim_start_matches(['"', '\'']);
        if begins && bare.starts_with(|c: char| c.is_ascii_lowercase()) && !bare.contains(char::is_uppercase)
        {
            first_letters.push(place(bare, text.text()).start);
        }
        let end = word.trim_end().trim_end_matches(['"', '\'']);
        if !end.is_empty() {
            begins = end.ends_with(['.', '!', '?']);
        }
    }
    text.capitalized(&first_letters)
}
