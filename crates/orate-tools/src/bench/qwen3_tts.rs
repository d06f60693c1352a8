//! Timing Qwen3-TTS: a text is spoken as [`Engine::stream`] speaks it, and the clock read on the way.

use super::{StepTime, keep_least, step_times};
use orate::{Engine, Options, Result};
use orate_models::qwen3_tts::{CodecDecoder, FinishReason, Request, Settings, Speaker, Variant};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use orate::Laps;

/// Whom VoiceDesign models speak as where nothing is said.
const DESCRIPTION: &str = "A calm and clear voice.";

/// Seconds of the tone that Base models clone, its frequency in Hz, and how often a second it swells.
const TONE: (f32, f32, f32) = (2.0, 180.0, 3.0);

/// Frames that are made in front of those that are profiled.
const FRAMES_BEFORE_PROFILE: usize = 4;

/// Names of the stages that [`profile`] tells apart: a frame of talker and predictor, and a piece of the codec.
pub const STAGES: [&str; 2] = ["frame", "codec_decoder"];

/// What a run took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeechTimes {
    /// From the text to the last sample.
    pub total: Duration,
    /// From the text to the first samples.
    pub first_audio: Duration,
    /// What of it was spent on what.
    pub laps: Laps,
    /// Rows of prompts whose state was kept.
    pub prefix_rows: usize,
    /// Samples of all pieces, silence between them included.
    pub samples: usize,
    /// Why the text ended, the worst reason of its pieces.
    pub finish: Option<FinishReason>,
}

/// Options that any model can speak with: the first speaker, a description, or the voice of a tone.
///
/// # Errors
/// The model is none of Qwen3-TTS, or a tone cannot be cloned.
pub fn any_voice(engine: &Engine) -> Result<Options> {
    let model = engine.qwen3_tts()?;
    let mut options = Options::default();
    match model.talking()?.config.tts_model_type {
        Variant::CustomVoice => {}
        Variant::VoiceDesign => options.instruct = Some(DESCRIPTION.to_owned()),
        Variant::Base => {
            options.cloned = Some(Arc::new(model.clone_voice(&tone(model.sample_rate()), None)?))
        }
    }
    Ok(options)
}

/// A tone with overtones that swells and fades, as a voice does.
fn tone(sample_rate: u32) -> Vec<f32> {
    let (seconds, pitch, swell) = TONE;
    let samples = (seconds * sample_rate as f32) as usize;
    let turn = |hz: f32, i: usize| (std::f32::consts::TAU * hz * i as f32 / sample_rate as f32).sin();
    let voiced = |i: usize| (1..=8).map(|k| turn(pitch * k as f32, i) / k as f32).sum::<f32>();
    (0..samples).map(|i| 0.2 * voiced(i) * (0.6 + 0.4 * turn(swell, i))).collect()
}

/// Speaks a text once.
///
/// # Errors
/// As [`Engine::speak`].
pub fn run_once(engine: &Engine, text: &str, options: &Options) -> Result<SpeechTimes> {
    let start = Instant::now();
    let mut stream = engine.stream(text, options)?;
    let (mut first_audio, mut samples, mut finish, mut prefix_rows) = (None, 0, None, 0);
    for chunk in stream.by_ref() {
        let chunk = chunk?;
        if !chunk.samples.is_empty() {
            first_audio.get_or_insert_with(|| start.elapsed());
        }
        samples += chunk.samples.len();
        finish = finish.max(chunk.finish);
        prefix_rows += chunk.prefix_rows;
    }
    let total = start.elapsed();
    let first_audio = first_audio.unwrap_or(total);
    Ok(SpeechTimes { total, first_audio, laps: stream.laps(), prefix_rows, samples, finish })
}

/// What several streams at once took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamsTimes {
    /// From the texts to the last sample of all.
    pub total: Duration,
    /// From a text to its first samples, where that took longest.
    pub first_audio: Duration,
    /// Frames that were made, of all streams.
    pub frames: usize,
    /// Samples of all streams.
    pub samples: usize,
}

/// Speaks a text in `streams` threads at once, each `texts` times one after the other with a seed of its own, as that many callers of one
/// engine would. With one text all begin at once and end together. With more, and a number of frames in the options, the
/// first text of each stream is shorter than that of the next one, and its last one makes up for it: so callers begin and end
/// among others that are in the middle, as those of a server do.
///
/// # Errors
/// As [`Engine::speak`], for the first stream that fails.
pub fn run_streams(
    engine: &Engine,
    text: &str,
    options: &Options,
    (streams, texts): (usize, usize),
) -> Result<StreamsTimes> {
    let start = Instant::now();
    let all: Vec<Vec<SpeechTimes>> = std::thread::scope(|threads| {
        let speak = |stream: usize| {
            let speak = move |(i, max_frames): (usize, Option<usize>)| {
                let seed = options.seed.wrapping_add((stream + i * streams) as u64);
                run_once(engine, text, &Options { seed, max_frames, ..options.clone() })
            };
            let lengths = lengths(options.max_frames, (stream, streams), texts);
            threads.spawn(move || lengths.into_iter().enumerate().map(speak).collect())
        };
        let started: Vec<_> = (0..streams).map(speak).collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, Result<Vec<SpeechTimes>>>| {
            t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        started.into_iter().map(join).collect::<Result<_>>()
    })?;
    let total = start.elapsed();
    let all = || all.iter().flatten();
    Ok(StreamsTimes {
        total,
        first_audio: all().map(|t| t.first_audio).max().unwrap_or_default(),
        frames: all().map(|t| t.laps.frames).sum(),
        samples: all().map(|t| t.samples).sum(),
    })
}

/// Frames at most of each text of a stream, see [`run_streams`]: of as many in all as `texts` have.
fn lengths(max_frames: Option<usize>, (stream, streams): (usize, usize), texts: usize) -> Vec<Option<usize>> {
    let mut all = vec![max_frames; texts];
    if let (Some(most), true) = (max_frames, texts > 1) {
        let first = (most * (stream + 1)).div_ceil(streams);
        all[0] = Some(first);
        all.extend((first < most).then(|| Some(most - first)));
    }
    all
}

/// Times every step of a frame, and of the codec for a piece: the least of `runs` runs. Also returns the frames of that
/// piece: so often does the frame's plan run for one run of the codec's.
///
/// # Errors
/// As [`run_once`].
pub fn profile(engine: &Engine, options: &Options, runs: usize) -> Result<(Vec<StepTime>, usize)> {
    let model = engine.qwen3_tts()?;
    let talking = model.talking()?;
    let speaker = match (&options.cloned, talking.config.speakers().first()) {
        (Some(voice), _) => voice.speaker(),
        (None, Some(name)) => Speaker::Named(name),
        (None, None) => Speaker::Described,
    };
    let (language, instruct) = (options.language.as_deref(), options.instruct.as_deref());
    let prompt =
        model.prompt(&Request { text: "One, two, three.", speaker, language, instruct, feeding: None })?;
    let max_frames = FRAMES_BEFORE_PROFILE + runs.max(1);
    let settings = Settings { max_frames, ..Settings::new(&talking.generation, options.seed) };
    let mut session = model.session()?;
    session.make_ahead(false);
    session.start(&prompt, &settings)?;
    for _ in 0..FRAMES_BEFORE_PROFILE {
        session.next_frame(&mut vec![])?;
    }
    let (frame, mut least) = session.profile_frame()?;
    for _ in 1..runs {
        keep_least(&mut least, &session.profile_frame()?.1);
    }
    let mut all = step_times(STAGES[0], &*frame, &least);
    let mut codec = model.codec().stream()?;
    let (piece, mut least) = codec.profile()?;
    for _ in 1..runs {
        keep_least(&mut least, &codec.profile()?.1);
    }
    all.extend(step_times(STAGES[1], &*piece, &least));
    Ok((all, CodecDecoder::PIECE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_speak_as_much_but_begin_and_end_apart() {
        for streams in [1, 3, 16] {
            let all: Vec<_> = (0..streams).map(|i| lengths(Some(100), (i, streams), 4)).collect();
            for lengths in &all {
                let frames = lengths.iter().map(|n| n.expect("is limited"));
                assert!(frames.clone().all(|n| (1..=100).contains(&n)));
                assert_eq!(frames.sum::<usize>(), 400);
            }
            assert!(all.windows(2).all(|w| w[0][0] < w[1][0]), "{all:?}");
        }
        assert_eq!(lengths(Some(100), (0, 16), 1), [Some(100)], "all at once");
        assert_eq!(lengths(None, (0, 16), 2), [None, None], "whole texts");
    }
}
