//! The command line of the `orate` program as a library, so that programs with additional model families get
//! all of it.
//!
//! [`main`] parses the arguments, runs the command and reports the result.

mod ahead;
mod args;
mod audio_sink;
mod cast;
mod commands;
mod delivery;
mod engine_report;
mod failure;
mod input;
mod interrupt;
mod measure;
mod outputs;
mod own_options;
mod player;
mod print;
mod progress;
mod reference;

#[cfg(feature = "hub")]
pub use commands::pull::pull;
#[cfg(feature = "server")]
pub use commands::serve::{
    Background as BackgroundServer, Model as ServedModel, serve_models, serve_options, start_server,
};
pub use failure::UsageError;

use clap::{CommandFactory as _, FromArgMatches as _};
use orate::Family;
#[cfg(feature = "hub")]
use orate_hub::model_path;
use std::ffi::OsString;
use std::process::ExitCode;

/// Path of the model that the user names.
#[cfg(not(feature = "hub"))]
fn model_path(model: &std::path::Path) -> std::io::Result<std::path::PathBuf> {
    Ok(model.to_owned())
}

/// Runs the command line of this process with models of these families. Call it first in `main`, before any
/// thread starts. The options that the families declare become flags of the commands that speak.
pub fn main(families: &'static [&'static Family]) -> ExitCode {
    ExitCode::from(run(families, std::env::args_os()))
}

/// As [`main`], with these arguments, the name of the program included. Returns the exit status; after errors
/// of the command line, and help, the process ends.
pub fn run(families: &'static [&'static Family], args: impl IntoIterator<Item = OsString>) -> u8 {
    own_options::set_families(families);
    let parsed =
        command().try_get_matches_from(args).and_then(|matches| args::Cli::from_arg_matches(&matches));
    let command = parsed.unwrap_or_else(|error| refuse(&error)).command;
    ask_for_queues(command.utterances());
    leave_out_mesas_device_selection();
    commands::run(command).map_or_else(|error| failure::report(&error), |()| 0)
}

/// The command line. Help ends with what this build lacks.
fn command() -> clap::Command {
    let lacking = lacking();
    match &*lacking {
        "" => args::Cli::command(),
        lacking => with_note(args::Cli::command(), lacking),
    }
}

/// Appends a note to the help of a command and of those in it.
fn with_note(command: clap::Command, note: &str) -> clap::Command {
    let help = command.get_after_help().map(|help| format!("{help}\n\n")).unwrap_or_default();
    command.after_help(format!("{help}{note}")).mut_subcommands(|inner| with_note(inner, note))
}

/// Says which features this build lacks, and what they are for. Empty if it has all.
fn lacking() -> String {
    let all = [
        (cfg!(feature = "default-voice"), "the built-in voice (feature `default-voice`)"),
        (cfg!(feature = "hub"), "`orate pull`, `orate models` and names of models (`hub`)"),
        (cfg!(feature = "server"), "`orate serve` (`server`)"),
        (cfg!(feature = "books"), "books (`books`)"),
        (cfg!(feature = "mp3"), ".mp3 (`mp3`)"),
        (cfg!(feature = "opus"), ".opus and .ogg (`opus`)"),
        (cfg!(feature = "aac"), ".aac and .m4b (`aac`)"),
        (cfg!(feature = "cuda"), "CUDA (`cuda`)"),
        (cfg!(feature = "gpu"), "Vulkan, Metal and DX12 (`gpu`)"),
    ];
    let lacking: Vec<&str> = all.iter().filter(|(is_there, _)| !is_there).map(|(_, what)| *what).collect();
    if lacking.is_empty() { String::new() } else { format!("This build lacks {}.", lacking.join(", ")) }
}

/// Ends the process with an error of the command line, or with help. A command that this build lacks is one
/// that it does not know.
fn refuse(error: &clap::Error) -> ! {
    let has_all = cfg!(all(feature = "hub", feature = "server"));
    if error.kind() == clap::error::ErrorKind::InvalidSubcommand && !has_all {
        let _ = error.print();
        print::notes(&[String::new(), lacking()]);
        std::process::exit(error.exit_code());
    }
    error.exit()
}

/// Maximum of hardware queues in CUDA.
const MOST_QUEUES: u32 = 32;

/// Limits CUDA's hardware queues to two for each of `utterances`, unless the environment sets a number.
///
/// CUDA sets up eight queues with each context and tears them down at exit, which takes 80 ms on an H200. An
/// utterance needs two: one for frames, one for the codec that runs concurrently. Streams that share a queue
/// wait for each other.
fn ask_for_queues(utterances: u32) {
    const VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
    if std::env::var_os(VARIABLE).is_none() {
        let queues = utterances.saturating_mul(2).clamp(2, MOST_QUEUES);
        // SAFETY: called by `main` before any thread is started, so nothing else reads the environment.
        unsafe { std::env::set_var(VARIABLE, queues.to_string()) };
    }
}

/// Disables Mesa's device-select layer, which asks the window system for its GPU, unless the user selects a
/// GPU through it.
///
/// Without a window system the layer only prints an error to standard error whenever GPUs are listed.
fn leave_out_mesas_device_selection() {
    let set = |variable: &str| std::env::var_os(variable).is_some();
    if !set("XDG_RUNTIME_DIR") && !set("MESA_VK_DEVICE_SELECT") && !set("NODEVICE_SELECT") {
        // SAFETY: called by `main` before any thread is started, so nothing else reads the environment.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}
