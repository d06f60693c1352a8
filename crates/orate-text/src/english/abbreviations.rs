//! Abbreviations, initials and Roman numerals.

use super::calendar::{is_ordinal_suffix, weekday_short};
use super::numbers::{cardinal, ordinal};
use super::reader::{Dot, Found, Reader};
use super::tokens::Kind;

/// Context in which a word is an abbreviation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    /// Before a name, which begins with a capital.
    BeforeName,
    /// Before a number.
    BeforeDigits,
    /// After a name, as in "Acme Corp." or "Park Ave.".
    AfterName,
    /// Anywhere.
    Anywhere,
}

/// What an abbreviation with a full stop means, in which context, and whether the stop ends a sentence.
fn expansion(word: &str) -> Option<(&'static str, Where, Dot)> {
    use Dot::{AtEnd, BeforeCapital, BeforeStarter};
    use Where::{AfterName, Anywhere, BeforeDigits, BeforeName};
    Some(match word {
        "Mr" => ("Mister", Anywhere, AtEnd),
        "Mrs" => ("Missus", Anywhere, AtEnd),
        "Ms" => ("Miz", Anywhere, AtEnd),
        "Messrs" => ("Messieurs", Anywhere, AtEnd),
        "Mme" => ("Madame", BeforeName, AtEnd),
        "Prof" => ("Professor", Anywhere, AtEnd),
        "Rev" => ("Reverend", BeforeName, AtEnd),
        "Hon" => ("Honorable", BeforeName, AtEnd),
        "Gov" => ("Governor", BeforeName, AtEnd),
        "Sen" => ("Senator", BeforeName, AtEnd),
        "Rep" => ("Representative", BeforeName, AtEnd),
        "Gen" => ("General", BeforeName, AtEnd),
        "Col" => ("Colonel", BeforeName, AtEnd),
        "Maj" => ("Major", BeforeName, AtEnd),
        "Capt" => ("Captain", BeforeName, AtEnd),
        "Lt" => ("Lieutenant", BeforeName, AtEnd),
        "Sgt" => ("Sergeant", BeforeName, AtEnd),
        "Cpl" => ("Corporal", BeforeName, AtEnd),
        "Cmdr" => ("Commander", BeforeName, AtEnd),
        "Adm" => ("Admiral", BeforeName, AtEnd),
        "Pres" => ("President", BeforeName, AtEnd),
        "Supt" => ("Superintendent", BeforeName, AtEnd),
        "Fr" => ("Father", BeforeName, AtEnd),
        "Mt" => ("Mount", BeforeName, AtEnd),
        "Ft" => ("Fort", BeforeName, AtEnd),
        "Jr" => ("Junior", AfterName, BeforeStarter),
        "Sr" => ("Senior", AfterName, BeforeStarter),
        "Esq" => ("Esquire", Anywhere, BeforeStarter),
        "Inc" => ("Incorporated", Anywhere, BeforeStarter),
        "Ltd" => ("Limited", Anywhere, BeforeStarter),
        "Co" => ("Company", AfterName, BeforeStarter),
        "Corp" => ("Corporation", Anywhere, BeforeStarter),
        "Bros" => ("Brothers", Anywhere, BeforeStarter),
        "Univ" => ("University", Anywhere, BeforeStarter),
        "Ave" => ("Avenue", AfterName, BeforeStarter),
        "Blvd" => ("Boulevard", AfterName, BeforeStarter),
        "Rd" => ("Road", AfterName, BeforeStarter),
        "Ln" => ("Lane", AfterName, BeforeStarter),
        "Ct" => ("Court", AfterName, BeforeStarter),
        "Pl" => ("Place", AfterName, BeforeStarter),
        "Sq" => ("Square", AfterName, BeforeStarter),
        "Pkwy" => ("Parkway", AfterName, BeforeStarter),
        "Hwy" => ("Highway", Anywhere, BeforeStarter),
        "Bldg" => ("Building", Anywhere, BeforeStarter),
        "Apt" => ("Apartment", BeforeDigits, AtEnd),
        "Ste" => ("Suite", BeforeDigits, AtEnd),
        "Dept" | "dept" => ("department", Anywhere, BeforeCapital),
        "Govt" | "govt" => ("government", Anywhere, BeforeCapital),
        "Assn" | "assn" => ("association", Anywhere, BeforeCapital),
        "etc" => ("et cetera", Anywhere, BeforeCapital),
        "vs" | "Vs" => ("versus", Anywhere, AtEnd),
        "approx" | "Approx" => ("approximately", Anywhere, BeforeCapital),
        "misc" | "Misc" => ("miscellaneous", Anywhere, BeforeCapital),
        "max" | "Max" => ("maximum", BeforeDigits, BeforeCapital),
        "min" | "Min" => ("minimum", BeforeDigits, BeforeCapital),
        "avg" | "Avg" => ("average", Anywhere, BeforeCapital),
        "incl" | "Incl" => ("including", Anywhere, AtEnd),
        "excl" | "Excl" => ("excluding", Anywhere, AtEnd),
        "esp" | "Esp" => ("especially", Anywhere, AtEnd),
        "cf" | "Cf" => ("compare", Anywhere, AtEnd),
        "viz" | "Viz" => ("namely", Anywhere, AtEnd),
        "al" => ("al", Anywhere, BeforeCapital),
        "est" | "Est" => ("established", BeforeDigits, AtEnd),
        "ca" | "Ca" | "c" => ("circa", BeforeDigits, AtEnd),
        "ext" | "Ext" => ("extension", BeforeDigits, AtEnd),
        "tel" | "Tel" => ("telephone", Anywhere, AtEnd),
        "p" => ("page", BeforeDigits, AtEnd),
        "pp" => ("pages", BeforeDigits, AtEnd),
        "vol" | "Vol" => ("volume", BeforeDigits, AtEnd),
        "ch" | "Ch" => ("chapter", BeforeDigits, AtEnd),
        "fig" | "Fig" => ("figure", BeforeDigits, AtEnd),
        "figs" | "Figs" => ("figures", BeforeDigits, AtEnd),
        "sec" | "Sec" => ("section", BeforeDigits, AtEnd),
        "art" | "Art" => ("article", BeforeDigits, AtEnd),
        "eq" | "Eq" => ("equation", BeforeDigits, AtEnd),
        "op" | "Op" => ("opus", BeforeDigits, AtEnd),
        "ver" | "Ver" => ("version", BeforeDigits, AtEnd),
        "no" | "No" | "nr" | "Nr" => ("number", BeforeDigits, AtEnd),
        "nos" | "Nos" => ("numbers", BeforeDigits, AtEnd),
        _ => return None,
    })
}

const KINGS: &[&str] = &[
    "Alexander",
    "Alfonso",
    "Benedict",
    "Boniface",
    "Catherine",
    "Charles",
    "Christian",
    "Clement",
    "Constantine",
    "Edward",
    "Elizabeth",
    "Ferdinand",
    "Francis",
    "Frederick",
    "George",
    "Gregory",
    "Gustav",
    "Henry",
    "Innocent",
    "Isabella",
    "Ivan",
    "James",
    "John",
    "Leo",
    "Leopold",
    "Louis",
    "Mary",
    "Napoleon",
    "Nicholas",
    "Paul",
    "Peter",
    "Philip",
    "Pius",
    "Richard",
    "Wilhelm",
    "William",
];
const RULERS: &[&str] = &["King", "Queen", "Pope", "Emperor", "Empress", "Tsar", "Czar", "Kaiser"];
const NUMBERED: &[&str] = &[
    "war", "chapter", "part", "volume", "vol", "book", "act", "scene", "section", "phase", "stage", "type",
    "class", "title", "bowl", "article", "appendix", "level", "grade", "schedule", "episode", "season",
    "tier",
];
const STREETS: &[&str] = &[
    "Main", "Wall", "High", "King", "Queen", "Elm", "Oak", "Maple", "Park", "Market", "Broad", "State",
    "Fleet", "Oxford", "Baker", "Downing", "Regent", "Bourbon",
];

impl Reader<'_> {
    /// Letters with full stops: `U.S.`, `e.g.`, `p.m.`, `Ph.D.`.
    pub(super) fn dotted_letters(&self, i: usize) -> Found {
        const MAX_LETTERS: usize = 8;
        if self.text(i + 1) != "." || !self.is_letters(i) || (i > 0 && self.text(i - 1) == ".") {
            return None;
        }
        let mut letters = self.text(i).to_owned();
        let mut end = i + 1;
        while letters.len() < MAX_LETTERS && self.text(end) == "." && self.is_letters(end + 1) {
            letters.push_str(self.text(end + 1));
            end += 2;
        }
        if end == i + 1 {
            return self.initial(i);
        }
        let dot = self.text(end) == ".";
        if self.is(end, Kind::Word) || self.is(end + 1, Kind::Word) && dot {
            return None;
        }
        end += usize::from(dot);
        let capital = self.is_capitalized(i);
        let (words, rule) = match letters.to_ascii_lowercase().as_str() {
            "eg" => ("for example".to_owned(), Dot::AtEnd),
            "ie" => ("that is".to_owned(), Dot::AtEnd),
            "aka" => ("also known as".to_owned(), Dot::AtEnd),
            "wrt" => ("with respect to".to_owned(), Dot::AtEnd),
            "am" | "pm" if !capital => (self.spell(&letters), Dot::BeforeCapital),
            "us" | "uk" if !capital => return None,
            _ if !capital && !dot => return None,
            _ => (self.spell(&letters), Dot::BeforeStarter),
        };
        let words = if capital && rule == Dot::AtEnd { capitalize(&words) } else { words };
        Some((self.with_stop(words, end, dot, rule), end))
    }

    /// One ASCII letter, or one of the few longer parts of degrees.
    fn is_letters(&self, i: usize) -> bool {
        let text = self.text(i);
        self.is(i, Kind::Word)
            && (text.len() == 1 && text.is_ascii() || matches!(text, "Ph" | "Sc" | "LL" | "Ed" | "Eng"))
    }

    /// The `J.` of "J. Smith": the stop is dropped, so that no sentence ends there.
    fn initial(&self, i: usize) -> Found {
        let text = self.text(i);
        let name_follows = self.is_gap(i + 2)
            && self.is_capitalized(i + 3)
            && !self.ends_sentence(i + 2, Dot::BeforeStarter);
        let before = self.word_before(i);
        let name_before = match before {
            Some(j) => {
                self.is_capitalized(j)
                    && !matches!(self.text(j), "Plan" | "Vitamin" | "Type" | "Group" | "Part" | "Section")
            }
            // After a full stop comes only another initial or a sentence.
            None => true,
        };
        (text.len() == 1 && text != "I" && self.is_capitalized(i) && name_follows && name_before)
            .then(|| (text.to_owned(), i + 2))
    }

    /// Restores the full stop if it also ended the sentence.
    fn with_stop(&self, mut words: String, end: usize, dot: bool, rule: Dot) -> String {
        if dot && self.ends_sentence(end, rule) {
            words.push('.');
        }
        words
    }

    /// `Dr.`, `etc.`, `No. 5`, and British titles without a stop.
    pub(super) fn abbreviation(&self, i: usize) -> Found {
        let word = self.text(i);
        let name_at = |j: usize| self.is_gap(j) && self.is_capitalized(j + 1);
        if self.text(i + 1) != "." {
            let words = match word {
                "Mr" => "Mister",
                "Mrs" => "Missus",
                "Dr" => "Doctor",
                "vs" => "versus",
                _ => return None,
            };
            return (word == "vs" || name_at(i + 1)).then(|| (words.to_owned(), i + 1));
        }
        let end = i + 2;
        match word {
            "Dr" => return Some(self.doctor_or_drive(i)),
            "St" => return Some(self.saint_or_street(i)),
            _ => {}
        }
        if let Some(day) = weekday_short(word) {
            // "He Sat." and "the Sun." end sentences.
            let clear = self.text(end) == "," || self.is(self.skip_gap(end), Kind::Digits);
            return clear.then(|| (day.to_owned(), end));
        }
        let (words, place, rule) = expansion(word)?;
        // "Vol. II", but not "No. I am".
        let numeral = self.skip_gap(end);
        if place == Where::BeforeDigits
            && self.text(numeral) != "I"
            && let Some(value) = roman_value(self.text(numeral))
        {
            let words = if self.is_capitalized(i) { capitalize(words) } else { words.to_owned() };
            return Some((format!("{words} {}", cardinal(value)), numeral + 1));
        }
        let fits = match place {
            Where::Anywhere => true,
            Where::BeforeName => name_at(end),
            Where::BeforeDigits => self.is(self.skip_gap(end), Kind::Digits),
            Where::AfterName => self.follows_name(i),
        };
        if !fits || (word == "al" && self.text_before(i) != "et") {
            return None;
        }
        let words = if self.is_capitalized(i) { capitalize(words) } else { words.to_owned() };
        Some((self.with_stop(words, end, true, rule), end))
    }

    /// Whether a name, a number or `&` precedes token `i`.
    fn follows_name(&self, i: usize) -> bool {
        let Some(j) = i.checked_sub(1) else { return false };
        let j = if self.is(j, Kind::Space) || self.text(j) == "," { j.saturating_sub(1) } else { j };
        let j = if self.text(j) == "," { j.saturating_sub(1) } else { j };
        self.is_capitalized(j)
            || self.text(j) == "&"
            || is_ordinal_suffix(self.text(j))
            || self.text(j) == "and"
    }

    /// Whether a house number precedes token `i`, with up to three capitalized words between.
    fn follows_house_number(&self, i: usize) -> bool {
        let mut j = i;
        for _ in 0..3 {
            let Some(before) = self.word_before(j).filter(|&k| self.is_capitalized(k)) else { break };
            j = before;
        }
        j >= 2 && j < i && self.is(j - 1, Kind::Space) && self.is(j - 2, Kind::Digits)
    }

    fn doctor_or_drive(&self, i: usize) -> (String, usize) {
        let end = i + 2;
        let name_follows = self.is_gap(end) && self.is_capitalized(end + 1);
        // "on Elm Dr. He" is a street, "Meet Dr. Who" is a person.
        let on_street = || {
            self.word_before(i).and_then(|j| self.word_before(j)).is_some_and(|k| {
                matches!(self.text(k), "on" | "off" | "at" | "to" | "from" | "down" | "up" | "along" | "near")
            })
        };
        let drive = self.follows_house_number(i)
            || (self.follows_name(i)
                && (!name_follows || (on_street() && self.ends_sentence(end, Dot::BeforeStarter))));
        let (words, rule) = if drive { ("Drive", Dot::BeforeStarter) } else { ("Doctor", Dot::AtEnd) };
        (self.with_stop(words.to_owned(), end, true, rule), end)
    }

    fn saint_or_street(&self, i: usize) -> (String, usize) {
        let end = i + 2;
        let name_follows =
            self.is_gap(end) && self.is_capitalized(end + 1) && !self.ends_sentence(end, Dot::BeforeStarter);
        let before = self.text_before(i);
        let street = !name_follows
            || self.follows_house_number(i)
            || STREETS.contains(&before)
            || is_ordinal_suffix(before);
        let (words, rule) = if street { ("Street", Dot::BeforeStarter) } else { ("Saint", Dot::AtEnd) };
        (self.with_stop(words.to_owned(), end, true, rule), end)
    }

    /// Whether token `i`, of two letters or more, is all of its line or begins a heading, as in `XIV`,
    /// `XIV.` and `III. The Storm`. `CD`, `MD` and `XL` are more likely something else.
    fn is_roman_heading(&self, i: usize) -> bool {
        let numeral = self.text(i);
        let is_usual = numeral.chars().all(|c| "IVX".contains(c) || numeral.len() > 2 && c == 'L');
        let ends = |j: usize| self.text(j).is_empty() || self.text(j).contains('\n');
        let is_mark = |j: usize| matches!(self.text(j), "." | ":" | ")" | "-" | "\u{2013}" | "\u{2014}");
        let next = self.skip_gap(i + 1);
        is_usual
            && numeral.len() > 1
            && self.is_line_start(i)
            && (ends(next) || is_mark(next) && (ends(next + 1) || self.is_gap(next + 1)))
    }

    /// `Henry VIII`, `World War II`, `Chapter IV`, `Rocky III`.
    pub(super) fn roman(&self, i: usize) -> Found {
        let value = roman_value(self.text(i))?;
        if self.is_roman_heading(i) {
            return Some((capitalize(&cardinal(value)), i + 1));
        }
        let j = self.word_before(i).filter(|&j| self.is_capitalized(j) && j + 1 < i)?;
        let name = self.text(j);
        let numeral = self.text(i);
        let numbered = NUMBERED.iter().any(|noun| noun.eq_ignore_ascii_case(name));
        let ruler = KINGS.contains(&name);
        let titled = self.word_before(j).is_some_and(|k| RULERS.contains(&self.text(k)));
        let ordinal_words = || format!("the {}", capitalize(&ordinal(value)));
        let words = match numeral {
            // "I" and the other single letters may also be words or initials.
            "I" if numbered => {
                let next = self.skip_gap(i + 1);
                let verb = self.is(next, Kind::Word) && !self.is_capitalized(next);
                let safe = !verb
                    || matches!(self.text(next), "of" | "is" | "was" | "and" | "in" | "began" | "ended");
                if !safe {
                    return None;
                }
                capitalize(&cardinal(value))
            }
            "I" => {
                if !(titled && ruler) {
                    return None;
                }
                ordinal_words()
            }
            "L" | "C" | "D" | "M" => return None,
            _ if ruler && self.text(i + 1) != "." => ordinal_words(),
            _ if numbered => capitalize(&cardinal(value)),
            _ if numeral.len() >= 3 || numeral == "II" => capitalize(&cardinal(value)),
            _ => return None,
        };
        Some((words, i + 1))
    }
}

/// Value of a well-formed Roman numeral below 90.
fn roman_value(text: &str) -> Option<u64> {
    const TENS: [&str; 9] = ["", "X", "XX", "XXX", "XL", "L", "LX", "LXX", "LXXX"];
    const ONES: [&str; 10] = ["", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"];
    if text.is_empty() || text.len() > 8 {
        return None;
    }
    let split = text.find(['I', 'V']).unwrap_or(text.len());
    // In IX the ten belongs to the ones.
    let (tens, ones) = text.split_at(split);
    let tens = TENS.iter().position(|&t| t == tens)?;
    let ones = ONES.iter().position(|&o| o == ones)?;
    Some((tens * 10 + ones) as u64)
}

fn capitalize(words: &str) -> String {
    let mut chars = words.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars).collect(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roman_numerals() {
        for (text, want) in [("I", 1), ("IV", 4), ("IX", 9), ("XIV", 14), ("XLII", 42), ("LXXXVIII", 88)] {
            assert_eq!(roman_value(text), Some(want), "{text}");
        }
        for text in ["", "IIII", "VX", "IC", "MIX", "CIVIL", "vi", "XIX "] {
            assert_eq!(roman_value(text), None, "{text}");
        }
        assert_eq!(roman_value("XIX"), Some(19));
    }
}
