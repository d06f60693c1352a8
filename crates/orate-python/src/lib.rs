//! The Python package `orate`: engine, audio and voices as classes. `docs/python.md` is its guide.
//!
//! Options of speech come from what the families declare, so a new family needs no change here. Everything
//! that computes runs without the GIL, in `detached::run`, which also notices Ctrl-C.

mod audio;
mod detached;
mod devices;
mod engine;
mod error;
mod options;
mod pull;
mod serve;
mod speech;
mod stream;
mod voice;
mod words;

/// What the package is made of.
#[pyo3::pymodule]
mod _orate {
    #[pymodule_export]
    use crate::audio::{Audio, Plot};
    #[pymodule_export]
    use crate::devices::{Device, devices};
    #[pymodule_export]
    use crate::engine::Engine;
    #[pymodule_export]
    use crate::pull::pull;
    #[pymodule_export]
    use crate::serve::{Server, main, serve};
    #[pymodule_export]
    use crate::stream::{Ahead, Chunk, Stream};
    #[pymodule_export]
    use crate::voice::{Voice, VoiceStore, voices};
    #[pymodule_export]
    use crate::words::{Mark, Word, unpickled};

    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
