//! The commands, one file each.

mod bench;
#[cfg(feature = "books")]
mod book;
mod cache;
mod completions;
mod convert;
mod devices;
mod explain;
mod inspect;
#[cfg(feature = "hub")]
mod models;
mod pack_voice;
#[cfg(feature = "hub")]
pub mod pull;
mod quantize;
mod say;
#[cfg(feature = "server")]
pub mod serve;
mod verify;
mod voices;

use crate::{print, reference};

/// The commands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Speak a text into a file or a pipe
    Say(Box<say::Args>),
    /// Speak a recording again in another voice
    Convert(Box<convert::Args>),
    /// Serve speech over HTTP, with the routes of OpenAI's API
    #[cfg(feature = "server")]
    Serve(Box<serve::Args>),
    /// Download a model
    #[cfg(feature = "hub")]
    Pull(pull::Args),
    /// List known models, and which of them have been pulled
    #[cfg(feature = "hub")]
    Models(models::Args),
    /// List the voices of a model, and keep voices made from recordings
    Voices(voices::Args),
    /// List the devices that models can run on
    Devices(devices::Args),
    /// Show the contents of a model, weight file or voice file
    Inspect(inspect::Args),
    /// Show compiled plans: steps, shapes, FLOPs, bytes and the roofline bound
    Explain(explain::Args),
    /// Time a model
    Bench(bench::Args),
    /// Compare a model with recorded reference values
    Verify(verify::Args),
    /// Put a model into one GGUF file, with weights in blocks
    Quantize(quantize::Args),
    /// Pack a voice folder into one small file
    PackVoice(pack_voice::Args),
    /// Show or clear the compiled GPU kernels on disk
    Cache(cache::Args),
    /// Print shell completions
    Completions(completions::Args),
    /// Print the reference of the command line as Markdown
    #[command(hide = true)]
    Reference,
}

impl Command {
    /// Number of utterances that the command speaks at once.
    pub fn utterances(&self) -> u32 {
        match self {
            Command::Bench(args) => args.utterances(),
            #[cfg(feature = "server")]
            Command::Serve(args) => args.utterances(),
            _ => 1,
        }
    }
}

/// Runs a command.
pub fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Say(args) => say::run(&args),
        Command::Convert(args) => convert::run(&args),
        #[cfg(feature = "server")]
        Command::Serve(args) => serve::run(&args),
        #[cfg(feature = "hub")]
        Command::Pull(args) => pull::run(&args),
        #[cfg(feature = "hub")]
        Command::Models(args) => models::run(&args),
        Command::Voices(args) => voices::run(&args),
        Command::Devices(args) => devices::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Quantize(args) => quantize::run(&args),
        Command::PackVoice(args) => pack_voice::run(&args),
        Command::Cache(args) => cache::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Reference => print::raw(&reference::markdown()),
    }
}
