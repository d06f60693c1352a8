//! The front ends of the Chatterbox models: English, Multilingual, Turbo and Nano.
//!
//! ```text
//! text ─ punctuation ─┬───────────────────── GraphemeTokenizer ─ ids   English
//!                     ├─ multilingual::prepare ─ GraphemeTokenizer ─ ids   Multilingual
//!                     └───────────────────── TurboTokenizer ─ ids   Turbo, Nano
//! ```
//!
//! Ids are those of the official package (0.1.7). Added tokens are recognized in texts of users, as there: a
//! text may hold tags such as `[laugh]`, and also `[STOP]`. Tags that a model does not know are read as
//! ordinary characters; `unknown_tags` of each tokenizer finds them.

mod grapheme;
pub mod multilingual;
mod turbo;

use std::collections::BTreeSet;

use crate::pieces::collapse_spaces;

pub use grapheme::{GraphemeTokenizer, START, STOP};
pub use turbo::{Files, Tokens, TurboTokenizer};

/// Which rules for punctuation apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Variant {
    /// The original English model.
    English,
    /// The models of 23 languages.
    Multilingual,
    /// Turbo and Nano.
    Turbo,
}

/// What the official package says if there is no text.
const NOTHING: &str = "You need to add some text for me to talk.";

/// Replacements in this order; `true` if Turbo has them, too.
const REPLACEMENTS: [(&str, &str, bool); 12] = [
    ("...", ", ", false),
    ("…", ", ", true),
    (":", ",", true),
    (" - ", ", ", false),
    (";", ", ", false),
    ("—", "-", true),
    ("–", "-", true),
    (" ,", ",", true),
    ("“", "\"", true),
    ("”", "\"", true),
    ("‘", "'", true),
    ("’", "'", true),
];

/// Returns a text with the punctuation that the models were trained on: it begins with a capital, has single
/// spaces, simple quotes and dashes, and ends with a mark.
///
/// An empty text becomes a sentence that asks for one. Spaces that replacements produce stay double, as in
/// the official package.
///
/// ```
/// use orate_text::chatterbox::{Variant, punctuation};
///
/// assert_eq!(punctuation("so he  “left”…", Variant::English), "So he \"left\",");
/// assert_eq!(punctuation("one; two - three", Variant::English), "One,  two, three.");
/// assert_eq!(punctuation("one; two - three", Variant::Turbo), "One; two - three.");
/// ```
#[must_use]
pub fn punctuation(text: &str, variant: Variant) -> String {
    let mut chars = text.chars();
    let Some(first) = chars.next() else { return NOTHING.to_owned() };
    let mut out = if first.is_lowercase() {
        collapse_spaces(&first.to_uppercase().chain(chars).collect::<String>())
    } else {
        collapse_spaces(text)
    };
    for (from, to, turbo) in REPLACEMENTS {
        if (turbo || variant != Variant::Turbo) && out.contains(from) {
            out = out.replace(from, to);
        }
    }
    out.truncate(out.trim_end_matches(' ').len());
    let ends = match variant {
        Variant::Multilingual => ".!?-,、，。？！",
        _ => ".!?-,",
    };
    if !out.ends_with(|c| ends.contains(c)) {
        out.push('.');
    }
    out
}

/// Most characters inside the brackets of a tag.
const MAX_TAG: usize = 32;

/// Most tags that are reported.
const MAX_TAGS: usize = 16;

/// Returns the tags of a text, such as `[clear throat]`, that are not known; each once, at most 16.
fn unknown_tags(text: &str, is_known: impl Fn(&str) -> bool) -> Vec<String> {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, ' ' | '_' | '-' | '\'');
    let mut tags = BTreeSet::new();
    for (start, _) in text.match_indices('[') {
        let inside = &text[start + 1..];
        let Some((len, ']')) = inside.char_indices().take(MAX_TAG + 1).find(|(_, c)| !is_part(*c)) else {
            continue;
        };
        let tag = &text[start..start + len + 2];
        if inside[..len].contains(char::is_alphabetic) && !is_known(tag) {
            tags.insert(tag);
            if tags.len() == MAX_TAGS {
                break;
            }
        }
    }
    tags.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn punctuation_has_its_corner_cases() {
        let all = [Variant::English, Variant::Multilingual, Variant::Turbo];
        let cases: [(&str, [&str; 3]); 9] = [
            ("", [NOTHING; 3]),
            (" \u{1c}\n", ["."; 3]),
            ("ß", ["SS."; 3]),
            ("ǆ", ["Ǆ."; 3]),
            (" a", ["a."; 3]), // the first character is the space
            ("A — b – c", ["A - b - c."; 3]),
            ("Wait....", ["Wait, .", "Wait, .", "Wait...."]),
            ("你好。", ["你好。.", "你好。", "你好。."]),
            ("A:b ; c", ["A,b,  c.", "A,b,  c.", "A,b ; c."]),
        ];
        for (text, want) in cases {
            assert_eq!(all.map(|variant| punctuation(text, variant)), want, "{text:?}");
        }
    }

    #[test]
    fn tags_that_are_not_known_are_found() {
        let tags = |text: &str| unknown_tags(text, |tag| tag == "[sigh]");
        assert_eq!(tags("[sigh] [laugh] [clear throat] [laugh]"), ["[clear throat]", "[laugh]"]);
        assert_eq!(tags("a[0] [] [ ] [a [é] [x\n] [x.] ]["), ["[é]"]);
        let long = format!("[{}] [{}]", "x".repeat(32), "y".repeat(33));
        assert_eq!(tags(&long), [&long[..34]]);
        let many: String = ('a'..='z').map(|c| format!("[{c}]")).collect();
        assert_eq!(tags(&many).len(), MAX_TAGS);
    }
}
