//! Qwen3-TTS folders: every variant opens, and what is missing, mixed or damaged is named.

use orate_models::ErrorKind;
use orate_models::ModelError;
use orate_models::checkpoint::Expected;
use orate_models::qwen3_tts::layout::{self, Network};
use orate_models::qwen3_tts::{CodecConfig, Config, Files, GenerationConfig, Qwen3Tts, Variant};
use orate_testing::ReferenceDevice;
use orate_testing::checkpoints::{blank_safetensors, qwen3_tts_goldens, write_qwen3_tts};
use orate_weights::{DType, TensorInfo, TensorRef, WeightError, WeightSource};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

const GENERATION: &str = "generation_config.json";

/// A model of tiny sizes that can be damaged.
struct Folder(tempfile::TempDir);

impl Folder {
    fn of(variant: &str) -> Folder {
        let folder = Folder(tempfile::tempdir().expect("a temporary folder"));
        write_qwen3_tts(variant, folder.0.path()).expect("writable");
        folder
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn remove(&self, file: &str) {
        std::fs::remove_file(self.path(file)).expect("was there");
    }

    fn edit(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let mut json = serde_json::from_slice(&std::fs::read(self.path(file)).expect("there")).expect("JSON");
        change(&mut json);
        std::fs::write(self.path(file), json.to_string()).expect("writable");
    }

    /// Replaces the weights by those of a listing.
    fn weights(&self, file: &str, listing: &str) {
        std::fs::write(self.path(file), blank_safetensors(listing)).expect("writable");
    }

    fn open(&self) -> Result<Files, ModelError> {
        Files::open(self.0.path())
    }

    /// The message of the error, which names all of `parts`.
    #[track_caller]
    fn refused(&self, parts: &[&str]) -> String {
        let e = self.open().err().unwrap_or_else(|| panic!("accepted; an error with {parts:?} is expected"));
        let message = e.to_string();
        assert!(parts.iter().all(|p| message.contains(p)), "{message}\nshould hold {parts:?}");
        assert!(message.contains(&*self.0.path().to_string_lossy()), "{message}\nshould name the file");
        message
    }
}

fn golden(file: &str) -> String {
    let path = qwen3_tts_goldens().join("checkpoints").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn listed(file: &str) -> Vec<Expected> {
    let line = |line: &str| {
        let parts: Vec<_> = line.split(' ').collect();
        let shape = parts[2].split('x').map(|n| n.parse().expect("a number")).collect();
        Expected { name: parts[0].to_owned(), shape }
    };
    golden(file).lines().map(line).collect()
}

#[test]
fn every_variant_opens() {
    for (name, variant, speakers) in [
        ("base", Variant::Base, 0),
        ("custom_voice", Variant::CustomVoice, 9),
        ("voice_design", Variant::VoiceDesign, 0),
    ] {
        let files = Folder::of(name).open().unwrap_or_else(|e| panic!("{name}: {e}"));
        let talking = files.talking.expect("a model");
        let c = &talking.config;
        assert_eq!((c.tts_model_type, c.speakers().len()), (variant, speakers));
        assert_eq!(c.languages().len(), 10);
        assert_eq!(c.dialects().len(), if variant == Variant::Base { 0 } else { 2 });
        assert_eq!(c.size(), if variant == Variant::Base { "0.6B" } else { "1.7B" });
        assert_eq!(talking.generation.max_new_tokens, 8192);
        assert_eq!((files.codec.decode_upsample_rate, files.codec.frame_rate()), (1920, 12.5));
        assert_eq!(talking.tokenizer.added("<|im_start|>"), Some(c.im_start_token_id));
        let speaker_encoder =
            files.weights.names().iter().any(|n| Network::of(n) == Some(Network::SpeakerEncoder));
        assert_eq!(speaker_encoder, variant == Variant::Base);
        assert!(files.weights.names().iter().all(|n| Network::of(n).is_some()));
    }
}

#[test]
fn the_codec_alone_opens() {
    let folder = Folder::of("base");
    let files = Files::open(&folder.path("speech_tokenizer")).expect("the codec's repository");
    assert!(files.talking.is_none());
    assert_eq!(files.weights.names().len(), 322);
}

/// The listings are those of checkpoints that the official classes made.
#[test]
fn the_layout_is_that_of_the_official_classes() {
    let sorted = |mut all: Vec<Expected>| {
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    };
    for variant in ["tiny-base", "tiny-custom_voice", "tiny-voice_design"] {
        let config = Config::from_json(golden(&format!("{variant}/config.json")).as_bytes()).expect("reads");
        assert_eq!(
            sorted(layout::model(&config).expect("describes")),
            sorted(listed(&format!("{variant}/tensors.txt"))),
            "{variant}"
        );
    }
    let codec =
        CodecConfig::from_json(golden("tiny-base/speech_tokenizer/config.json").as_bytes()).expect("reads");
    assert_eq!(
        sorted(layout::codec(&codec).expect("describes")),
        sorted(listed("tiny-base/speech_tokenizer/tensors.txt"))
    );
}

fn set(json: &mut Value, values: Value) {
    for (key, value) in values.as_object().expect("an object") {
        json[key] = value.clone();
    }
}

/// The released 0.6B Base: 478 tensors of 914,643,008 numbers, and a codec of 496 tensors of 170,557,441.
#[test]
fn the_layout_at_true_sizes_has_the_released_counts() {
    let count =
        |all: &[Expected]| (all.len(), all.iter().map(|e| e.shape.iter().product::<usize>()).sum::<usize>());
    let layers = json!({"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
                        "num_key_value_heads": 8, "head_dim": 128});
    let mut c: Value = serde_json::from_str(&golden("tiny-base/config.json")).expect("JSON");
    let t = &mut c["talker_config"];
    set(t, layers.clone());
    set(
        t,
        json!({"num_hidden_layers": 28, "vocab_size": 3072, "text_vocab_size": 151_936, "text_hidden_size": 2048}),
    );
    set(&mut t["code_predictor_config"], layers);
    set(
        &mut t["code_predictor_config"],
        json!({"num_hidden_layers": 5, "vocab_size": 2048, "layer_types": null}),
    );
    c["speaker_encoder_config"] = json!({"enc_dim": 1024, "sample_rate": 24000});
    let config = Config::from_json(c.to_string().as_bytes()).expect("the released sizes");
    assert_eq!(count(&layout::model(&config).expect("describes")), (478, 914_643_008));

    let mut c: Value = serde_json::from_str(&golden("tiny-base/speech_tokenizer/config.json")).expect("JSON");
    set(
        &mut c["decoder_config"],
        json!({"latent_dim": 1024, "codebook_dim": 512, "codebook_size": 2048, "decoder_dim": 1536,
               "hidden_size": 512, "intermediate_size": 1024, "head_dim": 64, "num_attention_heads": 16,
               "num_key_value_heads": 16, "num_hidden_layers": 8}),
    );
    set(
        &mut c["encoder_config"],
        json!({"codebook_dim": 256, "codebook_size": 2048, "head_dim": 64, "hidden_size": 512,
               "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 8, "num_filters": 64,
               "num_hidden_layers": 8, "num_quantizers": 32, "vector_quantization_hidden_dimension": 256}),
    );
    let codec = CodecConfig::from_json(c.to_string().as_bytes()).expect("the released sizes");
    assert_eq!(count(&layout::codec(&codec).expect("describes")), (496, 170_557_441));
}

#[test]
fn shards_are_read_through_their_index() {
    let folder = Folder::of("custom_voice");
    let listing = golden("tiny-custom_voice/tensors.txt");
    let lines: Vec<&str> = listing.lines().collect();
    let (first, second) = lines.split_at(30);
    folder.remove("model.safetensors");
    folder.weights("model-00001-of-00002.safetensors", &first.join("\n"));
    folder.weights("model-00002-of-00002.safetensors", &second.join("\n"));
    let of = |n: usize, lines: &[&str]| -> Vec<(String, Value)> {
        let file = format!("model-0000{n}-of-00002.safetensors");
        lines.iter().map(|l| (l.split(' ').next().expect("a name").to_owned(), json!(file))).collect()
    };
    let map: serde_json::Map<_, _> = of(1, first).into_iter().chain(of(2, second)).collect();
    let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
    std::fs::write(folder.path("model.safetensors.index.json"), index.to_string()).expect("writable");
    let files = folder.open().expect("shards");
    assert_eq!(files.weights.names().len(), 85 + 322);
    folder.remove("model-00002-of-00002.safetensors");
    folder.refused(&["model-00002-of-00002.safetensors"]);
}

#[test]
fn incomplete_folders_say_what_is_missing() {
    for file in [
        "config.json",
        "vocab.json",
        "merges.txt",
        "tokenizer_config.json",
        "model.safetensors",
        "speech_tokenizer/config.json",
        "speech_tokenizer/model.safetensors",
    ] {
        let folder = Folder::of("base");
        folder.remove(file);
        folder.refused(&["it lacks", file, "download the whole repository"]);
    }
    let folder = Folder::of("base");
    std::fs::remove_dir_all(folder.path("speech_tokenizer")).expect("was there");
    folder.refused(&["speech_tokenizer/config.json", "speech_tokenizer/model.safetensors"]);

    let folder = Folder::of("base");
    folder.remove("generation_config.json");
    let talking = folder.open().expect("optional").talking.expect("a model");
    assert_eq!(talking.generation, GenerationConfig::default());

    let empty = tempfile::tempdir().expect("a folder");
    let e = Files::open(empty.path()).err().expect("nothing there").to_string();
    assert!(e.contains("not a Qwen3-TTS model") && e.contains("`qwen3_tts`"), "{e}");
    let e = Files::open(&empty.path().join("none")).err().expect("nothing there").to_string();
    assert!(e.contains("no such folder"), "{e}");
}

#[test]
fn tensors_that_differ_are_named() {
    let listing = golden("tiny-custom_voice/tensors.txt");
    let norm = "talker.model.norm.weight BF16 96\n";
    assert!(listing.contains(norm));
    let cases: [(String, &[&str]); 6] = [
        (listing.replace(norm, ""), &["1 tensor is missing: `talker.model.norm.weight`"]),
        (
            listing.replace(norm, "talker.model.norm.weight BF16 95\n"),
            &["1 tensor has another shape: `talker.model.norm.weight` is [95] instead of [96]"],
        ),
        (format!("{listing}talker.extra F32 1\n"), &["1 tensor belongs to no network: `talker.extra`"]),
        (
            listing.replace(norm, "talker.model.norm.weight F16 96\n"),
            &[], // any float will do
        ),
        (
            listing.lines().filter(|l| !l.contains("lm_head")).map(|l| format!("{l}\n")).collect(),
            &["15 tensors are missing: `talker.code_predictor.lm_head.0.weight`", ", …"],
        ),
        (
            listing.replace("norm.weight BF16 96\n", "rms.weight BF16 96\n"),
            &["are missing", "; ", "belong to no network", "are config.json and the weights of one model"],
        ),
    ];
    for (listing, parts) in cases {
        let folder = Folder::of("custom_voice");
        folder.weights("model.safetensors", &listing);
        if parts.is_empty() {
            folder.open().expect("floats of another width");
        } else {
            folder.refused(&[parts, &["model.safetensors"]].concat());
        }
    }
    // The weights of another model.
    let folder = Folder::of("custom_voice");
    folder.weights("model.safetensors", &golden("tiny-base/tensors.txt"));
    folder.refused(&["are missing", "have another shape", "belong to no network", "`speaker_encoder."]);
    let folder = Folder::of("custom_voice");
    let codec = golden("tiny-base/speech_tokenizer/tensors.txt");
    folder
        .weights("speech_tokenizer/model.safetensors", &codec.replace("decoder.5.alpha", "decoder.5.gamma"));
    folder.refused(&["speech_tokenizer", "`decoder.decoder.5.alpha`", "`decoder.decoder.5.gamma`"]);
}

#[test]
fn configurations_that_make_no_sense_are_refused() {
    type Change = fn(&mut Value);
    let cases: [(&str, Change, &[&str]); 24] = [
        ("config.json", |c| c["model_type"] = json!("qwen3_tts_25hz"), &["`model_type` is `qwen3_tts_25hz`"]),
        ("config.json", |c| c["tokenizer_type"] = json!("25hz"), &["`tokenizer_type` is `25hz`"]),
        (
            "config.json",
            |c| c["tts_model_type"] = json!("custom"),
            &["unknown variant `custom`", "custom_voice"],
        ),
        (
            "config.json",
            |c| c["talker_config"]["head_dim"] = json!(0),
            &["`talker_config.head_dim` is 0", "1 to"],
        ),
        ("config.json", |c| c["talker_config"]["head_dim"] = json!(33), &["head_dim` 33 is odd"]),
        (
            "config.json",
            |c| c["talker_config"]["num_hidden_layers"] = json!(4_000_000_000u64),
            &["num_hidden_layers"],
        ),
        ("config.json", |c| c["talker_config"]["num_key_value_heads"] = json!(3), &["no multiple"]),
        (
            "config.json",
            |c| c["talker_config"]["attention_bias"] = json!(true),
            &["attention_bias` is true", "not supported"],
        ),
        (
            "config.json",
            |c| c["talker_config"]["rope_scaling"]["rope_type"] = json!("yarn"),
            &["`yarn`", "not supported"],
        ),
        (
            "config.json",
            |c| c["talker_config"]["codec_eos_token_id"] = json!(9999),
            &["`codec_eos_token_id` is 9999", "1152"],
        ),
        ("config.json", |c| c["talker_config"]["num_code_groups"] = json!(8), &["8 and 16 codes"]),
        ("config.json", |c| c["talker_config"]["spk_id"] = json!({}), &["CustomVoice", "without speakers"]),
        (
            "config.json",
            |c| c["talker_config"]["spk_is_dialect"]["eric"] = json!("x"),
            &["dialect of speaker `eric`"],
        ),
        ("config.json", |c| c["im_end_token_id"] = json!(637), &["`<|im_end|>` is 638", "says 637"]),
        (
            "config.json",
            |c| {
                c.as_object_mut().expect("object").remove("talker_config");
            },
            &["missing field `talker_config`"],
        ),
        (GENERATION, |c| c["temperature"] = json!(0.0), &["`temperature` is 0", "above 0"]),
        (GENERATION, |c| c["top_p"] = json!(2), &[GENERATION, "`top_p` is 2", "at most 1"]),
        (GENERATION, |c| c["subtalker_top_p"] = json!(1.5), &[GENERATION, "`subtalker_top_p` is 1.5"]),
        (GENERATION, |c| c["repetition_penalty"] = json!(101), &[GENERATION, "`repetition_penalty` is 101"]),
        (GENERATION, |c| c["top_k"] = json!(1 << 25), &[GENERATION, "`top_k` is 33554432", "0 to 16777216"]),
        (GENERATION, |c| c["max_new_tokens"] = json!(0), &[GENERATION, "`max_new_tokens` is 0", "2 to"]),
        (GENERATION, |c| c["max_new_tokens"] = json!(100_000_000), &[GENERATION, "`max_new_tokens` is 1000"]),
        (
            "speech_tokenizer/config.json",
            |c| c["decoder_config"]["upsample_rates"] = json!([8, 5, 4]),
            &["1920", "Some(640)"],
        ),
        (
            "speech_tokenizer/config.json",
            |c| c["decoder_config"]["sliding_window"] = json!(0),
            &["sliding_window` is 0"],
        ),
    ];
    for (file, change, parts) in cases {
        let folder = Folder::of("custom_voice");
        folder.edit(file, change);
        folder.refused(parts);
    }
    let folder = Folder::of("base");
    folder.edit("config.json", |c| c["speaker_encoder_config"] = Value::Null);
    folder.refused(&["Base", "`speaker_encoder_config`"]);
    let folder = Folder::of("base");
    folder.edit("config.json", |c| c["speaker_encoder_config"]["enc_dim"] = json!(1024));
    folder.refused(&["enc_dim` is 1024", "64"]);
}

/// Cut at any place, a file is refused; nothing panics.
#[test]
fn damaged_files_are_errors() {
    for file in [
        "config.json",
        "generation_config.json",
        "vocab.json",
        "tokenizer_config.json",
        "model.safetensors",
        "speech_tokenizer/config.json",
        "speech_tokenizer/model.safetensors",
    ] {
        let folder = Folder::of("base");
        let bytes = std::fs::read(folder.path(file)).expect("written");
        let end = String::from_utf8_lossy(&bytes).trim_end().len().min(bytes.len());
        for keep in (0..end).step_by(end / 7).chain([end - 1]) {
            std::fs::write(folder.path(file), &bytes[..keep]).expect("writable");
            assert!(folder.open().is_err(), "{file} cut to {keep} bytes");
        }
    }
}

/// Weights of which one tensor is infinite.
struct Infinite {
    rest: Arc<dyn WeightSource>,
    name: &'static str,
    bytes: Vec<u8>,
}

impl WeightSource for Infinite {
    fn get(&self, name: &str) -> Result<TensorRef<'_>, WeightError> {
        let tensor = self.rest.get(name)?;
        if name != self.name {
            return Ok(tensor);
        }
        let bytes = &self.bytes[..4 * tensor.len()];
        Ok(TensorRef::new(DType::F32, tensor.shape, bytes).expect("four bytes each"))
    }

    fn names(&self) -> Vec<&str> {
        self.rest.names()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.rest.info(name)
    }

    fn describe(&self) -> String {
        self.rest.describe()
    }
}

/// The model is to blame for it, and not the recording or an option.
#[test]
fn a_damaged_speaker_encoder_is_an_error_of_the_model() {
    let folder = Folder::of("base");
    let mut files = folder.open().expect("undamaged");
    let bytes = f32::INFINITY.to_le_bytes().repeat(1 << 10);
    files.weights =
        Arc::new(Infinite { rest: files.weights.clone(), name: "speaker_encoder.fc.bias", bytes });
    let origin = files.origin.clone();
    let model = Qwen3Tts::new(files, Arc::new(ReferenceDevice));
    let recording: Vec<f32> = (0..4800).map(|i| (i as f32 / 20.0).sin()).collect();
    let e = model.clone_voice(&recording, None).expect_err("damaged");
    assert_eq!(e.kind(), ErrorKind::InvalidModel);
    assert!(e.to_string().contains(&origin) && e.to_string().contains("speaker encoder"), "{e}");
}
