//! Prompts of many threads that are read in one pass.
//!
//! A prompt has few rows, and reading it is mostly reading the weights, so that sixteen one after the other take as long as
//! sixteen passes. Those of about one length that come together ([`super::coalescer`]) are read as rows of one batch: states go
//! there and back by copies on the device. A prompt that is alone is read where it is.

use super::Batch;
use super::coalescer::{self, Coalescer};
use super::session::PROMPT_STEP;
use crate::qwen3_tts::error::QwenError;
use crate::qwen3_tts::pipeline::{Network, Qwen3Tts};
use crate::qwen3_tts::prompt_rows::ROWS;
use crate::qwen3_tts::talker::{self, HIDDEN, LAST, LOGITS, POSITION, Sizes};
use crate::runtime::PooledMemory;
use orate_graph::{Buffer, BufferKind, Counters, DeviceError, Executable, Memory, Part, Shape};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Rows of a prompt, with padding, that is read with others at most: longer ones keep the device busy by themselves, and a batch of them takes
/// much memory.
const LONGEST: usize = 2 * PROMPT_STEP;

/// Prompts that are worth a batch, which always has [`Batch::MOST`] rows, so that plans are few: on an H200 it takes as long as six prompts of 32 rows
/// one by one (7.9 and 1.33 ms).
const LEAST: usize = 6;

/// Memories of batches are kept for the next ones while they have no more bytes than so many sessions' that are kept.
const SESSIONS_KEPT: usize = 2;

/// The prompts of a model that are being read.
#[derive(Default)]
pub(crate) struct SharedPrompts {
    coalescer: Coalescer<Unread, Answer>,
    /// What batches have left, the last one at the end.
    idle: Mutex<Vec<PromptsMemory>>,
}

/// The memory that was given, and what was asked of the device in others.
type Answer = (PooledMemory, Result<Counters, QwenError>);

/// A prompt that is on its way.
pub(crate) type Coming<'a> = coalescer::Coming<'a, Unread, Answer>;

/// Rows that are to be read behind those of a cache, as the plan of the prompt has left them in [`ROWS`].
pub(crate) struct Unread {
    /// Where the rows and the cache are.
    pub memory: PooledMemory,
    /// Of the cache.
    pub sizes: Sizes,
    /// Rows that the cache has.
    pub behind: usize,
    /// Rows without padding, and with it.
    pub rows: usize,
    pub padded: usize,
}

/// Memory and plan of a batch of prompts.
struct PromptsMemory {
    memory: Box<dyn Memory>,
    plan: Arc<dyn Executable>,
    sizes: Sizes,
    time: usize,
}

impl SharedPrompts {
    /// Says that somebody is about to call [`SharedPrompts::read`].
    pub fn coming(&self) -> Coming<'_> {
        self.coalescer.coming()
    }

    /// Reads rows, alone or with those of others, up to the state behind the last that is no padding; `position` is left as it is. The memory
    /// comes back, a new one if it was lost. What the batch asked of the device counts for each in it.
    pub fn read(&self, model: &Qwen3Tts, coming: Coming<'_>, unread: Unread) -> Answer {
        let alike = |a: &Unread, b: &Unread| a.padded <= LONGEST && time(a.padded) == time(b.padded);
        let answer =
            self.coalescer.call(Some(coming), unread, (Batch::MOST, alike), |all| self.run(model, all));
        answer.unwrap_or_else(|| {
            let problem = "the thread that read the prompt has panicked".to_owned();
            (model.memory(), Err(DeviceError::Failed { device: "batch".to_owned(), problem }.into()))
        })
    }

    /// Makes the plan of batches of prompts like one with so many rows, with padding, behind so many: those who come while others speak
    /// do not let them wait for a plan.
    ///
    /// # Errors
    /// The device lacks an op, or room for the weights.
    pub fn prepare(model: &Qwen3Tts, behind: usize, padded: usize) -> Result<(), QwenError> {
        if padded > LONGEST {
            return Ok(());
        }
        plan(model, sizes(model, behind, padded), time(padded)).map(drop)
    }

    fn run(&self, model: &Qwen3Tts, mut all: Vec<Unread>) -> Vec<Answer> {
        let mut together = None;
        if all.len() >= LEAST {
            match self.run_together(model, &mut all) {
                Ok(used) => together = Some(used),
                // There may be room for each by itself; if not, that says why.
                Err(e) => tracing::warn!("{} prompts are read one by one: {e}", all.len()),
            }
        }
        let answer = |mut unread: Unread| {
            let result = together.map_or_else(
                || {
                    let rows = (unread.rows, unread.padded);
                    // What it asks of the device is counted by its own memory.
                    read_alone(model, unread.memory.get(), unread.sizes, rows, false)
                        .map(|()| Counters::default())
                },
                Ok,
            );
            (unread.memory, result)
        };
        all.into_iter().map(answer).collect()
    }

    fn run_together(&self, model: &Qwen3Tts, all: &mut [Unread]) -> Result<Counters, QwenError> {
        let time = all.iter().map(|u| time(u.padded)).max().unwrap_or_default();
        let behind = all.iter().map(|u| u.behind).max().unwrap_or_default();
        let sizes = sizes(model, behind, time);
        let mut home = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.iter().position(|h| (h.sizes, h.time) == (sizes, time)).map(|i| idle.remove(i))
        }
        .map_or_else(|| PromptsMemory::new(model, sizes, time), Ok)?;
        let before = home.memory.counters();
        for (row, unread) in all.iter_mut().enumerate() {
            home.take_in(unread, row)?;
        }
        home.read(all)?;
        for (row, unread) in all.iter_mut().enumerate() {
            home.hand_out(unread, row)?;
        }
        let used = home.memory.counters() - before;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(home);
        while idle.iter().map(PromptsMemory::bytes).sum::<usize>()
            > SESSIONS_KEPT * model.device().memory_kept()
        {
            idle.remove(0);
        }
        Ok(used)
    }
}

/// Rows of a batch's prompts for one of so many: few sizes, so that plans are few.
fn time(rows: usize) -> usize {
    rows.div_ceil(PROMPT_STEP).next_power_of_two() * PROMPT_STEP
}

/// Of the cache of a batch.
fn sizes(model: &Qwen3Tts, behind: usize, padded: usize) -> Sizes {
    Sizes { batch: Batch::MOST, capacity: (behind + time(padded)).next_power_of_two(), kv: model.kv() }
}

fn plan(model: &Qwen3Tts, sizes: Sizes, time: usize) -> Result<Arc<dyn Executable>, QwenError> {
    model.plan(Network::Prefill { sizes, time }, false)
}

/// Reads rows behind `position` where they are: so many, and with their padding so many.
///
/// # Errors
/// The device has no room, or failed.
pub(crate) fn read_alone(
    model: &Qwen3Tts,
    memory: &mut dyn Memory,
    sizes: Sizes,
    (rows, padded): (usize, usize),
    taps: bool,
) -> Result<(), QwenError> {
    memory.write_i32(LAST, &[1].into(), &[(rows - 1) as i32])?;
    Ok(model.plan(Network::Prefill { sizes, time: padded }, taps)?.run(memory)?)
}

impl PromptsMemory {
    fn new(model: &Qwen3Tts, sizes: Sizes, time: usize) -> Result<PromptsMemory, QwenError> {
        let plan = plan(model, sizes, time)?;
        let mut memory = model.device().memory();
        for b in plan.plan().buffers().iter().filter(|b| b.kind != BufferKind::Output) {
            memory.clear(&b.name, b.dtype, &b.shape)?;
        }
        Ok(PromptsMemory { memory, plan, sizes, time })
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
        Ok(self.memory.copy_from(u.memory.get(), &parts)?)
    }

    /// Reads the prompts. Rows of nobody compute what nobody wants.
    fn read(&mut self, all: &[Unread]) -> Result<(), QwenError> {
        let batch = self.sizes.batch;
        let mut numbers = [vec![0; batch], vec![0; batch]];
        for (row, u) in all.iter().enumerate() {
            (numbers[0][row], numbers[1][row]) = (u.behind as i32, u.rows as i32 - 1);
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
        Ok(u.memory.get().copy_from(self.memory.as_mut(), &parts)?)
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
