//! Speaking chunk by chunk.

use crate::Result;
use orate_graph::AtHome;
use orate_models::{Chunk, Chunks, Laps};

/// An iterator over the audio of a text; see [`crate::Engine::stream`].
pub struct Stream {
    /// A forked process has none of its threads, and its locks may be held forever.
    chunks: AtHome<Box<dyn Chunks>>,
    device: String,
    /// Whether the error of a forked process was returned.
    ended: bool,
}

impl Stream {
    pub(crate) fn new(chunks: Box<dyn Chunks>, device: String) -> Stream {
        Stream { chunks: AtHome::new(chunks), device, ended: false }
    }

    /// Pieces still to come.
    pub fn remaining(&self) -> usize {
        self.chunks.remaining()
    }

    /// Characters still to come.
    pub fn remaining_chars(&self) -> usize {
        self.chunks.remaining_chars()
    }

    /// What was asked for and has no effect with this model, in words.
    pub fn warnings(&self) -> &[String] {
        self.chunks.warnings()
    }

    /// Where the time went so far.
    pub fn laps(&self) -> Laps {
        self.chunks.laps()
    }

    /// Waits for the device after each stage from now on; see [`Chunks::time_apart`].
    pub fn time_apart(&mut self) {
        self.chunks.time_apart();
    }
}

impl Iterator for Stream {
    type Item = Result<Chunk>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(e) = AtHome::home(&self.chunks).check(&self.device) {
            return (!std::mem::replace(&mut self.ended, true)).then_some(Err(e.into()));
        }
        Some(self.chunks.next()?.map_err(Into::into))
    }
}
