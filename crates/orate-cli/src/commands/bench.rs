//! `orate bench`: how long a model takes.

mod profile;
mod qwen3_tts;
mod streams;
mod supertonic;

use crate::args::{EngineArgs, SizeArgs};
use crate::engine_report::note_warnings;
use crate::failure::UsageError;
use crate::outputs;
use orate::Engine;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Spoken when nothing is said.
const TEXT: &str = "The kettle is on, the rain has stopped, and the first train leaves in ten minutes.";

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

    /// Texts that each stream speaks in a run: with 1 all begin at once; with more they begin and end among others, as callers of a server
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

/// Times and prints.
pub fn run(args: &Args) -> anyhow::Result<()> {
    args.trace.iter().try_for_each(|path| outputs::check("--trace", path, &args.engine.inputs()))?;
    let opening = Instant::now();
    let engine = args.engine.open()?;
    let load_ms = ms(opening.elapsed());
    let done = bench(args, &engine, load_ms);
    note_warnings(&engine);
    done
}

fn bench(args: &Args, engine: &Engine, load_ms: f64) -> anyhow::Result<()> {
    if engine.qwen3_tts().is_ok() {
        return qwen3_tts::run(args, engine, load_ms);
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
    supertonic::run(args, engine, load_ms)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
