//! Texts to ids, by the tokenizer of each variant.

use super::config::{NAME, Variant};
use crate::ModelError;
use crate::files::SmallFiles;
use orate_text::TextError;
use orate_text::chatterbox::multilingual::{self, Cangjie, Tools};
use orate_text::chatterbox::{Files, GraphemeTokenizer, TurboTokenizer, Variant as Rules, punctuation};

const ENGLISH: &str = "tokenizer.json";
const MULTILINGUAL: &str = "grapheme_mtl_merged_expanded_v1.json";
const CANGJIE: &str = "Cangjie5_TC.json";
const GPT2: [&str; 5] =
    ["vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json", "tokenizer_config.json"];
/// Most characters that a warning shows.
const MOST_SHOWN: usize = 12;
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
    /// The table for Chinese.
    pub(super) const CANGJIE: &'static str = CANGJIE;

    /// Files of the tokenizer of a variant.
    pub(super) fn needed(variant: Variant) -> &'static [&'static str] {
        match variant {
            Variant::English | Variant::Conversion => &[ENGLISH],
            Variant::Multilingual => &[MULTILINGUAL],
            Variant::Turbo | Variant::Nano => &GPT2,
        }
    }

    /// Opens the tokenizer of a model.
    ///
    /// # Errors
    /// A file is missing or damaged.
    pub fn open(folder: &SmallFiles, variant: Variant) -> Result<Text, ModelError> {
        let needed = Self::needed(variant);
        let missing = needed.iter().filter(|file| !folder.has(file));
        let files: Vec<String> = missing.map(|file| (*file).to_owned()).collect();
        if !files.is_empty() {
            let advice = "download the whole repository";
            return Err(ModelError::Incomplete { family: NAME, path: folder.path(""), files, advice });
        }
        let bytes = |file: &str| folder.read(file);
        let damaged = |e: TextError| ModelError::Tokenizer { path: folder.path(""), source: Box::new(e) };
        Ok(match variant {
            Variant::English | Variant::Conversion => {
                Text::English(GraphemeTokenizer::from_json(ENGLISH, &bytes(ENGLISH)?).map_err(damaged)?)
            }
            Variant::Multilingual => {
                let tokenizer = GraphemeTokenizer::from_json(MULTILINGUAL, &bytes(MULTILINGUAL)?);
                let cangjie = match folder.has(CANGJIE) {
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
        let language = crate::language(language, self.languages())?;
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
        let note_characters = |characters: Vec<char>, warn: &mut dyn FnMut(String)| {
            if !characters.is_empty() {
                let shown: Vec<String> =
                    characters.iter().take(MOST_SHOWN).map(|c| c.escape_debug().to_string()).collect();
                let more = if characters.len() > MOST_SHOWN { " …" } else { "" };
                warn(format!("{}{more}: not known to this model, may sound wrong", shown.join(" ")));
            }
        };
        let ids = match self {
            Text::English(t) => {
                let text = punctuation(piece, Rules::English);
                note_tags(t.unknown_tags(&text), &mut warn);
                note_characters(t.unknown_characters(&text), &mut warn);
                t.encode(&text)
            }
            Text::Multilingual(t, cangjie) => {
                let text = punctuation(piece, Rules::Multilingual);
                let tools = Tools { cangjie: cangjie.as_ref(), ..Tools::default() };
                let prepared = multilingual::prepare(&text, language, tools)?;
                prepared.notes.iter().for_each(|note| warn(note.to_string()));
                note_tags(t.unknown_tags(&prepared.text), &mut warn);
                // Notes are about characters that no longer are in the text, or that stay unknown.
                if prepared.notes.is_empty() {
                    note_characters(t.unknown_characters(&prepared.text), &mut warn);
                }
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

    /// Returns at which of the `ids` of a piece each of its characters begins, as far as that can be known:
    /// up to there, the ids of the text before the character are those of the piece.
    ///
    /// # Errors
    /// As [`Text::ids_of`].
    pub fn columns_of(
        &self,
        piece: &str,
        language: Option<&str>,
        ids: &[i32],
    ) -> Result<Vec<usize>, ModelError> {
        let is_space = |id: &i32| match self {
            Text::English(t) | Text::Multilingual(t, _) => t.added("[SPACE]") == Some(*id as u32),
            Text::Gpt2(_) => false,
        };
        let column = |(at, _): (usize, char)| {
            if at == 0 {
                return Ok(0);
            }
            let before = self.ids_of(&piece[..at], language, &mut vec![])?;
            let same = before.iter().zip(ids).take_while(|(a, b)| a == b).count();
            Ok(same + ids[same..].iter().take_while(|id| is_space(id)).count())
        };
        piece.char_indices().map(column).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orate_testing::checkpoints::write_chatterbox;

    #[test]
    fn characters_begin_where_their_ids_do() {
        let folder = tempfile::tempdir().expect("a folder");
        write_chatterbox(folder.path(), "mtl", "tiny").expect("writable");
        let text = Text::open(&SmallFiles::of_folder(folder.path()), Variant::Multilingual).expect("opens");
        let cases = [
            (Some("en"), "Hello there, \"you\" – and I..."),
            (None, "you said: No.  Yes!"),
            (Some("fr"), "Ça va, Éric?"),
            (Some("ko"), "안녕 하세요"),
            (Some("de"), "Straße: 12 Äpfel"),
        ];
        for (language, piece) in cases {
            let ids = |piece: &str| text.ids_of(piece, language, &mut vec![]).expect("a known language");
            let whole = ids(piece);
            let columns = text.columns_of(piece, language, &whole).expect("a known language");
            assert_eq!(columns.len(), piece.chars().count());
            assert!(columns.is_sorted() && columns.iter().all(|column| *column < whole.len()), "{columns:?}");
            // A word alone has a start and maybe a language before it, a full stop and a stop after it.
            let before = 1 + usize::from(language.is_some());
            let begins = |at: usize, c: char| c.is_alphanumeric() && piece[..at].ends_with([' ', '"']);
            for (at, _) in piece.char_indices().filter(|(at, c)| begins(*at, *c)) {
                let column = columns[piece[..at].chars().count()];
                let word: String = piece[at..].chars().take_while(|c| c.is_alphanumeric()).collect();
                let alone = ids(&word);
                let alone = &alone[before..alone.len() - 2];
                assert!(whole[column..].starts_with(alone), "{word}: {column} of {whole:?}");
            }
        }
    }
}
