//! What commands share that write sound: where it goes, in whose voice, and the report.

use crate::args::{EngineArgs, within};
use crate::audio_sink::{Format, Output};
use crate::engine_report::{engine_json, note_fallbacks, note_packing, note_warnings, with};
use crate::failure::UsageError;
use crate::input;
use crate::interrupt::Interrupt;
use crate::outputs::{self, Input};
use crate::own_options::{family_of, fits};
use crate::print;
use crate::progress::Progress;
use anyhow::Context;
use orate::{ClonedVoice, Engine, Options, Stream, TimedMark, TimedWord, VoiceStore};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Default output file.
const DEFAULT_OUTPUT: &str = "speech.wav";

/// Where sound and reports go.
#[derive(Debug, clap::Args)]
pub struct OutputArgs {
    /// Where to write: .wav, .flac, .mp3, .opus, .ogg, .aac, `-` (standard output) [default: speech.wav]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Play the sound while it is made, in place of writing it
    ///
    /// With the first of paplay, aplay, ffplay, mpv and play (of SoX) that is installed; on macOS and Windows
    /// also with what the system has, which plays when all is made. ORATE_PLAYER names another command, which
    /// gets WAV on its standard input.
    #[arg(long, conflicts_with_all = ["output", "format"])]
    pub play: bool,

    /// Sample format [default: from the extension of the output]
    #[arg(long, value_name = "FORMAT", hide_short_help = true)]
    pub format: Option<Format>,

    /// Also draw waveform and mel spectrogram
    #[arg(long, value_name = "FILE.png", value_parser = picture_file, hide_short_help = true)]
    pub plot: Option<PathBuf>,

    /// Print one JSON object about the result
    ///
    /// It goes to standard error if audio goes to standard output.
    #[arg(long)]
    pub json: bool,

    /// Print nothing but errors
    #[arg(long, short)]
    pub quiet: bool,
}

/// A file of a picture, by its extension.
fn picture_file(path: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    match path.extension().is_some_and(|e| e.eq_ignore_ascii_case("png")) {
        true => Ok(path),
        false => Err("name a file that ends in .png".to_owned()),
    }
}

/// In whose voice.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Speech")]
pub struct VoiceArgs {
    /// Voice of the model, or a kept voice (`orate voices` lists them)
    ///
    /// Models with voice files also take a file (.json), or a mix such as F1:0.7+M2:0.3. Models that clone
    /// take kept voices (`orate voices add`) and their files (.safetensors).
    #[arg(long, short, value_name = "VOICE")]
    pub voice: Option<String>,

    /// Clone the voice of this recording, in models that clone: wav, flac, mp3, ogg, opus, m4a
    ///
    /// `-` reads it from standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "voice")]
    pub reference: Option<PathBuf>,

    /// Random seed; another seed gives another reading
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true,
        value_parser = within(0..=u64::MAX)
    )]
    pub seed: u64,
}

impl VoiceArgs {
    /// Checks that not both the recording of a voice and `other` are standard input.
    pub fn check_input(&self, other: &str, is_standard: bool) -> anyhow::Result<()> {
        if is_standard && self.reference.as_deref().is_some_and(|path| path.as_os_str() == "-") {
            let problem = format!("{other} is read from standard input, too; name a file for one of them");
            return Err(UsageError(format!("--reference -: {problem}")).into());
        }
        Ok(())
    }

    /// Options with this voice and seed.
    pub fn options(
        &self,
        engine: &Engine,
        transcript: Option<&str>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Options> {
        let mut options = Options { seed: self.seed, cancel: Some(interrupt.cancel()), ..Options::default() };
        if let Some(recording) = &self.reference {
            options.cloned = Some(clone_voice(engine, recording, transcript)?);
            note_transcript(engine, transcript);
        } else if let Some(name) = &self.voice {
            options = with_voice(engine, options, name)?;
        }
        Ok(options)
    }
}

/// The voice of a recording. `-` is standard input.
pub fn clone_voice(
    engine: &Engine,
    recording: &Path,
    transcript: Option<&str>,
) -> anyhow::Result<Arc<ClonedVoice>> {
    Ok(match recording.as_os_str() == "-" {
        true => engine.clone_voice_from_reader("standard input", input::recording()?, transcript)?,
        false => engine.clone_voice(recording, transcript)?,
    })
}

/// Warns where a transcript has no effect.
pub fn note_transcript(engine: &Engine, transcript: Option<&str>) {
    if transcript.is_some() && !engine.reads_transcripts() {
        let family = engine.family_name();
        print::note(&format!("warning: --transcript has no effect, {family} models take the voice alone"));
    }
}

/// Options with a voice of the model, or a kept one.
pub fn with_voice(engine: &Engine, options: Options, name: &str) -> anyhow::Result<Options> {
    let is_own = engine.voices().iter().any(|voice| voice.name == name);
    if !is_own
        && !engine.can_clone()
        && let Ok(kept) = VoiceStore::user().and_then(|store| store.load(name))
    {
        let whom =
            family_of(&kept).map_or_else(|| fits(&kept), |family| format!("for {} models", family.name));
        let family = engine.family_name();
        let own = engine.voices().iter().map(|v| &*v.name).collect::<Vec<_>>().join(", ");
        let problem = format!("`{name}` is a kept voice {whom}, and this is a {family} model");
        return Err(UsageError(format!("{problem}, which has: {own}")).into());
    }
    Ok(engine.with_voice(options, name)?)
}

impl OutputArgs {
    /// Returns the output if it and `others`, which are options with their files, can be written and replace
    /// none of `inputs`, model and voices.
    pub fn check(
        &self,
        mut inputs: Vec<Input>,
        (engine, voice): (&EngineArgs, &VoiceArgs),
        others: &[(&str, &Path)],
    ) -> anyhow::Result<Output> {
        let output = match self.play {
            true => Output::played()?,
            false => Output::choose(self.output.as_deref().unwrap_or(DEFAULT_OUTPUT.as_ref()), self.format)?,
        };
        if let (Some(sound), Some(picture)) = (&output.path, &self.plot)
            && outputs::is_same_place(sound, picture)
        {
            let problem = "the sound is written there; name another file, such as speech.png";
            return Err(UsageError(format!("--plot {}: {problem}", picture.display())).into());
        }
        inputs.extend(self.inputs(engine, voice));
        output.path.iter().try_for_each(|path| outputs::check("-o", path, &inputs))?;
        self.plot.iter().try_for_each(|path| outputs::check("--plot", path, &inputs))?;
        others.iter().try_for_each(|(option, path)| outputs::check(option, path, &inputs))?;
        Ok(output)
    }
}

impl OutputArgs {
    /// Files of model and voices, which no output may replace.
    pub fn inputs(&self, engine: &EngineArgs, voice: &VoiceArgs) -> Vec<Input> {
        let mut inputs = engine.inputs();
        inputs.extend(voice.reference.iter().map(|path| ("the recording", path.clone())));
        // Each part of a mix may be a file with a weight after it.
        for part in voice.voice.iter().flat_map(|voice| voice.split('+')) {
            let file = part.rsplit_once(':').map_or(part, |(file, _)| file);
            inputs.extend([part, file].map(|file| ("the voice", PathBuf::from(file))));
        }
        inputs
    }
}

/// An opened model, and where its sound goes.
pub struct Delivery<'a> {
    args: &'a OutputArgs,
    voice: &'a VoiceArgs,
    output: Output,
    pub engine: Engine,
    started: Instant,
    load_ms: f64,
}

/// Sound that was written.
pub struct Speech {
    pieces: usize,
    pub characters: usize,
    /// Seconds of audio.
    pub duration: f64,
    /// Computing time in seconds.
    seconds: f64,
    first_audio_ms: f64,
    counters: orate::Counters,
    /// The worst of all pieces.
    pub finish: Option<orate::FinishReason>,
    pub attempts: usize,
    pub prefix_rows: usize,
    warnings: Vec<String>,
    /// Samples to plot; empty without `--plot`.
    to_plot: Vec<f32>,
    /// Words with times, if the options ask for them.
    pub words: Vec<TimedWord>,
    /// Marks of SSML.
    pub marks: Vec<TimedMark>,
}

impl<'a> Delivery<'a> {
    /// Opens the model.
    pub fn open(
        (args, engine, voice): (&'a OutputArgs, &EngineArgs, &'a VoiceArgs),
        output: Output,
        started: Instant,
    ) -> anyhow::Result<Delivery<'a>> {
        let opening = Instant::now();
        let engine = engine.open_silently()?;
        let delivery = Delivery { args, voice, output, engine, started, load_ms: ms(opening) };
        if !delivery.object_stands_alone() {
            note_fallbacks(&delivery.engine);
        }
        if !args.quiet && !args.json {
            note_packing(&delivery.engine);
        }
        Ok(delivery)
    }

    /// Whether sound is heard while it is made.
    pub fn is_heard(&self) -> bool {
        self.output.is_heard()
    }

    /// Whether the JSON object goes to standard error because audio goes to standard output. Nothing else is
    /// printed there, so that programs can parse it; the object contains all notes.
    fn object_stands_alone(&self) -> bool {
        self.args.json && self.output.is_standard()
    }

    /// Writes all audio of a stream that was begun at `speaking`. Warnings about the command line are noted
    /// with those of the stream.
    pub fn write(
        &self,
        mut stream: Stream,
        warnings: &[String],
        interrupt: &Interrupt,
        speaking: Instant,
    ) -> anyhow::Result<Speech> {
        let Delivery { args, output, engine, .. } = self;
        let notes_warnings = !args.quiet && !self.object_stands_alone();
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
            warnings: warnings.iter().chain(stream.warnings()).map(|w| warn(w)).collect(),
            to_plot: vec![],
            words: vec![],
            marks: vec![],
        };
        let mut sink = output.open(engine.sample_rate())?;
        let is_file = output.path.is_some();
        interrupt.remove_at_once(sink.temporary_path());
        let progress = Progress::new(speech.characters, speech.pieces, args.quiet || args.json);
        let mut samples = 0;
        while let Some(chunk) = stream.next() {
            let chunk = match chunk {
                Ok(chunk) => chunk,
                Err(e) => {
                    sink.leave(|| interrupt.cancel().is_cancelled());
                    return Err(e.into());
                }
            };
            match sink.write(&chunk.samples) {
                Err(_) if interrupt.cancel().is_cancelled() => return Err(orate::Error::Cancelled.into()),
                written => written?,
            }
            if samples == 0 {
                speech.first_audio_ms = ms(speaking);
            }
            samples += chunk.samples.len() as u64;
            speech.duration = samples as f64 / f64::from(engine.sample_rate());
            speech.counters += chunk.counters;
            speech.finish = speech.finish.max(chunk.finish);
            speech.attempts = speech.attempts.max(chunk.attempts);
            speech.prefix_rows += chunk.prefix_rows;
            speech.words.extend(chunk.words);
            speech.marks.extend(chunk.marks);
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
        let cancel = interrupt.cancel();
        if cancel.is_cancelled() {
            return Err(orate::Error::Cancelled.into());
        }
        // The time until a player, or a reader of the pipe, is done is not that of the speech.
        speech.seconds = speaking.elapsed().as_secs_f64();
        let finished = sink.finish(|| cancel.is_cancelled());
        // Ctrl-C ends a player, too.
        if cancel.is_cancelled() && !is_file {
            return Err(orate::Error::Cancelled.into());
        }
        finished?;
        Ok(speech)
    }

    /// Draws the picture that `--plot` asks for, and prints the result in the requested form; `more` are
    /// facts of the command.
    pub fn report(&self, speech: &Speech, title: &str, more: Value) -> anyhow::Result<()> {
        let Delivery { args, output, engine, .. } = self;
        if let Some(path) = &args.plot {
            let title = format!("{title} | {}, seed {}", engine.model_name(), self.voice.seed);
            orate::plot_png(&speech.to_plot, engine.sample_rate(), &title, path)
                .with_context(|| format!("{} is complete, but the picture is not", output.name()))?;
        }
        let Speech { duration, seconds, .. } = *speech;
        if args.json {
            let default_voice = || engine.voices().iter().find(|v| v.is_default).map(|v| v.name.clone());
            let report = json!({
                "duration_s": duration,
                "wall_s": self.started.elapsed().as_secs_f64(),
                "speech_s": seconds,
                "rtf": seconds / duration,
                "first_audio_ms": speech.first_audio_ms,
                "load_ms": self.load_ms,
                "pieces": speech.pieces,
                "plans": engine.plans_made(),
                "submissions": speech.counters.submissions,
                "read_backs": speech.counters.read_backs,
                "bytes_up": speech.counters.bytes_up,
                "bytes_down": speech.counters.bytes_down,
                "device_allocations": speech.counters.allocations,
                "sample_rate": engine.sample_rate(),
                "seed": self.voice.seed,
                "voice": self.voice.voice.clone().or_else(default_voice),
                "fallbacks": engine.fallbacks(),
                "warnings": speech.warnings,
                "kv": engine.kv().map(orate::CacheFormat::name),
                "output": output.name(),
                "format": output.format.name(),
                "plot": args.plot.as_ref().map(|p| p.display().to_string()),
            });
            // The warnings of the engine are already in the speech report.
            let report = with(with(engine_json(engine), report), more);
            if !self.object_stands_alone() {
                return print::json(&report);
            }
            print::note(&print::json_text(&report));
        } else if !args.quiet && (args.output.is_none() || std::io::stderr().is_terminal()) {
            let wrote = match output.is_standard() {
                true => String::new(),
                false if output.player.is_some() => format!("played with {}: ", output.name()),
                false => format!("wrote {}: ", output.name()),
            };
            let faster = duration / seconds;
            print::note(&format!(
                "{wrote}{duration:.2} s of audio in {seconds:.2} s, {faster:.1} times as fast as it plays"
            ));
        }
        Ok(())
    }
}

/// Milliseconds since `since`.
fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
