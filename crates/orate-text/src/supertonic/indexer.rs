//! The character table: maps code points to embedding rows.

use std::collections::BTreeSet;
use std::ops::Range;

use super::normalize::{is_emoji, normalize};
use crate::pictures::is_picture;
use crate::pieces::Unknown;
use crate::traced::Make;
use crate::{TextError, Traced, is_invisible};

/// Maximum id in a character table. The published ones stay below 8400; an id in the millions means damage or
/// an attack.
pub const MAX_ID: i32 = 0x10_FFFF;

/// Maximum entries of a table: one for each code point.
const MAX_LEN: usize = 0x11_0000;

/// A model's `unicode_indexer.json`.
///
/// ```
/// use orate_text::pieces::Unknown;
/// use orate_text::supertonic::UnicodeIndexer;
///
/// // Knows U+0001 as row 0 and U+0003 as row 1.
/// let indexer = UnicodeIndexer::from_json(b"[-1, 0, -1, 1]")?;
/// assert_eq!(indexer.ids("\u{1}\u{2}\u{3}"), [0, -1, 1]);
/// assert_eq!(indexer.rows(), 3);
/// assert_eq!(indexer.encode("\u{1}\u{2}", Unknown::Skip)?, [0]);
/// assert_eq!(indexer.encode("\u{1}\u{2}", Unknown::LastRow)?, [0, 2]);
/// assert!(indexer.encode("\u{1}\u{2}", Unknown::Refuse).is_err());
/// # Ok::<(), orate_text::TextError>(())
/// ```
#[derive(Debug, Clone)]
pub struct UnicodeIndexer {
    /// Row by code point; -1 is unknown.
    table: Vec<i32>,
    max_id: i32,
}

impl UnicodeIndexer {
    /// Reads a JSON list of integers, indexed by code point, -1 for unknown.
    ///
    /// # Errors
    ///
    /// [`TextError::IndexerJson`], [`TextError::IndexerId`] or [`TextError::IndexerLength`].
    pub fn from_json(json: &[u8]) -> Result<Self, TextError> {
        let table: Vec<i32> = serde_json::from_slice(json).map_err(TextError::IndexerJson)?;
        Self::from_table(table)
    }

    /// Creates an indexer from the table itself, as some containers store it.
    ///
    /// # Errors
    ///
    /// [`TextError::IndexerId`] or [`TextError::IndexerLength`].
    pub fn from_table(table: Vec<i32>) -> Result<Self, TextError> {
        if table.len() > MAX_LEN {
            return Err(TextError::IndexerLength { len: table.len(), max: MAX_LEN });
        }
        if let Some(code_point) = table.iter().position(|id| !(-1..=MAX_ID).contains(id)) {
            return Err(TextError::IndexerId { code_point, id: table[code_point], max: MAX_ID });
        }
        let max_id = table.iter().copied().max().unwrap_or(-1);
        Ok(Self { table, max_id })
    }

    /// The greatest id in the table; -1 if it knows no character.
    #[must_use]
    pub fn max_id(&self) -> i32 {
        self.max_id
    }

    /// Rows that the embedding must have: one for each id, and the last one, which belongs to no character.
    #[must_use]
    pub fn rows(&self) -> usize {
        usize::try_from(self.max_id + 2).unwrap_or(1)
    }

    /// Whether the table has a row for exactly this character, without normalization.
    #[must_use]
    pub fn knows(&self, c: char) -> bool {
        self.id(c) >= 0
    }

    /// One id per character of a [`prepare`](super::prepare)d text; -1 is unknown.
    #[must_use]
    pub fn ids(&self, prepared: &str) -> Vec<i32> {
        prepared.chars().map(|c| self.id(c)).collect()
    }

    /// Returns the ids for the networks, with unknown characters treated as `unknown` says.
    ///
    /// # Errors
    ///
    /// [`TextError::Unsupported`] with [`Unknown::Refuse`]. It names characters of `prepared`, where accents
    /// are separate from their letters; call [`Self::unsupported`] first to name those that the user typed.
    pub fn encode(&self, prepared: &str, unknown: Unknown) -> Result<Vec<i32>, TextError> {
        let mut ids = self.ids(prepared);
        match unknown {
            Unknown::Refuse => {
                let characters: BTreeSet<char> = prepared.chars().filter(|&c| !self.knows(c)).collect();
                if !characters.is_empty() {
                    return Err(TextError::Unsupported { characters: characters.into_iter().collect() });
                }
            }
            Unknown::Skip => ids.retain(|&id| id >= 0),
            Unknown::LastRow => {
                for id in ids.iter_mut().filter(|id| **id < 0) {
                    *id = self.max_id + 1;
                }
            }
        }
        Ok(ids)
    }

    /// Returns the characters of a raw text that the pip package refuses, in order of code point.
    ///
    /// Each is tested alone: normalized, untagged, and refused if any part of it is unknown.
    #[must_use]
    pub fn unsupported(&self, text: &str) -> Vec<char> {
        let distinct: BTreeSet<char> = text.chars().collect();
        distinct.into_iter().filter(|c| self.is_refused(*c)).collect()
    }

    fn is_refused(&self, c: char) -> bool {
        normalize(c.encode_utf8(&mut [0; 4])).chars().any(|part| !self.knows(part))
    }

    /// Removes invisible characters that the table does not contain; the pip package refuses them.
    #[must_use]
    pub fn without_invisible(&self, text: &str) -> Traced {
        Traced::filtered(text, |c| !is_invisible(c) || self.knows(c))
    }

    /// Removes emoji and drawn signs that the pip package refuses, such as `⭐`; [`normalize`] removes the
    /// others. Between letters, emoji of both kinds become a space.
    #[must_use]
    pub fn without_pictures(&self, text: &str) -> Traced {
        let mut out = Traced::default();
        // Emoji right after a letter.
        let mut between: Option<Range<usize>> = None;
        for (at, c) in text.char_indices() {
            let range = at..at + c.len_utf8();
            let is_dropped = is_picture(c) && !is_emoji(c) && self.is_refused(c);
            if is_emoji(c) || is_dropped {
                match &mut between {
                    Some(between) => between.end = range.end,
                    None if out.text().ends_with(char::is_alphanumeric) => between = Some(range.clone()),
                    None => {}
                }
            } else if !is_invisible(c)
                && let Some(between) = between.take()
                && c.is_alphanumeric()
            {
                out.make(" ", between);
            }
            if !is_dropped {
                out.copy(&text[range.clone()], range.start);
            }
        }
        out
    }

    fn id(&self, c: char) -> i32 {
        usize::try_from(u32::from(c)).ok().and_then(|i| self.table.get(i)).copied().unwrap_or(-1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_tables_are_errors() {
        let cases: [&[u8]; 12] = [
            b"",
            b"[",
            b"{}",
            b"null",
            b"[1.5]",
            b"[\"1\"]",
            b"[null]",
            b"[99999999999999999999]",
            b"[2147483648]",
            b"[-2]",
            b"[2000000]",
            b"\xFF\xFE",
        ];
        for json in cases {
            assert!(UnicodeIndexer::from_json(json).is_err(), "{:?}", String::from_utf8_lossy(json));
        }
        assert!(UnicodeIndexer::from_json(&[b'['; 100_000]).is_err());
        let error = UnicodeIndexer::from_table(vec![0; MAX_LEN + 1]).unwrap_err();
        assert!(matches!(error, TextError::IndexerLength { .. }));
    }

    #[test]
    fn pictures_are_left_out_and_words_stay_apart() {
        let known = |c: char| c.is_ascii() || c == '●' || c == '\u{200D}';
        let table = (0..0x2600).map(|code| char::from_u32(code).filter(|c| known(*c)).map_or(-1, |_| 0));
        let indexer = UnicodeIndexer::from_table(table.collect()).unwrap();
        for (text, want) in [
            ("Hi 👍", "Hi."),
            ("Hi ⭐", "Hi."),
            ("great👍job", "great job."),
            ("great⭐job", "great job."),
            ("great👍⭐🎉job 👍", "great job."),
            ("great👩\u{200D}🚀job", "great\u{200D} job."),
            ("⭐job", "job."),
            ("well ⭐, then", "well, then."),
            ("1\u{20E3} ⏰ ↑ go ▶", "1 go."),
            ("A → B ● C", "A B ● C."),
        ] {
            let left = indexer.without_pictures(text);
            assert_eq!(indexer.unsupported(&left), [], "{text}");
            assert_eq!(normalize(&left), want, "{text}");
        }
        // Other unknown characters stay, to be refused or skipped.
        assert_eq!(indexer.without_pictures("漢 é").text(), "漢 é");
    }

    #[test]
    fn an_empty_table_knows_nothing() {
        let indexer = UnicodeIndexer::from_json(b"[]").unwrap();
        assert_eq!((indexer.max_id(), indexer.rows()), (-1, 1));
        assert_eq!(indexer.ids("a\u{10FFFF}"), [-1, -1]);
        assert_eq!(indexer.encode("a", Unknown::LastRow).unwrap(), [0]);
        let error = indexer.encode("a漢", Unknown::Refuse).unwrap_err();
        assert!(error.to_string().contains("`漢` (U+6F22)"), "{error}");
    }
}
