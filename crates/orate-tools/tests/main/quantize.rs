//! Models in one file: they speak as their folder.

use orate::{
    CacheFormat, DeviceChoice, Engine, EngineOptions, FAMILIES, Finish, ModelSource, Options, Precision,
    PrecisionChoice,
};
use orate_models::Opening;
use orate_testing::checkpoints::{write_chatterbox, write_random_qwen3_tts};
use orate_testing::fuzz::{Limits, fuzz};
use orate_tools::inspect::{self, Look};
use orate_tools::quantize::{DType, format, quantize};
use orate_weights::{GgufFile, WeightSource};
use std::path::Path;

fn open(path: &Path) -> Engine {
    let model = ModelSource::Path(path.to_owned());
    Engine::with_options(EngineOptions { model, device: DeviceChoice::Cpu, ..Default::default() })
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn speak(engine: &Engine) -> Vec<f32> {
    let options = Options { finish: Finish::NONE, seed: 3, ..Options::default() };
    let options = match engine.family_name() {
        "Chatterbox" => options.set("max_codes", 8_usize),
        "Qwen3-TTS" => options.set("max_frames", 6_usize),
        _ => options,
    };
    engine.speak("Hello there.", &options).expect("speaks").samples
}

#[test]
fn one_file_speaks_as_its_folder() {
    let folders = tempfile::tempdir().expect("a folder");
    let [qwen, turbo] = ["qwen", "turbo"].map(|name| folders.path().join(name));
    write_random_qwen3_tts("custom_voice", &qwen, 2).expect("writable");
    write_chatterbox(&turbo, "turbo", "tiny").expect("writable");
    let supertonic = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracle/supertonic/golden/tiny3");
    for folder in [qwen, turbo, supertonic] {
        let want = speak(&open(&folder));
        let file = folders.path().join("a.gguf");
        quantize(FAMILIES, &folder, DType::F32, None, &file).expect("writes");
        let whole = open(&file);
        assert!(speak(&whole) == want, "{}", folder.display());
        let facts = whole.model().files().describe().facts;
        assert!(facts.iter().any(|(name, value)| *name == "layout" && *value == "orate"));

        let report = quantize(FAMILIES, &folder, DType::Q8_0, None, &file).expect("writes");
        assert_eq!(report.bytes, std::fs::metadata(&file).expect("is there").len());
        assert!(report.types.contains_key("q8_0"), "{:?}", report.types);
        assert!(speak(&open(&file)).iter().all(|x| x.is_finite()));
        // A file is not put into another one.
        let e = quantize(FAMILIES, &file, DType::Q8_0, None, &folders.path().join("b.gguf"))
            .unwrap_err()
            .to_string();
        assert!(e.contains("folder"), "{e}");
    }
}

/// A file keeps the variant of its model, whatever its name says.
#[test]
fn variants_are_read_from_content() {
    let folder = tempfile::tempdir().expect("a folder");
    for (variant, name, model) in [
        ("nano", "a1.gguf", "Nano"),
        ("turbo", "turbo-not-nano.gguf", "Turbo"),
        ("mtl", "nano.gguf", "Multi"),
    ] {
        let [source, file] = [variant, name].map(|name| folder.path().join(name));
        write_chatterbox(&source, variant, "tiny").expect("writable");
        quantize(FAMILIES, &source, DType::Q8_0, None, &file).expect("writes");
        let kind = open(&file).model().files().describe().kind;
        assert!(kind.contains(model), "{variant}: {kind}");
    }
}

fn look() -> Look {
    Look {
        codec: None,
        families: FAMILIES,
        device: None,
        precision: PrecisionChoice::default(),
        kv: CacheFormat::F32.into(),
    }
}

/// Matrices and 1×1 convolutions, scaled ones too, are blocks in the file.
#[test]
fn kernels_of_one_tap_become_blocks() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.gguf");
    let supertonic = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracle/supertonic/golden/tiny3");
    quantize(FAMILIES, &supertonic, DType::Q8_0, None, &file).expect("writes");
    let mut blocks = [("pwconv1", 0), ("pwconv2", 0)];
    for t in inspect::model(Some(&file), &look()).expect("opens").tensors {
        let is_wide = matches!(t.shape[..], [_, k] | [_, k, 1] if k % 32 == 0);
        if t.matmul.is_some() && is_wide {
            assert_eq!(t.dtype, "q8_0", "{} {:?}", t.name, t.shape);
            blocks.iter_mut().for_each(|(name, n)| *n += usize::from(t.name.contains(*name)));
        }
    }
    assert_eq!(blocks, [("pwconv1", 3), ("pwconv2", 2)]);
    let options = EngineOptions {
        model: ModelSource::Path(file),
        device: DeviceChoice::Cpu,
        precision: orate::PrecisionPolicy::uniform(Precision::Q8_0).into(),
        ..Default::default()
    };
    assert!(speak(&Engine::with_options(options).expect("opens")).iter().all(|x| x.is_finite()));
}

/// What meets large inputs is rounded more exactly, and the file speaks.
#[test]
fn calibrated_files_speak() {
    let folder = tempfile::tempdir().expect("a folder");
    let [turbo, plain, calibrated] = ["turbo", "a.gguf", "b.gguf"].map(|name| folder.path().join(name));
    write_chatterbox(&turbo, "turbo", "tiny").expect("writable");
    let dtype = DType::Q4_0;
    assert_eq!(quantize(FAMILIES, &turbo, dtype, None, &plain).expect("writes").calibrated, 0);
    let text = Some("Hello there.");
    let report = quantize(FAMILIES, &turbo, dtype, text, &calibrated).expect("writes");
    assert!(report.calibrated > 20, "{}", report.calibrated);
    let [a, b] = [&plain, &calibrated].map(|path| std::fs::read(path).expect("was written"));
    assert_ne!(a, b);
    let again = folder.path().join("c.gguf");
    quantize(FAMILIES, &turbo, dtype, text, &again).expect("writes");
    assert!(std::fs::read(&again).expect("was written") == b, "the same text gives the same file");
    let engine = open(&calibrated);
    assert!(speak(&engine).iter().all(|x| x.is_finite()));
    let e = quantize(FAMILIES, &turbo, dtype, Some(" "), &again).unwrap_err().to_string();
    assert!(e.contains("nothing to say"), "{e}");
}

/// Metadata with damage: an error of one line, or a model.
#[test]
fn mutated_files_of_quantize() {
    let folder = tempfile::tempdir().expect("a folder");
    let [qwen, file] = ["qwen", "a.gguf"].map(|name| folder.path().join(name));
    write_random_qwen3_tts("base", &qwen, 2).expect("writable");
    quantize(FAMILIES, &qwen, DType::Q8_0, None, &file).expect("writes");
    let whole = std::fs::read(&file).expect("was written");
    let data: usize = {
        let file = GgufFile::open(&file).expect("valid");
        let bytes = |name: &str| file.info(name).and_then(|i| i.dtype.bytes_for(i.len())).unwrap_or(0);
        file.names().into_iter().map(bytes).sum()
    };
    let (head, rest) = whole.split_at(whole.len() - data);
    // Opening a model builds its networks; the whole file is put together again here.
    let limits = Limits { growth: 20, fixed: 16 << 20 };
    fuzz("gguf-own", &[head.to_vec()], limits, |bytes| {
        std::fs::write(&file, [bytes, rest].concat()).expect("the folder is writable");
        let family = FAMILIES.iter().find(|f| (f.detect)(&file));
        if let Some(Err(e)) = family.map(|f| (f.open)(&file, Opening::Whole)) {
            assert!(e.to_string().len() < 10_000, "{e}");
        }
    });
}

/// Rows of whole blocks of 256 get a K type, and are computed in it; others are `q8_0`.
#[test]
fn wide_rows_get_the_format_that_was_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let [turbo, file] = ["turbo", "a.gguf"].map(|name| folder.path().join(name));
    write_chatterbox(&turbo, "turbo", "tiny").expect("writable");
    quantize(FAMILIES, &turbo, format("Q4_K").expect("known"), None, &file).expect("writes");
    let engine = open(&file);
    let policy = engine.precision();
    assert!([Precision::Q4K, Precision::Q8_0].iter().all(|p| policy.formats().contains(p)), "{policy}");
    assert!(speak(&engine).iter().all(|x| x.is_finite()));
    let found = inspect::model(Some(&file), &look()).expect("opens");
    // Whatever is not cut into parts.
    let is_whole = |name: &str| !name.contains("time_embed_mixer");
    for t in found.tensors.iter().filter(|t| t.dtype == "q4_K" && is_whole(&t.name)) {
        assert_eq!(t.matmul, Some(Precision::Q4K), "{}", t.name);
    }
    let facts = found.facts;
    let fact = |name: &str| facts.iter().find(|(n, _)| *n == name).map(|(_, value)| value.clone());
    let matmuls = fact("matmuls").expect("counts");
    assert!(matmuls["q4_k"].as_u64() > Some(0) && matmuls["q8_0"].as_u64() > Some(0), "{matmuls}");
    let file = GgufFile::open(&file).expect("valid");
    let of = |dtype: DType| {
        file.names().into_iter().filter(|n| file.info(n).is_some_and(|i| i.dtype == dtype)).count()
    };
    assert!(of(DType::Q4K) > 0 && of(DType::Q8_0) > 0, "{} and {}", of(DType::Q4K), of(DType::Q8_0));
    assert!(format("q3_k").unwrap_err().contains("q4_k"));
}
