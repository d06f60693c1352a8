//! Cache file of compiled pipelines.
//!
//! ```text
//! "ORATEPC1"   8 bytes
//! key          8 bytes, little-endian: hash of device, driver and all kernel texts
//! hash         8 bytes: of the data
//! data         as returned by the driver, at most 64 MiB
//! ```
//!
//! One file per device, `vulkan-<vendor>-<device>.pipelines`: a new driver or new kernels replace it. A
//! damaged file, or one with another key, counts as missing, since drivers must not get untrusted bytes.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Index of the next file of this process, part of its temporary name.
static NEXT: AtomicU64 = AtomicU64::new(0);

const MAGIC: &[u8; 8] = b"ORATEPC1";
const HEADER: usize = 24;

/// Maximum size of data that is read or written.
pub(crate) const LIMIT: usize = 64 << 20;

/// FNV-1a hash: the same on every machine and in every build.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Returns the data of the file, if it is intact and has this key.
pub(crate) fn read(path: &Path, key: u64) -> Option<Vec<u8>> {
    let size = fs::metadata(path).ok()?.len();
    if size > (LIMIT + HEADER) as u64 {
        return None;
    }
    let mut bytes = fs::read(path).ok()?;
    let word = |at: usize| bytes.get(at..at + 8).map(|b| u64::from_le_bytes(b.try_into().expect("8 bytes")));
    let whole =
        bytes.starts_with(MAGIC) && word(8) == Some(key) && word(16) == Some(hash(bytes.get(HEADER..)?));
    whole.then(|| bytes.split_off(HEADER))
}

/// Writes a temporary file and renames it, so that readers see either the old or the new content. Data over
/// the limit is not written.
///
/// # Errors
/// The folder cannot be created, or the file cannot be written.
pub(crate) fn write(path: &Path, key: u64, data: &[u8]) -> io::Result<()> {
    if data.len() > LIMIT {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // Two processes may write at once, and so may two devices of one process.
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}-{}.tmp", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    let temporary = PathBuf::from(name);
    let result = (|| {
        let mut file = fs::File::create(&temporary)?;
        file.write_all(MAGIC)?;
        file.write_all(&key.to_le_bytes())?;
        file.write_all(&hash(data).to_le_bytes())?;
        file.write_all(data)?;
        drop(file);
        fs::rename(&temporary, path)
    })();
    if result.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("orate-gpu-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn what_was_written_is_read() {
        let folder = folder("cache");
        let path = folder.join("deep/vulkan-1-2.pipelines");
        assert_eq!(read(&path, 7), None, "absent");
        for data in [&b"first"[..], b"", b"a longer second"] {
            write(&path, 7, data).expect("writable");
            assert_eq!(read(&path, 7).as_deref(), Some(data));
        }
        assert_eq!(fs::read_dir(folder.join("deep")).expect("is there").count(), 1, "no temporary files");
        fs::remove_dir_all(folder).expect("removable");
    }

    /// Readers see whole files while several threads write, and nothing else remains in the folder.
    #[test]
    fn several_write_at_once() {
        let folder = folder("at-once");
        let path = folder.join("x.pipelines");
        write(&path, 7, &[0; 50_000]).expect("writable");
        std::thread::scope(|s| {
            for byte in 1..5 {
                let path = &path;
                s.spawn(move || {
                    for _ in 0..50 {
                        write(path, 7, &vec![byte; 50_000 + 1000 * usize::from(byte)]).expect("writable");
                        let data = read(path, 7).expect("whole");
                        assert!(data.iter().all(|b| *b == data[0]));
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(&folder).expect("is there").count(), 1, "no temporary files");
        fs::remove_dir_all(folder).expect("removable");
    }

    #[test]
    fn foreign_and_damaged_files_count_as_absent() {
        let folder = folder("damage");
        let path = folder.join("x.pipelines");
        write(&path, 7, b"some data of a driver").expect("writable");
        assert_eq!(read(&path, 8), None, "another driver or other kernels");
        let whole = fs::read(&path).expect("readable");
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).expect("writable");
            assert_eq!(read(&path, 7), None, "cut at {cut}");
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            fs::write(&path, &bytes).expect("writable");
            assert_eq!(read(&path, 7), None, "damaged at {at}");
        }
        fs::remove_dir_all(folder).expect("removable");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let folder = folder("file");
        fs::write(&folder, "a file").expect("writable");
        assert!(write(&folder.join("x"), 1, b"data").is_err());
        fs::remove_file(folder).expect("removable");
    }
}
