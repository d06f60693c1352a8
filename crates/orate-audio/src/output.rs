//! Output files with the errors of this crate.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use orate_files::OutputFile;

use crate::error::{AudioError, Result};

/// Starts an output file.
pub(crate) fn create(path: &Path) -> Result<OutputFile> {
    OutputFile::create(path).map_err(|source| AudioError::Create { path: path.to_owned(), source })
}

/// Returns the error for a failed write to `path`.
pub(crate) fn write_error(path: &Path, source: io::Error) -> AudioError {
    AudioError::Write { path: path.to_owned(), source }
}

/// Checks that a file can be written, before time is spent on its content. The check changes nothing. Devices
/// and pipes are not opened, since a reader would take that for the end of the data.
///
/// # Errors
///
/// [`AudioError::Create`] if this is a folder or write-protected, or its folder is missing or may not be
/// written to.
pub fn check_output(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => Ok(()),
        _ => create(path).map(drop),
    }
}

/// Writes a file that appears only when it is complete.
///
/// # Errors
///
/// As for [`check_output`], and [`AudioError::Write`] if the disk is full.
pub fn write_output(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    let path = path.as_ref();
    let output = create(path)?;
    output.sink().write_all(bytes).and_then(|()| output.commit()).map_err(|error| write_error(path, error))
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
