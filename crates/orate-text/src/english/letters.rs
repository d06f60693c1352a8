//! Spelling: which words are said letter by letter, and how letters are written.

use super::Letters;

const NAMES: [&str; 26] = [
    "ay",
    "bee",
    "see",
    "dee",
    "ee",
    "eff",
    "jee",
    "aitch",
    "eye",
    "jay",
    "kay",
    "ell",
    "em",
    "en",
    "oh",
    "pee",
    "cue",
    "are",
    "ess",
    "tee",
    "you",
    "vee",
    "double you",
    "ex",
    "why",
    "zee",
];

/// Acronyms that are spelled although they contain a vowel and could be pronounced.
const SPELLED: &[&str] = &[
    "ABC", "ABS", "AC", "ACLU", "ADHD", "AI", "AKA", "AM", "AOL", "API", "ASAP", "ATM", "ATV", "AWS", "BA",
    "BCE", "BMI", "CE", "CEO", "CFO", "CIA", "CIO", "COO", "CPA", "CPU", "CTO", "DIY", "DNA", "DOJ", "ECG",
    "EEG", "EKG", "EMT", "EPA", "EPS", "ESL", "ESPN", "ETA", "ETF", "EU", "EV", "FAA", "FAQ", "FBI", "FDA",
    "FYI", "GDPR", "GI", "GPA", "GPU", "HIV", "HOA", "IBM", "ICU", "ID", "IDE", "IMDB", "IMF", "IOU", "IP",
    "IPO", "IQ", "IRC", "IRS", "ISO", "ISP", "ISS", "IT", "ITV", "IV", "IVF", "LA", "LAPD", "LED", "MBA",
    "MIT", "MRI", "NBA", "NCAA", "NSA", "NYU", "OBE", "OCD", "OECD", "OMG", "OS", "PIN", "POW", "PTA", "QA",
    "RNA", "RSVP", "SEO", "SOS", "SUV", "TBA", "UAE", "UAV", "UCLA", "UFC", "UFO", "UHF", "UI", "UK", "UN",
    "UPS", "URI", "URL", "US", "USA", "USB", "USC", "USSR", "UV", "UX", "VAT", "VIP", "WWE", "YMCA", "YTD",
];

/// Words in capitals that are also common words; spelled only if the surrounding text is not all capitals.
const ALSO_WORDS: &[&str] =
    &["AD", "AM", "IT", "US", "PIN", "ID", "LED", "LA", "UPS", "POW", "VAT", "OS", "MIT"];

/// Pronounced as a word or sound, although without a vowel.
const SAID: &[&str] = &[
    "HM", "HMM", "HMMM", "MM", "MMM", "SH", "SHH", "SHHH", "PSST", "PFFT", "PST", "BRR", "BRRR", "GRR",
    "GRRR", "TSK", "ZZZ", "NTH",
];

/// Longest word that may be spelled; longer runs of consonants are noise.
const MAX_LETTERS: usize = 6;

/// Whether a word in capitals is spelled, and whether it doubles as a common word.
pub(super) fn is_spelled(word: &str) -> Option<Spelled> {
    let length = 2..=MAX_LETTERS;
    if !length.contains(&word.len()) || !word.bytes().all(|b| b.is_ascii_uppercase()) || SAID.contains(&word)
    {
        return None;
    }
    if ALSO_WORDS.contains(&word) {
        return Some(Spelled::UnlessShouting);
    }
    let first = word.as_bytes()[0];
    let same = word.bytes().all(|b| b == first);
    let no_vowel = !same && !word.bytes().any(|b| b"AEIOUY".contains(&b));
    (no_vowel || SPELLED.binary_search(&word).is_ok()).then_some(Spelled::Always)
}

/// When an acronym is spelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelled {
    Always,
    UnlessShouting,
}

/// Writes ASCII letters out; other characters stay.
pub(super) fn spell(word: &str, style: Letters) -> String {
    if style == Letters::Keep {
        return word.to_uppercase();
    }
    let mut out = String::with_capacity(word.len() * 3);
    for c in word.chars() {
        if !out.is_empty() {
            out.push(' ');
        }
        match (style, c.is_ascii_alphabetic()) {
            (Letters::Names, true) => out.push_str(NAMES[usize::from(c.to_ascii_uppercase() as u8 - b'A')]),
            _ => out.push(c.to_ascii_uppercase()),
        }
    }
    out
}

/// Writes an acronym in the plural (`CDs`) or possessive (`CEO's`).
pub(super) fn spell_with_s(word: &str, style: Letters) -> String {
    let spelled = spell(word, style);
    match style {
        // An apostrophe separates the letter from the ending: "C D's", not "C Ds".
        Letters::Spaced => spelled + "'s",
        Letters::Names => spelled + "s",
        Letters::Keep => spelled + "s",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_sorted() {
        assert!(SPELLED.is_sorted());
    }

    #[test]
    fn acronyms() {
        for word in ["FBI", "USA", "HTML", "BBC", "TV", "XML"] {
            assert_eq!(is_spelled(word), Some(Spelled::Always), "{word}");
        }
        for word in ["NASA", "NATO", "HELLO", "MY", "HMM", "A", "XXX", "OK", "PARIS", "Tv", "É"] {
            assert_eq!(is_spelled(word), None, "{word}");
        }
        assert_eq!(spell("fbi", Letters::Spaced), "F B I");
        assert_eq!(spell("FBI", Letters::Names), "eff bee eye");
        assert_eq!(spell_with_s("CD", Letters::Spaced), "C D's");
        assert_eq!(spell_with_s("CD", Letters::Names), "see dees");
    }
}
