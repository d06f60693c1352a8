//! One op per file: formula, plain version, fast version, tests.
pub mod activation;
pub mod attention;
pub mod copy;
pub mod depthwise_conv1d;
pub mod elementwise;
pub mod gather;
pub mod layer_norm;
pub mod matmul;
pub mod pad;
pub mod permute;
pub mod random;
pub mod residual_codes;
pub mod rms_norm;
pub mod rotary;
pub mod snake;
pub mod statistics;
pub mod vecmath;
