//! A program with an additional family (examples/hum.rs): every command supports it, its options are flags.

use crate::toy::write::{write_goldens, write_model};
use crate::util::{Folder, Run, finish};
use std::path::Path;
use std::process::Stdio;

/// Runs the example program, which is built next to `orate` with the tests.
fn hum(folder: &Folder, args: &[&str]) -> Run {
    let orate = Path::new(env!("CARGO_BIN_EXE_orate"));
    let name = format!("hum{}", std::env::consts::EXE_SUFFIX);
    let program = orate.parent().expect("a folder").join("examples").join(name);
    finish(folder.command_of(&program, args).stdin(Stdio::null()))
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

    let spoken = json(&["say", "Hello", "--model", "model", "--volume", "0.9", "-o", "a.wav", "--json"]);
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
    wrong.fails(2, &["`volume` is not an option of Supertonic models (Hum has it)"]);
    let wrong = hum(&folder, &["say", "Hi", "--model", "model", "--speed", "1", "-o", "b.wav"]);
    wrong.fails(2, &["`speed` is not an option of Hum models (Supertonic has it)"]);
}
