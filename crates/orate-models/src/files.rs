//! Reads the small files of models: settings, tokenizers, voices.

use crate::ModelError;
use std::io::ErrorKind;
use std::path::Path;

/// No settings, tokenizer or voice style comes near this.
const MOST_BYTES: u64 = 64 << 20;

/// Reads a small file of a model.
///
/// # Errors
/// There is no such file, it cannot be read, it is no regular file, or it has more than 64 MB.
pub fn read(path: &Path) -> Result<Vec<u8>, ModelError> {
    read_at_most(path, MOST_BYTES, "no such file of a model is")
}

/// As [`read`], for files of at most `most` bytes. `hint` continues the sentence `larger than 64 MB, which
/// …`.
///
/// # Errors
/// As [`read`].
pub fn read_at_most(path: &Path, most: u64, hint: &str) -> Result<Vec<u8>, ModelError> {
    let refused = |problem: String| ModelError::Content { path: path.to_owned(), problem };
    orate_files::read(path, most).map_err(|source| match source.kind() {
        ErrorKind::InvalidInput => refused("not a file but a folder, pipe or device".to_owned()),
        ErrorKind::FileTooLarge => refused(format!("larger than {} MB, which {hint}", most >> 20)),
        _ => ModelError::Io { path: path.to_owned(), source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_up_to_a_limit_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.json");
        std::fs::write(&file, vec![b' '; 3 << 20]).expect("writable");
        assert_eq!(read(&file).expect("small").len(), 3 << 20);
        let e = read_at_most(&file, 2 << 20, "no test is").expect_err("too large").to_string();
        assert!(e.contains("a.json") && e.contains("larger than 2 MB, which no test is"), "{e}");
        let mut others = vec![folder.path()];
        if cfg!(unix) {
            others.push(Path::new("/dev/zero"));
        }
        for path in others {
            let e = read(path).expect_err("not a file").to_string();
            assert!(e.contains("not a file"), "{e}");
        }
        assert!(matches!(read(&folder.path().join("missing")), Err(ModelError::Io { .. })));
    }
}
