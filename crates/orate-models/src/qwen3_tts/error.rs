//! What can go wrong with a Qwen3-TTS model.

use orate_graph::{DeviceError, GraphError};
use orate_text::TextError;
use orate_weights::WeightError;
use std::fmt;
use std::path::PathBuf;

/// A model could not be opened, or a network could not be described.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QwenError {
    /// Nothing at the path looks like a model.
    #[error("{}: {problem}", path.display())]
    NotAModel {
        /// What was opened.
        path: PathBuf,
        /// Why it is not a model, and what is expected.
        problem: String,
    },
    /// Files of the model are missing.
    #[error(
        "{}: not a complete Qwen3-TTS model: it lacks {}; download the whole repository, with its speech_tokenizer \
         folder", path.display(), files.join(", ")
    )]
    Incomplete {
        /// The folder.
        path: PathBuf,
        /// The files, relative to it.
        files: Vec<String>,
    },
    /// A file of the model cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file of the model has the wrong content.
    #[error("{}: {problem}", path.display())]
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
    #[error("{path}: {differences}; are config.json and the weights of one model, and complete?")]
    Tensors {
        /// The weight file.
        path: String,
        /// What differs.
        differences: Box<Differences>,
    },
    /// The tokenizer's files are damaged.
    #[error("{}: {source}", path.display())]
    Tokenizer {
        /// The model.
        path: PathBuf,
        /// What is wrong.
        source: Box<TextError>,
    },
    /// Codes are no whole frames.
    #[error(
        "{got} codes are not whole frames of {quantizers}; give one code of each codebook for every frame"
    )]
    Frames {
        /// Codes that were given.
        got: usize,
        /// Codes of a frame.
        quantizers: usize,
    },
    /// A recording is too short for a network.
    #[error("a recording of {got} samples is too short to tell a voice from; at least {least} are needed")]
    TooShort {
        /// Samples that were given.
        got: usize,
        /// Samples that are needed.
        least: usize,
    },
    /// Audio could not be prepared.
    #[error(transparent)]
    Audio(Box<orate_audio::AudioError>),
    /// Logits are not numbers, so that no code could be drawn.
    #[error(
        "no code can be drawn for frame {frame}: the model's numbers are none; are its weights and the voice undamaged, and does \
         their format have the range that they need (bf16 or f32)?"
    )]
    NoCode {
        /// The frame, from 0.
        frame: usize,
    },
    /// Samples are not numbers, so that nothing would be heard.
    #[error(
        "the codec made no sound for frame {frame}: its samples are no numbers; are the weights in speech_tokenizer undamaged (download \
         them again), and does their format have the range that they need (`--weights f32`)?"
    )]
    NoSound {
        /// The frame, from 0; those of a reference, which the codec reads first, are counted too.
        frame: u64,
    },
    /// An op got operands it cannot take.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The device.
    #[error(transparent)]
    Device(Box<DeviceError>),
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
    /// A transcript has more tokens than its recording has frames. The model would speak what is left of it.
    #[error(
        "the transcript has {tokens} tokens, but the recording only {frames} frames ({seconds:.1} s), and speech has several frames for a \
         token: is this the transcript of this recording? Write down what the recording says, and no more, or leave the transcript \
         out to take the voice alone"
    )]
    LongTranscript {
        /// Of the transcript.
        tokens: usize,
        /// Of the recording.
        frames: usize,
        /// Length of the recording.
        seconds: f64,
    },
    /// The model has no such speaker.
    #[error("no speaker is called `{name}`; this model has {}", known.join(", "))]
    UnknownSpeaker {
        /// What was asked for.
        name: String,
        /// Those it has.
        known: Vec<String>,
    },
    /// The model does not speak the language.
    #[error("`{name}` is no language of this model; choose auto, {}", known.join(", "))]
    UnknownLanguage {
        /// What was asked for.
        name: String,
        /// Those it speaks.
        known: Vec<String>,
    },
    /// The model is made for another kind of speaker.
    #[error("this is a {variant} model: {problem}")]
    Mode {
        /// `Base`, `CustomVoice` or `VoiceDesign`
        variant: &'static str,
        /// What it needs.
        problem: String,
    },
    /// A voice made from reference audio does not fit the model.
    #[error("the voice does not fit this model: {problem}")]
    BadVoice {
        /// Why.
        problem: String,
    },
    /// A folder that only has a codec cannot talk.
    #[error("{}: a codec without a talker; give the folder of a whole model", path)]
    NoTalker {
        /// The folder.
        path: String,
    },
    /// Prompt and frames together are more than the model can attend to.
    #[error(
        "the prompt has {rows} rows and up to {frames} frames follow, but this model has room for {most} together; \
         shorten the text or the reference, or allow fewer frames"
    )]
    TooLong {
        /// Rows of the prompt.
        rows: usize,
        /// Frames that may follow.
        frames: usize,
        /// `max_position_embeddings`
        most: usize,
    },
    /// A setting out of range.
    #[error("{option} is {got}; {allowed}")]
    Option {
        /// Which.
        option: &'static str,
        /// What was passed.
        got: String,
        /// What is allowed.
        allowed: String,
    },
}

impl From<DeviceError> for QwenError {
    fn from(e: DeviceError) -> Self {
        QwenError::Device(Box::new(e))
    }
}

impl From<orate_audio::AudioError> for QwenError {
    fn from(error: orate_audio::AudioError) -> Self {
        QwenError::Audio(Box::new(error))
    }
}

/// How a file's tensors differ from those that the networks need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Names that are not there.
    pub missing: Vec<String>,
    /// Name, shape in the file, shape needed.
    pub misshapen: Vec<(String, Vec<usize>, Vec<usize>)>,
    /// Name and element type of those that hold no floats.
    pub not_floats: Vec<(String, String)>,
    /// Names that no network reads.
    pub unknown: Vec<String>,
}

impl Differences {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Differences::default()
    }
}

/// At most this many tensors of a kind are named.
const NAMED: usize = 4;

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors = |n: usize| if n == 1 { "1 tensor".to_owned() } else { format!("{n} tensors") };
        let list = |count: usize, verb: [&str; 2], names: Vec<String>| -> Option<String> {
            let more = if count > NAMED { ", …" } else { "" };
            let verb = verb[usize::from(count != 1)];
            (count > 0).then(|| format!("{} {verb}: {}{more}", tensors(count), names.join(", ")))
        };
        let quoted = |names: &[String]| names.iter().take(NAMED).map(|n| format!("`{n}`")).collect();
        let shapes = self.misshapen.iter().take(NAMED);
        let shapes = shapes.map(|(n, got, want)| format!("`{n}` is {got:?} instead of {want:?}")).collect();
        let types = self.not_floats.iter().take(NAMED).map(|(n, t)| format!("`{n}` is {t}")).collect();
        let parts = [
            list(self.missing.len(), ["is missing", "are missing"], quoted(&self.missing)),
            list(self.misshapen.len(), ["has another shape", "have another shape"], shapes),
            list(self.not_floats.len(), ["has an unsupported type", "have an unsupported type"], types),
            list(
                self.unknown.len(),
                ["belongs to no network", "belong to no network"],
                quoted(&self.unknown),
            ),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join("; "))
    }
}
