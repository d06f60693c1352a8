//! The engine with Chatterbox models: from files to samples.

use crate::common::raw;
use orate::{
    Cancel, ClonedVoice, DeviceChoice, Engine, EngineOptions, FinishReason, ModelSource, Options, Precision,
    PrecisionPolicy, Source, SpeechLength, TimedWord,
};
use orate_graph::{CacheFormat, DType};
use orate_models::Model;
use orate_models::chatterbox::Chatterbox;
use orate_testing::checkpoints::{
    chatterbox_goldens, write_chatterbox, write_chatterbox_as, write_chatterbox_pt,
};
use std::path::Path;
use tempfile::TempDir;

const VARIANTS: [&str; 4] = ["en", "mtl", "turbo", "nano"];
/// Samples of a code.
const CODE: usize = 960;

fn open(path: &Path, threads: usize) -> Result<Engine, String> {
    open_in(path, threads, PrecisionPolicy::default())
}

fn open_in(path: &Path, threads: usize, precision: PrecisionPolicy) -> Result<Engine, String> {
    let options = EngineOptions {
        model: ModelSource::Path(path.to_owned()),
        device: DeviceChoice::Cpu,
        threads: Some(threads),
        precision: precision.into(),
        ..Default::default()
    };
    Engine::with_options(options).map_err(|e| e.to_string())
}

fn folder(variant: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    write_chatterbox(folder.path(), variant, "tiny").expect("the folder is writable");
    folder
}

fn engine(variant: &str) -> (TempDir, Engine) {
    let folder = folder(variant);
    let engine = open(folder.path(), 2).unwrap_or_else(|e| panic!("{variant}: {e}"));
    (folder, engine)
}

fn few_codes(codes: usize) -> Options {
    raw().set("max_codes", codes)
}

fn error<T>(result: orate::Result<T>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn threads_streams_and_batches_do_not_change_samples() {
    for variant in VARIANTS {
        let folder = folder(variant);
        let text = "Hello there. How are you?";
        let options = few_codes(6);
        let speak = |threads| {
            let engine = open(folder.path(), threads).expect("opens");
            engine.speak(text, &options).expect("speaks").samples
        };
        let samples = speak(1);
        assert!(samples.iter().all(|x| x.abs() <= 0.99) && samples.iter().any(|x| *x != 0.0), "{variant}");
        for threads in [2, 3] {
            assert!(speak(threads) == samples, "{variant}: other samples with {threads} threads");
        }
        let engine = open(folder.path(), 2).expect("opens");
        let stream = engine.stream(text, &options).expect("begins");
        let streamed: Vec<f32> = stream.flat_map(|chunk| chunk.expect("a chunk").samples).collect();
        assert!(streamed == samples, "{variant}: other samples in a stream");
        let batch = engine.speak_batch(&[text, "Something else."], &options).expect("speaks");
        assert!(batch[0].samples == samples, "{variant}: other samples in a batch");
        let other = engine.speak(text, &Options { seed: 1, ..options.clone() }).expect("speaks");
        assert!(other.samples != samples, "{variant}: the seed has no effect");
    }
}

#[test]
fn a_listener_waits_for_the_first_sentence_only() {
    let (_folder, engine) = engine("turbo");
    let text = "The first sentence of it all comes alone. ".to_owned() + &"Others follow it. ".repeat(12);
    let pieces = |options: &Options| engine.stream(&text, options).expect("begins").count();
    let options = few_codes(6);
    let stream = engine.stream(&text, &options).expect("begins");
    let streamed: Vec<_> = stream.map(|chunk| chunk.expect("a chunk").samples).collect();
    let first = engine.speak("The first sentence of it all comes alone.", &options).expect("speaks");
    assert!(streamed.len() > 3 && streamed[0] == first.samples, "{} pieces", streamed.len());
    assert_eq!(pieces(&Options { whole: true, ..options.clone() }), 1, "nobody hears pieces of a file");
    assert_eq!(pieces(&Options { first_piece: 1, ..options }), 1, "the text before it is heard");
}

#[test]
fn a_piece_ends_where_it_is_told_to() {
    for variant in ["en", "turbo"] {
        let (_folder, engine) = engine(variant);
        let mut stream = engine.stream("Hello there.", &few_codes(5)).expect("begins");
        let chunk = stream.next().expect("a piece").expect("speaks");
        assert_eq!(chunk.finish, Some(FinishReason::Length), "{variant}");
        // Turbo adds three codes of silence, and some of the five may be no speech.
        assert!(chunk.samples.len().is_multiple_of(CODE) && chunk.samples.len() <= 8 * CODE, "{variant}");
        assert!(stream.next().is_none());
    }
}

#[test]
fn options_without_an_effect_are_refused() {
    for (variant, option) in [
        ("turbo", "exaggeration"),
        ("turbo", "cfg_weight"),
        ("nano", "min_p"),
        ("turbo", "flow_guidance"),
        ("en", "top_k"),
        ("mtl", "top_k"),
        ("en", "alignment_guard"),
        ("turbo", "alignment_guard"),
    ] {
        let (_folder, engine) = engine(variant);
        let options = match option {
            "top_k" => few_codes(2).set(option, 5),
            "alignment_guard" => few_codes(2).set(option, true),
            _ => few_codes(2).set(option, 0.5),
        };
        let e = error(engine.speak("Hello.", &options));
        assert!(
            e.contains(&format!("`{option}` is not an option of this Chatterbox model"))
                && e.contains("other Chatterbox models have it)"),
            "{variant}: {e}"
        );
    }
}

#[test]
fn every_option_has_an_effect() {
    for (variant, options) in [
        ("en", &["exaggeration", "cfg_weight", "temperature", "min_p", "top_p"][..]),
        ("turbo", &["temperature", "top_p"]),
    ] {
        let (_folder, engine) = engine(variant);
        let speak = |options: &Options| engine.speak("Hello there.", options).expect("speaks").samples;
        let usual = speak(&few_codes(12));
        for option in options {
            let value = if *option == "cfg_weight" { 8.0 } else { 0.01 };
            assert!(speak(&few_codes(12).set(*option, value)) != usual, "{variant}: {option}");
        }
        assert!(speak(&few_codes(12).set("steps", 1)) != usual, "{variant}: steps");
        // The likeliest code comes again and again, unless that is penalized.
        let greedy =
            |penalty| speak(&few_codes(100).set("temperature", 0.0).set("repetition_penalty", penalty));
        assert!(greedy(1.0) != greedy(5.0), "{variant}: repetition_penalty");
        if variant == "en" {
            assert!(speak(&few_codes(12).set("flow_guidance", 0.0)) != usual, "{variant}: flow_guidance");
        }
    }
}

#[test]
fn languages_belong_to_the_multilingual_model() {
    let (_folder, english) = engine("en");
    let language = |code: &str| Options { language: Some(code.to_owned()), ..few_codes(2) };
    let e = error(english.speak("Bonjour.", &language("fr")));
    assert!(e.contains("unknown language `fr`; this model has: en"), "{e}");
    let (_folder, multilingual) = engine("mtl");
    let e = error(multilingual.speak("Saluton.", &language("eo")));
    assert!(e.contains("`eo`; this model has: ar da de el en es"), "{e}");
    let speak = |code: &str| {
        let options = Options { language: Some(code.to_owned()), ..few_codes(20) };
        multilingual.speak("Bonjour.", &options).expect("speaks").samples
    };
    let french = speak("fr");
    assert!(french != speak("de"));
    for other in ["FR", "fr-CA", "French", "fra"] {
        assert!(speak(other) == french, "{other}");
    }
    let usual = english.speak("Hello.", &few_codes(2)).expect("speaks").samples;
    for same in ["en-US", "ENGLISH", "auto"] {
        assert!(english.speak("Hello.", &language(same)).expect("speaks").samples == usual, "{same}");
    }
}

#[test]
fn what_is_not_spoken_as_written_is_a_warning() {
    let warnings = |variant: &str, text: &str, code: Option<&str>| {
        let (_folder, engine) = engine(variant);
        let options = Options { language: code.map(str::to_owned), ..few_codes(2) };
        engine.stream(text, &options).expect("begins").warnings().join("; ")
    };
    assert_eq!(warnings("turbo", "Well [laugh] no.", None), "");
    assert!(warnings("turbo", "Well [giggle] no.", None).contains("[giggle]: not a tag of this model"));
    assert!(warnings("en", "Well [laugh] no.", None).contains("[laugh]: not a tag of this model"));
    assert!(warnings("mtl", "今日は。", Some("ja")).contains("kanji"));
    let unknown = warnings("en", "Привет, you!", None);
    assert_eq!(unknown, "П в е и р т: not known to this model, may sound wrong");
    assert!(warnings("mtl", "今日は。", None).contains("not known to this model"));
}

#[test]
fn voices_are_taken_from_recordings() {
    let recording = chatterbox_goldens().join("ref.wav");
    for variant in VARIANTS {
        let (_folder, engine) = engine(variant);
        let voice = engine.clone_voice(&recording, None).unwrap_or_else(|e| panic!("{variant}: {e}"));
        let kept = ClonedVoice::load({
            let path = _folder.path().join("voice.safetensors");
            std::fs::write(&path, voice.to_bytes().expect("whole")).expect("writable");
            path
        });
        assert_eq!(kept.expect("a kept voice"), *voice);
        let cloned = Options { cloned: Some(voice), ..few_codes(6) };
        let own = engine.speak("Hello there.", &few_codes(6)).expect("speaks").samples;
        assert!(engine.speak("Hello there.", &cloned).expect("speaks").samples != own, "{variant}");
    }
}

#[test]
fn voices_that_do_not_fit_are_refused() {
    let recording = chatterbox_goldens().join("source.wav");
    let (_folder, turbo) = engine("turbo");
    let e = error(turbo.clone_voice(&recording, None));
    assert!(e.contains("source.wav: only 0.88 s") && e.contains("at least 5.01 s are needed"), "{e}");
    let e = error(turbo.check_voice(&ClonedVoice::new("qwen3-tts")));
    assert!(e.contains("a voice of family \"qwen3-tts\""), "{e}");
    let e = error(turbo.speak("Hello.", &Options { voice: Some("ryan".to_owned()), ..few_codes(2) }));
    assert!(e.contains("unknown voice `ryan`; this model has: default"), "{e}");
    let e = error(turbo.with_voice(few_codes(2), "ada:0.5+ben:0.5"));
    assert!(e.contains("Chatterbox models cannot mix voices"), "{e}");
    let e = error(turbo.with_voice(few_codes(2), "Default"));
    assert!(e.contains("no voice `Default`") && e.contains("the model itself has: default"), "{e}");
}

#[test]
fn files_that_are_missing_or_wrong_are_named() {
    let change = |variant: &str, change: &dyn Fn(&Path)| {
        let folder = folder(variant);
        change(folder.path());
        open(folder.path(), 1).err().unwrap_or_else(|| panic!("{variant}: opened"))
    };
    let remove =
        |file: &'static str| move |folder: &Path| std::fs::remove_file(folder.join(file)).expect("there");
    for (variant, file) in [
        ("en", "s3gen.safetensors"),
        ("en", "tokenizer.json"),
        ("mtl", "grapheme_mtl_merged_expanded_v1.json"),
        ("turbo", "s3gen_meanflow.safetensors"),
        ("turbo", "merges.txt"),
    ] {
        let e = change(variant, &remove(file));
        assert!(e.contains(file) && e.contains("lacks"), "{variant}: {e}");
    }
    let e = change("en", &|folder| {
        let other = tempfile::tempdir().expect("a folder");
        write_chatterbox(other.path(), "turbo", "tiny").expect("writable");
        std::fs::copy(other.path().join("s3gen_meanflow.safetensors"), folder.join("s3gen.safetensors"))
            .expect("copied");
    });
    assert!(e.contains("meanflow S3Gen of Turbo and Nano") && e.contains("needs s3gen.safetensors"), "{e}");
    assert!(e.contains("s3gen.safetensors of its own repository"), "{e}");
    let copy = |variant: &str, file: &str, to: &Path| {
        let other = tempfile::tempdir().expect("a folder");
        write_chatterbox(other.path(), variant, "tiny").expect("writable");
        std::fs::copy(other.path().join(file), to).expect("copied");
    };
    let e = change("turbo", &|folder| {
        copy("en", "s3gen.safetensors", &folder.join("s3gen_meanflow.safetensors"))
    });
    assert!(e.contains("S3Gen of English and Multilingual; this Turbo model needs s3gen_meanflow"), "{e}");
    let e =
        change("en", &|folder| copy("turbo", "t3_turbo_v1.safetensors", &folder.join("t3_cfg.safetensors")));
    assert!(
        e.contains("t3_cfg.safetensors: it is a T3 of Turbo and Nano") && e.contains("s3gen_meanflow"),
        "{e}"
    );
    let e = change("turbo", &remove("t3_turbo_v1.safetensors"));
    assert!(e.contains("lacks t3_turbo_v1.safetensors (Turbo) or t3_nano_v1"), "{e}");
    assert!(e.contains("to convert recordings only, give the path of s3gen_meanflow.safetensors"), "{e}");
    let e = change("en", &|folder| {
        std::fs::copy(folder.join("s3gen.safetensors"), folder.join("ve.safetensors")).expect("copied");
    });
    assert!(e.contains("ve.safetensors: it has no matrix") && e.contains("no voice encoder"), "{e}");
    let e = change("en", &|folder| {
        let other = tempfile::tempdir().expect("a folder");
        write_chatterbox(other.path(), "mtl", "tiny").expect("writable");
        let file = "grapheme_mtl_merged_expanded_v1.json";
        std::fs::copy(other.path().join(file), folder.join("tokenizer.json")).expect("copied");
    });
    assert!(e.contains("704 rows") && e.contains("2454 ids"), "{e}");
    let e = change("turbo", &|folder| {
        std::fs::write(folder.join("conds.pt"), b"PK\x03\x04 but no more").expect("writable");
    });
    assert!(e.contains("conds.pt"), "{e}");
    let e = change("nano", &|folder| {
        let path = folder.join("t3_nano_v1.safetensors");
        let bytes = std::fs::read(&path).expect("there");
        std::fs::write(&path, &bytes[..bytes.len() / 2]).expect("writable");
    });
    assert!(e.contains("t3_nano_v1.safetensors"), "{e}");
}

/// Without the voice encoder a model speaks with its default voice, and says why it takes no other.
#[test]
fn parts_that_may_be_missing() {
    let folder = folder("en");
    std::fs::remove_file(folder.path().join("ve.safetensors")).expect("there");
    let engine = open(folder.path(), 1).expect("opens");
    engine.speak("Hello.", &few_codes(2)).expect("speaks");
    let e = error(engine.clone_voice(chatterbox_goldens().join("ref.wav"), None));
    assert!(e.contains("ve.safetensors"), "{e}");
    std::fs::remove_file(folder.path().join("conds.pt")).expect("there");
    let engine = open(folder.path(), 1).expect("opens");
    let e = error(engine.speak("Hello.", &few_codes(2)));
    assert!(e.contains("this is an English model: it has no conds.pt"), "{e}");
    assert!(engine.voices().is_empty());
    std::fs::remove_file(folder.path().join("t3_cfg.safetensors")).expect("there");
    let engine = open(folder.path(), 1).expect("opens");
    // Not that the option has no effect.
    let e = error(engine.speak("Hello.", &few_codes(2)));
    assert!(e.contains("it has no T3") && e.contains("download the whole repository"), "{e}");
}

/// A folder converts as the file of its S3Gen does.
#[test]
fn folders_of_s3gen_alone_convert() {
    let source = chatterbox_goldens().join("source.wav");
    for (variant, file, name) in [
        ("en", "s3gen.safetensors", "s3gen.safetensors"),
        ("mtl", "s3gen.safetensors", "s3gen_v3.safetensors"),
        ("turbo", "s3gen_meanflow.safetensors", "s3gen_meanflow.safetensors"),
    ] {
        let whole = folder(variant);
        let alone = tempfile::tempdir().expect("a folder");
        for (from, to) in [(file, name), ("conds.pt", "conds.pt")] {
            std::fs::copy(whole.path().join(from), alone.path().join(to)).expect("copied");
        }
        let convert = |path: &Path| {
            let engine = open(path, 1).unwrap_or_else(|e| panic!("{name}: {e}"));
            engine.convert(&source, &Options::default()).unwrap_or_else(|e| panic!("{name}: {e}")).samples
        };
        assert!(convert(alone.path()) == convert(&alone.path().join(name)), "{name}");
    }
}

/// Without a default voice, `bench` takes that of a tone.
#[test]
fn models_without_a_default_voice_are_timed() {
    for variant in ["en", "turbo"] {
        let folder = folder(variant);
        std::fs::remove_file(folder.path().join("conds.pt")).expect("there");
        let engine = open(folder.path(), 1).expect("opens");
        let options = engine.model().bench_options().unwrap_or_else(|e| panic!("{variant}: {e}"));
        let options = Options { cloned: options.cloned, ..few_codes(2) };
        engine.speak("Hello.", &options).unwrap_or_else(|e| panic!("{variant}: {e}"));
    }
}

#[test]
fn pytorch_files_and_paths_of_files() {
    let folder = folder("en");
    let speak = |path: &Path| {
        let engine = open(path, 1).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        engine.speak("Hello there.", &few_codes(4)).expect("speaks").samples
    };
    let samples = speak(folder.path());
    assert!(speak(&folder.path().join("t3_cfg.safetensors")) == samples);
    for file in ["s3gen", "ve"] {
        write_chatterbox_pt(folder.path(), file, "tiny").expect("writable");
        std::fs::remove_file(folder.path().join(format!("{file}.safetensors"))).expect("there");
    }
    assert!(speak(folder.path()) == samples, "other samples from PyTorch files");
    // A multilingual T3 beside the English one.
    let other = tempfile::tempdir().expect("a folder");
    write_chatterbox(other.path(), "mtl", "tiny").expect("writable");
    for file in ["t3_mtl23ls_v2.safetensors", "grapheme_mtl_merged_expanded_v1.json"] {
        std::fs::copy(other.path().join(file), folder.path().join(file)).expect("copied");
    }
    assert!(speak(folder.path()) == samples);
    let path = folder.path().join("t3_mtl23ls_v2.safetensors");
    assert_eq!(open(&path, 1).expect("opens").model().files().describe().kind, "Chatterbox Multilingual");
}

#[test]
fn copies_in_half_precision() {
    let exact = folder("turbo");
    let samples = |path: &Path| {
        let engine = open(path, 1).expect("opens");
        engine.speak("Hello there.", &few_codes(4)).expect("speaks").samples
    };
    let want = samples(exact.path());
    for dtype in [DType::F16, DType::BF16] {
        let folder = tempfile::tempdir().expect("a folder");
        write_chatterbox_as(folder.path(), "turbo", "tiny", dtype).expect("writable");
        let got = samples(folder.path());
        assert!(got.iter().any(|x| *x != 0.0) && got != want, "{dtype}");
    }
}

#[test]
fn blocks_are_for_t3_and_the_estimator() {
    let folder = folder("turbo");
    for precision in [Precision::Q8_0, Precision::Q4_0, Precision::Bf16] {
        let engine = open_in(folder.path(), 2, PrecisionPolicy::uniform(precision)).expect("opens");
        let audio = engine.speak("Hello there.", &few_codes(5)).expect("speaks");
        assert!(audio.samples.iter().all(|x| x.is_finite()) && audio.samples.iter().any(|x| *x != 0.0));
    }
    let engine = open_in(folder.path(), 1, PrecisionPolicy::uniform(Precision::Q8_0)).expect("opens");
    let want = "q8_0 for tfmr.*, speech_head.*, flow.decoder.estimator.*";
    assert_eq!(engine.precision().to_string(), want);
}

#[test]
fn cancelling_stops_a_text() {
    let (_folder, engine) = engine("turbo");
    let cancel = Cancel::default();
    let options = Options { cancel: Some(cancel.clone()), ..few_codes(200) };
    let mut stream = engine.stream("One. Two. Three.", &options).expect("begins");
    cancel.cancel();
    let e = stream.next().expect("an answer").expect_err("cancelled");
    assert!(e.to_string().contains("cancel"), "{e}");
}

/// Callers at once get what each gets alone.
#[test]
fn callers_share_batches() {
    for variant in ["en", "turbo"] {
        let (_folder, engine) = engine(variant);
        let texts = ["Hello there.", "Something else entirely.", "A third one, then."];
        let alone: Vec<Vec<f32>> =
            texts.iter().map(|text| engine.speak(text, &few_codes(8)).expect("speaks").samples).collect();
        let together = std::thread::scope(|s| {
            let speak = |text| engine.speak(text, &few_codes(8)).expect("speaks").samples;
            let callers = texts.map(|text| s.spawn(move || speak(text)));
            callers.map(|caller| caller.join().expect("no panic"))
        });
        assert!(together.iter().eq(&alone), "{variant}");
    }
}

#[test]
fn attention_gives_multilingual_times_of_words() {
    let text = "Hello there, how are you? And I?";
    for (variant, guard, source) in [
        ("mtl", false, Source::Attention),
        ("mtl", true, Source::Attention),
        ("en", false, Source::Estimated),
    ] {
        let (_folder, engine) = engine(variant);
        let options = if guard { few_codes(40).set("alignment_guard", true) } else { few_codes(40) };
        let with_times = Options { word_times: true, ..options.clone() };
        let words_of = |options: &Options| {
            let chunks = engine.stream(text, options).expect("begins").map(|chunk| chunk.expect("a chunk"));
            let chunks: Vec<_> = chunks.collect();
            let samples = chunks.iter().flat_map(|c| c.samples.clone()).collect::<Vec<f32>>();
            (samples, chunks.into_iter().flat_map(|c| c.words).collect::<Vec<_>>())
        };
        let (samples, words) = words_of(&with_times);
        assert!(words_of(&options) == (samples.clone(), vec![]), "{variant}: other samples with times");
        let ends = samples.len() as f64 / 24_000.0;
        // Noise may have no word that can be heard.
        assert!(words.len() == 7 || words.is_empty(), "{words:?}");
        assert!(words.iter().all(|w| w.source == source && w.start <= w.end && w.end <= ends), "{words:?}");
        assert!(words.is_sorted_by(|a, b| a.end <= b.start + 1e-9), "{words:?}");
        let streamed = words_of(&with_times.clone().set("first_chunk", 8)).1;
        // Samples of growing pieces differ a little, and borders move to where it is quiet.
        let near = |(a, b): (&TimedWord, &TimedWord)| (a.start - b.start).abs() < 0.1 && a.word == b.word;
        assert!(streamed.iter().zip(&words).all(near), "{variant}: {streamed:?} {words:?}");
        assert_eq!(streamed.len(), words.len());
    }
}

#[test]
fn the_alignment_guard_watches_each_piece() {
    let folder = folder("mtl");
    let engine = open(folder.path(), 2).expect("opens");
    let (text, guarded) = ("Hello there, how are you? And I?", few_codes(30).set("alignment_guard", true));
    let speak = |engine: &Engine, text: &str| engine.speak(text, &guarded).expect("speaks").samples;
    let samples = speak(&engine, text);
    // Its penalty of repetitions is 2, and the last code is heard.
    let like = |penalty| {
        let options = few_codes(30).set("repetition_penalty", penalty);
        engine.speak(text, &options).expect("speaks").samples
    };
    assert!(samples.len() == like(2.0).len() + CODE && samples != like(1.2), "{}", samples.len());
    assert!(
        speak(&open(folder.path(), 3).expect("opens"), text) == samples,
        "other samples with more threads"
    );
    // The prompt's fixed rows are kept, with what the guard reads of them.
    assert!(speak(&engine, text) == samples, "other samples from a kept prefix");
    let streamed = guarded.clone().set("first_chunk", 8);
    let all: Vec<_> = engine.stream(text, &streamed).expect("begins").map(|c| c.expect("a chunk")).collect();
    assert!(all.len() > 1 && all.iter().map(|c| c.samples.len()).sum::<usize>() == samples.len());
    // Callers at once, one of them without the guard.
    let texts = [text, "Something else entirely.", "A third one, then."];
    let alone = texts.map(|text| speak(&engine, text));
    let other = like(1.2);
    std::thread::scope(|s| {
        let free = s.spawn(|| like(1.2));
        let callers = texts.map(|text| s.spawn(|| speak(&engine, text)));
        assert!(callers.map(|caller| caller.join().expect("no panic")) == alone);
        assert!(free.join().expect("no panic") == other);
    });
}

#[test]
fn the_alignment_guard_needs_no_more_weights() {
    let folder = folder("mtl");
    for kv in [CacheFormat::F32, CacheFormat::Q8_0] {
        let options = EngineOptions {
            model: ModelSource::Path(folder.path().to_owned()),
            device: DeviceChoice::Cpu,
            kv: kv.into(),
            ..Default::default()
        };
        let engine = Engine::with_options(options).expect("opens");
        let model = engine.model_as::<Chatterbox>().expect("of this family");
        let bytes = [true, false].map(|on| {
            let audio =
                engine.speak("Hello there.", &few_codes(9).set("alignment_guard", on)).expect("speaks");
            assert!(audio.samples.len() >= 8 * CODE, "{kv}: {}", audio.samples.len());
            model.weight_bytes()
        });
        assert_eq!(bytes[0], bytes[1], "{kv}");
    }
}

/// A code that follows itself ends speech; before the end of the text that is a runaway, which is retried.
#[test]
fn the_alignment_guard_ends_speech() {
    let (_folder, engine) = engine("mtl");
    let greedy = few_codes(40).set("temperature", 0.0).set("repetition_penalty", 1.0);
    let speak = |options: &Options| {
        let mut stream = engine.stream("Hello there.", options).expect("begins");
        stream.next().expect("a piece").expect("speaks")
    };
    assert_eq!(speak(&greedy).finish, Some(FinishReason::Length));
    let guarded = speak(&greedy.clone().set("alignment_guard", true));
    assert_eq!((guarded.finish, guarded.attempts), (Some(FinishReason::Runaway), 2));
    assert!(guarded.samples.len() < 38 * CODE, "{} samples", guarded.samples.len());
    assert_eq!(speak(&greedy.set("alignment_guard", false)).finish, Some(FinishReason::Length));
}

/// What the model will take is known before anything of it is read.
#[test]
fn memory_is_as_predicted() {
    for (variant, precision) in [("en", Precision::F32), ("turbo", Precision::Q8_0), ("mtl", Precision::Bf16)]
    {
        let folder = folder(variant);
        let engine = open_in(folder.path(), 2, PrecisionPolicy::uniform(precision)).expect("opens");
        let length = |speech, reference| {
            let length = SpeechLength { speech, reference };
            engine.footprint(length).expect("runs").expect("is predicted")
        };
        let (short, long) = (length(2.0, 1.0), length(20.0, 10.0));
        assert!(short.utterance > 0 && long.utterance > short.utterance, "{variant}: {short:?}");
        assert!(short.cloning > 0 && long.cloning > short.cloning, "{variant}: {short:?}");
        let model = engine.model_as::<Chatterbox>().expect("of this family");
        assert_eq!(model.weight_bytes(), 0, "nothing is read yet");
        let options = few_codes(5);
        let options = if variant == "mtl" { options.set("alignment_guard", true) } else { options };
        engine.speak("Hello there.", &options).expect("speaks");
        assert_eq!(model.weight_bytes(), short.weights, "{variant} in {precision}");
    }
}

#[test]
fn no_plan_is_made_between_codes() {
    for variant in ["en", "mtl", "turbo"] {
        let (_folder, engine) = engine(variant);
        let options = few_codes(300).set("first_chunk", 10);
        let options = if variant == "mtl" { options.set("alignment_guard", true) } else { options };
        engine.warm_up_for(&options).expect("speaks");
        let made = engine.plans_made();
        let mut stream = engine.stream("Hello there, how are you?", &options).expect("begins");
        stream.next().expect("a chunk").expect("speaks");
        assert_eq!(engine.plans_made(), made, "{variant}: the first chunk has its plans");
    }
}
