//! Speaking bit by bit.

use crate::family::Family;
use crate::{Engine, Error, Laps, Options, Result, speak_qwen3, speak_supertonic};
use orate_graph::{AtHome, Counters};
use orate_models::qwen3_tts::FinishReason;

/// Some of a text's audio.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// Samples: silence in front of each piece but the first, then speech.
    pub samples: Vec<f32>,
    /// The piece as the model saw it.
    pub text: String,
    /// Number of the piece, from 0. Models that speak frame by frame give several chunks for a piece.
    pub index: usize,
    /// What was asked of the device: plans submitted, values read back, bytes copied.
    pub counters: Counters,
    /// Rows of the piece's prompt whose state was kept from an earlier one, with its first chunk. They cost no time.
    pub prefix_rows: usize,
    /// Why the piece ended, with its last chunk.
    pub finish: Option<FinishReason>,
    /// How often the piece was spoken so far, this time included: more than once if it went astray.
    pub attempts: usize,
}

/// The audio of a family of models, chunk by chunk.
pub(crate) trait Chunks: Send {
    /// The next chunk. After an error nothing follows.
    fn next(&mut self) -> Option<Result<Chunk>>;

    /// Pieces that are still to come.
    fn remaining(&self) -> usize;

    /// Characters that are still to come.
    fn remaining_chars(&self) -> usize;

    /// What was asked for and has no effect, in words.
    fn warnings(&self) -> &[String] {
        &[]
    }

    /// Where the time went so far; zero for a family that does not measure it.
    fn laps(&self) -> Laps {
        Laps::default()
    }
}

/// An iterator over the audio of a text; see [`Engine::stream`].
pub struct Stream {
    /// A forked process has none of its threads, and its locks may be held for ever.
    chunks: AtHome<Box<dyn Chunks>>,
    device: String,
    /// That the process forked was told.
    ended: bool,
}

/// Longest silence between pieces, in seconds.
const MOST_SILENCE: f32 = 10.0;

impl Stream {
    pub(crate) fn new(engine: Engine, text: &str, o: &Options) -> Result<Stream> {
        if !(0.0..=MOST_SILENCE).contains(&o.silence) {
            return Err(Error::Option {
                option: "silence",
                got: o.silence.to_string(),
                allowed: format!("choose 0 to {MOST_SILENCE} seconds"),
            });
        }
        let device = engine.device_object().name();
        let chunks: Box<dyn Chunks> = match engine.family() {
            Family::Supertonic(_) => Box::new(speak_supertonic::Pieces::new(engine, text, o)?),
            Family::Qwen3Tts(model) => Box::new(speak_qwen3::Pieces::new(model.clone(), text, o)?),
        };
        Ok(Stream { chunks: AtHome::new(chunks), device, ended: false })
    }

    /// Pieces that are still to come.
    pub fn remaining(&self) -> usize {
        self.chunks.remaining()
    }

    /// Characters that are still to come.
    pub fn remaining_chars(&self) -> usize {
        self.chunks.remaining_chars()
    }

    /// What was asked for and has no effect with this model, in words.
    pub fn warnings(&self) -> &[String] {
        self.chunks.warnings()
    }

    /// Where the time went so far; zero for models that do not speak frame by frame.
    pub fn laps(&self) -> Laps {
        self.chunks.laps()
    }
}

impl Iterator for Stream {
    type Item = Result<Chunk>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(e) = AtHome::home(&self.chunks).check(&self.device) {
            return (!std::mem::replace(&mut self.ended, true)).then_some(Err(e.into()));
        }
        self.chunks.next()
    }
}
