//! Texts and what becomes of them.

mod english;
mod qwen_goldens;
mod supertonic_goldens;
