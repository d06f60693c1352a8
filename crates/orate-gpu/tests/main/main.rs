//! The executor on a GPU, or on a software rasterizer. What counts memory is a program of its own.

#[path = "../common/mod.rs"]
mod common;

mod lost;
mod ops;
mod session;
