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
use std::path::Path;

use bytes::Bytes;
use orate_files::quoted;

use crate::error::{Fault, malformed, unsupported};
use crate::file::Mapping;
use crate::source::Named;
use crate::tensor::element_count;
use crate::{DType, TensorInfo, TensorRef, WeightError, WeightSource};

mod writer;

pub use writer::GgufWriter;

const FORMAT: &str = "GGUF";
const MAGIC: [u8; 4] = *b"GGUF";
const DEFAULT_ALIGNMENT: usize = 32;
/// Metadata key of the alignment.
const ALIGNMENT_KEY: &str = "general.alignment";
/// The limit of ggml is 4, of NumPy 64. No model needs more than this.
const MAX_AXES: u32 = 8;
/// Deepest nesting of arrays. Nobody writes nested arrays, and recursion must end.
const MAX_ARRAY_DEPTH: usize = 4;
/// Longest array of strings that [`GgufFile::skim`] keeps: names of tensors, but not vocabularies.
const SKIMMED: u64 = 1 << 14;
/// What to do about a file that ends too early.
const CUT_SHORT: &str = "the file is cut short or damaged, so download or copy it again";

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
    U8(Bytes),
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
    /// The file, if it is mapped.
    mapping: Option<Mapping>,
    /// Where data begins in it.
    data_start: usize,
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
        Self::map(path.as_ref(), u64::MAX)
    }

    /// As [`GgufFile::open`], but long arrays of strings, such as a vocabulary, are empty. It takes a
    /// fraction of the time, and is enough to find out what a file is.
    ///
    /// # Errors
    /// As [`GgufFile::open`].
    pub fn skim(path: impl AsRef<Path>) -> Result<Self, WeightError> {
        Self::map(path.as_ref(), SKIMMED)
    }

    fn map(path: &Path, longest: u64) -> Result<Self, WeightError> {
        let mapping = Mapping::open(path)?;
        let origin = path.display().to_string();
        let mut file = parse(&origin, mapping.bytes(), longest).map_err(|fault| fault.at(&origin, FORMAT))?;
        file.mapping = Some(mapping);
        Ok(file)
    }

    /// Reads a file that is part of the program, without copying it. Error messages call it `origin`.
    pub fn from_static(origin: &str, bytes: &'static [u8]) -> Result<Self, WeightError> {
        Self::from_bytes(origin, Bytes::from_static(bytes))
    }

    /// Reads a file that is in memory already. Error messages call it `origin`.
    pub fn from_bytes(origin: &str, bytes: impl Into<Bytes>) -> Result<Self, WeightError> {
        parse(origin, bytes.into(), u64::MAX).map_err(|fault| fault.at(origin, FORMAT))
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
        if let DType::Other(id) = entry.info.dtype {
            let problem = format!(
                "tensor {name} has type {} (number {id}), which cannot be read; take a file of q4_K, q8_0 or \
                 another common type",
                entry.info.dtype,
                name = quoted(name)
            );
            return Err(WeightError::Unsupported { origin: self.origin.clone(), problem });
        }
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
            mapping.release(self.data_start + entry.start..self.data_start + entry.end);
        }
    }
}

/// Reads the description of a file; arrays of more than `longest` strings are left empty.
fn parse(origin: &str, bytes: Bytes, longest: u64) -> Result<GgufFile, Fault> {
    if bytes.is_empty() {
        return malformed!("it is empty; download or copy it again");
    }
    let mut cursor = Cursor { whole: &bytes, bytes: &bytes, at: 0, longest };
    if cursor.array::<4>()? != MAGIC {
        return malformed!("it does not begin with \"GGUF\"");
    }
    match cursor.u32()? {
        2 | 3 => {}
        version if version.swap_bytes() <= 3 => {
            return unsupported!("a big-endian GGUF file; take one for little-endian machines");
        }
        version => return unsupported!("GGUF version {version}; take a file of version 2 or 3"),
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
        let size = match info.dtype {
            // How many bytes it has is not known, but that no type takes less than a bit for a number. It is
            // listed, and refused when it is read.
            DType::Other(_) => {
                element_count(&info.shape).filter(|n| *n <= data.len().saturating_mul(8)).map(|_| 0)
            }
            dtype => element_count(&info.shape).and_then(|n| dtype.bytes_for(n)),
        };
        let span = size.and_then(|size| {
            let start = usize::try_from(offset).ok()?;
            let end = start.checked_add(size)?;
            (end <= data.len() && start.is_multiple_of(alignment)).then_some((start, end))
        });
        let Some((start, end)) = span else {
            let TensorInfo { dtype, shape } = info;
            return malformed!(
                "tensor {name}, {dtype} {shape:?} at offset {offset}, does not fit in {} bytes of data; \
                 {CUT_SHORT}",
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
    Ok(GgufFile { origin: origin.to_owned(), mapping: None, data_start, data, metadata, tensors })
}

/// Reads from the front, and checks each read against the rest.
struct Cursor<'a> {
    whole: &'a Bytes,
    bytes: &'a [u8],
    at: usize,
    /// Most strings of an array that are kept.
    longest: u64,
}

impl<'a> Cursor<'a> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], Fault> {
        if len > self.left() as u64 {
            return malformed!(
                "it ends at byte {}, {len} more are needed at {}; {CUT_SHORT}",
                self.bytes.len(),
                self.at
            );
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
            0 => {
                // Whole files may be embedded this way, so it is not copied.
                let at = self.at;
                GgufArray::U8(self.take(count).map(|bytes| self.whole.slice(at..at + bytes.len()))?)
            }
            1 => GgufArray::I8(self.numbers(count, i8::from_le_bytes)?),
            2 => GgufArray::U16(self.numbers(count, u16::from_le_bytes)?),
            3 => GgufArray::I16(self.numbers(count, i16::from_le_bytes)?),
            4 => GgufArray::U32(self.numbers(count, u32::from_le_bytes)?),
            5 => GgufArray::I32(self.numbers(count, i32::from_le_bytes)?),
            6 => GgufArray::F32(self.numbers(count, f32::from_le_bytes)?),
            7 => GgufArray::Bool(self.items(count, Self::bool)?),
            8 if count > self.longest => {
                for _ in 0..count {
                    let len = self.u64()?;
                    self.take(len)?;
                }
                GgufArray::String(vec![])
            }
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
        let dtype = DType::from_ggml(self.u32()?);
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

#[cfg(test)]
mod tests;
