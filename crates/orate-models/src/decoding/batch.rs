//! Several utterances side by side: one plan makes a frame of each.
//!
//! A batch is the memory of a frame plan with some rows. A [`Session`] that was started joins it between two frames: its state
//! is copied to a free row on the device, and the session is what it was; it may come back in the same way. Each row has
//! its position, frame number, seed and settings, and no op lets a row see another one, so that a row is what the session alone
//! would have been: on the CPU byte by byte, elsewhere but for the rounding of other kernels.
//!
//! Where memories have queues of their own a frame is submitted before the codes of the one in front of it are waited for. It is one of
//! the rows that were there when it was submitted: whoever joins is in the next one, and what it makes of one that has left goes
//! to nobody. When rows move to another memory, it is waited for.
//!
//! Rows are 2, 4, 8 … [`Batch::MOST`]. When more join, all rows move to a larger memory, when many have left to a smaller one.
//! A memory stays for the next time it fits. What a row without an utterance computes means nothing; it begins at
//! position 0 again before it would run over the end of the cache.

use super::ahead::Ahead;
use super::session::{Session, SessionRow, Step};
use crate::FinishReason;
use crate::qwen3_tts::error::QwenError;
use crate::qwen3_tts::frame::{self, CODES, FRAME};
use crate::qwen3_tts::pipeline::{Network, Qwen3Tts};
use crate::qwen3_tts::prompt_rows::TRAILING;
use crate::qwen3_tts::settings::Settings;
use crate::qwen3_tts::talker::{POSITION, Sizes};
use crate::runtime::PooledMemory;
use orate_graph::{BufferKind, Counters, Executable, Memory, Part};
use std::sync::Arc;

/// Least rows of a cache; more are a power of two, so that plans are few.
const LEAST_CAPACITY: usize = 512;
/// Least rows of trailing text, likewise.
const LEAST_TEXT: usize = 128;

/// A batch that was left keeps memories of at most so many sessions' bytes ([`orate_graph::Device::memory_kept`]): on a GPU 2 GiB.
const SESSIONS_KEPT: usize = 8;

/// Name of the states that hold rows of the talker's cache begins so.
const CACHE: &str = "talker.";
/// The code predictor's cache lives as long as a frame.
const WITHIN_A_FRAME: &str = "predictor.";

/// Number of an utterance, never used again by its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowId(u64);

/// Buffers and plan of several utterances.
pub struct Batch {
    model: Arc<Qwen3Tts>,
    /// Memories by number of rows; that of the rows is `active`.
    memories: Vec<BatchMemory>,
    active: usize,
    next_id: u64,
    codes: Vec<i32>,
    /// The frame that was submitted, and is not handed out.
    flight: Option<Flight>,
    makes_ahead: bool,
    /// Codes that utterances had made when they joined.
    brought: Vec<(RowId, Vec<i32>)>,
    /// Utterances that there shall be room for when the next one joins.
    expected: usize,
}

/// Memories that a batch has left, for the next one: what takes longest about a batch is to make them.
#[derive(Default)]
pub(crate) struct IdleMemories(Vec<BatchMemory>);

/// A frame of all rows that is not handed out.
struct Flight {
    codes: Ahead,
    /// Whose frame each row's codes are.
    rows: Vec<Option<RowId>>,
}

/// A memory, its plan, and what is in its rows.
struct BatchMemory {
    memory: PooledMemory,
    plan: Arc<dyn Executable>,
    sizes: Sizes,
    text_rows: usize,
    rows: Vec<Row>,
    /// Whether positions, numbers or settings on the device are not those of `rows`.
    changed: bool,
}

/// What the host knows of a row.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// `None`: nobody's.
    id: Option<RowId>,
    /// As the device counts them, the frame that is under way included.
    position: usize,
    frame: usize,
    /// Frames that were handed out.
    handed: usize,
    /// Rows of cache and of text that its utterance may need.
    capacity: usize,
    text_rows: usize,
    settings: Settings,
}

impl Row {
    /// Draws nothing at random, and stands at the beginning.
    fn free() -> Row {
        let settings = Settings {
            first: crate::qwen3_tts::Sampling::GREEDY,
            predictor: crate::qwen3_tts::Sampling::GREEDY,
            seed: 0,
            max_frames: 0,
        };
        Row { id: None, position: 0, frame: 0, handed: 0, capacity: 0, text_rows: 0, settings }
    }
}

impl Row {
    /// Whether it is an utterance's that may make another frame.
    fn goes_on(&self) -> bool {
        self.id.is_some() && self.frame < self.settings.max_frames
    }
}

/// Where an utterance lies in a memory.
struct Place {
    sizes: Sizes,
    text_rows: usize,
    row: usize,
}

impl Batch {
    /// Utterances at most.
    pub const MOST: usize = 16;

    /// An empty batch.
    ///
    /// # Errors
    /// The files are those of a codec alone.
    pub fn new(model: Arc<Qwen3Tts>) -> Result<Batch, QwenError> {
        model.talking()?;
        let makes_ahead = model.device().has_queues();
        Ok(Batch {
            model,
            memories: vec![],
            active: 0,
            next_id: 0,
            codes: vec![],
            flight: None,
            makes_ahead,
            brought: vec![],
            expected: 0,
        })
    }

    /// An empty batch that uses memories of one that was left.
    ///
    /// # Errors
    /// As [`Batch::new`].
    pub(crate) fn with_memories(model: Arc<Qwen3Tts>, idle: &mut IdleMemories) -> Result<Batch, QwenError> {
        let mut batch = Batch::new(model)?;
        batch.memories = std::mem::take(&mut idle.0);
        Ok(batch)
    }

    /// The memories, those for many rows first, as far as they take no more than so many sessions' that are kept.
    pub(crate) fn into_memories(mut self) -> IdleMemories {
        self.throw_away();
        let mut memories = std::mem::take(&mut self.memories);
        memories.sort_by_key(|h| std::cmp::Reverse(h.sizes.batch));
        let (most, mut bytes) = (SESSIONS_KEPT * self.model.device().memory_kept(), 0);
        let mut kept = vec![];
        for mut home in memories {
            bytes += home.bytes();
            if bytes > most {
                continue;
            }
            home.rows.fill(Row::free());
            home.changed = true;
            kept.push(home);
        }
        IdleMemories(kept)
    }

    /// So many more will join, one after the other: the first of them makes room for all.
    pub(crate) fn expect(&mut self, more: usize) {
        self.expected = (self.len() + more).min(Self::MOST);
    }

    /// As [`Session::make_ahead`].
    pub fn make_ahead(&mut self, on: bool) {
        self.makes_ahead = on;
    }

    /// Makes the plans of a batch of so many utterances, which may need so many rows of cache and of text.
    ///
    /// # Errors
    /// As [`Batch::join`].
    pub(crate) fn prepare(
        model: &Qwen3Tts,
        utterances: usize,
        need: (usize, usize),
    ) -> Result<(), QwenError> {
        let rows = std::iter::successors(Some(2), |rows| Some(2 * rows));
        for batch in rows.take_while(|rows| *rows <= Self::MOST && *rows < 2 * utterances) {
            let (sizes, text_rows) = Self::sizes(model, batch, need)?;
            model.plan(Network::Frame { sizes, text_rows }, false)?;
        }
        Ok(())
    }

    /// Of a memory of `batch` rows, where utterances may need so many rows of cache and of text.
    fn sizes(
        model: &Qwen3Tts,
        batch: usize,
        (capacity, text_rows): (usize, usize),
    ) -> Result<(Sizes, usize), QwenError> {
        let most = model.talking()?.config.talker_config.max_position_embeddings;
        let capacity = capacity.next_power_of_two().max(LEAST_CAPACITY).min(most.max(capacity));
        Ok((Sizes { batch, capacity, kv: model.kv() }, text_rows.next_power_of_two().max(LEAST_TEXT)))
    }

    /// Utterances in it.
    pub fn len(&self) -> usize {
        self.active().map_or(0, BatchMemory::live)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rows of the plan that makes the next frame.
    pub fn rows(&self) -> usize {
        self.active().map_or(0, |h| h.sizes.batch)
    }

    fn active(&self) -> Option<&BatchMemory> {
        self.memories.get(self.active)
    }

    fn active_mut(&mut self) -> Option<&mut BatchMemory> {
        self.memories.get_mut(self.active)
    }

    /// Takes over an utterance, which was started and has not ended. The session keeps its own memory for [`Batch::take`]; until
    /// then it must not make frames. One that it has made ahead is waited for, and handed out by the batch.
    ///
    /// # Errors
    /// The batch is full, the session was not started, or the device has no room. The batch is what it was.
    pub fn join(&mut self, session: &mut Session) -> Result<RowId, QwenError> {
        if self.len() >= Self::MOST {
            return Err(QwenError::Option {
                option: "batch",
                got: format!("asked for more than {} utterances", Self::MOST),
                allowed: "wait for one to end".to_owned(),
            });
        }
        let row = session.row()?;
        let need @ (capacity, _) = row.need();
        let SessionRow { memory, sizes, text_rows, rows, settings, frames, ahead } = row;
        ahead.settle(memory)?;
        self.make_room(self.len() + 1, need)?;
        let id = RowId(self.next_id);
        self.next_id += 1;
        let home = &mut self.memories[self.active];
        let row = home.rows.iter().position(|r| r.id.is_none()).expect("room was made");
        let (handed, frame) = (*frames, *frames + usize::from(!ahead.is_nothing()));
        let position = rows + frame;
        home.take_in(memory, &Place { sizes, text_rows, row: 0 }, row, position)?;
        home.rows[row] = Row { id: Some(id), position, frame, handed, capacity, text_rows, settings };
        home.changed = true;
        if let Ahead::Made(codes) = std::mem::take(ahead) {
            self.brought.push((id, codes));
        }
        Ok(id)
    }

    /// Gives an utterance back to the session that it came from, which goes on where the row is. A frame that is under way is waited
    /// for, and handed out by the session. Whether it was there: one that has ended is not.
    ///
    /// # Errors
    /// The device failed, or the session was started anew.
    pub fn take(&mut self, id: RowId, session: &mut Session) -> Result<bool, QwenError> {
        let Some(row) = self.active().and_then(|h| h.rows.iter().position(|r| r.id == Some(id))) else {
            return Ok(false);
        };
        self.settle()?;
        let made = self.codes_of(id)?;
        let home = &mut self.memories[self.active];
        session.make_room(home.rows[row].frame)?;
        let s = session.row()?;
        let (to, from) = (
            Place { sizes: s.sizes, text_rows: s.text_rows, row: 0 },
            Place { sizes: home.sizes, text_rows: home.text_rows, row },
        );
        let Row { position, frame, handed, .. } = home.rows[row];
        // The session's trailing text is there.
        copy_row(&*home.plan, (s.memory, &to), (home.memory.get(), &from), position)?;
        s.memory.write_i32(POSITION, &[1].into(), &[position as i32])?;
        s.memory.write_i32(FRAME, &[1].into(), &[frame as i32])?;
        *s.frames = handed;
        *s.ahead = made.map_or(Ahead::Nothing, Ahead::Made);
        self.leave(id);
        Ok(true)
    }

    /// Codes of an utterance that were made and not handed out. Nothing is under way.
    fn codes_of(&self, id: RowId) -> Result<Option<Vec<i32>>, QwenError> {
        if let Some((_, codes)) = self.brought.iter().find(|(row, _)| *row == id) {
            return Ok(Some(codes.clone()));
        }
        let Some(Flight { codes: Ahead::Made(codes), rows }) = &self.flight else { return Ok(None) };
        let quantizers = self.quantizers()?;
        let row = rows.iter().position(|r| *r == Some(id));
        Ok(row.map(|row| codes[row * quantizers..][..quantizers].to_vec()))
    }

    fn quantizers(&self) -> Result<usize, QwenError> {
        Ok(self.model.talking()?.config.talker_config.num_code_groups)
    }

    /// Waits for the frame that is under way.
    fn settle(&mut self) -> Result<(), QwenError> {
        match (&mut self.flight, self.memories.get_mut(self.active)) {
            (Some(flight), Some(home)) => flight.codes.settle(home.memory.get()),
            _ => Ok(()),
        }
    }

    /// Throws away the frame that is under way.
    fn throw_away(&mut self) {
        if let (Some(mut flight), Some(home)) = (self.flight.take(), self.memories.get_mut(self.active)) {
            flight.codes.throw_away(home.memory.get());
        }
    }

    /// Frees the row of an utterance, if it is there.
    pub fn leave(&mut self, id: RowId) {
        self.brought.retain(|(row, _)| *row != id);
        let Some(home) = self.active_mut() else { return };
        if let Some(row) = home.rows.iter_mut().find(|r| r.id == Some(id)) {
            *row = Row::free();
            home.changed = true;
        }
    }

    /// Makes the next frame of each utterance, hands out what it is, and returns what was asked of the device. An utterance
    /// that ends has left, and so has one that fails because its logits are not numbers. Where frames are made ahead, one that has just joined gets its first frame with the next call, and
    /// one that it had made ahead itself now.
    ///
    /// # Errors
    /// The device failed. All utterances are lost then.
    pub fn frame(
        &mut self,
        mut each: impl FnMut(RowId, Result<Step, QwenError>, &[i32]),
    ) -> Result<Counters, QwenError> {
        let c = &self.model.talking()?.config.talker_config;
        let (end, quantizers) = (c.codec_eos_token_id as i32, c.num_code_groups);
        for (id, codes) in std::mem::take(&mut self.brought) {
            self.hand_out(id, &codes, end, &mut each);
        }
        self.end_long_ones(&mut each);
        self.leave_some_room()?;
        if !self.flight.as_ref().is_some_and(|f| f.rows.iter().flatten().any(|id| self.has(*id))) {
            self.throw_away();
        }
        let Some(before) = self.active().filter(|h| h.live() > 0).map(|h| h.memory.counters()) else {
            return Ok(Counters::default());
        };
        let home = &mut self.memories[self.active];
        let mut flight = match self.flight.take() {
            Some(flight) => flight,
            None => home.submit()?,
        };
        if self.makes_ahead && home.rows.iter().any(Row::goes_on) {
            match home.submit() {
                Ok(next) => self.flight = Some(next),
                Err(e) => {
                    flight.codes.throw_away(home.memory.get());
                    return Err(e);
                }
            }
        }
        let mut codes = std::mem::take(&mut self.codes);
        flight.codes.finish(home.memory.get(), &mut codes)?;
        let used = home.memory.counters() - before;
        for (id, codes) in flight.rows.iter().zip(codes.chunks_exact(quantizers)) {
            if let Some(id) = id.filter(|id| self.has(*id)) {
                self.hand_out(id, codes, end, &mut each);
            }
        }
        self.codes = codes;
        Ok(used)
    }

    fn has(&self, id: RowId) -> bool {
        self.active().is_some_and(|h| h.rows.iter().any(|r| r.id == Some(id)))
    }

    /// Hands out a frame of an utterance, which leaves if it is its end.
    fn hand_out(
        &mut self,
        id: RowId,
        codes: &[i32],
        end: i32,
        each: &mut impl FnMut(RowId, Result<Step, QwenError>, &[i32]),
    ) {
        if codes.first() == Some(&end) {
            each(id, Ok(Step::End(FinishReason::Stop)), &[]);
            return self.leave(id);
        }
        let row = self.active_mut().and_then(|h| h.rows.iter_mut().find(|r| r.id == Some(id)));
        let Some(row) = row else { return };
        if let Err(e) = frame::check(codes, row.handed) {
            each(id, Err(e), &[]);
            return self.leave(id);
        }
        row.handed += 1;
        each(id, Ok(Step::Frame), codes);
    }

    /// Those that have as many frames as were allowed.
    fn end_long_ones(&mut self, each: &mut impl FnMut(RowId, Result<Step, QwenError>, &[i32])) {
        let Some(home) = self.active() else { return };
        let long = |r: &&Row| r.handed >= r.settings.max_frames;
        let ended: Vec<RowId> = home.rows.iter().filter(long).filter_map(|r| r.id).collect();
        for id in ended {
            each(id, Ok(Step::End(FinishReason::Length)), &[]);
            self.leave(id);
        }
    }

    /// Moves to fewer rows if most are free.
    fn leave_some_room(&mut self) -> Result<(), QwenError> {
        let (live, rows) = (self.len(), self.rows());
        if live > 0 && rows > 2 && 4 * live <= rows { self.move_to(rows / 2, (0, 0)) } else { Ok(()) }
    }

    /// A free row for an utterance that may need so many rows of cache and of text.
    fn make_room(&mut self, live: usize, need: (usize, usize)) -> Result<(), QwenError> {
        let live = live.max(std::mem::take(&mut self.expected));
        let fits =
            |h: &BatchMemory| live <= h.sizes.batch && need.0 <= h.sizes.capacity && need.1 <= h.text_rows;
        if self.active().is_some_and(|h| h.live() > 0 && fits(h)) {
            return Ok(());
        }
        self.move_to(live.next_power_of_two().max(2), need)
    }

    /// Moves all utterances to a memory of `batch` rows that has what they and one more need.
    fn move_to(&mut self, batch: usize, need: (usize, usize)) -> Result<(), QwenError> {
        let live: Vec<Row> = match self.active() {
            Some(h) => h.rows.iter().filter(|r| r.id.is_some()).copied().collect(),
            None => vec![],
        };
        let capacity = live.iter().map(|r| r.capacity).fold(need.0, usize::max);
        let text_rows = live.iter().map(|r| r.text_rows).fold(need.1, usize::max);
        let target = self.memory_for(batch, capacity, text_rows)?;
        if target == self.active {
            return Ok(());
        }
        self.settle()?;
        let [old, new] = self.memories.get_disjoint_mut([self.active, target]).expect("two memories");
        new.rows.fill(Row::free());
        let full = old.rows.iter().enumerate().filter(|(_, r)| r.id.is_some());
        for (to, (row, known)) in full.enumerate() {
            let from = Place { sizes: old.sizes, text_rows: old.text_rows, row };
            new.take_in(old.memory.get(), &from, to, known.position)?;
            new.rows[to] = *known;
        }
        old.rows.fill(Row::free());
        (new.changed, old.changed) = (true, true);
        self.active = target;
        Ok(())
    }

    /// The memory of `batch` rows with at least this much room, made or replaced if need be. The active one is not replaced: its
    /// utterances have yet to move, so that for a time there are two of that size.
    fn memory_for(&mut self, batch: usize, capacity: usize, text_rows: usize) -> Result<usize, QwenError> {
        let fits = |h: &BatchMemory| {
            h.sizes.batch == batch && capacity <= h.sizes.capacity && text_rows <= h.text_rows
        };
        if let Some(i) = self.memories.iter().position(fits) {
            return Ok(i);
        }
        let (sizes, text_rows) = Self::sizes(&self.model, batch, (capacity, text_rows))?;
        let plan = self.model.plan(Network::Frame { sizes, text_rows }, false)?;
        let mut memory = self.model.memory();
        for b in plan.plan().buffers() {
            if b.kind == BufferKind::State || b.name == TRAILING {
                memory.get().clear(&b.name, b.dtype, &b.shape)?;
            }
        }
        let home =
            BatchMemory { memory, plan, sizes, text_rows, rows: vec![Row::free(); batch], changed: true };
        let active = self.active;
        let smaller =
            self.memories.iter().enumerate().position(|(i, h)| i != active && h.sizes.batch == batch);
        match smaller {
            Some(i) => {
                self.memories[i] = home;
                Ok(i)
            }
            None => {
                self.memories.push(home);
                Ok(self.memories.len() - 1)
            }
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.throw_away();
    }
}

impl BatchMemory {
    fn live(&self) -> usize {
        self.rows.iter().filter(|r| r.id.is_some()).count()
    }

    /// Bytes of its buffers.
    fn bytes(&self) -> usize {
        self.plan.plan().buffers().iter().map(|b| b.dtype.bytes_of(&b.shape)).sum()
    }

    /// Submits a frame of the rows that go on. The others compute what nobody wants.
    fn submit(&mut self) -> Result<Flight, QwenError> {
        self.write_rows()?;
        self.plan.run(self.memory.get())?;
        let codes = Ahead::UnderWay(self.memory.get().read_later(CODES)?);
        let rows = self.rows.iter().map(|r| r.id.filter(|_| r.goes_on())).collect();
        for row in self.rows.iter_mut().filter(|r| r.id.is_none() || r.goes_on()) {
            row.position += 1;
            row.frame += 1;
        }
        Ok(Flight { codes, rows })
    }

    /// Copies an utterance to `row`, from another memory.
    fn take_in(
        &mut self,
        from: &mut dyn Memory,
        was: &Place,
        row: usize,
        position: usize,
    ) -> Result<(), QwenError> {
        let place = Place { sizes: self.sizes, text_rows: self.text_rows, row };
        copy_row(&*self.plan, (self.memory.get(), &place), (&mut *from, was), position)?;
        // The last row of the text is that of all frames behind it.
        let width = self.width_of_text();
        let (own, others) = (place.text_rows * width, was.text_rows * width);
        let part = |at: usize, rows: usize, to: usize| Part {
            from: (TRAILING, was.row * others + at * width),
            to: (TRAILING, row * own + to * width),
            len: rows * width,
        };
        let both = was.text_rows.min(place.text_rows);
        let last = was.text_rows - 1;
        let mut parts = vec![part(0, both, 0)];
        parts.extend((both..place.text_rows).map(|to| part(last, 1, to)));
        Ok(self.memory.get().copy_from(from, &parts)?)
    }

    fn width_of_text(&self) -> usize {
        let trailing = self.plan.plan().buffers().iter().find(|b| b.name == TRAILING);
        trailing.map_or(0, |b| b.shape.last())
    }

    /// Brings what the host knows of the rows to the device, if that is not there.
    fn write_rows(&mut self) -> Result<(), QwenError> {
        for row in self.rows.iter_mut().filter(|r| r.id.is_none() && r.position >= self.sizes.capacity) {
            (row.position, self.changed) = (0, true);
        }
        if !self.changed {
            return Ok(());
        }
        let batch = self.sizes.batch;
        let integers = |f: &dyn Fn(&Row) -> Vec<i32>| self.rows.iter().flat_map(f).collect::<Vec<_>>();
        let floats = |f: &dyn Fn(&Row) -> [f32; 4]| self.rows.iter().flat_map(f).collect::<Vec<_>>();
        let m = self.memory.get();
        m.write_i32(POSITION, &[batch].into(), &integers(&|r| vec![r.position as i32]))?;
        m.write_i32(FRAME, &[batch].into(), &integers(&|r| vec![r.frame as i32]))?;
        m.write_i32("seed", &[batch, 2].into(), &integers(&|r| r.settings.seed_words().to_vec()))?;
        m.write_f32("sampling", &[batch, 4].into(), &floats(&|r| r.settings.first.row()))?;
        m.write_f32("predictor_sampling", &[batch, 4].into(), &floats(&|r| r.settings.predictor.row()))?;
        self.changed = false;
        Ok(())
    }
}

/// Copies the state of an utterance that has `position` rows in its cache: all but what the host writes, and the text.
fn copy_row(
    plan: &dyn Executable,
    (to, at): (&mut dyn Memory, &Place),
    (from, was): (&mut dyn Memory, &Place),
    position: usize,
) -> Result<(), QwenError> {
    let batch = plan.plan().buffers().iter().find(|b| b.name == POSITION).map_or(1, |b| b.shape.len());
    let mut parts = vec![];
    for b in plan.plan().buffers() {
        let own = [POSITION, FRAME].contains(&b.name.as_str()) || b.name.starts_with(WITHIN_A_FRAME);
        if b.kind != BufferKind::State || own {
            continue;
        }
        let whole = b.shape.len() / batch;
        let name = b.name.as_str();
        parts.push(if name.starts_with(CACHE) {
            let width = b.shape.last();
            Part {
                from: (name, was.row * was.sizes.capacity * width),
                to: (name, at.row * at.sizes.capacity * width),
                len: position * width,
            }
        } else {
            Part { from: (name, was.row * whole), to: (name, at.row * whole), len: whole }
        });
    }
    Ok(to.copy_from(from, &parts)?)
}
