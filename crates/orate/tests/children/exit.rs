//! A program that exits while a stream is open, while threads speak, or after its device was lost. It exits
//! at once, with the status it asked for, in whatever order things are torn down.
//!
//! `ORATE_TEST_DEVICES` names GPUs, as in the tests of devices; without it, and with the feature `gpu`,
//! `vulkan:0`.

use crate::child::{End, devices, in_a_child};
use crate::common;
use orate::{DeviceChoice, Engine, EngineOptions, ModelSource, Options};
use orate_testing::checkpoints::write_random_qwen3_tts;
use std::path::Path;
use std::process::exit;
use std::time::Duration;

/// The status of programs that end as they shall: not what a panic or a signal gives.
const STATUS: i32 = 42;

/// What the system says of that.
const ENDED: End = End::Badly(STATUS << 8);

fn built_in() -> ModelSource {
    ModelSource::Path(common::root().join("voices/orate-default/orate-default.gguf"))
}

/// Much smaller: a processor imitates GPUs slowly.
fn tiny() -> ModelSource {
    ModelSource::Path(common::golden("tiny3"))
}

fn open(device: DeviceChoice, model: &ModelSource) -> Engine {
    let options = EngineOptions { device, model: model.clone(), threads: Some(3), ..Default::default() };
    Engine::with_options(options).unwrap_or_else(|e| panic!("{e}"))
}

/// Runs a program on every device.
fn every_program_ends(what: &str, model: &ModelSource, program: impl Fn(DeviceChoice, &Engine)) {
    for device in devices() {
        let end = in_a_child(|| {
            let engine = open(device, model);
            program(device, &engine);
            unreachable!("it ends by itself");
        });
        assert_eq!(end, ENDED, "{device}: {what}");
    }
}

#[test]
fn with_a_stream_open() {
    every_program_ends("with a stream open", &tiny(), |_, engine| {
        let mut stream = engine.stream("Hm.\n\nHm.", &Options::default()).expect("can be spoken");
        stream.next().expect("two pieces").expect("spoken");
        exit(STATUS);
    });
}

#[test]
fn with_everything_leaked() {
    every_program_ends("with everything leaked", &tiny(), |device, engine| {
        std::mem::forget(open(device, &tiny()));
        let mut stream = engine.stream("Hm.\n\nHm.", &Options::default()).expect("can be spoken");
        stream.next().expect("two pieces").expect("spoken");
        std::mem::forget((stream, engine.clone()));
        exit(STATUS);
    });
}

#[test]
fn while_threads_speak() {
    every_program_ends("while threads speak", &built_in(), |device, engine| {
        for engine in [engine.clone(), engine.clone(), open(device, &built_in())] {
            std::thread::spawn(move || {
                loop {
                    engine.say("Hm.").expect("speaks");
                }
            });
        }
        std::thread::sleep(Duration::from_millis(700));
        exit(STATUS);
    });
}

fn talker(folder: &Path) -> ModelSource {
    write_random_qwen3_tts("custom_voice", folder, 3).expect("the folder is writable");
    ModelSource::Path(folder.to_owned())
}

/// The codec has work, and frames are under way.
#[test]
fn while_the_codec_is_at_work() {
    let folder = tempfile::tempdir().expect("a folder");
    every_program_ends("while the codec is at work", &talker(folder.path()), |_, engine| {
        let options = Options::default().set("max_frames", 100).set("codec_beside", true);
        let mut stream = engine.stream("Hello there.", &options).expect("can be spoken");
        stream.next().expect("is long").expect("spoken");
        stream.next().expect("is long").expect("spoken");
        exit(STATUS);
    });
}

#[test]
fn while_a_batch_is_under_way() {
    let folder = tempfile::tempdir().expect("a folder");
    every_program_ends("while a batch is under way", &talker(folder.path()), |_, engine| {
        for seed in 0..4 {
            let engine = engine.clone();
            std::thread::spawn(move || {
                let options = Options { seed, ..Options::default() }.set("max_frames", 40);
                loop {
                    engine.speak("Hello there.", &options).expect("speaks");
                }
            });
        }
        std::thread::sleep(Duration::from_millis(700));
        exit(STATUS);
    });
}

/// A driver's compiler registers handlers while it is at work. When they run, no thread is in the driver.
#[cfg(all(feature = "gpu", target_os = "linux"))]
#[test]
fn before_handlers_that_are_registered_later() {
    use orate::DeviceKind;
    use std::sync::atomic::{AtomicUsize, Ordering};
    static SAID: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn late() {
        let said = SAID.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_secs(2));
        if SAID.load(Ordering::SeqCst) != said {
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(1) };
        }
    }
    let device = DeviceChoice::Kind(DeviceKind::Vulkan, 0);
    let end = in_a_child(|| {
        let engine = open(device, &tiny());
        std::thread::spawn(move || {
            loop {
                engine.say("Hm.").expect("speaks");
                SAID.fetch_add(1, Ordering::SeqCst);
            }
        });
        while SAID.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(10));
        }
        // SAFETY: the handler takes and returns nothing, and does not unwind.
        assert_eq!(unsafe { libc::atexit(late) }, 0);
        exit(STATUS);
    });
    assert_eq!(end, ENDED);
}

#[cfg(feature = "gpu")]
#[test]
fn with_a_device_that_is_lost() {
    use orate::{DeviceKind, PrecisionPolicy};
    use std::sync::Arc;
    let end = in_a_child(|| {
        let device = orate_gpu::GpuDevice::new(Some(DeviceKind::Vulkan), 0, PrecisionPolicy::default(), None);
        let device = Arc::new(device.unwrap_or_else(|e| panic!("{e}")));
        let options = EngineOptions { model: tiny(), ..Default::default() };
        let engine = Engine::on_device(&options, device.clone()).expect("opens");
        let mut stream = engine.stream("Hm.\n\nHm.", &Options::default()).expect("can be spoken");
        stream.next().expect("two pieces").expect("spoken");
        device.lose();
        let said = engine.say("Hm.");
        exit(if said.is_err() { STATUS } else { 1 });
    });
    assert_eq!(end, ENDED);
}
