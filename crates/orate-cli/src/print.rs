//! Printing that cannot panic, and that escapes control characters in names and texts from files.

use std::borrow::Cow;
use std::io::{self, Write};

/// Maximum characters of a table cell and of a message. Longer ones are cut in the middle.
const MAX_CHARS: usize = 2000;

/// Maximum width of a table column. A longer cell is not cut, but shifts the rest of its row to the right.
const MAX_COLUMN: usize = 120;

/// Prints to standard output. Line breaks stay; apply [`visible`] to text from files.
pub fn out(text: &str) -> anyhow::Result<()> {
    let visible: String = text.split_inclusive('\n').map(visible_line).collect();
    raw(&visible)
}

/// Prints a script or page for another program, unchanged.
pub fn raw(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|e| anyhow::Error::new(e).context("cannot write to standard output"))
}

/// Prints a JSON value and a newline to standard output.
pub fn json(value: &serde_json::Value) -> anyhow::Result<()> {
    raw(&format!("{}\n", json_text(value)))
}

/// Formats a JSON value in one line and escapes control and bidirectional characters.
pub fn json_text(value: &serde_json::Value) -> String {
    let text = value.to_string();
    if !text.chars().any(is_hostile) {
        return text;
    }
    // Outside of strings JSON contains no such characters; inside, serde_json has escaped the rest.
    text.chars().fold(String::new(), |mut all, c| {
        match c {
            c if is_hostile(c) => all.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => all.push(c),
        }
        all
    })
}

/// Prints a line to standard error; does nothing if that is closed.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", visible(line));
}

/// Prints lines to standard error, each as by [`note`].
pub fn notes(lines: &[String]) {
    let text: String = lines.iter().map(|line| visible(line) + "\n").collect();
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Returns the text in one line that is safe for terminals: control characters, line breaks and bidirectional
/// characters are escaped as in Rust strings.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hostile) {
        return text.into();
    }
    let escape = |c: char| match c {
        '\n' | '\r' | '\t' => c.escape_default().to_string(),
        c if is_hostile(c) => c.escape_unicode().to_string(),
        c => c.to_string(),
    };
    text.chars().map(escape).collect::<String>().into()
}

/// [`visible`] for a line that may end in a line break.
fn visible_line(line: &str) -> String {
    match line.strip_suffix('\n') {
        Some(line) => visible(line) + "\n",
        None => visible(line),
    }
    .into_owned()
}

/// Whether a terminal interprets a character instead of showing it: controls, line separators, bidirectional
/// marks and overrides.
fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}')
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Shortens a text to [`MAX_CHARS`]. Keeps the beginning and the end, since messages end in advice.
pub fn shorten(text: &str) -> Cow<'_, str> {
    let chars = text.chars().count();
    if chars <= MAX_CHARS {
        return text.into();
    }
    let (head, tail) = (MAX_CHARS * 3 / 4, MAX_CHARS / 4);
    let begin: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(chars - tail).collect();
    format!("{begin} … ({} characters left out) … {end}", chars - head - tail).into()
}

/// Formats rows in columns: the first column and those in `left` are aligned left, others right.
pub fn table(rows: &[Vec<String>], left: &[usize]) -> String {
    let cell = |cell: &String| visible(&shorten(cell)).into_owned();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(cell).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(|c| width(c).min(MAX_COLUMN)).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (c, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            if c > 0 {
                line.push_str("  ");
            }
            if c == 0 || left.contains(&c) {
                line.push_str(&format!("{cell:<width$}"));
            } else {
                line.push_str(&format!("{cell:>width$}"));
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Formats a number of things: `1 file`, `2 files`.
pub fn count(n: usize, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}

/// Formats bytes with a unit: `22.5 MB`.
pub fn bytes(n: u64) -> String {
    match n {
        0..1_000 => format!("{n} B"),
        1_000..1_000_000 => format!("{:.1} kB", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", n as f64 / 1e6),
        _ => format!("{:.2} GB", n as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows<const N: usize>(rows: [[&str; 3]; N]) -> [Vec<String>; N] {
        rows.map(|row| row.map(str::to_owned).to_vec())
    }

    #[test]
    fn columns_line_up() {
        let rows = rows([["name", "n", "what"], ["a", "100", "x"]]);
        assert_eq!(table(&rows, &[2]), "name    n  what\na     100  x\n");
        assert_eq!(table(&[], &[]), "");
    }

    #[test]
    fn long_cells_are_cut_and_do_not_widen_their_column() {
        let long = "x".repeat(100_000);
        let text = table(&rows([["name", "n", "what"], [&long, "1", "y"]]), &[2]);
        let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert_eq!(widths[0], MAX_COLUMN + "  n  what".len());
        assert!(widths[1] < MAX_CHARS + 100 && text.contains("(98000 characters left out)"), "{widths:?}");
    }

    #[test]
    fn terminals_obey_nothing_from_a_file() {
        let cases = [
            ("größer, 日本語, 👩\u{200d}🚀", "größer, 日本語, 👩\u{200d}🚀"),
            ("a\x1b[31mb\x07", "a\\u{1b}[31mb\\u{7}"),
            ("a\nerror: b\r\tc", "a\\nerror: b\\r\\tc"),
            ("\u{202e}gnp.exe\u{2069}\u{9b}1m", "\\u{202e}gnp.exe\\u{2069}\\u{9b}1m"),
        ];
        for (text, expected) in cases {
            assert_eq!(visible(text), expected);
        }
        assert_eq!(table(&rows([["a\nb", "1", "\x1b[2J"]]), &[2]), "a\\nb  1  \\u{1b}[2J\n");
        assert_eq!(visible_line("a\x1b\n"), "a\\u{1b}\n");
        let value = serde_json::json!({ "name": "\u{202e}\x1b\u{9b}\n" });
        assert_eq!(json_text(&value), r#"{"name":"\u202e\u001b\u009b\n"}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json_text(&value)).expect("is JSON"), value);
    }

    #[test]
    fn one_thing_is_singular() {
        assert_eq!([0, 1, 2].map(|n| count(n, "file")), ["0 files", "1 file", "2 files"]);
    }

    #[test]
    fn sizes_have_units() {
        let cases = [(0, "0 B"), (999, "999 B"), (22_489_696, "22.5 MB"), (3_000_000_000, "3.00 GB")];
        for (n, expected) in cases {
            assert_eq!(bytes(n), expected);
        }
    }
}
