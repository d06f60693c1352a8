//! Several utterances side by side: one plan makes a frame of each.
//!
//! A batch is the memory of a frame plan of several rows. A [`Session`] joins it between two frames: its
//! state is copied to a free row on the device, and the session stays as it was; the row may return to it in
//! the same way. Each row has its own position, frame number, seed and settings, and no op lets a row see
//! another one. So a row is what the session alone would be: on the CPU byte for byte, elsewhere up to the
//! rounding of other kernels.
//!
//! With look-ahead ([`orate_graph::Pacing::look_ahead`]) a frame is submitted before the codes of the one
//! before it are waited for. It is a frame of the rows that were there when it was submitted: a row that
//! joins is in the next one, and what it makes of one that has left is ignored. The next frame is submitted
//! shortly before the current one ends, so that utterances can join it until then ([`Batch::pause`]). Before
//! rows move to another memory, it is waited for.
//!
//! Rows are 2, 4, 8 … [`Batch::most`]. When more join, all rows move to a larger memory; when many have left,
//! to a smaller one. A memory is kept for the next time that it fits. Where the device has no room for a
//! larger one, the batch stays as it is. What an unused row computes is ignored;
//! its position returns to 0 before it would exceed the cache.
//!
//! Caches have as many rows as the longest utterance needs by now, not as many as it may ever need: most end
//! long before. They are extended when it has filled them ([`Batch::extend`]).

use super::ahead::Ahead;
use super::caches::{self, RowLimits, Slot, cache_parts};
use super::error::option_error;
use super::kept_states::Beginning;
use super::network::{
    Autoregressive, CODES, FEED, FRAME, Facts, MemorySizes, POSITION, SEED, SHARED, for_lanes,
};
use super::resources::Resources;
use super::sampling::{DrawSettings, Sampling};
use super::session::{Needs, Session, Step, check_frame, settings_width};
use crate::FinishReason;
use crate::ModelError;
use crate::runtime::PooledMemory;
use orate_graph::{BufferKind, Counters, DeviceError, Executable, Memory, Part, Plan};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Fewest rows of a cache. More are a power of two, so that plans are few.
const LEAST_CAPACITY: usize = 512;
/// The same where the device has no room for these: on Vulkan a memory has 4 GiB at most.
const TIGHT_CAPACITY: usize = 64;
/// The plan for longer caches is compiled this many frames before the caches are full.
const SOON: usize = 32;
/// Fewest rows of a feed, likewise.
const LEAST_FEED: usize = 128;

/// A finished batch keeps memories of at most this many sessions' bytes
/// ([`orate_graph::Device::memory_kept`]): on a GPU 4 GiB, or with CUDA a quarter of the card if that is
/// more: on a card of 80 GB, those of 64 callers of Qwen3-TTS 0.6B.
const SESSIONS_KEPT: usize = 16;

/// Minimum time between the submission of a frame and the end of the one before it. Frame times vary, and
/// threads wake up late.
const EARLY: Duration = Duration::from_millis(2);

/// Number of recent frames whose shortest time predicts the next one. Until there are as many, frames are
/// submitted at once.
const RECENT: usize = 8;

/// Number of an utterance in a batch, which is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowId(u64);

/// Memory and plan of several utterances.
pub struct Batch<N: Autoregressive> {
    resources: Arc<Resources<N>>,
    facts: Facts,
    /// Memories by number of rows; that of the rows is `active`.
    memories: Vec<BatchMemory>,
    active: usize,
    next_id: u64,
    codes: Vec<i32>,
    /// The frame that was submitted, but not returned.
    flight: Option<Flight>,
    pace: Pace,
    look_ahead: bool,
    /// Codes that utterances had made when they joined.
    brought: Vec<(RowId, Vec<i32>)>,
    /// Utterances that there is to be room for.
    expected: usize,
    /// See [`Batch::most`].
    most: usize,
}

/// A frame of all rows that was not returned.
struct Flight {
    codes: Ahead,
    /// Whose frame each row's codes are.
    rows: Vec<Option<RowId>>,
}

/// Predicts the end of the current frame.
#[derive(Default)]
struct Pace {
    /// Times of the last frames, as a ring, and number of frames.
    recent: [Duration; RECENT],
    made: usize,
    /// Start of the current frame.
    began: Option<Instant>,
}

impl Pace {
    fn begin(&mut self, now: Instant) {
        self.began = Some(now);
    }

    /// Records the end of the current frame. `another` says whether the next one has been submitted.
    fn done(&mut self, now: Instant, another: bool) {
        if let Some(began) = self.began {
            self.recent[self.made % RECENT] = now - began;
            self.made += 1;
        }
        self.began = another.then_some(now);
    }

    /// Time until the next frame must be submitted.
    fn pause(&self, now: Instant) -> Duration {
        let Some(began) = self.began.filter(|_| self.made >= RECENT) else { return Duration::ZERO };
        let frame = self.recent.iter().min().copied().unwrap_or_default();
        let early = EARLY.max(frame / 4);
        (began + frame).saturating_duration_since(now + early)
    }
}

/// A memory, its plan, and what its rows hold. A finished batch leaves its memories to the next one: making
/// them takes longest.
pub(super) struct BatchMemory {
    memory: PooledMemory,
    plan: Arc<dyn Executable>,
    sizes: MemorySizes,
    lanes: usize,
    rows: Vec<Row>,
    /// Whether positions, numbers or settings on the device differ from those of `rows`.
    changed: bool,
}

#[derive(Clone, Debug)]
struct Row {
    /// `None`: unused.
    id: Option<RowId>,
    /// As the device counts them, including the frame that is under way.
    position: usize,
    frame: usize,
    returned: usize,
    /// What the utterance may need.
    limits: RowLimits,
    /// What other utterances begin with too.
    beginning: Option<Beginning>,
    settings: DrawSettings,
}

impl Row {
    fn unused(facts: &Facts) -> Row {
        let sampling = vec![Sampling::GREEDY; facts.sampling.len()];
        let settings = DrawSettings { sampling, seed: 0, max_frames: 0 };
        let limits = RowLimits::default();
        Row { id: None, position: 0, frame: 0, returned: 0, limits, beginning: None, settings }
    }

    /// Whether an utterance in it may make another frame.
    fn continues(&self) -> bool {
        self.id.is_some() && self.frame < self.settings.max_frames
    }
}

impl<N: Autoregressive> Batch<N> {
    /// Utterances at most: [`orate_graph::Pacing::batch`], or as many as the device had room for.
    pub fn most(&self) -> usize {
        self.most
    }

    pub(super) fn new(resources: Arc<Resources<N>>) -> Batch<N> {
        Self::with_memories(resources, &mut vec![])
    }

    /// An empty batch that uses memories of a finished one.
    pub(super) fn with_memories(resources: Arc<Resources<N>>, idle: &mut Vec<BatchMemory>) -> Batch<N> {
        let (facts, pacing) = (resources.network.facts(), resources.network.device().pacing());
        Batch {
            resources,
            facts,
            memories: std::mem::take(idle),
            active: 0,
            next_id: 0,
            codes: vec![],
            flight: None,
            pace: Pace::default(),
            look_ahead: pacing.look_ahead,
            brought: vec![],
            expected: 0,
            most: pacing.batch,
        }
    }

    /// The memories, those of many rows first, as far as they fit [`SESSIONS_KEPT`].
    pub(super) fn into_memories(mut self) -> Vec<BatchMemory> {
        self.discard();
        let mut memories = std::mem::take(&mut self.memories);
        memories.sort_by_key(|m| std::cmp::Reverse(m.sizes.batch));
        let (most, mut bytes) = (self.bytes_kept(), 0);
        let mut kept = vec![];
        for mut memory in memories {
            bytes += memory.bytes();
            if bytes <= most {
                memory.rows.fill(Row::unused(&self.facts));
                memory.changed = true;
                kept.push(memory);
            }
        }
        kept
    }

    fn bytes_kept(&self) -> usize {
        SESSIONS_KEPT * self.resources.network.device().memory_kept()
    }

    /// `more` utterances will join now, and `later` after their prompts. The first of them makes room for
    /// all, and the batch does not shrink meanwhile.
    pub(super) fn expect(&mut self, more: usize, later: usize) {
        self.expected = (self.len() + more + later).min(self.most);
    }

    /// Time to wait before calling [`Batch::frame`]: utterances that join meanwhile are part of the frame
    /// that it submits. The device is busy until then.
    pub(super) fn pause(&self) -> Duration {
        self.flight.as_ref().map_or(Duration::ZERO, |_| self.pace.pause(Instant::now()))
    }

    /// As [`Session::set_look_ahead`].
    pub fn set_look_ahead(&mut self, on: bool) {
        self.look_ahead = on;
    }

    /// Compiles the plans that a batch of `utterances` begins with, of which `longest` says what each needs.
    pub(super) fn prepare(network: &N, utterances: usize, longest: Needs) -> Result<(), ModelError> {
        let need = longest.in_batch.at_first(longest.rows);
        let most = network.device().pacing().batch;
        let rows = std::iter::successors(Some(2), |rows| Some(2 * rows));
        for batch in rows.take_while(|rows| *rows <= most && *rows < 2 * utterances) {
            network.frame_plan(sizes(&network.facts(), batch, need, LEAST_CAPACITY), false)?;
        }
        Ok(())
    }

    /// Number of utterances.
    pub fn len(&self) -> usize {
        self.active().map_or(0, BatchMemory::live)
    }

    /// Whether there are no utterances.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rows of the plan that makes the next frame.
    pub fn rows(&self) -> usize {
        self.active().map_or(0, |m| m.sizes.batch)
    }

    fn active(&self) -> Option<&BatchMemory> {
        self.memories.get(self.active)
    }

    /// Takes over an utterance that has not ended. The session keeps its own memory for [`Batch::take`];
    /// until then it must not make frames. A frame that it has made ahead is waited for, and returned by the
    /// batch.
    ///
    /// # Errors
    /// The batch is full, the utterance has ended, or the device has no room. The batch is unchanged.
    pub fn join(&mut self, session: &mut Session<N>) -> Result<RowId, ModelError> {
        if self.len() >= self.most {
            let got = format!("asked for more than {} utterances", self.most);
            return Err(option_error("batch", got, "wait for one to end"));
        }
        session.goes_on()?;
        session.ahead.settle(session.memory.get())?;
        let limits = session.needs.in_batch;
        let returned = session.frames;
        let frame = returned + usize::from(!session.ahead.is_nothing());
        let position = session.rows + frame;
        self.make_room(self.len() + 1, limits.at_first(position))?;
        let id = RowId(self.next_id);
        self.next_id += 1;
        let target = &mut self.memories[self.active];
        let row = target.rows.iter().position(|r| r.id.is_none()).expect("room was made");
        let was = session.slot();
        target.take_in(session.memory.get(), was, row, position)?;
        let (beginning, settings) = (session.beginning, session.settings.clone());
        target.rows[row] = Row { id: Some(id), position, frame, returned, limits, beginning, settings };
        target.changed = true;
        if let Ahead::Made(codes) = std::mem::take(&mut session.ahead) {
            self.brought.push((id, codes));
        }
        Ok(id)
    }

    /// Gives an utterance back to the session that it came from, which continues where the row is. A frame
    /// that is under way is waited for, and returned by the session. Returns whether it was there: one that
    /// has ended is not.
    pub fn take(&mut self, id: RowId, session: &mut Session<N>) -> Result<bool, ModelError> {
        let Some(row) = self.row_of(id) else { return Ok(false) };
        self.settle()?;
        let made = self.codes_of(id);
        let source = &mut self.memories[self.active];
        let Row { position, frame, returned, .. } = source.rows[row];
        session.make_room(frame)?;
        session.goes_on()?;
        // The session still has its feed.
        let (to, plan, lanes) = (session.slot(), source.plan.clone(), source.lanes);
        let (memory, from) = (session.memory.get(), Slot { row, sizes: source.sizes });
        copy_row(plan.plan(), lanes, (memory, to), (source.memory.get(), from), position)?;
        for_lanes(memory, POSITION, lanes, position as i32)?;
        memory.write_i32(FRAME, &[1].into(), &[frame as i32])?;
        session.frames = returned;
        session.ahead = made.map_or(Ahead::Nothing, Ahead::Made);
        self.leave(id);
        Ok(true)
    }

    /// Codes of an utterance that were made, but not returned. Nothing is under way.
    fn codes_of(&self, id: RowId) -> Option<Vec<i32>> {
        if let Some((_, codes)) = self.brought.iter().find(|(row, _)| *row == id) {
            return Some(codes.clone());
        }
        let Some(Flight { codes: Ahead::Made(codes), rows }) = &self.flight else { return None };
        let row = rows.iter().position(|r| *r == Some(id))?;
        Some(codes[row * self.facts.codes..][..self.facts.codes].to_vec())
    }

    fn settle(&mut self) -> Result<(), ModelError> {
        match (&mut self.flight, self.memories.get_mut(self.active)) {
            (Some(flight), Some(active)) => flight.codes.settle(active.memory.get()),
            _ => Ok(()),
        }
    }

    fn discard(&mut self) {
        if let (Some(mut flight), Some(active)) = (self.flight.take(), self.memories.get_mut(self.active)) {
            flight.codes.discard(active.memory.get());
        }
    }

    /// Frees the row of an utterance, if it is there.
    pub fn leave(&mut self, id: RowId) {
        self.brought.retain(|(row, _)| *row != id);
        if let Some(row) = self.row_of(id) {
            let active = &mut self.memories[self.active];
            (active.rows[row], active.changed) = (Row::unused(&self.facts), true);
            // There may be room again.
            self.most = self.resources.network.device().pacing().batch;
        }
    }

    /// Advances every utterance by one frame, passes it to `each`, and returns what was asked of the device.
    /// Utterances that end, or whose logits are NaN, leave the batch. With look-ahead, one that has just
    /// joined gets its first frame with the next call, and a frame that it had made ahead itself now.
    ///
    /// # Errors
    /// The device failed. All utterances are lost then, but not where it had no room to extend the caches.
    pub fn frame(
        &mut self,
        mut each: impl FnMut(RowId, Result<Step, ModelError>, &[i32]),
    ) -> Result<Counters, ModelError> {
        let joining = self.expected.saturating_sub(self.len());
        for (id, codes) in std::mem::take(&mut self.brought) {
            self.emit(id, &codes, &mut each);
        }
        let rows = self.active().into_iter().flat_map(|m| &m.rows);
        let long = rows.filter(|r| r.returned >= r.settings.max_frames).filter_map(|r| r.id);
        for id in long.collect::<Vec<_>>() {
            each(id, Ok(Step::End(FinishReason::Length)), &[]);
            self.leave(id);
        }
        let (live, rows) = (self.len(), self.rows());
        if live > 0 && rows > 2 && 4 * (live + joining) <= rows {
            match self.move_to(rows / 2, (0, 0), LEAST_CAPACITY) {
                // A device without room for the smaller memory keeps the larger one.
                Err(e) if has_no_room(&e) => {}
                result => result?,
            }
        }
        if !self.flight.as_ref().is_some_and(|f| f.rows.iter().flatten().any(|id| self.row_of(*id).is_some()))
        {
            self.discard();
        }
        self.extend()?;
        let Some(before) = self.active().filter(|m| m.live() > 0).map(|m| m.memory.counters()) else {
            return Ok(Counters::default());
        };
        let active = &mut self.memories[self.active];
        let mut flight = match self.flight.take() {
            Some(flight) => flight,
            None => {
                self.pace.begin(Instant::now());
                active.submit(&self.facts)?
            }
        };
        // Utterances that are about to join would have to wait for one more frame.
        if self.look_ahead && joining == 0 && active.rows.iter().any(Row::continues) {
            match active.submit(&self.facts) {
                Ok(next) => self.flight = Some(next),
                Err(e) => {
                    flight.codes.discard(active.memory.get());
                    return Err(e);
                }
            }
        }
        // Now the device is busy. If it fails, so it does when the caches are extended.
        if let Some(sizes) = active.soon(&self.facts) {
            let _ = self.resources.network.frame_plan(sizes, false);
        }
        let mut codes = std::mem::take(&mut self.codes);
        flight.codes.finish(active.memory.get(), &mut codes)?;
        self.pace.done(Instant::now(), self.flight.is_some());
        let used = active.memory.counters() - before;
        for (id, codes) in flight.rows.iter().zip(codes.chunks_exact(self.facts.codes)) {
            if let Some(id) = id.filter(|id| self.row_of(*id).is_some()) {
                self.emit(id, codes, &mut each);
            }
        }
        self.codes = codes;
        Ok(used)
    }

    fn row_of(&self, id: RowId) -> Option<usize> {
        self.active()?.rows.iter().position(|r| r.id == Some(id))
    }

    /// Passes on a frame of an utterance, which leaves if that is its end.
    fn emit(
        &mut self,
        id: RowId,
        codes: &[i32],
        each: &mut impl FnMut(RowId, Result<Step, ModelError>, &[i32]),
    ) {
        if codes.first() == Some(&self.facts.end) {
            each(id, Ok(Step::End(FinishReason::Stop)), &[]);
            return self.leave(id);
        }
        let Some(row) = self.row_of(id) else { return };
        let row = &mut self.memories[self.active].rows[row];
        if let Err(e) = check_frame(codes, row.returned) {
            each(id, Err(e), &[]);
            return self.leave(id);
        }
        row.returned += 1;
        each(id, Ok(Step::Frame), codes);
    }

    /// Frees a row for an utterance that may need this many rows of cache and of feed.
    fn make_room(&mut self, live: usize, need: (usize, usize)) -> Result<(), ModelError> {
        let wanted = live.max(self.expected);
        if let Some(active) = self.active().filter(|m| m.live() > 0 && wanted <= m.sizes.batch) {
            if active.fits(need) {
                return Ok(());
            }
            if need.1 <= active.sizes.feed {
                match self.extend_to(need.0) {
                    Err(e) if has_no_room(&e) => {}
                    result => return result,
                }
            }
        }
        let (mut rows, mut least) = (wanted.next_power_of_two().max(2), LEAST_CAPACITY);
        loop {
            match self.move_to(rows, need, least) {
                Err(e) if has_no_room(&e) && least > TIGHT_CAPACITY => least = TIGHT_CAPACITY,
                // Fewer rows may fit, as long as this utterance gets one.
                Err(e) if has_no_room(&e) && rows / 2 >= live.max(2) => {
                    (rows, least) = (rows / 2, LEAST_CAPACITY);
                    (self.most, self.expected) = (rows, rows);
                }
                result => return result,
            }
        }
    }

    /// Makes room for the next frame of all utterances, and for one made ahead.
    ///
    /// # Errors
    /// The device has no room, and the batch is unchanged; or it failed.
    pub(super) fn extend(&mut self) -> Result<(), ModelError> {
        let Some(active) = self.active() else { return Ok(()) };
        let live = active.rows.iter().filter(|r| r.id.is_some());
        let need = live.map(|r| r.limits.cache_for(r.position, 2)).max().unwrap_or(0);
        if need <= active.sizes.capacity { Ok(()) } else { self.extend_to(need) }
    }

    /// Extends the caches of all utterances to at least this many rows.
    fn extend_to(&mut self, capacity: usize) -> Result<(), ModelError> {
        self.settle()?;
        let began = Instant::now();
        let active = &mut self.memories[self.active];
        let MemorySizes { batch, feed, .. } = active.sizes;
        let sizes = sizes(&self.facts, batch, (capacity, feed), TIGHT_CAPACITY);
        let plan = self.resources.network.frame_plan(sizes, false)?;
        let extended: Vec<_> = caches::caches(plan.plan()).map(|b| (&*b.name, &b.shape)).collect();
        active.memory.get().extend(&extended)?;
        (active.plan, active.sizes) = (plan, sizes);
        tracing::debug!(?sizes, elapsed = ?began.elapsed(), "caches are extended");
        Ok(())
    }

    /// Lets no more than `most` utterances join until one leaves.
    pub(super) fn limit(&mut self, most: usize) {
        self.most = most;
    }

    /// Whether an utterance that failed to join has to wait for one to leave, since the device has no room.
    /// The batch becomes no larger until then.
    pub(super) fn has_to_wait(&mut self, e: &ModelError) -> bool {
        let waits = has_no_room(e) && !self.is_empty();
        if waits {
            self.limit(self.len());
        }
        waits
    }

    /// Moves all utterances to a memory of `batch` rows that has what they and one more need, with caches of
    /// at least `least` rows if it is made.
    fn move_to(&mut self, batch: usize, need: (usize, usize), least: usize) -> Result<(), ModelError> {
        let live = self.active().into_iter().flat_map(|m| m.rows.iter().filter(|r| r.id.is_some()));
        let needs = live.map(|r| r.limits.at_first(r.position));
        let need = needs.fold(need, |a, b| (a.0.max(b.0), a.1.max(b.1)));
        let began = Instant::now();
        let target = self.memory_for(batch, need, least)?;
        tracing::debug!(rows = batch, elapsed = ?began.elapsed(), "the batch has other memory");
        if target == self.active {
            return Ok(());
        }
        self.settle()?;
        let unused = Row::unused(&self.facts);
        let [old, new] = self.memories.get_disjoint_mut([self.active, target]).expect("two memories");
        new.rows.fill(unused.clone());
        let used = old.rows.iter().enumerate().filter(|(_, r)| r.id.is_some());
        for (to, (row, known)) in used.enumerate() {
            new.take_in(old.memory.get(), Slot { sizes: old.sizes, row }, to, known.position)?;
            new.rows[to] = known.clone();
        }
        old.rows.fill(unused);
        (new.changed, old.changed) = (true, true);
        self.active = target;
        Ok(())
    }

    /// The memory of `batch` rows with at least this much room, made or replaced if need be. The active one
    /// is not replaced: its utterances have yet to move, so that for a time there are two of that size.
    fn memory_for(&mut self, batch: usize, need: (usize, usize), least: usize) -> Result<usize, ModelError> {
        if let Some(i) = self.memories.iter().position(|m| m.sizes.batch == batch && m.fits(need)) {
            return Ok(i);
        }
        let sizes = sizes(&self.facts, batch, need, least);
        let plan = self.resources.network.frame_plan(sizes, false)?;
        self.keep_few(caches::bytes(plan.plan()));
        let mut memory = self.resources.batches.take();
        let kept = plan.plan().buffers().iter().filter(|b| b.kind.is_state() || b.name == FEED);
        let kept: Vec<_> = kept.map(|b| (&*b.name, b.dtype, &b.shape)).collect();
        memory.get().clear_all(&kept)?;
        let rows = vec![Row::unused(&self.facts); batch];
        let made = BatchMemory { memory, plan, sizes, lanes: self.facts.lanes, rows, changed: true };
        let smaller = |i: &usize| *i != self.active && self.memories[*i].sizes.batch == batch;
        let i = (0..self.memories.len()).find(smaller).unwrap_or(self.memories.len());
        self.memories.splice(i..self.memories.len().min(i + 1), [made]);
        Ok(i)
    }
}

impl<N: Autoregressive> Batch<N> {
    /// Drops memories that are not in use, the smallest first, until all with one of `more` bytes are no more
    /// than [`SESSIONS_KEPT`].
    fn keep_few(&mut self, more: usize) {
        let used = self.flight.is_some() || self.active().is_some_and(|m| m.live() > 0);
        let mut memories = std::mem::take(&mut self.memories);
        let mut active = used.then(|| memories.swap_remove(self.active));
        memories.sort_by_key(|m| m.sizes.batch);
        let mut bytes = more + memories.iter().map(BatchMemory::bytes).sum::<usize>();
        while bytes > self.bytes_kept() && !memories.is_empty() {
            bytes -= memories.remove(0).bytes();
        }
        memories.splice(0..0, active.take());
        (self.memories, self.active) = (memories, 0);
    }
}

impl<N: Autoregressive> Drop for Batch<N> {
    fn drop(&mut self) {
        self.discard();
    }
}

impl BatchMemory {
    fn bytes(&self) -> usize {
        caches::bytes(self.plan.plan())
    }

    fn live(&self) -> usize {
        self.rows.iter().filter(|r| r.id.is_some()).count()
    }

    /// Whether an utterance that needs this many rows of cache and of feed has room in a row.
    fn fits(&self, (capacity, feed): (usize, usize)) -> bool {
        capacity <= self.sizes.capacity && feed <= self.sizes.feed
    }

    /// Sizes with caches for more rows, if the utterances may fill these soon.
    fn soon(&self, facts: &Facts) -> Option<MemorySizes> {
        let live = self.rows.iter().filter(|r| r.id.is_some());
        let need = live.map(|r| r.limits.cache_for(r.position, SOON)).max()?;
        let MemorySizes { batch, capacity, feed } = self.sizes;
        (need > capacity).then(|| sizes(facts, batch, (need, feed), TIGHT_CAPACITY))
    }

    /// Submits a frame of the rows that continue. What the others compute is ignored.
    fn submit(&mut self, facts: &Facts) -> Result<Flight, ModelError> {
        self.write_rows(facts)?;
        self.plan.run(self.memory.get())?;
        tracing::debug!(rows = self.sizes.batch, live = self.live(), "a frame is submitted");
        let codes = Ahead::UnderWay(self.memory.get().read_later(CODES)?);
        let rows = self.rows.iter().map(|r| r.id.filter(|_| r.continues())).collect();
        for row in self.rows.iter_mut().filter(|r| r.id.is_none() || r.continues()) {
            row.position += 1;
            row.frame += 1;
        }
        Ok(Flight { codes, rows })
    }

    fn take_in(
        &mut self,
        from: &mut dyn Memory,
        was: Slot,
        row: usize,
        position: usize,
    ) -> Result<(), ModelError> {
        let place = Slot { sizes: self.sizes, row };
        let plan = self.plan.clone();
        copy_row(plan.plan(), self.lanes, (self.memory.get(), place), (&mut *from, was), position)?;
        let Some(feed) = plan.plan().buffers().iter().find(|b| b.name == FEED) else { return Ok(()) };
        // The last row holds for all later frames.
        let width = feed.shape.last();
        let part = |at: usize, rows: usize, to: usize| Part {
            from: (FEED, (was.row * was.sizes.feed + at) * width),
            to: (FEED, (row * place.sizes.feed + to) * width),
            len: rows * width,
        };
        let both = was.sizes.feed.min(place.sizes.feed);
        let last = was.sizes.feed - 1;
        let mut parts = vec![part(0, both, 0)];
        parts.extend((both..place.sizes.feed).map(|to| part(last, 1, to)));
        Ok(self.memory.get().copy_from(from, &parts)?)
    }

    /// Brings what the host knows of the rows to the device, if it has changed.
    fn write_rows(&mut self, facts: &Facts) -> Result<(), ModelError> {
        for row in self.rows.iter_mut().filter(|r| r.id.is_none() && r.position >= self.sizes.capacity) {
            (row.position, self.changed) = (0, true);
        }
        if !self.changed {
            return Ok(());
        }
        // Attention of unused rows costs least at the beginning.
        self.rows.iter_mut().filter(|r| r.id.is_none()).for_each(|row| row.position = 0);
        let batch = self.sizes.batch;
        let numbers = |lanes: usize, number: &dyn Fn(&Row) -> usize| -> Vec<i32> {
            self.rows.iter().flat_map(|r| std::iter::repeat_n(number(r) as i32, lanes)).collect()
        };
        let (positions, frames) = (numbers(self.lanes, &|r| r.position), numbers(1, &|r| r.frame));
        let seeds: Vec<i32> = self.rows.iter().flat_map(|r| r.settings.seed_words()).collect();
        let memory = self.memory.get();
        memory.write_i32(POSITION, &[positions.len()].into(), &positions)?;
        memory.write_i32(FRAME, &[batch].into(), &frames)?;
        memory.write_i32(SEED, &[batch, 2].into(), &seeds)?;
        if self.plan.plan().buffers().iter().any(|b| b.name == SHARED) {
            let beginnings: Vec<_> = self.rows.iter().map(|r| r.beginning).collect();
            let shared = in_common(&beginnings, self.lanes);
            memory.write_i32(SHARED, &[batch * self.lanes, 2].into(), &shared)?;
        }
        for (i, name) in facts.sampling.iter().enumerate() {
            let mut all = vec![];
            for row in &self.rows {
                let sampling = row.settings.sampling[i];
                let width = settings_width(self.plan.plan(), name, &sampling)?;
                all.extend_from_slice(&sampling.row()[..width]);
            }
            memory.write_f32(name, &[batch, all.len() / batch].into(), &all)?;
        }
        self.changed = false;
        Ok(())
    }
}

/// [`SHARED`] of utterances that begin like this.
fn in_common(beginnings: &[Option<Beginning>], lanes: usize) -> Vec<i32> {
    let of_row = |(row, own): (usize, &Option<Beginning>)| {
        let alike = || (0..beginnings.len()).filter(|other| beginnings[*other] == *own);
        let several = own.filter(|_| alike().count() > 1);
        let (first, rows) = several.map_or((row, 0), |b| (alike().next().unwrap_or(row), b.rows));
        (0..lanes).flat_map(move |lane| [(first * lanes + lane) as i32, rows as i32])
    };
    beginnings.iter().enumerate().flat_map(of_row).collect()
}

/// Sizes of a memory of `batch` rows, for utterances that need this many rows of cache and of feed, with
/// caches of at least `least` rows.
fn sizes(facts: &Facts, batch: usize, (capacity, feed): (usize, usize), least: usize) -> MemorySizes {
    let most = facts.positions.max(capacity);
    let capacity = capacity.next_power_of_two().max(least).min(most);
    let feed = if feed == 0 { 0 } else { feed.next_power_of_two().max(LEAST_FEED) };
    MemorySizes { batch, capacity, feed }
}

pub(super) fn has_no_room(e: &ModelError) -> bool {
    matches!(e, ModelError::Device(e) if matches!(**e, DeviceError::OutOfMemory { .. }))
}

/// Copies the state of an utterance that has `position` rows in its caches: all but what the host writes, and
/// the feed.
fn copy_row(
    plan: &Plan,
    lanes: usize,
    (to, at): (&mut dyn Memory, Slot),
    (from, was): (&mut dyn Memory, Slot),
    position: usize,
) -> Result<(), ModelError> {
    let batch = plan.buffers().iter().find(|b| b.name == FRAME).map_or(1, |b| b.shape.len());
    let mut parts = cache_parts(plan, lanes, &(0..position), (was, at));
    for b in plan.buffers().iter().filter(|b| b.kind == BufferKind::State) {
        if ![POSITION, FRAME].contains(&b.name.as_str()) {
            let len = b.shape.len() / batch;
            parts.push(Part { from: (&b.name, was.row * len), to: (&b.name, at.row * len), len });
        }
    }
    Ok(to.copy_from(from, &parts)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_voice_begin_alike() {
        let [one, other] = [1, 2].map(|state| Some(Beginning { state, rows: 9 }));
        let shared = in_common(&[None, one, other, one, None, one], 1);
        assert_eq!(shared, [[0, 0], [1, 9], [2, 0], [1, 9], [4, 0], [1, 9]].concat());
        assert_eq!(
            in_common(&[None, one, one], 2),
            [[0, 0], [1, 0], [2, 9], [3, 9], [2, 9], [3, 9]].concat()
        );
    }

    #[test]
    fn a_frame_is_submitted_before_the_one_under_way_ends() {
        let ms = Duration::from_millis;
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        pace.begin(now);
        // Beside prompts, the first ones take long.
        for frame in [40, 30, 12, 13, 12, 13, 14] {
            now += ms(frame);
            pace.done(now, true);
            assert_eq!(pace.pause(now), ms(0), "little is known");
        }
        now += ms(12);
        pace.done(now, true);
        assert_eq!(pace.pause(now + ms(1)), ms(12 - 12 / 4 - 1));
        assert_eq!(pace.pause(now + ms(10)), ms(0));
        now += ms(5);
        pace.done(now, true);
        assert_eq!(pace.pause(now), ms(5) - EARLY, "it may be as quick again");
        pace.done(now + ms(12), false);
        assert_eq!(pace.pause(now + ms(12)), ms(0), "nothing is under way");
    }
}
