//! `orate voices`: the voices of a model.

use crate::{args::EngineArgs, print};
use serde_json::json;

/// Of which model.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Use a voice by its name, or a mix of several: orate say \"Hello.\" --model DIR --voice F1:0.7+M2:0.3")]
pub struct Args {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Prints the list.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let engine = args.engine.open()?;
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
