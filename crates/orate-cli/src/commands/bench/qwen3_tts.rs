//! `orate bench` for models that speak frame by frame.

use super::profile::{peak_json, profile_json, profile_text, trace};
use super::{Args, TEXT, ms};
use crate::engine_report::{device_text, engine_json, precision_text, with};
use crate::failure::UsageError;
use crate::measure::{median, peak_rss_mb};
use crate::print;
use orate::{Engine, ErrorKind};
use orate_tools::bench;
use orate_tools::bench::qwen3_tts::{SpeechTimes, any_voice, profile, run_once};
use serde_json::json;
use std::time::Duration;

/// Frames of a run when neither a text nor their number is given: four seconds.
const FRAMES: u32 = 50;

/// Runs of every step for `--profile`.
const PROFILE_RUNS: usize = 5;

/// Times and prints.
pub fn run(args: &Args, engine: &Engine, load_ms: f64) -> anyhow::Result<()> {
    if args.sizes.tokens.is_some() || args.sizes.latents.is_some() || args.sizes.steps.is_some() {
        let hint = "--tokens, --latents and --steps are for Supertonic models; use --text and --max-frames";
        return Err(UsageError(hint.to_owned()).into());
    }
    engine.qwen3_tts()?.talking().map_err(orate::Error::from)?;
    let text = args.text.as_deref().unwrap_or(TEXT);
    let frames = args.max_frames.or(args.text.is_none().then_some(FRAMES));
    let mut options = any_voice(engine).map_err(|e| match e.kind() {
        ErrorKind::InvalidInput => e.into(),
        _ => anyhow::Error::from(e)
            .context("a voice for timing cannot be made from a tone on this device; try --device cpu"),
    })?;
    options.own.extend([
        ("max_frames", frames.map(|n| (n as usize).into())),
        ("codec_beside", args.codec_beside.map(Into::into)),
    ]);
    if let Some(streams) = args.streams {
        return super::streams::run(args, engine, text, &options, streams as usize);
    }
    let warm_up = run_once(engine, text, &options)?;
    let runs = (0..args.runs).map(|_| run_once(engine, text, &options)).collect::<orate::Result<Vec<_>>>()?;
    let peak_rss_mb = peak_rss_mb();

    let median_of = |f: fn(&SpeechTimes) -> Duration| median(runs.iter().map(|r| ms(f(r))));
    let made = warm_up.laps.frames;
    let per_frame = |ms: f64| if made > 0 { ms / made as f64 } else { 0.0 };
    let (total_ms, first_audio_ms) = (median_of(|r| r.total), median_of(|r| r.first_audio));
    let prompt_ms = median_of(|r| r.laps.prompt);
    let frame_ms = per_frame(median_of(|r| r.laps.talker));
    let codec_frame_ms = per_frame(median_of(|r| r.laps.codec));
    let fastest = runs.iter().map(|r| ms(r.total)).fold(f64::INFINITY, f64::min);
    let duration = warm_up.samples as f64 / f64::from(engine.sample_rate());
    let rtf = total_ms / 1e3 / duration;
    let finish = warm_up.finish.map(|f| f.name());

    let (steps, piece) = if args.profile || args.trace.is_some() {
        profile(engine, &options, PROFILE_RUNS)?
    } else {
        (vec![], 0)
    };
    if let Some(path) = &args.trace {
        let trace = trace(&steps, piece, &engine.device()).to_string();
        orate_audio::write_output(path, trace.as_bytes())?;
    }
    let peak = if args.profile { Some(bench::measure_peak(engine)?) } else { None };

    if args.json {
        let report = json!({
            "total_ms": total_ms,
            "total_ms_min": fastest,
            "prompt_ms": prompt_ms,
            "frame_ms": frame_ms,
            "codec_frame_ms": codec_frame_ms,
            "first_audio_ms": first_audio_ms,
            "warm_up_ms": ms(warm_up.total),
            "load_ms": load_ms,
            "rtf": rtf,
            "duration_s": duration,
            "frames": made,
            "prefix_rows": runs.last().map(|r| r.prefix_rows),
            "finish_reason": finish,
            "peak_rss_mb": peak_rss_mb,
            "runs": args.runs,
            "kv": engine.kv().map(orate::CacheFormat::name),
            "threads": engine.threads(),
        });
        let mut report = with(report, engine_json(engine));
        if let Some(peak) = peak {
            report["peak"] = peak_json(peak);
            report["profile_frames"] = json!(piece);
            report["profile"] = profile_json(&steps, piece, peak);
        }
        return print::json(&report);
    }
    let row = |name: &str, ms: f64, frame: Option<f64>| {
        let frame = frame.map_or_else(String::new, |ms| format!("{ms:.2}"));
        vec![name.to_owned(), format!("{ms:.2}"), frame]
    };
    let head = ["stage", "median ms", "ms per frame"].map(str::to_owned).to_vec();
    let rows = [
        head,
        row("prompt", prompt_ms, None),
        row("talker + predictor", frame_ms * made as f64, Some(frame_ms)),
        row("codec", codec_frame_ms * made as f64, Some(codec_frame_ms)),
        row("total", total_ms, Some(per_frame(total_ms))),
    ];
    let memory = peak_rss_mb.map_or_else(|| "unknown".to_owned(), |mb| format!("{mb:.1} MB"));
    let text = format!(
        "{}\n{}\n{}, keys and values in {}\n{made} frames, ended by {}\n\n{}\nfastest run     {fastest:.2} ms\nfirst run       {:.2} ms\n\
         first audio     {first_audio_ms:.2} ms\nRTF             {rtf:.4} ({:.1} times as fast as it plays, {duration:.2} s of audio)\n\
         load            {load_ms:.2} ms\npeak memory     {memory}\n",
        engine.model_name(),
        device_text(engine),
        precision_text(engine),
        engine.kv().unwrap_or_default(),
        finish.unwrap_or("nothing"),
        print::table(&rows, &[]),
        ms(warm_up.total),
        1.0 / rtf,
    );
    print::out(&text)?;
    if let Some(peak) = peak {
        print::out(&profile_text(&steps, piece, peak))?;
    }
    Ok(())
}
