//! What the system tests share.
#![allow(dead_code, reason = "each test program uses a part")]

pub mod flat;

use orate::{Engine, EngineOptions, Finish, ModelSource, Options};
use orate_cpu::Isa;
use std::ops::Deref;
use std::path::PathBuf;
use tempfile::TempDir;

/// An engine and its model's folder, which is needed as long: weights are read when they are used.
pub struct Opened {
    pub engine: Engine,
    pub folder: TempDir,
}

impl Deref for Opened {
    type Target = Engine;
    fn deref(&self) -> &Engine {
        &self.engine
    }
}

/// Options with the model's own sound, which tests compare.
pub fn raw() -> Options {
    Options { finish: Finish::NONE, ..Options::default() }
}

/// The checked-out tree. `ORATE_ROOT` says where it is when a test program runs on another machine than it
/// was built on.
pub fn root() -> PathBuf {
    let here = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::env::var_os("ORATE_ROOT").map_or_else(here, PathBuf::from)
}

/// A folder of `oracle/supertonic`.
pub fn oracle(folder: &str) -> PathBuf {
    root().join("oracle/supertonic").join(folder)
}

/// The model and goldens `tiny`, `tiny1` or `tiny3`.
pub fn golden(name: &str) -> PathBuf {
    oracle("golden").join(name)
}

/// An engine with everything said.
pub fn engine(model: ModelSource, isa: Isa, threads: usize) -> Engine {
    let options = EngineOptions {
        model,
        isa: Some(isa.name().to_owned()),
        threads: Some(threads),
        ..Default::default()
    };
    Engine::with_options(options).unwrap_or_else(|e| panic!("{isa}, {threads} threads: {e}"))
}

/// A committed model on the best instruction set.
pub fn tiny(name: &str) -> Engine {
    engine(ModelSource::Path(golden(name)), Isa::available()[0], 1)
}

/// The built-in voice on the best instruction set.
pub fn built_in(threads: usize) -> Engine {
    engine(ModelSource::BuiltIn, Isa::available()[0], threads)
}

/// Largest difference over the largest magnitude of `want`.
pub fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len(), "signals of different length");
    let largest = want.iter().fold(0f64, |m, x| m.max(f64::from(x.abs())));
    got.iter().zip(want).fold(0f64, |m, (a, b)| m.max((f64::from(*a) - f64::from(*b)).abs())) / largest
}

/// Root of the mean square.
pub fn rms(x: &[f32]) -> f64 {
    (x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len().max(1) as f64).sqrt()
}

/// Resident memory in MB.
#[cfg(target_os = "linux")]
pub fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages: f64 = text.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("the second number");
    pages * 4096.0 / 1e6
}
