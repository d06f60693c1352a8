//! The built-in English voice, packed (GGUF, 8 bit). A crate of its own, so that its 22 MB are compiled once.
//!
//! Where it comes from and what may be done with it: `PROVENANCE.md` and `LICENSE` beside this crate.

/// The packed voice; `orate_weights::voice_pack` tells what is in it.
pub static PACKED: &[u8] = include_bytes!("../orate-default.gguf");
