//! Reads the small files of models: settings, tokenizers, voices.

use crate::ModelError;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

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

/// The small files of a model, by their path in its folder: those of a folder, or what one file holds or was
/// converted to.
pub struct SmallFiles {
    folder: PathBuf,
    /// The file that holds some, and these.
    inside: Option<(PathBuf, BTreeMap<String, Vec<u8>>)>,
}

impl SmallFiles {
    /// Those of a folder.
    pub fn of_folder(folder: &Path) -> SmallFiles {
        SmallFiles { folder: folder.to_owned(), inside: None }
    }

    /// Those inside of `file`, and for others, what lies beside it.
    pub fn inside(file: &Path, files: BTreeMap<String, Vec<u8>>) -> SmallFiles {
        let folder = file.parent().unwrap_or(Path::new("")).to_owned();
        SmallFiles { folder, inside: Some((file.to_owned(), files)) }
    }

    fn embedded(&self, name: &str) -> Option<&[u8]> {
        self.inside.as_ref()?.1.get(name).map(|bytes| &bytes[..])
    }

    /// Whether there is such a file.
    pub fn has(&self, name: &str) -> bool {
        self.embedded(name).is_some() || self.folder.join(name).exists()
    }

    /// Where a file is, for messages.
    pub fn path(&self, name: &str) -> PathBuf {
        match &self.inside {
            Some((file, files)) if files.contains_key(name) => {
                PathBuf::from(format!("{} ({name})", file.display()))
            }
            _ => self.folder.join(name),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// As [`read`].
    pub fn read(&self, name: &str) -> Result<Vec<u8>, ModelError> {
        self.embedded(name).map_or_else(|| read(&self.folder.join(name)), |bytes| Ok(bytes.to_vec()))
    }

    /// Names of the files in the folder `folder` of the model, without those of deeper folders.
    pub fn list(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.join(folder)).into_iter().flatten().flatten();
        let mut all: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
        if let Some((_, files)) = &self.inside {
            let inner = |name: &String| {
                let rest = name.strip_prefix(folder)?.strip_prefix('/')?;
                (!rest.contains('/')).then(|| rest.to_owned())
            };
            let inner: Vec<String> = files.keys().filter_map(inner).collect();
            if !inner.is_empty() {
                all = inner;
            }
        }
        all.sort();
        all
    }
}

/// Files of a folder of which a model needs `needed`; of `others`, those that are there.
pub(crate) fn packed_files(folder: &Path, needed: &[&str], others: &[&str]) -> Vec<(String, PathBuf)> {
    let others = others.iter().filter(|name| folder.join(name).exists());
    needed.iter().chain(others).map(|name| ((*name).to_owned(), folder.join(name))).collect()
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
