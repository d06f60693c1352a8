//! Qwen3-TTS from prompt to codes against the official package.

use crate::common::raw;
use orate::{DeviceChoice, Engine, EngineOptions, ModelSource};
use orate_cpu::{CpuDevice, Isa};
use orate_graph::{BufferKind, CacheFormat, DType as GraphDType, Device, Graph, Plan};
use orate_models::Loader;
use orate_models::qwen3_tts::goldens::{limits, utterance};
use orate_models::qwen3_tts::*;
use orate_testing::checkpoints::{qwen3_tts_goldens, write_random_qwen3_tts};
use orate_testing::{Case, OnDevice, ReferenceDevice, check_all};
use orate_tools::verify::{self, Collector, Limit, Report};
use orate_weights::{SafeTensors, WeightSource};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Of each tensor's largest magnitude, as for the other networks.
const TOLERANCE: f64 = 2e-5;

/// An utterance of the official package.
struct Utterance {
    name: String,
    inputs: serde_json::Value,
    file: PathBuf,
}

impl Utterance {
    /// Speaks, and compares everything on the way.
    fn check(&self, model: &Arc<Qwen3Tts>, what: &str) {
        let name = format!("{what}, {}", self.name);
        let limit = (Limit::Error(TOLERANCE), true);
        let report = compare(model, &name, (&self.inputs, &self.file), limit);
        let failed: Vec<_> = report.rows.iter().filter(|r| !r.passed).collect();
        assert!(failed.is_empty() && report.rows.len() >= 8, "{failed:#?}");
        let worst = report.worst().expect("rows").error;
        println!("{name}: {} tensors as the package has them, worst {worst:.1e}", report.rows.len());
    }
}

/// Compares an utterance of these arguments and tensors. With `exact`, codes must be those of the package.
fn compare(
    model: &Arc<Qwen3Tts>,
    name: &str,
    inputs: (&serde_json::Value, &Path),
    (limit, exact): (Limit, bool),
) -> Report {
    let mut collector = Collector::new(limit, exact, true);
    utterance(model, name, inputs, &mut collector).expect("runs");
    collector.report
}

/// The tiny Base model, as far as it is committed: what the committed utterances read.
fn committed() -> Files {
    Files::open_trimmed(&qwen3_tts_goldens().join("checkpoints/tiny-base")).expect("committed")
}

#[test]
fn committed_utterances() {
    let folder = qwen3_tts_goldens().join("cases/tiny-base/generation");
    let utterance = |name: &str| Utterance {
        name: name.to_owned(),
        inputs: serde_json::from_slice(
            &std::fs::read(folder.join(format!("{name}.json"))).expect("committed"),
        )
        .expect("JSON"),
        file: folder.join(format!("{name}.safetensors")),
    };
    let all = ["xvector_streaming", "icl_streaming_text_longer"].map(utterance);
    for (name, device) in devices() {
        let model = Qwen3Tts::new(committed(), device);
        all.iter().for_each(|u| u.check(&model, &name));
    }
}

/// The comparison itself: another text is found out, and below single precision the golden codes are fed back
/// in.
#[test]
fn what_differs_is_found() {
    let file = qwen3_tts_goldens().join("cases/tiny-base/generation/xvector_streaming.safetensors");
    let inputs = std::fs::read(file.with_extension("json")).expect("committed");
    let mut inputs: serde_json::Value = serde_json::from_slice(&inputs).expect("JSON");
    let model = Qwen3Tts::new(committed(), cpu(1));
    let compare_with = |inputs: &serde_json::Value, limit| compare(&model, "case", (inputs, &file), limit);
    let forced = compare_with(&inputs, (Limit::Snr(90.0), false));
    assert!(forced.passed() && forced.rows.iter().all(|r| r.snr.is_some()), "{:#?}", forced.rows);
    assert!(forced.rows.iter().all(|r| r.tensor != "codes"));
    assert!(forced.skipped.iter().any(|(what, _)| what == "case/codes"), "{:?}", forced.skipped);

    inputs["text"] = "hello world, this is a text".into();
    for limit in [(Limit::Error(TOLERANCE), true), (Limit::Snr(90.0), false)] {
        let report = compare_with(&inputs, limit.clone());
        let failed: Vec<&str> = report.rows.iter().filter(|r| !r.passed).map(|r| r.tensor.as_str()).collect();
        assert!(failed.contains(&"trailing_text") && failed.contains(&"talker_hidden"), "{failed:?}");
        assert_eq!(failed.iter().any(|t| t.starts_with("codes from frame")), limit.1, "{failed:?}");
    }
}

/// Another code is found out, unless the golden logits of both say that it is a tie: then the golden codes
/// are fed back in.
#[test]
fn a_tie_may_fall_to_either_side() {
    let file = qwen3_tts_goldens().join("cases/tiny-base/generation/xvector_streaming.safetensors");
    let inputs = std::fs::read(file.with_extension("json")).expect("committed");
    let inputs: serde_json::Value = serde_json::from_slice(&inputs).expect("JSON");
    let bytes = std::fs::read(&file).expect("committed");
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let tensors: serde_json::Value = serde_json::from_slice(&bytes[8..header]).expect("JSON");
    let first = |name: &str| header + tensors[name]["data_offsets"][0].as_u64().expect("a number") as usize;
    let tensor =
        |name: &str| SafeTensors::open(&file).expect("committed").get(name).expect("is there").to_f32();
    // A frame whose logits are kept, and the last code of it that they are for.
    let frame = tensor("predictor_logits.steps")[1] as usize;
    let (width, pass) = (tensors["predictor_logits"]["shape"][2].as_u64().expect("a number") as usize, 14);
    let row = (15 + pass) * width;
    let logits = tensor("predictor_logits")[row..row + width].to_vec();
    let best = tensor("codes")[16 * frame + pass + 1] as usize;
    assert!(logits.iter().all(|x| *x <= logits[best]));
    let other = (best + 1) % width;

    let model = Qwen3Tts::new(committed(), cpu(1));
    let folder = tempfile::tempdir().expect("a folder");
    for (apart, is_tie) in [(1e-7, true), (-1e-7, true), (1e-3, false), (-1e-3, false)] {
        let mut changed = bytes.clone();
        let code = first("codes") + 8 * (16 * frame + pass + 1);
        changed[code..code + 8].copy_from_slice(&(other as i64).to_le_bytes());
        let logit = first("predictor_logits") + 4 * (row + other);
        let largest = logits.iter().fold(0f32, |most, x| most.max(x.abs()));
        changed[logit..logit + 4].copy_from_slice(&(logits[best] + apart * largest).to_le_bytes());
        let changed_file = folder.path().join("changed.safetensors");
        std::fs::write(&changed_file, changed).expect("the folder is writable");
        let limit = (Limit::Error(TOLERANCE), true);
        let report = compare(&model, "case", (&inputs, &changed_file), limit);
        let codes = report.rows.iter().filter(|r| r.tensor.starts_with("codes")).collect::<Vec<_>>();
        let name = if is_tie {
            format!("codes up to frame {frame}")
        } else {
            format!("codes from frame {frame} on")
        };
        assert!(
            codes.len() == 1 && codes[0].tensor == name && codes[0].passed == is_tie,
            "{apart}: {codes:?}"
        );
        assert_eq!(
            report.skipped.iter().any(|(_, why)| why.contains("a tie")),
            is_tie,
            "{:?}",
            report.skipped
        );
    }
}

/// Keys and values of fewer bits keep the golden codes' numbers as near as the limits of `orate verify` say.
#[test]
fn caches_of_fewer_bits_are_near_the_goldens() {
    let folder = qwen3_tts_goldens().join("cases/tiny-base/generation");
    for (kv, least) in [
        (CacheFormat::F16, limits::KV_F16_SNR),
        (CacheFormat::Bf16, limits::KV_BF16_SNR),
        (CacheFormat::Q8_0, limits::KV_Q8_0_SNR),
    ] {
        for (name, device) in devices() {
            let model = Qwen3Tts::with_cache(committed(), device, kv);
            for case in ["xvector_streaming", "icl_streaming_text_longer"] {
                let inputs = std::fs::read(folder.join(format!("{case}.json"))).expect("committed");
                let inputs: serde_json::Value = serde_json::from_slice(&inputs).expect("JSON");
                let file = folder.join(format!("{case}.safetensors"));
                let limit = (Limit::Snr(least), false);
                let report = compare(&model, case, (&inputs, &file), limit);
                let noisiest = report.noisiest().expect("noise is told");
                println!("{name}, {kv}, {case}: {:?} dB in {}", noisiest.snr, noisiest.tensor);
                assert!(report.passed(), "{name}, {kv}: {:#?}", report.rows);
            }
        }
    }
}

fn utterances(goldens: &Path, variant: &str) -> Vec<Utterance> {
    let manifest = std::fs::read(goldens.join("cases/manifest.json")).expect("is there");
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
    let cases = manifest.as_object().expect("an object").iter();
    let own = cases.filter(|(name, _)| name.starts_with(&format!("{variant}/")));
    own.map(|(name, case)| Utterance {
        name: name.clone(),
        inputs: case["inputs"].clone(),
        file: goldens.join(format!("cases/{name}.safetensors")),
    })
    .collect()
}

fn devices() -> Vec<(String, Arc<dyn Device>)> {
    let mut all: Vec<(String, Arc<dyn Device>)> = vec![("reference".to_owned(), Arc::new(ReferenceDevice))];
    for isa in Isa::available() {
        let device = CpuDevice::new(2, isa).expect("threads start");
        all.push((format!("{isa}, 2 threads"), Arc::new(device)));
    }
    all
}

/// Folder of the complete goldens, which `oracle/qwen3_tts` makes.
const GOLDENS: &str = "ORATE_QWEN3_GOLDENS";

#[test]
#[ignore = "needs the complete goldens of oracle/qwen3_tts in the folder that ORATE_QWEN3_GOLDENS names"]
fn every_utterance_of_the_complete_goldens() {
    let goldens = PathBuf::from(std::env::var(GOLDENS).expect("set ORATE_QWEN3_GOLDENS"));
    for variant in ["tiny-base", "tiny-custom_voice", "tiny-voice_design"] {
        let all = utterances(&goldens, variant);
        assert!(!all.is_empty(), "{variant}");
        for (name, device) in devices() {
            let files = Files::open(&goldens.join("checkpoints").join(variant)).expect("a whole model");
            let model = Qwen3Tts::new(files, device);
            all.iter().for_each(|u| u.check(&model, &name));
        }
    }
}

/// A prompt for the committed model, and how it draws.
fn drawn(seed: u64, max_frames: usize) -> (Prompt, Settings) {
    let model = Qwen3Tts::new(committed(), cpu(1));
    let x_vector: Vec<f32> = (0..64).map(|i| (i as f32).sin()).collect();
    let request = Request {
        text: "hello world, this is a test",
        speaker: Speaker::XVector(&x_vector),
        language: Some("English"),
        instruct: None,
        feeding: None,
    };
    let prompt = model.prompt(&request).expect("a prompt");
    let generation = &model.talking().expect("talks").generation;
    (prompt, Settings { max_frames, ..Settings::new(generation, seed) })
}

fn cpu(threads: usize) -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(threads, Isa::detect().expect("a supported processor")).expect("threads start"))
}

fn speak(model: &Arc<Qwen3Tts>, prompt: &Prompt, settings: &Settings) -> (Vec<i32>, FinishReason) {
    let mut session = model.start(prompt, settings).expect("starts");
    let (mut all, mut codes) = (vec![], vec![]);
    loop {
        match session.next_frame(&mut codes).expect("runs") {
            Step::Frame => all.extend_from_slice(&codes),
            Step::End(reason) => return (all, reason),
        }
    }
}

/// Seeds decide, and nothing else: not the threads, not the room in the cache, not what was spoken before.
#[test]
fn a_seed_decides_what_is_drawn() {
    let model = Qwen3Tts::new(committed(), cpu(1));
    let (prompt, settings) = drawn(7, 6);
    let (want, reason) = speak(&model, &prompt, &settings);
    assert_eq!((want.len(), reason), (96, FinishReason::Length));
    assert_eq!(speak(&model, &prompt, &settings).0, want, "again");
    let roomy = Settings { max_frames: 600, ..settings };
    let mut session = model.start(&prompt, &roomy).expect("starts");
    let (mut all, mut codes) = (vec![], vec![]);
    for _ in 0..6 {
        assert_eq!(session.next_frame(&mut codes).expect("runs"), Step::Frame);
        all.extend_from_slice(&codes);
    }
    assert_eq!(all, want, "more room");
    assert_eq!(speak(&Qwen3Tts::new(committed(), cpu(3)), &prompt, &settings).0, want, "three threads");
    let reference = Qwen3Tts::new(committed(), Arc::new(ReferenceDevice));
    assert_eq!(speak(&reference, &prompt, &settings).0, want, "the reference device");
    for seed in [8, 7 + (1 << 32)] {
        assert_ne!(speak(&model, &prompt, &Settings { seed, ..settings }).0, want, "seed {seed}");
    }
}

/// What a prompt's fixed rows leave behind is kept, and changes nothing: codes are those of a model that kept
/// nothing.
#[test]
fn a_kept_prefix_changes_nothing() {
    let x_vector: Vec<f32> = (0..64).map(|i| (i as f32 * 0.7).sin()).collect();
    let codes: Vec<i32> = (0..20 * 16).map(|i| i * 37 % 128).collect();
    let (x_vector, codes) = (&x_vector[..], &codes[..]);
    // A reference whose words end before its frames, and one whose words go on.
    let reference = |transcript, codes| Speaker::InContext { x_vector, transcript, codes };
    let (short, long) = (reference("once", codes), reference("once upon a time there was", &codes[..48]));
    for (speaker, feeding, fixed) in [
        (Speaker::XVector(x_vector), TextFeeding::Streaming, 9),
        (Speaker::XVector(x_vector), TextFeeding::Whole, 9),
        (short, TextFeeding::Streaming, 10),
        (short, TextFeeding::Whole, 10),
        (long, TextFeeding::Streaming, 12),
        (long, TextFeeding::Whole, 10),
    ] {
        let model = Qwen3Tts::new(committed(), cpu(1));
        let generation = &model.talking().expect("talks").generation;
        let settings = Settings { max_frames: 5, ..Settings::new(generation, 3) };
        let mut reused = vec![];
        for text in ["hello there", "hello there", "another text, which is longer", "hello there"] {
            let request =
                Request { text, speaker, language: Some("english"), instruct: None, feeding: Some(feeding) };
            let prompt = model.prompt(&request).expect("a prompt");
            assert!(prompt.fixed >= fixed && prompt.fixed < prompt.rows.len(), "{} rows", prompt.fixed);
            let session = model.start(&prompt, &settings).expect("starts");
            reused.push(session.reused_rows());
            assert!([0, prompt.fixed].contains(&session.reused_rows()));
            if session.reused_rows() > 0 {
                assert_eq!(
                    session.counters().submissions,
                    3,
                    "the other rows, prefill, text that is fed later"
                );
            }
            drop(session);
            let fresh = Qwen3Tts::new(committed(), cpu(1));
            assert_eq!(speak(&model, &prompt, &settings), speak(&fresh, &prompt, &settings), "{speaker:?}");
            // In one pass, numbers are rounded differently.
            let greedy = Settings { first: Sampling::GREEDY, predictor: Sampling::GREEDY, ..settings };
            let taps = StartOptions { taps: true, ..StartOptions::default() };
            let mut whole = model.start_with(&prompt, &greedy, taps).expect("starts");
            let (mut all, mut codes) = (vec![], vec![]);
            while whole.next_frame(&mut codes).expect("runs") == Step::Frame {
                all.extend_from_slice(&codes);
            }
            assert_eq!(speak(&model, &prompt, &greedy).0, all, "{speaker:?}");
        }
        assert!(reused[0] == 0 && reused[1..].iter().all(|rows| *rows >= fixed), "{reused:?}");
        model.forget_prefixes();
        let prompt = drawn(1, 1).0;
        let session = model.start(&prompt, &settings).expect("starts");
        assert_eq!(session.reused_rows(), 0);
    }
}

/// Rows of padding behind a prompt change nothing in front of them.
#[test]
fn padding_is_not_seen() {
    let files = committed();
    let config = &files.talking.as_ref().expect("talks").config.talker_config;
    let weights = Arc::new(Loader(files.weights.clone()));
    for device in [cpu(2), Arc::new(ReferenceDevice) as Arc<dyn Device>] {
        let on_device = device.open(weights.clone());
        let read = |rows: &[f32], count: usize| {
            let mut g = Graph::new("prefill");
            let (time, d) = (rows.len() / 64, config.transformer.hidden_size);
            talker::prefill(
                &mut g,
                config,
                talker::CacheSizes { batch: 1, capacity: 16, kv: CacheFormat::F32 },
                time,
            )
            .expect("fits");
            let plan = Plan::compile(g, &*device).expect("has kernels");
            let plan = on_device.load(plan).expect("has weights");
            let mut memory = device.memory();
            for b in plan.plan().buffers().iter().filter(|b| b.kind.is_state()) {
                memory.clear(&b.name, b.dtype, &b.shape).expect("has room");
            }
            memory.write_f32("rows", &[1, time, d].into(), rows).expect("has room");
            memory.write_i32(talker::LAST, &[1].into(), &[count as i32 - 1]).expect("has room");
            plan.run(&mut *memory).expect("runs");
            let (mut hidden, mut logits, mut keys) = (vec![], vec![], vec![]);
            memory.read_f32("hidden", &mut hidden).expect("is there");
            memory.read_f32("logits", &mut logits).expect("is there");
            memory.read_f32("talker.keys.1", &mut keys).expect("is there");
            let width = keys.len() / 16;
            [hidden, logits, keys[..width * count].to_vec()].concat()
        };
        let rows: Vec<f32> = (0..12 * 64).map(|i| (i as f32 * 0.37).sin()).collect();
        for count in [1, 5, 12] {
            let want = read(&rows[..count * 64], count);
            let got = read(&rows, count);
            let largest = want.iter().fold(0f32, |m, x| m.max(x.abs()));
            let error = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(f64::from(error / largest) < TOLERANCE, "{}: {error} of {largest}", device.name());
        }
    }
}

/// A cache that grows on the way holds what one of that size from the start does.
#[test]
fn a_cache_grows_and_loses_nothing() {
    for device in [cpu(2), Arc::new(ReferenceDevice) as Arc<dyn Device>] {
        let model = Qwen3Tts::new(committed(), device);
        // On the reference device only a few frames around the growth are made: a prompt of many rows stands
        // in for the others.
        let slow = model.device().name() == "reference";
        let (mut prompt, settings) = drawn(7, 600);
        if slow {
            prompt = long_prompt(&model, 250);
        }
        let frames = if slow { 9 } else { 300 };
        let settings = Settings { max_frames: settings.max_frames, ..settings };
        let reserved = |frames| StartOptions { reserve: Some(frames), ..StartOptions::default() };
        let mut grows = model.start_with(&prompt, &settings, reserved(1)).expect("starts");
        let mut large = model.start_with(&prompt, &settings, reserved(600)).expect("starts");
        let (mut got, mut want) = (vec![], vec![]);
        for i in 0..frames {
            let codes: Vec<i32> = (0..16).map(|q| (i * 31 + q * 7) % 128).collect();
            grows.give_frame(&codes).expect("runs");
            large.give_frame(&codes).expect("runs");
        }
        grows.read("hidden", &mut got).expect("is there");
        large.read("hidden", &mut want).expect("is there");
        assert_eq!(got, want);
        let rows = |s: &mut Session| s.read("talker.keys.0", &mut vec![]).expect("is there").dims()[1];
        assert_eq!((rows(&mut grows), rows(&mut large)), (512, 1024));
        let (mut one, mut other) = (vec![], vec![]);
        for _ in 0..2 {
            assert_eq!(
                grows.next_frame(&mut one).expect("runs"),
                large.next_frame(&mut other).expect("runs")
            );
            assert_eq!(one, other);
        }
    }
}

/// A prompt of `rows` rows.
fn long_prompt(model: &Qwen3Tts, rows: usize) -> Prompt {
    let x_vector = vec![0.5; 64];
    let codes: Vec<i32> = (0..16 * rows as i32).map(|i| i % 128).collect();
    let speaker = |frames: usize| Speaker::InContext {
        x_vector: &x_vector,
        transcript: "hello",
        codes: &codes[..16 * frames],
    };
    let prompt = |frames| {
        let speaker = speaker(frames);
        let request = Request { text: "hello", speaker, language: None, instruct: None, feeding: None };
        model.prompt(&request).expect("a prompt")
    };
    let besides = prompt(10).rows.len() - 10;
    prompt(rows - besides)
}

/// Codes that are given leave what they leave when they are drawn, whatever would have been drawn in their
/// place.
#[test]
fn given_codes_are_read_as_drawn_ones() {
    let model = Qwen3Tts::new(committed(), cpu(1));
    let (prompt, settings) = drawn(7, 4);
    let taps = StartOptions { taps: true, ..StartOptions::default() };
    let mut draws = model.start_with(&prompt, &settings, taps).expect("starts");
    let mut given = model.start_with(&prompt, &Settings { seed: 8, ..settings }, taps).expect("starts");
    let mut codes = vec![];
    for _ in 0..4 {
        assert_eq!(draws.next_frame(&mut codes).expect("runs"), Step::Frame);
        given.give_frame(&codes).expect("runs");
        for buffer in ["hidden", "logits", "tap/predictor_logits0", "tap/predictor_logits14"] {
            let (mut want, mut got) = (vec![], vec![]);
            draws.read(buffer, &mut want).expect("is there");
            given.read(buffer, &mut got).expect("is there");
            assert_eq!(got, want, "{buffer}");
        }
    }
    assert!(given.give_frame(&codes[1..]).expect_err("15 codes").to_string().contains("15 codes"));
}

/// A frame is one submission and one read of its sixteen codes.
#[test]
fn the_host_only_sees_codes() {
    let model = Qwen3Tts::new(committed(), cpu(1));
    let (prompt, settings) = drawn(7, 5);
    let mut session = model.start(&prompt, &settings).expect("starts");
    let started = session.counters();
    assert_eq!(
        (started.submissions, started.read_backs),
        (5, 0),
        "rows and prefill, twice, and text that is fed later"
    );
    let mut codes = vec![];
    for _ in 0..5 {
        let before = session.counters();
        assert_eq!(session.next_frame(&mut codes).expect("runs"), Step::Frame);
        let after = session.counters() - before;
        assert_eq!((after.submissions, after.read_backs, after.bytes_up, after.bytes_down), (1, 1, 0, 64));
    }
    let before = session.counters();
    assert_eq!(session.next_frame(&mut codes).expect("ends"), Step::End(FinishReason::Length));
    assert_eq!(session.next_frame(&mut codes).expect("stays ended"), Step::End(FinishReason::Length));
    assert_eq!((session.counters(), codes.len()), (before, 0));
}

#[test]
fn what_cannot_be_spoken_is_refused() {
    let model = Qwen3Tts::new(committed(), cpu(1));
    let x_vector = vec![0.5; 64];
    let base = Request {
        text: "hello",
        speaker: Speaker::XVector(&x_vector),
        language: None,
        instruct: None,
        feeding: None,
    };
    let refused = |r: Request<'_>, words: &str| {
        let e = model.prompt(&r).expect_err(words).to_string();
        assert!(e.contains(words), "{e}");
    };
    refused(Request { text: " \n", ..base }, "the text holds nothing to say");
    refused(Request { speaker: Speaker::Named("ryan"), ..base }, "this is a Base model");
    refused(Request { speaker: Speaker::Described, ..base }, "this is a Base model");
    refused(
        Request { language: Some("klingon"), ..base },
        "unknown language `klingon`; this model has: auto ",
    );
    let rows = |language| model.prompt(&Request { language, ..base }).expect("a known language").rows;
    assert_ne!(rows(Some("english")), rows(None));
    for (name, others) in [("english", ["EN", "en-GB"]), ("chinese", ["zh-Hans", "Mandarin"])] {
        assert!(others.iter().all(|other| rows(Some(other)) == rows(Some(name))), "{name}");
    }
    assert!([Some("Auto"), Some("")].into_iter().all(|auto| rows(auto) == rows(None)));
    refused(Request { speaker: Speaker::XVector(&x_vector[1..]), ..base }, "it has 63 values");
    let silent = [f32::NAN; 64];
    refused(Request { speaker: Speaker::XVector(&silent), ..base }, "finite numbers");
    for (transcript, codes, words) in [
        ("", vec![0; 16], "the transcript holds nothing to say; write down"),
        ("hi", vec![0; 17], "17 codes"),
        ("hi", vec![], "0 codes"),
        ("hi", vec![128; 16], "below 128"),
    ] {
        let speaker = Speaker::InContext { x_vector: &x_vector, transcript, codes: &codes };
        refused(Request { speaker, ..base }, words);
    }
    let prompt = model.prompt(&Request { instruct: Some("whisper"), ..base }).expect("a warning only");
    assert!(prompt.warnings[0].contains("has no effect"), "{:?}", prompt.warnings);

    let (prompt, settings) = drawn(1, 3);
    let start = |s: Settings, words: &str| {
        let Err(e) = model.start(&prompt, &s) else { panic!("is refused: {words}") };
        let e = e.to_string();
        assert!(e.contains(words), "{e}");
    };
    start(Settings { max_frames: 0, ..settings }, "choose 1 to 16777216");
    start(Settings { max_frames: usize::MAX, ..settings }, "choose 1 to 16777216");
    start(Settings { max_frames: 40_000, ..settings }, "room for 32768 together");
    let first = |first: Sampling| Settings { first, ..settings };
    start(first(Sampling { temperature: -1.0, ..settings.first }), "temperature is -1");
    start(first(Sampling { temperature: f32::NAN, ..settings.first }), "temperature is NaN");
    start(first(Sampling { top_p: 1.5, ..settings.first }), "top_p is 1.5");
    start(first(Sampling { repetition_penalty: 0.0, ..settings.first }), "repetition penalty is 0");
}

/// A frame of a model whose predictor is narrower than its talker, on random weights.
#[test]
fn a_projected_predictor() {
    let path = qwen3_tts_goldens().join("checkpoints/tiny-custom_voice/config.json");
    let config = Config::from_json(&std::fs::read(path).expect("committed")).expect("as written");
    let graph = || {
        let mut g = Graph::new("frame").with_taps();
        let sizes = talker::CacheSizes { batch: 3, capacity: 7, kv: CacheFormat::F32 };
        frame::build(&mut g, &config.talker_config, sizes, 4).expect("the configuration is consistent");
        g
    };
    let mut case = Case::new("a frame of a narrow predictor", graph());
    let (numbers, seeds) = (vec![0, 2, 9], vec![1, 2, 3, 4, 5, 6]);
    case = case.with("frame", numbers).with("position", vec![0, 5, 6]).with("seed", seeds);
    case.tolerance = TOLERANCE;
    for isa in Isa::available() {
        let device = CpuDevice::new(2, isa).expect("threads start");
        let report = check_all(&OnDevice(&device), [&case]);
        println!("{isa}: {report}");
        report.assert();
    }
}

/// Two utterances decoded as one batch, each at its own position and with its own text, say what they say
/// alone.
#[test]
fn utterances_side_by_side() {
    let folder = qwen3_tts_goldens().join("cases/tiny-base/generation");
    let files = committed();
    let config = files.talking.as_ref().expect("talks").config.talker_config.clone();
    let (d, capacity, text_rows) = (64, 40, 20);
    let device = CpuDevice::new(2, Isa::detect().expect("a supported processor")).expect("threads start");
    let model = device.open(Arc::new(Loader(files.weights.clone())));
    let load = |graph| {
        let plan = Plan::compile(graph, &device).expect("all ops have kernels");
        model.load(plan).expect("all weights are there")
    };
    let cases = ["xvector_streaming", "icl_streaming_text_longer"]
        .map(|name| SafeTensors::open(folder.join(format!("{name}.safetensors"))).expect("committed"));
    let floats = |case: &SafeTensors, name: &str| case.get(name).expect("is there").to_f32();

    // Each prompt alone, then the states of both one behind the other.
    let mut states: HashMap<String, Vec<f32>> = HashMap::new();
    let (mut positions, mut trailing, mut wanted) = (vec![], vec![], vec![]);
    for case in &cases {
        let rows = floats(case, "prompt_embeds");
        let time = rows.len() / d;
        let mut g = Graph::new("prefill");
        let sizes = talker::CacheSizes { batch: 1, capacity, kv: CacheFormat::F32 };
        talker::prefill(&mut g, &config, sizes, time).expect("the configuration is consistent");
        let plan = load(g);
        let mut memory = device.memory();
        memory.write_f32("rows", &[1, time, d].into(), &rows).expect("has room");
        memory.write_i32(talker::LAST, &[1].into(), &[time as i32 - 1]).expect("has room");
        for b in plan.plan().buffers().iter().filter(|b| b.kind.is_state()) {
            memory.clear(&b.name, b.dtype, &b.shape).expect("has room");
        }
        plan.run(&mut *memory).expect("runs");
        for b in plan.plan().buffers().iter().filter(|b| b.dtype == GraphDType::F32 && b.name != "rows") {
            let mut data = vec![];
            memory.read_f32(&b.name, &mut data).expect("a state");
            states.entry(b.name.clone()).or_default().extend(data);
        }
        positions.push(time as i32);
        let text = floats(case, "trailing_text");
        let pad = floats(case, "tts_pad_embed");
        trailing.extend(text.iter().chain(pad.iter().cycle()).take(text_rows * d));
        let codes: Vec<i32> = floats(case, "codes").into_iter().map(|x| x as i32).collect();
        wanted.push(codes);
    }

    let mut g = Graph::new("frames");
    let sizes = talker::CacheSizes { batch: 2, capacity, kv: CacheFormat::F32 };
    frame::build(&mut g, &config, sizes, text_rows).expect("the configuration is consistent");
    let plan = load(g);
    let mut memory = device.memory();
    for b in plan.plan().buffers().iter().filter(|b| b.kind != BufferKind::Output) {
        match (&*b.name, states.get(&b.name)) {
            (name, Some(data)) => memory.write_f32(name, &b.shape, data),
            ("position", _) => memory.write_i32("position", &b.shape, &positions),
            ("trailing", _) => memory.write_f32("trailing", &b.shape, &trailing),
            ("sampling", _) => memory.write_f32("sampling", &b.shape, &[0.0, 0.0, 1.0, 1.05].repeat(2)),
            ("predictor_sampling", _) => {
                memory.write_f32("predictor_sampling", &b.shape, &[0.0, 0.0, 1.0, 1.0].repeat(2))
            }
            (name, None) => memory.clear(name, b.dtype, &b.shape),
        }
        .expect("has room");
    }
    let mut codes = vec![];
    for frame in 0..12 {
        plan.run(&mut *memory).expect("runs");
        memory.read_i32("codes", &mut codes).expect("an output");
        for (row, want) in codes.chunks_exact(16).zip(&wanted) {
            assert_eq!(row, &want[16 * frame..][..16], "frame {frame}");
        }
    }
}

/// The repository of the tokenizer alone can be opened and verified, and says what it lacks for speaking.
#[test]
fn a_codec_alone_is_verified() {
    let folder = tempfile::tempdir().expect("a folder");
    write_random_qwen3_tts("base", folder.path(), 3).expect("the folder is writable");
    let options = EngineOptions {
        model: ModelSource::Path(folder.path().join("speech_tokenizer")),
        device: DeviceChoice::Cpu,
        threads: Some(2),
        ..Default::default()
    };
    let codec = Engine::with_options(options).expect("a codec");
    let e = codec.speak("Hello.", &raw()).expect_err("cannot").to_string();
    assert!(e.contains("codec without a talker") && e.contains("folder of a whole model"), "{e}");
    let e =
        codec.clone_voice(qwen3_tts_goldens().join("cases/ref.wav"), None).expect_err("cannot").to_string();
    assert!(e.contains("codec without a talker"), "{e}");
    assert!(codec.voices().is_empty() && !codec.can_clone());
    // Of other weights than the goldens', so that it is compared, and not the same.
    let report = verify::run(&codec, &qwen3_tts_goldens(), &Default::default()).expect("some cases fit");
    assert!(!report.passed() && report.rows.iter().all(|row| row.case.starts_with("codec_")));
    assert!(report.rows.iter().any(|row| row.case == "codec_decode" && row.tensor == "waveform"));
    let skipped =
        |case: &str| report.skipped.iter().any(|(name, why)| name == case && why.contains("talker"));
    assert!(skipped("tokenizer") && skipped("sampling_chain"), "{:?}", report.skipped);
}
