//! Utterances of many threads that make their frames together.
//!
//! There is no thread for this. Whoever needs a frame and finds nobody at it makes one for all: it leads. The others wait for
//! what comes, and one of them leads next. An utterance that is alone makes its frames in its own [`Session`], as if nothing of
//! this were here; with a second one both join a [`Batch`], between two frames, and the last one that is left goes back to its
//! session. One that would begin alone while others read their prompts waits for them a moment: reading them is about as long as a
//! frame, and would be in the way of frames made meanwhile.
//!
//! Frames that nobody has asked for yet wait in a queue. An utterance whose caller lets [`AHEAD`] of them wait is parked in its
//! session until they are nearly used up, so that a slow caller costs the others nothing, and one that goes away leaves little
//! behind. A dropped utterance frees its row at once, or when the frame is done that somebody is at.

use super::batch::{Batch, IdleMemories, RowId};
use super::session::{Session, Step};
use super::shared_prompts::SharedPrompts;
use crate::FinishReason;
use crate::qwen3_tts::error::QwenError;
use crate::qwen3_tts::pipeline::Qwen3Tts;
use crate::qwen3_tts::prompt::Prompt;
use crate::qwen3_tts::settings::Settings;
use orate_graph::{Counters, DeviceError};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Frames that may wait for their utterance: some seconds.
const AHEAD: usize = 50;

/// How long the first frame of an utterance waits for others whose prompts are being read.
const MOST_WAIT: Duration = Duration::from_millis(5);

/// The utterances of a model that make frames.
#[derive(Default)]
pub struct SharedBatch {
    state: Mutex<State>,
    /// A frame is done, or somebody else may lead.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    slots: BTreeMap<u64, Slot>,
    next_id: u64,
    /// With the leader while it makes a frame.
    batch: Option<Batch>,
    /// What the batch before has left.
    idle: IdleMemories,
    /// Utterances that have begun to read a prompt, and have not asked for a frame.
    starting: usize,
    /// Whether somebody leads.
    led: bool,
    /// Rows whose utterance was dropped meanwhile.
    dropped: Vec<RowId>,
}

/// An utterance that has asked for a frame.
struct Slot {
    /// With the leader while that makes a frame of it alone.
    session: Option<Session>,
    /// Rows of cache and of text that it may need.
    need: (usize, usize),
    row: Option<RowId>,
    /// Codes of frames that were not asked for yet.
    made: VecDeque<i32>,
    /// Whether it gets no more until they are used.
    parked: bool,
    end: Option<FinishReason>,
    failed: Option<QwenError>,
    /// What frames made in a batch asked of the device.
    counters: Counters,
}

impl Slot {
    /// Whether it has not got a frame yet.
    fn is_new(&self) -> bool {
        self.row.is_none() && self.session.as_ref().is_some_and(|s| s.frames() == 0)
    }

    fn goes_on(&self) -> bool {
        self.end.is_none() && self.failed.is_none() && !self.parked
    }

    fn fail(&mut self, e: &QwenError) {
        let e = match e {
            QwenError::Device(e) => (**e).clone(),
            e => DeviceError::Failed { device: "batch".to_owned(), problem: e.to_string() },
        };
        (self.row, self.failed) = (None, Some(e.into()));
    }
}

impl SharedBatch {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the plans of batches of up to so many utterances that may need so many rows of cache and of text, and those of what is done
    /// together for them: their prompts, of rows behind others and with their padding, and their codes.
    ///
    /// # Errors
    /// The device lacks an op, or room for the weights.
    pub(crate) fn prepare(
        model: &Qwen3Tts,
        utterances: usize,
        need: (usize, usize),
        (behind, padded): (usize, usize),
    ) -> Result<(), QwenError> {
        if model.device().has_queues() {
            SharedPrompts::prepare(model, behind, padded)?;
            model.codec().prepare_batches()?;
        }
        Batch::prepare(model, utterances.min(Batch::MOST), need)
    }

    /// Makes the plans of the batch that an utterance is about to join, and those of what is done together for it, so that those in it do
    /// not wait for them.
    fn prepare_to_join(
        &self,
        model: &Qwen3Tts,
        need: (usize, usize),
        (behind, padded): (usize, usize),
    ) -> Result<(), QwenError> {
        let (others, starting) = {
            let state = self.lock();
            let others = state.slots.values().filter(|s| s.end.is_none()).map(|s| s.need);
            (others.collect::<Vec<_>>(), state.starting)
        };
        if model.device().has_queues() && others.len() + starting > 1 {
            SharedPrompts::prepare(model, behind, padded)?;
            model.codec().prepare_batches()?;
        }
        if others.is_empty() {
            return Ok(());
        }
        let most = others.iter().fold(need, |a, b| (a.0.max(b.0), a.1.max(b.1)));
        Batch::prepare(model, others.len() + 1, most)
    }

    /// Makes a frame of all utterances that go on. What goes wrong is noted for those that it concerns.
    fn lead<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        me: u64,
        model: &Arc<Qwen3Tts>,
    ) -> MutexGuard<'a, State> {
        let alone = state.gather(me, model);
        state.led = true;
        if alone {
            let slot = state.slot(me);
            let able = slot.failed.is_none();
            let Some(mut session) = slot.session.take_if(|_| able) else { return self.done(state) };
            drop(state);
            let leading = Leading { shared: self, me };
            let mut codes = vec![];
            let step = session.next_frame(&mut codes);
            std::mem::forget(leading);
            state = self.lock();
            let slot = state.slot(me);
            slot.session = Some(session);
            match step {
                Ok(Step::Frame) => slot.made.extend(codes),
                Ok(Step::End(reason)) => slot.end = Some(reason),
                Err(e) => slot.failed = Some(e),
            }
        } else if let Some(mut batch) = state.batch.take() {
            drop(state);
            let leading = Leading { shared: self, me };
            let mut steps = vec![];
            let used = batch.frame(|row, step, codes| steps.push((row, step, codes.to_vec())));
            std::mem::forget(leading);
            state = self.lock();
            state.hand_out(batch, used, steps);
        }
        self.done(state)
    }

    /// Where nobody has a frame yet: waits a moment for those whose prompts are being read.
    fn wait_for_others<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let end = Instant::now() + MOST_WAIT;
        while state.starting > 0 && !state.led && state.slots.values().all(Slot::is_new) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }

    fn done<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.led = false;
        self.changed.notify_all();
        state
    }
}

impl State {
    fn slot(&mut self, id: u64) -> &mut Slot {
        self.slots.get_mut(&id).expect("a slot lives as long as its utterance")
    }

    /// Brings the utterances that go on together. Whether there is only this one, which then is in its session.
    fn gather(&mut self, me: u64, model: &Arc<Qwen3Tts>) -> bool {
        if let Some(batch) = &mut self.batch {
            self.dropped.drain(..).for_each(|row| batch.leave(row));
        }
        if self.slots.values().filter(|s| s.goes_on()).count() == 1 && self.slot(me).goes_on() {
            self.park(me);
            return true;
        }
        let joins = |s: &&mut Slot| s.goes_on() && s.row.is_none();
        let more = self.slots.values_mut().filter(joins).count();
        if let Some(batch) = self.batch.as_mut().filter(|_| more > 0) {
            batch.expect(more);
        }
        for slot in self.slots.values_mut().filter(joins) {
            if self.batch.is_none() {
                match Batch::with_memories(model.clone(), &mut self.idle) {
                    Ok(mut batch) => {
                        batch.expect(more);
                        self.batch = Some(batch);
                    }
                    Err(e) => slot.fail(&e),
                }
            }
            let (Some(batch), Some(session)) = (&mut self.batch, &mut slot.session) else { continue };
            // Others wait for a row.
            if batch.len() == Batch::MOST {
                break;
            }
            match batch.join(session) {
                Ok(row) => slot.row = Some(row),
                Err(e) => slot.fail(&e),
            }
        }
        false
    }

    /// Brings an utterance back to its session, if it is in the batch.
    fn park(&mut self, id: u64) {
        let slot = self.slots.get_mut(&id).expect("a slot lives as long as its utterance");
        if let (Some(row), Some(batch), Some(session)) = (slot.row.take(), &mut self.batch, &mut slot.session)
            && let Err(e) = batch.take(row, session)
        {
            batch.leave(row);
            slot.fail(&e);
        }
    }

    /// Gives each utterance its part of a frame.
    fn hand_out(
        &mut self,
        batch: Batch,
        used: Result<Counters, QwenError>,
        steps: Vec<(RowId, Result<Step, QwenError>, Vec<i32>)>,
    ) {
        match used {
            Ok(used) => {
                self.batch = Some(batch);
                let in_batch = self.slots.values_mut().filter(|s| s.row.is_some());
                in_batch.for_each(|slot| slot.counters += used);
            }
            Err(e) => self.fail_rows(&e),
        }
        let mut full = vec![];
        for (row, step, codes) in steps {
            let Some((id, slot)) = self.slots.iter_mut().find(|(_, s)| s.row == Some(row)) else { continue };
            match step {
                Ok(Step::Frame) => slot.made.extend(&codes),
                Ok(Step::End(reason)) => (slot.end, slot.row) = (Some(reason), None),
                Err(e) => (slot.failed, slot.row) = (Some(e), None),
            }
            if slot.row.is_some() && slot.made.len() >= AHEAD * codes.len() {
                slot.parked = true;
                full.push(*id);
            }
        }
        full.into_iter().for_each(|id| self.park(id));
    }

    /// The batch is lost, and with it all that are in it.
    fn fail_rows(&mut self, e: &QwenError) {
        self.slots.values_mut().filter(|s| s.row.is_some()).for_each(|slot| slot.fail(e));
        (self.batch, self.dropped) = (None, vec![]);
    }
}

/// Tells the others when whoever leads is lost to a panic.
struct Leading<'a> {
    shared: &'a SharedBatch,
    me: u64,
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let problem = "the thread that made the frame has panicked".to_owned();
        let lost = DeviceError::Failed { device: "batch".to_owned(), problem }.into();
        if state.batch.is_none() {
            state.fail_rows(&lost);
        }
        state.slot(self.me).fail(&lost);
        drop(self.shared.done(state));
    }
}

/// An utterance that makes its frames together with others. For a single thread at a time; each of several has its own.
pub struct Utterance {
    model: Arc<Qwen3Tts>,
    /// Until the first frame is asked for.
    session: Option<Session>,
    id: u64,
    frames: usize,
    reused: usize,
    /// Whether it is one of those that are starting.
    starting: bool,
}

impl Utterance {
    pub(crate) fn new(model: Arc<Qwen3Tts>, session: Session) -> Utterance {
        Utterance { model, session: Some(session), id: 0, frames: 0, reused: 0, starting: false }
    }

    /// Reads a prompt, up to the state in front of the first frame, while others may make frames.
    ///
    /// # Errors
    /// As [`Session::start`]; or frames were made already.
    pub fn start(&mut self, prompt: &Prompt, settings: &Settings) -> Result<(), QwenError> {
        if !std::mem::replace(&mut self.starting, true) {
            self.model.decoding_batch().lock().starting += 1;
        }
        match &mut self.session {
            Some(session) => {
                let coming = self.model.shared_prompts().coming();
                session.start_among(prompt, settings, Some(coming))?;
                self.reused = session.reused_rows();
                let need = session.row()?.need();
                let parts = session.parts();
                self.model.decoding_batch().prepare_to_join(&self.model, need, parts)
            }
            None => Err(QwenError::Option {
                option: "utterance",
                got: "started twice".to_owned(),
                allowed: "ask the model for another one".to_owned(),
            }),
        }
    }

    /// As [`Session::pause_ahead_at`], for as long as the utterance is alone.
    pub fn pause_ahead_at(&mut self, frames: usize) {
        if let Some(session) = &mut self.session {
            session.pause_ahead_at(frames);
        }
    }

    /// As [`Session::reused_rows`].
    pub fn reused_rows(&self) -> usize {
        self.reused
    }

    /// Frames that were handed out.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// What was asked of the device for this utterance. What was asked for a frame of several counts for each.
    pub fn counters(&self) -> Counters {
        if let Some(session) = &self.session {
            return session.counters();
        }
        let mut state = self.model.decoding_batch().lock();
        let slot = state.slot(self.id);
        let mut all = slot.counters;
        all += slot.session.as_ref().map(Session::counters).unwrap_or_default();
        all
    }

    /// Waits for the next frame or makes it, and replaces the content of `codes` by its codes. Nothing is in `codes` when the
    /// utterance ends.
    ///
    /// # Errors
    /// Nothing was started, or the device failed; an error that concerns all of a batch is told to each.
    pub fn next_frame(&mut self, codes: &mut Vec<i32>) -> Result<Step, QwenError> {
        codes.clear();
        let quantizers = self.model.talking()?.config.talker_config.num_code_groups;
        let shared = self.model.decoding_batch();
        let mut state = shared.lock();
        if let Some(mut session) = self.session.take() {
            // An error of its own concerns nobody else.
            let need = match session.row() {
                Ok(row) => row.need(),
                Err(e) => {
                    self.session = Some(session);
                    return Err(e);
                }
            };
            state.starting -= usize::from(std::mem::take(&mut self.starting));
            self.id = state.next_id;
            state.next_id += 1;
            let slot = Slot {
                session: Some(session),
                need,
                row: None,
                made: VecDeque::new(),
                parked: false,
                end: None,
                failed: None,
                counters: Counters::default(),
            };
            state.slots.insert(self.id, slot);
            if state.starting == 0 {
                shared.changed.notify_all();
            }
            if self.model.device().has_queues() {
                state = shared.wait_for_others(state);
            }
        }
        loop {
            let slot = state.slot(self.id);
            if slot.made.len() < AHEAD / 2 * quantizers {
                slot.parked = false;
            }
            if !slot.made.is_empty() {
                codes.extend(slot.made.drain(..quantizers));
                self.frames += 1;
                return Ok(Step::Frame);
            }
            if let Some(e) = slot.failed.take() {
                slot.end = Some(FinishReason::Stop);
                return Err(e);
            }
            if let Some(reason) = slot.end {
                return Ok(Step::End(reason));
            }
            state = if state.led {
                shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                shared.lead(state, self.id, &self.model)
            };
        }
    }
}

impl Drop for Utterance {
    fn drop(&mut self) {
        let shared = self.model.decoding_batch();
        let mut state = shared.lock();
        state.starting -= usize::from(self.starting);
        if self.session.is_some() {
            drop(state);
            shared.changed.notify_all();
            return;
        }
        let slot = state.slots.remove(&self.id);
        match (slot.as_ref().and_then(|s| s.row), &mut state.batch) {
            (Some(row), Some(batch)) => batch.leave(row),
            // The leader has the batch.
            (Some(row), None) => state.dropped.push(row),
            (None, _) => {}
        }
        // A batch holds its model, which must not hold it for ever.
        if state.slots.is_empty()
            && let Some(batch) = state.batch.take()
        {
            state.idle = batch.into_memories();
        }
        drop(state);
        drop(slot);
        shared.changed.notify_all();
    }
}
