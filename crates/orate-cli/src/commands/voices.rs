//! `orate voices`: lists voices of a model; adds and removes kept voices made from recordings.

use crate::args::{EngineArgs, ModelArgs};
use crate::delivery::{clone_voice, note_transcript};
use crate::engine_report::note_warnings;
use crate::failure::{UsageError, with_flags};
use crate::own_options::{family_of, fits};
use crate::print;
use orate::{ClonedVoice, Engine, VoiceStore};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;

/// List the voices of a model, and keep voices made from recordings
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Use a voice by its name, or a mix of several: orate say \"Hello.\" --model DIR --voice F1:0.7+M2:0.3

Kept voices, for models that clone:
  orate voices add ada --model DIR --reference ada.wav --transcript \"What she says in it.\"
  orate say \"Hello.\" --model DIR --voice ada
  orate voices remove ada"
)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Make a voice from a recording and keep it
    Add(Box<AddArgs>),
    /// Delete a kept voice
    Remove {
        /// Its name
        name: String,
    },
}

/// Make a voice from a recording and keep it
#[derive(Debug, clap::Args)]
struct AddArgs {
    /// Name to keep it under: 1 to 48 letters, digits, `-` and `_`
    name: String,

    /// The recording: wav, flac, mp3, ogg, opus or m4a; `-` is standard input
    #[arg(long, value_name = "FILE")]
    reference: PathBuf,

    /// Transcript of the recording, word for word; the model then also copies its manner
    #[arg(long, value_name = "TEXT")]
    transcript: Option<String>,

    /// Replace a kept voice of this name
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    engine: EngineArgs,
}

/// Lists voices, or adds or removes one.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.action {
        None => list(args),
        Some(Action::Add(args)) => add(args),
        Some(Action::Remove { name }) => Ok(VoiceStore::user()?.remove(name)?),
    }
}

fn add(args: &AddArgs) -> anyhow::Result<()> {
    let store = VoiceStore::user()?;
    store.check(&args.name, args.force)?;
    let engine = args.engine.open()?;
    if engine.voices().iter().any(|own| own.name == args.name) {
        let problem = "the model has a voice of this name, which `--voice` would choose; take another name";
        return Err(UsageError(format!("{}: {problem}", args.name)).into());
    }
    let voice = clone_voice(&engine, &args.reference, args.transcript.as_deref())?;
    note_transcript(&engine, args.transcript.as_deref());
    let path = store.save(&args.name, &voice, args.force)?;
    note_warnings(&engine);
    print::note(&format!("kept `{}` in {}: {}", args.name, path.display(), fits(&voice)));
    Ok(())
}

fn list(args: &Args) -> anyhow::Result<()> {
    let engine = args.model.open_to_look()?;
    let voices = engine.voices();
    let kept = kept(&VoiceStore::user()?, args.model.model.as_ref().map(|_| &engine))?;
    if args.json {
        let voices: Vec<_> =
            voices.iter().map(|v| json!({ "name": v.name, "default": v.is_default })).collect();
        let kept = kept.iter().map(|(name, voice)| {
            let family = family_of(voice).map_or(&*voice.family, |family| family.name);
            json!({
                "name": name, "family": family, "fits": fits(voice),
                "transcript": voice.words.get("transcript"),
            })
        });
        let kept: Vec<_> = kept.collect();
        return print::json(&json!({ "model": engine.model_name(), "voices": voices, "kept": kept }));
    }
    if voices.is_empty() && kept.is_empty() {
        let problem = with_flags(engine.facts().without_voices);
        print::note(&format!("{} {problem}", engine.model_name()));
    }
    let own = |v: &orate::VoiceInfo| {
        let default = if v.is_default { " (default)" } else { "" };
        format!("{}{default}\n", print::visible(&v.name))
    };
    let own: String = voices.iter().map(own).collect();
    let kept: String = kept.iter().map(|(name, voice)| format!("{name} (kept; {})\n", fits(voice))).collect();
    print::out(&(own + &kept))
}

/// Kept voices: all, or those that fit a model. Unreadable ones are skipped with a note.
fn kept(store: &VoiceStore, model: Option<&Engine>) -> anyhow::Result<Vec<(String, Arc<ClonedVoice>)>> {
    let mut voices = vec![];
    for name in store.names()? {
        match store.load(&name) {
            Ok(voice) if model.is_none_or(|m| m.check_voice(&voice).is_ok()) => voices.push((name, voice)),
            Ok(_) => {}
            Err(e) => print::note(&format!("warning: {e}")),
        }
    }
    Ok(voices)
}
