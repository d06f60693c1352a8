//! The `orate` program: parse, do, report.

mod args;
mod audio_sink;
mod commands;
mod engine_report;
mod failure;
mod input;
mod interrupt;
mod measure;
mod print;
mod progress;

use clap::Parser;
use std::process::ExitCode;

/// Hardware queues that CUDA can set up.
const MOST_QUEUES: u32 = 32;

/// CUDA sets up hardware queues for eight streams at a time when a context is made, and takes them down at the end: 80 ms
/// of a start on an H200. Whoever speaks alone has two streams, one for frames and one for the codec beside them, so two are
/// enough. Of many who speak at once each has a codec of its own, and streams that share a queue wait for each other.
/// Who sets the variable gets what it says.
fn ask_for_queues(utterances: u32) {
    const VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
    if std::env::var_os(VARIABLE).is_none() {
        let queues = utterances.saturating_mul(2).clamp(2, MOST_QUEUES);
        // SAFETY: called by `main` before anything starts a thread, so that none is there to read the environment.
        unsafe { std::env::set_var(VARIABLE, queues.to_string()) };
    }
}

/// Mesa puts a layer into every Vulkan program that asks the window system which GPU it prefers. Without a window system's folder it
/// prints an error to standard error whenever GPUs are listed, and has nothing to say otherwise. Who chooses a GPU by it keeps it.
fn leave_out_mesas_device_selection() {
    let set = |variable: &str| std::env::var_os(variable).is_some();
    if !set("XDG_RUNTIME_DIR") && !set("MESA_VK_DEVICE_SELECT") && !set("NODEVICE_SELECT") {
        // SAFETY: called by `main` before anything starts a thread, so that none is there to read the environment.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}

fn main() -> ExitCode {
    let command = args::Cli::parse().command;
    ask_for_queues(command.utterances());
    leave_out_mesas_device_selection();
    match commands::run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}
