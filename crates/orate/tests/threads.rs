//! Engines leave no threads behind. A program of its own, since tests beside it would have theirs.
#![cfg(target_os = "linux")]

mod common;

use orate::{DeviceChoice, Engine, EngineOptions, Model, Options};

fn threads() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|l| l.strip_prefix("Threads:")).expect("is there");
    line.trim().parse().expect("a number")
}

/// Threads that end may take a moment to be gone.
fn settles_at(wanted: usize) -> bool {
    let start = std::time::Instant::now();
    while threads() != wanted && start.elapsed().as_secs() < 10 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    threads() == wanted
}

/// Opens an engine, speaks, drops the engine in the middle of a stream and then the stream.
fn speak(device: DeviceChoice) {
    let model = Model::Path(common::root().join("voices/orate-default/orate-default.gguf"));
    let engine =
        Engine::with_options(EngineOptions { device, model, threads: Some(3), ..Default::default() });
    let engine = engine.unwrap_or_else(|e| panic!("{e}"));
    let mut stream = engine.stream("Hm.\n\nHm.", &Options::default()).expect("can be spoken");
    stream.next().expect("two pieces").expect("spoken");
    drop(engine);
}

#[test]
fn engines_leave_no_threads() {
    let before = threads();
    for _ in 0..3 {
        speak(DeviceChoice::Cpu);
        assert!(settles_at(before), "{} threads, {before} before", threads());
    }
    if cfg!(feature = "gpu") {
        let device: DeviceChoice = "vulkan:0".parse().expect("a device");
        // What a driver starts once for the process may stay.
        speak(device);
        std::thread::sleep(std::time::Duration::from_millis(500));
        let once = threads();
        for _ in 0..3 {
            speak(device);
            assert!(settles_at(once), "{device}: {} threads, {once} after the first time", threads());
        }
    }
}
