//! `orate say`: speaks a text.

use crate::args::EngineArgs;
use crate::delivery::{Delivery, OutputArgs, VoiceArgs};
use crate::input;
use crate::interrupt::Interrupt;
use crate::own_options::OwnOptions;
use orate::{Options, Value};
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

/// Speak a text into a file or a pipe
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orate say \"Good morning.\"                        writes speech.wav
  orate say \"Good morning.\" -o morning.flac
  orate say --file book.txt -o book.wav
  fortune | orate say -o - | aplay                 plays while it speaks
  orate say -o - --format raw < text.txt | ffmpeg -f s16le -ar 24000 -i - out.ogg
  orate say \"Hello.\" --model DIR --voice F1:0.7+M2:0.3 --lang en --steps 8 --seed 7
  orate say \"Hello.\" --model Qwen3-TTS-12Hz-1.7B-VoiceDesign --instruct \"an old man, very calm\"

The same text, options and seed give the same samples. An existing file is replaced when the \
new one is complete; no partial file remains.")]
pub struct Args {
    /// The text [default: standard input, as with `-`]
    #[arg(value_name = "TEXT")]
    pub text: Vec<String>,

    /// Read the text from a file (UTF-8)
    #[arg(long, short, value_name = "FILE", conflicts_with = "text")]
    pub file: Option<PathBuf>,

    #[command(flatten)]
    pub output: OutputArgs,

    /// Write sound while it is made, as to a pipe
    ///
    /// Runaway speech (looping or endless) is then not retried, as part of it has been written.
    #[arg(long, hide_short_help = true)]
    pub stream: bool,

    #[command(flatten)]
    pub voice: VoiceArgs,

    #[command(flatten)]
    pub speech: SpeechArgs,

    #[command(flatten)]
    pub engine: EngineArgs,
}

/// How to speak.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Speech")]
pub struct SpeechArgs {
    /// Language, such as en or english [default: the model's own]
    #[arg(long, short, value_name = "LANGUAGE")]
    pub lang: Option<String>,

    /// Transcript of the recording, word for word; the model then also copies its manner
    #[arg(long, value_name = "TEXT", requires = "reference")]
    pub transcript: Option<String>,

    /// Silence between the pieces of a long text, in seconds, 0 to 10
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = Options::default().silence,
        allow_negative_numbers = true,
        hide_short_help = true
    )]
    pub silence: f32,

    #[command(flatten)]
    pub own: OwnOptions,
}

/// Speaks, writes the output and reports.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let started = Instant::now();
    let text_file = args.file.iter().map(|path| ("the text", path.clone())).collect();
    let output = args.output.check(text_file, &args.engine, &args.voice)?;
    let text = input::read(&args.text, args.file.as_deref())?;
    let delivery = Delivery::open((&args.output, &args.engine, &args.voice), output, started)?;
    let engine = &delivery.engine;
    // Not earlier: while the user types the text, Ctrl-C should simply end the program.
    let interrupt = Interrupt::new();
    let SpeechArgs { lang, transcript, silence, own } = &args.speech;
    let options = args.voice.options(engine, transcript.as_deref(), &interrupt)?;
    let mut options = own.set(Options { language: lang.clone(), silence: *silence, ..options });
    // Audio written to a pipe cannot be retracted.
    options.whole_pieces =
        options.get("retries") != Some(&Value::Whole(0)) && delivery.is_file() && !args.stream;
    let speaking = Instant::now();
    let stream = engine.stream(&text, &options)?;
    let beginning = beginning(&text);
    drop(text); // it may be a book
    let speech = delivery.write(stream, &interrupt, speaking)?;
    let more = json!({
        "characters": speech.characters,
        "finish_reason": speech.finish.map(orate::FinishReason::name),
        "attempts": speech.attempts,
        "prefix_rows": speech.prefix_rows,
        "options": own.as_json(),
    });
    delivery.report(&speech, &beginning, more)
}

/// First characters of a text, white space collapsed.
fn beginning(text: &str) -> String {
    let beginning: String =
        text.split_whitespace().flat_map(|w| [w, " "]).flat_map(str::chars).take(60).collect();
    beginning.trim_end().to_owned()
}
