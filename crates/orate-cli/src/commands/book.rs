//! `orate say --file book.epub`: speaks a book in parts that survive a kill, and joins them.
//!
//! Parts are units of a plan in a work folder beside the output (`orate-book`). Several processes with the
//! same command share the folder. The one that finds all parts finished joins them.

use crate::args::within;
use crate::audio_sink::{Format, Output};
use crate::commands::say;
use crate::engine_report::{engine_json, note_fallbacks, note_warnings, with};
use crate::failure::UsageError;
use crate::input;
use crate::interrupt::Interrupt;
use crate::outputs::{self, Input};
use crate::print;
use crate::progress::BookProgress;
use anyhow::Context;
use orate::{
    AudioFormat, Engine, Finish, Lexicon, Options, Script, Segment, Stream, TimedWord, Value as OptionValue,
};
use orate_book::{
    AssembleError, Assembled, Book, BookFormat, Claim, Container, Opened, Plan, State, Target, Unit,
    WorkFolder,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How a file is spoken as a book.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Books")]
pub struct BookArgs {
    /// Speak the file in parts, with chapters; a killed run goes on when repeated
    ///
    /// Files .epub, .md and .html are spoken so anyway, and text files if the output is .m4b, .mp3, .opus or
    /// a folder. Parts are kept beside the output until it is complete. Processes that run the same command
    /// at once share the parts, also with another --device.
    #[arg(long)]
    pub book: bool,

    /// List the chapters and what is left to speak, and speak nothing
    #[arg(long)]
    pub plan: bool,

    /// Discard parts that an earlier run has spoken
    #[arg(long)]
    pub restart: bool,

    /// Parts to speak at once, 1 to 64; they share batches on GPUs
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true,
        value_parser = within(1..=64_u8),
        hide_short_help = true
    )]
    pub jobs: u8,
}

/// Default output.
const DEFAULT_OUTPUT: &str = "speech.wav";

/// How often processes that wait for others look.
const PAUSE: Duration = Duration::from_millis(200);

/// Characters spoken per second, before anything is known about the voice.
const CHARS_PER_S: f64 = 15.0;

/// Whether the command line asks for a book.
pub fn is_book(args: &say::Args) -> bool {
    let BookArgs { book, plan, restart, .. } = args.book;
    let Some(file) = args.file.as_deref().filter(|file| file.as_os_str() != "-") else {
        return book || plan || restart;
    };
    let output = args.output.output.as_deref().unwrap_or(DEFAULT_OUTPUT.as_ref());
    if output.as_os_str() == "-" || args.output.play {
        return book || plan || restart;
    }
    let extension = output.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
    let has_chapters = outputs::is_folder(output)
        || matches!(extension.as_deref(), Some("m4b" | "m4a")) // these are for books alone
        || matches!(extension.as_deref(), Some("mp3" | "opus" | "ogg")) && others(args).is_empty();
    book || plan || restart || BookFormat::of(file) != BookFormat::Text || has_chapters
}

/// The text of a file that is not plain text, for output that is played at once; `None` for other files.
pub fn text(file: &Path) -> anyhow::Result<Option<String>> {
    if file.as_os_str() == "-" || BookFormat::of(file) == BookFormat::Text {
        return Ok(None);
    }
    let book = orate_book::read(file)?;
    let blocks = book.chapters.iter().flat_map(|chapter| &chapter.blocks);
    let texts: Vec<&str> = blocks.map(|block| block.text()).filter(|text| !text.is_empty()).collect();
    Ok(Some(texts.join("\n\n")))
}

/// Options that books do not have.
fn others(args: &say::Args) -> Vec<&'static str> {
    let all = [
        ("--captions with JSON", args.captions.as_deref().is_some_and(has_spans)),
        ("--plot", args.output.plot.is_some()),
        ("--stream", args.stream),
        ("--ssml", args.speech.ssml),
        ("--tags", args.speech.tags),
    ];
    all.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect()
}

/// Whether captions are of the kind that says where in the text each word is.
fn has_spans(captions: &Path) -> bool {
    captions.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"))
}

/// Speaks a book, or lists what is left to speak.
pub fn run(args: &say::Args) -> anyhow::Result<()> {
    let started = Instant::now();
    let Some(file) = args.file.as_deref().filter(|file| file.as_os_str() != "-") else {
        let problem = "--book, --plan, --restart: a book is a file; name it with --file";
        return Err(UsageError(problem.to_owned()).into());
    };
    if let Some(option) = others(args).first() {
        let problem = format!("{option}: books are spoken in parts, which have none of it; leave it out");
        return Err(UsageError(problem).into());
    }
    let target = target(args)?;
    check(args, file, &target)?;
    let book = orate_book::read(file)?;
    let plan = Plan::new(&book, args.speech.silence);
    let lexicon = lexicon(args)?;
    let engine = args.engine.open_silently()?;
    if !args.output.quiet {
        note_fallbacks(&engine);
    }
    let interrupt = Interrupt::new();
    let options = options(args, &engine, &book, &interrupt)?;
    let key = key(args, &engine, &options, (&book, &plan))?;
    let work = work_folder(&target.path);
    let done = match args.book.restart {
        true => vec![None; plan.units.len()],
        false => WorkFolder::look(&work, &plan, &key, engine.sample_rate())?,
    };
    if args.book.plan {
        return print_plan(args, (&book, &plan), &done, engine.sample_rate());
    }
    note_tags(args, file, &book);
    let speaker = Speaker { engine: &engine, options: &options, plan: &plan, lexicon: lexicon.as_ref() };
    let left = plan.units.iter().zip(&done).filter(|(_, done)| done.is_none());
    speaker.check(left.map(|(unit, _)| unit))?;
    let opened = WorkFolder::open(&work, &plan, &key, engine.sample_rate(), args.book.restart)?;
    let Opened::Work(mut folder) = opened else {
        return note_complete(args, &target, "was complete before", 0);
    };
    let before = folder.progress();
    let progress =
        BookProgress::new((&plan, before), engine.sample_rate(), args.output.quiet || args.output.json);
    let spoken = Mutex::new(Spoken::default());
    let speaking = Instant::now();
    let units = |spoken: &Mutex<Spoken>| spoken.lock().expect("workers do not panic").units;
    let shared =
        Shared { progress: &progress, spoken: &spoken, interrupt: &interrupt, stop: &AtomicBool::new(false) };
    let is_complete = std::thread::scope(|scope| {
        let workers = (0..args.book.jobs).map(|_| folder.another());
        let workers: Vec<_> =
            workers.map(|mut folder| scope.spawn(move || speaker.speak_all(&mut folder, shared))).collect();
        let results = workers.into_iter().map(|worker| worker.join().expect("workers do not panic"));
        // All end before the first error is returned.
        results.collect::<Vec<_>>().into_iter().collect::<anyhow::Result<Vec<bool>>>()
    });
    let is_complete = is_complete.inspect_err(|_| note_kept(args, &work));
    if !is_complete?.into_iter().all(|is_complete| is_complete) {
        drop(progress);
        return note_complete(args, &target, "was completed by another process", units(&spoken));
    }
    let speech_s = speaking.elapsed().as_secs_f64();
    let assembly = loop {
        match folder.try_assembly()? {
            _ if interrupt.cancel().is_cancelled() => return Err(orate::Error::Cancelled.into()),
            Some(assembly) if folder.is_live() => break Some(assembly),
            None if folder.is_live() => std::thread::sleep(PAUSE),
            _ => break None,
        }
    };
    let Some(assembly) = assembly else {
        drop(progress);
        return note_complete(args, &target, "was completed by another process", units(&spoken));
    };
    let cancel = interrupt.cancel();
    let joined =
        orate_book::assemble(&folder, (&book, &plan), &target, options_loudness(args), &mut |done| {
            progress.join(done);
            !cancel.is_cancelled()
        });
    let joined = joined.inspect_err(|_| note_kept(args, &work)).map_err(|e| match e {
        AssembleError::Cancelled => orate::Error::Cancelled.into(),
        e => anyhow::Error::from(e),
    })?;
    if let Some(captions) = &args.captions {
        write_captions(captions, &folder, &plan)?;
    }
    folder.remove(assembly)?;
    drop(progress);
    let spoken = spoken.into_inner().expect("workers do not panic");
    report(args, &engine, (&plan, &target), &joined, &spoken, (started, speech_s))
}

/// What this process has spoken.
#[derive(Default)]
struct Spoken {
    units: usize,
    samples: u64,
    warnings: Vec<String>,
}

/// What workers share.
#[derive(Clone, Copy)]
struct Shared<'a> {
    progress: &'a BookProgress,
    spoken: &'a Mutex<Spoken>,
    interrupt: &'a Interrupt,
    /// Set when a worker fails.
    stop: &'a AtomicBool,
}

/// Speaks units.
#[derive(Clone, Copy)]
struct Speaker<'a> {
    engine: &'a Engine,
    options: &'a Options,
    plan: &'a Plan,
    lexicon: Option<&'a Lexicon>,
}

impl Speaker<'_> {
    /// The stream of a unit. It depends on the text, the number of the unit and the options alone.
    fn stream(&self, unit: &Unit) -> anyhow::Result<Stream> {
        let mut script = Script::default();
        for paragraph in &unit.paragraphs {
            let mut of_paragraph = Script::plain(&paragraph.text);
            if let Some(lexicon) = self.lexicon {
                lexicon.apply(&mut of_paragraph);
            }
            let pause_after = paragraph.pause_after;
            script.segments.extend(of_paragraph.segments.into_iter().map(|s| Segment { pause_after, ..s }));
        }
        let options = Options { first_piece: unit.first_piece(), ..self.options.clone() };
        let stream = self.engine.stream_script(&script, &options, &self.engine.own_cast(&options));
        stream.map_err(anyhow::Error::from).with_context(|| self.place(unit))
    }

    /// As [`Self::stream`]; `None` if nothing of the unit is left without the characters that the voice does
    /// not know.
    fn stream_if_any(&self, unit: &Unit) -> anyhow::Result<Option<Stream>> {
        let skips = self.options.get("skip_unknown") == Some(&OptionValue::Switch(true));
        match self.stream(unit) {
            Err(e) if skips && is_empty_text(&e) => Ok(None),
            stream => stream.map(Some),
        }
    }

    /// Checks that units can be spoken, so that a wrong character is found before hours of work.
    fn check<'a>(&self, units: impl Iterator<Item = &'a Unit>) -> anyhow::Result<()> {
        let (mut silent, mut has_sound) = (None, false);
        for unit in units {
            match self.stream_if_any(unit)? {
                Some(_) => has_sound = true,
                None => silent = silent.or(Some(unit)),
            }
        }
        match silent.filter(|_| !has_sound) {
            Some(unit) => self.stream(unit).map(drop),
            None => Ok(()),
        }
    }

    /// Where a unit is in the book.
    fn place(&self, unit: &Unit) -> String {
        let chapter = self.plan.chapters.iter().find(|chapter| chapter.units.contains(&unit.index));
        let title = chapter.map_or("", |chapter| &chapter.title);
        let texts = unit.paragraphs.iter().flat_map(|p| [p.text.as_str(), " "]);
        let words: String = texts.flat_map(str::chars).take(40).collect();
        format!("chapter `{title}`, part {} that begins `{words}…`", unit.index + 1)
    }

    /// Speaks units until none is left; returns whether all are finished here. If not, another process has
    /// joined them already.
    fn speak_all(&self, folder: &mut WorkFolder, shared: Shared) -> anyhow::Result<bool> {
        let result = self.speak_next(folder, shared);
        if result.is_err() {
            shared.stop.store(true, Ordering::Relaxed);
        }
        result
    }

    fn speak_next(&self, folder: &mut WorkFolder, shared: Shared) -> anyhow::Result<bool> {
        loop {
            if shared.interrupt.cancel().is_cancelled() {
                return Err(orate::Error::Cancelled.into());
            }
            if shared.stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            let state = folder.claim()?;
            shared.progress.finished(folder.progress());
            match state {
                State::Claimed(claim) => self.speak(claim, shared)?,
                State::Busy => std::thread::sleep(PAUSE),
                State::Complete => return Ok(true),
                State::Gone => return Ok(false),
            }
        }
    }

    /// Completes a unit of which nothing can be said: its pause.
    fn keep_silent(&self, mut claim: Claim, shared: Shared) -> anyhow::Result<()> {
        let unit = claim.unit(self.plan);
        let pause_s = unit.paragraphs.last().map_or(0.0, |paragraph| paragraph.pause_after);
        let silence = vec![0.0; (pause_s * self.engine.sample_rate() as f32) as usize];
        claim.write(&silence)?;
        if self.options.word_times {
            claim.keep_notes(b"[]")?;
        }
        claim.finish()?;
        shared.progress.spoke(unit.index, silence.len() as u64);
        let mut spoken = shared.spoken.lock().expect("workers do not panic");
        spoken.units += 1;
        spoken.samples += silence.len() as u64;
        let warning = format!("{}: the voice knows no character of it, so it is left out", self.place(unit));
        spoken.warnings.push(warning);
        Ok(())
    }

    fn speak(&self, mut claim: Claim, shared: Shared) -> anyhow::Result<()> {
        let unit = claim.unit(self.plan);
        let Some(mut stream) = self.stream_if_any(unit)? else {
            return self.keep_silent(claim, shared);
        };
        let (mut samples, mut is_runaway, mut words) = (0, false, vec![]);
        while let Some(chunk) = stream.next() {
            let chunk = chunk.map_err(anyhow::Error::from).with_context(|| self.place(unit))?;
            claim.write(&chunk.samples)?;
            samples += chunk.samples.len() as u64;
            words.extend(chunk.words);
            is_runaway |= chunk.finish == Some(orate::FinishReason::Runaway);
            shared.progress.speaking(unit.index, unit.chars.saturating_sub(stream.remaining_chars()));
            if shared.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        // A stream that is stopped may end without an error.
        if shared.interrupt.cancel().is_cancelled() {
            return Err(orate::Error::Cancelled.into());
        }
        if self.options.word_times {
            claim.keep_notes(&serde_json::to_vec(&words)?)?;
        }
        claim.finish()?;
        shared.progress.spoke(unit.index, samples);
        let mut spoken = shared.spoken.lock().expect("workers do not panic");
        spoken.units += 1;
        spoken.samples += samples;
        for warning in stream.warnings() {
            if !spoken.warnings.contains(warning) {
                spoken.warnings.push(warning.clone());
            }
        }
        if is_runaway {
            let place = self.place(unit);
            spoken
                .warnings
                .push(format!("{place}: the speech ran away and was cut; another --seed may do better"));
        }
        Ok(())
    }
}

/// Whether a text held nothing to say.
fn is_empty_text(e: &anyhow::Error) -> bool {
    let Some(orate::Error::Model(e)) = e.downcast_ref() else { return false };
    matches!(**e, orate::ModelError::Text(orate::TextError::Empty))
}

/// Where the sound goes.
fn target(args: &say::Args) -> anyhow::Result<Target> {
    let path = args.output.output.clone().unwrap_or_else(|| DEFAULT_OUTPUT.into());
    let usage = |problem: String| Err(UsageError(problem).into());
    if path.as_os_str() == "-" {
        return usage("-o -: a book is spoken in parts, which are joined in a file; name one".to_owned());
    }
    if args.output.play {
        let problem = "a book is spoken in parts, which are joined in a file; name one with -o";
        return usage(format!("--play: {problem}, or play without --book, --plan and --restart"));
    }
    if outputs::is_folder(&path) {
        let usual = if AudioFormat::Mp3.is_available() { Format::Mp3 } else { Format::Flac };
        let format = args.output.format.unwrap_or(usual);
        // Names an unavailable format, with those that there are.
        let chosen = Output::choose("chapter.wav".as_ref(), Some(format))?;
        let container = Container::Audio(chosen.format.of_file());
        return Ok(Target { path, by_chapter: true, container });
    }
    let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
    let container = match (extension.as_deref(), args.output.format) {
        (Some("m4b" | "m4a"), None | Some(Format::Aac)) => Container::M4b,
        (Some("m4b" | "m4a"), Some(format)) => {
            let (path, name) = (path.display(), format.name());
            return usage(format!(
                "--format {name}: {path} holds AAC; leave the option out, or name another file"
            ));
        }
        _ => Container::Audio(Output::choose(&path, args.output.format)?.format.of_file()),
    };
    if !container.is_available() {
        let path = path.display();
        return usage(format!(
            "-o {path}: this build of Orate lacks AAC; name a file that ends in .mp3 or .opus, which have chapters \
             too, or build with the feature `aac`"
        ));
    }
    Ok(Target { path, by_chapter: false, container })
}

/// Checks that the output can be written and replaces no input.
fn check(args: &say::Args, file: &Path, target: &Target) -> anyhow::Result<()> {
    let mut inputs: Vec<Input> = vec![("the book", file.to_owned())];
    inputs.extend(args.speech.lexicon.iter().map(|path| ("the lexicon", path.clone())));
    inputs.extend(args.output.inputs(&args.engine, &args.voice));
    args.captions.iter().try_for_each(|path| outputs::check("--captions", path, &inputs))?;
    if !target.by_chapter {
        return outputs::check("-o", &target.path, &inputs);
    }
    if args.captions.is_some() {
        let problem = "--captions: they are of a whole book; name a file as the output, not a folder";
        return Err(UsageError(problem.to_owned()).into());
    }
    // A file with a slash after its name does not exist.
    let path = target.path.components().as_path();
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let problem = match () {
        () if path.exists() && !path.is_dir() => "this is a file; name a folder for the chapters",
        () if !path.exists() && !parent.is_dir() => "its folder does not exist; make it first",
        () => return Ok(()),
    };
    Err(UsageError(format!("-o {}: {problem}", target.path.display())).into())
}

/// Warns about a tag in a plain text, where a writer may have meant it as one.
fn note_tags(args: &say::Args, file: &Path, book: &Book) {
    let mut blocks = book.chapters.iter().flat_map(|chapter| &chapter.blocks);
    let is_text = !args.output.quiet && BookFormat::of(file) == BookFormat::Text;
    if is_text && let Some(tag) = blocks.find_map(|block| Script::first_tag(block.text())) {
        print::note(&format!("warning: {}", say::spoken_tag(tag)));
    }
}

/// Folder for the parts of an output.
fn work_folder(output: &Path) -> PathBuf {
    let name = output.file_name().unwrap_or("book".as_ref()).to_string_lossy().into_owned();
    output.with_file_name(name + ".parts")
}

fn lexicon(args: &say::Args) -> anyhow::Result<Option<Lexicon>> {
    let Some(path) = &args.speech.lexicon else { return Ok(None) };
    let list = input::read(&[], Some(path))?;
    Ok(Some(Lexicon::parse(list.as_bytes()).with_context(|| path.display().to_string())?))
}

/// Loudness of each chapter; none with `--raw`.
fn options_loudness(args: &say::Args) -> Option<orate::Loudness> {
    if args.speech.raw { None } else { Finish::default().loudness }
}

/// How all units are spoken.
fn options(args: &say::Args, engine: &Engine, book: &Book, interrupt: &Interrupt) -> anyhow::Result<Options> {
    let say::SpeechArgs { lang, transcript, silence, own, raw, .. } = &args.speech;
    let options = args.voice.options(engine, transcript.as_deref(), interrupt)?;
    let mut options = own.set(Options { language: lang.clone(), silence: *silence, ..options });
    // Units are leveled when they are joined, by what is known then.
    options.finish = if *raw { Finish::NONE } else { Finish { loudness: None, ..Finish::default() } };
    options.whole = true;
    options.word_times = args.captions.is_some();
    engine.check(&options)?;
    if engine.voices().is_empty() && options.cloned.is_none() && engine.facts().can_speak {
        let problem = "a voice that is only described would differ from part to part; record some seconds of it \
                       (`orate say … -o voice.wav`) and read the book with --reference voice.wav and a model that clones";
        return Err(UsageError(format!("--file: {problem}")).into());
    }
    if let (None, Some(language)) = (lang, &book.language) {
        let asked = Options { language: Some(language.clone()), ..options.clone() };
        match engine.stream("1", &asked) {
            Ok(_) => options = asked,
            // Another option is wrong, which the texts of the book will report.
            Err(_) if args.output.quiet || engine.stream("1", &options).is_err() => {}
            Err(_) => print::note(&format!(
                "warning: the book says that its language is `{}`, which this model does not know; --lang sets another",
                print::shorten(language)
            )),
        }
    }
    Ok(options)
}

/// What the sound depends on besides the device: parts of runs that differ in it do not fit together.
fn key(
    args: &say::Args,
    engine: &Engine,
    options: &Options,
    (book, plan): (&Book, &Plan),
) -> anyhow::Result<Value> {
    let voice = match (&options.cloned, &options.voice) {
        (Some(cloned), _) => digest(&cloned.to_bytes().map_err(orate::Error::from)?),
        (None, Some(name)) if Path::new(name).is_file() => digest(&fs::read(name).unwrap_or_default()),
        (None, name) => name.clone().unwrap_or_default(),
    };
    let lexicon = args.speech.lexicon.as_deref().map(fs::read).transpose().unwrap_or_default();
    let precision = &args.engine.place.precision;
    Ok(json!({
        "version of Orate": env!("CARGO_PKG_VERSION"),
        "text": plan.digest(book),
        "model": format!("{} {}", engine.family_name(), fingerprint(engine.model_name())),
        "voice": voice,
        "seed": options.seed,
        "language": options.language,
        "silence": options.silence,
        "lexicon": lexicon.map(|list| digest(&list)),
        "captions": args.captions.is_some(),
        "finish": if args.speech.raw { "raw" } else { "usual" },
        "precision": format!("{:?}", precision.choice()),
        "kv": precision.kv.to_string(),
        "options": args.speech.own.as_json(),
    }))
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Identity of a model's files: names, sizes, and some of their bytes, as models have gigabytes.
fn fingerprint(model: &str) -> String {
    const SAMPLE: u64 = 1 << 14;
    const SAMPLES: u64 = 64;
    let mut files = vec![];
    let mut folders = vec![PathBuf::from(model)];
    while let Some(folder) = folders.pop() {
        match fs::read_dir(&folder) {
            Ok(entries) => {
                for entry in entries.flatten() {
                    // Links to folders may lead in a circle.
                    match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                        true => folders.push(entry.path()),
                        false => files.push(entry.path()),
                    }
                }
            }
            Err(_) => files.push(folder),
        }
    }
    files.retain(|path| outputs::is_model_file(path));
    files.sort();
    let mut hash = Sha256::new();
    for path in files {
        hash.update(path.strip_prefix(model).unwrap_or(&path).to_string_lossy().as_bytes());
        let Ok(mut file) = File::open(&path) else { continue };
        let size = file.metadata().map_or(0, |metadata| metadata.len());
        hash.update(size.to_le_bytes());
        let step = (size / SAMPLES).max(SAMPLE);
        for start in (0..size).step_by(step as usize) {
            let mut sample = vec![];
            let _ = file
                .seek(SeekFrom::Start(start))
                .and_then(|_| (&mut file).take(SAMPLE).read_to_end(&mut sample));
            hash.update(&sample);
        }
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Lists chapters, and how many of their parts are left.
fn print_plan(
    args: &say::Args,
    (book, plan): (&Book, &Plan),
    done: &[Option<u64>],
    sample_rate: u32,
) -> anyhow::Result<()> {
    let finished =
        || done.iter().zip(&plan.units).filter_map(|(samples, unit)| Some(((*samples)?, unit.chars)));
    let (samples, chars) = finished().fold((0, 0), |(s, c), (samples, chars)| (s + samples, c + chars));
    let seconds = samples as f64 / f64::from(sample_rate);
    let chars_per_s = if chars > 0 { chars as f64 / seconds.max(1.0) } else { CHARS_PER_S };
    let left = |units: std::ops::Range<usize>| units.filter(|unit| done[*unit].is_none()).count();
    if args.output.json {
        let chapters = plan.chapters.iter().map(|chapter| {
            json!({
                "title": chapter.title,
                "characters": chapter.chars,
                "parts": chapter.units.len(),
                "parts_left": left(chapter.units.clone()),
            })
        });
        return print::json(&json!({
            "title": book.title,
            "authors": book.authors,
            "language": book.language,
            "characters": plan.chars(),
            "characters_left": plan.chars() - chars,
            "parts": plan.units.len(),
            "parts_left": left(0..plan.units.len()),
            "expected_s": (plan.chars() as f64 / chars_per_s).round(),
            "spoken_s": seconds,
            "chapters": chapters.collect::<Vec<_>>(),
        }));
    }
    let row = |name: [&str; 2], chars: usize, units: std::ops::Range<usize>| {
        let [number, title] = name.map(str::to_owned);
        let time = crate::progress::clock(chars as f64 / chars_per_s);
        vec![number, title, chars.to_string(), time, units.len().to_string(), left(units).to_string()]
    };
    let mut rows = vec![["", "chapter", "characters", "about", "parts", "left"].map(str::to_owned).to_vec()];
    for (i, chapter) in plan.chapters.iter().enumerate() {
        rows.push(row([&(i + 1).to_string(), &chapter.title], chapter.chars, chapter.units.clone()));
    }
    rows.push(row(["", "all"], plan.chars(), 0..plan.units.len()));
    let author =
        if book.authors.is_empty() { String::new() } else { format!(", {}", book.authors.join(", ")) };
    let title =
        book.title.iter().map(|title| print::visible(&format!("{title}{author}")).into_owned() + "\n\n");
    print::out(&(title.collect::<String>() + &print::table(&rows, &[1])))
}

/// Writes the captions of a book, from the words of all units.
fn write_captions(path: &Path, folder: &WorkFolder, plan: &Plan) -> anyhow::Result<()> {
    let rate = f64::from(folder.sample_rate());
    let (mut all, mut start) = (vec![], 0);
    for unit in 0..plan.units.len() {
        let words: Vec<TimedWord> = serde_json::from_slice(&folder.notes(unit)?)
            .with_context(|| format!("{}: part {} is damaged", folder.path().display(), unit + 1))?;
        let offset = start as f64 / rate;
        all.extend(words.into_iter().map(|word| TimedWord {
            start: word.start + offset,
            end: word.end + offset,
            ..word
        }));
        start += folder.length(unit).unwrap_or_default();
    }
    Ok(say::write_captions(path, &all, &[], ("", start as f64 / rate))?)
}

/// Says that another run has completed the output.
fn note_complete(args: &say::Args, target: &Target, what: &str, spoken: usize) -> anyhow::Result<()> {
    let path = target.path.display().to_string();
    if args.output.json {
        return print::json(&json!({ "output": path, "complete": true, "parts_spoken": spoken }));
    }
    if !args.output.quiet {
        print::note(&format!("{path} {what}"));
    }
    Ok(())
}

/// Says that finished parts stay.
fn note_kept(args: &say::Args, work: &Path) {
    if !args.output.quiet && work.is_dir() {
        let work = work.display();
        print::note(&format!("finished parts stay in {work}; the same command goes on from there"));
    }
}

/// Prints the result.
fn report(
    args: &say::Args,
    engine: &Engine,
    (plan, target): (&Plan, &Target),
    joined: &Assembled,
    spoken: &Spoken,
    (started, speech_s): (Instant, f64),
) -> anyhow::Result<()> {
    let seconds_here = spoken.samples as f64 / f64::from(engine.sample_rate());
    let output = target.path.display().to_string();
    if args.output.json {
        let mut warnings = engine.warnings();
        warnings.extend(spoken.warnings.iter().cloned());
        let report = json!({
            "duration_s": joined.seconds,
            "wall_s": started.elapsed().as_secs_f64(),
            "speech_s": speech_s,
            "chapters": plan.chapters.len(),
            "characters": plan.chars(),
            "parts": plan.units.len(),
            "parts_spoken": spoken.units,
            "spoken_s": seconds_here,
            "sample_rate": engine.sample_rate(),
            "seed": args.voice.seed,
            "options": args.speech.own.as_json(),
            "output": output,
            "files": joined.files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>(),
            "format": target.container.extension(),
            "complete": true,
            "fallbacks": engine.fallbacks(),
        });
        return print::json(&with(with(engine_json(engine), report), json!({ "warnings": warnings })));
    }
    if args.output.quiet {
        return Ok(());
    }
    note_warnings(engine);
    spoken.warnings.iter().for_each(|warning| print::note(&format!("warning: {warning}")));
    let chapters = match plan.chapters.len() {
        1 => "one chapter".to_owned(),
        n => format!("{n} chapters"),
    };
    let time = crate::progress::clock(joined.seconds);
    let speed = match spoken.units {
        0 => "all parts were there".to_owned(),
        n if n < plan.units.len() => format!("{n} of {} parts spoken now", plan.units.len()),
        _ => format!("{:.1} times as fast as it plays", seconds_here / speech_s),
    };
    print::note(&format!("wrote {output}: {chapters}, {time} of audio, {speed}"));
    Ok(())
}
