//! User errors: each has a helpful message and the right status, and leaves no file.

use crate::util::{Folder, finish, repository, tiny};
use std::process::Stdio;

#[test]
fn texts_without_sound() {
    let folder = Folder::new();
    let cases: [(&str, &[&str]); 5] = [
        ("", &["nothing to say", "at least one letter"]),
        (" \n\t ", &["nothing to say"]),
        ("...!?", &["nothing to say"]),
        ("😀🎉", &["nothing to say"]), // whether characters that the voice does not know are left out or not
        ("漢字", &["`字` (U+5B57)", "`漢` (U+6F22)", "--skip-unknown"]),
    ];
    for (text, parts) in cases {
        folder.orate(&["say", text, "-o", "a.wav"]).fails(1, parts);
        folder.orate_with(&["say", "-o", "a.wav"], text.as_bytes()).fails(1, parts);
    }
    let model = tiny(2);
    let model = model.to_str().unwrap();
    for text in ["", "😀🎉"] {
        folder.orate(&["say", text, "-o", "a.wav", "--model", model]).fails(1, &["nothing to say"]);
    }
    assert!(folder.files().is_empty(), "{:?}", folder.files());
}

#[test]
fn text_that_is_not_utf8() {
    let folder = Folder::new();
    let latin1 = b"caf\xe9 au lait";
    let parts = ["not UTF-8", "0xe9 at offset 3", "iconv"];
    folder.orate_with(&["say", "-o", "a.wav"], latin1).fails(1, &parts).fails(1, &["standard input"]);
    folder.write("latin1.txt", latin1);
    folder
        .orate(&["say", "--file", "latin1.txt", "-o", "a.wav"])
        .fails(1, &parts)
        .fails(1, &["latin1.txt: "]);
    assert_eq!(folder.files(), ["latin1.txt"]);
    // From Notepad of Windows, cut in the middle of a pair.
    let parts = ["standard input: not UTF-16 text", "unpaired surrogate 0xd83c at offset 4"];
    folder.orate_with(&["say", "-o", "a.wav"], b"\xff\xfeH\0\x3c\xd8").fails(1, &parts);
}

#[test]
fn text_files_that_cannot_be_read() {
    let folder = Folder::new();
    folder.orate(&["say", "--file", "none.txt"]).fails(1, &["none.txt: cannot open", "No such file"]);
    folder.orate(&["say", "--file", "."]).fails(1, &[".: cannot read"]);
    folder.orate(&["say", "Hello.", "--file", "a.txt"]).fails(2, &["--file", "cannot be used with"]);
    assert!(folder.files().is_empty());
}

#[test]
fn options_out_of_range() {
    let folder = Folder::new();
    let cases: [(&[&str], &[&str]); 25] = [
        (&["--steps", "0"], &["--steps is 0", "1 to 100"]),
        (&["--steps", "101"], &["--steps is 101", "1 to 100"]),
        (&["--steps", "-3"], &["-3", "--steps"]),
        (&["--steps", "many"], &["many", "--steps"]),
        (&["--speed", "0"], &["--speed is 0", "0.7 to 2"]),
        (&["--speed", "-1"], &["--speed is -1", "0.7 to 2"]),
        (&["--speed", "NaN"], &["--speed is NaN", "0.7 to 2"]),
        (&["--speed", "inf"], &["--speed is inf", "0.7 to 2"]),
        (&["--speed", "100"], &["--speed is 100", "0.7 to 2"]),
        (&["--silence", "-1"], &["'-1' for '--silence", "choose 0 to 10"]),
        (&["--silence", "NaN"], &["--silence", "choose 0 to 10"]),
        (&["--seed", "-1"], &["--seed", "choose 0 to 18446744073709551615"]),
        (&["--seed", "18446744073709551616"], &["--seed", "choose 0 to 18446744073709551615"]),
        (&["--lang", "xx"], &["--lang is xx", "English (`en`) only"]),
        (&["--voice", "bob"], &["unknown voice `bob`", "this model has: default"]),
        (&["--voice", "default:x"], &["`x` is not a weight", "F1:0.7+M2:0.3"]),
        (&["--threads", "0"], &["--threads", "choose 1 to 1024"]),
        (&["--device", "abacus"], &["--device", "`abacus`", "auto, cpu"]),
        (&["--isa", "mmx"], &["--isa", "`mmx`", "portable"]),
        (&["--format", "aiff"], &["--format", "wav16"]),
        (&["--kv", "q4_0"], &["--kv", "`q4_0`", "f32, f16, bf16, q8_0, auto"]),
        (&["--kv", "f16"], &["--kv is f16", "keep no keys and values"]),
        (&["--precision-allow", "vocoder.*"], &["--precision-allow is `vocoder.*`", "--tensors"]),
        (&["--precision", "f16", "--precision-deny", "talker.*"], &["`talker.*`", "no weight of this model"]),
        (&["--reference", "a.wav"], &["a Supertonic model", "cannot clone a voice"]),
    ];
    for (options, parts) in cases {
        folder.orate(&[&["say", "Hello.", "-o", "a.wav"], options].concat()).fails(2, parts);
    }
    assert!(folder.files().is_empty(), "{:?}", folder.files());
}

#[test]
fn languages_and_voices_that_a_model_does_not_have() {
    let folder = Folder::new();
    let model = tiny(2);
    let model = model.to_str().unwrap();
    let say =
        |more: &[&str]| folder.orate(&[&["say", "Hello.", "-o", "a.wav", "--model", model], more].concat());
    say(&["--lang", "xx"]).fails(2, &["unknown language `xx`", "en ko es pt fr"]);
    let first = tiny(1);
    folder
        .orate(&["say", "Bonjour.", "--lang", "fr", "--model", first.to_str().unwrap()])
        .fails(2, &["--lang is fr", "Supertonic 1 speaks English"]);
    say(&["--voice", "F9"]).fails(2, &["unknown voice `F9`", "F1, M1"]);
    say(&["--voice", "F1:0+M1:0"]).fails(2, &["weights sum to 0"]);
    say(&["--voice", "none.json"]).fails(1, &["none.json", "No such file"]);
    let other = repository("oracle/supertonic/assets/v3/voice_styles/F1.json");
    say(&["--voice", other.to_str().unwrap()])
        .fails(2, &["`style_ttl` has dims [1, 50, 256]", "needs [1, 10, 32]", "another model"]);
    assert!(folder.files().is_empty());
}

#[test]
fn models_that_are_not_there_or_damaged() {
    let folder = Folder::new();
    let say = |model: &str| folder.orate(&["say", "Hello.", "-o", "a.wav", "--model", model]);
    say("none").fails(1, &["none: no such file or folder; give a model folder"]);
    std::fs::create_dir(folder.path("empty")).unwrap();
    say("empty").fails(1, &["empty: not a model folder", "Supertonic", "Qwen3-TTS"]);
    folder.write("text.gguf", "not a voice");
    say("text.gguf").fails(1, &["text.gguf", "GGUF", "damaged or cut short, download or copy it again"]);
    #[cfg(unix)]
    say("/dev/null").fails(1, &["/dev/null: a device or pipe; give a model folder"]);

    for file in [
        "duration_predictor.onnx",
        "text_encoder.onnx",
        "vector_estimator.onnx",
        "vocoder.onnx",
        "tts.json",
        "unicode_indexer.json",
    ] {
        let model = folder.copy_model(&tiny(2)).join("onnx").join(file);
        std::fs::remove_file(&model).unwrap();
        say("model").fails(1, &[file, "No such file"]);

        folder.copy_model(&tiny(2));
        let whole = std::fs::read(&model).unwrap();
        std::fs::write(&model, &whole[..whole.len() / 2]).unwrap();
        say("model").fails(1, &[file]);
    }
    assert_eq!(folder.files(), ["empty", "model", "text.gguf"]);
}

#[test]
fn json_with_wrong_sizes() {
    let folder = Folder::new();
    let say = || folder.orate(&["say", "Hello.", "-o", "a.wav", "--model", "model"]);
    let edit = |file: &str, from: &str, to: &str| {
        let path = folder.copy_model(&tiny(2)).join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{file} has changed; adapt this test");
        std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
    };
    edit("onnx/tts.json", r#""latent_dim":4"#, r#""latent_dim":5"#);
    say().fails(1, &["model"]);
    edit("onnx/tts.json", r#""char_emb_dim":32"#, r#""char_emb_dim":33"#);
    say().fails(1, &["char", "33"]);
    edit("onnx/tts.json", "v1.6.0", "v9.9.9");
    say().fails(1, &["tts.json", "v9.9.9", "are known"]);
    edit("onnx/tts.json", r#""ttl":{"#, r#""ttl":[{"#);
    say().fails(1, &["tts.json"]);
    edit("onnx/unicode_indexer.json", "[", r#"["a","#);
    say().fails(1, &["unicode_indexer.json"]);
    edit("voice_styles/F1.json", "[1,10,32]", "[1,10,33]");
    say().fails(1, &["F1.json", "[1, 10, 33]", "[1, 10, 32]"]);
    edit("voice_styles/F1.json", "{", "");
    say().fails(1, &["F1.json", "not a voice file"]);
}

#[test]
fn outputs_that_cannot_be_written() {
    let folder = Folder::new();
    folder.write("file", "");
    std::fs::create_dir(folder.path("folder.wav")).unwrap();
    let say = |output: &str, more: &[&str]| folder.orate(&[&["say", "Hello.", "-o", output], more].concat());
    say("missing/a.wav", &[]).fails(1, &["missing/a.wav: cannot create", "folder exists", "No such file"]);
    say("missing/a.raw", &["--format", "raw"]).fails(1, &["missing/a.raw: cannot create", "No such file"]);
    say("file/a.wav", &[]).fails(1, &["file/a.wav: cannot create"]);
    say("folder.wav", &[]).fails(1, &["folder.wav: cannot create", "this is a folder"]);
    say("folder.wav", &["--format", "raw"]).fails(1, &["folder.wav: cannot create", "this is a folder"]);
    say(".", &[]).fails(2, &["-o .: this is a folder", "speech.wav"]);
    say("new/", &[]).fails(2, &["-o new/: this is a folder", "new/speech.wav"]);
    let for_books = " is for books (`orate say --file BOOK`); otherwise use the extension .wav, .flac";
    for path in ["a.m4a", "a.M4B"] {
        say(path, &[]).fails(2, &[path, for_books, "--format"]);
    }
    say("a", &[]).fails(2, &["-o a:", "--format"]);
    if !cfg!(feature = "aac") {
        say("a.wav", &["--format", "aac"])
            .fails(2, &["--format aac", "lacks it and has wav16", "feature `aac`"]);
        say("a.aac", &[]).fails(2, &["a.aac", ".wav, .flac", "--format"]);
    }
    assert_eq!(folder.files(), ["file", "folder.wav"]);
}

#[cfg(unix)]
#[test]
fn a_folder_without_permission() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let locked = folder.path("locked");
    std::fs::create_dir(&locked).unwrap();
    std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o555)).unwrap();
    // The superuser may write everywhere, except where the system itself refuses.
    let superuser = std::fs::write(locked.join("probe"), "").is_ok();
    let output = if superuser { "/proc/a.wav" } else { "locked/a.wav" };
    folder.orate(&["say", "Hello.", "-o", output]).fails(1, &[output, "cannot create", "may be written to"]);
    let _ = std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o755));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk() {
    let folder = Folder::new();
    for format in crate::util::encoded_formats().iter().chain(&["wav16", "flac", "raw"]) {
        let run = folder.orate(&["say", "Hello.", "-o", "/dev/full", "--format", format]);
        run.fails(1, &["/dev/full", "No space left"]);
    }
    let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
    for args in [&["say", "Hello.", "-o", "-"][..], &["voices"], &["inspect"], &["completions", "bash"]] {
        let run = finish(folder.command(args).stdin(Stdio::null()).stdout(full()));
        run.fails(1, &["standard output", "No space left"]);
    }
    // A device that accepts everything is not an error.
    folder.orate(&["say", "Hello.", "-o", "/dev/null"]).ok();
    assert!(folder.files().is_empty());
}

#[test]
fn a_reader_that_goes_away_ends_the_work_quietly() {
    use std::io::Read;
    let folder = Folder::new();
    let text = "This is one of very many sentences. ".repeat(400);
    folder.write("long.txt", &text);
    let args = ["say", "--file", "long.txt", "-o", "-"];
    let mut child =
        folder.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("run orate");
    let mut some = [0; 100];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut some).unwrap();
    assert!(some.starts_with(b"RIFF"));
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(folder.files(), ["long.txt"]);
}

#[test]
fn command_lines_that_make_no_sense() {
    let folder = Folder::new();
    for args in [&["speak"][..], &["say", "--loud"], &["bench", "--text", "a", "--tokens", "3"], &["verify"]]
    {
        folder.orate(args).fails(2, &["--help"]);
    }
    let none: [&str; 0] = [];
    let run = folder.orate(&none);
    assert_eq!(run.status, Some(2));
    assert!(run.stderr.contains("Usage: orate"), "{}", run.stderr);
}

#[test]
fn files_that_nobody_can_inspect() {
    let folder = Folder::new();
    folder.write("a.txt", "text");
    folder.write("a.json", "{}");
    folder.write("b.json", "{");
    for kind in ["gguf", "onnx", "safetensors"] {
        let name = format!("a.{kind}");
        folder.write(&name, "");
        folder.orate(&["inspect", &name]).fails(1, &[&name]);
        folder.write(&name, [0xff; 100]);
        folder.orate(&["inspect", &name]).fails(1, &[&name]);
    }
    folder.orate(&["inspect", "none"]).fails(1, &["none: no such file or folder"]);
    folder.orate(&["inspect", "a.txt"]).fails(1, &["a.txt: neither", ".safetensors"]);
    folder.orate(&["inspect", "a.json"]).fails(1, &["a.json: JSON, but not a voice"]);
    folder.orate(&["inspect", "b.json"]).fails(1, &["b.json: not valid JSON"]);
}

/// Options that do not apply to a model are refused, not ignored.
#[test]
fn options_of_other_models() {
    use orate_testing::checkpoints::write_random_qwen3_tts;
    let folder = Folder::new();
    write_random_qwen3_tts("voice_design", &folder.path("design"), 1).unwrap();
    let say = |more: &[&str]| folder.orate(&[&["say", "Hello.", "-o", "a.wav"], more].concat());
    say(&["--retries", "1"])
        .fails(2, &["`--retries` is not an option of Supertonic models (Qwen3-TTS and Chatterbox have it)"]);
    for (option, name) in [("--skip-unknown", "`--skip-unknown`"), ("--no-trim", "`--no-trim`")] {
        say(&["--model", "design", option]).fails(2, &[name, "is not an option of Qwen3-TTS models"]);
    }
    say(&["--weights", "foo"]).fails(2, &["no precision `foo`", "q4_0, stored, auto"]);
    assert_eq!(folder.files(), ["design"]);
}

#[test]
fn files_that_are_a_part_of_a_model() {
    use orate_testing::checkpoints::write_random_qwen3_tts;
    let folder = Folder::new();
    write_random_qwen3_tts("voice_design", &folder.path("design"), 1).unwrap();
    let say = |model: &str| folder.orate(&["say", "Hello.", "-o", "a.wav", "--model", model]);
    for file in
        ["design/model.safetensors", "design/speech_tokenizer/model.safetensors", "design/config.json"]
    {
        say(file).fails(1, &[file, "give the folder, design"]);
    }
    let onnx = tiny(2).join("onnx/vocoder.onnx");
    say(onnx.to_str().unwrap()).fails(1, &["vocoder.onnx", "give the folder", "golden/tiny"]);
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    folder.write("design/model.safetensors", pointer);
    say("design").fails(1, &["design/model.safetensors", "a pointer of Git LFS", "git lfs pull"]);
}
