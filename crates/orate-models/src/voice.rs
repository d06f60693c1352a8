//! A voice made from a recording, and its file.
//!
//! ```text
//! safetensors   metadata   format    orate-voice
//!                          version   1
//!                          family    tag of the family that made it, such as qwen3-tts
//!                          …         words, such as the transcript of the recording
//!               tensors    f32 or i32, as the family needs them
//! ```
//!
//! Such a file may come from anywhere: whatever it holds, reading it ends with a voice or an error, and takes
//! no more memory than a few copies of a small file. What the tensors have to be is checked by the family
//! that speaks with them.

use crate::ModelError;
use orate_weights::{DType, SafeTensors, TensorRef, WeightSource};
use safetensors::tensor::{Dtype, TensorView};
use std::collections::BTreeMap;
use std::path::Path;

/// Value of `format`.
const FORMAT: &str = "orate-voice";
/// Value of `version`. Readers refuse others.
const VERSION: &str = "1";
/// Keys of the metadata that are not the family's.
const KEYS: [&str; 3] = ["format", "version", "family"];

/// Larger files are no voices: a minute of reference has 48 kB of codes.
const MOST_BYTES: u64 = 4 << 20;

/// A voice made from a recording: what a family's networks computed of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ClonedVoice {
    /// Tag of the family that made it; models of other families refuse it.
    pub family: String,
    /// Words about it, such as `transcript`.
    pub words: BTreeMap<String, String>,
    /// Its tensors by name.
    pub tensors: BTreeMap<String, VoiceTensor>,
}

/// A tensor of a voice.
#[derive(Clone, Debug, PartialEq)]
pub struct VoiceTensor {
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its elements, row-major.
    pub data: VoiceData,
}

/// Elements of a tensor of a voice.
#[derive(Clone, Debug, PartialEq)]
pub enum VoiceData {
    /// Floats, all of them finite.
    F32(Vec<f32>),
    /// Integers, such as codes.
    I32(Vec<i32>),
}

impl VoiceTensor {
    /// Floats along one axis.
    pub fn floats(data: Vec<f32>) -> VoiceTensor {
        VoiceTensor { shape: vec![data.len()], data: VoiceData::F32(data) }
    }

    /// Integers along one axis.
    pub fn integers(data: Vec<i32>) -> VoiceTensor {
        VoiceTensor { shape: vec![data.len()], data: VoiceData::I32(data) }
    }
}

impl ClonedVoice {
    /// A voice without words and tensors.
    pub fn new(family: &str) -> ClonedVoice {
        ClonedVoice { family: family.to_owned(), words: BTreeMap::new(), tensors: BTreeMap::new() }
    }

    /// Floats of a tensor with one axis.
    ///
    /// # Errors
    /// There is no such tensor, or it has other elements or axes.
    pub fn floats(&self, name: &str) -> Result<&[f32], ModelError> {
        match self.tensors.get(name) {
            Some(VoiceTensor { shape, data: VoiceData::F32(data) }) if shape.len() == 1 => Ok(data),
            other => Err(self.lacks(name, "f32", other)),
        }
    }

    /// Integers of a tensor with one axis.
    ///
    /// # Errors
    /// As [`ClonedVoice::floats`].
    pub fn integers(&self, name: &str) -> Result<&[i32], ModelError> {
        match self.tensors.get(name) {
            Some(VoiceTensor { shape, data: VoiceData::I32(data) }) if shape.len() == 1 => Ok(data),
            other => Err(self.lacks(name, "i32", other)),
        }
    }

    fn lacks(&self, name: &str, wanted: &str, got: Option<&VoiceTensor>) -> ModelError {
        let problem = match got {
            None => format!("it has no `{name}`"),
            Some(VoiceTensor { shape, data }) => {
                let is = if let VoiceData::F32(_) = data { "f32" } else { "i32" };
                format!("its `{name}` is {is} {shape:?}, not {wanted} of one axis")
            }
        };
        ModelError::BadVoice { name: None, problem }
    }

    /// Refuses voices of other families.
    ///
    /// # Errors
    /// The voice was made by a model of another family.
    pub fn check_family(&self, tag: &str) -> Result<(), ModelError> {
        if self.family == tag {
            return Ok(());
        }
        let problem = format!("a voice of family {:?}; this model takes those of {tag}", self.family);
        Err(ModelError::BadVoice { name: None, problem })
    }

    /// The voice as the bytes of a file, for [`ClonedVoice::load`] and
    /// [`ClonedVoice::from_bytes`].
    ///
    /// # Errors
    /// The voice could not be read again: a number is not finite, or a shape does not fit its elements.
    pub fn to_bytes(&self) -> Result<Vec<u8>, ModelError> {
        let bad = |problem: String| ModelError::BadVoice { name: None, problem };
        self.check().map_err(bad)?;
        let mut metadata: std::collections::HashMap<String, String> =
            self.words.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        for (key, value) in KEYS.into_iter().zip([FORMAT, VERSION, &self.family]) {
            metadata.insert(key.to_owned(), value.to_owned());
        }
        let bytes = self.tensors.values().map(|t| match &t.data {
            VoiceData::F32(data) => (Dtype::F32, data.iter().flat_map(|x| x.to_le_bytes()).collect()),
            VoiceData::I32(data) => (Dtype::I32, data.iter().flat_map(|x| x.to_le_bytes()).collect()),
        });
        let bytes: Vec<(Dtype, Vec<u8>)> = bytes.collect();
        let views = self.tensors.iter().zip(&bytes).map(|((name, t), (dtype, bytes))| {
            Ok((name.as_str(), TensorView::new(*dtype, t.shape.clone(), bytes)?))
        });
        let views: Result<Vec<_>, safetensors::SafeTensorError> = views.collect();
        views.and_then(|views| safetensors::serialize(views, Some(metadata))).map_err(|e| bad(e.to_string()))
    }

    /// Reads a voice from a file.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or is something else.
    pub fn load(path: impl AsRef<Path>) -> Result<ClonedVoice, ModelError> {
        let path = path.as_ref();
        let hint = "no kept voice is; model weights are no voice";
        Self::read(path, crate::files::read_at_most(path, MOST_BYTES, hint)?)
    }

    /// Reads a voice from the bytes of a file. `name` stands for its path in errors.
    ///
    /// # Errors
    /// They are damaged, or something else.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<ClonedVoice, ModelError> {
        Self::read(Path::new(name), bytes)
    }

    fn read(path: &Path, bytes: Vec<u8>) -> Result<ClonedVoice, ModelError> {
        let refused = |problem: String| ModelError::Content { path: path.to_owned(), problem };
        let file = SafeTensors::from_bytes(&path.display().to_string(), bytes)?;
        let voice = ClonedVoice::from_tensors(&file).map_err(refused)?;
        voice.check().map_err(refused)?;
        Ok(voice)
    }

    fn from_tensors(file: &SafeTensors) -> Result<ClonedVoice, String> {
        let [format, version, family] = KEYS.map(|key| file.metadata().get(key).map(String::as_str));
        if format != Some(FORMAT) {
            return Err("not a kept voice; `orate voices add` makes such files".to_owned());
        }
        let version = version.unwrap_or("none");
        if version != VERSION {
            return Err(format!("a voice of version {version:?}; this program reads {VERSION}"));
        }
        let Some(family) = family else { return Err("it does not say of which family it is".to_owned()) };
        let mut voice = ClonedVoice::new(family);
        let words = file.metadata().iter().filter(|(key, _)| !KEYS.contains(&key.as_str()));
        voice.words = words.map(|(key, value)| (key.clone(), value.clone())).collect();
        for name in file.names() {
            let TensorRef { dtype, shape, bytes, .. } = file.get(name).map_err(|e| e.to_string())?;
            let words = bytes.as_chunks::<4>().0.iter();
            let data = match dtype {
                DType::F32 => VoiceData::F32(words.map(|b| f32::from_le_bytes(*b)).collect()),
                DType::I32 => VoiceData::I32(words.map(|b| i32::from_le_bytes(*b)).collect()),
                _ => return Err(format!("`{name}` is {dtype} {shape:?}; a kept voice has f32 and i32")),
            };
            voice.tensors.insert(name.to_owned(), VoiceTensor { shape: shape.to_vec(), data });
        }
        Ok(voice)
    }

    /// What a voice of any family has to be.
    fn check(&self) -> Result<(), String> {
        for (name, t) in &self.tensors {
            let len = match &t.data {
                VoiceData::F32(data) => {
                    if let Some(i) = data.iter().position(|x| !x.is_finite()) {
                        return Err(format!("value {i} of its `{name}` is {}, not a finite number", data[i]));
                    }
                    data.len()
                }
                VoiceData::I32(data) => data.len(),
            };
            if len == 0 || t.shape.iter().product::<usize>() != len {
                return Err(format!("its `{name}` has {len} values for the shape {:?}", t.shape));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voice() -> ClonedVoice {
        let mut voice = ClonedVoice::new("toy");
        voice.words.insert("transcript".to_owned(), "Once, »twice«.\n".to_owned());
        voice.tensors.insert("x".to_owned(), VoiceTensor::floats(vec![0.5, -1e-30, 3.0]));
        voice.tensors.insert("codes".to_owned(), VoiceTensor::integers((-2..30).collect()));
        voice
    }

    fn read(folder: &tempfile::TempDir, bytes: &[u8]) -> Result<ClonedVoice, ModelError> {
        let path = folder.path().join("a.safetensors");
        std::fs::write(&path, bytes).expect("the folder is writable");
        ClonedVoice::load(path)
    }

    /// A file with this header and `len` bytes of data, each `fill`.
    fn file(header: &str, fill: u8, len: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + len, fill);
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let bytes = voice().to_bytes().expect("a whole voice");
        assert_eq!(read(&folder, &bytes).expect("a kept voice"), voice());
        assert_eq!(ClonedVoice::from_bytes("the voice", bytes).expect("a kept voice"), voice());
        let e = ClonedVoice::from_bytes("the voice", vec![]).expect_err("no voice").to_string();
        assert!(e.contains("the voice"), "{e}");
        assert_eq!(voice().floats("x").expect("is there"), [0.5, -1e-30, 3.0]);
        for e in [voice().floats("codes").err(), voice().floats("y").err(), voice().integers("x").err()] {
            let e = e.expect("another type").to_string();
            assert!(e.contains("does not fit this model: it"), "{e}");
        }
        let e = voice().check_family("other").expect_err("another family").to_string();
        assert!(e.contains("a voice of family \"toy\""), "{e}");
    }

    #[test]
    fn damage_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let whole = voice().to_bytes().expect("a whole voice");
        for end in 0..whole.len() {
            assert!(read(&folder, &whole[..end]).is_err(), "{end} bytes");
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0xff;
            let _ = read(&folder, &bytes); // another voice or an error, never a panic
        }
    }

    #[test]
    fn other_files_are_refused_with_a_reason() {
        let folder = tempfile::tempdir().expect("a folder");
        let words = r#""format":"orate-voice","version":"1","family":"qwen3-tts""#;
        let x_vector = r#""x_vector":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
        let meta = format!("{{\"__metadata__\":{{{words}}},{x_vector}");
        let whole = format!("{meta}}}");
        let codes = r#","codes":{"dtype":"I32","shape":[2],"data_offsets":[8,16]}}"#;
        let cases = [
            (b"RIFF".to_vec(), "too few for a header"),
            (file("{}", 0, 0), "not a kept voice"),
            (vec![0; (MOST_BYTES + 1) as usize], "larger than 4 MB"),
            (u64::MAX.to_le_bytes().to_vec(), "the header should have"),
            (file(&whole.replace("\"1\"", "\"2\""), 0, 8), "a voice of version \"2\""),
            (file(&whole.replace(",\"family\":\"qwen3-tts\"", ""), 0, 8), "does not say of which family"),
            (file(&whole.replace("\"F32\"", "\"F16\"").replace("[2]", "[4]"), 0, 8), "has f32 and i32"),
            (file(&whole, 0xff, 8), "value 0 of its `x_vector` is NaN"),
            (file(&whole.replace("[2]", "[0]").replace("[0,8]", "[0,0]"), 0, 0), "has 0 values"),
            (file(&(meta.clone() + codes), 0, 15), "bytes of data"),
        ];
        for (bytes, words) in cases {
            let e = read(&folder, &bytes).expect_err(words).to_string();
            assert!(e.contains(words) && e.contains("a.safetensors"), "no `{words}` in: {e}");
        }
        let e = ClonedVoice::load(folder.path()).expect_err("a folder").to_string();
        assert!(e.contains("not a file"), "{e}");
        for t in [VoiceTensor::floats(vec![f32::NAN]), VoiceTensor::floats(vec![])] {
            let mut voice = voice();
            voice.tensors.insert("x".to_owned(), t);
            assert!(voice.to_bytes().is_err(), "{voice:?}");
        }
    }
}
