//! The tokenizer of Turbo and Nano: GPT-2's byte-level BPE with added tokens for sounds and moods.
//!
//! Pieces are the matches of GPT-2's pattern, whose alternatives are tried in this order:
//!
//! 1. an English contraction in lower case: `'s 't 're 've 'm 'll 'd`
//! 2. letters, numbers, or other characters that are not white space, with at most one U+0020 before
//! 3. white space, except its last character if something follows it
//! 4. white space

use std::collections::HashMap;
use std::collections::btree_map::{BTreeMap, Entry};

use orate_files::quoted;
use serde::Deserialize;

use crate::TextError;
use crate::added::{AddedTokens, Part};
use crate::bpe::Bpe;
use crate::classes::{Class, class, pieces, run, spaces_len};

const ADDED: &str = "added_tokens.json";
const SPECIAL: &str = "special_tokens_map.json";
const CONFIG: &str = "tokenizer_config.json";

/// Greater limits mean none: the `transformers` library writes 1e30.
const MOST_TOKENS: f64 = 1e9;

/// The tokenizer of Turbo and Nano.
#[derive(Debug, Clone)]
pub struct TurboTokenizer {
    bpe: Bpe,
    added: AddedTokens,
    max_tokens: Option<usize>,
}

/// The tokens of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens {
    /// At most [`TurboTokenizer::max_tokens`] ids.
    pub ids: Vec<u32>,
    /// How many ids there are beyond that limit. The text is cut off unless this is 0.
    pub dropped: usize,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    add_prefix_space: bool,
    #[serde(default)]
    add_bos_token: bool,
    model_max_length: Option<f64>,
}

/// The entries of `special_tokens_map.json`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Special {
    Text(String),
    Token { content: String },
    List(Vec<Special>),
}

impl Special {
    fn contents(self, out: &mut Vec<String>) {
        match self {
            Self::Text(content) | Self::Token { content } => out.push(content),
            Self::List(list) => list.into_iter().for_each(|special| special.contents(out)),
        }
    }
}

/// The files of a tokenizer.
#[derive(Debug, Clone, Copy)]
pub struct Files<'a> {
    /// `vocab.json`
    pub vocab: &'a [u8],
    /// `merges.txt`
    pub merges: &'a [u8],
    /// `added_tokens.json`
    pub added_tokens: &'a [u8],
    /// `special_tokens_map.json`
    pub special_tokens_map: &'a [u8],
    /// `tokenizer_config.json`
    pub tokenizer_config: &'a [u8],
}

impl TurboTokenizer {
    /// Reads a tokenizer.
    ///
    /// # Errors
    /// [`TextError::TokenizerFile`] with the file and the entry, or the missing merges.
    pub fn from_files(files: Files<'_>) -> Result<Self, TextError> {
        let broken = |file| move |problem: String| TextError::TokenizerFile { file, problem };
        let json = |file| move |e: serde_json::Error| broken(file)(e.to_string());
        let bpe = Bpe::from_files(files.vocab, files.merges)?;
        let config: Config = serde_json::from_slice(files.tokenizer_config).map_err(json(CONFIG))?;
        if config.add_prefix_space || config.add_bos_token {
            let problem = "`add_prefix_space` and `add_bos_token` are not supported; Chatterbox has neither";
            return Err(broken(CONFIG)(problem.into()));
        }
        let max_tokens = config.model_max_length.filter(|n| *n < MOST_TOKENS);
        if let Some(n) = max_tokens.filter(|n| *n < 1.0) {
            return Err(broken(CONFIG)(format!("`model_max_length` is {n}")));
        }

        let mut ids: BTreeMap<String, u32> =
            serde_json::from_slice(files.added_tokens).map_err(json(ADDED))?;
        for (content, id) in &ids {
            if bpe.token(*id).is_some_and(|bytes| bytes != content.as_bytes()) {
                return Err(broken(ADDED)(format!(
                    "{} has id {id}, which vocab.json assigns to another token",
                    quoted(content)
                )));
            }
        }
        let special: BTreeMap<String, Special> =
            serde_json::from_slice(files.special_tokens_map).map_err(json(SPECIAL))?;
        let mut contents = vec![];
        special.into_values().for_each(|special| special.contents(&mut contents));
        let vocabulary: HashMap<&[u8], u32> = bpe.ids().filter_map(|id| Some((bpe.token(id)?, id))).collect();
        for content in contents {
            if let Entry::Vacant(entry) = ids.entry(content) {
                let Some(id) = vocabulary.get(entry.key().as_bytes()) else {
                    return Err(broken(SPECIAL)(format!("{} has no id", quoted(entry.key()))));
                };
                entry.insert(*id);
            }
        }
        let added = AddedTokens::new(ids.into_iter().collect()).map_err(|(content, id, problem)| {
            broken(ADDED)(format!("{}, id {id}: {problem}", quoted(&content)))
        })?;
        bpe.check_merges(added.ids())?;
        Ok(Self { bpe, added, max_tokens: max_tokens.map(|n| n as usize) })
    }

    /// Rows that the text embedding of the model must have at least: the greatest id and one.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.bpe.ids().chain(self.added.ids()).max().map_or(0, |id| id as usize + 1)
    }

    /// The most ids of a text.
    #[must_use]
    pub fn max_tokens(&self) -> Option<usize> {
        self.max_tokens
    }

    /// Returns the id of an added token such as `[laugh]`.
    #[must_use]
    pub fn added(&self, content: &str) -> Option<u32> {
        self.added.id(content)
    }

    /// Returns the ids of a text, cut off at [`TurboTokenizer::max_tokens`]. Nothing is added before or
    /// after.
    ///
    /// `text` is what [`punctuation`](super::punctuation) returns.
    #[must_use]
    pub fn encode(&self, text: &str) -> Tokens {
        let most = self.max_tokens.unwrap_or(usize::MAX);
        let (mut ids, mut dropped) = (vec![], 0);
        let mut limit = |ids: &mut Vec<u32>| {
            dropped += ids.len().saturating_sub(most);
            ids.truncate(most);
        };
        for part in self.added.parts(text) {
            match part {
                Part::Token(id) => ids.push(id),
                Part::Plain(plain) => pieces(plain, piece_len).for_each(|piece| {
                    self.bpe.encode(piece.as_bytes(), &mut ids);
                    limit(&mut ids);
                }),
            }
        }
        limit(&mut ids);
        Tokens { ids, dropped }
    }

    /// Returns the tags of a text, such as `[laughter]`, that are no added tokens; each once, at most 16.
    #[must_use]
    pub fn unknown_tags(&self, text: &str) -> Vec<String> {
        super::unknown_tags(text, |tag| self.added.id(tag).is_some())
    }
}

/// Bytes of the first piece.
fn piece_len(text: &str) -> usize {
    const CONTRACTIONS: [&str; 7] = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"];
    if let Some(contraction) = CONTRACTIONS.iter().find(|c| text.starts_with(**c)) {
        return contraction.len();
    }
    let after_space = text.strip_prefix(' ').unwrap_or(text);
    match after_space.chars().next().map(class) {
        Some(first @ (Class::Letter | Class::Number | Class::Other)) => {
            text.len() - after_space.len() + run(after_space, |c| c == first)
        }
        _ => spaces_len(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_the_pattern() {
        let cases: [(&str, &[&str]); 11] = [
            ("", &[]),
            ("Hello there world", &["Hello", " there", " world"]),
            ("don't you'll I'LL 'tis", &["don", "'t", " you", "'ll", " I", "'", "LL", " '", "tis"]),
            ("1234 a1", &["1234", " a", "1"]),
            ("½²Ⅻ٣", &["½²Ⅻ٣"]),
            ("a  b\t c", &["a", " ", " b", "\t", " c"]),
            ("a \n\n", &["a", " \n\n"]),
            ("-- (hi)!?\n.", &["--", " (", "hi", ")!?", "\n", "."]),
            ("\u{a0}x\u{3000}\u{3000}y", &["\u{a0}", "x", "\u{3000}", "\u{3000}", "y"]),
            ("हिन्दी", &["ह", "ि", "न", "्", "द", "ी"]), // vowel signs are marks
            (" 's", &[" '", "s"]),
        ];
        for (text, want) in cases {
            assert_eq!(pieces(text, piece_len).collect::<Vec<_>>(), want, "{text:?}");
        }
    }
}
