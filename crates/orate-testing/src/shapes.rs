//! Models without weights: names and shapes only, for graphs of sizes whose weights are not in the
//! repository.

use orate_weights::{DType, TensorInfo, TensorRef, WeightError, WeightSource};
use std::collections::BTreeMap;

/// Tensors of a table, one per line, as in `tts.ae.decoder.head.layer2.weight 512x2048x1`. Lines that start
/// with `#` are comments.
#[derive(Clone, Debug)]
pub struct ShapesOnly {
    shapes: BTreeMap<String, Vec<usize>>,
}

impl ShapesOnly {
    /// Parses a table.
    ///
    /// # Panics
    /// An extent is not a number; the table is part of the repository.
    pub fn parse(text: &str) -> ShapesOnly {
        let lines = text.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
        let shapes = lines.map(|line| {
            let (name, dims) = line.split_once(' ').unwrap_or((line, ""));
            let dims = dims.split('x').filter(|d| !d.is_empty());
            (name.to_owned(), dims.map(|d| d.parse().unwrap_or_else(|e| panic!("{line}: {e}"))).collect())
        });
        ShapesOnly { shapes: shapes.collect() }
    }

    /// Total number of elements.
    pub fn parameters(&self) -> usize {
        self.shapes.values().map(|s| s.iter().product::<usize>()).sum()
    }
}

impl WeightSource for ShapesOnly {
    fn get(&self, name: &str) -> Result<TensorRef<'_>, WeightError> {
        Err(self.missing(name))
    }

    fn names(&self) -> Vec<&str> {
        self.shapes.keys().map(String::as_str).collect()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.shapes.get(name).map(|shape| TensorInfo { dtype: DType::F32, shape: shape.clone() })
    }

    fn describe(&self) -> String {
        "a table of shapes".to_owned()
    }
}
