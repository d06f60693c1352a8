//! The folder that `oracle/chatterbox/dump_golden.py` writes.

use crate::ModelError;
use orate_weights::{SafeTensors, WeightSource};
use serde_json::Value;
use std::path::{Path, PathBuf};

const MANIFEST: &str = "manifest.json";

pub fn bad(path: &Path, problem: impl Into<String>) -> ModelError {
    ModelError::Goldens { path: path.display().to_string(), problem: problem.into() }
}

/// A folder of goldens.
pub struct Stored {
    pub folder: PathBuf,
    runs: serde_json::Map<String, Value>,
}

/// A tensor, whose longest axis may be cut.
pub struct Golden {
    pub shape: Vec<usize>,
    pub data: Vec<f32>,
}

impl Stored {
    pub fn open(folder: &Path) -> Result<Stored, ModelError> {
        let path = folder.join(MANIFEST);
        let text = std::fs::read(&path).map_err(|e| bad(&path, e.to_string()))?;
        let manifest: Value = serde_json::from_slice(&text).map_err(|e| bad(&path, e.to_string()))?;
        match manifest.get("runs").and_then(Value::as_object) {
            Some(runs) => Ok(Stored { folder: folder.to_owned(), runs: runs.clone() }),
            None => Err(bad(&path, "it has no `runs` (oracle/chatterbox/dump_golden.py)")),
        }
    }

    /// Names of the cases.
    pub fn cases(&self) -> Vec<String> {
        self.runs.keys().cloned().collect()
    }

    /// What went into a case.
    pub fn run(&self, case: &str) -> &Value {
        &self.runs[case]
    }

    pub fn seed(&self, case: &str) -> Result<u64, ModelError> {
        let seed = self.run(case).get("seed").and_then(Value::as_u64);
        seed.ok_or_else(|| bad(&self.folder.join(MANIFEST), format!("`{case}` has no seed")))
    }

    /// What came out of it.
    pub fn file(&self, case: &str) -> Result<SafeTensors, ModelError> {
        Ok(SafeTensors::open(self.folder.join(format!("{case}.safetensors")))?)
    }
}

pub fn golden(file: &SafeTensors, name: &str) -> Result<Golden, ModelError> {
    let tensor = file.get(name)?;
    Ok(Golden { shape: tensor.shape.to_vec(), data: tensor.to_f32() })
}

pub fn integers(file: &SafeTensors, name: &str) -> Result<Vec<i32>, ModelError> {
    let all = file.get(name)?.to_i64();
    let problem = || bad(Path::new(&file.describe()), format!("`{name}` holds no integers"));
    let all = all.ok_or_else(problem)?;
    all.into_iter().map(|x| i32::try_from(x).map_err(|_| problem())).collect()
}

impl Golden {
    /// A computed tensor of shape `full`, cut as this one is: the first and the last positions of the axis on
    /// which the shapes differ are kept.
    pub fn cut(&self, full: &[usize], data: &[f32]) -> Vec<f32> {
        let Some(axis) = (0..full.len()).find(|i| self.shape.get(*i) != Some(&full[*i])) else {
            return data.to_vec();
        };
        let Some(&kept) = self.shape.get(axis) else { return vec![] };
        let (length, inner): (usize, usize) = (full[axis], full[axis + 1..].iter().product());
        if kept > length || inner * length == 0 {
            return vec![];
        }
        let (first, last) = (kept - kept / 2, kept / 2);
        let of_outer = |all: &[f32]| [&all[..first * inner], &all[(length - last) * inner..]].concat();
        data.chunks_exact(length * inner).flat_map(of_outer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_is_cut_in_the_middle() {
        let golden = Golden { shape: vec![2, 2, 2], data: vec![] };
        let full: Vec<f32> = (0..16).map(|x| x as f32).collect();
        assert_eq!(golden.cut(&[2, 4, 2], &full), [0.0, 1.0, 6.0, 7.0, 8.0, 9.0, 14.0, 15.0]);
        assert_eq!(golden.cut(&[2, 2, 2], &full[..8]), full[..8]);
    }
}
