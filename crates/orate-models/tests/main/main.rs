//! Folders of models, and the plans of their graphs.

mod decoding;
mod files;
mod hostile;
mod joined_layouts;
mod qwen3_files;
mod toy_network;
mod usual_graphs;

/// Fuzz targets limit memory.
#[global_allocator]
static ALLOCATOR: orate_testing::Counting = orate_testing::Counting;
