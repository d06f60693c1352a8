//! `orate bench`: times a model.

mod arrivals;
mod profile;
mod streams;

use crate::args::{EngineArgs, SizeArgs, within};
use crate::engine_report::{device_text, engine_json, note_warnings, precision_text, with};
use crate::failure::UsageError;
use crate::measure::peak_rss_mb;
use crate::own_options::OwnOptions;
use crate::{outputs, print};
use orate::{Engine, ErrorKind, FinishReason, Options, Size};
use orate_tools::bench::{self, MAX_FRAMES, SpeechTimes, StepTime, TEXT, Work, median};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Frames per run if neither text nor size is given, for models with a frame limit: four seconds.
const FRAMES: usize = 50;

/// Runs per step for `--profile`.
const PROFILE_RUNS: usize = 5;

/// Time a model
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orate bench --runs 10
  orate bench --text \"Any text you like.\" --threads 2 --profile
  orate bench --model DIR --tokens 80 --latents 72 --steps 5 --json
  orate bench --model Qwen3-TTS-12Hz-0.6B-CustomVoice --weights q8_0 --max-frames 100
  orate bench --model Qwen3-TTS-12Hz-0.6B-CustomVoice --device cuda --streams 16
  orate bench --streams 2 --arrivals poisson:4 --texts sentences.txt

A warm-up run comes first and is not counted. Times are medians in milliseconds. On a GPU, stages are timed \
in separate runs, in which the host waits after each stage; together they take longer than the total. RTF is \
computing time divided by playing time: below 1 is faster than real time. \
A model without voices speaks with a description, or with a voice cloned from a tone.")]
pub struct Args {
    /// Time this text, split into pieces as `say` does
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["tokens", "latents"])]
    text: Option<String>,

    #[command(flatten)]
    sizes: SizeArgs,

    /// Timed runs
    #[arg(
        long,
        short,
        value_name = "N",
        default_value_t = 5,
        allow_negative_numbers = true,
        value_parser = within(1..=100_000_u32)
    )]
    runs: u32,

    /// Also time every step; list kernels and slowest steps against the device's peak
    #[arg(long)]
    profile: bool,

    /// Also time every step and write a Chrome trace
    ///
    /// Open it in ui.perfetto.dev or chrome://tracing.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    trace: Option<PathBuf>,

    /// Speak the text in N streams at once, and compare with one stream
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = within(1..=256_u32),
        conflicts_with_all = ["profile", "trace", "tokens", "latents"]
    )]
    streams: Option<u32>,

    /// Texts that each stream speaks in a run, or a file with a text in each line for --arrivals
    ///
    /// With 1, all streams start together. With more, they start and end at different times, as requests to a
    /// server do.
    #[arg(
        long,
        value_name = "N|FILE",
        default_value = "1",
        requires = "streams",
        hide_short_help = true,
        allow_negative_numbers = true
    )]
    texts: Texts,

    /// Let texts arrive at random, RATE per second, and speak at most --streams of them at once
    ///
    /// Each text arrives as often as --runs says. Prints waiting times, times to first audio, throughput, and
    /// how many chunks came too late for a player.
    #[arg(long, value_name = "poisson:RATE", requires = "streams", hide_short_help = true)]
    arrivals: Option<arrivals::Rate>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    own: OwnOptions,

    #[command(flatten)]
    engine: EngineArgs,
}

/// Value of `--texts`.
#[derive(Clone, Debug)]
enum Texts {
    Count(u32),
    File(PathBuf),
}

impl std::str::FromStr for Texts {
    type Err = String;

    fn from_str(text: &str) -> Result<Texts, String> {
        match text.parse::<i64>() {
            Ok(n @ 1..=10_000) => Ok(Texts::Count(n as u32)),
            Ok(_) => Err("use 1 to 10000, or a file of texts with --arrivals".to_owned()),
            Err(_) => Ok(Texts::File(text.into())),
        }
    }
}

impl Args {
    /// Number of simultaneous utterances.
    pub fn utterances(&self) -> u32 {
        self.streams.unwrap_or(1)
    }

    /// Options for the runs: those given, and those without which the model cannot speak.
    fn options(&self, engine: &Engine) -> anyhow::Result<Options> {
        let usual = bench::usual_options(engine).map_err(|e| match e.kind() {
            ErrorKind::InvalidInput => e.into(),
            _ => anyhow::Error::from(e)
                .context("a voice for timing cannot be made from a tone on this device; try --device cpu"),
        })?;
        let options = self.own.set(usual);
        let is_limited = self.text.is_some() || options.get(MAX_FRAMES).is_some();
        Ok(match bench::accepts(engine, MAX_FRAMES) && !is_limited {
            true => options.set(MAX_FRAMES, FRAMES),
            false => options,
        })
    }

    /// What each run speaks. A missing size follows the other, at about one frame per token.
    fn work(&self) -> Work<'_> {
        match (self.sizes.tokens, self.sizes.latents) {
            (None, None) => Work::Text(self.text.as_deref().unwrap_or(TEXT)),
            (tokens, frames) => {
                let size = |a: Option<u32>, b: Option<u32>| a.or(b).map_or(1, |n| n as usize);
                Work::Forced(Size { tokens: size(tokens, frames), frames: size(frames, tokens) })
            }
        }
    }
}

/// Runs the benchmark and prints the result.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if let (Texts::File(file), None) = (&args.texts, args.arrivals) {
        let problem = "--texts takes a number; a file of texts needs --arrivals";
        return Err(UsageError(format!("{problem}, got {}", file.display())).into());
    }
    args.trace.iter().try_for_each(|path| outputs::check("--trace", path, &args.engine.inputs()))?;
    let opening = Instant::now();
    let engine = args.engine.open()?;
    let load_ms = ms(opening.elapsed());
    let options = args.options(&engine)?;
    let done = match (args.streams, args.arrivals) {
        (Some(streams), Some(rate)) => {
            let file = match &args.texts {
                Texts::File(file) => Some(file.as_path()),
                Texts::Count(_) => None,
            };
            arrivals::run(args, &engine, &options, (rate, streams as usize), file)
        }
        (Some(streams), None) => streams::run(args, &engine, &options, streams as usize),
        _ => time(args, &engine, &options, load_ms),
    };
    note_warnings(&engine);
    done
}

/// Measurements of all runs.
struct Times {
    warm_up: SpeechTimes,
    runs: Vec<SpeechTimes>,
    /// Runs in which the host waits after each stage, if that gives more detail.
    apart: Option<Vec<SpeechTimes>>,
    load_ms: f64,
    peak_rss_mb: Option<f64>,
    /// Seconds of audio.
    duration: f64,
}

/// Median time of a stage.
struct Stage {
    name: &'static str,
    ms: f64,
    per_frame: bool,
}

impl Times {
    fn total_ms(&self) -> f64 {
        median(self.runs.iter().map(|r| ms(r.total)))
    }

    fn first_audio_ms(&self) -> f64 {
        median(self.runs.iter().map(|r| ms(r.first_audio)))
    }

    fn fastest_ms(&self) -> f64 {
        self.runs.iter().map(|r| ms(r.total)).fold(f64::INFINITY, f64::min)
    }

    fn rtf(&self) -> f64 {
        self.total_ms() / 1e3 / self.duration
    }

    fn stages(&self) -> Vec<Stage> {
        let runs = self.apart.as_ref().unwrap_or(&self.runs);
        let laps = &self.warm_up.laps.stages;
        let time = |i: usize| median(runs.iter().filter_map(|r| Some(ms(r.laps.stages.get(i)?.time))));
        let stage =
            |(i, lap): (usize, &orate::Lap)| Stage { name: lap.stage, ms: time(i), per_frame: lap.per_frame };
        laps.iter().enumerate().map(stage).collect()
    }

    /// Milliseconds per frame; 0 for models that do not work frame by frame.
    fn per_frame(&self, ms: f64) -> f64 {
        let frames = self.warm_up.laps.frames;
        if frames > 0 { ms / frames as f64 } else { 0.0 }
    }

    /// Size of the largest piece spoken; its plans are profiled.
    fn largest(&self) -> Size {
        let size = |piece: &Vec<(&str, usize)>| {
            let of = |i: usize| piece.get(i).map_or(1, |(_, n)| *n);
            Size { tokens: of(0), frames: of(1) }
        };
        let sizes = self.warm_up.laps.pieces.iter().map(size);
        sizes.max_by_key(|size| size.frames).unwrap_or(Size { tokens: 1, frames: 1 })
    }
}

fn time(args: &Args, engine: &Engine, options: &Options, load_ms: f64) -> anyhow::Result<()> {
    let work = args.work();
    let warm_up = bench::speak(engine, work, options, false)?;
    let runs = |apart| {
        let run = |_| bench::speak(engine, work, options, apart);
        (0..args.runs).map(run).collect::<orate::Result<Vec<_>>>()
    };
    let apart = if bench::is_timed_apart(engine, work, options)? { Some(runs(true)?) } else { None };
    let runs = runs(false)?;
    let duration = warm_up.samples as f64 / f64::from(engine.sample_rate());
    let times = Times { warm_up, runs, apart, load_ms, peak_rss_mb: peak_rss_mb(), duration };

    let steps = match args.profile || args.trace.is_some() {
        true => bench::profile(engine, times.largest(), options, PROFILE_RUNS)?,
        false => vec![],
    };
    if let Some(path) = &args.trace {
        orate::write_output(path, profile::trace(&steps, &engine.device()).to_string().as_bytes())?;
    }
    let peak = if args.profile { Some(bench::measure_peak(engine)?) } else { None };
    if args.json {
        let mut report = with(as_json(args, engine, &times), engine_json(engine));
        if let Some(peak) = peak {
            report["peak"] = profile::peak_json(peak);
            report["profile"] = profile::profile_json(&steps, peak);
        }
        return print::json(&report);
    }
    print::out(&as_text(engine, &times))?;
    peak.map_or(Ok(()), |peak| print::out(&profile::profile_text(&steps, peak)))
}

fn as_json(args: &Args, engine: &Engine, times: &Times) -> Value {
    let laps = &times.warm_up.laps;
    let stages = times.stages();
    let by_name: Map<String, Value> = stages.iter().map(|s| (s.name.to_owned(), json!(s.ms))).collect();
    let pieces: Vec<Value> = laps
        .pieces
        .iter()
        .map(|piece| piece.iter().map(|(name, n)| ((*name).to_owned(), json!(n))).collect())
        .collect();
    let mut report = json!({
        "total_ms": times.total_ms(),
        "total_ms_min": times.fastest_ms(),
        "stages": by_name,
        "first_audio_ms": times.first_audio_ms(),
        "warm_up_ms": ms(times.warm_up.total),
        "load_ms": times.load_ms,
        "rtf": times.rtf(),
        "duration_s": times.duration,
        "peak_rss_mb": times.peak_rss_mb,
        "runs": args.runs,
        "threads": engine.threads(),
        "kv": engine.kv().map(orate::CacheFormat::name),
        "pieces": pieces,
        "finish_reason": times.warm_up.finish.map(FinishReason::name),
    });
    if laps.frames > 0 {
        report["frames"] = json!(laps.frames);
        report["prefix_rows"] = json!(times.runs.last().map(|r| r.prefix_rows));
        // The stage `frame` is reported per frame as `frame_ms`; other stages that run per frame get a
        // prefix, as in `codec_frame_ms`.
        for stage in &stages {
            let (key, ms) = match (stage.per_frame, stage.name) {
                (true, "frame") => ("frame_ms".to_owned(), times.per_frame(stage.ms)),
                (true, name) => (format!("{name}_frame_ms"), times.per_frame(stage.ms)),
                (false, name) => (format!("{name}_ms"), stage.ms),
            };
            report[key] = json!(ms);
        }
    }
    report
}

fn as_text(engine: &Engine, times: &Times) -> String {
    let laps = &times.warm_up.laps;
    let total_ms = times.total_ms();
    let mut facts = vec![print::visible(engine.model_name()).into_owned(), device_text(engine)];
    match engine.kv() {
        Some(kv) => facts.push(format!("{}, keys and values in {kv}", precision_text(engine))),
        None => facts.extend(engine.probes().map(|_| precision_text(engine))),
    }
    let piece = |piece: &Vec<(&str, usize)>| {
        piece.iter().map(|(name, n)| format!("{n} {name}")).collect::<Vec<_>>().join(", ")
    };
    facts.extend(laps.pieces.iter().map(piece));
    let by_frame = laps.frames > 0;
    if by_frame {
        let finish = times.warm_up.finish.map_or("nothing", FinishReason::name);
        facts.push(format!("{} frames, ended by {finish}", laps.frames));
    }
    let stages = times.stages();
    let all: f64 = stages.iter().map(|s| s.ms).sum();
    let row = |name: &str, ms: f64, per_frame: bool, whole: f64| {
        let more = match (by_frame, per_frame) {
            (true, true) => format!("{:.2}", times.per_frame(ms)),
            (true, false) => String::new(),
            (false, _) => format!("{:.1} %", 100.0 * ms / whole),
        };
        vec![name.to_owned(), format!("{ms:.2}"), more]
    };
    let head = ["stage", "median ms", if by_frame { "ms per frame" } else { "share" }];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(stages.iter().map(|s| row(s.name, s.ms, s.per_frame, all)));
    rows.push(row("total", total_ms, true, total_ms));
    let memory = times.peak_rss_mb.map_or_else(|| "unknown".to_owned(), |mb| format!("{mb:.1} MB"));
    let rtf = times.rtf();
    format!(
        "{}\n\n{}\nfastest run     {:.2} ms\nfirst run       {:.2} ms\nfirst audio     {:.2} ms\n\
         RTF             {rtf:.4} ({:.1} times as fast as it plays, {:.2} s of audio)\n\
         load            {:.2} ms\npeak memory     {memory}\n",
        facts.join("\n"),
        print::table(&rows, &[]),
        times.fastest_ms(),
        ms(times.warm_up.total),
        times.first_audio_ms(),
        1.0 / rtf,
        times.duration,
        times.load_ms,
    )
}

/// Milliseconds.
fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Calls of a step for each run of its stage.
fn calls(step: &StepTime) -> f64 {
    step.calls as f64
}
