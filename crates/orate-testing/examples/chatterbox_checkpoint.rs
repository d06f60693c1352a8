//! Writes a Chatterbox checkpoint with random weights: for tests by hand, and for measurements at true sizes.
//!
//! `cargo run --release -p orate-testing --example chatterbox_checkpoint -- FOLDER VARIANT PRESET [DTYPE]`
//!
//! VARIANT is en, mtl, turbo or nano; PRESET is tiny or full; DTYPE is f32, f16 or bf16.

use orate_graph::DType;
use orate_testing::checkpoints::write_chatterbox_as;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, variant, preset, rest @ ..] = &arguments[..] else {
        return Err("usage: chatterbox_checkpoint FOLDER VARIANT PRESET [DTYPE]".into());
    };
    let dtype = match rest.first().map_or("f32", String::as_str) {
        "f32" => DType::F32,
        "f16" => DType::F16,
        "bf16" => DType::BF16,
        other => return Err(format!("dtype `{other}`: expected f32, f16 or bf16").into()),
    };
    write_chatterbox_as(Path::new(folder), variant, preset, dtype)?;
    Ok(())
}
