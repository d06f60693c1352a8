//! Kernels: each file has one op, or a family of small ones, with formula, reference version, fast version,
//! `OpKernel` and tests. Public for benches and tests only.
pub mod activation;
pub mod attention;
pub mod cache_rows;
pub mod copy;
pub mod depthwise_conv1d;
pub mod elementwise;
pub mod gather;
pub mod harmonic_source;
pub(crate) mod integers;
pub mod layer_norm;
pub mod lstm;
pub mod matmul;
pub mod overlap_add;
pub mod pad;
pub mod permute;
pub mod random;
pub mod residual_codes;
pub mod rms_norm;
pub mod rotary;
pub mod sample;
pub mod segment_mean;
pub mod snake;
pub mod statistics;
pub mod vecmath;
pub mod write_rows;
