//! Pieces of several utterances that the codec decodes in one run.
//!
//! A run of the decoder is some hundred small kernels, which cost nearly as much for two frames as for twenty. Callers whose frames are
//! made together also want them decoded at the same moment: pieces of one size that wait while the codec is at work
//! ([`crate::decoding::coalescer`]) are rows of one batch then, if that is less work than all alone. States go there and back by copies on the
//! device.

use super::codec_stream::{CodecDecoder, PIECES};
use super::error::QwenError;
use crate::decoding::coalescer::Coalescer;
use crate::runtime::{self, MemoryPool, PooledMemory};
use orate_graph::{Buffer, Counters, Device, DeviceError, Executable, Memory, Part};
use std::sync::Arc;

/// Rows of a batch. With pieces of 25 frames they are as fast as any number.
pub(crate) const ROWS: usize = 8;

/// Memories that are kept for the next batches: of pieces of two sizes at the same moment.
const MEMORIES_KEPT: usize = 2;

/// Frames that take as long as a run takes in any case: on an H200 a run in bf16 is 0.7 ms and 0.03 for a frame.
const FRAMES_OF_A_RUN: usize = 23;

/// A piece of an utterance.
pub(crate) struct Piece {
    /// Where the utterance's state is.
    pub memory: PooledMemory,
    /// Which of the decoder's plans.
    pub plan: usize,
    /// `[F, Q]`
    pub codes: Vec<i32>,
}

/// Samples, and what was asked of the device in another memory than the piece's.
type Samples = Result<(Vec<f32>, Counters), QwenError>;

/// A piece that was decoded.
pub(crate) struct Decoded {
    pub memory: PooledMemory,
    pub result: Samples,
}

enum Answer {
    Decoded(Decoded),
    /// It is not worth a batch.
    Alone(Piece),
}

/// The pieces of a decoder that wait to be decoded.
pub(crate) struct SharedCodec {
    /// For each of the decoder's plans: who wants his first frames does not wait for larger pieces of others.
    coalescers: [Coalescer<Piece, Answer>; PIECES.len()],
    /// Memories of batches, which keep their states.
    memories: Arc<MemoryPool>,
}

impl SharedCodec {
    pub fn new(device: Arc<dyn Device>) -> SharedCodec {
        let memories =
            MemoryPool::with_limit(move || device.background_memory(), (MEMORIES_KEPT, usize::MAX));
        SharedCodec { coalescers: Default::default(), memories }
    }

    /// Decodes a piece, alone or with those of others. The memory comes back, a new one if it was lost. What the batch asked of the device
    /// counts for each in it.
    pub fn decode(&self, decoder: &CodecDecoder, piece: Piece) -> Decoded {
        let coalescer = &self.coalescers[piece.plan];
        match coalescer.call(None, piece, (ROWS, |_, _| true), |all| self.run(decoder, all)) {
            Some(Answer::Decoded(decoded)) => decoded,
            Some(Answer::Alone(piece)) => piece.decode(decoder),
            None => {
                let problem = "the thread that decoded has panicked".to_owned();
                let lost = DeviceError::Failed { device: "batch".to_owned(), problem };
                Decoded { memory: decoder.memory(), result: Err(lost.into()) }
            }
        }
    }

    fn run(&self, decoder: &CodecDecoder, mut all: Vec<Piece>) -> Vec<Answer> {
        let frames = all.first().map_or(0, |p| p.codes.len() / decoder.quantizers());
        if !is_worth(all.len(), frames) {
            // Others wait for one alone, so that they find each other; several are beside each other on the device.
            return match all.len() {
                1 => all.into_iter().map(|p| Answer::Decoded(p.decode(decoder))).collect(),
                _ => all.into_iter().map(Answer::Alone).collect(),
            };
        }
        let results = match self.run_together(decoder, &mut all) {
            Ok(results) => results,
            // There may be room for each by itself; if not, that says why.
            Err(e) => {
                tracing::warn!("{} pieces are decoded one by one: {e}", all.len());
                return all.into_iter().map(Answer::Alone).collect();
            }
        };
        let answer = |(piece, result): (Piece, _)| Answer::Decoded(Decoded { memory: piece.memory, result });
        all.into_iter().zip(results).map(answer).collect()
    }

    /// An error leaves all states as they were.
    fn run_together(&self, decoder: &CodecDecoder, all: &mut [Piece]) -> Result<Vec<Samples>, QwenError> {
        let plan = decoder.batch_plan(all[0].plan)?;
        let mut kept = match self.memories.take_kept() {
            Some(kept) => kept,
            None => {
                let mut memory = self.memories.fresh();
                runtime::clear_states(memory.as_mut(), plan.plan())?;
                self.memories.adopt(memory)
            }
        };
        let memory = kept.get();
        let before = memory.counters();
        for (row, piece) in all.iter_mut().enumerate() {
            memory.copy_from(piece.memory.get(), &parts(&*plan, |whole| (0, row * whole)))?;
        }
        let len = all[0].codes.len();
        let mut codes = vec![0; ROWS * len];
        for (row, piece) in codes.chunks_exact_mut(len).zip(all.iter()) {
            row.copy_from_slice(&piece.codes);
        }
        let quantizers = decoder.quantizers();
        memory.write_i32("codes", &[ROWS, len / quantizers, quantizers].into(), &codes)?;
        plan.run(memory)?;
        let mut samples = vec![];
        memory.read_f32("samples", &mut samples)?;
        let used = memory.counters() - before;
        let of_row = samples.chunks_exact(samples.len() / ROWS);
        let results = all.iter_mut().zip(of_row).enumerate().map(|(row, (piece, samples))| {
            piece.memory.get().copy_from(memory, &parts(&*plan, |whole| (row * whole, 0)))?;
            Ok((samples.to_vec(), used))
        });
        Ok(results.collect())
    }
}

/// Whether pieces of so many frames are less work in a batch.
fn is_worth(pieces: usize, frames: usize) -> bool {
    pieces > 1 && FRAMES_OF_A_RUN + ROWS * frames < pieces * (FRAMES_OF_A_RUN + frames)
}

impl Piece {
    /// Decodes it where it is. What is asked of the device is counted by the memory.
    pub fn decode(self, decoder: &CodecDecoder) -> Decoded {
        let Piece { mut memory, plan, codes } = self;
        let result = samples(decoder, memory.get(), plan, &codes);
        Decoded { memory, result: result.map(|samples| (samples, Counters::default())) }
    }
}

fn samples(
    decoder: &CodecDecoder,
    memory: &mut dyn Memory,
    plan: usize,
    codes: &[i32],
) -> Result<Vec<f32>, QwenError> {
    let quantizers = decoder.quantizers();
    memory.write_i32("codes", &[1, codes.len() / quantizers, quantizers].into(), codes)?;
    decoder.plan(plan)?.run(memory)?;
    let mut samples = vec![];
    memory.read_f32("samples", &mut samples)?;
    Ok(samples)
}

/// All states of an utterance on their way from or to a row of a batch, which begin where `places` says of how long they are.
fn parts<'a>(plan: &'a dyn Executable, places: impl Fn(usize) -> (usize, usize)) -> Vec<Part<'a>> {
    let part = |b: &'a Buffer| {
        let len = b.shape.len() / ROWS;
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
        let least = |frames: usize| (1..=ROWS).find(|n| is_worth(*n, frames));
        assert_eq!([1, 2, 4, 8, 16, 25].map(least), [2, 2, 3, 3, 4, 5].map(Some));
    }
}
