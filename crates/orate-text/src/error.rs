//! Error type of this crate.

use orate_files::{one_line, quoted};

/// A text cannot be prepared for a voice, or a file of a front end is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The model was not trained on this language.
    #[error(
        "unknown language {} for {model}; choose one of: {}",
        quoted(lang),
        known.join(" ")
    )]
    UnknownLanguage {
        /// The requested code.
        lang: String,
        /// The model, such as `Supertonic 2`.
        model: String,
        /// The codes that the model supports.
        known: Vec<&'static str>,
    },

    /// The character table is not a JSON list of 32-bit integers.
    #[error(
        "the unicode indexer is not a JSON list of integers; \
         check that the file is the model's own `unicode_indexer.json` and complete"
    )]
    IndexerJson(#[source] serde_json::Error),

    /// The character table contains an id that no embedding can have.
    #[error(
        "the unicode indexer maps U+{code_point:04X} to {id}, but ids go from -1 (unknown) to {max}; \
         check that the file is the model's own `unicode_indexer.json`"
    )]
    IndexerId {
        /// Position in the list, which is the code point.
        code_point: usize,
        /// The id found there.
        id: i32,
        /// Maximum id.
        max: i32,
    },

    /// The character table is longer than Unicode.
    #[error(
        "the unicode indexer has {len} entries, more than the {max} code points of Unicode; \
         check that the file is the model's own `unicode_indexer.json`"
    )]
    IndexerLength {
        /// Number of entries.
        len: usize,
        /// Maximum number of entries.
        max: usize,
    },

    /// A tokenizer file is invalid.
    #[error("{file}: {}; check that the file is the model's own and complete", one_line(problem))]
    TokenizerFile {
        /// Its usual name.
        file: &'static str,
        /// What is wrong, with the entry or line.
        problem: String,
    },

    /// A text is neither UTF-8 nor UTF-16.
    #[error("not {encoding} text: {problem} at offset {offset}; {}", one_line(fix))]
    Encoding {
        /// What it should be: UTF-8, UTF-16 or one of both.
        encoding: &'static str,
        /// What is wrong.
        problem: String,
        /// Where, in bytes.
        offset: usize,
        /// What to do about it.
        fix: String,
    },

    /// The markup of a text is malformed.
    #[error("line {line}, column {column}: {}; {}", one_line(problem), one_line(fix))]
    Markup {
        /// Line of the input, from 1.
        line: usize,
        /// Character of the line, from 1.
        column: usize,
        /// What is wrong.
        problem: String,
        /// What to do about it.
        fix: String,
    },

    /// A line of a lexicon is invalid.
    #[error("line {line} of the lexicon: {}", one_line(problem))]
    Lexicon {
        /// The line, from 1.
        line: usize,
        /// What is wrong, and what to do about it.
        problem: String,
    },

    /// An entry that is added to a lexicon is invalid.
    #[error("{} in the lexicon: {}", quoted(word), one_line(problem))]
    LexiconEntry {
        /// Its word.
        word: String,
        /// What is wrong, and what to do about it.
        problem: String,
    },

    /// The voice does not know some characters.
    #[error(
        "this voice cannot say {}; \
         spell them in letters it knows, or use a voice for that language",
        name_characters(characters)
    )]
    Unsupported {
        /// The characters, each once, in order of code point.
        characters: Vec<char>,
    },

    /// There is nothing to say.
    #[error("the text holds nothing to say; give it at least one letter or digit")]
    Empty,
}

/// Maximum characters that a message names.
const NAMED: usize = 12;

/// `` `漢` (U+6F22), `字` (U+5B57) and 3 more ``.
fn name_characters(characters: &[char]) -> String {
    let mut out = String::new();
    for (i, &c) in characters.iter().take(NAMED).enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        out.push_str(&format!("{} (U+{:04X})", quoted(c.encode_utf8(&mut [0; 4])), u32::from(c)));
    }
    if characters.len() > NAMED {
        out.push_str(&format!(" and {} more", characters.len() - NAMED));
    }
    out
}
