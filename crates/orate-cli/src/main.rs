//! The `orate` program: parse, do, report.

mod args;
mod audio_sink;
mod commands;
mod failure;
mod input;
mod interrupt;
mod measure;
mod print;
mod progress;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match commands::run(args::Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}
