//! A text, spoken piece by piece.

use super::voice::parse_mix;
use super::{Files, Noise, Options as Own, Piece, Session, SpeakOptions, Stage, Supertonic, Voice};
use crate::pieces::Progress;
use crate::sound::first_damaged;
use crate::{Chunk, Chunks, Lap, Laps, ModelError, OptionSet, Options, Size};
use orate_text::pieces::Unknown;
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
        let voice = if files.voice_names().iter().any(|n| n == spec) {
            files.voice(spec)?
        } else {
            let parts = parse_mix(spec)?;
            let parts = parts.into_iter().map(|(name, w)| Ok((w, files.voice(&name)?)));
            match parts.collect::<Result<Vec<_>, ModelError>>()? {
                one if one.len() == 1 && one[0].0 > 0.0 => one.into_iter().next().expect("one part").1,
                several => Voice::mix(spec, &several)?,
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

impl SpeakOptions {
    /// Options of a model, with what it does by default.
    pub fn of(files: &Files, options: &Options) -> SpeakOptions {
        let own = Own::read(&options.own);
        SpeakOptions {
            language: options.language.clone(),
            speed: own.speed.unwrap_or(files.default_speed()),
            steps: own.steps,
            seed: options.seed,
            read_numbers: own.read_numbers,
            unknown: if own.skip_unknown == Some(true) { Unknown::Skip } else { Unknown::Refuse },
        }
    }
}

/// The pieces of a text that are still to be spoken.
pub(super) struct Pieces {
    model: Arc<Supertonic>,
    pieces: std::vec::IntoIter<Work>,
    voice: Arc<Voice>,
    options: SpeakOptions,
    steps: usize,
    trim: bool,
    progress: Progress,
    waits_for_stages: bool,
    /// Time of each of [`Stage::ALL`].
    laps: [Duration; 4],
    sizes: Vec<Size>,
}

/// A piece to speak.
enum Work {
    /// A piece of a text.
    Piece(Piece),
    /// Any text, of a forced size.
    Forced(Size),
}

impl Pieces {
    pub fn new(model: Arc<Supertonic>, text: &str, o: &Options) -> Result<Pieces, ModelError> {
        let options = SpeakOptions::of(model.files(), o);
        let voice = model.voice(o.voice.as_deref().unwrap_or(model.files().default_voice()))?;
        let pieces = model.files().pieces(text, &options)?;
        Self::of(model, pieces.into_iter().map(Work::Piece).collect(), voice, options, o)
    }

    /// One piece of a forced size, for timing.
    pub fn forced(model: Arc<Supertonic>, size: Size, o: &Options) -> Result<Pieces, ModelError> {
        let options = SpeakOptions::of(model.files(), o);
        let voice = model.voice(model.files().default_voice())?;
        Self::of(model, vec![Work::Forced(size)], voice, options, o)
    }

    fn of(
        model: Arc<Supertonic>,
        pieces: Vec<Work>,
        voice: Arc<Voice>,
        options: SpeakOptions,
        o: &Options,
    ) -> Result<Pieces, ModelError> {
        let steps = options.steps(&model.files().config);
        let progress = Progress::new(o, model.sample_rate());
        Ok(Pieces {
            model,
            pieces: pieces.into_iter(),
            voice,
            options,
            steps,
            trim: Own::read(&o.own).trim.unwrap_or(true),
            progress,
            waits_for_stages: false,
            laps: [Duration::ZERO; 4],
            sizes: vec![],
        })
    }

    fn speak(&mut self, work: Work) -> Result<Chunk, ModelError> {
        self.progress.cancel.check()?;
        let model = self.model.clone();
        let mut s = model.session();
        let (text, tokens) = match &work {
            Work::Piece(piece) => {
                s.set_piece(piece, &self.voice)?;
                (piece.text.clone(), piece.ids.len())
            }
            Work::Forced(size) => {
                s.set_forced(size.tokens)?;
                (String::new(), size.tokens)
            }
        };
        let mut last = Instant::now();
        let seconds = s.durations()?[0];
        let (frames, wanted) = match &work {
            Work::Piece(_) => {
                model.check_duration(seconds, tokens)?;
                model.frames_for(seconds, self.options.speed)
            }
            Work::Forced(size) => (size.frames, usize::MAX),
        };
        self.lap(Stage::DurationPredictor, &mut s, &mut last)?;
        s.encode_text()?;
        self.lap(Stage::TextEncoder, &mut s, &mut last)?;
        self.progress.cancel.check()?;
        s.prepare(&[frames], self.steps, Noise::Seed(self.progress.seed()))?;
        s.denoise(&|| !self.progress.cancel.is_cancelled())?;
        self.lap(Stage::VectorEstimator, &mut s, &mut last)?;
        self.progress.cancel.check()?;
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
        let samples = self.progress.after_silence(speech);
        let (index, counters) = (self.progress.index, s.counters());
        self.progress.index += 1;
        self.sizes.push(Size { tokens, frames });
        Ok(Chunk { samples, text, index, counters, prefix_rows: 0, finish: None, attempts: 1 })
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
        let chars = |work: &Work| match work {
            Work::Piece(piece) => piece.ids.len(),
            Work::Forced(size) => size.tokens,
        };
        self.pieces.as_slice().iter().map(chars).sum()
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
