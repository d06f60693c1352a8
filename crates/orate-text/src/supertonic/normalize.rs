//! The nine steps of upstream's text normalization, in the same order.

use crate::pieces::collapse_spaces;
use unicode_normalization::UnicodeNormalization;

/// Blocks whose characters are deleted.
const EMOJI: [(u32, u32); 12] = [
    (0x1F600, 0x1F64F),
    (0x1F300, 0x1F5FF),
    (0x1F680, 0x1F6FF),
    (0x1F700, 0x1F77F),
    (0x1F780, 0x1F7FF),
    (0x1F800, 0x1F8FF),
    (0x1F900, 0x1F9FF),
    (0x1FA00, 0x1FA6F),
    (0x1FA70, 0x1FAFF),
    (0x2600, 0x26FF),
    (0x2700, 0x27BF),
    (0x1F1E6, 0x1F1FF),
];

/// Marks that may end a text; otherwise a full stop is added.
const CLOSERS: &str = ".!?;:,'\")]}\u{2026}\u{3002}\u{300D}\u{300F}\u{3011}\u{3009}\u{300B}\u{203A}\u{BB}";

/// Whether upstream deletes this character as emoji.
#[must_use]
pub fn is_emoji(c: char) -> bool {
    let code = u32::from(c);
    code >= 0x2600 && EMOJI.iter().any(|&(first, last)| (first..=last).contains(&code))
}

/// Returns a text as upstream passes it to the character table, before language tags.
///
/// NFKD comes first, so accents become separate marks, and some of the later replacements can no longer
/// match. That is upstream's behavior, and the models were trained with it. The result is never empty: an
/// empty text becomes `.`.
///
/// ```
/// use orate_text::supertonic::normalize;
///
/// assert_eq!(normalize("  “Well” ,  she said"), "\"Well\", she said.");
/// ```
#[must_use]
pub fn normalize(text: &str) -> String {
    // Steps 1 to 4: decompose, delete emoji, replace or delete single characters.
    let mut out: String = text.nfkd().filter(|&c| !is_emoji(c)).filter_map(replace_symbol).collect();
    // Step 5.
    for (from, to) in [("@", " at "), ("e.g.,", "for example, "), ("i.e.,", "that is, ")] {
        out = out.replace(from, to);
    }
    // Step 6: a single space only, one pass per mark, in this order.
    for from in [" ,", " .", " !", " ?", " ;", " :", " '"] {
        out = out.replace(from, &from[1..]);
    }
    // Steps 7 and 8.
    out = collapse_spaces(&collapse_quotes(&out));
    // Step 9.
    if !out.chars().next_back().is_some_and(|c| CLOSERS.contains(c)) {
        out.push('.');
    }
    out
}

/// Steps 3 and 4 for one character. Those that NFKD has already decomposed (U+2011, U+00AF, U+00B4) stay in
/// the list, as in upstream's.
fn replace_symbol(c: char) -> Option<char> {
    Some(match c {
        '\u{2013}' | '\u{2011}' | '\u{2014}' => '-',
        '\u{AF}' | '_' | '[' | ']' | '|' | '/' | '#' | '\u{2192}' | '\u{2190}' => ' ',
        '\u{201C}' | '\u{201D}' => '"',
        '\u{2018}' | '\u{2019}' | '\u{B4}' | '`' => '\'',
        '\u{2665}' | '\u{2606}' | '\u{2661}' | '\u{A9}' | '\\' => return None,
        other => other,
    })
}

/// Reduces runs of the same quote to one.
fn collapse_quotes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut previous = None;
    for c in text.chars() {
        if !(matches!(c, '"' | '\'' | '`') && previous == Some(c)) {
            out.push(c);
        }
        previous = Some(c);
    }
    out
}
