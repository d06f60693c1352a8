//! `orate cache`: compiled GPU kernels on disk.

use crate::print;
use anyhow::{Context, bail};
use orate_tools::cache;
use serde_json::json;

/// Show or clear the compiled GPU kernels on disk
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  orate cache --clear

Kernels are compiled when a GPU first needs them, and stored in this folder, which may be deleted at any \
time. ORATE_CACHE sets another folder.")]
pub struct Args {
    /// Delete the kernels
    #[arg(long)]
    clear: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints path and size of the cache.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let folder =
        orate::cache_folder().context("this system has no cache folder; set ORATE_CACHE to a folder")?;
    if folder.exists() && !folder.is_dir() {
        bail!("{}: not a folder, so kernels are not cached; set ORATE_CACHE to a folder", folder.display());
    }
    let found = cache::files(&folder);
    let (bytes, files) = (found.iter().map(|f| f.bytes).sum(), found.len());
    if args.clear {
        cache::clear(&folder, &found).map_err(|(path, e)| {
            anyhow::Error::new(e).context(format!("cannot delete {}", path.display()))
        })?;
    }
    if args.json {
        let path = folder.display().to_string();
        return print::json(&json!({ "path": path, "bytes": bytes, "files": files, "cleared": args.clear }));
    }
    let done = if args.clear { ", deleted" } else { "" };
    let (bytes, files) = (print::bytes(bytes), print::count(files, "file"));
    print::out(&format!("{}: {bytes} in {files}{done}\n", folder.display()))
}
