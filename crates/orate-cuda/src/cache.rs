//! Compiled kernels on disk.
//!
//! One file per kernel source, device architecture and options. A file starts with a magic number, the hash
//! of these, and a checksum of its content; a damaged file or one with another key counts as missing. Files
//! are written under a temporary name and then renamed, so that a reader never sees a partial one.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Version of this file format.
const MARK: &[u8; 8] = b"oratecu1";

/// Mark, key, checksum.
const HEADER: usize = 8 + 16 + 8;

/// Maximum size of the cache in bytes; the oldest files beyond it are deleted.
const KEPT: u64 = 64 << 20;

/// Extension of the cache files.
const ENDING: &str = "cubin";

/// 64-bit FNV-1a hash, continued from `start`.
fn fnv(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01B3))
}

/// Hash of everything that a compiled kernel depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key([u8; 16]);

impl Key {
    /// Parts are delimited, so that different lists never give the same bytes.
    pub fn of(parts: &[&str]) -> Key {
        let mut text = vec![];
        for part in parts {
            text.extend((part.len() as u64).to_le_bytes());
            text.extend(part.as_bytes());
        }
        let a = fnv(0xCBF2_9CE4_8422_2325, &text);
        text.reverse();
        let b = fnv(a ^ 0x9E37_79B9_7F4A_7C15, &text);
        let mut key = [0; 16];
        key[..8].copy_from_slice(&a.to_le_bytes());
        key[8..].copy_from_slice(&b.to_le_bytes());
        Key(key)
    }
}

/// A folder of compiled kernels.
pub(crate) struct Cache {
    folder: PathBuf,
    /// First reason why a file could not be written.
    problem: OnceLock<String>,
}

/// Index of the next file of this process, part of its temporary name.
static NEXT: AtomicU64 = AtomicU64::new(0);

impl Cache {
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Cache { folder: folder.into(), problem: OnceLock::new() }
    }

    fn path(&self, name: &str, key: Key) -> PathBuf {
        let hex: String = key.0.iter().map(|b| format!("{b:02x}")).collect();
        self.folder.join(format!("{name}-{hex}.{ENDING}"))
    }

    /// Whether a file is stored under `key`, intact or not.
    pub fn has(&self, name: &str, key: Key) -> bool {
        self.path(name, key).exists()
    }

    /// Returns the code stored under `key`, if it is intact.
    pub fn get(&self, name: &str, key: Key) -> Option<Vec<u8>> {
        let mut data = std::fs::read(self.path(name, key)).ok()?;
        let (header, code) = data.split_at_checked(HEADER)?;
        let sum = fnv(0, code).to_le_bytes();
        let whole = !code.is_empty() && header[..8] == *MARK && header[8..24] == key.0 && header[24..] == sum;
        whole.then(|| data.split_off(HEADER))
    }

    /// Stores `code`. An unwritable folder only costs time at the next start, so it is not an error, but
    /// recorded.
    pub fn put(&self, name: &str, key: Key, code: &[u8]) {
        let mut data = Vec::with_capacity(HEADER + code.len());
        data.extend(MARK);
        data.extend(key.0);
        data.extend(fnv(0, code).to_le_bytes());
        data.extend(code);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let aside = self.folder.join(format!("{name}-{}-{number}.writing", std::process::id()));
        let written = std::fs::create_dir_all(&self.folder)
            .and_then(|()| std::fs::write(&aside, &data))
            .and_then(|()| std::fs::rename(&aside, self.path(name, key)));
        if let Err(e) = written {
            self.problem.get_or_init(|| {
                tracing::warn!("cannot store compiled kernels in {}: {e}", self.folder.display());
                format!("{}: {e}", self.folder.display())
            });
            let _ = std::fs::remove_file(&aside);
        }
    }

    /// Reason why a file could not be written: the folder and the system's message.
    pub fn problem(&self) -> Option<String> {
        self.problem.get().cloned()
    }

    /// Deletes the oldest files until the rest is within the limit.
    pub fn trim(&self) {
        trim(&self.folder, KEPT);
    }
}

fn trim(folder: &Path, kept: u64) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .filter(|e| e.path().extension().is_some_and(|x| x == ENDING || x == "writing"))
        .filter_map(|e| e.metadata().ok().map(|m| (m.modified().ok(), m.len(), e.path())))
        .collect();
    files.sort();
    let mut total: u64 = files.iter().map(|f| f.1).sum();
    for (_, bytes, path) in files {
        if total <= kept {
            break;
        }
        if std::fs::remove_file(path).is_ok() {
            total -= bytes;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A temporary folder, removed at the end of a test.
    pub(crate) struct Folder(pub PathBuf);

    impl Folder {
        pub fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("orate-cache-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_was_kept_comes_back() {
        let folder = Folder::new("whole");
        let (cache, key) = (Cache::new(&folder.0), Key::of(&["source", "sm_90"]));
        assert_eq!(cache.get("a", key), None);
        cache.put("a", key, b"machine code");
        assert_eq!(cache.get("a", key).as_deref(), Some(&b"machine code"[..]));
        assert_eq!(cache.get("a", Key::of(&["source", "sm_80"])), None);
        let left = std::fs::read_dir(&folder.0).expect("was made").count();
        assert_eq!(left, 1, "nothing but the file");
    }

    #[test]
    fn damaged_files_count_as_missing() {
        let folder = Folder::new("damaged");
        let (cache, key) = (Cache::new(&folder.0), Key::of(&["x"]));
        cache.put("a", key, b"machine code");
        let path = cache.path("a", key);
        let whole = std::fs::read(&path).expect("was written");
        for len in 0..whole.len() {
            std::fs::write(&path, &whole[..len]).expect("writable");
            assert_eq!(cache.get("a", key), None, "{len} bytes");
        }
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).expect("writable");
            assert_eq!(cache.get("a", key), None, "byte {at}");
        }
        cache.put("a", key, b"machine code");
        assert!(cache.get("a", key).is_some(), "is rebuilt");
    }

    #[test]
    fn a_file_of_another_key_is_foreign() {
        let folder = Folder::new("foreign");
        let (cache, one, two) = (Cache::new(&folder.0), Key::of(&["a", "b"]), Key::of(&["ab", ""]));
        assert_ne!(one, two, "parts are told apart");
        cache.put("a", one, b"machine code");
        std::fs::rename(cache.path("a", one), cache.path("a", two)).expect("ours");
        assert_eq!(cache.get("a", two), None);
    }

    #[test]
    fn the_folder_is_bounded() {
        let folder = Folder::new("bounded");
        let cache = Cache::new(&folder.0);
        for i in 0..5 {
            cache.put("a", Key::of(&[&i.to_string()]), &[7; 1000]);
        }
        std::fs::write(folder.0.join("notes.txt"), [0; 5000]).expect("writable");
        trim(&folder.0, 3 * (1000 + HEADER as u64));
        assert_eq!(std::fs::read_dir(&folder.0).expect("is there").count(), 4, "three, and what is not ours");
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_error() {
        let folder = Folder::new("not-a-folder");
        std::fs::write(&folder.0, "a file").expect("writable");
        let below = folder.0.join("below");
        let cache = Cache::new(&below);
        assert_eq!(cache.problem(), None);
        for name in ["a", "b"] {
            cache.put(name, Key::of(&["x"]), b"code");
            assert_eq!(cache.get(name, Key::of(&["x"])), None);
        }
        let problem = cache.problem().expect("is noted");
        assert!(problem.starts_with(&format!("{}: ", below.display())), "{problem}");
        std::fs::remove_file(&folder.0).expect("removable");
    }
}
