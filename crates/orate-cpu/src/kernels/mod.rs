//! One op per file: formula, plain version, fast version, tests.
pub mod activation;
pub mod depthwise_conv1d;
pub mod elementwise;
pub mod layer_norm;
pub mod vecmath;
pub mod attention;
pub mod rotary;
pub mod gather;
pub mod permute;
pub mod random;
