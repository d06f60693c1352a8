//! GGUF files: read (versions 2 and 3) and written (version 3), little-endian.
//!
//! ```text
//! "GGUF" │ u32 version │ u64 tensors │ u64 keys
//! keys:    string name │ u32 type │ value
//! tensors: string name │ u32 axes │ u64 size per axis, FASTEST first │ u32 type │ u64 offset
//! padding to the alignment │ tensor data, each tensor at a multiple of the alignment
//! ```
//!
//! Shapes are reversed here: [`TensorRef`] has the slowest axis first. ggml itself allows only
//! 63 bytes of tensor name and four axes; the format does not ask for that, and some of our names are longer.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;

use bytes::Bytes;
use orate_files::quoted;

use crate::error::{Fault, malformed, unsupported};
use crate::source::Named;
use crate::tensor::element_count;
use crate::{DType, TensorInfo, TensorRef, WeightError, WeightSource, file};

const FORMAT: &str = "GGUF";
const MAGIC: [u8; 4] = *b"GGUF";
const DEFAULT_ALIGNMENT: usize = 32;
/// Metadata key of the alignment.
const ALIGNMENT_KEY: &str = "general.alignment";
/// The limit of ggml is 4, of NumPy 64. No model needs more than this.
const MAX_AXES: u32 = 8;
/// Deepest nesting of arrays. Nobody writes nested arrays, and recursion must end.
const MAX_ARRAY_DEPTH: usize = 4;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant is the type it is named after")]
pub enum GgufValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(GgufArray),
}

/// An array of metadata values of one type.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant is the type it is named after")]
pub enum GgufArray {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<GgufArray>),
}

impl From<&str> for GgufValue {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<String> for GgufValue {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<Vec<String>> for GgufValue {
    fn from(texts: Vec<String>) -> Self {
        Self::Array(GgufArray::String(texts))
    }
}

impl From<u32> for GgufValue {
    fn from(number: u32) -> Self {
        Self::U32(number)
    }
}

// ---- reading
// ---------------------------------------------------------------------------------------------------

/// An open GGUF file.
#[derive(Debug)]
pub struct GgufFile {
    origin: String,
    data: Bytes,
    metadata: Named<GgufValue>,
    tensors: Named<Entry>,
}

#[derive(Debug)]
struct Entry {
    info: TensorInfo,
    start: usize,
    end: usize,
}

impl GgufFile {
    /// Maps the file and reads metadata and tensor descriptions.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WeightError> {
        let path = path.as_ref();
        Self::from_bytes(&path.display().to_string(), file::map(path)?)
    }

    /// Reads a file that is part of the program, without copying it. Error messages call it `origin`.
    pub fn from_static(origin: &str, bytes: &'static [u8]) -> Result<Self, WeightError> {
        Self::from_bytes(origin, Bytes::from_static(bytes))
    }

    /// Reads a file that is in memory already. Error messages call it `origin`.
    pub fn from_bytes(origin: &str, bytes: impl Into<Bytes>) -> Result<Self, WeightError> {
        parse(origin, bytes.into()).map_err(|fault| fault.at(origin, FORMAT))
    }

    /// All metadata, in the order of the file.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &GgufValue)> {
        self.metadata.iter()
    }

    /// A metadata value.
    pub fn value(&self, key: &str) -> Option<&GgufValue> {
        self.metadata.get(key)
    }

    /// A metadata value that must be a string.
    pub fn string(&self, key: &str) -> Result<&str, WeightError> {
        match self.required(key)? {
            GgufValue::String(text) => Ok(text),
            _ => self.wrong_type(key, "a string"),
        }
    }

    /// A metadata value that must be an array of strings.
    pub fn strings(&self, key: &str) -> Result<&[String], WeightError> {
        match self.required(key)? {
            GgufValue::Array(GgufArray::String(texts)) => Ok(texts),
            _ => self.wrong_type(key, "an array of strings"),
        }
    }

    fn required(&self, key: &str) -> Result<&GgufValue, WeightError> {
        self.value(key).ok_or_else(|| WeightError::Missing {
            origin: self.origin.clone(),
            what: "metadata entry",
            name: key.to_owned(),
            hint: String::new(),
        })
    }

    fn wrong_type<T>(&self, key: &str, wanted: &str) -> Result<T, WeightError> {
        malformed!("metadata entry {key} should be {wanted}", key = quoted(key))
            .map_err(|e: Fault| e.at(&self.origin, FORMAT))
    }
}

impl WeightSource for GgufFile {
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
}

fn parse(origin: &str, bytes: Bytes) -> Result<GgufFile, Fault> {
    let mut cursor = Cursor { bytes: &bytes, at: 0 };
    if cursor.array::<4>()? != MAGIC {
        return malformed!("it does not begin with \"GGUF\"");
    }
    match cursor.u32()? {
        2 | 3 => {}
        version if version.swap_bytes() <= 3 => return unsupported!("a big-endian GGUF file"),
        version => return unsupported!("GGUF version {version} (2 and 3 are)"),
    }
    let tensor_count = cursor.u64()?;
    let key_count = cursor.u64()?;

    // Counts may be wrong, so they do not reserve memory.
    let mut metadata = Named::new();
    for _ in 0..key_count {
        let key = cursor.string()?;
        let type_id = cursor.u32()?;
        let value = cursor.value(type_id)?;
        if let Err(key) = metadata.insert(key, value) {
            return malformed!("two metadata entries are named {key}", key = quoted(&key));
        }
    }
    let alignment = match metadata.get(ALIGNMENT_KEY) {
        None => DEFAULT_ALIGNMENT,
        Some(&GgufValue::U32(n)) if n.is_power_of_two() => n as usize,
        Some(other) => return malformed!("the alignment should be a power of two in 32 bits, not {other:?}"),
    };

    let mut described = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..tensor_count {
        let (name, info, offset) = cursor.tensor()?;
        if !names.insert(name.clone()) {
            return malformed!("two tensors are named {name}", name = quoted(&name));
        }
        described.push((name, info, offset));
    }
    drop(names);

    // A file without tensors may end right after the metadata.
    let data_start = cursor.at.next_multiple_of(alignment).min(bytes.len());
    let data = bytes.slice(data_start..);
    let mut tensors = Named::new();
    let mut spans = Vec::with_capacity(described.len());
    for (name, info, offset) in described {
        let size = element_count(&info.shape).and_then(|n| info.dtype.bytes_for(n));
        let span = size.and_then(|size| {
            let start = usize::try_from(offset).ok()?;
            let end = start.checked_add(size)?;
            (end <= data.len() && start.is_multiple_of(alignment)).then_some((start, end))
        });
        let Some((start, end)) = span else {
            let TensorInfo { dtype, shape } = info;
            return malformed!(
                "tensor {name}, {dtype} {shape:?} at offset {offset}, does not fit in {} bytes of data",
                data.len(),
                name = quoted(&name)
            );
        };
        if end > start {
            spans.push((start, end));
        }
        let _ = tensors.insert(name, Entry { info, start, end }); // names are known to be distinct
    }
    spans.sort_unstable();
    if let Some(pair) = spans.windows(2).find(|pair| pair[1].0 < pair[0].1) {
        return malformed!("two tensors overlap at byte {} of the data", pair[1].0);
    }
    Ok(GgufFile { origin: origin.to_owned(), data, metadata, tensors })
}

/// Reads from the front, and checks each read against the rest.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], Fault> {
        if len > self.left() as u64 {
            return malformed!("it ends at byte {}, {len} more are needed at {}", self.bytes.len(), self.at);
        }
        let taken = &self.bytes[self.at..][..len as usize];
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        Ok(self.take(N as u64)?.try_into().expect("take returns what was asked for"))
    }

    fn u32(&mut self) -> Result<u32, Fault> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Fault> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn string(&mut self) -> Result<String, Fault> {
        let at = self.at;
        let len = self.u64()?;
        match std::str::from_utf8(self.take(len)?) {
            Ok(text) => Ok(text.to_owned()),
            Err(e) => malformed!("the string at byte {at} is not UTF-8: {e}"),
        }
    }

    fn bool(&mut self) -> Result<bool, Fault> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => malformed!("a truth value at byte {} is {other}", self.at - 1),
        }
    }

    fn value(&mut self, type_id: u32) -> Result<GgufValue, Fault> {
        Ok(match type_id {
            0 => GgufValue::U8(u8::from_le_bytes(self.array()?)),
            1 => GgufValue::I8(i8::from_le_bytes(self.array()?)),
            2 => GgufValue::U16(u16::from_le_bytes(self.array()?)),
            3 => GgufValue::I16(i16::from_le_bytes(self.array()?)),
            4 => GgufValue::U32(self.u32()?),
            5 => GgufValue::I32(i32::from_le_bytes(self.array()?)),
            6 => GgufValue::F32(f32::from_le_bytes(self.array()?)),
            7 => GgufValue::Bool(self.bool()?),
            8 => GgufValue::String(self.string()?),
            9 => GgufValue::Array(self.values(0)?),
            10 => GgufValue::U64(self.u64()?),
            11 => GgufValue::I64(i64::from_le_bytes(self.array()?)),
            12 => GgufValue::F64(f64::from_le_bytes(self.array()?)),
            other => return malformed!("metadata type {other} at byte {} is unknown", self.at - 4),
        })
    }

    fn values(&mut self, depth: usize) -> Result<GgufArray, Fault> {
        if depth == MAX_ARRAY_DEPTH {
            return unsupported!("metadata arrays nested more than {MAX_ARRAY_DEPTH} deep");
        }
        let type_id = self.u32()?;
        let count = self.u64()?;
        Ok(match type_id {
            0 => GgufArray::U8(self.numbers(count, u8::from_le_bytes)?),
            1 => GgufArray::I8(self.numbers(count, i8::from_le_bytes)?),
            2 => GgufArray::U16(self.numbers(count, u16::from_le_bytes)?),
            3 => GgufArray::I16(self.numbers(count, i16::from_le_bytes)?),
            4 => GgufArray::U32(self.numbers(count, u32::from_le_bytes)?),
            5 => GgufArray::I32(self.numbers(count, i32::from_le_bytes)?),
            6 => GgufArray::F32(self.numbers(count, f32::from_le_bytes)?),
            7 => GgufArray::Bool(self.items(count, Self::bool)?),
            8 => GgufArray::String(self.items(count, Self::string)?),
            9 => GgufArray::Array(self.items(count, |cursor| cursor.values(depth + 1))?),
            10 => GgufArray::U64(self.numbers(count, u64::from_le_bytes)?),
            11 => GgufArray::I64(self.numbers(count, i64::from_le_bytes)?),
            12 => GgufArray::F64(self.numbers(count, f64::from_le_bytes)?),
            other => return malformed!("array type {other} at byte {} is unknown", self.at - 12),
        })
    }

    fn numbers<T, const N: usize>(&mut self, count: u64, decode: fn([u8; N]) -> T) -> Result<Vec<T>, Fault> {
        let bytes = self.take(count.saturating_mul(N as u64))?;
        Ok(bytes.as_chunks().0.iter().map(|&chunk| decode(chunk)).collect())
    }

    fn items<T>(
        &mut self,
        count: u64,
        read: impl Fn(&mut Self) -> Result<T, Fault>,
    ) -> Result<Vec<T>, Fault> {
        (0..count).map(|_| read(self)).collect()
    }

    fn tensor(&mut self) -> Result<(String, TensorInfo, u64), Fault> {
        let name = self.string()?;
        let axes = self.u32()?;
        if axes > MAX_AXES {
            return malformed!("tensor {name} has {axes} axes", name = quoted(&name));
        }
        let mut shape = Vec::with_capacity(axes as usize);
        for _ in 0..axes {
            let size = self.u64()?;
            let Ok(size) = usize::try_from(size) else {
                return malformed!("tensor {name} has an axis of {size}", name = quoted(&name));
            };
            shape.push(size);
        }
        let row = shape.first().copied().unwrap_or(1);
        shape.reverse();
        let dtype = match self.u32()? {
            0 => DType::F32,
            1 => DType::F16,
            8 => DType::Q8_0,
            26 => DType::I32,
            27 => DType::I64,
            30 => DType::BF16,
            other => match ggml_type_name(other) {
                Some(known) => return unsupported!("tensor {name} has type {known}", name = quoted(&name)),
                None => {
                    return malformed!("tensor {name} has the unknown type {other}", name = quoted(&name));
                }
            },
        };
        if !row.is_multiple_of(dtype.block_len()) {
            return malformed!(
                "tensor {name} is {dtype}, but its rows of {row} are not whole blocks",
                name = quoted(&name)
            );
        }
        let offset = self.u64()?;
        Ok((name, TensorInfo { dtype, shape }, offset))
    }
}

/// Types of ggml that are not supported.
fn ggml_type_name(type_id: u32) -> Option<&'static str> {
    Some(match type_id {
        2 => "Q4_0",
        3 => "Q4_1",
        6 => "Q5_0",
        7 => "Q5_1",
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        12 => "Q4_K",
        13 => "Q5_K",
        14 => "Q6_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => return None,
    })
}

// ---- writing
// ---------------------------------------------------------------------------------------------------

/// Collects metadata and tensors, and writes them as a GGUF file.
#[derive(Debug, Default)]
pub struct GgufWriter {
    metadata: Vec<(String, GgufValue)>,
    tensors: Vec<(String, TensorInfo, Vec<u8>)>,
}

impl GgufWriter {
    /// An empty file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a metadata value.
    ///
    /// # Panics
    ///
    /// If the key is taken, or is `general.alignment`: the alignment is 32.
    pub fn set(&mut self, key: &str, value: impl Into<GgufValue>) -> &mut Self {
        assert!(key != ALIGNMENT_KEY && self.metadata.iter().all(|(k, _)| k != key), "key `{key}` is taken");
        self.metadata.push((key.to_owned(), value.into()));
        self
    }

    /// Adds a tensor.
    ///
    /// # Panics
    ///
    /// If the name is taken, the bytes do not fit the shape, the rows of a quantized tensor are not whole
    /// blocks, or the dtype has no GGUF type (`U8`).
    pub fn tensor(&mut self, name: &str, dtype: DType, shape: &[usize], bytes: Vec<u8>) -> &mut Self {
        assert!(self.tensors.iter().all(|(n, ..)| n != name), "tensor `{name}` is there already");
        let size = element_count(shape).and_then(|n| dtype.bytes_for(n));
        let row = shape.last().copied().unwrap_or(1);
        let fits = size == Some(bytes.len()) && row.is_multiple_of(dtype.block_len());
        assert!(
            fits && ggml_type(dtype).is_some(),
            "tensor `{name}`: {} bytes as {dtype} {shape:?}",
            bytes.len()
        );
        self.tensors.push((name.to_owned(), TensorInfo { dtype, shape: shape.to_vec() }, bytes));
        self
    }

    /// Writes the file, replacing an old one in one step. Returns its size in bytes.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<u64, WeightError> {
        file::replace(path.as_ref(), |out| self.write_to(out))
    }

    /// Writes the file's bytes.
    pub fn write_to(&self, out: &mut impl Write) -> std::io::Result<()> {
        let mut header = Vec::new();
        header.extend(MAGIC);
        header.extend(3u32.to_le_bytes());
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_string(&mut header, key);
            put_value(&mut header, value);
        }
        let mut offset = 0;
        for (name, info, bytes) in &self.tensors {
            put_string(&mut header, name);
            header.extend((info.shape.len() as u32).to_le_bytes());
            for &size in info.shape.iter().rev() {
                header.extend((size as u64).to_le_bytes());
            }
            header.extend(ggml_type(info.dtype).expect("checked when added").to_le_bytes());
            header.extend((offset as u64).to_le_bytes());
            offset = (offset + bytes.len()).next_multiple_of(DEFAULT_ALIGNMENT);
        }
        header.resize(header.len().next_multiple_of(DEFAULT_ALIGNMENT), 0);
        out.write_all(&header)?;
        for (_, _, bytes) in &self.tensors {
            out.write_all(bytes)?;
            let padding = bytes.len().next_multiple_of(DEFAULT_ALIGNMENT) - bytes.len();
            out.write_all(&[0; DEFAULT_ALIGNMENT][..padding])?;
        }
        Ok(())
    }
}

fn ggml_type(dtype: DType) -> Option<u32> {
    Some(match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Q8_0 => 8,
        DType::I32 => 26,
        DType::I64 => 27,
        DType::BF16 => 30,
        DType::F64 | DType::U8 => return None,
    })
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &GgufValue) {
    let mut scalar = |type_id: u32, bytes: &[u8]| {
        out.extend(type_id.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        GgufValue::U8(v) => scalar(0, &v.to_le_bytes()),
        GgufValue::I8(v) => scalar(1, &v.to_le_bytes()),
        GgufValue::U16(v) => scalar(2, &v.to_le_bytes()),
        GgufValue::I16(v) => scalar(3, &v.to_le_bytes()),
        GgufValue::U32(v) => scalar(4, &v.to_le_bytes()),
        GgufValue::I32(v) => scalar(5, &v.to_le_bytes()),
        GgufValue::F32(v) => scalar(6, &v.to_le_bytes()),
        GgufValue::Bool(v) => scalar(7, &[u8::from(*v)]),
        GgufValue::U64(v) => scalar(10, &v.to_le_bytes()),
        GgufValue::I64(v) => scalar(11, &v.to_le_bytes()),
        GgufValue::F64(v) => scalar(12, &v.to_le_bytes()),
        GgufValue::String(v) => {
            scalar(8, &[]);
            put_string(out, v);
        }
        GgufValue::Array(v) => {
            scalar(9, &[]);
            put_array(out, v);
        }
    }
}

fn put_array(out: &mut Vec<u8>, array: &GgufArray) {
    fn items<T>(out: &mut Vec<u8>, type_id: u32, items: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
        out.extend(type_id.to_le_bytes());
        out.extend((items.len() as u64).to_le_bytes());
        items.iter().for_each(|item| put(out, item));
    }
    match array {
        GgufArray::U8(v) => items(out, 0, v, |out, x| out.push(*x)),
        GgufArray::I8(v) => items(out, 1, v, |out, x| out.extend(x.to_le_bytes())),
        GgufArray::U16(v) => items(out, 2, v, |out, x| out.extend(x.to_le_bytes())),
        GgufArray::I16(v) => items(out, 3, v, |out, x| out.extend(x.to_le_bytes())),
        GgufArray::U32(v) => items(out, 4, v, |out, x| out.extend(x.to_le_bytes())),
        GgufArray::I32(v) => items(out, 5, v, |out, x| out.extend(x.to_le_bytes())),
        GgufArray::F32(v) => items(out, 6, v, |out, x| out.extend(x.to_le_bytes())),
        GgufArray::Bool(v) => items(out, 7, v, |out, x| out.push(u8::from(*x))),
        GgufArray::String(v) => items(out, 8, v, |out, x| put_string(out, x)),
        GgufArray::Array(v) => items(out, 9, v, put_array),
        GgufArray::U64(v) => items(out, 10, v, |out, x| out.extend(x.to_le_bytes())),
        GgufArray::I64(v) => items(out, 11, v, |out, x| out.extend(x.to_le_bytes())),
        GgufArray::F64(v) => items(out, 12, v, |out, x| out.extend(x.to_le_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WeightErrorKind;

    fn all_values() -> Vec<(&'static str, GgufValue)> {
        let nested = GgufArray::Array(vec![GgufArray::Bool(vec![true, false]), GgufArray::I16(vec![-3])]);
        vec![
            ("u8", GgufValue::U8(200)),
            ("i8", GgufValue::I8(-5)),
            ("u16", GgufValue::U16(60000)),
            ("i16", GgufValue::I16(-6)),
            ("u32", GgufValue::U32(7)),
            ("i32", GgufValue::I32(-8)),
            ("u64", GgufValue::U64(1 << 60)),
            ("i64", GgufValue::I64(-9)),
            ("f32", GgufValue::F32(0.5)),
            ("f64", GgufValue::F64(-0.25)),
            ("bool", GgufValue::Bool(true)),
            ("string", GgufValue::String("grüße".into())),
            ("strings", GgufValue::from(vec!["a".to_owned(), String::new()])),
            ("floats", GgufValue::Array(GgufArray::F32(vec![1.0, 2.0]))),
            ("u64s", GgufValue::Array(GgufArray::U64(vec![1, 2, 3]))),
            ("nested", GgufValue::Array(nested)),
            ("empty", GgufValue::Array(GgufArray::I8(vec![]))),
        ]
    }

    fn sample() -> Vec<u8> {
        let mut writer = GgufWriter::new();
        for (key, value) in all_values() {
            writer.set(key, value);
        }
        let f32s = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let ramp: Vec<f32> = (0..64).map(|i| i as f32).collect();
        writer.tensor("matrix", DType::F32, &[2, 3], f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
        writer.tensor("half", DType::F16, &[1, 2, 1], vec![0, 0x3c, 0, 0x40]);
        writer.tensor("brain", DType::BF16, &[1], vec![0x80, 0x3f]);
        writer.tensor("blocks", DType::Q8_0, &[2, 32], crate::q8_0::quantize(&ramp));
        writer.tensor("scalar", DType::F32, &[], f32s(&[0.25]));
        writer.tensor("ids", DType::I64, &[1], 5i64.to_le_bytes().to_vec());
        writer.tensor("none", DType::F32, &[0, 4], vec![]);
        let mut bytes = Vec::new();
        writer.write_to(&mut bytes).unwrap();
        bytes
    }

    /// A file with these bytes after the magic and version 3.
    fn raw(tensors: u64, keys: u64, rest: &[u8]) -> Result<GgufFile, WeightError> {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(keys.to_le_bytes());
        bytes.extend(rest);
        GgufFile::from_bytes("test", bytes)
    }

    fn tensor_entry(name: &str, shape: &[u64], type_id: u32, offset: u64) -> Vec<u8> {
        let mut out = Vec::new();
        put_string(&mut out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        out.extend(shape.iter().flat_map(|n| n.to_le_bytes()));
        out.extend(type_id.to_le_bytes());
        out.extend(offset.to_le_bytes());
        out
    }

    #[test]
    fn reads_what_it_writes() {
        let file = GgufFile::from_bytes("test", sample()).unwrap();
        for (key, value) in all_values() {
            assert_eq!(file.value(key), Some(&value), "{key}");
        }
        assert_eq!(file.string("string").unwrap(), "grüße");
        assert_eq!(file.strings("strings").unwrap(), ["a", ""]);
        assert_eq!(file.string("u8").unwrap_err().kind(), WeightErrorKind::Malformed);
        assert_eq!(file.string("nothing").unwrap_err().kind(), WeightErrorKind::Missing);
        assert_eq!(file.names(), ["matrix", "half", "brain", "blocks", "scalar", "ids", "none"]);
        let matrix = file.get("matrix").unwrap();
        assert_eq!(
            (matrix.shape.as_slice(), matrix.to_f32().as_slice()),
            (&[2, 3][..], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0][..])
        );
        assert_eq!(file.get("half").unwrap().shape, [1, 2, 1]);
        assert_eq!(file.get("half").unwrap().to_f32(), [1.0, 2.0]);
        assert_eq!(file.get("scalar").unwrap().to_f32(), [0.25]);
        assert_eq!(file.get("ids").unwrap().to_f32(), [5.0]);
        assert!(file.get("none").unwrap().is_empty());
        let blocks = file.get("blocks").unwrap().to_f32();
        assert!(blocks.iter().enumerate().all(|(i, v)| (v - i as f32).abs() < 0.26));
        // Data starts and stays aligned.
        assert_eq!(file.get("blocks").unwrap().bytes.len() % 34, 0);
    }

    #[test]
    fn version_2_is_the_same() {
        let mut bytes = sample();
        bytes[4] = 2;
        assert_eq!(GgufFile::from_bytes("test", bytes.clone()).unwrap().names().len(), 7);
        bytes[4] = 1;
        assert_eq!(
            GgufFile::from_bytes("test", bytes.clone()).unwrap_err().kind(),
            WeightErrorKind::Unsupported
        );
        bytes[4..8].copy_from_slice(&3u32.to_be_bytes());
        assert!(GgufFile::from_bytes("test", bytes).unwrap_err().to_string().contains("big-endian"));
    }

    #[test]
    fn refuses_lies() {
        let huge_string = [u64::MAX.to_le_bytes().as_slice(), b"abc"].concat();
        let mut huge_array = Vec::new();
        put_string(&mut huge_array, "k");
        huge_array.extend(9u32.to_le_bytes());
        huge_array.extend(8u32.to_le_bytes());
        huge_array.extend(u64::MAX.to_le_bytes());
        let mut deep = Vec::new();
        put_string(&mut deep, "k");
        deep.extend(9u32.to_le_bytes());
        for _ in 0..10_000 {
            deep.extend(9u32.to_le_bytes());
            deep.extend(1u64.to_le_bytes());
        }
        let mut alignment = Vec::new();
        put_string(&mut alignment, ALIGNMENT_KEY);
        put_value(&mut alignment, &GgufValue::U32(24));
        let padded = |mut entry: Vec<u8>, data: usize| {
            entry.resize((24 + entry.len()).next_multiple_of(32) - 24 + data, 0);
            entry
        };
        let two = |a: Vec<u8>, b: Vec<u8>| padded([a, b].concat(), 256);
        let cases: Vec<(&str, u64, u64, Vec<u8>, &str)> = vec![
            ("counts", u64::MAX, u64::MAX, vec![], "it ends"),
            ("string", 0, 1, huge_string, "it ends"),
            ("array", 0, 1, huge_array, "it ends"),
            ("depth", 0, 1, deep, "nested"),
            ("alignment", 0, 1, alignment, "power of two"),
            ("axes", 1, 0, tensor_entry("t", &[1; 9], 0, 0), "9 axes"),
            ("product", 1, 0, padded(tensor_entry("t", &[1 << 40, 1 << 40], 0, 0), 64), "does not fit"),
            (
                "hidden product",
                1,
                0,
                padded(tensor_entry("t", &[1 << 40, 1 << 40, 0], 0, 0), 64),
                "does not fit",
            ),
            ("offset", 1, 0, padded(tensor_entry("t", &[1], 0, u64::MAX - 31), 64), "does not fit"),
            ("unaligned", 1, 0, padded(tensor_entry("t", &[1], 0, 4), 64), "does not fit"),
            ("truncated", 1, 0, padded(tensor_entry("t", &[17], 0, 0), 64), "does not fit"),
            ("blocks", 1, 0, padded(tensor_entry("t", &[1, 32], 8, 0), 64), "whole blocks"),
            ("q4_k", 1, 0, padded(tensor_entry("t", &[256], 12, 0), 256), "Q4_K"),
            ("type", 1, 0, padded(tensor_entry("t", &[256], 99, 0), 256), "unknown type 99"),
            (
                "twice",
                2,
                0,
                two(tensor_entry("t", &[1], 0, 0), tensor_entry("t", &[1], 0, 32)),
                "two tensors",
            ),
            ("overlap", 2, 0, two(tensor_entry("a", &[16], 0, 0), tensor_entry("b", &[1], 0, 32)), "overlap"),
        ];
        for (case, tensors, keys, rest, expected) in cases {
            let message = raw(tensors, keys, &rest).expect_err(case).to_string();
            assert!(message.contains(expected), "{case}: {message}");
        }
        assert!(GgufFile::from_bytes("test", Bytes::from_static(b"GGML")).is_err());
        assert!(GgufFile::from_static("test", b"").is_err());
    }

    #[test]
    fn replaces_files_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.gguf");
        std::fs::write(&path, b"old").unwrap();
        let mut writer = GgufWriter::new();
        writer.set("k", "v").tensor("t", DType::F32, &[1], vec![0; 4]);
        let len = writer.write(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), len);
        assert_eq!(GgufFile::open(&path).unwrap().string("k").unwrap(), "v");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file stays");
        let error = writer.write(dir.path().join("no/such/folder.gguf")).unwrap_err();
        assert_eq!(error.kind(), WeightErrorKind::Io);
    }

    #[test]
    fn survives_damage() {
        let valid = sample();
        let header = valid.len() - 200;
        crate::hostile::survives(&valid, header, 1, 20_000, |bytes| {
            let file = GgufFile::from_bytes("damaged", bytes)?;
            for name in file.names() {
                let _ = file.get(name)?.to_f32();
            }
            Ok(())
        });
    }
}
