//! GGUF files of other engines: the model in such a file speaks as the folder that it was made from. In `f32`
//! all samples are equal, unless the engine's file holds other numbers.

use orate::{DeviceChoice, Engine, EngineOptions, Finish, ModelSource, Options, PrecisionPolicy};
use orate_testing::checkpoints::{write_chatterbox, write_random_qwen3_tts};
use orate_testing::{gguf, snr_db};
use orate_weights::{DType, GgufWriter};
use std::path::{Path, PathBuf};

const TEXT: &str = "Hello there, # and ## too.";

fn open_with(model: &Path, codec: Option<PathBuf>) -> orate::Result<Engine> {
    let options = EngineOptions {
        model: ModelSource::Path(model.to_owned()),
        codec,
        device: DeviceChoice::Cpu,
        threads: Some(2),
        precision: PrecisionPolicy::default().into(),
        ..Default::default()
    };
    Engine::with_options(options)
}

fn open(model: &Path) -> Engine {
    open_with(model, None).unwrap_or_else(|e| panic!("{}: {e}", model.display()))
}

fn refused(model: &Path) -> String {
    open_with(model, None).err().unwrap_or_else(|| panic!("{} opens", model.display())).to_string()
}

/// What `inspect` says under a name.
fn fact(engine: &Engine, name: &str) -> String {
    let facts = engine.model().files().describe().facts;
    facts.into_iter().find(|(n, _)| *n == name).map_or_else(String::new, |(_, value)| value.to_string())
}

/// A few frames, in the model's own voice or that of `voice`.
fn speak(engine: &Engine, voice: &Options) -> Vec<f32> {
    let (name, limit) =
        if engine.family_name() == "Chatterbox" { ("max_codes", 8) } else { ("max_frames", 8) };
    let mut options = Options { finish: Finish::NONE, seed: 5, ..voice.clone() };
    if engine.family_name() != "Supertonic" {
        options = options.set(name, limit as usize);
    }
    engine.speak(TEXT, &options).expect("speaks").samples
}

/// A checkpoint of Qwen3-TTS whose codec has the constants of released ones, as engines do not write them.
fn qwen(variant: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    write_random_qwen3_tts(variant, folder.path(), 11).expect("writable");
    let path = folder.path().join("speech_tokenizer/config.json");
    let config = std::fs::read_to_string(&path).expect("is there");
    std::fs::write(&path, config.replace("\"sliding_window\": 20", "\"sliding_window\": 72"))
        .expect("writable");
    folder
}

/// With a voice made from a tone: its x-vector alone, and with its codes.
#[test]
fn qwen3_files_speak_as_their_folder() {
    let folder = qwen("base");
    let source = open(folder.path());
    let tone = source.model().bench_options().expect("clones a tone");
    let want = speak(&source, &tone);
    type Maker = fn(&Path, &Path);
    let makers: [(&str, Maker); 5] = [
        ("qwentts.cpp", |from, to| gguf::write_qwentts_cpp(from, to, DType::F32)),
        ("qwen3-tts.cpp", |from, to| gguf::write_qwen3tts_cpp(from, to, DType::F32, false)),
        ("CrispASR", |from, to| gguf::write_qwen3_crispasr(from, to, DType::F32)),
        ("audio.cpp", |from, to| {
            let inputs = [
                ("model_weights", &*from.join("model.safetensors")),
                ("speech_tokenizer_weights", &*from.join("speech_tokenizer/model.safetensors")),
            ];
            let files = [
                "config.json",
                "generation_config.json",
                "vocab.json",
                "merges.txt",
                "tokenizer_config.json",
                "speech_tokenizer/config.json",
            ];
            gguf::write_audiocpp(&to.join("talker.gguf"), "qwen3_tts", from, &inputs, &files);
        }),
        ("llama.cpp", |from, to| gguf::write_qwen3_llamacpp(from, to, DType::F32)),
    ];
    for (engine, make) in makers {
        let out = tempfile::tempdir().expect("a folder");
        make(folder.path(), out.path());
        let model = open(&out.path().join("talker.gguf"));
        assert!(fact(&model, "layout").contains(engine), "{}", fact(&model, "layout"));
        assert_eq!(fact(&model, "unused tensors"), "", "{engine}");
        let got = speak(&model, &tone);
        if engine == "llama.cpp" {
            // Its table is projected by other sums.
            assert!(snr_db(&want, &got) > 60.0, "{engine}: {} dB", snr_db(&want, &got));
        } else {
            assert!(want == got, "{engine}: {} dB", snr_db(&want, &got));
        }
        // The folder stands for the same model.
        assert_eq!(open(out.path()).facts().voices, model.facts().voices);
        let cannot = fact(&model, "cannot");
        let has_encoder = ["qwentts.cpp", "qwen3-tts.cpp", "audio.cpp"].contains(&engine);
        assert_eq!(cannot.is_empty(), has_encoder, "{engine}: {cannot}");
        let samples = vec![0.1; 48_000];
        let cloned = model.model().cloning().expect("a Base model").clone_voice(&samples, Some("one"));
        match cloned {
            Ok(voice) => {
                assert!(has_encoder, "{engine}");
                let own = source.model().cloning().expect("a Base model");
                // Heads of the encoder are not in files of qwen3-tts.cpp's kind only.
                assert_eq!(voice, own.clone_voice(&samples, Some("one")).expect("clones"), "{engine}");
            }
            Err(e) => assert!(!has_encoder && e.to_string().contains("no encoder"), "{engine}: {e}"),
        }
    }
}

/// In types of fewer bits, each weight is as near to the folder's as its type allows.
#[test]
fn weights_are_as_exact_as_their_type() {
    let [qwen, english] = [qwen("base"), tempfile::tempdir().expect("a folder")];
    write_chatterbox(english.path(), "en", "tiny").expect("writable");
    type Maker<'a> = &'a dyn Fn(&Path, DType);
    let makers: [(&str, &Path, &str, Maker<'_>); 5] = [
        ("qwentts.cpp", qwen.path(), "talker", &|out, t| gguf::write_qwentts_cpp(qwen.path(), out, t)),
        ("qwen3-tts.cpp", qwen.path(), "talker", &|out, t| {
            gguf::write_qwen3tts_cpp(qwen.path(), out, t, false)
        }),
        ("CrispASR", qwen.path(), "talker", &|out, t| gguf::write_qwen3_crispasr(qwen.path(), out, t)),
        ("llama.cpp", qwen.path(), "talker", &|out, t| gguf::write_qwen3_llamacpp(qwen.path(), out, t)),
        ("CrispASR", english.path(), "t3", &|out, t| {
            gguf::write_chatterbox_crispasr(english.path(), out, false, t)
        }),
    ];
    // Largest errors as parts of a tensor's largest weight: half a step of each type, and its scale's
    // rounding; in q4_0 a step, as its integers end one earlier on one side.
    let limits = [(DType::F16, 5e-4), (DType::Q8_0, 4.5e-3), (DType::Q4_0, 0.13)];
    for (engine, folder, file, make) in makers {
        let source = open(folder);
        let want = source.model().files().weights();
        for (dtype, limit) in limits {
            let out = tempfile::tempdir().expect("a folder");
            make(out.path(), dtype);
            let model = open(&out.path().join(format!("{file}.gguf")));
            let got = model.model().files().weights();
            let is_of_type = |name: &&str| got.info(name).is_some_and(|info| info.dtype == dtype);
            let mut compared = 0;
            for name in got.names().into_iter().filter(is_of_type) {
                let (a, b) = (got.get(name).expect("is listed"), want.get(name).expect("official"));
                if a.shape != b.shape {
                    continue; // The table of text of llama.cpp, which is projected.
                }
                let (a, b) = (a.to_f32(), b.to_f32());
                let largest = b.iter().fold(0_f32, |m, x| m.max(x.abs()));
                let error = a.iter().zip(&b).fold(0_f32, |m, (a, b)| m.max((a - b).abs()));
                assert!(error <= limit * largest, "{engine}, {dtype}, {name}: {}", error / largest);
                compared += 1;
            }
            assert!(compared > 20, "{engine}, {dtype}: {compared} tensors");
        }
    }
}

/// Dialects, names of speakers and repaired merges come back.
#[test]
fn qwen3_speakers_come_back() {
    let folder = qwen("custom_voice");
    let source = open(folder.path());
    let want = speak(&source, &Options::default());
    for (i, make) in [gguf::write_qwentts_cpp, gguf::write_qwen3_crispasr].into_iter().enumerate() {
        let out = tempfile::tempdir().expect("a folder");
        make(folder.path(), out.path(), DType::F32);
        let model = open(out.path());
        assert_eq!(model.voices(), source.voices());
        for name in ["speakers", "dialects", "languages", "variant", "text tokens"] {
            assert_eq!(fact(&model, name), fact(&source, name), "{name}");
        }
        assert!(fact(&model, "repaired").contains("1 merge"), "{i}: {}", fact(&model, "repaired"));
        assert!(want == speak(&model, &Options::default()), "{i}");
    }
}

#[test]
fn broken_variants_say_what_is_wrong() {
    let folder = qwen("base");
    let out = tempfile::tempdir().expect("a folder");
    gguf::write_qwen3tts_cpp(folder.path(), out.path(), DType::F32, true);
    let old = open(&out.path().join("talker.gguf"));
    assert!(fact(&old, "cannot").contains("never divided"), "{}", fact(&old, "cannot"));
    assert!(fact(&old, "repaired").contains("33 added tokens"), "{}", fact(&old, "repaired"));

    // The codec is found by its content, or named.
    let away = tempfile::tempdir().expect("a folder");
    let moved = away.path().join("anything.gguf");
    std::fs::rename(out.path().join("codec.gguf"), &moved).expect("the same disk");
    let talker = out.path().join("talker.gguf");
    assert!(refused(&talker).contains("`codec`"), "{}", refused(&talker));
    let model = open_with(&talker, Some(moved.clone())).expect("the named codec");
    assert!(fact(&model, "second file").contains("anything.gguf"));
    let e = open_with(&talker, Some(talker.clone())).expect_err("no codec").to_string();
    assert!(e.contains("not a codec"), "{e}");
    for name in ["a-1.gguf", "a-2.gguf"] {
        std::fs::copy(&moved, out.path().join(name)).expect("room");
    }
    let e = refused(&talker);
    assert!(e.contains("a-1.gguf") && e.contains("`codec`"), "{e}");
    let e = open_with(folder.path(), Some(moved)).expect_err("needs none").to_string();
    assert!(e.contains("needs no second file"), "{e}");
}

/// Files of no model, damaged files, and files that do not belong together: each error says what, where and
/// what to do.
#[test]
fn wrong_files_are_explained() {
    let (source, out) = (qwen("custom_voice"), tempfile::tempdir().expect("a folder"));
    gguf::write_qwentts_cpp(source.path(), out.path(), DType::F32);
    let [talker, codec] = ["talker", "codec"]
        .map(|name| std::fs::read(out.path().join(format!("{name}.gguf"))).expect("was written"));
    let half = |bytes: &[u8]| bytes[..bytes.len() / 2].to_vec();
    let header = |version: u32| [&b"GGUF"[..], &version.to_le_bytes(), &[0; 64]].concat();
    let architecture = |name: &str, more: &dyn Fn(&mut GgufWriter<'_>)| {
        let mut w = GgufWriter::new();
        w.set("general.architecture", name);
        more(&mut w);
        let mut bytes = vec![];
        w.write_to(&mut bytes).expect("memory");
        bytes
    };
    let plain = |name: &str| architecture(name, &|_| ());
    let codes = |w: &mut GgufWriter<'_>| {
        w.set("tokenizer.ggml.tokens", (0..3072).map(|i| i.to_string()).collect::<Vec<_>>());
    };
    let family = |w: &mut GgufWriter<'_>| {
        w.set("audiocpp.model_spec.family", "kokoro").set("orate.family", "kokoro");
    };
    let newer = |w: &mut GgufWriter<'_>| {
        w.set("orate.family", "qwen3-tts").set("orate.version", 2_u32);
    };
    // A type that cannot be read, of a tensor that is needed.
    let mut retyped = talker.clone();
    let name = b"talker.blk.0.ffn_up.weight";
    let at = talker.windows(name.len()).position(|w| w == name).expect("is there") + name.len() + 4 + 16;
    retyped[at..at + 4].copy_from_slice(&16_u32.to_le_bytes());

    type Case<'a> = (&'a [(&'a str, Vec<u8>)], &'a str, &'a [&'a str]);
    let cases: [Case<'_>; 17] = [
        (&[("a.gguf", vec![])], "a.gguf", &["is empty", "again"]),
        (&[("a.gguf", half(&talker))], "a.gguf", &["cut short", "download"]),
        (&[("a.gguf", half(&talker)), ("b.gguf", codec.clone())], "", &["a.gguf", "cut short"]),
        (
            &[("a.gguf", talker.clone()), ("b.gguf", half(&codec))],
            "a.gguf",
            &["b.gguf", "cut short", "`codec`"],
        ),
        (&[("a.gguf", talker.clone())], "", &["Qwen3-TTS", "lacks the file of its codec", "`codec`"]),
        (&[("a.gguf", b"text".repeat(9))], "a.gguf", &["does not begin with"]),
        (&[("a.gguf", header(9))], "a.gguf", &["GGUF version 9", "2 or 3"]),
        (&[("a.gguf", header(3_u32.swap_bytes()))], "a.gguf", &["big-endian"]),
        (&[("a.gguf", plain("llama"))], "a.gguf", &["`llama`", "Supertonic", "docs/models.md"]),
        (&[("a.gguf", plain("llama"))], "", &["`a.gguf`", "`llama`", "docs/models.md"]),
        (&[("a.gguf", architecture("qwen3vl", &codes))], "", &["ONNX", "Serveurperso/Qwen3-TTS-GGUF"]),
        (&[("a.gguf", architecture("audiocpp", &family))], "a.gguf", &["audio.cpp", "`kokoro`"]),
        (&[("a.gguf", architecture("orate-model", &family))], "a.gguf", &["`kokoro`", "update orate"]),
        (&[("a.gguf", architecture("orate-model", &newer))], "a.gguf", &["newer orate", "update"]),
        (&[("a.gguf", plain("qwen3tts.voicepack"))], "", &["voices", "add the files of the model"]),
        (
            &[("a.gguf", talker.clone()), ("b.gguf", talker.clone()), ("c.gguf", codec.clone())],
            "",
            &["several models", "`a.gguf`, `b.gguf`"],
        ),
        (
            &[("a.gguf", retyped), ("b.gguf", codec.clone())],
            "a.gguf",
            &["mlp.up_proj.weight", "iq2_xxs", "take a file of q4_K"],
        ),
    ];
    for (i, (files, path, parts)) in cases.into_iter().enumerate() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), bytes).expect("room");
        }
        let path = if path.is_empty() { folder.path().to_owned() } else { folder.path().join(path) };
        let e = refused(&path);
        assert!(e.contains(&*folder.path().to_string_lossy()), "{i}: {e}");
        for part in parts {
            assert!(e.contains(part), "{i}: no `{part}` in: {e}");
        }
    }

    // What is wrong with the model comes before what is wrong with asking for a second file.
    let (cut, codec) = (out.path().join("cut.gguf"), out.path().join("codec.gguf"));
    std::fs::write(&cut, half(&talker)).expect("room");
    let e = open_with(&cut, Some(codec)).expect_err("refused").to_string();
    assert!(e.contains("cut.gguf") && e.contains("cut short"), "{e}");
    std::fs::remove_file(cut).expect("there");

    // Second files of other models and engines.
    let [llama, turbo] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let base = qwen("base");
    gguf::write_qwen3_llamacpp(base.path(), llama.path(), DType::F32);
    write_chatterbox(turbo.path(), "turbo", "tiny").expect("writable");
    gguf::write_chatterbox_cpp(turbo.path(), turbo.path());
    let with = |codec: &Path| {
        let talker = out.path().join("talker.gguf");
        open_with(&talker, Some(codec.to_owned())).expect_err("refused").to_string()
    };
    for (codec, parts) in [
        (
            turbo.path().join("s3gen.gguf"),
            ["not a codec of Qwen3-TTS, but the S3Gen of Chatterbox", "chatterbox.cpp"],
        ),
        (llama.path().join("mmproj.gguf"), ["llama.cpp", "go together only"]),
    ] {
        let e = with(&codec);
        assert!(parts.iter().all(|part| e.contains(part)), "{e}");
    }
    std::fs::copy(llama.path().join("mmproj.gguf"), out.path().join("codec.gguf")).expect("room");
    let e = refused(&out.path().join("talker.gguf"));
    assert!(e.contains("`codec.gguf` beside it is the codec") && e.contains("go together only"), "{e}");
}

#[test]
fn chatterbox_files_speak_as_their_folder() {
    for (variant, turbo) in [("en", false), ("turbo", true)] {
        let folder = tempfile::tempdir().expect("a folder");
        write_chatterbox(folder.path(), variant, "tiny").expect("writable");
        let source = open(folder.path());
        let want = speak(&source, &Options::default());
        let out = tempfile::tempdir().expect("a folder");
        gguf::write_chatterbox_crispasr(folder.path(), out.path(), turbo, DType::F32);
        let model = open(&out.path().join("t3.gguf"));
        assert_eq!(fact(&model, "layout"), "\"CrispASR (T3)\"");
        // Weight norm is folded by other roundings.
        let got = speak(&model, &Options::default());
        assert!(snr_db(&want, &got) > 60.0, "{variant}: {} dB", snr_db(&want, &got));
        if !turbo {
            let out = tempfile::tempdir().expect("a folder");
            for (from, to) in [("t3_cfg", "t3-f32"), ("s3gen", "s3gen-f32"), ("ve", "ve-f32")] {
                let from = folder.path().join(format!("{from}.safetensors"));
                gguf::write_official_names(&from, &out.path().join(format!("{to}.gguf")));
            }
            for file in ["tokenizer.json", "conds.pt"] {
                std::fs::copy(folder.path().join(file), out.path().join(file)).expect("room");
            }
            let model = open(&out.path().join("t3-f32.gguf"));
            assert_eq!(fact(&model, "layout"), "\"official names (T3)\"");
            assert!(speak(&model, &Options::default()) == want);

            let paths = ["ve", "s3gen", "t3_cfg"].map(|f| folder.path().join(format!("{f}.safetensors")));
            let prefixes = ["voice_encoder", "s3gen", "t3_english"];
            let inputs: Vec<_> = prefixes.into_iter().zip(paths.iter().map(PathBuf::as_path)).collect();
            let file = out.path().join("audio.gguf");
            gguf::write_audiocpp(
                &file,
                "chatterbox",
                folder.path(),
                &inputs,
                &["tokenizer.json", "conds.pt"],
            );
            let model = open(&file);
            assert_eq!(fact(&model, "layout"), "\"audio.cpp\"");
            assert!(speak(&model, &Options::default()) == want);
        }
        if turbo {
            turbo_of_audiocpp(folder.path(), &want);
            let out = tempfile::tempdir().expect("a folder");
            gguf::write_chatterbox_cpp(folder.path(), out.path());
            let model = open(out.path());
            assert_eq!(fact(&model, "layout"), "\"chatterbox.cpp (T3)\"");
            let got = speak(&model, &Options::default());
            assert!(snr_db(&want, &got) > 60.0, "{} dB", snr_db(&want, &got));
        }
    }
}

/// With and without what reads recordings: both kinds of files are around.
fn turbo_of_audiocpp(folder: &Path, want: &[f32]) {
    let source = open(folder);
    let recording: Vec<f32> = (0..24_000 * 6).map(|i| (i as f32 * 0.05).sin() * 0.2).collect();
    let clone = |engine: &Engine| engine.model().cloning().and_then(|c| c.clone_voice(&recording, None));
    for encoders in [true, false] {
        let out = tempfile::tempdir().expect("a folder");
        let file = out.path().join("turbo.gguf");
        gguf::write_turbo_audiocpp(folder, &file, encoders);
        let model = open(&file);
        assert_eq!(fact(&model, "layout"), "\"audio.cpp\"");
        assert_eq!(fact(&model, "unused tensors"), "");
        assert_eq!(fact(&model, "text tokens"), fact(&source, "text tokens"));
        let got = speak(&model, &Options::default());
        assert!(snr_db(want, &got) > 60.0, "{} dB", snr_db(want, &got));
        match clone(&model) {
            Ok(voice) => {
                assert!(encoders);
                assert_eq!(voice, clone(&source).expect("clones"));
            }
            Err(e) => assert!(!encoders && e.to_string().contains("no speech tokenizer"), "{e}"),
        }
        assert_eq!(fact(&model, "cannot").contains("voices from recordings"), !encoders);
    }
}

#[test]
fn supertonic_files_speak_as_their_folder() {
    for name in ["tiny1", "tiny", "tiny3"] {
        let folder = crate::common::oracle(&format!("golden/{name}"));
        let source = open(&folder);
        let out = tempfile::tempdir().expect("a folder");
        let file = out.path().join("a.gguf");
        gguf::write_supertonic_ttscpp(&folder, &file);
        let model = open(&file);
        assert_eq!(fact(&model, "layout"), "\"tts-cpp\"");
        let want = speak(&source, &Options::default());
        assert!(want == speak(&model, &Options::default()), "{name}");

        gguf::write_supertonic_audiocpp(&folder, &file);
        let model = open(&file);
        assert_eq!(fact(&model, "layout"), "\"audio.cpp\"");
        assert_eq!(fact(&model, "unused tensors"), "");
        assert_eq!(model.voices(), source.voices());
        assert!(want == speak(&model, &Options::default()), "{name}");
    }
}

/// Layout I holds no dilations: those of the released model are filled in.
#[test]
fn supertonic_3_of_crispasr_speaks_as_its_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    for part in ["onnx", "voice_styles"] {
        let from = crate::common::oracle("golden/tiny3").join(part);
        std::fs::create_dir_all(folder.path().join(part)).expect("writable");
        for file in std::fs::read_dir(from).expect("is there").flatten() {
            std::fs::copy(file.path(), folder.path().join(part).join(file.file_name())).expect("room");
        }
    }
    let path = folder.path().join("onnx/tts.json");
    let text = std::fs::read_to_string(&path).expect("is there");
    let mut config: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    config["ttl"]["text_encoder"]["convnext"]["dilation_lst"] = serde_json::json!([1, 1, 2]);
    std::fs::write(&path, config.to_string()).expect("writable");
    let source = open(folder.path());
    let file = folder.path().join("a.gguf");
    gguf::write_supertonic_crispasr(folder.path(), &file);
    let model = open(&file);
    assert_eq!(fact(&model, "layout"), "\"CrispASR\"");
    assert!(fact(&model, "filled in").contains("tts.json"), "{}", fact(&model, "filled in"));
    assert_eq!(fact(&model, "unused tensors"), "");
    assert_eq!(model.voices(), source.voices());
    assert!(speak(&source, &Options::default()) == speak(&model, &Options::default()));
}

/// Blocks are computed in blocks unless another format is asked for.
#[test]
fn blocks_stay_blocks() {
    let folder = qwen("custom_voice");
    let stored = |file: &Path| {
        let options = EngineOptions {
            model: ModelSource::Path(file.to_owned()),
            device: DeviceChoice::Cpu,
            ..Default::default()
        };
        Engine::with_options(options).expect("opens").precision().to_string()
    };
    for (dtype, want) in [(DType::Q8_0, "q8_0"), (DType::Q4_0, "q4_0"), (DType::F32, "f32")] {
        let out = tempfile::tempdir().expect("a folder");
        gguf::write_qwentts_cpp(folder.path(), out.path(), dtype);
        let got = stored(out.path());
        assert!(got.starts_with(want), "{dtype}: {got}");
    }
    assert_eq!(stored(folder.path()), "f32");
}
