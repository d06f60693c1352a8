//! `orate models`: lists known models.

use crate::print;
use orate_hub::{Cache, Found, KNOWN};
use serde_json::json;

/// List known models, and which of them have been pulled
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orate models
  orate pull supertonic-3
  orate say \"Hello.\" --model supertonic-3

Sizes with `~` are approximate. The license in a repository decides.")]
pub struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Looks into the cache and prints the table.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let cache = Cache::from_env()?;
    let found: Vec<_> = KNOWN.iter().map(|known| (known, known.find(&cache, &known.repo()))).collect();
    if args.json {
        let models: Vec<_> = found
            .iter()
            .map(|(known, found)| {
                let (state, path, bytes) = match found {
                    Found::Whole { path, bytes } => {
                        ("pulled", Some(path.display().to_string()), Some(*bytes))
                    }
                    Found::Part => ("partial", None, None),
                    Found::Nothing => ("missing", None, None),
                };
                json!({
                    "name": known.name, "repository": known.id, "family": known.family,
                    "about": known.about, "license": known.license, "bytes": bytes.unwrap_or(known.bytes),
                    "bytes_are_exact": bytes.is_some(), "state": state, "path": path,
                })
            })
            .collect();
        return print::json(&json!({ "cache": cache.root().display().to_string(), "models": models }));
    }
    let mut rows = vec![["name", "pulled", "size", "license", "family", "about"].map(str::to_owned).to_vec()];
    rows.extend(found.iter().map(|(known, found)| {
        let (pulled, size) = match found {
            Found::Whole { bytes, .. } => ("yes", print::bytes(*bytes)),
            Found::Part => ("part", format!("~{}", print::bytes(known.bytes))),
            Found::Nothing => ("no", format!("~{}", print::bytes(known.bytes))),
        };
        [known.name, pulled, &size, known.license, known.family, known.about].map(str::to_owned).to_vec()
    }));
    print::out(&print::table(&rows, &[1, 3, 4, 5]))?;
    print::note(&format!("cache: {}", cache.root().display()));
    Ok(())
}
