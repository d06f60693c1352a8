//! Engines on GPUs, and what runs on every device that `ORATE_TEST_DEVICES` names.

#[path = "../common/broken_row.rs"]
#[cfg(any(feature = "cuda", feature = "gpu"))]
mod broken_row;
#[path = "../common/mod.rs"]
mod common;

mod chatterbox;
mod lost;
mod qwen3;
mod qwen3_kv;
mod supertonic;
