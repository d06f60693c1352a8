//! The cache on disk, in the layout of huggingface_hub:
//!
//! ```text
//! models--ORG--NAME/blobs/CHECKSUM             contents
//! models--ORG--NAME/refs/REVISION              a commit
//! models--ORG--NAME/snapshots/COMMIT/PATH      links to contents
//! .locks/models--ORG--NAME/CHECKSUM.lock
//! ```

use crate::http::notify;
use crate::name::is_commit;
use crate::{Error, ErrorKind, Event, Repo, Result, Watch};
use orate_files::shown;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// Longest file with the name of a commit.
const MAX_REF: u64 = 256;
/// Interval of attempts to lock.
const TICK: Duration = Duration::from_millis(50);

/// The cache of huggingface_hub.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The cache in a folder, which need not exist.
    pub fn new(root: impl Into<PathBuf>) -> Cache {
        Cache { root: root.into() }
    }

    /// The cache of this process: `HF_HUB_CACHE`, or `hub` in `HF_HOME`.
    ///
    /// # Errors
    /// Neither is set, and there is no home folder.
    pub fn from_env() -> Result<Cache> {
        crate::settings::cache_of_env().map(Cache::new)
    }

    /// Folder of the cache.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Folder of a revision's snapshot; `None` unless its download has completed.
    pub fn snapshot(&self, repo: &Repo) -> Option<PathBuf> {
        let snapshots = self.of(repo).join("snapshots");
        self.commit(repo).map(|commit| snapshots.join(commit)).filter(|path| path.is_dir())
    }

    /// Folders of a repository's snapshots, each of which may lack files: first that of the revision, then
    /// others, the latest first, unless a revision other than `main` is named.
    pub fn snapshots(&self, repo: &Repo) -> Vec<PathBuf> {
        let (all, first) = (self.of(repo).join("snapshots"), self.snapshot(repo));
        let mut others: Vec<_> = match repo.revision() {
            "main" => fs::read_dir(&all).into_iter().flatten().flatten().map(|entry| entry.path()).collect(),
            _ => vec![],
        };
        others.retain(|path| path.is_dir() && Some(path) != first.as_ref());
        others.sort_by_key(|path| fs::metadata(path).and_then(|m| m.modified()).ok());
        first.into_iter().chain(others.into_iter().rev()).collect()
    }

    /// Folder of a repository.
    pub(crate) fn of(&self, repo: &Repo) -> PathBuf {
        self.root.join(repo.folder())
    }

    /// Commit of a revision in the cache.
    fn commit(&self, repo: &Repo) -> Option<String> {
        let named = orate_files::read(&self.of(repo).join("refs").join(repo.revision()), MAX_REF);
        let named = named.ok().and_then(|bytes| Some(std::str::from_utf8(&bytes).ok()?.trim().to_owned()));
        named.or_else(|| Some(repo.revision().to_owned())).filter(|commit| is_commit(commit))
    }

    /// Points a revision to a commit. Called when the snapshot is complete, so that an interrupted download
    /// does not hide an earlier one.
    pub(crate) fn set_commit(&self, repo: &Repo, commit: &str) -> Result<()> {
        if repo.revision() == commit {
            return Ok(());
        }
        let path = self.of(repo).join("refs").join(repo.revision());
        if orate_files::read(&path, MAX_REF).is_ok_and(|kept| kept == commit.as_bytes()) {
            return Ok(());
        }
        make_parent(&path)?;
        let write = || {
            let file = orate_files::OutputFile::create(&path)?;
            file.sink().write_all(commit.as_bytes())?;
            file.commit()
        };
        write().map_err(Error::at(&path))
    }
}

/// Makes the folder that a file is in.
pub(crate) fn make_parent(path: &Path) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(Error::at(folder))
}

/// Adds a blob to a snapshot: as a relative symlink, else as a hard link, else as a copy.
pub(crate) fn link(blob: &Path, depth: usize, path: &Path) -> Result<()> {
    make_parent(path)?;
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(Error::at(path)(e)),
        _ => {}
    }
    let up = Path::new("../..").join("../".repeat(depth));
    let target = up.join("blobs").join(blob.file_name().unwrap_or_default());
    let made = symlink(&target, path)
        .or_else(|e| if e.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(e) })
        .or_else(|_| fs::hard_link(blob, path))
        .or_else(|_| fs::copy(blob, path).map(drop));
    made.map_err(Error::at(path))
}

#[cfg(unix)]
fn symlink(target: &Path, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

#[cfg(windows)]
fn symlink(target: &Path, path: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, path)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Locks a file against other processes and threads, Python's included, until the result is dropped.
pub(crate) fn lock(path: &Path, watch: &mut Watch<'_>) -> Result<File> {
    let mut notified = false;
    loop {
        make_parent(path)?;
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = match file {
            Ok(file) => file,
            // The last owner deleted the folder, too.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(Error::at(path)(e)),
        };
        match file.try_lock() {
            Ok(()) if has_name(&file) => return Ok(file),
            // The last owner deleted it, so another process may hold a new one.
            Ok(()) => continue,
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(e)) => {
                let advice = "the file system may not support locks; set HF_HUB_CACHE to another folder";
                return Err(Error::new(ErrorKind::System, format!("{}: {e}; {advice}", shown(path))));
            }
        }
        if !notified {
            notified = true;
            let why = "another process is downloading this file";
            notify(watch, &Event::Waiting { why, wait: None })?;
        }
        notify(watch, &Event::Tick)?;
        sleep(TICK);
    }
}

#[cfg(unix)]
fn has_name(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().is_ok_and(|m| m.nlink() > 0)
}

#[cfg(not(unix))]
fn has_name(_: &File) -> bool {
    true
}

/// Bytes that this user may still write to the disk of a folder, which need not exist; `None` if the system
/// does not say.
pub(crate) fn free_space(folder: &Path) -> Option<u64> {
    let existing = folder.ancestors().find(|path| path.exists())?;
    #[cfg(unix)]
    {
        let existing = if existing.as_os_str().is_empty() { Path::new(".") } else { existing };
        let stat = rustix::fs::statvfs(existing).ok()?;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
    #[cfg(not(unix))]
    {
        let _ = existing;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::ControlFlow;

    #[test]
    fn snapshots_are_found_by_revision_and_hostile_refs_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        let repo: Repo = "a/b".parse().unwrap();
        assert_eq!(cache.snapshots(&repo), Vec::<PathBuf>::new());
        let (one, two) = ("1".repeat(40), "2".repeat(40));
        let path = |commit: &str| folder.path().join("models--a--b/snapshots").join(commit);
        for commit in [&one, &two] {
            fs::create_dir_all(path(commit)).unwrap();
        }
        cache.set_commit(&repo, &one).unwrap();
        assert_eq!(cache.snapshots(&repo), [path(&one), path(&two)]);
        let pinned: Repo = format!("a/b@{two}").parse().unwrap();
        assert_eq!(cache.snapshots(&pinned), [path(&two)]);
        assert_eq!(cache.snapshots(&"a/b@v2".parse().unwrap()), Vec::<PathBuf>::new());
        for hostile in ["../../..", "/etc", "", "x"] {
            fs::write(folder.path().join("models--a--b/refs/v2"), hostile).unwrap();
            assert_eq!(cache.snapshots(&"a/b@v2".parse().unwrap()), Vec::<PathBuf>::new());
        }
    }

    #[test]
    fn one_holds_a_lock_and_a_waiting_one_can_be_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/a.lock");
        let held = lock(&path, &mut |_| ControlFlow::Continue(())).unwrap();
        let mut events = 0;
        let error = lock(&path, &mut |_| {
            events += 1;
            if events < 4 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Cancelled);
        drop(held);
        lock(&path, &mut |_| ControlFlow::Break(())).unwrap();
    }

    #[test]
    fn there_is_free_space_also_where_no_folder_is_yet() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_space(&folder.path().join("a/b/c")).is_none_or(|bytes| bytes > 0));
    }
}
