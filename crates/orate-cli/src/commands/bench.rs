//! `orate bench`: how long a model takes.

mod qwen3_tts;
mod streams;

use crate::args::{EngineArgs, SizeArgs};
use crate::failure::UsageError;
use crate::measure::{median, peak_rss_mb};
use crate::print;
use crate::probes::{precision_text, probes_json};
use anyhow::Context;
use orate::bench::{self, Sizes, StageTimes};
use orate::{DeviceKind, Engine, Options};
use orate_models::supertonic::SpeakOptions;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// Spoken when nothing is said.
const TEXT: &str = "The kettle is on, the rain has stopped, and the first train leaves in ten minutes.";

/// Slowest steps that `--profile` lists.
const SLOWEST: usize = 20;

/// What to time.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orate bench --runs 10
  orate bench --text \"Any text you like.\" --threads 2 --profile
  orate bench --model DIR --tokens 80 --latents 72 --steps 5 --json
  orate bench --model Qwen3-TTS-12Hz-0.6B-CustomVoice --weights q8_0 --max-frames 100
  orate bench --model Qwen3-TTS-12Hz-0.6B-CustomVoice --device cuda --streams 16

A warm-up run comes first and is not counted. Times are medians in milliseconds. A GPU's stages are timed apart, the host waiting for \
each, which takes longer than the whole without waiting. RTF is computing time \
divided by playing time: below 1 is faster than it plays. Qwen3-TTS speaks with its first speaker, a description, or the voice of a \
tone; its times are also those of a frame, 80 ms of sound.")]
pub struct Args {
    /// Time this text, cut into pieces as for speaking
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["tokens", "latents"])]
    text: Option<String>,

    #[command(flatten)]
    sizes: SizeArgs,

    /// Frames of 80 ms that each piece of the text has at most, for Qwen3-TTS; without it and --text, 50
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_frames: Option<u32>,

    /// Whether the codec of Qwen3-TTS runs on a thread of its own, beside the talker; without this option where that is faster
    #[arg(long, value_name = "BOOL")]
    codec_beside: Option<bool>,

    /// Speak the text in N streams at once, for Qwen3-TTS, and compare with one
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=256), conflicts_with_all = ["profile", "trace"])]
    streams: Option<u32>,

    /// Texts that each stream speaks in a run, one after the other: with 1 all begin at once, with more they begin and end among others
    #[arg(long, value_name = "N", default_value_t = 1, requires = "streams", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    texts: u32,

    /// Runs that count
    #[arg(long, short, value_name = "N", default_value_t = 5, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: u32,

    /// Also time every step of the plans, and show kernels and the slowest steps beside what the device can do
    #[arg(long)]
    profile: bool,

    /// Also time every step, and write them as a Chrome trace (for chrome://tracing or ui.perfetto.dev)
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    engine: EngineArgs,
}

impl Args {
    /// Utterances at once.
    pub fn utterances(&self) -> u32 {
        self.streams.unwrap_or(1)
    }
}

/// The work of one run.
struct Work {
    /// Sizes of each piece.
    pieces: Vec<Sizes>,
    /// Seconds of audio.
    duration: f64,
    /// The text, if sizes were not forced.
    text: Option<String>,
}

/// Times and prints.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let opening = Instant::now();
    let engine = args.engine.open()?;
    let load_ms = ms_since(opening);
    if engine.qwen3_tts().is_ok() {
        return qwen3_tts::run(args, &engine, load_ms);
    }
    if args.max_frames.is_some() {
        return Err(UsageError("--max-frames is for Qwen3-TTS models; use --latents".to_owned()).into());
    }
    if args.codec_beside.is_some() {
        return Err(UsageError("--codec-beside is for Qwen3-TTS models".to_owned()).into());
    }
    if args.streams.is_some() {
        return Err(UsageError("--streams is for Qwen3-TTS models".to_owned()).into());
    }
    let steps = args.sizes.steps(&engine)?;
    let work = match (args.sizes.tokens, args.sizes.latents) {
        (None, None) => spoken(&engine, args.text.as_deref().unwrap_or(TEXT), steps)?,
        (tokens, latents) => forced(&engine, tokens, latents, steps)?,
    };
    let warm_up = once(&engine, &work, false)?;
    let runs =
        |apart| (0..args.runs).map(|_| once(&engine, &work, apart)).collect::<anyhow::Result<Vec<_>>>();
    // On the CPU a stage is done when the next one begins.
    let apart = if engine.device_info().kind == DeviceKind::Cpu { None } else { Some(runs(true)?) };
    let runs = runs(false)?;
    let apart = apart.as_ref().unwrap_or(&runs);
    let peak_rss_mb = peak_rss_mb();
    let profile = if args.profile || args.trace.is_some() {
        bench::profile(&engine, largest(&work), 5)?
    } else {
        Vec::new()
    };
    if let Some(path) = &args.trace {
        let trace = trace(&profile, largest(&work).steps, &engine.device()).to_string();
        std::fs::write(path, trace).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let peak = if args.profile { Some(bench::measure_peak(&engine)?) } else { None };

    let total_ms = median(runs.iter().map(|r| r.0.total));
    let first_audio_ms = median(runs.iter().map(|r| r.1));
    let stages = bench::stage_names().into_iter().enumerate();
    let stages: Vec<(&str, f64)> =
        stages.map(|(i, name)| (name, median(apart.iter().map(|r| r.0.stages[i])))).collect();
    let rtf = total_ms / 1e3 / work.duration;
    let fastest = runs.iter().map(|r| r.0.total).fold(f64::INFINITY, f64::min);

    if args.json {
        let stages: Map<String, Value> = stages.iter().map(|(n, ms)| ((*n).to_owned(), json!(ms))).collect();
        let mut report = json!({
            "total_ms": total_ms,
            "total_ms_min": fastest,
            "stages": stages,
            "first_audio_ms": first_audio_ms,
            "warm_up_ms": warm_up.0.total,
            "load_ms": load_ms,
            "rtf": rtf,
            "duration_s": work.duration,
            "peak_rss_mb": peak_rss_mb,
            "runs": args.runs,
            "device": engine.device(),
            "precision": engine.precision().to_string(),
            "precision_probes": probes_json(engine.probes()),
            "threads": engine.threads(),
            "model": engine.model_name(),
            "pieces": work.pieces.iter().map(|s| json!({ "tokens": s.tokens, "latents": s.latents, "steps": s.steps })).collect::<Vec<_>>(),
        });
        if let Some(peak) = peak {
            report["peak"] = peak_json(peak);
            report["profile"] = profile_json(&profile, largest(&work).steps, peak);
        }
        return print::json(&report);
    }

    let mut rows = vec![vec!["stage".to_owned(), "median ms".to_owned(), "share".to_owned()]];
    let all_stages: f64 = stages.iter().map(|(_, ms)| ms).sum();
    let row = |name: &str, ms: f64, whole: f64| {
        vec![name.to_owned(), format!("{ms:.2}"), format!("{:.1} %", 100.0 * ms / whole)]
    };
    rows.extend(stages.iter().map(|(name, ms)| row(name, *ms, all_stages)));
    rows.push(row("total", total_ms, total_ms));
    let sizes: Vec<String> = work
        .pieces
        .iter()
        .map(|s| format!("{} tokens, {} latent frames, {} steps", s.tokens, s.latents, s.steps))
        .collect();
    let memory = peak_rss_mb.map_or_else(|| "unknown".to_owned(), |mb| format!("{mb:.1} MB"));
    let text = format!(
        "{}\n{}\n{}{}\n\n{}\nfastest run     {fastest:.2} ms\nfirst run       {:.2} ms\n\
         first audio     {first_audio_ms:.2} ms\nRTF             {rtf:.4} ({:.1} times as fast as it plays, {:.2} s of audio)\n\
         load            {load_ms:.2} ms\npeak memory     {memory}\n",
        engine.model_name(),
        engine.device(),
        engine.probes().map_or_else(String::new, |_| format!("{}\n", precision_text(&engine))),
        sizes.join("\n"),
        print::table(&rows, &[]),
        warm_up.0.total,
        1.0 / rtf,
        work.duration,
    );
    print::out(&text)?;
    if let Some(peak) = peak {
        print::out(&profile_text(&profile, largest(&work).steps, peak))?;
    }
    Ok(())
}

fn ms_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// Forced sizes: one that is missing follows the other, at about one frame a character.
fn forced(engine: &Engine, tokens: Option<u32>, latents: Option<u32>, steps: usize) -> anyhow::Result<Work> {
    let size = |a: Option<u32>, b: Option<u32>| a.or(b).map_or(1, |n| n as usize);
    let sizes = Sizes { tokens: size(tokens, latents), latents: size(latents, tokens), steps };
    let samples = sizes.latents * engine.supertonic()?.files().config.samples_per_latent();
    let duration = samples as f64 / f64::from(engine.sample_rate());
    Ok(Work { pieces: vec![sizes], duration, text: None })
}

/// The sizes that a text has.
fn spoken(engine: &Engine, text: &str, steps: usize) -> anyhow::Result<Work> {
    let model = engine.supertonic()?;
    let files = model.files();
    let options = SpeakOptions { speed: files.default_speed(), steps: Some(steps), ..Default::default() };
    let voice = engine.voice(files.default_voice())?;
    let (mut pieces, mut samples) = (Vec::new(), 0);
    for piece in files.pieces(text, &options).map_err(orate::Error::from)? {
        let mut session = model.session();
        session.set_piece(&piece, &voice).map_err(orate::Error::from)?;
        let seconds = session.durations().map_err(orate::Error::from)?;
        let (latents, wanted) = model.frames_for(seconds.first().copied().unwrap_or(0.0), options.speed);
        pieces.push(Sizes { tokens: piece.ids.len(), latents, steps });
        samples += wanted;
    }
    let duration = samples as f64 / f64::from(engine.sample_rate());
    Ok(Work { pieces, duration, text: Some(text.to_owned()) })
}

/// One run over all pieces: times summed, and milliseconds until the first piece is there.
fn once(engine: &Engine, work: &Work, apart: bool) -> anyhow::Result<(StageTimes, f64)> {
    let start = Instant::now();
    if let Some(text) = &work.text {
        drop(engine.stream(text, &Options::default())?); // reads the text, but speaks nothing yet
    }
    let front_end_ms = ms_since(start);
    let (mut sum, mut first_audio_ms) = (StageTimes::default(), None);
    for sizes in &work.pieces {
        let times = bench::run_once(engine, *sizes, apart)?;
        sum.total += times.total;
        sum.stages.iter_mut().zip(times.stages).for_each(|(a, b)| *a += b);
        first_audio_ms.get_or_insert(front_end_ms + times.total);
    }
    Ok((sum, first_audio_ms.unwrap_or(front_end_ms)))
}

/// The longest piece.
fn largest(work: &Work) -> Sizes {
    let longest = work.pieces.iter().copied().max_by_key(|s| s.latents);
    longest.unwrap_or(Sizes { tokens: 1, latents: 1, steps: 1 })
}

/// A plan's step as `--profile` shows it.
struct Line<'a> {
    step: &'a bench::StepTime,
    calls: usize,
    share: f64,
}

/// Stages that run several times while the others run once: denoising steps, and frames.
fn is_repeated(stage: &str) -> bool {
    ["vector_estimator", "frame"].contains(&stage)
}

/// All steps, the slowest first. Those of repeated stages run `steps` times.
fn profile_lines(profile: &[bench::StepTime], steps: usize) -> Vec<Line<'_>> {
    let calls = |s: &bench::StepTime| if is_repeated(s.stage) { steps } else { 1 };
    let total: f64 = profile.iter().map(|s| s.us * calls(s) as f64).sum();
    let mut lines: Vec<Line<'_>> = profile
        .iter()
        .map(|step| Line { step, calls: calls(step), share: step.us * calls(step) as f64 / total })
        .collect();
    lines.sort_by(|a, b| b.share.total_cmp(&a.share));
    lines
}

/// Thousands a microsecond; 0 for what takes no time of its own.
fn rate(amount: f64, us: f64) -> f64 {
    if us > 0.0 { amount / us / 1e3 } else { 0.0 }
}

fn gflops(s: &bench::StepTime) -> f64 {
    rate(s.flops as f64, s.us)
}

fn gbps(s: &bench::StepTime) -> f64 {
    rate(s.bytes as f64, s.us)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

fn profile_text(profile: &[bench::StepTime], steps: usize, peak: bench::Peak) -> String {
    let lines = profile_lines(profile, steps);
    let head = [
        "stage", "op", "kernel", "shape", "calls", "µs each", "share", "GFLOP/s", "GB/s", "of peak", "weight",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(lines.iter().take(SLOWEST).map(|l| {
        let s = l.step;
        vec![
            s.stage.to_owned(),
            s.op.clone(),
            s.kernel.clone(),
            s.shape.clone(),
            l.calls.to_string(),
            format!("{:.1}", s.us),
            format!("{:.1} %", 100.0 * l.share),
            format!("{:.1}", gflops(s)),
            format!("{:.1}", gbps(s)),
            percent(s.share_of_peak(peak)),
            s.label.clone(),
        ]
    }));
    let shown: f64 = lines.iter().take(SLOWEST).map(|l| l.share).sum();
    let vectors = peak.vector_gflops.map_or_else(String::new, |g| format!(" ({g:.0} without tiles)"));
    format!(
        "\npeak            {:.0} GFLOP/s in a large product{vectors}, {:.1} GB/s in a large sum\n\n{}\n\
         The slowest {} of {} steps, {:.0} % of the time:\n{}",
        peak.device.gflops,
        peak.device.gbps,
        kernels_text(&lines, peak),
        lines.len().min(SLOWEST),
        lines.len(),
        100.0 * shown,
        print::table(&rows, &[1, 2, 3, 10])
    )
}

/// Sums over all calls of a kernel in a stage.
#[derive(Default)]
struct KernelSum {
    calls: usize,
    us: f64,
    share: f64,
    flops: f64,
    bytes: f64,
    bound_us: f64,
}

/// One row for each kernel of each stage: where time goes, and how much of it must be.
fn kernels_text(lines: &[Line<'_>], peak: bench::Peak) -> String {
    let mut sums: BTreeMap<(&str, &str), KernelSum> = BTreeMap::new();
    for l in lines {
        let (s, n) = (l.step, l.calls as f64);
        let sum = sums.entry((s.stage, s.kernel.as_str())).or_default();
        sum.calls += l.calls;
        sum.us += s.us * n;
        sum.share += l.share;
        sum.flops += s.flops as f64 * n;
        sum.bytes += s.bytes as f64 * n;
        sum.bound_us += s.bound_us(peak) * n;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.us.total_cmp(&a.1.us));
    let head = ["stage", "kernel", "calls", "ms", "share", "GFLOP/s", "GB/s", "of peak"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(sums.iter().map(|((stage, kernel), s)| {
        vec![
            (*stage).to_owned(),
            (*kernel).to_owned(),
            s.calls.to_string(),
            format!("{:.3}", s.us / 1e3),
            format!("{:.1} %", 100.0 * s.share),
            format!("{:.1}", rate(s.flops, s.us)),
            format!("{:.1}", rate(s.bytes, s.us)),
            percent(rate(s.bound_us, s.us) * 1e3),
        ]
    }));
    print::table(&rows, &[1])
}

fn peak_json(peak: bench::Peak) -> Value {
    json!({ "gflops": peak.device.gflops, "vector_gflops": peak.vector_gflops, "gbps": peak.device.gbps })
}

fn profile_json(profile: &[bench::StepTime], steps: usize, peak: bench::Peak) -> Value {
    let line = |l: &Line<'_>| {
        let s = l.step;
        json!({
            "stage": s.stage, "op": s.op, "kernel": s.kernel, "shape": s.shape, "weight": s.label,
            "calls": l.calls, "us": s.us, "share": l.share, "gflops": gflops(s), "gbps": gbps(s),
            "of_peak": s.share_of_peak(peak),
        })
    };
    profile_lines(profile, steps).iter().map(line).collect()
}

/// All steps of an utterance one after the other, in the format of Chrome's tracing.
fn trace(profile: &[bench::StepTime], steps: usize, device: &str) -> Value {
    let mut events = vec![json!({ "ph": "M", "name": "process_name", "pid": 1, "args": { "name": device } })];
    let mut at = 0.0;
    let stages = profile.chunk_by(|a, b| a.stage == b.stage);
    for (row, stage) in stages.enumerate() {
        let name = stage[0].stage;
        events.push(
            json!({ "ph": "M", "name": "thread_name", "pid": 1, "tid": row, "args": { "name": name } }),
        );
        for _ in 0..if is_repeated(name) { steps } else { 1 } {
            for s in stage {
                events.push(json!({
                    "ph": "X", "name": s.op, "cat": s.kernel, "pid": 1, "tid": row, "ts": at, "dur": s.us,
                    "args": { "kernel": s.kernel, "shape": s.shape, "weight": s.label, "GFLOP/s": gflops(s), "GB/s": gbps(s) },
                }));
                at += s.us;
            }
        }
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ms" })
}
