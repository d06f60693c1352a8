//! The folder that `oracle/qwen3_tts/dump_golden.py` writes.

use crate::ModelError;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub fn bad(path: &Path, problem: String) -> ModelError {
    ModelError::Goldens { path: path.display().to_string(), problem }
}

/// A case: what went in, and the file with what came out.
pub struct Case {
    /// Arguments of the official call; null where there are none.
    pub inputs: Value,
    /// `.safetensors`, or `.json` for texts.
    pub file: PathBuf,
}

/// The cases of a folder by name; those of utterances are `CHECKPOINT/NAME`.
pub type Cases = BTreeMap<String, Case>;

const NAME: &str = "manifest.json";

/// Opens the folder above `cases`, that folder, or one of the folders in it.
pub fn open(folder: &Path) -> Result<Cases, ModelError> {
    for root in [&folder.join("cases"), folder] {
        if root.join(NAME).is_file() {
            return of_manifest(root, None);
        }
    }
    let absolute = folder.canonicalize().map_err(|e| bad(folder, e.to_string()))?;
    match (absolute.parent(), absolute.file_name().and_then(|n| n.to_str())) {
        (Some(root), Some(name)) if root.join(NAME).is_file() => of_manifest(root, Some(name)),
        _ => {
            let problem = "here or in the folder above (oracle/qwen3_tts/dump_golden.py)";
            Err(bad(folder, format!("neither cases/{NAME} nor {NAME}, {problem}")))
        }
    }
}

/// All cases of a manifest, or those of one checkpoint.
fn of_manifest(root: &Path, checkpoint: Option<&str>) -> Result<Cases, ModelError> {
    let path = root.join(NAME);
    let text = std::fs::read(&path).map_err(|e| bad(&path, e.to_string()))?;
    let manifest: BTreeMap<String, Value> =
        serde_json::from_slice(&text).map_err(|e| bad(&path, e.to_string()))?;
    let mut cases = BTreeMap::new();
    for (name, case) in manifest {
        if checkpoint.is_some_and(|c| name.split_once('/').is_none_or(|(of, _)| of != c)) {
            continue;
        }
        let file = case.get("file").and_then(Value::as_str);
        let file = root.join(file.map_or_else(|| format!("{name}.safetensors"), str::to_owned));
        let inputs = case.get("inputs").cloned().unwrap_or(Value::Null);
        cases.insert(name, Case { inputs, file });
    }
    if cases.is_empty() {
        return Err(bad(&path, "it lists no case of this folder".to_owned()));
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_level_of_the_folder_will_do() {
        let root = tempfile::tempdir().expect("room");
        let cases = root.path().join("cases");
        std::fs::create_dir_all(cases.join("tiny-base")).expect("room");
        let manifest = serde_json::json!({
            "tokenizer": { "file": "tokenizer.json" },
            "tiny-base/one": { "inputs": { "text": "hi" } },
            "tiny-other/two": {},
        });
        std::fs::write(cases.join(NAME), manifest.to_string()).expect("room");
        let names = |folder: &Path| open(folder).expect("goldens").into_keys().collect::<Vec<_>>();
        let all = ["tiny-base/one", "tiny-other/two", "tokenizer"];
        assert_eq!(names(root.path()), all);
        assert_eq!(names(&cases), all);
        assert_eq!(names(&cases.join("tiny-base")), ["tiny-base/one"]);
        let case = &open(root.path()).expect("goldens")["tiny-base/one"];
        assert_eq!(case.file, cases.join("tiny-base/one.safetensors"));
        assert_eq!(case.inputs["text"], "hi");

        std::fs::write(cases.join(NAME), "[]").expect("room");
        assert!(open(root.path()).is_err());
        let none = root.path().join("none");
        std::fs::create_dir(&none).expect("room");
        let e = open(&none).err().expect("no goldens").to_string();
        assert!(e.contains("neither cases/manifest.json"), "{e}");
    }
}
