//! Checkpoints with real names, shapes and types but zero or random weights, for tests of file loading.
//!
//! The repository has listings of checkpoint tensors, one `name dtype shape` per line, as in
//! `talker.model.norm.weight BF16 64` or `decoder.decoder.0.conv.weight F32 96x48x7`.

mod chatterbox;
mod torch_file;

pub use chatterbox::{chatterbox_goldens, write_chatterbox, write_chatterbox_as, write_chatterbox_pt};

use crate::random::Random;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Name, type and shape in a line of a listing.
fn tensor(line: &str) -> (&str, &str, Vec<usize>) {
    let [name, dtype, shape] = line.split(' ').collect::<Vec<_>>()[..] else {
        panic!("`{line}` is not `name dtype shape`");
    };
    (name, dtype, shape.split('x').map(|n| n.parse().expect("a number")).collect())
}

/// Start of a safetensors file with the tensors of a listing, and bytes of all tensors.
fn header(listing: &str) -> (Vec<u8>, usize) {
    let (mut header, mut end) = (String::from("{"), 0);
    for line in listing.lines() {
        let (name, dtype, dims) = tensor(line);
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
    (file, end)
}

/// Returns a safetensors file with the tensors of a listing, all zero.
///
/// # Panics
/// The listing, which is part of the repository, is not in the form above.
pub fn blank_safetensors(listing: &str) -> Vec<u8> {
    let (mut file, bytes) = header(listing);
    file.resize(file.len() + bytes, 0);
    file
}

/// [`blank_safetensors`] with random numbers from −0.1 to 0.1. Norm weights are about 1, and `…usage`
/// tensors, which are divisors, are positive.
///
/// # Panics
/// As [`blank_safetensors`].
pub fn random_safetensors(listing: &str, seed: u64) -> Vec<u8> {
    let (mut file, _) = header(listing);
    for line in listing.lines() {
        let (name, dtype, dims) = tensor(line);
        let (least, most) = range_of(name);
        let floats = Random::named(seed, name).floats(dims.iter().product(), least, most);
        file.extend(bytes_of(&floats, dtype));
    }
    file
}

/// Range of a tensor's random numbers.
fn range_of(name: &str) -> (f32, f32) {
    match name {
        _ if name.ends_with("usage") => (0.01, 0.1),
        _ if name.contains("norm") && name.ends_with("weight") => (0.5, 1.5),
        _ => (-0.1, 0.1),
    }
}

/// Numbers as a type, of which bf16 is the upper half of an f32.
fn bytes_of(floats: &[f32], dtype: &str) -> Vec<u8> {
    let skipped = if dtype == "F32" { 0 } else { 2 };
    floats.iter().flat_map(|x| x.to_le_bytes().into_iter().skip(skipped)).collect()
}

/// Writes a Qwen3-TTS model of preset voices at a released `size`, `0.6b` or `1.7b`, to `folder`. Weights are
/// random and scaled so that values neither vanish nor overflow.
///
/// # Errors
/// There is no such size, or a file cannot be read or written.
pub fn write_released_qwen3_tts(size: &str, folder: &Path) -> io::Result<()> {
    let released = repository().join("oracle/qwen3_tts/released");
    let tiny = qwen3_tts_goldens().join("checkpoints/tiny-base");
    std::fs::create_dir_all(folder.join("speech_tokenizer"))?;
    for (name, at) in [(size, ""), ("speech_tokenizer", "speech_tokenizer/")] {
        std::fs::write(
            folder.join(format!("{at}config.json")),
            std::fs::read(released.join(format!("{name}.json")))?,
        )?;
        let listing = expanded(&std::fs::read_to_string(released.join(format!("{name}.txt")))?);
        write_scaled(&listing, &folder.join(format!("{at}model.safetensors")))?;
    }
    for file in ["generation_config.json", "merges.txt"] {
        std::fs::write(folder.join(file), std::fs::read(tiny.join(file))?)?;
    }
    let json = |file: &str| -> io::Result<serde_json::Value> {
        Ok(serde_json::from_slice(&std::fs::read(tiny.join(file))?)?)
    };
    // Tokens that no text has, so that those after them have their released ids.
    let mut vocab = json("vocab.json")?;
    let tokens = vocab.as_object_mut().expect("an object");
    let tiny_tokens = tokens.len();
    tokens.extend((tiny_tokens..RELEASED_TOKENS).map(|id| (format!("filler{id}"), id.into())));
    std::fs::write(folder.join("vocab.json"), vocab.to_string())?;
    let mut config = json("tokenizer_config.json")?;
    let added = config["added_tokens_decoder"].as_object_mut().expect("an object");
    let moved = |(id, token): (String, serde_json::Value)| {
        let id: usize = id.parse().expect("a number");
        ((id - tiny_tokens + RELEASED_TOKENS).to_string(), token)
    };
    *added = std::mem::take(added).into_iter().map(moved).collect();
    std::fs::write(folder.join("tokenizer_config.json"), config.to_string())
}

/// Entries of the released vocab.json.
const RELEASED_TOKENS: usize = 151_643;

/// A listing in which `{0..N}` in a name stands for each number below N.
fn expanded(listing: &str) -> String {
    let mut all = String::new();
    for line in listing.lines() {
        match line.split_once("{0..").and_then(|(start, rest)| Some((start, rest.split_once('}')?))) {
            Some((start, (count, end))) => (0..count.parse().expect("a number"))
                .for_each(|i: usize| all.push_str(&format!("{start}{i}{end}\n"))),
            None => all.push_str(&format!("{line}\n")),
        }
    }
    all
}

/// Writes a safetensors file tensor by tensor, as [`random_safetensors`] but for the scale of matrices.
fn write_scaled(listing: &str, path: &Path) -> io::Result<()> {
    let mut file = io::BufWriter::new(std::fs::File::create(path)?);
    file.write_all(&header(listing).0)?;
    for line in listing.lines() {
        let (name, dtype, dims) = tensor(line);
        let inputs = dims[1..].iter().product::<usize>().max(1);
        let (least, most) = match range_of(name) {
            any if dims.len() < 2 || name.contains("embed") => any,
            _ => (-(3.0 / inputs as f32).sqrt(), (3.0 / inputs as f32).sqrt()),
        };
        let mut floats = Random::named(1, name).floats(dims.iter().product(), least, most);
        // The last third of the vocabulary are no codes. They are never drawn, so speech does not end.
        if name.ends_with("codec_head.weight") {
            let codes = floats.len() / 3 * 2;
            floats[..codes].iter_mut().for_each(|x| *x *= 3.0);
            floats[codes..].fill(0.0);
        }
        file.write_all(&bytes_of(&floats, dtype))?;
    }
    file.flush()
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
