//! Engines leave no threads behind. A program of its own, since tests beside it would have theirs.
//!
//! `ORATE_TEST_DEVICES` names GPUs, as in the tests of devices; without it, and with the feature `gpu`,
//! `vulkan:0`.
#![cfg(target_os = "linux")]

#[path = "common/child.rs"]
mod child;
mod common;

use orate::{DeviceChoice, DeviceClass, Engine, EngineOptions, ModelSource, Options};
use orate_testing::checkpoints::write_random_qwen3_tts;
use std::collections::BTreeMap;
use std::path::Path;

/// Threads that Mesa's rasteriser starts once for the process and keeps, by the beginnings of their names.
const OF_LAVAPIPE: [&str; 1] = ["llvmpipe-"];

/// Threads of this process: numbers and names.
fn threads() -> BTreeMap<u32, String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let mut all = BTreeMap::new();
    for task in tasks {
        let task = task.expect("is readable");
        let number = task.file_name().to_string_lossy().parse().expect("a number");
        // One that ends meanwhile has no name any more.
        if let Ok(name) = std::fs::read_to_string(task.path().join("comm")) {
            all.insert(number, name.trim().to_owned());
        }
    }
    all
}

/// Threads that were not there before, once those that end have had time to.
fn left(before: &BTreeMap<u32, String>) -> Vec<String> {
    let new = || -> Vec<String> {
        threads().into_iter().filter(|(n, _)| !before.contains_key(n)).map(|(_, name)| name).collect()
    };
    let start = std::time::Instant::now();
    while !new().is_empty() && start.elapsed().as_secs() < 2 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    new()
}

fn open(device: DeviceChoice, model: &Path) -> Engine {
    let model = ModelSource::Path(model.to_owned());
    let options = EngineOptions { device, model, threads: Some(3), ..Default::default() };
    Engine::with_options(options).unwrap_or_else(|e| panic!("{e}"))
}

/// Opens engines and speaks, also on several threads at once; drops the engines in the middle of streams and
/// then the streams.
fn speak(device: DeviceChoice, talker: &Path) -> DeviceClass {
    let engine = open(device, &common::root().join("voices/orate-default/orate-default.gguf"));
    let mut stream = engine.stream("Hm.\n\nHm.", &Options::default()).expect("can be spoken");
    stream.next().expect("two pieces").expect("spoken");
    let class = engine.device_info().class;
    drop(engine);

    let engine = open(device, talker);
    let options = Options::default().set("max_frames", 12).set("codec_beside", true);
    std::thread::scope(|scope| {
        (0..2).for_each(|_| drop(scope.spawn(|| engine.speak("Hello.", &options).expect("speaks"))));
    });
    let mut talking = engine.stream("Hello there.", &options).expect("can be spoken");
    talking.next().expect("is long").expect("spoken");
    drop(engine);
    drop((stream, talking));
    class
}

#[test]
fn engines_leave_no_threads() {
    let folder = tempfile::tempdir().expect("a folder");
    write_random_qwen3_tts("custom_voice", folder.path(), 3).expect("the folder is writable");
    for device in child::devices() {
        let before = threads();
        let class = speak(device, folder.path());
        let stay = left(&before);
        println!("{device}: {stay:?} stay");
        // What a driver of hardware starts once for the process may stay, whatever its name.
        let allowed = |name: &String| match class {
            DeviceClass::Cpu => false,
            DeviceClass::Software => OF_LAVAPIPE.iter().any(|of| name.starts_with(of)),
            DeviceClass::Discrete | DeviceClass::Integrated => !name.starts_with("orate"),
        };
        assert!(stay.iter().all(allowed), "{device}: {stay:?}");
        let once = threads();
        speak(device, folder.path());
        let more = left(&once);
        assert!(more.is_empty(), "{device}: {more:?}, beside {stay:?} that the first time left");
    }
}
