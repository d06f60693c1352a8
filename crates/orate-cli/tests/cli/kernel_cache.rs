//! Cache of compiled kernels: whatever is wrong with its folder, the program speaks and prints one warning.

use super::util::{Folder, Run, finish, tiny};
use std::path::Path;
use std::process::{Command, Stdio};

/// Start of the warning.
const WARNING: &str = "warning: compiled kernels are not kept, so every start compiles them again: ";

const SAY: [&str; 9] = ["say", "hm", "--device", "vulkan:0", "--steps", "1", "--output", "hm.wav", "--model"];

fn say(folder: &Folder, cache: &Path, more: &[&str]) -> Run {
    let model = tiny(2);
    let args = [&SAY, &[model.to_str().expect("UTF-8")][..], more].concat();
    finish(folder.command(&args).env("ORATE_CACHE", cache).stdin(Stdio::null()))
}

/// The warning is printed once, with path and remedy.
#[track_caller]
fn is_warned(run: &Run, path: &Path) {
    let text = &run.stderr;
    assert_eq!(text.matches("warning: ").count(), 1, "{text}");
    let warning = text.lines().find_map(|l| l.strip_prefix(WARNING)).unwrap_or_else(|| panic!("{text}"));
    assert!(warning.starts_with(path.to_str().expect("UTF-8")), "{warning}");
    assert!(warning.contains("let the folder be written") && warning.contains("ORATE_CACHE"), "{warning}");
}

#[test]
fn a_folder_that_cannot_be_made_is_a_warning() {
    let folder = Folder::new();
    let cache = folder.write("file", "not a folder").join("below");
    let run = say(&folder, &cache, &[]).ok();
    is_warned(&run, &cache);
    assert!(folder.path("hm.wav").exists(), "it speaks all the same");
    assert_eq!(say(&folder, &cache, &["--quiet"]).ok().stderr, "");
    let json = say(&folder, &cache, &["--json"]).ok();
    is_warned(&json, &cache);
    let warnings = json.json()["warnings"].as_array().expect("a list").clone();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].as_str().expect("words").contains(cache.to_str().expect("UTF-8")), "{warnings:?}");
    let model = tiny(2);
    let args =
        ["bench", "--runs", "1", "--device", "vulkan:0", "--steps", "1", "--text", "hm", "--json", "--model"];
    let args = [&args, &[model.to_str().expect("UTF-8")][..]].concat();
    let bench = finish(folder.command(&args).env("ORATE_CACHE", &cache)).ok();
    is_warned(&bench, &cache);
    assert_eq!(bench.json()["warnings"].as_array().expect("a list").len(), 1);
    // If nothing is compiled, there is nothing to store.
    let cpu = folder.orate(&["say", "hm", "--device", "cpu", "--model", model.to_str().expect("UTF-8")]).ok();
    assert!(!cpu.stderr.contains("warning"), "{}", cpu.stderr);
}

/// Files can be created but not written, as on a full disk.
#[cfg(unix)]
#[test]
fn a_full_disk_is_a_warning() {
    let (folder, model) = (Folder::new(), tiny(2));
    let cache = folder.path("kernels");
    let mut args = SAY;
    args[7] = "-"; // the audio can be written
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_orate")]).args(args).arg(model);
    let run = finish(command.env("ORATE_CACHE", &cache).stdin(Stdio::null())).ok();
    is_warned(&run, &cache);
    assert!(run.stdout.len() > 44, "a whole file");
    let left: Vec<_> = std::fs::read_dir(cache.join("gpu")).expect("could be made").collect();
    assert!(left.is_empty(), "no unfinished file: {left:?}");
}

#[test]
fn damaged_kernels_are_made_anew() {
    let folder = Folder::new();
    let cache = folder.path("kernels");
    let samples = |run: Run| {
        assert!(!run.ok().stderr.contains("warning"));
        folder.read("hm.wav")
    };
    let wave = samples(say(&folder, &cache, &[]));
    let files: Vec<_> = std::fs::read_dir(cache.join("gpu"))
        .expect("was made")
        .map(|f| f.expect("is readable").path())
        .collect();
    let [file] = &files[..] else { panic!("one file for each device: {files:?}") };
    let whole = std::fs::read(file).expect("is readable");
    for damaged in [&b""[..], b"nonsense", &whole[..whole.len() - 1], &[&whole[..], b"x"].concat()] {
        std::fs::write(file, damaged).expect("is writable");
        assert!(samples(say(&folder, &cache, &[])) == wave);
        assert!(std::fs::read(file).expect("is readable") == whole, "is whole again");
    }
    // A folder in place of the file.
    std::fs::remove_file(file).expect("is ours");
    std::fs::create_dir(file).expect("is writable");
    let run = say(&folder, &cache, &[]).ok();
    is_warned(&run, file);
}

#[test]
fn several_programs_keep_kernels_at_once() {
    let folder = Folder::new();
    let cache = folder.path("kernels");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let own = Folder::new();
                for _ in 0..3 {
                    let run = say(&own, &cache, &[]).ok();
                    assert!(!run.stderr.contains("warning"), "{}", run.stderr);
                }
            });
        }
    });
    assert_eq!(std::fs::read_dir(cache.join("gpu")).expect("was made").count(), 1, "and nothing unfinished");
}
