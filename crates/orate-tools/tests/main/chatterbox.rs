//! The committed goldens of Chatterbox: what the official package computed is what the engine computes, stage
//! by stage.

use orate::{DeviceChoice, Engine, EngineOptions, ModelSource, Precision, PrecisionPolicy};
use orate_testing::checkpoints::write_chatterbox;
use orate_tools::verify::{Collector, Report, VerifyOptions, run};
use std::path::PathBuf;

fn goldens() -> PathBuf {
    let root = std::env::var_os("ORATE_ROOT").map(PathBuf::from);
    let root = root.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.."));
    root.join("oracle/chatterbox/golden")
}

/// A tiny model, with weights in these formats.
fn engines<const N: usize>(variant: &str, formats: [Precision; N]) -> [Engine; N] {
    let folder = tempfile::tempdir().expect("a folder");
    write_chatterbox(folder.path(), variant, "tiny").expect("the folder is writable");
    formats.map(|precision| {
        let model = ModelSource::Path(folder.path().to_owned());
        let options = EngineOptions {
            model,
            device: DeviceChoice::Cpu,
            precision: PrecisionPolicy::uniform(precision).into(),
            ..Default::default()
        };
        Engine::with_options(options).unwrap_or_else(|e| panic!("{variant}: {e}"))
    })
}

fn compare(engine: &Engine, what: &str, options: &VerifyOptions) -> Report {
    let report = run(engine, &goldens(), options).unwrap_or_else(|e| panic!("{what}: {e}"));
    for row in &report.rows {
        println!("{what} {} {} {} {:e} {}", row.case, row.stage, row.tensor, row.error, row.passed);
    }
    report
}

fn all_pass(variant: &str) {
    let [engine] = engines(variant, [Precision::F32]);
    assert!(compare(&engine, variant, &VerifyOptions::default()).passed());
}

#[test]
fn english() {
    all_pass("en");
}

#[test]
fn multilingual() {
    all_pass("mtl");
}

#[test]
fn turbo() {
    all_pass("turbo");
}

#[test]
fn nano() {
    all_pass("nano");
}

/// S3Gen without a T3 is compared with the goldens of its kind.
#[test]
fn s3gen_alone() {
    for (variant, file, cases) in [
        ("en", "s3gen.safetensors", ["s3gen_standard", "e2e_vc"]),
        ("turbo", "s3gen_meanflow.safetensors", ["s3gen_meanflow", "s3gen_meanflow_odd"]),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        write_chatterbox(folder.path(), variant, "tiny").expect("the folder is writable");
        let model = ModelSource::Path(folder.path().join(file));
        let options = EngineOptions { model, device: DeviceChoice::Cpu, ..Default::default() };
        let engine = Engine::with_options(options).unwrap_or_else(|e| panic!("{file}: {e}"));
        let report = compare(&engine, file, &VerifyOptions::default());
        assert!(report.passed());
        for case in cases {
            assert!(report.rows.iter().any(|row| row.case == case), "{file}: {case}");
        }
    }
}

/// Cases in which T3 reads golden codes.
fn forced(variant: &str) -> Vec<String> {
    let cases: &[&str] = match variant {
        "mtl" => &["t3_mtl_head", "e2e_mtl"],
        "en" => &["t3_en", "e2e_en"],
        "turbo" => &["t3_turbo", "e2e_turbo"],
        _ => &["t3_nano"],
    };
    cases.iter().map(|case| (*case).to_owned()).collect()
}

/// In every format samples and the logits of all frames are within its limits, and logits past those of the
/// next finer format: no limit of theirs is so wide that it says nothing.
#[test]
fn golden_codes_in_other_formats() {
    let finer = [
        (Precision::F16, Precision::F32),
        (Precision::Bf16, Precision::F16),
        (Precision::Q8_0, Precision::Bf16),
        (Precision::Q6K, Precision::Bf16),
        (Precision::Q5K, Precision::Q6K),
        (Precision::Q4K, Precision::Q5K),
        (Precision::Q4_0, Precision::Q8_0),
    ];
    for variant in ["en", "mtl", "turbo", "nano"] {
        let engines = engines(variant, finer.map(|(precision, _)| precision));
        for (engine, (precision, finer)) in engines.iter().zip(finer) {
            let what = format!("{variant} in {precision}");
            let s3gen = if matches!(variant, "en" | "mtl") { "s3gen_standard" } else { "s3gen_meanflow" };
            let forced = forced(variant);
            let cases = [&forced[..], &[s3gen.to_owned()]].concat();
            let options = VerifyOptions { cases, taps: false, ..Default::default() };
            let report = compare(engine, &what, &options);
            let judged = |report: &Report| -> Vec<(String, bool)> {
                let rows = report.rows.iter().filter(|r| r.tensor.starts_with("logits: "));
                rows.map(|r| (r.tensor.clone(), r.passed)).collect()
            };
            assert!(report.passed() && judged(&report).len() == 4 * forced.len(), "{what}");
            // Elsewhere no row is a multiple of 256, or few are: K formats are mostly q8_0.
            if [Precision::Q6K, Precision::Q5K, Precision::Q4K].contains(&precision) && variant != "turbo" {
                continue;
            }
            let mut strict = Collector::new(report.limit, false, false).only(&forced).of(finer);
            let goldens = engine.model().clone().goldens().expect("it has some");
            goldens.compare(&self::goldens(), &mut strict).expect("runs");
            for (tensor, passed) in judged(&strict.report) {
                let is_noise = tensor.ends_with("difference");
                assert!(!(is_noise && passed), "{what}, {tensor}: within the limits of {finer}");
            }
        }
    }
}
