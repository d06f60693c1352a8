//! Shared by tests and examples of this crate.
#![allow(dead_code, reason = "each program uses a part")]

use orate_gpu::GpuDevice;
use orate_graph::{DeviceKind, Graph, Precision, PrecisionPolicy};
use orate_models::supertonic::{Config, Files, Sizes, graphs};
use orate_testing::ShapesOnly;
use orate_weights::GgufFile;
use std::path::{Path, PathBuf};

/// Environment variable with the device to test, such as `vulkan:1`; default: the first Vulkan device, even a
/// rasterizer.
pub const VARIABLE: &str = "ORATE_TEST_GPU";

/// Environment variable with the root of the repository, for programs that run on another machine than the
/// one they were built on.
pub const DATA_VARIABLE: &str = "ORATE_ROOT";

/// Kind and number of the device to test.
///
/// # Panics
/// The variable has an invalid value.
pub fn wish() -> (DeviceKind, usize) {
    let wish = std::env::var(VARIABLE).unwrap_or_else(|_| "vulkan:0".to_owned());
    let (kind, index) = wish.split_once(':').unwrap_or((&wish, "0"));
    let kind =
        [DeviceKind::Vulkan, DeviceKind::Metal, DeviceKind::Dx12].into_iter().find(|k| k.name() == kind);
    match (kind, index.parse()) {
        (Some(kind), Ok(index)) => (kind, index),
        _ => panic!("{VARIABLE} is `{wish}`; it should be like vulkan:0, metal:0 or dx12:0"),
    }
}

/// Opens the device to test.
///
/// # Panics
/// There is none: a test without a device must not pass.
pub fn device() -> GpuDevice {
    device_with(Precision::F32, None)
}

/// Opens the device to test, with a precision of matmuls and a folder for its pipelines.
pub fn device_with(precision: Precision, cache: Option<PathBuf>) -> GpuDevice {
    let (kind, index) = wish();
    GpuDevice::new(Some(kind), index, PrecisionPolicy::uniform(precision), cache).unwrap_or_else(|e| {
        panic!(
            "{e}\nThese tests need a GPU or a rasterizer. On Debian and Ubuntu: apt-get install mesa-vulkan-drivers \
             libvulkan1. {VARIABLE} chooses a device, and VK_DRIVER_FILES a driver."
        )
    })
}

/// A file or folder of the repository.
pub fn data(path: &str) -> PathBuf {
    let root = std::env::var_os(DATA_VARIABLE).map(PathBuf::from);
    root.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).join(path)
}

/// The committed model `tiny`, `tiny1` or `tiny3`.
pub fn tiny(name: &str) -> Files {
    Files::open(&data("oracle/supertonic/golden").join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The graphs of `v2`, `v3` or `built-in` at their real sizes; the weights are named but do not exist.
pub fn full_size(model: &str, sizes: Sizes) -> Vec<Graph> {
    let all = match model {
        "built-in" => {
            let path = data("voices/orate-default/orate-default.gguf");
            let file = GgufFile::open(&path).unwrap_or_else(|e| panic!("{e}"));
            let files = Files::packed(file, model.to_owned()).unwrap_or_else(|e| panic!("{e}"));
            graphs(&files.config, &*files.weights, sizes)
        }
        _ => {
            let json = std::fs::read(data("oracle/supertonic/assets").join(model).join("tts.json"));
            let config = Config::from_json(&json.expect("committed")).expect("as released");
            let table = data("crates/orate/tests/data").join(format!("{model}.shapes.txt"));
            graphs(&config, &ShapesOnly::parse(&std::fs::read_to_string(table).expect("committed")), sizes)
        }
    };
    all.unwrap_or_else(|e| panic!("{model}: {e}"))
}
