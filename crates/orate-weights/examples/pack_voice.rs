//! Packs a voice folder into one GGUF file:
//!
//! ```sh
//! cargo run --release -p orate-weights --example pack_voice -- FOLDER OUT.gguf
//! ```

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let paths: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [folder, out] = paths.as_slice() else {
        return Err("usage: pack_voice FOLDER OUT.gguf".into());
    };
    let report = orate_weights::voice_pack::pack_voice(folder, out)?;
    for tensor in report.tensors.iter().filter(|t| t.snr_db.is_some()) {
        println!(
            "{:5.1} dB  {:5} {:12} {}",
            tensor.snr_db.unwrap_or_default(),
            tensor.to,
            format!("{:?}", tensor.shape),
            tensor.name
        );
    }
    println!("{report}");
    Ok(())
}
