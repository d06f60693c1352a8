//! Files as bytes: mapped into memory to read, replaced in one step to write.
//!
//! A mapped file has to stay as it is while it is in use. If another process truncates it, the next access to
//! a missing page ends the program with a bus error (SIGBUS), which cannot be turned into an error here.
//! Replace a model by renaming a new file over it, as downloads and package managers do, never by writing
//! into the old one.
//!
//! WebAssembly cannot map files: there they are read as a whole, and stay in memory as long as a mapping
//! would.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
#[cfg(not(target_family = "wasm"))]
use memmap2::Mmap as Content;
#[cfg(unix)]
use memmap2::UncheckedAdvice;
use orate_files::OutputFile;

use crate::WeightError;

/// Largest page size of common systems; smaller ones divide it.
#[cfg(unix)]
const PAGE: usize = 64 * 1024;

/// Start of a pointer file of Git LFS.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Maps a file into memory. Nothing is read until it is used. The file must not be truncated meanwhile.
pub(crate) fn map(path: &Path) -> Result<Bytes, WeightError> {
    Ok(Mapping::open(path)?.bytes())
}

/// A mapped file, whose pages can be released.
#[derive(Clone, Debug)]
pub(crate) struct Mapping(Option<Arc<Content>>);

/// Bytes of a file.
#[cfg(target_family = "wasm")]
type Content = Vec<u8>;

#[cfg(not(target_family = "wasm"))]
fn content(file: &File) -> io::Result<Content> {
    // SAFETY: the mapping is private and read-only. Another process could still change or truncate the file,
    // see the module's documentation. Parsers check the bytes and rely on nothing else, so that changed bytes
    // give wrong numbers, and missing ones end the program.
    unsafe { memmap2::MmapOptions::new().map(file) }
}

#[cfg(target_family = "wasm")]
fn content(mut file: &File) -> io::Result<Content> {
    let size = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    let (mut bytes, too_large) = (Vec::new(), io::ErrorKind::OutOfMemory);
    bytes
        .try_reserve_exact(size)
        .map_err(|_| io::Error::new(too_large, format!("no room for {size} bytes")))?;
    io::Read::read_to_end(&mut file, &mut bytes)?;
    Ok(bytes)
}

impl Mapping {
    pub fn open(path: &Path) -> Result<Mapping, WeightError> {
        let file = orate_files::open(path).map_err(WeightError::io("open", path))?;
        let info = file.metadata().map_err(WeightError::io("inspect", path))?;
        if info.len() == 0 {
            return Ok(Mapping(None)); // an empty mapping is an error on most systems
        }
        let map = content(&file).map_err(WeightError::io("map", path))?;
        if map.starts_with(POINTER) {
            return Err(WeightError::Pointer { path: path.to_owned() });
        }
        Ok(Mapping(Some(Arc::new(map))))
    }

    /// Size of the file in bytes.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |map| map.len())
    }

    /// All of the file.
    pub fn bytes(&self) -> Bytes {
        self.0.as_ref().map_or_else(Bytes::new, |map| Bytes::from_owner(Shared(map.clone())))
    }

    /// Releases the pages inside a range of bytes; the system reads them again when they are needed.
    pub fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Some(map) = &self.0 {
            let first = range.start.next_multiple_of(PAGE);
            let end = range.end / PAGE * PAGE;
            if first < end {
                // SAFETY: the mapping is of a file and never written, so a page that is dropped comes back as
                // it was. The result does not matter: pages that stay are no error.
                let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, first, end - first) };
            }
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

/// A mapping with several owners, as the owner of `Bytes`.
struct Shared(Arc<Content>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Writes a file that appears whole or not at all, and returns its size. Readers see the old content or the
/// new.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<orate_files::Sink>) -> io::Result<()>,
) -> Result<u64, WeightError> {
    let written = || {
        let output = OutputFile::create(path)?;
        let mut out = BufWriter::with_capacity(1 << 20, output.sink());
        write(&mut out)?;
        out.flush()?;
        let len = output.sync()?;
        output.commit()?;
        Ok(len)
    };
    written().map_err(WeightError::io("write", path))
}
