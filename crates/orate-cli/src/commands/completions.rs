//! `orate completions`: shell completion scripts.

use crate::{args::Cli, print};
use clap::CommandFactory;
use clap_complete::Shell;

/// Print shell completions
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orate completions bash > ~/.local/share/bash-completion/completions/orate
  orate completions zsh > ~/.zfunc/_orate
  orate completions fish > ~/.config/fish/completions/orate.fish")]
pub struct Args {
    /// The shell
    pub shell: Shell,
}

/// Prints the script.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "orate", &mut script);
    print::raw(&String::from_utf8_lossy(&script))
}
