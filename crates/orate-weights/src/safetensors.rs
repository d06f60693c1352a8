//! Safetensors files, mapped into memory.
//!
//!   u64 length of the header │ header: JSON, name → {dtype, shape, data_offsets} │ tensor bytes
//!
//! The format demands that tensors tile the data without gaps; other files are refused. The `safetensors`
//! crate writes such files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use bytes::Bytes;
use orate_files::quoted;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::error::{Fault, malformed, unsupported};
use crate::source::Named;
use crate::tensor::element_count;
use crate::{DType, TensorInfo, TensorRef, WeightError, WeightSource, file};

const FORMAT: &str = "safetensors";

/// An open safetensors file.
#[derive(Debug)]
pub struct SafeTensors {
    origin: String,
    /// The mapped file, if the bytes are not in memory.
    mapping: Option<file::Mapping>,
    data: Bytes,
    tensors: Named<Entry>,
    metadata: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Entry {
    info: TensorInfo,
    start: usize,
    end: usize,
}

impl SafeTensors {
    /// Maps the file and reads its header.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WeightError> {
        let path = path.as_ref();
        let mapping = file::Mapping::open(path)?;
        let file = Self::from_bytes(&path.display().to_string(), mapping.bytes())?;
        Ok(Self { mapping: Some(mapping), ..file })
    }

    /// Reads a file that is in memory already. Error messages call it `origin`.
    pub fn from_bytes(origin: &str, bytes: impl Into<Bytes>) -> Result<Self, WeightError> {
        Self::parse(origin, bytes.into()).map_err(|fault| fault.at(origin, FORMAT))
    }

    /// The free-form `__metadata__` of the header.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    fn parse(origin: &str, bytes: Bytes) -> Result<Self, Fault> {
        let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
            return malformed!("{} bytes are too few for a header", bytes.len());
        };
        let length = u64::from_le_bytes(*length);
        let Some(header) = usize::try_from(length).ok().and_then(|n| rest.get(..n)) else {
            return malformed!("the header should have {length} bytes, but only {} follow", rest.len());
        };
        let header: Header = match std::str::from_utf8(header) {
            Err(e) => return malformed!("the header is not UTF-8: {e}"),
            Ok(text) => match serde_json::from_str(text) {
                Err(e) => return malformed!("in the header: {e}"),
                Ok(header) => header,
            },
        };
        let data = bytes.slice(8 + length as usize..);

        let mut tensors = Named::new();
        let mut spans = Vec::with_capacity(header.tensors.len());
        for (name, raw) in header.tensors {
            let entry = raw.check(&name, data.len())?;
            spans.push((entry.start, entry.end));
            if let Err(name) = tensors.insert(name, entry) {
                return malformed!("two tensors are named {name}", name = quoted(&name));
            }
        }
        spans.sort_unstable();
        let mut end = 0;
        for (start, stop) in spans {
            if start != end {
                return malformed!("tensor data has a gap or an overlap at byte {}", end.min(start));
            }
            end = stop;
        }
        if end != data.len() {
            return malformed!("{} bytes after the last tensor", data.len() - end);
        }
        Ok(Self { origin: origin.to_owned(), mapping: None, data, tensors, metadata: header.metadata })
    }
}

impl WeightSource for SafeTensors {
    fn get(&self, name: &str) -> Result<TensorRef<'_>, WeightError> {
        let entry = self.tensors.get(name).ok_or_else(|| self.missing(name))?;
        let bytes = &self.data[entry.start..entry.end];
        Ok(TensorRef::new(entry.info.dtype, entry.info.shape.clone(), bytes).expect("checked when opened"))
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.names()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        Some(self.tensors.get(name)?.info.clone())
    }

    fn describe(&self) -> String {
        self.origin.clone()
    }

    fn release(&self, name: &str) {
        if let (Some(mapping), Some(entry)) = (&self.mapping, self.tensors.get(name)) {
            let header = mapping.len() - self.data.len();
            mapping.release(header + entry.start..header + entry.end);
        }
    }
}

/// The header as written. A list instead of a map, to detect repeated names.
#[derive(Default)]
struct Header {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(String, RawEntry)>,
}

#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl RawEntry {
    fn check(self, name: &str, available: usize) -> Result<Entry, Fault> {
        let dtype = match self.dtype.as_str() {
            "F32" => DType::F32,
            "F64" => DType::F64,
            "F16" => DType::F16,
            "BF16" => DType::BF16,
            "I64" => DType::I64,
            "I32" => DType::I32,
            "U8" | "BOOL" => DType::U8,
            other => return unsupported!("tensor {} has dtype {}", quoted(name), quoted(other)),
        };
        let (start, end) = self.data_offsets;
        if start > end || end > available as u64 {
            return malformed!(
                "tensor {name} is at {start}..{end}, but there are {available} bytes of data",
                name = quoted(name)
            );
        }
        let (start, end) = (start as usize, end as usize);
        let shape: Option<Vec<usize>> = self.shape.iter().map(|&n| usize::try_from(n).ok()).collect();
        let wanted = shape
            .as_deref()
            .and_then(element_count)
            .and_then(|n| dtype.bytes_for(n))
            .filter(|&n| n == end - start);
        match (shape, wanted) {
            (Some(shape), Some(_)) => Ok(Entry { info: TensorInfo { dtype, shape }, start, end }),
            _ => malformed!(
                "tensor {name}, {dtype} {:?}, does not fill its {} bytes",
                self.shape,
                end - start,
                name = quoted(name)
            ),
        }
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;

        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensor descriptions")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut header = Header::default();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        header.metadata = map.next_value()?;
                    } else {
                        header.tensors.push((name, map.next_value()?));
                    }
                }
                Ok(header)
            }
        }

        deserializer.deserialize_map(HeaderVisitor)
    }
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::{Dtype, TensorView};

    use super::*;
    use crate::WeightErrorKind;

    fn sample() -> Vec<u8> {
        let f32s: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let i64s: Vec<u8> = [-1i64, 1 << 40].iter().flat_map(|v| v.to_le_bytes()).collect();
        let view = |dtype, shape: &[usize], bytes| TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
        let tensors = [
            ("weight", view(Dtype::F32, &[2, 3], &f32s)),
            ("ids", view(Dtype::I64, &[2], &i64s)),
            ("half", view(Dtype::F16, &[3], &[0, 0x3c, 0, 0x40, 0, 0x42])),
            ("scalar", view(Dtype::BF16, &[], &[0x80, 0x3f])),
            ("empty", view(Dtype::U8, &[0, 4], &[])),
        ];
        let metadata = [("format".to_owned(), "pt".to_owned())].into_iter().collect();
        safetensors::serialize(tensors, Some(metadata)).unwrap()
    }

    /// A file with this header and `len` bytes of data.
    fn with_header(header: &str, len: usize) -> Result<SafeTensors, WeightError> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + len, 0);
        SafeTensors::from_bytes("test", bytes)
    }

    #[test]
    fn reads_what_the_official_crate_writes() {
        let file = SafeTensors::from_bytes("test", sample()).unwrap();
        assert_eq!(file.metadata()["format"], "pt");
        assert_eq!(file.names().len(), 5);
        assert_eq!(file.get("weight").unwrap().shape, [2, 3]);
        assert_eq!(file.get("weight").unwrap().to_f32(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(file.get("ids").unwrap().to_f32(), [-1.0, (1u64 << 40) as f32]);
        assert_eq!(file.get("half").unwrap().to_f32(), [1.0, 2.0, 3.0]);
        assert_eq!(file.get("scalar").unwrap().to_f32(), [1.0]);
        assert_eq!(file.info("empty").unwrap(), TensorInfo { dtype: DType::U8, shape: vec![0, 4] });
        let error = file.get("weigth").unwrap_err();
        assert_eq!(error.kind(), WeightErrorKind::Missing);
        assert_eq!(error.to_string(), "test: no tensor named `weigth` (the closest is `weight`)");
    }

    #[test]
    fn refuses_broken_headers() {
        let cases = [
            ("", 0, "EOF"),
            ("[]", 0, "expected an object"),
            (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,9]}}"#, 9, "does not fill"),
            (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 7, "bytes of data"),
            (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#, 8, "bytes of data"),
            (r#"{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}"#, 8, "invalid value"),
            (
                r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,0]}}"#,
                0,
                "does not fill",
            ),
            (r#"{"a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}"#, 1, "F8_E4M3"),
            (r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#, 3, "after the last"),
            (
                r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#,
                3,
                "overlap",
            ),
            (
                r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#,
                2,
                "two tensors",
            ),
        ];
        for (header, len, expected) in cases {
            let message = with_header(header, len).expect_err(header).to_string();
            assert!(message.contains(expected), "{header}: {message}");
        }
        let huge = SafeTensors::from_bytes("test", vec![0xff; 20]).unwrap_err().to_string();
        assert!(huge.contains("18446744073709551615"), "{huge}");
        let mut not_text = 2u64.to_le_bytes().to_vec();
        not_text.extend([0xc3, 0x28]);
        assert!(SafeTensors::from_bytes("test", not_text).unwrap_err().to_string().contains("UTF-8"));
    }

    #[test]
    fn opens_a_mapped_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        std::fs::write(&path, sample()).unwrap();
        let file = SafeTensors::open(&path).unwrap();
        assert_eq!(file.get("half").unwrap().to_f32(), [1.0, 2.0, 3.0]);
        std::fs::write(dir.path().join("empty"), b"").unwrap();
        assert_eq!(
            SafeTensors::open(dir.path().join("empty")).unwrap_err().kind(),
            WeightErrorKind::Malformed
        );
        assert_eq!(SafeTensors::open(dir.path().join("nothing")).unwrap_err().kind(), WeightErrorKind::Io);
        assert_eq!(SafeTensors::open(dir.path()).unwrap_err().kind(), WeightErrorKind::Io);
    }

    #[test]
    fn survives_damage() {
        let valid = sample();
        let header = valid.len() - 60;
        crate::hostile::survives(&valid, header, 1, 20_000, |bytes| {
            let file = SafeTensors::from_bytes("damaged", bytes)?;
            for name in file.names() {
                let _ = file.get(name)?.to_f32();
            }
            Ok(())
        });
    }

    /// Kilobytes of files that this process has in memory.
    #[cfg(target_os = "linux")]
    fn resident_files() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("RssFile:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn a_released_tensor_is_read_again() {
        let numbers: Vec<u8> = (0..8 << 20).map(|i: u32| (i / 4 % 251) as u8).collect();
        let view = |bytes| TensorView::new(Dtype::U8, vec![8 << 20], bytes).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        safetensors::serialize_to_file([("a", view(&numbers)), ("b", view(&numbers))], None, &path).unwrap();
        let file = SafeTensors::open(&path).unwrap();
        let sum = |name: &str| file.get(name).unwrap().to_f32().iter().sum::<f32>();
        let first = (sum("a"), sum("b"));
        #[cfg(target_os = "linux")]
        let before = resident_files();
        file.release("a");
        file.release("not there");
        #[cfg(target_os = "linux")]
        assert!(before - resident_files() > 7 << 10, "{before} kB became {}", resident_files());
        assert_eq!((sum("a"), sum("b")), first);
        // What was never a mapping stays as it is.
        let bytes = SafeTensors::from_bytes("memory", std::fs::read(&path).unwrap()).unwrap();
        bytes.release("a");
        assert_eq!(bytes.get("a").unwrap().to_f32().iter().sum::<f32>(), first.0);
    }
}
