//! Engines and networks on the CPU, in one program, since linking takes longer than most of these tests.
//! Tests that count what the whole process does, or that fork, are programs of their own beside this folder;
//! GPUs are in `devices/`.

#[path = "../common/broken_row.rs"]
mod broken_row;
#[path = "../common/mod.rs"]
mod common;

mod chatterbox;
mod counters;
mod damaged_models;
mod gguf;
mod harvested_ops;
mod networks;
mod qwen3_batch;
mod qwen3_cloning;
mod qwen3_codec;
mod qwen3_engine;
mod qwen3_sampling;
mod qwen3_speed;
mod qwen3_talker;
mod sound;
mod voice;
