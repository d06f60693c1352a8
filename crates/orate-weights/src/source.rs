//! Weights by name.

use std::collections::HashMap;

use orate_files::quoted;

use crate::{TensorInfo, TensorRef, WeightError};

/// A set of named tensors.
///
/// Names are those of the checkpoint; a model family that renames tensors wraps the source of the file
/// around the file's.
pub trait WeightSource: Send + Sync {
    /// Borrows the tensor `name`.
    fn get(&self, name: &str) -> Result<TensorRef<'_>, WeightError>;

    /// All names, in the order of the file.
    fn names(&self) -> Vec<&str>;

    /// Dtype and shape of `name`, or `None` if there is no such tensor.
    fn info(&self, name: &str) -> Option<TensorInfo>;

    /// Origin of the weights for error messages, usually the path.
    fn describe(&self) -> String;

    /// Says that nobody needs the tensor for now: pages of a mapped file may leave memory. It can be read
    /// again as before.
    fn release(&self, name: &str) {
        let _ = name;
    }

    /// Whether there is a tensor `name`.
    fn contains(&self, name: &str) -> bool {
        self.info(name).is_some()
    }

    /// Returns the error for a missing name, with the most similar name as a hint.
    fn missing(&self, name: &str) -> WeightError {
        let common = |other: &str| name.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
        let similar = self.names().into_iter().max_by_key(|other| common(other));
        let hint = match similar {
            Some(other) if common(other) * 2 > name.len() => {
                format!(" (the closest is {other})", other = quoted(other))
            }
            _ => String::new(),
        };
        WeightError::Missing { origin: self.describe(), what: "tensor", name: name.to_owned(), hint }
    }
}

/// Entries in file order, with lookup by name.
#[derive(Debug)]
pub(crate) struct Named<T> {
    entries: Vec<(String, T)>,
    index: HashMap<String, usize>,
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Named<T> {
    pub(crate) fn new() -> Self {
        Self { entries: Vec::new(), index: HashMap::new() }
    }

    /// Adds an entry, or returns the name if it is taken.
    pub(crate) fn insert(&mut self, name: String, value: T) -> Result<(), String> {
        if self.index.contains_key(&name) {
            return Err(name);
        }
        self.index.insert(name.clone(), self.entries.len());
        self.entries.push((name, value));
        Ok(())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&T> {
        self.index.get(name).map(|&i| &self.entries[i].1)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        self.entries.iter().map(|(name, value)| (name.as_str(), value))
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.iter().map(|(name, _)| name).collect()
    }
}
