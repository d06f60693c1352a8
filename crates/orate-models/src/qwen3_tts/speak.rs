//! Speaks texts frame by frame.
//!
//! A text is cut into pieces of whole sentences. Frames of a piece are generated one after the other. The
//! first chunk of samples has few frames, so that sound comes early; later ones are larger. Where the codec
//! runs beside the talker ([`super::codec_beside`]), frames are generated while the previous chunk is
//! decoded. A piece with runaway generation is ended, and spoken again if none of it was emitted.

use super::codec_beside::{CodecBeside, Decoded, Order};
use super::{
    Options as Own, Prompt, Qwen3Tts, Request, Sampling, Settings, Speaker, StartOptions, Step, Utterance,
    Variant, Voice, is_runaway,
};
use crate::pieces::{MOST_CHARS, Progress, attempt_seed, cut, is_speakable};
use crate::{Chunk, Chunks, FinishReason, Lap, Laps, ModelError, OptionSet, Options};
use orate_graph::Counters;
use orate_text::Traced;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MOST_FRAMES: usize = 25;

/// Most chunks whose frames are generated before the samples of an earlier chunk are emitted.
const MOST_AHEAD: usize = 2;

/// Frames of the previous piece that the codec reads before a piece that continues its voice: the overlap of
/// chunks in the official package.
const FRAMES_BEFORE: usize = 25;

/// Words between the texts that plans are compiled for. Even with a token for each character, they have fewer
/// tokens than prompts are padded to.
const WARM_UP_STEP: usize = 8;

/// Frames between the earlier pieces that plans are compiled for: fewer than cache sizes differ by.
const WARM_UP_FRAMES: usize = 64;

/// Stages whose time is measured: prompts up to the state before the first frame; talker and code predictor,
/// one plan for each frame, up to codes on the host; the codec up to samples on the host.
const STAGES: [(&str, bool); 3] = [("prompt", false), ("frame", true), ("codec", true)];
const PROMPT: usize = 0;
const FRAME: usize = 1;
const CODEC: usize = 2;

/// The pieces of a text that are still to be spoken.
pub(super) struct Pieces {
    model: Arc<Qwen3Tts>,
    pieces: std::vec::IntoIter<(Traced, Prompt)>,
    settings: Settings,
    own: Own,
    language: Option<String>,
    whole: bool,
    progress: Progress,
    /// Codes of a reference, which the codec reads before each piece.
    before: Arc<[i32]>,
    /// Whether the voice is known by its description alone, so that each piece could get another one. The
    /// first piece that is spoken to its end therefore becomes the context of later pieces.
    is_described: bool,
    /// Text and codes of that piece.
    spoken: Option<(Traced, Vec<i32>)>,
    /// Set while there are codes to decode.
    codec: Option<CodecBeside>,
    current: Option<Speaking>,
    /// Chunks of a whole piece that are still to be emitted.
    made: VecDeque<Chunk>,
    warnings: Vec<String>,
    /// Of [`STAGES`], and number of frames generated.
    times: [Duration; 3],
    frames: usize,
    /// Tokens of the text of each piece that was started.
    tokens: Vec<usize>,
}

struct Speaking {
    text: Traced,
    prompt: Prompt,
    attempts: usize,
    session: Utterance,
    /// Frames of the current chunk.
    frames: usize,
    /// All codes so far, and how many of them the codec was given.
    codes: Vec<i32>,
    given: usize,
    /// Chunks that the codec is decoding: work that the talker asked of the device, and why the piece ends.
    decoding: VecDeque<(Counters, Option<FinishReason>)>,
    heard: bool,
    /// Code 0 of each frame so far.
    first_codes: Vec<i32>,
    /// Reason to report when the frame budget is used up.
    at_most: FinishReason,
    finish: Option<FinishReason>,
    counted: Counters,
}

impl Pieces {
    pub fn new(model: Arc<Qwen3Tts>, text: &str, o: &Options) -> Result<Pieces, ModelError> {
        let talking = model.talking()?;
        let config = &talking.config;
        let own = Own::read(&o.own);
        let default = config.speakers().first().copied();
        let cloned = o.cloned.as_deref().map(Voice::try_from).transpose()?;
        let speaker = match (config.tts_model_type, o.voice.as_deref(), &cloned) {
            (_, _, Some(voice)) => voice.speaker(),
            (Variant::VoiceDesign, None, None) => Speaker::Described,
            (_, Some(name), None) => Speaker::Named(name),
            // The error of models without speakers says what they need instead.
            (_, None, None) => default.map_or(Speaker::Described, Speaker::Named),
        };
        // The codec continues where the recording ended.
        let reference = cloned.as_ref().and_then(|v| v.reference.as_ref());
        let before = reference.map(|r| r.codes.clone()).unwrap_or_default();
        let (language, instruct, feeding) =
            (o.language.as_deref(), own.instruct.as_deref(), own.text_feeding);
        let prompt = |text: &str| model.prompt(&Request { text, speaker, language, instruct, feeding });
        let pieces = cut(text).into_iter().filter(|piece| is_speakable(piece));
        let pieces = pieces.map(|piece| prompt(&piece).map(|prompt| (piece, prompt)));
        let pieces = pieces.collect::<Result<Vec<_>, _>>()?;
        let warnings = match pieces.first() {
            Some((_, prompt)) => prompt.warnings.clone(),
            None => prompt("")?.warnings, // the error for empty texts
        };
        let settings = settings(Settings::new(&talking.generation, o.seed), &own);
        settings.check()?;
        let progress = Progress::new(o);
        let is_described = speaker == Speaker::Described;
        Ok(Pieces {
            model,
            pieces: pieces.into_iter(),
            settings,
            own,
            language: o.language.clone(),
            whole: o.whole,
            progress,
            before: before.into(),
            is_described,
            spoken: None,
            codec: None,
            current: None,
            made: VecDeque::new(),
            warnings,
            times: Default::default(),
            frames: 0,
            tokens: vec![],
        })
    }

    /// The prompt of the first piece, and the settings.
    pub fn first(mut self) -> (Prompt, Settings) {
        let (_, prompt) = self.pieces.next().expect("a text has a piece");
        (prompt, self.settings)
    }

    /// The codec, which is started for the first piece.
    fn codec(&mut self) -> Result<&mut CodecBeside, ModelError> {
        if self.codec.is_none() {
            let beside = self.own.codec_beside.unwrap_or(self.model.device().pacing().side_by_side);
            self.codec = Some(CodecBeside::new(self.model.codec().clone(), beside)?);
        }
        Ok(self.codec.as_mut().expect("made above"))
    }

    fn budget(&self, prompt: &Prompt) -> usize {
        self.own.max_frames.unwrap_or(prompt.frame_budget()).min(self.settings.max_frames)
    }

    /// The prompt of a piece. A described voice is taken from an earlier piece, if there is one.
    fn prompt(&self, text: &str, prompt: Prompt) -> Result<Prompt, ModelError> {
        let Some((transcript, codes)) = &self.spoken else { return Ok(prompt) };
        let speaker = Speaker::GoingOn { transcript, codes };
        let (language, instruct) = (self.language.as_deref(), self.own.instruct.as_deref());
        self.model.prompt(&Request { text, speaker, language, instruct, feeding: self.own.text_feeding })
    }

    /// Keeps the voice of a piece that has ended normally.
    fn take_over(&mut self, speaking: &Speaking) {
        let codes = &speaking.codes;
        if self.is_described && self.spoken.is_none() && !codes.is_empty() {
            let context = FRAMES_BEFORE * self.model.codec().quantizers();
            self.before = codes[codes.len().saturating_sub(context)..].into();
            self.spoken = Some((speaking.text.clone(), codes.clone()));
        }
    }

    fn start(&mut self, text: Traced, prompt: Prompt, attempts: usize) -> Result<Speaking, ModelError> {
        let (needed, budget) = (prompt.frame_budget(), self.budget(&prompt));
        // A limit from the options is reported as a length. The budget of the text alone is more than it
        // needs, so that using it up means runaway generation.
        let is_guard = self.own.max_frames.is_none() && budget == needed;
        let at_most = if is_guard { FinishReason::Runaway } else { FinishReason::Length };
        let seed = attempt_seed(self.progress.seed(), attempts);
        let before = self.before.clone();
        self.codec()?.order(Order::Begin(before));
        let begun = Instant::now();
        let frames = self.model.device().pacing().first_chunk;
        let pause_after = (!self.whole).then_some(frames);
        let options = StartOptions { pause_after, ..StartOptions::default() };
        let settings = Settings { seed, max_frames: budget, ..self.settings };
        let session = self.model.utterance(&prompt, &settings, options)?;
        self.times[PROMPT] += begun.elapsed();
        if attempts == 1 {
            self.tokens.push(prompt.tokens);
        }
        Ok(Speaking {
            text,
            prompt,
            attempts,
            session,
            frames,
            codes: vec![],
            decoding: VecDeque::new(),
            heard: false,
            given: 0,
            first_codes: vec![],
            at_most,
            finish: None,
            counted: Counters::default(),
        })
    }

    /// The next chunk of a piece. Frames of later chunks are generated while its samples are not ready.
    fn chunk(&mut self, speaking: &mut Speaking) -> Result<Chunk, ModelError> {
        loop {
            self.progress.cancel.check()?;
            // Waits for the first samples of a piece, as the listener does.
            let first = !speaking.heard && !self.whole && !speaking.decoding.is_empty();
            let wait = first || speaking.finish.is_some() || speaking.decoding.len() > MOST_AHEAD;
            if let Some(Decoded { samples, counters: of_codec, time }) = self.codec()?.next(wait)? {
                let made = speaking.decoding.pop_front();
                let (mut counters, finish) = made.expect("the codec answers what it was given");
                counters += of_codec;
                self.times[CODEC] += time;
                let (text, index, attempts) = (speaking.text.clone(), self.progress.index, speaking.attempts);
                let prefix_rows = match std::mem::replace(&mut speaking.heard, true) {
                    true => 0,
                    false => speaking.session.reused_rows(),
                };
                let ends_piece = finish.is_some();
                let of_piece = Chunk { text, index, attempts, ..Chunk::default() };
                return Ok(Chunk { samples, ends_piece, counters, prefix_rows, finish, ..of_piece });
            }
            self.frame(speaking)?;
        }
    }

    /// Generates a frame. The codec gets the codes of a chunk when it is complete.
    fn frame(&mut self, speaking: &mut Speaking) -> Result<(), ModelError> {
        let mut codes = vec![];
        let begun = Instant::now();
        let step = speaking.session.next_frame(&mut codes)?;
        self.times[FRAME] += begun.elapsed();
        match step {
            Step::Frame => {
                self.frames += 1;
                speaking.codes.extend_from_slice(&codes);
                speaking.first_codes.extend(codes.first());
                if is_runaway(&speaking.first_codes) {
                    speaking.finish = Some(FinishReason::Runaway);
                }
            }
            Step::End(FinishReason::Length) => speaking.finish = Some(speaking.at_most),
            Step::End(reason) => {
                speaking.finish = Some(reason);
                if reason == FinishReason::Stop {
                    self.take_over(speaking);
                }
            }
        }
        let codes = &speaking.codes[speaking.given..];
        let is_whole = codes.len() >= speaking.frames * self.model.codec().quantizers();
        if !is_whole && speaking.finish.is_none() {
            return Ok(());
        }
        let all = speaking.session.counters();
        let counters = all - std::mem::replace(&mut speaking.counted, all);
        speaking.decoding.push_back((counters, speaking.finish));
        let growth = self.model.device().pacing().chunk_growth;
        speaking.frames = (growth * speaking.frames).min(MOST_FRAMES);
        let (codes, last) = (codes.to_vec(), speaking.finish.is_some());
        speaking.given = speaking.codes.len();
        self.codec()?.order(Order::Decode { codes, last });
        Ok(())
    }

    /// All chunks of a piece. It is spoken again after runaway generation, as often as the options allow.
    fn whole(&mut self, mut speaking: Speaking) -> Result<VecDeque<Chunk>, ModelError> {
        let mut failed = Counters::default();
        // Another seed gives other codes.
        let is_random = self.settings.first.is_random() || self.settings.predictor.is_random();
        loop {
            let mut chunks = VecDeque::new();
            let finish = loop {
                let chunk = self.chunk(&mut speaking)?;
                let finish = chunk.finish;
                chunks.push_back(chunk);
                if let Some(finish) = finish {
                    break finish;
                }
            };
            if finish == FinishReason::Runaway
                && speaking.attempts <= self.own.retries.unwrap_or(1)
                && is_random
            {
                tracing::debug!(
                    piece = self.progress.index,
                    attempt = speaking.attempts,
                    "runaway generation, spoken again"
                );
                chunks.iter().for_each(|chunk| failed += chunk.counters);
                let Speaking { text, prompt, attempts, .. } = speaking;
                speaking = self.start(text, prompt, attempts + 1)?;
                continue;
            }
            if let Some(first) = chunks.front_mut() {
                first.counters += failed;
            }
            return Ok(chunks);
        }
    }

    fn advance(&mut self) -> Option<Result<Chunk, ModelError>> {
        if let Some(chunk) = self.made.pop_front() {
            return Some(self.progress.cancel.check().map(|()| chunk));
        }
        let mut speaking = match self.current.take() {
            Some(speaking) => speaking,
            None => {
                let (text, prompt) = self.pieces.next()?;
                let started = self.prompt(&text, prompt).and_then(|prompt| self.start(text, prompt, 1));
                match started {
                    Ok(speaking) => speaking,
                    Err(e) => return Some(Err(e)),
                }
            }
        };
        if self.whole {
            match self.whole(speaking) {
                Ok(chunks) => self.made = chunks,
                Err(e) => return Some(Err(e)),
            }
            self.progress.index += 1;
            return self.made.pop_front().map(Ok);
        }
        let chunk = self.chunk(&mut speaking);
        match &chunk {
            Ok(chunk) if chunk.finish.is_none() => self.current = Some(speaking),
            _ => self.progress.index += 1,
        }
        Some(chunk)
    }
}

impl Chunks for Pieces {
    fn next(&mut self) -> Option<Result<Chunk, ModelError>> {
        let chunk = self.advance();
        if let Some(Err(_)) = &chunk {
            self.pieces = vec![].into_iter();
            self.made.clear();
        }
        if self.remaining() == 0 {
            // Its thread ends with the last piece, rather than with the stream.
            self.codec = None;
        }
        chunk
    }

    fn remaining(&self) -> usize {
        self.pieces.len() + usize::from(self.current.is_some() || !self.made.is_empty())
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn laps(&self) -> Laps {
        let stages = STAGES.into_iter().zip(self.times);
        let stages = stages.map(|((stage, per_frame), time)| Lap { stage, time, per_frame }).collect();
        let pieces = self.tokens.iter().map(|tokens| vec![("tokens", *tokens)]).collect();
        Laps { stages, frames: self.frames, pieces }
    }

    fn remaining_chars(&self) -> usize {
        let current = self.current.as_ref().map(|s| &s.text).or(self.made.front().map(|c| &c.text));
        let current = current.map_or(0, |text| text.chars().count());
        self.pieces.as_slice().iter().map(|(text, _)| text.chars().count()).sum::<usize>() + current
    }
}

/// Compiles the plans of pieces of all lengths for `callers` at once, and those of the codec.
pub(super) fn make_plans(model: &Arc<Qwen3Tts>, o: &Options, callers: usize) -> Result<(), ModelError> {
    model.codec().warm_up()?;
    // Words of three characters are short for a token, so that the last of these texts has the most tokens of
    // a piece.
    for words in (1..=MOST_CHARS / 3).step_by(WARM_UP_STEP) {
        let text = "so ".repeat(words);
        let mut pieces = Pieces::new(model.clone(), &text, o)?;
        for (text, prompt) in pieces.pieces.clone() {
            let budget = pieces.budget(&prompt);
            model.prepare(&prompt, budget, callers)?;
            // A described voice continues after a piece of any length.
            let earlier = if pieces.is_described { budget } else { 0 };
            for frames in (1..=earlier).step_by(WARM_UP_FRAMES) {
                pieces.spoken = Some((text.clone(), vec![0; frames * model.codec().quantizers()]));
                let after = pieces.prompt(&text, prompt.clone())?;
                model.prepare(&after, pieces.budget(&after), callers)?;
            }
        }
    }
    Ok(())
}

/// Settings of the model, changed by the options. They hold for all codes of a frame, except where the
/// options have settings of the predictor.
fn settings(own: Settings, o: &Own) -> Settings {
    let change = |s: Sampling, temperature: Option<f32>, top_k: Option<usize>, top_p: Option<f32>| Sampling {
        temperature: temperature.unwrap_or(s.temperature),
        top_k: top_k.unwrap_or(s.top_k),
        top_p: top_p.unwrap_or(s.top_p),
        ..s
    };
    let predictor = change(
        own.predictor,
        o.predictor_temperature.or(o.temperature),
        o.predictor_top_k.or(o.top_k),
        o.predictor_top_p.or(o.top_p),
    );
    let mut first = change(own.first, o.temperature, o.top_k, o.top_p);
    first.repetition_penalty = o.repetition_penalty.unwrap_or(first.repetition_penalty);
    let max_frames = o.max_frames.unwrap_or(own.max_frames);
    Settings { first, predictor, max_frames, ..own }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_predictor_may_have_settings_of_its_own() {
        let own = Settings { first: Sampling::GREEDY, predictor: Sampling::GREEDY, seed: 0, max_frames: 9 };
        let both = Own { temperature: Some(0.5), top_k: Some(7), ..Own::default() };
        let s = settings(own, &both);
        for sampling in [s.first, s.predictor] {
            assert_eq!((sampling.temperature, sampling.top_k), (0.5, 7));
        }
        let apart = Own { predictor_temperature: Some(0.2), predictor_top_p: Some(0.9), ..both };
        let s = settings(own, &apart);
        assert_eq!((s.first.temperature, s.first.top_p), (0.5, own.first.top_p));
        assert_eq!((s.predictor.temperature, s.predictor.top_k, s.predictor.top_p), (0.2, 7, 0.9));
    }
}
