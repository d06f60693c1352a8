//! Sentences of a text that arrives in parts, such as the answer of a language model.

use crate::pieces::{ends_in_abbreviation, is_python_space};

/// Most characters of a sentence; a longer one is cut at a space.
const MOST_CHARS: usize = 1000;

/// Cuts sentences off a text that arrives in parts. They do not depend on how the text was divided.
///
/// ```
/// let mut sentences = orate_text::Sentences::default();
/// assert_eq!(sentences.push("Hello Dr. Who! How a"), ["Hello Dr. Who!"]);
/// assert_eq!(sentences.push("re you? "), ["How are you?"]);
/// assert_eq!(sentences.push("Fine"), Vec::<String>::new());
/// assert_eq!(sentences.finish(), Some("Fine".to_owned()));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Sentences {
    rest: String,
}

impl Sentences {
    /// Adds text, and returns the sentences that are complete now.
    pub fn push(&mut self, text: &str) -> Vec<String> {
        self.rest.push_str(text);
        let mut complete = vec![];
        while let Some(end) = end_of_first(&self.rest) {
            let after = self.rest.split_off(end);
            add(&mut complete, &std::mem::replace(&mut self.rest, after));
        }
        complete
    }

    /// The last sentence, complete or not. What is pushed next begins anew.
    pub fn finish(&mut self) -> Option<String> {
        let mut last = vec![];
        add(&mut last, &std::mem::take(&mut self.rest));
        last.pop()
    }

    /// Bytes that wait for the end of their sentence.
    pub fn pending(&self) -> usize {
        self.rest.len()
    }
}

fn add(sentences: &mut Vec<String>, text: &str) {
    let text = text.trim_matches(is_python_space);
    if !text.is_empty() {
        sentences.push(text.to_owned());
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
        let mut sentences = Sentences::default();
        let mut found: Vec<String> = parts.iter().flat_map(|part| sentences.push(part)).collect();
        found.extend(sentences.finish());
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
        let mut sentences = Sentences::default();
        for _ in 0..100 {
            sentences.push("word ".repeat(100).as_str());
            assert!(sentences.pending() <= 4 * MOST_CHARS + 500);
        }
        assert!(sentences.push(&"x".repeat(5 * MOST_CHARS)).len() >= 4);
        assert_eq!(all(&["", " \n\n ", ""]), Vec::<String>::new());
    }
}
