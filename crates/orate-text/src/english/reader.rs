//! One pass over the tokens; at each, the first rule that matches says its words.

use super::letters::{Spelled, is_spelled, spell, spell_with_s};
use super::numbers::{cardinal, cardinal_digits, digits, make_ordinal};
use super::tokens::{Kind, Token, Tokens, superscript, tokens, vulgar_fraction};
use super::{Letters, Rules};
use crate::pieces::ends_in_abbreviation;
use crate::traced::Make;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// Result of a rule: words to say, and the first token after those consumed.
pub(super) type Found = Option<(String, usize)>;

/// When the full stop of an abbreviation also ends a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dot {
    /// Only at the end of a paragraph: titles.
    AtEnd,
    /// Before a capital: "at 5 p.m. He left".
    BeforeCapital,
    /// Before a word that begins sentences: "in the U.S. He", but not "U.S. Steel".
    BeforeStarter,
}

/// Maximum tokens in memory, so that memory does not grow with the text.
const WINDOW: usize = 4096;
/// Tokens after the current one that rules can see. Only addresses, versions and grouped numbers could be
/// longer.
pub(super) const LOOK_AHEAD: usize = 1024;
/// Tokens before the current one that rules can see.
const LOOK_BACK: usize = 16;

pub(super) struct Reader<'a> {
    pub source: &'a str,
    /// Current tokens of the source; token indices count from the first of these.
    pub tokens: Vec<Token<'a>>,
    rest: Tokens<'a>,
    pub rules: Rules,
    /// The next token to read.
    at: usize,
    out: &'a mut dyn Make,
    /// Whether spoken words were written last, which need a space before further letters.
    joined: bool,
    /// The token after the last number.
    number_end: Option<usize>,
    /// Inside straight double quotes, where `12"` is not a length.
    quoted: bool,
}

impl<'a> Reader<'a> {
    pub fn new(source: &'a str, rules: Rules, out: &'a mut dyn Make) -> Self {
        Self {
            source,
            tokens: Vec::with_capacity(WINDOW),
            rest: tokens(source),
            rules,
            at: 0,
            out,
            joined: false,
            number_end: None,
            quoted: false,
        }
    }

    pub fn read(mut self) {
        while let Some(token) = self.next_token() {
            if self.is_start(self.at)
                && let Some((words, end)) = self.address(self.at)
            {
                self.say(&words, end);
                continue;
            }
            match token.kind {
                Kind::Space => self.keep(),
                Kind::Word => self.word(),
                Kind::Digits => self.digits(self.at),
                Kind::Mark => self.mark(token.text),
            }
        }
    }

    /// Returns the next token to read, and ensures that the tokens around it are in memory.
    fn next_token(&mut self) -> Option<Token<'a>> {
        while self.tokens.len() < self.at + LOOK_AHEAD {
            let passed = self.at.saturating_sub(LOOK_BACK).min(self.tokens.len());
            self.tokens.drain(..passed);
            self.at -= passed;
            self.number_end = self.number_end.and_then(|end| end.checked_sub(passed));
            let held = self.tokens.len();
            self.tokens.extend(self.rest.by_ref().take(WINDOW - held));
            if self.tokens.len() < WINDOW {
                break;
            }
        }
        self.tokens.get(self.at).copied()
    }

    // ---- Lookup. Indices past either end return an empty text.

    pub fn text(&self, i: usize) -> &'a str {
        self.tokens.get(i).map_or("", |token| token.text)
    }

    pub fn is(&self, i: usize, kind: Kind) -> bool {
        self.tokens.get(i).is_some_and(|token| token.kind == kind)
    }

    /// A space that does not end the line.
    pub fn is_gap(&self, i: usize) -> bool {
        self.is(i, Kind::Space) && !self.text(i).contains('\n')
    }

    /// `i`, or the token after it if there is a gap.
    pub fn skip_gap(&self, i: usize) -> usize {
        if self.is_gap(i) { i + 1 } else { i }
    }

    pub fn is_capitalized(&self, i: usize) -> bool {
        self.is(i, Kind::Word) && self.text(i).starts_with(char::is_uppercase)
    }

    fn is_lowercase(&self, i: usize) -> bool {
        self.is(i, Kind::Word) && self.text(i).starts_with(char::is_lowercase)
    }

    /// The word before token `i`, across one space.
    pub fn word_before(&self, i: usize) -> Option<usize> {
        let mut j = i.checked_sub(1)?;
        if self.is(j, Kind::Space) {
            j = j.checked_sub(1)?;
        }
        self.is(j, Kind::Word).then_some(j)
    }

    /// The text of [`Self::word_before`], or nothing.
    pub fn text_before(&self, i: usize) -> &'a str {
        self.word_before(i).map_or("", |j| self.text(j))
    }

    /// Whether a number ends right before token `i`.
    fn follows_number(&self, i: usize) -> bool {
        self.number_end == Some(i)
    }

    /// Whether a number and one space precede token `i`.
    fn follows_number_and_gap(&self, i: usize) -> bool {
        i > 0 && self.is_gap(i - 1) && self.number_end == Some(i - 1)
    }

    /// Whether token `i` is preceded by space, an opening mark or nothing.
    pub fn is_open(&self, i: usize) -> bool {
        i == 0 || self.is(i - 1, Kind::Space) || is_opening(self.text(i - 1))
    }

    /// The beginning of a run without spaces, before or after one opening mark.
    fn is_start(&self, i: usize) -> bool {
        i == 0
            || self.is(i - 1, Kind::Space)
            || (is_opening(self.text(i - 1)) && (i == 1 || self.is(i - 2, Kind::Space)))
    }

    pub fn is_line_start(&self, i: usize) -> bool {
        i == 0 || self.text(i - 1).contains('\n') || (i == 1 && self.is(0, Kind::Space))
    }

    /// Whether a phrase before token `end` modifies what follows, as in "a 5 km run", where the
    /// unit is singular.
    pub fn is_adjective(&self, start: usize, end: usize) -> bool {
        const FUNCTION_WORDS: &[&str] = &[
            "a", "about", "after", "and", "as", "at", "away", "before", "but", "by", "each", "for", "from",
            "in", "is", "long", "of", "on", "or", "per", "than", "to", "was", "with",
        ];
        matches!(self.text_before(start), "a" | "an" | "A" | "An" | "another")
            && self.is_gap(end)
            && self.is_lowercase(end + 1)
            && !FUNCTION_WORDS.contains(&self.text(end + 1))
    }

    /// Whether an abbreviation's full stop, just before token `i`, also ends the sentence.
    pub fn ends_sentence(&self, i: usize, dot: Dot) -> bool {
        if i >= self.tokens.len() {
            return true;
        }
        let mut next = i;
        while matches!(self.text(next), "\"" | "\u{201D}" | "\u{2019}" | "'") && next < i + 2 {
            next += 1;
        }
        if next >= self.tokens.len() {
            return true;
        }
        if !self.is(next, Kind::Space) {
            return false;
        }
        if next + 1 >= self.tokens.len() || self.text(next).matches('\n').count() >= 2 {
            return true;
        }
        next += 1;
        if is_opening(self.text(next))
            && !matches!(self.text(next), "(" | "[" | "-" | "\u{2013}" | "\u{2014}")
        {
            next += 1;
        }
        match dot {
            Dot::AtEnd => false,
            Dot::BeforeCapital => self.is_capitalized(next) && !is_time_word(self.text(next)),
            Dot::BeforeStarter => SENTENCE_STARTERS.contains(&self.text(next)),
        }
    }

    pub fn spell(&self, letters: &str) -> String {
        spell(letters, self.rules.letters)
    }

    // ---- Output.

    /// Where token `i` starts in the source.
    fn start(&self, i: usize) -> usize {
        match (self.tokens.get(i), self.tokens.last()) {
            (Some(token), _) => token.start,
            // Rules look beyond the tokens in memory only for a run of one mark.
            (None, Some(last)) => last.end() + (i - self.tokens.len()) * last.text.len(),
            (None, None) => 0,
        }
    }

    /// Copies the current token.
    fn keep(&mut self) {
        let (text, start) = (self.text(self.at), self.start(self.at));
        if self.joined && text.starts_with(char::is_alphanumeric) {
            self.out.make(" ", start..start);
        }
        self.joined = false;
        self.out.copy(text, start);
        self.at += 1;
    }

    /// Writes a space in place of the current token.
    fn keep_apart(&mut self) {
        self.out.make(" ", self.start(self.at)..self.start(self.at + 1));
        self.joined = false;
        self.at += 1;
    }

    /// Writes words in place of the tokens up to `end`.
    fn say(&mut self, words: &str, end: usize) {
        let source = self.start(self.at)..self.start(end);
        let before = self.out.text();
        if before.ends_with(|c: char| c.is_alphanumeric() || ",;:".contains(c))
            || (self.joined && !before.ends_with(char::is_whitespace))
        {
            self.out.make(" ", source.start..source.start);
        }
        self.out.make(words, source);
        self.joined = true;
        self.at = end;
    }

    fn say_number(&mut self, (words, end): (String, usize)) {
        self.say(&words, end);
        self.number_end = Some(end);
    }

    fn drop_until(&mut self, end: usize) {
        self.at = end;
    }

    // ---- Rules.

    fn digits(&mut self, i: usize) {
        let found = self
            .iso_date(i)
            .or_else(|| self.numeric_date(i))
            .or_else(|| self.phone(i))
            .or_else(|| self.clock(i))
            .or_else(|| self.version(i))
            .or_else(|| self.day_month(i))
            .or_else(|| self.fraction(i))
            .or_else(|| self.ordinal(i))
            .or_else(|| self.decade(i))
            .or_else(|| self.height(i))
            .or_else(|| self.quantity(i))
            .unwrap_or_else(|| (digits(self.text(i)), i + 1));
        self.say_number(found);
    }

    fn word(&mut self) {
        let i = self.at;
        let found = self
            .dotted_letters(i)
            .or_else(|| self.abbreviation(i))
            .or_else(|| self.month_day(i))
            .or_else(|| self.roman(i))
            .or_else(|| self.prefixed_money(i))
            .or_else(|| self.small_word(i))
            .or_else(|| self.lone_letter(i))
            .or_else(|| self.acronym(i));
        match found {
            Some((words, end)) => self.say(&words, end),
            None => self.keep(),
        }
    }

    /// One-letter words with a meaning next to numbers and slashes.
    fn small_word(&self, i: usize) -> Found {
        let next_is_digit = self.is(i + 1, Kind::Digits);
        match self.text(i) {
            "v" if next_is_digit && self.is_open(i) => Some(("version".to_owned(), i + 1)),
            "x" | "X" => {
                let after_number = self.follows_number(i) || self.follows_number_and_gap(i);
                (after_number && self.is(self.skip_gap(i + 1), Kind::Digits))
                    .then(|| ("by".to_owned(), i + 1))
            }
            "w" | "W" if self.text(i + 1) == "/" && self.is_open(i) => match self.text(i + 2) {
                "o" => Some(("without".to_owned(), i + 3)),
                _ => Some(("with".to_owned(), i + 2)),
            },
            "c" if self.text(i + 1) == "/" && self.text(i + 2) == "o" => Some(("care of".to_owned(), i + 3)),
            "n" | "N" if self.text(i + 1) == "/" && matches!(self.text(i + 2), "a" | "A") => {
                Some(("not applicable".to_owned(), i + 3))
            }
            _ => None,
        }
    }

    /// A letter that is all of its line or sentence: `X` becomes `ex`. With most seeds, voices that never
    /// learned single letters are silent there.
    fn lone_letter(&self, i: usize) -> Found {
        let word = self.text(i);
        let mut base = word.nfkd().filter(|c| !is_combining_mark(*c));
        let letter = base.next().filter(char::is_ascii_alphabetic)?;
        if self.rules.letters != Letters::Names || base.next().is_some() {
            return None;
        }
        let ends = |j: &usize| self.text(*j).contains('\n') || self.cuts_sentence(*j);
        let is_silent = |j: usize| matches!(self.tokens[j].kind, Kind::Space | Kind::Mark);
        let before = (0..i).rev().take_while(|j| !ends(j));
        let after = (i + 1..self.tokens.len()).take_while(|j| !ends(j));
        if !before.chain(after).all(is_silent) {
            return None;
        }
        // "Not me. I." ends in a word.
        let is_word = matches!(word, "I" | "a" | "A") && self.text(i + 1) == ".";
        let follows_sentence = (0..i).rev().find(ends).is_some_and(|j| self.cuts_sentence(j));
        (!is_word || !follows_sentence).then(|| (self.spell(letter.encode_utf8(&mut [0; 4])), i + 1))
    }

    /// Whether pieces may be cut after token `i`.
    fn cuts_sentence(&self, i: usize) -> bool {
        let is_end = match self.text(i) {
            "?" | "!" => true,
            "." => !ends_in_abbreviation(&self.source[..self.tokens[i].end()]),
            _ => false,
        };
        is_end && self.is(i + 1, Kind::Space)
    }

    fn acronym(&self, i: usize) -> Found {
        let word = self.text(i);
        if word.len() < 2 || !word.is_ascii() && !word.contains('\u{2019}') {
            return None;
        }
        match word {
            "PhD" => return Some((self.spell(word), i + 1)),
            "WWI" => return Some(("World War One".to_owned(), i + 1)),
            "WWII" => return Some(("World War Two".to_owned(), i + 1)),
            _ => {}
        }
        let (base, ending) = match word.strip_suffix("'s").or_else(|| word.strip_suffix("\u{2019}s")) {
            Some(base) => (base, true),
            None => match word.strip_suffix('s') {
                Some(base) => (base, true),
                None => (word, false),
            },
        };
        // AT&T, but not "ROCK & ROLL".
        if self.text(i + 1) == "&" && word.len() == 2 && word.bytes().all(|b| b.is_ascii_uppercase()) {
            return Some((self.spell(word), i + 1));
        }
        match is_spelled(base)? {
            Spelled::UnlessShouting if self.is_shouted(i) => None,
            _ if ending => Some((spell_with_s(base, self.rules.letters), i + 1)),
            _ => Some((self.spell(base), i + 1)),
        }
    }

    /// Whether a neighboring word is all capitals and not an acronym.
    fn is_shouted(&self, i: usize) -> bool {
        let shouted = |j: usize| {
            let word = self.text(j);
            self.is(j, Kind::Word)
                && word.len() >= 2
                && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'\'')
                && is_spelled(word) != Some(Spelled::Always)
        };
        self.word_before(i).is_some_and(shouted) || (self.is_gap(i + 1) && shouted(i + 2))
    }

    fn mark(&mut self, mark: &str) {
        let i = self.at;
        let Some(c) = mark.chars().next() else { return self.keep() };
        // Only marks that are consumed as a run are counted, as counting would otherwise be quadratic.
        let in_runs =
            matches!(c, '*' | '=' | '_' | '#' | '~' | '+' | '<' | '>' | '^' | '|' | '/' | '\\' | '§' | '$');
        let run = if in_runs { self.run_of(i, mark) } else { 1 };
        let next_is_digit = self.is(i + 1, Kind::Digits);
        let next_is_word = self.is(i + 1, Kind::Word);
        let attached = i > 0 && !self.is(i - 1, Kind::Space) && !is_opening(self.text(i - 1));
        // Markdown and mail: rulers, list bullets, headings, quoted lines.
        if run > 2 && matches!(c, '*' | '=' | '_' | '#' | '~' | '+' | '<' | '>' | '^' | '|' | '/' | '\\') {
            return self.drop_until(i + run);
        }
        if self.is_line_start(i) && matches!(c, '#' | '*' | '>' | '+') && self.is(i + run, Kind::Space) {
            return self.drop_until(i + run);
        }
        if let Some(found) = self.money(i, "") {
            return self.say_number(found);
        }
        if matches!(c, '+' | '(')
            && self.is_open(i)
            && let Some(found) = self.phone(i)
        {
            return self.say_number(found);
        }
        if c == '<'
            && let Some(end) = self.markup_end(i)
        {
            return self.drop_until(end);
        }
        if let Some((n, d)) = vulgar_fraction(c) {
            let found = self.vulgar(i, n, d);
            return self.say_number(found);
        }
        if let Some(first) = superscript(c) {
            return self.power(i, first);
        }
        if self.ends_sentence_without_gap(i, c) {
            self.keep();
            let start = self.start(self.at);
            return self.out.make(" ", start..start);
        }
        match c {
            '-' | '\u{2212}' | '\u{2013}' | '\u{2010}' | '\u{2011}' => self.dash(c),
            '.' => self.dot(),
            '"' => {
                self.quoted = !self.quoted;
                self.keep();
            }
            '\'' | '\u{2019}' if !attached && self.decade(i + 1).is_some() => self.drop_until(i + 1),
            '\'' | '\u{2019}' if !attached && self.is_short_year(i + 1) => self.drop_until(i + 1),
            '&' => self.say("and", i + 1),
            '%' => self.say("percent", i + 1),
            '‰' => self.say("per mille", i + 1),
            '+' => self.say(if run == 2 { "plus plus" } else { "plus" }, i + run),
            '=' if self.text(i + 1) == ">" => self.say("to", i + 2),
            '=' => self.say("equals", i + run),
            '!' if self.text(i + 1) == "=" => {
                self.say("is not equal to", i + 1 + self.run_of(i + 1, "="));
            }
            '@' => self.say("at", i + 1),
            '#' => self.hash(next_is_digit, next_is_word, attached),
            '*' => {
                let factor = self.follows_number(i) || self.follows_number_and_gap(i);
                if factor && self.is(self.skip_gap(i + run), Kind::Digits) {
                    self.say("times", i + run);
                } else if self.is_open(i) && !next_is_word && !next_is_digit && self.is(i + run, Kind::Space)
                {
                    self.say("asterisk", i + run);
                } else {
                    self.drop_until(i + run);
                }
            }
            '/' | '\u{2044}' => self.slash(attached),
            '<' if self.text(i + 1) == "=" => self.say("is less than or equal to", i + 2),
            '>' if self.text(i + 1) == "=" => self.say("is greater than or equal to", i + 2),
            '<' if self.text(i + 1) == "-" && !self.is(i + 2, Kind::Digits) => self.say("from", i + 2),
            '<' => self.say("less than", i + run),
            '>' => self.say("greater than", i + run),
            '~' if next_is_digit || self.text(i + 1) == "$" => self.say("about", i + 1),
            '~' if run == 2 => self.drop_until(i + run),
            '~' => self.say("tilde", i + 1),
            '^' if self.text(i + 1) == "-" && self.is(i + 2, Kind::Digits) => {
                self.say("to the power of minus", i + 2);
            }
            '^' if next_is_digit => self.say("to the power of", i + 1),
            '^' | '`' | '™' | '®' => self.drop_until(i + 1),
            '_' | '|' => self.keep_apart(),
            '\\' => self.say("backslash", i + 1),
            '°' => self.say("degrees", i + 1),
            '©' => self.say("copyright", i + 1),
            '§' => self.say(if run > 1 { "sections" } else { "section" }, i + run),
            '¶' => self.say("paragraph", i + 1),
            '№' => self.say("number", i + 1),
            '$' => self.say("dollar", i + run),
            '€' => self.say("euro", i + 1),
            '£' => self.say("pound", i + 1),
            '¥' => self.say("yen", i + 1),
            '¢' => self.say("cents", i + 1),
            '×' => self.say("times", i + 1),
            '÷' => self.say("divided by", i + 1),
            '±' => self.say("plus or minus", i + 1),
            '≈' => self.say("about", i + 1),
            '≠' => self.say("is not equal to", i + 1),
            '≤' => self.say("is less than or equal to", i + 1),
            '≥' => self.say("is greater than or equal to", i + 1),
            '∞' => self.say("infinity", i + 1),
            '√' => self.say("the square root of", i + 1),
            '→' | '⇒' => self.say("to", i + 1),
            '\u{2033}' if self.follows_number(i) => self.say("inches", i + 1),
            '\u{2032}' if self.follows_number(i) => self.say("feet", i + 1),
            _ => self.keep(),
        }
    }

    /// Number of consecutive marks from token `i` on, also beyond the tokens in memory.
    fn run_of(&self, i: usize, mark: &str) -> usize {
        let rest = self.tokens.get(i).map_or("", |token| &self.source[token.start..]);
        (rest.len() - rest.trim_start_matches(mark).len()) / mark.len()
    }

    /// Minus, "to", an arrow, or just a dash.
    fn dash(&mut self, c: char) {
        let i = self.at;
        let next = i + 1;
        let amount_at = |j: usize| {
            self.is(j, Kind::Digits)
                || (matches!(self.text(j), "." | "$" | "€" | "£") && self.is(j + 1, Kind::Digits))
        };
        if c == '-' && self.text(next) == ">" {
            return self.say("to", next + 1);
        }
        // "Fifty-fifty", without "to".
        if self.follows_number(i) && self.text(i - 1) == "50" && self.text(next) == "50" {
            return self.keep();
        }
        if self.follows_number(i) && amount_at(next) {
            return self.say(if c == '\u{2212}' { "minus" } else { "to" }, next);
        }
        if self.follows_number_and_gap(i) && self.is_gap(next) && amount_at(next + 1) {
            let falls = self.is_falling(i, next + 1);
            let minus = c == '\u{2212}' || (c == '-' && falls);
            return self.say(if minus { "minus" } else { "to" }, next);
        }
        if amount_at(next) && self.is_open(i) {
            return self.say("minus", next);
        }
        if c == '\u{2212}' { self.say("minus", next) } else { self.keep() }
    }

    /// Whether the whole number two tokens before `i` is greater than that at `j`.
    fn is_falling(&self, i: usize, j: usize) -> bool {
        let value = |k: usize| super::numbers::parse(self.text(k));
        match (i.checked_sub(2).and_then(value), value(j)) {
            (Some(a), Some(b)) => a > b,
            _ => false,
        }
    }

    /// A decimal without a whole part, a dot inside a name, or a full stop.
    fn dot(&mut self) {
        let i = self.at;
        if self.is_open(i) && self.is(i + 1, Kind::Digits) {
            let words = format!("point {}", digits(self.text(i + 1)));
            let (unit, end) = self.unit_after(i, i + 2, false).unwrap_or_default();
            if unit.is_empty() {
                return self.say_number((words, i + 2));
            }
            return self.say_number((format!("{words} {unit}"), end));
        }
        let between = i > 0
            && (self.is(i - 1, Kind::Word) || self.is(i - 1, Kind::Digits))
            && (self.is_lowercase(i + 1) || (self.is(i - 1, Kind::Word) && self.is(i + 1, Kind::Digits)));
        if !between {
            return self.keep();
        }
        let ending = self.text(i + 1);
        let spelled = ending.len() <= 4
            && ending.is_ascii()
            && self.is(i + 1, Kind::Word)
            && !ending.bytes().any(|b| b"aeiouy'".contains(&b));
        if spelled {
            let words = format!("dot {}", self.spell(ending));
            self.say(&words, i + 2);
        } else {
            self.say("dot", i + 1);
        }
    }

    /// Whether a mark ends a sentence and the next one follows without a space: `home.Then`, `Wow!Really?`.
    fn ends_sentence_without_gap(&self, i: usize, c: char) -> bool {
        if !matches!(c, '.' | '!' | '?') || i == 0 || !self.is(i + 1, Kind::Word) {
            return false;
        }
        let (before, next) = (self.text(i - 1), self.text(i + 1));
        let is_word = self.is(i - 1, Kind::Word) && before.chars().nth(1).is_some();
        if c != '.' {
            return is_word || matches!(before, "!" | "?");
        }
        let mut letters = next.chars();
        is_word
            && before.ends_with(char::is_lowercase)
            && letters.next().is_some_and(char::is_uppercase)
            && letters.next().is_none_or(char::is_lowercase)
    }

    fn hash(&mut self, next_is_digit: bool, next_is_word: bool, attached: bool) {
        let i = self.at;
        if attached && self.is(i - 1, Kind::Word) {
            let note = matches!(self.text(i - 1), "C" | "F" | "G" | "A" | "D");
            return self.say(if note { "sharp" } else { "hash" }, i + 1);
        }
        if next_is_digit {
            return self.say("number", i + 1);
        }
        if !next_is_word {
            return self.say("hash", i + 1);
        }
        // #HelloWorld: a new word at each capital after a small letter.
        let mut words = String::from("hashtag ");
        let mut previous = ' ';
        for c in self.text(i + 1).chars() {
            if c.is_uppercase() && previous.is_lowercase() {
                words.push(' ');
            }
            words.push(c);
            previous = c;
        }
        self.say(&words, i + 2);
    }

    fn slash(&mut self, attached: bool) {
        let i = self.at;
        let before = if attached && i > 0 { self.text(i - 1) } else { "" };
        let pair = (before, self.text(i + 1));
        let silent = matches!(
            pair,
            ("and" | "And", "or")
                | ("either" | "Either", "or")
                | ("TCP", "IP")
                | ("input" | "Input", "output")
        );
        if silent {
            self.keep_apart();
        } else {
            self.say("slash", i + 1);
        }
    }

    /// Superscripts after a number, a unit or a letter.
    fn power(&mut self, i: usize, first: u32) {
        let mut end = i + 1;
        let mut text = first.to_string();
        while let Some(digit) = self.text(end).chars().next().and_then(superscript) {
            text.push_str(&digit.to_string());
            end += 1;
        }
        let words = match text.as_str() {
            "2" => "squared".to_owned(),
            "3" => "cubed".to_owned(),
            other => format!("to the {}", make_ordinal(cardinal_digits(other))),
        };
        self.say(&words, end);
    }

    /// `½` alone or after a whole number, with the unit that may follow.
    fn vulgar(&self, i: usize, n: u64, d: u64) -> (String, usize) {
        let words =
            super::numbers::fraction(n, d).unwrap_or_else(|| format!("{} over {}", cardinal(n), cardinal(d)));
        match self.unit_after(i, i + 1, true) {
            Some((unit, end)) => (format!("{words} {unit}"), end),
            None => (words, i + 1),
        }
    }

    /// The `85` of "in '85".
    fn is_short_year(&self, i: usize) -> bool {
        self.is(i, Kind::Digits)
            && self.text(i).len() == 2
            && matches!(
                self.text_before(i - 1),
                "in" | "In"
                    | "of"
                    | "since"
                    | "Since"
                    | "until"
                    | "from"
                    | "to"
                    | "early"
                    | "late"
                    | "summer"
            )
    }

    /// The token after a plain tag such as `<b>`, `</b>` or `<br/>`.
    fn markup_end(&self, i: usize) -> Option<usize> {
        let name = i + 1 + usize::from(self.text(i + 1) == "/");
        let close = name + 1 + usize::from(self.text(name + 1) == "/");
        (self.is(name, Kind::Word) && self.text(close) == ">").then_some(close + 1)
    }

    /// Whether a straight double quote at token `i` closes no quotation, so that it may mean inches.
    pub fn is_inch_mark(&self, i: usize) -> bool {
        self.text(i) == "\u{2033}" || (self.text(i) == "\"" && !self.quoted)
    }
}

fn is_opening(mark: &str) -> bool {
    matches!(
        mark,
        "(" | "["
            | "{"
            | "\""
            | "'"
            | "\u{201C}"
            | "\u{2018}"
            | "\u{201E}"
            | "\u{AB}"
            | "\u{2014}"
            | "\u{2013}"
            | "<"
            | "="
            | "*"
            | "_"
            | "~"
    )
}

/// Words that follow a time without starting a sentence.
fn is_time_word(word: &str) -> bool {
    const ZONES: &[&str] =
        &["EST", "EDT", "CST", "CDT", "MST", "MDT", "PST", "PDT", "GMT", "UTC", "BST", "CET", "CEST", "ET"];
    ZONES.contains(&word) || super::calendar::month(word).is_some() || super::calendar::is_weekday(word)
}

/// Capitalized words that almost always start a sentence.
const SENTENCE_STARTERS: &[&str] = &[
    "A", "After", "All", "Although", "An", "And", "As", "At", "Because", "Before", "But", "By", "Can", "Did",
    "Do", "Even", "For", "From", "He", "Her", "Here", "His", "How", "However", "I", "I'm", "If", "In", "Is",
    "It", "It's", "Its", "Let", "Many", "My", "No", "Not", "Now", "On", "One", "Or", "Our", "She", "So",
    "Some", "That", "The", "Then", "There", "These", "They", "This", "To", "We", "What", "When", "Where",
    "Who", "Why", "You",
];
