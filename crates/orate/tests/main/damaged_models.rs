//! Models whose configuration was tampered with, or the shapes of their weights: they are refused, or they
//! speak something, but nothing panics, hangs or takes all memory.

use crate::common::golden;
use orate::{Engine, EngineOptions, ModelSource, Options};
use orate_testing::Random;
use orate_testing::checkpoints::write_chatterbox;
use std::path::Path;

const TTS: &str = "onnx/tts.json";
const FILES: [&str; 7] = [
    "onnx/duration_predictor.onnx",
    "onnx/text_encoder.onnx",
    "onnx/vector_estimator.onnx",
    "onnx/vocoder.onnx",
    TTS,
    "onnx/unicode_indexer.json",
    "voice_styles/F1.json",
];

fn copy(model: &str, to: &Path) {
    for sub in ["onnx", "voice_styles"] {
        std::fs::create_dir(to.join(sub)).expect("writable");
    }
    for file in FILES {
        std::fs::copy(golden(model).join(file), to.join(file)).expect("committed");
    }
}

/// Opens the folder and says a word.
fn try_to_speak(folder: &Path) -> orate::Result<orate::Audio> {
    let model = ModelSource::Path(folder.to_owned());
    let engine = Engine::with_options(EngineOptions { model, threads: Some(1), ..Default::default() })?;
    engine.speak("Hi.", &Options::default().set("steps", 1))
}

#[test]
fn other_digits() {
    for model in ["tiny", "tiny3"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        copy(model, folder.path());
        let original = std::fs::read(golden(model).join(TTS)).expect("committed");
        let digits: Vec<usize> = (0..original.len()).filter(|i| original[*i].is_ascii_digit()).collect();
        let (mut random, mut spoken, mut refused) = (Random::named(3, model), 0, 0);
        for _ in 0..200 {
            let mut bytes = original.clone();
            for _ in 0..1 + random.below(2) {
                bytes[digits[random.below(digits.len())]] = b'0' + random.below(10) as u8;
            }
            std::fs::write(folder.path().join(TTS), &bytes).expect("writable");
            match try_to_speak(folder.path()) {
                Ok(audio) => {
                    spoken += 1;
                    assert!(!audio.samples.is_empty());
                }
                Err(e) => {
                    refused += 1;
                    assert!(!e.to_string().is_empty());
                }
            }
        }
        println!("{model}: {spoken} speak, {refused} are refused");
        assert!(spoken > 20 && refused > 20, "{spoken} speak, {refused} are refused");
    }
}

/// Other numbers of heads fit the same weights: every kernel must cope with the head sizes, or the model be
/// refused.
#[test]
fn other_numbers_of_heads() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    copy("tiny", folder.path());
    let tts = std::fs::read(golden("tiny").join(TTS)).expect("committed");
    let original: serde_json::Value = serde_json::from_slice(&tts).expect("JSON");
    for at in [
        "/ttl/text_encoder/attn_encoder/n_heads",
        "/ttl/speech_prompted_text_encoder/n_heads",
        "/ttl/style_encoder/style_token_layer/n_heads",
        "/ttl/vector_field/main_blocks/text_cond_layer/n_heads",
        "/dp/sentence_encoder/attn_encoder/n_heads",
    ] {
        for heads in [1, 2, 4, 8, 16, 32] {
            let mut json = original.clone();
            *json.pointer_mut(at).expect("is there") = heads.into();
            std::fs::write(folder.path().join(TTS), json.to_string()).expect("writable");
            if let Err(e) = try_to_speak(folder.path()) {
                assert_ne!(json, original, "{at} as released: {e}");
                println!("{at} {heads}: {e}");
            }
        }
    }
}

/// Voices are files from anywhere. A number beyond all others makes durations of hours, or none that are
/// numbers: nobody computes these.
#[test]
fn voices_of_extreme_numbers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    copy("tiny", folder.path());
    let path = folder.path().join("voice_styles/F1.json");
    let original: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).expect("copied")).expect("JSON");
    let mut predicted = 0;
    for entry in 0..4 {
        for number in [1e9, -1e9, 1e38, -1e38] {
            let mut voice = original.clone();
            voice["style_dp"]["data"][0][1][entry] = number.into();
            std::fs::write(&path, voice.to_string()).expect("writable");
            match try_to_speak(folder.path()) {
                Ok(audio) => assert!(audio.samples.iter().all(|x| x.is_finite())),
                Err(e) => {
                    let text = e.to_string();
                    assert!(text.contains("s of speech were predicted for"), "{text}");
                    assert!(text.contains("are the voice and the model's weights undamaged"), "{text}");
                    predicted += 1;
                }
            }
        }
    }
    assert!(predicted > 0, "no number made the duration absurd: adapt this test");
}

/// The sizes of Chatterbox models come from shapes of tensors. Other shapes of as many numbers are refused,
/// or speak.
#[test]
fn other_shapes_of_chatterbox() {
    for (variant, t3) in [("en", "t3_cfg"), ("turbo", "t3_turbo_v1")] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        write_chatterbox(folder.path(), variant, "tiny").expect("writable");
        let s3gen = if variant == "en" { "s3gen" } else { "s3gen_meanflow" };
        let (mut random, mut refused) = (Random::named(5, variant), 0);
        for file in [t3, s3gen, "ve"] {
            let path = folder.path().join(format!("{file}.safetensors"));
            let original = std::fs::read(&path).expect("written");
            let end = 8 + u64::from_le_bytes(original[..8].try_into().expect("eight bytes")) as usize;
            let header: serde_json::Value = serde_json::from_slice(&original[8..end]).expect("JSON");
            let names: Vec<&String> = header.as_object().expect("a map").keys().collect();
            for _ in 0..40 {
                let mut other = header.clone();
                let name = names[random.below(names.len())];
                let Some(shape) = other[name]["shape"]
                    .as_array()
                    .map(|s| s.iter().map(|n| n.as_u64().expect("a size")).collect::<Vec<_>>())
                else {
                    continue;
                };
                let mut changed = shape.clone();
                let factor = [2, 3, 4, 8][random.below(4)];
                match random.below(4) {
                    0 => changed.reverse(),
                    1 => changed.push(1),
                    2 => changed = vec![shape.iter().product()],
                    _ => {
                        let (from, to) = (random.below(shape.len().max(1)), random.below(shape.len().max(1)));
                        if shape.is_empty() || !shape[from].is_multiple_of(factor) {
                            continue;
                        }
                        changed[from] /= factor;
                        changed[to] *= factor;
                    }
                }
                if changed == shape {
                    continue;
                }
                other[name]["shape"] = changed.clone().into();
                let text = other.to_string();
                let length = (text.len() as u64).to_le_bytes();
                std::fs::write(&path, [&length, text.as_bytes(), &original[end..]].concat())
                    .expect("writable");
                match speak_codes(folder.path()) {
                    Ok(audio) => println!("{file}: {name} as {changed:?} speaks {}", audio.samples.len()),
                    Err(e) => {
                        refused += 1;
                        let e = e.to_string();
                        assert!(e.contains(folder.path().to_str().expect("UTF-8")), "{file}: {name}: {e}");
                    }
                }
            }
            std::fs::write(&path, &original).expect("writable");
        }
        assert!(refused > 40, "{variant}: {refused} are refused");
        speak_codes(folder.path()).expect("as written");
    }
}

/// Opens a Chatterbox model and says a word.
fn speak_codes(folder: &Path) -> orate::Result<orate::Audio> {
    let model = ModelSource::Path(folder.to_owned());
    let engine = Engine::with_options(EngineOptions { model, threads: Some(2), ..Default::default() })?;
    engine.speak("Hi.", &Options::default().set("max_codes", 2))
}
