//! Writes a Qwen3-TTS checkpoint of preset voices at released sizes, with random weights: for measurements.
//!
//! `cargo run --release -p orate-testing --example qwen3_checkpoint -- FOLDER SIZE`
//!
//! SIZE is 0.6b (2.6 GB) or 1.7b (4.6 GB).

use orate_testing::checkpoints::write_released_qwen3_tts;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, size] = &arguments[..] else {
        return Err("usage: qwen3_checkpoint FOLDER SIZE".into());
    };
    Ok(write_released_qwen3_tts(size, Path::new(folder))?)
}
