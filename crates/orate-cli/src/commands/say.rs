//! `orate say`: text becomes speech.

use crate::args::EngineArgs;
use crate::audio_sink::{Format, Output};
use crate::engine_report::{engine_json, note_fallbacks, note_warnings, with};
use crate::failure::UsageError;
use crate::interrupt::Interrupt;
use crate::outputs::{self, Input};
use crate::progress::Progress;
use crate::{input, print};
use anyhow::Context;
use orate::{ClonedVoice, Engine, Options, Value, VoiceStore};
use serde_json::json;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Where audio goes when nothing is said.
const DEFAULT_OUTPUT: &str = "speech.wav";

/// What to say, and how.
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

The same text, options and seed give the same samples. A file that was there before is replaced when \
the new one is complete; an incomplete file never remains.")]
pub struct Args {
    /// The text; without it, or with `-`, it is read from standard input
    #[arg(value_name = "TEXT")]
    pub text: Vec<String>,

    /// Read the text from a file (UTF-8)
    #[arg(long, short, value_name = "FILE", conflicts_with = "text")]
    pub file: Option<PathBuf>,

    /// Where to write: .wav or .flac; `-` is standard output, piece by piece [default: speech.wav]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Hand sound on as it is made, as a pipe always does; a piece of the text that goes astray is then not spoken again
    #[arg(long)]
    pub stream: bool,

    /// How to store samples; without it, as the name of the output ends
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,

    /// Also draw waveform and mel spectrogram
    #[arg(long, value_name = "FILE.png")]
    pub plot: Option<PathBuf>,

    /// Print one JSON object about the result (to standard error if audio goes to standard output)
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

/// What `--text-feeding` may be.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Feeding {
    /// All of a piece of the text is in the prompt.
    Whole,
    /// A token comes with each frame.
    Streaming,
}

/// How to speak.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Speech")]
pub struct SpeechArgs {
    /// A voice of the model; for Supertonic also a voice file (.json), or a mix such as F1:0.7+M2:0.3; for Qwen3-TTS Base a
    /// kept voice (`orate voices add`), or its file (.safetensors)
    #[arg(long, short, value_name = "VOICE")]
    pub voice: Option<String>,

    /// Language, such as en or english; without it, the model's default
    #[arg(long, short, value_name = "LANGUAGE")]
    pub lang: Option<String>,

    /// Speaking rate, 0.7 to 2; without it, the model's usual rate
    #[arg(long, short, value_name = "FACTOR", allow_negative_numbers = true)]
    pub speed: Option<f32>,

    /// Denoising steps, 1 to 100: more is slower and a little cleaner; without it, the model's own number
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub steps: Option<usize>,

    /// Speak with the voice of this recording: wav, flac, mp3, ogg or m4a (Qwen3-TTS Base models)
    #[arg(long, value_name = "FILE", conflicts_with = "voice")]
    pub reference: Option<PathBuf>,

    /// What the recording says, word for word: the model then speaks in its manner too
    #[arg(long, value_name = "TEXT", requires = "reference")]
    pub transcript: Option<String>,

    /// How to speak, or who, in words (Qwen3-TTS models that follow instructions)
    #[arg(long, value_name = "WORDS")]
    pub instruct: Option<String>,

    /// How the text reaches the talker: all of a piece at first, or a token with each frame; without it, as in the official package:
    /// streaming for Base models, whole for others (Qwen3-TTS)
    #[arg(long, value_name = "HOW")]
    pub text_feeding: Option<Feeding>,

    /// Divides the logits that codes are drawn from; 0 takes the likeliest (Qwen3-TTS)
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub temperature: Option<f32>,

    /// Codes to draw from, the likeliest ones; 0 is all (Qwen3-TTS)
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    pub top_k: Option<usize>,

    /// Probability to draw from, 0 to 1 (Qwen3-TTS)
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f32>,

    /// As --temperature, for the codes of a frame behind the first; without it, the same (Qwen3-TTS)
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub predictor_temperature: Option<f32>,

    /// As --top-k, for the codes of a frame behind the first; without it, the same (Qwen3-TTS)
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    pub predictor_top_k: Option<usize>,

    /// As --top-p, for the codes of a frame behind the first; without it, the same (Qwen3-TTS)
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub predictor_top_p: Option<f32>,

    /// Makes codes that were drawn before less likely (Qwen3-TTS)
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub repetition_penalty: Option<f32>,

    /// Frames of 80 ms that a piece of the text may have; without it, what its length suggests (Qwen3-TTS)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub max_frames: Option<usize>,

    /// How often a piece of the text that goes astray is spoken again, with another seed; not while it is piped (Qwen3-TTS).
    /// With 0, sound is handed on as it comes [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u8).range(0..=10))]
    pub retries: Option<u8>,

    /// Seed of the noise: another seed gives another reading
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub seed: u64,

    /// Silence between the pieces of a long text, in seconds, 0 to 10
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().silence, allow_negative_numbers = true)]
    pub silence: f32,

    /// Write out English numbers, dates, money and abbreviations first (default of the built-in voice)
    #[arg(long, overrides_with = "no_read_numbers")]
    pub read_numbers: bool,

    /// Do not: the model reads them itself (default of Supertonic models)
    #[arg(long, overrides_with = "read_numbers")]
    pub no_read_numbers: bool,

    /// Keep each piece to the end of its last latent frame, as the official Python package does
    #[arg(long)]
    pub no_trim: bool,

    /// Leave out characters that the voice does not know, instead of refusing the text
    #[arg(long)]
    pub skip_unknown: bool,
}

impl SpeechArgs {
    fn options(&self) -> Options {
        let all: [(&str, Option<Value>); 15] = [
            ("speed", self.speed.map(Into::into)),
            ("steps", self.steps.map(Into::into)),
            ("read_numbers", self.read_numbers.then_some(Value::Switch(true))),
            ("read_numbers", self.no_read_numbers.then_some(Value::Switch(false))),
            ("skip_unknown", self.skip_unknown.then_some(Value::Switch(true))),
            ("trim", self.no_trim.then_some(Value::Switch(false))),
            ("instruct", self.instruct.clone().map(Into::into)),
            ("temperature", self.temperature.map(Into::into)),
            ("top_k", self.top_k.map(Into::into)),
            ("top_p", self.top_p.map(Into::into)),
            ("predictor_temperature", self.predictor_temperature.map(Into::into)),
            ("predictor_top_k", self.predictor_top_k.map(Into::into)),
            ("predictor_top_p", self.predictor_top_p.map(Into::into)),
            ("repetition_penalty", self.repetition_penalty.map(Into::into)),
            ("max_frames", self.max_frames.map(Into::into)),
        ];
        let mut options = Options {
            voice: self.voice.clone(),
            language: self.lang.clone(),
            seed: self.seed,
            silence: self.silence,
            ..Options::default()
        };
        let feeding = self.text_feeding.map(|f| match f {
            Feeding::Whole => "whole",
            Feeding::Streaming => "streaming",
        });
        options.own.extend([
            ("text_feeding", feeding.map(Into::into)),
            ("retries", self.retries.map(|n| usize::from(n).into())),
        ]);
        options.own.extend(all);
        options
    }
}

/// Speaks.
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
    /// Whether the object goes to standard error because sound goes to standard output. It stands alone there, so that
    /// programs can read it, and has all that is noted otherwise.
    fn object_stands_alone(&self, output: &Output) -> bool {
        self.json && output.path.is_none()
    }

    /// What is read: the text, the model, and voices.
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

/// The output, if it can be written and takes the place of nothing that is read.
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

/// What was spoken.
struct Speech {
    pieces: usize,
    characters: usize,
    /// Seconds of audio.
    duration: f64,
    /// Seconds that it took.
    seconds: f64,
    first_audio_ms: f64,
    counters: orate::Counters,
    /// Of several pieces, the worst.
    finish: Option<orate::FinishReason>,
    attempts: usize,
    prefix_rows: usize,
    warnings: Vec<String>,
    /// Of the text, in one line.
    beginning: String,
    /// Samples, if they are drawn.
    to_plot: Vec<f32>,
}

/// Speaks the text into the output.
fn speak(args: &Args, engine: &Engine, output: &Output, text: String) -> anyhow::Result<Speech> {
    // Not earlier: while text is typed, Ctrl-C should simply end the program.
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
    // What is in a pipe cannot be taken back.
    options.whole_pieces = args.speech.retries != Some(0) && output.path.is_some() && !args.stream;

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

/// Prints what was spoken, as was asked for.
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
            "voice": args.speech.voice.clone().or_else(default_voice),
            "fallbacks": engine.fallbacks(),
            "warnings": speech.warnings,
            "kv": engine.kv().map(orate::CacheFormat::name),
            "output": output.name(),
            "format": output.format.name(),
            "plot": args.plot.as_ref().map(|p| p.display().to_string()),
        });
        // The engine's warnings are among those of the speech.
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

/// The first characters of a text, with its white space as single spaces.
fn beginning(text: &str) -> String {
    let beginning: String =
        text.split_whitespace().flat_map(|w| [w, " "]).flat_map(str::chars).take(60).collect();
    beginning.trim_end().to_owned()
}

/// Milliseconds since then.
fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// A voice that is kept under this name, or in this file.
fn kept_voice(voice: &str) -> anyhow::Result<Arc<ClonedVoice>> {
    if Path::new(voice).extension() == Some("safetensors".as_ref()) {
        return Ok(Arc::new(ClonedVoice::load(voice).map_err(orate::Error::from)?));
    }
    Ok(VoiceStore::user()?.load(voice)?)
}
