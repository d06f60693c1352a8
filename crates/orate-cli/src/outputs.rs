//! Early checks of outputs, before time is spent: each can be written and replaces no input.

use crate::failure::UsageError;
use crate::print;
use std::path::{Path, PathBuf};

/// An input: its description for messages, and its file or folder.
pub type Input = (&'static str, PathBuf);

/// Extensions of the files that models consist of.
const MODEL_FILES: [&str; 8] = ["safetensors", "pt", "gguf", "onnx", "json", "txt", "jinja", "bin"];

/// Refuses an output of `option` that cannot be written or is one of the inputs.
pub fn check(option: &str, output: &Path, inputs: &[Input]) -> anyhow::Result<()> {
    if output.as_os_str() == "-" {
        let problem = "this cannot go to standard output; name a file";
        return Err(UsageError(format!("{option} -: {problem}")).into());
    }
    for (what, input) in inputs {
        if is_same_file(output, input) || is_part_of(output, input) {
            let (output, what) = (output.display().to_string(), print::shorten(what));
            let problem = format!("{option} {output}: {what} is read from there; name another file");
            return Err(UsageError(problem).into());
        }
    }
    Ok(orate::check_output(output)?)
}

/// Whether an output is a folder, which need not exist yet.
pub fn is_folder(output: &Path) -> bool {
    output.as_os_str().to_string_lossy().ends_with(['/', std::path::MAIN_SEPARATOR]) || output.is_dir()
}

/// Whether two paths name the same file, which need not exist yet.
pub fn is_same_place(a: &Path, b: &Path) -> bool {
    let place = |path: &Path| {
        path.canonicalize().ok().or_else(|| {
            let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            Some(folder.canonicalize().ok()?.join(path.file_name()?))
        })
    };
    a == b || place(a).is_some_and(|a| place(b) == Some(a))
}

/// Whether two paths lead to the same regular file, through any links. Devices and pipes may be both read and
/// written.
fn is_same_file(a: &Path, b: &Path) -> bool {
    match (a.metadata(), b.metadata()) {
        (Ok(a_is), Ok(b_is)) if a_is.is_file() && b_is.is_file() => {
            #[cfg(unix)]
            {
                use std::os::unix::fs::MetadataExt;
                (a_is.dev(), a_is.ino()) == (b_is.dev(), b_is.ino())
            }
            #[cfg(not(unix))]
            is_same_place(a, b)
        }
        _ => false,
    }
}

/// Whether an output is a file of a model's folder. Audio that an earlier run wrote there may be replaced.
fn is_part_of(output: &Path, folder: &Path) -> bool {
    if !folder.is_dir() || !is_model_file(output) {
        return false;
    }
    match (output.canonicalize(), folder.canonicalize()) {
        (Ok(output), Ok(folder)) => output.starts_with(folder),
        _ => false,
    }
}

/// Whether a file may be part of a model, by its extension.
pub fn is_model_file(path: &Path) -> bool {
    let ending = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
    ending.is_some_and(|e| MODEL_FILES.contains(&e.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_not_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(path("model/parts")).expect("writable");
        for file in ["a.wav", "model/parts/x.onnx", "model/s3gen.pt", "model/speech.wav"] {
            std::fs::write(path(file), "x").expect("writable");
        }
        std::fs::hard_link(path("a.wav"), path("b.wav")).expect("links");
        let inputs = [("the recording", path("a.wav")), ("the model", path("model"))];
        for bad in ["a.wav", "model/../a.wav", "b.wav", "model/parts/x.onnx", "model/s3gen.pt"] {
            let e = check("-o", &path(bad), &inputs).expect_err(bad).to_string();
            assert!(e.starts_with("-o ") && e.contains("is read from there; name another file"), "{e}");
        }
        let e = check("-o", Path::new("-"), &inputs).expect_err("no file").to_string();
        assert_eq!(e, "-o -: this cannot go to standard output; name a file");
        for good in ["c.wav", "model/speech.wav", "model/new.json"] {
            check("-o", &path(good), &inputs).expect(good);
        }
    }
}
