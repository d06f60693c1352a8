//! Strings of unknown origin, made safe to print.

use std::fmt::{self, Display, Write};
use std::path::Path;

/// Longest name in a message, in characters. Tensor names have up to about 100.
const MAX_QUOTED: usize = 120;

/// Longest message of a parser, in characters.
const MAX_LINE: usize = 600;

/// Longest path, in characters: the limit of most systems.
const MAX_PATH: usize = 4096;

/// Displays a name or value in backticks: hidden characters escaped, and cut after 120 characters.
///
/// Use it for everything in a message that a file, a text or a command line contains.
///
/// ```
/// assert_eq!(orate_files::quoted("a\u{1b}[31m\nb").to_string(), r"`a\u{1b}[31m\nb`");
/// assert!(orate_files::quoted(&"x".repeat(100_000)).to_string().ends_with("xxx…` (100000 characters)"));
/// ```
pub fn quoted(text: &str) -> impl Display + '_ {
    Escaped { text, most: MAX_QUOTED, quotes: true }
}

/// Displays a message that may repeat parts of a file, such as a parser's: hidden characters escaped, and cut
/// after 600 characters.
///
/// ```
/// assert_eq!(orate_files::one_line("two\nlines").to_string(), r"two\nlines");
/// ```
pub fn one_line(text: &str) -> impl Display + '_ {
    Escaped { text, most: MAX_LINE, quotes: false }
}

/// Displays a path with hidden characters escaped.
///
/// ```
/// assert_eq!(orate_files::shown("a\tb.wav".as_ref()).to_string(), r"a\tb.wav");
/// ```
pub fn shown(path: &Path) -> impl Display + '_ {
    struct Shown<'a>(&'a Path);
    impl Display for Shown<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            Escaped { text: &self.0.to_string_lossy(), most: MAX_PATH, quotes: false }.fmt(f)
        }
    }
    Shown(path)
}

struct Escaped<'a> {
    text: &'a str,
    /// Characters that are shown.
    most: usize,
    quotes: bool,
}

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quote = if self.quotes { "`" } else { "" };
        f.write_str(quote)?;
        let mut rest = self.text.chars();
        for c in rest.by_ref().take(self.most) {
            match c {
                '\t' | '\r' | '\n' => write!(f, "{}", c.escape_default())?,
                c if is_hidden(c) => write!(f, "{}", c.escape_unicode())?,
                c => f.write_char(c)?,
            }
        }
        if rest.next().is_none() {
            return f.write_str(quote);
        }
        write!(f, "…{quote} ({} characters)", self.text.chars().count())
    }
}

/// Whether a character is invisible, or changes how others are shown: controls, line separators, marks of
/// direction, zero-width characters and tags.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{AD}' | '\u{61C}' | '\u{180E}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}'
            | '\u{2060}'..='\u{206F}' | '\u{FEFF}' | '\u{FFF9}'..='\u{FFFB}' | '\u{E0000}'..='\u{E0FFF}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_escaped_and_others_stay() {
        let cases = [
            ("", "``"),
            ("talker.model.norm.weight", "`talker.model.norm.weight`"),
            (r#"C:\a "b" 'c'"#, r#"`C:\a "b" 'c'`"#),
            ("Zażółć 漢字 नमस्ते e\u{301} 🙂", "`Zażółć 漢字 नमस्ते e\u{301} 🙂`"),
            ("\u{7}\u{9b}31m\r", r"`\u{7}\u{9b}31m\r`"),
            ("a\u{202e}b\u{2066}c\u{200d}d\u{2029}", r"`a\u{202e}b\u{2066}c\u{200d}d\u{2029}`"),
        ];
        for (text, want) in cases {
            assert_eq!(quoted(text).to_string(), want);
        }
    }

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(quoted(&"é".repeat(120)).to_string(), format!("`{}`", "é".repeat(120)));
        assert_eq!(quoted(&"é".repeat(121)).to_string(), format!("`{}…` (121 characters)", "é".repeat(120)));
        let line = one_line(&"\u{1b}".repeat(100_000)).to_string();
        assert!(line.len() < 4000 && line.ends_with("… (100000 characters)"), "{line}");
    }
}
