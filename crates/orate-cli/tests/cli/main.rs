//! Runs the real program in a temporary folder: inputs, outputs, and errors.

mod bad_input;
#[cfg(feature = "books")]
mod books;
mod hostile;
#[cfg(feature = "hub")]
#[allow(dead_code, reason = "tests of orate-hub use the rest")]
#[path = "../../../orate-hub/tests/hub/imitation.rs"]
mod imitation;
mod interrupt;
mod kept_voices;
#[cfg(feature = "gpu")]
mod kernel_cache;
mod more_families;
mod play;
#[cfg(feature = "hub")]
mod pull;
mod say;
#[cfg(feature = "server")]
mod serve;
mod tools;
#[path = "../../../orate/tests/toy/mod.rs"]
mod toy;
mod util;
