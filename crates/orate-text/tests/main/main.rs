//! Tests of the text front ends.

mod chatterbox_goldens;
mod english;
mod qwen_goldens;
mod script;
mod spans;
mod supertonic_goldens;
