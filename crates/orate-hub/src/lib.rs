//! Downloads model repositories from the Hugging Face Hub or a mirror.
//!
//! - **Shared cache.** Files go into the cache of huggingface_hub, in its layout and under its locks, so that
//!   Python programs and this crate find each other's downloads.
//! - **Atomic.** A file gets its name once its checksum matches; a revision points to a snapshot once that is
//!   complete. An interrupted download resumes.
//! - **Hardened.** File names from the hub cannot leave their folder. The token is sent to the endpoint only,
//!   never to redirects. Sizes of answers and waiting times are bounded.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//!
//! let settings = orate_hub::Settings::from_env()?;
//! let hub = orate_hub::Hub::new(&settings)?;
//! let known = orate_hub::known("supertonic-3").expect("it is in the table");
//! let mut watch = |_: &orate_hub::Event<'_>| ControlFlow::Continue(());
//! let plan = hub.plan(&known.repo(), known.files, &orate_hub::Target::Cache, &mut watch)?;
//! hub.fetch(&plan, &mut watch)?;
//! println!("{}", plan.folder.display());
//! # Ok::<(), orate_hub::Error>(())
//! ```

mod cache;
mod error;
mod http;
mod known;
mod list;
mod name;
mod named;
mod part;
mod pull;
mod settings;

pub use cache::Cache;
pub use error::{Error, ErrorKind, Result};
pub use known::{Found, KNOWN, Known, default_files, known, missing};
pub use name::Repo;
pub use named::{Named, model_path};
pub use pull::{File, Hub, Plan, Target};
pub use settings::{Patience, Settings};

use std::ops::ControlFlow;
use std::time::Duration;

/// What a download reports while it runs.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Bytes arrived.
    Progress {
        /// Their file.
        file: &'a str,
        /// Bytes downloaded so far, of all files.
        done: u64,
        /// Bytes to download, of all files.
        total: u64,
    },
    /// The network failed, or another process has the file.
    Waiting {
        /// Reason.
        why: &'a str,
        /// Time until the next try; `None` until the other process is done.
        wait: Option<Duration>,
    },
    /// Nothing new; sent while waiting.
    Tick,
}

/// Receives events. `Break` ends the download; a later one resumes it.
pub type Watch<'a> = dyn FnMut(&Event<'_>) -> ControlFlow<()> + 'a;
