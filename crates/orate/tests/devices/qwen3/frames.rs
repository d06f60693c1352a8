//! How long a frame takes where it is spoken, beside what its plan takes: the difference is the host. At the
//! sizes of the 0.6B model and on random weights, without the codec.

use super::devices;
use super::first_audio::{TEXT, model};
use orate::Precision;
use orate_models::qwen3_tts::{
    Prompt, Qwen3Tts, Request, Sampling, Settings, Speaker, StartOptions, Step, TextFeeding,
};
use std::sync::{Arc, Barrier};
use std::time::Instant;

/// Frames of an utterance.
const FRAMES: usize = 100;

/// Runs of each, of which the fastest counts.
const RUNS: usize = 5;

fn prompt(model: &Qwen3Tts) -> (Prompt, Settings) {
    let x_vector = [0.1; 1024];
    let (speaker, feeding) = (Speaker::XVector(&x_vector), Some(TextFeeding::Whole));
    let request = Request { text: TEXT, speaker, language: Some("english"), instruct: None, feeding };
    let generation = &model.talking().expect("talks").generation;
    // What draws from random logits soon draws the end.
    let (first, others) = (Sampling::GREEDY, Sampling::GREEDY);
    let settings = Settings { first, predictor: others, max_frames: FRAMES, ..Settings::new(generation, 5) };
    (model.prompt(&request).expect("a prompt"), settings)
}

/// Milliseconds of a frame of an utterance alone, with frames made ahead or not.
fn alone(model: &Arc<Qwen3Tts>, ahead: bool) -> f64 {
    let (prompt, settings) = prompt(model);
    let mut session = model.start(&prompt, &settings).expect("starts");
    session.set_look_ahead(ahead);
    let mut codes = vec![];
    // The prompt is read until the first frame is there.
    assert_eq!(session.next_frame(&mut codes).expect("runs"), Step::Frame);
    let start = Instant::now();
    while session.next_frame(&mut codes).expect("runs") == Step::Frame {}
    start.elapsed().as_secs_f64() * 1e3 / (session.frames() - 1).max(1) as f64
}

/// Milliseconds of a frame of `rows` utterances in one batch, made by one thread.
fn batch(model: &Arc<Qwen3Tts>, rows: usize, ahead: bool) -> f64 {
    let (prompt, settings) = prompt(model);
    let mut batch = model.batch().expect("talks");
    batch.set_look_ahead(ahead);
    let mut sessions = vec![];
    for _ in 0..rows {
        let mut session = model.start(&prompt, &settings).expect("starts");
        batch.join(&mut session).expect("room");
        sessions.push(session);
    }
    batch.frame(|_, _, _| {}).expect("runs");
    let (start, mut frames) = (Instant::now(), 0);
    while !batch.is_empty() {
        batch.frame(|_, _, _| {}).expect("runs");
        frames += 1;
    }
    start.elapsed().as_secs_f64() * 1e3 / f64::from(frames)
}

/// Frames in a millisecond of as many callers, each in a thread of its own, from their prompts on.
fn callers(model: &Arc<Qwen3Tts>, count: usize) -> f64 {
    let (prompt, settings) = prompt(model);
    let barrier = Barrier::new(count + 1);
    let call = || {
        barrier.wait();
        let utterance = model.utterance(&prompt, &settings, StartOptions::default());
        let (mut utterance, mut codes) = (utterance.expect("starts"), vec![]);
        while utterance.next_frame(&mut codes).expect("runs") == Step::Frame {}
        utterance.frames()
    };
    std::thread::scope(|threads| {
        let callers: Vec<_> = (0..count).map(|_| threads.spawn(call)).collect();
        barrier.wait();
        let start = Instant::now();
        let frames: usize = callers.into_iter().map(|c| c.join().expect("no panic")).sum();
        frames as f64 / (start.elapsed().as_secs_f64() * 1e3)
    })
}

#[test]
#[ignore = "timing; run with --ignored --nocapture"]
fn bench_of_frames_as_they_are_spoken() {
    for device in devices(Precision::Bf16) {
        let what = format!("{} bf16", device.describe());
        let model = model(device);
        let best = |run: &dyn Fn() -> f64| (0..RUNS).map(|_| run()).fold(f64::INFINITY, f64::min);
        for ahead in [false, true] {
            let words = if ahead { "made ahead" } else { "one by one" };
            println!("{what}: a frame, {words}: {:.3} ms", best(&|| alone(&model, ahead)));
            for rows in [4, 16] {
                let time = best(&|| batch(&model, rows, ahead));
                println!("{what}: a frame of {rows} rows, {words}: {time:.3} ms");
            }
        }
        let most = |count: usize| (0..RUNS).map(|_| callers(&model, count)).fold(0.0, f64::max);
        let one = most(1);
        for count in [1, 4, 16] {
            let speed = if count == 1 { one } else { most(count) };
            println!(
                "{what}: {count} callers without a codec: {:.0} frames/s, {:.2} times one ({:.3} ms a frame \
                 of all)",
                speed * 1e3,
                speed / one,
                count as f64 / speed
            );
        }
    }
}
