//! Chatterbox checkpoints from listings: every weight is a formula of its name and index.
//!
//! `oracle/chatterbox/weights.py` documents formula and listings and computes the same bits for the official
//! code. Variants are `en`, `mtl`, `turbo` and `nano`; presets are `tiny`, whose results are goldens, and
//! `full`, with the released sizes.

use super::repository;
use super::torch_file::{Pickled, write_torch_file};
use crate::random::Random;
use half::{bf16, f16};
use orate_graph::DType;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Seed of all weights, as in `make_checkpoint.py`.
const SEED: u64 = 20_250_601;
/// Elements that a thread computes and writes at once.
const CHUNK: usize = 1 << 20;
/// Rows of the text embedding of released GPT-2 variants, and tags at their end.
const FULL_TEXT_VOCABULARY: usize = 50_276;

/// Folder of the goldens of Chatterbox in the repository; see [`super::qwen3_tts_goldens`].
pub fn chatterbox_goldens() -> PathBuf {
    repository().join("oracle/chatterbox/golden")
}

/// Writes the model folder of `variant` as released: safetensors, built-in voice and tokenizer files.
///
/// `full` writes 3 GB.
///
/// # Errors
/// A file cannot be read or written; variant or preset is unknown.
pub fn write_chatterbox(folder: &Path, variant: &str, preset: &str) -> io::Result<()> {
    write_chatterbox_as(folder, variant, preset, DType::F32)
}

/// [`write_chatterbox`] with weights rounded to `dtype`: `F32`, `F16` or `BF16`.
///
/// # Errors
/// As [`write_chatterbox`]; another `dtype`.
pub fn write_chatterbox_as(folder: &Path, variant: &str, preset: &str, dtype: DType) -> io::Result<()> {
    let (t3, s3gen, texts): (_, _, &[&str]) = match variant {
        "en" => ("t3_cfg", "s3gen", &["tokenizer.json"]),
        "mtl" => ("t3_mtl23ls_v2", "s3gen", &["grapheme_mtl_merged_expanded_v1.json", "Cangjie5_TC.json"]),
        "turbo" => ("t3_turbo_v1", "s3gen_meanflow", &GPT2_TEXTS),
        "nano" => ("t3_nano_v1", "s3gen_meanflow", &GPT2_TEXTS),
        _ => return Err(invalid(format!("variant `{variant}`: expected en, mtl, turbo or nano"))),
    };
    let full = match preset {
        "tiny" => false,
        "full" => true,
        _ => return Err(invalid(format!("preset `{preset}`: expected tiny or full"))),
    };
    std::fs::create_dir_all(folder)?;
    for file in [t3, s3gen, "ve"] {
        write_safetensors(&folder.join(format!("{file}.safetensors")), file, tensors(preset, file)?, dtype)?;
    }
    let small = chatterbox_goldens().join("checkpoints/files");
    for file in texts {
        let mut text = std::fs::read_to_string(small.join(file))?;
        match *file {
            "vocab.json" if full => text = grown_vocabulary(&text),
            "added_tokens.json" if full => text = grown_tags(&text),
            _ => {}
        }
        std::fs::write(folder.join(file), text)?;
    }
    let conds = folder.join("conds.pt");
    if !full {
        return std::fs::copy(small.join("conds.pt"), conds).map(drop);
    }
    let listing = if s3gen == "s3gen" { "conds" } else { "conds-turbo" };
    let mut parts = [("t3", vec![]), ("gen", vec![])];
    for mut tensor in tensors(preset, listing)? {
        let at = usize::from(tensor.name.starts_with("gen."));
        let values = tensor.bytes("conds", DType::F32);
        let name = tensor.name.split_off(tensor.name.find('.').map_or(0, |dot| dot + 1));
        parts[at].1.push((name, Pickled::Tensor(tensor.is_float(), tensor.dims, values)));
    }
    // The official loader needs these entries.
    parts[0].1.extend(["clap_emb", "cond_prompt_speech_emb"].map(|n| (n.to_owned(), Pickled::None)));
    parts[1].1.push(("prompt_feat_len".to_owned(), Pickled::None));
    let dict = parts.map(|(name, part)| (name.to_owned(), Pickled::Dict(part)));
    write_torch_file(&conds, &Pickled::Dict(dict.into()))
}

/// Writes the weights `file` of `preset`, such as `ve` or `s3gen`, as `FILE.pt`: a pickled dictionary of
/// tensors.
///
/// # Errors
/// As [`write_chatterbox`].
pub fn write_chatterbox_pt(folder: &Path, file: &str, preset: &str) -> io::Result<()> {
    let state = tensors(preset, file)?.into_iter().map(|t| {
        let values = t.bytes(file, DType::F32);
        (t.name.clone(), Pickled::Tensor(t.is_float(), t.dims, values))
    });
    write_torch_file(&folder.join(format!("{file}.pt")), &Pickled::Dict(state.collect()))
}

const GPT2_TEXTS: [&str; 5] =
    ["vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json", "tokenizer_config.json"];

fn invalid(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, problem)
}

/// Adds unused entries, and moves the end of text behind them.
fn grown_vocabulary(text: &str) -> String {
    let first = text.find("\"<unused").expect("the tiny vocabulary has unused entries");
    let number = |s: &str| s.chars().take_while(char::is_ascii_digit).collect::<String>();
    let first_id: usize = number(&text[first + 8..]).parse().expect("a number");
    let end = FULL_TEXT_VOCABULARY - TAGS - 1;
    let unused: String = (first_id..end).map(|i| format!("\"<unused{i}>\": {i}, ")).collect();
    format!("{}{unused}\"<|endoftext|>\": {end}}}\n", &text[..first])
}

const TAGS: usize = 19;

/// Moves the ids of the tags to the end of the full vocabulary.
fn grown_tags(text: &str) -> String {
    let mut id = FULL_TEXT_VOCABULARY - TAGS;
    let line = |line: &str| match line.split_once("\": ") {
        None => format!("{line}\n"),
        Some((tag, old)) => {
            id += 1;
            format!("{tag}\": {}{}\n", id - 1, if old.ends_with(',') { "," } else { "" })
        }
    };
    text.lines().map(line).collect()
}

/// One tensor of a listing.
#[derive(Clone, Debug)]
struct Listed {
    name: String,
    /// `F32` or `I64`
    dtype: String,
    dims: Vec<usize>,
    base: f64,
    scale: f64,
}

impl Listed {
    fn is_float(&self) -> bool {
        self.dtype == "F32"
    }

    fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Bytes of an element in a file of `dtype`. Integers stay as they are.
    fn width(&self, dtype: DType) -> usize {
        match (self.is_float(), dtype) {
            (false, _) => 8,
            (true, DType::F32) => 4,
            (true, _) => 2,
        }
    }

    /// Bytes of all elements in a file of `dtype`.
    fn bytes(&self, file: &str, dtype: DType) -> Vec<u8> {
        let mut bytes = vec![];
        self.append(file, 0..self.len(), dtype, &mut bytes);
        bytes
    }

    /// Appends the bytes of some elements.
    fn append(&self, file: &str, elements: std::ops::Range<usize>, dtype: DType, to: &mut Vec<u8>) {
        let mut random = Random::named(SEED, &format!("{file}/{}", self.name));
        random.skip(elements.start as u64);
        let root3 = 3.0_f64.sqrt();
        for _ in elements {
            let u = random.unit();
            if !self.is_float() {
                to.extend((self.base as i64 + (self.scale * u).floor() as i64).to_le_bytes());
                continue;
            }
            let x = (self.base + self.scale * (root3 * (2.0 * u - 1.0))) as f32;
            match dtype {
                DType::F32 => to.extend(x.to_le_bytes()),
                DType::F16 => to.extend(f16::from_f32(x).to_le_bytes()),
                _ => to.extend(bf16::from_f32(x).to_le_bytes()),
            }
        }
    }
}

/// Tensors of a weight file in the order of safetensors files: wide elements first, then by name.
fn tensors(preset: &str, file: &str) -> io::Result<Vec<Listed>> {
    let folder = chatterbox_goldens().join("checkpoints").join(preset);
    let read = |file: &str| std::fs::read_to_string(folder.join(format!("{file}.tensors.txt")));
    let mut listing = read(file)?;
    if file == "s3gen_meanflow" {
        // Only what the standard model lacks is listed.
        listing.push_str(&read("s3gen")?);
    }
    let mut all = vec![];
    listing.lines().for_each(|line| expand(line, &mut all));
    all.sort_by(|a: &Listed, b| (a.is_float(), &a.name).cmp(&(b.is_float(), &b.name)));
    Ok(all)
}

/// Appends the tensors of a line `name dtype shape base scale`. `{a..b}` in the name stands for every number
/// from a to b, `-` for the shape of a scalar.
///
/// # Panics
/// The line, which is part of the repository, is not in this form.
fn expand(line: &str, to: &mut Vec<Listed>) {
    if let Some((head, rest)) = line.split_once('{') {
        let (range, tail) = rest.split_once('}').expect("a closed range");
        let (first, last) = range.split_once("..").expect("two numbers");
        let number = |s: &str| s.parse::<usize>().expect("a number");
        return (number(first)..=number(last)).for_each(|i| expand(&format!("{head}{i}{tail}"), to));
    }
    let [name, dtype, shape, base, scale] = line.split(' ').collect::<Vec<_>>()[..] else {
        panic!("`{line}` is not `name dtype shape base scale`");
    };
    let float = |s: &str| s.parse::<f64>().expect("a number");
    let dims = shape.split('x').filter(|s| *s != "-").map(|n| n.parse().expect("a number")).collect();
    to.push(Listed {
        name: name.to_owned(),
        dtype: dtype.to_owned(),
        dims,
        base: float(base),
        scale: float(scale),
    });
}

/// Writes a safetensors file with all processors.
fn write_safetensors(path: &Path, file: &str, tensors: Vec<Listed>, dtype: DType) -> io::Result<()> {
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Err(invalid(format!("weights in {dtype}: expected f32, f16 or bf16")));
    }
    let (mut header, mut end, mut jobs) = (String::from("{"), 0, vec![]);
    for tensor in &tensors {
        let (start, width) = (end, tensor.width(dtype));
        end += tensor.len() * width;
        let comma = if start > 0 { "," } else { "" };
        let kind = if tensor.is_float() { format!("{dtype:?}") } else { tensor.dtype.clone() };
        header.push_str(&format!(
            "{comma}\"{}\":{{\"dtype\":\"{kind}\",\"shape\":{:?},\"data_offsets\":[{start},{end}]}}",
            tensor.name, tensor.dims
        ));
        for at in (0..tensor.len()).step_by(CHUNK) {
            jobs.push((tensor, at..(at + CHUNK).min(tensor.len()), start + at * width));
        }
    }
    header.push('}');
    // The library of safetensors aligns the data.
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    let data = 8 + header.len();
    let mut out = File::create(path)?;
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    out.set_len((data + end) as u64)?;

    let next = AtomicUsize::new(0);
    let work = || -> io::Result<()> {
        let (mut out, mut bytes) = (File::options().write(true).open(path)?, vec![]);
        while let Some((tensor, elements, at)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            bytes.clear();
            tensor.append(file, elements.clone(), dtype, &mut bytes);
            out.seek(SeekFrom::Start((data + at) as u64))?;
            out.write_all(&bytes)?;
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let team: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        team.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::torch_file::crc32;
    use super::*;

    /// CRC-32 of the data of a file, as Python recorded it.
    fn recorded(what: &str) -> u32 {
        let manifest = chatterbox_goldens().join("checkpoints/manifest.json");
        let manifest = std::fs::read_to_string(manifest).expect("is there");
        let (_, rest) = manifest.split_once(&format!("\"{what}\": \"")).expect("a checksum");
        u32::from_str_radix(&rest[..8], 16).expect("a number")
    }

    /// Checksum of what follows the header.
    fn data_crc32(path: &Path) -> u32 {
        let bytes = std::fs::read(path).expect("is there");
        let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
        crc32(&bytes[8 + header..])
    }

    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("orate-chatterbox-{name}-{}", std::process::id()))
    }

    #[test]
    fn tiny_checkpoints_have_the_bits_that_python_computed() {
        let folder = folder("tiny");
        for variant in ["en", "mtl", "turbo", "nano"] {
            write_chatterbox(&folder, variant, "tiny").expect("room");
        }
        let files = std::fs::read_dir(&folder).expect("a folder").flatten().map(|f| f.path());
        let (mut weights, mut others) = (0, 0);
        for path in files {
            let name = path.file_stem().and_then(|s| s.to_str()).expect("a name");
            if path.extension().is_some_and(|e| e == "safetensors") {
                assert_eq!(data_crc32(&path), recorded(&format!("tiny/{name}")), "{name}");
                weights += 1;
            } else {
                others += 1;
            }
        }
        assert_eq!((weights, others), (7, 9));
        std::fs::remove_dir_all(folder).expect("is there");
    }

    #[test]
    fn full_sizes_come_from_the_same_formula() {
        let folder = folder("full");
        std::fs::create_dir_all(&folder).expect("room");
        let path = folder.join("ve.safetensors");
        write_safetensors(&path, "ve", tensors("full", "ve").expect("is there"), DType::F32).expect("room");
        assert_eq!(data_crc32(&path), recorded("full/ve"));
        std::fs::remove_dir_all(folder).expect("is there");
        for (file, count) in
            [("t3_cfg", 292), ("t3_turbo_v1", 299), ("s3gen", 2488), ("s3gen_meanflow", 2489), ("ve", 16)]
        {
            assert_eq!(tensors("full", file).expect("is there").len(), count, "{file}");
        }
    }

    #[test]
    fn half_precision_is_rounded_from_the_same_numbers() {
        let all = tensors("tiny", "ve").expect("is there");
        let x = all.iter().find(|t| t.name == "proj.weight").expect("is there");
        let (wide, f16s, bf16s) =
            (x.bytes("ve", DType::F32), x.bytes("ve", DType::F16), x.bytes("ve", DType::BF16));
        for i in 0..x.len() {
            let x = f32::from_le_bytes(wide[4 * i..4 * i + 4].try_into().expect("four"));
            assert_eq!(f16::from_f32(x).to_le_bytes(), f16s[2 * i..2 * i + 2]);
            assert_eq!(bf16::from_f32(x).to_le_bytes(), bf16s[2 * i..2 * i + 2]);
        }
    }

    #[test]
    fn texts_grow_to_the_released_vocabulary() {
        let small = chatterbox_goldens().join("checkpoints/files");
        let read = |file: &str| std::fs::read_to_string(small.join(file)).expect("is there");
        let vocabulary = grown_vocabulary(&read("vocab.json"));
        assert_eq!(crc32(vocabulary.as_bytes()), recorded("full/vocab.json"));
        assert_eq!(
            crc32(grown_tags(&read("added_tokens.json")).as_bytes()),
            recorded("full/added_tokens.json")
        );
    }

    #[test]
    fn unknown_names_are_errors() {
        let folder = folder("none");
        for (variant, preset, dtype, words) in [
            ("english", "tiny", DType::F32, "variant `english`"),
            ("en", "small", DType::F32, "preset `small`"),
            ("en", "tiny", DType::I32, "expected f32"),
        ] {
            let e = write_chatterbox_as(&folder, variant, preset, dtype).expect_err("unknown").to_string();
            assert!(e.contains(words), "{e}");
        }
        std::fs::remove_dir_all(folder).expect("the last one made it");
    }
}
