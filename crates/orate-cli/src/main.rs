//! The `orate` program: parse, do, report.

mod args;
mod audio_sink;
mod commands;
mod failure;
mod input;
mod interrupt;
mod measure;
mod print;
mod probes;
mod progress;

use clap::Parser;
use std::process::ExitCode;

/// CUDA sets up hardware queues for eight streams at a time when a context is made, and takes them down at the end: 80 ms
/// of a start on an H200. This program's streams wait for each other anyway, but for that of weights; so two are enough.
/// Who sets the variable gets what it says.
fn ask_for_few_queues() {
    const VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
    if std::env::var_os(VARIABLE).is_none() {
        // SAFETY: called first in `main`, when no other thread is there to read the environment.
        unsafe { std::env::set_var(VARIABLE, "2") };
    }
}

fn main() -> ExitCode {
    ask_for_few_queues();
    match commands::run(args::Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}
