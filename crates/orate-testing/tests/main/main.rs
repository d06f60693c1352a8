//! The tools of tests, tested themselves.

mod circles;
mod executors;
mod interpreter;
mod passes;
