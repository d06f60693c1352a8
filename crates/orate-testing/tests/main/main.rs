//! The tools of tests, tested themselves.

mod executors;
mod interpreter;
mod passes;
