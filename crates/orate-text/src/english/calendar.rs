//! Dates and times.

use super::DateOrder;
use super::numbers::{cardinal, ordinal, year};
use super::reader::{Dot, Found, Reader};
use super::tokens::Kind;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const MONTHS_SHORT: [&str; 13] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Sept"];
const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// The month that a word names, 1 to 12, in full or abbreviated.
pub(super) fn month(word: &str) -> Option<usize> {
    let full = MONTHS.iter().position(|&m| m == word);
    let short = || MONTHS_SHORT.iter().position(|&m| m == word).map(|i| if i == 12 { 8 } else { i });
    full.or_else(short).map(|i| i + 1)
}

pub(super) fn is_weekday(word: &str) -> bool {
    WEEKDAYS.contains(&word)
}

/// Abbreviated weekdays, as written before a full stop.
pub(super) fn weekday_short(word: &str) -> Option<&'static str> {
    Some(match word {
        "Mon" => "Monday",
        "Tue" | "Tues" => "Tuesday",
        "Wed" => "Wednesday",
        "Thu" | "Thur" | "Thurs" => "Thursday",
        "Fri" => "Friday",
        "Sat" => "Saturday",
        "Sun" => "Sunday",
        _ => return None,
    })
}

pub(super) fn month_name(month: usize) -> &'static str {
    MONTHS.get(month.wrapping_sub(1)).copied().unwrap_or_default()
}

impl Reader<'_> {
    /// The digits of token `i` if their number is one of `lengths` and their value is in `range`.
    fn field(&self, i: usize, lengths: &[usize], range: std::ops::RangeInclusive<u64>) -> Option<u64> {
        let text = self.text(i);
        if !self.is(i, Kind::Digits) || !lengths.contains(&text.len()) {
            return None;
        }
        text.parse().ok().filter(|value| range.contains(value))
    }

    /// `2024-05-05`.
    pub(super) fn iso_date(&self, i: usize) -> Found {
        let y = self.field(i, &[4], 1000..=2999)?;
        let separator = self.text(i + 1);
        if !matches!(separator, "-" | "/" | ".") || self.text(i + 3) != separator {
            return None;
        }
        let m = self.field(i + 2, &[1, 2], 1..=12)?;
        let d = self.field(i + 4, &[1, 2], 1..=31)?;
        if self.text(i + 5) == separator && self.is(i + 6, Kind::Digits) {
            return None;
        }
        // A time may follow as `T10:45`; the letter is not spoken.
        let end = if self.text(i + 5) == "T" && self.is(i + 6, Kind::Digits) { i + 6 } else { i + 5 };
        let comma = if end == i + 6 { "," } else { "" };
        Some((self.date(i, d, m as usize, Some(y), self.rules.date_order) + comma, end))
    }

    /// `5/4/2024`, `5.4.2024`, `12-25-99`, and `5/4` after a word such as "on".
    pub(super) fn numeric_date(&self, i: usize) -> Found {
        let a = self.field(i, &[1, 2], 1..=31)?;
        let separator = self.text(i + 1);
        if !matches!(separator, "/" | "." | "-") {
            return None;
        }
        let b = self.field(i + 2, &[1, 2], 1..=31)?;
        let order = if separator == "." { DateOrder::DayFirst } else { self.rules.date_order };
        let (mut d, mut m) = if order == DateOrder::MonthFirst { (b, a) } else { (a, b) };
        if m > 12 {
            std::mem::swap(&mut d, &mut m);
        }
        if m > 12 {
            return None;
        }
        if self.text(i + 3) == separator && self.is(i + 4, Kind::Digits) {
            let lengths: &[usize] = if separator == "/" { &[2, 4] } else { &[4] };
            let mut y = self.field(i + 4, lengths, 0..=2999)?;
            if self.text(i + 4).len() == 2 {
                y += if y < 50 { 2000 } else { 1900 };
            }
            if self.text(i + 5) == separator && self.is(i + 6, Kind::Digits) {
                return None;
            }
            return Some((self.date(i, d, m as usize, Some(y), order), i + 5));
        }
        let dated = matches!(
            self.text_before(i),
            "on" | "On" | "by" | "By" | "before" | "since" | "until" | "till" | "dated" | "due"
        ) || is_weekday(self.text_before(i));
        (separator == "/" && dated).then(|| (self.date(i, d, m as usize, None, order), i + 3))
    }

    /// "May fifth, twenty twenty-four" or "the fifth of May twenty twenty-four".
    fn date(&self, i: usize, d: u64, m: usize, y: Option<u64>, order: DateOrder) -> String {
        let (day, month) = (ordinal(d), month_name(m));
        match (order, y) {
            (DateOrder::MonthFirst, Some(y)) => format!("{month} {day}, {}", year(y)),
            (DateOrder::MonthFirst, None) => format!("{month} {day}"),
            (DateOrder::DayFirst, y) => {
                let the = if self.text_before(i).eq_ignore_ascii_case("the") { "" } else { "the " };
                let y = y.map_or_else(String::new, |y| format!(" {}", year(y)));
                format!("{the}{day} of {month}{y}")
            }
        }
    }

    /// `5 May 2024`, `5th May`, `1 Jan. 2020`.
    pub(super) fn day_month(&self, i: usize) -> Found {
        let d = self.field(i, &[1, 2], 1..=31)?;
        let mut j = i + 1;
        if self.is(j, Kind::Word) && is_ordinal_suffix(self.text(j)) {
            j += 1;
        }
        if !self.is_gap(j) {
            return None;
        }
        j += 1;
        if self.text(j) == "of" && self.is_gap(j + 1) {
            j += 2;
        }
        let m = month(self.text(j))?;
        j += 1;
        // "5 Mar" needs no period, but a period before a year or in mid-sentence does not end the sentence.
        if self.text(j) == "."
            && month_name(m) != self.text(j - 1)
            && !self.ends_sentence(j + 1, Dot::BeforeCapital)
        {
            j += 1;
        }
        let y = self.year_after(j);
        let words = self.date(i, d, m, y.map(|(y, _)| y), DateOrder::DayFirst);
        Some((words, y.map_or(j, |(_, end)| end)))
    }

    /// `May 5, 2024`, `Sept. 11`, `March 3rd`, and abbreviated months before a year or alone with a period.
    pub(super) fn month_day(&self, i: usize) -> Found {
        let m = month(self.text(i))?;
        let name = month_name(m);
        let short = name != self.text(i);
        let dotted = short && self.text(i + 1) == ".";
        let j = i + 1 + usize::from(dotted);
        let day = self.is_gap(j).then(|| self.field(j + 1, &[1, 2], 1..=31)).flatten();
        if let Some(d) = day {
            let mut end = j + 2;
            if self.is(end, Kind::Word) && is_ordinal_suffix(self.text(end)) {
                end += 1;
            } else if self.is(end, Kind::Word)
                || matches!(self.text(end), ":" | "%" | "/" | "°")
                || (matches!(self.text(end), "." | ",") && self.is(end + 1, Kind::Digits))
                || self.unit_after(i, end, false).is_some()
            {
                return None;
            }
            let (y, end) = match self.year_after(end) {
                Some((y, end)) => (Some(y), end),
                None => (None, end),
            };
            return Some((self.date(i, d, m, y, DateOrder::MonthFirst), end));
        }
        let year_follows = self.is_gap(j) && self.field(j + 1, &[4], 1000..=2999).is_some();
        // "Mar." or "Dec." alone at the end of a sentence may be anything.
        let clear =
            dotted && (self.text(j) == "," || self.is_gap(j)) && !matches!(self.text(i), "Mar" | "May");
        (short && (year_follows || clear)).then(|| (name.to_owned(), j))
    }

    /// A year after a day and month: ` 2024` or `, 2024`.
    fn year_after(&self, i: usize) -> Option<(u64, usize)> {
        let j = i + usize::from(self.text(i) == ",");
        if !self.is_gap(j) {
            return None;
        }
        let y = self.field(j + 1, &[4], 1000..=2999)?;
        // "May 5, 1000 people": a counted noun follows.
        (!self.counts_something(j + 2)).then_some((y, j + 2))
    }

    /// `10:45`, `3:05 pm`, `3pm`, `10.30 a.m.`, `14:00:30`.
    pub(super) fn clock(&self, i: usize) -> Found {
        let Some(h) = self.field(i, &[1, 2], 0..=24) else { return self.ratio(i) };
        let separator = self.text(i + 1);
        let minutes = if matches!(separator, ":" | ".") { self.field(i + 2, &[2], 0..=59) } else { None };
        let Some(m) = minutes else {
            return match self.half_day(i + 1) {
                Some((half, end)) if (1..=12).contains(&h) => Some((format!("{} {half}", cardinal(h)), end)),
                _ => self.ratio(i),
            };
        };
        let mut end = i + 3;
        let mut seconds = String::new();
        if separator == ":"
            && self.text(end) == ":"
            && let Some(s) = self.field(end + 1, &[2], 0..=59)
        {
            end += 2;
            seconds = format!(" and {} second{}", cardinal(s), if s == 1 { "" } else { "s" });
        }
        let half = self.half_day(end);
        if separator == "." && half.is_none() {
            return None;
        }
        let hour = cardinal(h);
        let words = match (h, m, &half) {
            (0 | 24, 0, None) if seconds.is_empty() => "midnight".to_owned(),
            (_, 0, Some(_)) => hour,
            (1..=12, 0, None) if seconds.is_empty() => {
                let said = self.text(self.skip_gap(end)) == "o'clock";
                if said { hour } else { format!("{hour} o'clock") }
            }
            (_, 0, None) => format!("{hour} hundred"),
            (_, 1..=9, _) => format!("{hour} oh {}", cardinal(m)),
            _ => format!("{hour} {}", cardinal(m)),
        };
        match half {
            Some((half, end)) => Some((format!("{words}{seconds} {half}"), end)),
            None => Some((words + &seconds, end)),
        }
    }

    /// `3:1` is "three to one".
    fn ratio(&self, i: usize) -> Found {
        if self.text(i + 1) != ":" || !self.is(i + 2, Kind::Digits) {
            return None;
        }
        let (a, b) = (self.text(i), self.text(i + 2));
        let say = super::numbers::cardinal_digits;
        Some((format!("{} to {}", say(a), say(b)), i + 3))
    }

    /// `am`, `PM`, `a.m.`, with or without a space before it.
    fn half_day(&self, i: usize) -> Option<(String, usize)> {
        let j = self.skip_gap(i);
        let (letters, mut end) = match self.text(j) {
            "am" | "AM" | "Am" => ("AM", j + 1),
            "pm" | "PM" | "Pm" => ("PM", j + 1),
            "a" | "A" if self.text(j + 1) == "." && matches!(self.text(j + 2), "m" | "M") => ("AM", j + 3),
            "p" | "P" if self.text(j + 1) == "." && matches!(self.text(j + 2), "m" | "M") => ("PM", j + 3),
            _ => return None,
        };
        let mut words = self.spell(letters);
        if end == j + 3 && self.text(end) == "." {
            end += 1;
            if self.ends_sentence(end, Dot::BeforeCapital) {
                words.push('.');
            }
        }
        Some((words, end))
    }
}

pub(super) fn is_ordinal_suffix(word: &str) -> bool {
    matches!(word, "st" | "nd" | "rd" | "th" | "ST" | "ND" | "RD" | "TH" | "Th")
}
