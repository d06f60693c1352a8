//! A process that forks after an engine was made: the child is told so, whatever it asks for, and nothing
//! that it does hangs, crashes or reaches the parent's device. A program of its own, since it forks.
//!
//! `ORATE_TEST_DEVICES` names GPUs, as in the tests of devices; without it, and with the feature `gpu`,
//! `vulkan:0`.
#![cfg(target_os = "linux")]

#[path = "common/child.rs"]
mod child;
mod common;

use child::{End, devices, in_a_child};
use orate::{DeviceChoice, Engine, EngineOptions, ModelSource, Options, Size};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// A small model: a processor imitates GPUs slowly.
fn open(device: DeviceChoice) -> Engine {
    let model = ModelSource::Path(common::golden("tiny3"));
    let options = EngineOptions { device, model, threads: Some(3), ..Default::default() };
    Engine::with_options(options).unwrap_or_else(|e| panic!("{e}"))
}

fn speak(engine: &Engine) -> Vec<f32> {
    engine.speak("Hm.", &Options::default()).expect("speaks").samples
}

/// The message says what to do.
#[track_caller]
fn is_told<T>(result: orate::Result<T>) {
    match result {
        Ok(_) => panic!("it worked"),
        Err(e) => {
            assert!(e.to_string().contains("forked") && e.to_string().contains("open the model anew"), "{e}")
        }
    }
}

#[test]
fn a_child_is_told_and_leaves_the_parent_alone() {
    for device in devices() {
        let engine = open(device);
        let before = speak(&engine);
        let text = "Hm.\n\nHm.";
        let mut stream = engine.stream(text, &Options::default()).expect("can be spoken");
        stream.next().expect("two pieces").expect("spoken");
        let (mut childs_stream, childs_engine) = (stream, engine.clone());
        let end = in_a_child(|| {
            is_told(childs_engine.say("Hm."));
            is_told(childs_engine.warm_up());
            is_told(childs_engine.stream(text, &Options::default()).map(drop));
            is_told(childs_engine.plans(Size { tokens: 10, frames: 20 }, &Options::default()).map(drop));
            is_told(childs_stream.next().expect("the second piece is not spoken"));
            assert!(childs_stream.next().is_none());
            assert_eq!(childs_engine.device(), engine.device());
        });
        assert_eq!(end, End::Well, "{device}: what is asked for in a child");
        childs_stream.next().expect("two pieces").expect("the parent's stream goes on");

        let mut stream = engine.stream(text, &Options::default()).expect("can be spoken");
        stream.next().expect("two pieces").expect("spoken");
        // What the child drops is its own copy.
        let mut all = Some((stream, engine));
        let end = in_a_child(|| drop(all.take()));
        assert_eq!(end, End::Well, "{device}: dropping in a child");
        let (mut stream, engine) = all.take().expect("the child took a copy");
        stream.next().expect("two pieces").expect("spoken");
        drop(stream);
        assert!(speak(&engine) == before, "{device}: the parent speaks as before");
        drop(engine);
        assert!(speak(&open(device)) == before, "{device}: so does a new engine");
    }
}

#[test]
fn a_child_opens_an_engine_of_its_own() {
    let engine = open(DeviceChoice::Cpu);
    let before = speak(&engine);
    let end = in_a_child(|| {
        let own = open(DeviceChoice::Cpu);
        drop(engine.clone());
        assert!(speak(&own) == before);
    });
    assert_eq!(end, End::Well);
    assert!(speak(&engine) == before);
}

/// A team by itself works in a child, on the thread that there is.
#[test]
fn a_team_runs_in_a_child() {
    let team = orate_cpu::Team::new(3).expect("starts threads");
    let sum = || {
        let sum = AtomicUsize::new(0);
        team.run(1000, &|_, chunk| {
            sum.fetch_add(chunk, Ordering::Relaxed);
        });
        sum.into_inner()
    };
    assert_eq!(sum(), 499_500);
    assert_eq!(in_a_child(|| assert_eq!(sum(), 499_500)), End::Well);
    assert_eq!(sum(), 499_500);
}

/// The fork finds locks held and workers busy.
#[test]
fn another_thread_speaks_meanwhile() {
    for device in devices() {
        let engine = open(device);
        let before = speak(&engine);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let speaker = scope.spawn(|| {
                let mut times = 0;
                while !stop.load(Ordering::Relaxed) {
                    assert!(speak(&engine) == before, "{device}: the parent speaks on");
                    times += 1;
                }
                times
            });
            let voice = engine.voices()[0].name.clone();
            let mut childs = Some(engine.clone());
            for i in 0..20 {
                let end = in_a_child(|| {
                    let engine = childs.take().expect("every child has a copy");
                    is_told(engine.say("Hm."));
                    let voice = Some(voice.clone());
                    is_told(engine.stream("Hm.", &Options { voice, ..Default::default() }).map(drop));
                });
                if end != End::Well {
                    stop.store(true, Ordering::Relaxed);
                    panic!("{device}: child {i}: {end:?}");
                }
                std::thread::sleep(Duration::from_millis(3));
            }
            stop.store(true, Ordering::Relaxed);
            assert!(speaker.join().expect("does not panic") > 0);
        });
    }
}
