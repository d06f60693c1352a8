//! A request as ids: the rows of a prompt, and the text that is fed after it.
//!
//! ```text
//! instruction          text alone
//! role                 text alone, 3 rows
//! language             pad under think, think_bos, language, think_eos
//!                      … or under nothink, think_bos, think_eos
//! speaker              pad under the speaker's id, or under an x-vector (none for a described voice)
//! codec pad            bos under it
//! then one of
//!   streaming text     first token under codec_bos; the others and eos follow, one with each frame
//!   whole text         tokens and eos under codec_pad, then pad under codec_bos
//!   in context         reference (or an earlier piece) and own text beside codec_bos and its frames, row by
//!                      row; the longer one continues: text with the frames to come, frames with pad; as
//!                      whole text, one after the other
//! ```
//!
//! Texts are tokenized with the strings around them and cut by position, so that a line break at the start of
//! a text joins the one before it, as in the official package.

use super::config::{Config, Dialect, TalkerConfig, Variant};
use super::row_ids::{RowIds, RowKind};
use crate::ModelError;
use orate_text::languages;
use orate_text::qwen::{Part, QwenTokenizer};
use std::slice::ChunksExact;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speaker<'a> {
    /// One of the model's own speakers, by name (CustomVoice).
    Named(&'a str),
    /// The voice that the instruction describes (VoiceDesign).
    Described,
    /// The voice that the instruction describes, continuing after an earlier piece: the prompt is what the
    /// talker would have read, had it been given both texts at once and spoken the first (VoiceDesign).
    GoingOn {
        /// Text of the earlier piece.
        transcript: &'a str,
        /// Its codes, `[F, Q]`.
        codes: &'a [i32],
    },
    /// The voice of an x-vector `[D]` (Base).
    XVector(&'a [f32]),
    /// The voice and manner of a reference (Base).
    InContext {
        /// `[D]`
        x_vector: &'a [f32],
        /// The words of the reference.
        transcript: &'a str,
        /// Codes of the reference, `[F, Q]`.
        codes: &'a [i32],
    },
}

/// How text is fed to the talker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextFeeding {
    /// A token with each frame.
    Streaming,
    /// All of it in the prompt.
    Whole,
}

impl std::fmt::Display for TextFeeding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == TextFeeding::Whole { "whole" } else { "streaming" })
    }
}

/// What to speak, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request<'a> {
    /// The text.
    pub text: &'a str,
    /// Who speaks.
    pub speaker: Speaker<'a>,
    /// A language of the model, as [`crate::language`] reads it. With `None` or `auto` the model decides.
    pub language: Option<&'a str>,
    /// A description of the manner, or of the voice.
    pub instruct: Option<&'a str>,
    /// `None`: as in the official package, which is [`TextFeeding::Streaming`] for Base.
    pub feeding: Option<TextFeeding>,
}

/// A prompt as ids, of which [`super::prompt_rows`] makes rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// Its rows.
    pub rows: RowIds,
    /// Number of first rows that are the same for every text: instruction, role, language and speaker, and
    /// the part of a reference before the text. At least one row is not.
    pub fixed: usize,
    /// Text ids that are fed later, one with each frame. The last one is the padding for all further frames.
    pub trailing_ids: Vec<i32>,
    /// Tokens of the text.
    pub tokens: usize,
    /// Warnings about parts of the request that have no effect.
    pub warnings: Vec<String>,
}

/// Most frames of a token of text. Speech has about four.
const FRAMES_PER_TOKEN: usize = 12;
/// Frames besides those of the text: silence at both ends, slow speech of a single word.
const FRAMES_BESIDES: usize = 75;

/// Rows before the text in every prompt.
const ROLE: usize = 3;
/// What follows the text, and its number of tokens.
const AFTER_TEXT: (&str, usize) = ("<|im_end|>\n<|im_start|>assistant\n", 5);
/// What follows a transcript, likewise.
const AFTER_TRANSCRIPT: (&str, usize) = ("<|im_end|>\n", 2);
const AUTO: &str = "auto";

impl Prompt {
    /// Frames after which speech of this text is runaway generation.
    pub fn frame_budget(&self) -> usize {
        FRAMES_BESIDES + FRAMES_PER_TOKEN * self.tokens
    }

    /// Builds the prompt of a request.
    ///
    /// # Errors
    /// The text is empty, the speaker or language is unknown, or the model is made for another kind of
    /// speaker.
    pub fn new(c: &Config, tokenizer: &QwenTokenizer, r: &Request<'_>) -> Result<Prompt, ModelError> {
        check_variant(c, r)?;
        let t = &c.talker_config;
        let mut warnings = vec![];
        let speaker = match r.speaker {
            Speaker::Named(name) => Some(named(c, name)?),
            _ => None,
        };
        let language = language(c, r.language, speaker.and_then(|(_, dialect)| dialect))?;

        let [pad, bos, eos] =
            [c.tts_pad_token_id, c.tts_bos_token_id, c.tts_eos_token_id].map(|id| id as i32);
        let (role, text) = spoken(tokenizer, r.text, AFTER_TEXT, "text")?;
        let tokens = text.len();
        let mut p = Rows::default();
        if let Some(words) = instruction(c, r, &mut warnings) {
            p.plain(tokenizer.encode(&[
                Part::Control("<|im_start|>user\n"),
                Part::Text(words),
                Part::Control("<|im_end|>\n"),
            ]));
        }
        p.plain(role);

        match language {
            Some(id) => p.codec(pad, [t.codec_think_id, t.codec_think_bos_id, id, t.codec_think_eos_id]),
            None => p.codec(pad, [t.codec_nothink_id, t.codec_think_bos_id, t.codec_think_eos_id]),
        }
        match r.speaker {
            Speaker::Named(_) => p.codec(pad, speaker.map(|(id, _)| id)),
            Speaker::Described | Speaker::GoingOn { .. } => {}
            Speaker::XVector(x) | Speaker::InContext { x_vector: x, .. } => p.x_vector(pad, t, x)?,
        }
        p.codec(bos, [t.codec_pad_id]);
        let mut fixed = p.ids.len();

        let whole = match r.feeding {
            None => c.tts_model_type != Variant::Base,
            Some(feeding) => feeding == TextFeeding::Whole,
        };
        let (mut reference, mut frames) = (vec![], [].chunks_exact(t.num_code_groups));
        if let Speaker::InContext { transcript, codes, .. } | Speaker::GoingOn { transcript, codes } =
            r.speaker
        {
            reference = transcript_ids(tokenizer, transcript)?;
            frames = whole_frames(t, codes)?;
            fixed += if whole { reference.len() } else { reference.len().min(frames.len()) };
        }
        let mut said = reference.into_iter().chain(text).chain([eos]);
        if whole {
            said.for_each(|id| p.codec(id, [t.codec_pad_id]));
            p.codec(pad, [t.codec_bos_id]);
            frames.for_each(|frame| p.frame(pad, frame));
        } else {
            p.codec(said.next().unwrap_or(pad), [t.codec_bos_id]);
            frames.for_each(|frame| p.frame(said.next().unwrap_or(pad), frame));
            p.trailing.extend(said);
        }
        p.trailing.push(pad);
        Ok(Prompt { rows: p.ids, fixed, trailing_ids: p.trailing, tokens, warnings })
    }
}

#[derive(Default)]
struct Rows {
    ids: RowIds,
    trailing: Vec<i32>,
}

impl Rows {
    fn plain(&mut self, ids: impl IntoIterator<Item = impl Into<i64>>) {
        self.ids.rows.extend(ids.into_iter().map(|id| (id.into() as i32, RowKind::Nothing)));
    }

    /// The same text id beside each codec id.
    fn codec(&mut self, text: i32, ids: impl IntoIterator<Item = u32>) {
        self.ids.rows.extend(ids.into_iter().map(|id| (text, RowKind::Id(id as i32))));
    }

    fn frame(&mut self, text: i32, codes: &[i32]) {
        self.ids.rows.push((text, RowKind::Frame(codes.to_vec())));
    }

    fn x_vector(&mut self, text: i32, t: &TalkerConfig, x: &[f32]) -> Result<(), ModelError> {
        let d = t.transformer.hidden_size;
        if x.len() != d || x.iter().any(|x| !x.is_finite()) {
            let problem = format!("it has {} values; this model needs {d} finite numbers", x.len());
            return Err(ModelError::BadVoice { name: None, problem });
        }
        self.ids.rows.push((text, RowKind::XVector));
        self.ids.x_vector = x.iter().map(|x| x.to_bits()).collect();
        Ok(())
    }
}

/// Refuses speakers that a model is not made for.
fn check_variant(c: &Config, r: &Request<'_>) -> Result<(), ModelError> {
    let (variant, problem) = (c.tts_model_type, |problem: &str| {
        Err(ModelError::Mode { variant: c.tts_model_type.name(), problem: problem.to_owned() })
    });
    match (variant, r.speaker) {
        (Variant::Base, Speaker::XVector(_) | Speaker::InContext { .. })
        | (Variant::CustomVoice, Speaker::Named(_))
        | (Variant::VoiceDesign, Speaker::Described | Speaker::GoingOn { .. }) => Ok(()),
        (Variant::Base, _) => problem("it has no speakers of its own; give it reference audio"),
        (Variant::CustomVoice, _) => problem("name one of its speakers"),
        (Variant::VoiceDesign, _) => problem("it has no speakers; describe the voice in an instruction"),
    }
}

/// The instruction, if it has an effect.
fn instruction<'a>(c: &Config, r: &Request<'a>, warnings: &mut Vec<String>) -> Option<&'a str> {
    let words = r.instruct.filter(|words| !words.is_empty())?;
    let ignored = match c.tts_model_type {
        Variant::Base => true,
        Variant::CustomVoice => c.tts_model_size == "0b6",
        Variant::VoiceDesign => false,
    };
    if ignored {
        let model = format!("{} {}", c.size(), c.tts_model_type.name());
        warnings.push(format!("the instruction has no effect: {model} models do not follow any"));
        return None;
    }
    Some(words)
}

/// Id of a speaker, and of the dialect that it speaks.
fn named(c: &Config, name: &str) -> Result<(u32, Option<u32>), ModelError> {
    let t = &c.talker_config;
    let key = name.to_lowercase();
    let found = t.spk_id.iter().find(|(known, _)| known.to_lowercase() == key);
    let Some((known, id)) = found else {
        return Err(ModelError::UnknownVoice { name: name.to_owned(), known: c.speakers().join(", ") });
    };
    let dialect = match t.spk_is_dialect.get(known) {
        Some(Dialect::Named(dialect)) => t.codec_language_id.get(dialect).copied(),
        _ => None,
    };
    Ok((*id, dialect))
}

/// Id of the language to speak. A speaker's dialect takes the place of Chinese, and of no language.
fn language(c: &Config, asked: Option<&str>, dialect: Option<u32>) -> Result<Option<u32>, ModelError> {
    let known: Vec<&str> = [AUTO].into_iter().chain(c.languages()).collect();
    let language = crate::language(asked, &known)?;
    let is_chinese = |name: &str| languages::code(name).as_deref() == Some("zh");
    if let Some(dialect) = dialect.filter(|_| language.is_none_or(is_chinese)) {
        return Ok(Some(dialect));
    }
    Ok(language.and_then(|name| c.talker_config.codec_language_id.get(name)).copied())
}

/// Tokens of the role and of a text, which `end` follows with `after` tokens.
fn spoken(
    tokenizer: &QwenTokenizer,
    text: &str,
    (end, after): (&str, usize),
    what: &'static str,
) -> Result<(Vec<u32>, Vec<i32>), ModelError> {
    let mut ids =
        tokenizer.encode(&[Part::Control("<|im_start|>assistant\n"), Part::Text(text), Part::Control(end)]);
    let inside = ids.get(ROLE..ids.len().saturating_sub(after)).filter(|ids| !ids.is_empty());
    let inside = inside.filter(|_| !text.trim().is_empty()).ok_or(ModelError::EmptyText { what })?;
    let inside = inside.iter().map(|id| *id as i32).collect();
    ids.truncate(ROLE);
    Ok((ids, inside))
}

fn transcript_ids(tokenizer: &QwenTokenizer, transcript: &str) -> Result<Vec<i32>, ModelError> {
    spoken(tokenizer, transcript, AFTER_TRANSCRIPT, "transcript").map(|(_, ids)| ids)
}

pub(super) fn transcript_tokens(tokenizer: &QwenTokenizer, transcript: &str) -> usize {
    transcript_ids(tokenizer, transcript).map_or(0, |ids| ids.len())
}

/// Frames of a reference, all of whose codes exist.
fn whole_frames<'a>(t: &TalkerConfig, codes: &'a [i32]) -> Result<ChunksExact<'a, i32>, ModelError> {
    let (q, most) = (t.num_code_groups, t.code_predictor_config.vocab_size as i32);
    let whole = codes.len().is_multiple_of(q) && !codes.is_empty();
    if whole && codes.iter().all(|c| (0..most).contains(c)) {
        return Ok(codes.chunks_exact(q));
    }
    let problem = format!("its reference has {} codes; needed are frames of {q} below {most}", codes.len());
    Err(ModelError::BadVoice { name: None, problem })
}
