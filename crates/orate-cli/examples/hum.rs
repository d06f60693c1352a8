//! The program with an additional model family: docs/add-a-model.md.

#[path = "../../orate/tests/toy/mod.rs"]
mod toy;

use orate::{FAMILIES, Family};
use std::process::ExitCode;

static ALL: [&Family; 3] = [toy::HUM, FAMILIES[0], FAMILIES[1]];

fn main() -> ExitCode {
    orate_cli::main(&ALL)
}
