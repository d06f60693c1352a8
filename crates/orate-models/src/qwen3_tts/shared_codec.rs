//! Chunks of several utterances that the codec decodes in one run.
//!
//! A run of the decoder is some hundred small kernels, which cost nearly as much for two frames as for
//! twenty. Utterances whose frames are made together also have them decoded at the same moment: chunks of one
//! size that wait while the codec is at work ([`crate::decoding::coalescer`]) become rows of one batch, if
//! that is less work than all alone. States are copied there and back on the device. With many utterances,
//! single chunks also run in such a workspace ([`orate_graph::Pacing::shared_workspaces`]).

use super::codec_plans::{CHUNKS, CodecPlans, MANY_ROWS, ROWS, most_rows};
use crate::ModelError;
use crate::decoding::coalescer::{Coalescer, Patience};
use crate::decoding::error::panicked;
use crate::runtime::{self, MemoryPool, PooledMemory};
use orate_graph::{Buffer, Counters, Device, Executable, Part};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a chunk of later sound waits for others, for each of its frames, and for how many: the sound
/// before it takes much longer, and eight chunks in one run take half the time of eight runs.
const LATER: Patience = Patience { time: Duration::from_millis(2), enough: ROWS };

/// Minimum number of utterances for chunks to wait, since with fewer hardly any other arrives in time, and
/// for new utterances to use workspaces.
const MANY: usize = 8;

/// Rows of each kind of workspace, and maximum number of idle ones that are kept. Batches of all chunk sizes
/// can run at the same time, and so can single chunks. Freeing a workspace synchronizes the device.
const WORKSPACES: [(usize, usize); 3] = [(1, 16), (ROWS, CHUNKS.len()), (MANY_ROWS, CHUNKS.len())];

/// Cost of a run in frames, however many it has: on an H200 a run in bf16 takes 0.7 ms and 0.03 ms for each
/// frame.
const FRAMES_OF_A_RUN: usize = 23;

/// When a chunk is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Somebody waits for the first sound.
    First,
    Now,
    /// Before sound that was made has been heard: with many callers it may wait for others.
    Later,
}

pub(super) struct Piece {
    /// Where the utterance's state is.
    pub memory: PooledMemory,
    /// Number of its size in [`CHUNKS`].
    pub plan: usize,
    /// `[F, Q]`
    pub codes: Vec<i32>,
    pub when: When,
    /// Whether to decode it in a workspace if it is alone.
    pub in_workspace: bool,
}

/// Samples, and what was asked of the device in another memory than the chunk's.
type Samples = Result<(Vec<f32>, Counters), ModelError>;

/// A decoded chunk: its memory, and the samples. Or the chunk, if it is not worth a batch: to be decoded by
/// its own thread.
type Answer = Result<(PooledMemory, Samples), Box<Piece>>;

pub(super) struct SharedCodec {
    /// By size of chunks: a first, small chunk does not wait for larger ones of others.
    coalescers: [Coalescer<Piece, Answer>; CHUNKS.len()],
    /// Utterances that are decoded.
    pub utterances: AtomicUsize,
    /// Idle workspaces, by kind.
    workspaces: [Arc<MemoryPool>; WORKSPACES.len()],
}

impl SharedCodec {
    pub fn new(device: Arc<dyn Device>) -> SharedCodec {
        let wait = device.pacing().coalescing_wait.unwrap_or_default();
        let coalescers = std::array::from_fn(|_| Coalescer::new(wait));
        let workspaces = WORKSPACES.map(|(_, kept)| {
            let device = device.clone();
            MemoryPool::with_limit(move || device.background_memory(), (kept, usize::MAX))
        });
        SharedCodec { coalescers, utterances: AtomicUsize::new(0), workspaces }
    }

    /// Decodes a chunk, alone or with those of others. The memory comes back, an empty one if it was lost to
    /// a panic. What a batch asked of the device counts for each in it.
    pub fn decode(&self, decoder: &CodecPlans, piece: Piece) -> (PooledMemory, Samples) {
        let coalescer = &self.coalescers[piece.plan];
        let most = most_rows(CHUNKS[piece.plan]);
        let waits = piece.when == When::Later && self.is_crowded();
        let later = Patience { time: LATER.time * CHUNKS[piece.plan] as u32, ..LATER };
        let patience = if waits { later } else { Patience::NONE };
        match coalescer.call(None, (piece, patience), (most, |_, _| true), |all| self.run(decoder, all)) {
            Some(Ok(decoded)) => decoded,
            Some(Err(piece)) => self.decode_alone(decoder, *piece),
            None => {
                let memory = decoder.memories.adopt(decoder.memories.fresh());
                (memory, Err(panicked("the thread that decoded has panicked")))
            }
        }
    }

    /// Whether there are many utterances.
    pub fn is_crowded(&self) -> bool {
        self.utterances.load(Ordering::Relaxed) >= MANY
    }

    fn decode_alone(&self, decoder: &CodecPlans, mut piece: Piece) -> (PooledMemory, Samples) {
        if piece.in_workspace {
            match self.run_in_workspace(decoder, std::slice::from_mut(&mut piece), 1) {
                Ok(mut all) => return (piece.memory, all.pop().expect("one for each piece")),
                // The device may have no room for a workspace.
                Err(e) => tracing::warn!("a chunk is decoded in its own memory: {e}"),
            }
        }
        piece.decode(decoder)
    }

    fn run(&self, decoder: &CodecPlans, mut all: Vec<Piece>) -> Vec<Answer> {
        let frames = all.first().map_or(0, |p| p.codes.len() / decoder.quantizers());
        if all.len() == 1 {
            // Others wait for one alone, so that they find each other.
            return all.into_iter().map(|p| Ok(self.decode_alone(decoder, p))).collect();
        }
        let rows = rows_of_runs(all.len(), frames);
        let mut answers = vec![];
        while !all.is_empty() {
            let rest = all.split_off(all.len().min(rows));
            answers.extend(self.run_part(decoder, all, (rows, frames)));
            all = rest;
        }
        answers
    }

    /// Decodes chunks in a run of `rows` rows, if that is less work.
    fn run_part(
        &self,
        decoder: &CodecPlans,
        mut all: Vec<Piece>,
        (rows, frames): (usize, usize),
    ) -> Vec<Answer> {
        if !is_worth(all.len(), rows, frames) {
            // Several run side by side on the device.
            return all.into_iter().map(|p| Err(p.into())).collect();
        }
        let began = Instant::now();
        match self.run_in_workspace(decoder, &mut all, rows) {
            Ok(results) => {
                tracing::debug!(chunks = all.len(), frames, elapsed = ?began.elapsed(), "chunks in one run");
                all.into_iter().map(|p| p.memory).zip(results).map(Ok).collect()
            }
            // Each alone may find room; if not, that error is returned.
            Err(e) => {
                tracing::warn!("{} chunks are decoded one by one: {e}", all.len());
                all.into_iter().map(|p| Err(p.into())).collect()
            }
        }
    }

    /// Decodes all in one run, in a workspace of `rows` rows. An error leaves all states unchanged.
    fn run_in_workspace(
        &self,
        decoder: &CodecPlans,
        all: &mut [Piece],
        rows: usize,
    ) -> Result<Vec<Samples>, ModelError> {
        let plan = decoder.plan(rows, all[0].plan)?;
        let kind = WORKSPACES.iter().position(|(of, _)| *of == rows).expect("rows of a workspace");
        let workspaces = &self.workspaces[kind];
        let mut kept = match workspaces.take_kept() {
            Some(kept) => kept,
            None => {
                let mut memory = workspaces.fresh();
                runtime::clear_states(memory.as_mut(), plan.plan())?;
                workspaces.adopt(memory)
            }
        };
        let memory = kept.get();
        memory.set_urgent(all.iter().any(|p| p.when == When::First))?;
        let before = memory.counters();
        for (row, piece) in all.iter_mut().enumerate() {
            memory.copy_from(piece.memory.get(), &parts(&*plan, rows, |whole| (0, row * whole)))?;
        }
        let len = all[0].codes.len();
        let mut codes = vec![0; rows * len];
        for (row, piece) in codes.chunks_exact_mut(len).zip(all.iter()) {
            row.copy_from_slice(&piece.codes);
        }
        let quantizers = decoder.quantizers();
        memory.write_i32("codes", &[rows, len / quantizers, quantizers].into(), &codes)?;
        plan.run(memory)?;
        let mut samples = vec![];
        memory.read_f32("samples", &mut samples)?;
        let used = memory.counters() - before;
        let of_row = samples.chunks_exact(samples.len() / rows);
        let results = all.iter_mut().zip(of_row).enumerate().map(|(row, (piece, samples))| {
            piece.memory.get().copy_from(memory, &parts(&*plan, rows, |whole| (row * whole, 0)))?;
            Ok((samples.to_vec(), used))
        });
        Ok(results.collect())
    }
}

/// Work of a run, in frames.
fn work(rows: usize, frames: usize) -> usize {
    FRAMES_OF_A_RUN + rows * frames
}

/// Rows of the runs in which `pieces` chunks of `frames` frames are least work.
fn rows_of_runs(pieces: usize, frames: usize) -> usize {
    let is_less = work(MANY_ROWS, frames) < pieces.div_ceil(ROWS) * work(ROWS, frames);
    if is_less && most_rows(frames) == MANY_ROWS { MANY_ROWS } else { ROWS }
}

/// Whether `pieces` chunks of `frames` frames are less work in a batch of `rows`.
fn is_worth(pieces: usize, rows: usize, frames: usize) -> bool {
    pieces > 1 && work(rows, frames) < pieces * work(1, frames)
}

impl Piece {
    /// Decodes it where it is. The memory counts what is asked of the device.
    pub fn decode(mut self, decoder: &CodecPlans) -> (PooledMemory, Samples) {
        let result = self.samples(decoder).map(|samples| (samples, Counters::default()));
        (self.memory, result)
    }

    fn samples(&mut self, decoder: &CodecPlans) -> Result<Vec<f32>, ModelError> {
        let (memory, quantizers) = (self.memory.get(), decoder.quantizers());
        memory.set_urgent(self.when == When::First)?;
        memory.write_i32("codes", &[1, self.codes.len() / quantizers, quantizers].into(), &self.codes)?;
        decoder.plan(1, self.plan)?.run(memory)?;
        let mut samples = vec![];
        memory.read_f32("samples", &mut samples)?;
        Ok(samples)
    }
}

/// Copies of all states of an utterance from or to a row of a batch. `places` returns where a state of a
/// length begins in both memories.
fn parts<'a>(
    plan: &'a dyn Executable,
    rows: usize,
    places: impl Fn(usize) -> (usize, usize),
) -> Vec<Part<'a>> {
    let part = |b: &'a Buffer| {
        let len = b.shape.len() / rows;
        let (from, to) = places(len);
        Part { from: (&*b.name, from), to: (&*b.name, to), len }
    };
    runtime::states(plan.plan()).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_for_as_many_as_it_saves_time() {
        let least = |frames: usize| (1..=ROWS).find(|n| is_worth(*n, ROWS, frames));
        assert_eq!([1, 2, 4, 8, 16, 25].map(least), [2, 2, 3, 3, 4, 5].map(Some));
        // Where chunks are short, from which number on all are in one run.
        let many = |frames: usize| (1..=MANY_ROWS).find(|n| rows_of_runs(*n, frames) == MANY_ROWS);
        assert_eq!([1, 2, 4, 8, 25].map(many), [Some(17), Some(25), Some(41), None, None]);
    }
}
