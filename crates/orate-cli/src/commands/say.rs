//! `orate say`: speaks a text.

use crate::args::EngineArgs;
use crate::audio_sink::{Format, Output};
use crate::engine_report::{engine_json, note_fallbacks, note_warnings, with};
use crate::failure::UsageError;
use crate::interrupt::Interrupt;
use crate::outputs::{self, Input};
use crate::own_options::OwnOptions;
use crate::progress::Progress;
use crate::{input, print};
use anyhow::Context;
use orate::{ClonedVoice, Engine, Options, Value, VoiceStore};
use serde_json::json;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Default output file.
const DEFAULT_OUTPUT: &str = "speech.wav";

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

    /// Where to write: .wav or .flac, or `-` for standard output [default: speech.wav]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Write sound while it is made, as to a pipe
    ///
    /// Runaway speech (looping or endless) is then not retried, as part of it has been written.
    #[arg(long, hide_short_help = true)]
    pub stream: bool,

    /// Sample format [default: from the extension of the output]
    #[arg(long, value_name = "FORMAT", hide_short_help = true)]
    pub format: Option<Format>,

    /// Also draw waveform and mel spectrogram
    #[arg(long, value_name = "FILE.png", hide_short_help = true)]
    pub plot: Option<PathBuf>,

    /// Print one JSON object about the result
    ///
    /// It goes to standard error if audio goes to standard output.
    #[arg(long)]
    pub json: bool,

    /// Print nothing but errors
    #[arg(long, short)]
    pub quiet: bool,

    #[command(flatten)]
    pub speech: SpeechArgs,

    #[command(flatten)]
    pub engine: EngineArgs,
}

/// How to speak.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Speech")]
pub struct SpeechArgs {
    /// Voice of the model, or a kept voice (`orate voices` lists them)
    ///
    /// Models with voice files also take a file (.json), or a mix such as F1:0.7+M2:0.3. Models that clone
    /// take kept voices (`orate voices add`) and their files (.safetensors).
    #[arg(long, short, value_name = "VOICE")]
    pub voice: Option<String>,

    /// Language, such as en or english [default: the model's own]
    #[arg(long, short, value_name = "LANGUAGE")]
    pub lang: Option<String>,

    /// Clone the voice of this recording, in models that clone: wav, flac, mp3, ogg, m4a
    #[arg(long, value_name = "FILE", conflicts_with = "voice")]
    pub reference: Option<PathBuf>,

    /// Transcript of the recording, word for word; the model then also copies its manner
    #[arg(long, value_name = "TEXT", requires = "reference")]
    pub transcript: Option<String>,

    /// Random seed; another seed gives another reading
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub seed: u64,

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

impl SpeechArgs {
    fn options(&self) -> Options {
        self.own.set(Options {
            voice: self.voice.clone(),
            language: self.lang.clone(),
            seed: self.seed,
            silence: self.silence,
            ..Options::default()
        })
    }
}

/// Speaks, writes the output and reports.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let started = Instant::now();
    let output = check(args)?;
    let text = input::read(&args.text, args.file.as_deref())?;
    let opening = Instant::now();
    let engine = args.engine.open_silently()?;
    let load_ms = ms(opening);
    if !args.object_stands_alone(&output) {
        note_fallbacks(&engine);
    }
    let speech = speak(args, &engine, &output, text)?;
    if let Some(path) = &args.plot {
        let title = format!("{} | {}, seed {}", speech.beginning, engine.model_name(), args.speech.seed);
        orate::plot_png(&speech.to_plot, engine.sample_rate(), &title, path)
            .with_context(|| format!("{} is complete, but the picture is not", output.name()))?;
    }
    report(args, &engine, &output, &speech, (started, load_ms))
}

impl Args {
    /// Whether the JSON object goes to standard error because audio goes to standard output. Nothing else is
    /// printed there, so that programs can parse it; the object contains all notes.
    fn object_stands_alone(&self, output: &Output) -> bool {
        self.json && output.path.is_none()
    }

    /// All inputs: text, model and voices.
    fn inputs(&self) -> Vec<Input> {
        let mut inputs = self.engine.inputs();
        inputs.extend(self.file.iter().map(|path| ("the text", path.clone())));
        inputs.extend(self.speech.reference.iter().map(|path| ("the recording", path.clone())));
        // Each part of a mix may be a file with a weight after it.
        for part in self.speech.voice.iter().flat_map(|voice| voice.split('+')) {
            let file = part.rsplit_once(':').map_or(part, |(file, _)| file);
            inputs.extend([part, file].map(|file| ("the voice", PathBuf::from(file))));
        }
        inputs
    }
}

/// Returns the output if it can be written and replaces no input.
fn check(args: &Args) -> anyhow::Result<Output> {
    let output = args.output.clone().unwrap_or_else(|| DEFAULT_OUTPUT.into());
    let output = Output::choose(&output, args.format)?;
    if let (Some(sound), Some(picture)) = (&output.path, &args.plot)
        && outputs::is_same_place(sound, picture)
    {
        let problem = "the sound is written there; name another file, such as speech.png";
        return Err(UsageError(format!("--plot {}: {problem}", picture.display())).into());
    }
    let inputs = args.inputs();
    output.path.iter().try_for_each(|path| outputs::check("-o", path, &inputs))?;
    args.plot.iter().try_for_each(|path| outputs::check("--plot", path, &inputs))?;
    Ok(output)
}

/// Result of speaking.
struct Speech {
    pieces: usize,
    characters: usize,
    /// Seconds of audio.
    duration: f64,
    /// Computing time in seconds.
    seconds: f64,
    first_audio_ms: f64,
    counters: orate::Counters,
    /// The worst of all pieces.
    finish: Option<orate::FinishReason>,
    attempts: usize,
    prefix_rows: usize,
    warnings: Vec<String>,
    /// Beginning of the text, in one line.
    beginning: String,
    /// Samples to plot; empty without `--plot`.
    to_plot: Vec<f32>,
}

/// Speaks the text into the output.
fn speak(args: &Args, engine: &Engine, output: &Output, text: String) -> anyhow::Result<Speech> {
    // Not earlier: while the user types the text, Ctrl-C should simply end the program.
    let interrupt = Interrupt::new();
    let cancel = interrupt.cancel();
    let mut options = Options { cancel: Some(cancel.clone()), ..args.speech.options() };
    if let Some(recording) = &args.speech.reference {
        options.cloned = Some(engine.clone_voice(recording, args.speech.transcript.as_deref())?);
    } else if engine.can_clone()
        && let Some(voice) = options.voice.take()
    {
        options.cloned = Some(kept_voice(&voice)?);
    }
    // Audio written to a pipe cannot be retracted.
    options.whole_pieces =
        options.get("retries") != Some(&Value::Whole(0)) && output.path.is_some() && !args.stream;

    let speaking = Instant::now();
    let mut stream = engine.stream(&text, &options)?;
    let notes_warnings = !args.quiet && !args.object_stands_alone(output);
    let warn = |warning: &str| {
        if notes_warnings {
            print::note(&format!("warning: {warning}"));
        }
        warning.to_owned()
    };
    let mut speech = Speech {
        pieces: stream.remaining(),
        characters: stream.remaining_chars(),
        duration: 0.0,
        seconds: 0.0,
        first_audio_ms: 0.0,
        counters: orate::Counters::default(),
        finish: None,
        attempts: 0,
        prefix_rows: 0,
        warnings: stream.warnings().iter().map(|w| warn(w)).collect(),
        beginning: beginning(&text),
        to_plot: vec![],
    };
    drop(text); // it may be a book
    let mut sink = output.open(engine.sample_rate())?;
    interrupt.remove_at_once(sink.temporary_path());
    let progress = Progress::new(speech.characters, speech.pieces, args.quiet || args.json);
    let mut samples = 0;
    while let Some(chunk) = stream.next() {
        let chunk = chunk?;
        sink.write(&chunk.samples)?;
        if samples == 0 {
            speech.first_audio_ms = ms(speaking);
        }
        samples += chunk.samples.len() as u64;
        speech.duration = samples as f64 / f64::from(engine.sample_rate());
        speech.counters += chunk.counters;
        speech.finish = speech.finish.max(chunk.finish);
        speech.attempts = speech.attempts.max(chunk.attempts);
        speech.prefix_rows += chunk.prefix_rows;
        if args.plot.is_some() {
            speech.to_plot.extend_from_slice(&chunk.samples);
        }
        progress.update(speech.characters - stream.remaining_chars(), speech.duration);
    }
    drop(progress);
    if speech.finish == Some(orate::FinishReason::Runaway) {
        speech.warnings.push(warn("the speech ran away and was cut; another --seed may do better"));
    }
    if notes_warnings {
        note_warnings(engine);
    }
    speech.warnings.extend(engine.warnings());
    if cancel.is_cancelled() {
        return Err(orate::Error::Cancelled.into());
    }
    sink.finish()?;
    speech.seconds = speaking.elapsed().as_secs_f64();
    Ok(speech)
}

/// Prints the result in the requested form.
fn report(
    args: &Args,
    engine: &Engine,
    output: &Output,
    speech: &Speech,
    (started, load_ms): (Instant, f64),
) -> anyhow::Result<()> {
    let Speech { duration, seconds, .. } = *speech;
    if args.json {
        let default_voice = || engine.voices().iter().find(|v| v.is_default).map(|v| v.name.clone());
        let report = json!({
            "duration_s": duration,
            "wall_s": started.elapsed().as_secs_f64(),
            "speech_s": seconds,
            "rtf": seconds / duration,
            "first_audio_ms": speech.first_audio_ms,
            "load_ms": load_ms,
            "pieces": speech.pieces,
            "finish_reason": speech.finish.map(orate::FinishReason::name),
            "attempts": speech.attempts,
            "prefix_rows": speech.prefix_rows,
            "plans": engine.plans_made(),
            "submissions": speech.counters.submissions,
            "read_backs": speech.counters.read_backs,
            "bytes_up": speech.counters.bytes_up,
            "bytes_down": speech.counters.bytes_down,
            "device_allocations": speech.counters.allocations,
            "characters": speech.characters,
            "sample_rate": engine.sample_rate(),
            "seed": args.speech.seed,
            "options": args.speech.own.as_json(),
            "voice": args.speech.voice.clone().or_else(default_voice),
            "fallbacks": engine.fallbacks(),
            "warnings": speech.warnings,
            "kv": engine.kv().map(orate::CacheFormat::name),
            "output": output.name(),
            "format": output.format.name(),
            "plot": args.plot.as_ref().map(|p| p.display().to_string()),
        });
        // The warnings of the engine are already in the speech report.
        let report = with(engine_json(engine), report);
        if !args.object_stands_alone(output) {
            return print::json(&report);
        }
        print::note(&print::json_text(&report));
    } else if !args.quiet && (args.output.is_none() || std::io::stderr().is_terminal()) {
        let wrote = if output.path.is_some() { format!("wrote {}: ", output.name()) } else { String::new() };
        let faster = duration / seconds;
        print::note(&format!(
            "{wrote}{duration:.2} s of audio in {seconds:.2} s, {faster:.1} times as fast as it plays"
        ));
    }
    Ok(())
}

/// First characters of a text, white space collapsed.
fn beginning(text: &str) -> String {
    let beginning: String =
        text.split_whitespace().flat_map(|w| [w, " "]).flat_map(str::chars).take(60).collect();
    beginning.trim_end().to_owned()
}

/// Milliseconds since `since`.
fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// The kept voice of this name, or the voice in this file.
fn kept_voice(voice: &str) -> anyhow::Result<Arc<ClonedVoice>> {
    if Path::new(voice).extension() == Some("safetensors".as_ref()) {
        return Ok(Arc::new(ClonedVoice::load(voice).map_err(orate::Error::from)?));
    }
    Ok(VoiceStore::user()?.load(voice)?)
}
