//! A text, spoken piece by piece.

use super::options::Options as Own;
use super::session::{Noise, Session, Supertonic};
use super::stage::Stage;
use super::text::Piece;
use super::voice::{Voice, parse_mix};
use crate::pieces::{Progress, first_damaged};
use crate::{Chunk, Chunks, Lap, Laps, ModelError, OptionSet, Options, Size};
use orate_text::Traced;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Parsed voices kept for reuse. One has some tens of kilobytes.
const VOICES_KEPT: usize = 64;

impl Supertonic {
    /// A voice by name, file, or mix such as `F1:0.7+M2:0.3`.
    ///
    /// # Errors
    /// A voice is unknown or does not fit the model.
    pub fn voice(&self, spec: &str) -> Result<Arc<Voice>, ModelError> {
        let mut kept = self.voices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(v) = kept.get(spec) {
            return Ok(v.clone());
        }
        let files = self.files();
        let voice = if files.voice_names().any(|name| name == spec) {
            files.voice(spec)?
        } else {
            match parse_mix(spec)?.as_slice() {
                [(name, weight)] if *weight > 0.0 => files.voice(name)?,
                parts => {
                    let parts = parts.iter().map(|(name, weight)| Ok((*weight, files.voice(name)?)));
                    Voice::mix(spec, &parts.collect::<Result<Vec<_>, ModelError>>()?)?
                }
            }
        };
        if kept.len() >= VOICES_KEPT {
            kept.clear();
        }
        let voice = Arc::new(voice);
        kept.insert(spec.to_owned(), voice.clone());
        Ok(voice)
    }
}

/// The pieces of a text that are still to be spoken.
pub(super) struct Pieces {
    model: Arc<Supertonic>,
    pieces: std::vec::IntoIter<Work>,
    voice: Arc<Voice>,
    speed: f32,
    steps: usize,
    trim: bool,
    word_times: bool,
    progress: Progress,
    waits_for_stages: bool,
    /// Time of each of [`Stage::ALL`].
    laps: [Duration; 4],
    sizes: Vec<Size>,
}

/// A piece to speak.
struct Work {
    piece: Piece,
    /// Forced frames of the latent, in place of those that are predicted.
    frames: Option<usize>,
}

impl Pieces {
    pub fn new(model: Arc<Supertonic>, text: &str, o: &Options) -> Result<Pieces, ModelError> {
        let voice = model.voice(o.voice.as_deref().unwrap_or(model.files().default_voice()))?;
        let pieces = model.files().pieces(text, o)?.into_iter();
        Ok(Self::of(model, pieces.map(|piece| Work { piece, frames: None }).collect(), voice, o))
    }

    /// One piece of a forced size, for timing.
    pub fn forced(model: Arc<Supertonic>, size: Size, o: &Options) -> Result<Pieces, ModelError> {
        let voice = model.voice(model.files().default_voice())?;
        let piece = Piece { text: Traced::default(), ids: vec![1; size.tokens] };
        Ok(Self::of(model, vec![Work { piece, frames: Some(size.frames) }], voice, o))
    }

    fn of(model: Arc<Supertonic>, pieces: Vec<Work>, voice: Arc<Voice>, o: &Options) -> Pieces {
        let (own, files) = (Own::read(&o.own), model.files());
        Pieces {
            pieces: pieces.into_iter(),
            voice,
            speed: files.speed(&own),
            steps: files.steps(&own),
            trim: own.trim.unwrap_or(true),
            word_times: o.word_times,
            progress: Progress::new(o),
            waits_for_stages: false,
            laps: [Duration::ZERO; 4],
            sizes: vec![],
            model,
        }
    }

    fn speak(&mut self, Work { piece, frames }: Work) -> Result<Chunk, ModelError> {
        self.progress.cancel.check()?;
        let (model, tokens) = (self.model.clone(), piece.ids.len());
        let mut s = model.session();
        // Nobody knows which heads of the official models align, if any.
        let aligns = self.word_times && model.files().version.is_none();
        if aligns {
            s.align();
        }
        s.set_text(&[(&piece.ids, &self.voice)])?;
        let mut last = Instant::now();
        let seconds = s.durations()?[0];
        let (frames, wanted) = match frames {
            Some(forced) => (forced, usize::MAX),
            None => {
                model.check_duration(seconds, tokens)?;
                model.frames_for(seconds, self.speed)
            }
        };
        self.lap(Stage::DurationPredictor, &mut s, &mut last)?;
        s.encode_text()?;
        self.lap(Stage::TextEncoder, &mut s, &mut last)?;
        self.progress.cancel.check()?;
        s.prepare(&[frames], self.steps, Noise::Seed(self.progress.seed()))?;
        s.denoise(&|| !self.progress.cancel.is_cancelled())?;
        self.lap(Stage::VectorEstimator, &mut s, &mut last)?;
        self.progress.cancel.check()?;
        let letter_times = if aligns { self.seconds(s.letter_starts()?) } else { vec![] };
        let mut speech = Vec::new();
        s.vocode(&mut speech)?;
        self.lap(Stage::Vocoder, &mut s, &mut last)?;
        if let Some(i) = first_damaged(&speech) {
            let problem = format!("the vocoder returned {} for sample {i}", speech[i]);
            return Err(ModelError::Damaged { problem });
        }
        if self.trim {
            speech.truncate(wanted.max(1));
        }
        let (text, index, counters) = (piece.text, self.progress.index, s.counters());
        self.progress.index += 1;
        self.sizes.push(Size { tokens, frames });
        let of_piece = Chunk { ends_piece: true, attempts: 1, ..Chunk::default() };
        Ok(Chunk { samples: speech, text, index, counters, letter_times, ..of_piece })
    }

    /// Times of latent frames.
    fn seconds(&self, frames: Vec<f32>) -> Vec<f32> {
        let c = &self.model.files().config;
        let frame = c.samples_per_latent() as f32 / c.sample_rate as f32;
        frames.into_iter().map(|at| at * frame).collect()
    }

    /// Ends a stage.
    fn lap(&mut self, stage: Stage, s: &mut Session<'_>, last: &mut Instant) -> Result<(), ModelError> {
        if self.waits_for_stages {
            s.wait()?;
        }
        let now = Instant::now();
        self.laps[stage as usize] += now - std::mem::replace(last, now);
        Ok(())
    }
}

impl Chunks for Pieces {
    fn next(&mut self) -> Option<Result<Chunk, ModelError>> {
        let work = self.pieces.next()?;
        let result = self.speak(work);
        if result.is_err() {
            self.pieces = vec![].into_iter();
        }
        Some(result)
    }

    fn remaining(&self) -> usize {
        self.pieces.len()
    }

    fn remaining_chars(&self) -> usize {
        self.pieces.as_slice().iter().map(|work| work.piece.ids.len()).sum()
    }

    fn laps(&self) -> Laps {
        let stages = Stage::ALL.into_iter().zip(self.laps);
        let lap = |(stage, time): (Stage, Duration)| Lap { stage: stage.name(), time, per_frame: false };
        let piece = |s: &Size| vec![("tokens", s.tokens), ("latents", s.frames), ("steps", self.steps)];
        Laps { stages: stages.map(lap).collect(), frames: 0, pieces: self.sizes.iter().map(piece).collect() }
    }

    fn time_apart(&mut self) -> bool {
        self.waits_for_stages = true;
        true
    }
}
