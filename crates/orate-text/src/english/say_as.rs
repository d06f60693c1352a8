//! Texts whose kind is known, as in SSML's `say-as`. `None` if a text is not of the kind.

use super::calendar::{month, month_name};
use super::numbers::{cardinal, cardinal_digits, make_ordinal, ordinal, parse, year};
use super::tokens::plain_digits;
use super::web::mark_name;
use super::{calendar, read_aloud};
use std::borrow::Cow;

/// Says letters, digits and marks one by one: `A-1` is "A dash one".
pub(crate) fn characters(text: &str) -> Option<String> {
    let text = with_plain_digits(text);
    let said = text.chars().filter(|c| !c.is_whitespace()).filter_map(|c| match c {
        '0'..='9' => Some(cardinal(u64::from(c) - u64::from('0'))),
        c if c.is_alphabetic() => Some(c.to_uppercase().collect()),
        c => Some(mark_name(c)?.to_owned()),
    });
    let said = said.collect::<Vec<_>>().join(" ");
    (!said.is_empty()).then_some(said)
}

/// Says an amount: `1,234`, `-5`, `3.5`.
pub(crate) fn number(text: &str) -> Option<String> {
    let text = with_plain_digits(text);
    let (minus, digits) = match text.trim().strip_prefix(['-', '\u{2212}']) {
        Some(digits) => ("minus ", digits),
        None => ("", text.trim().trim_start_matches('+')),
    };
    let (whole, decimals) = match digits.split_once('.') {
        Some((whole, decimals)) => (whole, Some(decimals)),
        None => (digits, None),
    };
    let whole = cardinal_digits(&plain_amount(whole)?);
    match decimals {
        Some(d) if is_digits(d) => Some(format!("{minus}{whole} point {}", super::numbers::digits(d))),
        Some(_) => None,
        None => Some(format!("{minus}{whole}")),
    }
}

/// Says a rank: `3`, `21st`.
pub(crate) fn rank(text: &str) -> Option<String> {
    let text = with_plain_digits(text);
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let suffix = &text[digits.len()..];
    if !suffix.is_empty() && !calendar::is_ordinal_suffix(suffix) {
        return None;
    }
    Some(make_ordinal(cardinal_digits(&plain_amount(digits)?)))
}

/// Says a date whose parts come in the order of `format`: `mdy`, `dmy`, `ymd`, `md`, `dm`, `my`, `ym`, `y`,
/// `m`, `d`. Without a format, it is read as in any text.
pub(crate) fn date(text: &str, format: &str) -> Option<String> {
    let text = with_plain_digits(text);
    if format.is_empty() {
        return text.contains(|c: char| c.is_ascii_digit()).then(|| read_aloud(text.trim()));
    }
    let (mut y, mut m, mut d) = (None, None, None);
    let mut parts: Vec<&str> = text.split(|c: char| !c.is_alphanumeric()).filter(|p| !p.is_empty()).collect();
    if let ([all], "ymd") = (&parts[..], format)
        && is_digits(all)
        && all.len() == 8
    {
        parts = vec![&all[..4], &all[4..6], &all[6..]];
    }
    if parts.len() != format.len() {
        return None;
    }
    for (part, field) in parts.iter().zip(format.chars()) {
        match field {
            'y' if y.is_none() && is_digits(part) => y = Some(parse(part).map(|y| full_year(y, part.len()))?),
            'm' if m.is_none() => {
                let number = || part.parse().ok().filter(|m| (1..=12).contains(m));
                m = Some(month_name(month(part).or_else(number)?));
            }
            'd' if d.is_none() => d = Some(ordinal(parse(part).filter(|d| (1..=31).contains(d))?)),
            _ => return None,
        }
    }
    let y = y.map(year);
    let day_first = format.starts_with('d');
    Some(match (y, m, d) {
        (Some(y), Some(m), Some(d)) if day_first => format!("the {d} of {m} {y}"),
        (Some(y), Some(m), Some(d)) => format!("{m} {d}, {y}"),
        (None, Some(m), Some(d)) if day_first => format!("the {d} of {m}"),
        (None, Some(m), Some(d)) => format!("{m} {d}"),
        (Some(y), Some(m), None) => format!("{m} {y}"),
        (Some(y), None, None) => y,
        (None, Some(m), None) => m.to_owned(),
        (None, None, Some(d)) => format!("the {d}"),
        _ => return None,
    })
}

/// `24` is 2024, `85` is 1985, as in written dates.
fn full_year(y: u64, digits: usize) -> u64 {
    match digits {
        2 if y < 50 => y + 2000,
        2 => y + 1900,
        _ => y,
    }
}

/// Digits without commas between groups and zeros before them.
fn plain_amount(text: &str) -> Option<String> {
    let digits = text.replace(',', "");
    let trimmed = digits.trim_start_matches('0');
    let digits = if trimmed.is_empty() && !digits.is_empty() { "0" } else { trimmed };
    is_digits(digits).then(|| digits.to_owned())
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn with_plain_digits(text: &str) -> Cow<'_, str> {
    plain_digits::<String>(text).map_or(Cow::Borrowed(text), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        let said = |text: Option<String>| text.unwrap_or_default();
        assert_eq!(said(characters("ab-1 ２é")), "A B dash one two É");
        assert_eq!(characters(" 🙂"), None);
        assert_eq!(said(number("1,234")), "one thousand two hundred thirty-four");
        assert_eq!(said(number("-007")), "minus seven");
        assert_eq!(said(number("3.50")), "three point five zero");
        assert_eq!(said(rank("21st")), "twenty-first");
        assert_eq!(said(rank("3")), "third");
        for text in ["", "x", "1x", "1.", "--1", "1e5"] {
            assert_eq!((number(text), rank(text)), (None, None), "{text}");
        }
    }

    #[test]
    fn dates() {
        for (text, format, want) in [
            ("5/4/2024", "mdy", "May fourth, twenty twenty-four"),
            ("5/4/2024", "dmy", "the fifth of April twenty twenty-four"),
            ("2024-05-04", "ymd", "May fourth, twenty twenty-four"),
            ("20240504", "ymd", "May fourth, twenty twenty-four"),
            ("5 May 85", "dmy", "the fifth of May nineteen eighty-five"),
            ("5/4", "md", "May fourth"),
            ("5.4.", "dm", "the fifth of April"),
            ("5/2024", "my", "May twenty twenty-four"),
            ("2024-05", "ym", "May twenty twenty-four"),
            ("1905", "y", "nineteen oh five"),
            ("12", "m", "December"),
            ("1", "d", "the first"),
            ("5/4/2024", "", "May fourth, twenty twenty-four"),
        ] {
            assert_eq!(date(text, format).as_deref(), Some(want), "{text} {format}");
        }
        for (text, format) in
            [("13/1/2024", "mdy"), ("1/2", "mdy"), ("", "y"), ("x", ""), ("1/2/3", "abc"), ("1/2", "dd")]
        {
            assert_eq!(date(text, format), None, "{text} {format}");
        }
    }
}
