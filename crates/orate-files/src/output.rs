//! Output files that appear whole or not at all.
//!
//! A regular file gets its name when it is complete. Until then it has none where the system allows that
//! (Linux, on most file systems), so that nothing remains even if the process is killed; elsewhere it has a
//! temporary name in the same folder, which is removed when the writer is dropped. Devices, pipes and sockets
//! (`/dev/null`, `/dev/stdout` in a pipeline) are written directly.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tempfile::TempPath;

/// Symbolic links that are followed from one path; the limit of Linux.
const MAX_LINKS: usize = 40;

/// An output that becomes visible under its name only in [`OutputFile::commit`].
///
/// Dropped before that, it leaves nothing, and a file that was there before stays as it was.
///
/// ```
/// use std::io::Write;
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.txt");
/// let output = orate_files::OutputFile::create(&path)?;
/// output.sink().write_all(b"whole")?;
/// assert!(!path.exists());
/// output.commit()?;
/// assert_eq!(std::fs::read(&path)?, b"whole");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct OutputFile {
    // Before `target`, so that the file is closed when its name is removed or changed.
    sink: Sink,
    target: Target,
}

#[derive(Debug)]
enum Target {
    /// A device, pipe or socket.
    Special,
    /// A file under a temporary name, and the name that it gets.
    Named(TempPath, PathBuf),
    /// A file without a name, and the name that it gets.
    #[cfg(target_os = "linux")]
    Unnamed(PathBuf),
}

impl OutputFile {
    /// Starts a file. Symbolic links are followed, also to a file that does not exist yet.
    ///
    /// # Errors
    /// The path is a folder or write-protected, or its folder is missing or may not be written to.
    pub fn create(path: &Path) -> io::Result<Self> {
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
            return Ok(Self { sink: Sink::new(file, false), target: Target::Special });
        }
        let target = match &existing {
            Some(_) => {
                // A write-protected file must not be replaced by way of its folder.
                OpenOptions::new().write(true).open(path)?;
                fs::canonicalize(path)?
            }
            None => follow_links(path)?,
        };
        let (file, target) = start(target)?;
        if let Some(metadata) = existing {
            // Best effort: the owner may differ, and then the new file keeps the default.
            let _ = file.set_permissions(metadata.permissions());
        }
        Ok(Self { sink: Sink::new(file, true), target })
    }

    /// The name that the file has until it is complete, if it has one: for programs that may end without
    /// dropping this.
    pub fn temporary_path(&self) -> Option<&Path> {
        match &self.target {
            Target::Named(path, _) => Some(path),
            _ => None,
        }
    }

    /// Whether parts already written can be changed. If not, [`Sink`] drops such changes.
    pub fn is_seekable(&self) -> bool {
        !matches!(self.target, Target::Special)
    }

    /// A handle for writing. All handles share one position.
    pub fn sink(&self) -> Sink {
        self.sink.clone()
    }

    /// Writes everything so far to the disk itself, and returns the size of the file in bytes.
    ///
    /// # Errors
    /// The disk is full or failed.
    pub fn sync(&self) -> io::Result<u64> {
        let mut sink = self.sink.lock();
        sink.writer.flush()?;
        sink.writer.get_ref().sync_all()?;
        Ok(sink.writer.get_ref().metadata()?.len())
    }

    /// Writes out what is buffered and gives the file its name, replacing one of the same name.
    ///
    /// # Errors
    /// The disk is full, or the folder may no longer be written to. Nothing remains of the file.
    pub fn commit(self) -> io::Result<()> {
        let Self { sink, target } = self;
        sink.lock().writer.flush()?;
        match target {
            Target::Special => Ok(()),
            Target::Named(temporary, path) => {
                drop(sink);
                temporary.persist(path).map_err(|error| error.error)
            }
            #[cfg(target_os = "linux")]
            Target::Unnamed(path) => unnamed::give_name(sink.lock().writer.get_ref(), &path),
        }
    }
}

/// Opens a file that gets the name `target` later.
fn start(target: PathBuf) -> io::Result<(File, Target)> {
    let (folder, prefix) = folder_and_prefix(&target)?;
    #[cfg(target_os = "linux")]
    if let Some(file) = unnamed::create(folder) {
        return Ok((file, Target::Unnamed(target)));
    }
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(".part");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As for any new file; the process's umask still applies.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let (file, temporary) = builder.tempfile_in(folder)?.into_parts();
    Ok((file, Target::Named(temporary, target)))
}

/// The folder of a file, and how its temporary name begins.
fn folder_and_prefix(target: &Path) -> io::Result<(&Path, String)> {
    let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "this names no file");
    let name = target.file_name().ok_or_else(no_name)?;
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // Cut, so that the temporary name of a long one is not too long.
    let stem: String = name.to_string_lossy().chars().take(40).collect();
    Ok((folder, format!(".{stem}.")))
}

/// Where a symbolic link to a missing file leads; other paths stay as they are.
fn follow_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match fs::read_link(&path) {
            // A relative link starts at its own folder.
            Ok(next) => path = path.parent().unwrap_or(Path::new("")).join(next),
            // Missing, or no link.
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "too many symbolic links"))
}

/// Files without a name, which vanish with the process that writes them.
#[cfg(target_os = "linux")]
mod unnamed {
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;
    use std::path::{Path, PathBuf};

    use rustix::fs::{AtFlags, CWD, Mode, OFlags};

    /// Opens one in `folder`; `None` where the file system has none, or there is no `/proc` to name it
    /// through later.
    pub fn create(folder: &Path) -> Option<File> {
        // As for any new file; the process's umask still applies.
        let mode = Mode::from_raw_mode(0o666);
        let file: File =
            rustix::fs::open(folder, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode).ok()?.into();
        link(&file).exists().then_some(file)
    }

    /// Gives the file its name, replacing another file that has it.
    pub fn give_name(file: &File, path: &Path) -> io::Result<()> {
        match name(file, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            done => return done,
        }
        // A name cannot be taken from another file but by renaming.
        let (folder, prefix) = super::folder_and_prefix(path)?;
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".part");
        let named = builder.make_in(folder, |temporary| name(file, temporary))?;
        named.into_temp_path().persist(path).map_err(|error| error.error)
    }

    fn name(file: &File, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::linkat(CWD, link(file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
    }

    fn link(file: &File) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
    }
}

/// A cloneable, buffered writer. Encoders own one and may drop it without flushing, because
/// [`OutputFile::commit`] flushes and reports errors.
#[derive(Clone, Debug)]
pub struct Sink(Arc<Mutex<SinkState>>);

#[derive(Debug)]
struct SinkState {
    writer: BufWriter<File>,
    seekable: bool,
    /// Bytes written so far, where the system does not keep count.
    position: u64,
    /// Set once an encoder returned to the start of something that cannot be rewound. What it writes from
    /// then on are corrected headers, which have nowhere to go.
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

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
        let output = OutputFile::create(path)?;
        output.sink().write_all(bytes)?;
        output.commit()
    }

    type Start = fn(PathBuf) -> io::Result<(File, Target)>;

    /// Both ways of writing a file, whichever this system prefers.
    fn starts() -> Vec<Start> {
        vec![start, |target| {
            let (folder, prefix) = folder_and_prefix(&target)?;
            let (file, temporary) =
                tempfile::Builder::new().prefix(&prefix).tempfile_in(folder)?.into_parts();
            Ok((file, Target::Named(temporary, target)))
        }]
    }

    #[test]
    fn a_file_appears_when_it_is_complete_and_replaces_another() {
        for start in starts() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a");
            for content in ["first", "second"] {
                let before = fs::read(&path).ok();
                let (file, target) = start(path.clone()).unwrap();
                let output = OutputFile { sink: Sink::new(file, true), target };
                output.sink().write_all(content.as_bytes()).unwrap();
                assert_eq!(fs::read(&path).ok(), before);
                output.commit().unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), content);
                assert_eq!(names(folder.path()), ["a"]);
            }
            let (file, target) = start(path.clone()).unwrap();
            drop(OutputFile { sink: Sink::new(file, true), target });
            assert_eq!(names(folder.path()), ["a"]);
        }
    }

    /// A process that is killed, or that runs out of memory, drops nothing.
    #[cfg(target_os = "linux")]
    #[test]
    fn nothing_remains_of_a_writer_that_is_never_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let output = OutputFile::create(&folder.path().join("a")).unwrap();
        let place = folder.path().display();
        assert_eq!(
            output.temporary_path(),
            None,
            "{place} has no unnamed files; set TMPDIR to a folder that has"
        );
        output.sink().write_all(&[1; 100_000]).unwrap();
        assert!(names(folder.path()).is_empty());
        std::mem::forget(output);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_also_to_files_that_are_not_there() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("deep")).unwrap();
        symlink("deep/link", at("link")).unwrap();
        symlink("file", at("deep/link")).unwrap();
        for content in ["dangling", "there"] {
            write(&at("link"), content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(at("deep/file")).unwrap(), content);
            assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
            assert!(fs::symlink_metadata(at("deep/link")).unwrap().is_symlink());
        }
        symlink("missing/file", at("lost")).unwrap();
        symlink("circle", at("circle")).unwrap();
        for bad in ["lost", "circle"] {
            write(&at(bad), b"").unwrap_err();
            assert!(fs::symlink_metadata(at(bad)).unwrap().is_symlink());
        }
    }

    #[test]
    fn what_cannot_be_written_is_an_error_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        for bad in [folder.path().to_owned(), folder.path().join("none/a"), PathBuf::new()] {
            OutputFile::create(&bad).unwrap_err();
        }
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn sync_returns_the_size() {
        let folder = tempfile::tempdir().unwrap();
        let output = OutputFile::create(&folder.path().join("a")).unwrap();
        output.sink().write_all(b"12345").unwrap();
        assert_eq!(output.sync().unwrap(), 5);
    }
}
