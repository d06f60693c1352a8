//! Successful speech.

use crate::util::{Folder, encoded_formats, repository, tiny};
use orate_audio::{peak_dbfs, read_wav, rms_dbfs};
use orate_testing::checkpoints::write_chatterbox;

const SENTENCE: &str = "The kettle is on, and the rain has stopped.";

#[test]
fn a_sentence_sounds_like_one() {
    let folder = Folder::new();
    let run = folder.orate(&["say", SENTENCE, "-o", "kettle.wav", "--json", "--seed", "7"]).ok();
    assert_eq!(run.stderr, "");
    let wave = read_wav(folder.path("kettle.wav")).unwrap();
    assert_eq!(wave.sample_rate, 24_000);
    let duration = wave.samples.len() as f64 / 24_000.0;
    assert!((1.5..5.0).contains(&duration), "{duration} s");
    let (rms, peak) = (rms_dbfs(&wave.samples), peak_dbfs(&wave.samples));
    assert!((-32.0..-14.0).contains(&rms), "RMS {rms} dBFS");
    assert!((-20.0..0.0).contains(&peak), "peak {peak} dBFS");
    // Speech has loud and quiet parts; noise and tones do not.
    let levels: Vec<f64> = wave.samples.chunks(2400).map(rms_dbfs).collect();
    let spread =
        levels.iter().copied().fold(f64::MIN, f64::max) - levels.iter().copied().fold(f64::MAX, f64::min);
    assert!(spread > 20.0, "{levels:?}");

    let json = run.json();
    assert!((json["duration_s"].as_f64().unwrap() - duration).abs() < 1e-9, "{json}");
    for positive in ["wall_s", "rtf", "first_audio_ms", "load_ms", "pieces", "characters"] {
        assert!(json[positive].as_f64().unwrap() > 0.0, "{positive}: {json}");
    }
    assert_eq!(json["seed"], 7);
    assert_eq!(json["sample_rate"], 24_000);
    assert_eq!(json["output"], "kettle.wav");
    assert_eq!(json["format"], "wav16");
    assert_eq!(json["voice"], "default");
    assert!(json["device"].as_str().unwrap().starts_with("cpu ("), "{json}");
    assert!(json["model"].is_string(), "{json}");
    assert_eq!(folder.files(), ["kettle.wav"]);
}

#[test]
fn without_a_name_it_writes_speech_wav_and_says_so() {
    let folder = Folder::new();
    let run = folder.orate(&["say", "Hello."]).ok();
    assert!(run.stderr.starts_with("wrote speech.wav: "), "{}", run.stderr);
    assert!(run.stdout.is_empty());
    assert_eq!(folder.files(), ["speech.wav"]);
    let run = folder.orate(&["say", "Hello.", "--quiet"]).ok();
    assert_eq!((run.stderr.as_str(), run.text()), ("", ""));
    let run = folder.orate(&["say", "Hello.", "-o", "speech.wav"]).ok();
    assert_eq!(run.stderr, "", "quiet in a pipe when the name was given");
}

#[test]
fn text_comes_from_arguments_a_file_or_standard_input() {
    let folder = Folder::new();
    folder.write("hello.txt", "Hello there.\n");
    folder.write("bom.txt", "\u{feff}Hello there.\r\n");
    folder.orate(&["say", "Hello", "there.", "-o", "words.wav"]).ok();
    folder.orate(&["say", "--file", "hello.txt", "-o", "file.wav"]).ok();
    folder.orate(&["say", "--file", "bom.txt", "-o", "bom.wav"]).ok();
    folder.orate_with(&["say", "-o", "stdin.wav"], b"Hello there.\n").ok();
    folder.orate_with(&["say", "-", "-o", "dash.wav"], b"Hello there.\n").ok();
    folder.orate_with(&["say", "--file", "-", "-o", "file-dash.wav"], b"Hello there.\n").ok();
    // What Notepad of Windows calls Unicode.
    let utf16: Vec<u8> = "\u{feff}Hello there.\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    folder.write("utf16.txt", utf16);
    folder.orate(&["say", "--file", "utf16.txt", "-o", "utf16.wav"]).ok();
    let words = folder.read("words.wav");
    for other in ["file.wav", "bom.wav", "utf16.wav", "stdin.wav", "dash.wav", "file-dash.wav"] {
        assert!(folder.read(other) == words, "{other} differs");
    }
}

#[test]
fn tags_that_are_spoken_are_noted() {
    let folder = Folder::new();
    let say = |more: &[&str]| folder.orate(&[&["say", "-o", "a.wav"], more].concat()).ok();
    let text = "One [pause:1s] two [voice:ann]";
    let warning = "warning: `[pause:1s]` is spoken as words; --tags makes it a pause\n";
    assert_eq!(say(&[text]).stderr, warning);
    folder.write("words.txt", "two = too");
    assert_eq!(say(&[text, "--lexicon", "words.txt"]).stderr, warning);
    let json = say(&[text, "--json"]).json();
    assert!(json["warnings"][0].as_str().is_some_and(|w| w.contains("`[pause:1s]`")), "{json}");
    let tag = "warning: `[Rate:0.8]` is spoken as words; --tags makes it a tag\n";
    assert_eq!(say(&["[Rate:0.8] One"]).stderr, tag);
    folder.write("text.txt", format!("Hello.\n\n{text}"));
    let book = |more: &[&str]| {
        let args = ["say", "--file", "text.txt", "--restart", "-o", "a.mp3"];
        folder.orate(&[&args[..], more].concat()).ok().stderr
    };
    assert!(book(&[]).starts_with(warning), "{}", book(&[]));
    assert_eq!(book(&["--quiet"]), "");
    for quiet in
        [&[text, "--quiet"][..], &["One [pause:1s] two", "--tags"], &["[laugh] One [pause: well] two"]]
    {
        assert_eq!(say(quiet).stderr, "", "{quiet:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_samples() {
    let folder = Folder::new();
    let say = |name: &str, more: &[&str]| {
        folder.orate(&[&["say", SENTENCE, "-o", name], more].concat()).ok();
        folder.read(name)
    };
    let first = say("a.wav", &["--threads", "1"]);
    assert!(say("b.wav", &["--threads", "2", "--seed", "0"]) == first, "threads change the samples");
    assert!(say("c.wav", &["--seed", "1"]) != first, "the seed changes nothing");
}

#[test]
fn formats_hold_the_same_samples() {
    let folder = Folder::new();
    folder.orate(&["say", SENTENCE, "-o", "a.wav"]).ok();
    let wave = read_wav(folder.path("a.wav")).unwrap().samples;
    let pcm: Vec<u8> = wave.iter().flat_map(|x| orate_audio::to_pcm16(*x).to_le_bytes()).collect();

    folder.orate(&["say", SENTENCE, "-o", "float.wav", "--format", "wav-float"]).ok();
    let float = read_wav(folder.path("float.wav")).unwrap().samples;
    assert_eq!(float.len(), wave.len());
    assert!(float.iter().zip(&wave).all(|(a, b)| (a - b).abs() <= 0.5 / 32768.0));

    folder.orate(&["say", SENTENCE, "-o", "a.flac"]).ok();
    let flac = folder.read("a.flac");
    assert!(flac.starts_with(b"fLaC") && flac.len() < pcm.len(), "{} bytes", flac.len());

    let streamed = folder.orate(&["say", SENTENCE, "-o", "-", "--format", "flac"]).ok().stdout;
    assert_eq!(streamed.len(), flac.len(), "a stream differs in what its header leaves open");

    folder.orate(&["say", SENTENCE, "-o", "a.raw", "--format", "raw"]).ok();
    assert!(folder.read("a.raw") == pcm);

    folder.orate(&["say", SENTENCE, "-o", "a.f32", "--format", "raw-float"]).ok();
    let raw_float: Vec<u8> = float.iter().flat_map(|x| x.to_le_bytes()).collect();
    assert!(folder.read("a.f32") == raw_float);

    let run = folder.orate(&["say", SENTENCE, "-o", "-"]).ok();
    assert!(run.stdout.starts_with(b"RIFF") && run.stdout[44..] == pcm);

    let streamed = folder.orate(&["say", SENTENCE, "--stream", "-o", "-"]).ok();
    assert!(streamed.stdout == run.stdout, "a pipe is a stream anyway");
    let run = folder.orate(&["say", SENTENCE, "-o", "-", "--format", "raw"]).ok();
    assert!(run.stdout == pcm);
    assert_eq!(run.stderr, "");
}

#[test]
fn encoded_files_are_the_same_speech() {
    let folder = Folder::new();
    folder.orate(&["say", SENTENCE, "-o", "a.wav"]).ok();
    let wave = read_wav(folder.path("a.wav")).unwrap();
    for format in encoded_formats() {
        let file = format!("a.{format}");
        let run = folder.orate(&["say", SENTENCE, "-o", &file, "--json"]).ok();
        assert_eq!(run.json()["format"], *format);
        let piped = folder.orate(&["say", SENTENCE, "-o", "-", "--format", format]).ok();
        assert!(piped.stdout == folder.read(&file), "{format}");
        if *format == "opus" {
            // Its decoder is not in this workspace; scripts/audio-check has one.
            assert!(piped.stdout.starts_with(b"OggS"));
            continue;
        }
        let got = orate_audio::read_audio(folder.path(&file), 60.0).unwrap();
        assert_eq!(got.sample_rate, wave.sample_rate);
        let more = got.samples.len() - wave.samples.len();
        assert!(more < 3000, "{format}: {more} samples more");
        let [was, is] = [&wave, &got].map(|sound| rms_dbfs(&sound.samples));
        assert!((was - is).abs() < 0.3, "{format}: {is:.1} dB, {was:.1} dB as WAV");
    }
}

#[test]
fn json_stays_apart_from_audio() {
    let folder = Folder::new();
    let run = folder.orate(&["say", "Hello.", "-o", "-", "--json"]).ok();
    assert!(run.stdout.starts_with(b"RIFF"));
    let json: serde_json::Value = serde_json::from_str(&run.stderr).unwrap();
    assert_eq!(json["output"], "-");
}

#[test]
fn a_long_text_comes_in_pieces_with_silence_between() {
    let folder = Folder::new();
    let text = "One paragraph is here.\n\nAnd here is another.";
    let duration = |silence: &str| {
        let run = folder.orate(&["say", text, "-o", "a.wav", "--json", "--silence", silence]).ok();
        assert_eq!(run.json()["pieces"], 2);
        run.json()["duration_s"].as_f64().unwrap()
    };
    let (none, much) = (duration("0"), duration("2"));
    assert!((much - none - 2.0).abs() < 1e-6, "{none} s, {much} s");
}

#[test]
fn speech_options_change_what_is_heard() {
    let folder = Folder::new();
    let duration = |more: &[&str]| {
        let args = [&["say", "On 12 May it was 3 degrees.", "-o", "a.wav", "--json", "--raw"], more].concat();
        folder.orate(&args).ok().json()["duration_s"].as_f64().unwrap()
    };
    let usual = duration(&[]);
    assert!(duration(&["--speed", "2"]) < 0.7 * usual);
    assert!(duration(&["--speed", "0.7"]) > 1.2 * usual);
    assert!(duration(&["--read-numbers"]) == usual);
    assert!(duration(&["--no-read-numbers", "--skip-unknown"]) < usual, "without the numbers it is shorter");
    assert!(duration(&["--no-read-numbers", "--read-numbers"]) == usual, "the last one counts");
    let untrimmed = duration(&["--no-trim"]);
    assert!(untrimmed >= usual && (untrimmed * 24_000.0 / 1800.0).fract().abs() < 1e-6, "{untrimmed} s");
    assert!(duration(&["--steps", "1"]) == usual, "steps change the sound, not the length");
}

#[test]
fn captions_are_of_the_text_as_it_was_typed() {
    let folder = Folder::new();
    let text = "Dr. Smith paid $3.50. [pause:1s] Then he left for Boston.";
    let say = |captions: &str| {
        folder.orate(&["say", "--tags", text, "-o", "a.wav", "--captions", captions]).ok();
        std::fs::read_to_string(folder.path(captions)).expect("was written")
    };
    let all: serde_json::Value = serde_json::from_str(&say("a.json")).expect("JSON");
    let words = all["words"].as_array().expect("a list");
    assert_eq!(words.len(), 9, "{all}");
    for word in words {
        let at = |i: usize| word["span"][i].as_u64().expect("a number") as usize;
        assert_eq!(&text[at(0)..at(1)], word["word"].as_str().expect("a word"));
        assert_eq!(word["source"], "attention");
    }
    let time = |i: usize, name: &str| words[i][name].as_f64().expect("a number");
    assert!(time(4, "start") - time(3, "end") > 1.0, "the pause: {all}");
    let (srt, vtt) = (say("a.srt"), say("a.vtt"));
    assert!(srt.starts_with("1\n00:00:00,0") && srt.contains("Dr. Smith paid $3.50."), "{srt}");
    // They replace nothing that is read.
    std::fs::create_dir(folder.path("model")).expect("room");
    folder.write("model/tts.json", "{}");
    let args = ["say", "Hi.", "--model", "model", "--captions", "model/tts.json"];
    folder.orate(&args).fails(2, &["--captions", "the model is read from there"]);
    assert_eq!(std::fs::read_to_string(folder.path("model/tts.json")).expect("is there"), "{}");
    assert!(vtt.starts_with("WEBVTT\n") && vtt.contains("Then he left for Boston."), "{vtt}");
}

#[test]
fn captions_end_with_the_sound() {
    let folder = Folder::new();
    let args = ["say", "x", "-o", "a.wav", "--captions", "a.json", "--json"];
    let duration = folder.orate(&args).ok().json()["duration_s"].as_f64().expect("a number");
    let all: serde_json::Value = serde_json::from_slice(&folder.read("a.json")).expect("JSON");
    let end = all["cues"][0]["end"].as_f64().expect("a number");
    // The duration is rounded to milliseconds.
    assert!(duration < 1.0 && end <= duration + 0.001, "{end} of {duration} s");
}

#[test]
fn markup_and_lexicons_change_what_is_said() {
    let folder = Folder::new();
    let duration = |more: &[&str]| {
        let args = [&["say", "-o", "a.wav", "--json"], more].concat();
        folder.orate(&args).ok().json()["duration_s"].as_f64().expect("a number")
    };
    let usual = duration(&["Hello there."]);
    let pause = "<speak>Hello there.<break time='2s'/></speak>";
    assert!((duration(&["--ssml", pause]) - usual - 2.0).abs() < 0.01);
    assert!(duration(&["--tags", "[rate:0.8] Hello there."]) > 1.1 * usual);
    folder.write("words.txt", "# names\nthere = everybody over there\n");
    assert!(duration(&["Hello there.", "--lexicon", "words.txt"]) > 1.3 * usual);
    folder.write("wrong.txt", "there\n");
    for (status, args, words) in [
        (1, &["--ssml", "<speak>Hello"][..], &["line 1", "XML"][..]),
        (1, &["--tags", "[pause:long] Hello"], &["pause"]),
        (2, &["--tags", "[voice:nobody] Hello"], &["nobody", "default"]),
        (1, &["Hello", "--lexicon", "wrong.txt"], &["wrong.txt", "line 1"]),
        (1, &["Hello", "--lexicon", "missing.txt"], &["missing.txt"]),
        (2, &["Hello", "--captions", "a.txt"], &[".srt", ".vtt"]),
        (1, &["Hello", "--lexicon", "words.txt", "--captions", "missing/a.srt"], &["missing/a.srt"]),
    ] {
        folder.orate(&[&["say", "-o", "b.wav"], args].concat()).fails(status, words);
    }
    assert!(!folder.path("b.wav").exists());
}

#[test]
fn a_dialogue_has_voices_of_several_models() {
    let folder = Folder::new();
    let other = format!("M1@{}", tiny(2).display());
    let say = |output: &str, more: &[&str]| {
        let args = [&["say", "--raw", "--silence", "0", "--json", "-o", output], more].concat();
        folder.orate(&args).ok().json()["duration_s"].as_f64().expect("a number")
    };
    let (ann, bob) = (format!("ann={other}"), "bob=default");
    let text = "Good morning. [voice:ann] And to you. [voice:bob] Thank you.";
    let all = say("all.wav", &["--tags", text, "--cast", &ann, "--cast", bob]);
    let own = say("own.wav", &["Good morning."]);
    let of_ann =
        say("ann.wav", &["And to you.", "--model", tiny(2).to_str().expect("UTF-8"), "--voice", "M1"]);
    assert!(all > own + of_ann, "{all} s of {own} and {of_ann} s");
    // The first turn is what it is alone.
    let (dialogue, alone) = (folder.read("all.wav"), folder.read("own.wav"));
    assert!(dialogue[44..alone.len()] == alone[44..]);
    let ssml = "<speak>Good morning. <voice name='ann'>And to you.</voice> \
                <voice name='bob'>Thank you.</voice></speak>";
    assert!(say("ssml.wav", &["--ssml", ssml, "--cast", &ann, "--cast", bob]) == all);
    let tags = ["--tags", "[voice:ann] Hello"];
    for (status, args, words) in [
        (2, &["Hello", "--cast", "ann=default"][..], &["--cast", "--tags"][..]),
        (2, &["--tags", "Hello", "--cast", "ann"], &["NAME=VOICE@MODEL"]),
        (2, &["--tags", "Hello", "--cast", "ann=a", "--cast", "ann=b"], &["ann", "twice"]),
        (2, &[tags[0], tags[1], "--cast", "ann=nobody"], &["nobody", "default"]),
        (1, &[tags[0], tags[1], "--cast", "ann=@missing"], &["--cast ann", "missing"]),
    ] {
        folder.orate(&[&["say", "-o", "b.wav"], args].concat()).fails(status, words);
    }
    assert!(!folder.path("b.wav").exists());
    let cast = ["say", "-o", "c.wav", "--tags", "[voice:ann] Hello", "--cast", &ann, "--cast", "bbo=F1"];
    let run = folder.orate(&cast).ok();
    assert!(run.stderr.contains("warning: --cast bbo: the text has no voice `bbo`"), "{}", run.stderr);
    assert!(!run.stderr.contains("--cast ann"), "{}", run.stderr);
    let json = folder.orate(&[&cast[..], &["--json"]].concat()).ok().json();
    assert_eq!(json["warnings"][0], "--cast bbo: the text has no voice `bbo`");
}

#[test]
fn official_models_speak_with_their_voices_mixes_and_languages() {
    let folder = Folder::new();
    let f1 = tiny(2).join("voice_styles/F1.json");
    let say = |version: u32, more: &[&str]| {
        let model = tiny(version);
        let args = ["say", "Hello there.", "-o", "a.wav", "--json", "--model", model.to_str().unwrap()];
        let json = folder.orate(&[&args, more].concat()).ok().json();
        assert_eq!(json["sample_rate"], 8000);
        folder.read("a.wav")
    };
    let usual = say(2, &[]);
    assert!(say(2, &["--voice", "F1"]) == usual);
    assert!(say(2, &["--voice", f1.to_str().unwrap()]) == usual, "a voice file is a voice");
    assert!(say(2, &["--voice", "F1:0.7+M1:0.3"]) != usual);
    let french = say(2, &["--lang", "fr"]);
    assert!(french != usual);
    assert!(["French", "fr-CA", "FR"].iter().all(|language| say(2, &["--lang", language]) == french));
    for version in [1, 3] {
        say(version, &["--voice", "M1", "--steps", "2"]);
    }
}

/// A file has whole pieces and measured loudness, as nobody hears it before it is complete.
#[test]
fn files_have_whole_pieces_unless_they_are_streamed() {
    let folder = Folder::new();
    write_chatterbox(&folder.path("en"), "en", "tiny").unwrap();
    let say = |more: &[&str]| {
        let args = ["say", "Hello there.", "--model", "en", "--max-codes", "30", "-o", "a.wav"];
        folder.orate(&[&args, more].concat()).ok();
        folder.read("a.wav")
    };
    let whole = say(&["--retries", "0"]);
    assert!(say(&["--retries", "0", "--first-chunk", "5"]) == whole);
    assert!(say(&["--retries", "0", "--first-chunk", "5", "--stream"]) != whole);
}

#[test]
fn a_picture_can_be_drawn() {
    let folder = Folder::new();
    folder.orate(&["say", "Hello.", "-o", "a.wav", "--plot", "a.png"]).ok();
    assert!(folder.read("a.png").starts_with(b"\x89PNG\r\n\x1a\n"));
    let absolute = folder.path("a.png");
    for picture in ["a.png", "./a.png", absolute.to_str().unwrap()] {
        let args = ["say", "Hello.", "-o", "a.png", "--format", "raw", "--plot", picture];
        folder.orate(&args).fails(2, &["--plot", "the sound is written there", "name another file"]);
    }
    let run = folder.orate(&["say", "Hello.", "-o", "b.wav", "--plot", "missing/b.png"]);
    run.fails(1, &["missing/b.png", "cannot create this file"]);
    for picture in ["b.jpg", "b", "-"] {
        let run = folder.orate(&["say", "Hello.", "-o", "b.wav", "--plot", picture]);
        run.fails(2, &["--plot", "name a file that ends in .png"]);
    }
    assert_eq!(folder.files(), ["a.png", "a.wav"], "found out before anything was spoken");
}

#[test]
fn a_file_is_replaced_only_by_a_complete_one() {
    let folder = Folder::new();
    folder.write("a.wav", "old");
    folder.orate(&["say", "Hello.", "-o", "a.wav", "--speed", "9"]).fails(2, &["--speed is 9"]);
    assert_eq!(folder.read("a.wav"), b"old");
    folder.orate(&["say", "Hello.", "-o", "a.wav"]).ok();
    assert!(folder.read("a.wav").starts_with(b"RIFF"));
    assert_eq!(folder.files(), ["a.wav"]);
}

#[test]
fn another_packed_voice_can_take_the_place_of_the_built_in_one() {
    let folder = Folder::new();
    let voice = repository("voices/orate-default/orate-default.gguf");
    folder.orate(&["say", "Hello.", "-o", "a.wav"]).ok();
    folder.orate(&["say", "Hello.", "-o", "b.wav", "--model", voice.to_str().unwrap()]).ok();
    assert!(folder.read("a.wav") == folder.read("b.wav"));
    let mut command = folder.command(&["voices"]);
    crate::util::finish(command.env("ORATE_VOICE", folder.path("none.gguf")))
        .fails(1, &["ORATE_VOICE", "none.gguf"]);
}

/// Messages for users are in the JSON as well, for programs that do not read standard error.
#[test]
fn warnings_and_fallbacks_are_in_the_json() {
    use orate_testing::checkpoints::write_random_qwen3_tts;
    let folder = Folder::new();
    let args = ["say", "Hello.", "-o", "a.wav", "--json"];
    let json = |more: &[&str]| folder.orate(&[&args, more].concat()).ok().json();
    let plain = json(&[]);
    assert_eq!((&plain["warnings"], &plain["fallbacks"]), (&serde_json::json!([]), &serde_json::json!([])));
    let fallen = json(&["--device", "cuda:1000", "--allow-fallback", "--quiet"]);
    assert_eq!(fallen["fallbacks"].as_array().map(Vec::len), Some(1), "{fallen}");
    assert!(fallen["device"].as_str().unwrap().starts_with("cpu ("), "{fallen}");

    write_random_qwen3_tts("base", &folder.path("base"), 1).unwrap();
    let recording = repository("oracle/qwen3_tts/golden/cases/ref.wav");
    let cloned = ["--model", "base", "--reference", recording.to_str().unwrap(), "--max-frames", "2"];
    let warned = json(&[&cloned[..], &["--instruct", "angry", "--quiet"]].concat());
    assert!(warned["warnings"][0].as_str().unwrap().contains("has no effect"), "{warned}");
}

/// If only the JSON object goes to standard error, a program can parse it there, and the audio is a valid
/// recording.
#[test]
fn json_on_standard_error_stands_alone() {
    use orate_testing::checkpoints::write_random_qwen3_tts;
    let folder = Folder::new();
    write_random_qwen3_tts("base", &folder.path("base"), 1).unwrap();
    let recording = repository("oracle/qwen3_tts/golden/cases/ref.wav");
    let args = ["say", "Hello.", "-o", "-", "--json", "--model", "base", "--instruct", "angry"];
    let device = ["--device", "cuda:1000", "--allow-fallback", "--max-frames", "12"];
    let reference = ["--reference", recording.to_str().unwrap()];
    let run = folder.orate(&[&args[..], &device, &reference].concat()).ok();
    let json: serde_json::Value =
        serde_json::from_str(&run.stderr).unwrap_or_else(|e| panic!("{e}: {}", run.stderr));
    assert!(json["warnings"][0].as_str().unwrap().contains("has no effect"), "{json}");
    assert_eq!(json["fallbacks"].as_array().map(Vec::len), Some(1), "{json}");

    folder.write("own.wav", &run.stdout);
    folder
        .orate(&[
            "say",
            "Hello.",
            "-o",
            "a.wav",
            "--model",
            "base",
            "--max-frames",
            "2",
            "--reference",
            "own.wav",
        ])
        .ok();
}
