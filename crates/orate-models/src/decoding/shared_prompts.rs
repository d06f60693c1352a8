//! Prompts of several threads, read in one pass.
//!
//! Reading a short prompt is mostly reading the weights, so that sixteen prompts one by one take as long as
//! sixteen passes. Prompts of similar length that arrive together ([`super::coalescer`]) become rows of one
//! batch: states are copied there and back on the device. A single prompt is prefilled in its own memory or,
//! with many utterances, in a workspace of one row ([`orate_graph::Pacing::shared_workspaces`]).

use super::caches::{self, Slot, cache_parts};
use super::coalescer::{self, Coalescer, Patience};
use super::error::panicked;
use super::network::{Autoregressive, LAST, MOST_PROMPTS, MemorySizes, POSITION, ROWS, for_lanes};
use crate::ModelError;
use crate::runtime::{MemoryPool, PooledMemory};
use orate_graph::{BufferKind, Counters, Executable, Memory, Part};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest prompt, with padding, that shares a pass, in units of [`orate_graph::Pacing::prompt_step`]. Longer
/// ones keep the device busy alone, and a batch of them takes much memory.
const LONGEST: usize = 2;

/// Fewest prompts that make a batch, which always has [`MOST_PROMPTS`] rows so that plans are few. With CUDA
/// on an H200 it takes 2.7 ms for 32 rows, and prompts one by one 1.1 ms each.
const LEAST: usize = 6;

/// Minimum number of utterances for prefilling a single prompt in a workspace.
pub(super) const MANY: usize = 8;

/// Memories of batches are kept while they take no more than this many sessions' memories.
const SESSIONS_KEPT: usize = 2;

/// The prompts of a network that are being read.
pub(super) struct SharedPrompts {
    pub coalescer: Coalescer<Unread, Answer>,
    /// Memories of finished batches, the last one at the end.
    idle: Mutex<Vec<PromptsMemory>>,
}

/// The memory that was given, and what was asked of the device in others.
type Answer = (PooledMemory, Result<Counters, ModelError>);

pub(super) type Coming<'a> = coalescer::Coming<'a, Unread, Answer>;

/// Rows to be read, which the plan of the prompt has left in [`ROWS`].
pub(super) struct Unread {
    /// Where the rows and the caches are.
    pub memory: PooledMemory,
    /// Sizes of the memory.
    pub sizes: MemorySizes,
    /// Number of rows that the caches hold already.
    pub start: usize,
    /// Rows without padding, and with it.
    pub rows: usize,
    pub padded: usize,
    /// Whether to prefill it in a workspace if it is alone.
    pub in_workspace: bool,
}

struct PromptsMemory {
    memory: Box<dyn Memory>,
    plan: Arc<dyn Executable>,
    sizes: MemorySizes,
    time: usize,
    lanes: usize,
}

impl SharedPrompts {
    /// Nothing yet. A prompt waits for others that are on their way for `wait`.
    pub fn new(wait: Duration) -> SharedPrompts {
        SharedPrompts { coalescer: Coalescer::new(wait), idle: Mutex::default() }
    }

    /// Reads rows, alone or with those of others, up to the state after the last one that is not padding.
    /// `position` stays as it is. The memory comes back, an empty one if it was lost to a panic. What a batch
    /// asked of the device counts for each prompt in it.
    pub fn read<N: Autoregressive>(
        &self,
        network: &N,
        pool: &Arc<MemoryPool>,
        coming: Coming<'_>,
        unread: Unread,
    ) -> Answer {
        let time = |u: &Unread| (u.padded <= longest(network)).then(|| time(network, u.padded));
        let alike = |a: &Unread, b: &Unread| time(a).is_some() && time(a) == time(b);
        let answer =
            self.coalescer.call(Some(coming), (unread, Patience::NONE), (MOST_PROMPTS, alike), |all| {
                self.run(network, all)
            });
        answer.unwrap_or_else(|| (pool.take(), Err(panicked("the thread that read the prompt has panicked"))))
    }

    /// Compiles the prefill plans for prompts of `padded` rows at offset `start`, for workspaces and batches,
    /// so that callers that arrive later stall nobody.
    pub fn prepare<N: Autoregressive>(network: &N, start: usize, padded: usize) -> Result<(), ModelError> {
        let (time, workspaces) = (time(network, padded), network.device().pacing().shared_workspaces);
        let wanted = [(1, workspaces), (MOST_PROMPTS, padded <= longest(network))];
        for (batch, _) in wanted.into_iter().filter(|(_, wanted)| *wanted) {
            network.prefill_plan(sizes(batch, start, time), time, false)?;
        }
        Ok(())
    }

    fn run<N: Autoregressive>(&self, network: &N, mut all: Vec<Unread>) -> Vec<Answer> {
        let mut together = None;
        if all.len() >= LEAST {
            match self.run_in(network, MOST_PROMPTS, &mut all) {
                Ok(used) => together = Some(used),
                // Each alone may find room; if not, that error is returned.
                Err(e) => tracing::warn!("{} prompts are read one by one: {e}", all.len()),
            }
        }
        let answer = |mut unread: Unread| {
            let alone = || {
                if unread.in_workspace {
                    match self.run_in(network, 1, std::slice::from_mut(&mut unread)) {
                        Ok(used) => return Ok(used),
                        // The device may have no room for a workspace.
                        Err(e) => tracing::warn!("a prompt is prefilled in its own memory: {e}"),
                    }
                }
                let rows = (unread.rows, unread.padded);
                // Its own memory counts what it asks of the device.
                read_alone(network, unread.memory.get(), unread.sizes, rows, false)
                    .map(|()| Counters::default())
            };
            let result = together.map_or_else(alone, Ok);
            (unread.memory, result)
        };
        all.into_iter().map(answer).collect()
    }

    /// Prefills prompts in a workspace of `batch` rows.
    fn run_in<N: Autoregressive>(
        &self,
        network: &N,
        batch: usize,
        all: &mut [Unread],
    ) -> Result<Counters, ModelError> {
        let began = Instant::now();
        let time = all.iter().map(|u| time(network, u.padded)).max().unwrap_or_default();
        let start = all.iter().map(|u| u.start).max().unwrap_or_default();
        let sizes = sizes(batch, start, time);
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let found = {
            let mut idle = idle();
            idle.iter().position(|m| (m.sizes, m.time) == (sizes, time)).map(|i| idle.remove(i))
        };
        let mut batch = found.map_or_else(|| PromptsMemory::new(network, sizes, time), Ok)?;
        let before = batch.memory.counters();
        for (i, unread) in all.iter_mut().enumerate() {
            batch.take_in(unread, i)?;
        }
        batch.read(all)?;
        for (i, unread) in all.iter_mut().enumerate() {
            batch.give_back(unread, i)?;
        }
        let used = batch.memory.counters() - before;
        tracing::debug!(prompts = all.len(), rows = time, elapsed = ?began.elapsed(), "prompts in one pass");
        let mut idle = idle();
        idle.push(batch);
        let most = SESSIONS_KEPT * network.device().memory_kept();
        while idle.iter().map(|m| caches::bytes(m.plan.plan())).sum::<usize>() > most {
            idle.remove(0);
        }
        Ok(used)
    }
}

/// Rows, with padding, of the longest prompt that shares a pass.
fn longest<N: Autoregressive>(network: &N) -> usize {
    LONGEST * network.device().pacing().prompt_step
}

/// Rows of a batch for prompts of `rows` rows: few sizes, so that plans are few.
fn time<N: Autoregressive>(network: &N, rows: usize) -> usize {
    let step = network.device().pacing().prompt_step;
    rows.div_ceil(step).next_power_of_two() * step
}

fn sizes(batch: usize, start: usize, time: usize) -> MemorySizes {
    MemorySizes { batch, capacity: (start + time).next_power_of_two(), feed: 0 }
}

/// Reads rows where they are, from `position` on. `rows` is their number, without padding and with it.
pub(super) fn read_alone<N: Autoregressive>(
    network: &N,
    memory: &mut dyn Memory,
    sizes: MemorySizes,
    (rows, padded): (usize, usize),
    taps: bool,
) -> Result<(), ModelError> {
    for_lanes(memory, LAST, network.facts().lanes, (rows - 1) as i32)?;
    Ok(network.prefill_plan(sizes, padded, taps)?.run(memory)?)
}

impl PromptsMemory {
    fn new<N: Autoregressive>(
        network: &N,
        sizes: MemorySizes,
        time: usize,
    ) -> Result<PromptsMemory, ModelError> {
        let plan = network.prefill_plan(sizes, time, false)?;
        let mut memory = network.device().memory();
        let kept = plan.plan().buffers().iter().filter(|b| b.kind != BufferKind::Output);
        let kept: Vec<_> = kept.map(|b| (&*b.name, b.dtype, &b.shape)).collect();
        memory.clear_all(&kept)?;
        Ok(PromptsMemory { memory, plan, sizes, time, lanes: network.facts().lanes })
    }

    /// Copies the rows of a prompt, and the caches before them, to row `i` of the batch.
    fn take_in(&mut self, u: &mut Unread, i: usize) -> Result<(), ModelError> {
        let plan = self.plan.clone();
        let (alone, own) = (Slot { row: 0, sizes: u.sizes }, Slot { row: i, sizes: self.sizes });
        let mut parts = cache_parts(plan.plan(), self.lanes, &(0..u.start), (alone, own));
        let rows = plan.plan().buffers().iter().find(|b| b.name == ROWS);
        let width = rows.expect("prefill reads rows").shape.last();
        parts.extend((0..self.lanes).map(|lane| Part {
            from: (ROWS, lane * u.padded * width),
            to: (ROWS, (i * self.lanes + lane) * self.time * width),
            len: u.padded * width,
        }));
        Ok(self.memory.copy_from(u.memory.get(), &parts)?)
    }

    /// Reads the prompts. What unused rows compute is ignored.
    fn read(&mut self, all: &[Unread]) -> Result<(), ModelError> {
        let rows = self.sizes.batch * self.lanes;
        let mut numbers = [vec![0; rows], vec![0; rows]];
        for (row, u) in all.iter().flat_map(|u| std::iter::repeat_n(u, self.lanes)).enumerate() {
            (numbers[0][row], numbers[1][row]) = (u.start as i32, u.rows as i32 - 1);
        }
        self.memory.write_i32(POSITION, &[rows].into(), &numbers[0])?;
        self.memory.write_i32(LAST, &[rows].into(), &numbers[1])?;
        Ok(self.plan.run(self.memory.as_mut())?)
    }

    /// Copies the new rows of the caches, and the outputs, back to the memory of a prompt.
    fn give_back(&mut self, u: &mut Unread, i: usize) -> Result<(), ModelError> {
        let plan = self.plan.clone();
        let (own, alone) = (Slot { row: i, sizes: self.sizes }, Slot { row: 0, sizes: u.sizes });
        let mut parts = cache_parts(plan.plan(), self.lanes, &(u.start..u.start + u.rows), (own, alone));
        let outputs = plan.plan().buffers().iter().filter(|b| b.kind == BufferKind::Output);
        parts.extend(outputs.map(|b| {
            let len = b.shape.len() / self.sizes.batch;
            Part { from: (&*b.name, i * len), to: (&*b.name, 0), len }
        }));
        Ok(u.memory.get().copy_from(self.memory.as_mut(), &parts)?)
    }
}
