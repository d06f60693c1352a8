//! What can go wrong when weights are read or written.

use std::io;
use std::path::{Path, PathBuf};

use orate_files::{one_line, quoted, shown};

/// A weight file could not be read or written, or does not hold what was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightError {
    /// The operating system refused.
    #[error("cannot {action} {}", shown(path))]
    Io {
        /// What was attempted, such as "open".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The file breaks the rules of its format. It is damaged, truncated, or of another kind.
    #[error("{}: not a valid {format} file: {}", one_line(origin), one_line(problem))]
    Malformed {
        /// The file, or a name for bytes in memory.
        origin: String,
        /// The format that was expected.
        format: &'static str,
        /// The broken rule.
        problem: String,
    },
    /// A pointer file of Git LFS: the repository was cloned without it.
    #[error(
        "{}: this is a pointer of Git LFS, not the file itself; download that, for example with `git lfs \
         pull`",
        shown(path)
    )]
    Pointer {
        /// The file.
        path: PathBuf,
    },
    /// The file is well formed, but uses something that is not implemented.
    #[error("{}: not supported: {}", one_line(origin), one_line(problem))]
    Unsupported {
        /// The file, or a name for bytes in memory.
        origin: String,
        /// The feature.
        problem: String,
    },
    /// No tensor (or metadata key) has this name.
    #[error("{}: no {what} named {}{hint}", one_line(origin), quoted(name))]
    Missing {
        /// The file, or a name for bytes in memory.
        origin: String,
        /// "tensor" or "metadata entry".
        what: &'static str,
        /// The name asked for.
        name: String,
        /// Empty, or a clause that names a similar entry.
        hint: String,
    },
}

/// The kinds of [`WeightError`], to branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WeightErrorKind {
    /// The operating system refused.
    Io,
    /// The file is broken.
    Malformed,
    /// The file uses something that is not implemented.
    Unsupported,
    /// The name is unknown.
    Missing,
}

impl WeightError {
    /// What kind of error this is.
    pub fn kind(&self) -> WeightErrorKind {
        match self {
            Self::Io { .. } => WeightErrorKind::Io,
            Self::Malformed { .. } | Self::Pointer { .. } => WeightErrorKind::Malformed,
            Self::Unsupported { .. } => WeightErrorKind::Unsupported,
            Self::Missing { .. } => WeightErrorKind::Missing,
        }
    }

    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}

/// A fault found by a parser, which does not know the name of its file.
#[derive(Debug)]
pub(crate) enum Fault {
    Malformed(String),
    Unsupported(String),
}

impl Fault {
    pub(crate) fn at(self, origin: &str, format: &'static str) -> WeightError {
        let origin = origin.to_owned();
        match self {
            Self::Malformed(problem) => WeightError::Malformed { origin, format, problem },
            Self::Unsupported(problem) => WeightError::Unsupported { origin, problem },
        }
    }
}

/// A parser's failure: `return malformed!("tensor {} ends early", quoted(name))`.
macro_rules! malformed {
    ($($text:tt)*) => { Err($crate::error::Fault::Malformed(format!($($text)*))) };
}

/// Like `malformed!`, for what is valid but not implemented.
macro_rules! unsupported {
    ($($text:tt)*) => { Err($crate::error::Fault::Unsupported(format!($($text)*))) };
}

pub(crate) use {malformed, unsupported};
