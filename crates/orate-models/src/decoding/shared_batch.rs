//! Utterances of many threads, decoded in one batch.
//!
//! There is no thread for this. A caller that needs a frame and finds nobody at work makes one for all: it
//! leads. The others wait for theirs, and one of them leads next. A single utterance makes its frames in its
//! own [`Session`], as if nothing of this were here; with a second one both join a [`Batch`], between two
//! frames, and the last one that is left returns to its session. An utterance that would begin alone while
//! others read their prompts waits for them a moment: reading them takes about as long as a frame, and would
//! be in the way of frames made meanwhile.
//!
//! Frames that nobody has asked for yet wait in a queue. An utterance whose caller lets [`MOST_QUEUED`] of
//! them wait is parked in its session until they are nearly used up, so that a slow caller costs the others
//! nothing, and one that goes away leaves little behind. A dropped utterance frees its row at once, or when
//! the frame in progress is done.

use super::batch::{Batch, BatchMemory, RowId, has_no_room};
use super::error::{panicked, shared};
use super::network::Autoregressive;
use super::resources::Resources;
use super::sampling::DrawSettings;
use super::session::{Needs, Session, StartOptions, Step};
use super::shared_prompts::SharedPrompts;
use crate::FinishReason;
use crate::ModelError;
use orate_graph::Counters;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Frames that may wait for their caller: some seconds.
const MOST_QUEUED: usize = 50;

/// The utterances of a network that make frames.
pub(super) struct SharedBatch<N: Autoregressive> {
    resources: Arc<Resources<N>>,
    state: Mutex<State<N>>,
    /// A frame is done, or somebody else may lead.
    changed: Condvar,
}

struct State<N: Autoregressive> {
    slots: BTreeMap<u64, Slot<N>>,
    next_id: u64,
    /// With the leader while it makes a frame.
    batch: Option<Batch<N>>,
    /// Memories of the batch before.
    idle: Vec<BatchMemory>,
    /// Utterances that have begun to read a prompt, and have not asked for a frame.
    starting: usize,
    led: bool,
    /// Rows whose utterance was dropped meanwhile.
    dropped: Vec<RowId>,
    /// Whether the device has no room for a batch, until an utterance is dropped.
    is_apart: bool,
}

/// An utterance that has asked for a frame.
struct Slot<N: Autoregressive> {
    /// With the leader while that makes a frame of it alone.
    session: Option<Session<N>>,
    needs: Needs,
    row: Option<RowId>,
    /// Codes of frames that were not asked for yet.
    queue: VecDeque<i32>,
    /// Whether it gets no more until they are used.
    parked: bool,
    end: Option<FinishReason>,
    failed: Option<ModelError>,
    /// What frames made in a batch asked of the device.
    counters: Counters,
}

impl<N: Autoregressive> Slot<N> {
    fn is_new(&self) -> bool {
        self.row.is_none() && self.session.as_ref().is_some_and(|s| s.frames() == 0)
    }

    fn continues(&self) -> bool {
        self.end.is_none() && self.failed.is_none() && !self.parked
    }

    /// Takes the codes of a frame.
    fn receive(&mut self, codes: &[i32]) {
        self.queue.extend(codes);
        self.needs.rows += 1;
    }

    fn fail(&mut self, e: &ModelError) {
        (self.row, self.failed) = (None, Some(shared(e)));
    }
}

impl<N: Autoregressive> SharedBatch<N> {
    pub fn new(resources: Arc<Resources<N>>) -> Arc<SharedBatch<N>> {
        let state = State {
            slots: BTreeMap::new(),
            next_id: 0,
            batch: None,
            idle: vec![],
            starting: 0,
            led: false,
            dropped: vec![],
            is_apart: false,
        };
        Arc::new(SharedBatch { resources, state: Mutex::new(state), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State<N>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long work waits for other work, where it shares passes.
    fn wait(&self) -> Option<Duration> {
        self.resources.network.device().pacing().coalescing_wait
    }

    /// Compiles the plans of batches of up to `utterances` like one, and those of their prompts.
    pub fn prepare(&self, utterances: usize, needs: Needs) -> Result<(), ModelError> {
        self.prepare_prompts(needs)?;
        Batch::prepare(&self.resources.network, utterances, needs)
    }

    fn prepare_prompts(&self, needs: Needs) -> Result<(), ModelError> {
        let (fixed, padded) = needs.parts;
        let network = &self.resources.network;
        self.wait().map_or(Ok(()), |_| SharedPrompts::prepare(network, fixed, padded))
    }

    /// Compiles the plans of the batch that an utterance is about to join, and where others are there calls
    /// `prepare` with the number of all: so they do not wait for plans.
    fn prepare_to_join(
        &self,
        needs: Needs,
        prepare: impl FnOnce(usize) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let (others, starting) = {
            let state = self.lock();
            let others = state.slots.values().filter(|s| s.end.is_none()).map(|s| s.needs);
            (others.collect::<Vec<_>>(), state.starting)
        };
        if self.wait().is_some() && others.len() + starting > 1 {
            self.prepare_prompts(needs)?;
            prepare(others.len() + starting)?;
        }
        if others.is_empty() {
            return Ok(());
        }
        let longest = others.iter().fold(needs, |a, b| a.longer(*b));
        Batch::prepare(&self.resources.network, others.len() + starting, longest)
    }

    /// Makes a frame of all utterances that continue. Errors are kept for the utterances that they concern.
    fn lead<'a>(&'a self, mut state: MutexGuard<'a, State<N>>, me: u64) -> MutexGuard<'a, State<N>> {
        // Utterances that arrive during the pause join the next frame.
        let pause = state.batch.as_ref().map_or(Duration::ZERO, Batch::pause);
        if !pause.is_zero() {
            state.led = true;
            drop(state);
            std::thread::sleep(pause);
            state = self.lock();
            state.led = false;
        }
        let alone = state.gather(me, &self.resources);
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
                Ok(Step::Frame) => slot.receive(&codes),
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
            state.distribute(batch, used, steps);
        }
        self.done(state)
    }

    fn done<'a>(&'a self, mut state: MutexGuard<'a, State<N>>) -> MutexGuard<'a, State<N>> {
        state.led = false;
        self.changed.notify_all();
        state
    }
}

impl<N: Autoregressive> State<N> {
    fn slot(&mut self, id: u64) -> &mut Slot<N> {
        self.slots.get_mut(&id).expect("a slot lives as long as its utterance")
    }

    /// Brings the utterances that continue together. Returns whether `me` makes its frame alone: there is no
    /// other, or no room for a batch. Then it is in its session.
    fn gather(&mut self, me: u64, resources: &Arc<Resources<N>>) -> bool {
        if let Some(batch) = &mut self.batch {
            self.dropped.drain(..).for_each(|row| batch.leave(row));
        }
        let continuing = self.slots.values().filter(|s| s.continues()).count();
        if self.is_apart || continuing == 1 && self.slot(me).continues() {
            self.park(me);
            return true;
        }
        self.join(resources);
        while let Some(batch) = &mut self.batch
            && let Err(e) = batch.extend()
        {
            let live = batch.len();
            if !has_no_room(&e) {
                self.fail_rows(&e);
                break;
            }
            tracing::warn!("caches of {live} utterances cannot be extended, so fewer share a batch: {e}");
            self.separate(live / 2, resources);
        }
        self.is_apart
    }

    /// Lets utterances that continue and have no row join the batch, as far as there is room.
    fn join(&mut self, resources: &Arc<Resources<N>>) {
        let joins = |s: &&mut Slot<N>| s.continues() && s.row.is_none();
        let more = self.slots.values_mut().filter(joins).count();
        if more == 0 {
            if let Some(batch) = &mut self.batch {
                batch.expect(0, self.starting);
            }
            return;
        }
        let idle = &mut self.idle;
        let new = || Batch::with_memories(resources.clone(), idle);
        let batch = self.batch.get_or_insert_with(new);
        batch.expect(more, self.starting);
        for slot in self.slots.values_mut().filter(joins) {
            let Some(session) = &mut slot.session else { continue };
            // Others wait for a row.
            if batch.len() >= batch.most() {
                break;
            }
            match batch.join(session) {
                Ok(row) => slot.row = Some(row),
                Err(e) if batch.has_to_wait(&e) => {
                    tracing::warn!("{} utterances in a batch, others wait: {e}", batch.len());
                    break;
                }
                Err(e) if has_no_room(&e) => {
                    tracing::warn!("utterances are decoded one by one: {e}");
                    (self.batch, self.is_apart) = (None, true);
                    break;
                }
                Err(e) => slot.fail(&e),
            }
        }
    }

    /// Returns all utterances to their sessions and frees the batch. Then `most` of them join another one, if
    /// that is more than one, and the others wait.
    fn separate(&mut self, most: usize, resources: &Arc<Resources<N>>) {
        let ids: Vec<u64> = self.slots.keys().copied().collect();
        ids.into_iter().for_each(|id| self.park(id));
        (self.batch, self.idle) = (None, vec![]);
        if most < 2 {
            self.is_apart = true;
            return;
        }
        let mut batch = Batch::with_memories(resources.clone(), &mut self.idle);
        batch.limit(most);
        self.batch = Some(batch);
        self.join(resources);
    }

    /// Returns an utterance to its session, if it is in the batch.
    fn park(&mut self, id: u64) {
        let slot = self.slots.get_mut(&id).expect("a slot lives as long as its utterance");
        if let (Some(row), Some(batch), Some(session)) = (slot.row.take(), &mut self.batch, &mut slot.session)
            && let Err(e) = batch.take(row, session)
        {
            batch.leave(row);
            slot.fail(&e);
        }
    }

    fn distribute(
        &mut self,
        batch: Batch<N>,
        used: Result<Counters, ModelError>,
        steps: Vec<(RowId, Result<Step, ModelError>, Vec<i32>)>,
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
                Ok(Step::Frame) => slot.receive(&codes),
                Ok(Step::End(reason)) => (slot.end, slot.row) = (Some(reason), None),
                Err(e) => (slot.failed, slot.row) = (Some(e), None),
            }
            if slot.row.is_some() && slot.queue.len() >= MOST_QUEUED * codes.len() {
                slot.parked = true;
                full.push(*id);
            }
        }
        full.into_iter().for_each(|id| self.park(id));
    }

    /// The batch is lost, and with it all that are in it.
    fn fail_rows(&mut self, e: &ModelError) {
        self.slots.values_mut().filter(|s| s.row.is_some()).for_each(|slot| slot.fail(e));
        (self.batch, self.dropped) = (None, vec![]);
    }
}

/// Fails the utterances whose frame a leader was making when it panicked.
struct Leading<'a, N: Autoregressive> {
    shared: &'a SharedBatch<N>,
    me: u64,
}

impl<N: Autoregressive> Drop for Leading<'_, N> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let lost = panicked("the thread that made the frame has panicked");
        if state.batch.is_none() {
            state.fail_rows(&lost);
        }
        state.slot(self.me).fail(&lost);
        drop(self.shared.done(state));
    }
}

struct Starting<N: Autoregressive> {
    shared: Arc<SharedBatch<N>>,
    /// Not once it has a slot.
    is_counted: bool,
}

impl<N: Autoregressive> Drop for Starting<N> {
    fn drop(&mut self) {
        if self.is_counted {
            self.shared.lock().starting -= 1;
        }
        self.shared.changed.notify_all();
    }
}

/// An utterance that is decoded together with those of other threads. For one thread at a time; each of
/// several has its own.
pub struct Utterance<N: Autoregressive> {
    shared: Arc<SharedBatch<N>>,
    /// Until it asks for a frame.
    started: Option<(Session<N>, Starting<N>)>,
    id: u64,
    frames: usize,
    reused: usize,
}

impl<N: Autoregressive> Utterance<N> {
    /// Reads a prompt, up to the state before the first frame, while others may make frames. `prepare` is
    /// called where other utterances are under way, with the number of all.
    pub(super) fn start(
        shared: &Arc<SharedBatch<N>>,
        prompt: &N::Prompt,
        settings: DrawSettings,
        options: StartOptions,
        prepare: impl FnOnce(usize) -> Result<(), ModelError>,
    ) -> Result<Utterance<N>, ModelError> {
        shared.lock().starting += 1;
        let starting = Starting { shared: shared.clone(), is_counted: true };
        let session = Session::start(&shared.resources, prompt, settings, options)?;
        shared.prepare_to_join(session.needs, prepare)?;
        let reused = session.reused_rows();
        Ok(Utterance { shared: shared.clone(), started: Some((session, starting)), id: 0, frames: 0, reused })
    }

    /// As [`Session::reused_rows`].
    pub fn reused_rows(&self) -> usize {
        self.reused
    }

    /// Number of frames that were returned.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// What was asked of the device for this utterance. What was asked for a frame of several counts for
    /// each.
    pub fn counters(&self) -> Counters {
        if let Some((session, _)) = &self.started {
            return session.counters();
        }
        let mut state = self.shared.lock();
        let slot = state.slot(self.id);
        let mut all = slot.counters;
        all += slot.session.as_ref().map(Session::counters).unwrap_or_default();
        all
    }

    /// Waits for the next frame or makes it, and replaces the content of `codes` by its codes. `codes` is
    /// empty when the utterance ends.
    ///
    /// # Errors
    /// Logits are NaN, or the device failed. A failure of a batch is returned to each utterance in it.
    pub fn next_frame(&mut self, codes: &mut Vec<i32>) -> Result<Step, ModelError> {
        codes.clear();
        let of_frame = self.shared.resources.network.facts().codes;
        let is_new = self.enter();
        let (shared, id) = (&self.shared, self.id);
        let mut state = shared.lock();
        // Where nobody has a frame yet, waits a moment for utterances whose prompts are being read.
        if let Some(wait) = shared.wait().filter(|_| is_new) {
            let others = |s: &mut State<N>| s.starting > 0 && !s.led && s.slots.values().all(Slot::is_new);
            let waited = shared.changed.wait_timeout_while(state, wait, others);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        loop {
            let slot = state.slot(id);
            if slot.queue.len() < MOST_QUEUED / 2 * of_frame {
                slot.parked = false;
            }
            if !slot.queue.is_empty() {
                codes.extend(slot.queue.drain(..of_frame));
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
                shared.lead(state, id)
            };
        }
    }

    /// Puts it in a slot, if it is in none. Returns whether it was in none.
    fn enter(&mut self) -> bool {
        let Some((session, mut starting)) = self.started.take() else { return false };
        let mut state = self.shared.lock();
        self.id = state.next_id;
        state.next_id += 1;
        let slot = Slot {
            needs: session.needs,
            session: Some(session),
            row: None,
            queue: VecDeque::new(),
            parked: false,
            end: None,
            failed: None,
            counters: Counters::default(),
        };
        state.slots.insert(self.id, slot);
        // In the same moment, so that it is counted once.
        state.starting -= 1;
        starting.is_counted = false;
        drop(state);
        drop(starting);
        true
    }
}

impl<N: Autoregressive> Drop for Utterance<N> {
    fn drop(&mut self) {
        if self.started.is_some() {
            return;
        }
        let mut state = self.shared.lock();
        let slot = state.slots.remove(&self.id);
        state.is_apart = false;
        match (slot.as_ref().and_then(|s| s.row), &mut state.batch) {
            (Some(row), Some(batch)) => batch.leave(row),
            // The leader has the batch.
            (Some(row), None) => state.dropped.push(row),
            (None, _) => {}
        }
        // An idle batch holds no memories that could be reused otherwise.
        if state.slots.is_empty()
            && let Some(batch) = state.batch.take()
        {
            state.idle = batch.into_memories();
        }
        drop(state);
        drop(slot);
        self.shared.changed.notify_all();
    }
}
