//! Runs the real program in a temporary folder: inputs, outputs, and errors.

mod bad_input;
mod hostile;
mod interrupt;
mod kept_voices;
#[cfg(feature = "gpu")]
mod kernel_cache;
mod more_families;
mod say;
mod tools;
#[path = "../../../orate/tests/toy/mod.rs"]
mod toy;
mod util;
