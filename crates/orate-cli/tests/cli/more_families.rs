//! A program with an additional family (examples/hum.rs): every command supports it, its options are flags.

use crate::toy::write::{write_goldens, write_model};
use crate::util::{Folder, Run, finish};
use orate_audio::{AudioFormat, write_audio};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Runs the example program, which is built next to `orate` with the tests.
fn hum(folder: &Folder, args: &[&str]) -> Run {
    finish(folder.command_of(&program(), args).stdin(Stdio::null()))
}

fn program() -> PathBuf {
    let orate = Path::new(env!("CARGO_BIN_EXE_orate"));
    let name = format!("hum{}", std::env::consts::EXE_SUFFIX);
    orate.parent().expect("a folder").join("examples").join(name)
}

#[test]
fn every_command_knows_a_new_family() {
    let folder = Folder::new();
    let model = folder.path("model");
    std::fs::create_dir(&model).expect("room");
    write_model(&model);
    write_goldens(&model, "hello");
    let run = |args: &[&str]| -> String { String::from_utf8(hum(&folder, args).ok().stdout).expect("UTF-8") };
    let json =
        |args: &[&str]| -> serde_json::Value { serde_json::from_str(&run(args)).expect("one JSON object") };

    let spoken =
        json(&["say", "Hello", "--model", "model", "--volume", "0.9", "--raw", "-o", "a.wav", "--json"]);
    assert_eq!(spoken["duration_s"], 0.25, "5 letters of 400 samples: {spoken}");
    assert_eq!(spoken["options"], serde_json::json!({ "volume": 0.9 }));
    let help = run(&["say", "-h"]);
    assert!(help.contains("--volume") && help.contains("Hum"), "{help}");
    let voices = run(&["voices", "--model", "model"]);
    assert_eq!(voices, "low (default)\nhigh\n");
    let found = json(&["inspect", "model", "--json"]);
    assert_eq!((found["kind"].as_str(), found["total"]["tensors"].as_u64()), (Some("Hum"), Some(3)));
    let explained = run(&["explain", "--model", "model", "--tokens", "7"]);
    assert!(explained.contains("7 letters") && explained.contains("letters.weight"), "{explained}");
    let timed = json(&["bench", "--model", "model", "--runs", "2", "--json"]);
    assert!(timed["total_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{timed}");
    let verified = json(&["verify", "--model", "model", "--goldens", "model", "--json"]);
    assert_eq!(verified["passed"], true, "{verified}");

    let wrong = hum(&folder, &["say", "Hi", "--model", "model", "--volume", "2", "-o", "b.wav"]);
    wrong.fails(2, &["volume is 2; choose 0 to 1"]);
    let wrong = hum(&folder, &["say", "Hi", "--volume", "1", "-o", "b.wav", "--device", "cpu"]);
    wrong.fails(2, &["`--volume` is not an option of Supertonic models (Hum has it)"]);
    let wrong = hum(&folder, &["say", "Hi", "--model", "model", "--speed", "1", "-o", "b.wav"]);
    wrong.fails(2, &["`--speed` is not an option of Hum models (Supertonic has it)"]);
}

/// A recording of half a second at 16 kHz.
fn write_tone(folder: &Folder, name: &str) -> Vec<f32> {
    let tone: Vec<f32> = (0..8000).map(|i| 0.3 * (i as f32 * 0.2).sin()).collect();
    write_audio(folder.path(name), &tone, 16_000, AudioFormat::WavFloat).expect("room");
    tone
}

fn folder_with_model() -> Folder {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("model")).expect("room");
    write_model(&folder.path("model"));
    folder
}

#[test]
fn recordings_are_converted() {
    let folder = folder_with_model();
    write_tone(&folder, "tone.wav");
    let convert =
        |args: &[&str]| hum(&folder, &[&["convert", "tone.wav", "--model", "model"], args].concat()).ok();
    let json = convert(&["--volume", "0.9", "--voice", "high", "-o", "a.wav", "--json"]).json();
    assert_eq!(
        (json["duration_s"].as_f64(), json["sample_rate"].as_u64()),
        (Some(0.5), Some(8000)),
        "{json}"
    );
    assert_eq!((json["source"].as_str(), json["voice"].as_str()), (Some("tone.wav"), Some("high")), "{json}");
    assert_eq!(json["options"]["volume"].as_f64(), Some(0.9), "{json}");
    convert(&["--volume", "0.9", "--voice", "high", "-o", "b.wav", "--plot", "b.png", "--quiet"]);
    assert_eq!(folder.read("a.wav"), folder.read("b.wav"));
    for tone in ["tone.wav", "-"] {
        let file = std::fs::File::open(folder.path("tone.wav")).expect("there");
        let args = ["convert", tone, "--model", "model", "--volume", "0.9", "--voice", "high", "-o", "b.wav"];
        finish(folder.command_of(&program(), &args).stdin(file)).ok();
        assert_eq!(folder.read("a.wav"), folder.read("b.wav"), "{tone}");
    }
    let piped = convert(&["-o", "-", "--format", "raw"]);
    assert_eq!(piped.stdout.len(), 2 * 4000);
    assert_eq!(folder.files(), ["a.wav", "b.png", "b.wav", "model", "tone.wav"]);
    let help = String::from_utf8(hum(&folder, &["convert", "--help"]).ok().stdout).expect("UTF-8");
    assert!(help.contains("--volume") && !help.contains("--speed") && !help.contains("--top-k"), "{help}");
}

#[test]
fn what_cannot_be_converted() {
    let folder = folder_with_model();
    let tone = write_tone(&folder, "tone.wav");
    let write = |name: &str, samples: &[f32]| {
        write_audio(folder.path(name), samples, 16_000, AudioFormat::WavFloat).expect("room");
    };
    write("silent.wav", &[0.0; 8000]);
    write("short.wav", &tone[..800]);
    write("none.wav", &[]);
    folder.write("empty.wav", "");
    folder.write("text.wav", "no sound");
    folder.write("tone.png", folder.read("tone.wav"));
    let mut bytes = folder.read("tone.wav");
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    folder.write("nan.wav", bytes);
    let files = folder.files();
    let cases: [(&str, i32, &[&str], &[&str]); 13] = [
        ("missing.wav", 1, &[], &["missing.wav: cannot open this recording", "No such file"]),
        ("empty.wav", 1, &[], &["empty.wav: cannot read this as audio"]),
        ("text.wav", 1, &[], &["text.wav: cannot read this as audio"]),
        ("none.wav", 1, &[], &["none.wav: there are no samples"]),
        ("silent.wav", 1, &[], &["silent.wav: this recording is silent"]),
        ("short.wav", 1, &[], &["short.wav", "0.05 s", "at least 0.1 s"]),
        ("nan.wav", 1, &[], &["nan.wav: sample 7999 is NaN"]),
        ("tone.wav", 2, &["-o", "tone.wav"], &["-o tone.wav: the source is read from there"]),
        ("tone.wav", 2, &["--reference", "nan.wav", "-o", "nan.wav"], &["the recording is read from there"]),
        ("tone.png", 2, &["--plot", "tone.png"], &["--plot tone.png: the source is read from there"]),
        ("tone.wav", 2, &["--volume", "2"], &["volume is 2; choose 0 to 1"]),
        ("tone.wav", 2, &["--voice", "bob"], &["unknown voice `bob`"]),
        ("tone.wav", 2, &["--speed", "1"], &["--speed"]),
    ];
    for (source, status, more, parts) in cases {
        let more = if more.contains(&"-o") { more.to_vec() } else { [more, &["-o", "a.wav"]].concat() };
        hum(&folder, &[&["convert", source, "--model", "model"], &*more].concat()).fails(status, parts);
    }
    for (name, parts) in [
        ("empty.wav", ["standard input: cannot read this as audio", "it is empty"]),
        ("text.wav", ["standard input: cannot read this as audio", ""]),
        ("silent.wav", ["standard input: this recording is silent", ""]),
    ] {
        let file = std::fs::File::open(folder.path(name)).expect("there");
        let args = ["convert", "-", "--model", "model", "-o", "a.wav"];
        finish(folder.command_of(&program(), &args).stdin(file)).fails(1, &parts);
    }
    let parts = ["Supertonic model: it cannot convert recordings; Chatterbox models can"];
    folder.orate(&["convert", "missing.wav", "-o", "a.wav"]).fails(2, &parts);
    hum(&folder, &["convert", "missing.wav", "-o", "a.wav"]).fails(2, &["; Hum and Chatterbox models can"]);
    assert_eq!(folder.files(), files, "nothing is left");
}
