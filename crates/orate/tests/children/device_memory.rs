//! A GPU whose driver is out of memory returns an error that says so, and everything works afterwards. Runs
//! in a child, whose memory it limits: the rasterizer allocates from the process. Hence these tests run on
//! Vulkan, whatever `ORATE_TEST_DEVICES` says.
#![cfg(feature = "gpu")]

use crate::child::{End, in_a_child};
use crate::common;
use orate::{DeviceClass, DeviceKind, Engine, EngineOptions, ModelSource, Options, PrecisionPolicy};
use orate_gpu::GpuDevice;
use orate_graph::{DType, Device, DeviceError, Memory};
use std::sync::Arc;

/// Floats of a buffer.
const LARGE: usize = 16 << 20;

/// Limits the process to `bytes` more than it has.
fn leave(bytes: u64) {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages: u64 = text.split(' ').next().and_then(|s| s.parse().ok()).expect("the first number");
    let most = pages * 4096 + bytes;
    let limit = libc::rlimit { rlim_cur: most, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: sets a limit of this process.
    let done = unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_driver_without_memory_is_an_error() {
    let end = in_a_child(|| {
        let device = GpuDevice::new(Some(DeviceKind::Vulkan), 0, PrecisionPolicy::default(), None);
        let device = Arc::new(device.unwrap_or_else(|e| panic!("{e}")));
        assert_eq!(device.info().class, DeviceClass::Software, "this test is for Mesa's lavapipe");
        let model = ModelSource::Path(common::root().join("voices/orate-default/orate-default.gguf"));
        let options = EngineOptions { model, ..Default::default() };
        let engine = Engine::on_device(&options, device.clone()).expect("opens");
        let speak = || engine.speak("Hm.", &Options::default()).expect("speaks");
        let want = speak();
        leave(512 << 20);
        let mut all: Vec<Box<dyn Memory>> = vec![];
        let e = loop {
            let mut memory = device.memory();
            match memory.reserve("large", DType::F32, &[LARGE].into()) {
                Ok(()) => all.push(memory),
                Err(e) => break e,
            }
            assert!(all.len() < 100, "there is no end to it");
        };
        assert!(matches!(&e, DeviceError::OutOfMemory { device, .. } if device == "vulkan:0"), "{e}");
        let text = e.to_string();
        assert!(
            text.contains("67108864 bytes more are needed") && text.contains("use shorter pieces"),
            "{e}"
        );
        // Nobody else has lost anything, and what is given back may be used again.
        drop(all);
        assert!(speak() == want);
        device.memory().reserve("large", DType::F32, &[LARGE].into()).expect("there is room again");
    });
    assert_eq!(end, End::Well);
}
