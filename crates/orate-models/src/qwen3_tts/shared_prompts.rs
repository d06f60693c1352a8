//! Prompts of many threads that are read in one pass.
//!
//! A prompt has few rows, and reading it is mostly reading the weights, so that sixteen one after the other take as long as
//! sixteen passes. There is no thread for this, as there is none for frames ([`super::shared_batch`]): whoever has a prompt and finds
//! nobody at it waits a moment for those that are on their way, takes all that are there and about as long, and reads them as rows
//! of one batch. States go to the batch and back by copies on the device. A prompt that is alone is read where it is.

use super::Batch;
use super::error::QwenError;
use super::pipeline::{Network, Qwen3Tts};
use super::prompt_rows::ROWS;
use super::session::PROMPT_STEP;
use super::talker::{self, HIDDEN, LAST, LOGITS, POSITION, PromptEnd, Sizes};
use orate_graph::{Buffer, BufferKind, Counters, DeviceError, Executable, Memory, Part, Shape};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long whoever reads first waits for those that are on their way.
const MOST_WAIT: Duration = Duration::from_millis(2);

/// Rows of a batch of few; others have [`Batch::MOST`]. Two sizes, so that plans are few.
const FEW: usize = 4;

/// Memories of batches are kept for the next ones while they have no more bytes than so many sessions' that are kept.
const SESSIONS_KEPT: usize = 2;

/// The prompts of a model that are being read.
#[derive(Default)]
pub(super) struct SharedPrompts {
    state: Mutex<State>,
    /// Somebody has come, or somebody's rows are read.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Prompts on their way here.
    coming: usize,
    waiting: Vec<Waiting>,
    done: Vec<Done>,
    /// Whether somebody leads.
    led: bool,
    next_id: u64,
    /// What batches have left, the last one at the end.
    idle: Vec<Home>,
}

/// Rows that are to be read behind those of a cache, as the plan of the prompt has left them in [`ROWS`].
pub(super) struct Unread {
    /// Where the rows and the cache are.
    pub memory: Box<dyn Memory>,
    /// Of the cache.
    pub sizes: Sizes,
    /// Rows that the cache has.
    pub behind: usize,
    /// Rows without padding, and with it.
    pub rows: usize,
    pub padded: usize,
}

struct Waiting {
    id: u64,
    unread: Unread,
}

/// An answer, with the memory that was given.
struct Done {
    id: u64,
    memory: Box<dyn Memory>,
    result: Result<Counters, QwenError>,
}

/// Memory and plan of a batch of prompts.
struct Home {
    memory: Box<dyn Memory>,
    plan: Arc<dyn Executable>,
    sizes: Sizes,
    time: usize,
}

/// A prompt that is on its way: others wait for it a moment.
pub(super) struct Coming<'a>(&'a SharedPrompts);

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.0.lock().coming -= 1;
        self.0.changed.notify_all();
    }
}

impl SharedPrompts {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that somebody is about to call [`SharedPrompts::read`].
    pub fn coming(&self) -> Coming<'_> {
        self.lock().coming += 1;
        Coming(self)
    }

    /// Reads rows, alone or with those of others, up to the state behind the last that is no padding; `position` is left as it is. The memory
    /// comes back, a new one if it was lost. What the batch asked of the device counts for each in it.
    pub fn read(
        &self,
        model: &Qwen3Tts,
        coming: Coming<'_>,
        unread: Unread,
    ) -> (Box<dyn Memory>, Result<Counters, QwenError>) {
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.waiting.push(Waiting { id, unread });
        drop(state);
        drop(coming);
        let mut state = self.lock();
        loop {
            if let Some(i) = state.done.iter().position(|d| d.id == id) {
                let done = state.done.swap_remove(i);
                return (done.memory, done.result);
            }
            if state.led {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if !state.waiting.iter().any(|w| w.id == id) {
                let problem = "the thread that read the prompt has panicked".to_owned();
                let lost = DeviceError::Failed { device: "batch".to_owned(), problem };
                return (model.memory(), Err(lost.into()));
            }
            state.led = true;
            state = self.wait_for_others(state);
            let (group, mut idle) = (state.take_group(), std::mem::take(&mut state.idle));
            drop(state);
            let leading = Leading(self);
            let done = read_all(model, group, &mut idle);
            state = self.lock();
            state.done.extend(done);
            state.idle = idle;
            drop(state);
            drop(leading);
            state = self.lock();
        }
    }

    fn wait_for_others<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let end = Instant::now() + MOST_WAIT;
        while state.coming > 0 && state.waiting.len() < Batch::MOST {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }
}

/// Lets somebody else lead, also when whoever leads is lost to a panic.
struct Leading<'a>(&'a SharedPrompts);

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        self.0.lock().led = false;
        self.0.changed.notify_all();
    }
}

impl State {
    /// The prompt that has waited longest, and others that are about as long.
    fn take_group(&mut self) -> Vec<Waiting> {
        let first = self.waiting.first().map(|w| time(w.unread.padded));
        let mut group = vec![];
        let mut others = vec![];
        for w in self.waiting.drain(..) {
            let fits = Some(time(w.unread.padded)) == first && group.len() < Batch::MOST;
            if fits { group.push(w) } else { others.push(w) }
        }
        self.waiting = others;
        group
    }
}

/// Rows of a batch's prompts for one of so many: few sizes, so that plans are few.
fn time(rows: usize) -> usize {
    rows.div_ceil(PROMPT_STEP).next_power_of_two() * PROMPT_STEP
}

/// Reads a group. Memories of batches that were left are used again.
fn read_all(model: &Qwen3Tts, mut group: Vec<Waiting>, idle: &mut Vec<Home>) -> Vec<Done> {
    let mut together = None;
    if group.len() > 1 {
        match read_together(model, &mut group, idle) {
            Ok(used) => together = Some(used),
            // There may be room for each by itself; if not, that says why.
            Err(e) => tracing::warn!("{} prompts are read one by one: {e}", group.len()),
        }
    }
    let answer = |w: Waiting| {
        let Waiting { id, mut unread } = w;
        let result = together.map_or_else(|| read_alone(model, &mut unread), Ok);
        Done { id, memory: unread.memory, result }
    };
    group.into_iter().map(answer).collect()
}

/// What it asks of the device is counted by its own memory.
fn read_alone(model: &Qwen3Tts, u: &mut Unread) -> Result<Counters, QwenError> {
    u.memory.write_i32(LAST, &[1].into(), &[(u.rows - 1) as i32])?;
    let network = Network::Prefill { sizes: u.sizes, time: u.padded, end: PromptEnd::Named };
    model.plan(network, false)?.run(u.memory.as_mut())?;
    Ok(Counters::default())
}

fn read_together(
    model: &Qwen3Tts,
    group: &mut [Waiting],
    idle: &mut Vec<Home>,
) -> Result<Counters, QwenError> {
    let batch = if group.len() <= FEW { FEW } else { Batch::MOST };
    let time = group.iter().map(|w| time(w.unread.padded)).max().unwrap_or_default();
    let behind = group.iter().map(|w| w.unread.behind).max().unwrap_or_default();
    let sizes = Sizes { batch, capacity: (behind + time).next_power_of_two(), kv: model.kv() };
    let mut home = match idle.iter().position(|h| (h.sizes, h.time) == (sizes, time)) {
        Some(i) => idle.remove(i),
        None => Home::new(model, sizes, time)?,
    };
    let before = home.memory.counters();
    for (row, w) in group.iter_mut().enumerate() {
        home.take_in(&mut w.unread, row)?;
    }
    home.read(group)?;
    for (row, w) in group.iter_mut().enumerate() {
        home.hand_out(&mut w.unread, row)?;
    }
    let used = home.memory.counters() - before;
    idle.push(home);
    while idle.iter().map(Home::bytes).sum::<usize>() > SESSIONS_KEPT * model.device().memory_kept() {
        idle.remove(0);
    }
    Ok(used)
}

impl Home {
    fn new(model: &Qwen3Tts, sizes: Sizes, time: usize) -> Result<Home, QwenError> {
        let plan = model.plan(Network::Prefill { sizes, time, end: PromptEnd::Named }, false)?;
        let mut memory = model.device().memory();
        for b in plan.plan().buffers().iter().filter(|b| b.kind != BufferKind::Output) {
            memory.clear(&b.name, b.dtype, &b.shape)?;
        }
        Ok(Home { memory, plan, sizes, time })
    }

    /// Bytes of its buffers.
    fn bytes(&self) -> usize {
        self.plan.plan().buffers().iter().map(|b| b.dtype.bytes_of(&b.shape)).sum()
    }

    fn shape(&self, name: &str) -> Shape {
        let buffer = self.plan.plan().buffers().iter().find(|b| b.name == name);
        buffer.map(|b| b.shape.clone()).expect("a plan of a prompt has it")
    }

    /// Copies the rows of a prompt to those of a batch row, and the cache in front of them.
    fn take_in(&mut self, u: &mut Unread, row: usize) -> Result<(), QwenError> {
        let (plan, width) = (self.plan.clone(), self.shape(ROWS).last());
        let mut parts = self.cache(&*plan, 0..u.behind, row);
        let to = (ROWS, row * self.time * width);
        parts.push(Part { from: (ROWS, 0), to, len: u.padded * width });
        Ok(self.memory.copy_from(u.memory.as_mut(), &parts)?)
    }

    /// Reads the prompts. Rows of nobody compute what nobody wants.
    fn read(&mut self, group: &[Waiting]) -> Result<(), QwenError> {
        let batch = self.sizes.batch;
        let mut numbers = [vec![0; batch], vec![0; batch]];
        for (row, w) in group.iter().enumerate() {
            (numbers[0][row], numbers[1][row]) = (w.unread.behind as i32, w.unread.rows as i32 - 1);
        }
        self.memory.write_i32(POSITION, &[batch].into(), &numbers[0])?;
        self.memory.write_i32(LAST, &[batch].into(), &numbers[1])?;
        Ok(self.plan.run(self.memory.as_mut())?)
    }

    /// Copies what was made of a prompt back.
    fn hand_out(&mut self, u: &mut Unread, row: usize) -> Result<(), QwenError> {
        let plan = self.plan.clone();
        let parts = self.cache(&*plan, u.behind..u.behind + u.rows, row).into_iter();
        let parts = parts.map(|Part { from, to, len }| Part { from: to, to: from, len });
        let ends = [HIDDEN, LOGITS].map(|name| {
            let width = self.shape(name).last();
            Part { from: (name, row * width), to: (name, 0), len: width }
        });
        let parts: Vec<_> = parts.chain(ends).collect();
        Ok(u.memory.copy_from(self.memory.as_mut(), &parts)?)
    }

    /// Some rows of the caches of an utterance, on their way to a batch row.
    fn cache<'a>(&self, plan: &'a dyn Executable, rows: Range<usize>, row: usize) -> Vec<Part<'a>> {
        let first = row * self.sizes.capacity + rows.start;
        let caches = plan.plan().buffers().iter().filter(|b| talker::is_cache(&b.name) && !rows.is_empty());
        let part = |b: &'a Buffer| {
            let width = b.shape.last();
            Part {
                from: (&b.name, rows.start * width),
                to: (&b.name, first * width),
                len: rows.len() * width,
            }
        };
        caches.map(part).collect()
    }
}
