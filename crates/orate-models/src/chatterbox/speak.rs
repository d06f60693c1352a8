//! Speaks texts piece by piece.
//!
//! A text is cut into pieces of whole sentences. T3 makes the codes of a piece, S3Gen the samples of all its
//! codes: attention in S3Gen sees the whole piece.

use super::config::{END_OF_SPEECH, SILENCE, START_OF_SPEECH, Variant};
use super::options::Options as Own;
use super::pipeline::{Chatterbox, EXAGGERATION};
use super::s3gen::{FlowSettings, Noise};
use super::t3_plans::{Conditioning, T3};
use super::voice::Voice;
use crate::decoding::{StartOptions, Step, Utterance, is_runaway};
use crate::pieces::{Progress, first_damaged, is_speakable};
use crate::{Chunk, Chunks, FinishReason, Lap, Laps, ModelError, OptionSet, Options};
use orate_graph::Counters;
use orate_text::pieces;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most characters of a piece: some 20 seconds of speech, half of what the official code allows for a call.
const MOST_CHARS: usize = 300;
/// The same for scripts whose characters stand for a syllable or a word.
const MOST_IDEOGRAPHS: usize = 100;
/// The first character of East Asian scripts.
const FIRST_IDEOGRAPH: char = '\u{2E80}';
/// Codes of silence after the speech of Turbo and Nano.
const SILENT_CODES: usize = 3;

/// Stages whose time is measured, and whether they run for each code.
const STAGES: [(&str, bool); 4] = [("prompt", false), ("code", true), ("flow", false), ("vocoder", false)];
const PROMPT: usize = 0;
const CODE: usize = 1;
const FLOW: usize = 2;
const VOCODER: usize = 3;

/// The pieces of a text that are still to be spoken.
pub(super) struct Pieces {
    model: Arc<Chatterbox>,
    pieces: std::vec::IntoIter<(String, Vec<i32>)>,
    voice: Voice,
    conditioning: Arc<Conditioning>,
    own: Own,
    flow: FlowSettings,
    progress: Progress,
    warnings: Vec<String>,
    times: [Duration; STAGES.len()],
    codes: usize,
}

impl Pieces {
    pub fn new(model: Arc<Chatterbox>, text: &str, o: &Options) -> Result<Pieces, ModelError> {
        let talking = model.talking()?;
        let own = Own::read(&o.own);
        let voice = model.voice(o)?;
        let mut warnings = vec![];
        let cut = cut(text).into_iter().filter(|piece| is_speakable(piece));
        let pieces = cut.map(|piece| {
            let ids = talking.text.ids_of(&piece, o.language.as_deref(), &mut warnings)?;
            Ok((piece, ids))
        });
        let pieces = pieces.collect::<Result<Vec<_>, ModelError>>()?;
        if pieces.is_empty() {
            return Err(ModelError::EmptyText { what: "text" });
        }
        let of_t3 = voice.talking.as_ref().expect("checked with the voice");
        let conditioning = model.conditioning(of_t3, own.exaggeration.unwrap_or(EXAGGERATION))?;
        for (_, ids) in &pieces {
            model.prompt(conditioning.clone(), ids.clone())?;
        }
        model.draw_settings(&own, 0).check()?;
        let flow = model.flow_settings(&own);
        let progress = Progress::new(o, model.sample_rate());
        Ok(Pieces {
            model,
            pieces: pieces.into_iter(),
            voice,
            conditioning,
            own,
            flow,
            progress,
            warnings,
            times: Default::default(),
            codes: 0,
        })
    }

    /// Codes of a piece, and why they end.
    fn codes(
        &mut self,
        ids: &[i32],
        seed: u64,
    ) -> Result<(Vec<i32>, FinishReason, Counters, usize), ModelError> {
        let model = self.model.clone();
        let prompt = model.prompt(self.conditioning.clone(), ids.to_vec())?;
        let mut settings = model.draw_settings(&self.own, seed);
        // Room for what the prompt leaves.
        let config = &model.talking()?.config;
        let rows = config.conditioning_rows(of_t3(&self.voice).len()) + ids.len() + config.starts();
        settings.max_frames = settings.max_frames.min(config.positions().saturating_sub(rows)).max(1);
        let begun = Instant::now();
        let mut utterance: Utterance<T3> =
            model.t3()?.utterance(&prompt, settings, StartOptions::default(), || Ok(()))?;
        self.times[PROMPT] += begun.elapsed();
        let begun = Instant::now();
        let (mut all, mut codes) = (vec![], vec![]);
        let finish = loop {
            self.progress.cancel.check()?;
            match utterance.next_frame(&mut codes)? {
                Step::Frame => all.extend_from_slice(&codes),
                Step::End(FinishReason::Length) if self.own.max_codes.is_none() => {
                    break FinishReason::Runaway;
                }
                Step::End(reason) => break reason,
            }
            if is_runaway(&all) {
                break FinishReason::Runaway;
            }
        };
        self.times[CODE] += begun.elapsed();
        self.codes += all.len();
        Ok((all, finish, utterance.counters(), utterance.reused_rows()))
    }

    fn piece(&mut self, text: String, ids: &[i32]) -> Result<Chunk, ModelError> {
        let mut counters = Counters::default();
        let (seed, retries) = (self.progress.seed(), self.own.retries.unwrap_or(1));
        let mut attempts = 0;
        let (codes, finish, prefix_rows, seed) = loop {
            attempts += 1;
            let seed = attempt_seed(seed, attempts);
            let (codes, finish, used, reused) = self.codes(ids, seed)?;
            counters += used;
            if finish != FinishReason::Runaway || attempts > retries {
                break (codes, finish, reused, seed);
            }
        };
        let codes = spoken(self.model.files().variant, codes);
        let samples = match codes.is_empty() {
            true => vec![],
            false => {
                let (samples, used) = self.samples(&codes, seed)?;
                counters += used;
                samples
            }
        };
        let (samples, index) = (self.progress.after_silence(samples), self.progress.index);
        self.progress.index += 1;
        Ok(Chunk { samples, text, index, counters, prefix_rows, finish: Some(finish), attempts })
    }

    fn samples(&mut self, codes: &[i32], seed: u64) -> Result<(Vec<f32>, Counters), ModelError> {
        let model = self.model.clone();
        let mut session = model.s3gen().session(&self.voice.reference, false);
        let begun = Instant::now();
        session.mel(codes, self.flow, Noise::Seed(seed), &self.progress.cancel)?;
        self.times[FLOW] += begun.elapsed();
        let begun = Instant::now();
        let frames = session.frames();
        let samples = session.vocode(0..frames, Noise::Seed(seed))?;
        self.times[VOCODER] += begun.elapsed();
        check(&samples)?;
        Ok((samples, session.counters()))
    }
}

/// The codes that have sound, and those of the silence after them.
pub(super) fn spoken(variant: Variant, codes: Vec<i32>) -> Vec<i32> {
    // English and Multilingual speak what lies between a start, if there is one, and the end.
    let start = codes.iter().position(|c| *c == START_OF_SPEECH).filter(|_| !variant.is_fast());
    let codes = codes.into_iter().skip(start.map_or(0, |at| at + 1));
    let mut codes: Vec<i32> =
        codes.take_while(|c| *c != END_OF_SPEECH).filter(|c| *c < START_OF_SPEECH).collect();
    if variant.is_fast() && !codes.is_empty() {
        codes.extend([SILENCE; SILENT_CODES]);
    }
    codes
}

/// Refuses what no undamaged model returns.
pub(super) fn check(samples: &[f32]) -> Result<(), ModelError> {
    match first_damaged(samples) {
        None => Ok(()),
        Some(at) => {
            let problem = format!("sample {at} of the vocoder is {}", samples[at]);
            Err(ModelError::Damaged { problem })
        }
    }
}

fn of_t3(voice: &Voice) -> &[i32] {
    voice.talking.as_ref().map_or(&[], |t| &t.prompt)
}

impl Chunks for Pieces {
    fn next(&mut self) -> Option<Result<Chunk, ModelError>> {
        let (text, ids) = self.pieces.next()?;
        let chunk = self.piece(text, &ids);
        if chunk.is_err() {
            self.pieces = vec![].into_iter();
        }
        Some(chunk)
    }

    fn remaining(&self) -> usize {
        self.pieces.len()
    }

    fn remaining_chars(&self) -> usize {
        self.pieces.as_slice().iter().map(|(text, _)| text.chars().count()).sum()
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn laps(&self) -> Laps {
        let stages = STAGES.into_iter().zip(self.times);
        let stages = stages.map(|((stage, per_frame), time)| Lap { stage, time, per_frame }).collect();
        Laps { stages, frames: self.codes, pieces: vec![] }
    }
}

fn cut(text: &str) -> Vec<String> {
    let dense = text.chars().filter(|c| *c >= FIRST_IDEOGRAPH).count();
    let max_chars = if 2 * dense > text.chars().count() { MOST_IDEOGRAPHS } else { MOST_CHARS };
    pieces::at_most(text, max_chars)
}

/// Seed of an attempt at a piece, counted from 1.
fn attempt_seed(seed: u64, attempt: usize) -> u64 {
    seed ^ (attempt as u64 - 1).wrapping_mul(0xD1B5_4A32_D192_ED03)
}
