//! Text to pieces, which are spoken one by one.

use super::{Config, Files, TextRules};
use crate::ModelError;
use crate::pieces::is_speakable;
use orate_text::pieces::{self, Unknown};
use orate_text::supertonic::{self, Version};
use orate_text::{TextError, english};

/// How a text is read and spoken.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeakOptions {
    /// Language code, such as `en`. `None`: the model's default.
    pub language: Option<String>,
    /// Speaking rate, 0.7 to 2.
    pub speed: f32,
    /// Denoising steps, 1 to 100. `None`: as the model was tuned, else 5.
    pub steps: Option<usize>,
    /// Seed of the noise. The same seed gives the same audio.
    pub seed: u64,
    /// Whether numbers, dates, money and abbreviations of English text are written out before speaking.
    /// `None`: for voices that only know letters.
    pub read_numbers: Option<bool>,
    /// What to do with characters that the voice does not know.
    pub unknown: Unknown,
}

impl Default for SpeakOptions {
    fn default() -> Self {
        SpeakOptions {
            language: None,
            speed: 1.0,
            steps: None,
            seed: 0,
            read_numbers: None,
            unknown: Unknown::Refuse,
        }
    }
}

/// Longest piece in characters, for voices that state none.
const MAX_CHARS: usize = 300;

/// Steps of models that state none.
const DEFAULT_STEPS: usize = 5;

/// How voices of this project read. Acronyms become the names of their letters: in 30 sentences with
/// acronyms, a recognizer gets 15 % of the words wrong if they are written `eff bee eye`, 34 % if `FBI` and
/// 36 % if `F B I`.
const OWN_RULES: english::Rules =
    english::Rules { letters: english::Letters::Names, date_order: english::DateOrder::MonthFirst };

impl SpeakOptions {
    /// Denoising steps with a model.
    pub fn steps(&self, c: &Config) -> usize {
        self.steps.or(c.steps).unwrap_or(DEFAULT_STEPS)
    }
}

/// A part of a text that is spoken in one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// What the networks see.
    pub text: String,
    /// One id per character of `text`.
    pub ids: Vec<i32>,
}

impl Files {
    /// Cuts a text into pieces and encodes them as ids.
    ///
    /// # Errors
    /// The text holds nothing to say, its language is unknown, or a character is unknown and `options` refuse
    /// it.
    pub fn pieces(&self, text: &str, options: &SpeakOptions) -> Result<Vec<Piece>, ModelError> {
        let text = self.indexer.without_invisible(text);
        let pieces = match self.family {
            TextRules::Official(version) => self.official_pieces(&text, version, options)?,
            TextRules::Own => self.own_pieces(&text, options)?,
        };
        if pieces.is_empty() { Err(TextError::Empty.into()) } else { Ok(pieces) }
    }

    fn official_pieces(
        &self,
        text: &str,
        version: Version,
        o: &SpeakOptions,
    ) -> Result<Vec<Piece>, ModelError> {
        let lang = o.language.as_deref().or(version.default_language());
        if let (Version::V1, Some(other)) = (version, lang.filter(|l| !matches!(*l, "" | "en"))) {
            return Err(ModelError::Option {
                option: "language",
                got: other.to_owned(),
                allowed: "Supertonic 1 speaks English (`en`) only; versions 2 and 3 know more".to_owned(),
            });
        }
        // An unknown language is an error for texts without pieces too.
        supertonic::prepare("", version, lang)?;
        let read = o.read_numbers.unwrap_or(false) && matches!(lang, None | Some("en" | "na"));
        let text = if read { english::read_aloud(text) } else { text.to_owned() };
        if o.unknown == Unknown::Refuse {
            let characters = self.indexer.unsupported(&text);
            if !characters.is_empty() {
                return Err(TextError::Unsupported { characters }.into());
            }
        }
        pieces::at_most(&text, supertonic::max_chars(version, lang))
            .into_iter()
            .filter(|chunk| is_speakable(&supertonic::normalize(chunk)))
            .map(|chunk| {
                let text = supertonic::prepare(&chunk, version, lang)?;
                let ids = self.indexer.encode(&text, o.unknown)?;
                Ok(Piece { text, ids })
            })
            .collect()
    }

    /// Voices of this project know letters and a few marks. Everything else is written out first.
    fn own_pieces(&self, text: &str, o: &SpeakOptions) -> Result<Vec<Piece>, ModelError> {
        if let Some(lang) = o.language.as_deref().filter(|l| *l != "en") {
            return Err(ModelError::Option {
                option: "language",
                got: lang.to_owned(),
                allowed: "this voice speaks English (`en`) only; use an official model folder with --model"
                    .to_owned(),
            });
        }
        let knows = |c: char| self.indexer.knows(c);
        let max_chars = self.config.max_chars.unwrap_or(MAX_CHARS);
        let cut = |text: &str| -> Result<Vec<String>, TextError> {
            if o.read_numbers.unwrap_or(true) {
                return english::speakable(text, &OWN_RULES, max_chars, knows);
            }
            let text = english::fit_alphabet(text, |c| knows(c) || c.is_whitespace())
                .map_err(|characters| TextError::Unsupported { characters })?;
            Ok(pieces::at_most(&text, max_chars))
        };
        let pieces = match cut(text) {
            Err(TextError::Unsupported { characters }) if o.unknown != Unknown::Refuse => {
                cut(&text.chars().filter(|c| !characters.contains(c)).collect::<String>())?
            }
            other => other?,
        };
        // One sentence at a time, as in training. Given two, the duration predictor allows too little time.
        let sentences = pieces.iter().flat_map(|piece| pieces::of_sentences(piece, 1));
        let pieces = sentences.filter(|text| is_speakable(text));
        pieces.map(|text| Ok(Piece { ids: self.indexer.encode(&text, Unknown::Skip)?, text })).collect()
    }
}
