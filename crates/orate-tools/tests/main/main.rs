//! Models compared with goldens, and a family that no crate names, in one program, since linking takes longer
//! than most of these tests.

#[path = "../../../orate/tests/common/mod.rs"]
mod common;
#[path = "../../../orate/tests/toy/mod.rs"]
mod toy;

mod chatterbox;
mod chatterbox_conversion;
mod chatterbox_streams;
mod devices;
mod goldens;
mod quantize;
mod qwen3_generation;
mod toy_family;

/// Fuzz targets limit memory.
#[global_allocator]
static ALLOCATOR: orate_testing::Counting = orate_testing::Counting;
