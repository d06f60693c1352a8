//! Timing Qwen3-TTS: a text is spoken as [`Engine::stream`] speaks it, and the clock read on the way.

use super::{StepTime, step_times};
use orate::{Engine, Error, FinishReason, Options, Result, Value};
use orate_models::hooks::Bench;
use std::time::{Duration, Instant};

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

/// Where the time of speaking went. Where the codec runs on a thread of its own, the sum is more than the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Laps {
    /// Reading prompts, up to the state before the first frame.
    pub prompt: Duration,
    /// Talker and code predictor, whose steps are one plan for each frame, up to codes on the host.
    pub talker: Duration,
    /// The codec, up to samples on the host.
    pub codec: Duration,
    /// Frames that were made.
    pub frames: usize,
}

fn bench(engine: &Engine) -> Result<Box<dyn Bench>> {
    let bench = engine.model().clone().bench();
    bench.ok_or_else(|| Error::Option {
        option: "model",
        got: engine.model_name().to_owned(),
        allowed: "it cannot be timed".to_owned(),
    })
}

/// Options that the model can speak with, whatever voices it has.
///
/// # Errors
/// The device failed.
pub fn any_voice(engine: &Engine) -> Result<Options> {
    Ok(bench(engine)?.options()?)
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
    let laps = stream.laps();
    let lap = |i: usize| laps.stages.get(i).map_or(Duration::ZERO, |(_, time)| *time);
    let laps = Laps { prompt: lap(0), talker: lap(1), codec: lap(2), frames: laps.frames };
    Ok(SpeechTimes { total, first_audio, laps, prefix_rows, samples, finish })
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
                let options = Options { seed, ..options.clone() };
                let options = match max_frames {
                    Some(n) => options.set("max_frames", n),
                    None => options,
                };
                run_once(engine, text, &options)
            };
            let max_frames = match options.get("max_frames") {
                Some(Value::Whole(n)) => Some(*n as usize),
                _ => None,
            };
            let lengths = lengths(max_frames, (stream, streams), texts);
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
    let size = orate_models::Size { tokens: 0, frames: 0 };
    let profiles = bench(engine)?.profile(size, options, runs)?;
    let piece = profiles.first().map_or(1, |p| p.times);
    Ok((profiles.iter().flat_map(|p| step_times(p.stage, &*p.plan, &p.seconds)).collect(), piece))
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
