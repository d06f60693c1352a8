//! What the multilingual models need before the tokenizer: lower case, NFKD, rules of the language, its tag.
//!
//! | language | rule |
//! | --- | --- |
//! | Chinese | words are separated by spaces, characters become [`Cangjie`] codes |
//! | Japanese | words with kanji become their readings in hiragana |
//! | Korean | syllables become jamo (by NFKD) |
//! | Hebrew, Russian | none; the official package adds vowels and stress if other packages are installed |
//!
//! Chinese words and Japanese readings come from [`Tools`] of the caller: they need large dictionaries, and
//! Orate has none. The official package takes words from pkuseg, whose model is a download. Dictionaries of
//! Japanese readings on crates.io are under the GPL or CC BY-SA, or are downloaded when the crate is built.
//! Without one, kanji stay as they are. The models do not know them; [`Note`] reports that.

use std::collections::HashMap;
use std::fmt;

use orate_files::quoted;
use unicode_normalization::UnicodeNormalization;
use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

use crate::TextError;
use crate::pieces::is_python_space;

/// Codes of the languages.
pub const LANGUAGES: [&str; 23] = [
    "ar", "da", "de", "el", "en", "es", "fi", "fr", "he", "hi", "it", "ja", "ko", "ms", "nl", "no", "pl",
    "pt", "ru", "sv", "sw", "tr", "zh",
];

const CANGJIE: &str = "Cangjie5_TC.json";

/// A word of a Japanese text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading<'t> {
    /// The word as written.
    pub word: &'t str,
    /// How it is read, in hiragana.
    pub hiragana: String,
}

/// Splits a Chinese text into words and marks, without white space.
pub type Words<'a> = dyn Fn(&str) -> Vec<&str> + 'a;

/// Splits a Japanese text into words, which joined are the text.
pub type Readings<'a> = dyn Fn(&str) -> Vec<Reading<'_>> + 'a;

/// Dictionaries of languages. Each is used for one language, and may be absent.
#[derive(Clone, Copy, Default)]
pub struct Tools<'a> {
    /// Chinese: the table that came with the model.
    pub cangjie: Option<&'a Cangjie>,
    /// Chinese: the words of a text.
    pub words: Option<&'a Words<'a>>,
    /// Japanese: the words of a text with their readings.
    pub readings: Option<&'a Readings<'a>>,
}

/// A text for the tokenizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// The tag of the language, if one was given, and the text.
    pub text: String,
    /// What is worse than it could be.
    pub notes: Vec<Note>,
}

/// Something that makes speech worse than the model could do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// [`Tools::words`] is absent: the words of the Chinese text are not separated.
    WordsNotSeparated,
    /// Chinese characters without a code, or without [`Tools::cangjie`]. Most are unknown to the model.
    WithoutCode {
        /// Number of characters.
        count: usize,
    },
    /// [`Tools::readings`] is absent: kanji stay as they are. They are unknown to the model.
    WithoutReading {
        /// Number of kanji.
        count: usize,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WordsNotSeparated => {
                f.write_str("Chinese words are not separated, so that some may be mispronounced")
            }
            Self::WithoutCode { count } => {
                write!(f, "{count} Chinese characters have no Cangjie code and will not be spoken")
            }
            Self::WithoutReading { count } => {
                write!(f, "{count} kanji will not be spoken; write their readings in hiragana")
            }
        }
    }
}

/// Returns a text as the tokenizer of the multilingual model gets it.
///
/// `text` is what [`punctuation`](super::punctuation) returns; `language` is one of [`LANGUAGES`], in upper
/// or lower case, or `None` for a text without a tag.
///
/// # Errors
/// [`TextError::UnknownLanguage`] with all languages.
///
/// ```
/// use orate_text::chatterbox::multilingual::{Tools, prepare};
///
/// let prepared = prepare("Ça va.", Some("fr"), Tools::default())?;
/// assert_eq!(prepared.text, "[fr]c\u{327}a va.");
/// # Ok::<(), orate_text::TextError>(())
/// ```
pub fn prepare(text: &str, language: Option<&str>, tools: Tools<'_>) -> Result<Prepared, TextError> {
    let code = language.map(str::to_ascii_lowercase);
    if let Some(lang) = language
        && !code.as_deref().is_some_and(|code| LANGUAGES.contains(&code))
    {
        let (lang, model) = (lang.to_owned(), "Chatterbox Multilingual".to_owned());
        return Err(TextError::UnknownLanguage { lang, model, known: LANGUAGES.to_vec() });
    }
    let mut notes = vec![];
    let mut out = code.as_ref().map_or_else(String::new, |code| format!("[{code}]"));
    let lower = text.to_lowercase();
    let decomposed = lower.nfkd();
    match code.as_deref() {
        Some("zh") => chinese(&decomposed.collect::<String>(), tools, &mut out, &mut notes),
        Some("ja") => japanese(&decomposed.collect::<String>(), tools, &mut out, &mut notes),
        Some("ko") => out.push_str(decomposed.collect::<String>().trim_matches(is_python_space)),
        _ => out.extend(decomposed),
    }
    Ok(Prepared { text: out, notes })
}

/// Appends a text with spaces between its words and codes instead of characters.
fn chinese(text: &str, tools: Tools<'_>, out: &mut String, notes: &mut Vec<Note>) {
    let mut count = 0;
    let mut append = |c: char| match tools.cangjie.and_then(|table| table.code(c)) {
        Some(code) => code.append_to(out),
        None => {
            count += usize::from(is_chinese(c));
            out.push(c);
        }
    };
    match tools.words {
        Some(words) => {
            for (i, word) in words(text).into_iter().enumerate() {
                if i > 0 {
                    append(' ');
                }
                word.chars().for_each(&mut append);
            }
        }
        None => text.chars().for_each(append),
    }
    if tools.words.is_none() && text.contains(is_chinese) {
        notes.push(Note::WordsNotSeparated);
    }
    if count > 0 {
        notes.push(Note::WithoutCode { count });
    }
}

/// Appends a text with readings instead of words with kanji.
fn japanese(text: &str, tools: Tools<'_>, out: &mut String, notes: &mut Vec<Note>) {
    let Some(readings) = tools.readings else {
        let count = text.chars().filter(|c| is_chinese(*c)).count();
        if count > 0 {
            notes.push(Note::WithoutReading { count });
        }
        out.push_str(text);
        return;
    };
    let mut read = String::with_capacity(text.len());
    for Reading { word, hiragana } in readings(text) {
        if !word.contains(is_chinese) {
            read.push_str(word);
            continue;
        }
        // As in training: these two may be particles.
        if hiragana.starts_with(['は', 'へ']) {
            read.push(' ');
        }
        read.push_str(&hiragana);
    }
    out.extend(read.nfkd());
}

/// Whether a character is a common Chinese one, as Japanese also uses them.
fn is_chinese(c: char) -> bool {
    ('\u{4e00}'..='\u{9fff}').contains(&c)
}

/// Cangjie codes of characters, which describe their shapes: `你` is `onf`.
#[derive(Debug, Clone)]
pub struct Cangjie {
    codes: HashMap<char, Code>,
}

#[derive(Debug, Clone)]
struct Code {
    letters: Box<str>,
    /// Number of earlier characters with the same letters.
    index: usize,
}

impl Code {
    /// Appends the tokens of the code: its letters, the digits of the index unless it is 0, and a full stop.
    fn append_to(&self, out: &mut String) {
        let index = if self.index > 0 { self.index.to_string() } else { String::new() };
        for c in self.letters.chars().chain(index.chars()).chain(['.']) {
            out.push_str("[cj_");
            out.push(c);
            out.push(']');
        }
    }
}

impl Cangjie {
    /// Reads `Cangjie5_TC.json`, a list of texts: a character, a tab and its code.
    ///
    /// # Errors
    /// [`TextError::TokenizerFile`] with the entry.
    pub fn from_json(json: &[u8]) -> Result<Self, TextError> {
        let broken = |problem: String| TextError::TokenizerFile { file: CANGJIE, problem };
        let entries: Vec<String> = serde_json::from_slice(json).map_err(|e| broken(e.to_string()))?;
        let mut codes = HashMap::with_capacity(entries.len());
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for (i, entry) in entries.iter().enumerate() {
            let mut fields = entry.split('\t');
            let (Some(word), Some(letters)) = (fields.next(), fields.next()) else {
                return Err(broken(format!("entry {i}, {}, has no tab", quoted(entry))));
            };
            let count = counts.entry(letters).or_default();
            let mut chars = word.chars();
            if let (Some(c), None) = (chars.next(), chars.next()) {
                codes.insert(c, Code { letters: letters.into(), index: *count });
            }
            *count += 1;
        }
        Ok(Self { codes })
    }

    /// Number of characters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.codes.len()
    }

    /// Whether the table has no characters.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.codes.is_empty()
    }

    fn code(&self, c: char) -> Option<&Code> {
        self.codes.get(&c).filter(|_| c.general_category() == GeneralCategory::OtherLetter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str, language: &str, tools: Tools<'_>) -> Prepared {
        prepare(text, Some(language), tools).expect("a language")
    }

    #[test]
    fn every_language_has_a_tag() {
        for code in LANGUAGES {
            assert_eq!(text("", code, Tools::default()).text, format!("[{code}]"));
        }
        assert_eq!(text("A", "EN", Tools::default()).text, "[en]a");
        assert_eq!(prepare("A", None, Tools::default()).unwrap().text, "a");
        for code in ["", "xx", "en-US", "e\u{130}"] {
            let message = prepare("x", Some(code), Tools::default()).unwrap_err().to_string();
            let want =
                format!("unknown language `{code}` for Chatterbox Multilingual; choose one of: ar da de");
            assert!(message.starts_with(&want) && message.ends_with("tr zh"), "{message}");
        }
    }

    #[test]
    fn letters_are_small_and_decomposed() {
        let cases = [
            ("el", "ΣΟΦΟΣ ΟΔΟΣ.", "σοφος οδος."),
            ("tr", "İI", "i\u{307}i"),
            ("ko", " 각가 ", "\u{1100}\u{1161}\u{11a8}\u{1100}\u{1161}"),
            ("de", "ﬁ ½ Ⅳ", "fi 1\u{2044}2 iv"),
            ("ar", "\u{623}", "\u{627}\u{654}"),
        ];
        for (language, given, want) in cases {
            let prepared = text(given, language, Tools::default());
            assert_eq!(prepared.text, format!("[{language}]{want}"));
            assert_eq!(prepared.notes, []);
        }
    }

    #[test]
    fn chinese_characters_become_codes() {
        let table = r#"["日\ta", "曰\ta", "x\ta", "明\tab\tz", "两字\tq", "末\tq"]"#;
        let table = Cangjie::from_json(table.as_bytes()).unwrap();
        assert_eq!(table.len(), 5);
        let tools = Tools { cangjie: Some(&table), words: Some(&pairs), ..Tools::default() };
        let prepared = text("日明x末字", "zh", tools);
        assert_eq!(prepared.text, "[zh][cj_a][cj_.][cj_a][cj_b][cj_.] x[cj_q][cj_1][cj_.] 字");
        assert_eq!(prepared.notes, [Note::WithoutCode { count: 1 }]);
        let prepared = text("曰。", "zh", Tools { words: None, ..tools });
        assert_eq!(prepared.text, "[zh][cj_a][cj_1][cj_.]。");
        assert_eq!(prepared.notes, [Note::WordsNotSeparated]);
        let prepared = text("日", "zh", Tools::default());
        assert_eq!((prepared.text.as_str(), prepared.notes.len()), ("[zh]日", 2));
        assert!(text("123", "zh", Tools::default()).notes.is_empty());
    }

    /// Two characters are a word.
    fn pairs(text: &str) -> Vec<&str> {
        let mut words = vec![];
        let mut rest = text;
        while !rest.is_empty() {
            let (word, after) = rest.split_at(rest.char_indices().nth(2).map_or(rest.len(), |(at, _)| at));
            words.push(word);
            rest = after;
        }
        words
    }

    #[test]
    fn words_with_kanji_are_read() {
        fn readings(text: &str) -> Vec<Reading<'_>> {
            let read = |word: &str| match word {
                "花が" => "はなか\u{3099}".to_owned(),
                "部屋" => "へや".to_owned(),
                "木々" => "きき\u{3099}ガ".to_owned(),
                other => format!("<{other}>"),
            };
            text.split_inclusive(' ').map(|word| Reading { word, hiragana: read(word.trim()) }).collect()
        }
        let tools = Tools { readings: Some(&readings), ..Tools::default() };
        assert_eq!(text("木々 部屋 カナ はな", "ja", tools).text, "[ja]きき\u{3099}カ\u{3099} へやカナ はな");
        let prepared = text("今日は。", "ja", Tools::default());
        assert_eq!(
            (prepared.text.as_str(), prepared.notes),
            ("[ja]今日は。", vec![Note::WithoutReading { count: 2 }])
        );
        assert!(text("がカ", "ja", Tools::default()).notes.is_empty());
    }

    #[test]
    fn damaged_tables_are_errors() {
        let error = |json: &str| Cangjie::from_json(json.as_bytes()).unwrap_err().to_string();
        assert!(error("[\"日a\"]").starts_with("Cangjie5_TC.json: entry 0, `日a`, has no tab"));
        assert!(error("[1]").contains("invalid type"));
        assert!(error("").contains("EOF"));
        assert!(Cangjie::from_json(b"[]").unwrap().is_empty());
    }
}
