//! The committed goldens of Chatterbox: what the official package computed is what the engine computes, stage
//! by stage.

use orate::{DeviceChoice, Engine, EngineOptions, ModelSource};
use orate_testing::checkpoints::write_chatterbox;
use orate_tools::verify::{Report, VerifyOptions, run};
use std::path::PathBuf;

fn goldens() -> PathBuf {
    let root = std::env::var_os("ORATE_ROOT").map(PathBuf::from);
    let root = root.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.."));
    root.join("oracle/chatterbox/golden")
}

fn report(variant: &str) -> Report {
    let folder = tempfile::tempdir().expect("a folder");
    write_chatterbox(folder.path(), variant, "tiny").expect("the folder is writable");
    let model = ModelSource::Path(folder.path().to_owned());
    let options = EngineOptions { model, device: DeviceChoice::Cpu, ..Default::default() };
    let engine = Engine::with_options(options).unwrap_or_else(|e| panic!("{variant}: {e}"));
    run(&engine, &goldens(), &VerifyOptions::default()).unwrap_or_else(|e| panic!("{variant}: {e}"))
}

fn all_pass(variant: &str) {
    let report = report(variant);
    for row in &report.rows {
        println!("{} {} {} {:e} {}", row.case, row.stage, row.tensor, row.error, row.passed);
    }
    assert!(report.passed());
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
