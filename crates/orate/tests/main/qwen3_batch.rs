//! Utterances of Qwen3-TTS side by side: each is what it would be alone.

mod queues;

use crate::broken_row;
use crate::common::Opened;
use crate::common::raw;
use orate::{
    Cancel, DeviceChoice, Engine, EngineOptions, Error, FinishReason, ModelSource, Options, Precision,
    PrecisionPolicy,
};
use orate_cpu::{CpuDevice, Isa};
use orate_graph::{Counters, Pacing, Shape};
use orate_models::qwen3_tts::{
    Batch, CodecDecoder, Files, Prompt, Qwen3Tts, Request, RowId, Sampling, Session, Settings, Speaker,
    StartOptions, Step, Utterance,
};
use orate_models::{Model, ModelError};
use orate_testing::assert_close;
use orate_testing::checkpoints::write_random_qwen3_tts;
use queues::{HasRoom, Record, WithQueues};
use std::collections::HashMap;
use std::sync::{Arc, Barrier};

fn engine(precision: Precision, isa: Option<&str>) -> Opened {
    let folder = tempfile::tempdir().expect("a folder");
    write_random_qwen3_tts("custom_voice", folder.path(), 3).expect("the folder is writable");
    let options = EngineOptions {
        model: ModelSource::Path(folder.path().to_owned()),
        device: DeviceChoice::Cpu,
        threads: Some(2),
        isa: isa.map(str::to_owned),
        precision: PrecisionPolicy::uniform(precision).into(),
        ..Default::default()
    };
    let engine = Engine::with_options(options).expect("a whole model");
    Opened { engine, folder }
}

/// Utterance `i`: prompts of several lengths, budgets and ways to draw.
fn utterance(model: &Qwen3Tts, i: usize) -> (Prompt, Settings) {
    utterance_of(model, i, i % 4 * 3)
}

/// Utterance `i` of a text with a phrase that occurs `repeats` times.
fn utterance_of(model: &Qwen3Tts, i: usize, repeats: usize) -> (Prompt, Settings) {
    let text = format!("Number {i}{}.", " and so on, and on, and on".repeat(repeats));
    let names = ["aiden", "dylan", "ryan"];
    let request = Request {
        text: &text,
        speaker: Speaker::Named(names[i % 3]),
        language: if i.is_multiple_of(2) { Some("en") } else { None },
        instruct: None,
        feeding: None,
    };
    let mut settings = Settings::new(&model.talking().expect("talks").generation, 7 * i as u64);
    settings.max_frames = 9 + 5 * i % 17;
    if i % 5 == 3 {
        settings.first = Sampling { repetition_penalty: 1.1, ..Sampling::GREEDY };
        settings.predictor = Sampling::GREEDY;
    }
    (model.prompt(&request).expect("speakable"), settings)
}

fn started(model: &Arc<Qwen3Tts>, i: usize) -> Session {
    let (prompt, settings) = utterance(model, i);
    model.start(&prompt, &settings).expect("starts")
}

/// Codes up to the end of a session, and why it ended.
fn rest_of(session: &mut Session) -> (Vec<i32>, FinishReason) {
    frames_of(|codes| session.next_frame(codes))
}

/// Codes of all frames that `next` makes, and why it ended.
fn frames_of(mut next: impl FnMut(&mut Vec<i32>) -> Result<Step, ModelError>) -> (Vec<i32>, FinishReason) {
    let (mut all, mut codes) = (vec![], vec![]);
    loop {
        match next(&mut codes).expect("goes on") {
            Step::Frame => all.extend(&codes),
            Step::End(reason) => return (all, reason),
        }
    }
}

/// A batch whose utterances come and go.
struct Company {
    batch: Batch,
    /// Calls that made frames, and what was asked of the device for all of them.
    calls: u64,
    used: Counters,
    of_row: HashMap<RowId, usize>,
    codes: Vec<Vec<i32>>,
    ends: Vec<Option<FinishReason>>,
}

impl Company {
    fn join(&mut self, i: usize, session: &mut Session) -> RowId {
        let row = self.batch.join(session).expect("room");
        self.of_row.insert(row, i);
        row
    }

    fn frame(&mut self) {
        let Company { batch, calls, used: all, of_row, codes, ends } = self;
        let used = batch.frame(|row, step, frame| match step.expect("goes on") {
            Step::Frame => codes[of_row[&row]].extend(frame),
            Step::End(reason) => ends[of_row[&row]] = Some(reason),
        });
        let used = used.expect("goes on");
        // The first call makes its own frame too where frames are made ahead.
        assert!(used.submissions <= 2 && used.submissions == used.read_backs, "{used:?}");
        assert!(used.bytes_down <= 2 * 64 * 16 && used.bytes_up <= 2 * 16 * 48, "{used:?}");
        *calls += u64::from(used != Counters::default());
        *all += used;
    }
}

/// Rows join one after the other, two a frame; one is dropped, and one goes back to its session. With frames
/// made `ahead`, or not.
fn check(engine: &Engine, ahead: bool) {
    const ALL: usize = Pacing::SHARED_THREADS.batch;
    const DROPPED: usize = 4;
    const TAKEN: usize = 6;
    let model = &engine.model_as::<Qwen3Tts>().expect("is one");
    let alone: Vec<_> = (0..ALL).map(|i| rest_of(&mut started(model, i))).collect();
    let mut batch = model.batch().expect("talks");
    batch.set_look_ahead(ahead);
    let (codes, ends) = (vec![vec![]; ALL], vec![None; ALL]);
    let (calls, used) = (0, Counters::default());
    let mut all = Company { batch, calls, used, of_row: HashMap::new(), codes, ends };
    let mut sessions: Vec<Session> = (0..ALL).map(|i| started(model, i)).collect();
    sessions.iter_mut().for_each(|s| s.set_look_ahead(ahead));
    // One was on its way before it came.
    let mut codes = vec![];
    assert_eq!(sessions[1].next_frame(&mut codes).expect("goes on"), Step::Frame);
    all.codes[1].extend(&codes);
    let (mut rows, mut most) = (vec![], 0);
    for frame in 0..100 {
        for (i, session) in sessions.iter_mut().enumerate().skip(2 * frame).take(2) {
            rows.push(all.join(i, session));
        }
        all.frame();
        most = most.max(all.batch.rows());
        match frame {
            6 => all.batch.leave(rows[DROPPED]),
            7 => {
                let there = all.batch.take(rows[TAKEN], &mut sessions[TAKEN]).expect("goes on");
                if !there {
                    // It has ended, by chance.
                    continue;
                }
                let (codes, reason) = rest_of(&mut sessions[TAKEN]);
                all.codes[TAKEN].extend(codes);
                all.ends[TAKEN] = Some(reason);
            }
            _ => {}
        }
        if frame > 8 && all.batch.is_empty() {
            break;
        }
    }
    assert!(most > 4 && all.batch.is_empty(), "{most} rows at most");
    assert!((all.calls..=all.calls + u64::from(ahead)).contains(&all.used.submissions), "{:?}", all.used);
    for (i, (codes, reason)) in alone.iter().enumerate() {
        if i == DROPPED {
            assert!(codes.starts_with(&all.codes[i]), "{}: utterance {i}", engine.device());
            continue;
        }
        assert_eq!(all.codes[i], *codes, "{} {}: utterance {i}", engine.device(), engine.precision());
        assert_eq!(all.ends[i], Some(*reason), "{}: utterance {i}", engine.device());
    }
    // Another round makes no plans.
    let before = model.plans_made();
    let mut session = started(model, 0);
    let mut other = started(model, 1);
    all.codes = vec![vec![]; ALL];
    all.join(0, &mut session);
    all.join(1, &mut other);
    (0..40).for_each(|_| all.frame());
    assert_eq!((&all.codes[0], &all.codes[1]), (&alone[0].0, &alone[1].0));
    assert_eq!(model.plans_made(), before, "all plans were there");
}

#[test]
fn rows_are_what_they_would_be_alone() {
    for precision in [Precision::F32, Precision::Bf16, Precision::Q8_0, Precision::Q4_0] {
        check(&engine(precision, None), false);
        check(&engine(precision, None), true);
    }
}

/// A frame that is made ahead goes where its utterance goes: to the batch, from there to the session, and to
/// its caller.
#[test]
fn what_is_under_way_moves_with_its_row() {
    let engine = engine(Precision::F32, None);
    let model = &engine.model_as::<Qwen3Tts>().expect("is one");
    let ahead = |i: usize| {
        let mut session = started(model, i);
        session.set_look_ahead(true);
        session
    };
    let alone: Vec<_> = (0..2).map(|i| rest_of(&mut started(model, i))).collect();
    // Frames made alone, in the batch, and alone again.
    for (first, together) in [(0, 0), (1, 0), (0, 1), (2, 2), (3, 1)] {
        let mut batch = model.batch().expect("talks");
        batch.set_look_ahead(true);
        let mut sessions = [ahead(0), ahead(1)];
        let (mut heard, mut codes) = ([vec![], vec![]], vec![]);
        for _ in 0..first {
            assert_eq!(sessions[0].next_frame(&mut codes).expect("goes on"), Step::Frame);
            heard[0].extend(&codes);
        }
        let [mine, other] = &mut sessions;
        let rows = [batch.join(mine).expect("room"), batch.join(other).expect("room")];
        for _ in 0..together {
            let mut each = |row, step: Result<Step, ModelError>, frame: &[i32]| {
                assert_eq!(step.expect("goes on"), Step::Frame);
                heard[usize::from(row == rows[1])].extend(frame);
            };
            batch.frame(&mut each).expect("goes on");
        }
        for i in 0..2 {
            assert!(batch.take(rows[i], &mut sessions[i]).expect("goes on"), "has not ended");
            assert_eq!(sessions[i].frames(), heard[i].len() / 16);
            heard[i].extend(rest_of(&mut sessions[i]).0);
        }
        assert_eq!(heard, [alone[0].0.clone(), alone[1].0.clone()], "{first} frames, then {together}");
    }
}

/// A session that makes frames ahead hands out the same frames, makes one too many only where speech ends by
/// itself, and lets nobody see what is between two frames.
#[test]
fn a_session_makes_frames_ahead() {
    let engine = engine(Precision::F32, None);
    let model = &engine.model_as::<Qwen3Tts>().expect("is one");
    let mut stops = 0;
    // The cache grows on the way, and the device has a rest after two frames.
    let options = StartOptions {
        reserve: Some(1),
        look_ahead: Some(true),
        pause_after: Some(2),
        ..StartOptions::default()
    };
    for i in 0..20 {
        let (want, reason) = rest_of(&mut started(model, i));
        let (prompt, settings) = utterance(model, i);
        let mut session = model.start_with(&prompt, &settings, options).expect("starts");
        let before = session.counters();
        let used = |s: &Session| s.counters() - before;
        let mut codes = vec![];
        if i % 3 == 0 && session.next_frame(&mut codes).expect("goes on") == Step::Frame {
            let under_way = u64::from(settings.max_frames > 1);
            assert_eq!(used(&session).submissions, 1 + under_way, "one is under way");
            let e = session.give_frame(&codes).expect_err("cannot be taken back").to_string();
            assert!(e.contains("the next frame was made already"), "{e}");
            assert!(session.read("hidden", &mut vec![]).is_err());
            session = model.start_with(&prompt, &settings, options).expect("starts, whatever is under way");
            assert!(session.read("hidden", &mut vec![]).is_ok());
        }
        let before = session.counters();
        assert_eq!(rest_of(&mut session), (want.clone(), reason), "utterance {i}");
        let frames = want.len() as u64 / 16;
        let more = match reason {
            FinishReason::Stop => 1 + u64::from(frames + 1 < settings.max_frames as u64 && frames != 1),
            _ => 0,
        };
        stops += u64::from(more > 0);
        let used = session.counters() - before;
        assert_eq!((used.submissions, used.read_backs), (frames + more, frames + more), "utterance {i}");
        assert_eq!((used.bytes_up, used.bytes_down), (0, 64 * (frames + more)));
        let e = model.batch().expect("talks").join(&mut session).expect_err("has ended");
        assert!(e.to_string().contains("after its end"), "{e}");
    }
    assert!(stops > 0, "all were ended by their length");
}

#[test]
fn rows_are_the_same_on_every_instruction_set() {
    for isa in Isa::available() {
        check(&engine(Precision::F32, Some(isa.name())), false);
        check(&engine(Precision::Q8_0, Some(isa.name())), false);
    }
}

#[test]
fn a_row_without_numbers_fails_alone() {
    let device = DeviceChoice::Cpu;
    broken_row::fails_alone(EngineOptions { device, threads: Some(2), ..Default::default() });
}

#[test]
fn a_full_batch_refuses_more() {
    let engine = engine(Precision::F32, None);
    let model = &engine.model_as::<Qwen3Tts>().expect("is one");
    let mut batch = model.batch().expect("talks");
    let mut sessions: Vec<_> = (0..=Pacing::SHARED_THREADS.batch).map(|i| started(model, i)).collect();
    let rows: Vec<_> =
        sessions[..Pacing::SHARED_THREADS.batch].iter_mut().map(|s| batch.join(s).expect("room")).collect();
    let e = batch.join(&mut sessions[Pacing::SHARED_THREADS.batch]).expect_err("is full").to_string();
    assert!(e.contains("more than 16 utterances"), "{e}");
    batch.leave(rows[3]);
    batch.join(&mut sessions[Pacing::SHARED_THREADS.batch]).expect("a row is free");
}

fn with_queues() -> (Arc<Qwen3Tts>, Arc<Record>) {
    with_room_for(|_, _| true)
}

/// A model on a device that has room for some states only.
fn with_room_for(has_room: HasRoom) -> (Arc<Qwen3Tts>, Arc<Record>) {
    let folder = tempfile::tempdir().expect("a folder");
    write_random_qwen3_tts("custom_voice", folder.path(), 3).expect("the folder is writable");
    let cpu = CpuDevice::new(1, Isa::detect().expect("a supported processor")).expect("threads start");
    let files = Files::open(folder.path()).expect("a whole model");
    let record = Arc::<Record>::default();
    (Qwen3Tts::new(files, Arc::new(WithQueues { cpu, record: record.clone(), has_room })), record)
}

/// Callers that share frames made ahead get those that each would get alone, while others go away; the next
/// ones find the memories of those before.
#[test]
fn callers_share_frames_made_ahead() {
    share_frames(|_, _| true);
}

/// The same where the device has room for no more than four rows: the others wait for one.
#[test]
fn callers_without_room_wait_for_others() {
    share_frames(|_, shape| shape.dims()[0] <= 4);
}

/// Caches have rows to spare, unless those of all callers only fit without.
#[test]
fn caches_are_as_short_as_they_can_be_where_room_is_scarce() {
    const CALLERS: [usize; 5] = [0, 4, 8, 12, 16];
    for (positions, rows) in [(8 * 512, 8), (8 * 64, 8), (4 * 64, 4)] {
        let has_room: HasRoom = match positions {
            256 => |name, shape| !name.contains("keys") || shape.dims()[0] * shape.dims()[1] <= 256,
            512 => |name, shape| !name.contains("keys") || shape.dims()[0] * shape.dims()[1] <= 512,
            _ => |name, shape| !name.contains("keys") || shape.dims()[0] * shape.dims()[1] <= 4096,
        };
        let (model, _) = with_room_for(has_room);
        let mut sessions = CALLERS.map(|i| started(&model, i));
        let mut batch = model.batch().expect("talks");
        let joined: Vec<_> = sessions.iter_mut().map_while(|s| batch.join(s).ok()).collect();
        assert_eq!((batch.rows(), joined.len()), (rows, rows.min(CALLERS.len())), "{positions} positions");
        let mut heard: Vec<Vec<i32>> = vec![vec![]; joined.len()];
        while !batch.is_empty() {
            let each = |row: RowId, step: Result<Step, ModelError>, codes: &[i32]| {
                if step.expect("goes on") == Step::Frame {
                    heard[joined.iter().position(|j| *j == row).expect("is one of them")].extend(codes);
                }
            };
            batch.frame(each).expect("goes on");
        }
        for (heard, i) in heard.iter().zip(CALLERS) {
            assert_eq!(*heard, rest_of(&mut started(&model, i)).0, "caller {i}");
        }
    }
}

/// Caches are extended when the longest utterance has filled them. Where there is no room for that, fewer
/// share a batch, or none.
#[test]
fn caches_are_extended_while_callers_speak() {
    const CALLERS: [usize; 6] = [1, 5, 9, 17, 21, 25];
    // Each utterance outgrows 64 rows of cache. So few frames wait for their caller that none is parked.
    const FRAMES: usize = 40;
    fn has_room(name: &str, shape: &Shape, most: usize) -> bool {
        if !name.contains("keys") {
            return true;
        }
        let (rows, capacity) = (shape.dims()[0], shape.dims()[1]);
        // No caches that have room for all from the beginning.
        capacity <= 256 && (rows == 1 || rows * capacity <= most)
    }
    // Room, and the first extensions: rows, capacity, and whether it was granted.
    let all: (HasRoom, &[_]) = (|name, shape| has_room(name, shape, usize::MAX), &[(8, 128, true)]);
    let fewer: (HasRoom, &[_]) =
        (|name, shape| has_room(name, shape, 8 * 64), &[(8, 128, false), (4, 128, true)]);
    let none: (HasRoom, &[_]) = (|name, shape| has_room(name, shape, 2 * 64), &[(2, 128, false)]);
    let options = StartOptions { reserve: Some(1), ..StartOptions::default() };
    let (model, _) = with_queues();
    let callers = CALLERS.map(|i| {
        let (prompt, settings) = utterance_of(&model, i, 2);
        // Up to two frames for each caller are made before all have joined. They still fit 64 rows.
        assert!((32..48).contains(&prompt.rows.len()), "{} rows", prompt.rows.len());
        // Random weights soon draw the end.
        let long = (0..1000).find_map(|seed| {
            let settings = Settings { seed, max_frames: FRAMES, ..settings };
            let alone = rest_of(&mut model.start(&prompt, &settings).expect("starts"));
            (alone.1 == FinishReason::Length).then_some((settings, alone))
        });
        let (settings, alone) = long.expect("one does not end by itself");
        (prompt, settings, alone)
    });
    for (room, extensions) in [all, fewer, none] {
        let (model, record) = with_room_for(room);
        let start = |i: usize| model.utterance(&callers[i].0, &callers[i].1, options).expect("starts");
        let go_on = |i: usize, mut utterance: Utterance, mut heard: Vec<i32>| {
            let (codes, end) = frames_of(|codes| utterance.next_frame(codes));
            heard.extend(codes);
            assert_eq!((heard, end), callers[i].2, "caller {}", CALLERS[i]);
        };
        // All join before the first thread runs: on a busy machine, threads may run one after the other.
        let mut utterances: Vec<_> = (0..CALLERS.len()).map(start).collect();
        let mut heard = vec![vec![]; CALLERS.len()];
        for (utterance, codes) in utterances.iter_mut().zip(&mut heard) {
            assert_eq!(utterance.next_frame(codes).expect("goes on"), Step::Frame);
        }
        std::thread::scope(|threads| {
            for (i, (utterance, heard)) in utterances.into_iter().zip(heard).enumerate() {
                let go_on = &go_on;
                threads.spawn(move || go_on(i, utterance, heard));
            }
        });
        assert!(model.talker().expect("talks").is_idle(), "nothing of a batch is left");
        let asked = record.extensions();
        assert!(asked.starts_with(extensions), "{asked:?} is not {extensions:?} at first");
        // Callers that join at any time. They may not overlap, so only their results are checked.
        std::thread::scope(|threads| {
            for i in 0..CALLERS.len() {
                let (start, go_on) = (&start, &go_on);
                threads.spawn(move || go_on(i, start(i), vec![]));
            }
        });
        assert!(model.talker().expect("talks").is_idle(), "nothing of a batch is left");
    }
}

fn share_frames(has_room: HasRoom) {
    const ALL: usize = 9;
    const GOES_AWAY: usize = 4;
    let (model, _) = with_room_for(has_room);
    let alone: Vec<_> = (0..ALL)
        .map(|i| {
            let mut session = started(&model, i);
            session.set_look_ahead(false);
            rest_of(&mut session)
        })
        .collect();
    for round in 0..4 {
        std::thread::scope(|threads| {
            for (i, (want, reason)) in alone.iter().enumerate() {
                let model = &model;
                threads.spawn(move || {
                    let (prompt, settings) = utterance(model, i);
                    let options = StartOptions { pause_after: Some(1 + i % 3), ..StartOptions::default() };
                    let mut utterance = model.utterance(&prompt, &settings, options).expect("starts");
                    let (mut heard, mut codes) = (vec![], vec![]);
                    loop {
                        match utterance.next_frame(&mut codes).expect("goes on") {
                            Step::Frame => heard.extend(&codes),
                            Step::End(end) => {
                                assert_eq!((&heard, end), (want, *reason), "round {round}, caller {i}");
                                break;
                            }
                        }
                        if i == GOES_AWAY && heard.len() >= 16 * (1 + round) {
                            assert!(want.starts_with(&heard), "round {round}");
                            break;
                        }
                    }
                });
            }
        });
        assert!(model.talker().expect("talks").is_idle(), "nothing of a batch is left");
    }
}

/// Prompts that come at once are read in one pass, and each leaves behind what it would alone.
#[test]
fn callers_read_their_prompts_together() {
    // Enough for single prompts to be prefilled in workspaces.
    const ALL: usize = 12;
    let (model, _) = with_queues();
    let alone: Vec<_> = (0..ALL).map(|i| rest_of(&mut started(&model, i))).collect();
    // On a busy machine they may come one after the other.
    let together = (0..100).any(|_| {
        let before = model.plans_made();
        let (begin, begun) = (Barrier::new(ALL), Barrier::new(ALL));
        std::thread::scope(|threads| {
            let callers = alone.iter().enumerate().map(|(i, want)| {
                let (model, begin, begun) = (&model, &begin, &begun);
                threads.spawn(move || {
                    let (prompt, settings) = utterance(model, i);
                    begin.wait();
                    let utterance = model.utterance(&prompt, &settings, StartOptions::default());
                    let mut utterance = utterance.expect("starts");
                    begun.wait();
                    let plans = model.plans_made();
                    begun.wait();
                    assert_eq!(frames_of(|codes| utterance.next_frame(codes)), *want, "caller {i}");
                    plans > before
                })
            });
            let callers: Vec<_> = callers.collect();
            let all: Vec<bool> = callers.into_iter().map(|c| c.join().expect("no panic")).collect();
            all.iter().all(|there| *there)
        })
    });
    assert!(together, "there is a plan of several prompts");
}

/// Where the device has no room for workspaces, prompts are prefilled in the memory of their utterance.
#[test]
fn prompts_do_without_workspaces() {
    const ALL: usize = 12;
    // Caches of workspaces are shorter than those of utterances and batches, and longer than a frame's.
    let (model, _) =
        with_room_for(|name, shape| !name.contains("keys") || !(32..256).contains(&shape.dims()[1]));
    let alone: Vec<_> = (0..ALL).map(|i| rest_of(&mut started(&model, i))).collect();
    // No utterance ends before the last one has begun, so that there are enough for workspaces.
    let begun = Barrier::new(ALL);
    std::thread::scope(|threads| {
        for (i, want) in alone.iter().enumerate() {
            let (model, begun) = (&model, &begun);
            threads.spawn(move || {
                let (prompt, settings) = utterance(model, i);
                let utterance = model.utterance(&prompt, &settings, StartOptions::default());
                begun.wait();
                let (mut utterance, mut heard, mut codes) = (utterance.expect("starts"), vec![], vec![]);
                let end = loop {
                    match utterance.next_frame(&mut codes).expect("goes on") {
                        Step::Frame => heard.extend(&codes),
                        Step::End(end) => break end,
                    }
                };
                assert_eq!((heard, end), *want, "caller {i}");
            });
        }
    });
}

/// Pieces that are decoded in one run sound as each would alone, and leave its state behind.
#[test]
fn callers_decode_their_frames_together() {
    // One more than a batch has rows: it is decoded alone in a workspace.
    const ALL: usize = 9;
    const PIECE: usize = 4;
    let (model, _) = with_queues();
    let codec = model.codec();
    codec.warm_up().expect("has room");
    let codes = |i: usize| (0..40 * 16).map(|k| (k * 7 + i * k) % 32).map(|c| c as i32).collect::<Vec<_>>();
    let alone: Vec<_> = (0..ALL)
        .map(|i| {
            let (mut stream, mut samples) = (codec.stream().expect("has room"), vec![]);
            codes(i).chunks(16 * PIECE).for_each(|piece| stream.push(piece, &mut samples).expect("runs"));
            samples
        })
        .collect();
    // On a busy machine they may come one after the other.
    let together = (0..100).any(|_| {
        let (before, begin) = (model.plans_made(), Barrier::new(ALL));
        std::thread::scope(|threads| {
            for (i, want) in alone.iter().enumerate() {
                let (codes, begin) = (&codes, &begin);
                threads.spawn(move || {
                    let (mut stream, mut samples) = (codec.stream().expect("has room"), vec![]);
                    for piece in codes(i).chunks(16 * PIECE) {
                        begin.wait();
                        stream.push(piece, &mut samples).expect("runs");
                    }
                    assert_close(&format!("caller {i}"), &samples, want, 2e-5);
                    assert_eq!(stream.frames(), 40);
                });
            }
        });
        model.plans_made() > before
    });
    assert!(together, "there is a plan for several pieces");
}

/// The last frames of an utterance are one run of the codec, however many, and sound as they would if more
/// followed.
#[test]
fn the_last_frames_of_the_codec_are_filled_up() {
    let (model, _) = with_queues();
    let codec = model.codec();
    let codes: Vec<i32> = (0..60 * 16).map(|i| i * 7 % 32).collect();
    let mut samples = vec![];
    let mut stream = codec.stream().expect("has room");
    stream.push(&codes, &mut samples).expect("runs");
    for frames in [1, 2, 3, 9, 15, 17, 24, 25, 26, 51] {
        let mut stream = codec.stream().expect("has room");
        let (mut last, before) = (vec![], stream.counters());
        stream.push_last(&codes[..16 * frames], &mut last).expect("runs");
        let runs = (stream.counters() - before).submissions;
        assert_eq!(runs, frames.div_ceil(CodecDecoder::PIECE) as u64, "{frames} frames");
        assert_eq!(stream.frames(), frames as u64);
        assert_close(&format!("{frames} frames"), &last, &samples[..last.len()], 2e-5);
        assert_eq!(last.len() * 60, samples.len() * frames, "{frames} frames");
        let e = stream.push(&codes[..16], &mut last).expect_err("has ended").to_string();
        assert!(e.contains("restart it first"), "{e}");
        stream.restart().expect("has room");
        stream.push(&codes[..16], &mut last).expect("begins anew");
    }
}

/// While the host waits for a frame the next one is queued, once all have joined: but for the very last one,
/// and where rows move.
#[test]
fn the_device_always_has_a_frame_to_make() {
    // So few that none is parked, however long its thread has to wait for a processor.
    const FRAMES: usize = 45;
    let (model, record) = with_queues();
    let speak = |seed: u64, after_the_first: &dyn Fn()| {
        let (prompt, settings) = utterance(&model, 1);
        let settings = Settings { seed, max_frames: FRAMES, ..settings };
        let mut utterance = model.utterance(&prompt, &settings, StartOptions::default()).expect("starts");
        let (mut frames, mut codes) = (0, vec![]);
        while utterance.next_frame(&mut codes).expect("goes on") == Step::Frame {
            frames += 1;
            if frames == 1 {
                after_the_first();
            }
        }
        frames
    };
    // Random weights soon draw the end.
    let goes_on = |seed: &u64| {
        record.waits();
        speak(*seed, &|| ()) == FRAMES
    };
    let seed = (0..1000).find(goes_on).expect("one does not end by itself");
    assert_eq!(record.waits(), (FRAMES, 1), "nothing is queued behind the last");
    for callers in [2, 5, Pacing::SHARED_THREADS.batch] {
        let all_joined = Barrier::new(callers);
        let joined = || {
            if all_joined.wait().is_leader() {
                record.waits();
            }
            all_joined.wait();
        };
        std::thread::scope(|threads| {
            let call = || assert_eq!(speak(seed, &joined), FRAMES);
            (0..callers).for_each(|_| drop(threads.spawn(call)));
        });
        let (all, idle) = record.waits();
        // Rows move to memories of 8, 4 and 2, the last one to its session, where it makes the last frame.
        let moves = callers.next_power_of_two().ilog2() as usize;
        assert!(idle <= moves + 1, "{callers} callers: idle in {idle} of {all} waits");
        assert!(all > 2 * (moves + 1), "{callers} callers: {all} waits");
    }
}

fn options(i: usize) -> Options {
    let voice = ["aiden", "dylan", "ryan"][i % 3];
    Options { seed: i as u64, voice: Some(voice.to_owned()), ..raw() }.set("max_frames", 20 + 3 * i)
}

/// Threads that speak with one engine share its batch while others join and leave.
#[test]
fn concurrent_calls_sound_as_they_would_alone() {
    const ALL: usize = 6;
    for precision in [Precision::F32, Precision::Q8_0] {
        let engine = engine(precision, None);
        let text = |i: usize| format!("This is the text of caller {i}. ").repeat(1 + i % 2);
        let alone: Vec<_> =
            (0..ALL).map(|i| engine.speak(&text(i), &options(i)).expect("speaks").samples).collect();
        for round in 0..3 {
            let barrier = Barrier::new(ALL + 2);
            std::thread::scope(|threads| {
                let callers: Vec<_> = (0..ALL)
                    .map(|i| {
                        let (engine, barrier) = (&engine, &barrier);
                        threads.spawn(move || {
                            barrier.wait();
                            let stream = engine.stream(&text(i), &options(i)).expect("speaks");
                            stream.flat_map(|c| c.expect("speaks").samples).collect::<Vec<f32>>()
                        })
                    })
                    .collect();
                // One is cancelled, and one goes away.
                threads.spawn(|| {
                    barrier.wait();
                    let cancel = Cancel::new();
                    let options = Options { cancel: Some(cancel.clone()), ..options(9) };
                    let mut stream =
                        engine.stream("Never to be heard to its end.", &options).expect("speaks");
                    assert!(stream.next().expect("a chunk").is_ok());
                    cancel.cancel();
                    assert!(matches!(stream.next(), Some(Err(Error::Cancelled))));
                });
                threads.spawn(|| {
                    barrier.wait();
                    drop(engine.stream("Nobody listens.", &options(8)).expect("speaks").next());
                });
                for (i, caller) in callers.into_iter().enumerate() {
                    let samples = caller.join().expect("no panic");
                    assert!(
                        samples == alone[i],
                        "{precision}, round {round}: caller {i} hears other samples"
                    );
                }
            });
        }
        let model = &engine.model_as::<Qwen3Tts>().expect("is one");
        assert!(model.talker().expect("talks").is_idle(), "nothing of a batch is left");
    }
}

/// A caller that does not listen any more neither holds up the others nor is worked for without end.
#[test]
fn a_slow_caller_is_parked() {
    let engine = engine(Precision::F32, None);
    let long = |i: usize| options(i).set("max_frames", 150);
    let alone: Vec<f32> =
        engine.stream("Slow.", &long(1)).expect("speaks").flat_map(|c| c.expect("speaks").samples).collect();
    let other: Vec<f32> =
        engine.stream("Fast.", &long(2)).expect("speaks").flat_map(|c| c.expect("speaks").samples).collect();
    let mut slow = engine.stream("Slow.", &long(1)).expect("speaks");
    let mut heard = slow.next().expect("a chunk").expect("speaks").samples;
    let fast: Vec<f32> =
        engine.stream("Fast.", &long(2)).expect("speaks").flat_map(|c| c.expect("speaks").samples).collect();
    assert!(fast == other);
    heard.extend(slow.flat_map(|c| c.expect("speaks").samples));
    assert!(heard == alone);
}

#[test]
fn a_batch_of_texts_is_its_parts() {
    let engine = engine(Precision::Q8_0, None);
    let texts: Vec<String> = (0..20).map(|i| format!("Text number {i}.")).collect();
    let mut texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let all = engine.speak_batch(&texts, &options(1)).expect("speaks");
    assert_eq!(all.len(), texts.len());
    for (text, audio) in texts.iter().zip(&all) {
        assert!(*audio == engine.speak(text, &options(1)).expect("speaks"), "{text}");
    }
    (texts[7], texts[11]) = (" ", "…");
    let e = engine.speak_batch(&texts, &options(1)).expect_err("nothing to say");
    assert!(e.to_string().contains("the text holds nothing to say"), "{e}");
}
