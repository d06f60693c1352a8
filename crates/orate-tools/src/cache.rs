//! The folder of compiled kernels: what in it is Orate's, and deleting that.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// What the executors keep below the folder: CUDA one file per kernel, the others one per device. Each is
/// written under another name first.
const KEPT: [Kept; 2] = [
    Kept { folder: "cuda", ending: ".cubin", mark: b"oratecu", unfinished: ".writing" },
    Kept { folder: "gpu", ending: ".pipelines", mark: b"ORATEPC", unfinished: ".tmp" },
];

/// Files of one kind.
struct Kept {
    folder: &'static str,
    ending: &'static str,
    /// The first bytes, without the format's version.
    mark: &'static [u8],
    /// Ending while a file is written; a process that was killed leaves such a file.
    unfinished: &'static str,
}

impl Kept {
    /// Whether a file is one of these, by its name and its first bytes.
    fn has(&self, path: &Path) -> bool {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
        // Named for the process and a number: `x-12-0.writing`, `x.pipelines.12-0.tmp`.
        let unfinished = |stem: &str| {
            let mut numbers = stem.rsplit('-');
            let second = numbers.next().is_some_and(is_number);
            second && numbers.next().and_then(|rest| rest.rsplit('.').next()).is_some_and(is_number)
        };
        match (name.strip_suffix(self.ending), name.strip_suffix(self.unfinished)) {
            (Some(_), _) => self.has_mark(path),
            (_, Some(stem)) => unfinished(stem),
            _ => false,
        }
    }

    fn has_mark(&self, path: &Path) -> bool {
        let mut start = vec![0; self.mark.len()];
        File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == self.mark
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// A file of compiled kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Files that Orate wrote below a cache folder. What cannot be read is not among them, and neither are links.
pub fn files(cache: &Path) -> Vec<CachedFile> {
    let of = |kept: &Kept| {
        let entries = fs::read_dir(cache.join(kept.folder)).into_iter().flatten().flatten();
        let file = |path: PathBuf| {
            let metadata = path.symlink_metadata().ok().filter(fs::Metadata::is_file)?;
            kept.has(&path).then_some(CachedFile { path, bytes: metadata.len() })
        };
        entries.filter_map(|entry| file(entry.path())).collect::<Vec<_>>()
    };
    KEPT.iter().flat_map(of).collect()
}

/// Deletes these files, and the executors' folders if nothing else is in them.
///
/// # Errors
/// The first file that cannot be deleted.
pub fn clear(cache: &Path, files: &[CachedFile]) -> Result<(), (PathBuf, io::Error)> {
    for file in files {
        match fs::remove_file(&file.path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err((file.path.clone(), e)),
            _ => {}
        }
    }
    for kept in &KEPT {
        // A folder that has something else in it stays, and that is no error.
        let _ = fs::remove_dir(cache.join(kept.folder));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_orate_wrote_is_deleted() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = folder.path();
        let write = |name: &str, content: &str| {
            let path = cache.join(name);
            fs::create_dir_all(path.parent().expect("is in a folder")).expect("writable");
            fs::write(path, content).expect("writable");
        };
        let ours = [
            ("cuda/matmul-00ff.cubin", "oratecu1 and code"),
            ("cuda/snake-12-0.writing", ""),
            ("gpu/vulkan-4318-9013.pipelines", "ORATEPC1 and data"),
            ("gpu/vulkan-4318-9013.pipelines.77-3.tmp", "half"),
        ];
        let others = [
            ("mine.txt", "x"),
            ("cuda/mine.cubin", "of another program"),
            ("cuda/notes.writing", "x"),
            ("cuda/deep/matmul-00ff.cubin", "oratecu1"),
            ("gpu/a.tmp", "x"),
            ("gpu/b.pipelines", "ORATE"),
        ];
        ours.iter().chain(&others).for_each(|(name, content)| write(name, content));
        let found = files(cache);
        assert_eq!(found.len(), ours.len(), "{found:?}");
        clear(cache, &found).expect("deletes");
        assert!(ours.iter().all(|(name, _)| !cache.join(name).exists()));
        assert!(others.iter().all(|(name, _)| cache.join(name).exists()));
        assert!(files(cache).is_empty());

        for (name, _) in others {
            fs::remove_file(cache.join(name)).expect("is there");
        }
        fs::remove_dir(cache.join("cuda/deep")).expect("is empty");
        clear(cache, &[]).expect("nothing to do");
        assert!(!cache.join("cuda").exists() && !cache.join("gpu").exists(), "empty folders go");
    }
}
