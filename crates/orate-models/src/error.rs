//! What can go wrong with a model of any family.

use orate_files::{one_line, quoted, shown};
use orate_graph::{DeviceError, GraphError};
use orate_text::TextError;
use orate_weights::WeightError;
use std::path::PathBuf;

/// What an error is about, for callers that branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller passed something out of range, unknown, or that cannot be spoken.
    InvalidInput,
    /// A model, voice or golden file is missing or damaged.
    InvalidModel,
    /// The system refused: files, threads, memory.
    System,
    /// The caller cancelled.
    Cancelled,
}

/// Why a model could not be opened, could not run, or refused what was asked of it.
///
/// Families share these variants; what only one of them can report goes into [`ModelError::Family`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Nothing at the path looks like a model.
    #[error("{}: {}", shown(path), one_line(problem))]
    NotAModel {
        /// The path.
        path: PathBuf,
        /// Why it is not a model, and what is expected.
        problem: String,
    },
    /// Files of the model are missing.
    #[error("{}: not a complete {family} model: it lacks {}; {advice}", shown(path), files.join(", "))]
    Incomplete {
        /// The family that the folder seems to belong to.
        family: &'static str,
        /// The folder.
        path: PathBuf,
        /// The files, relative to the folder.
        files: Vec<String>,
        /// How to get them.
        advice: &'static str,
    },
    /// A file of the model cannot be read.
    #[error("{}: {source}", shown(path))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file of the model has the wrong content.
    #[error("{}: {}", shown(path), one_line(problem))]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Weights cannot be read.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// The weights are not those that the configuration asks for.
    #[error("{}: {differences}; are {settings} and the weights of one model, and complete?", one_line(path))]
    Tensors {
        /// The weight file.
        path: String,
        /// Name of the configuration's file.
        settings: &'static str,
        /// What differs: names and shapes.
        differences: String,
    },
    /// The tokenizer's files are damaged.
    #[error("{}: {source}", shown(path))]
    Tokenizer {
        /// The model.
        path: PathBuf,
        /// What is wrong.
        source: Box<TextError>,
    },
    /// An op got operands it cannot take: the configuration contradicts itself, or the device lacks the op.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The device failed.
    #[error(transparent)]
    Device(Box<DeviceError>),
    /// A recording cannot be read or resampled.
    #[error(transparent)]
    Audio(Box<orate_audio::AudioError>),
    /// The text cannot be spoken.
    #[error(transparent)]
    Text(TextError),
    /// There is nothing to say.
    #[error(
        "the {what} holds nothing to say; {}",
        match *what {
            "transcript" => "write down what the recording says, or leave it out to take the voice alone",
            _ => "give it at least one letter or digit",
        }
    )]
    EmptyText {
        /// `text` or `transcript`
        what: &'static str,
    },
    /// The value of an option is out of range.
    #[error("{option} is {}; {}", one_line(got), one_line(allowed))]
    Option {
        /// Its name.
        option: &'static str,
        /// What was passed.
        got: String,
        /// What is allowed.
        allowed: String,
    },
    /// The model does not declare the option, so that it would have no effect.
    #[error("`{option}` is not an option of {model}{}", other_families(families))]
    UnknownOption {
        /// Its name.
        option: String,
        /// What was asked, such as `Supertonic models`.
        model: String,
        /// Models that have the option: families, or others of the same one.
        families: Vec<String>,
    },
    /// The model has no such voice.
    #[error("unknown voice {}; this model has: {}", quoted(name), one_line(known))]
    UnknownVoice {
        /// What was asked for.
        name: String,
        /// The voices there are.
        known: String,
    },
    /// The model does not speak the language.
    #[error("unknown language {}; this model has: {}", quoted(name), one_line(&known.join(" ")))]
    UnknownLanguage {
        /// What was asked for.
        name: String,
        /// The languages there are.
        known: Vec<String>,
    },
    /// A voice is damaged or belongs to another model.
    #[error(
        "{}: {}",
        match name {
            Some(name) => format!("voice {}", quoted(name)),
            None => "the voice does not fit this model".to_owned(),
        },
        one_line(problem)
    )]
    BadVoice {
        /// The voice, if it has a name.
        name: Option<String>,
        /// What is wrong.
        problem: String,
    },
    /// The model is made for another task, such as another kind of speaker.
    #[error("this is {} {variant} model: {problem}", article(variant))]
    Mode {
        /// Variant of the model.
        variant: &'static str,
        /// What it needs.
        problem: String,
    },
    /// A folder that only has a codec cannot talk.
    #[error(
        "{}: a codec without a talker; give the folder of a whole model, or the GGUF file of the talker",
        one_line(path)
    )]
    NoTalker {
        /// The folder.
        path: String,
    },
    /// A recording is too short for a network.
    #[error("a recording of {got} samples is too short to tell a voice from; at least {least} are needed")]
    TooShort {
        /// Samples that were given.
        got: usize,
        /// Samples that are needed.
        least: usize,
    },
    /// A transcript has more tokens than its recording has frames: the model would speak the rest of it.
    #[error(
        "the transcript has {tokens} tokens, but the recording only {frames} frames ({seconds:.1} s), and \
         speech has several frames for a token: is this the transcript of this recording? Write down what \
         the recording says, and no more, or leave the transcript out to take the voice alone"
    )]
    LongTranscript {
        /// Tokens of the transcript.
        tokens: usize,
        /// Frames of the recording.
        frames: usize,
        /// Length of the recording.
        seconds: f64,
    },
    /// Prompt and frames together are more than the model can attend to.
    #[error(
        "the prompt has {rows} rows and up to {frames} frames follow, but this model has room for {most} \
         together; shorten the text or the reference, or allow fewer frames"
    )]
    TooLong {
        /// Rows of the prompt.
        rows: usize,
        /// Frames that may follow.
        frames: usize,
        /// Positions of the model.
        most: usize,
    },
    /// The text does not fit.
    #[error("a piece of the text has {got} tokens, and this model reads {most} at most; write it otherwise")]
    LongText {
        /// Tokens of the text.
        got: usize,
        /// Positions for text.
        most: usize,
    },
    /// Codes are not whole frames.
    #[error(
        "{got} codes are not whole frames of {quantizers}; give one code of each codebook for every frame"
    )]
    Frames {
        /// Codes that were given.
        got: usize,
        /// Codes of a frame.
        quantizers: usize,
    },
    /// Logits are NaN, so that no code could be drawn.
    #[error(
        "frame {frame}: logits are NaN; the weights or the voice are damaged, or the precision overflows \
         (try bf16 or f32)"
    )]
    NoCode {
        /// The frame, from 0.
        frame: usize,
    },
    /// Samples of a codec are NaN or above +20 dBFS.
    #[error(
        "the codec returned no sound for frame {frame}: its samples are NaN or above +20 dBFS; are the \
         weights in speech_tokenizer undamaged (download them again), and does their format have the range \
         that they need (try f32)?"
    )]
    NoSound {
        /// The frame, from 0, counting those of a reference, which the codec reads first.
        frame: u64,
    },
    /// A network returned values that no undamaged model returns.
    #[error(
        "{problem}; are the voice and the model's weights undamaged, and does their format have the range \
         that they need (bf16 or f32)?"
    )]
    Damaged {
        /// What it returned.
        problem: String,
    },
    /// A thread could not be started, or panicked.
    #[error("{problem}")]
    Thread {
        /// What happened, and what to do.
        problem: String,
    },
    /// A golden directory is not what `verify` expects.
    #[error("{}: {}", one_line(path), one_line(problem))]
    Goldens {
        /// The file or folder.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// [`crate::Cancel::cancel`] was called.
    #[error("cancelled")]
    Cancelled,
    /// What only one family can report.
    #[error("{source}")]
    Family {
        /// What it is about.
        kind: ErrorKind,
        /// What went wrong, in words that name the file or value.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// ` (A and B have it)`, or nothing.
fn other_families(families: &[String]) -> String {
    match families {
        [] => String::new(),
        [one] if one.ends_with(" models") => format!(" ({one} have it)"),
        [one] => format!(" ({one} has it)"),
        several => format!(" ({} have it)", several.join(" and ")),
    }
}

/// The indefinite article before a name.
fn article(name: &str) -> &'static str {
    if name.starts_with(['A', 'E', 'I', 'O', 'U']) { "an" } else { "a" }
}

impl ModelError {
    /// What the error is about.
    pub fn kind(&self) -> ErrorKind {
        use ModelError as E;
        match self {
            E::Text(_)
            | E::EmptyText { .. }
            | E::Option { .. }
            | E::UnknownOption { .. }
            | E::UnknownVoice { .. }
            | E::UnknownLanguage { .. }
            | E::BadVoice { .. }
            | E::Mode { .. }
            | E::TooShort { .. }
            | E::LongTranscript { .. }
            | E::TooLong { .. }
            | E::LongText { .. } => ErrorKind::InvalidInput,
            E::Device(_) | E::Thread { .. } => ErrorKind::System,
            E::Cancelled => ErrorKind::Cancelled,
            E::Family { kind, .. } => *kind,
            _ => ErrorKind::InvalidModel,
        }
    }
}

impl From<TextError> for ModelError {
    fn from(e: TextError) -> Self {
        match e {
            TextError::UnknownLanguage { lang, known, .. } => {
                let known = known.into_iter().map(str::to_owned).collect();
                ModelError::UnknownLanguage { name: lang, known }
            }
            other => ModelError::Text(other),
        }
    }
}

impl From<DeviceError> for ModelError {
    fn from(e: DeviceError) -> Self {
        ModelError::Device(Box::new(e))
    }
}

impl From<orate_audio::AudioError> for ModelError {
    fn from(e: orate_audio::AudioError) -> Self {
        ModelError::Audio(Box::new(e))
    }
}
