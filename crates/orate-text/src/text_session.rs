//! Text that arrives in parts, such as the answer of a language model.

use crate::pieces::{ends_in_abbreviation, is_python_space};
use std::collections::VecDeque;

/// Most characters of a sentence; a longer one is cut at a space.
const MOST_CHARS: usize = 1000;

/// Cuts sentences off a text that arrives in parts. They do not depend on how the text was divided.
///
/// ```
/// let mut text = orate_text::TextSession::default();
/// text.push("Hello Dr. Who! How a");
/// assert_eq!(text.next().map(|s| s.text), Some("Hello Dr. Who!".to_owned()));
/// assert_eq!(text.next(), None); // until more text completes the second sentence
/// text.push("re you? Fine");
/// text.finish();
/// assert_eq!(text.next().map(|s| (s.index, s.text)), Some((1, "How are you?".to_owned())));
/// assert_eq!(text.next().map(|s| (s.index, s.text)), Some((2, "Fine".to_owned())));
/// assert!(text.is_over());
/// ```
#[derive(Clone, Debug, Default)]
pub struct TextSession {
    /// Text after the last complete sentence.
    rest: String,
    complete: VecDeque<String>,
    /// Sentences returned so far.
    returned: usize,
    is_whole: bool,
    is_finished: bool,
    is_cancelled: bool,
}

/// A sentence to speak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentence {
    /// The sentence, without space around it.
    pub text: String,
    /// Number of the sentence in its text, from 0.
    pub index: usize,
}

impl TextSession {
    /// Returns a session that keeps the text together until it is complete.
    #[must_use]
    pub fn whole() -> TextSession {
        TextSession { is_whole: true, ..TextSession::default() }
    }

    /// Appends text. What comes after [`finish`](Self::finish) is complete at once; after
    /// [`cancel`](Self::cancel), it is dropped.
    pub fn push(&mut self, text: &str) {
        if self.is_cancelled {
            return;
        }
        self.rest.push_str(text);
        while !self.is_whole
            && let Some(end) = end_of_first(&self.rest)
        {
            let after = self.rest.split_off(end);
            let sentence = std::mem::replace(&mut self.rest, after);
            self.add(&sentence);
        }
        if self.is_finished {
            self.flush();
        }
    }

    /// Completes the last sentence, whatever it ends in.
    pub fn flush(&mut self) {
        let rest = std::mem::take(&mut self.rest);
        self.add(&rest);
    }

    /// Ends the text.
    pub fn finish(&mut self) {
        self.flush();
        self.is_finished = true;
    }

    /// Drops all text that was not returned and that is still to come, and ends.
    pub fn cancel(&mut self) {
        self.rest.clear();
        self.complete.clear();
        (self.is_finished, self.is_cancelled) = (true, true);
    }

    /// Returns the next complete sentence. `None` until there is one.
    #[expect(clippy::should_implement_trait, reason = "iterators end, and this returns more after a push")]
    pub fn next(&mut self) -> Option<Sentence> {
        let text = self.complete.pop_front()?;
        self.returned += 1;
        Some(Sentence { text, index: self.returned - 1 })
    }

    /// Bytes of text that were not returned.
    pub fn pending(&self) -> usize {
        self.rest.len() + self.complete.iter().map(String::len).sum::<usize>()
    }

    /// Whether [`next`](Self::next) returns a sentence.
    pub fn is_ready(&self) -> bool {
        !self.complete.is_empty()
    }

    /// Whether the text has ended and every sentence was returned.
    pub fn is_over(&self) -> bool {
        self.is_finished && self.complete.is_empty()
    }

    fn add(&mut self, text: &str) {
        let text = text.trim_matches(is_python_space);
        if !text.is_empty() {
            self.complete.push_back(text.to_owned());
        }
    }
}

/// End of the first sentence, if what follows shows that it is complete: a space after a full stop, any
/// character after the marks that need no space, or an empty line.
fn end_of_first(text: &str) -> Option<usize> {
    let (mut ended, mut wide, mut line_feeds) = (None, false, 0);
    let (mut space, mut is_blank) = (None, true);
    for (count, (i, c)) in text.char_indices().enumerate() {
        if is_python_space(c) {
            line_feeds += usize::from(c == '\n');
            if !is_blank && (line_feeds > 1 || wide) {
                return Some(i);
            }
            if let Some(stop) = ended.take()
                && !ends_in_abbreviation(&text[..stop])
            {
                return Some(i);
            }
            if !is_blank {
                space = Some(i);
            }
        } else {
            if wide && !closes(c) && !is_wide_end(c) {
                return Some(i);
            }
            line_feeds = 0;
            is_blank = false;
            wide = is_wide_end(c) || (wide && closes(c));
            ended = match c {
                '.' | '!' | '?' | '…' => Some(i + c.len_utf8()),
                c if closes(c) => ended,
                _ => None,
            };
        }
        if count >= MOST_CHARS {
            return Some(space.unwrap_or(i + c.len_utf8()));
        }
    }
    None
}

/// Marks that end a sentence without a space after them.
fn is_wide_end(c: char) -> bool {
    "\u{3002}\u{FF01}\u{FF1F}\u{0964}\u{061F}".contains(c)
}

/// Quotes and brackets that belong to the sentence before them.
fn closes(c: char) -> bool {
    "\"')]}»”’\u{300D}\u{300F}\u{FF09}".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(parts: &[&str]) -> Vec<String> {
        let mut session = TextSession::default();
        parts.iter().for_each(|part| session.push(part));
        session.finish();
        let found = std::iter::from_fn(|| session.next()).map(|sentence| sentence.text).collect();
        assert!(session.is_over());
        found
    }

    #[test]
    fn the_division_of_the_text_does_not_matter() {
        let text = "He said: \"No.\" Then, at 3.5 m, Dr. A. Who left… Why?! Nobody knows\n\nNew one: yes! \
                    雨がやんだ。「湯が沸いた。」お茶にしよう！ https://a.b/c. End";
        let want = [
            "He said: \"No.\"",
            "Then, at 3.5 m, Dr. A. Who left…",
            "Why?!",
            "Nobody knows",
            "New one: yes!",
            "雨がやんだ。",
            "「湯が沸いた。」",
            "お茶にしよう！",
            "https://a.b/c.",
            "End",
        ];
        assert_eq!(all(&[text]), want);
        let chars: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(all(&chars.iter().map(String::as_str).collect::<Vec<_>>()), want);
        for width in [2, 3, 7, 20] {
            let parts: Vec<String> = chars.chunks(width).map(|part| part.concat()).collect();
            assert_eq!(all(&parts.iter().map(String::as_str).collect::<Vec<_>>()), want, "{width}");
        }
    }

    #[test]
    fn text_without_sentences_is_bounded() {
        let mut session = TextSession::default();
        for _ in 0..100 {
            session.push("word ".repeat(100).as_str());
            while session.next().is_some() {}
            assert!(session.pending() <= 4 * MOST_CHARS + 500);
        }
        session.push(&"x".repeat(5 * MOST_CHARS));
        assert!(session.complete.len() >= 4);
        assert_eq!(all(&["", " \n\n ", ""]), Vec::<String>::new());
    }

    #[test]
    fn late_text_is_spoken_after_the_end_and_not_after_a_cancel() {
        let mut session = TextSession::default();
        session.push("One.");
        session.finish();
        session.push("Two. Three");
        let texts: Vec<_> = std::iter::from_fn(|| session.next()).map(|sentence| sentence.text).collect();
        assert_eq!(
            (texts, session.pending(), session.is_over()),
            (["One.", "Two.", "Three"].map(String::from).to_vec(), 0, true)
        );
        session.cancel();
        // Of a writer that has not heard of it yet.
        session.push("Four. Five. ");
        assert_eq!((session.next(), session.pending(), session.is_over()), (None, 0, true));
    }

    #[test]
    fn flushed_and_whole_texts() {
        let mut session = TextSession::default();
        session.push("One. Tw");
        session.flush();
        session.push("o");
        assert_eq!((session.complete.len(), session.pending(), session.is_over()), (2, 7, false));
        session.cancel();
        assert_eq!((session.next(), session.pending(), session.is_over()), (None, 0, true));
        let mut whole = TextSession::whole();
        whole.push("One. Two. ");
        assert!(!whole.is_ready());
        whole.finish();
        assert_eq!(whole.next(), Some(Sentence { text: "One. Two.".to_owned(), index: 0 }));
        assert!(whole.is_over());
    }
}
