//! A GPU that is lost while engines speak on it: each call is told so in words that help, nobody waits for
//! ever, and an engine that is opened afterwards speaks as before.
//!
//! A device is taken away through wgpu, so these tests run on Vulkan whatever `ORATE_TEST_DEVICES` says.
#![cfg(feature = "gpu")]

use crate::common;
use crate::common::raw;
use orate::{
    Audio, DeviceChoice, DeviceKind, Engine, EngineOptions, Error, ModelSource, Options, PrecisionPolicy,
};
use orate_gpu::GpuDevice;
use orate_testing::checkpoints::write_random_qwen3_tts;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// What takes longer waits for ever.
const LONGEST: Duration = Duration::from_secs(120);

/// Runs what may hang on a thread of its own.
fn in_time(work: impl FnOnce() + Send + 'static) {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || {
        work();
        done.send(()).expect("is waited for");
    });
    result.recv_timeout(LONGEST).unwrap_or_else(|e| panic!("{e}: it hangs or has panicked"));
}

fn device() -> Arc<GpuDevice> {
    let opened = GpuDevice::new(Some(DeviceKind::Vulkan), 0, PrecisionPolicy::default(), None);
    Arc::new(opened.unwrap_or_else(|e| {
        panic!(
            "{e}\nthis test needs a GPU or Mesa's software Vulkan (Debian: apt-get install \
         mesa-vulkan-drivers)"
        )
    }))
}

fn on(device: &Arc<GpuDevice>, model: &ModelSource) -> Engine {
    let options = EngineOptions { model: model.clone(), ..Default::default() };
    Engine::on_device(&options, device.clone()).unwrap_or_else(|e| panic!("{e}"))
}

fn built_in() -> ModelSource {
    ModelSource::Path(common::root().join("voices/orate-default/orate-default.gguf"))
}

/// Much smaller: a processor imitates GPUs slowly.
fn tiny() -> ModelSource {
    ModelSource::Path(common::golden("tiny3"))
}

/// Takes the device away after a while.
fn lose_after(device: &Arc<GpuDevice>, delay: Duration) -> std::thread::JoinHandle<()> {
    let device = device.clone();
    std::thread::spawn(move || {
        std::thread::sleep(delay);
        device.lose();
    })
}

#[track_caller]
fn is_told<T>(result: Result<T, Error>) {
    let Err(e) = result else { panic!("it worked") };
    let says = ["`vulkan:0`", "was lost", "open the model anew or choose another device"];
    assert!(says.iter().all(|s| e.to_string().contains(s)), "{e}");
    assert_eq!(e.kind(), orate::ErrorKind::System);
}

/// The program goes on with a new engine, opened as users do.
fn speaks_again(model: &ModelSource, text: &str, want: &Audio) {
    let choice = DeviceChoice::Kind(DeviceKind::Vulkan, 0);
    let options = EngineOptions { model: model.clone(), device: choice, ..Default::default() };
    let engine = Engine::with_options(options).unwrap_or_else(|e| panic!("{e}"));
    assert!(engine.say(text).expect("speaks") == *want);
}

fn few_frames(frames: usize) -> Options {
    raw().set("max_frames", frames).set("retries", 0)
}

#[test]
fn an_open_stream_is_told_once() {
    in_time(|| {
        let device = device();
        let engine = on(&device, &tiny());
        let want = engine.say("Hm.").expect("speaks");
        let text = "Hm.\n\nHm.\n\nHm.";
        let mut stream = engine.stream(text, &raw()).expect("can be spoken");
        let mut untouched = engine.stream(text, &raw()).expect("can be spoken");
        stream.next().expect("three pieces").expect("spoken");
        device.lose();
        is_told(stream.next().expect("two pieces are left"));
        assert!(stream.next().is_none(), "nothing follows an error");
        is_told(untouched.next().expect("three pieces"));
        is_told(engine.say("Hm."));
        is_told(engine.warm_up());
        is_told(engine.speak_batch(&["Hm.", "Hm."], &raw()));
        is_told(engine.plans(orate::Size { tokens: 30, frames: 40 }, &raw()).map(drop));
        drop(engine);
        drop((stream, untouched));
        speaks_again(&tiny(), "Hm.", &want);
    });
}

#[test]
fn a_device_may_be_lost_before_the_first_word() {
    in_time(|| {
        let device = device();
        let engine = on(&device, &tiny());
        device.lose();
        is_told(engine.say("Hm."));
        // On the same device, which is still the lost one.
        is_told(on(&device, &tiny()).say("Hm."));
    });
}

/// One device, two engines, both speaking; a third has a device of its own.
#[test]
fn two_engines_lose_their_device() {
    in_time(|| {
        let (device, apart) = (device(), device());
        let (one, other, third) = (on(&device, &tiny()), on(&device, &tiny()), on(&apart, &tiny()));
        let want = third.say("Hm.").expect("speaks");
        std::thread::scope(|scope| {
            let speak = |engine: &Engine| loop {
                match engine.say("Hm.") {
                    Ok(audio) => assert!(audio == want, "whole, or an error"),
                    e => return e,
                }
            };
            let both = [&one, &other].map(|engine| scope.spawn(move || speak(engine)));
            lose_after(&device, Duration::from_millis(300)).join().expect("does not panic");
            both.into_iter().for_each(|speaker| is_told(speaker.join().expect("does not panic")));
        });
        assert!(third.say("Hm.").expect("its device is there") == want);
        drop(other);
        is_told(one.say("Hm."));
        speaks_again(&tiny(), "Hm.", &want);
    });
}

/// At any moment of a text: while plans are made, kernels compiled, steps run, samples read.
#[test]
fn a_device_is_lost_at_any_moment() {
    in_time(|| {
        let want = on(&device(), &built_in()).say("Hm.").expect("speaks");
        for delay in [0, 5, 20, 50, 100, 200, 400, 800] {
            let device = device();
            let engine = on(&device, &built_in());
            let loser = lose_after(&device, Duration::from_millis(delay));
            let end = loop {
                match engine.say("Hm.") {
                    Ok(audio) => assert!(audio == want, "whole, or an error"),
                    e => break e,
                }
            };
            loser.join().expect("does not panic");
            is_told(end);
        }
        speaks_again(&built_in(), "Hm.", &want);
    });
}

/// The codec runs on a thread of its own, and a frame is on its way.
#[test]
fn a_talker_loses_its_device() {
    in_time(|| {
        let folder = tempfile::tempdir().expect("a folder");
        write_random_qwen3_tts("custom_voice", folder.path(), 3).expect("the folder is writable");
        let model = ModelSource::Path(folder.path().to_owned());
        let want = on(&device(), &model).speak("Hello.", &few_frames(5)).expect("speaks");
        for frames in [1, 3] {
            let device = device();
            let engine = on(&device, &model);
            let mut stream = engine.stream("Hello there.", &few_frames(60)).expect("can be spoken");
            for _ in 0..frames {
                stream.next().expect("is long").expect("spoken");
            }
            device.lose();
            // Chunks that were made before may still come.
            let end = stream.find(Result::is_err).expect("ends with an error");
            is_told(end);
            assert!(stream.next().is_none(), "nothing follows an error");
            is_told(engine.speak("Hello.", &few_frames(5)));
        }
        assert!(on(&device(), &model).speak("Hello.", &few_frames(5)).expect("speaks") == want);
    });
}

/// Several utterances make their frames together: each is told, also those that wait for others to make one.
#[test]
fn a_batch_loses_its_device() {
    in_time(|| {
        let folder = tempfile::tempdir().expect("a folder");
        write_random_qwen3_tts("custom_voice", folder.path(), 3).expect("the folder is writable");
        let model = ModelSource::Path(folder.path().to_owned());
        for delay in [0, 100, 400, 1000] {
            let device = device();
            let engine = on(&device, &model);
            let loser = lose_after(&device, Duration::from_millis(delay));
            std::thread::scope(|scope| {
                let speak = |i: u64| {
                    let options = Options { seed: i, ..few_frames(200) };
                    (0..1000).find_map(|_| engine.speak("Hello there, all of you.", &options).err())
                };
                let all: Vec<_> = (0..5).map(|i| scope.spawn(move || speak(i))).collect();
                for speaker in all {
                    is_told(speaker.join().expect("does not panic").map_or(Ok(()), Err));
                }
            });
            loser.join().expect("does not panic");
            is_told(engine.speak("Hello.", &few_frames(3)));
            is_told(engine.speak_batch(&["One.", "Two.", "Three."], &few_frames(3)));
        }
    });
}
