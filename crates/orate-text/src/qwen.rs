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

use orate_files::quoted;
use serde::Deserialize;
use unicode_normalization::UnicodeNormalization;

use crate::TextError;
use crate::added::{self, AddedTokens};
use crate::bpe::Bpe;
use crate::classes::{self, Class, class, run, spaces_len};

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

/// The tokenizer of a Qwen model.
#[derive(Debug, Clone)]
pub struct QwenTokenizer {
    bpe: Bpe,
    added: AddedTokens,
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
        let mut tokens = Vec::with_capacity(config.added_tokens_decoder.len());
        for (key, token) in config.added_tokens_decoder {
            let AddedToken { content, lstrip, rstrip, single_word, normalized } = token;
            let Ok(id) = key.parse() else {
                return Err(broken(format!("added token {key}: the id is not a number", key = quoted(&key))));
            };
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
            tokens.push((content, id));
        }
        let added = AddedTokens::new(tokens).map_err(|(content, id, problem)| {
            broken(format!("added token {content}, id {id}: {problem}", content = quoted(&content)))
        })?;
        bpe.check_merges(added.ids())?;
        Ok(Self { bpe, added })
    }

    /// Returns the id of an added token such as `<|im_start|>`.
    #[must_use]
    pub fn added(&self, content: &str) -> Option<u32> {
        self.added.id(content)
    }

    /// The greatest id that a text can have.
    #[must_use]
    pub fn max_id(&self) -> u32 {
        let vocabulary = self.bpe.ids().max().unwrap_or(0);
        self.added.ids().chain([vocabulary]).max().unwrap_or(0)
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
            match part {
                Part::Text(text) => plain.push_str(text),
                Part::Control(text) => self.added.parts(text).for_each(|part| match part {
                    added::Part::Plain(text) => plain.push_str(text),
                    added::Part::Token(id) => {
                        self.encode_plain(&plain, &mut ids);
                        plain.clear();
                        ids.push(id);
                    }
                }),
            }
        }
        self.encode_plain(&plain, &mut ids);
        ids
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
            match self.added.content(*id) {
                Some(content) => bytes.extend_from_slice(content.as_bytes()),
                None => bytes.extend_from_slice(self.bpe.token(*id).unwrap_or_default()),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn pieces(text: &str) -> impl Iterator<Item = &str> {
    classes::pieces(text, piece_len)
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
    spaces_len(text)
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
