//! Hostile files and names: their content is escaped when printed, and no input is overwritten.

use crate::util::{Folder, finish, repository, tiny};
use serde_json::json;
use std::path::Path;

/// Writes a safetensors file with one tensor of this name.
fn write_safetensors(path: &Path, name: &str) {
    let header = json!({
        "__metadata__": { "note": format!("of {name}") },
        name: { "dtype": "F32", "shape": [1], "data_offsets": [0, 4] },
    });
    let header = header.to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat();
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn names_as_long_as_a_book_are_listed() {
    let folder = Folder::new();
    write_safetensors(&folder.path("a.safetensors"), &"x".repeat(100_000));
    for args in [&["inspect", "a.safetensors"][..], &["inspect", "a.safetensors", "--tensors"]] {
        let run = folder.orate(args).ok();
        assert!(run.text().contains("characters left out"), "{}", run.text());
        assert!(run.text().lines().all(|line| line.chars().count() < 3000));
    }
    let json = folder.orate(&["inspect", "a.safetensors", "--tensors", "--json"]).ok().json();
    assert_eq!(json["tensors"][0]["name"].as_str().map(str::len), Some(100_000), "JSON has all of it");
}

/// No colors, no extra lines, no reversed text.
#[test]
fn terminals_show_what_files_hold_and_do_not_obey() {
    let folder = Folder::new();
    let name = "a\x1b[2J\nwrote b.wav\u{202e}\u{9b}31m";
    write_safetensors(&folder.path("a.safetensors"), name);
    let hostile = |text: &str| {
        text.chars().any(|c| (c.is_control() && c != '\n') || matches!(c, '\u{202a}'..='\u{202e}'))
    };
    for more in [&[][..], &["--tensors"], &["--tensors", "--json"]] {
        let run = folder.orate(&[&["inspect", "a.safetensors"], more].concat()).ok();
        assert!(!hostile(run.text()) && !run.text().contains("\nwrote"), "{}", run.text());
    }
    let json = folder.orate(&["inspect", "a.safetensors", "--tensors", "--json"]).ok().json();
    assert_eq!(json["tensors"][0]["name"], name, "JSON says the same in escapes");

    // Names and texts in errors and other lines on standard error.
    let run = folder.orate(&["say", "Hello.", "--voice", name, "-o", "a.wav"]);
    assert!(!hostile(&run.stderr) && run.stderr.lines().count() == 1, "{}", run.stderr);
    let run = folder.orate(&["say", "Hello.", "--model", name, "-o", "a.wav"]);
    assert!(!hostile(&run.stderr) && !run.stderr.contains("\nwrote"), "{}", run.stderr);
    let run = folder.orate(&["say", "\u{1b}\u{202e}漢", "-o", "a.wav"]);
    assert!(!hostile(&run.stderr), "{}", run.stderr);
}

#[test]
fn errors_do_not_repeat_a_whole_file() {
    let folder = Folder::new();
    folder.copy_model(&tiny(2));
    folder.write("model/onnx/tts.json", format!(r#"{{"tts_version":"{}"}}"#, "v".repeat(100_000)));
    let run = folder.orate(&["say", "Hello.", "--model", "model", "-o", "a.wav"]);
    assert_eq!(run.status, Some(1), "{}", run.stderr);
    assert!(run.stderr.len() < 5000, "{} bytes", run.stderr.len());
}

#[test]
fn no_output_takes_the_place_of_an_input() {
    let folder = Folder::new();
    let voice = repository("voices/orate-default/orate-default.gguf");
    std::fs::copy(&voice, folder.path("voice.gguf")).unwrap();
    folder.copy_model(&tiny(2));
    folder.write("speech.wav", "a recording");
    folder.write("text.wav", "Hello.");
    folder.write("text.png", "Hello.");
    let f1 = "model/voice_styles/F1.json";
    let cases: [(&[&str], &str); 8] = [
        (&["say", "Hello.", "--reference", "speech.wav"], "-o speech.wav: the recording"),
        (&["say", "-f", "text.wav", "-o", "./text.wav"], "-o ./text.wav: the text"),
        (&["say", "-f", "text.png", "--plot", "text.png"], "--plot text.png: the text"),
        (
            &["say", "Hm.", "--model", "voice.gguf", "-o", "voice.gguf", "--format", "raw"],
            "-o voice.gguf: the model",
        ),
        (
            &["say", "Hm.", "--model", "model", "-o", "model/onnx/vocoder.onnx", "--format", "wav16"],
            "-o model/onnx/vocoder.onnx: the model",
        ),
        (
            &["say", "Hm.", "--voice", "F1:0.7+model/voice_styles/F1.json:0.3", "-o", f1, "--format", "raw"],
            "F1.json: the voice",
        ),
        (&["bench", "--model", "voice.gguf", "--trace", "voice.gguf"], "--trace voice.gguf: the model"),
        (&["pack-voice", "model", "-o", "model/onnx/tts.json"], "-o model/onnx/tts.json: the voice"),
    ];
    let before =
        ["speech.wav", "text.wav", "voice.gguf", f1, "model/onnx/vocoder.onnx"].map(|f| folder.read(f));
    for (args, message) in cases {
        folder.orate(args).fails(2, &[message, "is read from there; name another file"]);
    }
    let after =
        ["speech.wav", "text.wav", "voice.gguf", f1, "model/onnx/vocoder.onnx"].map(|f| folder.read(f));
    assert!(before == after, "nothing was changed");

    // The built-in voice, named by the environment.
    let mut command = folder.command(&["say", "Hm.", "-o", "voice.gguf", "--format", "raw"]);
    finish(command.env("ORATE_VOICE", "voice.gguf")).fails(2, &["the model is read from there"]);
    // Audio in a model's folder may be replaced.
    for _ in 0..2 {
        folder.orate(&["say", "Hm.", "--model", "model", "-o", "model/speech.wav"]).ok();
    }
}

/// A link to a missing file is followed, and stays.
#[cfg(unix)]
#[test]
fn links_stay_links() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("elsewhere")).unwrap();
    for (link, format) in [("a.wav", "wav16"), ("a.raw", "raw")] {
        let target = format!("elsewhere/{link}");
        std::os::unix::fs::symlink(&target, folder.path(link)).unwrap();
        for _ in 0..2 {
            folder.orate(&["say", "Hm.", "-o", link, "--format", format]).ok();
            assert!(folder.path(link).symlink_metadata().unwrap().is_symlink());
            assert!(!folder.path(&target).symlink_metadata().unwrap().is_symlink());
        }
    }
    assert_eq!(folder.files(), ["a.raw", "a.wav", "elsewhere"]);
}

/// `inspect` fails, too, on a model that cannot speak.
#[test]
fn a_damaged_default_voice_is_found_by_inspect() {
    let folder = Folder::new();
    let model = folder.copy_model(&tiny(2));
    folder.orate(&["inspect", "model"]).ok();
    std::fs::write(model.join("voice_styles/F1.json"), "{}").unwrap();
    for args in [&["inspect", "model"][..], &["say", "Hm.", "--model", "model", "-o", "a.wav"]] {
        let run = folder.orate(args);
        assert!(run.status != Some(0) && run.stderr.contains("F1"), "{args:?}: {}", run.stderr);
    }
}
