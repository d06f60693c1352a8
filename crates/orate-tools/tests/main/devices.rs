//! The committed goldens on the GPUs that `ORATE_TEST_DEVICES` names, such as `cuda:0,vulkan:0`; without it
//! on the first Vulkan device, which may be a software rasterizer.
#![cfg(any(feature = "cuda", feature = "gpu"))]

use crate::common::golden;
use orate::{DeviceChoice, Engine, EngineOptions, ModelSource, Precision, PrecisionPolicy};
use orate_tools::verify::{self, GPU_TOLERANCE, Limit, VerifyOptions};

/// Golden models.
const MODELS: [&str; 3] = ["tiny", "tiny1", "tiny3"];

fn devices() -> Vec<DeviceChoice> {
    let names = std::env::var("ORATE_TEST_DEVICES").unwrap_or_else(|_| "vulkan:0".to_owned());
    names
        .split(',')
        .map(|name| name.trim().parse().unwrap_or_else(|e| panic!("ORATE_TEST_DEVICES: {e}")))
        .collect()
}

fn open_in(precision: Precision, device: DeviceChoice, model: ModelSource) -> Engine {
    let precision = PrecisionPolicy::uniform(precision).into();
    let options = EngineOptions { device, model, precision, threads: Some(2), ..Default::default() };
    Engine::with_options(options).unwrap_or_else(|e| {
        panic!(
            "{e}\nthese tests need a GPU or Mesa's software Vulkan (Debian: apt-get install \
         mesa-vulkan-drivers)"
        )
    })
}

#[test]
fn goldens() {
    for device in devices() {
        for model in MODELS {
            let engine = open_in(Precision::F32, device, ModelSource::Path(golden(model)));
            let report = verify::run(&engine, &golden(model), &VerifyOptions::default())
                .unwrap_or_else(|e| panic!("{model} on {}: {e}", engine.device()));
            assert_eq!(report.limit, Limit::Error(GPU_TOLERANCE));
            let failed: Vec<_> = report.rows.iter().filter(|r| !r.passed).collect();
            assert!(report.passed(), "{model} on {}: {failed:#?}", engine.device());
            println!("{model} on {}: worst {:?}", engine.device(), report.worst());
        }
    }
}

#[test]
fn goldens_in_f16() {
    for device in devices() {
        let engine = open_in(Precision::F16, device, ModelSource::Path(golden("tiny")));
        let options = VerifyOptions { taps: false, ..Default::default() };
        let report = verify::run(&engine, &golden("tiny"), &options)
            .unwrap_or_else(|e| panic!("{}: {e}", engine.device()));
        assert_eq!(report.limit, Limit::WaveformSnr(50.0));
        let worst = report.noisiest();
        assert!(report.passed(), "{}: {worst:#?}", engine.device());
        println!("{}: noisiest {worst:?}", engine.device());
    }
}
