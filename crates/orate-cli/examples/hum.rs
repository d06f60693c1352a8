//! The program with an additional model family: docs/add-a-model.md.

#[path = "../../orate/tests/toy/mod.rs"]
mod toy;

use orate::{FAMILIES, Family};
use std::process::ExitCode;

static ALL: [&Family; 4] = [toy::HUM, FAMILIES[0], FAMILIES[1], FAMILIES[2]];

fn main() -> ExitCode {
    orate_cli::main(&ALL)
}
