//! Folders of models, and the plans of their graphs.

mod decoding;
mod files;
mod hostile;
mod joined_layouts;
mod qwen3_files;
mod toy_network;
