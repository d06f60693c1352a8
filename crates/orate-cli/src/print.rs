//! Printing that cannot panic: a closed pipe is an error like any other.

use std::io::{self, Write};

/// Prints to standard output.
pub fn out(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|e| anyhow::Error::new(e).context("cannot write to standard output"))
}

/// Prints a JSON value and a newline to standard output.
pub fn json(value: &serde_json::Value) -> anyhow::Result<()> {
    out(&format!("{value}\n"))
}

/// Prints a line to standard error. If that is closed there is nobody to tell.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Lays out rows in columns: the first column to the left, the others to the right unless `left` names them.
pub fn table(rows: &[Vec<String>], left: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
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

/// Bytes for people: `22.5 MB`.
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

    #[test]
    fn columns_line_up() {
        let rows = [["name", "n", "what"], ["a", "100", "x"]].map(|r| r.map(str::to_owned).to_vec());
        assert_eq!(table(&rows, &[2]), "name    n  what\na     100  x\n");
        assert_eq!(table(&[], &[]), "");
    }

    #[test]
    fn sizes_for_people() {
        let cases = [(0, "0 B"), (999, "999 B"), (22_489_696, "22.5 MB"), (3_000_000_000, "3.00 GB")];
        for (n, expected) in cases {
            assert_eq!(bytes(n), expected);
        }
    }
}
