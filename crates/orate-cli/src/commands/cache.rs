//! `orate cache`: compiled GPU kernels on disk.

use crate::print;
use anyhow::{Context, bail};
use serde_json::json;
use std::fs;
use std::path::Path;

/// What to do with it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  orate cache --clear

Kernels are compiled when a GPU is used for the first time, and kept here. The folder may be deleted at any time. \
ORATE_CACHE names another one.")]
pub struct Args {
    /// Delete everything in it
    #[arg(long)]
    clear: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints where the cache is and how large.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let folder = orate::cache_folder().context("this system has no cache folder; set ORATE_CACHE to one")?;
    if folder.exists() && !folder.is_dir() {
        bail!("{}: not a folder, so no kernels are kept; set ORATE_CACHE to one", folder.display());
    }
    let (bytes, files) = size(&folder);
    if args.clear && folder.exists() {
        // Only what the executors write: a folder named by mistake keeps its other content.
        for part in ["cuda", "gpu"].map(|part| folder.join(part)).into_iter().filter(|p| p.exists()) {
            fs::remove_dir_all(&part).with_context(|| format!("cannot delete {}", part.display()))?;
        }
    }
    if args.json {
        let path = folder.display().to_string();
        return print::json(&json!({ "path": path, "bytes": bytes, "files": files, "cleared": args.clear }));
    }
    let done = if args.clear { ", deleted" } else { "" };
    print::out(&format!("{}: {} in {files} files{done}\n", folder.display(), print::bytes(bytes)))
}

/// Bytes and number of files that the executors keep. What cannot be read counts as nothing.
fn size(folder: &Path) -> (u64, usize) {
    let parts = ["cuda", "gpu"].map(|part| folder.join(part));
    let files = parts.iter().filter_map(|p| fs::read_dir(p).ok()).flatten().filter_map(Result::ok);
    let sizes = files.filter_map(|f| f.metadata().ok()).filter(fs::Metadata::is_file).map(|m| m.len());
    sizes.fold((0, 0), |(bytes, files), n| (bytes + n, files + 1))
}
