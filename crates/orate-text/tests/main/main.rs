//! Tests of the text front ends.

mod english;
mod qwen_goldens;
mod supertonic_goldens;
