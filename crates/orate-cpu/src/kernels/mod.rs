//! One op per file: formula, plain version, fast version, tests.
pub mod activation;
pub mod depthwise_conv1d;
pub mod elementwise;
pub mod layer_norm;
pub mod vecmath;
pub mod attention;
