//! Decoding is for any network: here for one of two lanes and one code per frame.

use crate::toy_network::{START, STOP, Toy, ToyPrompt, VOCABULARY, settings};
use orate_graph::{
    Device, DeviceInfo, Memory, ModelOnDevice, Op, Pacing, Plan, Target, ValueInfo, WeightLoader,
};
use orate_models::FinishReason;
use orate_models::decoding::{Decoding, DrawSettings, Sampling, Session, StartOptions, Step};
use orate_testing::ReferenceDevice;
use std::collections::HashSet;
use std::sync::Arc;

/// The reference device, paced like one whose memories have queues.
struct Queued;

impl Target for Queued {
    fn name(&self) -> String {
        ReferenceDevice.name()
    }

    fn kernel(&self, op: &Op, inputs: &[&ValueInfo]) -> Result<String, String> {
        ReferenceDevice.kernel(op, inputs)
    }
}

impl Device for Queued {
    fn open(&self, weights: Arc<dyn WeightLoader + Send + Sync>) -> Box<dyn ModelOnDevice> {
        ReferenceDevice.open(weights)
    }

    fn memory(&self) -> Box<dyn Memory> {
        ReferenceDevice.memory()
    }

    fn threads(&self) -> usize {
        1
    }

    fn pacing(&self) -> Pacing {
        Pacing::QUEUES
    }

    fn memory_kept(&self) -> usize {
        1 << 20
    }

    fn weight_bytes(&self, plans: &[Plan], source: &dyn WeightLoader) -> u64 {
        ReferenceDevice.weight_bytes(plans, source)
    }

    fn info(&self) -> DeviceInfo {
        ReferenceDevice.info()
    }
}

fn toy(device: Arc<dyn Device>) -> Decoding<Toy> {
    Decoding::new(Toy::new(device), 1 << 20)
}

fn prompt(i: usize) -> ToyPrompt {
    let text = (0..5 + 3 * (i % 4)).map(|k| (k * 7 + i) as i32 % 29);
    ToyPrompt { ids: [1, 2, 3].into_iter().chain(text).collect(), voice: 3 }
}

fn start(toy: &Decoding<Toy>, i: usize, settings: DrawSettings) -> Session<Toy> {
    toy.start(&prompt(i), settings, StartOptions::default()).expect("starts")
}

fn rest_of(session: &mut Session<Toy>) -> (Vec<i32>, FinishReason) {
    let (mut all, mut codes) = (vec![], vec![]);
    loop {
        match session.next_frame(&mut codes).expect("goes on") {
            Step::Frame => all.extend(&codes),
            Step::End(reason) => return (all, reason),
        }
    }
}

fn with(sampling: Sampling, max_frames: usize) -> DrawSettings {
    DrawSettings { sampling: vec![sampling], ..settings(0, max_frames) }
}

/// Each code is the most likely one of what guidance and penalty make of both lanes' logits.
#[test]
fn greedy_codes_follow_from_both_lanes() {
    let toy = toy(Arc::new(ReferenceDevice));
    let mut changed = 0;
    for guidance in [0.0, 1.5] {
        for penalty in [1.0f32, 3.0] {
            let sampling = Sampling { guidance, repetition_penalty: penalty, ..Sampling::GREEDY };
            let mut session = start(&toy, 1, with(sampling, 12));
            let (mut seen, mut codes, mut logits) = (HashSet::from([START]), vec![], vec![]);
            for frame in 0..12 {
                let shape = session.read("logits", &mut logits).expect("is there");
                assert_eq!(shape.dims(), [2, 1, VOCABULARY]);
                let (text, no_text) = logits.split_at(VOCABULARY);
                let score = |id: usize| {
                    let x = text[id] + guidance * (text[id] - no_text[id]);
                    match seen.contains(&id) {
                        true if x < 0.0 => x * penalty,
                        true => x / penalty,
                        false => x,
                    }
                };
                let may = |id: &usize| *id < START || (*id == STOP && frame > 0);
                let best = (0..VOCABULARY).filter(may).max_by(|a, b| score(*a).total_cmp(&score(*b)));
                let best = best.expect("some are left");
                let plain = (0..VOCABULARY).filter(may).max_by(|a, b| text[*a].total_cmp(&text[*b]));
                changed += usize::from(plain != Some(best));
                match session.next_frame(&mut codes).expect("goes on") {
                    Step::Frame => assert_eq!(codes, [best as i32], "frame {frame}, guidance {guidance}"),
                    Step::End(_) => {
                        assert_eq!(best, STOP);
                        break;
                    }
                }
                seen.insert(best);
            }
        }
    }
    assert!(changed > 0, "neither guidance nor penalty had an effect");
}

/// Frames end by the stop code or their number, and a seed decides.
#[test]
fn utterances_end() {
    let toy = toy(Arc::new(ReferenceDevice));
    let all: Vec<_> = (0..12).map(|seed| rest_of(&mut start(&toy, 0, settings(seed, 40)))).collect();
    let again: Vec<_> = (0..12).map(|seed| rest_of(&mut start(&toy, 0, settings(seed, 40)))).collect();
    assert_eq!(all, again);
    assert!(all.iter().any(|(codes, _)| codes != &all[0].0), "seeds differ");
    assert!(all.iter().any(|(_, reason)| *reason == FinishReason::Stop));
    assert!(all.iter().all(|(codes, _)| codes.iter().all(|c| (0..START as i32).contains(c))));
    let sure = with(Sampling { min_p: 1.0, ..Sampling::PLAIN }, 9);
    let greedy = with(Sampling::GREEDY, 9);
    assert_eq!(rest_of(&mut start(&toy, 2, sure)), rest_of(&mut start(&toy, 2, greedy)), "min-p of 1");
}

/// A kept prefix, taps and look-ahead change nothing.
#[test]
fn how_an_utterance_is_decoded_changes_nothing() {
    for device in [Arc::new(ReferenceDevice) as Arc<dyn Device>, Arc::new(Queued)] {
        let toy = toy(device);
        let long = with(Sampling { temperature: 1.0, ..Sampling::GREEDY }, 20);
        let options =
            |taps, reserve, look_ahead| StartOptions { taps, reserve, look_ahead, pause_after: None };
        let mut first = start(&toy, 3, long.clone());
        assert_eq!(first.reused_rows(), 0);
        let want = rest_of(&mut first);
        drop(first);
        for how in [
            options(false, None, Some(false)),
            options(false, Some(0), Some(true)),
            options(true, None, None),
        ] {
            let mut session = toy.start(&prompt(3), long.clone(), how).expect("starts");
            assert_eq!(session.reused_rows(), if how.taps { 0 } else { 3 });
            assert_eq!(rest_of(&mut session), want, "{how:?}");
        }
        toy.forget_prefixes();
        assert_eq!(start(&toy, 3, long.clone()).reused_rows(), 0);
        assert!(toy.is_idle());
    }
}

/// Rows of a batch are what each would be alone; one returns to its session.
#[test]
fn rows_of_a_batch_are_what_they_are_alone() {
    const ALL: usize = 5;
    for device in [Arc::new(ReferenceDevice) as Arc<dyn Device>, Arc::new(Queued)] {
        let toy = toy(device);
        let started = |i: usize| start(&toy, i, settings(i as u64, 10 + i));
        let alone: Vec<_> = (0..ALL).map(|i| rest_of(&mut started(i))).collect();
        let mut batch = toy.batch();
        let mut sessions: Vec<_> = (0..ALL).map(started).collect();
        let mut codes = vec![vec![]; ALL];
        let mut rows = vec![];
        for frame in 0..30 {
            if let Some(session) = sessions.get_mut(frame) {
                rows.push(batch.join(session).expect("room"));
            }
            let made = batch.frame(|row, step, frame| {
                let i = rows.iter().position(|r| *r == row).expect("has joined");
                if step.expect("goes on") == Step::Frame {
                    codes[i].extend(frame);
                }
            });
            made.expect("goes on");
            if frame == 5 && batch.take(rows[2], &mut sessions[2]).expect("goes on") {
                codes[2].extend(rest_of(&mut sessions[2]).0);
            }
        }
        for (i, (want, _)) in alone.iter().enumerate() {
            assert_eq!(codes[i], *want, "utterance {i}");
        }
    }
}

/// Threads share passes over prompts and frames, in both lanes.
#[test]
fn threads_decode_together() {
    const ALL: usize = 8;
    for device in [Arc::new(ReferenceDevice) as Arc<dyn Device>, Arc::new(Queued)] {
        let toy = toy(device);
        let alone: Vec<_> = (0..ALL).map(|i| rest_of(&mut start(&toy, i, settings(i as u64, 15)))).collect();
        for _ in 0..3 {
            std::thread::scope(|threads| {
                for (i, (want, reason)) in alone.iter().enumerate() {
                    let toy = &toy;
                    threads.spawn(move || {
                        let options = StartOptions::default();
                        let settings = settings(i as u64, 15);
                        let utterance = toy.utterance(&prompt(i), settings, options, |_| Ok(()));
                        let mut utterance = utterance.expect("starts");
                        let (mut all, mut codes) = (vec![], vec![]);
                        let end = loop {
                            match utterance.next_frame(&mut codes).expect("goes on") {
                                Step::Frame => all.extend(&codes),
                                Step::End(end) => break end,
                            }
                        };
                        assert_eq!((&all, end), (want, *reason), "caller {i}");
                    });
                }
            });
            assert!(toy.is_idle());
        }
    }
}

/// What is out of range is refused by its name.
#[test]
fn settings_that_the_network_lacks_are_refused() {
    let toy = toy(Arc::new(ReferenceDevice));
    let refused = |settings: DrawSettings, words: &str| {
        let Err(e) = toy.start(&prompt(0), settings, StartOptions::default()) else { panic!("{words}") };
        assert!(e.to_string().contains(words), "{e}");
    };
    refused(DrawSettings { sampling: vec![], ..settings(0, 5) }, "this network has 1");
    refused(with(Sampling { min_p: 2.0, ..Sampling::PLAIN }, 5), "min_p is 2");
    refused(with(Sampling { guidance: -1.0, ..Sampling::PLAIN }, 5), "guidance is -1");
    refused(settings(0, 1000), "room for 400 together");
}
