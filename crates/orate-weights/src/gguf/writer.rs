//! Writing GGUF files.

use std::io::{self, Write};
use std::path::Path;

use super::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, GgufArray, GgufValue, MAGIC};
use crate::tensor::element_count;
use crate::{DType, TensorInfo, WeightError, file};

/// Collects metadata and tensors, and writes them as a GGUF file.
#[derive(Default)]
pub struct GgufWriter<'a> {
    metadata: Vec<(String, GgufValue)>,
    tensors: Vec<(String, TensorInfo, Data<'a>)>,
}

/// The bytes of a tensor, or what writes them.
type Writing<'a> = dyn Fn(&mut dyn Write) -> io::Result<()> + 'a;

enum Data<'a> {
    Bytes(Vec<u8>),
    Written(Box<Writing<'a>>),
}

impl<'a> GgufWriter<'a> {
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
        let len = bytes.len();
        self.add(name, dtype, shape, Data::Bytes(bytes), Some(len))
    }

    /// Adds a tensor whose bytes `write` writes when the file is written, so that a large file needs no
    /// memory. As many bytes as the shape asks for must come; anything else is an error then.
    ///
    /// # Panics
    ///
    /// As [`GgufWriter::tensor`].
    pub fn tensor_from(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        write: impl Fn(&mut dyn Write) -> io::Result<()> + 'a,
    ) -> &mut Self {
        self.add(name, dtype, shape, Data::Written(Box::new(write)), None)
    }

    fn add(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        data: Data<'a>,
        len: Option<usize>,
    ) -> &mut Self {
        assert!(self.tensors.iter().all(|(n, ..)| n != name), "tensor `{name}` is there already");
        let size = element_count(shape).and_then(|n| dtype.bytes_for(n));
        let row = shape.last().copied().unwrap_or(1);
        let fits = size.is_some() && (len.is_none() || size == len) && row.is_multiple_of(dtype.block_len());
        assert!(fits && dtype.to_ggml().is_some(), "tensor `{name}`: {len:?} bytes as {dtype} {shape:?}");
        self.tensors.push((name.to_owned(), TensorInfo { dtype, shape: shape.to_vec() }, data));
        self
    }

    /// Writes the file, replacing an old one in one step. Returns its size in bytes.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<u64, WeightError> {
        file::replace(path.as_ref(), |out| self.write_to(out))
    }

    /// Writes the file's bytes.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
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
        let sizes = self.tensors.iter().map(|(_, info, _)| info.dtype.bytes_for(info.len()));
        let sizes: Vec<usize> = sizes.map(|n| n.expect("checked when added")).collect();
        for ((name, info, _), size) in self.tensors.iter().zip(&sizes) {
            put_string(&mut header, name);
            header.extend((info.shape.len() as u32).to_le_bytes());
            for &size in info.shape.iter().rev() {
                header.extend((size as u64).to_le_bytes());
            }
            header.extend(info.dtype.to_ggml().expect("checked when added").to_le_bytes());
            header.extend((offset as u64).to_le_bytes());
            offset = (offset + size).next_multiple_of(DEFAULT_ALIGNMENT);
        }
        header.resize(header.len().next_multiple_of(DEFAULT_ALIGNMENT), 0);
        out.write_all(&header)?;
        for ((name, _, data), size) in self.tensors.iter().zip(&sizes) {
            let mut counted = Counted { out: &mut *out, written: 0 };
            match data {
                Data::Bytes(bytes) => counted.write_all(bytes)?,
                Data::Written(write) => write(&mut counted)?,
            }
            if counted.written != *size {
                let problem = format!("tensor `{name}`: {} bytes came, not {size}", counted.written);
                return Err(io::Error::other(problem));
            }
            let padding = size.next_multiple_of(DEFAULT_ALIGNMENT) - size;
            out.write_all(&[0; DEFAULT_ALIGNMENT][..padding])?;
        }
        Ok(())
    }
}

/// Counts what is written.
struct Counted<'a, W> {
    out: &'a mut W,
    written: usize,
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.written += n;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

pub(super) fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

pub(super) fn put_value(out: &mut Vec<u8>, value: &GgufValue) {
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
        GgufArray::U8(v) => {
            items::<u8>(out, 0, &[], |_, _| {});
            let at = out.len() - 8;
            out[at..].copy_from_slice(&(v.len() as u64).to_le_bytes());
            out.extend_from_slice(v);
        }
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
