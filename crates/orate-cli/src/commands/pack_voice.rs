//! `orate pack-voice`: packs a voice folder into one file.

use crate::{outputs, print};
use anyhow::Context;
use orate_tools::pack;
use std::path::PathBuf;

/// Pack a voice folder into one small file
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  orate pack-voice voices/ada -o ada.gguf && orate say \"Hello.\" --model ada.gguf

The folder holds model.safetensors, tts.json, unicode_indexer.json, and voice.json or voice_styles/*.json. \
Matrices are rounded to q8_0; the signal-to-noise ratio printed is that of the worst tensor.")]
pub struct Args {
    /// The voice folder
    pub folder: PathBuf,
    /// The file to write
    #[arg(long, short, value_name = "FILE.gguf")]
    pub output: PathBuf,
}

/// Packs, then opens the result as a model, so that a folder that cannot speak fails here.
pub fn run(args: &Args) -> anyhow::Result<()> {
    outputs::check("-o", &args.output, &[("the voice", args.folder.clone())])?;
    let report = pack::pack_voice(&args.folder, &args.output)
        .with_context(|| format!("{}: cannot pack this voice folder", args.folder.display()))?;
    let output = args.output.display();
    let lossless = if report.worst().is_none() { "nothing was rounded\n" } else { "" };
    print::out(&format!("{report}\n{lossless}"))?;
    pack::check_packed(&args.output)
        .with_context(|| format!("{output} was written, but it does not work as a voice"))?;
    print::note(&format!("wrote {output}"));
    Ok(())
}
