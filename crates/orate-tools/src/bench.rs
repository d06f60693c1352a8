//! Timing a model: whole speech, many callers at once, single steps, and what the device could reach.

mod arrivals;
mod peak;

use orate::hooks::StageProfile;
use orate::{Chunks, Engine, Error, FinishReason, Laps, Options, Result, Size, Value};
use std::time::{Duration, Instant};

pub use arrivals::{Arrivals, Load, Served, speak_arrivals};
pub use peak::{Peak, measure_peak};

/// Spoken where no text is given.
pub const TEXT: &str = "The kettle is on, the rain has stopped, and the first train leaves in ten minutes.";

/// Name of the option that limits a text's frames, in families that have one.
pub const MAX_FRAMES: &str = "max_frames";

/// What a run speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work<'a> {
    /// A text, cut into pieces as for speaking.
    Text(&'a str),
    /// Speech of a forced size, for models that can be forced.
    Forced(Size),
}

/// What a run took.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeechTimes {
    /// From the text to the last sample.
    pub total: Duration,
    /// From the text to the first samples.
    pub first_audio: Duration,
    /// Time by stage.
    pub laps: Laps,
    /// Rows of prompts whose state was kept from an earlier text.
    pub prefix_rows: usize,
    /// Samples of all pieces, silence between them included.
    pub samples: usize,
    /// Why the text ended, the worst reason of its pieces; `None` for models that always end by themselves.
    pub finish: Option<FinishReason>,
}

/// Options with which the model speaks without being given anything: a voice that it has or that can be made
/// up.
///
/// # Errors
/// The device failed.
pub fn usual_options(engine: &Engine) -> Result<Options> {
    Ok(engine.model().bench_options()?)
}

/// Speaks once. With `apart` the host waits for the device after each stage, so that stages have times of
/// their own on devices that run while the host goes on; see [`is_timed_apart`].
///
/// # Errors
/// As [`Engine::speak`]; or the model's speech cannot be forced to a size.
pub fn speak(engine: &Engine, work: Work<'_>, options: &Options, apart: bool) -> Result<SpeechTimes> {
    if let Work::Text(text) = work {
        drop(engine.stream(text, options)?); // checks the options
    }
    let start = Instant::now();
    let mut chunks = chunks(engine, work, options)?;
    if apart {
        chunks.time_apart();
    }
    let (mut first_audio, mut samples, mut finish, mut prefix_rows) = (None, 0, None, 0);
    while let Some(chunk) = chunks.next() {
        let chunk = chunk?;
        if !chunk.samples.is_empty() {
            first_audio.get_or_insert_with(|| start.elapsed());
        }
        samples += chunk.samples.len();
        finish = finish.max(chunk.finish);
        prefix_rows += chunk.prefix_rows;
    }
    let laps = chunks.laps();
    let (total, first_audio) = match work {
        Work::Text(_) => (start.elapsed(), first_audio.unwrap_or_else(|| start.elapsed())),
        // The input of a forced size is made up, which takes time of its own.
        Work::Forced(_) => {
            let stages = laps.stages.iter().map(|lap| lap.time).sum();
            (stages, stages)
        }
    };
    Ok(SpeechTimes { total, first_audio, laps, prefix_rows, samples, finish })
}

/// Whether stages need runs of their own to be timed: the device runs while the host goes on, and the model
/// does not wait for it by itself.
///
/// # Errors
/// As [`speak`].
pub fn is_timed_apart(engine: &Engine, work: Work<'_>, options: &Options) -> Result<bool> {
    let is_cpu = engine.device_info().kind == orate::DeviceKind::Cpu;
    Ok(!is_cpu && chunks(engine, work, options)?.time_apart())
}

fn chunks(engine: &Engine, work: Work<'_>, options: &Options) -> Result<Box<dyn Chunks>> {
    let model = engine.model().clone();
    match work {
        Work::Text(text) => Ok(model.speak(text, options)?),
        Work::Forced(size) => match model.forced(size, options)? {
            Some(forced) => Ok(forced),
            None => Err(Error::Option {
                option: "size",
                got: format!("{} tokens and {} frames", size.tokens, size.frames),
                allowed: format!(
                    "speech of {} models cannot be forced to a size; give a text{}",
                    engine.family_name(),
                    if accepts(engine, MAX_FRAMES) { " and --max-frames" } else { "" }
                ),
            }),
        },
    }
}

/// Whether the model has an option of this name.
pub fn accepts(engine: &Engine, option: &str) -> bool {
    engine.model().accepts().iter().any(|spec| spec.name == option)
}

/// What several streams at once took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamsTimes {
    /// From the texts to the last sample of all.
    pub total: Duration,
    /// From a text to its first samples, where that took longest.
    pub first_audio: Duration,
    /// Frames of all streams; 0 for models that do not speak frame by frame.
    pub frames: usize,
    /// Samples of all streams.
    pub samples: usize,
}

/// Speaks a text in `streams` threads at once, as that many callers of one engine would, each `texts` times
/// one after the other with a seed of its own.
///
/// With one text all streams start and end together. With more, and [`MAX_FRAMES`] in the options, the first
/// text of each stream is shorter than that of the next stream, and its last one longer by as much: callers
/// then start and end while others are in the middle, as those of a server do.
///
/// # Errors
/// As [`Engine::speak`], for the first stream that fails.
pub fn speak_in_streams(
    engine: &Engine,
    text: &str,
    options: &Options,
    (streams, texts): (usize, usize),
) -> Result<StreamsTimes> {
    let max_frames = match options.get(MAX_FRAMES) {
        Some(Value::Whole(frames)) => Some(*frames as usize),
        _ => None,
    };
    let start = Instant::now();
    let all: Vec<Vec<SpeechTimes>> = std::thread::scope(|threads| {
        let speak = |stream: usize| {
            let speak = move |(i, max_frames): (usize, Option<usize>)| {
                let seed = options.seed.wrapping_add((stream + i * streams) as u64);
                let mut options = Options { seed, ..options.clone() };
                if let Some(frames) = max_frames {
                    options = options.set(MAX_FRAMES, frames);
                }
                speak(engine, Work::Text(text), &options, false)
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

/// Frames at most of each text of a stream, see [`speak_in_streams`]; their sum is that of `texts` whole
/// ones.
fn lengths(max_frames: Option<usize>, (stream, streams): (usize, usize), texts: usize) -> Vec<Option<usize>> {
    let mut all = vec![max_frames; texts];
    if let (Some(most), true) = (max_frames, texts > 1) {
        let first = (most * (stream + 1)).div_ceil(streams);
        all[0] = Some(first);
        all.extend((first < most).then(|| Some(most - first)));
    }
    all
}

/// Time of a step of a stage's plan, with what it computes.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTime {
    /// Stage.
    pub stage: &'static str,
    /// Op with what was fused in.
    pub op: String,
    /// Kernel.
    pub kernel: String,
    /// Output shape.
    pub shape: String,
    /// Weight that says where in the network the step is.
    pub label: String,
    /// How often the stage runs while the others run once.
    pub calls: usize,
    /// Microseconds, the least of several runs.
    pub us: f64,
    /// Operations.
    pub flops: u64,
    /// Bytes moved at least.
    pub bytes: u64,
}

/// Times every step of every stage: the least of `runs` runs. `size` is that of the text and its speech, for
/// models whose plans depend on it.
///
/// # Errors
/// The model's family does not time its steps, or the device failed.
pub fn profile(engine: &Engine, size: Size, options: &Options, runs: usize) -> Result<Vec<StepTime>> {
    let profiles = engine.model().clone().profile(size, options, runs)?;
    if profiles.is_empty() {
        let (option, got) = ("profile", "asked for".to_owned());
        let allowed = format!("{} models do not time their steps; leave it out", engine.family_name());
        return Err(Error::Option { option, got, allowed });
    }
    Ok(profiles.iter().flat_map(step_times).collect())
}

fn step_times(profile: &StageProfile) -> Vec<StepTime> {
    let plan = profile.plan.plan();
    let time = |(step, seconds): (&orate_graph::Step, &f64)| StepTime {
        stage: profile.stage,
        op: step.describe(),
        kernel: step.kernel.clone(),
        shape: plan.info(step.node.output).shape.to_string(),
        label: step.label().unwrap_or("-").to_owned(),
        calls: profile.times,
        us: seconds * 1e6,
        flops: step.cost.flops,
        bytes: step.cost.bytes,
    };
    plan.steps().iter().zip(&profile.seconds).map(time).collect()
}

/// The middle value; the mean of the middle two where their number is even. NaN without values.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut v: Vec<f64> = values.into_iter().collect();
    v.sort_by(f64::total_cmp);
    match (v.len(), v.len() / 2) {
        (0, _) => f64::NAN,
        (n, i) if n % 2 == 1 => v[i],
        (_, i) => (v[i - 1] + v[i]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0]), 2.5);
        assert!(median([]).is_nan());
    }

    #[test]
    fn streams_speak_as_much_but_start_and_end_apart() {
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
