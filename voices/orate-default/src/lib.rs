//! The built-in English voice, packed (GGUF, 8 bit). A crate of its own, so that its 22 MB are compiled once.
//!
//! Origin and license: `PROVENANCE.md` and `LICENSE` in the same folder.

/// The packed voice. `orate_weights::voice_pack` documents its content.
pub static PACKED: &[u8] = include_bytes!("../orate-default.gguf");
