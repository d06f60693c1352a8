//! Texts to ids, by the tokenizer of each variant.

use super::config::{NAME, Variant};
use crate::ModelError;
use crate::files::read;
use orate_text::TextError;
use orate_text::chatterbox::multilingual::{self, Cangjie, Tools};
use orate_text::chatterbox::{Files, GraphemeTokenizer, TurboTokenizer, Variant as Rules, punctuation};
use std::path::Path;

const ENGLISH: &str = "tokenizer.json";
const MULTILINGUAL: &str = "grapheme_mtl_merged_expanded_v1.json";
const CANGJIE: &str = "Cangjie5_TC.json";
const GPT2: [&str; 5] =
    ["vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json", "tokenizer_config.json"];
/// The language of models that read one.
const ENGLISH_CODE: &str = "en";

/// The tokenizer of a variant.
pub enum Text {
    /// English.
    English(GraphemeTokenizer),
    /// Multilingual, with the table for Chinese if the folder has it.
    Multilingual(GraphemeTokenizer, Option<Cangjie>),
    /// Turbo and Nano.
    Gpt2(Box<TurboTokenizer>),
}

impl Text {
    /// Opens the tokenizer of a folder.
    ///
    /// # Errors
    /// A file is missing or damaged.
    pub fn open(folder: &Path, variant: Variant) -> Result<Text, ModelError> {
        let needed: &[&str] = match variant {
            Variant::English | Variant::Conversion => &[ENGLISH],
            Variant::Multilingual => &[MULTILINGUAL],
            Variant::Turbo | Variant::Nano => &GPT2,
        };
        let missing = needed.iter().filter(|file| !folder.join(file).exists());
        let files: Vec<String> = missing.map(|file| (*file).to_owned()).collect();
        if !files.is_empty() {
            let advice = "download the whole repository";
            return Err(ModelError::Incomplete { family: NAME, path: folder.to_owned(), files, advice });
        }
        let bytes = |file: &str| read(&folder.join(file));
        let damaged = |e: TextError| ModelError::Tokenizer { path: folder.to_owned(), source: Box::new(e) };
        Ok(match variant {
            Variant::English | Variant::Conversion => {
                Text::English(GraphemeTokenizer::from_json(ENGLISH, &bytes(ENGLISH)?).map_err(damaged)?)
            }
            Variant::Multilingual => {
                let tokenizer = GraphemeTokenizer::from_json(MULTILINGUAL, &bytes(MULTILINGUAL)?);
                let cangjie = match folder.join(CANGJIE).exists() {
                    true => Some(Cangjie::from_json(&bytes(CANGJIE)?).map_err(damaged)?),
                    false => None,
                };
                Text::Multilingual(tokenizer.map_err(damaged)?, cangjie)
            }
            Variant::Turbo | Variant::Nano => {
                let [vocab, merges, added_tokens, special_tokens_map, tokenizer_config] = GPT2.map(bytes);
                let tokenizer = TurboTokenizer::from_files(Files {
                    vocab: &vocab?,
                    merges: &merges?,
                    added_tokens: &added_tokens?,
                    special_tokens_map: &special_tokens_map?,
                    tokenizer_config: &tokenizer_config?,
                });
                Text::Gpt2(Box::new(tokenizer.map_err(damaged)?))
            }
        })
    }

    /// Rows that the table of text must have.
    pub fn ids(&self) -> usize {
        match self {
            Text::English(t) | Text::Multilingual(t, _) => t.rows(),
            Text::Gpt2(t) => t.rows(),
        }
    }

    /// Codes of the languages that texts may be in.
    pub fn languages(&self) -> &'static [&'static str] {
        match self {
            Text::Multilingual(..) => &multilingual::LANGUAGES,
            Text::English(_) | Text::Gpt2(_) => &[ENGLISH_CODE],
        }
    }

    /// Ids of a piece of text, start and stop included where the variant has them. What could be spoken
    /// better is added to `warnings`, in words.
    ///
    /// # Errors
    /// The language is unknown.
    pub fn ids_of(
        &self,
        piece: &str,
        language: Option<&str>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<i32>, ModelError> {
        if let Some(name) = language
            && !self.languages().iter().any(|known| known.eq_ignore_ascii_case(name))
        {
            let known = self.languages().iter().map(|code| (*code).to_owned()).collect();
            return Err(ModelError::UnknownLanguage { name: name.to_owned(), known });
        }
        let mut warn = |warning: String| {
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        };
        let note_tags = |tags: Vec<String>, warn: &mut dyn FnMut(String)| {
            if !tags.is_empty() {
                warn(format!("{}: not a tag of this model, read as text", tags.join(" ")));
            }
        };
        let ids = match self {
            Text::English(t) => {
                let text = punctuation(piece, Rules::English);
                note_tags(t.unknown_tags(&text), &mut warn);
                t.encode(&text)
            }
            Text::Multilingual(t, cangjie) => {
                let text = punctuation(piece, Rules::Multilingual);
                let tools = Tools { cangjie: cangjie.as_ref(), ..Tools::default() };
                let prepared = multilingual::prepare(&text, language, tools)?;
                prepared.notes.iter().for_each(|note| warn(note.to_string()));
                note_tags(t.unknown_tags(&prepared.text), &mut warn);
                t.encode(&prepared.text)
            }
            Text::Gpt2(t) => {
                let text = punctuation(piece, Rules::Turbo);
                note_tags(t.unknown_tags(&text), &mut warn);
                let tokens = t.encode(&text);
                if tokens.dropped > 0 {
                    warn(format!("{} tokens at the end of a piece are not spoken", tokens.dropped));
                }
                tokens.ids
            }
        };
        Ok(ids.into_iter().map(|id| id as i32).collect())
    }
}
