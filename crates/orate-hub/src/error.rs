//! The crate's error.

use orate_files::shown;
use std::fmt;
use std::io;
use std::path::Path;

/// Result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A name or a setting of the caller is not valid.
    InvalidInput,
    /// The hub or the cache lacks the repository, revision or file.
    NotFound,
    /// The hub wants a token, or the terms of the repository accepted.
    Refused,
    /// The network or the hub failed, also after several tries.
    Unreachable,
    /// The hub sent wrong or hostile data.
    Damaged,
    /// The file system failed, or is full.
    System,
    /// The caller's callback ended the download.
    Cancelled,
}

/// Why a call failed. The message says what, where, and how to fix it.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }

    /// Wraps errors of the system with their path.
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
        move |error| Error::new(ErrorKind::System, format!("{}: {error}", shown(path)))
    }

    /// Its kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
