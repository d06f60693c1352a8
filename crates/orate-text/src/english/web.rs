//! Web and mail addresses.

use super::letters::{Spelled, is_spelled, spell};
use super::numbers::digits;
use super::reader::{Found, LOOK_AHEAD, Reader};
use super::tokens::{Kind, tokens};

/// Endings that make a bare `name.ending` an address. English words are not included, since the space after a
/// full stop is often forgotten.
const TOP_LEVEL: &[&str] = &[
    "ai", "app", "au", "biz", "blog", "br", "ca", "ch", "cn", "co", "com", "de", "dev", "edu", "eu", "fr",
    "gov", "info", "int", "io", "jp", "kr", "mil", "net", "nl", "nz", "org", "ru", "se", "tech", "tv", "uk",
    "us", "xyz",
];

impl Reader<'_> {
    /// The address that fills the run of non-spaces at token `i`, if it is one.
    pub(super) fn address(&self, i: usize) -> Found {
        if !self.is(i, Kind::Word) && !self.is(i, Kind::Digits) {
            return None;
        }
        let run = self.tokens[i..].iter().take(LOOK_AHEAD).take_while(|t| t.kind != Kind::Space).count();
        if run == LOOK_AHEAD {
            return None;
        }
        let (first, last) = (self.tokens.get(i)?, self.tokens.get(i + run.checked_sub(1)?)?);
        let text = self.source[first.start..last.end()]
            .trim_end_matches(|c: char| ".,;:!?)]}>\"'*_\u{201D}\u{2019}\u{2026}".contains(c));
        let said = if let Some(rest) = strip_scheme(text) {
            rest.trim_end_matches('/')
        } else if is_mail(text) || is_host_and_path(text) {
            text.trim_end_matches('/')
        } else {
            return None;
        };
        if said.is_empty() {
            return None;
        }
        let stop = first.start + text.len();
        let end = i + self.tokens[i..].iter().take(run).take_while(|t| t.end() <= stop).count();
        // The address must end with a token: "example.com's" does not.
        (self.tokens[end - 1].end() == stop).then(|| (self.spoken(said), end))
    }

    fn spoken(&self, address: &str) -> String {
        let mut parts: Vec<String> = Vec::new();
        for token in tokens(address) {
            parts.push(match token.kind {
                Kind::Digits => digits(token.text),
                Kind::Word => self.spoken_label(token.text),
                Kind::Space => continue,
                Kind::Mark => match token.text.chars().next().and_then(mark_name) {
                    Some(name) => name.to_owned(),
                    None => continue,
                },
            });
        }
        parts.join(" ")
    }

    /// Spells labels that cannot be pronounced: `www`, `uk`, `html`.
    fn spoken_label(&self, label: &str) -> String {
        let capitals = label.to_ascii_uppercase();
        if is_spelled(&capitals) == Some(Spelled::Always) || matches!(label, "us" | "www" | "tv") {
            spell(label, self.rules.letters)
        } else {
            label.to_owned()
        }
    }
}

/// How a mark is named in addresses and in spelled words.
pub(super) fn mark_name(mark: char) -> Option<&'static str> {
    Some(match mark {
        '.' => "dot",
        '/' => "slash",
        '-' => "dash",
        '_' => "underscore",
        '?' => "question mark",
        '=' => "equals",
        '&' => "and",
        '#' => "hash",
        '%' => "percent",
        '~' => "tilde",
        ':' => "colon",
        '@' => "at",
        '+' => "plus",
        _ => return None,
    })
}

fn strip_scheme(text: &str) -> Option<&str> {
    let lower = |prefix: &str| text.get(..prefix.len()).filter(|head| head.eq_ignore_ascii_case(prefix));
    let mut rest = text;
    let mut found = false;
    for scheme in ["https://", "http://", "ftp://"] {
        if lower(scheme).is_some() {
            rest = &text[scheme.len()..];
            found = true;
        }
    }
    match rest.strip_prefix("www.") {
        Some(rest) => Some(rest),
        None => found.then_some(rest),
    }
}

fn is_mail(text: &str) -> bool {
    let Some((user, host)) = text.split_once('@') else { return false };
    let user_ok = user.bytes().all(|b| b.is_ascii_alphanumeric() || b"._%+-".contains(&b));
    !user.is_empty() && user_ok && is_host(host)
}

fn is_host(host: &str) -> bool {
    host.contains('.')
        && host
            .split('.')
            .all(|label| !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
        && host
            .rsplit('.')
            .next()
            .is_some_and(|end| end.len() >= 2 && end.bytes().all(|b| b.is_ascii_alphabetic()))
}

fn is_host_and_path(text: &str) -> bool {
    let host = text.split(['/', '?', '#', ':']).next().unwrap_or_default();
    is_host(host) && host.rsplit('.').next().is_some_and(|end| TOP_LEVEL.contains(&end))
}
