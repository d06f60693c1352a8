//! Speaks texts piece by piece.
//!
//! A text is cut into pieces of whole sentences. T3 makes the codes of a piece, S3Gen the samples of all its
//! codes: attention in S3Gen sees the whole piece. Where a device is fast enough to run S3Gen several times,
//! a listener gets the first samples of a piece before its last codes are made ([`super::growing`]).

use super::alignment::{Watched, letter_times};
use super::config::{END_OF_SPEECH, FRAMES_PER_CODE, SILENCE, START_OF_SPEECH, Variant};
use super::growing::{AHEAD, Growing, LEAST, Setting, first_plans};
use super::guard::Guarded;
use super::options::Options as Own;
use super::pipeline::{Chatterbox, EXAGGERATION};
use super::s3gen::S3Gen;
use super::s3gen_plans::FlowSettings;
use super::shared_flow::Announced;
use super::t3_plans::{Conditioning, Prompt, T3};
use super::voice::Voice;
use crate::decoding::{DrawSettings, StartOptions, Step, Utterance, is_runaway};
use crate::pieces::{MOST_CHARS, Progress, attempt_seed, cut, cut_for_listener, first_damaged, is_speakable};
use crate::{Chunk, Chunks, FinishReason, Lap, Laps, ModelError, OptionSet, Options};
use orate_graph::Counters;
use orate_text::Traced;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Codes of the first chunk of a piece where nothing else is asked for.
const FIRST_CHUNK: usize = 10;
/// Codes that a chunk adds at most.
const LARGEST_CHUNK: usize = 200;
/// Words between the texts that plans are compiled for.
const WARM_UP_WORDS: usize = 8;
/// Codes of a character of slow speech.
const CODES_PER_CHAR: usize = 2;
/// Codes before the last one of a chunk when it is announced to other callers.
const ANNOUNCED: usize = 6;
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
    pieces: std::vec::IntoIter<(Traced, Vec<i32>)>,
    voice: Voice,
    conditioning: Arc<Conditioning>,
    language: Option<String>,
    /// Whether chunks say when letters are spoken, as far as the model knows.
    word_times: bool,
    own: Own,
    flow: FlowSettings,
    progress: Progress,
    warnings: Vec<String>,
    /// Codes of the first chunk of a piece; `None` where pieces are whole.
    first_chunk: Option<usize>,
    /// Factor by which chunks end later than those before them: each costs a run of S3Gen over all codes.
    growth: usize,
    current: Option<Speaking>,
    times: [Duration; STAGES.len()],
    /// Codes that were made.
    frames: usize,
    /// Ids and codes of the pieces that were spoken.
    sizes: Vec<[usize; 2]>,
}

/// A piece that is being spoken.
struct Speaking {
    text: Traced,
    ids: Vec<i32>,
    attempts: usize,
    seed: u64,
    utterance: Source,
    codes: Vec<i32>,
    /// Attention of each code to the ids, `[codes, ids]`; empty if nobody reads it.
    attention: Vec<f32>,
    /// How many codes the next chunk ends with.
    chunk: Option<usize>,
    growing: Growing,
    /// Work of T3 that earlier chunks have counted.
    counted: Counters,
}

/// What makes the codes of a piece.
enum Source {
    /// Together with those of other callers.
    Shared(Utterance<T3>),
    /// Alone, with its attention to the text.
    Watched(Watched),
    /// Under the alignment guard.
    Guarded(Guarded),
}

impl Source {
    fn next_frame(&mut self, codes: &mut Vec<i32>) -> Result<Step, ModelError> {
        match self {
            Source::Shared(utterance) => utterance.next_frame(codes),
            Source::Watched(watched) => watched.next_frame(codes),
            Source::Guarded(guarded) => guarded.next_frame(codes),
        }
    }

    fn counters(&self) -> Counters {
        match self {
            Source::Shared(utterance) => utterance.counters(),
            Source::Watched(watched) => watched.counters(),
            Source::Guarded(guarded) => guarded.watched.counters(),
        }
    }

    fn reused_rows(&self) -> usize {
        match self {
            Source::Shared(utterance) => utterance.reused_rows(),
            Source::Watched(watched) => watched.reused_rows(),
            Source::Guarded(guarded) => guarded.watched.reused_rows(),
        }
    }

    /// Attention of the newest code to the text, if it is read.
    fn attention(&self) -> &[f32] {
        match self {
            Source::Shared(_) => &[],
            Source::Watched(watched) => watched.row(),
            Source::Guarded(guarded) => guarded.watched.row(),
        }
    }
}

impl Pieces {
    pub fn new(model: Arc<Chatterbox>, text: &str, o: &Options) -> Result<Pieces, ModelError> {
        let talking = model.talking()?;
        let own = Own::read(&o.own);
        let voice = model.voice(o)?;
        let mut warnings = vec![];
        let pacing = model.device().pacing();
        let usual = if pacing.side_by_side { FIRST_CHUNK } else { 0 };
        let first_chunk = if o.whole { 0 } else { own.first_chunk.unwrap_or(usual) };
        let is_awaited = !o.whole && first_chunk == 0 && !pacing.side_by_side && o.first_piece == 0;
        let cut = if is_awaited { cut_for_listener(text) } else { cut(text) };
        let cut = cut.into_iter().filter(|piece| is_speakable(piece));
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
        let progress = Progress::new(o);
        let (language, word_times) = (o.language.clone(), o.word_times);
        Ok(Pieces {
            model,
            pieces: pieces.into_iter(),
            voice,
            conditioning,
            language,
            word_times,
            own,
            flow,
            progress,
            warnings,
            first_chunk: Some(first_chunk).filter(|codes| *codes > 0),
            growth: pacing.chunk_growth,
            current: None,
            times: Default::default(),
            frames: 0,
            sizes: vec![],
        })
    }

    /// A piece as T3 reads it, and how its codes are drawn.
    fn prompt(&self, ids: &[i32], seed: u64) -> Result<(Prompt, DrawSettings), ModelError> {
        let model = &self.model;
        let prompt = model.prompt(self.conditioning.clone(), ids.to_vec())?;
        let mut settings = model.draw_settings(&self.own, seed);
        // Room for what the prompt leaves.
        let config = &model.talking()?.config;
        let rows = config.conditioning_rows(of_t3(&self.voice).len()) + ids.len() + config.starts();
        let room = config.positions().saturating_sub(rows).min(config.most_codes());
        settings.max_frames = settings.max_frames.min(room).max(1);
        Ok((prompt, settings))
    }

    /// Begins a piece.
    fn start(&self, text: Traced, ids: Vec<i32>, attempts: usize) -> Result<Speaking, ModelError> {
        let seed = attempt_seed(self.progress.seed(), attempts);
        let (prompt, settings) = self.prompt(&ids, seed)?;
        let (t3, config) = (self.model.t3_for(&self.own)?, &self.model.talking()?.config);
        let watched = if self.says_times() { self.model.watched_t3()? } else { None };
        let utterance = match watched {
            _ if self.own.is_guarded() => Source::Guarded(Guarded::start(t3, config, &prompt, settings)?),
            Some(t3) => Source::Watched(Watched::start(t3, config, &prompt, settings)?),
            None => Source::Shared(t3.utterance(&prompt, settings, StartOptions::default(), |_| Ok(()))?),
        };
        let (codes, growing, counted) = (vec![], Growing::default(), Counters::default());
        Ok(Speaking {
            text,
            ids,
            attempts,
            seed,
            utterance,
            codes,
            attention: vec![],
            chunk: self.first_chunk,
            growing,
            counted,
        })
    }

    /// Whether the model's attention says when letters are spoken. That of other variants was never found to
    /// follow the text.
    fn says_times(&self) -> bool {
        self.word_times && self.model.files().variant == Variant::Multilingual
    }

    /// When each character of a piece begins, in seconds; empty if the model does not say.
    fn letter_times(&self, speaking: &Speaking) -> Result<Vec<f32>, ModelError> {
        let Speaking { text, ids, codes, attention, .. } = speaking;
        if attention.is_empty() {
            return Ok(vec![]);
        }
        let columns_of = self.model.talking()?.text.columns_of(text, self.language.as_deref(), ids)?;
        Ok(letter_times(attention, codes, ids.len(), &columns_of))
    }

    /// Makes codes up to the end of the piece, or until there are enough for a chunk. Where their number is
    /// known, S3Gen is told that they are coming.
    fn codes<'m>(
        &mut self,
        speaking: &mut Speaking,
        s3gen: &'m S3Gen,
    ) -> Result<(Option<FinishReason>, Option<Announced<'m>>), ModelError> {
        let (begun, says_times) = (Instant::now(), self.says_times());
        let mut codes = vec![];
        let enough = speaking.chunk.map(|chunk| chunk + AHEAD);
        let known = [enough, self.own.max_codes].into_iter().flatten().min();
        let mut coming = None;
        let finish = loop {
            if coming.is_none() && known.is_some_and(|known| speaking.codes.len() + ANNOUNCED >= known) {
                coming = s3gen.flows.coming();
            }
            if enough.is_some_and(|enough| speaking.codes.len() >= enough) {
                break None;
            }
            self.progress.cancel.check()?;
            match speaking.utterance.next_frame(&mut codes)? {
                Step::Frame => {
                    speaking.codes.extend_from_slice(&codes);
                    if says_times {
                        speaking.attention.extend_from_slice(speaking.utterance.attention());
                    }
                }
                Step::End(FinishReason::Length) if self.own.max_codes.is_none() => {
                    break Some(FinishReason::Runaway);
                }
                Step::End(reason) => break Some(reason),
            }
            self.frames += 1;
            if is_runaway(&speaking.codes) {
                break Some(FinishReason::Runaway);
            }
        };
        self.times[CODE] += begun.elapsed();
        Ok((finish, coming))
    }

    /// The next chunk of a piece. A piece with runaway generation is spoken again if none of it was returned.
    fn chunk(&mut self, speaking: &mut Speaking) -> Result<Chunk, ModelError> {
        let mut counters = Counters::default();
        let model = self.model.clone();
        loop {
            let (finish, coming) = self.codes(speaking, model.s3gen())?;
            let used = speaking.utterance.counters();
            counters += used - std::mem::replace(&mut speaking.counted, used);
            let is_first = speaking.growing.is_silent();
            if finish == Some(FinishReason::Runaway)
                && is_first
                && speaking.attempts <= self.own.retries.unwrap_or(1)
            {
                let (text, ids) = (speaking.text.clone(), speaking.ids.clone());
                *speaking = self.start(text, ids, speaking.attempts + 1)?;
                continue;
            }
            let variant = self.model.files().variant;
            let codes = match finish {
                Some(_) => spoken(variant, speaking.codes.clone()),
                None => speech(&speaking.codes),
            };
            let enough = if finish.is_some() { 1 } else { LEAST };
            let mut samples = vec![];
            if codes.len() >= enough {
                // The last code of Multilingual is noise, which the official code leaves out too, but not
                // the version with the guard.
                let is_cut = variant == Variant::Multilingual && !self.own.is_guarded();
                let cut = if is_cut && codes.len() > 1 { FRAMES_PER_CODE } else { 0 };
                let s3gen = model.s3gen();
                let (reference, cancel) = (&self.voice.reference, &self.progress.cancel);
                let (flow, seed) = (self.flow, speaking.seed);
                let setting = Setting { s3gen, reference, flow, seed, cancel, coming };
                let grown = speaking.growing.add(&codes, finish.map(|_| cut), setting)?;
                counters += grown.counters;
                let [flow, vocoder] = grown.times;
                self.times[FLOW] += flow;
                self.times[VOCODER] += vocoder;
                check(&grown.samples)?;
                samples = grown.samples;
            }
            speaking.chunk = speaking.chunk.map(|chunk| (self.growth * chunk).min(chunk + LARGEST_CHUNK));
            if samples.is_empty() && finish.is_none() {
                continue;
            }
            if finish.is_some() {
                self.sizes.push([speaking.ids.len(), speaking.codes.len()]);
            }
            let (text, index, attempts) = (speaking.text.clone(), self.progress.index, speaking.attempts);
            let prefix_rows = if is_first { speaking.utterance.reused_rows() } else { 0 };
            let ends_piece = finish.is_some();
            let letter_times = if ends_piece { self.letter_times(speaking)? } else { vec![] };
            let of_piece = Chunk { text, index, attempts, letter_times, ..Chunk::default() };
            return Ok(Chunk { samples, ends_piece, counters, prefix_rows, finish, ..of_piece });
        }
    }

    fn advance(&mut self) -> Option<Result<Chunk, ModelError>> {
        let mut speaking = match self.current.take() {
            Some(speaking) => speaking,
            None => {
                let (text, ids) = self.pieces.next()?;
                let begun = Instant::now();
                let started = self.start(text, ids, 1);
                self.times[PROMPT] += begun.elapsed();
                match started {
                    Ok(speaking) => speaking,
                    Err(e) => return Some(Err(e)),
                }
            }
        };
        let chunk = self.chunk(&mut speaking);
        match &chunk {
            Ok(chunk) if chunk.finish.is_none() => self.current = Some(speaking),
            _ => self.progress.index += 1,
        }
        Some(chunk)
    }
}

/// The codes that have sound.
fn speech(codes: &[i32]) -> Vec<i32> {
    codes.iter().copied().take_while(|c| *c != END_OF_SPEECH).filter(|c| *c < START_OF_SPEECH).collect()
}

/// The codes that have sound, and those of the silence after them.
pub(super) fn spoken(variant: Variant, codes: Vec<i32>) -> Vec<i32> {
    // English and Multilingual speak what lies between a start, if there is one, and the end.
    let start = codes.iter().position(|c| *c == START_OF_SPEECH).filter(|_| !variant.is_fast());
    let mut codes = speech(&codes[start.map_or(0, |at| at + 1)..]);
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
        let chunk = self.advance();
        if let Some(Err(_)) = &chunk {
            self.pieces = vec![].into_iter();
        }
        chunk
    }

    fn remaining(&self) -> usize {
        self.pieces.len() + usize::from(self.current.is_some())
    }

    fn remaining_chars(&self) -> usize {
        let current = self.current.as_ref().map_or(0, |s| s.text.chars().count());
        self.pieces.as_slice().iter().map(|(text, _)| text.chars().count()).sum::<usize>() + current
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn laps(&self) -> Laps {
        let stages = STAGES.into_iter().zip(self.times);
        let stages = stages.map(|((stage, per_frame), time)| Lap { stage, time, per_frame }).collect();
        let piece = |[tokens, codes]: &[usize; 2]| vec![("tokens", *tokens), ("codes", *codes)];
        Laps { stages, frames: self.frames, pieces: self.sizes.iter().map(piece).collect() }
    }
}

/// Compiles the plans of T3 for pieces of all lengths and `callers` at once. Plans of S3Gen are for some
/// lengths of speech, so those of some are compiled, whose kernels others share.
pub(super) fn make_plans(model: &Arc<Chatterbox>, o: &Options, callers: usize) -> Result<(), ModelError> {
    for words in (1..=MOST_CHARS / 3).step_by(WARM_UP_WORDS) {
        let mut pieces = match Pieces::new(model.clone(), &"so ".repeat(words), o) {
            Err(ModelError::LongText { .. }) => break,
            pieces => pieces?,
        };
        while let Some((text, ids)) = pieces.pieces.next() {
            let (prompt, settings) = pieces.prompt(&ids, 0)?;
            model.t3_for(&pieces.own)?.prepare(&prompt, settings.max_frames, callers)?;
            let longest = (text.len() * CODES_PER_CHAR).max(LEAST);
            let all = pieces.voice.reference.codes.len() + longest;
            let sizes = [all, pieces.voice.reference.frames()];
            for (plan, _) in model.s3gen().plans().of_utterance(sizes, pieces.flow.steps) {
                model.s3gen().plans().get(plan, false)?;
            }
        }
    }
    let pieces = Pieces::new(model.clone(), "so", o)?;
    if let Some(codes) = pieces.first_chunk {
        let (plans, codes) = (model.s3gen().plans(), codes.max(LEAST - AHEAD));
        for plan in first_plans(plans, &pieces.voice.reference, codes, pieces.flow.steps) {
            plans.get(plan, false)?;
        }
    }
    Ok(())
}
