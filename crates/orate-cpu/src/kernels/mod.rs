//! One op per file: formula, plain version, fast version, tests.
pub mod activation;
pub mod vecmath;
