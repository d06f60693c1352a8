//! Checksums, and incomplete files.

use crate::{Error, Result};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Size of the read buffer.
pub(crate) const CHUNK: usize = 256 << 10;

/// Checksum in hexadecimal digits: 64 for a SHA-256, 40 for the id of a git blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sum(String);

impl Sum {
    /// Reads a checksum or an ETag.
    pub(crate) fn parse(text: &str) -> Option<Sum> {
        let digits = text.strip_prefix("W/").unwrap_or(text).trim_matches('"').to_ascii_lowercase();
        let is_sum = matches!(digits.len(), 40 | 64) && digits.bytes().all(|b| b.is_ascii_hexdigit());
        is_sum.then_some(Sum(digits))
    }

    fn hasher(&self, size: u64) -> Hasher {
        match self.0.len() {
            40 => {
                let mut hasher = Sha1::new();
                hasher.update(format!("blob {size}\0"));
                Hasher::Git(hasher)
            }
            _ => Hasher::Sha256(Sha256::new()),
        }
    }

    /// Whether a file has this size and content.
    pub(crate) fn is_of(&self, path: &Path, size: u64) -> bool {
        let check = || -> io::Result<bool> {
            let mut file = orate_files::open(path)?;
            if file.metadata()?.len() != size {
                return Ok(false);
            }
            let mut hasher = self.hasher(size);
            hasher.read(&mut file)?;
            Ok(hasher.finish() == *self)
        };
        check().unwrap_or(false)
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

enum Hasher {
    Git(Sha1),
    Sha256(Sha256),
}

impl Hasher {
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Git(hasher) => hasher.update(bytes),
            Hasher::Sha256(hasher) => hasher.update(bytes),
        }
    }

    /// Reads a file to its end.
    fn read(&mut self, file: &mut File) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK];
        loop {
            match file.read(&mut chunk)? {
                0 => return Ok(()),
                n => self.update(&chunk[..n]),
            }
        }
    }

    fn finish(self) -> Sum {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Sum(match self {
            Hasher::Git(hasher) => hex(&hasher.finalize()),
            Hasher::Sha256(hasher) => hex(&hasher.finalize()),
        })
    }
}

/// An incomplete file. It stays on disk when dropped.
pub(crate) struct Part {
    path: PathBuf,
    file: File,
    size: u64,
    sum: Sum,
    hasher: Hasher,
    have: u64,
    /// Whether it resumes an earlier download.
    pub resumed: bool,
}

impl Part {
    /// Opens or creates the part of a file.
    pub(crate) fn open(path: &Path, size: u64, sum: &Sum) -> Result<Part> {
        let open = || -> io::Result<Part> {
            let mut file =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
            let mut hasher = sum.hasher(size);
            if file.metadata()?.len() > size {
                file.set_len(0)?;
            }
            hasher.read(&mut file)?;
            let have = file.stream_position()?;
            let (path, sum) = (path.to_owned(), sum.clone());
            Ok(Part { path, file, size, sum, hasher, have, resumed: have > 0 })
        };
        open().map_err(Error::at(path))
    }

    /// Bytes on disk.
    pub(crate) fn have(&self) -> u64 {
        self.have
    }

    /// Bytes still to download.
    pub(crate) fn missing(&self) -> u64 {
        self.size - self.have
    }

    /// Appends bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(Error::at(&self.path))?;
        self.hasher.update(bytes);
        self.have += bytes.len() as u64;
        Ok(())
    }

    /// Truncates the file.
    pub(crate) fn restart(&mut self) -> Result<()> {
        let mut clear = || {
            self.file.set_len(0)?;
            self.file.seek(SeekFrom::Start(0))
        };
        clear().map_err(Error::at(&self.path))?;
        (self.hasher, self.have, self.resumed) = (self.sum.hasher(self.size), 0, false);
        Ok(())
    }

    /// Checksum of the file, if it differs from the expected one.
    pub(crate) fn wrong_sum(&mut self) -> Option<Sum> {
        let hasher = std::mem::replace(&mut self.hasher, self.sum.hasher(self.size));
        Some(hasher.finish()).filter(|sum| *sum != self.sum)
    }

    /// Deletes the file.
    pub(crate) fn delete(self) -> Result<()> {
        fs::remove_file(&self.path).map_err(Error::at(&self.path))
    }

    /// Syncs the file and gives it its name.
    pub(crate) fn finish(self, name: &Path) -> Result<()> {
        self.file.sync_data().map_err(Error::at(&self.path))?;
        drop(self.file);
        fs::rename(&self.path, name).map_err(Error::at(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids that `git hash-object` and `sha256sum` print.
    const GIT: &str = "ce013625030ba8dba906f756967f9e9ca394464a";
    const SHA256: &str = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";

    #[test]
    fn sums_are_those_of_git_and_sha256() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hello");
        fs::write(&path, "hello\n").unwrap();
        for sum in [GIT, SHA256] {
            assert!(Sum::parse(sum).unwrap().is_of(&path, 6), "{sum}");
            assert!(!Sum::parse(sum).unwrap().is_of(&path, 5), "{sum}");
        }
        fs::write(&path, "hellp\n").unwrap();
        assert!(!Sum::parse(GIT).unwrap().is_of(&path, 6) && !Sum::parse(SHA256).unwrap().is_of(&path, 6));
        assert_eq!(Sum::parse(&format!("W/\"{}\"", GIT.to_uppercase())), Sum::parse(GIT));
        for bad in ["", "\"d41d8cd98f00b204e9800998ecf8427e\"", &"g".repeat(40), "../../../../../../../../x"]
        {
            assert_eq!(Sum::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn parts_go_on_where_they_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let (path, name) = (folder.path().join("p"), folder.path().join("n"));
        let sum = Sum::parse(SHA256).unwrap();
        Part::open(&path, 6, &sum).unwrap().write(b"hel").unwrap();
        let mut part = Part::open(&path, 6, &sum).unwrap();
        assert!((part.have(), part.missing(), part.resumed) == (3, 3, true));
        part.write(b"lo\n").unwrap();
        assert_eq!(part.wrong_sum(), None);
        part.finish(&name).unwrap();
        assert_eq!((fs::read(&name).unwrap(), path.exists()), (b"hello\n".to_vec(), false));
        fs::write(&path, "longer than it is").unwrap();
        let mut part = Part::open(&path, 6, &sum).unwrap();
        assert!((part.have(), part.resumed) == (0, false));
        part.write(b"hellp\n").unwrap();
        assert!(part.wrong_sum().is_some());
        part.restart().unwrap();
        part.write(b"hello\n").unwrap();
        assert_eq!(part.wrong_sum(), None);
        part.delete().unwrap();
        assert!(!path.exists());
    }
}
