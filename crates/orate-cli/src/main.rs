//! The `orate` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    orate_cli::main(orate::FAMILIES)
}
