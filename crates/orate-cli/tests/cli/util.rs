//! Runs the program, and names the models to run it with.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A file or folder of the repository.
pub fn repository(path: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    assert!(path.exists(), "{} is part of the repository, and this test needs it", path.display());
    path
}

/// A small model with random weights and 8 kHz: version 1, 2 or 3 of Supertonic.
pub fn tiny(version: u32) -> PathBuf {
    let name = if version == 2 { "tiny".to_owned() } else { format!("tiny{version}") };
    repository("oracle/supertonic/golden").join(name)
}

/// A temporary folder in which the program runs; removed at the end.
pub struct Folder(tempfile::TempDir);

/// Result of a run.
pub struct Run {
    pub status: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Folder {
    pub fn new() -> Folder {
        Folder(tempfile::tempdir().expect("temporary folder"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        std::fs::write(self.path(name), content).expect("write a test's input");
        self.path(name)
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Names of all files, including hidden ones.
    pub fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).expect("list the folder");
        let name = |e: std::io::Result<std::fs::DirEntry>| {
            e.expect("list the folder").file_name().to_string_lossy().into_owned()
        };
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }

    /// The program in this folder, with a clean environment.
    pub fn command<A: AsRef<OsStr>>(&self, args: &[A]) -> Command {
        self.command_of(env!("CARGO_BIN_EXE_orate").as_ref(), args)
    }

    /// Another program in the same environment.
    pub fn command_of<A: AsRef<OsStr>>(&self, program: &Path, args: &[A]) -> Command {
        let mut command = Command::new(program);
        command
            .args(args)
            .current_dir(self.0.path())
            .env("ORATE_VOICE_FOLDER", self.path("voices"))
            .env("HF_HOME", self.path("hub"))
            .env_remove("ORATE_CPU_ISA")
            .env_remove("RUST_BACKTRACE");
        for variable in ["ENDPOINT", "TOKEN", "TOKEN_PATH", "HUB_CACHE", "HUB_OFFLINE"] {
            command.env_remove(format!("HF_{variable}"));
        }
        if cfg!(feature = "default-voice") {
            command.env_remove("ORATE_VOICE");
        } else {
            command.env("ORATE_VOICE", repository("voices/orate-default/orate-default.gguf"));
        }
        command
    }

    /// Runs the program without input.
    pub fn orate<A: AsRef<OsStr>>(&self, args: &[A]) -> Run {
        finish(self.command(args).stdin(Stdio::null()))
    }

    /// Runs the program with `input` on standard input.
    pub fn orate_with<A: AsRef<OsStr>>(&self, args: &[A], input: &[u8]) -> Run {
        let file = self.0.path().join(".input");
        std::fs::write(&file, input).expect("write a test's input");
        let stdin = std::fs::File::open(&file).expect("open a test's input");
        std::fs::remove_file(&file).expect("forget a test's input");
        finish(self.command(args).stdin(stdin))
    }

    /// Copies a model, to be damaged.
    pub fn copy_model(&self, model: &Path) -> PathBuf {
        let to = self.path("model");
        let _ = std::fs::remove_dir_all(&to);
        for part in ["onnx", "voice_styles"] {
            std::fs::create_dir_all(to.join(part)).expect("copy a model");
            for entry in std::fs::read_dir(model.join(part)).expect("copy a model") {
                let from = entry.expect("copy a model").path();
                let name = from.file_name().expect("a file has a name");
                std::fs::copy(&from, to.join(part).join(name)).expect("copy a model");
            }
        }
        to
    }
}

/// Waits for the end. Asserts that the program has not panicked.
pub fn finish(command: &mut Command) -> Run {
    let output = command.output().expect("run orate");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!stderr.contains("panicked"), "{command:?}\n{stderr}");
    Run { status: output.status.code(), stdout: output.stdout, stderr }
}

impl Run {
    /// Asserts success.
    #[track_caller]
    pub fn ok(self) -> Run {
        assert_eq!(self.status, Some(0), "{}", self.stderr);
        self
    }

    /// Asserts failure with this status, and an error that contains all of `parts`.
    #[track_caller]
    pub fn fails(self, status: i32, parts: &[&str]) -> Run {
        assert_eq!(self.status, Some(status), "{}", self.stderr);
        assert!(self.stderr.starts_with("error: "), "{}", self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "no `{part}` in: {}", self.stderr);
        }
        self
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("text")
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }
}

/// Lossy formats of this build.
pub fn encoded_formats() -> &'static [&'static str] {
    &[
        #[cfg(feature = "mp3")]
        "mp3",
        #[cfg(feature = "opus")]
        "opus",
        #[cfg(feature = "aac")]
        "aac",
    ]
}
