//! `orate voices`: the voices of a model.

use crate::{args::open_to_look, print};
use serde_json::json;
use std::path::PathBuf;

/// Of which model.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Use a voice by its name, or a mix of several: orate say \"Hello.\" --model DIR --voice F1:0.7+M2:0.3")]
pub struct Args {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Model folder or packed voice (.gguf); without it, the built-in English voice
    #[arg(long, short, value_name = "PATH")]
    model: Option<PathBuf>,
}

/// Prints the list.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let engine = open_to_look(args.model.as_deref())?;
    let voices = engine.voices();
    if args.json {
        let voices: Vec<_> =
            voices.iter().map(|v| json!({ "name": v.name, "default": v.is_default })).collect();
        return print::json(&json!({ "model": engine.model_name(), "voices": voices }));
    }
    if voices.is_empty() {
        print::note(&format!(
            "{} has no voices; name a voice file with --voice FILE.json when speaking",
            engine.model_name()
        ));
    }
    let line = |v: &orate::VoiceInfo| format!("{}{}\n", v.name, if v.is_default { " (default)" } else { "" });
    print::out(&voices.iter().map(line).collect::<String>())
}
