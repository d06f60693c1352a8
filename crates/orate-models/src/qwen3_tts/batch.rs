//! Several utterances side by side: one plan makes a frame of each.
//!
//! A batch is the memory of a frame plan with some rows. A [`Session`] that was started joins it between two frames: its state
//! is copied to a free row on the device, and the session is what it was; it may come back in the same way. Each row has
//! its position, frame number, seed and settings, and no op lets a row see another one, so that a row is what the session alone
//! would have been: on the CPU byte by byte, elsewhere but for the rounding of other kernels.
//!
//! Rows are 2, 4, 8 … [`Batch::MOST`]. When more join, all rows move to a larger memory, when many have left to a smaller one.
//! A memory stays for the next time it fits. What a row without an utterance computes means nothing; it begins at
//! position 0 again before it would run over the end of the cache.

use super::error::QwenError;
use super::frame::{CODES, FRAME};
use super::pipeline::{Network, Qwen3Tts};
use super::session::{FinishReason, Session, SessionRow, Step};
use super::settings::Settings;
use super::talker::{POSITION, Sizes};
use orate_graph::{BufferKind, Counters, Executable, Memory, Part};
use std::sync::Arc;

/// Least rows of a cache; more are a power of two, so that plans are few.
const LEAST_CAPACITY: usize = 512;
/// Least rows of trailing text, likewise.
const LEAST_TEXT: usize = 128;

/// Name of the states that hold rows of the talker's cache begins so.
const CACHE: &str = "talker.";
/// The code predictor's cache lives as long as a frame.
const WITHIN_A_FRAME: &str = "predictor.";
/// Buffer of the trailing text.
const TRAILING: &str = "trailing";

/// Number of an utterance, never used again by its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowId(u64);

/// Buffers and plan of several utterances.
pub struct Batch {
    model: Arc<Qwen3Tts>,
    /// Memories by number of rows; that of the rows is `active`.
    homes: Vec<Home>,
    active: usize,
    next_id: u64,
    codes: Vec<i32>,
}

/// A memory, its plan, and what is in its rows.
struct Home {
    memory: Box<dyn Memory>,
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
    /// As the device counts them.
    position: usize,
    frame: usize,
    /// Rows of cache and of text that its utterance may need.
    capacity: usize,
    text_rows: usize,
    settings: Settings,
}

impl Row {
    /// Draws nothing at random, and stands at the beginning.
    fn free() -> Row {
        let settings = Settings {
            first: super::Sampling::GREEDY,
            others: super::Sampling::GREEDY,
            seed: 0,
            max_frames: 0,
        };
        Row { id: None, position: 0, frame: 0, capacity: 0, text_rows: 0, settings }
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
        Ok(Batch { model, homes: vec![], active: 0, next_id: 0, codes: vec![] })
    }

    /// Utterances in it.
    pub fn len(&self) -> usize {
        self.home().map_or(0, Home::live)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rows of the plan that makes the next frame.
    pub fn rows(&self) -> usize {
        self.home().map_or(0, |h| h.sizes.batch)
    }

    fn home(&self) -> Option<&Home> {
        self.homes.get(self.active)
    }

    fn home_mut(&mut self) -> Option<&mut Home> {
        self.homes.get_mut(self.active)
    }

    /// Takes over an utterance, which was started and has not ended. The session keeps its own memory for [`Batch::take`]; until
    /// then it must not make frames.
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
        let SessionRow { memory, sizes, text_rows, rows, settings, frames } = session.row()?;
        let capacity = rows + settings.max_frames;
        self.make_room(self.len() + 1, (capacity, text_rows))?;
        let id = RowId(self.next_id);
        self.next_id += 1;
        let home = &mut self.homes[self.active];
        let row = home.rows.iter().position(|r| r.id.is_none()).expect("room was made");
        let position = rows + *frames;
        home.take_in(memory, &Place { sizes, text_rows, row: 0 }, row, position)?;
        home.rows[row] = Row { id: Some(id), position, frame: *frames, capacity, text_rows, settings };
        home.changed = true;
        Ok(id)
    }

    /// Gives an utterance back to the session that it came from, which goes on where the row is. Whether it was there: one that
    /// has ended is not.
    ///
    /// # Errors
    /// The device failed, or the session was started anew.
    pub fn take(&mut self, id: RowId, session: &mut Session) -> Result<bool, QwenError> {
        let Some(home) = self.home_mut() else { return Ok(false) };
        let Some(row) = home.rows.iter().position(|r| r.id == Some(id)) else { return Ok(false) };
        session.make_room(home.rows[row].frame)?;
        let s = session.row()?;
        let (to, from) = (
            Place { sizes: s.sizes, text_rows: s.text_rows, row: 0 },
            Place { sizes: home.sizes, text_rows: home.text_rows, row },
        );
        let Row { position, frame, .. } = home.rows[row];
        // The session's trailing text is there.
        copy_row(&*home.plan, (s.memory, &to), (home.memory.as_mut(), &from), position)?;
        s.memory.write_i32(POSITION, &[1].into(), &[position as i32])?;
        s.memory.write_i32(FRAME, &[1].into(), &[frame as i32])?;
        *s.frames = frame;
        self.leave(id);
        Ok(true)
    }

    /// Frees the row of an utterance, if it is there.
    pub fn leave(&mut self, id: RowId) {
        let Some(home) = self.home_mut() else { return };
        if let Some(row) = home.rows.iter_mut().find(|r| r.id == Some(id)) {
            *row = Row::free();
            home.changed = true;
        }
    }

    /// Makes the next frame of each utterance, hands out what it is, and returns what was asked of the device. An utterance
    /// that ends has left.
    ///
    /// # Errors
    /// The device failed, or a row's logits are not numbers. All utterances are lost then.
    pub fn frame(&mut self, mut each: impl FnMut(RowId, Step, &[i32])) -> Result<Counters, QwenError> {
        self.end_long_ones(&mut each);
        let c = &self.model.talking()?.config.talker_config;
        let (end, quantizers) = (c.codec_eos_token_id as i32, c.num_code_groups);
        self.leave_some_room()?;
        let Some(home) = self.homes.get_mut(self.active).filter(|h| h.live() > 0) else {
            return Ok(Counters::default());
        };
        let before = home.memory.counters();
        home.write_rows()?;
        home.plan.run(home.memory.as_mut())?;
        home.memory.read_i32(CODES, &mut self.codes)?;
        let mut ended = vec![];
        for (row, codes) in home.rows.iter_mut().zip(self.codes.chunks_exact(quantizers)) {
            row.position += 1;
            row.frame += 1;
            let Some(id) = row.id else { continue };
            if codes.first() == Some(&end) {
                each(id, Step::End(FinishReason::Stop), &[]);
                ended.push(id);
            } else {
                each(id, Step::Frame, codes);
            }
        }
        let used = home.memory.counters() - before;
        ended.into_iter().for_each(|id| self.leave(id));
        Ok(used)
    }

    /// Those that have as many frames as were allowed.
    fn end_long_ones(&mut self, each: &mut impl FnMut(RowId, Step, &[i32])) {
        let Some(home) = self.home() else { return };
        let long = |r: &&Row| r.frame >= r.settings.max_frames;
        let ended: Vec<RowId> = home.rows.iter().filter(long).filter_map(|r| r.id).collect();
        for id in ended {
            each(id, Step::End(FinishReason::Length), &[]);
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
        let fits = |h: &Home| live <= h.sizes.batch && need.0 <= h.sizes.capacity && need.1 <= h.text_rows;
        if self.home().is_some_and(|h| h.live() > 0 && fits(h)) {
            return Ok(());
        }
        self.move_to(live.next_power_of_two().max(2), need)
    }

    /// Moves all utterances to a memory of `batch` rows that has what they and one more need.
    fn move_to(&mut self, batch: usize, need: (usize, usize)) -> Result<(), QwenError> {
        let live: Vec<Row> = match self.home() {
            Some(h) => h.rows.iter().filter(|r| r.id.is_some()).copied().collect(),
            None => vec![],
        };
        let capacity = live.iter().map(|r| r.capacity).fold(need.0, usize::max);
        let text_rows = live.iter().map(|r| r.text_rows).fold(need.1, usize::max);
        let target = self.home_for(batch, capacity, text_rows)?;
        if target == self.active {
            return Ok(());
        }
        let [old, new] = self.homes.get_disjoint_mut([self.active, target]).expect("two homes");
        new.rows.fill(Row::free());
        let full = old.rows.iter().enumerate().filter(|(_, r)| r.id.is_some());
        for (to, (row, known)) in full.enumerate() {
            let from = Place { sizes: old.sizes, text_rows: old.text_rows, row };
            new.take_in(old.memory.as_mut(), &from, to, known.position)?;
            new.rows[to] = *known;
        }
        old.rows.fill(Row::free());
        (new.changed, old.changed) = (true, true);
        self.active = target;
        Ok(())
    }

    /// The memory of `batch` rows with at least this much room, made or replaced if need be. The active one is not replaced: its
    /// utterances have yet to move, so that for a time there are two of that size.
    fn home_for(&mut self, batch: usize, capacity: usize, text_rows: usize) -> Result<usize, QwenError> {
        let fits =
            |h: &Home| h.sizes.batch == batch && capacity <= h.sizes.capacity && text_rows <= h.text_rows;
        if let Some(i) = self.homes.iter().position(fits) {
            return Ok(i);
        }
        let most = self.model.talking()?.config.talker_config.max_position_embeddings;
        let capacity = capacity.next_power_of_two().max(LEAST_CAPACITY).min(most.max(capacity));
        let sizes = Sizes { batch, capacity, kv: self.model.kv() };
        let text_rows = text_rows.next_power_of_two().max(LEAST_TEXT);
        let plan = self.model.plan(Network::Frame { sizes, text_rows }, false)?;
        let mut memory = self.model.memory();
        for b in plan.plan().buffers() {
            if b.kind == BufferKind::State || b.name == TRAILING {
                memory.clear(&b.name, b.dtype, &b.shape)?;
            }
        }
        let home = Home { memory, plan, sizes, text_rows, rows: vec![Row::free(); batch], changed: true };
        let active = self.active;
        let smaller = self.homes.iter().enumerate().position(|(i, h)| i != active && h.sizes.batch == batch);
        match smaller {
            Some(i) => {
                let old = std::mem::replace(&mut self.homes[i], home);
                self.model.give_back(old.memory);
                Ok(i)
            }
            None => {
                self.homes.push(home);
                Ok(self.homes.len() - 1)
            }
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.homes.drain(..).for_each(|h| self.model.give_back(h.memory));
    }
}

impl Home {
    fn live(&self) -> usize {
        self.rows.iter().filter(|r| r.id.is_some()).count()
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
        copy_row(&*self.plan, (self.memory.as_mut(), &place), (&mut *from, was), position)?;
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
        Ok(self.memory.copy_from(from, &parts)?)
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
        let m = &mut self.memory;
        m.write_i32(POSITION, &[batch].into(), &integers(&|r| vec![r.position as i32]))?;
        m.write_i32(FRAME, &[batch].into(), &integers(&|r| vec![r.frame as i32]))?;
        m.write_i32("seed", &[batch, 2].into(), &integers(&|r| r.settings.seed_words().to_vec()))?;
        m.write_f32("sampling", &[batch, 4].into(), &floats(&|r| r.settings.first.row()))?;
        m.write_f32("predictor_sampling", &[batch, 4].into(), &floats(&|r| r.settings.others.row()))?;
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
