//! Names of languages: codes, tags and English names, and which of a model's names they match.
//!
//! ```
//! use orate_text::languages;
//!
//! let codes = ["en", "pt", "zh"];
//! for asked in ["pt", "PT", "pt-BR", "pt_BR.UTF-8", "por", "Portuguese"] {
//!     assert_eq!(languages::find(asked, &codes), Some("pt"));
//! }
//! assert_eq!(languages::find("zh-Hans", &["english", "chinese"]), Some("chinese"));
//! assert_eq!(languages::find("tlh", &codes), None);
//! ```

/// ISO 639-1 codes of the languages that models speak, with other names: English ones, codes of ISO 639-2
/// and 639-3, deprecated codes, and variants that no model tells apart.
const LANGUAGES: &[(&str, &[&str])] = &[
    ("ar", &["arabic", "ara", "arb"]),
    ("bg", &["bulgarian", "bul"]),
    ("cs", &["czech", "ces", "cze"]),
    ("da", &["danish", "dan"]),
    ("de", &["german", "deu", "ger"]),
    ("el", &["greek", "modern greek", "ell", "gre"]),
    ("en", &["english", "eng"]),
    ("es", &["spanish", "castilian", "spa"]),
    ("et", &["estonian", "est", "ekk"]),
    ("fi", &["finnish", "fin"]),
    ("fr", &["french", "fra", "fre"]),
    ("he", &["hebrew", "heb", "iw"]),
    ("hi", &["hindi", "hin"]),
    ("hr", &["croatian", "hrv"]),
    ("hu", &["hungarian", "hun"]),
    ("id", &["indonesian", "ind", "in"]),
    ("it", &["italian", "ita"]),
    ("ja", &["japanese", "jpn"]),
    ("ko", &["korean", "kor"]),
    ("lt", &["lithuanian", "lit"]),
    ("lv", &["latvian", "lav", "lvs"]),
    ("ms", &["malay", "msa", "may", "zsm"]),
    ("nl", &["dutch", "flemish", "nld", "dut"]),
    ("no", &["norwegian", "nor", "nb", "nob", "nn", "nno"]),
    ("pl", &["polish", "pol"]),
    ("pt", &["portuguese", "por"]),
    ("ro", &["romanian", "moldavian", "moldovan", "ron", "rum", "mo", "mol"]),
    ("ru", &["russian", "rus"]),
    ("sk", &["slovak", "slk", "slo"]),
    ("sl", &["slovenian", "slovene", "slv"]),
    ("sv", &["swedish", "swe"]),
    ("sw", &["swahili", "swa", "swh"]),
    ("tr", &["turkish", "tur"]),
    ("uk", &["ukrainian", "ukr"]),
    ("vi", &["vietnamese", "vie"]),
    ("zh", &["chinese", "mandarin", "mandarin chinese", "zho", "chi", "cmn"]),
];

/// Maximum length of a subtag.
const SUBTAG: usize = 8;

/// Whether the name leaves the language to the model: `auto`, in any case, or nothing.
#[must_use]
pub fn is_auto(name: &str) -> bool {
    let name = name.trim();
    name.is_empty() || name.eq_ignore_ascii_case("auto")
}

/// Returns the code of a language in lowercase: of its English name, or of a code or tag in any case, without
/// script and region. `None` if `name` is neither.
///
/// A code that is not in the table stays as it is. `zh-HK` and `zh-yue` are `yue`: Cantonese is not Mandarin.
///
/// ```
/// use orate_text::languages::code;
///
/// assert_eq!(code("zh-Hant_TW").as_deref(), Some("zh"));
/// assert_eq!(code("Vietnamese").as_deref(), Some("vi"));
/// assert_eq!(code("EO").as_deref(), Some("eo"));
/// assert_eq!(code("the first"), None);
/// ```
#[must_use]
pub fn code(name: &str) -> Option<String> {
    let name = name.trim();
    if let Some(code) = listed(name) {
        return Some(code.to_owned());
    }
    // Locales may end in an encoding or a modifier: `pt_BR.UTF-8`, `sr_RS@latin`.
    let tag = name.split(['.', '@']).next().unwrap_or_default();
    let mut parts = tag.split(['-', '_']);
    let first = parts.next().unwrap_or_default();
    let is_code = (2..=SUBTAG).contains(&first.len()) && first.bytes().all(|b| b.is_ascii_alphabetic());
    let is_part =
        |part: &str| (1..=SUBTAG).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_alphanumeric());
    if !is_code || !parts.all(is_part) {
        return None;
    }
    // Longer words are codes only without subtags: `english-US` is neither a name nor a tag.
    let short = first.len() <= 3 || first.len() == tag.len();
    short.then(|| {
        let language = listed(first).map_or_else(|| first.to_ascii_lowercase(), str::to_owned);
        match language == "zh" {
            true => tag.split(['-', '_']).skip(1).find_map(other_chinese).unwrap_or(language),
            false => language,
        }
    })
}

/// The language other than Mandarin that a subtag after `zh` names: its own code, as in `zh-yue`, or a region
/// that speaks Cantonese.
fn other_chinese(subtag: &str) -> Option<String> {
    let subtag = subtag.to_ascii_lowercase();
    match &*subtag {
        "hk" | "mo" => Some("yue".to_owned()),
        "cmn" => None,
        _ => (subtag.len() == 3 && subtag.bytes().all(|b| b.is_ascii_alphabetic())).then_some(subtag),
    }
}

/// Returns the language among the `known` ones of a model that `asked` means. Both may be codes, tags or
/// English names.
///
/// An exact match in any case comes first, for models that distinguish regions.
#[must_use]
pub fn find<'k>(asked: &str, known: &[&'k str]) -> Option<&'k str> {
    let asked = asked.trim();
    let folded = |b: u8| if b == b'_' { b'-' } else { b.to_ascii_lowercase() };
    let is_asked = |name: &&&str| name.bytes().map(folded).eq(asked.bytes().map(folded));
    if let Some(name) = known.iter().find(is_asked) {
        return Some(name);
    }
    let wanted = code(asked)?;
    known.iter().find(|name| code(name).is_some_and(|code| code == wanted)).copied()
}

/// The code of a language in the table.
fn listed(name: &str) -> Option<&'static str> {
    let is_name = |other: &str| other.eq_ignore_ascii_case(name);
    let row =
        LANGUAGES.iter().find(|(code, names)| is_name(code) || names.iter().any(|other| is_name(other)));
    row.map(|(code, _)| *code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chatterbox::multilingual;
    use crate::supertonic::Version;

    const QWEN: [&str; 10] = [
        "chinese",
        "english",
        "french",
        "german",
        "italian",
        "japanese",
        "korean",
        "portuguese",
        "russian",
        "spanish",
    ];

    #[test]
    fn cantonese_is_not_mandarin() {
        for name in ["yue", "zh-HK", "zh_HK.UTF-8", "zh-Hant-HK", "zh-MO", "zh-yue", "zh-yue-HK", "chi-HK"] {
            assert_eq!(code(name).as_deref(), Some("yue"), "{name}");
            assert_eq!(find(name, &["zh", "en"]), None, "{name}");
        }
        for name in ["zh", "zh-cmn-Hans-CN", "zh-TW", "zh-Hant", "zh_CN.UTF-8"] {
            assert_eq!(find(name, &["chinese"]), Some("chinese"), "{name}");
        }
        assert_eq!(code("zh-wuu").as_deref(), Some("wuu"));
    }

    #[test]
    fn all_ways_to_write_a_language_lead_to_what_the_model_knows() {
        let models: [&[&str]; 5] =
            [&["en"], Version::V2.languages(), Version::V3.languages(), &multilingual::LANGUAGES, &QWEN];
        for known in models {
            for name in known {
                let (code, names) = LANGUAGES
                    .iter()
                    .find(|(code, names)| code == name || names.contains(name))
                    .unwrap_or_else(|| panic!("{name} is not in the table"));
                let tag = format!("{}-Latn-US", code.to_uppercase());
                let locale = format!("{code}_US.UTF-8");
                for asked in names.iter().copied().chain([*code, tag.as_str(), locale.as_str()]) {
                    assert_eq!(find(asked, known), Some(*name), "{asked}");
                    assert_eq!(find(&format!(" {} ", asked.to_uppercase()), known), Some(*name), "{asked}");
                }
            }
        }
    }

    #[test]
    fn tags_of_the_model_come_first_and_codes_outside_of_the_table_are_known() {
        let known = ["pt", "pt-BR", "eo", "na", "beijing_dialect"];
        for (asked, want) in [
            ("pt_br", Some("pt-BR")),
            ("pt-PT", Some("pt")),
            ("EO-x-old", Some("eo")),
            ("na", Some("na")),
            ("Beijing_Dialect", Some("beijing_dialect")),
            ("nah", None),
        ] {
            assert_eq!(find(asked, &known), want, "{asked}");
        }
    }

    #[test]
    fn old_codes_and_variants_are_known_and_relatives_are_not() {
        for (asked, want) in [
            ("zh-TW", Some("zh")),
            ("zh-cmn-Hans-CN", Some("zh")),
            ("nb-NO", Some("no")),
            ("nn_NO", Some("no")),
            ("iw-IL", Some("he")),
            ("yue", None),
            ("Cantonese", None),
            ("gsw", None),
            ("fil", None),
        ] {
            assert_eq!(find(asked, &multilingual::LANGUAGES), want, "{asked}");
        }
        for (asked, want) in [("in-ID", Some("id")), ("mo", Some("ro")), ("tl", None), ("ind", Some("id"))] {
            assert_eq!(find(asked, Version::V3.languages()), want, "{asked}");
        }
    }

    #[test]
    fn what_is_no_language_stays_unknown() {
        let known = Version::V3.languages();
        for asked in [
            "",
            " ",
            "auto",
            "xx",
            "xx-US",
            "e",
            "e-n",
            "en-",
            "en--US",
            "en US",
            "en-ünited",
            "englisch",
            "ẽ",
            "english-US",
            "en,de",
            "en-toolongapart",
            "-en",
            "_",
            "@",
            ".",
        ] {
            assert_eq!(find(asked, known), None, "{asked}");
        }
    }

    #[test]
    fn every_name_has_one_code() {
        let mut all: Vec<&str> = vec![];
        for (code, names) in LANGUAGES {
            all.extend(names.iter().chain([code]));
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
