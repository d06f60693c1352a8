//! Text to pieces, which are spoken one by one.

use super::files::Files;
use super::options::Options as Own;
use crate::pieces::is_speakable;
use crate::{ModelError, OptionSet, Options};
use orate_text::pieces::Unknown;
use orate_text::supertonic::{self, Version};
use orate_text::{TextError, Traced, english};

/// Longest piece in characters, for voices that state none.
const MAX_CHARS: usize = 300;

/// Steps of models that state none.
const DEFAULT_STEPS: usize = 5;

/// How voices of this project read. Acronyms become the names of their letters: in 30 sentences with
/// acronyms, a recognizer gets 15 % of the words wrong if they are written `eff bee eye`, 34 % if `FBI` and
/// 36 % if `F B I`.
const OWN_RULES: english::Rules =
    english::Rules { letters: english::Letters::Names, date_order: english::DateOrder::MonthFirst };

/// A part of a text that is spoken in one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Its part of the text.
    pub text: Traced,
    /// One id for each character that the networks see. Those of official models also see a language.
    pub ids: Vec<i32>,
}

impl Files {
    /// Denoising steps.
    pub(super) fn steps(&self, own: &Own) -> usize {
        own.steps.or(self.config.steps).unwrap_or(DEFAULT_STEPS)
    }

    /// Speaking rate: by default 1.05 for the official models, as in their package.
    pub(super) fn speed(&self, own: &Own) -> f32 {
        let usual = if self.version.is_some() { 1.05 } else { 1.0 };
        own.speed.unwrap_or(usual)
    }

    /// Cuts a text into pieces and encodes them as ids.
    ///
    /// # Errors
    /// The text holds nothing to say, its language is unknown, or a character is unknown and `options` refuse
    /// it.
    pub fn pieces(&self, text: &str, options: &Options) -> Result<Vec<Piece>, ModelError> {
        let own = Own::read(&options.own);
        let text = self.indexer.without_invisible(text);
        let language = options.language.as_deref();
        let pieces = match self.version {
            Some(version) => self.official_pieces(&text, version, language, &own)?,
            None => self.own_pieces(&text, language, &own)?,
        };
        if pieces.is_empty() { Err(TextError::Empty.into()) } else { Ok(pieces) }
    }

    fn official_pieces(
        &self,
        text: &Traced,
        version: Version,
        language: Option<&str>,
        own: &Own,
    ) -> Result<Vec<Piece>, ModelError> {
        let lang = match version {
            Version::V1 => {
                english_only(language, "Supertonic 1 speaks English (`en`) only; versions 2 and 3 know more")?
            }
            Version::V2 => crate::language(language, version.languages())?,
            Version::V3 => crate::language(language, &[version.languages(), &["na"]].concat())?,
        };
        let lang = lang.or(version.default_language());
        let read = own.read_numbers.unwrap_or(false) && matches!(lang, None | Some("en" | "na"));
        let text = if read { english::read(text).after(text) } else { text.clone() };
        let text = self.indexer.without_pictures(&text).after(&text);
        let unknown = if own.skip_unknown == Some(true) { Unknown::Skip } else { Unknown::Refuse };
        if unknown == Unknown::Refuse {
            let characters = self.indexer.unsupported(&text);
            // Without letters nothing is left to say if these are skipped.
            if !characters.is_empty() && is_speakable(&text) {
                return Err(TextError::Unsupported { characters }.into());
            }
        }
        text.pieces(supertonic::max_chars(version, lang))
            .into_iter()
            .filter(|piece| is_speakable(&supertonic::normalize(piece)))
            .map(|text| {
                let ids = self.indexer.encode(&supertonic::prepare(&text, version, lang)?, unknown)?;
                Ok(Piece { text, ids })
            })
            .collect()
    }

    /// Voices of this project know letters and a few marks. Everything else is written out first.
    fn own_pieces(&self, text: &Traced, language: Option<&str>, own: &Own) -> Result<Vec<Piece>, ModelError> {
        let allowed = "this voice speaks English (`en`) only; choose another model for other languages";
        english_only(language, allowed)?;
        let knows = |c: char| self.indexer.knows(c);
        let max_chars = self.config.max_chars.unwrap_or(MAX_CHARS);
        let cut = |text: &str| -> Result<Vec<Traced>, TextError> {
            if own.read_numbers.unwrap_or(true) {
                return english::speakable_pieces(text, &OWN_RULES, max_chars, knows);
            }
            let text = english::fit(text, |c| knows(c) || c.is_whitespace())
                .map_err(|characters| TextError::Unsupported { characters })?;
            Ok(text.pieces(max_chars))
        };
        let cut = |text: &Traced| -> Result<Vec<Traced>, TextError> {
            Ok(cut(text)?.into_iter().map(|piece| piece.after(text)).collect())
        };
        let pieces = match cut(text) {
            Err(TextError::Unsupported { characters }) if own.skip_unknown == Some(true) => {
                cut(&Traced::filtered(text, |c| !characters.contains(&c)).after(text))?
            }
            Err(TextError::Unsupported { .. }) if !is_speakable(text) => return Ok(vec![]),
            other => other?,
        };
        // One sentence at a time, as in training. Given two, the duration predictor allows too little time.
        let sentences = pieces.iter().flat_map(|piece| piece.sentences(1));
        let pieces = sentences.filter(|text| is_speakable(text));
        pieces.map(|text| Ok(Piece { ids: self.indexer.encode(&text, Unknown::Skip)?, text })).collect()
    }
}

/// The language of a model that has English only; `allowed` says so.
fn english_only(language: Option<&str>, allowed: &str) -> Result<Option<&'static str>, ModelError> {
    crate::language(language, &["en"]).map_err(|_| ModelError::Option {
        option: "language",
        got: language.unwrap_or_default().to_owned(),
        allowed: allowed.to_owned(),
    })
}
