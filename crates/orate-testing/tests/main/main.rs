//! Tests of the test tools.

mod circles;
mod executors;
mod interpreter;
mod passes;
mod sampling;
