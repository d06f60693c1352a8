//! Added tokens: texts that stand for one token wherever they occur, and are cut out before anything else.

use std::ops::Range;

use crate::bpe::MAX_ID;

/// Most bytes of an added token, so that texts that almost match take no longer than others.
pub(crate) const MAX_LEN: usize = 256;

/// A set of added tokens.
#[derive(Debug, Clone)]
pub(crate) struct AddedTokens {
    /// In order of content.
    tokens: Vec<(Box<str>, u32)>,
    /// Whether a token begins with the byte.
    first: [bool; 256],
}

/// Part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part<'t> {
    /// Text between added tokens.
    Plain(&'t str),
    /// An added token.
    Token(u32),
}

impl AddedTokens {
    /// Collects tokens, or returns the first that is empty, a duplicate, too long, or has an id above
    /// [`MAX_ID`], with the reason.
    pub fn new(tokens: Vec<(String, u32)>) -> Result<Self, (String, u32, &'static str)> {
        let mut tokens: Vec<(Box<str>, u32)> = tokens.into_iter().map(|(t, id)| (t.into(), id)).collect();
        tokens.sort();
        let mut first = [false; 256];
        for i in 0..tokens.len() {
            let (content, id) = &tokens[i];
            let problem = match content.as_bytes() {
                [] => Some("it is empty"),
                bytes if bytes.len() > MAX_LEN => Some("it is longer than 256 bytes"),
                _ if *id > MAX_ID => Some("ids go from 0 to 16777215"),
                _ if i > 0 && tokens[i - 1].0 == *content => Some("it is a duplicate"),
                bytes => {
                    first[usize::from(bytes[0])] = true;
                    None
                }
            };
            if let Some(problem) = problem {
                return Err((content.to_string(), *id, problem));
            }
        }
        Ok(Self { tokens, first })
    }

    /// The id of a token.
    pub fn id(&self, content: &str) -> Option<u32> {
        let at = self.tokens.binary_search_by(|(token, _)| (**token).cmp(content)).ok()?;
        Some(self.tokens[at].1)
    }

    /// The content of the token `id`.
    pub fn content(&self, id: u32) -> Option<&str> {
        self.tokens.iter().find(|(_, other)| *other == id).map(|(content, _)| &**content)
    }

    /// All ids.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.tokens.iter().map(|(_, id)| *id)
    }

    /// Splits a text at its added tokens: the leftmost first, and the longest at one position.
    pub fn parts<'t>(&self, text: &'t str) -> impl Iterator<Item = Part<'t>> {
        let (mut rest, mut token) = (text, None);
        std::iter::from_fn(move || {
            if let Some(id) = token.take() {
                return Some(Part::Token(id));
            }
            let (range, id) = match self.find(rest) {
                Some((range, id)) => (range, Some(id)),
                None => (rest.len()..rest.len(), None),
            };
            let plain = &rest[..range.start];
            rest = &rest[range.end..];
            if plain.is_empty() {
                return id.map(Part::Token);
            }
            token = id;
            Some(Part::Plain(plain))
        })
    }

    fn find(&self, text: &str) -> Option<(Range<usize>, u32)> {
        let bytes = text.as_bytes();
        let starts = (0..bytes.len()).filter(|at| self.first[usize::from(bytes[*at])]);
        starts.into_iter().find_map(|at| {
            let (len, id) = self.longest_at(&bytes[at..])?;
            Some((at..at + len, id))
        })
    }

    /// The longest token that `text` begins with.
    fn longest_at(&self, text: &[u8]) -> Option<(usize, u32)> {
        // Narrows the tokens down to those that begin with more and more of the text.
        let mut tokens = &self.tokens[..];
        let mut found = None;
        for (len, byte) in text.iter().map(Some).chain([None]).enumerate() {
            // The shortest is in front.
            if let Some(((token, id), longer)) = tokens.split_first()
                && token.len() == len
            {
                found = Some((len, *id));
                tokens = longer;
            }
            let Some(byte) = byte.filter(|_| !tokens.is_empty()) else { break };
            let below = tokens.partition_point(|(t, _)| t.as_bytes()[len] < *byte);
            let through = tokens.partition_point(|(t, _)| t.as_bytes()[len] <= *byte);
            tokens = &tokens[below..through];
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leftmost_and_longest_token_is_found() {
        let tokens = ["[a]", "[a]b", "[", "ü", "ab", "abcd"];
        let tokens = tokens.iter().zip(0..).map(|(t, id)| (t.to_string(), id)).collect();
        let added = AddedTokens::new(tokens).unwrap();
        let (plain, token) = (Part::Plain, Part::Token);
        let cases: [(&str, &[Part<'_>]); 8] = [
            ("", &[]),
            ("x", &[plain("x")]),
            ("[a]b[a]", &[token(1), token(0)]),
            ("x[a x", &[plain("x"), token(2), plain("a x")]),
            ("xü", &[plain("x"), token(3)]),
            ("abc", &[token(4), plain("c")]),
            ("abcdab", &[token(5), token(4)]),
            ("õú", &[plain("õú")]),
        ];
        for (text, want) in cases {
            assert_eq!(added.parts(text).collect::<Vec<_>>(), want, "{text:?}");
        }
        assert_eq!((added.id("abcd"), added.id("abc"), added.content(3)), (Some(5), None, Some("ü")));
    }

    #[test]
    fn bad_tokens_are_refused() {
        let new = |tokens: &[(&str, u32)]| {
            AddedTokens::new(tokens.iter().map(|(t, id)| (t.to_string(), *id)).collect())
        };
        assert!(new(&[("a", 1), ("b", 1)]).is_ok());
        assert!(new(&[]).unwrap().parts("[").eq([Part::Plain("[")]));
        let long = "x".repeat(MAX_LEN + 1);
        let cases: [(&[(&str, u32)], &str); 4] = [
            (&[("a", 1), ("b", 2), ("a", 3)], "duplicate"),
            (&[("a", 1), ("", 2)], "empty"),
            (&[(&long, 1)], "longer"),
            (&[("a", MAX_ID + 1)], "16777215"),
        ];
        for (tokens, problem) in cases {
            assert!(new(tokens).unwrap_err().2.contains(problem), "{problem}");
        }
    }
}
