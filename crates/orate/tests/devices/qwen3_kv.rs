//! Qwen3-TTS with keys and values in every format.

use crate::common::Opened;
use crate::common::raw;
use orate::{
    CacheFormat, DeviceChoice, DeviceKind, Engine, EngineOptions, FinishReason, ModelSource, Precision,
    PrecisionPolicy,
};
use orate_models::qwen3_tts::{
    Prompt, Qwen3Tts, Request, Sampling, Session, Settings, Speaker, StartOptions, Step,
};
use orate_testing::checkpoints::write_random_qwen3_tts;
use orate_testing::snr_db;
use std::collections::HashMap;
use std::sync::Arc;

fn engine(kv: CacheFormat, device: DeviceChoice) -> Opened {
    open(EngineOptions { device, kv: kv.into(), ..Default::default() })
}

fn open(options: EngineOptions) -> Opened {
    let folder = tempfile::tempdir().expect("a folder");
    write_random_qwen3_tts("custom_voice", folder.path(), 3).expect("the folder is writable");
    let model = ModelSource::Path(folder.path().to_owned());
    let options = EngineOptions { model, threads: Some(2), ..options };
    let engine = Engine::with_options(options).unwrap_or_else(|e| panic!("{e}"));
    Opened { engine, folder }
}

/// The processor, and with GPU executors the devices that `ORATE_TEST_DEVICES` names, as in `qwen3`.
fn devices() -> Vec<DeviceChoice> {
    let mut all = vec![DeviceChoice::Cpu];
    if cfg!(any(feature = "gpu", feature = "cuda")) {
        let names = std::env::var("ORATE_TEST_DEVICES").unwrap_or_else(|_| "vulkan:0".to_owned());
        let named = names.split(',').map(|name| name.trim().parse::<DeviceChoice>());
        all.extend(named.map(|d| d.unwrap_or_else(|e| panic!("ORATE_TEST_DEVICES: {e}"))));
    }
    all
}

fn prompt(model: &Qwen3Tts, text: &str) -> Prompt {
    let (speaker, language) = (Speaker::Named("ryan"), Some("en"));
    let request = Request { text, speaker, language, instruct: None, feeding: None };
    model.prompt(&request).expect("speakable")
}

fn greedy(max_frames: usize) -> Settings {
    let first = Sampling { repetition_penalty: 1.05, ..Sampling::GREEDY };
    Settings { first, predictor: Sampling::GREEDY, seed: 0, max_frames }
}

fn frames(session: &mut Session) -> (Vec<i32>, FinishReason) {
    let (mut all, mut codes) = (vec![], vec![]);
    loop {
        match session.next_frame(&mut codes).expect("goes on") {
            Step::Frame => all.extend(&codes),
            Step::End(reason) => return (all, reason),
        }
    }
}

/// Hidden states of a whole utterance of known codes.
fn hidden(engine: &Engine, codes: &[i32]) -> Vec<f32> {
    let model = &engine.model_as::<Qwen3Tts>().expect("is one");
    let mut session = model.start(&prompt(model, "Hello there, and so on."), &greedy(60)).expect("starts");
    let (mut all, mut got) = (vec![], vec![]);
    for frame in codes.chunks_exact(16) {
        session.give_frame(frame).expect("goes on");
        session.read("hidden", &mut got).expect("is there");
        all.extend_from_slice(&got);
    }
    all
}

/// Least signal-to-noise ratio, in dB, of hidden states with keys and values in each format. Measured on the
/// CPU and with Mesa's Vulkan: 81 dB in f16, 61 dB in bf16 and 53 dB in q8_0.
const LEAST_SNR: [(CacheFormat, f64); 3] =
    [(CacheFormat::F16, 74.0), (CacheFormat::Bf16, 54.0), (CacheFormat::Q8_0, 46.0)];

#[test]
fn an_utterance_is_near_that_of_floats() {
    let exact = engine(CacheFormat::F32, DeviceChoice::Cpu);
    let model = &exact.model_as::<Qwen3Tts>().expect("is one");
    let mut drawn = Settings::new(&model.talking().expect("talks").generation, 7);
    drawn.max_frames = 33;
    let mut session = model.start(&prompt(model, "Hello there, and so on."), &drawn).expect("starts");
    let (codes, _) = frames(&mut session);
    assert!(codes.len() >= 10 * 16, "{} codes", codes.len());
    let want = hidden(&exact, &codes);
    for device in devices() {
        for (kv, least) in LEAST_SNR {
            let engine = engine(kv, device);
            assert_eq!(engine.kv(), Some(kv));
            let got = hidden(&engine, &codes);
            let snr = snr_db(&got, &want);
            println!("{}: {kv}: {snr:.1} dB", engine.device());
            assert!(snr > least && got != want, "{}: {kv}: {snr:.1} dB", engine.device());
            let o = raw().set("temperature", 0.0).set("max_frames", 13);
            let audio = engine.speak("Hello there.", &o).expect("speaks");
            assert!(audio.samples.iter().all(|x| x.is_finite()) && audio.samples.iter().any(|x| *x != 0.0));
        }
    }
}

/// Rows of a batch are what they are alone, and so is what follows a kept prefix or stands in a cache that
/// had to grow: byte for byte.
#[test]
fn rows_prefixes_and_growth_change_nothing() {
    for kv in CacheFormat::ALL {
        let engine = engine(kv, DeviceChoice::Cpu);
        let model: &Arc<Qwen3Tts> = &engine.model_as().expect("is one");
        let texts = ["Hello there.", "Hello there, and so on, and on.", "Others, too."];
        let start = |i: usize, reserved: Option<usize>| {
            let mut settings = Settings::new(&model.talking().expect("talks").generation, i as u64);
            settings.max_frames = 11 + 4 * i;
            let options = StartOptions { reserve: reserved, ..StartOptions::default() };
            model.start_with(&prompt(model, texts[i]), &settings, options).expect("starts")
        };
        let alone: Vec<_> = (0..3).map(|i| frames(&mut start(i, None))).collect();
        // The second time rows in front are not read again.
        for (i, want) in alone.iter().enumerate() {
            let mut session = start(i, None);
            assert!(session.reused_rows() > 0, "{kv}");
            assert_eq!(frames(&mut session), *want, "{kv}: behind a kept prefix");
            model.forget_prefixes();
            assert_eq!(frames(&mut start(i, Some(0))), *want, "{kv}: without it");
        }
        let mut batch = model.batch().expect("talks");
        let mut sessions: Vec<_> = (0..3).map(|i| start(i, None)).collect();
        let (mut rows, mut codes, mut ends) = (HashMap::new(), vec![vec![]; 3], vec![None; 3]);
        for frame in 0..40 {
            if let Some(session) = sessions.get_mut(frame) {
                rows.insert(batch.join(session).expect("room"), frame);
            }
            let made = batch.frame(|row, step, frame| match step.expect("goes on") {
                Step::Frame => codes[rows[&row]].extend_from_slice(frame),
                Step::End(reason) => ends[rows[&row]] = Some(reason),
            });
            made.expect("goes on");
        }
        for (i, (want, end)) in alone.iter().enumerate() {
            assert_eq!((&codes[i], ends[i]), (want, Some(*end)), "{kv}: utterance {i} in a batch");
        }
        // A cache that is full in the middle of an utterance, and one that never is.
        let long = |reserved| {
            let options = StartOptions { reserve: Some(reserved), ..StartOptions::default() };
            let started = model.start_with(&prompt(model, texts[0]), &greedy(400), options);
            let mut session = started.expect("starts");
            let (mut all, mut got) = (vec![], vec![]);
            for frame in alone[0].0.chunks_exact(16).cycle().take(300) {
                session.give_frame(frame).expect("goes on");
                session.read("hidden", &mut got).expect("is there");
                all.extend(got.iter().map(|x| x.to_bits()));
            }
            all
        };
        assert!(long(1) == long(400), "{kv}: a cache that grew");
    }
}

/// A row of keys and values takes what its format says, and the prediction counts it.
#[test]
fn formats_take_the_memory_that_is_predicted() {
    let bytes = |kv, seconds| {
        engine(kv, DeviceChoice::Cpu)
            .footprint(orate::SpeechLength { speech: seconds, reference: 1.0 })
            .expect("runs")
            .expect("is predicted")
            .utterance
    };
    // What 256 more rows take: 2048 frames against none.
    let rows = |kv| bytes(kv, 163.84) - bytes(kv, 0.0);
    let exact = rows(CacheFormat::F32);
    for (kv, share) in [(CacheFormat::F16, 0.5), (CacheFormat::Bf16, 0.5), (CacheFormat::Q8_0, 0.265_625)] {
        let part = rows(kv) as f64 / exact as f64;
        assert!((part - share).abs() < 1e-3, "{kv}: {part} of f32");
    }
}

#[test]
fn keys_and_values_are_as_long_as_weights_on_gpus_only() {
    for device in devices() {
        for (precision, on_gpus) in [
            (Precision::F32, CacheFormat::F32),
            (Precision::F16, CacheFormat::F16),
            (Precision::Bf16, CacheFormat::Bf16),
            (Precision::Q8_0, CacheFormat::F16),
        ] {
            let precision = PrecisionPolicy::uniform(precision).into();
            let engine = open(EngineOptions { device, precision, ..Default::default() });
            let is_cpu = engine.device_info().kind == DeviceKind::Cpu;
            let want = if is_cpu { CacheFormat::F32 } else { on_gpus };
            assert_eq!(engine.kv(), Some(want), "{} with {}", engine.device(), engine.precision());
        }
    }
}

#[test]
fn codecs_are_halved_beside_blocks_on_gpus_only() {
    for device in devices() {
        let half = |precision: PrecisionPolicy| {
            let engine = open(EngineOptions { device, precision: precision.into(), ..Default::default() });
            (engine.device_info().kind == DeviceKind::Cpu, engine.precision().half.clone())
        };
        let (is_cpu, found) = half(PrecisionPolicy::uniform(Precision::Q8_0));
        assert_eq!(found, if is_cpu { vec![] } else { vec!["decoder.*".to_owned()] });
        let talker = vec!["talker.*".to_owned()];
        for policy in [
            PrecisionPolicy::default(),
            PrecisionPolicy::uniform(Precision::F16),
            PrecisionPolicy { precision: Precision::Q8_0, allow: talker, ..Default::default() },
        ] {
            assert!(half(policy.clone()).1.is_empty(), "{policy} says all");
        }
    }
}

#[test]
fn models_without_a_cache_refuse_a_format() {
    let options = EngineOptions { kv: CacheFormat::F16.into(), ..Default::default() };
    let e = Engine::with_options(options).expect_err("keeps no keys").to_string();
    assert!(e.contains("keys and values") && e.contains("Supertonic"), "{e}");
}
