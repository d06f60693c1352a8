//! Tables of which a file holds only some rows.

use std::collections::HashMap;

use crate::{DType, SafeTensors, TensorInfo, TensorRef, WeightError, WeightSource};

/// Suffix of the name of a list of rows.
const ROWS: &str = ".rows";

/// Most bytes of all tables together. Such files are small models for comparisons.
const MOST: usize = 256 << 20;

/// A safetensors file that may keep of a table `name` only the rows whose numbers are in `name.rows`. All
/// others are zero.
///
/// Goldens keep the part of a checkpoint that they read. Other rows are zero.
pub struct Scattered {
    file: SafeTensors,
    tables: HashMap<String, Table>,
}

struct Table {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Scattered {
    /// Expands the tables of `file`. `shape` returns the whole shape of a table.
    ///
    /// # Errors
    /// [`WeightError::Malformed`]: a list of rows belongs to no table, or does not fit it.
    pub fn new(file: SafeTensors, shape: impl Fn(&str) -> Option<Vec<usize>>) -> Result<Self, WeightError> {
        let (mut tables, mut total) = (HashMap::new(), 0usize);
        for name in file.names().into_iter().filter_map(|n| n.strip_suffix(ROWS)) {
            let malformed = |problem: &str| WeightError::Malformed {
                origin: file.describe(),
                format: "cut-down checkpoint",
                problem: format!("`{name}{ROWS}`: {problem}"),
            };
            let (kept, rows) = (file.get(name)?, file.get(&format!("{name}{ROWS}"))?.to_f32());
            let shape = shape(name).ok_or_else(|| malformed("the model has no table of this name"))?;
            let same = kept.shape.len() == shape.len() && kept.shape.get(1..) == shape.get(1..);
            if !same || kept.shape.first() != Some(&rows.len()) || rows.is_empty() {
                return Err(malformed("rows, their numbers and the model's table have different sizes"));
            }
            let row = kept.bytes.len() / rows.len();
            let len = shape[0].checked_mul(row).filter(|len| *len <= MOST - total);
            let len = len.ok_or_else(|| malformed("the tables are too large for a cut-down checkpoint"))?;
            total += len;
            let mut bytes = vec![0; len];
            for (at, from) in rows.iter().zip(kept.bytes.chunks_exact(row)) {
                let at = (*at >= 0.0 && *at < shape[0] as f32).then_some(*at as usize);
                let at = at.ok_or_else(|| malformed("a row is beyond the end of its table"))?;
                bytes[at * row..(at + 1) * row].copy_from_slice(from);
            }
            tables.insert(name.to_owned(), Table { dtype: kept.dtype, shape, bytes });
        }
        Ok(Scattered { file, tables })
    }
}

impl WeightSource for Scattered {
    fn get(&self, name: &str) -> Result<TensorRef<'_>, WeightError> {
        match self.tables.get(name) {
            Some(t) => {
                Ok(TensorRef::new(t.dtype, t.shape.clone(), &t.bytes).expect("rows were checked to be whole"))
            }
            None => self.file.get(name),
        }
    }

    fn names(&self) -> Vec<&str> {
        let list = |n: &&str| n.strip_suffix(ROWS).is_some_and(|table| self.tables.contains_key(table));
        self.file.names().into_iter().filter(|n| !list(n)).collect()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        match self.tables.get(name) {
            Some(t) => Some(TensorInfo { dtype: t.dtype, shape: t.shape.clone() }),
            None => self.file.info(name),
        }
    }

    fn describe(&self) -> String {
        self.file.describe()
    }

    fn release(&self, name: &str) {
        if !self.tables.contains_key(name) {
            self.file.release(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::{Dtype, TensorView, serialize};

    fn file(folder: &tempfile::TempDir, rows: &[i32]) -> SafeTensors {
        let numbers: Vec<u8> = rows.iter().flat_map(|r| r.to_le_bytes()).collect();
        let kept: Vec<u8> = (1..=4u16).flat_map(u16::to_le_bytes).collect();
        let view = |dtype, shape: &[usize], data| TensorView::new(dtype, shape.to_vec(), data).unwrap();
        let all = [
            ("table", view(Dtype::BF16, &[2, 2], &kept)),
            ("table.rows", view(Dtype::I32, &[rows.len()], &numbers)),
            ("whole", view(Dtype::BF16, &[4], &kept)),
        ];
        let path = folder.path().join("some.safetensors");
        std::fs::write(&path, serialize(all, None).unwrap()).unwrap();
        SafeTensors::open(path).unwrap()
    }

    #[test]
    fn rows_stand_where_they_belong() {
        let folder = tempfile::tempdir().unwrap();
        let open = |rows: &[i32], shape: &[usize]| {
            let shape = shape.to_vec();
            Scattered::new(file(&folder, rows), |name| (name == "table").then(|| shape.clone()))
        };
        let source = open(&[3, 1], &[4, 2]).unwrap();
        let table = source.get("table").unwrap();
        assert_eq!(table.shape, [4, 2]);
        assert_eq!(table.bytes, [0, 0, 0, 0, 3, 0, 4, 0, 0, 0, 0, 0, 1, 0, 2, 0]);
        assert_eq!(source.info("table"), Some(table.info()));
        assert_eq!(source.get("whole").unwrap().shape, [4]);
        let mut names = source.names();
        names.sort_unstable();
        assert_eq!(names, ["table", "whole"]);

        let bad: [(&[i32], &[usize], &str); 5] = [
            (&[4, 1], &[4, 2], "beyond the end"),
            (&[-1, 1], &[4, 2], "beyond the end"),
            (&[1], &[4, 2], "different sizes"),
            (&[0, 1], &[4, 3], "different sizes"),
            (&[0, 1], &[usize::MAX / 2, 2], "too large"),
        ];
        for (rows, shape, problem) in bad {
            let e = open(rows, shape).err().expect(problem).to_string();
            assert!(e.contains("`table.rows`") && e.contains(problem), "{e}");
        }
    }
}
