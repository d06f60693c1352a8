//! Voices made from recordings: kept, listed, used and removed.

use crate::util::{Folder, repository};
use orate_testing::checkpoints::write_random_qwen3_tts;
use serde_json::json;

const WORDS: &str = "once upon a time";

/// Arguments that make a voice from the oracle's recording with the model in `base`.
fn add<'a>(name: &'a str, recording: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["voices", "add", name, "--model", "base", "--reference", recording], more].concat()
}

#[test]
fn a_kept_voice_speaks_as_its_recording_does() {
    let folder = Folder::new();
    write_random_qwen3_tts("base", &folder.path("base"), 1).unwrap();
    let recording = repository("oracle/qwen3_tts/golden/cases/ref.wav");
    let recording = recording.to_str().unwrap();
    let say = ["say", "Hello.", "--model", "base", "--max-frames", "3", "-o", "a.wav", "--json"];
    let spoken = |more: &[&str]| {
        let json = folder.orate(&[&say[..], more].concat()).ok().json();
        (folder.read("a.wav"), json)
    };

    for (name, more) in [("ada", vec![]), ("bert_2", vec!["--transcript", WORDS])] {
        let run = folder.orate(&add(name, recording, &more)).ok();
        assert!(run.stderr.contains(&format!("kept `{name}` in ")), "{}", run.stderr);
        let (fresh, _) = spoken(&[&["--reference", recording], &more[..]].concat());
        let (kept, json) = spoken(&["--voice", name]);
        assert!(kept == fresh, "the same voice");
        assert_eq!((&json["voice"], &json["attempts"]), (&json!(name), &json!(1)));
        let file = folder.path("voices").join(format!("{name}.safetensors"));
        assert!(spoken(&["--voice", file.to_str().unwrap()]).0 == fresh, "the file is the voice");
    }

    let json = folder.orate(&["voices", "--model", "base", "--json"]).ok().json();
    let entry = |i: usize, name: &str, words: Option<&str>| {
        let fits = &json["kept"][i]["fits"];
        assert!(fits.as_str().is_some_and(|f| f.contains("for Qwen3-TTS Base models of width")), "{json}");
        json!({ "name": name, "family": "Qwen3-TTS", "fits": fits, "transcript": words })
    };
    assert_eq!(json["kept"], json!([entry(0, "ada", None), entry(1, "bert_2", Some(WORDS))]));
    let all = folder.orate(&["voices"]).ok();
    for line in ["default (default)\n", "ada (kept; voice, for ", "bert_2 (kept; voice and manner, for "] {
        assert!(all.text().contains(line), "{line}: {}", all.text());
    }

    let before = std::fs::read(folder.path("voices/ada.safetensors")).unwrap();
    folder
        .orate(&add("ada", recording, &["--transcript", WORDS]))
        .fails(2, &["`ada` is kept already", "--force"]);
    assert!(std::fs::read(folder.path("voices/ada.safetensors")).unwrap() == before);
    folder.orate(&add("ada", recording, &["--transcript", WORDS, "--force"])).ok();
    assert!(std::fs::read(folder.path("voices/ada.safetensors")).unwrap() != before);

    folder.orate(&["voices", "remove", "ada"]).ok();
    folder.orate(&["voices", "remove", "ada"]).fails(2, &["no voice `ada`", "bert_2"]);
    folder.orate(&[&say[..], &["--voice", "ada"]].concat()).fails(2, &["no voice `ada`", "bert_2"]);
    assert_eq!(std::fs::read_dir(folder.path("voices")).unwrap().count(), 1, "no temporary files");
}

#[test]
fn what_is_no_voice_is_refused() {
    let folder = Folder::new();
    write_random_qwen3_tts("base", &folder.path("base"), 1).unwrap();
    let say =
        |voice: &str| folder.orate(&["say", "Hello.", "--model", "base", "--voice", voice, "-o", "a.wav"]);
    say("ada").fails(2, &["no voice `ada`", "none yet", "orate voices add"]);
    say("../ada").fails(2, &["name of the voice", "letters, digits"]);
    folder.orate(&add("a/b", "none.wav", &[])).fails(2, &["name of the voice"]);
    folder.orate(&add("ada", "none.wav", &[])).fails(1, &["none.wav: cannot open", "No such file"]);
    folder.orate(&add("ada", "base", &[])).fails(1, &["base: cannot open", "this is a folder"]);
    folder.orate(&["voices", "add", "ada", "--reference", "none.wav"]).fails(2, &["cannot clone a voice"]);
    assert_eq!(folder.files(), ["base"], "nothing is kept");

    std::fs::create_dir(folder.path("voices")).unwrap();
    folder.write("voices/empty.safetensors", "");
    folder.write("voices/noise.safetensors", [0xff; 200]);
    folder.write("voices/notes.txt", "mine");
    std::fs::create_dir(folder.path("voices/folder.safetensors")).unwrap();
    std::fs::copy(folder.path("base/model.safetensors"), folder.path("voices/model.safetensors")).unwrap();
    // A voice of another width.
    let other =
        orate::ClonedVoice::from(&orate::qwen3_tts::Voice { x_vector: vec![0.5; 7], reference: None });
    folder.write("voices/narrow.safetensors", other.to_bytes().unwrap());
    for (voice, words) in [
        ("empty", "too few for a header"),
        ("noise", "the header should have"),
        ("folder", "not a file"),
        ("model", "model.safetensors"),
    ] {
        say(voice).fails(1, &[voice, words]);
    }
    say("narrow").fails(2, &["does not fit this model", "7 values"]);
    let run = folder.orate(&["voices"]).ok();
    assert_eq!(run.text().lines().count(), 2, "{}", run.text());
    assert!(
        run.text().contains("narrow (kept; voice, for Qwen3-TTS Base models of width 7)"),
        "{}",
        run.text()
    );
    assert_eq!(run.stderr.lines().count(), 4, "each damaged file is named: {}", run.stderr);
    let run = folder.orate(&["voices", "--model", "base"]).ok();
    assert_eq!(run.text(), "", "it does not fit");
    folder.orate(&["voices", "remove", "noise"]).ok();
    assert!(!folder.files().contains(&"a.wav".to_owned()));
}
