//! Files as bytes: mapped into memory to read, replaced in one step to write.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
#[cfg(unix)]
use memmap2::UncheckedAdvice;
use memmap2::{Mmap, MmapOptions};

use crate::WeightError;

/// Pages are at most this large on common systems; a smaller one is a divisor.
#[cfg(unix)]
const PAGE: usize = 64 * 1024;

/// How a file begins that Git LFS keeps elsewhere.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Maps a file into memory. Nothing is read until it is used.
pub(crate) fn map(path: &Path) -> Result<Bytes, WeightError> {
    Ok(Mapping::open(path)?.bytes())
}

/// A mapped file, whose pages can be given back.
#[derive(Clone, Debug)]
pub(crate) struct Mapping(Option<Arc<Mmap>>);

impl Mapping {
    pub fn open(path: &Path) -> Result<Mapping, WeightError> {
        let file = File::open(path).map_err(WeightError::io("open", path))?;
        let info = file.metadata().map_err(WeightError::io("inspect", path))?;
        if !info.is_file() {
            let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file");
            return Err(WeightError::Io { action: "read", path: path.to_owned(), source });
        }
        if info.len() == 0 {
            return Ok(Mapping(None)); // an empty mapping is an error on most systems
        }
        // SAFETY: the mapping is private and read-only. As with every mapped file, another process could change or
        // shorten the file while we hold it. The bytes carry no invariants beyond what the parsers check: wrong numbers
        // or a fault would follow. Replacing a file by renaming, as `replace` does, leaves the old mapping intact.
        let map = unsafe { MmapOptions::new().map(&file) }.map_err(WeightError::io("map", path))?;
        if map.starts_with(POINTER) {
            return Err(WeightError::Pointer { path: path.to_owned() });
        }
        Ok(Mapping(Some(Arc::new(map))))
    }

    /// Bytes of the file.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |map| map.len())
    }

    /// All of the file.
    pub fn bytes(&self) -> Bytes {
        self.0.as_ref().map_or_else(Bytes::new, |map| Bytes::from_owner(Shared(map.clone())))
    }

    /// Gives the pages inside of a range of bytes back to the system, which reads them anew when they are needed.
    pub fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Some(map) = &self.0 {
            let first = range.start.next_multiple_of(PAGE);
            let end = range.end / PAGE * PAGE;
            if first < end {
                // SAFETY: the mapping is of a file and never written, so a page that is dropped comes back as it was.
                // What the system answers does not matter: pages that stay are no error.
                let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, first, end - first) };
            }
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

/// Bytes of a mapping that others hold too.
struct Shared(Arc<Mmap>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
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
