//! PyTorch files as `torch.save` writes them: dictionaries of tensors. Nothing in a file is executed.
//!
//! The file is a zip of stored entries: `NAME/data.pkl` is a pickle that describes the dictionary, and
//! `NAME/data/0`, `NAME/data/1` … are the storages, which stay where they are in the mapped file.
//! Dictionaries may be nested; names of tensors are the keys joined by dots (`t3.speaker_emb`). Items of
//! lists are numbered from 0. Values other than tensors have no names. The device of a storage is ignored.
//!
//! A dictionary whose key `model` has a list with one dictionary is a training checkpoint: the names are
//! those of that dictionary alone.

mod pickle;
mod zip;

use std::ops::Range;
use std::path::Path;

use bytes::Bytes;
use orate_files::quoted;

use self::pickle::{Object, Pickle, Tensor, Value};
use crate::error::{Fault, malformed, unsupported};
use crate::source::Named;
use crate::{TensorInfo, TensorRef, WeightError, WeightSource, file};

const FORMAT: &str = "PyTorch";

/// Name of the description in the zip file, without its folder.
const DESCRIPTION: &str = "data.pkl";

/// Dictionaries and lists inside each other. Also ends cycles.
const MAX_DEPTH: usize = 16;

/// An open PyTorch file.
#[derive(Debug)]
pub struct PtFile {
    origin: String,
    /// The mapped file, if the bytes are not in memory.
    mapping: Option<file::Mapping>,
    data: Bytes,
    tensors: Named<Entry>,
}

#[derive(Debug)]
struct Entry {
    info: TensorInfo,
    strides: Vec<usize>,
    /// Bytes of the file from the first to the last element.
    bytes: Range<usize>,
}

impl PtFile {
    /// Maps the file and reads its dictionary.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WeightError> {
        let path = path.as_ref();
        let mapping = file::Mapping::open(path)?;
        let file = Self::from_bytes(&path.display().to_string(), mapping.bytes())?;
        Ok(Self { mapping: Some(mapping), ..file })
    }

    /// Reads a file that is in memory already. Error messages call it `origin`.
    pub fn from_bytes(origin: &str, bytes: impl Into<Bytes>) -> Result<Self, WeightError> {
        let data = bytes.into();
        let tensors = tensors(&data).map_err(|fault| fault.at(origin, FORMAT))?;
        Ok(Self { origin: origin.to_owned(), mapping: None, data, tensors })
    }
}

impl WeightSource for PtFile {
    fn get(&self, name: &str) -> Result<TensorRef<'_>, WeightError> {
        let Entry { info, strides, bytes } = self.tensors.get(name).ok_or_else(|| self.missing(name))?;
        let (shape, strides) = (info.shape.clone(), strides.clone());
        Ok(TensorRef { dtype: info.dtype, shape, strides, bytes: &self.data[bytes.clone()] })
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
            mapping.release(entry.bytes.clone());
        }
    }
}

/// Finds the tensors of a file.
fn tensors(file: &[u8]) -> Result<Named<Entry>, Fault> {
    if file.starts_with(b"\x80\x02") {
        return unsupported!(
            "written by PyTorch before 1.6, or not by torch.save; load it and save it again with a newer one"
        );
    }
    let entries = zip::entries(file)?;
    let mut folders = entries.keys().filter_map(|name| name.strip_suffix(DESCRIPTION)?.strip_suffix('/'));
    let folder = match (folders.next(), folders.next()) {
        (Some(folder), None) => folder,
        (None, _) => return malformed!("the zip file has no {DESCRIPTION}; torch.save did not write it"),
        _ => return malformed!("the zip file has several files {DESCRIPTION}"),
    };
    let entry = |name: &str| entries.get(&*format!("{folder}/{name}")).cloned();
    if let Some(order) = entry("byteorder").map(|range| &file[range])
        && order != b"little"
    {
        return unsupported!("byte order {}", quoted(&String::from_utf8_lossy(order)));
    }
    let program = &file[entry(DESCRIPTION).expect("it was found above")];
    let pickle = pickle::read(program)?;
    let limit = Limit { values: pickle.pushed, name_bytes: 8 * program.len() + (1 << 16) };
    let mut collector = Collector { pickle: &pickle, limit, path: String::new(), found: vec![] };
    collector.collect(root(&pickle)?, 0)?;

    let mut tensors = Named::new();
    for (name, tensor) in collector.found {
        let stored = entry(&format!("data/{}", tensor.key));
        let bytes = stored.clone().and_then(|range| place(tensor, range));
        let Some(bytes) = bytes else {
            return malformed!(
                "{} needs storage {} with {} values of type {}, but the file has {}",
                quoted(&name),
                quoted(tensor.key),
                tensor.storage,
                tensor.dtype,
                stored.map_or("none".into(), |range| format!("{} bytes", range.len()))
            );
        };
        let info = TensorInfo { dtype: tensor.dtype, shape: tensor.shape.clone() };
        let entry = Entry { info, strides: tensor.strides.clone(), bytes };
        if let Err(name) = tensors.insert(name, entry) {
            return malformed!("two tensors are named {}", quoted(&name));
        }
    }
    Ok(tensors)
}

/// Bytes of a tensor in the file, if its storage has the size that the description says.
fn place(tensor: &Tensor<'_>, storage: Range<usize>) -> Option<Range<usize>> {
    let bytes_for = |len| tensor.dtype.bytes_for(len);
    if bytes_for(tensor.storage)? != storage.len() {
        return None;
    }
    let start = storage.start + bytes_for(tensor.offset)?;
    Some(start..start + bytes_for(tensor.span)?)
}

/// The dictionary whose keys are the names.
fn root<'a>(pickle: &Pickle<'a>) -> Result<Value<'a>, Fault> {
    let dict = |value| match value {
        Value::Object(id) => match &pickle.objects[id] {
            Object::Dict(pairs) => Some(pairs),
            _ => None,
        },
        _ => None,
    };
    let Some(pairs) = dict(pickle.root) else {
        return unsupported!("the file holds something else than a dictionary of tensors");
    };
    let mut models = pairs.iter().filter(|(key, _)| *key == Value::Text("model"));
    if let (Some((_, Value::Object(id))), None) = (models.next(), models.next())
        && let Object::List(items) = &pickle.objects[*id]
        && let [model] = items[..]
        && dict(model).is_some()
    {
        return Ok(model);
    }
    Ok(pickle.root)
}

/// What a file may still ask for. Values that are shared by many others could repeat without end.
struct Limit {
    values: usize,
    name_bytes: usize,
}

/// Collects tensors with their names.
struct Collector<'p, 'a> {
    pickle: &'p Pickle<'a>,
    limit: Limit,
    path: String,
    found: Vec<(String, &'p Tensor<'a>)>,
}

impl<'p, 'a> Collector<'p, 'a> {
    fn collect(&mut self, value: Value<'a>, depth: usize) -> Result<(), Fault> {
        let Some(left) = self.limit.values.checked_sub(1) else {
            return malformed!("dictionaries are part of each other too often");
        };
        self.limit.values = left;
        let Value::Object(id) = value else { return Ok(()) };
        let pickle: &'p Pickle<'a> = self.pickle;
        match &pickle.objects[id] {
            Object::Storage { .. } => Ok(()),
            Object::Tensor(tensor) => {
                self.charge(self.path.len())?;
                self.found.push((self.path.clone(), tensor));
                Ok(())
            }
            _ if depth == MAX_DEPTH => {
                malformed!("more than {MAX_DEPTH} dictionaries inside each other, or one inside itself")
            }
            Object::Dict(pairs) => pairs.iter().try_for_each(|(key, value)| match key {
                Value::Text(key) => self.part(key, *value, depth),
                Value::Int(key) => self.part(&key.to_string(), *value, depth),
                _ => malformed!("a key of {} is neither text nor a number", quoted(&self.path)),
            }),
            Object::Tuple(items) | Object::List(items) => {
                items.iter().enumerate().try_for_each(|(i, value)| self.part(&i.to_string(), *value, depth))
            }
        }
    }

    fn charge(&mut self, name_bytes: usize) -> Result<(), Fault> {
        match self.limit.name_bytes.checked_sub(name_bytes) {
            Some(left) => self.limit.name_bytes = left,
            None => return malformed!("the names are too long"),
        }
        Ok(())
    }

    /// Collects what stands under `key`.
    fn part(&mut self, key: &str, value: Value<'a>, depth: usize) -> Result<(), Fault> {
        self.charge(key.len())?;
        let len = self.path.len();
        if depth > 0 {
            self.path.push('.');
        }
        self.path.push_str(key);
        self.collect(value, depth + 1)?;
        self.path.truncate(len);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
