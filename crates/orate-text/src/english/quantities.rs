//! Numbers in context: units, money, fractions, phone numbers.

use super::calendar::is_ordinal_suffix;
use super::numbers::{cardinal, cardinal_digits, digits, fraction, make_ordinal, make_plural, parse, year};
use super::reader::{Dot, Found, Reader};
use super::tokens::{Kind, vulgar_fraction};
use super::units::{self, leading_unit};

/// A number as written: `1,234.50`.
#[derive(Debug)]
pub(super) struct Number<'a> {
    /// Digits before the point, without commas.
    whole: String,
    /// Digits after the point.
    decimals: Option<&'a str>,
    /// Whether commas were written.
    grouped: bool,
    /// The token after the number.
    end: usize,
}

impl Number<'_> {
    fn words(&self) -> String {
        let whole = cardinal_digits(&self.whole);
        match self.decimals {
            Some(decimals) => format!("{whole} point {}", digits(decimals)),
            None => whole,
        }
    }

    fn is_one(&self) -> bool {
        self.whole == "1" && self.decimals.is_none()
    }
}

impl<'a> Reader<'a> {
    /// The number that begins at token `i`.
    fn number(&self, i: usize) -> Option<Number<'a>> {
        if !self.is(i, Kind::Digits) {
            return None;
        }
        let mut whole = self.text(i).to_owned();
        let mut end = i + 1;
        let mut grouped = false;
        if whole.len() <= 3 {
            while self.text(end) == "," && self.is(end + 1, Kind::Digits) && self.text(end + 1).len() == 3 {
                whole.push_str(self.text(end + 1));
                end += 2;
                grouped = true;
            }
        }
        let mut decimals = None;
        if self.text(end) == "." && self.is(end + 1, Kind::Digits) {
            decimals = Some(self.text(end + 1));
            end += 2;
        }
        Some(Number { whole, decimals, grouped, end })
    }

    /// `1,234.5`, with a scale word and a unit if they follow, or as a year.
    pub(super) fn quantity(&self, i: usize) -> Found {
        let number = self.number(i)?;
        if self.is_code(i, &number) {
            return Some((digits(&number.whole), number.end));
        }
        if let Some(found) = self.mixed(&number) {
            return Some(found);
        }
        let mut words = number.words();
        let mut end = number.end;
        let scale = self.scale_word(end);
        if let Some((word, after)) = scale {
            words = format!("{words} {word}");
            end = after;
        }
        if let Some((unit, after)) = self.unit_after(i, end, number.is_one() && scale.is_none()) {
            return Some((format!("{words} {unit}"), after));
        }
        // With a hyphen it is an adjective: "a 5-km run".
        if self.text(end) == "-"
            && let Some(&next) = self.tokens.get(end + 1).filter(|token| token.kind == Kind::Word)
            && let Some(unit) =
                leading_unit(&self.source[next.start..], true).filter(|u| u.symbol == next.text)
            && next.text.len() > 1
        {
            return Some((format!("{words}-{}", unit.one), end + 2));
        }
        if let Some((per, after)) = self.per(end) {
            return Some((words + &per, after));
        }
        if scale.is_none() && self.is_inch_mark(end) && number.decimals.is_none() && number.whole.len() < 4 {
            let singular = number.is_one() || self.is_adjective(i, end + 1);
            let unit = if singular { "inch" } else { "inches" };
            return Some((format!("{words} {unit}"), end + 1));
        }
        if scale.is_none() && self.is_year(i, &number) {
            words = year(parse(&number.whole)?);
        }
        Some((words, end))
    }

    /// Whether digits are a code, read one by one: "call 911", "NY 10017".
    fn is_code(&self, i: usize, number: &Number<'_>) -> bool {
        if number.grouped || number.decimals.is_some() {
            return false;
        }
        let before = self.text_before(i);
        let called = matches!(before, "call" | "Call" | "dial" | "Dial" | "code" | "PIN" | "ZIP");
        let state = before.len() == 2 && before.bytes().all(|b| b.is_ascii_uppercase());
        (called && number.whole.len() >= 3) || (state && number.whole.len() == 5)
    }

    /// ` million` and its like.
    fn scale_word(&self, i: usize) -> Option<(&'a str, usize)> {
        let word = self.text(i + 1);
        let known =
            matches!(word, "hundred" | "thousand" | "million" | "billion" | "trillion" | "quadrillion");
        (self.is_gap(i) && known).then_some((word, i + 2))
    }

    /// Whether bare digits are a year and not an amount. "Fifteen hundred people" is good English too, so the
    /// default is a year.
    fn is_year(&self, i: usize, number: &Number<'_>) -> bool {
        let Some(value) = parse(&number.whole) else { return false };
        if number.grouped || number.decimals.is_some() || number.whole.len() != 4 {
            return false;
        }
        let before = self.text_before(i);
        let strong = super::calendar::month(before).is_some()
            || matches!(
                before,
                "in" | "In"
                    | "since"
                    | "Since"
                    | "until"
                    | "till"
                    | "by"
                    | "By"
                    | "year"
                    | "circa"
                    | "during"
                    | "summer"
                    | "winter"
                    | "spring"
                    | "autumn"
                    | "fall"
                    | "early"
                    | "late"
            )
            || matches!(self.text(self.skip_gap(number.end)), "BC" | "AD" | "BCE" | "CE");
        match value {
            1000..=1099 | 2100..=2999 => strong,
            1100..=2099 => strong || !self.counts_something(number.end),
            _ => false,
        }
    }

    /// Whether the word after token `i` is counted by the number before it.
    pub(super) fn counts_something(&self, i: usize) -> bool {
        const NOT_PLURAL: &[&str] = &[
            "always", "as", "across", "was", "is", "has", "his", "its", "this", "thus", "us", "does", "yes",
            "perhaps", "unless", "plus",
        ];
        const PLURAL: &[&str] =
            &["people", "men", "women", "children", "feet", "units", "sheep", "fish", "percent"];
        let word = self.text(i + 1);
        self.is_gap(i)
            && self.is(i + 1, Kind::Word)
            && word.starts_with(|c: char| c.is_ascii_lowercase())
            && (PLURAL.contains(&word)
                || (word.len() > 3
                    && word.ends_with('s')
                    && !word.ends_with("ss")
                    && !NOT_PLURAL.contains(&word)))
    }

    /// The unit at token `i`, after a number that began at `start`, in words.
    pub(super) fn unit_after(&self, start: usize, i: usize, singular: bool) -> Option<(String, usize)> {
        let spaced = self.is_gap(i);
        let first = self.tokens.get(i + usize::from(spaced))?;
        let unit = leading_unit(&self.source[first.start..], spaced)?;
        let stop = first.start + unit.symbol.len();
        let mut end = i + usize::from(spaced);
        while self.tokens.get(end).is_some_and(|token| token.end() < stop) {
            end += 1;
        }
        // A unit must end where a token ends, or it is only the beginning of a word.
        self.tokens.get(end).filter(|token| token.end() == stop)?;
        end += 1;
        // "5 s" and "5 m" are units, "the 5 s's" is not; "5% of" needs no check.
        let mut dot = "";
        if unit.dot && self.text(end) == "." {
            if self.ends_sentence(end + 1, Dot::BeforeCapital) {
                dot = ".";
            }
            end += 1;
        }
        if unit.symbol.ends_with('.') && self.ends_sentence(end, Dot::BeforeCapital) {
            dot = ".";
        }
        let singular = singular || self.is_adjective(start, end);
        let name = if singular { unit.one } else { unit.many };
        let name = self.spell_country(name);
        match self.per(end) {
            Some((per, after)) if dot.is_empty() => Some((name + &per, after)),
            _ => Some((name + dot, end)),
        }
    }

    /// "US dollars" with the letters in the style of this voice.
    fn spell_country(&self, name: &str) -> String {
        match name.strip_prefix("US ") {
            Some(rest) => format!("{} {rest}", self.spell("US")),
            None => name.to_owned(),
        }
    }

    /// `/month` is "per month".
    fn per(&self, i: usize) -> Option<(String, usize)> {
        if self.text(i) != "/" || !self.is(i + 1, Kind::Word) {
            return None;
        }
        let word = self.text(i + 1);
        let name = match word {
            "mo" => "month",
            "wk" => "week",
            "d" => "day",
            _ => units::find(word).map_or(word, |unit| unit.one),
        };
        Some((format!(" per {name}"), i + 2))
    }

    /// A whole number and a fraction: `1 1/2`, `2½`.
    fn mixed(&self, number: &Number<'_>) -> Found {
        if number.decimals.is_some() || number.grouped {
            return None;
        }
        let mut j = self.skip_gap(number.end);
        let (n, d);
        if let Some(parts) = self.text(j).chars().next().and_then(vulgar_fraction) {
            (n, d) = parts;
            j += 1;
        } else {
            let slash = matches!(self.text(j + 1), "/" | "\u{2044}");
            if j == number.end || !slash || number.whole.len() > 3 {
                return None;
            }
            (n, d) = (parse(self.text(j))?, parse(self.text(j + 2))?);
            if n == 0 || n >= d || d > 64 || self.text(j + 3) == "/" {
                return None;
            }
            j += 3;
        }
        let part = fraction(n, d)?;
        let part = match part.strip_prefix("one ") {
            Some(rest) if rest.starts_with("eigh") => format!("an {rest}"),
            Some(rest) => format!("a {rest}"),
            None => part,
        };
        let words = format!("{} and {part}", cardinal_digits(&number.whole));
        match self.unit_after(number.end, j, false) {
            Some((unit, end)) => Some((format!("{words} {unit}"), end)),
            None => Some((words, j)),
        }
    }

    /// `3/4`, and a few pairs with readings of their own.
    pub(super) fn fraction(&self, i: usize) -> Found {
        let end = i + 3;
        if !matches!(self.text(i + 1), "/" | "\u{2044}")
            || !self.is(i + 2, Kind::Digits)
            || (self.text(end) == "/" && self.is(end + 1, Kind::Digits))
            || (i > 1 && self.text(i - 1) == "/" && self.is(i - 2, Kind::Digits))
        {
            return None;
        }
        let (a, b) = (self.text(i), self.text(i + 2));
        if matches!((a, b), ("24", "7") | ("9", "11")) {
            return Some((format!("{} {}", cardinal_digits(a), cardinal_digits(b)), end));
        }
        if (a, b) == ("50", "50") {
            return Some(("fifty-fifty".to_owned(), end));
        }
        let words = match (parse(a), parse(b)) {
            (Some(n), Some(d)) if n < 100 => fraction(n, d),
            _ => None,
        };
        let Some(words) = words else {
            return Some((format!("{} over {}", cardinal_digits(a), cardinal_digits(b)), end));
        };
        // The word has the ending of `2/3rds` already.
        let has_ending = matches!(self.text(end), "nd" | "nds" | "rd" | "rds" | "th" | "ths");
        let end = end + usize::from(has_ending);
        match self.unit_after(i, end, true) {
            Some((unit, end)) => Some((format!("{words} {unit}"), end)),
            None => Some((words, end)),
        }
    }

    /// `21st`, `1,000th`.
    pub(super) fn ordinal(&self, i: usize) -> Found {
        let number = self.number(i)?;
        let suffix = self.is(number.end, Kind::Word) && is_ordinal_suffix(self.text(number.end));
        (suffix && number.decimals.is_none())
            .then(|| (make_ordinal(cardinal_digits(&number.whole)), number.end + 1))
    }

    /// `1990s`, `80s`, `1990's`.
    pub(super) fn decade(&self, i: usize) -> Found {
        let text = self.text(i);
        if !self.is(i, Kind::Digits) || !text.ends_with('0') {
            return None;
        }
        let end = match (self.text(i + 1), self.text(i + 2)) {
            ("s", _) => i + 2,
            ("'" | "\u{2019}", "s") => i + 3,
            _ => return None,
        };
        let value = parse(text)?;
        let many = (self.text(end) == " " && self.text(end + 1) == "of") || self.text_before(i) == "of";
        match value {
            100 if many => return Some(("hundreds".to_owned(), end)),
            1000 if many => return Some(("thousands".to_owned(), end)),
            _ => {}
        }
        let words = match (text.len(), value) {
            (4, 1000..=2999) => year(value),
            (2, 20..=90) => cardinal(value),
            _ => return None,
        };
        let seconds = text.len() == 2
            && matches!(
                self.text_before(i),
                "in" | "for"
                    | "took"
                    | "takes"
                    | "wait"
                    | "waited"
                    | "after"
                    | "every"
                    | "within"
                    | "last"
                    | "lasted"
                    | "about"
            );
        if seconds {
            return None;
        }
        Some((make_plural(words), end))
    }

    /// `5'10"`, `6'2`, `5′ 10″`.
    pub(super) fn height(&self, i: usize) -> Found {
        let feet = parse(self.text(i)).filter(|&feet| feet < 100)?;
        let mark = self.text(i + 1);
        if !matches!(mark, "'" | "\u{2019}" | "\u{2032}") {
            return None;
        }
        let j = if mark == "\u{2032}" { self.skip_gap(i + 2) } else { i + 2 };
        let inches = parse(self.text(j)).filter(|&inches| inches < 12 && self.is(j, Kind::Digits))?;
        let mut end = j + 1;
        if matches!(self.text(end), "\"" | "\u{2033}" | "\u{201D}") {
            end += 1;
        } else if matches!((self.text(end), self.text(end + 1)), ("'", "'")) {
            end += 2;
        }
        Some((format!("{} foot {}", cardinal(feet), cardinal(inches)), end))
    }

    /// `1.2.3`, `192.168.0.1`.
    pub(super) fn version(&self, i: usize) -> Found {
        let mut end = i + 1;
        while self.text(end) == "." && self.is(end + 1, Kind::Digits) {
            end += 2;
        }
        let groups = (end - i).div_ceil(2);
        if groups < 3 {
            return None;
        }
        let is_ip = groups == 4 && (i..end).step_by(2).all(|j| parse(self.text(j)).is_some_and(|n| n < 256));
        let mut words = String::new();
        for j in (i..end).step_by(2) {
            if j > i {
                words.push_str(if is_ip { " dot " } else { " point " });
            }
            words.push_str(&if is_ip { digits(self.text(j)) } else { cardinal_digits(self.text(j)) });
        }
        Some((words, end))
    }

    /// Phone numbers and the like: groups of digits that are never amounts. Begins at digits, `+` or `(`.
    pub(super) fn phone(&self, i: usize) -> Found {
        const MAX_GROUPS: usize = 6;
        let plus = self.text(i) == "+";
        let mut j = i + usize::from(plus);
        let mut groups: Vec<&str> = Vec::with_capacity(MAX_GROUPS);
        let mut separator = "";
        let mut same = true;
        let mut parentheses = false;
        let mut end = i;
        while groups.len() < MAX_GROUPS {
            let open = self.text(j) == "(";
            j += usize::from(open);
            if !self.is(j, Kind::Digits) || self.text(j).len() > 12 {
                break;
            }
            if open && self.text(j + 1) != ")" {
                break;
            }
            groups.push(self.text(j));
            j += 1 + usize::from(open);
            end = j;
            parentheses |= open;
            let gap = self.text(j);
            if open && self.is(j, Kind::Digits) {
                continue;
            }
            if !matches!(gap, "-" | "." | " " | "\u{A0}" | "\u{2011}" | "\u{2010}") {
                break;
            }
            // After a country code or a bracket the separator may change; otherwise a new separator ends the
            // number.
            let may_change = open || (plus && groups.len() == 1);
            if !may_change {
                if !separator.is_empty() && separator != gap {
                    break;
                }
                same &= separator.is_empty() || separator == gap;
                separator = gap;
            }
            j += 1;
        }
        let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
        let total: usize = lengths.iter().sum();
        let hyphens = matches!(separator, "-" | "\u{2011}" | "\u{2010}");
        let is_phone = match lengths.as_slice() {
            _ if plus => (7..=15).contains(&total),
            [3, 3, 4] | [1, 3, 3, 4] => same,
            _ if parentheses => total == 10,
            [3, 4] => {
                let round = groups.iter().all(|group| group.ends_with('0'));
                hyphens && !round && !groups[0].starts_with(['0', '1'])
            }
            [3, 2, 4] => hyphens,
            [_, _, _, ..] if hyphens => total >= 7 && groups.len() < MAX_GROUPS,
            [_, _, ..] => {
                separator == " "
                    && groups[0].starts_with('0')
                    && (9..=12).contains(&total)
                    && lengths.iter().all(|&length| length > 1)
            }
            _ => false,
        };
        is_phone.then(|| (groups.iter().map(|group| digits(group)).collect::<Vec<_>>().join(", "), end))
    }

    /// An amount after a currency sign at token `i`; `prefix` is the country in front of it.
    pub(super) fn money(&self, i: usize, prefix: &str) -> Found {
        let sign = self.text(i).chars().next()?;
        let currency = units::currency(prefix, sign)?;
        let mut j = self.skip_gap(i + 1);
        let minus = if self.text(j) == "-" { "minus " } else { "" };
        j += usize::from(!minus.is_empty());
        let number = self.number(j)?;
        let mut end = number.end;
        let mut amount = number.words();
        // "$5-10" and "$5–10 million": the unit is spoken once.
        let mut range = false;
        if number.decimals.is_none()
            && matches!(self.text(end), "-" | "\u{2013}")
            && let Some(second) = self.number(end + 1).filter(|n| n.decimals.is_none_or(|d| d.len() != 2))
            && self.text(second.end) != "-"
        {
            amount = format!("{amount} to {}", second.words());
            end = second.end;
            range = true;
        }
        let scale = self.scale_word(end).or_else(|| self.scale_suffix(end));
        if let Some((_, after)) = scale {
            end = after;
        }
        let adjective = self.is_adjective(if prefix.is_empty() { i } else { i - 1 }, end);
        let one = self.spell_country(currency.one);
        let many = self.spell_country(currency.many);
        let words = match (scale, number.decimals) {
            (Some((scale, _)), _) => {
                format!("{amount} {scale} {}", if adjective { one } else { many })
            }
            (None, Some(cents)) if cents.len() == 2 && !range && !currency.cent.0.is_empty() => {
                let cents = parse(cents).unwrap_or(0);
                let major = parse(&number.whole);
                let cent = if cents == 1 { currency.cent.0 } else { currency.cent.1 };
                let cents_words = format!("{} {cent}", cardinal(cents));
                let name = if major == Some(1) { one } else { many };
                let whole = cardinal_digits(&number.whole);
                match (major, cents) {
                    (Some(0), 1..) => cents_words,
                    (_, 0) => format!("{whole} {name}"),
                    _ => format!("{whole} {name} and {cents_words}"),
                }
            }
            _ => {
                let single = adjective || (number.is_one() && !range);
                format!("{amount} {}", if single { one } else { many })
            }
        };
        let (per, end) = self.per(end).unwrap_or((String::new(), end));
        Some((format!("{minus}{words}{per}"), end))
    }

    /// `US$5`: the word at token `i` names the country.
    pub(super) fn prefixed_money(&self, i: usize) -> Found {
        if self.text(i + 1) != "$" || self.text(i).len() > 2 {
            return None;
        }
        self.money(i + 1, self.text(i))
    }

    /// `5k`, `5M`, `5bn` after a currency sign.
    fn scale_suffix(&self, i: usize) -> Option<(&'static str, usize)> {
        let scale = match self.text(i) {
            "k" | "K" => "thousand",
            "m" | "M" | "mn" | "mm" | "MM" | "mil" => "million",
            "b" | "B" | "bn" | "Bn" | "BN" => "billion",
            "t" | "T" | "tn" => "trillion",
            "-" if matches!(self.text(i + 1), "million" | "billion" | "trillion") => {
                let scale = match self.text(i + 1) {
                    "million" => "million",
                    "billion" => "billion",
                    _ => "trillion",
                };
                return Some((scale, i + 2));
            }
            _ => return None,
        };
        Some((scale, i + 1))
    }
}
