//! Tests of the executor on a GPU or a software rasterizer. Tests that count memory are separate programs.

#[path = "../common/mod.rs"]
mod common;

mod lost;
mod ops;
mod session;
