//! Numbers as words. Digits are passed as text, so that nothing overflows.

const SMALL: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 10] =
    ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
const SCALES: [&str; 5] = ["", " thousand", " million", " billion", " trillion"];

/// Numbers with more digits are read digit by digit.
const MAX_DIGITS: usize = 15;

/// `12` is "twelve"; `007` and numbers past trillions are read digit by digit.
pub(super) fn cardinal_digits(text: &str) -> String {
    match parse(text) {
        Some(n) if text.len() == 1 || !text.starts_with('0') => cardinal(n),
        _ => digits(text),
    }
}

/// The value, if it has at most [`MAX_DIGITS`] digits.
pub(super) fn parse(text: &str) -> Option<u64> {
    if text.len() > MAX_DIGITS { None } else { text.parse().ok() }
}

/// "one two three".
pub(super) fn digits(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 5);
    for digit in text.bytes().filter(u8::is_ascii_digit) {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(SMALL[usize::from(digit - b'0')]);
    }
    out
}

/// "one thousand two hundred thirty-four". Values past trillions are read digit by digit.
pub(super) fn cardinal(n: u64) -> String {
    if n < 20 {
        return SMALL[n as usize].to_owned();
    }
    if n >= 10_u64.pow(MAX_DIGITS as u32) {
        return digits(&n.to_string());
    }
    let mut out = String::new();
    for scale in (0..SCALES.len()).rev() {
        let group = n / 1000_u64.pow(scale as u32) % 1000;
        if group == 0 {
            continue;
        }
        if !out.is_empty() {
            out.push(' ');
        }
        below_thousand(group, &mut out);
        out.push_str(SCALES[scale]);
    }
    out
}

fn below_thousand(n: u64, out: &mut String) {
    let (hundreds, rest) = (n / 100, n % 100);
    if hundreds > 0 {
        out.push_str(SMALL[hundreds as usize]);
        out.push_str(" hundred");
        if rest > 0 {
            out.push(' ');
        }
    }
    if rest >= 20 {
        out.push_str(TENS[(rest / 10) as usize]);
        if rest % 10 > 0 {
            out.push('-');
            out.push_str(SMALL[(rest % 10) as usize]);
        }
    } else if rest > 0 {
        out.push_str(SMALL[rest as usize]);
    }
}

/// "twenty-first".
pub(super) fn ordinal(n: u64) -> String {
    make_ordinal(cardinal(n))
}

/// Turns the last word of a cardinal into an ordinal.
pub(super) fn make_ordinal(cardinal: String) -> String {
    let at = cardinal.rfind([' ', '-']).map_or(0, |i| i + 1);
    let (head, last) = cardinal.split_at(at);
    let irregular = match last {
        "one" => "first",
        "two" => "second",
        "three" => "third",
        "five" => "fifth",
        "eight" => "eighth",
        "nine" => "ninth",
        "twelve" => "twelfth",
        _ => "",
    };
    if !irregular.is_empty() {
        return format!("{head}{irregular}");
    }
    match last.strip_suffix('y') {
        Some(stem) => format!("{head}{stem}ieth"),
        None => format!("{cardinal}th"),
    }
}

/// A year: 1905 "nineteen oh five", 2000 "two thousand", 2008 "two thousand eight", 2024 "twenty
/// twenty-four", 1900 "nineteen hundred".
pub(super) fn year(n: u64) -> String {
    let (century, rest) = (n / 100, n % 100);
    if !(1000..10_000).contains(&n) || (century % 10 == 0 && rest < 10) {
        return cardinal(n);
    }
    match rest {
        0 => format!("{} hundred", cardinal(century)),
        1..10 => format!("{} oh {}", cardinal(century), cardinal(rest)),
        _ => format!("{} {}", cardinal(century), cardinal(rest)),
    }
}

/// Makes the last word a plural: "nineteen nineties", "two thousands", "two sixes".
pub(super) fn make_plural(words: String) -> String {
    if let Some(stem) = words.strip_suffix('y') {
        return format!("{stem}ies");
    }
    if words.ends_with("six") { format!("{words}es") } else { format!("{words}s") }
}

/// "one half", "three quarters", "five twelfths"; `None` if the reading is "over".
pub(super) fn fraction(numerator: u64, denominator: u64) -> Option<String> {
    let mut part = match denominator {
        2 => "half".to_owned(),
        4 => "quarter".to_owned(),
        3 | 5..=10 | 12 | 16 | 20 | 32 | 64 | 100 | 1000 => ordinal(denominator),
        _ => return None,
    };
    if numerator != 1 {
        part = if denominator == 2 { "halves".to_owned() } else { make_plural(part) };
    }
    Some(format!("{} {part}", cardinal(numerator)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cardinals() {
        for (n, want) in [
            (0, "zero"),
            (13, "thirteen"),
            (20, "twenty"),
            (99, "ninety-nine"),
            (100, "one hundred"),
            (105, "one hundred five"),
            (1_000_000, "one million"),
            (1_234_567, "one million two hundred thirty-four thousand five hundred sixty-seven"),
            (999_000_000_000_000, "nine hundred ninety-nine trillion"),
        ] {
            assert_eq!(cardinal(n), want);
        }
        assert!(cardinal(u64::MAX).starts_with("one eight four"));
        assert_eq!(cardinal_digits("007"), "zero zero seven");
        assert_eq!(cardinal_digits("0"), "zero");
        assert_eq!(cardinal_digits("1234567890123456").split(' ').count(), 16);
    }

    #[test]
    fn ordinals_years_plurals_fractions() {
        for (n, want) in [
            (1, "first"),
            (12, "twelfth"),
            (20, "twentieth"),
            (21, "twenty-first"),
            (30, "thirtieth"),
            (100, "one hundredth"),
            (1009, "one thousand ninth"),
        ] {
            assert_eq!(ordinal(n), want);
        }
        for (n, want) in [
            (1066, "ten sixty-six"),
            (1900, "nineteen hundred"),
            (1905, "nineteen oh five"),
            (1999, "nineteen ninety-nine"),
            (2000, "two thousand"),
            (2008, "two thousand eight"),
            (2010, "twenty ten"),
            (2100, "twenty-one hundred"),
            (800, "eight hundred"),
            (3005, "three thousand five"),
        ] {
            assert_eq!(year(n), want);
        }
        assert_eq!(make_plural(year(1990)), "nineteen nineties");
        assert_eq!(fraction(1, 2).as_deref(), Some("one half"));
        assert_eq!(fraction(3, 2).as_deref(), Some("three halves"));
        assert_eq!(fraction(2, 3).as_deref(), Some("two thirds"));
        assert_eq!(fraction(1, 37), None);
    }
}
