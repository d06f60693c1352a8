//! All commands but `say`.

use crate::util::{Folder, finish, repository, tiny};
use orate_testing::checkpoints::{write_chatterbox, write_qwen3_tts, write_random_qwen3_tts};
use orate_weights::{GgufFile, WeightSource, voice_pack};
use serde_json::{Value, json};
use std::path::Path;

#[test]
fn help_and_version() {
    let folder = Folder::new();
    let commands = [
        "say",
        "convert",
        "voices",
        "devices",
        "inspect",
        "explain",
        "bench",
        "verify",
        "pack-voice",
        "cache",
        "completions",
    ];
    let run = folder.orate(&["--help"]).ok();
    for part in commands.iter().chain(&["Examples:", "Exit status:"]) {
        assert!(run.text().contains(part), "{part}: {}", run.text());
    }
    for command in commands {
        let run = folder.orate(&[command, "--help"]).ok();
        assert!(run.text().contains(&format!("Usage: orate {command}")), "{}", run.text());
        assert!(run.text().contains("orate say ") || run.text().contains("Example"), "{}", run.text());
        assert!(run.text().lines().all(|l| l.chars().count() <= 100), "{}", run.text());
    }
    // Features of builds that have all others.
    for help in [&["--help"][..], &["say", "--help"]] {
        let text = folder.orate(help).ok().text().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(text.contains("CUDA (`cuda`)"), !cfg!(feature = "cuda"), "{text}");
        assert_eq!(text.contains("Metal and DX12 (`gpu`)"), !cfg!(feature = "gpu"), "{text}");
        assert!(!text.contains("`orate serve` (`server`)"), "{text}");
    }
    let version = folder.orate(&["--version"]).ok();
    assert_eq!(version.text(), format!("orate {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_for_each_shell() {
    let folder = Folder::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let run = folder.orate(&["completions", shell]).ok();
        assert!(run.text().contains("pack-voice") && run.text().contains("skip-unknown"), "{shell}");
    }
    folder.orate(&["completions", "nosh"]).fails(2, &["nosh", "bash"]);
}

#[test]
fn voices_are_listed() {
    let folder = Folder::new();
    assert_eq!(folder.orate(&["voices"]).ok().text(), "default (default)\n");
    let model = tiny(3);
    let model = model.to_str().unwrap();
    assert_eq!(folder.orate(&["voices", "--model", model]).ok().text(), "F1 (default)\nM1\n");
    let json = folder.orate(&["voices", "--model", model, "--json"]).ok().json();
    let voices = json!([{ "name": "F1", "default": true }, { "name": "M1", "default": false }]);
    assert_eq!(json, json!({ "model": model, "voices": voices, "kept": [] }));
    // Models without voices say how to use them.
    for (kind, how) in [("base", "`orate voices add` makes one"), ("voice_design", "with --instruct")] {
        write_random_qwen3_tts(kind, &folder.path(kind), 1).unwrap();
        let run = folder.orate(&["voices", "--model", kind]).ok();
        assert!(run.stderr.contains(how) && run.text().is_empty(), "{}", run.stderr);
    }
}

#[test]
fn models_are_inspected() {
    let folder = Folder::new();
    let cases = [(1, json!(["en"]), "v1.5"), (2, json!(["en", "ko", "es", "pt", "fr"]), "v1.6")];
    for (version, languages, named) in cases {
        let model = tiny(version);
        let json = folder.orate(&["inspect", model.to_str().unwrap(), "--json"]).ok().json();
        assert_eq!(json["kind"], format!("Supertonic {version}"));
        assert!(json["version"].as_str().unwrap().starts_with(named), "{json}");
        assert_eq!(json["sample_rate"], 8000);
        assert_eq!(json["languages"], languages);
        assert_eq!(json["voices"], json!(["F1", "M1"]));
        assert_eq!(json["default_voice"], "F1");
        assert!(json.get("tensors").is_none());
    }

    let json = folder.orate(&["inspect", "--json", "--tensors"]).ok().json();
    assert_eq!(json["kind"], "Orate voice");
    assert_eq!(json["sample_rate"], 24_000);
    let file = GgufFile::open(repository("voices/orate-default/orate-default.gguf")).unwrap();
    let tensors = json["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), file.names().len());
    for t in tensors {
        let info = file.info(t["name"].as_str().unwrap()).unwrap();
        assert_eq!((t["dtype"].as_str(), &t["shape"]), (Some(info.dtype.name()), &json!(info.shape)), "{t}");
    }
    let sum = |group: &str, what: &str| {
        json[group].as_object().unwrap().values().map(|v| v[what].as_u64().unwrap()).sum::<u64>()
    };
    for what in ["tensors", "parameters", "bytes"] {
        let total = json["total"][what].as_u64().unwrap();
        assert!(total > 0);
        assert_eq!((sum("networks", what), sum("dtypes", what)), (total, total), "{what}");
    }

    let run = folder.orate(&["inspect"]).ok();
    for part in
        ["Orate voice", "24000", "duration_predictor", "text_encoder", "vector_estimator", "vocoder", "q8_0"]
    {
        assert!(run.text().contains(part), "{part}: {}", run.text());
    }
}

#[test]
fn precision_policies_are_shown_by_weight() {
    let folder = Folder::new();
    let f16 = ["inspect", "--json", "--tensors", "--precision", "f16", "--precision-deny", "*.head.*"];
    let json = folder.orate(&f16).ok().json();
    assert_eq!(json["precision"], "f16 but not for *.head.*");
    let of = |format: &str| {
        let all = json["tensors"].as_array().unwrap().iter();
        all.filter(|t| t["matmul"] == format)
            .map(|t| t["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(json["matmuls"], json!({ "f16": of("f16").len(), "f32": of("f32").len() }));
    assert!(of("f16").len() > 100 && of("f16").iter().all(|n| !n.contains(".head.")), "{json}");
    assert!(!of("f32").is_empty() && of("f32").iter().all(|n| n.contains(".head.")), "{:?}", of("f32"));
    folder.orate(&["inspect", "--precision", "int8"]).fails(2, &["int8", "f32, tf32, f16, bf16"]);
    folder
        .orate(&["say", "Hm.", "--device", "cpu", "--precision", "tf32"])
        .fails(1, &["the CPU computes in f32, f16, bf16 and formats of blocks", "tf32 is for CUDA"]);
}

/// The chosen format depends on the machine; that the reason is printed does not.
#[test]
fn precision_by_probes_is_explained() {
    let folder = Folder::new();
    let json = folder.orate(&["inspect", "--json", "--precision", "auto"]).ok().json();
    let bench =
        ["bench", "--device", "cpu", "--precision", "auto", "--runs", "1", "--tokens", "4", "--steps", "1"];
    let mut as_json = bench.to_vec();
    as_json.push("--json");
    for json in [json, folder.orate(&as_json).ok().json()] {
        let probes = &json["precision_probes"];
        assert_eq!(json["precision"], probes["chosen"]);
        let measured = probes["measured"].as_array().unwrap();
        assert_eq!(measured[0]["precision"], "f32");
        let chosen = measured.iter().find(|p| p["precision"] == probes["chosen"]).unwrap();
        assert!(chosen["error"].as_f64() <= probes["most_error"].as_f64(), "{probes}");
    }
    for text in [folder.orate(&["inspect", "--precision", "auto"]).ok(), folder.orate(&bench).ok()] {
        assert!(text.text().contains("by probes of 72 x 1024 x 1024: f32"), "{}", text.text());
    }
    let asked = folder.orate(&["inspect", "--json", "--precision", "f32"]).ok().json();
    assert!(asked.get("precision_probes").is_none());
}

#[test]
fn devices_and_caches_are_listed() {
    let folder = Folder::new();
    let json = folder.orate(&["devices", "--json"]).ok().json();
    assert_eq!(json["devices"][0]["device"], "cpu");
    assert!(folder.orate(&["devices"]).ok().text().contains("cpu"));
    let mut command = folder.command(&["devices"]);
    let run = finish(command.env("ORATE_CPU_ISA", "abacus")).ok();
    assert!(run.text().contains("no cpu: ") && run.text().contains("`abacus`"), "{}", run.text());

    let cache = |args: &[&str]| {
        let mut command = folder.command(&[&["cache"], args].concat());
        command.env("ORATE_CACHE", folder.path("kernels")).output().expect("run orate")
    };
    std::fs::create_dir_all(folder.path("kernels/cuda")).unwrap();
    folder.write("kernels/cuda/a.cubin", "oratecu1 12345");
    folder.write("kernels/cuda/b.cubin", "not ours");
    folder.write("kernels/mine.txt", "not ours");
    let shown: Value = serde_json::from_slice(&cache(&["--json"]).stdout).expect("JSON");
    assert_eq!((&shown["bytes"], &shown["files"]), (&json!(14), &json!(1)));
    let text = String::from_utf8(cache(&[]).stdout).expect("UTF-8");
    assert!(text.ends_with("kernels: 14 B in 1 file\n"), "{text}");
    assert!(cache(&["--clear"]).status.success());
    assert!(!folder.path("kernels/cuda/a.cubin").exists());
    assert!(folder.path("kernels/cuda/b.cubin").exists() && folder.path("kernels/mine.txt").exists());

    let mut command = folder.command(&["cache"]);
    finish(command.env("ORATE_CACHE", folder.path("kernels/mine.txt"))).fails(1, &["mine.txt: not a folder"]);
}

#[test]
fn steps_are_traced() {
    let folder = Folder::new();
    let run = ["bench", "--runs", "1", "--text", "Hm.", "--device", "cpu", "--trace", "steps.json"];
    folder.orate(&run).ok();
    let trace: Value = serde_json::from_slice(&std::fs::read(folder.path("steps.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let steps: Vec<_> = events.iter().filter(|e| e["ph"] == "X").collect();
    assert!(steps.len() > 500, "{}", steps.len());
    assert!(steps.windows(2).all(|w| w[0]["ts"].as_f64() <= w[1]["ts"].as_f64()), "in order");
    assert_eq!(folder.files(), ["steps.json"]);

    // An unwritable path is an error before anything is timed, and a failing run does not touch an old file.
    let failing = |path| folder.orate(&["bench", "--text", "Hm.", "--model", "none", "--trace", path]);
    failing("missing/steps.json").fails(1, &["missing/steps.json", "cannot create this file"]);
    failing("steps.json").fails(1, &["none"]);
    assert_eq!(serde_json::from_slice::<Value>(&folder.read("steps.json")).unwrap(), trace);
    assert_eq!(folder.files(), ["steps.json"]);
}

#[test]
fn qwen3_models_are_inspected() {
    let folder = Folder::new();
    let cases = [
        ("base", "Qwen3-TTS 0.6B Base", 0, "reference audio"),
        ("custom_voice", "Qwen3-TTS 1.7B CustomVoice", 9, "one of its own"),
        ("voice_design", "Qwen3-TTS 1.7B VoiceDesign", 0, "a description"),
    ];
    for (variant, kind, speakers, speaker) in cases {
        write_qwen3_tts(variant, &folder.path(variant)).unwrap();
        let json = folder.orate(&["inspect", variant, "--json"]).ok().json();
        assert_eq!((&json["kind"], &json["speaker"]), (&json!(kind), &json!(speaker)));
        assert_eq!((&json["sample_rate"], &json["frames_per_second"]), (&json!(24_000), &json!(12.5)));
        assert_eq!((&json["samples_per_frame"], &json["codes_per_frame"]), (&json!(1920), &json!(16)));
        assert_eq!(json["languages"].as_array().unwrap().len(), 10);
        assert_eq!(json["speakers"].as_array().map_or(0, Vec::len), speakers);
        let parts = |group: &str| {
            json[group].as_object().unwrap().values().map(|v| v["tensors"].as_u64().unwrap()).sum::<u64>()
        };
        let total = json["total"]["tensors"].as_u64().unwrap();
        assert_eq!((parts("networks"), parts("dtypes")), (total, total));
        // Memory is predicted for the CPU, unless a device is named.
        assert_eq!(folder.orate(&["inspect", variant, "--json", "--device", "cpu"]).ok().json(), json);
        let bytes = |name: &str| json[name].as_u64();
        let speech = "bytes_of_20_seconds_of_speech";
        let [ten, sixty] = [10, 60].map(|seconds| bytes(&format!("{speech}_after_a_reference_of_{seconds}")));
        assert!(bytes("bytes_of_weights_on_the_CPU") > Some(0) && bytes(speech) > Some(0), "{json}");
        match variant {
            "base" => assert!(sixty > ten && ten > bytes(speech), "{json}"),
            _ => assert_eq!((ten, sixty), (None, None), "only Base takes a reference"),
        }
    }
    folder.orate(&["inspect", "base", "--device", "tpu"]).fails(2, &["tpu", "auto, cpu, gpu, cuda"]);
    folder.orate(&["inspect", "base", "--device", "cuda:1000"]).fails(1, &["cuda"]);
    for [flag, value] in [["--device", "cpu"], ["--codec", "base"], ["--precision", "f16"], ["--kv", "f16"]] {
        let file = ["inspect", "base/model.safetensors", flag, value];
        let problem = format!("{flag} is for models");
        folder.orate(&file).fails(2, &[&problem, "model.safetensors", "leave it out"]);
    }
    let run = folder.orate(&["inspect", "base"]).ok();
    for part in
        ["speaker_encoder", "codec_encoder", "talker", "code_predictor", "codec_decoder", "bf16", "f32"]
    {
        assert!(run.text().contains(part), "{part}: {}", run.text());
    }
    let memory = run.text().lines().find(|line| line.starts_with("  memory of 20 seconds of speech "));
    assert!(memory.is_some_and(|line| line.ends_with(" MB")), "{}", run.text());
    // Formats of all weights under the policy: grouped in text, one by one in JSON.
    let json = folder.orate(&["inspect", "base", "--weights", "q8_0", "--tensors", "--json"]).ok().json();
    let matmul = |name: &str| {
        let mut all = json["tensors"].as_array().unwrap().iter();
        &all.find(|t| t["name"] == name).unwrap_or_else(|| panic!("{name}"))["matmul"]
    };
    assert_eq!(matmul("talker.model.layers.1.mlp.up_proj.weight"), "q8_0");
    assert_eq!(matmul("talker.code_predictor.lm_head.3.weight"), "q8_0");
    assert_eq!(matmul("decoder.pre_conv.conv.weight"), "f32", "the codec stays exact");
    assert_eq!(matmul("encoder.downsample.conv.weight"), "f32");
    assert_eq!(matmul("talker.model.norm.weight"), &Value::Null, "no matmul reads it");
    let args = ["inspect", "base", "--weights", "bf16", "--precision-deny", "talker.code_predictor.*"];
    let run = folder.orate(&args).ok();
    let line = |start: &str| {
        let found = run.text().lines().find(|line| line.starts_with(start));
        found.unwrap_or_else(|| panic!("{start}: {}", run.text())).split_whitespace().last().unwrap()
    };
    assert_eq!(line("talker.model.layers.*.mlp.up_proj.weight "), "bf16");
    assert_eq!(line("talker.code_predictor.model.layers.*.mlp.up_proj.weight "), "f32");
    assert_eq!(line("talker.code_predictor.lm_head.*.weight "), "f32");
    assert_eq!(line("decoder.pre_conv.conv.weight "), "bf16");
    let json = folder.orate(&["inspect", "base/speech_tokenizer", "--json"]).ok().json();
    assert_eq!((&json["kind"], &json["total"]["tensors"]), (&json!("Qwen3-TTS codec (12 Hz)"), &json!(322)));

    folder.orate(&["say", "Hello.", "--model", "base"]).fails(2, &["a Base model", "reference audio"]);
    folder
        .orate(&["say", "Hello.", "--model", "base/speech_tokenizer"])
        .fails(1, &["a codec without a talker"]);
    folder.orate(&["verify", "--model", "base", "--goldens", "none"]).fails(1, &["none"]);
    folder
        .orate(&["verify", "--model", "base", "--goldens", "base"])
        .fails(1, &["neither cases/manifest.json"]);
    std::fs::remove_file(folder.path("base/vocab.json")).unwrap();
    folder.orate(&["inspect", "base"]).fails(1, &["base", "it lacks vocab.json"]);
}

#[test]
fn qwen3_models_speak() {
    let folder = Folder::new();
    write_random_qwen3_tts("custom_voice", &folder.path("custom"), 1).unwrap();
    let voices = folder.orate(&["voices", "--model", "custom", "--json"]).ok().json();
    assert_eq!(voices["voices"].as_array().unwrap().len(), 9);
    let say = [
        "say",
        "Hello.",
        "--model",
        "custom",
        "--voice",
        "vivian",
        "--lang",
        "en",
        "--max-frames",
        "2",
        "--raw",
    ];
    let json =
        folder.orate(&[&say[..], &["-o", "a.wav", "--json", "--instruct", "calm"]].concat()).ok().json();
    assert_eq!((&json["finish_reason"], &json["voice"]), (&json!("length"), &json!("vivian")));
    assert_eq!((&json["duration_s"], &json["sample_rate"]), (&json!(0.16), &json!(24_000)));
    assert_eq!(orate_audio::read_wav(folder.path("a.wav")).unwrap().samples.len(), 3840);
    assert_eq!(json["kv"], "f32");
    let json = folder.orate(&[&say[..], &["-o", "b.wav", "--json", "--kv", "q8_0"]].concat()).ok().json();
    assert_eq!((&json["kv"], &json["duration_s"]), (&json!("q8_0"), &json!(0.16)));
    let inspect = |kv: &str| folder.orate(&["inspect", "custom", "--json", "--kv", kv]).ok().json();
    let bytes = |kv: &str| inspect(kv)["bytes_of_20_seconds_of_speech"].as_u64().unwrap();
    assert!(inspect("f16")["keys_and_values"] == "f16" && bytes("q8_0") < bytes("f16"), "{}", inspect("f16"));
    folder
        .orate(&[&say[..], &["--speed", "2"]].concat())
        .fails(2, &["`--speed` is not an option of Qwen3-TTS models (Supertonic has it)"]);
    let explained = folder.orate(&["explain", "--model", "custom", "--tokens", "20"]).ok();
    for part in ["plan `prompt`", "plan `prefill`", "plan `frame`", "Sample", "WriteRows"] {
        assert!(explained.text().contains(part), "{part}");
    }
}

#[test]
fn single_files_are_inspected() {
    let folder = Folder::new();
    let inspect =
        |path: &Path| folder.orate(&["inspect", path.to_str().unwrap(), "--json", "--tensors"]).ok().json();

    let json = inspect(&tiny(2).join("onnx/vocoder.onnx"));
    assert_eq!((json["kind"].as_str(), &json["inputs"]), (Some("ONNX"), &json!(["latent"])));
    assert!(
        json["opset"].as_i64().unwrap() > 10 && json["operations"]["Conv"].as_i64().unwrap() > 3,
        "{json}"
    );
    assert!(json["networks"]["vocoder"]["parameters"].as_u64().unwrap() > 1000, "{json}");

    // Other families have networks of the same names.
    write_chatterbox(&folder.path("en"), "en", "tiny").unwrap();
    let json = inspect(&folder.path("en/s3gen.safetensors"));
    let has = |name: &str| json["networks"].get(name).is_some();
    assert!(has("speaker encoder") && !has("speaker_encoder"), "the name of Chatterbox: {json}");

    let json = inspect(&tiny(2).join("golden.safetensors"));
    assert_eq!(json["kind"], "safetensors");
    assert!(json["tensors"].as_array().unwrap().iter().any(|t| t["name"] == "main/wav"), "{json}");

    let json = inspect(&tiny(2).join("voice_styles/F1.json"));
    assert_eq!((json["kind"].as_str(), json["style_ttl"].as_str()), (Some("voice file"), Some("[1,10,32]")));

    let json = inspect(&repository("voices/orate-default/orate-default.gguf"));
    assert_eq!(json["kind"], "Orate voice", "a packed voice is a model");

    let mut other = orate_weights::GgufWriter::new();
    other.set("general.architecture", "llama").set("llama.block_count", 2_u32);
    other.tensor("a", orate_weights::DType::F32, &[2], vec![0; 8]);
    other.write(folder.path("llama.gguf")).unwrap();
    let json = inspect(&folder.path("llama.gguf"));
    assert_eq!((json["kind"].as_str(), &json["metadata"]["llama.block_count"]), (Some("GGUF"), &json!("2")));
    assert_eq!(json["total"], json!({ "tensors": 1, "parameters": 2, "bytes": 8 }));
    let run = folder.orate(&["inspect", "llama.gguf", "--tensors"]).ok();
    assert!(run.text().contains("f32    [2]"), "{}", run.text());
}

#[test]
fn plans_are_explained() {
    let folder = Folder::new();
    let model = tiny(2);
    let explain = |more: &[&str]| {
        let sizes = ["explain", "--tokens", "20", "--latents", "10", "--steps", "3"];
        folder.orate(&[&sizes, &["--model", model.to_str().unwrap()][..], more].concat())
    };
    let run = explain(&[]).ok();
    let plans = [
        "duration_predictor",
        "text_encoder",
        "vector_estimator.prepare",
        "vector_estimator.step",
        "vocoder",
    ];
    for plan in plans {
        assert!(run.text().contains(&format!("plan `{plan}` on cpu")), "{plan}: {}", run.text());
    }
    assert!(run.text().contains("[1, 10, 20]"), "shapes: {}", run.text());
    assert!(
        run.text().contains("with 3 denoising steps:") && !run.text().contains("bound"),
        "{}",
        run.text()
    );
    let run = explain(&["--gflops", "100", "--gbps", "10"]).ok();
    assert!(run.text().contains("bound µs") && run.text().contains("at 100 GFLOP/s and 10.0 GB/s"));
    assert!(explain(&["--measure"]).ok().text().contains("bound µs"));

    explain(&["--gflops", "100"]).fails(2, &["--gbps"]);
    explain(&["--gflops", "0", "--gbps", "1"]).fails(2, &["--gflops", "choose 0.001 to"]);
    folder.orate(&["explain", "--tokens", "0"]).fails(2, &["--tokens", "choose 1 to 4096"]);
    folder.orate(&["explain", "--steps", "0"]).fails(2, &["--steps is 0", "1 to 100"]);
}

#[test]
fn bench_prints_what_comparisons_read() {
    let folder = Folder::new();
    let model = tiny(2);
    let model = model.to_str().unwrap();
    let args =
        ["bench", "--model", model, "--tokens", "80", "--latents", "72", "--steps", "5", "--threads", "2"];
    let json = folder.orate(&[&args[..], &["--runs", "2", "--json"]].concat()).ok().json();
    let stages = json["stages"].as_object().unwrap();
    let mut names: Vec<&str> = stages.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["duration_predictor", "text_encoder", "vector_estimator", "vocoder"]);
    assert!(stages.values().all(|ms| ms.as_f64().unwrap() > 0.0), "{json}");
    for positive in ["total_ms", "rtf", "first_audio_ms", "load_ms", "warm_up_ms"] {
        assert!(json[positive].as_f64().unwrap() > 0.0, "{positive}: {json}");
    }
    if cfg!(target_os = "linux") {
        assert!(json["peak_rss_mb"].as_f64().unwrap() > 1.0, "{json}");
    }
    assert_eq!((&json["threads"], &json["runs"], &json["model"]), (&json!(2), &json!(2), &json!(model)));
    assert!(json["device"].as_str().unwrap().starts_with("cpu ("));
    assert_eq!(json["pieces"], json!([{ "tokens": 80, "latents": 72, "steps": 5 }]));
    // 72 frames of 320 samples at 8 kHz.
    assert!((json["duration_s"].as_f64().unwrap() - 2.88).abs() < 1e-9, "{json}");
}

#[test]
fn bench_of_streams_has_columns_for_what_the_model_makes() {
    let model = tiny(2);
    let args = ["bench", "--model", model.to_str().unwrap(), "--streams", "2", "--runs", "1"];
    let run = Folder::new().orate(&args).ok();
    let text = run.text();
    let head = text.lines().find(|line| line.starts_with("streams")).expect("a table");
    let columns: Vec<&str> = head.split("  ").map(str::trim).filter(|column| !column.is_empty()).collect();
    assert_eq!(columns, ["streams", "ms", "audio s/s", "first audio ms", "RTF"], "{text}");
}

#[test]
fn bench_serves_texts_that_arrive_at_random() {
    let folder = Folder::new();
    folder.write("blank.txt", " \n\n");
    folder.write("texts.txt", "Good morning.\n\nThe kettle is on.\n");
    let args = ["bench", "--streams", "2", "--arrivals", "poisson:50", "--texts", "texts.txt", "--runs", "3"];
    let json = folder.orate(&[&args[..], &["--json"]].concat()).ok().json();
    assert_eq!((&json["requests"], &json["texts"]), (&json!(6), &json!(2)));
    let of = |time: &str, share: &str| json[time][share].as_f64().unwrap();
    for share in ["p50", "p95", "p99"] {
        assert!(of("waiting_ms", share) <= of("first_audio_ms", share), "{json}");
        assert!(of("first_audio_ms", share) <= of("whole_text_ms", share), "{json}");
    }
    assert!(of("first_audio_ms", "p50") <= of("first_audio_ms", "p99"));
    assert!(json["duration_s"].as_f64().unwrap() > 3.0, "{json}");
    let run = folder.orate(&args).ok();
    let text = run.text();
    for part in ["first audio", "99 %", "6 of 2 texts", "underruns"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for (status, args, words) in [
        (2, &["--arrivals", "poisson:2"][..], &["--streams"][..]),
        (2, &["--streams", "2", "--arrivals", "often"], &["poisson:RATE"]),
        (2, &["--streams", "2", "--texts", "texts.txt"], &["--arrivals"]),
        (2, &["--streams", "2", "--texts", "0"], &["1 to 10000"]),
        (1, &["--streams", "2", "--arrivals", "poisson:2", "--texts", "none.txt"], &["none.txt"]),
        (
            2,
            &["--streams", "2", "--arrivals", "poisson:2", "--texts", "blank.txt"],
            &["blank.txt", "no text"],
        ),
    ] {
        folder.orate(&[&["bench"], args].concat()).fails(status, words);
    }
}

#[test]
fn bench_times_frames() {
    let folder = Folder::new();
    for variant in ["base", "custom_voice", "voice_design"] {
        write_random_qwen3_tts(variant, &folder.path(variant), 1).unwrap();
        let args = ["bench", "--model", variant, "--device", "cpu", "--runs", "2", "--max-frames", "5"];
        let json = folder.orate(&[&args[..], &["--json"]].concat()).ok().json();
        let timed =
            ["total_ms", "prompt_ms", "frame_ms", "codec_frame_ms", "first_audio_ms", "load_ms", "rtf"];
        for positive in timed {
            assert!(json[positive].as_f64().unwrap() > 0.0, "{variant}: {positive}: {json}");
        }
        let (frames, seconds) = (json["frames"].as_u64().unwrap(), json["duration_s"].as_f64().unwrap());
        assert!(json["finish_reason"].is_string(), "{variant}: {json}");
        assert!((1..=5).contains(&frames) && (seconds - 0.08 * frames as f64).abs() < 1e-9, "{json}");
        let run = folder.orate(&[&args[..], &["--text", "Hm.", "--profile"]].concat()).ok();
        for part in ["frame", "codec", "ms per frame", "RTF", "codec_decoder", "The slowest 20 of"] {
            assert!(run.text().contains(part), "{variant}: {part}: {}", run.text());
        }
    }
    folder.orate(&["bench", "--model", "base", "--tokens", "3"]).fails(2, &["--max-frames"]);
    folder
        .orate(&["bench", "--model", "base", "--max-frames", "0"])
        .fails(2, &["--max-frames is 0", "choose 1 to"]);
    folder
        .orate(&["bench", "--max-frames", "3"])
        .fails(2, &["--max-frames", "Supertonic models", "Qwen3-TTS"]);
}

#[test]
fn bench_compares_streams_with_one() {
    let folder = Folder::new();
    write_random_qwen3_tts("custom_voice", &folder.path("custom"), 1).unwrap();
    let args = [
        "bench",
        "--model",
        "custom",
        "--device",
        "cpu",
        "--runs",
        "1",
        "--max-frames",
        "5",
        "--streams",
        "3",
    ];
    let json = folder.orate(&[&args[..], &["--json"]].concat()).ok().json();
    for (part, streams) in [("one", 1), ("all", 3)] {
        let part = &json[part];
        assert_eq!(part["streams"].as_u64(), Some(streams), "{json}");
        let frames = part["frames"].as_f64().unwrap();
        assert!((1.0..=5.0 * streams as f64).contains(&frames), "{json}");
        for positive in ["total_ms", "frames_per_second", "first_audio_ms", "rtf"] {
            assert!(part[positive].as_f64().unwrap() > 0.0, "{positive}: {json}");
        }
    }
    assert!(json["throughput_ratio"].as_f64().unwrap() > 0.0, "{json}");
    let text = folder.orate(&args).ok().text().to_owned();
    assert!(text.contains("times that of one stream") && text.contains("frames/s"), "{text}");
    let twice = folder.orate(&[&args[..], &["--texts", "2", "--json"]].concat()).ok().json();
    for part in ["one", "all"] {
        let frames = |json: &Value| json[part]["frames"].as_f64().unwrap();
        assert!(frames(&twice) > frames(&json), "{twice}");
    }
    folder.orate(&["bench", "--model", "custom", "--texts", "2"]).fails(2, &["--streams"]);
    // Models that do not work frame by frame are compared by seconds of audio.
    let model = tiny(2);
    let args =
        ["bench", "--model", model.to_str().unwrap(), "--streams", "2", "--runs", "1", "--text", "Hm."];
    let json = folder.orate(&[&args[..], &["--json"]].concat()).ok().json();
    assert!(json["all"]["audio_s_per_second"].as_f64().unwrap() > 0.0, "{json}");
    assert!(json["throughput_ratio"].as_f64().unwrap() > 0.0, "{json}");
    folder
        .orate(&["bench", "--model", "custom", "--streams", "0"])
        .fails(2, &["--streams", "choose 1 to 256"]);
    folder.orate(&["bench", "--model", "custom", "--streams", "2", "--profile"]).fails(2, &["--profile"]);
}

#[test]
fn bench_times_a_text_and_finds_the_slowest_steps() {
    let folder = Folder::new();
    let model = tiny(3);
    let args = [
        "bench",
        "--model",
        model.to_str().unwrap(),
        "--runs",
        "1",
        "--text",
        "One.\n\nTwo, three.",
        "--profile",
    ];
    let json = folder.orate(&[&args[..], &["--json"]].concat()).ok().json();
    assert_eq!(json["pieces"].as_array().unwrap().len(), 2, "{json}");
    let profile = json["profile"].as_array().unwrap();
    let shares: Vec<f64> = profile.iter().map(|s| s["share"].as_f64().unwrap()).collect();
    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{shares:?}");
    assert!(shares.is_sorted_by(|a, b| a >= b), "{shares:?}");

    let run = folder.orate(&args).ok();
    for part in ["vector_estimator", "total", "RTF", "peak memory", "The slowest 20 of", "GFLOP/s"] {
        assert!(run.text().contains(part), "{part}: {}", run.text());
    }
    folder.orate(&["bench", "--text", "", "--runs", "1"]).fails(1, &["nothing to say"]);
    folder.orate(&["bench", "--runs", "0"]).fails(2, &["--runs"]);
}

#[test]
fn models_are_verified() {
    let folder = Folder::new();
    for version in [1, 2, 3] {
        let model = tiny(version);
        let model = model.to_str().unwrap();
        let run = folder.orate(&["verify", "--model", model, "--goldens", model]).ok();
        assert!(run.text().contains("all within 2e-5"), "{}", run.text());
        assert!(run.text().contains("vector_estimator") && run.text().contains("main"), "{}", run.text());
    }
    let model = tiny(2);
    let model = model.to_str().unwrap();
    let verify =
        |more: &[&str]| folder.orate(&[&["verify", "--model", model, "--goldens", model], more].concat());

    let json = verify(&["--case", "one_step", "--json"]).ok().json();
    assert_eq!(json["passed"], true);
    let rows = json["rows"].as_array().unwrap();
    assert!(rows.len() > 3 && rows.iter().all(|r| r["case"] == "one_step" && r["passed"] == true), "{json}");
    assert!(rows.iter().any(|r| r["tensor"] == "wav" && r["error"].as_f64().unwrap() < 2e-5), "{json}");

    let run = verify(&["--tolerance", "1e-12", "--case", "main", "--no-taps"]);
    assert_eq!(run.status, Some(1));
    assert!(run.text().contains("FAILED") && run.text().contains("past 1e-12"), "{}", run.text());
    let run = verify(&["--tolerance", "1e-12", "--json"]);
    assert_eq!((run.status, &run.json()["passed"]), (Some(1), &Value::Bool(false)));

    verify(&["--tolerance", "NaN"]).fails(2, &["--tolerance", "choose 0 to"]);
    verify(&["--case", "nope"]).fails(1, &["no case `nope`", "one_step"]);
    let other = tiny(3);
    folder.orate(&["verify", "--model", model, "--goldens", other.to_str().unwrap()]).fails(1, &["version"]);
    folder.orate(&["verify", "--model", model, "--goldens", "none"]).fails(1, &["none"]);
}

/// The committed goldens of Qwen3-TTS, unchanged: in single precision, and in each lower one.
#[test]
fn qwen3_models_are_verified() {
    let folder = Folder::new();
    let golden = repository("oracle/qwen3_tts/golden");
    let model = golden.join("checkpoints/tiny-base");
    let (golden, model) = (golden.to_str().unwrap(), model.to_str().unwrap());
    let verify = |more: &[&str]| {
        folder.orate(&[&["verify", "--model", model, "--goldens", golden, "--device", "cpu"], more].concat())
    };
    let run = verify(&[]).ok();
    for part in [
        "all within 5e-5",
        "tiny-base/xvector_streaming",
        "tiny-base/icl_streaming_text_longer",
        "codes",
        "log_mel",
        "sampling_chain",
        "tokenizer",
        "codec_decode_long",
    ] {
        assert!(run.text().contains(part), "{part}: {}", run.text());
    }
    let lower =
        ["--weights f16", "--weights bf16", "--weights q8_0", "--weights q4_k", "--weights q4_0", "--kv f16"];
    for more in lower.into_iter().chain(["--precision bf16 --kv bf16", "--weights q4_0 --kv q8_0"]) {
        let more: Vec<&str> = more.split(' ').collect();
        let json = verify(&[&more[..], &["--json"]].concat()).ok().json();
        assert_eq!(json["passed"], true, "{more:?}: {json}");
        let rows = json["rows"].as_array().unwrap();
        assert!(rows.iter().filter(|r| r["snr_db"].is_number()).count() > 20, "{more:?}: {json}");
    }
    assert_eq!(verify(&["--tolerance", "1e-12", "--json"]).status, Some(1));

    // Most of its weights are present, but not all; it must not be accepted as a model.
    folder
        .orate(&["say", "Hello.", "--model", model])
        .fails(1, &["trimmed.json", "only `orate verify` opens"]);
    folder.orate(&["inspect", model]).fails(1, &["trimmed.json", "only `orate verify` opens"]);
    assert!(folder.files().is_empty());
}

/// Writes the built-in voice as a folder in single precision, every weight times `factor`.
fn unpack_voice(folder: &Path, factor: f32) {
    let voice = voice_pack::PackedVoice::open(repository("voices/orate-default/orate-default.gguf")).unwrap();
    let file = voice.weights();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for name in file.names() {
        let tensor = file.get(name).unwrap();
        let start = data.len();
        data.extend(tensor.to_f32().iter().flat_map(|x| (x * factor).to_le_bytes()));
        let offsets = [start, data.len()];
        header.insert(
            name.to_owned(),
            json!({ "dtype": "F32", "shape": tensor.shape, "data_offsets": offsets }),
        );
    }
    let header = Value::Object(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    std::fs::create_dir(folder).unwrap();
    std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
    std::fs::write(folder.join("tts.json"), voice.tts_json().unwrap()).unwrap();
    std::fs::write(folder.join("unicode_indexer.json"), voice.unicode_indexer().unwrap()).unwrap();
    let first = voice.voices().unwrap()[0].clone();
    std::fs::write(folder.join("voice.json"), voice.voice(&first).unwrap()).unwrap();
}

#[test]
fn a_voice_folder_is_packed_and_speaks() {
    let folder = Folder::new();
    unpack_voice(&folder.path("ada"), 1.0);
    let run = folder.orate(&["pack-voice", "ada", "-o", "ada.gguf"]).ok();
    for part in ["q8_0", "nothing was rounded", "voices: default"] {
        assert!(run.text().contains(part), "{part}: {}", run.text());
    }
    assert_eq!(run.stderr, "wrote ada.gguf\n");
    let size = |name: &str| std::fs::metadata(folder.path(name)).unwrap().len();
    assert!(size("ada.gguf") * 3 < size("ada/model.safetensors"));
    // Its weights were already rounded, so that it speaks exactly as the built-in voice does.
    folder.orate(&["say", "Hello there.", "-o", "a.wav", "--model", "ada.gguf"]).ok();
    folder.orate(&["say", "Hello there.", "-o", "b.wav"]).ok();
    assert!(folder.read("a.wav") == folder.read("b.wav"));
    folder.orate(&["say", "Hello there.", "-o", "c.wav", "--model", "ada"]).ok();

    unpack_voice(&folder.path("other"), 1.003);
    let run = folder.orate(&["pack-voice", "other", "-o", "other.gguf"]).ok();
    assert!(run.text().contains("worst: ") && run.text().contains(" dB, tts."), "{}", run.text());

    folder
        .orate(&["pack-voice", "none", "-o", "b.gguf"])
        .fails(1, &["none: cannot pack", "model.safetensors"]);
    folder.orate(&["pack-voice", "ada", "-o", "missing/b.gguf"]).fails(1, &["missing/b.gguf"]);
    folder.orate(&["pack-voice", "ada"]).fails(2, &["--output"]);
    std::fs::remove_file(folder.path("ada/tts.json")).unwrap();
    folder.orate(&["pack-voice", "ada", "-o", "b.gguf"]).fails(1, &["tts.json"]);
    assert_eq!(folder.files(), ["a.wav", "ada", "ada.gguf", "b.wav", "c.wav", "other", "other.gguf"]);
}

/// Layers that drivers add to every program print messages if there is no window system.
#[test]
fn devices_are_listed_without_a_window_system() {
    let folder = Folder::new();
    let mut command = folder.command(&["devices"]);
    command.env_remove("XDG_RUNTIME_DIR").env_remove("MESA_VK_DEVICE_SELECT").env_remove("NODEVICE_SELECT");
    let run = finish(&mut command).ok();
    assert_eq!(run.stderr, "");
    assert!(run.text().contains("cpu"), "{}", run.text());
}
