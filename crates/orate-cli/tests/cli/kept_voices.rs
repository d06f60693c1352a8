//! Voices made from recordings: kept, listed, used and removed.

use crate::util::{Folder, repository};
use orate_audio::{AudioFormat, read_wav, write_audio};
use orate_testing::checkpoints::{chatterbox_goldens, write_chatterbox, write_random_qwen3_tts};
use serde_json::json;

const WORDS: &str = "once upon a time";

/// Arguments that make a voice from the oracle's recording with the model in `base`.
fn add<'a>(name: &'a str, recording: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["voices", "add", name, "--model", "base", "--reference", recording], more].concat()
}

#[test]
fn a_recording_may_be_standard_input() {
    let folder = Folder::new();
    write_random_qwen3_tts("base", &folder.path("base"), 1).unwrap();
    let recording = repository("oracle/qwen3_tts/golden/cases/ref.wav");
    let sound = std::fs::read(&recording).unwrap();
    let say = |text: &'static [&str], reference| {
        let more = ["--model", "base", "--max-frames", "3", "-o", "a.wav", "--reference", reference];
        [&["say"], text, &more].concat()
    };
    folder.orate(&say(&["Hello."], recording.to_str().unwrap())).ok();
    let spoken = folder.read("a.wav");
    folder.orate_with(&say(&["Hello."], "-"), &sound).ok();
    assert!(folder.read("a.wav") == spoken, "the same voice");
    folder.orate_with(&add("ada", "-", &[]), &sound).ok();
    assert!(folder.path("voices/ada.safetensors").exists());

    for text in [&[][..], &["-"], &["--file", "-"]] {
        let parts = ["--reference -: the text is read from standard input, too", "name a file"];
        folder.orate_with(&say(text, "-"), &sound).fails(2, &parts);
    }
    let parts = ["--reference -: the source is read from standard input, too"];
    folder.orate_with(&["convert", "-", "--model", "base", "--reference", "-"], &sound).fails(2, &parts);
    for (input, part) in [("", "it is empty"), ("no sound", "")] {
        let parts = ["standard input: cannot read this as audio", part];
        folder.orate_with(&say(&["Hello."], "-"), input.as_bytes()).fails(1, &parts);
        folder.orate_with(&add("bert", "-", &[]), input.as_bytes()).fails(1, &parts);
    }
    assert_eq!(folder.files(), ["a.wav", "base", "voices"]);
}

/// By all commands in the same way.
#[test]
fn a_recording_that_is_cut_short_is_refused() {
    let folder = Folder::new();
    write_random_qwen3_tts("base", &folder.path("base"), 1).unwrap();
    write_chatterbox(&folder.path("en"), "en", "tiny").unwrap();
    let whole = std::fs::read(repository("oracle/qwen3_tts/golden/cases/ref.wav")).unwrap();
    folder.write("cut.wav", &whole[..whole.len() / 2]);
    let part = ["cut.wav: this recording is cut short"];
    folder.orate(&add("ada", "cut.wav", &[])).fails(1, &part);
    folder.orate(&["say", "Hi.", "--model", "base", "--reference", "cut.wav", "-o", "a.wav"]).fails(1, &part);
    folder.orate(&["convert", "cut.wav", "--model", "en", "-o", "a.wav"]).fails(1, &part);
    assert!(!folder.path("a.wav").exists());
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
fn voices_and_models_of_several_kinds() {
    let folder = Folder::new();
    write_random_qwen3_tts("base", &folder.path("base"), 1).unwrap();
    for variant in ["en", "turbo"] {
        write_chatterbox(&folder.path(variant), variant, "tiny").unwrap();
    }
    let recording = read_wav(chatterbox_goldens().join("ref.wav")).unwrap();
    let long = [&recording.samples[..], &recording.samples].concat();
    write_audio(folder.path("long.wav"), &long, recording.sample_rate, AudioFormat::Wav16).unwrap();
    let source = chatterbox_goldens().join("source.wav");
    let source = source.to_str().unwrap();
    let add = |name: &str, model: &str, recording: &str| {
        folder.orate(&["voices", "add", name, "--model", model, "--reference", recording])
    };
    let voices = || std::fs::read_dir(folder.path("voices")).unwrap().count();
    for (name, model) in [("ada", "en"), ("ted", "turbo"), ("una", "base"), ("vic", "en/s3gen.safetensors")] {
        let run = add(name, model, "long.wav").ok();
        assert!(run.stderr.contains(&format!("kept `{name}` in ")), "{}", run.stderr);
    }
    assert_eq!(voices(), 4);
    add("short", "turbo", source).fails(1, &["source.wav: only ", "at least 5.01 s are needed"]);
    add("default", "en", "long.wav")
        .fails(2, &["default: the model has a voice of this name", "another name"]);
    assert_eq!(voices(), 4, "nothing is left");

    let listed = folder.orate(&["voices", "--model", "en"]).ok();
    for (name, fits) in [("ada", true), ("ted", false), ("una", false), ("vic", false)] {
        assert_eq!(
            listed.text().contains(&format!("{name} (kept; for Chatterbox")),
            fits,
            "{}",
            listed.text()
        );
    }
    let say = |model: &str, voice: &str| {
        let codes = if model == "base" { "--max-frames" } else { "--max-codes" };
        let model = ["say", "Hello.", "--model", model, "--voice", voice, codes, "3", "-o", "a.wav"];
        folder.orate(&model)
    };
    say("en", "ada").ok();
    say("turbo", "ada").ok();
    say("turbo", "ted").ok();
    std::fs::remove_file(folder.path("a.wav")).unwrap();
    let again = "make it again from its recording, with this model";
    say("en", "ted").fails(2, &["English models read 150 at most", again]);
    say("en", "vic").fails(2, &["a model for voice conversion", again]);
    say("en", "una").fails(2, &["a voice of family \"qwen3-tts\"", "those of chatterbox"]);
    say("base", "ada").fails(2, &["a voice of family \"chatterbox\"", "those of qwen3-tts"]);
    for (voice, family) in [("ada", "Chatterbox"), ("vic", "Chatterbox"), ("una", "Qwen3-TTS")] {
        let problem =
            format!("`{voice}` is a kept voice for {family} models, and this is a Supertonic model");
        folder
            .orate(&["say", "Hello.", "--voice", voice, "-o", "a.wav"])
            .fails(2, &[&problem, ", which has: default"]);
    }

    let convert = |voice: &str| {
        folder.orate(&["convert", source, "--model", "en", "--voice", voice, "-o", "converted.wav"])
    };
    convert("una").fails(2, &["a voice of family \"qwen3-tts\""]);
    convert("bob").fails(2, &["no voice `bob` is kept", "there are: ada, ted, vic;"]);
    let whole = std::fs::read(folder.path("voices/ada.safetensors")).unwrap();
    folder.write("voices/cut.safetensors", &whole[..whole.len() / 2]);
    convert("cut")
        .fails(1, &["cut.safetensors: not a valid", "make the voice again", "orate voices remove cut"]);
    assert!(!folder.path("a.wav").exists() && !folder.path("converted.wav").exists(), "nothing is written");
    for voice in ["ada", "ted", "vic"] {
        convert(voice).ok();
    }
}

#[test]
fn what_is_no_voice_is_refused() {
    let folder = Folder::new();
    write_random_qwen3_tts("base", &folder.path("base"), 1).unwrap();
    let say =
        |voice: &str| folder.orate(&["say", "Hello.", "--model", "base", "--voice", voice, "-o", "a.wav"]);
    say("ada").fails(2, &["no voice `ada`", "none to choose from", "orate voices add"]);
    say("../ada").fails(2, &["name of the voice", "letters, digits"]);
    folder.orate(&add("a/b", "none.wav", &[])).fails(2, &["name of the voice"]);
    folder.orate(&add("ada", "none.wav", &[])).fails(1, &["none.wav: cannot open", "No such file"]);
    folder.orate(&add("ada", "base", &[])).fails(1, &["base: cannot open", "this is a folder"]);
    folder
        .orate(&["voices", "add", "ada", "--reference", "none.wav"])
        .fails(2, &["cannot clone a voice; Qwen3-TTS Base and Chatterbox models can"]);
    folder.orate(&add("NUL", "none.wav", &[])).fails(2, &["name of the voice", "a device of Windows"]);
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
        ("model", "model.safetensors"),
    ] {
        say(voice).fails(1, &[voice, words]);
    }
    say("folder").fails(2, &["no voice `folder` is kept"]);
    say("narrow").fails(2, &["does not fit this model", "7 values"]);
    let run = folder.orate(&["voices"]).ok();
    assert_eq!(run.text().lines().count(), 2, "{}", run.text());
    assert!(
        run.text().contains("narrow (kept; voice, for Qwen3-TTS Base models of width 7)"),
        "{}",
        run.text()
    );
    assert_eq!(run.stderr.lines().count(), 3, "each damaged file is named: {}", run.stderr);
    assert!(!run.stderr.contains("folder.safetensors"), "{}", run.stderr);
    let run = folder.orate(&["voices", "--model", "base"]).ok();
    assert_eq!(run.text(), "", "it does not fit");
    folder.orate(&["voices", "remove", "noise"]).ok();
    assert!(!folder.files().contains(&"a.wav".to_owned()));
}
