//! Damaged, mixed and forged model folders: always an error that names the file, never a panic.

use orate_models::supertonic::{Config, Files, Padding, Sizes, Supertonic, Voice, graphs};
use orate_models::{ErrorKind, ModelError, Options};
use orate_testing::{Random, ReferenceDevice};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracle/supertonic/golden").join(name)
}

/// Every file of a model folder.
const FILES: [&str; 8] = [
    "onnx/duration_predictor.onnx",
    "onnx/text_encoder.onnx",
    "onnx/vector_estimator.onnx",
    "onnx/vocoder.onnx",
    "onnx/tts.json",
    "onnx/unicode_indexer.json",
    "voice_styles/F1.json",
    "voice_styles/M1.json",
];
const TTS: &str = FILES[4];
const INDEXER: &str = FILES[5];
const F1: &str = FILES[6];

/// A copy of a committed model that can be damaged.
struct Folder(tempfile::TempDir);

impl Folder {
    fn of(model: &str) -> Folder {
        let folder = Folder(tempfile::tempdir().expect("a temporary folder"));
        for sub in ["onnx", "voice_styles"] {
            std::fs::create_dir(folder.path(sub)).expect("writable");
        }
        for file in FILES {
            folder.write(file, &std::fs::read(golden(model).join(file)).expect("committed"));
        }
        folder
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn read(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.path(file)).expect("copied")
    }

    fn write(&self, file: &str, bytes: &[u8]) {
        std::fs::write(self.path(file), bytes).expect("writable");
    }

    fn remove(&self, file: &str) {
        std::fs::remove_file(self.path(file)).expect("copied");
    }

    /// Changes a JSON file.
    fn edit(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let mut json: Value = serde_json::from_slice(&self.read(file)).expect("JSON");
        change(&mut json);
        self.write(file, json.to_string().as_bytes());
    }

    /// Everything that happens before speaking.
    fn open(&self) -> Result<Voice, ModelError> {
        let files = Files::open(self.0.path())?;
        let model = Supertonic::new(files, Arc::new(ReferenceDevice))?;
        model.files().voice(model.files().default_voice())
    }

    /// The message of the error that names all of `parts`.
    #[track_caller]
    fn refused(&self, parts: &[&str]) -> String {
        let e = match self.open() {
            Ok(_) => panic!("accepted; an error with {parts:?} is expected"),
            Err(e) => e.to_string(),
        };
        for part in parts {
            assert!(e.contains(part), "`{part}` is not in: {e}");
        }
        e
    }
}

#[test]
fn copies_open() {
    for model in ["tiny", "tiny1", "tiny3"] {
        let folder = Folder::of(model);
        folder.open().unwrap_or_else(|e| panic!("{model}: {e}"));
        // So does the folder inside.
        Files::open(&folder.path("onnx")).unwrap_or_else(|e| panic!("{model}/onnx: {e}"));
    }
}

#[test]
fn each_file_is_missed_by_name() {
    for file in FILES {
        let folder = Folder::of("tiny");
        folder.remove(file);
        if file == F1 {
            assert_eq!(folder.open().expect("M1 is left").name, "M1");
            let e =
                Files::open(folder.0.path()).expect("opens").voice("F1").expect_err("removed").to_string();
            assert!(e.contains("F1") && e.contains("M1"), "{e}");
        } else if file != FILES[7] {
            folder.refused(&[Path::new(file).file_name().and_then(|n| n.to_str()).expect("a name")]);
        }
    }
    let folder = Folder::of("tiny");
    folder.remove(FILES[6]);
    folder.remove(FILES[7]);
    folder.refused(&["voice"]);
    std::fs::remove_dir(folder.path("voice_styles")).expect("empty");
    folder.refused(&["voice_styles"]);
}

#[test]
fn not_a_model() {
    let empty = tempfile::tempdir().expect("a temporary folder");
    let text = empty.path().join("text.gguf");
    std::fs::write(&text, "not a voice").expect("writable");
    for path in [empty.path(), &text, &empty.path().join("missing"), Path::new("")] {
        let e = match Files::open(path) {
            Ok(_) => panic!("{} is accepted", path.display()),
            Err(e) => e.to_string(),
        };
        assert!(e.contains(&*path.display().to_string()), "{e}");
    }
}

#[test]
fn truncated_networks() {
    for file in &FILES[..4] {
        let whole = Folder::of("tiny").read(file);
        let folder = Folder::of("tiny");
        let n = whole.len();
        for keep in [0, 1, 7, 64, n / 4, n / 2, n - n / 8, n - 100, n - 1] {
            folder.write(file, &whole[..keep]);
            let e = folder.refused(&[&file["onnx/".len()..]]);
            assert!(!e.is_empty(), "{keep} of {n} bytes");
        }
    }
}

/// All numbers of a JSON value, as pointers.
fn numbers(json: &Value, at: String, out: &mut Vec<String>) {
    match json {
        Value::Number(_) => out.push(at),
        Value::Array(all) => all.iter().enumerate().for_each(|(i, v)| numbers(v, format!("{at}/{i}"), out)),
        Value::Object(all) => all.iter().for_each(|(k, v)| numbers(v, format!("{at}/{k}"), out)),
        _ => {}
    }
}

#[test]
fn every_number_of_tts_json_is_checked_or_ignored() {
    let folder = Folder::of("tiny");
    let json: Value = serde_json::from_slice(&folder.read(TTS)).expect("JSON");
    let mut all = vec![];
    numbers(&json, String::new(), &mut all);
    assert!(all.len() > 100, "{} numbers", all.len());
    let mut refused = 0;
    for at in &all {
        for wrong in [json!(-1), json!(0), json!(7), json!(u64::MAX)] {
            let mut changed = json.clone();
            *changed.pointer_mut(at).expect("found there") = wrong.clone();
            folder.write(TTS, changed.to_string().as_bytes());
            if let Err(e) = folder.open() {
                refused += 1;
                let e = e.to_string();
                let origin = folder.0.path().display().to_string();
                assert!(
                    e.contains("tts.json") || e.contains(&origin) || e.contains("voice"),
                    "{at} = {wrong}: {e}"
                );
            }
        }
    }
    // Training settings are not looked at; sizes of the networks are.
    assert!(refused > all.len(), "{refused} of {} changes were refused", 4 * all.len());
}

#[test]
fn wrong_dimensions_name_the_weight_and_the_file() {
    let wrong = |at: &str, value: Value, parts: &[&str]| {
        let folder = Folder::of("tiny");
        folder.edit(TTS, |json| *json.pointer_mut(at).expect("there") = value);
        folder.refused(parts);
    };
    wrong("/ttl/latent_dim", json!(-4), &["tts.json"]);
    wrong("/ttl/latent_dim", json!(1u64 << 60), &["tts.json", "latent_dim"]);
    wrong("/ttl/latent_dim", json!(0), &["tts.json", "latent_dim"]);
    wrong("/ttl/text_encoder/text_embedder/char_emb_dim", json!(33), &["char_embedder", "tts.json"]);
    wrong("/ae/decoder/head/hdim", json!(73), &["head", "tts.json"]);
    wrong("/ae/sample_rate", json!(0), &["tts.json", "sample_rate"]);
    wrong("/ttl/normalizer/scale", json!(0), &["tts.json", "scale"]);
    wrong("/ttl/text_encoder/attn_encoder/n_heads", json!(5), &["tts.json", "heads"]);
    wrong(
        "/ttl/vector_field/main_blocks/convnext_0/dilation_lst",
        json!([1, 2, 4]),
        &["tts.json", "convnext_0"],
    );
    wrong("/ttl/vector_field/main_blocks/n_blocks", json!(3), &["main_blocks"]);
    wrong("/ttl/vector_field/main_blocks/n_blocks", json!(1), &["main_blocks", "belong to no network"]);
    wrong("/ae/decoder/dilation_lst", json!([1, 2, u64::MAX, 1]), &["tts.json", "ae.decoder.dilation_lst"]);
    wrong("/tts_version", json!("v9.0.0"), &["tts.json", "v9.0.0", "v1.7"]);
    wrong("/tts_version", json!("v1.7.3"), &["tts.json", "v1.7.3", "guidance"]);
    wrong("/ttl", json!(null), &["tts.json"]);
    for text in ["", "{", "[]", "null", "\u{FEFF}{}", "{\"tts_version\": \"v1.6.0\"}"] {
        let folder = Folder::of("tiny");
        folder.write(TTS, text.as_bytes());
        folder.refused(&["tts.json"]);
    }
}

#[test]
fn garbage_in_the_indexer() {
    for text in
        ["", "{}", "[", "[1, 2", "[\"a\"]", "[1.5]", "[-2]", "[99999999999]", "[2147483647]", "null", "\0\0"]
    {
        let folder = Folder::of("tiny");
        folder.write(INDEXER, text.as_bytes());
        folder.refused(&["unicode_indexer.json"]);
    }
    let many = format!("[{}0]", "0,".repeat(1_200_000));
    let folder = Folder::of("tiny");
    folder.write(INDEXER, many.as_bytes());
    folder.refused(&["unicode_indexer.json"]);
}

/// The indexer of another model knows ids that this one has no embedding for.
#[test]
fn an_indexer_with_more_ids_than_embeddings() {
    let folder = Folder::of("tiny");
    folder.edit(INDEXER, |json| json[65] = json!(60_000));
    folder.refused(&["unicode_indexer.json"]);
}

#[test]
fn damaged_voices() {
    let wrong = |change: &dyn Fn(&mut Value), parts: &[&str]| {
        let folder = Folder::of("tiny");
        folder.edit(F1, change);
        folder.refused(parts);
    };
    wrong(&|v| v["style_ttl"]["dims"] = json!([1, 50, 256]), &["F1", "style_ttl", "another model"]);
    wrong(&|v| v["style_dp"]["dims"] = json!([1, 8, 4]), &["F1", "style_dp"]);
    wrong(&|v| v["style_dp"]["dims"] = json!([-1, 4, 8]), &["F1"]);
    wrong(&|v| v["style_dp"]["dims"] = json!([]), &["F1"]);
    wrong(&|v| v["style_ttl"]["data"] = json!([[[1.0, 2.0]]]), &["F1", "style_ttl", "numbers"]);
    wrong(&|v| v["style_ttl"]["data"] = json!([]), &["F1", "style_ttl"]);
    wrong(&|v| v["style_ttl"]["data"] = json!(1), &["F1", "style_ttl"]);
    wrong(&|v| v["style_ttl"]["data"] = json!("x"), &["F1"]);
    wrong(&|v| v["style_ttl"]["data"][0][0][0] = json!(null), &["F1"]);
    wrong(&|v| v["style_ttl"]["data"][0][0][0] = json!(1e39), &["F1", "finite"]);
    wrong(&|v| drop(v.as_object_mut().expect("an object").remove("style_dp")), &["F1", "style_dp"]);
    wrong(&|v| drop(v["style_ttl"].as_object_mut().expect("an object").remove("data")), &["F1", "data"]);
    for text in ["", "[]", "{}", "{\"style_ttl\":", "NaN", &"[".repeat(100_000)] {
        let folder = Folder::of("tiny");
        folder.write(F1, text.as_bytes());
        folder.refused(&["F1"]);
    }
    for number in ["NaN", "1e999", "-1e999", "Infinity"] {
        let folder = Folder::of("tiny");
        let text = String::from_utf8(folder.read(F1)).expect("text");
        let data = text.find("\"data\"").expect("has data");
        let at = data + text[data..].find(|c: char| c == '-' || c.is_ascii_digit()).expect("a number");
        let end = at + text[at..].find([',', ']']).expect("its end");
        folder.write(F1, format!("{}{number}{}", &text[..at], &text[end..]).as_bytes());
        folder.refused(&["F1"]);
    }
    // Damage is the model's, and not that of an option.
    let folder = Folder::of("tiny");
    folder.write(F1, b"{}");
    assert_eq!(folder.open().expect_err("damaged").kind(), ErrorKind::InvalidModel);

    // A voice of another model.
    let folder = Folder::of("tiny");
    let official = golden("../assets/v2/voice_styles/F1.json");
    folder.write(F1, &std::fs::read(official).expect("committed"));
    folder.refused(&["F1", "another model"]);
}

#[test]
fn parts_of_two_models() {
    let mut accepted = vec![];
    for file in &FILES[..4] {
        for other in ["tiny3", "tiny1"] {
            let folder = Folder::of("tiny");
            folder.write(file, &std::fs::read(golden(other).join(file)).expect("committed"));
            let origin = folder.0.path().display().to_string();
            match folder.open() {
                // Same sizes, and an embedding for every character: nothing tells them apart.
                Ok(_) => accepted.push((*file, other)),
                Err(e) => {
                    let e = e.to_string();
                    println!("{file} of {other}: {e}");
                    assert!(e.contains(&origin) || e.contains(&file["onnx/".len()..]), "{e}");
                }
            }
        }
    }
    let known = [(0, "tiny3"), (1, "tiny3"), (2, "tiny1"), (3, "tiny3"), (3, "tiny1")];
    assert_eq!(accepted, known.map(|(i, other)| (FILES[i], other)));
}

#[test]
fn weights_that_no_network_uses() {
    // Fewer blocks in tts.json than in the file: the rest has no reader.
    let folder = Folder::of("tiny");
    folder.edit(TTS, |json| json["ttl"]["text_encoder"]["attn_encoder"]["n_layers"] = json!(1));
    let e = folder.refused(&["belong to no network", "tts.ttl.text_encoder.attn_encoder"]);
    assert!(e.contains(&*folder.0.path().display().to_string()), "{e}");

    // One tensor under another name.
    let folder = Folder::of("tiny");
    let mut bytes = folder.read(FILES[3]);
    let name = b"tts.ae.latent_mean";
    let renamed = b"tts.ae.latent_moon";
    let places: Vec<usize> =
        (0..bytes.len() - name.len()).filter(|i| bytes[*i..].starts_with(name)).collect();
    assert!(!places.is_empty());
    for i in places {
        bytes[i..i + name.len()].copy_from_slice(renamed);
    }
    folder.write(FILES[3], &bytes);
    folder.refused(&["vocoder.onnx"]);
}

/// A pipe or device in place of a file would block, or never end.
#[cfg(unix)]
#[test]
fn only_regular_files_are_read() {
    for file in [TTS, INDEXER, F1] {
        let folder = Folder::of("tiny");
        folder.remove(file);
        std::os::unix::fs::symlink("/dev/zero", folder.path(file)).expect("writable");
        folder
            .refused(&["not a file", Path::new(file).file_name().and_then(|n| n.to_str()).expect("a name")]);
    }
}

/// Emoji and text from web pages are full of them.
#[test]
fn invisible_characters_are_dropped() {
    for model in ["tiny", "tiny3"] {
        let files = Files::open(&golden(model)).expect("committed");
        let options = Options::default();
        let pieces = |text: &str| -> Vec<Vec<i32>> {
            let pieces = files.pieces(text, &options).unwrap_or_else(|e| panic!("{model}: {e}"));
            pieces.into_iter().map(|piece| piece.ids).collect()
        };
        let plain = pieces("So nice, cooperate!");
        for text in ["\u{FEFF}So nice,\u{200B} co\u{AD}operate!", "So nice\u{FE0F}, cooperate\u{200D}!"] {
            assert_eq!(pieces(text), plain, "{model}");
        }
    }
}

/// Flips bits and replaces bytes in up to eight places, more often by what JSON is made of.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    const LIKELY: &[u8] = b"0123456789-+.eE\"[]{},:nulltruefalse \\\0\xFF";
    for _ in 0..1 + random.below(8) {
        let i = random.below(bytes.len());
        match random.below(4) {
            0 => bytes[i] ^= 1 << random.below(8),
            1 => bytes[i] = LIKELY[random.below(LIKELY.len())],
            2 => bytes.insert(i, LIKELY[random.below(LIKELY.len())]),
            _ => drop(bytes.remove(i)),
        }
    }
}

/// Changes digits only, so that the file stays readable and sizes go wrong.
fn mutate_digits(random: &mut Random, bytes: &mut [u8]) {
    let digits: Vec<usize> = (0..bytes.len()).filter(|i| bytes[*i].is_ascii_digit()).collect();
    for _ in 0..1 + random.below(3) {
        bytes[digits[random.below(digits.len())]] = b'0' + random.below(10) as u8;
    }
}

#[test]
fn random_damage_to_tts_json_never_panics() {
    for model in ["tiny", "tiny3"] {
        let files = Files::open(&golden(model)).expect("committed");
        let original = std::fs::read(golden(model).join(TTS)).expect("committed");
        let (mut random, mut read, mut built) = (Random::named(1, model), 0, 0);
        for i in 0..1000 {
            let mut bytes = original.clone();
            if i % 2 == 0 {
                mutate(&mut random, &mut bytes)
            } else {
                mutate_digits(&mut random, &mut bytes)
            }
            let Ok(config) = Config::from_json(&bytes) else { continue };
            read += 1;
            let sizes = Sizes { batch: 1, tokens: 4, frames: 2, steps: 1, padding: Padding::None };
            built += usize::from(graphs(&config, &*files.weights, sizes).is_ok());
        }
        println!("{model}: {read} files could be read, {built} models described");
        assert!(read > 50 && built > 10 && built < read, "{read} read, {built} described");
    }
}

#[test]
fn random_damage_to_voices_never_panics() {
    let files = Files::open(&golden("tiny")).expect("committed");
    let original = std::fs::read(golden("tiny").join(F1)).expect("committed");
    let (mut random, mut good) = (Random::new(2), 0);
    for i in 0..2000 {
        let mut bytes = original.clone();
        if i % 2 == 0 {
            mutate(&mut random, &mut bytes)
        } else {
            mutate_digits(&mut random, &mut bytes)
        }
        if let Ok(v) = Voice::from_json("fuzz", &bytes, &files.config) {
            good += 1;
            assert!(v.style_ttl.iter().chain(&v.style_dp).all(|x| x.is_finite()));
        }
    }
    assert!(good > 100 && good < 2000, "{good} voices could be read");
}
