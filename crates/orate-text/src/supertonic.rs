//! The front end of Supertonic 1, 2 and 3, equal to that of the official pip package (1.3.1).
//!
//! The steps are: split the raw text into [`pieces`](crate::pieces), then [`prepare`] each piece (normalize
//! and tag), then [`UnicodeIndexer::encode`].
//!
//! ```
//! use orate_text::pieces;
//! use orate_text::supertonic::{self, Version};
//!
//! let max_chars = supertonic::max_chars(Version::V3, Some("en"));
//! for piece in pieces::of_sentences("Hello there.\n\nHow are you", max_chars) {
//!     println!("{}", supertonic::prepare(&piece, Version::V3, Some("en"))?);
//! }
//! # Ok::<(), orate_text::TextError>(())
//! ```

mod indexer;
mod normalize;

use std::fmt;

use crate::TextError;

pub use indexer::{MAX_ID, UnicodeIndexer};
pub use normalize::{is_emoji, normalize};

/// Version of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// English only, no language tags.
    V1,
    /// Five languages.
    V2,
    /// Thirty-one languages, and `na` for "not stated".
    V3,
}

impl Version {
    /// The language codes that this version was trained on, without `na`.
    #[must_use]
    pub fn languages(self) -> &'static [&'static str] {
        match self {
            Version::V1 => LANGUAGES_V1,
            Version::V2 => LANGUAGES_V2,
            Version::V3 => LANGUAGES_V3,
        }
    }

    /// The default code: none for version 1, which has no tags; `en` for 2, which was not trained on `na`;
    /// `na` for 3.
    #[must_use]
    pub fn default_language(self) -> Option<&'static str> {
        match self {
            Version::V1 => None,
            Version::V2 => Some("en"),
            Version::V3 => Some("na"),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Version::V1 => "1",
            Version::V2 => "2",
            Version::V3 => "3",
        })
    }
}

/// Version 1 has no language tags: it speaks English.
pub const LANGUAGES_V1: &[&str] = &[];
/// The languages of version 2.
pub const LANGUAGES_V2: &[&str] = &["en", "ko", "es", "pt", "fr"];
/// The languages of version 3; it also accepts `na`, "not stated".
pub const LANGUAGES_V3: &[&str] = &[
    "en", "ko", "ja", "ar", "bg", "cs", "da", "de", "el", "es", "et", "fi", "fr", "hi", "hr", "hu", "id",
    "it", "lt", "lv", "nl", "pl", "pt", "ro", "ru", "sk", "sl", "sv", "tr", "uk", "vi",
];

/// Maximum code points of a piece of the raw text.
///
/// 120 for Korean, as a syllable becomes up to three ids, and 300 otherwise.
#[must_use]
pub fn max_chars(version: Version, lang: Option<&str>) -> usize {
    if version != Version::V1 && lang == Some("ko") { 120 } else { 300 }
}

/// Returns the text as the networks get it: [`normalize`]d and, for versions 2 and 3, between language tags.
///
/// `lang` is a code of [`Version::languages`] (version 3 also accepts `na`); the default is
/// [`Version::default_language`]. Version 1 ignores it, as upstream does.
///
/// Stricter than the pip package on purpose, which allows all codes of version 3 in version 2, although that
/// was never trained on them.
///
/// # Errors
///
/// [`TextError::UnknownLanguage`] with the codes that this version supports.
///
/// ```
/// use orate_text::supertonic::{Version, prepare};
///
/// assert_eq!(prepare("Bonjour", Version::V2, Some("fr"))?, "<fr>Bonjour.</fr>");
/// assert_eq!(prepare("Hello", Version::V1, None)?, "Hello.");
/// assert!(prepare("Hallo", Version::V2, Some("de")).is_err());
/// # Ok::<(), orate_text::TextError>(())
/// ```
pub fn prepare(text: &str, version: Version, lang: Option<&str>) -> Result<String, TextError> {
    // The tag is added after normalization, which would turn the `/` of `</en>` into a space.
    let Some(default) = version.default_language() else {
        return Ok(normalize(text));
    };
    let lang = lang.filter(|code| !code.is_empty()).unwrap_or(default);
    let known = version.languages();
    let not_stated = version == Version::V3 && lang == "na";
    if !not_stated && !known.contains(&lang) {
        let mut known = known.to_vec();
        if version == Version::V3 {
            known.push("na");
        }
        let model = format!("Supertonic {version}");
        return Err(TextError::UnknownLanguage { lang: lang.to_owned(), model, known });
    }
    Ok(format!("<{lang}>{}</{lang}>", normalize(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_language_lists_the_known_ones() {
        let error = prepare("x", Version::V2, Some("xx")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown language `xx` for Supertonic 2; choose one of: en ko es pt fr"
        );
        let error = prepare("x", Version::V3, Some("EN")).unwrap_err();
        assert!(error.to_string().ends_with("vi na"), "{error}");
    }

    #[test]
    fn languages_by_default() {
        assert_eq!(prepare("x", Version::V1, Some("ko")).unwrap(), "x.");
        assert_eq!(prepare("x", Version::V2, None).unwrap(), "<en>x.</en>");
        assert_eq!(prepare("x", Version::V3, Some("")).unwrap(), "<na>x.</na>");
        assert_eq!(Version::V3.languages().len(), 31);
    }

    #[test]
    fn korean_has_shorter_pieces() {
        assert_eq!(max_chars(Version::V1, Some("ko")), 300);
        assert_eq!(max_chars(Version::V2, Some("ko")), 120);
        assert_eq!(max_chars(Version::V3, None), 300);
    }
}
