//! Several sources as one: the shards of a large checkpoint, or the files of a model with several
//! networks.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use orate_files::quoted;
use serde::Deserialize;

use crate::{SafeTensors, TensorInfo, TensorRef, WeightError, WeightSource};

const FORMAT: &str = "safetensors index";

/// Most bytes of an index. Those of checkpoints with a thousand tensors have about 100 kB.
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// Sources whose names do not overlap, one after the other.
pub struct Joined {
    origin: String,
    sources: Vec<Box<dyn WeightSource>>,
    /// Index of the source that has a tensor.
    owner: HashMap<String, usize>,
}

impl Joined {
    /// Joins `sources`. Error messages call the result `origin`.
    ///
    /// # Errors
    /// [`WeightError::Malformed`]: two sources have a tensor of the same name.
    pub fn new(origin: impl Into<String>, sources: Vec<Box<dyn WeightSource>>) -> Result<Self, WeightError> {
        let origin = origin.into();
        let mut owner = HashMap::new();
        for (i, source) in sources.iter().enumerate() {
            for name in source.names() {
                if let Some(first) = owner.insert(name.to_owned(), i) {
                    let (a, b) = (sources[first].describe(), source.describe());
                    let problem = format!("{name} is both in {a} and in {b}", name = quoted(name));
                    return Err(WeightError::Malformed { origin, format: "set of weight", problem });
                }
            }
        }
        Ok(Self { origin, sources, owner })
    }

    /// Opens a folder's `model.safetensors`, or the shards that its `model.safetensors.index.json` lists.
    ///
    /// # Errors
    /// There is neither, a file cannot be read, or the index and the shards do not hold the same names.
    pub fn open_folder(folder: impl AsRef<Path>) -> Result<Box<dyn WeightSource>, WeightError> {
        let folder = folder.as_ref();
        let (single, index) = (folder.join("model.safetensors"), folder.join("model.safetensors.index.json"));
        if !single.exists() && index.exists() {
            return Ok(Box::new(Self::open_index(&index)?));
        }
        Ok(Box::new(SafeTensors::open(single)?))
    }

    /// Opens the shards that an index lists. They are in its folder.
    ///
    /// # Errors
    /// As [`Joined::open_folder`].
    pub fn open_index(path: &Path) -> Result<Self, WeightError> {
        let origin = path.display().to_string();
        let malformed =
            |problem: String| WeightError::Malformed { origin: origin.clone(), format: FORMAT, problem };
        let text = orate_files::read(path, MAX_INDEX_BYTES).map_err(WeightError::io("read", path))?;
        let index: Index = serde_json::from_slice(&text).map_err(|e| malformed(e.to_string()))?;

        let mut shards: BTreeMap<&str, Box<dyn WeightSource>> = BTreeMap::new();
        for (name, file) in &index.weight_map {
            if file.contains(['/', '\\']) || file.starts_with('.') {
                return Err(malformed(format!(
                    "{name} should be in {file}, which is not a file in the same folder",
                    name = quoted(name),
                    file = quoted(file)
                )));
            }
            if !shards.contains_key(&**file) {
                shards.insert(file, Box::new(SafeTensors::open(path.with_file_name(file))?));
            }
            if !shards[&**file].contains(name) {
                return Err(malformed(format!(
                    "{name} should be in {file}, but is not",
                    name = quoted(name)
                )));
            }
        }
        for (file, shard) in &shards {
            if let Some(name) = shard.names().into_iter().find(|n| !index.weight_map.contains_key(*n)) {
                return Err(malformed(format!(
                    "{file} holds {name}, which the index does not list",
                    name = quoted(name)
                )));
            }
        }
        let shards = shards.into_values().collect();
        Self::new(origin, shards)
    }

    fn source(&self, name: &str) -> Option<&dyn WeightSource> {
        self.owner.get(name).map(|i| &*self.sources[*i])
    }
}

#[derive(Deserialize)]
struct Index {
    /// File by tensor.
    weight_map: BTreeMap<String, String>,
}

impl WeightSource for Joined {
    fn get(&self, name: &str) -> Result<TensorRef<'_>, WeightError> {
        self.source(name).ok_or_else(|| self.missing(name))?.get(name)
    }

    fn names(&self) -> Vec<&str> {
        self.sources.iter().flat_map(|s| s.names()).collect()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.source(name)?.info(name)
    }

    fn describe(&self) -> String {
        self.origin.clone()
    }

    fn release(&self, name: &str) {
        if let Some(source) = self.source(name) {
            source.release(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::{Dtype, TensorView, serialize_to_file};

    fn shard(folder: &Path, file: &str, names: &[&str]) {
        let data: Vec<u8> = [1f32, 2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let view = || TensorView::new(Dtype::F32, vec![2], &data).unwrap();
        serialize_to_file(names.iter().map(|n| (*n, view())), None, &folder.join(file)).unwrap();
    }

    #[test]
    fn shards_are_one_source() {
        let dir = tempfile::tempdir().unwrap();
        shard(dir.path(), "one.safetensors", &["a", "b"]);
        shard(dir.path(), "two.safetensors", &["c"]);
        let index = dir.path().join("model.safetensors.index.json");
        let write = |map: &str| {
            std::fs::write(&index, format!("{{\"metadata\":{{}},\"weight_map\":{{{map}}}}}")).unwrap()
        };
        let open = || Joined::open_folder(dir.path());
        let refused = || open().err().expect("the index is wrong").to_string();

        write(r#""a":"one.safetensors","b":"one.safetensors","c":"two.safetensors""#);
        let all = open().unwrap();
        assert_eq!(all.names(), ["a", "b", "c"]);
        assert_eq!(all.get("c").unwrap().to_f32(), [1.0, 2.0]);
        assert_eq!(all.info("b").unwrap().shape, [2]);
        assert!(all.get("d").unwrap_err().to_string().contains("no tensor named `d`"));

        let cases = [
            (r#""a":"one.safetensors","b":"one.safetensors""#, None),
            (r#""a":"one.safetensors""#, Some("one.safetensors holds `b`, which the index does not list")),
            (r#""c":"one.safetensors""#, Some("`c` should be in one.safetensors, but is not")),
            (
                r#""c":"../two.safetensors""#,
                Some("`../two.safetensors`, which is not a file in the same folder"),
            ),
            (r#""c":"three.safetensors""#, Some("three.safetensors")),
            (r#""c":3"#, Some("not a valid safetensors index file")),
        ];
        for (map, problem) in cases {
            write(map);
            match problem {
                None => assert!(open().is_ok()),
                Some(part) => assert!(refused().contains(part), "{}\nshould hold `{part}`", refused()),
            }
        }
        std::fs::remove_file(&index).unwrap();
        assert!(refused().contains("model.safetensors"), "{}", refused());
        shard(dir.path(), "model.safetensors", &["x"]);
        assert_eq!(open().unwrap().names(), ["x"]);
    }

    #[test]
    fn a_name_belongs_to_one_source() {
        let dir = tempfile::tempdir().unwrap();
        shard(dir.path(), "one.safetensors", &["a", "b"]);
        let open = || {
            Box::new(SafeTensors::open(dir.path().join("one.safetensors")).unwrap()) as Box<dyn WeightSource>
        };
        let e = Joined::new("both", vec![open(), open()]).err().unwrap().to_string();
        assert!(e.starts_with("both: ") && e.contains("`a` is both in"), "{e}");
    }
}
