//! The real program in a folder of its own: what goes in, what comes out, what it says when something is
//! wrong.

mod bad_input;
mod hostile;
mod interrupt;
mod kept_voices;
#[cfg(feature = "gpu")]
mod kernel_cache;
mod more_families;
mod say;
mod tools;
#[path = "../../../orate-tools/tests/toy/mod.rs"]
mod toy;
mod util;
