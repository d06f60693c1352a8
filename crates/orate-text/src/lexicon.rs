//! A user's pronunciations: words and phrases that are spelled in another way before they are spoken.

use crate::cjk::{extends_kana, stands_alone};
use crate::traced::Make;
use crate::{Script, TextError, Traced};
use std::collections::HashMap;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// Most bytes of a word or phrase, and of what is spoken for it.
const MAX_BYTES: usize = 200;

/// Most entries.
const MAX_ENTRIES: usize = 100_000;

/// Words and phrases, and what is spoken for them.
///
/// ```
/// use orate_text::Lexicon;
///
/// let lexicon = Lexicon::parse(b"# names\nSQL = sequel\nnew york = noo york\n")?;
/// let read = lexicon.read("SQL in New York, not MySQL");
/// assert_eq!(read.text(), "sequel in noo york, not MySQL");
/// assert_eq!(read.source(0..6), 0..3);
/// # Ok::<(), orate_text::TextError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Lexicon {
    /// A tree of tokens; the first node is the root.
    nodes: Vec<Node>,
    entries: usize,
}

#[derive(Debug, Clone, Default)]
struct Node {
    /// By token, in lowercase.
    next: HashMap<String, usize>,
    /// What is spoken for the tokens up to here, by how these are written.
    exact: HashMap<String, String>,
    /// What is spoken for them however they are written.
    any: Option<String>,
}

impl Lexicon {
    /// Reads a list of entries, one a line: `word = spelling`, or with a tab in place of the sign.
    ///
    /// Lines that are blank or begin with `#` are skipped. Words may be phrases or contain marks. An entry in
    /// lowercase matches any case; others match as written, and win over those. Of two entries for the same
    /// word, the last one counts.
    ///
    /// # Errors
    /// A line is not an entry, is not UTF-8, or is too long.
    pub fn parse(bytes: &[u8]) -> Result<Lexicon, TextError> {
        let bytes = bytes.strip_prefix("\u{FEFF}".as_bytes()).unwrap_or(bytes);
        let mut lexicon = Lexicon::default();
        for (i, line) in bytes.split(|b| *b == b'\n').enumerate() {
            let error = |problem: String| TextError::Lexicon { line: i + 1, problem };
            let line = std::str::from_utf8(line)
                .map_err(|_| error("not UTF-8; save the lexicon as UTF-8".to_owned()))?
                .trim();
            if !line.is_empty() && !line.starts_with('#') {
                let parts = line.split_once('\t').or_else(|| line.split_once('='));
                let no_sign = || error("no `=`; write `word = spelling`".to_owned());
                let (word, spelling) = parts.ok_or_else(no_sign)?;
                lexicon.add(word, spelling).map_err(error)?;
            }
        }
        Ok(lexicon)
    }

    /// Adds an entry, or replaces that of the same word. The word may be a phrase or contain marks; see
    /// [`Lexicon::parse`] for case.
    ///
    /// # Errors
    /// Word or spelling is blank or has more than 200 bytes, or there are 100,000 entries already.
    pub fn insert(&mut self, word: &str, spelling: &str) -> Result<(), TextError> {
        let error = |problem| TextError::LexiconEntry { word: word.to_owned(), problem };
        self.add(word, spelling).map_err(error)
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Spells the words of a text as the entries say. Matches whole words only, the longest phrase first.
    #[must_use]
    pub fn read(&self, text: &str) -> Traced {
        let mut out = Traced::default();
        let mut at = 0;
        while at < text.len() {
            let end = at + token_len(&text[at..]);
            match self.longest(text, at) {
                Some((spelling, end)) => {
                    out.make(spelling, at..end);
                    at = end;
                }
                None => {
                    out.copy(&text[at..end], at);
                    at = end;
                }
            }
        }
        out
    }

    /// Spells the words of all segments of a script.
    pub fn apply(&self, script: &mut Script) {
        if self.is_empty() {
            return;
        }
        for segment in &mut script.segments {
            let read = self.read(segment.text.text());
            for mark in &mut segment.marks {
                let after = segment.text.text()[mark.at..].chars().next();
                let made = read.made_from(mark.at..mark.at + after.map_or(0, char::len_utf8));
                mark.at = if after.is_some() { made.start } else { read.text().len() };
            }
            segment.text = read.after(&segment.text);
        }
    }

    /// The spelling of the longest entry at a byte of the text, and where that entry ends.
    fn longest(&self, text: &str, start: usize) -> Option<(&str, usize)> {
        let mut node = self.nodes.first()?;
        let (mut at, mut found) = (start, None);
        while at < text.len() {
            let token = &text[at..at + token_len(&text[at..])];
            match node.next.get(&folded(token).to_lowercase()) {
                Some(&next) => node = &self.nodes[next],
                None => break,
            }
            at += token.len();
            let exact = || node.exact.get(&tokens(&text[start..at]).map(folded).collect::<String>());
            let exact = if node.exact.is_empty() { None } else { exact() };
            if let Some(spelling) = exact.or(node.any.as_ref()) {
                found = Some((spelling.as_str(), at));
            }
        }
        found
    }

    fn add(&mut self, word: &str, spelling: &str) -> Result<(), String> {
        let (word, spelling) = (word.trim(), spelling.trim());
        for (what, text) in [("word", word), ("spelling", spelling)] {
            if text.is_empty() {
                return Err(format!("no {what}; an entry has a word and its spelling"));
            }
            if text.len() > MAX_BYTES {
                return Err(format!("the {what} has {} bytes; use at most {MAX_BYTES}", text.len()));
            }
        }
        if self.entries == MAX_ENTRIES {
            return Err(format!("too many entries; use at most {MAX_ENTRIES}"));
        }
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
        }
        let mut node = 0;
        for token in tokens(word) {
            let (key, new) = (folded(token).to_lowercase(), self.nodes.len());
            node = *self.nodes[node].next.entry(key).or_insert(new);
            if node == new {
                self.nodes.push(Node::default());
            }
        }
        let written: String = tokens(word).map(folded).collect();
        let node = &mut self.nodes[node];
        let before = if written.to_lowercase() == written {
            node.any.replace(spelling.to_owned())
        } else {
            node.exact.insert(written, spelling.to_owned())
        };
        self.entries += usize::from(before.is_none());
        Ok(())
    }
}

/// A token in one form of its white space, apostrophes and accents.
fn folded(token: &str) -> String {
    if token.starts_with(char::is_whitespace) {
        return if token.matches('\n').count() > 1 { "\n\n" } else { " " }.to_owned();
    }
    token.nfc().map(|c| if c == '\u{2019}' { '\'' } else { c }).collect()
}

fn tokens(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let (token, rest) = text.split_at(token_len(text));
        text = rest;
        (!token.is_empty()).then_some(token)
    })
}

/// Bytes of the first token: a word, white space, or one other character. The `'s` at the end of a word is a
/// token, so that an entry matches in the genitive. Characters that stand alone are words.
fn token_len(text: &str) -> usize {
    let Some(first) = text.chars().next() else { return 0 };
    if first.is_whitespace() {
        return text.find(|c: char| !c.is_whitespace()).unwrap_or(text.len());
    }
    if let Some(len) = genitive_len(text) {
        return len;
    }
    if !is_of_word(first) {
        return first.len_utf8();
    }
    let ends = |&(i, c): &(usize, char)| {
        let is_inner = is_apostrophe(c)
            && genitive_len(&text[i..]).is_none()
            && text[i + c.len_utf8()..].starts_with(char::is_alphabetic);
        !is_of_word(c) && !is_inner
    };
    text.char_indices().find(ends).map_or(text.len(), |(i, _)| i)
}

/// Bytes of an `'s` that ends a word.
fn genitive_len(text: &str) -> Option<usize> {
    let rest = text.strip_prefix(is_apostrophe)?.strip_prefix(['s', 'S'])?;
    (!rest.starts_with(is_of_word)).then_some(text.len() - rest.len())
}

fn is_apostrophe(c: char) -> bool {
    matches!(c, '\'' | '\u{2019}')
}

fn is_of_word(c: char) -> bool {
    (c.is_alphanumeric() || c == '_' || is_combining_mark(c)) && !stands_alone(c) && !extends_kana(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_and_longest_phrases() {
        let lexicon = "\u{FEFF}# a comment\n\nsql = sequel\nSQL Server = sequel server\nUS = you ess\r\n\
                       new york = noo york\nNew York Times\tthe Times\nC++ = see plus plus\nC# = see sharp\n\
                       café = kaffay\ndon't = doant\n東京 = とうきょう\n東京都 = とうきょうと\nDr. = doctor\n\
                       polish = pollish\nPolish = poelish\n";
        let lexicon = Lexicon::parse(lexicon.as_bytes()).expect("entries");
        assert_eq!(lexicon.len(), 14);
        for (text, want) in [
            ("", ""),
            ("SQL, sql and MySQL", "sequel, sequel and MySQL"),
            ("SQL Server; sql server", "sequel server; sequel server"),
            ("SQL  Server's SQL's", "sequel server's sequel's"),
            ("us and US.", "us and you ess."),
            ("New York\nTimes in NEW YORK", "the Times in noo york"),
            ("New\n\nYork", "New\n\nYork"),
            ("C++ or C#, C+ and ABC++", "see plus plus or see sharp, C+ and ABC++"),
            ("Café cafe\u{301} cafés", "kaffay kaffay cafés"),
            ("don’t don'ts don", "doant don'ts don"),
            ("東京都と東京", "とうきょうとととうきょう"),
            ("Dr. Dr x", "doctor Dr x"),
            ("Polish polish POLISH", "poelish pollish pollish"),
        ] {
            assert_eq!(lexicon.read(text).text(), want, "{text:?}");
        }
        let read = lexicon.read("in SQL Server now");
        assert_eq!((read.source(3..5), read.source(17..20)), (3..13, 14..17));
    }

    #[test]
    fn scripts_keep_their_sources_and_marks() {
        let lexicon = Lexicon::parse(b"sql = sequel").expect("an entry");
        let input = "<speak>My <mark name='a'/>SQL <mark name='b'/>is<mark name='c'/></speak>";
        let mut script = Script::ssml(input, None).expect("SSML");
        lexicon.apply(&mut script);
        let segment = &script.segments[0];
        assert_eq!((segment.text.text(), segment.shown.text()), ("My sequel is", "My SQL is"));
        assert_eq!(segment.marks.iter().map(|mark| mark.at).collect::<Vec<_>>(), [3, 10, 12]);
        let source = segment.shown.source(segment.text.source(4..6));
        assert_eq!(&input[source], "SQL");
    }

    #[test]
    fn errors_have_line_numbers() {
        let long = format!("a = {}", "x".repeat(300));
        for (text, want) in [
            (&b"a = b\nnothing"[..], "line 2 of the lexicon: no `=`; write `word = spelling`"),
            (b"= b", "line 1 of the lexicon: no word"),
            (b"a =", "no spelling"),
            (b"# x\n\na = \xFF", "line 3 of the lexicon: not UTF-8"),
            (long.as_bytes(), "the spelling has 300 bytes; use at most 200"),
        ] {
            let e = Lexicon::parse(text).expect_err("no entry").to_string();
            assert!(e.contains(want), "{e}");
        }
    }

    #[test]
    fn entries_are_added() {
        let mut lexicon = Lexicon::default();
        for (word, spelling) in [("SQL", "ess"), ("SQL", "sequel"), ("# =\tx", "marks")] {
            lexicon.insert(word, spelling).expect("an entry");
        }
        assert_eq!(lexicon.len(), 2);
        assert_eq!(lexicon.read("SQL # = x").text(), "sequel marks");
        let e = lexicon.insert("GIF", " ").expect_err("no entry").to_string();
        assert_eq!(e, "`GIF` in the lexicon: no spelling; an entry has a word and its spelling");
        assert!(lexicon.insert(" ", "a").is_err() && lexicon.insert("a", &"x".repeat(300)).is_err());
    }

    #[test]
    fn time_is_linear() {
        let phrase = format!("{}b = c\na = a", "a ".repeat(99));
        let lexicon = Lexicon::parse(phrase.as_bytes()).expect("entries");
        let start = std::time::Instant::now();
        let text = "a ".repeat(20_000);
        assert_eq!(lexicon.read(&text).text(), text);
        assert!(start.elapsed().as_secs() < 20);
    }
}
