//! Files as bytes: mapped into memory to read, replaced in one step to write.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use bytes::Bytes;

use crate::WeightError;

/// Maps a file into memory. Nothing is read until it is used.
pub(crate) fn map(path: &Path) -> Result<Bytes, WeightError> {
    let file = File::open(path).map_err(WeightError::io("open", path))?;
    let info = file.metadata().map_err(WeightError::io("inspect", path))?;
    if !info.is_file() {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file");
        return Err(WeightError::Io { action: "read", path: path.to_owned(), source });
    }
    if info.len() == 0 {
        return Ok(Bytes::new()); // an empty mapping is an error on most systems
    }
    // SAFETY: the mapping is private and read-only. As with every mapped file, another process could change or
    // shorten the file while we hold it. The bytes carry no invariants beyond what the parsers check: wrong numbers
    // or a fault would follow. Replacing a file by renaming, as `replace` does, leaves the old mapping intact.
    let map = unsafe { memmap2::MmapOptions::new().map(&file) }.map_err(WeightError::io("map", path))?;
    Ok(Bytes::from_owner(map))
}

/// Writes a file beside `path` and renames it, so that readers see the old content or the new, never a part.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
) -> Result<u64, WeightError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = (|| {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(&temporary)?);
        write(&mut out)?;
        out.flush()?;
        let file = out.into_inner().map_err(|e| e.into_error())?;
        file.sync_all()?;
        let len = file.metadata()?.len();
        drop(file);
        std::fs::rename(&temporary, path)?;
        Ok(len)
    })();
    written.map_err(|source| {
        let _ = std::fs::remove_file(&temporary); // the first error is the one to report
        WeightError::Io { action: "write", path: path.to_owned(), source }
    })
}
