//! `orate convert`: speaks a recording again in another voice.

use crate::args::EngineArgs;
use crate::delivery::{Delivery, OutputArgs, VoiceArgs};
use crate::input;
use crate::interrupt::Interrupt;
use crate::own_options::ConversionOptions;
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

/// Speak a recording again in another voice
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orate convert me.wav --model DIR --reference ada.wav -o ada-says.wav
  orate convert talk.mp3 --model DIR --voice ada -o talk.flac
  orate convert me.wav --model DIR --play          is heard while it is converted
  ffmpeg -i talk.mkv -f wav - | orate convert - --model DIR -o talk.wav

DIR is a Chatterbox model. The source may last an hour; what it says, and when, stays the same. \
An existing file is replaced when the new one is complete; no partial file remains.")]
pub struct Args {
    /// Recording of up to an hour: wav, flac, mp3, ogg, opus, m4a; `-` is standard input
    #[arg(value_name = "SOURCE")]
    pub source: PathBuf,

    #[command(flatten)]
    pub output: OutputArgs,

    #[command(flatten)]
    pub voice: VoiceArgs,

    #[command(flatten)]
    pub own: ConversionOptions,

    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Converts, writes the output and reports.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let started = Instant::now();
    let file = Some(&args.source).filter(|source| source.as_os_str() != "-");
    let source = file.map(|path| ("the source", path.clone())).into_iter().collect();
    args.voice.check_input("the source", file.is_none())?;
    let output = args.output.check(source, (&args.engine, &args.voice), &[])?;
    let delivery = Delivery::open((&args.output, &args.engine, &args.voice), output, started)?;
    let engine = &delivery.engine;
    engine.conversion()?;
    let standard = if file.is_none() { Some(input::recording()?) } else { None };
    let interrupt = Interrupt::new();
    let options = args.own.set(args.voice.options(engine, None, &interrupt)?);
    let speaking = Instant::now();
    let stream = match standard {
        Some(stdin) => engine.convert_stream_from("standard input", stdin, &options)?,
        None => engine.convert_stream(&args.source, &options)?,
    };
    let speech = delivery.write(stream, &[], &interrupt, speaking)?;
    let source = args.source.display().to_string();
    let more = json!({ "source": source, "options": args.own.as_json() });
    delivery.report(&speech, &source, more)
}
