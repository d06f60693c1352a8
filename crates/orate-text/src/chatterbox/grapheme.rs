//! The tokenizer of the English and the multilingual model: BPE over characters, in one JSON file of the
//! `tokenizers` library.
//!
//! ```text
//! text ─ spaces become [SPACE] ─ added tokens are cut out ─ words ─ BPE over characters ─ ids
//! ```
//!
//! Words are the matches of `\w+|[^\w\s]+`. A character that is not in the vocabulary becomes `[UNK]`.

use std::collections::{BTreeSet, HashMap};

use orate_files::quoted;
use serde::Deserialize;
use serde::de::IgnoredAny;
use unicode_properties::{GeneralCategory, GeneralCategoryGroup, UnicodeGeneralCategory};

use crate::TextError;
use crate::added::{AddedTokens, Part};
use crate::bpe::{MAX_ID, MAX_PIECE, Merges, merge};

/// Id before every text.
pub const START: u32 = 255;
/// Id after every text.
pub const STOP: u32 = 0;

/// Tokens that every vocabulary of these models has.
const NEEDED: [&str; 4] = ["[START]", "[STOP]", "[UNK]", SPACE];

/// Stands for U+0020.
const SPACE: &str = "[SPACE]";

/// The tokenizer of the English model (`tokenizer.json`), or of the multilingual one
/// (`grapheme_mtl_merged_expanded_v1.json`).
#[derive(Debug, Clone)]
pub struct GraphemeTokenizer {
    /// Ids of single characters.
    characters: HashMap<char, u32>,
    unknown: u32,
    merges: Merges,
    added: AddedTokens,
    rows: usize,
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    truncation: Option<IgnoredAny>,
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Option<Kind>,
    pre_tokenizer: Option<Kind>,
    #[serde(default)]
    post_processor: Option<Kind>,
    model: Model,
}

#[derive(Deserialize)]
struct Kind {
    r#type: String,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

#[derive(Deserialize)]
struct Model {
    #[serde(default)]
    r#type: Option<String>,
    #[serde(default)]
    dropout: Option<f64>,
    unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
}

/// Older files have merges as `"a b"`, newer ones as `["a", "b"]`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Line(String),
    Pair(String, String),
}

impl File {
    /// Names what this tokenizer does not do.
    fn unsupported(&self) -> Option<String> {
        let model = &self.model;
        let kind = |part: &str, kind: &Kind| Some(format!("{part} of type {}", quoted(&kind.r#type)));
        let settings = [
            (self.truncation.is_some(), "truncation"),
            (model.dropout.is_some_and(|p| p != 0.0), "dropout"),
            (
                model.continuing_subword_prefix.as_ref().is_some_and(|s| !s.is_empty()),
                "continuing_subword_prefix",
            ),
            (model.end_of_word_suffix.as_ref().is_some_and(|s| !s.is_empty()), "end_of_word_suffix"),
            (model.fuse_unk, "fuse_unk"),
            (model.byte_fallback, "byte_fallback"),
            (model.ignore_merges, "ignore_merges"),
        ];
        match (&self.normalizer, &self.pre_tokenizer, &self.post_processor, &model.r#type) {
            (Some(other), ..) => kind("a normalizer", other),
            (_, None, ..) => Some("no pre-tokenizer".into()),
            (_, Some(other), ..) if other.r#type != "Whitespace" => kind("a pre-tokenizer", other),
            (.., Some(other), _) => kind("a post-processor", other),
            (.., Some(other)) if other != "BPE" => Some(format!("a model of type {}", quoted(other))),
            _ => settings.iter().find(|(set, _)| *set).map(|(_, name)| format!("`{name}`")),
        }
    }
}

impl GraphemeTokenizer {
    /// Reads a tokenizer. `file` is its name for errors.
    ///
    /// # Errors
    /// [`TextError::TokenizerFile`] with the entry: it is not JSON, uses more of the format than these models
    /// do, lacks a token that it needs, or has a merge of tokens that are not in the vocabulary.
    pub fn from_json(file: &'static str, json: &[u8]) -> Result<Self, TextError> {
        let broken = |problem: String| TextError::TokenizerFile { file, problem };
        let parsed: File = serde_json::from_slice(json).map_err(|e| broken(e.to_string()))?;
        if let Some(part) = parsed.unsupported() {
            return Err(broken(format!("it has {part}, which tokenizers of Chatterbox do not have")));
        }
        let Model { vocab, merges, unk_token, .. } = parsed.model;
        if let Some((token, id)) = vocab.iter().find(|(_, id)| **id > MAX_ID) {
            return Err(broken(format!("{} has id {id}; ids go from 0 to {MAX_ID}", quoted(token))));
        }
        let needed = NEEDED.into_iter().chain(unk_token.as_deref());
        if let Some(missing) = needed.into_iter().find(|token| !vocab.contains_key(*token)) {
            return Err(broken(format!("the vocabulary has no token {}", quoted(missing))));
        }
        let Some(unknown) = unk_token.map(|token| vocab[&token]) else {
            return Err(broken("`unk_token` is missing".into()));
        };

        let mut table = Merges::with_capacity(merges.len());
        for (rank, merge) in (0..).zip(&merges) {
            let (left, right) = match merge {
                Merge::Pair(left, right) => (left.as_str(), right.as_str()),
                Merge::Line(line) => match line.split_once(' ').filter(|(_, right)| !right.contains(' ')) {
                    Some(pair) => pair,
                    None => {
                        return Err(broken(format!("merge {rank}, {}, is not of two tokens", quoted(line))));
                    }
                },
            };
            let id = |token: &str| match vocab.get(token) {
                Some(id) => Ok(*id),
                None => Err(broken(format!("merge {rank}: {} is not in the vocabulary", quoted(token)))),
            };
            table.insert((id(left)?, id(right)?), (rank, id(&format!("{left}{right}"))?));
        }
        let mut added = Vec::with_capacity(parsed.added_tokens.len());
        for Added { id, content, single_word, lstrip, rstrip } in parsed.added_tokens {
            if single_word || lstrip || rstrip {
                let problem = "only tokens that match exactly are supported, without `lstrip`, `rstrip` and \
                               `single_word`";
                return Err(broken(format!("added token {}: {problem}", quoted(&content))));
            }
            if vocab.get(&content).is_some_and(|other| *other != id) {
                return Err(broken(format!(
                    "added token {} has another id in the vocabulary",
                    quoted(&content)
                )));
            }
            added.push((content, id));
        }
        let added = AddedTokens::new(added).map_err(|(content, id, problem)| {
            broken(format!("added token {}, id {id}: {problem}", quoted(&content)))
        })?;
        if added.id(SPACE).is_none() {
            return Err(broken(format!("{SPACE} is not an added token")));
        }
        let single = |token: &str| {
            let mut chars = token.chars();
            chars.next().filter(|_| chars.next().is_none())
        };
        Ok(Self {
            rows: vocab.values().copied().chain(added.ids()).max().map_or(0, |id| id as usize + 1),
            characters: vocab.iter().filter_map(|(token, id)| Some((single(token)?, *id))).collect(),
            unknown,
            merges: table,
            added,
        })
    }

    /// Rows that the text embedding of the model must have: the greatest id and one.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the id of an added token such as `[laughter]`.
    #[must_use]
    pub fn added(&self, content: &str) -> Option<u32> {
        self.added.id(content)
    }

    /// Returns [`START`], the ids of a text, and [`STOP`].
    ///
    /// `prepared` is what [`punctuation`](super::punctuation) returns, for multilingual models after
    /// [`multilingual::prepare`](super::multilingual::prepare).
    #[must_use]
    pub fn encode(&self, prepared: &str) -> Vec<u32> {
        let mut ids = vec![START];
        let text = prepared.replace(' ', SPACE);
        for part in self.added.parts(&text) {
            match part {
                Part::Token(id) => ids.push(id),
                Part::Plain(plain) => words(plain).for_each(|word| self.encode_word(word, &mut ids)),
            }
        }
        ids.push(STOP);
        ids
    }

    fn encode_word(&self, word: &str, ids: &mut Vec<u32>) {
        let id = |c: char| self.characters.get(&c).copied().unwrap_or(self.unknown);
        let mut chars = word.chars().peekable();
        while chars.peek().is_some() {
            merge(&self.merges, chars.by_ref().take(MAX_PIECE).map(id), ids);
        }
    }

    /// Returns the characters of a prepared text that become `[UNK]`, each once, in order of code point.
    #[must_use]
    pub fn unknown_characters(&self, prepared: &str) -> Vec<char> {
        let mut unknown = BTreeSet::new();
        for part in self.added.parts(prepared) {
            if let Part::Plain(plain) = part {
                unknown
                    .extend(plain.chars().filter(|c| !c.is_whitespace() && !self.characters.contains_key(c)));
            }
        }
        unknown.into_iter().collect()
    }

    /// Returns the tags of a prepared text, such as `[laugh]`, that are no added tokens; each once, at most
    /// 16.
    #[must_use]
    pub fn unknown_tags(&self, prepared: &str) -> Vec<String> {
        super::unknown_tags(prepared, |tag| self.added.id(tag).is_some())
    }
}

/// The matches of `\w+|[^\w\s]+` in order.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(char::is_whitespace).flat_map(|run| {
        let mut rest = run;
        std::iter::from_fn(move || {
            let first = is_word(rest.chars().next()?);
            let (word, after) = rest.split_at(rest.find(|c| is_word(c) != first).unwrap_or(rest.len()));
            rest = after;
            Some(word)
        })
    })
}

/// `\w` as Unicode defines it for patterns: letters, marks, decimal numbers, connectors and joiners.
fn is_word(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphanumeric() || c == '_';
    }
    c.is_alphabetic()
        || matches!(c, '\u{200c}' | '\u{200d}')
        || c.general_category_group() == GeneralCategoryGroup::Mark
        || matches!(
            c.general_category(),
            GeneralCategory::DecimalNumber | GeneralCategory::ConnectorPunctuation
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_follow_the_pattern() {
        let cases: [(&str, &[&str]); 8] = [
            ("", &[]),
            (" \t\u{3000}", &[]),
            ("don't stop...now_1", &["don", "'", "t", "stop", "...", "now_1"]),
            ("e\u{301}te\u{301}!", &["e\u{301}te\u{301}", "!"]),
            ("नमस्ते।", &["नमस्ते", "।"]),
            ("٣x‿y½", &["٣x‿y", "½"]), // fractions are no decimal numbers
            ("a\u{200d}b\u{200b}c", &["a\u{200d}b", "\u{200b}", "c"]),
            ("Ⓐ¿qué?", &["Ⓐ", "¿", "qué", "?"]),
        ];
        for (text, want) in cases {
            assert_eq!(words(text).collect::<Vec<_>>(), want, "{text:?}");
        }
    }

    /// A tokenizer of `abc` with these merges and settings of the model.
    fn json(merges: &str, model: &str) -> String {
        format!(
            r#"{{"added_tokens":[{{"id":0,"content":"[STOP]"}},{{"id":2,"content":"[SPACE]"}},
            {{"id":3,"content":"[ab]"}}],"pre_tokenizer":{{"type":"Whitespace"}},
            "model":{{"type":"BPE","unk_token":"[UNK]",{model}"vocab":{{"[STOP]":0,"[UNK]":1,"[SPACE]":2,
            "[START]":255,"a":4,"b":5,"c":6,"ab":7,"abc":8,"ca":9}},"merges":{merges}}}}}"#
        )
    }

    fn open(json: &str) -> Result<GraphemeTokenizer, TextError> {
        GraphemeTokenizer::from_json("tokenizer.json", json.as_bytes())
    }

    #[test]
    fn merges_are_lines_or_pairs() {
        for merges in [r#"["c a","a b","ab c"]"#, r#"[["c","a"],["a","b"],["ab","c"]]"#] {
            let tokenizer = open(&json(merges, "")).unwrap();
            assert_eq!(tokenizer.encode("abc cab"), [START, 8, 2, 9, 5, STOP]);
            assert_eq!(tokenizer.encode("ab[ab]ab"), [START, 7, 3, 7, STOP]);
            assert_eq!(tokenizer.encode("axyb\u{301}"), [START, 4, 1, 1, 5, 1, STOP]);
            assert_eq!(tokenizer.encode(""), [START, STOP]);
            assert_eq!(tokenizer.rows(), 256);
            assert_eq!(tokenizer.unknown_characters("zay [ab]"), ['y', 'z']);
            assert_eq!(tokenizer.unknown_tags("[ab] [ba] [SPACE]"), ["[ba]"]);
        }
    }

    #[test]
    fn a_word_without_end_is_encoded_in_parts() {
        let tokenizer = open(&json(r#"["a b"]"#, "")).unwrap();
        let ids = tokenizer.encode(&"ab".repeat(1 << 17));
        assert_eq!(ids[1..ids.len() - 1], vec![7; 1 << 17]);
    }

    #[test]
    fn damaged_files_are_errors_that_name_the_place() {
        let good = json("[]", "");
        let edit = |from: &str, to: &str| {
            assert!(good.contains(from), "{from}");
            open(&good.replacen(from, to, 1)).expect_err(to).to_string()
        };
        let cases = [
            ("{", "", "expected"),
            ("[START]", "[BEGIN]", "no token `[START]`"),
            ("\"a\":4", "\"a\":20000000", "`a` has id 20000000"),
            ("[]", "[\"a\"]", "merge 0, `a`, is not of two tokens"),
            ("[]", "[\"a b c\"]", "is not of two tokens"),
            ("[]", "[[\"a\", \"c\"]]", "merge 0: `ac` is not in the vocabulary"),
            ("\"id\":2", "\"id\":5", "`[SPACE]` has another id"),
            ("\"content\":\"[SPACE]\"", "\"content\":\"[x]\"", "[SPACE] is not an added token"),
            ("\"content\":\"[STOP]\"", "\"content\":\"[ab]\"", "it is a duplicate"),
            ("\"content\":\"[ab]\"", "\"content\":\"[ab]\",\"lstrip\":true", "`lstrip`"),
            ("Whitespace", "ByteLevel", "a pre-tokenizer of type `ByteLevel`"),
            ("\"pre_tokenizer\"", "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\"", "a normalizer of"),
            ("\"type\":\"BPE\"", "\"type\":\"Unigram\"", "a model of type `Unigram`"),
            ("\"type\":\"BPE\"", "\"fuse_unk\":true", "it has `fuse_unk`"),
            ("\"unk_token\":\"[UNK]\"", "\"unk_token\":null", "`unk_token` is missing"),
        ];
        for (from, to, part) in cases {
            let message = edit(from, to);
            assert!(message.contains(part) && message.starts_with("tokenizer.json: "), "{message}\n{part}");
        }
        for keep in 0..good.len() {
            assert!(open(&good[..keep]).is_err(), "cut to {keep}");
        }
    }
}
