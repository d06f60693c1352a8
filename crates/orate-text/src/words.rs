//! The words that a person sees in captions, and how long each should take.

use crate::cjk::{extends_kana, is_hangul, stands_alone};
use crate::{Traced, english, is_invisible, pieces};
use std::ops::Range;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;
use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

/// A word of a text.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Word {
    /// The word, without the marks around it.
    pub text: String,
    /// The word as captions show it, with its marks: `"Hello,"`.
    pub display: String,
    /// Bytes of `text` in the original text.
    pub span: Range<usize>,
    /// Whether white space separates it from the next word.
    pub space_after: bool,
    /// Expected duration, relative to the other words of the piece. Greater than zero.
    pub weight: f32,
    /// The pause that its punctuation suggests.
    pub pause_after: Pause,
}

/// What punctuation suggests about the pause after a word, from short to long.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize,
)]
pub enum Pause {
    /// No mark, or one without a pause.
    #[default]
    None,
    /// A comma, a colon, a dash, a bracket.
    Comma,
    /// The end of a sentence or a paragraph.
    Sentence,
}

/// Weight of a vowel. Other letters have 1.
const VOWEL: f32 = 2.0;

/// Weight of a character that is a syllable: a consonant and a vowel.
const SYLLABLE: f32 = 3.0;

/// Weight of a sign that is read as a word, such as `%`.
const SIGN: f32 = 6.0;

/// Lists the words of `original[span]`, in order.
///
/// Words are separated by white space, and by dashes and ellipses between letters. Each Han character or kana
/// is a word of its own. Marks without letters, such as a dash between spaces, belong to the display of the
/// word before them.
///
/// `reading` is what the model speaks, made from `original`. Weights and pauses are then those of the spoken
/// words, words that are not spoken belong to the word before them, and tokens that are read together are one
/// word: `5 km`, read "five kilometers".
///
/// # Panics
///
/// If `span` is not a range of whole characters of `original`.
///
/// ```
/// use orate_text::words::{self, Pause};
///
/// let words = words::of("“Yes,” she said.", 0..20, None);
/// assert_eq!((words[0].text.as_str(), words[0].display.as_str()), ("Yes", "“Yes,”"));
/// assert_eq!((words[0].span.clone(), words[0].pause_after), (3..6, Pause::Comma));
/// assert_eq!((words[2].text.as_str(), words[2].pause_after), ("said", Pause::Sentence));
/// ```
#[must_use]
pub fn of(original: &str, span: Range<usize>, reading: Option<&Traced>) -> Vec<Word> {
    let mut found: Vec<Found> = Vec::new();
    let mut lead = None;
    let own = span;
    let span = with_marks(original, own.clone());
    for unit in units(original, &span) {
        let (made, core) = match reading {
            Some(reading) => spoken(original, &unit, reading),
            None => (
                original[unit.clone()].contains(is_spoken).then_some(0..0),
                core(original, unit.clone(), &unit),
            ),
        };
        // What the marks around the span are read as belongs to other pieces.
        let made = made.filter(|_| core.start < own.end && core.end > own.start);
        let core = core.start.max(own.start)..core.end.min(own.end);
        match (made, found.last_mut()) {
            (None, None) => lead = lead.or(Some(unit.start)),
            (None, Some(last)) => last.display.end = unit.end,
            (Some(made), Some(last)) if made.start < last.made.end => {
                last.display.end = unit.end;
                last.core.end = core.end;
                last.made.end = last.made.end.max(made.end);
            }
            (Some(made), _) => {
                let start = lead.take().unwrap_or(unit.start);
                found.push(Found { core, display: start..unit.end, made });
            }
        }
    }
    let ends = found.iter().skip(1).map(|next| (next.core.start, next.made.start));
    let last = (span.end, reading.map_or(0, |reading| reading.made_from(span.clone()).end));
    let ends: Vec<_> = ends.chain([last]).collect();
    let word = |(found, (end, made_end)): (Found, (usize, usize))| {
        let (weight, pause_after) = match reading {
            Some(reading) => {
                let said = &reading.text()[found.made.start..made_end.max(found.made.end)];
                let marks = said.rfind(char::is_alphanumeric).unwrap_or(0);
                (weight(&reading.text()[found.made.clone()]), pause(&said[marks..]))
            }
            None => {
                let marks = &original[found.core.end..end];
                let is_short = marks.starts_with('.')
                    && pieces::ends_in_abbreviation(&original[found.core.start..=found.core.end]);
                let marks = if is_short { &marks[1..] } else { marks };
                (weight(&original[found.core.clone()]), pause(marks))
            }
        };
        let after = &original[found.display.end..];
        Word {
            text: pieces::collapse_spaces(&original[found.core.clone()]),
            display: pieces::collapse_spaces(&original[found.display]),
            span: found.core,
            space_after: after.starts_with(char::is_whitespace),
            weight: weight.max(1.0),
            pause_after,
        }
    };
    found.into_iter().zip(ends).map(word).collect()
}

/// A span with the marks at its ends: a piece that is spoken may lack them.
fn with_marks(text: &str, span: Range<usize>) -> Range<usize> {
    let is_part = |c: char| is_spoken(c) || stands_alone(c) || extends_kana(c) || is_combining_mark(c);
    let is_mark = |c: char| !(c.is_whitespace() || is_part(c));
    let start = text[..span.start].trim_end_matches(is_mark).len();
    // Marks that open belong to what follows.
    let rest = &text[span.end..];
    let end = span.end + rest.find(|c| !is_mark(c) || is_opening(c)).unwrap_or(rest.len());
    let opens = text[start..span.start].find(is_opening).unwrap_or(span.start - start);
    start + opens..end
}

struct Found {
    /// The word without its marks.
    core: Range<usize>,
    /// The word with its marks.
    display: Range<usize>,
    /// What the reading made of it.
    made: Range<usize>,
}

/// What a reading made of a unit, if that is spoken, and the part of the unit that it made it of.
fn spoken(text: &str, unit: &Range<usize>, reading: &Traced) -> (Option<Range<usize>>, Range<usize>) {
    let made = reading.made_from(unit.clone());
    let said = &reading.text()[made.clone()];
    let Some(first) = said.find(char::is_alphanumeric) else { return (None, unit.clone()) };
    let last = said.trim_end_matches(|c: char| !c.is_alphanumeric()).len();
    let source = reading.source(made.start + first..made.start + last);
    (Some(made), core(text, source.start.max(unit.start)..source.end.min(unit.end), unit))
}

/// Splits at white space, around characters that stand alone, and after dashes.
fn units(text: &str, span: &Range<usize>) -> Vec<Range<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Core {
        None,
        Alone,
        Letters,
    }
    let mut out = Vec::new();
    let mut start = None;
    let (mut core, mut parted) = (Core::None, false);
    for (i, c) in text[span.clone()].char_indices() {
        let i = span.start + i;
        let (ends, next) = if pieces::is_python_space(c) {
            (true, Core::None)
        } else if stands_alone(c) {
            (core != Core::None, Core::Alone)
        } else if extends_kana(c) || is_combining_mark(c) || is_invisible(c) {
            (false, core)
        } else if is_spoken(c) {
            (core == Core::Alone || parted && core != Core::None, Core::Letters)
        } else if core == Core::Alone && is_opening(c) {
            (true, Core::None)
        } else {
            (false, core)
        };
        if ends && let Some(start) = start.take() {
            out.push(start..i);
        }
        if !pieces::is_python_space(c) {
            start.get_or_insert(i);
        }
        core = next;
        parted = matches!(c, '\u{2014}' | '\u{2015}' | '\u{2026}');
    }
    out.extend(start.map(|start| start..span.end));
    out
}

/// A part of a unit without the marks at its ends, and with the accents after it.
fn core(text: &str, part: Range<usize>, unit: &Range<usize>) -> Range<usize> {
    let whole = &text[part.clone()];
    let mut spoken = whole.char_indices().filter(|&(i, c)| is_spoken(c) || is_sign_of_number(&whole[i..]));
    let Some((start, first)) = spoken.next() else { return part };
    let (last, c) = spoken.next_back().unwrap_or((start, first));
    let (start, end) = (part.start + start, part.start + last + c.len_utf8());
    let after = &text[end..unit.end];
    let accents = after.find(|c| !(extends_kana(c) || is_combining_mark(c))).unwrap_or(after.len());
    start..end + accents
}

/// A minus before a digit.
fn is_sign_of_number(text: &str) -> bool {
    text.strip_prefix(['-', '\u{2212}']).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Letters, digits, and signs that are read as words.
fn is_spoken(c: char) -> bool {
    c.is_alphanumeric() || is_sign(c)
}

fn is_sign(c: char) -> bool {
    match c {
        '%' | '‰' | '&' | '@' | '#' | '°' | '§' | '+' | '=' | '<' | '>' | '№' | '©' => true,
        c if c.is_ascii() => c == '$',
        c => matches!(c.general_category(), GeneralCategory::CurrencySymbol | GeneralCategory::MathSymbol),
    }
}

fn is_opening(c: char) -> bool {
    matches!(c.general_category(), GeneralCategory::OpenPunctuation | GeneralCategory::InitialPunctuation)
}

/// What the marks between two words suggest.
fn pause(marks: &str) -> Pause {
    let of = |c| match c {
        '.' | '!' | '?' | '…' | '。' | '！' | '？' | '｡' | '।' | '॥' | '؟' | '۔' => {
            Pause::Sentence
        }
        ',' | ';' | ':' | '(' | ')' | '[' | ']' | '—' | '–' | '―' | '、' | '，' | '；' | '：' | '､' | '،'
        | '؛' => Pause::Comma,
        _ => Pause::None,
    };
    if marks.matches('\n').count() > 1 {
        return Pause::Sentence;
    }
    let dash = if marks.contains(" - ") || marks.contains("--") { Pause::Comma } else { Pause::None };
    marks.chars().map(of).max().unwrap_or_default().max(dash)
}

/// How long it takes to speak some words: letters, vowels double, numbers as the words they are read as.
fn weight(text: &str) -> f32 {
    let mut sum = 0.0;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        if digits > 0 {
            sum += weight(&english::number(&rest[..digits]));
            rest = &rest[digits..];
            continue;
        }
        sum += match c {
            c if stands_alone(c) || is_hangul(c) => SYLLABLE,
            c if is_vowel(c) => VOWEL,
            c if c.is_alphabetic() => 1.0,
            c if c.is_numeric() || is_sign(c) => SIGN,
            _ => 0.0,
        };
        rest = &rest[c.len_utf8()..];
    }
    sum
}

/// Vowels of the Latin, Greek and Cyrillic scripts, with any accents.
fn is_vowel(c: char) -> bool {
    let base = std::iter::once(c).nfd().next().unwrap_or(c);
    base.to_lowercase().any(|c| "aeiouyæœøıəαεηιουωаеиоуыэюяіє".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, reading: Option<&Traced>) -> Vec<String> {
        let words = of(text, 0..text.len(), reading);
        for word in &words {
            assert!(word.weight >= 1.0 && !word.text.is_empty(), "{word:?}");
            assert!(word.display.contains(&word.text), "{word:?}");
            assert_eq!(pieces::collapse_spaces(&text[word.span.clone()]), word.text);
        }
        let pause = |pause| match pause {
            Pause::None => "",
            Pause::Comma => "'",
            Pause::Sentence => "\"",
        };
        let space = |word: &Word| if word.space_after { "_" } else { "" };
        words
            .iter()
            .map(|w| format!("{}|{}{}{}", w.text, w.display, space(w), pause(w.pause_after)))
            .collect()
    }

    #[test]
    fn words_and_marks() {
        let cases: &[(&str, &[&str])] = &[
            ("", &[]),
            (" \n ", &[]),
            ("— …", &[]),
            ("Good morning.", &["Good|Good_", "morning|morning.\""]),
            ("don't stop-gap (he said)", &["don't|don't_", "stop-gap|stop-gap_'", "he|(he_", "said|said)'"]),
            ("Dr. Who left. Bye", &["Dr|Dr._", "Who|Who_", "left|left._\"", "Bye|Bye"]),
            ("yes — no - maybe", &["yes|yes —_'", "no|no -_'", "maybe|maybe"]),
            ("- first", &["first|- first"]),
            ("so—what…then", &["so|so—'", "what|what…\"", "then|then"]),
            (
                "-5 and 50% of $3.50, ok?",
                &["-5|-5_", "and|and_", "50%|50%_", "of|of_", "$3.50|$3.50,_'", "ok|ok?\""],
            ),
            ("a 🙂 b", &["a|a 🙂_", "b|b"]),
            ("one\n\ntwo", &["one|one_\"", "two|two"]),
            ("雨がやんだ。「湯」", &["雨|雨", "が|が", "や|や", "ん|ん", "だ|だ。\"", "湯|「湯」"]),
            ("キャッシュ OK", &["キャッ|キャッ", "シュ|シュ_", "OK|OK"]),
            ("用iPhone吧!", &["用|用", "iPhone|iPhone", "吧|吧!\""]),
            ("안녕 하세요.", &["안녕|안녕_", "하세요|하세요.\""]),
            ("e\u{301}te\u{301}!", &["e\u{301}te\u{301}|e\u{301}te\u{301}!\""]),
        ];
        for (text, want) in cases {
            assert_eq!(shown(text, None), *want, "{text:?}");
        }
    }

    #[test]
    fn words_of_a_reading() {
        let cases: &[(&str, &[&str])] = &[
            ("It took 5 km, ` really.", &["It|It_", "took|took_", "5 km|5 km, `_'", "really|really.\""]),
            (
                "He is on Elm Dr. He left",
                &["He|He_", "is|is_", "on|on_", "Elm|Elm_", "Dr|Dr._\"", "He|He_", "left|left"],
            ),
            ("Dr. Who & I", &["Dr|Dr._", "Who|Who_", "&|&_", "I|I"]),
            ("**Bold** <b>move</b>", &["Bold|**Bold**_", "move|<b>move</b>"]),
        ];
        for (text, want) in cases {
            assert_eq!(shown(text, Some(&english::read(text))), *want, "{text:?}");
        }
        let read = english::read("$3.50 now");
        let words = of("$3.50 now", 0..9, Some(&read));
        assert_eq!(words[0].weight, weight("three dollars and fifty cents"));
    }

    #[test]
    fn weights() {
        assert_eq!(weight("morning"), 9.0);
        assert_eq!(weight("été"), 5.0);
        assert_eq!(weight("21"), weight("twenty one"));
        assert_eq!(weight("雨が"), 6.0);
        assert_eq!(weight("50%"), weight("fifty") + SIGN);
    }
}
