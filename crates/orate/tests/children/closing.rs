//! Engines that are dropped give files and threads back, on every device.

use crate::child::{End, devices, in_a_child};
use crate::common;
use orate::{DeviceChoice, Engine, EngineOptions, ModelSource, Options};
use std::time::{Duration, Instant};

/// Open files and threads of this process.
fn open_now() -> [usize; 2] {
    ["/proc/self/fd", "/proc/self/task"]
        .map(|folder| std::fs::read_dir(folder).expect("Linux has it").count())
}

fn speak_and_close(device: DeviceChoice) {
    let model = ModelSource::Path(common::root().join("voices/orate-default/orate-default.gguf"));
    let options = EngineOptions { device, model, threads: Some(2), ..Default::default() };
    let engine = Engine::with_options(options).unwrap_or_else(|e| panic!("{e}"));
    engine.speak("Hm.", &Options::default().set("steps", 1)).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn engines_give_back_what_they_open() {
    for device in devices() {
        let end = in_a_child(|| {
            speak_and_close(device);
            speak_and_close(device);
            let (before, start) = (open_now(), Instant::now());
            // As many as a fast device opens in ten seconds.
            let mut engines = 0;
            while engines < 3 || engines < 100 && start.elapsed() < Duration::from_secs(10) {
                speak_and_close(device);
                engines += 1;
            }
            // Threads may still be ending.
            let start = Instant::now();
            while open_now() != before && start.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(20));
            }
            let after = open_now();
            println!(
                "{device}: files and threads {before:?} after two engines, {after:?} after {engines} more"
            );
            assert!(after[0] <= before[0] && after[1] <= before[1], "{device}: {before:?} became {after:?}");
        });
        assert_eq!(end, End::Well, "{device}");
    }
}
