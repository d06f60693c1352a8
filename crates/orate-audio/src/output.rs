//! Output files that appear whole or not at all.
//!
//! A regular file is written under a temporary name in the folder of its target and renamed at
//! the end. Devices, FIFOs and sockets (`/dev/null`, `/dev/stdout` in a pipeline) cannot be
//! renamed over and are written directly.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tempfile::TempPath;

use crate::error::{AudioError, Result};

/// Checks that a file could be written, before time is spent on making what goes into it. Nothing remains of the attempt, and what is
/// there stays as it is. Devices and pipes are not opened: a reader would take that for the end.
///
/// # Errors
///
/// [`AudioError::Create`] if this is a folder or write-protected, or its folder is missing or may not be written to.
pub fn check_output(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => Ok(()),
        _ => OutputFile::create(path).map(drop),
    }
}

/// Writes a file that appears whole or not at all.
///
/// # Errors
///
/// As for [`check_output`], and [`AudioError::Write`] if the disk is full.
pub fn write_output(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    let output = OutputFile::create(path.as_ref())?;
    output.sink().write_all(bytes).map_err(|error| output.write_error(error))?;
    output.commit()
}

/// An output that becomes visible under its name only in [`OutputFile::commit`].
///
/// Dropping it before that removes the temporary file.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    // Before `temp`, so that the file is closed when its name is removed or changed.
    sink: Sink,
    /// `None` for special files.
    temp: Option<TempFile>,
}

#[derive(Debug)]
struct TempFile {
    path: TempPath,
    /// The target with symbolic links followed, so that a link stays a link.
    target: PathBuf,
}

impl OutputFile {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        Self::open(path).map_err(|source| AudioError::Create { path: path.to_owned(), source })
    }

    fn open(path: &Path) -> io::Result<Self> {
        let existing = match fs::metadata(path) {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if existing.as_ref().is_some_and(fs::Metadata::is_dir) {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "this is a folder"));
        }
        if existing.as_ref().is_some_and(|metadata| !metadata.is_file()) {
            let file = OpenOptions::new().write(true).open(path)?;
            return Ok(Self { path: path.to_owned(), sink: Sink::new(file, false), temp: None });
        }
        let target = match &existing {
            Some(_) => {
                // A write-protected file must not be replaced by way of its folder.
                OpenOptions::new().write(true).open(path)?;
                fs::canonicalize(path)?
            }
            None => end_of_links(path)?,
        };
        let name = target
            .file_name()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "this names no file"))?;
        let folder = match target.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        // The middle of a long name is cut, so that the temporary name is never too long.
        let stem: String = name.to_string_lossy().chars().take(40).collect();
        let prefix = format!(".{stem}.");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".part");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // As for any new file; the process's umask still applies.
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        let (file, temp) = builder.tempfile_in(folder)?.into_parts();
        if let Some(metadata) = existing {
            // Best effort: the owner may differ, and then the new file keeps the default.
            let _ = file.set_permissions(metadata.permissions());
        }
        let temp = TempFile { path: temp, target };
        Ok(Self { path: path.to_owned(), sink: Sink::new(file, true), temp: Some(temp) })
    }

    /// The name that was asked for.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The name that it has until it is complete; `None` for special files.
    pub(crate) fn temporary_path(&self) -> Option<&Path> {
        self.temp.as_ref().map(|temp| &*temp.path)
    }

    /// Whether parts already written can be changed. If not, [`Sink`] drops such changes.
    pub(crate) fn is_seekable(&self) -> bool {
        self.temp.is_some()
    }

    /// A handle for writing. All handles share one position.
    pub(crate) fn sink(&self) -> Sink {
        self.sink.clone()
    }

    pub(crate) fn write_error(&self, source: io::Error) -> AudioError {
        AudioError::Write { path: self.path.clone(), source }
    }

    /// Writes out what is buffered and puts the file in its place.
    pub(crate) fn commit(self) -> Result<()> {
        let Self { path, sink, temp } = self;
        let result = sink.lock().writer.flush();
        drop(sink);
        let failed = |source| AudioError::Write { path: path.clone(), source };
        result.map_err(failed)?;
        if let Some(TempFile { path: temp, target }) = temp {
            temp.persist(target).map_err(|error| failed(error.error))?;
        }
        Ok(())
    }
}

/// Links followed at most, as systems do.
const MOST_LINKS: usize = 40;

/// Where a path leads that names no file yet: a symbolic link stays, and what it names is created.
fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&path) {
            // A relative target counts from the folder of the link; joining an absolute one replaces it.
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// A cloneable, buffered writer. Encoders own one and may drop it without flushing, because
/// [`OutputFile::commit`] flushes with errors reported.
#[derive(Clone, Debug)]
pub(crate) struct Sink(Arc<Mutex<SinkState>>);

#[derive(Debug)]
struct SinkState {
    writer: BufWriter<File>,
    seekable: bool,
    /// Bytes written so far, where the system does not keep count.
    position: u64,
    /// Set once an encoder returned to the start of something that cannot be rewound. What it
    /// writes from then on are corrected headers, which have nowhere to go.
    rewound: bool,
}

impl Sink {
    fn new(file: File, seekable: bool) -> Self {
        let writer = BufWriter::with_capacity(64 * 1024, file);
        Self(Arc::new(Mutex::new(SinkState { writer, seekable, position: 0, rewound: false })))
    }

    fn lock(&self) -> MutexGuard<'_, SinkState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.lock();
        if state.rewound {
            return Ok(bytes.len());
        }
        let written = state.writer.write(bytes)?;
        state.position += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.lock().writer.flush()
    }
}

impl Seek for Sink {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let mut state = self.lock();
        if state.seekable {
            return state.writer.seek(to);
        }
        match to {
            SeekFrom::Current(0) | SeekFrom::End(0) => Ok(state.position),
            SeekFrom::Start(position) if position < state.position => {
                state.rewound = true;
                Ok(position)
            }
            _ => Err(io::ErrorKind::NotSeekable.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_leaves_nothing_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        check_output(&path).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        write_output(&path, b"whole").unwrap();
        check_output(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        for bad in [folder.path().to_owned(), folder.path().join("none/a.json")] {
            let error = check_output(&bad).unwrap_err();
            assert!(error.to_string().contains(bad.to_str().unwrap()), "{error}");
            write_output(&bad, b"").unwrap_err();
        }
        #[cfg(unix)]
        {
            let (link, next) = (folder.path().join("link"), folder.path().join("next"));
            std::os::unix::fs::symlink("next", &link).unwrap();
            std::os::unix::fs::symlink(folder.path().join("b.json"), &next).unwrap();
            write_output(&link, b"linked").unwrap();
            assert_eq!(fs::read(folder.path().join("b.json")).unwrap(), b"linked");
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "the link stays");
            std::os::unix::fs::symlink("loop", folder.path().join("loop")).unwrap();
            write_output(folder.path().join("loop"), b"").unwrap_err();
            check_output("/dev/full").unwrap();
            assert!(matches!(write_output("/dev/full", b"x"), Err(AudioError::Write { .. })));
        }
    }
}
