//! A text, spoken piece by piece.

use super::options::Options as Own;
use super::rows::{How, Row, Speech};
use super::session::Supertonic;
use super::shared_rows::Speaking;
use super::stage::Stage;
use super::text::Piece;
use super::voice::{Voice, parse_mix};
use crate::pieces::{Progress, attempt_seed, first_damaged};
use crate::{Chunk, Chunks, Lap, Laps, ModelError, OptionSet, Options, Size};
use orate_graph::Counters;
use orate_text::Traced;
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

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
    /// Where pieces share runs: this text, and the size of its next group.
    speaking: Option<Speaking>,
    group: usize,
    /// Pieces that were spoken together with those before them.
    spoken: VecDeque<(Work, Result<Speech, ModelError>)>,
    /// Time of each of [`Stage::ALL`].
    laps: [Duration; 4],
    sizes: Vec<Size>,
}

/// A piece whose samples are all below this is as good as silent: -34 dBFS. Of 350 readings of single words
/// by the built-in voice, at speeds 1 to 2, 21 stay below it, and the others reach 0.04 and more.
const SILENT: f32 = 0.02;

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
        let mut all = Pieces {
            pieces: pieces.into_iter(),
            voice,
            speed: files.speed(&own),
            steps: files.steps(&own),
            trim: own.trim.unwrap_or(true),
            word_times: o.word_times,
            progress: Progress::new(o),
            waits_for_stages: false,
            speaking: None,
            group: 1,
            spoken: VecDeque::new(),
            laps: [Duration::ZERO; 4],
            sizes: vec![],
            model,
        };
        if all.how() == How::default() {
            all.speaking = Speaking::new(&all.model);
        }
        all
    }

    /// How runs are done. Nobody knows which heads of the official models align, if any.
    fn how(&self) -> How {
        let aligns = self.word_times && self.model.files().version.is_none();
        How { aligns, waits_for_stages: self.waits_for_stages }
    }

    /// Speaks the next pieces: at first one, which is heard soonest, and then twice as many each time where
    /// pieces share runs.
    fn speak_group(&mut self) {
        let how = self.how();
        let speaking = self.speaking.as_ref().filter(|_| how == How::default());
        let most = speaking.map_or(1, |speaking| self.group.min(speaking.most()));
        self.group = 2 * most;
        let works: Vec<Work> = self.pieces.by_ref().take(most).collect();
        if works.is_empty() {
            return;
        }
        let row = |(i, work): (usize, &Work)| Row {
            ids: work.piece.ids.clone(),
            voice: self.voice.clone(),
            seed: self.progress.seed_of(i),
            steps: self.steps,
            speed: self.speed,
            frames: work.frames,
        };
        let rows: Vec<Row> = works.iter().enumerate().map(row).collect();
        let cancel = &self.progress.cancel;
        let all = match speaking {
            Some(speaking) => speaking.speak(rows, cancel),
            None => rows.iter().map(|row| self.model.speak_alone(row, cancel, how)).collect(),
        };
        self.spoken = works.into_iter().zip(all).collect();
        if self.pieces.len() == 0 {
            // Nobody has to wait for this text any more.
            self.speaking = None;
        }
    }

    /// Speaks a piece again that came out silent, as single words do where they are hurried: no faster than
    /// usual, and with another seed.
    fn again(&self, piece: &Piece) -> Result<Speech, ModelError> {
        let row = Row {
            ids: piece.ids.clone(),
            voice: self.voice.clone(),
            seed: attempt_seed(self.progress.seed_of(0), 2),
            steps: self.steps,
            speed: self.speed.min(1.0),
            frames: None,
        };
        self.model.speak_alone(&row, &self.progress.cancel, self.how())
    }

    fn chunk(&mut self, Work { piece, frames: forced }: Work, speech: Speech) -> Result<Chunk, ModelError> {
        self.progress.cancel.check()?;
        let (mut speech, mut samples) = self.samples(speech, forced.is_some())?;
        let (mut attempts, mut before) = (1, Counters::default());
        if forced.is_none() && samples.iter().all(|x| x.abs() < SILENT) {
            (attempts, before) = (2, speech.counters);
            (speech, samples) = self.samples(self.again(&piece)?, false)?;
        }
        let Speech { frames, mut counters, laps, letter_starts, .. } = speech;
        counters += before;
        self.laps.iter_mut().zip(laps).for_each(|(all, lap)| *all += lap);
        let (text, index, letter_times) = (piece.text, self.progress.index, self.seconds(letter_starts));
        self.progress.index += 1;
        self.sizes.push(Size { tokens: piece.ids.len(), frames });
        let of_piece = Chunk { ends_piece: true, attempts, ..Chunk::default() };
        Ok(Chunk { samples, text, index, counters, letter_times, ..of_piece })
    }

    /// The samples of a piece, of forced size or not.
    fn samples(&self, speech: Speech, is_forced: bool) -> Result<(Speech, Vec<f32>), ModelError> {
        let (all, range) = &speech.samples;
        let mut samples = (**all).as_ref()[range.clone()].to_vec();
        if let Some(i) = first_damaged(&samples) {
            let problem = format!("the vocoder returned {} for sample {i}", samples[i]);
            return Err(ModelError::Damaged { problem });
        }
        if self.trim && !is_forced {
            samples.truncate(speech.wanted.max(1));
        }
        Ok((speech, samples))
    }

    /// Times of latent frames.
    fn seconds(&self, frames: Vec<f32>) -> Vec<f32> {
        let c = &self.model.files().config;
        let frame = c.samples_per_latent() as f32 / c.sample_rate as f32;
        frames.into_iter().map(|at| at * frame).collect()
    }
}

impl Chunks for Pieces {
    fn next(&mut self) -> Option<Result<Chunk, ModelError>> {
        if self.spoken.is_empty() {
            self.speak_group();
        }
        let (work, speech) = self.spoken.pop_front()?;
        let result = speech.and_then(|speech| self.chunk(work, speech));
        if result.is_err() {
            (self.pieces, self.spoken) = (vec![].into_iter(), VecDeque::new());
        }
        Some(result)
    }

    fn remaining(&self) -> usize {
        self.pieces.len() + self.spoken.len()
    }

    fn remaining_chars(&self) -> usize {
        let works = self.pieces.as_slice().iter().chain(self.spoken.iter().map(|(work, _)| work));
        works.map(|work| work.piece.ids.len()).sum()
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
