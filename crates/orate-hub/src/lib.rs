//! Downloads repositories of models from the Hugging Face Hub or a mirror of it.
//!
//! - **Shared.** Files go into the cache that huggingface_hub uses, in its layout and under its locks, so
//!   that what a Python program has fetched is there, and the reverse.
//! - **Never half.** A file gets its name when its checksum is that of the hub; a revision points to a
//!   snapshot when that is complete. A download that ends, by a signal, a crash or a broken connection, goes
//!   on where it stopped.
//! - **Careful.** Names from the hub stay in their folder. The token goes to the endpoint only, not to where
//!   it redirects. Sizes of answers and waiting times are bounded.
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
mod part;
mod pull;
mod settings;

pub use cache::Cache;
pub use error::{Error, ErrorKind, Result};
pub use known::{Found, KNOWN, Known, default_files, known, missing};
pub use name::Repo;
pub use pull::{File, Hub, Plan, Target};
pub use settings::{Patience, Settings};

use std::ops::ControlFlow;
use std::time::Duration;

/// What a download reports while it runs.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Bytes have arrived.
    Progress {
        /// The file that they belong to.
        file: &'a str,
        /// Bytes of all files that are there by now, of those that were missing.
        done: u64,
        /// Bytes of all files that were missing.
        total: u64,
    },
    /// The network failed, or another process has the file.
    Waiting {
        /// Reason.
        why: &'a str,
        /// Time until the next try; `None` until the other process is done.
        wait: Option<Duration>,
    },
    /// Nothing new, while it waits.
    Tick,
}

/// Receives events. `Break` ends the download; what is there of a file stays for the next one.
pub type Watch<'a> = dyn FnMut(&Event<'_>) -> ControlFlow<()> + 'a;
