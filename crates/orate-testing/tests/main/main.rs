//! Tests of the test tools.

mod executors;
mod interpreter;
mod passes;
