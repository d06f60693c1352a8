//! Speaking piece by piece.

use crate::{Cancel, Engine, Error, Options, Result};
use orate_graph::Counters;
use orate_models::supertonic::{Noise, Piece, SpeakOptions, Voice};
use std::sync::Arc;

/// Audio of one piece of the text.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// Samples: silence in front (but for the first piece), then speech.
    pub samples: Vec<f32>,
    /// The piece as the model saw it.
    pub text: String,
    /// Number of the piece, from 0.
    pub index: usize,
    /// What was asked of the device: plans submitted, values read back, bytes copied.
    pub counters: Counters,
}

/// An iterator over the audio of a text; see [`Engine::stream`].
pub struct Stream {
    engine: Engine,
    pieces: std::vec::IntoIter<Piece>,
    voice: Arc<Voice>,
    options: SpeakOptions,
    steps: usize,
    silence: usize,
    trim: bool,
    cancel: Cancel,
    index: usize,
}

/// Longest silence between pieces, in seconds.
const MOST_SILENCE: f32 = 10.0;

impl Stream {
    pub(crate) fn new(engine: Engine, text: &str, o: &Options) -> Result<Stream> {
        let (options, steps) = engine.speak_options(o)?;
        if !(0.0..=MOST_SILENCE).contains(&o.silence) {
            return Err(Error::Option {
                option: "silence",
                got: o.silence.to_string(),
                allowed: format!("choose 0 to {MOST_SILENCE} seconds"),
            });
        }
        let files = engine.model().files();
        let voice = engine.voice(o.voice.as_deref().unwrap_or(files.default_voice()))?;
        let pieces = files.pieces(text, &options)?.into_iter();
        let silence = (f64::from(o.silence) * f64::from(engine.sample_rate())) as usize;
        let cancel = o.cancel.clone().unwrap_or_default();
        Ok(Stream { engine, pieces, voice, options, steps, silence, trim: o.trim, cancel, index: 0 })
    }

    /// Pieces that are still to come.
    pub fn remaining(&self) -> usize {
        self.pieces.len()
    }

    /// Characters that are still to come.
    pub fn remaining_chars(&self) -> usize {
        self.pieces.as_slice().iter().map(|p| p.ids.len()).sum()
    }

    fn speak(&mut self, piece: Piece) -> Result<Chunk> {
        let check = |c: &Cancel| if c.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) };
        check(&self.cancel)?;
        let model = self.engine.model();
        let mut s = model.session();
        s.set_piece(&piece, &self.voice)?;
        let seconds = s.durations()?[0];
        let (frames, wanted) = model.frames_for(seconds, self.options.speed);
        s.encode_text()?;
        check(&self.cancel)?;
        s.prepare(&[frames], self.steps, Noise::Seed(piece_seed(self.options.seed, self.index)))?;
        s.denoise(&|| !self.cancel.is_cancelled())?;
        check(&self.cancel)?;
        let mut speech = Vec::new();
        s.vocode(&mut speech)?;
        if self.trim {
            speech.truncate(wanted.max(1));
        }
        let silence = if self.index > 0 { self.silence } else { 0 };
        let mut samples = vec![0.0; silence];
        samples.append(&mut speech);
        let chunk = Chunk { samples, text: piece.text, index: self.index, counters: s.counters() };
        self.index += 1;
        Ok(chunk)
    }
}

/// Seed of a piece's noise: the given one for the first, another stream for each further one.
fn piece_seed(seed: u64, index: usize) -> u64 {
    seed ^ (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Iterator for Stream {
    type Item = Result<Chunk>;

    fn next(&mut self) -> Option<Self::Item> {
        let piece = self.pieces.next()?;
        let result = self.speak(piece);
        if result.is_err() {
            self.pieces = vec![].into_iter();
        }
        Some(result)
    }
}
