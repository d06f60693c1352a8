//! A cloned voice as a file, so that its recording is listened to once.
//!
//! ```text
//! safetensors   metadata   format      orate-voice
//!                          version     1
//!                          family      qwen3-tts
//!                          transcript  the words of the recording, if they are known
//!               x_vector   f32 [D]     D is the width of the models that it fits
//!               codes      i32 [N]     frame after frame, N = F · Q; there if the transcript is
//! ```
//!
//! Such a file may come from anywhere: whatever it holds, reading it ends with a voice or an error, and takes no more memory than
//! some copies of a small file.

use super::error::QwenError;
use super::pipeline::{ClonedVoice, Reference};
use orate_weights::{DType, SafeTensors, TensorRef, WeightSource};
use safetensors::tensor::{Dtype, SafeTensorError, TensorView};
use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

/// What `format` says.
const FORMAT: &str = "orate-voice";
/// What `version` says. Readers refuse others.
const VERSION: &str = "1";
/// What `family` says.
const FAMILY: &str = "qwen3-tts";

/// Larger files are no voices: a minute of reference has 48 kB of codes.
const MOST_BYTES: u64 = 4 << 20;
/// Values of an x-vector at most. Released models have 1024 or 2048.
const MOST_WIDTH: usize = 1 << 16;

impl ClonedVoice {
    /// Values of the x-vector: the width of the models that can speak with it.
    pub fn width(&self) -> usize {
        self.x_vector.len()
    }

    /// The voice as the bytes of a file, for [`ClonedVoice::load`].
    ///
    /// # Errors
    /// The voice is none that can be read again: its x-vector is empty or not finite, or its reference lacks words or codes.
    pub fn to_bytes(&self) -> Result<Vec<u8>, QwenError> {
        self.check().map_err(|problem| QwenError::BadVoice { problem })?;
        let x_vector: Vec<u8> = self.x_vector.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut metadata: HashMap<String, String> =
            [("format", FORMAT), ("version", VERSION), ("family", FAMILY)]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into();
        let mut codes: Vec<u8> = vec![];
        if let Some(r) = &self.reference {
            metadata.insert("transcript".to_owned(), r.transcript.clone());
            codes.extend(r.codes.iter().flat_map(|c| c.to_le_bytes()));
        }
        let tensors = one_axis(Dtype::F32, &x_vector).and_then(|x| {
            let mut tensors = vec![("x_vector", x)];
            if self.reference.is_some() {
                tensors.push(("codes", one_axis(Dtype::I32, &codes)?));
            }
            safetensors::serialize(tensors, Some(metadata))
        });
        tensors.map_err(|e| QwenError::BadVoice { problem: e.to_string() })
    }

    /// Reads a voice from a file.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or is something else.
    pub fn load(path: impl AsRef<Path>) -> Result<ClonedVoice, QwenError> {
        let path = path.as_ref();
        let io = |source| QwenError::Io { path: path.to_owned(), source };
        let refused = |problem: String| QwenError::Content { path: path.to_owned(), problem };
        // Opening anything but a file, such as a pipe, might wait for ever.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(refused("not a file; a kept voice is one".to_owned()));
        }
        let mut bytes = vec![];
        let file = std::fs::File::open(path).map_err(io)?;
        file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(refused(format!(
                "larger than {} MB, which no kept voice is; model weights go with --model",
                MOST_BYTES >> 20
            )));
        }
        let file = SafeTensors::from_bytes(&path.display().to_string(), bytes)?;
        let voice = ClonedVoice::from_tensors(&file).map_err(refused)?;
        voice.check().map_err(refused)?;
        Ok(voice)
    }

    fn from_tensors(file: &SafeTensors) -> Result<ClonedVoice, String> {
        let said = |key: &str| file.metadata().get(key).map(String::as_str);
        if said("format") != Some(FORMAT) {
            return Err("not a kept voice; `orate voices add` makes such files".to_owned());
        }
        for (key, known) in [("version", VERSION), ("family", FAMILY)] {
            let got = said(key).unwrap_or("none");
            if got != known {
                return Err(format!("a voice of {key} {got:?}; this program reads {known}"));
            }
        }
        let x_vector = list(file, "x_vector", DType::F32)?.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let reference = match said("transcript") {
            None => None,
            Some(transcript) => {
                let codes = list(file, "codes", DType::I32)?.iter().map(|b| i32::from_le_bytes(*b)).collect();
                Some(Reference { transcript: transcript.to_owned(), codes })
            }
        };
        Ok(ClonedVoice { x_vector, reference })
    }

    /// What a voice for any model has to be. Whether it fits one is found when it speaks.
    fn check(&self) -> Result<(), String> {
        if !(1..=MOST_WIDTH).contains(&self.width()) {
            return Err(format!("its x-vector has {} values, not 1 to {MOST_WIDTH}", self.width()));
        }
        if let Some(i) = self.x_vector.iter().position(|x| !x.is_finite()) {
            return Err(format!("value {i} of its x-vector is {}, not a finite number", self.x_vector[i]));
        }
        let Some(r) = &self.reference else { return Ok(()) };
        if !r.transcript.chars().any(char::is_alphanumeric) {
            return Err("its transcript has no letter or digit".to_owned());
        }
        match r.codes.iter().find(|c| **c < 0) {
            Some(code) => Err(format!("its reference has the code {code}; codes are not negative")),
            None if r.codes.is_empty() => Err("its reference has no codes".to_owned()),
            None => Ok(()),
        }
    }
}

/// A tensor of one axis, of elements of four bytes.
fn one_axis(dtype: Dtype, bytes: &[u8]) -> Result<TensorView<'_>, SafeTensorError> {
    TensorView::new(dtype, vec![bytes.len() / 4], bytes)
}

/// The elements of a tensor of one axis, four bytes each.
fn list<'a>(file: &'a SafeTensors, name: &str, dtype: DType) -> Result<&'a [[u8; 4]], String> {
    let TensorRef { dtype: got, shape, bytes, .. } = file.get(name).map_err(|e| e.to_string())?;
    if got != dtype || shape.len() != 1 {
        return Err(format!("`{name}` is {got} {shape:?}; a kept voice has {dtype} and one axis"));
    }
    Ok(bytes.as_chunks().0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voices() -> [ClonedVoice; 2] {
        let reference = Reference { transcript: "Once, »twice«.\n".to_owned(), codes: (0..32).collect() };
        let x_vector = vec![0.5, -1e-30, 3.0];
        [
            ClonedVoice { x_vector: x_vector.clone(), reference: None },
            ClonedVoice { x_vector, reference: Some(reference) },
        ]
    }

    fn read(folder: &tempfile::TempDir, bytes: &[u8]) -> Result<ClonedVoice, QwenError> {
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
        for voice in voices() {
            let bytes = voice.to_bytes().expect("a whole voice");
            assert_eq!(read(&folder, &bytes).expect("a kept voice"), voice);
        }
    }

    #[test]
    fn damage_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let whole = voices()[1].to_bytes().expect("a whole voice");
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
        let meta = |more: &str| {
            format!(
                r#"{{"__metadata__":{{"format":"orate-voice","version":"1","family":"qwen3-tts"{more}}},"x_vector":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#
            )
        };
        let words = meta(r#","transcript":"a""#);
        let codes = r#","codes":{"dtype":"I32","shape":[2],"data_offsets":[8,16]}}"#;
        let cases = [
            (b"RIFF".to_vec(), "too few for a header"),
            (file("{}", 0, 0), "not a kept voice"),
            (vec![0; (MOST_BYTES + 1) as usize], "larger than 4 MB"),
            (u64::MAX.to_le_bytes().to_vec(), "the header should have"),
            (file(&(meta("") + "}").replace("\"1\"", "\"2\""), 0, 8), "a voice of version \"2\""),
            (file(&(meta("") + "}").replace("qwen3-tts", "other"), 0, 8), "a voice of family \"other\""),
            (file(&(meta("") + "}").replace("F32", "I32"), 0, 8), "a kept voice has f32 and one axis"),
            (file(&(meta("") + "}").replace("[2]", "[1,2]"), 0, 8), "[1, 2]"),
            (file(&(meta("") + "}"), 0xff, 8), "value 0 of its x-vector is NaN"),
            (file(&(words.clone() + "}"), 0, 8), "codes"),
            (file(&(words.clone() + codes), 0, 15), "bytes of data"),
            (
                file(&(words.replace("\"a\"", "\" \"") + codes), 0, 16),
                "its transcript has no letter or digit",
            ),
        ];
        for (bytes, words) in cases {
            let e = read(&folder, &bytes).expect_err(words).to_string();
            assert!(e.contains(words) && e.contains("a.safetensors"), "no `{words}` in: {e}");
        }
        let e = ClonedVoice::load(folder.path()).expect_err("a folder").to_string();
        assert!(e.contains("not a file"), "{e}");
        let negative = Reference { transcript: "a".to_owned(), codes: vec![3, -1] };
        for (x_vector, reference) in [(vec![f32::NAN], None), (vec![], None), (vec![1.0], Some(negative))] {
            let voice = ClonedVoice { x_vector, reference };
            assert!(voice.to_bytes().is_err(), "{voice:?}");
        }
    }
}
