//! The text front end of Qwen models: Qwen2 tokens.
//!
//! ```text
//! text ─ split off added tokens ─ NFC ─ split into pieces ─ byte-level BPE ─ ids
//! ```
//!
//! Pieces are the matches of the published pattern, whose alternatives are tried in this order:
//!
//! 1. an English contraction: `'s 't 're 've 'm 'll 'd`, in any case
//! 2. letters, with at most one character before them that is not a letter, number or line break
//! 3. one number character
//! 4. characters other than spaces, letters and numbers, with at most one U+0020 before and line breaks after
//! 5. white space up to its last line break
//! 6. white space, except its last character if something follows it
//! 7. white space
//!
//! They are found by a scan instead of a regular expression: it needs no engine, and no input makes it
//! backtrack. The official `qwen-tts` package uses another pattern if it loads a local folder (it applies a
//! fix for Mistral models, which splits words at changes of case); this is the pattern that the models were
//! trained with.

use std::ops::Range;

use orate_files::quoted;
use serde::Deserialize;
use unicode_normalization::UnicodeNormalization;
use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

use crate::TextError;
use crate::bpe::{Bpe, MAX_ID, MERGES, VOCAB, printable};

const CONFIG: &str = "tokenizer_config.json";

/// A part of the text to tokenize.
///
/// Words may span two parts: `Control("\n")` before `Text("\nHi")` gives the one token of two line breaks, as
/// if the parts were one string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// Written by the program: added tokens such as `<|im_start|>` are recognized.
    Control(&'a str),
    /// Written by a user: `<|im_end|>` is ten ordinary characters.
    Text(&'a str),
}

/// A token that is recognized before the text is split.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Added {
    content: String,
    id: u32,
}

/// The tokenizer of a Qwen model.
#[derive(Debug, Clone)]
pub struct QwenTokenizer {
    bpe: Bpe,
    /// Longest first.
    added: Vec<Added>,
}

#[derive(Deserialize)]
struct Config {
    added_tokens_decoder: std::collections::BTreeMap<String, AddedToken>,
}

#[derive(Deserialize)]
struct AddedToken {
    content: String,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    normalized: bool,
}

impl QwenTokenizer {
    /// Reads `vocab.json`, `merges.txt` and the added tokens of `tokenizer_config.json`.
    ///
    /// # Errors
    ///
    /// [`TextError::TokenizerFile`] with the file and the entry, or the missing merges.
    pub fn from_files(
        vocab_json: &[u8],
        merges_txt: &[u8],
        tokenizer_config_json: &[u8],
    ) -> Result<Self, TextError> {
        let bpe = Bpe::from_files(vocab_json, merges_txt)?;
        let broken = |problem: String| TextError::TokenizerFile { file: CONFIG, problem };
        let config: Config =
            serde_json::from_slice(tokenizer_config_json).map_err(|e| broken(e.to_string()))?;
        let mut added: Vec<Added> = vec![];
        for (key, token) in config.added_tokens_decoder {
            let AddedToken { content, lstrip, rstrip, single_word, normalized } = token;
            let Some(id) = key.parse().ok().filter(|id| *id <= MAX_ID) else {
                return Err(broken(format!(
                    "added token {key}: ids go from 0 to {MAX_ID}",
                    key = quoted(&key)
                )));
            };
            if content.is_empty() || added.iter().any(|a| a.content == content) {
                return Err(broken(format!(
                    "added token {id}: {content} is empty or a duplicate",
                    content = quoted(&content)
                )));
            }
            if lstrip || rstrip || single_word || normalized {
                let problem = "only tokens that match exactly are supported, without `lstrip`, `rstrip`, \
                               `single_word` and `normalized`";
                return Err(broken(format!("added token {content}: {problem}", content = quoted(&content))));
            }
            if bpe.token(id).is_some_and(|bytes| bytes != content.as_bytes()) {
                return Err(broken(format!(
                    "added token {content} has id {id}, which vocab.json assigns to another token",
                    content = quoted(&content)
                )));
            }
            added.push(Added { content, id });
        }
        added.sort_by_key(|a| std::cmp::Reverse(a.content.len()));
        let tokenizer = Self { bpe, added };
        tokenizer.check_merges()?;
        Ok(tokenizer)
    }

    /// Refuses a truncated list of merges: every token of a published vocabulary is a byte, an added token,
    /// or produced by a merge. With fewer merges texts would get other ids than in training, without any
    /// other symptom. Vocabularies padded with tokens that no merge can produce are not published ones, and
    /// accepted as they are.
    fn check_merges(&self) -> Result<(), TextError> {
        let mut unmade = self.bpe.missing();
        unmade.retain(|id| self.added.iter().all(|a| a.id != *id));
        let Some(first) = unmade.first() else { return Ok(()) };
        let problem = format!(
            "no merge makes {} of the tokens in {VOCAB}, the first of them `{}` (id {first}); the list has {} merges. Copy it again \
             from the model's repository",
            unmade.len(),
            self.bpe.token(*first).unwrap_or_default().iter().map(|b| printable(*b)).collect::<String>(),
            self.bpe.merges(),
        );
        Err(TextError::TokenizerFile { file: MERGES, problem })
    }

    /// Returns the id of an added token such as `<|im_start|>`.
    #[must_use]
    pub fn added(&self, content: &str) -> Option<u32> {
        self.added.iter().find(|a| a.content == content).map(|a| a.id)
    }

    /// The greatest id that a text can have.
    #[must_use]
    pub fn max_id(&self) -> u32 {
        let vocabulary = self.bpe.ids().max().unwrap_or(0);
        self.added.iter().map(|a| a.id).chain([vocabulary]).max().unwrap_or(0)
    }

    /// The vocabulary without the added tokens.
    #[must_use]
    pub fn bpe(&self) -> &Bpe {
        &self.bpe
    }

    /// Returns the ids of `parts` as one string. Nothing is added before or after.
    #[must_use]
    pub fn encode(&self, parts: &[Part<'_>]) -> Vec<u32> {
        let mut ids = vec![];
        let mut plain = String::new();
        for part in parts {
            let (text, control) = match part {
                Part::Control(text) => (*text, true),
                Part::Text(text) => (*text, false),
            };
            let mut rest = text;
            while control && let Some((range, id)) = self.find_added(rest) {
                plain.push_str(&rest[..range.start]);
                self.encode_plain(&plain, &mut ids);
                plain.clear();
                ids.push(id);
                rest = &rest[range.end..];
            }
            plain.push_str(rest);
        }
        self.encode_plain(&plain, &mut ids);
        ids
    }

    /// The first added token, or the longest one at that position.
    fn find_added(&self, text: &str) -> Option<(Range<usize>, u32)> {
        text.char_indices().find_map(|(at, _)| {
            let found = self.added.iter().find(|a| text[at..].starts_with(&a.content))?;
            Some((at..at + found.content.len(), found.id))
        })
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) {
        let text: String = text.nfc().collect();
        pieces(&text).for_each(|piece| self.bpe.encode(piece.as_bytes(), ids));
    }

    /// Returns the text of `ids`. Bytes that are not UTF-8, which single tokens may be, become U+FFFD;
    /// unknown ids are dropped.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = vec![];
        for id in ids {
            match self.added.iter().find(|a| a.id == *id) {
                Some(added) => bytes.extend_from_slice(added.content.as_bytes()),
                None => bytes.extend_from_slice(self.bpe.token(*id).unwrap_or_default()),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Classes of characters in the pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
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

fn class(c: char) -> Class {
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

/// The pieces of a text in order; joined, they are the text.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, after) = rest.split_at(piece_len(rest));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Bytes of the first piece.
fn piece_len(text: &str) -> usize {
    let mut chars = text.chars();
    let Some(first) = chars.next() else { return 0 };
    let after_first = chars.as_str();
    let second = chars.next().map(class);
    if let Some(n) = contraction_len(text) {
        return n;
    }
    let (one, of_first) = (first.len_utf8(), class(first));
    let letters = |from: &str| run(from, |c| c == Class::Letter);
    match of_first {
        Class::Letter => return letters(text),
        Class::Number => return one,
        Class::Space | Class::Other if second == Some(Class::Letter) => return one + letters(after_first),
        _ => {}
    }
    if of_first == Class::Other || first == ' ' && second == Some(Class::Other) {
        let marks = one + run(after_first, |c| c == Class::Other);
        return marks + run(&text[marks..], |c| c == Class::Break);
    }
    let spaces = run(text, |c| matches!(c, Class::Space | Class::Break));
    if let Some(last) = text[..spaces].rfind(['\r', '\n']) {
        return last + 1;
    }
    match text[..spaces].char_indices().next_back() {
        // The last space belongs to the next piece.
        Some((last, _)) if last > 0 && spaces < text.len() => last,
        _ => spaces,
    }
}

/// Bytes of the leading characters whose class is wanted.
fn run(text: &str, wanted: impl Fn(Class) -> bool) -> usize {
    text.find(|c| !wanted(class(c))).unwrap_or(text.len())
}

/// Bytes of a contraction at the start of `text`. As in case-insensitive patterns, `ſ` is an `s`.
fn contraction_len(text: &str) -> Option<usize> {
    let after = text.strip_prefix('\'')?;
    let first = after.chars().next()?;
    let two = after.get(..2).map(str::to_ascii_lowercase);
    match (first.to_ascii_lowercase(), two.as_deref()) {
        ('s' | 't' | 'm' | 'd' | 'ſ', _) => Some(1 + first.len_utf8()),
        (_, Some("re" | "ve" | "ll")) => Some(3),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str) -> Vec<&str> {
        pieces(text).collect()
    }

    #[test]
    fn pieces_follow_the_pattern() {
        let cases: [(&str, &[&str]); 18] = [
            ("", &[]),
            ("hello world", &["hello", " world"]),
            ("iPhone OpenAI", &["iPhone", " OpenAI"]),
            ("It's we'LL 'tis d'être", &["It", "'s", " we", "'LL", " '", "tis", " d", "'être"]),
            ("'ſo", &["'ſ", "o"]),
            ("2026", &["2", "0", "2", "6"]),
            ("x² Ⅻ ٣", &["x", "²", " ", "Ⅻ", " ", "٣"]),
            ("-- don't", &["--", " don", "'t"]),
            ("(hi)!\n\nyes", &["(hi", ")!\n\n", "yes"]),
            ("a   b", &["a", "  ", " b"]),
            ("a   ", &["a", "   "]),
            ("a \n \n  b", &["a", " \n \n", " ", " b"]),
            ("\t.", &["\t", "."]),
            ("\tb  .", &["\tb", " ", " ."]),
            ("\u{a0}\u{a0}漢字", &["\u{a0}", "\u{a0}漢字"]),
            ("\nb", &["\n", "b"]),
            ("हिन्दी", &["ह", "िन", "्द", "ी"]), // vowel signs are marks
            ("<|im_end|>", &["<|", "im", "_end", "|>"]),
        ];
        for (text, want) in cases {
            assert_eq!(cut(text), want, "{text:?}");
        }
    }

    #[test]
    fn pieces_joined_are_the_text() {
        let alphabet =
            ["'", "s", "RE", " ", "\n", "\r", "\t", "é", "\u{301}", "7", "½", "…", "中", "😀", "\u{85}", "ſ"];
        let mut state = 1u32;
        for _ in 0..5000 {
            let text: String = (0..8)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    alphabet[(state >> 28) as usize]
                })
                .collect();
            assert_eq!(cut(&text).concat(), text);
            assert!(cut(&text).iter().all(|p| !p.is_empty()));
        }
    }
}
