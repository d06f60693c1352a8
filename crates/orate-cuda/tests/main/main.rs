//! Tests of kernels and executor. Those that need a GPU are ignored by default.

#[path = "../common/mod.rs"]
mod common;

mod kernels_compile;
mod ops;
