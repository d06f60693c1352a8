//! The `orate` program.
fn main() {}
