//! `orate bench` for models that speak a piece at once: Supertonic.

use super::profile::{peak_json, profile_json, profile_text, trace};
use super::{Args, TEXT, ms};
use crate::engine_report::{device_text, engine_json, precision_text, with};
use crate::measure::{median, peak_rss_mb};
use crate::print;
use orate::{DeviceKind, Engine, Options};
use orate_models::supertonic::SpeakOptions;
use orate_tools::bench::{self, Sizes, StageTimes};
use serde_json::{Map, Value, json};
use std::time::Instant;

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
pub fn run(args: &Args, engine: &Engine, load_ms: f64) -> anyhow::Result<()> {
    let steps = args.sizes.steps(engine)?;
    let work = match (args.sizes.tokens, args.sizes.latents) {
        (None, None) => spoken(engine, args.text.as_deref().unwrap_or(TEXT), steps)?,
        (tokens, latents) => forced(engine, tokens, latents, steps)?,
    };
    let warm_up = once(engine, &work, false)?;
    let runs = |apart| (0..args.runs).map(|_| once(engine, &work, apart)).collect::<anyhow::Result<Vec<_>>>();
    // On the CPU a stage is done when the next one begins.
    let apart = if engine.device_info().kind == DeviceKind::Cpu { None } else { Some(runs(true)?) };
    let runs = runs(false)?;
    let apart = apart.as_ref().unwrap_or(&runs);
    let peak_rss_mb = peak_rss_mb();
    let profile = if args.profile || args.trace.is_some() {
        bench::profile(engine, largest(&work), 5)?
    } else {
        Vec::new()
    };
    if let Some(path) = &args.trace {
        let trace = trace(&profile, largest(&work).steps, &engine.device()).to_string();
        orate_audio::write_output(path, trace.as_bytes())?;
    }
    let peak = if args.profile { Some(bench::measure_peak(engine)?) } else { None };

    let total_ms = median(runs.iter().map(|r| r.0.total));
    let first_audio_ms = median(runs.iter().map(|r| r.1));
    let stages = bench::stage_names().into_iter().enumerate();
    let stages: Vec<(&str, f64)> =
        stages.map(|(i, name)| (name, median(apart.iter().map(|r| r.0.stages[i])))).collect();
    let rtf = total_ms / 1e3 / work.duration;
    let fastest = runs.iter().map(|r| r.0.total).fold(f64::INFINITY, f64::min);

    if args.json {
        let stages: Map<String, Value> = stages.iter().map(|(n, ms)| ((*n).to_owned(), json!(ms))).collect();
        let report = json!({
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
            "threads": engine.threads(),
            "pieces": work.pieces.iter().map(|s| json!({ "tokens": s.tokens, "latents": s.latents, "steps": s.steps })).collect::<Vec<_>>(),
        });
        let mut report = with(report, engine_json(engine));
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
        device_text(engine),
        engine.probes().map_or_else(String::new, |_| format!("{}\n", precision_text(engine))),
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
    let voice = model.voice(files.default_voice()).map_err(orate::Error::from)?;
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
    let front_end_ms = ms(start.elapsed());
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
