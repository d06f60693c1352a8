//! `orate say`: speaks a text.

use crate::args::{EngineArgs, within};
use crate::cast::{self, Role};
#[cfg(feature = "books")]
use crate::commands::book::{self, BookArgs};
use crate::delivery::{Delivery, OutputArgs, VoiceArgs};
#[cfg(not(feature = "books"))]
use crate::failure::UsageError;
use crate::input;
use crate::interrupt::Interrupt;
use crate::own_options::OwnOptions;
use anyhow::Context as _;
use orate::{Finish, Lexicon, Options, Script, TimedMark, TimedWord, captions, write_output};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Speak a text into a file or a pipe
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orate say \"Good morning.\" --play                 is heard
  orate say \"Good morning.\"                        writes speech.wav
  orate say \"Good morning.\" -o morning.flac
  orate say --file book.epub -o book.mp3           chapters; goes on after a kill
  fortune | orate say -o - | aplay                 plays while it speaks
  orate say -o - --format raw < text.txt | ffmpeg -f s16le -ar 24000 -i - out.ogg
  orate say \"Hello.\" --model DIR --voice F1:0.7+M2:0.3 --lang en --steps 8 --seed 7
  orate say \"Hello.\" --model Qwen3-TTS-12Hz-1.7B-VoiceDesign --instruct \"an old man, very calm\"

The same text, options and seed give the same samples. An existing file is replaced when the \
new one is complete; no partial file remains. Finished parts of a book stay beside it until it is complete.")]
pub struct Args {
    /// The text [default: standard input, as with `-`]
    #[arg(value_name = "TEXT")]
    pub text: Vec<String>,

    /// Read the text from a file (UTF-8, UTF-16); books: .epub, .md, .html
    #[arg(long, short, value_name = "FILE", conflicts_with = "text")]
    pub file: Option<PathBuf>,

    #[command(flatten)]
    pub output: OutputArgs,

    /// Also write captions: .srt, .vtt, or .json with the times of all words and marks
    #[arg(long, value_name = "FILE", value_parser = captions_file)]
    pub captions: Option<PathBuf>,

    /// Write sound while it is made, as to a pipe
    ///
    /// Once part of a piece was written, it is not retried after runaway generation (looping or endless).
    #[arg(long, hide_short_help = true)]
    pub stream: bool,

    #[cfg(feature = "books")]
    #[command(flatten)]
    pub book: BookArgs,

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
    /// Language: en, pt-BR, english, auto [default: the model's own]
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
        value_parser = within(0.0..=10.0_f32),
        hide_short_help = true
    )]
    pub silence: f32,

    /// The text is SSML: breaks, voices, languages, rate, volume, say-as, sub, marks
    #[arg(long)]
    pub ssml: bool,

    /// The text has tags: [pause:1.5s] [voice:NAME] [rate:1.1] [lang:de]
    #[arg(long, conflicts_with = "ssml")]
    pub tags: bool,

    /// Who a voice of the script is: NAME=VOICE, NAME=VOICE@MODEL or NAME=@MODEL; may be repeated
    ///
    /// MODEL is another model than --model, which is opened beside it; nothing after @ is the built-in voice.
    /// Options of a family apply to --model alone.
    #[arg(long, value_name = "NAME=VOICE@MODEL")]
    pub cast: Vec<Role>,

    /// How to say words: a file with a line `word = spelling` for each
    #[arg(long, value_name = "FILE")]
    pub lexicon: Option<PathBuf>,

    /// The model's own sound: no trimming, no set loudness
    #[arg(long, hide_short_help = true)]
    pub raw: bool,

    #[command(flatten)]
    pub own: OwnOptions,
}

/// A file of captions, by its extension.
fn captions_file(path: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    match Captions::of(&path) {
        Some(_) => Ok(path),
        None => Err("name a file that ends in .srt, .vtt or .json".to_owned()),
    }
}

/// Formats of captions.
#[derive(Clone, Copy)]
enum Captions {
    Srt,
    Vtt,
    Json,
}

impl Captions {
    fn of(path: &Path) -> Option<Captions> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        match &*extension {
            "srt" => Some(Captions::Srt),
            "vtt" => Some(Captions::Vtt),
            "json" => Some(Captions::Json),
            _ => None,
        }
    }

    fn write(self, words: &[TimedWord], marks: &[TimedMark], text: &str, duration: f64) -> String {
        match self {
            Captions::Srt => captions::srt(words, duration),
            Captions::Vtt => captions::vtt(words, duration),
            Captions::Json => captions::json(words, marks, text, duration),
        }
    }
}

impl SpeechArgs {
    fn has_markup(&self) -> bool {
        self.ssml || self.tags
    }

    /// The script of a text with markup or a lexicon.
    fn script(&self, text: &str) -> anyhow::Result<Option<Script>> {
        let script = match (self.ssml, self.tags) {
            (true, _) => Script::ssml(text, self.lang.as_deref()),
            (_, true) => Script::tagged(text),
            _ if self.lexicon.is_some() => Ok(Script::plain(text)),
            _ => return Ok(None),
        };
        let mut script = script.map_err(orate::Error::from)?;
        if let Some(path) = &self.lexicon {
            let list = input::read(&[], Some(path))?;
            let lexicon = Lexicon::parse(list.as_bytes()).with_context(|| path.display().to_string())?;
            lexicon.apply(&mut script);
        }
        Ok(Some(script))
    }
}

/// Speaks, writes the output and reports.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let started = Instant::now();
    cast::check(&args.speech.cast, args.speech.has_markup())?;
    #[cfg(feature = "books")]
    if book::is_book(args) {
        return book::run(args);
    }
    args.voice.check_input("the text", input::is_standard(&args.text, args.file.as_deref()))?;
    let text_file = args.file.iter().map(|path| ("the text", path.clone()));
    let lexicon = args.speech.lexicon.iter().map(|path| ("the lexicon", path.clone()));
    let read: Vec<_> = text_file.chain(lexicon).chain(cast::inputs(&args.speech.cast)).collect();
    let captions: Vec<_> = args.captions.iter().map(|path| ("--captions", path.as_path())).collect();
    let output = args.output.check(read, (&args.engine, &args.voice), &captions)?;
    let mut text = text(args)?;
    let delivery = Delivery::open((&args.output, &args.engine, &args.voice), output, started)?;
    let engine = &delivery.engine;
    // Not earlier: while the user types the text, Ctrl-C should simply end the program.
    let interrupt = Interrupt::new();
    let SpeechArgs { lang, transcript, silence, own, raw, .. } = &args.speech;
    let voice = args.voice.options(engine, transcript.as_deref(), &interrupt)?;
    let mut options = own.set(Options { language: lang.clone(), silence: *silence, ..voice });
    // What is heard cannot be taken back.
    options.whole = !delivery.is_heard() && !args.stream;
    options.word_times = args.captions.is_some();
    if *raw {
        options.finish = Finish::NONE;
    }
    let script = args.speech.script(&text)?;
    let warnings = match &script {
        Some(script) if args.speech.has_markup() => cast::warnings(&args.speech.cast, script),
        _ => Script::first_tag(&text).map(spoken_tag).into_iter().collect(),
    };
    let speaking = Instant::now();
    let stream = match &script {
        None => engine.stream(&text, &options)?,
        Some(script) => {
            let others = Options { own: Default::default(), voice: None, cloned: None, ..options.clone() };
            let models = (engine, &args.engine);
            let cast = cast::cast(models, &args.speech.cast, script, (&options, &others))?;
            engine.stream_script(script, &options, &|name| Ok(cast[name].clone()))?
        }
    };
    let beginning = beginning(&text);
    if args.captions.is_none() {
        drop(std::mem::take(&mut text)); // it may be a book
    }
    let speech = delivery.write(stream, &warnings, &interrupt, speaking)?;
    if let Some(path) = &args.captions {
        write_captions(path, &speech.words, &speech.marks, (&text, speech.duration))?;
    }
    let more = json!({
        "characters": speech.characters,
        "finish_reason": speech.finish.map(orate::FinishReason::name),
        "attempts": speech.attempts,
        "prefix_rows": speech.prefix_rows,
        "options": own.as_json(),
    });
    delivery.report(&speech, &beginning, more)
}

/// Writes captions in the format that the extension names, for words and marks of a text, and for sound of
/// `duration` seconds.
pub fn write_captions(
    path: &Path,
    words: &[TimedWord],
    marks: &[TimedMark],
    (text, duration): (&str, f64),
) -> orate::Result<()> {
    let captions = Captions::of(path).map(|format| format.write(words, marks, text, duration));
    Ok(write_output(path, captions.unwrap_or_default().as_bytes())?)
}

/// The text to speak.
fn text(args: &Args) -> anyhow::Result<String> {
    #[cfg(feature = "books")]
    if let Some(file) = &args.file
        && let Some(text) = book::text(file)?
    {
        return Ok(text);
    }
    #[cfg(not(feature = "books"))]
    if let Some(extension) = args.file.as_deref().and_then(Path::extension)
        && ["epub", "md", "markdown", "html", "htm", "xhtml"]
            .iter()
            .any(|e| extension.eq_ignore_ascii_case(e))
    {
        let problem = format!(".{} needs a build with the feature `books`", extension.display());
        return Err(UsageError(format!("--file: {problem}")).into());
    }
    input::read(&args.text, args.file.as_deref())
}

/// The warning about a tag in a text without markup.
pub fn spoken_tag(tag: &str) -> String {
    let is_pause = tag.to_ascii_lowercase().starts_with("[pause:");
    let what = if is_pause { "a pause" } else { "a tag" };
    format!("`{tag}` is spoken as words; --tags makes it {what}")
}

/// First characters of a text, white space collapsed.
fn beginning(text: &str) -> String {
    let beginning: String =
        text.split_whitespace().flat_map(|w| [w, " "]).flat_map(str::chars).take(60).collect();
    beginning.trim_end().to_owned()
}
