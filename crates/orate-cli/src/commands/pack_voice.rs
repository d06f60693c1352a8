//! `orate pack-voice`: a voice folder becomes one file.

use crate::{outputs, print};
use anyhow::Context;
use orate_weights::voice_pack;
use std::path::PathBuf;

/// From where to where.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The folder holds model.safetensors, tts.json, unicode_indexer.json, and voice.json or \
voice_styles/*.json. Matrices are rounded to 8 bits; the signal-to-noise ratio printed is that of the \
tensor that suffered most.

Example:
  orate pack-voice voices/ada -o ada.gguf && orate say \"Hello.\" --model ada.gguf")]
pub struct Args {
    /// The voice folder
    pub folder: PathBuf,
    /// The file to write
    #[arg(long, short, value_name = "FILE.gguf")]
    pub output: PathBuf,
}

/// Packs, then opens the result as a model, so that a folder that cannot speak is found now.
pub fn run(args: &Args) -> anyhow::Result<()> {
    outputs::check("-o", &args.output, &[("the voice", args.folder.clone())])?;
    let report = voice_pack::pack_voice(&args.folder, &args.output)
        .map_err(orate::Error::from)
        .with_context(|| format!("{}: cannot pack this voice folder", args.folder.display()))?;
    let output = args.output.display();
    let lossless = if report.worst().is_none() { "nothing was rounded\n" } else { "" };
    print::out(&format!("{report}\n{lossless}"))?;
    orate::Engine::open(&args.output)
        .with_context(|| format!("{output} was written, but it does not work as a voice"))?;
    print::note(&format!("wrote {output}"));
    Ok(())
}
