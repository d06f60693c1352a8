//! Speaking with Supertonic: piece by piece, each at once.

use crate::stream::{Chunk, Chunks};
use crate::{Cancel, Engine, Error, Options, Result};
use orate_models::supertonic::{ModelError, Noise, Piece, SpeakOptions, Voice};
use std::sync::Arc;

/// What is left of a text.
pub(crate) struct Pieces {
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

impl Pieces {
    pub fn new(engine: Engine, text: &str, o: &Options) -> Result<Pieces> {
        let (options, steps) = engine.speak_options(o)?;
        let files = engine.supertonic()?.files();
        let voice = engine.voice(o.voice.as_deref().unwrap_or(files.default_voice()))?;
        let pieces = files.pieces(text, &options)?.into_iter();
        let silence = (f64::from(o.silence) * f64::from(engine.sample_rate())) as usize;
        let cancel = o.cancel.clone().unwrap_or_default();
        Ok(Pieces { engine, pieces, voice, options, steps, silence, trim: o.trim, cancel, index: 0 })
    }

    fn speak(&mut self, piece: Piece) -> Result<Chunk> {
        let check = |c: &Cancel| if c.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) };
        check(&self.cancel)?;
        let model = self.engine.supertonic()?;
        let mut s = model.session();
        s.set_piece(&piece, &self.voice)?;
        let seconds = s.durations()?[0];
        model.check_duration(seconds, piece.ids.len())?;
        let (frames, wanted) = model.frames_for(seconds, self.options.speed);
        s.encode_text()?;
        check(&self.cancel)?;
        s.prepare(&[frames], self.steps, Noise::Seed(piece_seed(self.options.seed, self.index)))?;
        s.denoise(&|| !self.cancel.is_cancelled())?;
        check(&self.cancel)?;
        let mut speech = Vec::new();
        s.vocode(&mut speech)?;
        if !speech.iter().all(|x| x.is_finite()) {
            return Err(ModelError::NoSound.into());
        }
        if self.trim {
            speech.truncate(wanted.max(1));
        }
        let silence = if self.index > 0 { self.silence } else { 0 };
        let mut samples = vec![0.0; silence];
        samples.append(&mut speech);
        let (index, counters) = (self.index, s.counters());
        self.index += 1;
        Ok(Chunk { samples, text: piece.text, index, counters, prefix_rows: 0, finish: None, attempts: 1 })
    }
}

/// Seed of a piece's noise: the given one for the first, another stream for each further one.
pub(crate) fn piece_seed(seed: u64, index: usize) -> u64 {
    seed ^ (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Chunks for Pieces {
    fn next(&mut self) -> Option<Result<Chunk>> {
        let piece = self.pieces.next()?;
        let result = self.speak(piece);
        if result.is_err() {
            self.pieces = vec![].into_iter();
        }
        Some(result)
    }

    fn remaining(&self) -> usize {
        self.pieces.len()
    }

    fn remaining_chars(&self) -> usize {
        self.pieces.as_slice().iter().map(|p| p.ids.len()).sum()
    }
}
