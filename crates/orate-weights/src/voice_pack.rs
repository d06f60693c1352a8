//! Packed voices: one GGUF file with everything that a Supertonic-like voice needs.
//!
//! | key | type | content |
//! | --- | --- | --- |
//! | `general.architecture` | string | `orate-supertonic` |
//! | `general.name`, `general.license` | string | name of the folder; SPDX identifier, if known |
//! | `orate.tts_json` | string | `tts.json`, without white space |
//! | `orate.unicode_indexer` | string | JSON list of ids by code point; trailing −1s are cut off |
//! | `orate.voices` | strings | names of the voices, the default first |
//! | `orate.voice.<NAME>` | string | that voice's style constants: its JSON, without white space |
//! | `orate.license`, `orate.provenance` | string | texts of `LICENSE`, `PROVENANCE.md`, if there |
//!
//! Tensors keep their canonical names:
//!
//! | tensor | dtype | shape |
//! | --- | --- | --- |
//! | dense weights `[out, in]`, `[out, in, k]` with rows of whole blocks of 32 | q8_0 | `[out, in·k]` |
//! | the same under `tts.ae.decoder.embed.` and `tts.ae.decoder.head.` | f16 | as it was |
//! | others with two axes longer than 1: depthwise convolutions, embeddings, style keys | f16 | as it was |
//! | vectors and scalars | f32 | as it was |
//!
//! So a 1×1 convolution is read as `[out, in]`. Blocks run along the input, as matmul kernels need them. The
//! vocoder's `embed` and `head` stay in f16: in q8_0 the loss was audible (estimated MOS 3.68 → 3.53), and
//! both are small. Embeddings are looked up, not multiplied, and small too.

use std::fmt;
use std::path::{Path, PathBuf};

use half::f16;
use orate_files::quoted;
use serde_json::Value;

use crate::error::{Fault, malformed};
use crate::{DType, GgufFile, GgufWriter, SafeTensors, TensorRef, WeightError, WeightSource, q8_0};

/// `general.architecture` of packed voices.
pub const ARCHITECTURE: &str = "orate-supertonic";
/// Metadata key of sizes and settings, as JSON.
pub const TTS_JSON: &str = "orate.tts_json";
/// Metadata key of token ids by code point, as JSON.
pub const UNICODE_INDEXER: &str = "orate.unicode_indexer";
/// Metadata key of the names of the voices.
pub const VOICES: &str = "orate.voices";
/// Prefix of the metadata key of a voice's style constants, as JSON.
pub const VOICE_PREFIX: &str = "orate.voice.";
/// Metadata key of the origin of the weights.
pub const PROVENANCE: &str = "orate.provenance";
/// Metadata key of the text of the license.
pub const LICENSE: &str = "orate.license";

/// Most bytes of a text or JSON file of a voice.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// Kept in `f16`: see the module's table.
const HALF_PRECISION: [&str; 2] = ["tts.ae.decoder.embed.", "tts.ae.decoder.head."];

/// Result of [`pack_voice`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PackReport {
    /// Size of `model.safetensors`.
    pub bytes_in: u64,
    /// Size of the packed file.
    pub bytes_out: u64,
    /// Names of the voices, the default first.
    pub voices: Vec<String>,
    /// Every tensor, in the order of the file.
    pub tensors: Vec<PackedTensor>,
}

/// One tensor of a [`PackReport`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PackedTensor {
    /// Canonical name.
    pub name: String,
    /// Shape as written.
    pub shape: Vec<usize>,
    /// Dtype in the folder.
    pub from: DType,
    /// Dtype as written.
    pub to: DType,
    /// Size as written.
    pub bytes: usize,
    /// Signal to noise in decibels: energy of the tensor over energy of what rounding changed. `None` if
    /// nothing changed.
    pub snr_db: Option<f64>,
}

impl PackReport {
    /// The tensor with the lowest signal-to-noise ratio.
    pub fn worst(&self) -> Option<&PackedTensor> {
        let rounded = self.tensors.iter().filter(|t| t.snr_db.is_some());
        rounded.min_by(|a, b| a.snr_db.partial_cmp(&b.snr_db).unwrap_or(std::cmp::Ordering::Equal))
    }
}

impl fmt::Display for PackReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for dtype in [DType::Q8_0, DType::F16, DType::F32] {
            let of_type = || self.tensors.iter().filter(|t| t.to == dtype);
            let elements: usize = of_type().map(|t| t.shape.iter().product::<usize>()).sum();
            let bytes: usize = of_type().map(|t| t.bytes).sum();
            writeln!(
                f,
                "{dtype:>5}: {:4} tensors, {elements:>9} numbers, {bytes:>9} bytes",
                of_type().count()
            )?;
        }
        if let Some(PackedTensor { name, snr_db: Some(snr), .. }) = self.worst() {
            writeln!(f, "worst: {snr:.1} dB, {name}")?;
        }
        write!(
            f,
            "file:  {} bytes, from {}; voices: {}",
            self.bytes_out,
            self.bytes_in,
            self.voices.join(", ")
        )
    }
}

/// Packs a voice folder into one file.
///
/// The folder holds `model.safetensors`, `tts.json`, `unicode_indexer.json`, and either `voice.json` or
/// `voice_styles/*.json`; `LICENSE` and `PROVENANCE.md` are taken along if they are there. `out` appears
/// whole or not at all.
pub fn pack_voice(folder: &Path, out: &Path) -> Result<PackReport, WeightError> {
    let model_path = folder.join("model.safetensors");
    let model = SafeTensors::open(&model_path)?;
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", ARCHITECTURE);

    let folder_name =
        folder.canonicalize().ok().and_then(|p| Some(p.file_name()?.to_string_lossy().into_owned()));
    writer.set("general.name", folder_name.unwrap_or_else(|| "voice".to_owned()));
    if let Some(license) = optional_text(&folder.join("LICENSE"))? {
        if let Some(identifier) = spdx(&license) {
            writer.set("general.license", identifier);
        }
        writer.set(LICENSE, license);
    }
    if let Some(provenance) = optional_text(&folder.join("PROVENANCE.md"))? {
        writer.set(PROVENANCE, provenance);
    }
    writer.set(TTS_JSON, json(&folder.join("tts.json"))?.to_string());
    writer.set(UNICODE_INDEXER, indexer(&folder.join("unicode_indexer.json"))?);

    let voices = voices(folder)?;
    let names: Vec<String> = voices.iter().map(|(name, _)| name.clone()).collect();
    writer.set(VOICES, names.clone());
    for (name, style) in voices {
        writer.set(&format!("{VOICE_PREFIX}{name}"), style.to_string());
    }

    let mut order = model.names();
    order.sort_unstable(); // the same folder always gives the same file
    let mut tensors = Vec::with_capacity(order.len());
    for name in order {
        let tensor = model.get(name)?;
        let (packed, bytes) = pack_tensor(name, &tensor);
        writer.tensor(name, packed.to, &packed.shape, bytes);
        tensors.push(packed);
    }
    let bytes_out = writer.write(out)?;
    let bytes_in = std::fs::metadata(&model_path).map_err(WeightError::io("inspect", &model_path))?.len();
    Ok(PackReport { bytes_in, bytes_out, voices: names, tensors })
}

/// Dtype and shape of a tensor in the packed file. See the module's table.
fn layout(name: &str, tensor: &TensorRef<'_>) -> (DType, Vec<usize>) {
    let shape = &tensor.shape;
    let as_it_was = shape.clone();
    if !tensor.dtype.is_float() {
        return (tensor.dtype, as_it_was);
    }
    if shape.iter().filter(|&&size| size > 1).count() < 2 {
        return (DType::F32, as_it_was);
    }
    let row: usize = shape[1..].iter().product();
    let depthwise = shape.len() == 3 && shape[1] == 1;
    let dense =
        matches!(shape.len(), 2 | 3) && name.ends_with(".weight") && !name.contains("embedder") && !depthwise;
    let rounds_badly = HALF_PRECISION.iter().any(|prefix| name.starts_with(prefix));
    if dense && !rounds_badly && shape[0] > 1 && row.is_multiple_of(q8_0::BLOCK_LEN) {
        (DType::Q8_0, vec![shape[0], row])
    } else {
        (DType::F16, as_it_was)
    }
}

fn pack_tensor(name: &str, tensor: &TensorRef<'_>) -> (PackedTensor, Vec<u8>) {
    let (to, shape) = layout(name, tensor);
    let values = tensor.to_f32();
    let bytes = match to {
        DType::Q8_0 => q8_0::quantize(&values),
        DType::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        _ => tensor.bytes.to_vec(),
    };
    let back = TensorRef::new(to, shape.clone(), &bytes).expect("just encoded").to_f32();
    let (mut signal, mut noise) = (0.0, 0.0);
    for (&x, &y) in values.iter().zip(&back) {
        signal += f64::from(x).powi(2);
        noise += (f64::from(x) - f64::from(y)).powi(2);
    }
    let snr_db = (noise > 0.0).then(|| 10.0 * (signal / noise).log10());
    (PackedTensor { name: name.to_owned(), shape, from: tensor.dtype, to, bytes: bytes.len(), snr_db }, bytes)
}

fn voices(folder: &Path) -> Result<Vec<(String, Value)>, WeightError> {
    let single = folder.join("voice.json");
    if single.exists() {
        let style = json(&single)?;
        let name = style["metadata"]["name"].as_str().unwrap_or("default").to_owned();
        return Ok(vec![(name, style)]);
    }
    let styles = folder.join("voice_styles");
    let list =
        || -> std::io::Result<Vec<PathBuf>> { std::fs::read_dir(&styles)?.map(|e| Ok(e?.path())).collect() };
    let mut paths = list().map_err(WeightError::io("read `voice.json` or list", &styles))?;
    paths.retain(|path| path.extension().is_some_and(|e| e == "json"));
    paths.sort();
    let name = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    paths.iter().map(|path| Ok((name(path), json(path)?))).collect()
}

/// The indexer without white space and without the −1s at its end.
fn indexer(path: &Path) -> Result<String, WeightError> {
    let bad = |problem: &str| {
        malformed!("{problem}").map_err(|e: Fault| e.at(&path.display().to_string(), "unicode indexer"))
    };
    let Value::Array(mut ids) = json(path)? else {
        return bad("it should be a list of integers");
    };
    if ids.iter().any(|id| !id.is_i64()) {
        return bad("it should hold integers only");
    }
    let used = ids.iter().rposition(|id| id.as_i64() != Some(-1)).map_or(0, |last| last + 1);
    ids.truncate(used);
    Ok(Value::Array(ids).to_string())
}

fn json(path: &Path) -> Result<Value, WeightError> {
    let text = orate_files::read(path, MAX_TEXT_BYTES).map_err(WeightError::io("read", path))?;
    serde_json::from_slice(&text)
        .or_else(|e| malformed!("{e}").map_err(|e: Fault| e.at(&path.display().to_string(), "JSON")))
}

fn optional_text(path: &Path) -> Result<Option<String>, WeightError> {
    match orate_files::read(path, MAX_TEXT_BYTES) {
        Ok(text) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(WeightError::io("read", path)(e)),
    }
}

fn spdx(license: &str) -> Option<&'static str> {
    let known = [("Apache License", "Apache-2.0"), ("MIT License", "MIT"), ("OpenRAIL", "openrail")];
    known.into_iter().find(|(title, _)| license.contains(title)).map(|(_, identifier)| identifier)
}

/// A packed voice, open.
#[derive(Debug)]
pub struct PackedVoice {
    file: GgufFile,
}

impl PackedVoice {
    /// Opens a packed voice.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WeightError> {
        Self::new(GgufFile::open(path)?)
    }

    /// Reads a packed voice that is part of the program. Error messages call it `origin`.
    pub fn from_static(origin: &str, bytes: &'static [u8]) -> Result<Self, WeightError> {
        Self::new(GgufFile::from_static(origin, bytes)?)
    }

    /// Wraps a GGUF file, if it is a packed voice.
    pub fn new(file: GgufFile) -> Result<Self, WeightError> {
        let architecture = file.string("general.architecture")?;
        if architecture != ARCHITECTURE {
            return Err(WeightError::Unsupported {
                origin: file.describe(),
                problem: format!(
                    "architecture {architecture}; a packed voice has `{ARCHITECTURE}`",
                    architecture = quoted(architecture)
                ),
            });
        }
        let voice = Self { file };
        voice.tts_json()?;
        voice.unicode_indexer()?;
        for name in voice.voices()? {
            voice.voice(name)?;
        }
        Ok(voice)
    }

    /// Sizes and settings, as JSON.
    pub fn tts_json(&self) -> Result<&str, WeightError> {
        self.file.string(TTS_JSON)
    }

    /// Token ids by code point, as a JSON list. Code points past its end are unknown.
    pub fn unicode_indexer(&self) -> Result<&str, WeightError> {
        self.file.string(UNICODE_INDEXER)
    }

    /// Names of the voices, the default first.
    pub fn voices(&self) -> Result<&[String], WeightError> {
        self.file.strings(VOICES)
    }

    /// A voice's style constants, as JSON.
    pub fn voice(&self, name: &str) -> Result<&str, WeightError> {
        self.file.string(&format!("{VOICE_PREFIX}{name}"))
    }

    /// The weights, with all metadata.
    pub fn weights(&self) -> &GgufFile {
        &self.file
    }

    /// The weights, by value.
    pub fn into_weights(self) -> GgufFile {
        self.file
    }
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::{Dtype, TensorView};

    use super::*;

    fn ramp(len: usize) -> Vec<u8> {
        (0..len).flat_map(|i| f16::from_f32((i as f32 * 0.7).sin()).to_le_bytes()).collect()
    }

    fn folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let shapes: [(&str, &[usize]); 10] = [
            ("tts.ttl.x.linear.weight", &[8, 64]),
            ("tts.ttl.x.pwconv1.weight", &[4, 32, 1]),
            ("tts.ttl.x.conv.weight", &[4, 16, 2]),
            ("tts.ttl.x.odd.weight", &[4, 33]),
            ("tts.ttl.x.dwconv.weight", &[32, 1, 64]),
            ("tts.ttl.x.char_embedder.weight", &[10, 32]),
            ("tts.ttl.x.gamma", &[1, 32, 1]),
            ("tts.ttl.x.row.weight", &[1, 64]),
            ("tts.ae.decoder.head.layer2.weight", &[4, 32, 1]),
            ("tts.ttl.normalizer.scale", &[]),
        ];
        let data: Vec<Vec<u8>> = shapes.iter().map(|(_, s)| ramp(s.iter().product())).collect();
        let views = shapes
            .iter()
            .zip(&data)
            .map(|((name, shape), data)| (*name, TensorView::new(Dtype::F16, shape.to_vec(), data).unwrap()));
        std::fs::write(dir.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap())
            .unwrap();
        let texts = [
            ("tts.json", r#"{ "sample_rate": 24000 }"#),
            ("unicode_indexer.json", "[-1, 0, -1, 1, -1, -1]"),
            ("voice.json", r#"{"style_dp": {"data": [0.25]}, "metadata": {"name": "ada"}}"#),
            ("LICENSE", "Apache License, Version 2.0"),
        ];
        for (name, text) in texts {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn packs_and_opens_again() {
        let dir = folder();
        let out = dir.path().join("voice.gguf");
        let report = pack_voice(dir.path(), &out).unwrap();
        let voice = PackedVoice::open(&out).unwrap();
        assert_eq!(voice.tts_json().unwrap(), r#"{"sample_rate":24000}"#);
        assert_eq!(voice.unicode_indexer().unwrap(), "[-1,0,-1,1]");
        assert_eq!(voice.voices().unwrap(), ["ada"]);
        assert!(voice.voice("ada").unwrap().contains("0.25"));
        assert!(voice.voice("bob").is_err());
        assert_eq!(voice.weights().string("general.license").unwrap(), "Apache-2.0");
        let cases: [(&str, DType, &[usize]); 10] = [
            ("tts.ttl.x.linear.weight", DType::Q8_0, &[8, 64]),
            ("tts.ttl.x.pwconv1.weight", DType::Q8_0, &[4, 32]),
            ("tts.ttl.x.conv.weight", DType::Q8_0, &[4, 32]),
            ("tts.ttl.x.odd.weight", DType::F16, &[4, 33]),
            ("tts.ttl.x.dwconv.weight", DType::F16, &[32, 1, 64]),
            ("tts.ttl.x.char_embedder.weight", DType::F16, &[10, 32]),
            ("tts.ttl.x.gamma", DType::F32, &[1, 32, 1]),
            ("tts.ttl.x.row.weight", DType::F32, &[1, 64]),
            ("tts.ae.decoder.head.layer2.weight", DType::F16, &[4, 32, 1]),
            ("tts.ttl.normalizer.scale", DType::F32, &[]),
        ];
        let model = SafeTensors::open(dir.path().join("model.safetensors")).unwrap();
        for (name, dtype, shape) in cases {
            let tensor = voice.weights().get(name).unwrap();
            assert_eq!((tensor.dtype, tensor.shape.as_slice()), (dtype, shape), "{name}");
            let original = model.get(name).unwrap().to_f32();
            let limit = if dtype == DType::Q8_0 { 0.5 / 127.0 * 1.01 } else { 0.0 };
            let packed = tensor.to_f32();
            assert!(original.iter().zip(&packed).all(|(a, b)| (a - b).abs() <= limit), "{name}");
        }
        assert_eq!(report.tensors.len(), cases.len());
        assert!(report.worst().unwrap().snr_db.unwrap() > 40.0, "{report}");
        assert_eq!(report.bytes_out, std::fs::metadata(&out).unwrap().len());
    }

    #[test]
    fn the_same_folder_gives_the_same_file() {
        let dir = folder();
        let (a, b) = (dir.path().join("a.gguf"), dir.path().join("b.gguf"));
        pack_voice(dir.path(), &a).unwrap();
        pack_voice(dir.path(), &b).unwrap();
        assert!(std::fs::read(a).unwrap() == std::fs::read(b).unwrap());
    }

    #[test]
    fn several_voices() {
        let dir = folder();
        std::fs::remove_file(dir.path().join("voice.json")).unwrap();
        let error = pack_voice(dir.path(), &dir.path().join("v.gguf")).unwrap_err().to_string();
        assert!(error.contains("voice_styles"), "{error}");
        std::fs::create_dir(dir.path().join("voice_styles")).unwrap();
        for name in ["M1.json", "F1.json", "notes.txt"] {
            std::fs::write(dir.path().join("voice_styles").join(name), "{}").unwrap();
        }
        assert_eq!(pack_voice(dir.path(), &dir.path().join("v.gguf")).unwrap().voices, ["F1", "M1"]);
    }

    #[test]
    fn other_gguf_files_are_not_voices() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.gguf");
        GgufWriter::new().set("general.architecture", "llama").write(&path).unwrap();
        assert!(PackedVoice::open(&path).unwrap_err().to_string().contains("llama"));
        GgufWriter::new().set("general.architecture", ARCHITECTURE).write(&path).unwrap();
        assert!(PackedVoice::open(&path).unwrap_err().to_string().contains(TTS_JSON));
    }
}
