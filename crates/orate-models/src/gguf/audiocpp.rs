//! The container of audio.cpp: official names behind a prefix, exact shapes, and the model's other files. Our
//! own files, which `orate quantize` writes, are the same with keys of their own.

use super::{Meta, Part, Port};
use crate::ModelError;
use crate::files::SmallFiles;
use orate_weights::{DType, Renamed, TensorInfo, View, WeightSource};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tensors by logical name (`prefix/name`), with their exact shapes.
pub struct Container {
    /// Logical name, tensor in the file, exact shape; in the order of the file.
    pub tensors: Vec<(String, String, Vec<usize>)>,
}

impl Container {
    /// Reads the lists of names and shapes.
    ///
    /// # Errors
    /// They contradict the tensors.
    pub fn of(part: &Part) -> Result<Container, ModelError> {
        let meta = Meta::new(&part.file, "audiocpp.");
        let physical = part.file.names();
        let own: Vec<String> = physical.iter().map(|n| (*n).to_owned()).collect();
        let names = meta.texts("tensor_names").unwrap_or(&own);
        if names.len() != physical.len() {
            let (a, b) = (names.len(), physical.len());
            return Err(part.wrong(format!("`audiocpp.tensor_names` has {a} names for {b} tensors")));
        }
        let ranks = meta.integers("tensor_ranks");
        let shapes = meta.integers("tensor_shapes").unwrap_or_default();
        let mut rest = &shapes[..];
        let mut tensors = vec![];
        for (i, (logical, physical)) in names.iter().zip(physical).enumerate() {
            let info = part.file.info(physical).unwrap_or(TensorInfo { dtype: DType::F32, shape: vec![] });
            let shape = match &ranks {
                None => info.shape,
                Some(ranks) => {
                    let rank = ranks.get(i).and_then(|n| usize::try_from(*n).ok());
                    let (own, left) = rank.and_then(|n| rest.split_at_checked(n)).ok_or_else(|| {
                        part.wrong("`audiocpp.tensor_ranks` and `tensor_shapes` do not fit its tensors")
                    })?;
                    rest = left;
                    let own: Option<Vec<usize>> = own.iter().map(|n| usize::try_from(*n).ok()).collect();
                    let len = |s: &[usize]| s.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
                    own.filter(|own| len(own) == len(&info.shape)).ok_or_else(|| {
                        part.wrong(format!(
                            "the shape of `{logical}` in `audiocpp.tensor_shapes` is not its own"
                        ))
                    })?
                }
            };
            tensors.push((logical.clone(), physical.to_owned(), shape));
        }
        Ok(Container { tensors })
    }

    /// The tensors behind `prefix/`, under the rest of their names.
    pub fn source(&self, part: &Part, prefix: &str) -> Option<Renamed> {
        self.renamed(part, prefix, |rest| rest.to_owned())
    }

    /// The tensors behind `prefix/`, under the name that `rename` makes of the rest of theirs.
    pub fn renamed(&self, part: &Part, prefix: &str, rename: impl Fn(&str) -> String) -> Option<Renamed> {
        let mut map = Renamed::new(part.path.display().to_string(), vec![part.file.clone() as Arc<_>]);
        let mut any = false;
        for (logical, physical, shape) in &self.tensors {
            if let Some(name) = logical.strip_prefix(prefix).and_then(|n| n.strip_prefix('/')) {
                any |= map.add(&rename(name), shape, physical, View::Same);
            }
        }
        any.then_some(map)
    }

    /// What logical names begin with, before the first slash.
    pub fn prefixes(&self) -> Vec<&str> {
        let mut all: Vec<&str> =
            self.tensors.iter().filter_map(|(n, ..)| Some(n.split_once('/')?.0)).collect();
        all.dedup();
        all
    }
}

/// The files inside, and those beside it.
///
/// # Errors
/// Their list contradicts itself.
pub fn files(part: &Part) -> Result<SmallFiles, ModelError> {
    embedded(part, if part.layout.port == Port::Orate { OWN_FILES } else { "audiocpp.embedded_files." })
}

/// Prefix of the same list in our own files.
pub const OWN_FILES: &str = "orate.files.";

/// Files whose names, ends and bytes, or texts, are below a prefix; those that are not there are looked for
/// beside the file.
pub(crate) fn embedded(part: &Part, prefix: &'static str) -> Result<SmallFiles, ModelError> {
    let meta = Meta::new(&part.file, prefix);
    let wrong = || part.wrong(format!("the list of files in `{prefix}…` contradicts itself"));
    let names = meta.texts("names").unwrap_or_default();
    let mut files = BTreeMap::new();
    if let Some(contents) = meta.texts("contents") {
        if contents.len() != names.len() {
            return Err(wrong());
        }
        files.extend(names.iter().cloned().zip(contents.iter().map(|t| t.clone().into_bytes())));
    } else if !names.is_empty() {
        let (Some(ends), Some(data)) = (meta.integers("offsets"), meta.bytes("data")) else {
            return Err(wrong());
        };
        if ends.len() != names.len() + 1 {
            return Err(wrong());
        }
        for (name, span) in names.iter().zip(ends.windows(2)) {
            let ends = [span[0], span[1]].map(|n| usize::try_from(n).ok());
            let [Some(from), Some(to)] = ends else { return Err(wrong()) };
            let bytes = data.get(from..to).ok_or_else(wrong)?;
            files.insert(name.clone(), bytes.to_vec());
        }
    }
    Ok(SmallFiles::inside(&part.path, files))
}
