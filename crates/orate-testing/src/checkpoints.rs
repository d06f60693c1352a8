//! Checkpoints with real names, shapes and types but zero or random weights, for tests of file loading.
//!
//! The repository has listings of checkpoint tensors, one `name dtype shape` per line, as in
//! `talker.model.norm.weight BF16 64` or `decoder.decoder.0.conv.weight F32 96x48x7`.

mod chatterbox;
mod torch_file;

pub use chatterbox::{chatterbox_goldens, write_chatterbox, write_chatterbox_as, write_chatterbox_pt};

use crate::random::Random;
use std::io;
use std::path::{Path, PathBuf};

/// Returns a safetensors file with the tensors of a listing, all zero.
///
/// # Panics
/// The listing, which is part of the repository, is not in the form above.
pub fn blank_safetensors(listing: &str) -> Vec<u8> {
    let (mut header, mut end) = (String::from("{"), 0);
    for line in listing.lines() {
        let [name, dtype, shape] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("`{line}` is not `name dtype shape`");
        };
        let dims: Vec<usize> = shape.split('x').map(|n| n.parse().expect("a number")).collect();
        let width = if dtype == "F32" { 4 } else { 2 };
        let start = end;
        end += dims.iter().product::<usize>() * width;
        let comma = if header.len() > 1 { "," } else { "" };
        header.push_str(&format!(
            "{comma}\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{dims:?},\"data_offsets\":[{start},{end}]}}"
        ));
    }
    header.push('}');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.resize(file.len() + end, 0);
    file
}

/// [`blank_safetensors`] with random numbers from −0.1 to 0.1. Norm weights are about 1, and `…usage`
/// tensors, which are divisors, are positive.
///
/// # Panics
/// As [`blank_safetensors`].
pub fn random_safetensors(listing: &str, seed: u64) -> Vec<u8> {
    let mut file = blank_safetensors(listing);
    let elements = |shape: &str| shape.split('x').map(|n| n.parse::<usize>().expect("a number")).product();
    let header = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
    let mut at = 8 + header;
    for line in listing.lines() {
        let [name, dtype, shape] = line.split(' ').collect::<Vec<_>>()[..] else {
            unreachable!("checked above")
        };
        let mut random = Random::named(seed, name);
        let (least, most) = match name {
            _ if name.ends_with("usage") => (0.01, 0.1),
            _ if name.contains("norm") && name.ends_with("weight") => (0.5, 1.5),
            _ => (-0.1, 0.1),
        };
        for x in random.floats(elements(shape), least, most) {
            // bf16 is the upper half of an f32.
            let bytes = &x.to_le_bytes()[if dtype == "F32" { 0 } else { 2 }..];
            file[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
    }
    file
}

/// The repository.
fn repository() -> PathBuf {
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::env::var_os("ORATE_ROOT").map_or_else(here, PathBuf::from)
}

/// Folder of small files of Qwen3-TTS checkpoints in the repository. `ORATE_ROOT` names the repository if the
/// test program runs on another machine than the one it was built on.
pub fn qwen3_tts_goldens() -> PathBuf {
    repository().join("oracle/qwen3_tts/golden")
}

/// Writes a Qwen3-TTS model to `folder`: the configuration of `variant` (`base`, `custom_voice` or
/// `voice_design`) at tiny sizes, its tokenizer, and zero weights.
///
/// # Errors
/// A file cannot be read or written.
pub fn write_qwen3_tts(variant: &str, folder: &Path) -> io::Result<()> {
    write(variant, folder, &blank_safetensors)
}

/// [`write_qwen3_tts`] with random weights: such a model generates noise.
///
/// # Errors
/// A file cannot be read or written.
pub fn write_random_qwen3_tts(variant: &str, folder: &Path, seed: u64) -> io::Result<()> {
    write(variant, folder, &|listing| random_safetensors(listing, seed))
}

fn write(variant: &str, folder: &Path, safetensors: &dyn Fn(&str) -> Vec<u8>) -> io::Result<()> {
    let checkpoints = qwen3_tts_goldens().join("checkpoints");
    let (own, shared) = (checkpoints.join(format!("tiny-{variant}")), checkpoints.join("tiny-base"));
    std::fs::create_dir_all(folder.join("speech_tokenizer"))?;
    let copy = |from: &Path, file: &str| std::fs::write(folder.join(file), std::fs::read(from.join(file))?);
    for file in ["config.json", "generation_config.json"] {
        copy(&own, file)?;
    }
    for file in ["vocab.json", "merges.txt", "tokenizer_config.json", "speech_tokenizer/config.json"] {
        copy(&shared, file)?;
    }
    let weights = |listing: PathBuf, file: &str| {
        std::fs::write(folder.join(file), safetensors(&std::fs::read_to_string(listing)?))
    };
    weights(own.join("tensors.txt"), "model.safetensors")?;
    weights(shared.join("speech_tokenizer/tensors.txt"), "speech_tokenizer/model.safetensors")
}
